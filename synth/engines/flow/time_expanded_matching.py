"""Time-expanded greedy matching: every bundle of links that falls idle takes a chunk that its far end still wants.

Routing and scheduling at once, for chunks that nearly everybody wants (all-gather, broadcast): the greedy matching
on a time-expanded network of TACOS (MICRO 2024), by events in place of time steps, so that α, bandwidths and shared
resources may differ, and over all links that leave a rank, switches included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synth.engines.flow.congestion_prices import pop_key, push_key
from synth.engines.flow.csr_network import CsrNetwork
from synth.engines.flow.trees import Csr
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import Runner


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
