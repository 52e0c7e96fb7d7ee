"""NCCL by its own cost model: beside what nccl-tests printed elsewhere, where it switches, and beside our answers.

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
from synth.baselines.nccl.figures import PROTOCOLS, RING, TREE, VERSION
from synth.baselines.nccl.model import COLLECTIVES, Choice, NcclModel, nccl_model
from synth.present.text import format_size, format_time
from synth.synthesis import synthesize
from topologies.clusters import Machine, Nics, join
from topologies.load import load
from topologies.topology import Topology

PUBLISHED = Path(__file__).parents[1] / "measuring" / "nccl_tests.toml"
GOAL, GOAL_POINTS = 0.20, 20
CLASSES = (("below 1 MiB", 0, 1 << 20), ("1 to 64 MiB", 1 << 20, 1 << 26), ("from 64 MiB", 1 << 26, 1 << 62))
FLOOR_BYTES = 1 << 16  # of a run's first message, below which it is its call that took the time
SAID_BYTES = 1 << 33  # for figures at large messages whose size is not stated
SWITCHING = ("dgx1", "dgx-a100", "dgx-h100", "gb200-nvl72", "dgx-a100:2", "dgx-h100:2", "dgx-h100:4")
FIRST, LAST, PARTS = 6, 34, 4  # powers of two between which switches are looked for, and sizes in each
# machine, costs and target of our searches; with costs on nothing is known of what switches reduce, so that they do not
OURS = (
    ("dgx1", "machine", "auto"),
    ("dgx-a100", "machine", "auto"),
    ("dgx-h100", "machine", "auto"),
    ("dgx-h100", "machine", "mscclpp"),
    ("gb200-nvl72", "machine", "mscclpp"),
    ("dgx-h100", "none", "none"),
    ("gb200-nvl72", "none", "none"),
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


def bus_factor(collective: str, nranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests has it."""
    return {"allreduce": 2 * (nranks - 1) / nranks, "broadcast": 1.0, "reduce": 1.0}.get(collective, 1 - 1 / nranks)


def points(number: int, run: dict[str, Any]) -> Iterator[Point]:
    """The figures of one run beside the model's."""
    topology = cluster(run)
    model = nccl_model(topology, range(run.get("ranks", topology.nranks)))
    factor = bus_factor(run["collective"], model.communicator.nranks)
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
        grid(("run", "size", "published", "model", "NCCL takes", "error"), shown),
    ]


def ranks_of(run: dict[str, Any]) -> int:
    """GPUs of a run."""
    return int(run.get("ranks", load(run["machine"]).nranks * run["nodes"]))


def summary(runs: Sequence[dict[str, Any]], found: Sequence[Point]) -> list[tuple[str, int, str, str]]:
    """Name, points, median error, verdict."""
    clouds = [point for point in found if runs[point.run - 1].get("platform") and runs[point.run - 1]["nodes"] > 1]
    parts = [(name, [p for p in found if low <= p.size_bytes < high]) for name, low, high in CLASSES]
    rows = []
    for name, mine in (*parts, ("over a network whose plug-in tells NCCL a latency", clouds), ("all", found)):
        met = len(mine) >= GOAL_POINTS and statistics.median(abs(p.error) for p in mine) <= GOAL
        rows.append((name, len(mine), median_error(mine), "met" if met else "not met"))
    return rows


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


def switches(model: NcclModel, collective: str) -> str:
    """`ring LL · 64 KiB ring LL128 · …`: what is taken, and from which size on."""
    sizes = [int(2 ** (k / PARTS)) for k in range(FIRST * PARTS, LAST * PARTS + 1)]
    taken = [(model.choose(collective, size), size) for size in sizes]
    runs = [next(group) for _, group in groupby(taken, key=lambda one: (one[0].algorithm, one[0].protocol))]
    return " · ".join(
        ("" if size == sizes[0] else f"**{format_size(size)}** ") + f"{choice.algorithm} {choice.protocol}"
        for choice, size in runs
    )


def switching() -> Iterator[tuple[str, str, str]]:
    for spec in SWITCHING:
        topology = load(spec)
        model = nccl_model(topology, range(topology.nranks))
        for collective in ("allreduce", "allgather", "broadcast"):
            yield spec, collective, switches(model, collective)


def found_channels() -> Iterator[tuple[object, ...]]:
    for spec in SWITCHING:
        topology = load(spec)
        model = nccl_model(topology, range(topology.nranks))
        shapes = [
            f"{g.channels} × {g.intra_gbs:g}" + (f" / {g.inter_gbs:g}" if model.communicator.nnodes > 1 else "")
            for g in (model.graphs[RING], model.graphs[TREE])
        ]
        nvls = model.graphs["NVLS"]
        yield spec, *shapes, f"{nvls.channels} × {nvls.intra_gbs:g}" if nvls.channels else "–", model.channels


def ours(budget_s: float, every: int) -> Iterator[tuple[object, ...]]:
    """Our answers beside NCCL's choice, a row a question."""
    for (machine, costs, target), collective in list(product(OURS, COLLECTIVES))[::every]:
        found = synthesize(collective, machine, budget=budget_s, costs=costs, target=target).found
        cells = []
        for size in SIZES:
            nccl = found.library("NCCL", size)
            assert isinstance(nccl, Choice), nccl
            time_us, bound_us = found.fastest(size).time_us(size), found.bound.at(size)[0]
            cells.append(f"{nccl.time_us / time_us:.2f} ({nccl.time_us / bound_us:.2f})")
        kind = "schedules, costs off, switches reduce"
        if costs != "none":
            kind = "plans, costs on, switches reduce" if target == "mscclpp" else "programs, costs on"
        yield machine, kind, collective, *cells, format_time(nccl.time_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=15.0, metavar="S")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    given = parser.parse_args()
    runs = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["run"]
    found, shown = beside_published(runs)
    tables = sum("rows" in run for run in runs)
    parts = [
        f"NCCL {VERSION}'s own cost model as `synth` has it (`synth/baselines/nccl`), of {', '.join(PROTOCOLS)}.",
        "## Beside what nccl-tests printed elsewhere",
        f"{len(found)} points of {len(runs)} runs were found with an address, {tables} of them as tables, nearly all of"
        " all-reduce: others print little else. Error: the model's bus bandwidth over the published one, less one;"
        " medians are of its size. AWS's network plug-in tells NCCL that a NIC takes 75 µs (35 µs on p5en), by which"
        " NCCL prices each step between nodes; its tuner plug-in chooses in NCCL's place from three nodes on, so in one"
        " of these runs. Figures of the newest version stand beside runs of NCCL 2.18 to 2.28.",
        grid(("messages", "points", "median error", f"{GOAL:.0%} over {GOAL_POINTS} points"), summary(runs, found)),
        *shown,
        "### What a call takes before any byte\nWhat each run's smallest message took beyond the model's time is a"
        " constant of that host, network and version: launching a kernel a GPU and, on clouds, the network's software."
        " NCCL's model holds one figure for all hosts (6.6 to 6.8 µs under LL). The errors are those above, and after"
        " the arrow what is left of them where the run's own constant is added: as it is taken from the run, this says"
        " where the error is and counts for no goal.",
        grid(("run", "size", "published", "model", "beyond it", *(name for name, _, _ in CLASSES)), calls(runs, found)),
        "## Channels that are found\nOf each search, GB/s of a channel in the node / between nodes; as they run.",
        grid(("machine", "ring", "tree", "NVLS heads", "channels of a call"), found_channels()),
        f"## Where NCCL switches by size\nFrom which size on, looked for at {PARTS} sizes a power of two.",
        grid(("machine", "collective", "taken"), switching()),
        "Of others: RCCL's tuning is public too (`src/graph/tuning.cc`), but its channels are rings written by hand"
        " for each machine that it knows (`src/graph/rome_models.cc`), so that none follow from a topology; MSCCL++ has"
        " no cost model, its algorithms are chosen by fixed sizes. Neither is modelled, and all-to-all is not: to NCCL"
        " it is grouped send and receive calls, which its model does not price.",
    ]
    if given.budget:
        parts += [
            "## Ours beside it\n"
            "NCCL's time over ours; in brackets over the bound. *Costs on*: both count protocols and starts; MSCCL's"
            " files cannot say what switches reduce, so that NCCL, which has them reduce on H100, may beat the bound of"
            " those; plans of MSCCL++ can. *Costs off*: ours counts α and bandwidth alone, so that only large"
            f" messages compare. {given.budget:g} s a search, one in {given.every} of the questions. A broadcast's"
            " latency is to NCCL's model one step around the whole ring, less than any schedule needs.",
            grid(
                ("machine", "ours", "collective", *(format_size(s) for s in SIZES), f"NCCL @ {format_size(SIZES[-1])}"),
                ours(given.budget, given.every),
            ),
        ]
    write(__file__, page(__file__, "NCCL by its own cost model", parts))


if __name__ == "__main__":
    main()
