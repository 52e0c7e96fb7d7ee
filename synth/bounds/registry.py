"""The registry of bounds: one row a kind, and the check of any witness."""

from __future__ import annotations

from dataclasses import replace

from synth.bounds import cut, direct, ends, lengths, parts, path, witness
from synth.bounds.kind import Cost, Kind
from synth.bounds.witness import Limit, Witness, countable
from synth.model.problem import Problem
from topologies.errors import BadWitness

KINDS: dict[str, Kind] = {}  # in the order in which witnesses that prove the same come first


def register(kind: Kind) -> None:
    """Add a kind of bound, or replace the one of its name."""
    KINDS[kind.name] = kind


register(Kind("path", witness.path_limit, {Cost.QUICK: path.find_path}, of_quotients=True))
register(Kind("direct", witness.direct_limit, {Cost.QUICK: direct.find_direct}))
register(Kind("cut", witness.cut_limit, {Cost.QUICK: cut.find_cuts, Cost.MAX_FLOW: cut.find_worst_cuts}))
register(Kind("parts", witness.parts_limit, {Cost.QUICK: parts.find_parts}, accepts=parts.is_allreduce))
register(Kind("arrivals", witness.ends_limit, {Cost.QUICK: ends.find_arrivals}, of_quotients=True))
register(Kind("departures", witness.ends_limit, {Cost.QUICK: ends.find_departures}, of_quotients=True))
link_lengths = {
    Cost.QUICK: lengths.find_uniform,
    Cost.ROUTING: lengths.find_by_loads,
    Cost.LINEAR_PROGRAM: lengths.find_by_linear_program,
}
register(Kind("lengths", witness.lengths_limit, link_lengths, of_quotients=True))


def recompute(problem: Problem, claim: Witness) -> Limit:
    """What the witness proves: (µs, µs per byte, µs at most), whatever numbers it claims.

    Of a quotient problem (`Problem.quotient`) it proves the same for the whole.

    Raises BadWitness: it proves nothing: its ranks or resources are not there or do not do what they must, or its kind
    says nothing about a quotient problem.
    """
    kind = KINDS.get(claim.kind)
    if kind is None:
        raise BadWitness(f"{claim.kind[:40]}: not a kind of witness; it must be one of {', '.join(KINDS)}")
    if problem.quotient is not None and not kind.of_quotients:
        names = ", ".join(name for name, row in KINDS.items() if row.of_quotients)
        raise BadWitness(f"{claim.kind} {claim.text}: says nothing about a quotient problem; it must be one of {names}")
    return kind.limit(countable(problem), claim)


def check(problem: Problem, claim: Witness) -> None:
    """Recompute a witness from the problem.

    Raises BadWitness: it claims more than it proves, or its resources do not cover what they must.
    """
    proved = recompute(problem, claim)
    claimed = claim.base_us, claim.per_byte_us, claim.cap_us
    for unit, claims, proves in zip(("µs", "µs per byte", "µs at most"), claimed, proved, strict=True):
        if not claims <= proves * (1 + 1e-9) + 1e-12:
            raise BadWitness(f"{claim.kind} {claim.text}: claims {claims} {unit}, proves {proves}")


def proved(problem: Problem, claim: Witness) -> Witness:
    """The witness with the numbers that it proves."""
    base, per_byte, cap = recompute(problem, claim)
    return replace(claim, base_us=base, per_byte_us=per_byte, cap_us=cap)
