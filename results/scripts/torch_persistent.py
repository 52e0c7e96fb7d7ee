"""Measure how long the start of a persistent call takes, compared with Gloo's and with our plain asynchronous call.

    python -m results.scripts.torch_persistent [--ranks 2 4] [--rounds 40]

makes torch_persistent.md. One job has a group of Gloo's and one of ours. Blocks of calls of torch.distributed on both
and of persistent calls alternate; only the time until the call returns its Work is measured, then the Work is waited
for. Our algorithms serve the calls in one half of the rows (`using("synth")`), Gloo in the other (`auto` without a
table). Needs PyTorch.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from results.measuring.measure import geometric_mean, grid, page, write
from results.measuring.torch_jobs import work_or_options
from results.scripts.auto import rows_of_job
from synth.model.text import format_size

SIZES = (4, 4096, 65536)
CALLS = 10  # of a block
METHODS = {"synth": "ours", "auto": "Gloo"}


def work(rounds: int) -> None:
    """Run one rank; rank 0 prints a row for each operation, size and method, with median times of starts in µs."""
    import torch  # Only ranks need it.
    import torch.distributed as dist

    import synth.torch

    torch.set_num_threads(1)
    dist.init_process_group("cpu:synth")
    gloo, ranks = dist.new_group(backend="cpu:gloo"), dist.get_world_size()
    rows = []
    for size in SIZES:
        own = torch.ones(max(1, size // 4 // ranks) * ranks)
        other, wide = torch.empty_like(own), torch.empty(len(own) * ranks)
        tensors = {
            "all_reduce": (own,),
            "broadcast": (own,),
            "all_gather_into_tensor": (wide, own),
            "reduce_scatter_tensor": (own, wide),
            "all_to_all_single": (other, own),
        }
        largest = dist.ReduceOp.MAX  # Of sums the values would become infinite.
        more: dict[str, dict[str, Any]] = {
            "all_reduce": {"op": largest}, "broadcast": {"src": 0}, "reduce_scatter_tensor": {"op": largest},
        }  # fmt: skip
        for name, given in tensors.items():
            for method in METHODS:
                with synth.torch.using(method):
                    prepared = synth.torch.persistent(name, *given, op=largest)
                plain, named = getattr(dist, name), more.get(name, {})
                starts: dict[str, Callable[[], Any]] = {
                    "gloo": lambda f=plain, t=given, n=named: f(*t, **n, group=gloo, async_op=True),
                    "plain": lambda f=plain, t=given, n=named: f(*t, **n, async_op=True),
                    "persistent": prepared.start,
                }
                times: dict[str, list[float]] = {kind: [] for kind in starts}
                for _ in range(rounds + 1):
                    for kind, start in starts.items():
                        with synth.torch.using(method):
                            times[kind].append(_block(start))
                medians = {kind: statistics.median(of_kind[1:]) for kind, of_kind in times.items()}
                rows.append({"operation": name, "size": size, "method": method, **medians})
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def _block(start: Callable[[], Any]) -> float:
    """Make a block of calls, waiting for each, and return the mean time of their starts in µs."""
    seconds = 0.0
    for _ in range(CALLS):
        begin = time.perf_counter()
        work = start()
        seconds += time.perf_counter() - begin
        work.wait()
    return seconds / CALLS * 1e6


def section(ranks: int, rounds: int) -> str:
    """Run a job, and return the part of the page for a number of ranks."""
    rows = rows_of_job("results.scripts.torch_persistent", ranks, rounds)
    table = grid(
        ("operation", "size", "served by", "start on Gloo µs", "plain start µs", "persistent start µs",
         "persistent / Gloo", "persistent / plain"),
        (
            (
                row["operation"], format_size(row["size"]), METHODS[row["method"]], f"{row['gloo']:.0f}",
                f"{row['plain']:.0f}", f"{row['persistent']:.0f}", f"{row['persistent'] / row['gloo']:.2f}",
                f"{row['persistent'] / row['plain']:.2f}",
            )
            for row in rows
        ),
    )  # fmt: skip
    means = [
        f"Served by {served_by}: {geometric_mean(row['persistent'] / row['gloo'] for row in rows_of_method):.2f} of"
        f" Gloo's time, {geometric_mean(row['persistent'] / row['plain'] for row in rows_of_method):.2f} of the plain"
        " call's, in the geometric mean."
        for method, served_by in METHODS.items()
        if (rows_of_method := [row for row in rows if row["method"] == method])
    ]
    return f"## {ranks} ranks\n\n{' '.join(means)}\n\n{table}"


def main() -> None:
    """Measure, and write the table."""
    options = work_or_options(__doc__, 40, work)
    if options is None:
        return
    parts = [
        f"Starts of asynchronous calls, PyTorch {version('torch')}, on this machine's loopback. Times are those of rank"
        f" 0, medians of {options.rounds} blocks of {CALLS} calls; the blocks of the three alternate."
        f" Load before the run: {os.getloadavg()[0]:.1f} processes."
    ]
    parts += [section(ranks, options.rounds) for ranks in options.ranks]
    write(__file__, page(__file__, "Persistent calls", parts))


if __name__ == "__main__":
    main()
