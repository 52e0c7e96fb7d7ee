"""Compare planned all-to-alls of torch.distributed with Gloo's on shaped networks, for skewed sizes, in one run.

    sudo python -m results.scripts.torch_skewed [--quick]

makes torch_skewed.md. Each rank is a process in its own network namespace; tc tbf holds each link to its rate. Calls
are those of mixtures of experts: `all_to_all_single` with splits. Gloo and `auto`, to which SYNTH_TOPOLOGY states the
network, run alternately. Needs root, ip and tc, and PyTorch; without one of them the script says so and writes nothing.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results.measuring.measure import grid, page, write
from results.measuring.shaped import Links, built, everywhere, missing, topology
from results.scripts.skewed import Sizes, matrices

THICK, THIN = 400, 12.5  # Mbit/s inside nodes and of a NIC
ALPHA_US = 200
RANKS = 8
MEAN_BYTES = 128 << 10  # of a block
METHODS = ("gloo", "auto")


def networks() -> dict[str, tuple[list[str], Links]]:
    """Return the nodes (as texts of ranks) and the links of each network, by name."""

    def inside(size: int) -> Links:
        """Return links between every two ranks of each node of so many ranks."""
        starts = range(0, RANKS, size)
        return {(a, b): THICK for s in starts for a in range(s, s + size) for b in range(a + 1, s + size)}

    rails = inside(4) | {(r, r + 4): THIN for r in range(4)}
    switch: Links = inside(2) | {(r, RANKS): THIN for r in range(RANKS)}
    return {
        "2 nodes of 4, rails": (["0-3", "4-7"], rails),
        "4 nodes of 2, one switch": (["0-1", "2-3", "4-5", "6-7"], switch),
    }


def worker(result: Path, runs: int) -> None:
    """Run one rank: for each matrix measure both methods one after the other, the slowest rank counting.

    Every run of a kind has other sizes, as every step of a mixture of experts has, so that plans are made anew.
    """
    import torch
    import torch.distributed as dist

    import synth.torch

    dist.init_process_group("cpu:synth")
    me = dist.get_rank()
    rows: list[dict[str, Any]] = []
    by_kind: dict[str, list[Sizes]] = {}
    for kind, sizes in matrices(RANKS, runs + 1, MEAN_BYTES):
        by_kind.setdefault(kind, []).append(sizes)
    for kind, all_sizes in by_kind.items():
        seconds: dict[str, list[float]] = {method: [] for method in METHODS}
        for run, sizes in enumerate(all_sizes * (1 if len(all_sizes) > 1 else runs + 1)):
            sent = torch.arange(int(sizes[me].sum()), dtype=torch.int64).to(torch.uint8)
            for method in METHODS:
                received = torch.zeros(int(sizes[:, me].sum()), dtype=torch.uint8)
                dist.barrier()
                start = time.perf_counter()
                with synth.torch.using(method):
                    dist.all_to_all_single(received, sent, sizes[:, me].tolist(), sizes[me].tolist())
                slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                if run:  # The first run warms up.
                    seconds[method].append(float(slowest))
                if method == METHODS[0]:
                    wanted = received
            if not torch.equal(received, wanted):
                raise SystemExit(f"{kind}: rank {me} has wrong bytes")
        served = synth.torch.process_group.counters.last("alltoall") or ""
        rows.append({"kind": kind, "served": served, **{m: statistics.median(seconds[m]) for m in METHODS}})
    dist.destroy_process_group()
    if me == 0:
        result.write_text(json.dumps(rows))


def measured(nodes: list[str], links: Links, runs: int) -> list[dict[str, Any]]:
    """Return a network's rows: the kind of matrix, what served it, and the seconds by method."""
    with tempfile.TemporaryDirectory() as folder, built(RANKS, links) as spaces:
        described, result = Path(folder) / "shaped.toml", Path(folder) / "rows.json"
        described.write_text(f"nodes = {json.dumps(nodes)}\n{topology(RANKS, links, ALPHA_US)}")
        words: list[object] = [sys.executable, "-m", "results.scripts.torch_skewed", "--worker", result, runs]
        everywhere(spaces, words, {"SYNTH_TOPOLOGY": str(described)})
        rows: list[dict[str, Any]] = json.loads(result.read_text())
        return rows


def main() -> None:
    """Measure the networks, and write the table."""
    lacks = missing() + ([] if find_spec("torch") else ["PyTorch"])
    if lacks:
        print(f"torch_skewed needs {', '.join(lacks)}; nothing was measured")
        return
    quick = "--quick" in sys.argv
    runs = 1 if quick else 5
    lines: list[list[object]] = []
    gains: dict[bool, list[float]] = {True: [], False: []}
    for name, (nodes, links) in networks().items():
        for row in measured(nodes, links, runs):
            gain = row["gloo"] / row["auto"]
            gains[row["kind"].startswith("even")].append(gain)
            times = (f"{row[method] * 1e3:.0f}" for method in METHODS)
            lines.append([name, row["kind"], row["served"], *times, f"{gain:.2f}"])
    skewed = gains[False]
    mean = math.exp(statistics.fmean(map(math.log, skewed)))
    summary = (
        f"Over skewed sizes the geometric mean of the gains is {mean:.2f}; the least gain of all rows is"
        f" {min(skewed + gains[True]):.2f}."
    )
    table = grid(["network", "sizes", "auto ran", "Gloo ms", "auto ms", "gain"], lines)
    if quick:
        print(table, summary, sep="\n\n")
        return
    about = (
        f"{RANKS} ranks, each in a namespace; links of {THICK} Mbit/s each way inside nodes, NICs of {THIN}. Blocks"
        f" have {MEAN_BYTES >> 10} KiB in the mean. Times are medians of {runs} runs, with other sizes in each,"
        " of the slowest rank; in each call of `auto` ranks exchange the sizes and plan."
    )
    write(
        __file__, page(__file__, "Planned all-to-alls of skewed sizes over torch.distributed", [about, table, summary])
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
