"""Where slots of time begin and end: what latencies add up to from the start, and back from the end.

Along a path what is sent arrives at such sums, and must have left such sums before the end. With edges there, slots
round no path's latency; between them one long slot does: what has gone that far finds something to do at any time.
"""

from __future__ import annotations

import heapq

import numpy as np

from synth.model.collective import Floats
from topologies.network import Network

_SAME = 1e-4  # of the least latency: edges that are nearer are one
_REACH = 2.0  # mean latencies that the short slots reach at least, whether or not all sums are among their edges


def window_edges(net: Network, end_us: float, slots: int) -> Floats:
    """Edges from 0 to that time, of so many slots at most, about; shape (slots + 1,)."""
    alpha = np.unique(net.carriers.alpha_us)
    alpha = alpha[alpha > 0]
    if not len(alpha):
        return np.linspace(0.0, end_us, slots + 1)
    side = max(1, slots // 2)
    sums, whole = _sums(alpha, end_us, side)
    if not whole and sums[-1] < (reach := min(_REACH * float(alpha.mean()), end_us / 2)):
        sums = _thinned(_sums(alpha, reach, 16 * side)[0], side)
    both = np.unique(np.concatenate([sums, end_us - sums, [0.0, end_us]]))
    near = np.diff(both) <= _SAME * alpha[0]
    # of two that are nearly the same, that which has come from the nearer side
    early = both[1:] <= end_us / 2
    dropped = np.append(False, near & early) | np.append(near & ~early, False)
    dropped[[0, -1]] = False
    return np.asarray(both[~dropped])


def _sums(alpha: Floats, upto_us: float, most: int) -> tuple[Floats, bool]:
    """What such latencies add up to below that time, ascending from 0, at most so many; and whether these are all."""
    found, waiting = [0.0], alpha.tolist()
    heapq.heapify(waiting)
    while waiting and waiting[0] < upto_us:
        us = heapq.heappop(waiting)
        if us - found[-1] <= _SAME * alpha[0]:
            continue
        if len(found) > most:
            return np.array(found), False
        found.append(us)
        for one in alpha.tolist():
            heapq.heappush(waiting, us + one)
    return np.array(found), True


def _thinned(sums: Floats, most: int) -> Floats:
    """Without those that are nearest to the one before, until so many are left besides the first."""
    while len(sums) > most + 1:
        sums = np.delete(sums, int(np.diff(sums).argmin()) + 1)
    return sums
