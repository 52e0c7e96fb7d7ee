"""What the searches for witnesses look at, how widely, and how dear they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from synth.bounds.traffic import Traffic
from synth.bounds.witness import Witness, whole_network
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from synth.solvers.workers import Workers


class Cost(IntEnum):
    """How dear a search for witnesses is; `prove.tighten` goes from the first to the last."""

    QUICK = 0  # milliseconds for a few ranks, seconds for thousands
    MAX_FLOW = 1  # the worst of all cuts
    ROUTING = 2  # dual prices from the loads of a routing
    LINEAR_PROGRAM = 3
    WINDOWS = 4  # linear programs over slots of time, for one message size


@dataclass(frozen=True)
class Tuning:
    """How widely the searches look; it changes what they find and how long they take, never what a witness proves."""

    all_sets: int = 64  # ranks up to which every rank and every node is tried as a cut: 10 ms
    few: int = 4  # sets of every sort that are tried otherwise: those estimated to be the worst
    most_sets: int = 80  # whose cuts are estimated side by side, each with its other side
    timed_ranks: int = 128  # up to which what crosses cuts late is looked at: 50 ms
    table_cells: int = 10_000_000  # of a table of links × sets or ranks × ranks: 80 MB
    sweep_work: int = 1 << 20  # links × orders of the ranks that are swept: about a second
    spectral_vertices: int = 3000  # of a graph whose eigenvectors are computed: about a second
    split_links: int = 40  # of a longest route, whose two sides are tried
    split_work: int = 4_000_000  # links and vertices looked at for these: about a second
    path_work: int = 15_000_000  # links and ranks looked at for the longest shortest path: some seconds
    widths: int = 32  # bandwidths at which ranks are joined to parts
    parts_work: int = 4_000_000  # links × neighbours × ranks of a network that is divided step by step: 0.1 s
    max_flow_work: int = 40_000_000  # arcs and ranks of all flows' graphs together: some seconds
    # of prices drawn from loads more of each find little more, and take as much longer:
    near_full: tuple[float, ...] = (0.999, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the highest load: one price
    steepness: tuple[float, ...] = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0)  # price exp(steepness · load / highest load)
    sampled_ranks: int = 96  # whose chunks tell good prices from bad ones, where there are more
    step_ranks: int = 64  # whose chunks one step of mirror ascent looks at
    tried: int = 3  # candidates, on all chunks
    mirror_rounds: int = 10  # of mirror ascent from a routing's loads; more gain less than 1 %
    program_variables: int = 400_000  # of a linear program: a minute
    window_ranks: int = 32
    window_slots: tuple[int, ...] = (9, 21, 41)  # of time, few first; fewer where more variables than these allow
    window_variables: int = 250_000  # of their linear programs: some seconds
    window_tries: int = 6  # times that are tried with a number of slots
    window_near: float = 1.003  # time / bound up to which it is left
    program_cells: int = 4_000_000  # chunks × ranks of the tables from which a program is made: 32 MB


DEFAULT = Tuning()


@dataclass(eq=False)
class Search:
    """What the searches of all kinds look at.

    Attributes:
        problem: `witness.countable` already.
        tuning: limits.
        found: witnesses so far, with the numbers that they prove.
        loads_us: for Cost.ROUTING: how long a good schedule keeps each resource busy, shape (nresources,), any unit.
        workers, budget_s: for Cost.LINEAR_PROGRAM and Cost.WINDOWS.
        size_bytes, reached_us: for Cost.WINDOWS: a message size, and the time that is reached for it.
    """

    problem: Problem
    tuning: Tuning = DEFAULT
    found: list[Witness] = field(default_factory=list)
    loads_us: Floats | None = None
    workers: Workers | None = None
    budget_s: float = 0.0
    size_bytes: float = 0.0
    reached_us: float = 0.0

    @cached_property
    def traffic(self) -> Traffic:
        """What must cross sets of ranks."""
        return Traffic(self.problem)

    def name_ranks(self, ranks: Sequence[int] | Ints) -> str:
        """A set of local ranks by the topology's numbers, for the reader."""
        if len(ranks) == self.problem.nranks > 12:
            return f"all {len(ranks)} ranks"
        names = [self.problem.ranks[r] for r in ranks[:13]]
        if len(ranks) > 12:
            return f"{{{', '.join(map(str, names[:10]))}, … {len(ranks)} ranks}}"
        return "{" + ", ".join(map(str, names)) + "}"

    def claim(
        self, kind: str, text: str, resources: Ints, ranks: Ints | None = None, parts: tuple[tuple[int, ...], ...] = ()
    ) -> Witness:
        """A witness that claims nothing, of resources whose GB/s together end its text for the reader."""
        net = whole_network(self.problem) if kind in ("cut", "parts") else self.problem.network
        gbs = float(net.capacity_gbs[resources].sum())
        members = () if ranks is None else tuple(ranks.tolist())
        return Witness(kind, members, parts, tuple(resources.tolist()), text=f"{text}, {gbs:.6g} GB/s")
