"""The bound over all sequences of states, and its check, which shares nothing with its search.

A schedule with k changes visits at most k + 1 states, so all its states are in a set of k + 1 of them. It sends for at
least as long as the best schedule on the relaxed network of that set (`synth.reconfiguration.relaxed`), for which the
usual witnesses prove a bound; and k changes between states of the set take at least the time of the shortest walk of k
changes, while nothing is sent. So no schedule with k changes is faster than the least, over all sets of k + 1 states,
of that walk plus the bound of the set. A set may stand for all sets in it, since its relaxed network can do more, and
more walks lie in it. With k at least the number of states less one all states are in the set, and more changes only
take longer: the least over k from 0 to that number holds for every schedule over any sequence of states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.check import check, check_claims
from synth.bounds.witness import Witness, decisive
from synth.bounds.witnesses.parts import Parts
from synth.model.problem import Problem, make_problem
from synth.model.registry import find_kind
from synth.reconfiguration.prices import StatePrices
from synth.reconfiguration.relaxed import has_equal_links, relaxed
from synth.reconfiguration.states import ChangingNetwork, subsets
from topologies.errors import InputError, VerificationError


@dataclass(frozen=True)
class SetClaim:
    """What is proved of all schedules that use no other states than those of a set.

    Attributes:
        states: Numbers of the states, ascending.
        witnesses: Witnesses about the relaxed network of the set; none if the set does not join the ranks.
    """

    states: tuple[int, ...]
    witnesses: tuple[Witness, ...]

    def at(self, size_bytes: float) -> float:
        """Return the time in µs that such schedules cannot beat, without changes; inf if there are none."""
        return decisive(self.witnesses, size_bytes).at(size_bytes) if self.witnesses else float("inf")


@dataclass(frozen=True)
class ClaimLimits:
    """The claim that decides a bound.

    Attributes:
        changes: Number of changes for which the bound is least.
        changing_us: Least time in µs of so many changes.
        claim: The set of states.
        witness: What proves the time of its sends.
    """

    changes: int
    changing_us: float
    claim: SetClaim
    witness: Witness


@dataclass(frozen=True)
class ChangesBound:
    """A bound over all sequences of states, for any times of changes.

    Attributes:
        collective: Name of the collective.
        root: Its root.
        claims: For each number of changes, from 0 to that of the states less one, claims whose sets hold every set of
            one state more than changes.
    """

    collective: str
    root: int
    claims: tuple[tuple[SetClaim, ...], ...]

    def at(self, network: ChangingNetwork, size_bytes: float) -> tuple[float, ClaimLimits]:
        """Return the time in µs that no schedule over any sequence of states can beat, and what proves it.

        Args:
            network: The network, with the times of changes.
            size_bytes: Message size in bytes.
        """
        candidates: list[tuple[float, int, int, ClaimLimits]] = []
        for changes, claims in enumerate(self.claims):
            for claim in claims:
                if claim.witnesses:
                    changing_us = least_changing_us(network, claim.states, changes)
                    witness = decisive(claim.witnesses, size_bytes)
                    limits = ClaimLimits(changes, changing_us, claim, witness)
                    candidates.append((changing_us + witness.at(size_bytes), changes, len(candidates), limits))
        bound_us, *_, limits = min(candidates)
        return bound_us, limits


def least_changing_us(network: ChangingNetwork, states: tuple[int, ...], changes: int) -> float:
    """Return the least time in µs of a number of changes one after the other within a set of states, from the start.

    Without a start the first state may be any of the set. The time is inf where there are no such changes.
    """
    table = network.delta_us[np.ix_(states, states)] + np.where(np.eye(len(states), dtype=bool), np.inf, 0.0)
    least_us = np.zeros(len(states))
    if network.start is not None:
        least_us[[state != network.start for state in states]] = np.inf
    for _ in range(changes):
        least_us = (least_us[:, None] + table).min(axis=0)
    return float(least_us.min())


def relaxed_problem(network: ChangingNetwork, collective: str, root: int, states: tuple[int, ...]) -> Problem | None:
    """Return the collective on the relaxed network of a set of states; None if the set does not join the ranks."""
    try:
        return make_problem(relaxed(network, states), collective, root=root)
    except InputError:
        return None


# Kinds of witnesses that count only bytes by resource and time, and the least time from rank to rank.
_COUNTING = ("path", "cut", "parts", "arrivals", "departures", "from-afar", "to-afar", "lengths", StatePrices.kind)


def is_usable(network: ChangingNetwork, collective: str, states: tuple[int, ...], witness: Witness) -> bool:
    """Return whether a witness about the relaxed network of some states holds for schedules over these states.

    Where a link has several bandwidths, a send may be slower than on the relaxed network. In an all-reduce over several
    states, ranks may send sums of some contributions on and also use them themselves, which no algorithm of one state
    does. Witnesses of some kinds count only bytes by resource and time, and hold nevertheless.
    """
    counts = witness.kind in _COUNTING and not (isinstance(witness, Parts) and witness.at_bytes)
    reuses_sums = find_kind(collective).in_shares and len(states) > 1
    return counts or not (reuses_sums or not has_equal_links(network, states))


def check_bound(network: ChangingNetwork, bound: ChangesBound) -> None:
    """Check every claim of a bound, and that they cover all sets of states.

    Raises:
        VerificationError: There are too few numbers of changes, a set is not covered, or a set that joins the ranks has
            no witness.
        BadWitness: A witness claims more than it proves, or says nothing about the states.
    """
    if len(bound.claims) != len(network.states):
        raise VerificationError(
            f"bound: has claims for {len(bound.claims)} numbers of changes; it must be {len(network.states)}"
        )
    checked: set[SetClaim] = set()
    for changes, claims in enumerate(bound.claims):
        for states in subsets(network, changes + 1):
            if not any(set(states) <= set(claim.states) for claim in claims):
                raise VerificationError(f"bound: no claim of {changes} changes holds the states {states}; one must")
        for claim in claims:
            if claim not in checked:
                _check_claim(network, bound, claim)
                checked.add(claim)


def _check_claim(network: ChangingNetwork, bound: ChangesBound, claim: SetClaim) -> None:
    """Check one claim of a bound; errors as those of `check_bound`."""
    count = len(network.states)
    if not claim.states or sorted(set(claim.states)) != list(claim.states) or not 0 <= claim.states[-1] < count:
        raise VerificationError(
            f"bound: {claim.states} is no set of states; it must be ascending numbers below {count}"
        )
    problem = relaxed_problem(network, bound.collective, bound.root, claim.states)
    if (problem is None) is not (not claim.witnesses):
        raise VerificationError(f"bound: the states {claim.states} join the ranks; there must be a witness")
    for witness in claim.witnesses:
        assert problem is not None
        if not is_usable(network, bound.collective, claim.states, witness):
            raise witness.refusal(f"says nothing about these states; use one of {', '.join(_COUNTING)}")
        if isinstance(witness, StatePrices):
            check_claims(witness, witness.limit_over(network, claim.states, problem))
        else:
            check(problem, witness)
