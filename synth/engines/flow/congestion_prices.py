"""Prices of resources that grow exponentially with their load, as compiled routing engines use them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synth.engines.flow.csr_network import Wires
from synth.model.collective import Floats, Ints
from synth.model.compiled import kernel


class Market(NamedTuple):
    """Loads and prices while routes are chosen.

    Attributes:
        load: float, shape (resources,): µs that each resource is busy.
        price: float, shape (resources,): exp(beta · (load / target - 1)) / capacity.
        bias: float, shape (lanes,): what a byte costs over a lane beside the prices (a little: for short ways).
        cost: float, shape (lanes,): bias and prices together, kept up to date for lanes that share nothing.
        knobs: float, shape (2,): beta and target (µs).
    """

    load: Floats
    price: Floats
    bias: Floats
    cost: Floats
    knobs: Floats


@kernel
def set_prices(net: Wires, market: Market) -> None:
    """All prices from the loads."""
    beta, target = market.knobs[0], market.knobs[1]
    for r in range(len(market.load)):
        market.price[r] = np.exp(min(beta * (market.load[r] / target - 1.0), 300.0)) / net.capacity_gbs[r]
    for lane in range(net.nlanes):
        total = market.bias[lane]
        for j in range(net.uses_ptr[lane], net.uses_ptr[lane + 1]):
            total += market.price[net.uses_idx[j]]
        market.cost[lane] = total


@kernel
def add_load(net: Wires, market: Market, lane: int, work: float) -> None:
    """Put `work` (kilobytes; negative takes away) on a lane's resources; their prices follow."""
    beta, target = market.knobs[0], market.knobs[1]
    for j in range(net.uses_ptr[lane], net.uses_ptr[lane + 1]):
        r = net.uses_idx[j]
        market.load[r] += work / net.capacity_gbs[r]
        market.price[r] = np.exp(min(beta * (market.load[r] / target - 1.0), 300.0)) / net.capacity_gbs[r]
    if net.alone[lane]:
        total = market.bias[lane]
        for j in range(net.uses_ptr[lane], net.uses_ptr[lane + 1]):
            total += market.price[net.uses_idx[j]]
        market.cost[lane] = total


@kernel
def cost_of(net: Wires, market: Market, lane: int) -> float:
    """What a byte costs over a lane."""
    if net.alone[lane]:
        known: float = market.cost[lane]
        return known
    total: float = market.bias[lane]
    for j in range(net.uses_ptr[lane], net.uses_ptr[lane + 1]):
        total += market.price[net.uses_idx[j]]
    return total


@kernel
def push_key(keys: Floats, codes: Ints, size: int, key: float, code: int) -> None:
    """Put an entry on a binary heap of `size` entries, least key first."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if keys[up] <= key:
            break
        keys[at] = keys[up]
        codes[at] = codes[up]
        at = up
    keys[at] = key
    codes[at] = code


@kernel
def pop_key(keys: Floats, codes: Ints, size: int) -> None:
    """Take the least of `size` entries from the heap; the caller has read it at place 0."""
    last = size - 1
    key, code = keys[last], codes[last]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        if down + 1 < last and keys[down + 1] < keys[down]:
            down += 1
        if keys[down] >= key:
            break
        keys[at] = keys[down]
        codes[at] = codes[down]
        at = down
    keys[at] = key
    codes[at] = code


@kernel
def hop_table(net: Wires, sources: Ints) -> Ints:
    """Fewest links from each source to every rank, shape (len(sources), nranks); nranks where there is no way."""
    table = np.full((len(sources), net.nranks), net.nranks, np.int64)
    queue = np.empty(net.nranks, np.int64)
    for i in range(len(sources)):
        table[i, sources[i]] = 0
        queue[0] = sources[i]
        first, last = 0, 1
        while first < last:
            u = queue[first]
            first += 1
            for j in range(net.out_ptr[u], net.out_ptr[u + 1]):
                v = net.dst[net.out_link[j]]
                if table[i, v] == net.nranks:
                    table[i, v] = table[i, u] + 1
                    queue[last] = v
                    last += 1
    return table


@kernel
def grow_pool(pool: Ints, needed: int) -> Ints:
    """The pool, or a copy of at least twice its size that has room for `needed` entries."""
    if needed <= len(pool):
        return pool
    larger = np.empty(max(needed, 2 * len(pool)), np.int64)
    larger[: len(pool)] = pool
    return larger
