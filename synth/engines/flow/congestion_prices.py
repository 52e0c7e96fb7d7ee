"""Prices of resources that grow exponentially with their load, as routing sees them; loops for `Runner`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from synth.engines.flow.csr_network import CsrNetwork


class Congestion(NamedTuple):
    """Loads and prices while routes are chosen.

    Attributes:
        load: float, shape (resources,): µs that each resource is busy.
        price: float, shape (resources,): exp(beta · (load / target - 1)) / capacity.
        bias: float, shape (bundles,): what a byte costs over a bundle beside the prices (a little: for short paths).
        cost: float, shape (bundles,): bias and prices together, kept up to date for bundles that share nothing.
        knobs: float, shape (2,): beta and target (µs).
    """

    load: Any
    price: Any
    bias: Any
    cost: Any
    knobs: Any


def set_prices(net: CsrNetwork, congestion: Congestion) -> None:
    """All prices from the loads."""
    beta, target = congestion.knobs[0], congestion.knobs[1]
    for r in range(len(congestion.load)):
        congestion.price[r] = math.exp(min(beta * (congestion.load[r] / target - 1.0), 300.0)) / net.capacity_gbs[r]
    for bundle in range(net.nbundles):
        congestion.cost[bundle] = _summed(net, congestion, bundle)


def add_load(net: CsrNetwork, congestion: Congestion, bundle: int, work: float) -> None:
    """Put `work` (kilobytes; negative takes away) on a bundle's resources; their prices follow."""
    beta, target = congestion.knobs[0], congestion.knobs[1]
    for j in range(net.uses_ptr[bundle], net.uses_ptr[bundle + 1]):
        r = net.uses_idx[j]
        congestion.load[r] += work / net.capacity_gbs[r]
        congestion.price[r] = math.exp(min(beta * (congestion.load[r] / target - 1.0), 300.0)) / net.capacity_gbs[r]
    if net.exclusive[bundle]:
        congestion.cost[bundle] = _summed(net, congestion, bundle)


def cost_of(net: CsrNetwork, congestion: Congestion, bundle: int) -> float:
    """What a byte costs over a bundle."""
    if net.exclusive[bundle]:
        known: float = congestion.cost[bundle]
        return known
    return _summed(net, congestion, bundle)


def _summed(net: CsrNetwork, congestion: Congestion, bundle: int) -> float:
    total: float = congestion.bias[bundle]
    for j in range(net.uses_ptr[bundle], net.uses_ptr[bundle + 1]):
        total += congestion.price[net.uses_idx[j]]
    return total


# A heap of our own: `heapq` would compare pairs, which takes longer, and entries of one key would leave it in another
# order, so that of equally cheap routes others were taken.


def push_key(keys: Any, codes: Any, size: int, key: float, code: int) -> None:
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


def pop_key(keys: Any, codes: Any, size: int) -> None:
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
