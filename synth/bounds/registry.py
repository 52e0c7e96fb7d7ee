"""The registry of the searches for bounds, one row a kind of bound.

It loads the modules of all searches, so import it only where a search runs; a witness is checked without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from synth.bounds.cuts.cut import find_cuts, find_worst_cuts
from synth.bounds.lengths import find_by_linear_program, find_by_loads, find_uniform
from synth.bounds.parts import find_parts, find_parts_with_steps
from synth.bounds.search import BoundCost, BoundSearch
from synth.bounds.searches.ends import (
    find_arrivals,
    find_contributions,
    find_departures,
    find_from_afar,
    find_to_afar,
)
from synth.bounds.searches.hops import find_direct, find_path, find_two_steps
from synth.bounds.searches.messages import (
    find_entering,
    find_knowledge,
    find_leaving,
    find_messages,
    find_messages_with_data,
)
from synth.bounds.windows.limit import Window
from synth.bounds.windows.windows import refutations
from synth.bounds.witness import Witness
from synth.bounds.witnesses.afar import FromAfar, ToAfar
from synth.bounds.witnesses.contributions import Contributions
from synth.bounds.witnesses.cut import Cut
from synth.bounds.witnesses.doorway import Entering, Leaving
from synth.bounds.witnesses.ends import Arrivals, Departures
from synth.bounds.witnesses.hops import Direct, Path
from synth.bounds.witnesses.knowledge import Knowledge
from synth.bounds.witnesses.lengths import Lengths
from synth.bounds.witnesses.messages import MessageGaps
from synth.bounds.witnesses.parts import Parts
from synth.bounds.witnesses.two_steps import TwoSteps

_W = TypeVar("_W", bound=Witness)


class BoundKind(Protocol):
    """A kind of bound: an object with the class of its witnesses, which has their check, and the searches for them."""

    @property
    def witness_class(self) -> type[Witness]:
        """Return the class of the witnesses."""

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterable[Witness | None]:
        """Return the witnesses, without numbers, that the search of a cost class finds; none without such a search.

        A None means that a solver's process is at work.
        """


@dataclass(frozen=True)
class KindRow(Generic[_W]):
    """A row of the registry: a kind of bound whose searches are functions.

    Attributes:
        witness_class: Class of the witnesses.
        searches: The searches by their cost.
    """

    witness_class: type[_W]
    searches: Mapping[BoundCost, Callable[[BoundSearch], Iterator[_W | None]]]

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterable[_W | None]:
        """Return the witnesses that the search of a cost class finds, one by one; none without such a search."""
        return self.searches[cost](search) if cost in self.searches else ()


# The order matters: of witnesses that prove the same, the one of the earlier kind counts.
BOUND_KINDS: dict[str, BoundKind] = {}


def register(kind: BoundKind) -> None:
    """Add a kind of bound after all others, or replace the kind of the same name (`witness_class.kind`)."""
    BOUND_KINDS[kind.witness_class.kind] = kind


# The row names its class twice: without the brackets mypy would infer the class `Witness`, and accept any search.
for _row in (
    KindRow[Path](Path, {BoundCost.QUICK: find_path}),
    KindRow[Direct](Direct, {BoundCost.QUICK: find_direct}),
    KindRow[MessageGaps](
        MessageGaps,
        {
            BoundCost.QUICK: find_messages,
            BoundCost.SIZE: find_messages_with_data,
            BoundCost.WINDOWS: find_messages_with_data,
        },
    ),
    KindRow[Knowledge](Knowledge, {BoundCost.SIZE: find_knowledge, BoundCost.WINDOWS: find_knowledge}),
    KindRow[Entering](Entering, {BoundCost.SIZE: find_entering, BoundCost.WINDOWS: find_entering}),
    KindRow[Leaving](Leaving, {BoundCost.SIZE: find_leaving, BoundCost.WINDOWS: find_leaving}),
    KindRow[FromAfar](FromAfar, {BoundCost.SIZE: find_from_afar, BoundCost.WINDOWS: find_from_afar}),
    KindRow[ToAfar](ToAfar, {BoundCost.SIZE: find_to_afar, BoundCost.WINDOWS: find_to_afar}),
    KindRow[Cut](Cut, {BoundCost.QUICK: find_cuts, BoundCost.MAX_FLOW: find_worst_cuts}),
    KindRow[Parts](
        Parts,
        {
            BoundCost.QUICK: find_parts,
            BoundCost.SIZE: find_parts_with_steps,
            BoundCost.WINDOWS: find_parts_with_steps,
        },
    ),
    KindRow[TwoSteps](TwoSteps, {BoundCost.SIZE: find_two_steps, BoundCost.WINDOWS: find_two_steps}),
    KindRow[Contributions](Contributions, {BoundCost.SIZE: find_contributions, BoundCost.WINDOWS: find_contributions}),
    KindRow[Arrivals](Arrivals, {BoundCost.QUICK: find_arrivals}),
    KindRow[Departures](Departures, {BoundCost.QUICK: find_departures}),
    KindRow[Lengths](
        Lengths,
        {
            BoundCost.QUICK: find_uniform,
            BoundCost.ROUTING: find_by_loads,
            BoundCost.LINEAR_PROGRAM: find_by_linear_program,
        },
    ),
    KindRow[Window](Window, {BoundCost.WINDOWS: refutations}),
):
    register(_row)
