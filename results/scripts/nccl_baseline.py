"""NCCL and RCCL by their own cost models, beside what their tests printed elsewhere; where they and MSCCL++ switch by
size; and all of them beside our answers.

    python -m results.scripts.nccl_baseline [--budget S] [--every N]

makes nccl_baseline.md. --budget: of each search of ours, 0 for none; --every: of the machines and collectives of ours
only one in N. The figures of others, with their addresses, are results/measuring/nccl_tests.toml.
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
from synth.baselines.nccl.figures import BASE_US, RING, TREE
from synth.baselines.nccl.figures import VERSION as NCCL_VERSION
from synth.baselines.nccl.model import COLLECTIVES, Choice, nccl_model
from synth.baselines.nccl.platforms import net_latency_us
from synth.baselines.vendors import LIBRARIES, Model
from synth.model.text import format_count, format_size, format_time
from topologies.clusters import Machine, Nics, join
from topologies.load import load, load_machine
from topologies.topology import Topology

PUBLISHED = Path(__file__).parents[1] / "measuring" / "nccl_tests.toml"
GOAL, GOAL_POINTS = 0.20, 20
CLASSES = (("below 1 MiB", 0, 1 << 20), ("1 to 64 MiB", 1 << 20, 1 << 26), ("from 64 MiB", 1 << 26, 1 << 62))
FLOOR_BYTES = 1 << 16  # of a run's first message, below which it is its call that took the time
SAID_BYTES = 1 << 33  # for figures at large messages whose size is not stated
SWITCHING = {
    "NCCL": ("dgx1", "dgx-a100", "dgx-h100", "gb200-nvl72", "dgx-a100:2", "dgx-h100:2", "dgx-h100:4"),
    "RCCL": ("mi300x", "mi250", "mi250:2, 8 NICs", "mi250:4, 8 NICs"),
    "MSCCL++": ("mi300x", "dgx-a100", "dgx-h100", "gb200-nvl72"),
}
FIRST, LAST, PARTS = 6, 34, 4  # powers of two between which switches are looked for, and sizes in each
# machine, ranks (0: all), costs and target of our searches; with costs on nothing is known of what switches reduce,
# so that they do not
OURS = (
    ("dgx1", 0, "machine", "auto"),
    ("dgx-a100", 0, "machine", "auto"),
    ("dgx-h100", 0, "machine", "auto"),
    ("dgx-h100", 0, "machine", "mscclpp"),
    ("gb200-nvl72", 8, "machine", "mscclpp"),
    ("dgx-h100", 0, "none", "none"),
    ("gb200-nvl72", 8, "none", "none"),
    ("gb200-nvl72", 0, "none", "none"),
    ("mi300x", 0, "none", "none"),
    ("mi250", 0, "none", "none"),
)
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 26, 1 << 30)


@dataclass(frozen=True)
class Point:
    """One published figure and the model's: µs for `size_bytes`."""

    run: int
    size_bytes: int
    published_us: float
    choice: Choice

    @property
    def error(self) -> float:
        """The model's bus bandwidth over the published one, less one; the same factor is in both."""
        return self.published_us / self.choice.time_us - 1


def cluster(run: dict[str, Any]) -> Topology:
    """The machine of a run: NICs are spread evenly over the GPUs of each node."""
    one = replace(load(run["machine"]), platform=run.get("platform", ""))
    if run["nodes"] == 1:
        return one
    n, k = one.nranks, run["nics"]
    sets = tuple(np.arange(i * n // k, max((i + 1) * n // k, i * n // k + 1)) for i in range(k))
    return join(Machine(one, Nics(sets, sets, run["nic_gbs"], 2.6, True, k)), run["nodes"], run["machine"])


def library_of(run: dict[str, Any]) -> str:
    """Whose tests a run is of."""
    return str(run.get("library", "NCCL"))


def bus_factor(collective: str, nranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests has it."""
    return {"allreduce": 2 * (nranks - 1) / nranks, "broadcast": 1.0, "reduce": 1.0}.get(collective, 1 - 1 / nranks)


def points(number: int, run: dict[str, Any]) -> Iterator[Point]:
    """The figures of one run beside the model's."""
    topology = cluster(run)
    ranks = range(run.get("ranks", topology.nranks))
    model = LIBRARIES[library_of(run)].model(topology, ranks)
    factor = bus_factor(run["collective"], len(ranks))
    said = [(SAID_BYTES, SAID_BYTES * factor / run["said_gbs"] / 1000)] if "said_gbs" in run else []
    for size, took_us in run.get("rows", said):
        yield Point(number, size, took_us, model.choose(run["collective"], size))


def median_error(those: Iterable[Point]) -> str:
    errors = [abs(point.error) for point in those]
    return f"{statistics.median(errors):.0%}" if errors else "–"


def beside_published(runs: Sequence[dict[str, Any]]) -> tuple[list[Point], list[str]]:
    """All points, and the parts of the page that show them."""
    found = [point for number, run in enumerate(runs, 1) for point in points(number, run)]
    rows, shown = [], []
    for number, run in enumerate(runs, 1):
        mine = [point for point in found if point.run == number]
        by_class = [median_error(p for p in mine if low <= p.size_bytes < high) for _, low, high in CLASSES]
        nodes = "one node" if run["nodes"] == 1 else f"{run['nodes']} nodes of {run['nics']} × {run['nic_gbs']:g} GB/s"
        about = "; ".join(part for part in (run.get("title", ""), run.get("note", "")) if part)
        told = (f"<{run['source']}>", run["date"], run["gpu"], nodes, run["collective"], about)
        rows.append((number, *told, len(mine), *by_class))
        factor = bus_factor(run["collective"], ranks_of(run))
        for point in mine[:: max(1, len(mine) // 6)]:
            times = point.published_us, point.choice.time_us
            gbs = [f"{point.size_bytes * factor / us / 1000:.1f}" for us in times]
            shown.append((number, format_size(point.size_bytes), *gbs, point.choice, f"{point.error:+.0%}"))
    titles = ("run", "source", "date", "GPUs", "nodes and NICs", "collective", "about", "points")
    return found, [
        grid((*titles, *(name for name, _, _ in CLASSES)), rows),
        "### Some points of each run\nBus bandwidths in GB/s.",
        grid(("run", "size", "published", "model", "taken", "error"), shown),
    ]


def ranks_of(run: dict[str, Any]) -> int:
    """GPUs of a run."""
    return int(run.get("ranks", load(run["machine"]).nranks * run["nodes"]))


def summary(runs: Sequence[dict[str, Any]], found: Sequence[Point]) -> list[tuple[str, int, str, str]]:
    """Name, points, median error, verdict."""
    nccl, amd = ([p for p in found if library_of(runs[p.run - 1]) == name] for name in ("NCCL", "RCCL"))
    cloud = [point for point in nccl if runs[point.run - 1].get("platform") and runs[point.run - 1]["nodes"] > 1]
    parts = [(f"NCCL, {name}", [p for p in nccl if low <= p.size_bytes < high]) for name, low, high in CLASSES]
    parts += [("NCCL, over a network whose plug-in tells it a latency", cloud), ("NCCL, all", nccl)]
    parts += [(f"RCCL, {name}", [p for p in amd if low <= p.size_bytes < high]) for name, low, high in CLASSES]
    rows = []
    for name, mine in (*parts, ("RCCL, all", amd)):
        met = len(mine) >= GOAL_POINTS and statistics.median(abs(p.error) for p in mine) <= GOAL
        rows.append((name, len(mine), median_error(mine), "met" if met else "not met"))
    return rows


def why(runs: Sequence[dict[str, Any]], found: Sequence[Point]) -> str:
    """What is known of the points that are far off."""
    name, low, high = CLASSES[1]
    nccl = [p for p in found if library_of(runs[p.run - 1]) == "NCCL" and low <= p.size_bytes < high]
    off = max(nccl, key=lambda point: point.error)
    return (
        f"Which points are in the way, and why they stay. On many hosts every size {CLASSES[0][0]} takes"
        " nearly what the first does, well over NCCL's base latency, which is one figure for all hosts and versions"
        " since 2.18: where a process is quick to launch the same formula is right, so that it is those hosts' calls"
        " (the table below). Over AWS's network small messages take less than NCCL's own model says: the latency that"
        f" it is told is a setting by which NCCL keeps off the network. From {name} NCCL's own figures promise up to"
        f" {1 + off.error:.1f} times what came (run {off.run}). What is known of a single run is said with it. None of"
        " this is mended by a constant of ours."
    )


def grouped(runs: Sequence[dict[str, Any]], found: Sequence[Point]) -> Iterator[tuple[object, ...]]:
    """A row a group of points: by machine and nodes, then by what is taken; the largest error first."""
    for by, key in (
        ("machine", lambda p: f"{runs[p.run - 1]['gpu']}, {format_count(runs[p.run - 1]['nodes'], 'node')}"),
        ("taken", lambda p: f"{p.choice.algorithm} {p.choice.protocol}"),
    ):
        groups: dict[str, list[Point]] = {}
        for point in found:
            groups.setdefault(key(point), []).append(point)
        for name, mine in sorted(groups.items(), key=lambda one: -statistics.median(abs(p.error) for p in one[1])):
            by_class = (median_error(p for p in mine if low <= p.size_bytes < high) for _, low, high in CLASSES)
            signed = statistics.median(p.error for p in mine)
            yield by, name, len(mine), median_error(mine), f"{signed:+.0%}", *by_class


def calls(runs: Sequence[dict[str, Any]], found: Sequence[Point]) -> Iterator[tuple[object, ...]]:
    """A row a run that begins with small messages: its shortest call, the model's, and errors with and without it."""
    groups = [[point for point in found if point.run == number] for number in range(1, len(runs) + 1)]
    begun = [mine for mine in groups if mine and mine[0].size_bytes < FLOOR_BYTES]
    for mine in begun:
        over_us = floor_us(mine)
        took = format_time(mine[0].published_us), format_time(mine[0].choice.time_us), format_time(over_us)
        yield f"{mine[0].run}", format_size(mine[0].size_bytes), *took, *errors_by_class(mine)
    yield "together", "", "", "", "", *errors_by_class([point for mine in begun for point in mine], begun)


def floor_us(mine: Sequence[Point]) -> float:
    """What a run's smallest message took beyond the model's time, in µs."""
    return max(0.0, mine[0].published_us - mine[0].choice.time_us)


def errors_by_class(those: Sequence[Point], groups: Sequence[Sequence[Point]] | None = None) -> Iterator[str]:
    """`113% → 9%`: the median error by size, and that of the model's times with the run's own floor added."""
    over = {mine[0].run: floor_us(mine) for mine in groups or [those]}
    for _, low, high in CLASSES:
        mine = [point for point in those if low <= point.size_bytes < high]
        left = [abs(p.published_us / (p.choice.time_us + over[p.run]) - 1) for p in mine]
        yield f"{median_error(mine)} → {statistics.median(left):.0%}" if mine else "–"


def switches(model: Model, collective: str) -> str:
    """`ring LL · 64 KiB ring LL128 · …`: what is taken, and from which size on."""
    sizes = [int(2 ** (k / PARTS)) for k in range(FIRST * PARTS, LAST * PARTS + 1)]
    taken = [(model.choose(collective, size), size) for size in sizes]
    runs = [next(group) for _, group in groupby(taken, key=lambda one: (one[0].algorithm, one[0].protocol))]
    return " · ".join(
        ("" if size == sizes[0] else f"**{format_size(size)}** ") + f"{choice.algorithm} {choice.protocol}"
        for choice, size in runs
    )


def asked_of(library: str, spec: str) -> tuple[Topology, range]:
    """The topology of a row of SWITCHING, and those of its ranks that the library serves."""
    machine, _, nics = spec.partition(", ")
    topology = load(machine)
    if nics:  # RCCL has written no rings for nodes that are wired so and have as many NICs as devices
        node, _, nodes = machine.partition(":")
        count, leaving = int(nics.split()[0]), load_machine(node).nics
        assert leaving is not None
        gbs = leaving.gbs * len(leaving.sends) / count
        topology = cluster({"machine": node, "nodes": int(nodes), "nics": count, "nic_gbs": gbs})
    return topology, range(min(topology.nranks, MOST_RANKS) if library == "MSCCL++" else topology.nranks)


def switching() -> Iterator[tuple[str, ...]]:
    for library, specs in SWITCHING.items():
        for spec in specs:
            topology, ranks = asked_of(library, spec)
            model = LIBRARIES[library].model(topology, ranks)
            about = spec if len(ranks) == topology.nranks else f"{spec}, {len(ranks)} ranks"
            for collective in ("allreduce", "allgather", *(("broadcast",) if library != "MSCCL++" else ())):
                yield library, about, collective, switches(model, collective)


def found_channels() -> Iterator[tuple[object, ...]]:
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
    """Our answers beside each library's choice, a row a question and library."""
    for (machine, ranks, costs, target), collective in list(product(OURS, COLLECTIVES))[::every]:
        group = range(ranks) if ranks else None
        found = synthesize(collective, machine, group, budget=budget_s, costs=costs, target=target).found
        kind = "schedules, costs off" + (", switches reduce" if load(machine).switch_ops else "")
        if costs != "none":
            kind = "plans, costs on, switches reduce" if target == "mscclpp" else "programs, costs on"
        for name in LIBRARIES:
            choices = [choice for size in SIZES if isinstance(choice := found.library(name, size), Choice)]
            if len(choices) < len(SIZES):
                continue
            cells = []
            for size, choice in zip(SIZES, choices, strict=True):
                time_us, bound_us = found.fastest(size).time_us(size), found.bound.at(size)[0]
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=15.0, metavar="S")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    given = parser.parse_args()
    runs = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["run"]
    found, shown = beside_published(runs)
    tables = sum("rows" in run for run in runs)
    versions = "; ".join(f"{one.name} {one.version}" for one in LIBRARIES.values())
    parts = [
        f"Libraries by what they themselves would take, as `synth/baselines/vendors.py` has them: {versions}. NCCL"
        " and RCCL have cost models of their own; MSCCL++ takes an algorithm by size, whose time is by our figures.",
        "## Beside what nccl-tests and rccl-tests printed elsewhere",
        f"{len(found)} points of {len(runs)} runs were found with an address, {tables} of them as tables, nearly all of"
        " all-reduce: others print little else. Error: the model's bus bandwidth over the published one, less one;"
        " medians are of its size. AWS's network plug-in tells NCCL that a NIC takes"
        f" {net_latency_us('p5.48xlarge'):g} µs ({net_latency_us('p5en.48xlarge'):g} µs on p5en), by which NCCL prices"
        " each step between nodes; its tuner plug-in chooses in NCCL's place from three nodes on. Figures of NCCL"
        f" {NCCL_VERSION} stand beside runs of older versions.",
        grid(("messages", "points", "median error", f"{GOAL:.0%} over {GOAL_POINTS} points"), summary(runs, found)),
        *shown,
        "### Where the error is",
        grid(("by", "group", "points", "median", "median, signed", *(n for n, _, _ in CLASSES)), grouped(runs, found)),
        why(runs, found),
        "### What a call takes before any byte\nWhat each run's smallest message took beyond the model's time is a"
        " constant of that host, network and version: launching a kernel a GPU and, on clouds, the network's software."
        f" NCCL's model holds one figure for all hosts ({BASE_US[RING][0]:g} µs for rings under LL)."
        " The errors are those above, and after the arrow what is left of them where the run's own constant is added:"
        " as it is taken from the run, this says where the error is and counts for no goal.",
        grid(("run", "size", "published", "model", "beyond it", *(name for name, _, _ in CLASSES)), calls(runs, found)),
        "## Channels that are found\nOf each of NCCL's searches, GB/s of a channel in the node / between nodes; as they"
        " run. RCCL's rings are written down for each machine and use all that leaves a device.",
        grid(("machine", "ring", "tree", "NVLS heads", "channels of a call"), found_channels()),
        f"## Where they switch by size\nFrom which size on, looked for at {PARTS} sizes a power of two.",
        grid(("library", "machine", "collective", "taken"), switching()),
        "All-to-all is not modelled: to NCCL and RCCL it is grouped send and receive calls, which their models do not"
        " price.",
    ]
    if given.budget:
        parts += [
            "## Ours beside them\n"
            "Their time over ours; in brackets over the bound. *Costs on*: all count protocols and starts; MSCCL's"
            " files cannot say what switches reduce, so that NCCL, which has them reduce on H100, may beat the bound of"
            " those; plans of MSCCL++ can. *Costs off*: ours and MSCCL++'s count α and bandwidth alone, so that of NCCL"
            f" and RCCL only large messages compare. {given.budget:g} s a search, one in {given.every} of the"
            " questions."
            " A broadcast's latency is to NCCL's model one step around the whole ring, less than any schedule needs.",
            grid(
                (
                    "machine",
                    "ours",
                    "collective",
                    "library",
                    *(format_size(s) for s in SIZES),
                    f"its time @ {format_size(SIZES[-1])}",
                ),
                ours(given.budget, given.every),
            ),
        ]
    write(__file__, page(__file__, "Libraries by their own models", parts))


if __name__ == "__main__":
    main()
