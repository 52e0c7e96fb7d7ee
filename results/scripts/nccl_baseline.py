"""Compare NCCL and RCCL, by their own cost models, with published tests, with MSCCL++ and with our answers.

    python -m results.scripts.nccl_baseline [--budget S] [--every N]

makes nccl_baseline.md. It compares the models with published outputs of nccl-tests and rccl-tests, and all libraries
with our answers. It also shows the message sizes at which the libraries switch algorithms. --budget is the seconds of
each of our searches (0: no searches); --every N takes each N-th of our questions. The published figures and their
addresses are in results/measuring/nccl_tests.toml.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from results.measuring.measure import grid, page, write
from synth.app.synthesis import synthesize
from synth.baselines.mscclpp import MOST_RANKS
from synth.baselines.nccl.figures import RING, TREE
from synth.baselines.nccl.figures import VERSION as NCCL_VERSION
from synth.baselines.nccl.model import COLLECTIVES, LibraryChoice, nccl_model
from synth.baselines.nccl.platforms import net_latency_us
from synth.baselines.vendors import LIBRARIES, Model
from synth.model.text import format_count, format_size, format_time
from topologies.clusters import Machine, Nics, join
from topologies.load import load, load_machine
from topologies.topology import Topology

PUBLISHED = Path(__file__).parents[1] / "measuring" / "nccl_tests.toml"
GOAL, GOAL_POINTS = 0.20, 20
CLASSES = (("below 1 MiB", 0, 1 << 20), ("1 to 64 MiB", 1 << 20, 1 << 26), ("from 64 MiB", 1 << 26, 1 << 62))
FLOOR_BYTES = 1 << 16  # The time of a first message below this size is that of the call.
SAID_BYTES = 1 << 33  # Assumed size of large messages whose size is not stated.
SWITCHING = {
    "NCCL": ("dgx1", "dgx-a100", "dgx-h100", "gb200-nvl72", "dgx-a100:2", "dgx-h100:2", "dgx-h100:4"),
    "RCCL": ("mi300x", "mi250", "mi250:2, 8 NICs", "mi250:4, 8 NICs"),
    "MSCCL++": ("mi300x", "dgx-a100", "dgx-h100", "gb200-nvl72"),
}
FIRST, LAST, PARTS = 6, 34, 4  # Powers of two between which switches are searched, and sizes in each.
# Machine, ranks (0: all) and target of our searches. Switches reduce in plans only, because the costs of switches that
# reduce for other programs are unknown.
OURS = (
    ("dgx1", 0, "executor-nccl"),
    ("dgx-a100", 0, "executor-nccl"),
    ("dgx-h100", 0, "executor-nccl"),
    ("dgx-h100", 0, "mscclpp"),
    ("gb200-nvl72", 8, "mscclpp"),
    ("gb200-nvl72", 0, "mscclpp"),
    ("mi300x", 0, "mscclpp"),
    ("mi250", 0, "rccl"),
)
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 26, 1 << 30)


@dataclass(frozen=True)
class Point:
    """A published figure and the model's.

    Attributes:
        run: Number of the run.
        size_bytes: Message size in bytes.
        published_us: Published time in µs.
        choice: The model's choice at this size, with its time in µs.
    """

    run: int
    size_bytes: int
    published_us: float
    choice: LibraryChoice

    @property
    def error(self) -> float:
        """Return the model's bus bandwidth over the published one, less one; the bus factor cancels."""
        return self.published_us / self.choice.time_us - 1


def cluster(run: dict[str, Any]) -> Topology:
    """Return the topology of a run; its NICs are spread evenly over the GPUs of each node."""
    node = replace(load(run["machine"]), platform=run.get("platform", ""))
    if run["nodes"] == 1:
        return node
    n, k = node.nranks, run["nics"]
    sets = tuple(np.arange(i * n // k, max((i + 1) * n // k, i * n // k + 1)) for i in range(k))
    return join(Machine(node, Nics(sets, sets, run["nic_gbs"], 2.6, True, k)), run["nodes"], run["machine"])


def library_of(run: dict[str, Any]) -> str:
    """Return the library whose tests a run is of."""
    return str(run.get("library", "NCCL"))


def bus_factor(collective: str, nranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    return {"allreduce": 2 * (nranks - 1) / nranks, "broadcast": 1.0, "reduce": 1.0}.get(collective, 1 - 1 / nranks)


def published_times(run: dict[str, Any], nranks: int) -> list[tuple[int, float]]:
    """Return message sizes in bytes and times in µs of one run."""
    factor = bus_factor(run["collective"], nranks)
    stated = [(SAID_BYTES, SAID_BYTES * factor / run["said_gbs"] / 1000)] if "said_gbs" in run else []
    return list(run.get("rows", stated))


def points(number: int, run: dict[str, Any]) -> Iterator[Point]:
    """Yield the figures of one run with the model's choices."""
    topology = cluster(run)
    ranks = range(run.get("ranks", topology.nranks))
    model = LIBRARIES[library_of(run)].model(topology, ranks)
    for size, took_us in published_times(run, len(ranks)):
        yield Point(number, size, took_us, model.choose(run["collective"], size))


def median_error(points_of_class: Iterable[Point]) -> str:
    """Return the median size of the error as text, or "–" without points."""
    errors = [abs(point.error) for point in points_of_class]
    return f"{statistics.median(errors):.0%}" if errors else "–"


def beside_published(runs: Sequence[dict[str, Any]]) -> tuple[list[Point], list[str]]:
    """Return all points, and the parts of the page that show them."""
    all_points = [point for number, run in enumerate(runs, 1) for point in points(number, run)]
    rows, shown = [], []
    for number, run in enumerate(runs, 1):
        points_of_run = [point for point in all_points if point.run == number]
        by_class = [median_error(p for p in points_of_run if low <= p.size_bytes < high) for _, low, high in CLASSES]
        nodes = "one node" if run["nodes"] == 1 else f"{run['nodes']} nodes of {run['nics']} × {run['nic_gbs']:g} GB/s"
        about = "; ".join(part for part in (run.get("title", ""), run.get("note", "")) if part)
        facts = (f"<{run['source']}>", run["date"], run["gpu"], nodes, run["collective"], about)
        rows.append((number, *facts, len(points_of_run), *by_class))
        factor = bus_factor(run["collective"], ranks_of(run))
        for point in points_of_run[:: max(1, len(points_of_run) // 6)]:
            times = point.published_us, point.choice.time_us
            gbs = [f"{point.size_bytes * factor / us / 1000:.1f}" for us in times]
            shown.append((number, format_size(point.size_bytes), *gbs, point.choice, f"{point.error:+.0%}"))
    titles = ("run", "source", "date", "GPUs", "nodes and NICs", "collective", "about", "points")
    return all_points, [
        grid((*titles, *(name for name, _, _ in CLASSES)), rows),
        "### Some points of each run\nBus bandwidths are in GB/s.",
        grid(("run", "size", "published", "model", "model's choice", "error"), shown),
    ]


def ranks_of(run: dict[str, Any]) -> int:
    """Return the number of GPUs of a run."""
    return int(run.get("ranks", load(run["machine"]).nranks * run["nodes"]))


def summary(runs: Sequence[dict[str, Any]], all_points: Sequence[Point]) -> list[tuple[str, int, str, str]]:
    """Return rows of name, number of points, median error and verdict."""
    nccl, amd = ([p for p in all_points if library_of(runs[p.run - 1]) == name] for name in ("NCCL", "RCCL"))
    cloud = [point for point in nccl if runs[point.run - 1].get("platform") and runs[point.run - 1]["nodes"] > 1]
    parts = [(f"NCCL, {name}", [p for p in nccl if low <= p.size_bytes < high]) for name, low, high in CLASSES]
    parts += [("NCCL, networks with a latency stated by a plug-in", cloud), ("NCCL, all", nccl)]
    parts += [(f"RCCL, {name}", [p for p in amd if low <= p.size_bytes < high]) for name, low, high in CLASSES]
    rows = []
    for name, group in (*parts, ("RCCL, all", amd)):
        met = len(group) >= GOAL_POINTS and statistics.median(abs(p.error) for p in group) <= GOAL
        rows.append((name, len(group), median_error(group), "met" if met else "not met"))
    return rows


def why(runs: Sequence[dict[str, Any]], all_points: Sequence[Point]) -> str:
    """Explain the points that are far off."""
    name, low, high = CLASSES[1]
    nccl = [p for p in all_points if library_of(runs[p.run - 1]) == "NCCL" and low <= p.size_bytes < high]
    farthest = max(nccl, key=lambda point: point.error)
    return (
        f"On some hosts every size {CLASSES[0][0]} takes nearly as long as the first one, well above the fitted start"
        " of a call. The model has one start for all hosts of a generation of GPUs, so the calls of these hosts are"
        " slow (see the table below). AWS's plug-in states one latency for all of its networks, of which the model"
        f" counts one part, but p4de takes more and p5 less. From {name} the model promises up to"
        f" {1 + farthest.error:.1f} times the measured bandwidth (run {farthest.run}). Facts about a single run stand"
        " in its row."
    )


def grouped(runs: Sequence[dict[str, Any]], all_points: Sequence[Point]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each group of points (by machine and nodes, then by choice); largest error first."""
    for criterion, key in (
        ("machine", lambda p: f"{runs[p.run - 1]['gpu']}, {format_count(runs[p.run - 1]['nodes'], 'node')}"),
        ("choice", lambda p: f"{p.choice.algorithm} {p.choice.protocol}"),
    ):
        groups: dict[str, list[Point]] = {}
        for point in all_points:
            groups.setdefault(key(point), []).append(point)
        for name, members in sorted(groups.items(), key=lambda item: -statistics.median(abs(p.error) for p in item[1])):
            by_class = (median_error(p for p in members if low <= p.size_bytes < high) for _, low, high in CLASSES)
            signed = statistics.median(p.error for p in members)
            yield criterion, name, len(members), median_error(members), f"{signed:+.0%}", *by_class


def calls(runs: Sequence[dict[str, Any]], all_points: Sequence[Point]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each run that begins with small messages, and one for all of them.

    A row has the published and the model's time of the smallest message, their difference, and the errors without and
    with this difference.
    """
    groups = [[point for point in all_points if point.run == number] for number in range(1, len(runs) + 1)]
    small_runs = [
        points_of_run for points_of_run in groups if points_of_run and points_of_run[0].size_bytes < FLOOR_BYTES
    ]
    for points_of_run in small_runs:
        difference_us = floor_us(points_of_run)
        times = (
            format_time(points_of_run[0].published_us),
            format_time(points_of_run[0].choice.time_us),
            format_time(difference_us),
        )
        yield (
            f"{points_of_run[0].run}",
            format_size(points_of_run[0].size_bytes),
            *times,
            *errors_by_class(points_of_run),
        )
    yield (
        "all runs",
        "",
        "",
        "",
        "",
        *errors_by_class([point for points_of_run in small_runs for point in points_of_run], small_runs),
    )


def floor_us(points_of_run: Sequence[Point]) -> float:
    """Return the time in µs of a run's smallest message beyond the model's time."""
    return max(0.0, points_of_run[0].published_us - points_of_run[0].choice.time_us)


def errors_by_class(all_points: Sequence[Point], groups: Sequence[Sequence[Point]] | None = None) -> Iterator[str]:
    """Yield `113% → 9%` for each class of sizes: the median error without and with the run's own floor.

    The floor of a run is added to the model's times.

    Args:
        all_points: The points.
        groups: Points by run, from which the floors are taken; without it, all points are of one run.
    """
    floor_of_run = {group[0].run: floor_us(group) for group in groups or [all_points]}
    for _, low, high in CLASSES:
        members = [point for point in all_points if low <= point.size_bytes < high]
        remaining = [abs(p.published_us / (p.choice.time_us + floor_of_run[p.run]) - 1) for p in members]
        yield f"{median_error(members)} → {statistics.median(remaining):.0%}" if members else "–"


def switches(model: Model, collective: str) -> str:
    """Describe the model's choices by size: `ring LL · **64 KiB** ring LL128 · …`."""
    sizes = [int(2 ** (k / PARTS)) for k in range(FIRST * PARTS, LAST * PARTS + 1)]
    choices = [(model.choose(collective, size), size) for size in sizes]
    runs = [
        next(group)
        for _, group in groupby(
            choices, key=lambda choice_and_size: (choice_and_size[0].algorithm, choice_and_size[0].protocol)
        )
    ]
    return " · ".join(
        ("" if size == sizes[0] else f"**{format_size(size)}** ") + f"{choice.algorithm} {choice.protocol}"
        for choice, size in runs
    )


def asked_of(library: str, spec: str) -> tuple[Topology, range]:
    """Return the topology of a row of SWITCHING and the ranks that the library serves."""
    machine, _, nics = spec.partition(", ")
    topology = load(machine)
    if nics:  # RCCL has no ready rings for such nodes with as many NICs as devices.
        node, _, nodes = machine.partition(":")
        count, leaving = int(nics.split()[0]), load_machine(node).nics
        assert leaving is not None
        gbs = leaving.gbs * len(leaving.sends) / count
        topology = cluster({"machine": node, "nodes": int(nodes), "nics": count, "nic_gbs": gbs})
    return topology, range(min(topology.nranks, MOST_RANKS) if library == "MSCCL++" else topology.nranks)


def switching() -> Iterator[tuple[str, ...]]:
    """Yield a row of choices by size for each library, machine and collective."""
    for library, specs in SWITCHING.items():
        for spec in specs:
            topology, ranks = asked_of(library, spec)
            model = LIBRARIES[library].model(topology, ranks)
            about = spec if len(ranks) == topology.nranks else f"{spec}, {len(ranks)} ranks"
            for collective in ("allreduce", "allgather", *(("broadcast",) if library != "MSCCL++" else ())):
                yield library, about, collective, switches(model, collective)


def found_channels() -> Iterator[tuple[object, ...]]:
    """Yield a row of the channels that NCCL's searches find, for each machine."""
    for spec in SWITCHING["NCCL"]:
        topology = load(spec)
        model = nccl_model(topology, range(topology.nranks))
        shapes = [
            f"{g.channels} × {g.intra_gbs:g}" + (f" / {g.inter_gbs:g}" if model.communicator.nnodes > 1 else "")
            for g in (model.graphs[RING], model.graphs[TREE])
        ]
        nvls = model.graphs["NVLS"]
        yield spec, *shapes, f"{nvls.channels} × {nvls.intra_gbs:g}" if nvls.channels else "–", model.channels


def ours(budget_s: float, every: int) -> Iterator[tuple[object, ...]]:
    """Yield a row for each question and library: the library's time over ours, and over the bound, at each size."""
    for (machine, ranks, target), collective in list(product(OURS, COLLECTIVES))[::every]:
        group = range(ranks) if ranks else None
        result = synthesize(collective, machine, group, budget=budget_s, target=target).result
        kind = "plans, switches reduce" if target == "mscclpp" else "programs"
        for name in LIBRARIES:
            choices = [choice for size in SIZES if isinstance(choice := result.library(name, size), LibraryChoice)]
            if len(choices) < len(SIZES):
                continue
            cells = []
            for size, choice in zip(SIZES, choices, strict=True):
                time_us, bound_us = result.fastest(size).time_us(size), result.bound.at(size)[0]
                cells.append(f"{choice.time_us / time_us:.2f} ({choice.time_us / bound_us:.2f})")
            yield (
                f"{machine}, {ranks} ranks" if ranks else machine,
                kind,
                collective,
                name,
                *cells,
                format_time(choices[-1].time_us),
            )


def main() -> None:
    """Measure the libraries, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=15.0, metavar="S")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    options = parser.parse_args()
    runs = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["run"]
    all_points, shown = beside_published(runs)
    tables = sum("rows" in run for run in runs)
    versions = "; ".join(f"{library.name} {library.version}" for library in LIBRARIES.values())
    parts = [
        f"The table shows which algorithms the libraries choose, by `synth/baselines/vendors.py`: {versions}. NCCL"
        " and RCCL choose by cost models of their own. NCCL's times are computed by figures that are fitted to measured"
        " times, those between nodes to the runs below (nccl_fit.md). RCCL's are those of its cost model. MSCCL++"
        " chooses an algorithm by size, and its time is by our figures.",
        "## The models and published outputs of nccl-tests and rccl-tests",
        f"{len(all_points)} points are from {len(runs)} published runs, {tables} of them tables, nearly all of"
        " all-reduce; little else is published. Error: the model's bus bandwidth over the published one, less one;"
        " medians are of its absolute value. AWS's network plug-in states to NCCL that a NIC takes"
        f" {net_latency_us('p5.48xlarge'):g} µs ({net_latency_us('p5en.48xlarge'):g} µs on p5en), with which NCCL"
        " computes each step between nodes. From three nodes on, AWS's tuner plug-in chooses instead of NCCL. The"
        f" model is that of NCCL {NCCL_VERSION}, also for runs of older versions.",
        grid(
            ("messages", "points", "median error", f"goal: {GOAL:.0%} over {GOAL_POINTS} points"),
            summary(runs, all_points),
        ),
        *shown,
        "### Errors by machine and by choice",
        grid(
            ("grouped by", "group", "points", "median error", "signed median", *(n for n, _, _ in CLASSES)),
            grouped(runs, all_points),
        ),
        why(runs, all_points),
        "### The time of a call before its first byte\nThe time of a run's smallest message beyond the model's time"
        " is a constant of its host, network and version: the launch of a kernel on each GPU and, on clouds, the"
        " network's software. The model has one figure for all hosts with the same generation of GPUs. The table shows"
        " the errors above and, after the arrow, the errors with the run's own constant added."
        " The constant is taken from the run itself, so this only locates the error; it counts for no goal.",
        grid(
            ("run", "size", "published", "model", "difference", *(name for name, _, _ in CLASSES)),
            calls(runs, all_points),
        ),
        "## Channels\nThe channels that NCCL's searches find: their number × GB/s of one in the node / between nodes,"
        " as they run. RCCL has ready rings for each machine, which use all links of a device.",
        grid(("machine", "ring", "tree", "NVLS heads", "channels of a call"), found_channels()),
        f"## Choices by message size\nEach choice with the size from which it is made, to a resolution of {PARTS}"
        " sizes a power of two.",
        grid(("library", "machine", "collective", "choices by size"), switching()),
        "All-to-all between nodes is not modelled: NCCL and RCCL run it as grouped send and receive calls, for which"
        " their cost models have no figures.",
    ]
    if options.budget:
        parts += [
            "## Our answers and the libraries\nThe library's time over ours and, in brackets, over the bound."
            " All times include protocols and starts. MSCCL's files cannot let switches reduce. NCCL does so on H100,"
            " and may beat the bound of programs in these files; plans of MSCCL++ can."
            f" A search has {options.budget:g} s; --every {options.every}. In NCCL's model a broadcast"
            " has the latency of one step around the whole ring, which is less than any schedule needs.",
            grid(
                (
                    "machine",
                    "our answers",
                    "collective",
                    "library",
                    *(format_size(s) for s in SIZES),
                    f"library's time at {format_size(SIZES[-1])}",
                ),
                ours(options.budget, options.every),
            ),
        ]
    write(__file__, page(__file__, "Libraries by their own cost models", parts))


if __name__ == "__main__":
    main()
