"""The times at which slots begin and end: sums of latencies from the start, and back from the end.

Along a path, sends arrive at such sums, and must have left such sums before the end. With edges at the sums, slots
round no path's latency. Between them one long slot is enough: bytes that have gone that far find work at any time.
"""

from __future__ import annotations

import heapq

import numpy as np

from synth.model.collective import Floats
from topologies.network import Network

_SAME = 1e-4  # of the least latency: edges that are nearer become one
_REACH = 2.0  # mean latencies that the short slots cover at least, even if some sums are no edges


def window_edges(net: Network, end_us: float, slots: int) -> Floats:
    """Return the edges of slots, ascending from 0 to `end_us`.

    They are sums of the network's latencies from 0 on, and the same sums back from the end. About half of the slots'
    number are taken from each side, the least; where these would cover too little time, sums farther from each other
    are. Edges that are nearly the same become one.

    Args:
        net: The network; without latencies above 0 all slots are equally long.
        end_us: End of the last slot in µs.
        slots: About the most slots; there may be far fewer, or one more.

    Returns:
        Times in µs, shape (slots that there are + 1,).
    """
    alpha = np.unique(net.carriers.alpha_us)
    alpha = alpha[alpha > 0]
    if not len(alpha):
        return np.linspace(0.0, end_us, slots + 1)
    side = max(1, slots // 2)
    sums, complete = _sums(alpha, end_us, side)
    if not complete and sums[-1] < (reach := min(_REACH * float(alpha.mean()), end_us / 2)):
        sums = _thinned(_sums(alpha, reach, 16 * side)[0], side)
    edges = np.unique(np.concatenate([sums, end_us - sums, [0.0, end_us]]))
    near = np.diff(edges) <= _SAME * alpha[0]
    # Of two edges that are nearly the same, keep the one counted from the nearer side.
    in_first_half = edges[1:] <= end_us / 2
    dropped = np.append(False, near & in_first_half) | np.append(near & ~in_first_half, False)
    dropped[[0, -1]] = False
    return np.asarray(edges[~dropped])


def _sums(alpha: Floats, upto_us: float, most: int) -> tuple[Floats, bool]:
    """Return 0 and at most `most` sums of latencies below `upto_us`, ascending, and whether these are all.

    A sum that is nearly the same as the one before it is left out.

    Args:
        alpha: The distinct latencies in µs, above 0, ascending.
        upto_us: Limit of the sums in µs, which no sum reaches.
        most: Most sums besides 0.
    """
    sums, waiting = [0.0], alpha.tolist()
    heapq.heapify(waiting)
    while waiting and waiting[0] < upto_us:
        us = heapq.heappop(waiting)
        if us - sums[-1] <= _SAME * alpha[0]:
            continue
        if len(sums) > most:
            return np.array(sums), False
        sums.append(us)
        for step_us in alpha.tolist():
            heapq.heappush(waiting, us + step_us)
    return np.array(sums), True


def _thinned(sums: Floats, most: int) -> Floats:
    """Return at most `most` sums besides the first, ascending.

    The sum that is nearest to its predecessor is left out first.
    """
    while len(sums) > most + 1:
        sums = np.delete(sums, int(np.diff(sums).argmin()) + 1)
    return sums
