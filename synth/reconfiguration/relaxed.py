"""The network that can do all that a set of states can do: what no sequence of these states can beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.reconfiguration.states import ChangingNetwork
from topologies.topology import Limit, Topology

# Beginnings of the names of the limits of a relaxed network, besides those of its states.
LIMITS = ("all links", "sends of rank", "receipts of rank")


def relaxed(network: ChangingNetwork, chosen: Sequence[int]) -> Topology:
    """Return a topology on which every schedule over some states, in any order, is a schedule without the changes.

    It has each link that is in one of the states, with its least α and its highest bandwidth. It is in all states at
    once, but for limits: what leaves a rank, what enters it, what all links carry, and what the links of a state's own
    limit carry is at most what these links can carry in the best state. A schedule that uses one state at a time keeps
    each of these at any time: its sends in flight are all over links of one state. So take a schedule over the states,
    and leave out the time of the changes, in which nothing moves. What remains is a schedule on the topology, but for
    links whose bandwidth differs between states: their sends are slower than the topology's. A bound that only counts
    bytes by resource and time, and the least time from rank to rank, holds for these too; see
    `synth.reconfiguration.witness.is_usable`.

    Args:
        network: The network.
        chosen: Numbers of the states, at least one. Of one state the topology is the state itself.
    """
    states = [network.states[number] for number in chosen]
    if len(states) == 1:
        return states[0]
    count, keys, places = network.nranks, _keys_of(network, chosen), places_of(network, chosen)
    alpha_us, gbs = np.full(len(keys), np.inf), np.zeros(len(keys))
    for state, place in zip(states, places, strict=True):
        alpha_us[place] = np.minimum(alpha_us[place], state.alpha_us)
        gbs[place] = np.maximum(gbs[place], state.bandwidth_gbs)
    limits = []
    for name, links in _limited_links(states, places, keys, count):
        best_gbs = max(_carried_gbs(state, links[place]) for state, place in zip(states, places, strict=True))
        if links.any() and best_gbs < gbs[links].sum() * (1 - 1e-12):
            limits.append(Limit(name, np.flatnonzero(links), best_gbs))
    name = " or ".join(state.name for state in states)
    return Topology(name, count, (), keys // count, keys % count, alpha_us, gbs, tuple(limits))


def places_of(network: ChangingNetwork, chosen: Sequence[int]) -> list[Ints]:
    """Return for each of some states the numbers that its links have in their relaxed network."""
    keys = _keys_of(network, chosen)
    return [np.searchsorted(keys, _keys(network.states[number])) for number in chosen]


def _keys_of(network: ChangingNetwork, chosen: Sequence[int]) -> Ints:
    """Return the keys of all links of some states, ascending and each once: the links of the relaxed network."""
    return np.unique(np.concatenate([_keys(network.states[number]) for number in chosen]))


def has_equal_links(network: ChangingNetwork, chosen: Sequence[int]) -> bool:
    """Return whether every link has the same bandwidth in all of some states that have it."""
    gbs: dict[int, float] = {}
    for state in (network.states[number] for number in chosen):
        for key, own_gbs in zip(_keys(state).tolist(), state.bandwidth_gbs.tolist(), strict=True):
            if gbs.setdefault(key, own_gbs) != own_gbs:
                return False
    return True


def _keys(state: Topology) -> Ints:
    """Return a number for each link that only depends on its ends, ascending."""
    return state.link_src * state.nranks + state.link_dst


def _limited_links(
    states: Sequence[Topology], places: Sequence[Ints], keys: Ints, nranks: int
) -> Iterator[tuple[str, Bools]]:
    """Yield (name, flags of its links) of each limit that a relaxed network may have.

    First comes the limit of all links, then those of what each rank sends and receives, then those of each state's own
    limits.

    Args:
        states: The states.
        places: For each state, the numbers that its links have in the relaxed network.
        keys: source · nranks + destination of each link of the relaxed network, ascending.
        nranks: Number of ranks.
    """
    yield LIMITS[0], np.ones(len(keys), dtype=bool)
    for rank in range(nranks):
        yield f"{LIMITS[1]} {rank}", keys // nranks == rank
        yield f"{LIMITS[2]} {rank}", keys % nranks == rank
    for number, (state, place) in enumerate(zip(states, places, strict=True)):
        for limit in state.limits:
            links = np.zeros(len(keys), dtype=bool)
            links[place[limit.links]] = True
            yield f"state {number}, {limit.name}", links


def _carried_gbs(state: Topology, links: Bools) -> float:
    """Return GB/s that some links of a state cannot exceed in sum: parts under its limits, then the other links.

    Args:
        state: The state.
        links: Flags of its links.
    """
    unlimited, carried = links.copy(), 0.0
    for limit in state.limits:
        own = np.zeros(len(unlimited), dtype=bool)
        own[limit.links] = unlimited[limit.links]
        gbs: Floats = state.bandwidth_gbs[own]
        if float(gbs.sum()) > limit.bandwidth_gbs:
            carried += limit.bandwidth_gbs
            unlimited &= ~own
    return carried + float(state.bandwidth_gbs[unlimited].sum())
