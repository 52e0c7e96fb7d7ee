"""The registry of bounds: one row a kind, and the check of any witness.

A row loads the module of its searches only when a search runs, so that a stored witness is checked without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module

from synth.bounds import witness
from synth.bounds.search import BoundCost, BoundSearch
from synth.bounds.windows.limit import window_limit
from synth.bounds.witness import Limit, Witness, countable
from synth.model.problem import Problem
from topologies.errors import BadWitness


@dataclass(frozen=True)
class BoundKind:
    """A row of the registry: a kind of bound, its independent check and its searches.

    Attributes:
        name: The witness's `kind`, as proof files state it.
        limit: The independent check. It returns what a witness of this kind proves about a problem, whatever the
            witness claims, and raises BadWitness where it proves nothing. It shares no code with the searches.
        module: Name of the module that holds the searches.
        searches: Names of functions of a `BoundSearch`, by cost. Each yields witnesses without numbers; `limit`
            computes the numbers.
        of_quotients: True if a witness proves the same of a quotient problem as of the whole problem.
    """

    name: str
    limit: Callable[[Problem, Witness], Limit]
    module: str
    searches: Mapping[BoundCost, str]
    of_quotients: bool = False

    def find(self, search: BoundSearch, cost: BoundCost) -> Iterable[Witness | None]:
        """Return the witnesses that the search of this cost finds; a None means that a solver's process is at work."""
        if cost not in self.searches:
            return ()
        witnesses: Iterable[Witness | None] = getattr(import_module(self.module), self.searches[cost])(search)
        return witnesses


# The order matters: of witnesses that prove the same, the one of the earlier kind counts.
KINDS: dict[str, BoundKind] = {}


def register(kind: BoundKind) -> None:
    """Add a kind of bound, or replace the kind of the same name."""
    KINDS[kind.name] = kind


_HOPS, _CUT, _ENDS = "synth.bounds.hops", "synth.bounds.cuts.cut", "synth.bounds.ends"
_LENGTHS = {
    BoundCost.QUICK: "find_uniform",
    BoundCost.ROUTING: "find_by_loads",
    BoundCost.LINEAR_PROGRAM: "find_by_linear_program",
}
for _row in (
    BoundKind("path", witness.path_limit, _HOPS, {BoundCost.QUICK: "find_path"}, of_quotients=True),
    BoundKind("direct", witness.direct_limit, _HOPS, {BoundCost.QUICK: "find_direct"}),
    BoundKind(
        "cut",
        witness.cut_limit,
        _CUT,
        {BoundCost.QUICK: "find_cuts", BoundCost.MAX_FLOW: "find_worst_cuts"},
        of_quotients=True,
    ),
    BoundKind("parts", witness.parts_limit, "synth.bounds.parts", {BoundCost.QUICK: "find_parts"}, of_quotients=True),
    BoundKind("arrivals", witness.ends_limit, _ENDS, {BoundCost.QUICK: "find_arrivals"}, of_quotients=True),
    BoundKind("departures", witness.ends_limit, _ENDS, {BoundCost.QUICK: "find_departures"}, of_quotients=True),
    BoundKind("lengths", witness.lengths_limit, "synth.bounds.lengths", _LENGTHS, of_quotients=True),
    BoundKind("window", window_limit, "synth.bounds.windows.windows", {BoundCost.WINDOWS: "refutations"}),
):
    register(_row)


def recompute(problem: Problem, claim: Witness) -> Limit:
    """Return what the witness proves as (µs, µs per byte, µs at most), whatever numbers it claims.

    A witness about a quotient problem (`Problem.quotient`) proves the same about the whole problem.

    Raises:
        BadWitness: The witness proves nothing: its ranks or resources do not exist or do not do what they must, or its
            kind says nothing about a quotient problem.
    """
    if claim.protocol:
        problem = _under(problem, claim)
    if problem.quotient is not None and problem.quotient.whole.hyperlinks is not None:
        why = (
            "a quotient problem where switches multicast or reduce has no witnesses; check it against the whole problem"
        )
        raise BadWitness(f"{claim.kind[:40]} {claim.text}: {why}")
    kind = KINDS.get(claim.kind)
    if kind is None:
        raise BadWitness(f"{claim.kind[:40]}: not a kind of witness; it must be one of {', '.join(KINDS)}")
    if problem.quotient is not None and not kind.of_quotients:
        names = ", ".join(name for name, row in KINDS.items() if row.of_quotients)
        raise BadWitness(
            f"{claim.kind} {claim.text}: this kind proves nothing about a quotient problem; use one of {names}"
        )
    base, per_byte, cap = kind.limit(countable(problem), claim)
    starts = problem.network.start_us if base > 0 or per_byte > 0 else 0.0  # Nothing is sent before a call starts.
    return base + starts, per_byte, cap + starts


@lru_cache(maxsize=8)
def _of_protocol(problem: Problem, protocol: str) -> Problem:
    """Return the problem under one protocol."""
    return problem.under(protocol)


def _under(problem: Problem, claim: Witness) -> Problem:
    """Return the problem under the witness's protocol; raise BadWitness if the problem does not have that protocol."""
    if claim.protocol not in problem.protocols:
        names = " or ".join(problem.protocols) or "none"
        raise BadWitness(f"{claim.kind} {claim.text}: the protocol is {claim.protocol[:40]!r}; the problem has {names}")
    return _of_protocol(problem, claim.protocol)


def check(problem: Problem, claim: Witness) -> None:
    """Check that a witness claims no more than it proves about the problem.

    Raises:
        BadWitness: It claims more than it proves, or its resources do not cover what they must.
    """
    recomputed = recompute(problem, claim)
    claimed = claim.base_us, claim.per_byte_us, claim.cap_us
    for unit, claims, proves in zip(("µs", "µs per byte", "µs at most"), claimed, recomputed, strict=True):
        if not claims <= proves * (1 + 1e-9) + 1e-12:
            raise BadWitness(f"{claim.kind} {claim.text}: claims {claims} {unit}, proves {proves}")


def proved(problem: Problem, claim: Witness) -> Witness:
    """Return the witness with the numbers that it proves."""
    base, per_byte, cap = recompute(problem, claim)
    return replace(claim, base_us=base, per_byte_us=per_byte, cap_us=cap)
