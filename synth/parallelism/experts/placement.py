"""Place the experts of all layers, with what they send, the bound, and what EPLB's placement would send.

routing = Routing(shape_of(load("dgx-h100:4")), read_histogram("counts.npy", 32), 14336, 14336)
placed = place_experts(routing, slots=9)
placed.time_us, placed.bound_us, placed.experts      # int64, shape (layers, ranks, slots)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from synth.baselines.eplb import place_as_eplb, place_globally
from synth.model.collective import Floats, Ints
from synth.model.deadline import TimeUp, limited, now
from synth.parallelism.experts.bound import LayerBound, prove
from synth.parallelism.experts.check import check_placement
from synth.parallelism.experts.search import placements
from synth.parallelism.experts.traffic import ExpertRouting, LayerTraffic, traffic_of_layer
from synth.solvers.workers import Workers
from topologies.errors import InputError

_MOST_REPLICAS = 1 << 16  # Slots of all ranks; a layer of so many takes some seconds.
_MOST_CELLS = 1 << 25  # Ranks² × slots, which are in memory at a time.
_SEARCH_PART = 0.7  # Part of a layer's time for the search; the rest is for the bound.
IMBALANCE = 1.1  # Allowed by default: most load of a rank / mean load.


@dataclass(frozen=True, eq=False)
class PlacedLayer:
    """The experts of one layer on their ranks; the constructor checks that each of them is on one.

    Attributes:
        routing: What is routed in all layers.
        layer: The layer.
        experts: Expert in each slot: int64, shape (ranks, slots).
        bound: What is proved for this layer.
    """

    routing: ExpertRouting
    layer: int
    experts: Ints
    bound: LayerBound

    def __post_init__(self) -> None:
        _, nranks, nexperts = self.routing.copies.shape
        check_placement(self.experts, nranks, self.experts.shape[-1], nexperts)

    @cached_property
    def traffic(self) -> LayerTraffic:
        """Return what the layer sends."""
        return traffic_of_layer(self.routing, self.layer, self.experts)


@dataclass(frozen=True, eq=False)
class PlacedExperts:
    """The experts of all layers on their ranks.

    Attributes:
        layers: The layers.
        eplb: What the placement of EPLB sends in each layer, by the same model.
        unsearched: Number of layers for which Ctrl-C or the budget left no search: they have EPLB's placement, with
            another expert where that has one twice on a rank, and no bound.
        cut_short: Number of further layers whose search the budget ended; their bound holds, but may be weaker.
        interrupted: Whether Ctrl-C ended the search.
    """

    layers: tuple[PlacedLayer, ...]
    eplb: tuple[LayerTraffic, ...]
    unsearched: int = 0
    cut_short: int = 0
    interrupted: bool = False

    @property
    def experts(self) -> Ints:
        """Return the expert in each slot: int64, shape (layers, ranks, slots)."""
        return np.stack([layer.experts for layer in self.layers])

    @property
    def time_us(self) -> float:
        """Return the time of dispatch and combine of all layers in µs."""
        return sum(layer.traffic.time_us for layer in self.layers)

    @property
    def bound_us(self) -> float:
        """Return a time in µs that no placement beats whose ranks have at most the loads of this one's limits."""
        return sum(layer.bound.time_us for layer in self.layers)


def fewest_slots(nexperts: int, nranks: int) -> int:
    """Return the fewest slots of a rank that hold all experts on all ranks."""
    return -(-nexperts // nranks)


def most_slots(nexperts: int, nranks: int) -> int:
    """Return the most slots of a rank that are placed: those of all experts, as far as memory and time allow."""
    return min(nexperts, _MOST_REPLICAS // nranks, _MOST_CELLS // nranks**2)


def right_slots(routing: ExpertRouting, slots: int | None, expert_groups: int, dashes: str = "") -> int:
    """Return the slots of a rank; by default one more than all experts need, if a rank can use as many.

    Args:
        routing: What is to be routed.
        slots: Slots that the caller states; None for the default.
        expert_groups: Groups of experts, which must be equal.
        dashes: What stands before the names of options in error messages.

    Raises:
        InputError: The slots cannot hold all experts, are more than experts or too many, or groups differ in size.
    """
    _, nranks, nexperts = routing.copies.shape
    least, most = fewest_slots(nexperts, nranks), most_slots(nexperts, nranks)
    slots = min(least + 1, most) if slots is None else slots
    if not least <= slots <= most:
        raise InputError(
            f"{dashes}slots: {slots} for {nexperts} experts on {nranks} ranks; it must be {least} to {most}"
        )
    if expert_groups < 1 or nexperts % expert_groups:
        raise InputError(
            f"{dashes}expert-groups: {expert_groups} do not divide {nexperts} experts;"
            f" it must be a divisor of {nexperts}"
        )
    return slots


def place_experts(
    routing: ExpertRouting,
    slots: int,
    imbalance: float = IMBALANCE,
    expert_groups: int = 1,
    progress: Callable[[int], None] = lambda _: None,
    budget_s: float = np.inf,
) -> PlacedExperts:
    """Place the experts of each layer by itself for the least time of dispatch and combine.

    After Ctrl-C, and where the budget leaves no time, layers get a placement without a search (see
    `PlacedExperts.unsearched`).

    Args:
        routing: What is to be routed.
        slots: Slots of each rank.
        imbalance: Most load of a rank / mean load that a placement should have, at least 1.
        expert_groups: Groups of experts that a token's choice is limited to, which only EPLB's placement counts.
        progress: Is called with the number of each layer before it is placed.
        budget_s: Seconds for all layers, of which each gets an equal part of what is left, or what a first placement
            takes.

    Raises:
        InputError: The slots hold not all experts, are more than the experts or too many, the imbalance is less than
            1, or the groups do not divide the experts.
    """
    right_slots(routing, slots, expert_groups)
    layers = len(routing.copies)
    if not 1 <= imbalance < np.inf:
        raise InputError(f"imbalance: {imbalance:g} is less than 1 or no number; it must be 1 or more, such as 1.1")
    eplb = eplb_placement(routing, slots, expert_groups)
    eplb_traffic = tuple(traffic_of_layer(routing, layer, experts) for layer, experts in enumerate(eplb))
    placed: list[PlacedLayer] = []
    searched, cut_short, interrupted = 0, 0, False
    end = now() + budget_s
    with Workers() as workers:
        try:
            for layer in range(layers):
                progress(layer)
                share_s = (end - now()) / (layers - layer)
                experts, is_cut = _best_placement(routing, layer, slots, imbalance, now() + _SEARCH_PART * share_s, end)
                if experts is None:
                    placed.append(_unsearched_layer(routing, layer, eplb[layer]))
                    continue
                load = traffic_of_layer(routing, layer, experts).load
                rank_load = max(float(load.max()), imbalance * float(load.mean()))
                bound = prove(routing, layer, slots, rank_load, workers, now() + (1 - _SEARCH_PART) * share_s)
                placed.append(PlacedLayer(routing, layer, experts, bound))
                searched += 1
                cut_short += is_cut
        except KeyboardInterrupt:
            interrupted = True
            placed += [_unsearched_layer(routing, layer, eplb[layer]) for layer in range(len(placed), layers)]
    return PlacedExperts(tuple(placed), eplb_traffic, layers - searched, cut_short, interrupted)


def _best_placement(
    routing: ExpertRouting, layer: int, slots: int, imbalance: float, until: float, end: float
) -> tuple[Ints | None, bool]:
    """Return the best placement of a layer that the search finds in time, None for none, and whether time ended it.

    Args:
        routing: What is to be routed.
        layer: The layer.
        slots: Slots of each rank.
        imbalance: Most load of a rank / mean load that a placement should have.
        until: When the search ends if it has a placement, a reading of `now`.
        end: When it ends without one.
    """
    best: list[Ints] = []

    def search() -> None:
        """Keep each better placement."""
        for experts in placements(routing, layer, slots, imbalance):
            best[:] = [experts]

    try:
        limited(lambda: until if best else end, search)
    except TimeUp:
        return best[0] if best else None, True
    return best[0], False


def _unsearched_layer(routing: ExpertRouting, layer: int, experts: Ints) -> PlacedLayer:
    """Return EPLB's placement of a layer, without a bound; where a rank has an expert twice, a heavy one replaces it.

    Args:
        routing: What is to be routed.
        layer: The layer.
        experts: EPLB's placement: the expert in each slot, shape (ranks, slots).
    """
    heavy_first = np.argsort(-routing.copies[layer].sum(axis=0), kind="stable").tolist()
    rows = []
    for row in experts.tolist():
        distinct = list(dict.fromkeys(row))
        lacking = (expert for expert in heavy_first if expert not in distinct)
        rows.append(distinct + list(islice(lacking, len(row) - len(distinct))))
    return PlacedLayer(routing, layer, np.array(rows), LayerBound(0.0, np.inf, "", None, None))


def eplb_placement(routing: ExpertRouting, slots: int, expert_groups: int) -> Ints:
    """Return the placement of EPLB: the expert in each slot, int64, shape (layers, ranks, slots).

    Args:
        routing: What is to be routed.
        slots: Slots of each rank.
        expert_groups: Groups of experts; it balances by nodes where these are equal and their number divides it.
    """
    shape = routing.shape
    load = expert_load(routing.copies)
    if len(set(np.diff(shape.node_ptr).tolist())) == 1:
        by_node = place_as_eplb(load, shape.nranks, slots, shape.nnodes, expert_groups)
    else:
        by_node = place_globally(load, shape.nranks, slots)
    placement = np.empty_like(by_node)
    placement[:, shape.node_rank] = by_node
    return placement


def expert_load(copies: Floats) -> Floats:
    """Return the copies to each expert of all ranks: float64, shape (layers, experts)."""
    load: Floats = copies.sum(axis=1)
    return load
