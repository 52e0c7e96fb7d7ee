"""What costs cost who leaves them off: whole commands before there were any, and since.

    python -m results.scripts.costs_off [--pairs N] [--every N]

makes costs_off.md. Commands that end because they are done, not because a budget is, so that their time says something;
CPU seconds of all processes, since other work on the machine changes these least.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from results.measuring.measure import ROOT, geometric_mean, grid, page, write
from results.measuring.revisions import checkout, run_in
from results.scripts.house import timed

BEFORE = "fc21728"  # the last commit without costs
LANDED = "8736009"  # in which they were everywhere, and little else was new
MOST = 1.1  # CPU seconds over those before
COMMANDS = (
    "allgather --topo dgx-a100 --engine route --size 64M",
    "alltoall --topo mesh:6x6x6 --chunks 1 --size 1G",
    "allgather --topo torus:4x4 --engine flow --size 64M",
    "allreduce --topo torus:8x8 --engine route --size 1M --target none",
    "allgather --topo dgx1 --chunks 6 --steps 3 --rounds 7 --size 1M",
    "reducescatter --topo dgx-a100:2 --engine flow --size 256M --target none",
    "topo show dgx-h100:4",
)


def main() -> None:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=2, metavar="N", help="runs of each command in both revisions")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th command only")
    given = parser.parse_args()
    write(__file__, page(__file__, "Speed with costs off", list(parts(given.pairs, given.every))))


def parts(pairs: int, every: int) -> Iterator[str]:
    """The page."""
    commands = COMMANDS[::every]
    with checkout(BEFORE) as before, checkout(LANDED) as landed:
        with tempfile.TemporaryDirectory() as folder:
            for root in (before, landed, ROOT):  # compiled code is found on disk afterwards
                run_in(root, Path(folder), COMMANDS[1].split())
        rows = []
        for command in commands:
            ratios = [timed(before, after, command, pairs)[2] for after in (landed, ROOT)]
            rows.append((f"`{command}`", *(f"{ratio:.3f}" for ratio in ratios), *ratios))
            print(rows[-1], flush=True)
    for what, at in (("With costs in every room and little else new", 3), ("Today, with all else", 4)):
        ratios = [row[at] for row in rows]
        met = sum(ratio <= MOST for ratio in ratios)
        yield (
            f"{what}: geometric mean {geometric_mean(ratios):.3f}, at most {MOST:g} × in {met} of {len(ratios)}, the"
            f" most {max(ratios):.3f}."
        )
    yield (
        f"CPU seconds over those of revision {BEFORE}; medians of {pairs} runs, in turn with it, compiled code found on"
        " disk."
    )
    yield grid(("command", f"revision {LANDED}", "today"), [row[:3] for row in rows])


if __name__ == "__main__":
    main()
