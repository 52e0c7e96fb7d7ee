"""Small routings for tests of the placement of experts, and all placements of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from synth.engines.skewed.shape import GroupShape, shape_of
from synth.model.collective import Floats, Ints
from synth.parallelism.experts.traffic import ExpertRouting, routing_of_tokens, scaled
from topologies.load import load

TWO_BY_TWO = (0, 1, 8, 9)  # Two ranks in each of two nodes of dgx-h100:3.
THREE_BY_ONE = (0, 8, 16)
UNEVEN = (0, 1, 8)


def small_shape(group: tuple[int, ...] | None = TWO_BY_TWO, topology: str = "dgx-h100:3") -> GroupShape:
    return shape_of(load(topology), group)


def routing_of(shape: GroupShape, copies: Floats) -> ExpertRouting:
    return ExpertRouting(shape, copies, 7168.0, 14336.0)


def even_routing(shape: GroupShape, load: Floats) -> ExpertRouting:
    """Return a routing whose copies, shape (layers, experts), come evenly from all ranks."""
    return routing_of(shape, np.broadcast_to(load[:, None] / shape.nranks, (len(load), shape.nranks, load.shape[1])))


def random_routing(shape: GroupShape, layers: int, experts: int, seed: int, by_source: bool) -> ExpertRouting:
    draw = np.random.default_rng(seed)
    if not by_source:
        return even_routing(shape, draw.zipf(1.6, (layers, experts)).clip(max=500) * 1000.0)
    return routing_of(shape, draw.zipf(1.6, (layers, shape.nranks, experts)).clip(max=500) * 1000.0)


def all_placements(nranks: int, slots: int, experts: int) -> Iterator[Ints]:
    """Yield every placement of a layer, up to the order of a rank's slots."""
    for held in product(combinations(range(experts), slots), repeat=nranks):
        placement = np.array(held)
        if len(np.unique(placement)) == experts:
            yield placement


def token_routing(shape: GroupShape, tokens: int, experts: int, chosen: int, seed: int) -> ExpertRouting:
    """Return a routing of one layer of random tokens, of which some experts are more popular."""
    draw = np.random.default_rng(seed)
    popular = draw.exponential(size=experts)
    sample = np.stack([draw.choice(experts, chosen, replace=False, p=popular / popular.sum()) for _ in range(tokens)])
    return scaled(routing_of_tokens(shape, sample[None], experts, 7168.0, 14336.0), 1000 * tokens * chosen)
