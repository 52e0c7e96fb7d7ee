"""Measure what our back end adds to calls that Gloo serves: every operation of torch.distributed under `auto`.

    python -m results.scripts.torch_overhead [--ranks 2 4] [--rounds 12]

makes torch_overhead.md. One job has a group of Gloo's, one of ours and a second one of Gloo's as a control. Blocks of
calls of the three alternate, and each is compared with a neighbouring block of Gloo's. No table says that ours is
faster, so Gloo serves all that it can. Needs PyTorch.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from results.measuring.measure import grid, page, write
from results.measuring.torch_jobs import work_or_options
from results.scripts.auto import rows_of_job
from synth.model.text import format_size

SIZES = (4, 4096, 65536)
CALLS = 10  # of a block
ORDER = ("gloo", "auto", "again", "auto", "gloo", "again")


def operations(size: int, rank: int, ranks: int) -> dict[str, Callable[[Any], Any]]:
    """Return by name a function for each operation, which makes one call of a group.

    Args:
        size: Bytes of a rank's tensor, at least; it has as many elements as there are ranks, or more.
        rank: This rank.
        ranks: Number of ranks, which is even.
    """
    import torch  # Only ranks need it.
    import torch.distributed as dist

    own = torch.ones(max(1, size // 4 // ranks) * ranks)
    other, wide, part = torch.empty_like(own), torch.empty(len(own) * ranks), torch.empty(len(own) // ranks)
    parts = [torch.empty_like(own) for _ in range(ranks)]
    at_root = rank == 0

    def to_and_fro(group: Any) -> None:
        first, second = (dist.send, dist.recv) if rank % 2 == 0 else (dist.recv, dist.send)
        first(own, rank ^ 1, group=group)
        second(own, rank ^ 1, group=group)

    def both_ways(group: Any) -> None:
        for work in (dist.isend(own, rank ^ 1, group=group), dist.irecv(other, rank ^ 1, group=group)):
            work.wait()

    start: dict[str, Callable[..., Any]] = {
        "all_reduce": partial(dist.all_reduce, own),
        "broadcast": partial(dist.broadcast, own, 0),
        "reduce": partial(dist.reduce, own, 0),
        "all_gather_single": partial(dist.all_gather_single, wide, own),
        "reduce_scatter_single": partial(dist.reduce_scatter_single, part, own),
        "all_to_all_single": partial(dist.all_to_all_single, other, own),
        "all_gather": partial(dist.all_gather, parts, own),
        "gather": partial(dist.gather, own, parts if at_root else None, 0),
        "scatter": partial(dist.scatter, other, parts if at_root else None, 0),
        "barrier": dist.barrier,
    }
    calls: dict[str, Callable[[Any], Any]] = {}
    for name, begin in start.items():
        calls[name] = lambda group, begin=begin: begin(group=group)
        calls[f"{name}, async"] = lambda group, begin=begin: begin(group=group, async_op=True).wait()
    return {**calls, "send, recv": to_and_fro, "isend, irecv": both_ways}


def median_us(ends_s: list[float]) -> float:
    """Return the median time of a block's calls in µs, from its start and the ends of its calls in seconds.

    In some calls a thread of Gloo's takes the processor for which the caller waits, for some milliseconds. The mean of
    a block would tell of these calls only.
    """
    return statistics.median(end_s - start_s for start_s, end_s in pairwise(ends_s)) * 1e6


def paired_ratio(times: list[float], times_of_gloo: list[float]) -> float:
    """Return the median ratio of the times of blocks to those of Gloo's neighbouring blocks."""
    return statistics.median(time / of_gloo for time, of_gloo in zip(times, times_of_gloo, strict=True))


def work(rounds: int) -> None:
    """Run one rank; rank 0 prints a row for each operation and size, with medians in µs."""
    import torch
    import torch.distributed as dist

    import synth.torch  # noqa: F401 - it registers our back end

    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    groups = {name: dist.new_group(backend="cpu:synth" if name == "auto" else "cpu:gloo") for name in ORDER[:3]}
    rows = []
    for size in SIZES:
        for name, call in operations(size, dist.get_rank(), dist.get_world_size()).items():
            wall: dict[str, list[float]] = {group: [] for group in groups}
            busy: dict[str, list[float]] = {group: [] for group in groups}
            for group in groups.values():
                call(group)
            for _ in range(rounds):
                for group in ORDER:
                    ends_s, busy_ends_s = [time.perf_counter()], [time.process_time()]
                    for _ in range(CALLS):
                        call(groups[group])
                        ends_s.append(time.perf_counter())
                        busy_ends_s.append(time.process_time())
                    wall[group].append(median_us(ends_s))
                    busy[group].append(median_us(busy_ends_s))
            row: dict[str, Any] = {"operation": name, "size": size}
            row["us"], row["busy_us"] = statistics.median(wall["gloo"]), statistics.median(busy["gloo"])
            for group in ORDER[1:3]:
                row[group] = paired_ratio(wall[group], wall["gloo"]), paired_ratio(busy[group], busy["gloo"])
            rows.append(row)
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def section(ranks: int, rounds: int) -> str:
    """Run a job, and return the part of the page for a number of ranks."""
    rows = rows_of_job("results.scripts.torch_overhead", ranks, rounds)
    table = grid(
        ("operation", "size", "Gloo µs", "auto / Gloo", "Gloo again / Gloo", "CPU µs of Gloo", "auto", "again"),
        (
            (
                row["operation"], format_size(row["size"]), f"{row['us']:.0f}", f"{row['auto'][0]:.2f}",
                f"{row['again'][0]:.2f}", f"{row['busy_us']:.0f}", f"{row['auto'][1]:.2f}", f"{row['again'][1]:.2f}",
            )
            for row in rows
        ),
    )  # fmt: skip

    def median(name: str, group: str, at: int) -> str:
        """Return the median of an operation's ratios of time (0) or CPU time (1)."""
        return f"{statistics.median(row[group][at] for row in rows if row['operation'] == name):.2f}"

    by_operation = grid(
        ("operation", "auto / Gloo", "Gloo again / Gloo", "CPU: auto", "again"),
        (
            (name, *(median(name, group, at) for at in (0, 1) for group in ("auto", "again")))
            for name in dict.fromkeys(row["operation"] for row in rows)
        ),
    )
    return f"## {ranks} ranks\n\nMedians over the sizes:\n\n{by_operation}\n\nAll:\n\n{table}"


def main() -> None:
    """Measure, and write the table."""
    options = work_or_options(__doc__, 12, work)
    if options is None:
        return
    parts = [
        f"Calls that Gloo serves, PyTorch {version('torch')}, on this machine's loopback. Times are medians of"
        f" {2 * options.rounds} blocks of rank 0, each with the median of its {CALLS} calls; ratios are medians of the"
        " ratios of neighbouring blocks;"
        " CPU time is that of all threads of its process."
        f" Load before the run: {os.getloadavg()[0]:.1f} processes."
    ]
    parts += [section(ranks, options.rounds) for ranks in options.ranks]
    write(__file__, page(__file__, "What our back end adds to Gloo's calls", parts))


if __name__ == "__main__":
    main()
