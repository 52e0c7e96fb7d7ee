"""Objects that prove a bound on the time and can be checked from the problem, with the check of most kinds.

A witness gives a lower limit in µs for any message size, in the model of `examples/guides/reading.md`, over all
algorithms and all numbers of chunks. The searches (`path`, `cut`, `lengths` and the like) only say what to look at:
they make witnesses that claim nothing. This module computes what a witness proves; `synth.bounds.windows.limit` does so
for windows of time. It imports none of the searches, no engine and no solver; it shares with them only `metric` and
`distances`, by which they measure lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from synth.bounds.metric import (
    LISTED_BELOW,
    carrier_lengths,
    chunks_by_ends,
    crossing_times,
    latencies,
    pairs,
    required_lengths,
)
from synth.model.collective import Bools, Collective, Floats, Ints
from synth.model.problem import Problem
from synth.model.registry import OWN, PAIR
from synth.model.requirements import find_requirements
from topologies.arrays import flags_of, row_of_entry, segment_sums
from topologies.errors import BadWitness
from topologies.network import Network

MOST_TIMED = 512  # ranks: the check of a cut with times measures distances from each rank at the cut
_ROUNDING = 1e-9  # relative
MOST_DIRECT = 6000  # ranks: the check of a direct exchange needs a table of all pairs

Limit = tuple[float, float, float]  # (µs, µs per byte, µs at most), as in `Witness`


@dataclass(frozen=True)
class Witness:
    """An object that proves a lower limit on the time; without numbers it claims nothing.

    At message size s the limit is min(cap_us, base_us + per_byte_us · s).

    Attributes:
        kind: path, cut, parts, direct, lengths, arrivals, departures or window.
        ranks: path: (from, to). cut: local ranks on the sending side. arrivals, departures: the local ranks at which
            data arrives or leaves. direct: none.
        parts: parts: local ranks of every part. window: parts for sums (`window_limit.part_of`).
        resources: Indices of the network's resources that the crossing sends must use.
        base_us: Limit in µs for an empty message.
        per_byte_us: Limit in µs per byte of the message.
        cap_us: Highest limit in µs. It is inf except for `direct`, which holds only until a second hop could pay, and
            for `window`.
        text: Description for the reader.
        prices: lengths: (resource, price) pairs; a link is as long as the sum of its resources' prices. A resource
            beyond the network's own (nresources + link) is that link's own bandwidth.
        protocol: Protocol to which the limit applies where an executor's costs are on (`Problem.protocols`); "" where
            they are off, or the problem is of one protocol.
        at_bytes: window: message size in bytes.
        times: window: times in µs, from 0 on, that separate the slots. cut: only chunks count that need at least
            times[0] µs until they can cross, and at least times[1] µs from then to their goals; empty: all chunks
            count.
        windows: window: (resource, slot, price), resources as in `prices`.
        shares: window: (chunk, source, goal, link, slot, price), the price that one of several flows of a chunk pays.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    resources: tuple[int, ...] = ()
    base_us: float = 0.0
    per_byte_us: float = 0.0
    cap_us: float = np.inf
    text: str = ""
    prices: tuple[tuple[int, float], ...] = ()
    protocol: str = ""
    at_bytes: float = 0.0
    times: tuple[float, ...] = ()
    windows: tuple[tuple[int, int, float], ...] = ()
    shares: tuple[tuple[int, int, int, int, int, float], ...] = ()

    def at(self, size_bytes: float) -> float:
        """Return the limit in µs at a message size."""
        return min(self.cap_us, self.base_us + self.per_byte_us * size_bytes)


def decisive(witnesses: Iterable[Witness], size_bytes: float) -> Witness:
    """Return the witness whose limit is the bound at a size.

    That is the highest limit. Where witnesses belong to protocols, it is the least of the protocols' highest limits,
    since an executor's call has one protocol. Of equal witnesses a path comes first, then the earliest.
    """
    best: dict[str, Witness] = {}
    for witness in witnesses:
        best_so_far = best.get(witness.protocol)
        if best_so_far is None or _rank(witness, size_bytes) > _rank(best_so_far, size_bytes):
            best[witness.protocol] = witness
    return min(best.values(), key=lambda w: w.at(size_bytes))


def _rank(witness: Witness, size_bytes: float) -> tuple[float, bool]:
    """Return the sort key of a witness: its limit, then whether it is a path."""
    return witness.at(size_bytes), witness.kind == "path"


@lru_cache(maxsize=4)
def countable(problem: Problem) -> Problem:
    """Return the problem where no two wanted chunks share a place of an input buffer.

    Of chunks made from the same data (a scan's sums) one send may serve several, so their amounts must not be added.
    """
    old = problem.collective
    place = old.pre[:, 0] * (int(old.in_index.max(initial=0)) + 1) + old.in_index
    dense = int(place.max(initial=0)) < 8 * len(place) + 64
    if not ((np.bincount(place) > 1).any() if dense else len(np.unique(place)) < len(place)):
        return problem
    places: set[int] = set()
    shared = np.zeros(old.nchunks, dtype=bool)
    by_chunk: dict[int, list[int]] = {}
    for chunk, at in zip(old.pre[:, 1].tolist(), place.tolist(), strict=True):
        by_chunk.setdefault(chunk, []).append(at)
    # Sums of most contributions come first: they prove most.
    for chunk in sorted(by_chunk, key=lambda c: (-len(by_chunk[c]), c)):
        shared[chunk] = not places.isdisjoint(by_chunk[chunk])
        if not shared[chunk]:
            places.update(by_chunk[chunk])
    unshared = ~shared[old.post[:, 1]]
    return replace(problem, collective=replace(old, post=old.post[unshared], out_index=old.out_index[unshared]))


def refusal(witness: Witness, why: str) -> BadWitness:
    """Return the error for a witness that proves nothing."""
    return BadWitness(f"{witness.kind} {witness.text}: {why}")


def _members(problem: Problem, witness: Witness, ranks: Iterable[int]) -> Bools:
    """Return local ranks as flags, shape (local ranks,); raise BadWitness for a rank that does not exist."""
    chosen = np.array(list(ranks), dtype=np.int64)
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < problem.nranks):
        raise refusal(witness, f"names a rank that does not exist; ranks are 0..{problem.nranks - 1}")
    return flags_of(problem.nranks, chosen)


def _times(net: Network, flags: Bools) -> Ints:
    """Return how many of its pairs each link and hyperlink has flagged; `flags` are of `Network.pairs`."""
    return segment_sums(flags, net.pairs.ptr)


def _capacity(net: Network, witness: Witness, times: Ints, name: Callable[[int], str]) -> float:
    """Return the GB/s of the witness's resources in sum, of which every counted send takes some.

    Each link that counts must use one of the resources. If a hyperlink counts more often than it uses them, all of them
    count that much more; if it uses none, the result is inf.

    Args:
        net: The network.
        witness: The witness with the resources.
        times: How often each link and hyperlink counts when it is used once; 0: not at all.
        name: Returns a link's name.

    Raises:
        BadWitness: A resource does not exist, or a link that counts uses none of them.
    """
    chosen = np.unique(np.array(witness.resources, dtype=np.int64))
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= net.nresources:
        raise refusal(witness, "resources are missing or do not exist; they must be the network's")
    _, _, uses_ptr, uses_idx, *_ = net.carriers
    uses_chosen = segment_sums(flags_of(net.nresources, chosen)[uses_idx], uses_ptr)
    uncovered = (times > 0) & (uses_chosen == 0)
    if uncovered[: net.nlinks].any():
        raise refusal(witness, f"link {name(int(np.argmax(uncovered)))} uses none of its resources; it must use one")
    if uncovered.any():
        return np.inf
    most = (times / np.maximum(uses_chosen, 1)).max(initial=1.0)
    return float(net.capacity_gbs[chosen].sum() * most)


def path_limit(problem: Problem, witness: Witness) -> Limit:
    """Prove that a chunk that must get from one rank to another spends at least the least sum of α."""
    collective = problem.collective
    if len(witness.ranks) != 2 or max(witness.ranks) >= collective.nranks or min(witness.ranks) < 0:
        raise refusal(witness, "it must name two ranks of the group")
    first, last = witness.ranks
    chunks_held = flags_of(collective.nchunks, collective.pre[collective.pre[:, 0] == first, 1])
    chunks_wanted = flags_of(collective.nchunks, collective.post[collective.post[:, 0] == last, 1])
    only = np.diff(collective.holders[0]) == 1
    if not (chunks_held & chunks_wanted & (collective.reduces | only)).any():
        raise refusal(
            witness, f"nothing has to get from {first} to {last}; a path must be one that a chunk has to take"
        )
    return float(latencies(problem.network).rows(np.array([first]))[0, last]), 0.0, np.inf


def cut_limit(problem: Problem, witness: Witness) -> Limit:
    """Prove that what must leave a set of ranks shares the capacity of all links out of it."""
    net, collective = whole_network(problem), problem.collective
    inside = _members(problem, witness, witness.ranks)
    _, src, dst = net.pairs
    crossed = inside[src] & ~inside[dst]
    capacity = _capacity(net, witness, np.minimum(_times(net, crossed), 1), problem.link_name)
    if problem.quotient is not None:  # Only the α of the crossing links counts.
        share = _whole_leaving(collective, inside)
        if share <= 0 or not crossed.any():
            return 0.0, 0.0, np.inf
        return float(net.carriers.alpha_us[row_of_entry(net.pairs.ptr)[crossed]].min()), share / capacity / 1e3, np.inf
    crossing = must_leave(collective, inside)
    if not crossing.any() or not crossed.any():
        return 0.0, 0.0, np.inf
    if witness.times:
        return _late_limit(problem, witness, inside, crossed, crossing, capacity)
    (_, hold), (_, goal), need = collective.holders, collective.goals, find_requirements(collective)
    sources = flags_of(net.nranks, hold[crossing[need.hold_chunk]])
    goals = flags_of(net.nranks, goal[crossing[need.goal_chunk]])
    distances = latencies(net)
    before = distances.nearest(np.flatnonzero(sources & inside))[src[crossed]].min()
    after = distances.nearest(np.flatnonzero(goals & ~inside), to=True)[dst[crossed]]
    alpha = net.carriers.alpha_us[row_of_entry(net.pairs.ptr)[crossed]]
    leaving = float(collective.fraction[crossing].sum()) / capacity / 1e3
    return float(before + (alpha + after).min()), leaving, np.inf


def must_leave(collective: Collective, inside: Bools) -> Bools:
    """Return which chunks must leave a set of ranks, shape (nchunks,).

    They are wanted outside, and only these ranks hold them or they hold a part of the sum.
    """
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    within = segment_sums(inside[hold], hold_ptr)
    any_inside, all_inside = within > 0, (within == np.diff(hold_ptr)) & (within > 0)
    return (segment_sums(~inside[goal], goal_ptr) > 0) & np.where(collective.reduces, any_inside, all_inside)


def _late_limit(
    problem: Problem, witness: Witness, inside: Bools, crossed: Bools, crossing: Bools, capacity: float
) -> Limit:
    """Prove a limit of a cut by the chunks that reach it late or have far to go after it, which leaves less time."""
    if len(witness.times) != 2 or problem.nranks > MOST_TIMED:
        raise refusal(witness, f"{len(witness.times)} times; it must be two, of {MOST_TIMED} ranks at most, or none")
    begins, takes = crossing_times(problem, inside, crossed)
    since, last = (us * (1 - _ROUNDING) for us in witness.times)
    counted = crossing & (begins >= since) & (takes >= last)
    if not counted.any():
        return 0.0, 0.0, np.inf
    latency = float(begins[counted].min() + takes[counted].min())
    return latency, float(problem.collective.fraction[counted].sum()) / capacity / 1e3, np.inf


def whole_network(problem: Problem) -> Network:
    """Return the network of a problem, or of the whole problem if this is a quotient problem."""
    return problem.network if problem.quotient is None else problem.quotient.whole


def _whole_leaving(collective: Collective, inside: Bools) -> float:
    """Return the share of the message that must leave a set of ranks in the whole of a quotient problem."""
    k, kind = collective.nranks, collective.kind
    within = int(inside[:k].sum())
    if not 0 < within < k:
        return 0.0
    if kind.unit == PAIR:
        return within * (k - within) / k**2
    if kind.before == OWN:  # Each rank's data goes to all ranks, or into sums of all.
        return within / k
    return (k - within) / k if kind.after == OWN else 1.0


def parts_limit(problem: Problem, witness: Witness) -> Limit:
    """Prove that a sum that all its contributors want, in k parts, needs 2(k-1) sends of its chunk between the parts.

    Take the first part that has all contributions: each other one of the k has sent by then, and must still receive.
    """
    net, collective = whole_network(problem), problem.collective
    part = np.full(problem.nranks, -1, dtype=np.int64)
    for i, ranks in enumerate(witness.parts):
        part[_members(problem, witness, ranks)] = i
    if (part < 0).any() or sum(len(ranks) for ranks in witness.parts) != problem.nranks:
        raise refusal(witness, "parts overlap or leave ranks out; every rank must be in exactly one")
    if not (collective.reduces.all() and np.array_equal(collective.pre, collective.post)):
        raise refusal(witness, "the collective is not an allreduce; it must be an allreduce, or several")
    if len(np.unique(part[: collective.nranks])) < len(witness.parts):
        raise refusal(witness, "a part has no member of the group; it must have one")
    # A hyperlink may serve as many parts as it has pairs between parts.
    capacity = _capacity(net, witness, _times(net, part[net.pairs.src] != part[net.pairs.dst]), problem.link_name)
    chunk_of_part = np.unique(collective.pre[:, 1] * len(witness.parts) + part[collective.pre[:, 0]]) // len(
        witness.parts
    )
    sends = 2 * (np.bincount(chunk_of_part, minlength=collective.nchunks) - 1)
    if not sends.any():
        raise refusal(witness, "no chunk is in two parts; there must be one that has to be sent between them")
    translates = 1 if problem.quotient is None else problem.quotient.order
    share = float(sends @ collective.fraction) * translates
    return float(net.carriers.alpha_us.min()), share / capacity / 1e3, np.inf


def direct_limit(problem: Problem, witness: Witness) -> Limit:
    """Prove the load of the busiest resource if everything comes directly, which holds below the time of two hops."""
    net, collective = problem.network, problem.collective
    k = collective.nranks
    if len(witness.resources) != 1 or not 0 <= witness.resources[0] < net.nresources:
        raise refusal(witness, f"resources are {witness.resources[:4]}; it must be one of the network's")
    if k > MOST_DIRECT:
        raise refusal(witness, f"{k} ranks are too many; it must be at most {MOST_DIRECT}")
    (resource,) = witness.resources
    _, _, uses_ptr, uses_idx, *_ = net.carriers
    ptr, src, dst = net.pairs
    user = (segment_sums(uses_idx == resource, uses_ptr) > 0)[row_of_entry(ptr)]
    forced = np.zeros((k, k), dtype=bool)  # pairs of ranks whose links all use the resource
    inner = (src < k) & (dst < k)
    forced[src[inner & user], dst[inner & user]] = True
    forced[src[inner & ~user], dst[inner & ~user]] = False
    alpha = float(net.carriers.alpha_us.min()) if find_requirements(collective).any else 0.0
    loads = direct_loads(problem, forced)
    if net.hyperlinks is not None:  # One send may serve all pairs of a chunk.
        loads = np.minimum(loads, 1)
    load = float(loads @ collective.fraction)
    return alpha, load / float(net.capacity_gbs[resource]) / 1e3, 2 * alpha


def direct_loads(problem: Problem, forced: Bools, listed_below: int = LISTED_BELOW) -> Floats:
    """Return how often every chunk must go directly over a pair of ranks that `forced` flags, shape (nchunks,)."""
    collective = problem.collective
    load = np.zeros(collective.nchunks)
    listed = pairs(collective, listed_below)
    if len(listed.chunk):
        times = forced[listed.holder, listed.goal].astype(np.int64)
        if not listed.single:  # A plain chunk may come from any holder; of a sum every contribution must come.
            least, total = np.minimum.reduceat(times, listed.start), np.add.reduceat(times, listed.start)
            times = np.where(collective.reduces[listed.chunk], total, least)
        np.add.at(load, listed.chunk, times)
    for chunks, holders, goals in chunks_by_ends(collective, listed.unlisted):
        table = forced[np.ix_(holders, goals)]
        load[chunks] = table.sum() if collective.reduces[chunks[0]] else table.all(axis=0).sum()
    return load


def lengths_limit(problem: Problem, witness: Witness) -> Limit:
    """Prove that the resources must have the capacity for all length that bytes use up (see `synth.bounds.metric`)."""
    net = problem.network
    price = np.zeros(net.nresources + net.nlinks)
    for resource, value in dict(witness.prices).items():
        if not 0 <= resource < len(price) or not 0 <= value < np.inf:
            rule = "it must be finite, ≥ 0 and of a resource that exists"
            raise refusal(witness, f"the price {value} of resource {resource}; {rule}")
        price[resource] = value
    alpha = float(net.carriers.alpha_us.min()) if find_requirements(problem.collective).any else 0.0
    return alpha, lengths_us_per_byte(problem, price), np.inf


def lengths_us_per_byte(problem: Problem, price: Floats) -> float:
    """Return the µs per byte that link lengths prove.

    Args:
        problem: The problem.
        price: Price ≥ 0 of every resource, then of every link's own bandwidth.
    """
    net = problem.network
    # GB/s are 1000 bytes/µs: `capacity` is a thousandth of the length that can be used up in a µs.
    capacity = float(price @ np.concatenate([net.capacity_gbs, net.bandwidth_gbs]))
    if not 0 < capacity < np.inf:
        return 0.0
    required = float(required_lengths(problem, carrier_lengths(problem, price)) @ problem.collective.fraction)
    return required / capacity / 1e3 if required / capacity < np.inf else 0.0


def ends_limit(problem: Problem, witness: Witness) -> Limit:
    """Prove that whatever comes to a rank comes over a link into it, or that whatever leaves it uses a link out of it.

    A chunk that several of the ranks want arrives that many times. A sum that several hold leaves that many times.
    """
    net, collective = problem.network, problem.collective
    arrivals = witness.kind == "arrivals"
    ranks = _members(problem, witness, witness.ranks)
    if problem.quotient is not None and not ranks.all():
        raise refusal(witness, "names some ranks; for a quotient problem it must name all ranks")
    at_ranks = ranks[net.pairs.dst if arrivals else net.pairs.src]
    times = _times(net, at_ranks)
    if net.hyperlinks is not None:  # A multicast leaves one rank, and a reduction comes to one rank.
        single = np.append(np.ones(net.nlinks, dtype=bool), net.hyperlinks.multicast != arrivals)
        times = np.where(single, np.minimum(times, 1), times)
    capacity = _capacity(net, witness, times, problem.link_name)
    need = find_requirements(collective)
    if arrivals:
        counts, chunk = need.arrive & ranks[collective.goals[1]], need.goal_chunk
    else:
        counts, chunk = need.depart & ranks[collective.holders[1]], need.hold_chunk
    if not counts.any() or not at_ranks.any():
        return 0.0, 0.0, np.inf
    load = float(collective.fraction[chunk[counts]].sum())
    alpha = net.carriers.alpha_us[row_of_entry(net.pairs.ptr)[at_ranks]]
    return float(alpha.min()), load / capacity / 1e3, np.inf
