"""Place the experts of mixtures of experts, compared with EPLB and with the bound: 20 histograms, three clusters.

    python -m results.scripts.experts [--layers 4] [--seed 1] [--every 1]

makes experts.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from results.measuring.measure import grid, page, seconds_words, write
from synth.baselines.eplb import place_globally
from synth.engines.skewed.planner import Planner
from synth.engines.skewed.shape import GroupShape, shape_of
from synth.parallelism.experts.placement import (
    IMBALANCE,
    PlacedExperts,
    eplb_placement,
    expert_load,
    place_experts,
)
from synth.parallelism.experts.traffic import (
    ExpertRouting,
    LayerTraffic,
    copies_between,
    routing_of_tokens,
    scaled,
    traffic_of_layer,
)
from topologies.load import load

Floats = NDArray[np.float64]
CLUSTERS = (("dgx-h100:4", 9), ("dgx-h100:8", 5), ("dgx-b200:2", 18))
SLOTS = (8, 9, 10, 12, 16, 24)  # of the first cluster, for the second table
EXPERTS, CHOSEN, GROUPS = 256, 8, 8  # as DeepSeek-V3
TOKENS = 4096  # of a rank
DISPATCH_BYTES, COMBINE_BYTES = 7168.0, 14336.0  # 7168 values: of 8 bits there, of 16 bits back
SAMPLE = 2048  # whole tokens of a layer, and as many other ones by which placements are compared
TOPICS = {
    "no topics": (0.0, 0.0),
    "no topics, Zipf 0.7": (0.0, 0.7),
    "16 topics": (2.5, 0.3),
    "16 strong topics": (4.0, 0.5),
}
GOAL = 0.8  # of EPLB's traffic between nodes, in the median


@dataclass(frozen=True)
class Drawn:
    """How a histogram is drawn.

    Attributes:
        shape: The shape of the group.
        layers: Number of layers.
        draw: Generator of random numbers.
    """

    shape: GroupShape
    layers: int
    draw: np.random.Generator


def zipf(drawn: Drawn, first: float, last: float | None = None) -> Floats:
    """Return shares of experts, shape (layers, experts): Zipf's, of an exponent that may change with the layer."""
    exponents = np.linspace(first, first if last is None else last, drawn.layers)
    return np.stack([drawn.draw.permutation(1 / np.arange(1, EXPERTS + 1) ** exponent) for exponent in exponents])


def hot(drawn: Drawn, count: int, share: float) -> Floats:
    """Return equal shares but for some experts, which take a share of all copies in sum."""
    shares = np.full((drawn.layers, EXPERTS), (1 - share) / (EXPERTS - count))
    for layer in shares:
        layer[drawn.draw.permutation(EXPERTS)[:count]] = share / count
    return shares


def lognormal(drawn: Drawn, sigma: float) -> Floats:
    """Return shares of a lognormal distribution."""
    return np.exp(sigma * drawn.draw.normal(size=(drawn.layers, EXPERTS)))


def groups(drawn: Drawn, count: int, times: float) -> Floats:
    """Return lognormal shares where some groups of experts that follow each other are so many times as popular."""
    shares = lognormal(drawn, 0.5).reshape(drawn.layers, GROUPS, -1)
    for layer in shares:
        layer[drawn.draw.permutation(GROUPS)[:count]] *= times
    return shares.reshape(drawn.layers, EXPERTS)


def few(drawn: Drawn, tokens: int) -> Floats:
    """Return the counts of a small batch, drawn from a mild Zipf distribution: those of one rank's tokens."""
    shares = zipf(drawn, 0.5)
    return np.stack([drawn.draw.multinomial(tokens * CHOSEN, layer / layer.sum()) for layer in shares]).astype(float)


def by_source(drawn: Drawn, sigma: float, of_ranks: bool) -> Floats:
    """Return shares of shape (layers, ranks, experts): a Zipf distribution that every node, or rank, changes."""
    owner = np.arange(drawn.shape.nranks) if of_ranks else drawn.shape.node_of
    factor = np.exp(sigma * drawn.draw.normal(size=(drawn.layers, int(owner.max()) + 1, EXPERTS)))
    return zipf(drawn, 0.7)[:, None] * factor[:, owner]


HISTOGRAMS: dict[str, Callable[[Drawn], Floats]] = {
    "uniform": partial(lognormal, sigma=0.0),
    **{f"Zipf {exponent}": partial(zipf, first=exponent) for exponent in (0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5)},
    "1 hot expert, 5 %": partial(hot, count=1, share=0.05),
    "4 hot experts, 30 %": partial(hot, count=4, share=0.3),
    "16 hot experts, 50 %": partial(hot, count=16, share=0.5),
    "lognormal 0.5": partial(lognormal, sigma=0.5),
    "lognormal 1.0": partial(lognormal, sigma=1.0),
    "Zipf 0.3 to 1.3 by layer": partial(zipf, first=0.3, last=1.3),
    "1 group of 8, 4 ×": partial(groups, count=1, times=4.0),
    "2 groups of 8, 3 ×": partial(groups, count=2, times=3.0),
    "batch of 64 tokens": partial(few, tokens=64),
    "by node, 0.5": partial(by_source, sigma=0.5, of_ranks=False),
    "by node, 1.0": partial(by_source, sigma=1.0, of_ranks=False),
    "by rank, 1.0": partial(by_source, sigma=1.0, of_ranks=True),
}


@dataclass(frozen=True)
class Row:
    """What was found for one histogram on one cluster; figures are medians over the layers unless they say otherwise.

    Attributes:
        cluster: Name of the cluster.
        histogram: Key of `HISTOGRAMS`.
        between: Part of the copies that leave their node.
        eplb_between: The same of EPLB's policy that sends fewer.
        traffic: Copies between nodes / EPLB's, of each layer.
        speed: Time / the time of EPLB's faster policy.
        imbalance: Most loaded rank / mean, the largest of the layers.
        eplb_imbalance: The same of EPLB's global policy, by the same rule of routing.
        even_imbalance: The same where each replica gets an equal share of its expert's copies, as EPLB supposes.
        gap: Time / bound, of each layer.
        plan: Time of the planned dispatch of the first layer / the time of the model.
        seconds: CPU time of placing all layers.
    """

    cluster: str
    histogram: str
    between: float
    eplb_between: float
    traffic: tuple[float, ...]
    speed: float
    imbalance: float
    eplb_imbalance: float
    even_imbalance: float
    gap: tuple[float, ...]
    plan: float
    seconds: float


def routing_of(shares: Floats, shape: GroupShape) -> ExpertRouting:
    """Return the routing of a layer's tokens by shares of shape (layers, experts) or (layers, ranks, experts)."""
    by_rank = shares if shares.ndim == 3 else np.repeat(shares[:, None], shape.nranks, axis=1)
    copies = by_rank / by_rank.sum(axis=2, keepdims=True) * TOKENS * CHOSEN
    return ExpertRouting(shape, copies, DISPATCH_BYTES, COMBINE_BYTES)


def eplb_traffics(routing: ExpertRouting, slots: int) -> list[list[LayerTraffic]]:
    """Return what EPLB's global and hierarchical placements send, each in every layer."""
    placements = [eplb_placement(routing, slots, groups_of_experts) for groups_of_experts in (1, GROUPS)]
    return [
        [traffic_of_layer(routing, layer, experts) for layer, experts in enumerate(placement)]
        for placement in placements
    ]


def even_imbalance(routing: ExpertRouting, slots: int) -> float:
    """Return the largest imbalance of EPLB's global placement where replicas share their expert's copies evenly."""
    all_loads = expert_load(routing.copies)
    worst = 0.0
    for expert_loads, placement in zip(all_loads, place_globally(all_loads, routing.shape.nranks, slots), strict=True):
        share = expert_loads / np.bincount(placement.ravel(), minlength=EXPERTS)
        loads = share[placement].sum(axis=1)
        worst = max(worst, float(loads.max() / loads.mean()))
    return worst


def planned(planner: Planner, placed: PlacedExperts) -> float:
    """Return the time of a plan of the first layer's dispatch / the time that the model states."""
    layer = placed.layers[0]
    copies = copies_between(layer.routing.shape, layer.routing.copies[0], layer.experts)
    sizes = np.round(copies * DISPATCH_BYTES).astype(np.int64)
    return planner.plan(sizes).time_us / layer.traffic.dispatch_us


def measured(cluster: str, histogram: str, routing: ExpertRouting, slots: int, planner: Planner) -> Row:
    """Place all layers of a histogram, and return the record of its figures."""
    begin = time.process_time()
    placed = place_experts(routing, slots)
    seconds = time.process_time() - begin
    policies = eplb_traffics(routing, slots)
    copies = routing.copies.sum(axis=(1, 2))
    own = [layer.traffic for layer in placed.layers]
    fewest = [min(layers, key=lambda traffic: traffic.between_nodes) for layers in zip(*policies, strict=True)]
    fastest_us = [min(traffic.time_us for traffic in layers) for layers in zip(*policies, strict=True)]
    return Row(
        cluster,
        histogram,
        float(np.median([traffic.between_nodes for traffic in own] / copies)),
        float(np.median([traffic.between_nodes for traffic in fewest] / copies)),
        tuple(a.between_nodes / b.between_nodes for a, b in zip(own, fewest, strict=True)),
        float(np.median([a.time_us / us for a, us in zip(own, fastest_us, strict=True)])),
        max(traffic.imbalance for traffic in own),
        max(traffic.imbalance for traffic in policies[0]),
        even_imbalance(routing, slots),
        tuple(layer.traffic.time_us / layer.bound.time_us for layer in placed.layers),
        planned(planner, placed),
        seconds,
    )


def whole_tokens(draw: np.random.Generator, weight: float, exponent: float) -> NDArray[np.int64]:
    """Return the experts of tokens, shape (tokens, experts of a token), twice as many as a sample has.

    Args:
        draw: Generator of random numbers.
        weight: Logarithm of how many times as likely an expert of its topic is for a token; 16 experts make a topic.
        exponent: Exponent of the popularity of experts, a Zipf distribution.
    """
    likely = -exponent * np.log(draw.permutation(EXPERTS) + 1)
    topic_of_expert = draw.permutation(EXPERTS) // 16
    topic = draw.integers(0, 16, 2 * SAMPLE)
    score = likely + weight * (topic_of_expert == topic[:, None]) + draw.gumbel(size=(2 * SAMPLE, EXPERTS))
    return np.argsort(-score, axis=1)[:, :CHOSEN]


def token_cells(cluster: str, slots: int, shape: GroupShape, seed: int) -> list[list[str]]:
    """Return rows on whole tokens that are sent once to a node, for one cluster."""
    rows = []
    for name, (weight, exponent) in TOPICS.items():
        tokens = whole_tokens(np.random.default_rng([seed, len(rows)]), weight, exponent)
        known, fresh = (
            scaled(routing_of_tokens(shape, part[None], EXPERTS, DISPATCH_BYTES, COMBINE_BYTES), TOKENS * CHOSEN)
            for part in (tokens[:SAMPLE], tokens[SAMPLE:])
        )
        placed, blind = place_experts(known, slots), place_experts(replace(known, tokens=None), slots)
        placements = [placed.experts[0], blind.experts[0], eplb_placement(known, slots, 1)[0]]
        own, unaware, eplb = (traffic_of_layer(fresh, 0, experts) for experts in placements)
        all_tokens = fresh.copies.sum() / CHOSEN
        rows.append(
            [
                cluster,
                name,
                *(f"{traffic.between_nodes / all_tokens:.2f}" for traffic in (own, unaware, eplb)),
                f"{own.time_us / eplb.time_us:.3f}",
                f"{placed.time_us / placed.bound_us:.2f}",
                f"{own.imbalance:.2f}",
                f"{eplb.imbalance:.2f}",
            ]
        )
    return rows


def cells(row: Row) -> list[str]:
    """Return the cells of a row."""
    return [
        row.cluster,
        row.histogram,
        f"{row.between:.1%}",
        f"{row.eplb_between:.1%}",
        f"{np.median(row.traffic):.3f} ({max(row.traffic):.3f})",
        f"{row.speed:.3f}",
        f"{np.median(row.gap):.3f} ({max(row.gap):.3f})",
        f"{row.imbalance:.2f}",
        f"{row.eplb_imbalance:.2f}",
        f"{row.even_imbalance:.2f}",
        f"{row.plan:.3f}",
    ]


def summary(rows: list[Row]) -> str:
    """Return what the rows say on the goals, as a list."""
    traffic, gap = (np.concatenate([getattr(row, name) for row in rows]) for name in ("traffic", "gap"))
    by_row = np.array([np.median(row.traffic) for row in rows])
    clusters = np.array([row.cluster for row in rows])
    by_cluster = [f"{name} {np.median(by_row[clusters == name]):.3f}" for name in dict.fromkeys(clusters.tolist())]
    missed = [f"{row.histogram} on {row.cluster}" for row, value in zip(rows, by_row, strict=True) if value > GOAL]
    uneven = [row for row in rows if row.imbalance > IMBALANCE * (1 + 1e-9)]
    behind = [row for row in rows if row.imbalance > max(row.even_imbalance, IMBALANCE) * (1 + 1e-9)]
    return "\n".join(
        [
            f"- Copies between nodes / those of EPLB's policy that sends fewer: median {np.median(by_row):.3f}"
            f" ({', '.join(by_cluster)}); the goal is at most {GOAL}. More than EPLB's: {(traffic > 1 + 1e-9).sum()} of"
            f" {len(traffic)} layers.",
            f"- Histograms with less than {1 - GOAL:.0%} fewer copies between nodes, {len(missed)} of {len(rows)}:"
            f" {', '.join(missed) or 'none'}. The bound shows how much more is possible at all: nearly nothing where"
            " time / bound is near 1.",
            f"- Slower than EPLB's faster policy: {sum(row.speed > 1 + 1e-9 for row in rows)} of {len(rows)}.",
            f"- Time / bound: median {np.median(gap):.3f}, 90 % up to {np.percentile(gap, 90):.3f}, most"
            f" {gap.max():.3f}.",
            f"- Over the allowed imbalance of {IMBALANCE}: {len(uneven)} of {len(rows)}, at most"
            f" {max(row.imbalance for row in rows):.2f}; less even than EPLB by its own rule: {len(behind)}.",
            f"- A plan of the dispatch (`synth.alltoallv_planner`) takes {np.median([row.plan for row in rows]):.3f} ×"
            f" the time of the model in the median, {max(row.plan for row in rows):.2f} × at most. It is longer"
            " where the traffic inside nodes takes about as long as that between them.",
        ]
    )


def main() -> None:
    """Place all histograms on all clusters, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4, help="layers of each histogram")
    parser.add_argument("--seed", type=int, default=1, help="seed of the histograms")
    parser.add_argument("--every", type=int, default=1, help="each N-th histogram only")
    options = parser.parse_args()
    rows, by_slots, by_tokens, times = [], [], [], []
    for number, (cluster, slots) in enumerate(CLUSTERS):
        shape = shape_of(load(cluster))
        planner = Planner(shape)
        for index, (name, make) in list(enumerate(HISTOGRAMS.items()))[:: options.every]:
            drawn = Drawn(shape, options.layers, np.random.default_rng([options.seed, index]))
            rows.append(measured(cluster, name, routing_of(make(drawn), shape), slots, planner))
        here = [row for row in rows if row.cluster == cluster]
        a_layer = [row.seconds / options.layers for row in here]
        times.append(
            f"{cluster}: {seconds_words(58 * float(np.median(a_layer)))} s in the median,"
            f" {seconds_words(58 * max(a_layer))} s at most"
        )
        by_tokens += token_cells(cluster, slots, shape, options.seed)
        if number:
            continue
        for count in SLOTS:
            drawn = Drawn(shape, options.layers, np.random.default_rng([options.seed, 0]))
            row = measured(cluster, "Zipf 0.7", routing_of(zipf(drawn, 0.7), shape), count, planner)
            by_slots.append([str(count), str(count * shape.nranks - EXPERTS), *cells(row)[2:]])
    text = (
        f"{EXPERTS} experts, {CHOSEN} for each of {TOKENS} tokens of a rank, {DISPATCH_BYTES:.0f} bytes to an expert"
        f" and {COMBINE_BYTES:.0f} back; slots of a rank: {', '.join(f'{n} on {name}' for name, n in CLUSTERS)}."
        f" {options.layers} layers of each histogram, seed {options.seed}; the figures are medians of the layers, with"
        " the largest in brackets. *EPLB* is the better of its two policies (global; hierarchical with 8 groups), by"
        " its published description. All placements have the same rule of routing: own rank, else own node, else"
        " evenly. *By its own rule*: imbalance of EPLB's global placement where every replica gets an equal share, as"
        " EPLB supposes; its copies between nodes are then those of no replicas at all. *Plan* is the time of a planned"
        " dispatch / that of the model. Each copy is sent by itself, even if others of its token go to the same node."
    )
    cpu = f"CPU time of 58 layers, without that of the solver: {'; '.join(times)}."
    titles = ["between nodes", "EPLB", "ratio (most)", "time / EPLB's", "time / bound (most)"]
    titles += ["imbalance", "EPLB", "by its own rule", "plan"]
    parts = [text, summary(rows), cpu, grid(["cluster", "histogram", *titles], map(cells, rows))]
    parts += [f"Zipf 0.7 on {CLUSTERS[0][0]} by slots:", grid(["slots", "further replicas", *titles], by_slots)]
    titles = ["cluster", "tokens", "messages between nodes", "without whole tokens", "EPLB", "time / EPLB's"]
    titles += ["time / bound", "imbalance", "EPLB"]
    parts.append(
        f"Whole tokens, each sent once to a node (`--tokens`): {SAMPLE} tokens of one layer are known, and the figures"
        " but for time / bound are those of as many other tokens. Messages between nodes are for each token. In the"
        " column after them only the histogram of the known tokens was used. The bound is weak here: it knows that a"
        " token leaves its node if that lacks one of its experts, but not how many other nodes it needs."
    )
    parts.append(grid(titles, by_tokens))
    write(__file__, page(__file__, "Placements of experts", parts))


if __name__ == "__main__":
    main()
