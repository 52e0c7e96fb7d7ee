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
from synth.reconfiguration.routing import distances, link_loads, trees_of
from synth.reconfiguration.states import ChangingNetwork, subsets
from synth.reconfiguration.witness import ChangesBound, SetClaim, is_usable, relaxed_problem
from synth.solvers.workers import Workers

_TURNS, _STEPS, _SLOWER = 400, (1.0, 4.0), 40.0  # Rounds of mirror ascent, first steps, when they are halved.
_FLOOR = 1e-6  # Least weight of a link by the mean; from 0 no weight could rise.
_MOST_SETS = 64  # Sets of one size that are looked at one by one; of more, the set of all states stands for all.


def find_bound(
    networks: Sequence[ChangingNetwork],
    collective: str,
    root: int,
    size_bytes: int,
    workers: Workers,
    budget_s: float,
) -> ChangesBound:
    """Return a bound that holds for every schedule over any sequence of states (see `synth.reconfiguration.witness`).

    The states alone and the set of all states come first, then the other sets; the set of all states stands for sets
    for which there is no time. Then linear programs raise the claims that decide, as long as there is time.

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
    claims: dict[tuple[int, ...], SetClaim] = {}
    for of_size in [[whole], *sets]:
        for chosen in of_size:
            is_needed = len(chosen) in (1, count)
            if chosen not in claims and (is_needed or (len(of_size) <= _MOST_SETS and now() < deadline)):
                claims[chosen] = _quick_claim(network, collective, root, chosen, size_bytes)

    def bound() -> ChangesBound:
        """Return the bound by the claims so far."""
        rows = (dict.fromkeys(claims.get(chosen, claims[whole]) for chosen in of_size) for of_size in sets)
        return ChangesBound(collective, root, tuple(map(tuple, rows)))

    raised: set[tuple[int, ...]] = set()
    while now() < deadline:
        deciding = {bound().at(timed, size_bytes)[1].claim.states for timed in networks} - raised
        if not deciding:
            break
        chosen = min(deciding)
        raised.add(chosen)
        claims[chosen] = _raised(network, bound(), claims[chosen], size_bytes, workers, deadline)
    return bound()


def _quick_claim(
    network: ChangingNetwork, collective: str, root: int, chosen: tuple[int, ...], size_bytes: int
) -> SetClaim:
    """Return what quick searches prove of the schedules over a set of states."""
    problem = relaxed_problem(network, collective, root, chosen)
    if problem is None:
        return SetClaim(chosen, ())
    witnesses = (*prove(problem, size_bytes=size_bytes).witnesses, *_average_hops(problem))
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
        best = best.merged([_priced(network, claim.states, problem)])
    for better in tighten(problem, best, None, size_bytes, float("inf"), workers, deadline):
        best = better
    usable = (w for w in best.witnesses if is_usable(network, bound.collective, claim.states, w))
    return SetClaim(claim.states, tuple(usable))


def _priced(network: ChangingNetwork, states: tuple[int, ...], problem: Problem) -> StatePrices:
    """Return the best prices of some rounds of mirror ascent, with what they prove.

    The program is to raise the length of all shortest paths by what the best state offers. A price rises where shortest
    paths use more of a link than the best state gives, and falls elsewhere.

    Args:
        network: The network.
        states: Numbers of the states, at least two.
        problem: The collective on their relaxed network.
    """
    topology, collective = problem.topology, problem.collective
    needs = np.zeros((network.nranks, network.nranks))  # Share of the message from one rank to another.
    for tree in trees_of(collective):
        for leaf in tree.leaves:
            ends = (leaf, tree.roots[0]) if tree.gathers else (tree.roots[0], leaf)
            needs[ends] += collective.fraction[tree.block]
    has_links = np.zeros((len(states), topology.nlinks))
    for row, place, number in zip(has_links, places_of(network, states), states, strict=True):
        row[place] = network.states[number].bandwidth_gbs / topology.bandwidth_gbs[place]
    even = np.full(topology.nlinks, 1.0 / topology.nlinks)  # Price times bandwidth.
    best, best_ratio = even, 0.0
    for first_step in _STEPS:
        weights = even
        for turn in checking_deadline(range(_TURNS)):
            lengths, before = distances(topology, weights / topology.bandwidth_gbs)
            used = float((needs * np.where(needs > 0, lengths, 0.0)).sum())
            offered = has_links @ weights
            state = int(offered.argmax())
            if used / offered[state] > best_ratio:
                best, best_ratio = weights, used / offered[state]
            loads = link_loads(topology, needs, lengths, before) / topology.bandwidth_gbs
            gain = (loads / used - has_links[state] / offered[state]) * weights.mean()
            weights = weights * np.exp(np.clip(gain * first_step / (1 + turn / _SLOWER), -1.0, 1.0))
            weights = np.maximum(weights / weights.sum(), _FLOOR / len(weights))
    claim = StatePrices(prices=tuple((best / topology.bandwidth_gbs).tolist()), text="prices of links by state")
    base_us, per_byte_us, _ = claim.limit_over(network, states, problem)
    return replace(claim, base_us=base_us, per_byte_us=per_byte_us)
