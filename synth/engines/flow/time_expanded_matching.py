"""Growth in time, compiled: every lane that falls idle takes a chunk that its far end still wants.

Routing and scheduling at once, for chunks that nearly everybody wants (all-gather, broadcast): the greedy matching
on a time-expanded network of TACOS (MICRO 2024), by events in place of time steps, so that α, bandwidths and shared
resources may differ, and over all links that leave a rank, switches included.
"""

from __future__ import annotations

import numpy as np

from synth.engines.flow.congestion_prices import grow_pool, pop_key, push_key
from synth.engines.flow.csr_network import Wires
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import kernel


@kernel
def grow(
    net: Wires, wanted: Bools, holder_ptr: Ints, holders: Ints, work: Floats, seed: int, eps: float
) -> tuple[Ints, Ints, Floats]:
    """(chunk, link, start in µs) of every send, in order of start.

    Args:
        wanted: shape (chunks, ranks), changed: goals that hold nothing yet; nobody else takes a chunk.
        work: kilobytes of every chunk.
        seed: 0: a lane takes what has waited longest; else one of the first few that wait, by a generator.
    """
    nlanes = net.nlanes
    total = 0
    for chunk in range(len(work)):
        for v in range(net.nranks):
            total += wanted[chunk, v]
    out_chunk, out_link, out_start = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total)
    made = 0
    # waiting offers of every lane, first come first served, as linked lists
    head, tail = np.full(nlanes, -1, np.int64), np.full(nlanes, -1, np.int64)
    pool = 1024
    offer_chunk, offer_link, follows = (
        np.empty(pool, np.int64),
        np.empty(pool, np.int64),
        np.empty(pool, np.int64),
    )
    offers, free = 0, -1
    used = np.zeros(len(net.capacity_gbs))
    busy = np.zeros(nlanes, np.bool_)
    marked = np.zeros(nlanes, np.bool_)
    candidates = np.empty(nlanes, np.int64)
    ncand = 0
    room = 1024
    times, codes = np.empty(room), np.empty(room, np.int64)
    events = 0
    state = seed & 0x7FFFFFFF
    now = 0.0
    # the holders' own offers come as arrivals at time 0: codes below 0
    arrived_chunk, arrived_rank = np.empty(1024, np.int64), np.empty(1024, np.int64)
    narrived = 0
    for chunk in range(len(work)):
        for j in range(holder_ptr[chunk], holder_ptr[chunk + 1]):
            arrived_chunk = grow_pool(arrived_chunk, narrived + 1)
            arrived_rank = grow_pool(arrived_rank, narrived + 1)
            arrived_chunk[narrived] = chunk
            arrived_rank[narrived] = holders[j]
            narrived += 1
    while True:
        for i in range(narrived):
            chunk, u = arrived_chunk[i], arrived_rank[i]
            for j in range(net.out_ptr[u], net.out_ptr[u + 1]):
                link = net.out_link[j]
                if not wanted[chunk, net.dst[link]]:
                    continue
                where = net.lane[link]
                if free >= 0:
                    offer = free
                    free = follows[free]
                else:
                    offer = offers
                    offers += 1
                    if offers > len(offer_chunk):
                        offer_chunk, offer_link = (
                            grow_pool(offer_chunk, offers),
                            grow_pool(offer_link, offers),
                        )
                        follows = grow_pool(follows, offers)
                offer_chunk[offer] = chunk
                offer_link[offer] = link
                follows[offer] = -1
                if head[where] < 0:
                    head[where] = offer
                else:
                    follows[tail[where]] = offer
                tail[where] = offer
                if not busy[where] and not marked[where]:
                    marked[where] = True
                    candidates[ncand] = where
                    ncand += 1
        narrived = 0
        candidates[:ncand].sort()
        turn = 0
        if seed > 0 and ncand > 1:
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            turn = (state >> 8) % ncand
        for i in range(ncand):
            where = candidates[(i + turn) % ncand]
            marked[where] = False
            fits = not busy[where]
            for j in range(net.uses_ptr[where], net.uses_ptr[where + 1]):
                r = net.uses_idx[j]
                if used[r] + net.bandwidth_gbs[where] > net.capacity_gbs[r] * (1 + 1e-12):
                    fits = False
            if not fits:
                continue
            while head[where] >= 0:
                offer = head[where]
                head[where] = follows[offer]
                follows[offer] = free
                free = offer
                chunk, link = offer_chunk[offer], offer_link[offer]
                if not wanted[chunk, net.dst[link]]:
                    continue
                wanted[chunk, net.dst[link]] = False
                busy[where] = True
                for j in range(net.uses_ptr[where], net.uses_ptr[where + 1]):
                    used[net.uses_idx[j]] += net.bandwidth_gbs[where]
                out_chunk[made] = chunk
                out_link[made] = link
                out_start[made] = now
                end = now + work[chunk] / net.bandwidth_gbs[where]
                if events + 2 > room:
                    room *= 2
                    larger = np.empty(room)
                    larger[:events] = times[:events]
                    times, codes = larger, grow_pool(codes, room)
                push_key(times, codes, events, end, 2 * made)
                push_key(times, codes, events + 1, end + net.alpha_us[where], 2 * made + 1)
                events += 2
                made += 1
                break
        ncand = 0
        if events == 0:
            break
        begin = times[0]
        while events > 0 and times[0] <= begin + eps:
            now = times[0]
            code = codes[0]
            pop_key(times, codes, events)
            events -= 1
            link = out_link[code >> 1]
            if code & 1:
                arrived_chunk = grow_pool(arrived_chunk, narrived + 1)
                arrived_rank = grow_pool(arrived_rank, narrived + 1)
                arrived_chunk[narrived] = out_chunk[code >> 1]
                arrived_rank[narrived] = net.dst[link]
                narrived += 1
                continue
            where = net.lane[link]
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
    return out_chunk[:made], out_link[:made], out_start[:made]
