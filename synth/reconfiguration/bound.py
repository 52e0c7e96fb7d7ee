"""Search for a bound over all sequences of states: witnesses about the relaxed network of each set of states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from synth.bounds.check import proved
from synth.bounds.prove import Bound, prove, tighten
from synth.bounds.witness import Witness
from synth.bounds.witnesses.lengths import Lengths
from synth.model.deadline import checking_deadline, now
from synth.model.problem import Problem
from synth.reconfiguration.prices import StatePrices
from synth.reconfiguration.relaxed import LIMITS, places_of
from synth.reconfiguration.routing import distances, link_loads, pair_needs
from synth.reconfiguration.states import ChangingNetwork, subsets
from synth.reconfiguration.witness import ChangesBound, SetClaim, is_usable, relaxed_problem
from synth.solvers.workers import Workers

_TURNS, _STEPS, _SLOWER = 400, (1.0, 4.0), 40.0  # Rounds of mirror ascent, first steps, when they are halved.
_FLOOR = 1e-6  # Least weight of a link by the mean; from 0 no weight could rise.
_MOST_SETS = 64  # Sets for one number of changes that are looked at one by one; else all states stand for them.


def find_bound(
    networks: Sequence[ChangingNetwork],
    collective: str,
    root: int,
    size_bytes: int,
    workers: Workers,
    budget_s: float,
) -> ChangesBound:
    """Return a bound that holds for every schedule over any sequence of states (see `synth.reconfiguration.witness`).

    Single states, sets that do not join the ranks, and the set of all states come first; the last stands for all sets
    that were not looked at. As long as there is time, what decides is raised: by the sets of the deciding number of
    changes one by one, then by prices and a linear program for the deciding set.

    Args:
        networks: The same states with each time of changes at which the bound counts, at least one.
        collective: Name of the collective.
        root: Its root.
        size_bytes: Message size in bytes at which the bound counts.
        workers: Solver processes.
        budget_s: Seconds for linear programs, and for sets of more than one state.
    """
    network, deadline = networks[0], now() + budget_s
    count = len(network.states)
    whole = tuple(range(count))
    sets = [subsets(network, changes + 1) for changes in range(count)]
    claims = {
        chosen: _quick_claim(network, collective, root, chosen, size_bytes, deadline)
        for chosen in dict.fromkeys([*sets[0], whole])
    }
    joining = [set(chosen) for chosen in sets[0] if claims[chosen].witnesses]
    # Sets that do not join the ranks raise the bound by whole changes, at little cost, so they never wait for time.
    for chosen in (chosen for of_size in sets[1:] if len(of_size) <= _MOST_SETS for chosen in of_size):
        if any(joined.issubset(chosen) for joined in joining):
            continue
        if relaxed_problem(network, collective, root, chosen) is None:
            claims[chosen] = SetClaim(chosen, ())
        else:
            joining.append(set(chosen))

    def bound() -> ChangesBound:
        """Return the bound by the claims so far."""
        rows = (dict.fromkeys(claims.get(chosen, claims[whole]) for chosen in of_size) for of_size in sets)
        return ChangesBound(collective, root, tuple(map(tuple, rows)))

    raised: set[tuple[int, ...]] = set()
    while now() < deadline:
        limits = [bound().at(timed, size_bytes)[1] for timed in networks]
        unseen = [chosen for limit in limits for chosen in sets[limit.changes] if chosen not in claims]
        deciding = [limit.claim.states for limit in limits if limit.claim.states not in raised]
        if unseen and len(unseen) <= _MOST_SETS * len(limits):
            for chosen in dict.fromkeys(unseen):
                if now() < deadline:
                    claims[chosen] = _quick_claim(network, collective, root, chosen, size_bytes, deadline)
        elif deciding:
            raised.add(deciding[0])
            until = now() + (deadline - now()) / 2  # What decides next needs time too.
            claims[deciding[0]] = _raised(network, bound(), claims[deciding[0]], size_bytes, workers, until)
        else:
            break
    return bound()


def _quick_claim(
    network: ChangingNetwork, collective: str, root: int, chosen: tuple[int, ...], size_bytes: int, until: float
) -> SetClaim:
    """Return what quick searches prove of the schedules over a set of states; prices are sought until a time."""
    problem = relaxed_problem(network, collective, root, chosen)
    if problem is None:
        return SetClaim(chosen, ())
    witnesses = [*prove(problem, size_bytes=size_bytes).witnesses, *_average_hops(problem)]
    if len(chosen) == len(network.states) > 1:
        witnesses.append(_priced(network, chosen, problem, until))
    return SetClaim(chosen, tuple(witness for witness in witnesses if is_usable(network, collective, chosen, witness)))


def _average_hops(problem: Problem) -> Iterator[Witness]:
    """Yield what the limits of a relaxed network prove: all that is sent on shortest paths shares their capacity."""
    names = problem.network.resource_names
    for text in LIMITS:
        prices = tuple((resource, 1.0) for resource, name in enumerate(names) if name.startswith(text))
        if prices:
            yield proved(problem, Lengths(prices=prices, text=f"hops of all data, by the limit of {text}"))


def _raised(
    network: ChangingNetwork,
    bound: ChangesBound,
    claim: SetClaim,
    size_bytes: int,
    workers: Workers,
    deadline: float,
) -> SetClaim:
    """Return a claim of a bound with what a linear program proves as well, which ends about at `deadline`."""
    problem = relaxed_problem(network, bound.collective, bound.root, claim.states)
    assert problem is not None  # A claim that decides has a witness.
    best = Bound(claim.witnesses)
    if len(claim.states) > 1:
        best = best.merged([_priced(network, claim.states, problem, deadline)])
    for better in tighten(problem, best, None, size_bytes, float("inf"), workers, deadline):
        best = better
    usable = (w for w in best.witnesses if is_usable(network, bound.collective, claim.states, w))
    return SetClaim(claim.states, tuple(usable))


def _priced(network: ChangingNetwork, states: tuple[int, ...], problem: Problem, until: float = np.inf) -> StatePrices:
    """Return the best prices of links that some rounds of mirror ascent find, with what they prove.

    The rounds raise the ratio of what all blocks pay on shortest paths by the prices to what the bandwidths of the best
    state are worth by the prices. A price rises where shortest paths use more of a link than the best state gives, and
    falls elsewhere.

    Args:
        network: The network.
        states: Numbers of the states, at least two.
        problem: The collective on their relaxed network.
        until: Time on the clock of `now` after which no further round begins.
    """
    topology, collective = problem.topology, problem.collective
    needs = pair_needs(collective)
    has_links = np.zeros((len(states), topology.nlinks))
    for row, place, number in zip(has_links, places_of(network, states), states, strict=True):
        row[place] = network.states[number].bandwidth_gbs / topology.bandwidth_gbs[place]
    even = np.full(topology.nlinks, 1.0 / topology.nlinks)  # Price times bandwidth.
    best, best_ratio = even, 0.0
    for first_step in _STEPS:
        weights = even
        for iteration in checking_deadline(range(_TURNS)):
            lengths, before = distances(topology, weights / topology.bandwidth_gbs)
            used = float((needs * np.where(needs > 0, lengths, 0.0)).sum())
            offered = has_links @ weights
            state = int(offered.argmax())
            if used / offered[state] > best_ratio:
                best, best_ratio = weights, used / offered[state]
            loads = link_loads(topology, needs, lengths, before) / topology.bandwidth_gbs
            gain = (loads / used - has_links[state] / offered[state]) * weights.mean()
            weights = weights * np.exp(np.clip(gain * first_step / (1 + iteration / _SLOWER), -1.0, 1.0))
            weights = np.maximum(weights / weights.sum(), _FLOOR / len(weights))
            if now() > until:
                break
    claim = StatePrices(prices=tuple((best / topology.bandwidth_gbs).tolist()), text="prices of links by state")
    base_us, per_byte_us, _ = claim.limit_over(network, states, problem)
    return replace(claim, base_us=base_us, per_byte_us=per_byte_us)
