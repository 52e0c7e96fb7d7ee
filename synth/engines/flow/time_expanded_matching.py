"""Time-expanded greedy matching: every idle bundle of links takes a chunk that its far end still wants.

It routes and schedules at once, for chunks that most ranks want (all-gather, broadcast): the greedy matching on a
time-expanded network of TACOS (MICRO 2024), by events in place of time steps, so that α, bandwidths and shared
resources may differ, and over all links that leave a rank, switches included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from synth.engines.flow.congestion_prices import pop_key, push_key
from synth.engines.flow.csr_network import CsrNetwork, csr_network, reverse_network
from synth.engines.flow.trees import Csr, find_parents
from synth.engines.flow.tuning import TUNING, FlowTuning
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import reversible
from synth.timing.simulate import predict_us, resource_loads_us
from topologies.arrays import pointers

_GOAL_S = 2.5e-5  # Seconds that the compiled loop takes for a goal of a chunk, where there are a million.


class _Offers(NamedTuple):
    """Chunks that wait at a bundle, first come first served, as linked lists.

    Attributes:
        head: First offer of every bundle.
        tail: Last offer of every bundle.
        follows: For every offer the next one at its bundle, or the next free one.
        chunk: Chunk of every offer.
        link: Link of every offer.
    """

    head: Any
    tail: Any
    follows: Any
    chunk: Any
    link: Any


class _MatchScratch(NamedTuple):
    """State of the matching.

    Attributes:
        used: GB/s in use of every resource.
        busy: Whether every bundle is busy.
        marked: Whether every bundle is among the candidates.
        candidates: Bundles to look at.
        times: Times in µs of a heap of events.
        codes: Twice the send of each event, plus 1 where it arrives.
        arrived: Sends that have arrived since the bundles were last looked at.
    """

    used: Any
    busy: Any
    marked: Any
    candidates: Any
    times: Any
    codes: Any
    arrived: Any


class _Matching(NamedTuple):
    """The chunks to match, and the sends, in order of start.

    Attributes:
        is_goal: Whether a rank wants a chunk that it does not hold yet, chunk by chunk.
        holder_ptr: CSR pointer from a chunk to its holders.
        holders: Holders of each chunk, in CSR order.
        work: Size of every chunk in kilobytes.
        chunk: Chunk of each send.
        link: Link of each send.
        start: Start of each send in µs.
    """

    is_goal: Any
    holder_ptr: Any
    holders: Any
    work: Any
    chunk: Any
    link: Any
    start: Any


@dataclass(frozen=True, eq=False)
class FlowSchedule:
    """A schedule and its costs.

    Attributes:
        took_us: Time of the schedule in µs at the message size that it is for.
        schedule: The schedule.
        load_us: Time in µs that it keeps each resource busy (for bounds), float, shape (resources,).
    """

    took_us: float
    schedule: Schedule
    load_us: Floats


def is_matchable(problem: Problem, tuning: FlowTuning = TUNING) -> bool:
    """Return True if most ranks want every chunk, or add to it, so that matching in time is worth a try.

    Sums must be reversible, and the problem small enough for a table of chunks by ranks.
    """
    collective = problem.collective
    if collective.reducing and not reversible(collective):
        return False
    goals_of_chunk = len(collective.pre if collective.reducing else collective.post) / max(1, collective.nchunks)
    cells = collective.nchunks * problem.nranks
    return goals_of_chunk > tuning.matched_share * problem.nranks and cells <= tuning.matched_cells


def matching_s(problem: Problem) -> float:
    """Return about how many seconds the matching of a large problem takes; for small ones it is too little."""
    return _GOAL_S * max(len(problem.collective.pre), len(problem.collective.post))


def match_schedule(problem: Problem, size_bytes: float, run: Runner) -> FlowSchedule | None:
    """Return an untimed schedule by matching in time, for a problem that `is_matchable`.

    It is None where some goal is reached only through ranks that do not want the chunk.

    A sum that one rank wants is matched from there over the reversed links, and the result is reversed. Only then does
    the time count the start of a call.
    """
    collective = problem.collective
    is_reversed = collective.reducing
    net = csr_network(problem.network)
    loop_net = run.table(reverse_network(net) if is_reversed else net)
    begin_rows, end_rows = (collective.post, collective.pre) if is_reversed else (collective.pre, collective.post)
    is_goal = np.zeros((collective.nchunks, problem.nranks), dtype=bool)
    is_goal[end_rows[:, 1], end_rows[:, 0]] = True
    is_goal[begin_rows[:, 1], begin_rows[:, 0]] = False
    total = int(is_goal.sum())
    work = collective.chunk_bytes(size_bytes) * 1e-3
    eps = float(work.min()) / float(net.bandwidth_gbs.max()) * 1e-9
    holders = collective.goals if is_reversed else collective.holders
    chunk, link, start = match_in_time(run, loop_net, is_goal, holders, work, eps)
    if len(chunk) < total:
        return None
    order = np.argsort(chunk, kind="stable")
    ptr = pointers(np.bincount(chunk, minlength=collective.nchunks))
    _, depth = find_parents(run, loop_net, (ptr, link[order]))
    step = np.empty(len(chunk), dtype=np.int64)
    step[order] = depth
    bundle = net.bundle[link]
    end = start + work[chunk] / net.bandwidth_gbs[bundle] + net.alpha_us[bundle]
    if is_reversed:
        # With a huge latency rounding makes ends equal; the step then keeps a send after those that feed it.
        rows = np.lexsort((-step, -end))
        chunk, link, step = chunk[rows], link[rows], step.max(initial=0) - step[rows]
    schedule = untimed(chunk, link, step, np.full(len(chunk), is_reversed))
    # In reverse, sends through a shared resource may not fit as they did.
    time_us = predict_us(problem, schedule, size_bytes) if is_reversed else float(end.max(initial=0.0))
    return FlowSchedule(time_us, schedule, resource_loads_us(problem, replace(schedule, size_bytes=size_bytes)))


def match_in_time(
    run: Runner, net: CsrNetwork, is_goal: Bools, holders: Csr, work: Floats, eps: float
) -> tuple[Ints, Ints, Floats]:
    """Return the chunk, the link and the start in µs of every send, in order of start, in O(offers · log sends).

    Args:
        run: Runner of the compiled loops.
        net: The network as the loops need it.
        is_goal: Goals that do not hold the chunk yet, bool, shape (chunks, ranks); no other rank takes a chunk. A goal
            that cannot be reached over goals gets no send.
        holders: Holders by chunk, (ptr, ranks).
        work: Size of every chunk in kilobytes.
        eps: Time in µs by which events may differ and count as one.
    """
    total, degree = int(is_goal.sum()), np.diff(np.asarray(net.out_ptr))
    zeros, empty_lists = np.zeros(net.nbundles, dtype=np.int64), np.full(net.nbundles, -1)
    # A rank that holds a chunk, or gets it, offers it over each link.
    goals = is_goal.sum(axis=0)
    most_offers = int((degree * goals).sum() + degree[holders[1]].sum())
    offers = _Offers(
        *run.columns(empty_lists, empty_lists.copy(), *(np.empty(most_offers, dtype=np.int32) for _ in range(3)))
    )
    scratch = _MatchScratch(
        *run.columns(
            np.zeros(len(net.capacity_gbs)), zeros > 0, zeros > 0, zeros, np.empty(2 * total + 2),
            np.empty(2 * total + 2, dtype=np.int64), np.empty(total, dtype=np.int64),
        )
    )  # fmt: skip
    empty = np.empty(total, dtype=np.int64)
    matching = _Matching(*run.columns(is_goal.flatten(), *holders, work, empty, empty.copy(), np.empty(total)))
    nsends = run(_match_in_time, net, matching, eps, offers, scratch)
    chunk, link = (np.asarray(column, dtype=np.int64)[:nsends] for column in (matching.chunk, matching.link))
    return chunk, link, np.asarray(matching.start)[:nsends]


def _offer(
    net: CsrNetwork,
    is_goal: Any,
    offers: _Offers,
    scratch: _MatchScratch,
    chunk: int,
    u: int,
    noffers: int,
    free: int,
    ncand: int,
) -> tuple[int, int, int]:
    """Add an offer of a chunk on rank u over every link to a rank that wants it, behind the offers of the same bundle.

    A bundle that is neither busy nor a candidate becomes a candidate.

    Args:
        net: The network.
        is_goal: Whether a rank wants a chunk that it does not hold yet, at chunk · nranks + rank.
        offers: Offers of every bundle; changes.
        scratch: State of the matching; changes.
        chunk: The chunk.
        u: The rank that holds it.
        noffers: Number of places in use in the table of offers.
        free: First free offer below `noffers`; -1 for none.
        ncand: Number of candidates.

    Returns:
        `noffers`, `free` and `ncand` after the offers are added.
    """
    head, tail, follows, offer_chunk, offer_link = offers
    for j in range(net.out_ptr[u], net.out_ptr[u + 1]):
        link = net.out_link[j]
        if not is_goal[chunk * net.nranks + net.dst[link]]:
            continue
        bundle = net.bundle[link]
        if free >= 0:
            offer = free
            free = int(follows[free])
        else:
            offer = noffers
            noffers += 1
        offer_chunk[offer] = chunk
        offer_link[offer] = link
        follows[offer] = -1
        if head[bundle] < 0:
            head[bundle] = offer
        else:
            follows[tail[bundle]] = offer
        tail[bundle] = offer
        if not scratch.busy[bundle] and not scratch.marked[bundle]:
            scratch.marked[bundle] = True
            scratch.candidates[ncand] = bundle
            ncand += 1
    return noffers, free, ncand


def _match_in_time(  # One loop over events of over 60 lines, as its state is too large to pass on.
    net: CsrNetwork, matching: _Matching, eps: float, offers: _Offers, scratch: _MatchScratch
) -> int:
    """Write the chunk, link and start of each send to `matching`, in order of start, and return the number of sends.

    `is_goal` is False afterwards for each goal that gets its chunk. Events count as one that differ by up to `eps` µs.
    """
    is_goal, holder_ptr, holders, work, out_chunk, out_link, out_start = matching
    head, _, follows, offer_chunk, offer_link = offers
    used, busy, marked, candidates, times, codes, arrived = scratch
    nranks = net.nranks
    sends, noffers, free, ncand, size, narrived = 0, 0, -1, 0, 0, 0
    for chunk in range(len(work)):
        for j in range(holder_ptr[chunk], holder_ptr[chunk + 1]):
            noffers, free, ncand = _offer(net, is_goal, offers, scratch, chunk, holders[j], noffers, free, ncand)
    now = 0.0
    while True:
        for i in range(narrived):
            send = arrived[i]
            u = net.dst[out_link[send]]
            noffers, free, ncand = _offer(net, is_goal, offers, scratch, out_chunk[send], u, noffers, free, ncand)
        narrived = 0
        for bundle in sorted(candidates[:ncand]):
            marked[bundle] = False
            fits = not busy[bundle]
            for j in range(net.uses_ptr[bundle], net.uses_ptr[bundle + 1]):
                r = net.uses_idx[j]
                if used[r] + net.bandwidth_gbs[bundle] > net.capacity_gbs[r] * (1 + 1e-12):
                    fits = False
            while fits and head[bundle] >= 0:
                offer = head[bundle]
                head[bundle] = follows[offer]
                follows[offer] = free
                free = int(offer)
                chunk, link = int(offer_chunk[offer]), int(offer_link[offer])
                if not is_goal[chunk * nranks + net.dst[link]]:
                    continue
                is_goal[chunk * nranks + net.dst[link]] = False
                busy[bundle] = True
                for j in range(net.uses_ptr[bundle], net.uses_ptr[bundle + 1]):
                    used[net.uses_idx[j]] += net.bandwidth_gbs[bundle]
                out_chunk[sends] = chunk
                out_link[sends] = link
                out_start[sends] = now
                end = now + work[chunk] / net.bandwidth_gbs[bundle]
                push_key(times, codes, size, end + net.gap_us[bundle], 2 * sends)
                push_key(times, codes, size + 1, end + net.alpha_us[bundle], 2 * sends + 1)
                size += 2
                sends += 1
                break
        ncand = 0
        if size == 0:
            return sends
        begin = times[0]
        while size > 0 and times[0] <= begin + eps:
            now = times[0]
            send, arrives = codes[0] >> 1, codes[0] & 1
            pop_key(times, codes, size)
            size -= 1
            if arrives:
                arrived[narrived] = send
                narrived += 1
                continue
            bundle = net.bundle[out_link[send]]
            busy[bundle] = False
            if not marked[bundle] and head[bundle] >= 0:
                marked[bundle] = True
                candidates[ncand] = bundle
                ncand += 1
            for j in range(net.uses_ptr[bundle], net.uses_ptr[bundle + 1]):
                r = net.uses_idx[j]
                used[r] -= net.bandwidth_gbs[bundle]
                if used[r] < 1e-6 * net.bandwidth_gbs[bundle]:
                    used[r] = 0.0
                for k in range(net.users_ptr[r], net.users_ptr[r + 1]):
                    waiting_bundle = net.users_idx[k]
                    if head[waiting_bundle] >= 0 and not busy[waiting_bundle] and not marked[waiting_bundle]:
                        marked[waiting_bundle] = True
                        candidates[ncand] = waiting_bundle
                        ncand += 1
