"""The registry of bounds: one row a kind, and the check of any witness."""

from __future__ import annotations

from dataclasses import replace

from synth.bounds.cut import find_cuts, find_worst_cuts
from synth.bounds.direct import find_direct
from synth.bounds.ends import find_arrivals, find_departures
from synth.bounds.kind import Cost, Kind
from synth.bounds.lengths import find_by_linear_program, find_by_loads, find_uniform
from synth.bounds.parts import find_parts, is_allreduce
from synth.bounds.path import find_path
from synth.bounds.witness import (
    Limit,
    Witness,
    countable,
    cut_limit,
    direct_limit,
    ends_limit,
    lengths_limit,
    parts_limit,
    path_limit,
)
from synth.model.problem import Problem
from topologies.errors import BadWitness

KINDS: dict[str, Kind] = {}  # in the order in which witnesses that prove the same come first


def register(kind: Kind) -> None:
    """Add a kind of bound, or replace the one of its name."""
    KINDS[kind.name] = kind


register(Kind("path", path_limit, {Cost.QUICK: find_path}, of_quotients=True))
register(Kind("direct", direct_limit, {Cost.QUICK: find_direct}))
register(Kind("cut", cut_limit, {Cost.QUICK: find_cuts, Cost.MAX_FLOW: find_worst_cuts}))
register(Kind("parts", parts_limit, {Cost.QUICK: find_parts}, accepts=is_allreduce))
register(Kind("arrivals", ends_limit, {Cost.QUICK: find_arrivals}, of_quotients=True))
register(Kind("departures", ends_limit, {Cost.QUICK: find_departures}, of_quotients=True))
register(
    Kind(
        "lengths",
        lengths_limit,
        {
            Cost.QUICK: find_uniform,
            Cost.ROUTING: find_by_loads,
            Cost.LINEAR_PROGRAM: find_by_linear_program,
        },
        of_quotients=True,
    )
)


def recompute(problem: Problem, witness: Witness) -> Limit:
    """What the witness proves: (µs, µs per byte, µs at most), whatever numbers it claims.

    Of a quotient problem (`Problem.quotient`) it proves the same for the whole.

    Raises:
        BadWitness: it proves nothing: its ranks or resources are not there or do not do what they must, or its
            kind says nothing about a quotient problem.
    """
    kind = KINDS.get(witness.kind)
    if kind is None:
        raise BadWitness(f"{witness.kind[:40]}: not a kind of witness; it must be one of {', '.join(KINDS)}")
    if problem.quotient is not None and not kind.of_quotients:
        names = ", ".join(name for name, row in KINDS.items() if row.of_quotients)
        raise BadWitness(
            f"{witness.kind} {witness.text}: says nothing about a quotient problem; it must be one of {names}"
        )
    return kind.limit(countable(problem), witness)


def check(problem: Problem, witness: Witness) -> None:
    """Recompute a witness from the problem.

    Raises:
        BadWitness: it claims more than it proves, or its resources do not cover what they must.
    """
    proved = recompute(problem, witness)
    claimed = witness.base_us, witness.per_byte_us, witness.cap_us
    for unit, claims, proves in zip(("µs", "µs per byte", "µs at most"), claimed, proved, strict=True):
        if not claims <= proves * (1 + 1e-9) + 1e-12:
            raise BadWitness(f"{witness.kind} {witness.text}: claims {claims} {unit}, proves {proves}")


def proved(problem: Problem, witness: Witness) -> Witness:
    """The witness with the numbers that it proves."""
    base, per_byte, cap = recompute(problem, witness)
    return replace(witness, base_us=base, per_byte_us=per_byte, cap_us=cap)
