"""What a kind of bound is: which problems it speaks of, how its witnesses are found, and how one is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from synth.bounds.traffic import Traffic
from synth.bounds.witness import Limit, Witness
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from synth.solvers.workers import Workers


class Cost(IntEnum):
    """How dear a search for witnesses is; `prove.tighten` goes from the first to the last."""

    QUICK = 0  # milliseconds for a few ranks, seconds for thousands
    MAX_FLOW = 1  # the worst of all cuts
    ROUTING = 2  # dual prices from the loads of a routing
    LINEAR_PROGRAM = 3


@dataclass(frozen=True)
class Tuning:
    """How widely the searches look; memory and time, never what a witness proves.

    Attributes:
        all_sets: ranks up to which every rank and every node is tried as a cut: more cost more than they find.
        few: how many of every sort of set are tried otherwise.
        most_sets: sets whose cuts are estimated side by side, each with its other side.
        table_cells: of a table of links × sets or of ranks × ranks: some 100 MB.
        sweep_work: links × orders of the ranks that are swept: about a second.
        spectral_vertices: of a graph whose eigenvectors are computed: about a second.
        split_links: links of a longest route whose two sides are tried.
        split_work: links and vertices looked at for these.
        path_work: links and ranks looked at in search of the longest of all shortest paths: about a second.
        widths: bandwidths at which ranks are joined to parts.
        max_flow_work: edges looked at over all flows: about ten seconds.
        mirror_rounds: rounds of mirror ascent from a routing's loads; more than ten gain less than 1 %.
        program_variables: of a linear program that is worth its time.
        program_cells: chunks × ranks of the tables from which the program is made.
    """

    all_sets: int = 64
    few: int = 4
    most_sets: int = 80
    table_cells: int = 10_000_000
    sweep_work: int = 1 << 20
    spectral_vertices: int = 3000
    split_links: int = 40
    split_work: int = 4_000_000
    path_work: int = 15_000_000
    widths: int = 32
    max_flow_work: int = 1_200_000
    mirror_rounds: int = 10
    program_variables: int = 400_000
    program_cells: int = 4_000_000


DEFAULT = Tuning()


@dataclass(eq=False)
class Search:
    """What the searches of all kinds look at.

    Attributes:
        problem: `witness.countable` already.
        tuning: limits.
        found: witnesses so far, with the numbers that they prove.
        loads_us: for Cost.ROUTING: how long a good schedule keeps each resource busy, shape (nresources,), any unit.
        workers, budget_s: for Cost.LINEAR_PROGRAM.
    """

    problem: Problem
    tuning: Tuning = DEFAULT
    found: list[Witness] = field(default_factory=list)
    loads_us: Floats | None = None
    workers: Workers | None = None
    budget_s: float = 0.0

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

    def capacity_text(self, resources: Ints) -> str:
        """GB/s of some resources together, for the reader."""
        return f"{float(self.problem.network.capacity_gbs[resources].sum()):.6g} GB/s"


@dataclass(frozen=True)
class Kind:
    """One row of the registry of bounds.

    Attributes:
        name: the witness's `kind`, as proof files state it.
        limit: the independent check: what a witness of this kind proves of a problem, whatever it claims. Raises
            BadWitness where it proves nothing. It shares nothing with the searches.
        searches: by cost; each yields witnesses that claim nothing, whose numbers `limit` then works out.
        accepts: the problems for which the searches are worth it.
        of_quotients: whether it says the same of a quotient problem as of the whole.
    """

    name: str
    limit: Callable[[Problem, Witness], Limit]
    searches: Mapping[Cost, Callable[[Search], Iterable[Witness]]]
    accepts: Callable[[Problem], bool] = lambda _: True
    of_quotients: bool = False
