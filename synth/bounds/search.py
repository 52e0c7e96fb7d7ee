"""The state and the limits of the searches for witnesses, and the classes of their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from synth.bounds.traffic import Traffic
from synth.bounds.witness import Witness
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from synth.solvers.workers import Workers
from topologies.network import Network


class BoundCost(IntEnum):
    """The cost class of a search for witnesses; `prove.tighten` goes from the cheapest to the dearest."""

    QUICK = 0  # milliseconds for a few ranks, seconds for thousands
    MAX_FLOW = 1  # the worst of all cuts, by maximum flows
    ROUTING = 2  # dual prices from the loads of a routing
    LINEAR_PROGRAM = 3
    SIZE = 4  # for one message size; tens of milliseconds
    WINDOWS = 5  # linear programs over slots of time, for one message size


@dataclass(frozen=True)
class BoundTuning:
    """Limits on how widely the searches look.

    They change what the searches find and how long they take, never what a witness proves.

    Attributes:
        all_sets: Number of ranks up to which every rank and every node is tried as a cut (10 ms).
        few: Number of sets of every sort that are tried in larger networks, those estimated to be the worst.
        most_sets: Number of sets whose cuts, and whose complements' cuts, are estimated at once.
        timed_ranks: Number of ranks up to which chunks that cross a cut late are looked at (50 ms).
        table_cells: Most cells of a table of links × sets or ranks × ranks (80 MB).
        sweep_work: Most links × orders of the ranks that are swept (about a second).
        spectral_vertices: Most vertices of a graph whose eigenvectors are computed (about a second).
        split_links: Number of links of a longest route whose two sides are tried.
        split_work: Most links and vertices looked at for these sides (about a second).
        path_work: Most links and ranks looked at for the longest shortest path (some seconds).
        widths: Number of bandwidths at which ranks are joined to parts.
        parts_work: Most links × neighbours × ranks of a network that is partitioned by merging and moving (0.1 s).
        max_flow_work: Most arcs and ranks of all flows' graphs, in sum (some seconds).
        near_full: Shares of the highest load; resources with at least that load get one price. More of them gain little
            and take longer.
        steepness: A resource's price is exp(steepness · load / highest load). More of them gain little and take longer.
        sampled_ranks: Number of ranks whose chunks separate good prices from bad ones, where there are more ranks.
        step_ranks: Number of ranks whose chunks one step of mirror ascent looks at.
        tried: Number of candidate prices that are evaluated on all chunks.
        mirror_rounds: Rounds of mirror ascent from a routing's loads; more gain less than 1 %.
        program_variables: Most variables of a linear program (a minute).
        window_ranks: Number of ranks up to which windows of time are used.
        window_slots: Numbers of slots of time, few first; fewer where they need more than `window_variables`.
        window_variables: Most variables of a linear program over slots (some seconds).
        window_tries: Number of end times that are tried with one number of slots.
        window_near: Time / bound at which the search for a later end stops.
        program_cells: Most chunks × ranks of the tables from which a program is built (32 MB).
    """

    all_sets: int = 64
    few: int = 4
    most_sets: int = 80
    timed_ranks: int = 128
    table_cells: int = 10_000_000
    sweep_work: int = 1 << 20
    spectral_vertices: int = 3000
    split_links: int = 40
    split_work: int = 4_000_000
    path_work: int = 15_000_000
    widths: int = 32
    parts_work: int = 4_000_000
    max_flow_work: int = 40_000_000
    near_full: tuple[float, ...] = (0.999, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
    steepness: tuple[float, ...] = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
    sampled_ranks: int = 96
    step_ranks: int = 64
    tried: int = 3
    mirror_rounds: int = 10
    program_variables: int = 400_000
    window_ranks: int = 32
    window_slots: tuple[int, ...] = (9, 21, 41)
    window_variables: int = 250_000
    window_tries: int = 6
    window_near: float = 1.003
    program_cells: int = 4_000_000


DEFAULT = BoundTuning()


@dataclass(eq=False)
class BoundSearch:
    """The state that the searches of all kinds share.

    Attributes:
        problem: The problem, already reduced by `witness.countable`.
        tuning: Limits of the searches.
        witnesses: Witnesses so far, with the numbers that they prove.
        loads_us: For BoundCost.ROUTING, how long a good schedule keeps each resource busy, in any unit, shape
            (nresources,).
        workers: Solver processes, for BoundCost.LINEAR_PROGRAM and BoundCost.WINDOWS.
        budget_s: Time in seconds for BoundCost.LINEAR_PROGRAM and BoundCost.WINDOWS.
        size_bytes: Message size in bytes, for BoundCost.SIZE and BoundCost.WINDOWS.
        reached_us: Time in µs that a schedule reaches at this size, for BoundCost.WINDOWS.
    """

    problem: Problem
    tuning: BoundTuning = DEFAULT
    witnesses: list[Witness] = field(default_factory=list)
    loads_us: Floats | None = None
    workers: Workers | None = None
    budget_s: float = 0.0
    size_bytes: float = 0.0
    reached_us: float = 0.0

    @cached_property
    def traffic(self) -> Traffic:
        """Return what the collective must carry across sets of ranks; it is computed once."""
        return Traffic(self.problem)

    def name_ranks(self, ranks: Sequence[int] | Ints) -> str:
        """Return the text that names a set of local ranks by the topology's numbers, such as `{0, 1, 5}`.

        More than 12 ranks are `all N ranks`, if they are all, or the first 10 and their number.
        """
        if len(ranks) == self.problem.nranks > 12:
            return f"all {len(ranks)} ranks"
        names = [self.problem.ranks[r] for r in ranks[:13]]
        if len(ranks) > 12:
            return f"{{{', '.join(map(str, names[:10]))}, … {len(ranks)} ranks}}"
        return "{" + ", ".join(map(str, names)) + "}"


def with_gbs(text: str, net: Network, resources: Ints) -> str:
    """Return the text of a witness followed by the GB/s of its resources in sum, as in `TEXT, 50 GB/s`."""
    return f"{text}, {float(net.capacity_gbs[resources].sum()):.6g} GB/s"
