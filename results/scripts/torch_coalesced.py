"""Measure many small calls as one: the coalescing manager of torch.distributed with Gloo's group and with ours.

    python -m results.scripts.torch_coalesced [--ranks 2 4] [--rounds 15]

makes torch_coalesced.md. At least 5 rounds are needed, since only every fifth makes the calls one by one. One job has a
group of Gloo's, one of ours and a second one of Gloo's as a control, whose runs alternate; each is compared with that
of Gloo's before it. The calls of one run are made coalesced, and one by one. No table says that ours is faster. Needs
PyTorch.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from results.measuring.measure import grid, page, write
from results.measuring.torch_jobs import work_or_options
from results.scripts.auto import rows_of_job

CALLS, ELEMENTS = 200, 1024
ORDER = ("gloo", "auto", "again")
ONE_BY_ONE = 5  # A run one by one takes long: of so many rounds one has it.


def work(rounds: int) -> None:
    """Run one rank; rank 0 prints a row for each operation, with medians."""
    import torch  # Only ranks need it.
    import torch.distributed as dist

    import synth.torch  # noqa: F401 - it registers our back end

    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    groups = {name: dist.new_group(backend="cpu:synth" if name == "auto" else "cpu:gloo") for name in ORDER}
    n = dist.get_world_size()
    small = [torch.ones(ELEMENTS) for _ in range(CALLS)]
    large = [torch.ones(n * ELEMENTS) for _ in range(CALLS)]
    largest = dist.ReduceOp.MAX  # Of sums the values would become infinite.
    operations: dict[str, Callable[[Any, Any, Any], Any]] = {
        "all_reduce": lambda one, _, group: dist.all_reduce(one, largest, group=group),
        "all_gather_single": lambda one, wide, group: dist.all_gather_single(wide, one, group=group),
        "reduce_scatter_single": lambda one, wide, group: dist.reduce_scatter_single(one, wide, largest, group=group),
    }
    rows = []
    for name, operation in operations.items():

        def all_calls(group: Any, operation: Callable[[Any, Any, Any], Any] = operation) -> None:
            """Make the calls one by one."""
            for one, wide in zip(small, large, strict=True):
                operation(one, wide, group)

        times: dict[str, list[tuple[float, float]]] = {
            f"{group}{kind}": [] for group in ORDER for kind in ("", " each")
        }
        for number in range(rounds + 1):  # The first round is not counted.
            for kind in ("", " each") if number % ONE_BY_ONE == 0 else ("",):
                for name_of_group, group in groups.items():
                    start_s, start_busy_s = time.perf_counter(), time.process_time()
                    if kind:
                        all_calls(group)
                    else:
                        with dist._coalescing_manager(group=group):
                            all_calls(group)
                    passed = time.perf_counter() - start_s, time.process_time() - start_busy_s
                    if number:
                        times[f"{name_of_group}{kind}"].append(passed)
        row: dict[str, Any] = {"operation": name}
        for key, passed_times in times.items():
            row[key] = [statistics.median(passed[at] for passed in passed_times) * 1e6 for at in (0, 1)]
        for key in ("auto", "again"):
            pairs = list(zip(times[key], times["gloo"], strict=True))
            row[f"{key} / gloo"] = [statistics.median(own[at] / gloo[at] for own, gloo in pairs) for at in (0, 1)]
        rows.append(row)
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def section(ranks: int, rounds: int) -> str:
    """Run a job, and return the part of the page for a number of ranks."""
    rows = rows_of_job("results.scripts.torch_coalesced", ranks, rounds)
    table = grid(
        (
            "operation", "Gloo one by one µs", "Gloo coalesced µs", "auto / Gloo", "Gloo again / Gloo", "CPU: auto",
            "again", "auto one by one / coalesced",
        ),
        (
            (
                row["operation"], f"{row['gloo each'][0]:.0f}", f"{row['gloo'][0]:.0f}", f"{row['auto / gloo'][0]:.2f}",
                f"{row['again / gloo'][0]:.2f}", f"{row['auto / gloo'][1]:.2f}", f"{row['again / gloo'][1]:.2f}",
                f"{row['auto each'][0] / row['auto'][0]:.1f}",
            )
            for row in rows
        ),
    )  # fmt: skip
    return f"## {ranks} ranks\n\n{table}"


def main() -> None:
    """Measure, and write the table."""
    options = work_or_options(__doc__, 15, work, ONE_BY_ONE)
    if options is None:
        return
    parts = [
        f"{CALLS} calls of {4 * ELEMENTS // 1024} KiB a rank, PyTorch {version('torch')}, on this machine's loopback."
        f" Times are those of rank 0, medians of {options.rounds} runs (one by one: {options.rounds // ONE_BY_ONE});"
        f" ratios are medians of the ratios of neighbouring runs. Load before the run:"
        f" {os.getloadavg()[0]:.1f} processes."
    ]
    parts += [section(ranks, options.rounds) for ranks in options.ranks]
    write(__file__, page(__file__, "Many calls as one", parts))


if __name__ == "__main__":
    main()
