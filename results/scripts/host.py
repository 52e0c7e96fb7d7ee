"""The host executor against what this machine can copy.

    python -m results.scripts.host

makes host.md: all-reduce of 8 ranks × 64 MiB, the bytes that it must move over the time that it takes, beside the rate
at which as many threads copy memory, measured in the same run.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from results.measuring.measure import grid, page, write
from results.scripts.handwritten import instructions_of, right, words
from runtime.bench import count_wrong, make_input
from runtime.buffers import Layout, goal_of
from runtime.host.executor import HostExecutor

GOAL = 0.6
BYTES = 64 << 20
ALGORITHMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ring", {}),
    ("ring", {"instances": 2}),
    ("allpairs", {"passes": 2}),
    ("halving_doubling", {}),
    ("hierarchical", {"nodes": 2, "gpus": 4}),
)
TURNS = 7


def copy_rate(threads: int, size: int = BYTES) -> float:
    """Bytes a second that threads copy together from one large array to another, each its own (bytes counted once)."""
    given = [np.ones(size // 4, np.float32) for _ in range(threads)]
    made = [np.empty_like(array) for array in given]
    best = float("inf")
    for _ in range(TURNS):
        workers = [threading.Thread(target=np.copyto, args=pair) for pair in zip(made, given, strict=True)]
        begun = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - begun)
    return threads * size / best


def timed(example: str, settings: dict[str, Any]) -> tuple[float, float, int]:
    """Seconds of an execution (the best of some), bytes that any all-reduce must move, wrong elements."""
    ir = instructions_of(example, settings)
    program = right(ir)
    n = program.nranks
    layout = Layout.of(program, BYTES // 4)
    given = [make_input(layout, rank, "float", "sum") for rank in range(n)]
    executor = HostExecutor(program)
    best = float("inf")
    buffers = given
    for _ in range(TURNS):
        buffers = [array.copy() for array in given]
        begun = time.perf_counter()
        executor.run(buffers, buffers)
        best = min(best, time.perf_counter() - begun)
    wrong = count_wrong(goal_of(program, None, True), layout, given, buffers, buffers, "float", "sum")
    # every rank's part goes to the others, summed or to be summed, and comes back
    return best, 2 * (n - 1) / n * BYTES * n, wrong


def main() -> None:
    threads = os.cpu_count() or 1
    rows = []
    least = float("inf")
    faults = 0
    for example, settings in ALGORITHMS:
        rate = copy_rate(threads)  # beside each, for the machine is not always equally fast
        seconds, moved, wrong = timed(example, settings)
        ratio = moved / seconds / rate
        least = min(least, ratio)
        faults += wrong
        rows.append(
            [
                f"`{words(example, settings)}`",
                f"{seconds * 1e3:.0f}",
                f"{moved / seconds / 1e9:.1f}",
                f"{rate / 1e9:.1f}",
                f"{ratio:.2f}",
                wrong,
            ]
        )
    parts = [
        f"All-reduce of 8 ranks × {BYTES >> 20} MiB of float32, in place, best of {TURNS} runs. Moved:"
        " 2 (n − 1) / n of every buffer, which any all-reduce must; copied: large arrays by as many threads, bytes"
        f" counted once. The least ratio is **{least:.2f}** (goal {GOAL:g}).",
        grid(["algorithm", "ms", "moved, GB/s", "copied, GB/s", "ratio", "#wrong"], rows),
    ]
    write(__file__, page(__file__, "The host executor", parts))
    if faults:
        raise SystemExit("host: wrong elements, see the table")


if __name__ == "__main__":
    main()
