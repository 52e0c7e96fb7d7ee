"""The choice of a tree for each chunk of blocks of any sizes, so that no resource has much more to do than others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.deadline import checking_deadline

_PASSES = 3  # In the first, chunks are placed; in each further one, every chunk is placed anew.
_POWER = 8  # of the busy times, of which the sum is to be least: it is little more than the largest.


Kind = TypeVar("Kind", bound=Hashable)


class TreeLoad(NamedTuple):
    """The load that a chunk puts on the network if it takes a tree.

    Attributes:
        resources: Resources that its sends use, each once, int64, shape (resources,).
        busy: How long each is busy in units of the chunk's size, float64, shape (resources,).
    """

    resources: Ints
    busy: Floats


def least_loaded(
    sizes: Floats, kinds: Sequence[Kind], loads_of: Callable[[Kind], Sequence[TreeLoad]], nresources: int
) -> list[int]:
    """Return for each chunk which of the trees of its kind it takes; the largest chunks choose first.

    Args:
        sizes: Size of each chunk, shape (chunks,).
        kinds: Kind of each chunk; chunks of one kind may take the same trees.
        loads_of: Returns the loads of all trees of a kind.
        nresources: Number of resources of the network.
    """
    loads_of_kind = {kind: loads_of(kind) for kind in checking_deadline(dict.fromkeys(kinds))}
    resources = {kind: np.concatenate([load.resources for load in loads]) for kind, loads in loads_of_kind.items()}
    busy_of_kind = {kind: np.concatenate([load.busy for load in loads]) for kind, loads in loads_of_kind.items()}
    starts = {
        kind: np.cumsum([0, *(len(load.resources) for load in loads[:-1])]) for kind, loads in loads_of_kind.items()
    }
    busy, chosen = np.zeros(nresources), [-1] * len(sizes)
    order = np.argsort(-sizes, kind="stable").tolist()
    longest = max(float(each.max(initial=0.0)) for each in busy_of_kind.values())
    unit = float(sizes.max()) * longest or 1.0  # So that powers neither vanish nor overflow.
    for chunk in checking_deadline(order * _PASSES, every=64):
        kind, size = kinds[chunk], sizes[chunk] / unit
        if chosen[chunk] >= 0:
            load = loads_of_kind[kind][chosen[chunk]]
            busy[load.resources] -= size * load.busy
        before = np.maximum(busy[resources[kind]], 0.0)
        cost = (before + size * busy_of_kind[kind]) ** _POWER - before**_POWER
        chosen[chunk] = int(np.argmin(np.add.reduceat(cost, starts[kind])))
        load = loads_of_kind[kind][chosen[chunk]]
        busy[load.resources] += size * load.busy
    return chosen
