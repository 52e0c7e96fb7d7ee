"""Time-expanded greedy matching: every bundle of links that falls idle takes a chunk that its far end still wants.

Routing and scheduling at once, for chunks that nearly everybody wants (all-gather, broadcast): the greedy matching
on a time-expanded network of TACOS (MICRO 2024), by events in place of time steps, so that α, bandwidths and shared
resources may differ, and over all links that leave a rank, switches included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from synth.engines.flow.congestion_prices import pop_key, push_key
from synth.engines.flow.csr_network import CsrNetwork, csr_network, reverse_network
from synth.engines.flow.trees import Csr, find_parents
from synth.engines.flow.tuning import TUNING, Tuning
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import reversible
from synth.timing.simulate import predict_us, resource_loads_us
from topologies.arrays import pointers


class _Offers(NamedTuple):
    """Chunks that wait at a bundle, first come first served, as linked lists over the offers."""

    head: Any  # of every bundle
    tail: Any
    follows: Any  # of every offer: the next at its bundle, or the next free one
    chunk: Any
    link: Any


class _Scratch(NamedTuple):
    used: Any  # GB/s of every resource
    busy: Any  # of every bundle, as the next two
    marked: Any
    candidates: Any
    times: Any  # a heap of events: (µs, twice the send, plus 1 where it arrives)
    codes: Any
    arrived: Any  # sends that have arrived since bundles were last looked at


@dataclass(frozen=True, eq=False)
class FlowSchedule:
    """A schedule, its time, and how long it keeps each resource busy (for bounds)."""

    took_us: float
    schedule: Schedule
    load_us: Floats


def is_matchable(problem: Problem, tuning: Tuning = TUNING) -> bool:
    """Whether nearly everybody wants every chunk, or adds to it, so that matching in time is worth a try."""
    collective = problem.collective
    if collective.reducing and not reversible(collective):
        return False
    wanted = len(collective.pre if collective.reducing else collective.post) / max(1, collective.nchunks)
    cells = collective.nchunks * problem.nranks
    return wanted > tuning.matched_share * problem.nranks and cells <= tuning.matched_cells


def matched(problem: Problem, size_bytes: float, run: Runner) -> FlowSchedule | None:
    """A schedule by matching in time; None where some goal is reached only through ranks that want nothing.

    A sum that one rank wants is matched from there over the links reversed, and read backwards.
    """
    collective = problem.collective
    back = collective.reducing
    net = csr_network(problem.network)
    over = run.table(reverse_network(net) if back else net)
    first, last = (collective.post, collective.pre) if back else (collective.pre, collective.post)
    wanted = np.zeros((collective.nchunks, problem.nranks), dtype=bool)
    wanted[last[:, 1], last[:, 0]] = True
    wanted[first[:, 1], first[:, 0]] = False
    total = int(wanted.sum())
    work = collective.chunk_bytes(size_bytes) * 1e-3
    eps = float(work.min()) / float(net.bandwidth_gbs.max()) * 1e-9
    holders = collective.goals if back else collective.holders
    chunk, link, start = match_in_time(run, over, wanted, holders, work, eps)
    if len(chunk) < total:
        return None
    order = np.argsort(chunk, kind="stable")
    ptr = pointers(np.bincount(chunk, minlength=collective.nchunks))
    _, depth = find_parents(run, over, (ptr, link[order]))
    step = np.empty(len(chunk), dtype=np.int64)
    step[order] = depth
    bundle = net.bundle[link]
    end = start + work[chunk] / net.bandwidth_gbs[bundle] + net.alpha_us[bundle]
    if back:
        rows = np.argsort(-end, kind="stable")
        chunk, link, step = chunk[rows], link[rows], step.max(initial=0) - step[rows]
    schedule = untimed(chunk, link, step, np.full(len(chunk), back))
    # read backwards, sends through a resource that several share may not fit as they did
    took = predict_us(problem, schedule, size_bytes) if back else float(end.max(initial=0.0))
    return FlowSchedule(took, schedule, resource_loads_us(problem, replace(schedule, size_bytes=size_bytes)))


def match_in_time(
    run: Runner, net: CsrNetwork, wanted: Bools, holders: Csr, work: Floats, eps: float
) -> tuple[Ints, Ints, Floats]:
    """(chunk, link, start in µs) of every send, in order of start; time O(offers · log sends).

    Args:
        net: as loops take it.
        wanted: shape (chunks, ranks): goals that hold nothing yet; nobody else takes a chunk.
        holders: by chunk. work: kilobytes of every chunk.
        eps: µs by which times may differ and be one.
    """
    total, degree = int(wanted.sum()), np.diff(np.asarray(net.out_ptr))
    none, some = np.zeros(net.nbundles, dtype=np.int64), np.full(net.nbundles, -1)
    # a rank that holds a chunk, or gets it, offers it over each link
    goals = wanted.sum(axis=0)
    most_offers = int((degree * goals).sum() + degree[holders[1]].sum())
    offers = _Offers(*run.columns(some, some.copy(), *(np.empty(most_offers, dtype=np.int32) for _ in range(3))))
    scratch = _Scratch(
        *run.columns(
            np.zeros(len(net.capacity_gbs)), none > 0, none > 0, none, np.empty(2 * total + 2),
            np.empty(2 * total + 2, dtype=np.int64), np.empty(total, dtype=np.int64),
        )
    )  # fmt: skip
    columns = run.columns(
        wanted.flatten(),
        *holders,
        work,
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
        np.empty(total),
    )
    made = run(_match_in_time, net, *columns, eps, offers, scratch)
    chunk, link = (np.asarray(column, dtype=np.int64)[:made] for column in columns[-3:-1])
    return chunk, link, np.asarray(columns[-1])[:made]


def _offer(
    net: CsrNetwork,
    wanted: Any,
    offers: _Offers,
    scratch: _Scratch,
    chunk: int,
    u: int,
    made: int,
    free: int,
    ncand: int,
) -> tuple[int, int, int]:
    """Rank u offers a chunk to all that want it. Returns offers made, the first free one, and candidates."""
    head, tail, follows, offer_chunk, offer_link = offers
    for j in range(net.out_ptr[u], net.out_ptr[u + 1]):
        link = net.out_link[j]
        if not wanted[chunk * net.nranks + net.dst[link]]:
            continue
        where = net.bundle[link]
        if free >= 0:
            offer = free
            free = int(follows[free])
        else:
            offer = made
            made += 1
        offer_chunk[offer] = chunk
        offer_link[offer] = link
        follows[offer] = -1
        if head[where] < 0:
            head[where] = offer
        else:
            follows[tail[where]] = offer
        tail[where] = offer
        if not scratch.busy[where] and not scratch.marked[where]:
            scratch.marked[where] = True
            scratch.candidates[ncand] = where
            ncand += 1
    return made, free, ncand


def _match_in_time(  # over 60 lines: one loop over events, whose state is too much to hand on
    net: CsrNetwork, wanted: Any, holder_ptr: Any, holders: Any, work: Any, out_chunk: Any, out_link: Any,
    out_start: Any, eps: float, offers: _Offers, scratch: _Scratch,
) -> int:  # fmt: skip
    """Write the sends; returns how many."""
    head, _, follows, offer_chunk, offer_link = offers
    used, busy, marked, candidates, times, codes, arrived = scratch
    nranks = net.nranks
    sends, made, free, ncand, size, narrived = 0, 0, -1, 0, 0, 0
    for chunk in range(len(work)):
        for j in range(holder_ptr[chunk], holder_ptr[chunk + 1]):
            made, free, ncand = _offer(net, wanted, offers, scratch, chunk, holders[j], made, free, ncand)
    now = 0.0
    while True:
        for i in range(narrived):
            send = arrived[i]
            u = net.dst[out_link[send]]
            made, free, ncand = _offer(net, wanted, offers, scratch, out_chunk[send], u, made, free, ncand)
        narrived = 0
        for where in sorted(candidates[:ncand]):
            marked[where] = False
            fits = not busy[where]
            for j in range(net.uses_ptr[where], net.uses_ptr[where + 1]):
                r = net.uses_idx[j]
                if used[r] + net.bandwidth_gbs[where] > net.capacity_gbs[r] * (1 + 1e-12):
                    fits = False
            while fits and head[where] >= 0:
                offer = head[where]
                head[where] = follows[offer]
                follows[offer] = free
                free = int(offer)
                chunk, link = int(offer_chunk[offer]), int(offer_link[offer])
                if not wanted[chunk * nranks + net.dst[link]]:
                    continue
                wanted[chunk * nranks + net.dst[link]] = False
                busy[where] = True
                for j in range(net.uses_ptr[where], net.uses_ptr[where + 1]):
                    used[net.uses_idx[j]] += net.bandwidth_gbs[where]
                out_chunk[sends] = chunk
                out_link[sends] = link
                out_start[sends] = now
                end = now + work[chunk] / net.bandwidth_gbs[where]
                push_key(times, codes, size, end, 2 * sends)
                push_key(times, codes, size + 1, end + net.alpha_us[where], 2 * sends + 1)
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
            where = net.bundle[out_link[send]]
            busy[where] = False
            if not marked[where] and head[where] >= 0:
                marked[where] = True
                candidates[ncand] = where
                ncand += 1
            for j in range(net.uses_ptr[where], net.uses_ptr[where + 1]):
                r = net.uses_idx[j]
                used[r] -= net.bandwidth_gbs[where]
                if used[r] < 1e-6 * net.bandwidth_gbs[where]:
                    used[r] = 0.0
                for k in range(net.users_ptr[r], net.users_ptr[r + 1]):
                    to = net.users_idx[k]
                    if head[to] >= 0 and not busy[to] and not marked[to]:
                        marked[to] = True
                        candidates[ncand] = to
                        ncand += 1
