"""Prices of resources that grow exponentially with their load; loops for `Runner`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from synth.engines.flow.csr_network import CsrNetwork


class Congestion(NamedTuple):
    """Loads and prices while routes are chosen.

    Attributes:
        load: Time in µs that each resource is busy, float, shape (resources,).
        price: exp(beta · (load / target - 1)) / capacity of each resource, float, shape (resources,).
        bias: Cost of a byte over a bundle besides the prices (a little, to prefer short paths), float, shape
            (bundles,).
        cost: Bias plus prices, kept up to date for bundles that share nothing, float, shape (bundles,).
        knobs: beta and target in µs, float, shape (2,).
    """

    load: Any
    price: Any
    bias: Any
    cost: Any
    knobs: Any


def set_prices(net: CsrNetwork, congestion: Congestion) -> None:
    """Set the prices of all resources and the costs of all bundles from the loads, in place.

    The exponent of a price is at most 300.
    """
    beta, target = congestion.knobs[0], congestion.knobs[1]
    for r in range(len(congestion.load)):
        congestion.price[r] = math.exp(min(beta * (congestion.load[r] / target - 1.0), 300.0)) / net.capacity_gbs[r]
    for bundle in range(net.nbundles):
        congestion.cost[bundle] = _sum_prices(net, congestion, bundle)


def add_load(net: CsrNetwork, congestion: Congestion, bundle: int, work: float) -> None:
    """Add `work` kilobytes (negative to remove) to a bundle's resources, and update their prices, in place.

    The stored cost is updated only for a bundle that shares no resource.
    """
    beta, target = congestion.knobs[0], congestion.knobs[1]
    for j in range(net.uses_ptr[bundle], net.uses_ptr[bundle + 1]):
        r = net.uses_idx[j]
        congestion.load[r] += work / net.capacity_gbs[r]
        congestion.price[r] = math.exp(min(beta * (congestion.load[r] / target - 1.0), 300.0)) / net.capacity_gbs[r]
    if net.exclusive[bundle]:
        congestion.cost[bundle] = _sum_prices(net, congestion, bundle)


def cost_of(net: CsrNetwork, congestion: Congestion, bundle: int) -> float:
    """Return the cost of a byte over a bundle: its bias plus the present prices of its resources."""
    if net.exclusive[bundle]:
        current: float = congestion.cost[bundle]
        return current
    return _sum_prices(net, congestion, bundle)


def _sum_prices(net: CsrNetwork, congestion: Congestion, bundle: int) -> float:
    """Return a bundle's bias plus the prices of its resources."""
    total: float = congestion.bias[bundle]
    for j in range(net.uses_ptr[bundle], net.uses_ptr[bundle + 1]):
        total += congestion.price[net.uses_idx[j]]
    return total


# This heap replaces `heapq`, which would compare pairs. That takes longer, and entries of equal keys would leave it in
# another order, which would change the choice among equally cheap routes.


def push_key(keys: Any, codes: Any, size: int, key: float, code: int) -> None:
    """Add an entry to a binary heap of `size` entries, least key first.

    The arrays must have room for one more entry, and the caller counts the size.
    """
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if keys[above] <= key:
            break
        keys[place] = keys[above]
        codes[place] = codes[above]
        place = above
    keys[place] = key
    codes[place] = code


def pop_key(keys: Any, codes: Any, size: int) -> None:
    """Remove the least of `size` entries from the heap; the caller has read it at place 0, and counts the size."""
    last = size - 1
    key, code = keys[last], codes[last]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= last:
            break
        if below + 1 < last and keys[below + 1] < keys[below]:
            below += 1
        if keys[below] >= key:
            break
        keys[place] = keys[below]
        codes[place] = codes[below]
        place = below
    keys[place] = key
    codes[place] = code
