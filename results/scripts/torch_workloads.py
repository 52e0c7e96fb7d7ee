"""Train small models over torch.distributed on shaped networks: with Gloo, with our algorithms, and mixed by a table.

    sudo python -m results.scripts.torch_workloads [--steps 5] [--ranks 8 16] [--budget 8s] [--only WORD] [--quick]

makes torch_workloads.md. The models are those of `results.measuring.workloads`: a mixture of experts with all-to-alls,
a DLRM, and a dense transformer. Each rank is a process in its own network namespace; tc tbf holds each link to its
rate. The script searches a library on each network as it is shaped, and tunes (`results.scripts.torch_shaped`). A job
then trains each model three times at once, step by step alternately: pure Gloo, pure ours (`using("synth")`), and mixed
by the table (`using("auto")`). The losses must be the same. --quick trains two steps on a network that is not tuned,
and writes no table. Needs root, ip and tc, and PyTorch; without one of them the script says so and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results.measuring.measure import geometric_mean, grid, page, write
from results.measuring.shaped import Links, built, everywhere, missing
from results.scripts.torch_shaped import THICK, THIN, tune
from runtime.torch.table import SPLIT_ALLTOALL

METHODS = {"gloo": "pure Gloo", "synth": "pure ours", "auto": "mixed"}
OPS = ("allreduce", "alltoall", SPLIT_ALLTOALL)
SIZES = [256 << 10, 1 << 20]  # Bytes; they enclose the calls of all workloads but tiny ones.
PAIRS = 15  # Most pairs of runs; with the least number, a single disturbed pair would decide.
SAME = 1e-3  # Relative difference of losses; orders of sums differ.


def networks() -> dict[int, tuple[str, list[str], Links]]:
    """Return the name, the nodes (as texts of ranks) and the links of each network, by its number of ranks.

    Each has two nodes, whose ranks are all linked; thin links join ranks that have the same place in both.
    """

    def two_nodes(size: int) -> tuple[str, list[str], Links]:
        """Return the network of two nodes of so many ranks."""
        inside = {(begin + a, begin + b): THICK for begin in (0, size) for a in range(size) for b in range(a + 1, size)}
        rails = {(rail, size + rail): THIN for rail in range(size)}
        return f"2 nodes of {size}", [f"0-{size - 1}", f"{size}-{2 * size - 1}"], inside | rails

    return {2 * size: two_nodes(size) for size in (4, 8)}


def seconds_of_calls() -> Counter[tuple[str, str]]:
    """Return the seconds of this process's calls so far, by collective and by what served them."""
    import synth.torch  # Only ranks need it.

    seconds: Counter[tuple[str, str]] = Counter()
    for row in synth.torch.statistics()["calls"]:
        seconds[row["collective"], row["backend"]] += row["calls"] * row["mean_us"] * 1e-6
    return seconds


def worker(result: Path, steps: int, only: str) -> None:
    """Run one rank: train each workload with all methods alternately; rank 0 writes a row for each of both.

    A step's time is that of the slowest rank, its CPU time that of all ranks. The seconds of the calls are rank 0's.
    """
    import torch.distributed as dist

    import synth.torch
    from results.measuring.workloads import WORKLOADS
    from runtime.measure.over_torch import joined

    rows: list[dict[str, Any]] = []
    with joined() as (me, _):
        for name, workload in WORKLOADS.items():
            if only not in name:
                continue
            steppers = {}
            for method in METHODS:
                with synth.torch.using(method):
                    steppers[method] = workload()
            seconds: dict[str, list[float]] = {method: [] for method in METHODS}
            cpu_seconds: dict[str, list[float]] = {method: [] for method in METHODS}
            losses: dict[str, list[float]] = {method: [] for method in METHODS}
            calls: dict[str, Counter[tuple[str, str]]] = {method: Counter() for method in METHODS}
            for step in range(steps + 1):
                for method, stepper in steppers.items():
                    with synth.torch.using("gloo"):
                        dist.barrier()
                    before, start, cpu_start = seconds_of_calls(), time.perf_counter(), time.process_time()
                    with synth.torch.using(method):
                        loss = stepper()
                    took, cpu = time.perf_counter() - start, time.process_time() - cpu_start
                    calls_of_step = seconds_of_calls() - before
                    loss, took, cpu = _over_ranks(loss, took, cpu)
                    losses[method].append(loss)
                    if step:  # The first step warms up: it reads programs and makes connections.
                        seconds[method].append(took)
                        cpu_seconds[method].append(cpu)
                        calls[method].update(calls_of_step)
            for method in METHODS:
                calls_of_method = [[*key, total / steps] for key, total in calls[method].items()]
                rows.append({"workload": name, "method": method, "seconds": seconds[method], "losses": losses[method],
                             "cpu_seconds": cpu_seconds[method], "calls": calls_of_method})  # fmt: skip
        if me == 0:
            result.write_text(json.dumps(rows))


def _over_ranks(loss: float, seconds: float, cpu_seconds: float) -> tuple[float, float, float]:
    """Return the mean loss, the largest time and the sum of the CPU times of all ranks, by calls of Gloo."""
    import torch
    import torch.distributed as dist

    import synth.torch

    mean, slowest, total = (torch.tensor([value], dtype=torch.float64) for value in (loss, seconds, cpu_seconds))
    with synth.torch.using("gloo"):
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        dist.all_reduce(total)
    return float(mean), float(slowest), float(total)


def check_losses(rows: list[dict[str, Any]]) -> None:
    """Check that training learns, and the same with all methods.

    Raises:
        SystemExit: Losses differ between methods, or do not fall.
    """
    for row in rows:
        first = next(other for other in rows if other["workload"] == row["workload"])
        for own, others in zip(row["losses"], first["losses"], strict=True):
            if abs(own - others) > SAME * abs(others):
                raise SystemExit(f"{row['workload']}, {row['method']}: loss {own}; it must be {others}, as with Gloo")
        if row["losses"][-1] >= row["losses"][0]:
            raise SystemExit(f"{row['workload']}, {row['method']}: the loss does not fall: {row['losses']}")


def measured(nodes: list[str], links: Links, ranks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of a network."""
    with tempfile.TemporaryDirectory() as folder, built(ranks, links) as spaces:
        variables = {}
        if not options.quick:
            made = tune(
                *(spaces, Path(folder), links, SIZES, OPS, PAIRS, options.budget),
                calibrates=False,
                nodes=nodes,
            )
            variables = made.variables
        result = Path(folder) / "rows.json"
        words = [sys.executable, "-m", "results.scripts.torch_workloads", "--worker", result]
        everywhere(spaces, [*words, "--steps", options.steps, "--only", options.only], variables)
        rows: list[dict[str, Any]] = json.loads(result.read_text())
    check_losses(rows)
    return rows


def report(rows_of_networks: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the parts of the page: the times, a summary, and where the time went."""
    times, shares, gains, losses_to_best = [], [], [], []
    for network, rows in rows_of_networks.items():
        for workload in dict.fromkeys(row["workload"] for row in rows):
            of_method = {row["method"]: row for row in rows if row["workload"] == workload}
            medians = {method: statistics.median(row["seconds"]) for method, row in of_method.items()}
            gains.append(medians["gloo"] / medians["auto"])
            losses_to_best.append(medians["auto"] / min(medians["gloo"], medians["synth"]))
            first, last = of_method["auto"]["losses"][0], of_method["auto"]["losses"][-1]
            times.append([network, workload, *(f"{medians[method] * 1e3:.0f}" for method in METHODS),
                          f"{gains[-1]:.2f}", f"{losses_to_best[-1]:.2f}", f"{first:.3f} → {last:.3f}"])  # fmt: skip
            for method, row in of_method.items():
                mean = statistics.fmean(row["seconds"])
                listed = sorted(row["calls"], key=lambda call: -call[2])
                parts = [f"{collective} on {backend} {100 * seconds / mean:.0f} %"
                         for collective, backend, seconds in listed if seconds > 0.01 * mean]  # fmt: skip
                rest = max(0.0, mean - sum(seconds for *_, seconds in listed))
                cpu = statistics.fmean(row["cpu_seconds"]) / mean / (os.cpu_count() or 1)
                shares.append([network, workload, METHODS[method], f"{mean * 1e3:.0f}", ", ".join(parts),
                               f"{100 * rest / mean:.0f} %", f"{100 * cpu:.0f} %"])  # fmt: skip
    summary = (
        f"The geometric mean of the gains of mixed over pure Gloo is {geometric_mean(gains):.2f}, the least"
        f" {min(gains):.2f}. Mixed takes at most {max(losses_to_best):.2f} of the time of the faster pure one."
    )
    titles = ["network", "workload", *(f"{text} ms" for text in METHODS.values()), "mixed over Gloo",
              "mixed / faster pure one", "loss"]  # fmt: skip
    where = ["network", "workload", "method", "mean step ms", "calls of rank 0, with what served them", "the rest",
             "CPU"]  # fmt: skip
    return [grid(titles, times), summary, "## Where the time went", grid(where, shares)]


def main() -> None:
    """Measure the networks, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16], choices=sorted(networks()))
    parser.add_argument("--budget", default="8s", help="time of the search for each collective")
    parser.add_argument("--only", default="", metavar="WORD", help="workloads whose name has this word; no table")
    parser.add_argument("--quick", action="store_true", help="two steps without tuning; no table")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, options.steps, options.only)
        return
    lacks = missing() + ([] if find_spec("torch") else ["PyTorch"])
    if lacks:
        print(f"torch_workloads needs {', '.join(lacks)}; nothing was measured")
        return
    options.steps = 2 if options.quick else options.steps
    start_s = time.monotonic()
    rows_of_networks = {}
    for ranks in options.ranks:
        name, nodes, links = networks()[ranks]
        rows_of_networks[f"{ranks} ranks: {name}"] = measured(nodes, links, ranks, options)
    parts = report(rows_of_networks)
    if options.quick or options.only:
        print(*parts, sep="\n\n")
        return
    about = (
        f"Links have {THICK} Mbit/s each way, and {THIN} between nodes; each rank has a namespace. Times are medians"
        f" of {options.steps} steps of the slowest rank; the three methods train alternately, each its own copy of the"
        f" model, and their losses agree within {SAME:.0e}. Shares of calls are those of the mean"
        " step, and add up to more than 100 % where calls overlap; CPU is the CPU time of all ranks as a share of that"
        f" of all {os.cpu_count()} cores. The run took"
        f" {(time.monotonic() - start_s) / 60:.0f} min."
    )
    write(__file__, page(__file__, "Training on shaped networks", [about, *parts]))


if __name__ == "__main__":
    main()
