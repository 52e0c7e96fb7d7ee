"""Run random programs of asynchronous calls on overlapping groups and several back ends of torch.distributed.

    python -m results.scripts.torch_programs [--programs 1000] [--ranks 4 6]

makes torch_programs.md. A program starts two to eight calls, each on a random group, on one of four back ends: Gloo,
ours, and two more that a script has added. Each rank waits for its calls in an order of its own. Jobs of 100 programs
have new groups each. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results.measuring.measure import grid, page, write
from tests.runtime.torch.ranks import run_ranks

PROGRAMS_OF_JOB = 100


def run_job(ranks: int, programs: int, seed: int) -> list[dict[str, Any]] | None:
    """Return what each rank of a job wrote, or None if one of them failed or did not end."""
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / str(rank) for rank in range(ranks)]
        command = ["tests.runtime.torch.several_backends", str(programs), str(seed)]
        plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
        try:
            ended = run_ranks(command, f"file://{folder}/store", results, plain)
        except subprocess.TimeoutExpired:
            return None
        if any(code for code, _ in ended):
            print(*(output for _, output in ended), sep="\n")
            return None
        return [json.loads(path.read_text()) for path in results]


def row_of(ranks: int, programs: int) -> list[object]:
    """Return the row of a number of ranks."""
    start_s, failed, wrong, calls = time.monotonic(), 0, 0, Counter[str]()
    sizes = [PROGRAMS_OF_JOB] * (programs // PROGRAMS_OF_JOB) + [programs % PROGRAMS_OF_JOB] * bool(
        programs % PROGRAMS_OF_JOB
    )
    for seed, programs_of_job in enumerate(sizes, 1):
        answers = run_job(ranks, programs_of_job, seed)
        failed += answers is None
        for answer in answers or []:
            wrong += len(answer["wrong"])
            calls.update(answer["served"])
    counts = ", ".join(f"{name} {count}" for name, count in sorted(calls.items()))
    return [ranks, programs, len(sizes), counts, wrong, failed, f"{time.monotonic() - start_s:.0f}"]


def main() -> None:
    """Run the programs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 6])
    options = parser.parse_args()
    if not find_spec("torch"):
        print("torch_programs needs PyTorch; nothing was run")
        return
    rows = [row_of(ranks, options.programs) for ranks in options.ranks]
    titles = ["ranks", "programs", "jobs", "calls of all ranks, by what served them", "wrong results",
              "jobs that failed or did not end", "seconds"]  # fmt: skip
    about = (
        "A program starts 2 to 8 calls with `async_op`, each on a random one of overlapping groups and on a random one"
        " of four back ends (`second` and `third` are added ones); each rank waits in an order of its own. Each job of"
        f" {PROGRAMS_OF_JOB} programs has a seed and groups of its own."
    )
    write(__file__, page(__file__, "Random programs on several back ends", [about, grid(titles, rows)]))


if __name__ == "__main__":
    main()
