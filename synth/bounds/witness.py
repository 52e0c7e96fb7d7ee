"""What proves a bound on the time: objects that can be checked from the problem alone.

Each witness gives a lower limit in µs for any message size, in the model of the design document, over all
algorithms and all numbers of chunks. `recompute` works out what it proves and shares nothing with the engines, nor
with the search for it, which only says what to look at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from synth.bounds.distances import Distances
from synth.bounds.metric import groups, link_lengths, pairs, room_us, used
from synth.model.collective import Bools, Floats
from synth.model.problem import Problem
from synth.model.requirements import counted, needs
from topologies.errors import BadWitness
from topologies.network import Network

KINDS = ("path", "cut", "parts", "direct", "lengths", "arrivals", "departures")
_FOLDED = ("path", "lengths", "arrivals", "departures")  # true of one copy as of all
_MOST_DIRECT = 6000  # ranks


@dataclass(frozen=True)
class Witness:
    """At message size s the time is at least `base_us + per_byte_us · s`, and never over `cap_us`.

    Attributes:
        kind: path, cut, parts, direct, lengths, arrivals or departures.
        ranks: path: (from, to). cut: local ranks on the sending side. arrivals, departures: the local ranks that
            are looked at. direct: none.
        parts: parts: local ranks of every part.
        resources: indices of the network's resources that the crossing sends must use.
        base_us, per_byte_us, cap_us: the limit. cap_us is inf but for `direct`, which holds only until a second
            hop could pay: time ≥ min(cap, base + per_byte · s).
        text: for the reader.
        prices: lengths: (resource, price) pairs; a link is as long as its resources' prices together. A resource
            beyond the network's own (nresources + link) is that link's own bandwidth.
    """

    kind: str
    ranks: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    resources: tuple[int, ...]
    base_us: float
    per_byte_us: float
    cap_us: float
    text: str
    prices: tuple[tuple[int, float], ...] = ()

    def at(self, size_bytes: float) -> float:
        return min(self.cap_us, self.base_us + self.per_byte_us * size_bytes)


def check(problem: Problem, witness: Witness) -> None:
    """Recompute a witness from the problem.

    Raises:
        BadWitness: it claims more than it proves, or its resources do not cover what they must.
    """
    base, per_byte, cap = recompute(problem, witness)
    for name, claimed, proved in (
        ("µs", witness.base_us, base),
        ("µs per byte", witness.per_byte_us, per_byte),
        ("µs at most", witness.cap_us, cap),
    ):
        if not claimed <= proved * (1 + 1e-9) + 1e-12:
            raise BadWitness(f"{witness.kind} {witness.text}: claims {claimed} {name}, proves {proved}")


def recompute(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """What the witness proves: (µs, µs per byte, µs at most), whatever numbers it claims.

    Of a quotient problem (`Problem.quotient`) it proves the same for the whole.

    Raises:
        BadWitness: it proves nothing: its ranks or resources are not there or do not do what they must, or its
            kind says nothing about a quotient problem.
    """
    if witness.kind not in KINDS:
        raise BadWitness(f"{witness.kind[:40]}: no such kind of witness; it is one of {', '.join(KINDS)}")
    if problem.quotient is not None and witness.kind not in _FOLDED:
        raise BadWitness(
            f"{witness.kind} {witness.text}: says nothing about a quotient problem; that do {', '.join(_FOLDED)}"
        )
    return {
        "path": _path,
        "cut": _cut,
        "parts": _parts,
        "direct": _direct,
        "lengths": _lengths,
        "arrivals": _ends,
        "departures": _ends,
    }[witness.kind](problem, witness)


@lru_cache(maxsize=4)
def latencies(net: Network) -> Distances:
    """Least sums of α between ranks."""
    return Distances(net.nranks, net.src, net.dst, net.alpha_us)


def _members(problem: Problem, witness: Witness, ranks: Iterable[int]) -> Bools:
    """The ranks given as flags, shape (local ranks,)."""
    chosen = np.array(list(ranks), dtype=np.int64)
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < problem.nranks):
        raise BadWitness(f"{witness.kind} {witness.text}: names a rank that is not there")
    flags = np.zeros(problem.nranks, dtype=bool)
    flags[chosen] = True
    return flags


def _capacity(problem: Problem, witness: Witness, ways: Bools) -> float:
    """GB/s of the witness's resources together, of which every one of `ways` (flags of links) uses one."""
    net = problem.network
    chosen = np.unique(np.array(witness.resources, dtype=np.int64))
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= net.nresources:
        raise BadWitness(f"{witness.kind} {witness.text}: needs resources of the network")
    flags = np.zeros(net.nresources, dtype=bool)
    flags[chosen] = True
    round_it = ways & (counted(net.uses_ptr, flags[net.uses_idx]) == 0)
    if round_it.any():
        name = problem.link_name(int(np.argmax(round_it)))
        raise BadWitness(f"{witness.kind} {witness.text}: link {name} goes round it")
    return float(net.capacity_gbs[chosen].sum())


def _path(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """A chunk that must get from one rank to another spends at least the least sum of α on the way."""
    collective = problem.collective
    if len(witness.ranks) != 2 or max(witness.ranks) >= collective.nranks or min(witness.ranks) < 0:
        raise BadWitness(f"path {witness.text}: goes from one rank of the group to another")
    first, last = witness.ranks
    held, wanted = (np.zeros(collective.nchunks, dtype=bool) for _ in range(2))
    held[collective.pre[collective.pre[:, 0] == first, 1]] = True
    wanted[collective.post[collective.post[:, 0] == last, 1]] = True
    only = np.diff(collective.holders[0]) == 1
    if not (held & wanted & (collective.reduces | only)).any():
        raise BadWitness(f"path {witness.text}: nothing has to get from {first} to {last}")
    return float(latencies(problem.network).rows(np.array([first]))[0, last]), 0.0, np.inf


def _cut(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """What must leave a set of ranks shares the capacity of all ways out of it."""
    net, collective = problem.network, problem.collective
    inside = _members(problem, witness, witness.ranks)
    ways = inside[net.src] & ~inside[net.dst]
    capacity = _capacity(problem, witness, ways)
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    need = needs(collective)
    within = counted(hold_ptr, inside[hold])
    some, whole = within > 0, (within == need.nhold) & (within > 0)
    crossing = (counted(goal_ptr, ~inside[goal]) > 0) & np.where(collective.reduces, some, whole)
    if not crossing.any() or not ways.any():
        return 0.0, 0.0, np.inf
    sources, goals = (np.zeros(net.nranks, dtype=bool) for _ in range(2))
    sources[hold[crossing[need.hold_chunk]]] = True
    goals[goal[crossing[need.goal_chunk]]] = True
    far = latencies(net)
    before = far.nearest(np.flatnonzero(sources & inside))[net.src[ways]].min()
    after = far.nearest_to(np.flatnonzero(goals & ~inside))[net.dst[ways]]
    leaving = float(collective.fraction[crossing].sum()) / capacity / 1e3
    return float(before + (net.alpha_us[ways] + after).min()), leaving, np.inf


def _parts(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """An all-to-all sum over k parts needs 2(k-1) sends of every chunk between parts.

    Take the first part that has all contributions: each other part has sent by then, and each must still receive.
    """
    net, collective = problem.network, problem.collective
    part = np.full(problem.nranks, -1, dtype=np.int64)
    for i, ranks in enumerate(witness.parts):
        part[_members(problem, witness, ranks)] = i
    if (part < 0).any() or sum(len(ranks) for ranks in witness.parts) != problem.nranks:
        raise BadWitness(f"parts {witness.text}: not every rank is in exactly one part")
    k = collective.nranks
    everywhere = len(collective.pre) == len(collective.post) == k * collective.nchunks
    if not (collective.reduces.all() and everywhere):
        raise BadWitness("parts: holds for allreduce only")
    if len(np.unique(part[:k])) < len(witness.parts):
        raise BadWitness(f"parts {witness.text}: a part without a member of the group")
    capacity = _capacity(problem, witness, part[net.src] != part[net.dst])
    sends = 2 * (len(witness.parts) - 1)
    return float(net.alpha_us.min()), sends * float(collective.fraction.sum()) / capacity / 1e3, np.inf


def _direct(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """Faster than two hops, everything comes straight from where it was: the busiest resource's load."""
    net, collective = problem.network, problem.collective
    k = collective.nranks
    if len(witness.resources) != 1 or not 0 <= witness.resources[0] < net.nresources:
        raise BadWitness("direct: needs one resource of the network")
    if k > _MOST_DIRECT:
        raise BadWitness(f"direct: for at most {_MOST_DIRECT} ranks")
    (resource,) = witness.resources
    user = counted(net.uses_ptr, net.uses_idx == resource) > 0
    forced = np.zeros((k, k), dtype=bool)  # pairs whose links all use the resource
    inner = (net.src < k) & (net.dst < k)
    forced[net.src[inner & user], net.dst[inner & user]] = True
    forced[net.src[inner & ~user], net.dst[inner & ~user]] = False
    alpha = float(net.alpha_us.min()) if needs(collective).any else 0.0
    load = float(_forced(problem, forced) @ collective.fraction)
    return alpha, load / float(net.capacity_gbs[resource]) / 1e3, 2 * alpha


def _forced(problem: Problem, forced: Bools) -> Floats:
    """How often every chunk must go straight over a pair of ranks that `forced` flags, shape (nchunks,)."""
    collective = problem.collective
    load = np.zeros(collective.nchunks)
    listed = pairs(collective)
    if len(listed.chunk):
        times = forced[listed.holder, listed.goal].astype(np.int64)
        if not listed.single:  # a plain chunk may come from any holder, of a sum every contribution must come
            all_of_them = np.minimum.reduceat(times, listed.start)
            each = np.add.reduceat(times, listed.start)
            times = np.where(collective.reduces[listed.chunk], each, all_of_them)
        np.add.at(load, listed.chunk, times)
    for same, holders, goals in groups(collective, listed.others):
        table = forced[np.ix_(holders, goals)]
        load[same] = table.sum() if collective.reduces[same[0]] else table.all(axis=0).sum()
    return load


def _lengths(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """Every byte on a link uses up its length; what must travel must find room (see `synth.bounds.metric`)."""
    net = problem.network
    price = np.zeros(net.nresources + net.nlinks)
    for resource, value in dict(witness.prices).items():
        if not 0 <= resource < len(price) or not 0 <= value < np.inf:
            raise BadWitness(
                "lengths: a price below 0 or beyond numbers, or of a resource that does not exist"
            )
        price[resource] = value
    return (
        float(net.alpha_us.min()) if needs(problem.collective).any else 0.0,
        lengths_us_per_byte(problem, price),
        np.inf,
    )


def lengths_us_per_byte(problem: Problem, price: Floats) -> float:
    """What link lengths prove, from a price ≥ 0 of every resource and (after these) every link's bandwidth."""
    room = room_us(problem, price)
    if not 0 < room < np.inf:
        return 0.0
    proved = float(used(problem, link_lengths(problem, price)) @ problem.collective.fraction) / room / 1e3
    return proved if proved < np.inf else 0.0


def _ends(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """Whatever comes to a rank at all comes over a link into it, whatever leaves it over one out of it.

    A chunk that several of the ranks want arrives that many times, a sum that several hold leaves that many times.
    """
    net, collective = problem.network, problem.collective
    arrivals = witness.kind == "arrivals"
    ranks = _members(problem, witness, witness.ranks)
    if problem.quotient is not None and not ranks.all():
        raise BadWitness(f"{witness.kind} {witness.text}: of a quotient problem it must be all ranks")
    ways = ranks[net.dst if arrivals else net.src]
    capacity = _capacity(problem, witness, ways)
    need = needs(collective)
    if arrivals:
        counts, chunk = need.arrive & ranks[collective.goals[1]], need.goal_chunk
    else:
        counts, chunk = need.depart & ranks[collective.holders[1]], need.hold_chunk
    if not counts.any() or not ways.any():
        return 0.0, 0.0, np.inf
    load = float(collective.fraction[chunk[counts]].sum())
    return float(net.alpha_us[ways].min()), load / capacity / 1e3, np.inf
