"""The check of any witness: what it proves is computed from the problem, whatever numbers it claims."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from synth.bounds.windows.limit import Window
from synth.bounds.witness import Limit, Witness, countable
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
from synth.model.problem import Problem

_W = TypeVar("_W", bound=Witness)

# The class of every kind of witness, by the name that proof files state.
WITNESSES: dict[str, type[Witness]] = {
    witness_class.kind: witness_class
    for witness_class in (
        Path,
        Direct,
        MessageGaps,
        Knowledge,
        Entering,
        Leaving,
        FromAfar,
        ToAfar,
        Cut,
        Parts,
        TwoSteps,
        Contributions,
        Arrivals,
        Departures,
        Lengths,
        Window,
    )
}


def recompute(problem: Problem, claim: Witness) -> Limit:
    """Return what the witness proves as (µs, µs per byte, µs at most), whatever numbers it claims.

    µs and µs at most include the time before which a call sends nothing, unless the witness proves 0. A witness about a
    quotient problem (`Problem.quotient`) proves the same about the whole problem.

    Raises:
        BadWitness: The witness proves nothing: its protocol is none of the problem's, its ranks or resources do not
            exist or do not do what they must, or its kind says nothing about a quotient problem or a network whose
            links are only some paths.
    """
    if claim.protocol and claim.protocol not in problem.protocols:
        names = " or ".join(problem.protocols) or "none"
        raise claim.refusal(f"the protocol is {claim.protocol[:40]!r}; the problem has {names}")
    if claim.protocol:
        problem = _of_protocol(problem, claim.protocol)
    if problem.quotient is not None and problem.quotient.whole.hyperlinks is not None:
        raise claim.refusal(
            "a quotient problem where switches multicast or reduce has no witnesses; check it against the whole problem"
        )
    if about := claim.says_nothing_of(problem):
        names = ", ".join(name for name, kind in WITNESSES.items() if not kind.says_nothing_of(problem))
        raise claim.refusal(f"this kind proves nothing about {about}; use one of {names}")
    base, per_byte, cap = claim.limit(countable(problem))
    starts = problem.network.start_us if base > 0 or per_byte > 0 else 0.0  # Nothing is sent before a call starts.
    return base + starts, per_byte, cap + starts


@lru_cache(maxsize=8)
def _of_protocol(problem: Problem, protocol: str) -> Problem:
    """Return the problem under one of its protocols; the last eight results are cached."""
    return problem.under(protocol)


def check(problem: Problem, claim: Witness) -> None:
    """Check that a witness claims no more than it proves about the problem, but for rounding.

    Raises:
        BadWitness: It claims more than it proves, or proves nothing (see `recompute`).
    """
    check_claims(claim, recompute(problem, claim))


def check_claims(claim: Witness, proved_limit: Limit) -> None:
    """Check that a witness claims no more than a limit that it proves, but for rounding; BadWitness if it does."""
    units = ("µs", "µs per byte", "µs at most")
    for unit, claims, proves in zip(units, claim.claims, proved_limit, strict=True):
        if not claims <= proves * (1 + 1e-9) + 1e-12:
            raise claim.refusal(f"claims {claims} {unit}, proves {proves}")


def proved(problem: Problem, claim: _W) -> _W:
    """Return a copy of the witness that claims the numbers that it proves; they may be 0.

    Raises:
        BadWitness: The witness proves nothing; see `recompute`.
    """
    base, per_byte, cap = recompute(problem, claim)
    return replace(claim, base_us=base, per_byte_us=per_byte, cap_us=cap)
