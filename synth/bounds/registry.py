"""The registry of the searches for bounds, one row a kind of bound.

A row imports the module of its searches only when a search runs, so that the command line starts fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from synth.bounds.search import BoundCost, BoundSearch
from synth.bounds.windows.limit import Window
from synth.bounds.witness import Witness
from synth.bounds.witnesses.cut import Cut
from synth.bounds.witnesses.ends import Arrivals, Departures
from synth.bounds.witnesses.hops import Direct, Path
from synth.bounds.witnesses.lengths import Lengths
from synth.bounds.witnesses.parts import Parts


class BoundKind(Protocol):
    """A kind of bound: an object with the class of its witnesses, which has their check, and the searches for them."""

    @property
    def witness_class(self) -> type[Witness]:
        """Return the class of the witnesses."""

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Witness | None]:
        """Yield the witnesses, without numbers, that the search of a cost class finds; nothing if there is none.

        A None means that a solver's process is at work.
        """


class _Paths:
    witness_class = Path

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Path]:
        if cost == BoundCost.QUICK:
            from synth.bounds.hops import find_path

            yield from find_path(search)


class _Directs:
    witness_class = Direct

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Direct]:
        if cost == BoundCost.QUICK:
            from synth.bounds.hops import find_direct

            yield from find_direct(search)


class _Cuts:
    witness_class = Cut

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Cut]:
        if cost == BoundCost.QUICK:
            from synth.bounds.cuts.cut import find_cuts

            yield from find_cuts(search)
        elif cost == BoundCost.MAX_FLOW:
            from synth.bounds.cuts.cut import find_worst_cuts

            yield from find_worst_cuts(search)


class _Parts:
    witness_class = Parts

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Parts]:
        if cost == BoundCost.QUICK:
            from synth.bounds.parts import find_parts

            yield from find_parts(search)


class _Arrivals:
    witness_class = Arrivals

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Arrivals]:
        if cost == BoundCost.QUICK:
            from synth.bounds.ends import find_arrivals

            yield from find_arrivals(search)


class _Departures:
    witness_class = Departures

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Departures]:
        if cost == BoundCost.QUICK:
            from synth.bounds.ends import find_departures

            yield from find_departures(search)


class _Lengths:
    witness_class = Lengths

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Lengths]:
        if cost in (BoundCost.QUICK, BoundCost.ROUTING, BoundCost.LINEAR_PROGRAM):
            from synth.bounds import lengths

            yield from {
                BoundCost.QUICK: lengths.find_uniform,
                BoundCost.ROUTING: lengths.find_by_loads,
                BoundCost.LINEAR_PROGRAM: lengths.find_by_linear_program,
            }[cost](search)


class _Windows:
    witness_class = Window

    def find(self, search: BoundSearch, cost: BoundCost, /) -> Iterator[Window | None]:
        if cost == BoundCost.WINDOWS:
            from synth.bounds.windows.windows import refutations

            yield from refutations(search)


# The order matters: of witnesses that prove the same, the one of the earlier kind counts.
KINDS: dict[str, BoundKind] = {}


def register(kind: BoundKind) -> None:
    """Add a kind of bound, or replace the kind of the same name."""
    KINDS[kind.witness_class.kind] = kind


for _kind in (_Paths(), _Directs(), _Cuts(), _Parts(), _Arrivals(), _Departures(), _Lengths(), _Windows()):
    register(_kind)
