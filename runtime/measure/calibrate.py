"""A topology with the figures that were measured, in place of a data sheet's: links, limits and an executor's costs.

Figures of single links are noisy, and a search that sees a hundred different links sees no symmetry. So links that
the topology describes by the same figures stay equal unless their measured ones fall apart: sorted, neighbours that
differ by more than APART begin another kind. All links of a kind have its median. What costs by protocol is measured on
some pairs of every kind of link, with the protocols that the topology's own costs allow there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from runtime.measure.fits import MOST_BLOCKS, Measured, Meter, each_direction, worst_within
from synth.model.collective import Floats, Ints
from topologies.costs import KINDS, PROTOCOLS, Costs, Protocol
from topologies.errors import InputError
from topologies.network import network
from topologies.topology import Topology

APART = 1.5  # times: beyond what repeated measurements of equal links differ by
DIGITS = 3  # significant ones, of what is written
MARGIN = 1.01  # a threadblock's bandwidth is stated so much higher, lest rounding leave a link one part more
SAMPLES = 3  # pairs of a kind of link on which protocols are measured


@dataclass(frozen=True)
class MeasuredLink:
    """Figures from one rank to another: µs by the protocol of least latency, GB/s by the fastest; how well known."""

    alpha_us: float
    gbs: float
    alpha_spread: float = 0.0
    gbs_spread: float = 0.0


@dataclass(frozen=True)
class OnKind:
    """What a protocol costs on a kind of link: the medians of its sample."""

    latency_us: Measured
    start_us: Measured
    gap_us: Measured
    threadblock_gbs: Measured
    link_gbs: Measured
    blocks: int  # threadblocks that fill a link


@dataclass(frozen=True)
class Calibration:
    """All that was measured.

    Attributes:
        links: by pair of ranks. shared_gbs: by limit, what all its pairs carry at once.
        costs: by protocol and kind of link.
        noise: What was seen of each figure that was accepted although its times say too little, a line each.
    """

    links: Mapping[tuple[int, int], MeasuredLink]
    shared_gbs: Mapping[str, float]
    costs: Mapping[str, Mapping[str, OnKind]]
    noise: tuple[str, ...] = ()


Report = Callable[[str, int, int], None]  # what is measured, how many are done, of how many


def measure_machine(meter: Meter, topology: Topology, report: Report, apart: bool = True) -> Calibration:
    """Measure every link, every limit, and on a sample of every kind of link each protocol.

    apart: whether programs run otherwise under another protocol; where not, one is measured for all. Raises InputError
    for a topology without links, or for a figure whose times say too little, unless the meter accepts noise.
    """
    asked, by_kind = linked_pairs(topology), _pairs_by_kind(topology)
    costs = _measure_kinds(meter, topology, by_kind, report, apart)
    kinds = {pair: kind for kind, pairs in by_kind.items() for pair in pairs}
    fastest = _best(costs, by_kind, lambda one: -one.link_gbs.value)
    quickest = _best(costs, by_kind, lambda one: one.latency_us.value or math.inf)  # of those that are seen
    alpha: dict[tuple[int, int], Measured] = {}
    raw: dict[tuple[int, int], Measured] = {}
    for pair in asked:
        kind = kinds[pair]
        block_gbs = costs[quickest[kind]][kind].threadblock_gbs.value
        alpha[pair], _ = meter.latency_and_start(pair, quickest[kind], block_gbs)
        raw[pair] = meter.rate([pair], fastest[kind], costs[fastest[kind]][kind].blocks)
        for what, figure in (("α", alpha[pair]), ("bandwidth", raw[pair])):
            meter.noise.check_repeated(f"link {pair[0]}→{pair[1]}: {what}", figure)
        report("links", len(raw), len(asked))
    links = {}
    for (a, b), there in raw.items():
        gbs = each_direction(there.value, raw[b, a].value)[0] if (b, a) in raw else there.value
        links[a, b] = MeasuredLink(alpha[a, b].value, gbs, alpha[a, b].spread, there.spread)
    shared = {}
    for limit, held in pairs_by_limit(topology).items():
        slowest = max((kinds[pair] for pair in held), key=KINDS.index)  # a program has one protocol for all its links
        protocol = fastest[slowest]
        shared[limit] = _shared(meter, limit, held, protocol, costs[protocol][slowest].blocks)
    return Calibration(links, shared, costs, tuple(meter.noise.remarks))


def _measure_kinds(
    meter: Meter,
    topology: Topology,
    by_kind: Mapping[str, Sequence[tuple[int, int]]],
    report: Report,
    apart: bool,
) -> dict[str, dict[str, OnKind]]:
    """By protocol what it costs on each kind of link that the topology's costs allow it on; as `measure_machine`."""
    allowed = topology.costs
    able = [
        (name, kind)
        for name in PROTOCOLS
        for kind in by_kind
        if allowed is None or (name in allowed.protocols and kind in allowed.protocols[name].links)
    ]
    if not able:
        raise InputError(f"topology {topology.name}: its costs allow no protocol on its links, so nothing is measured")
    costs: dict[str, dict[str, OnKind]] = {}
    last: dict[str, OnKind] = {}
    for done, (name, kind) in enumerate(able, 1):
        if apart or kind not in last:
            last[kind] = _on_kind(meter, _spread_out(by_kind[kind]), name, f"{name} on {kind} links")
        costs.setdefault(name, {})[kind] = last[kind]
        report("protocols by kind of link", done, len(able))
    return costs


def _shared(meter: Meter, limit: str, pairs: Sequence[tuple[int, int]], protocol: str, blocks: int) -> float:
    """GB/s of a limit that these pairs share, each by as many threadblocks as fill a link, if a rank can have them."""
    each = max(sum(rank in pair for pair in pairs) for rank in {rank for pair in pairs for rank in pair})
    found = meter.rate(pairs, protocol, max(1, min(blocks, MOST_BLOCKS // each)))
    meter.noise.check_repeated(f"limit {limit}: bandwidth", found)
    return found.value


def _on_kind(meter: Meter, pairs: Sequence[tuple[int, int]], protocol: str, what: str) -> OnKind:
    """The medians over some pairs."""
    rates = [(pair, meter.rates(pair, protocol)) for pair in pairs]
    steps = [meter.latency_and_start(pair, protocol, one.threadblock.value) for pair, one in rates]
    gaps = [
        meter.gap(pair, protocol, one, latency.value) for (pair, one), (latency, _) in zip(rates, steps, strict=True)
    ]
    found = OnKind(
        _median([latency for latency, _ in steps]),
        _median([start for _, start in steps]),
        _median(gaps),
        _median([one.threadblock for _, one in rates]),
        _median([one.link for _, one in rates]),
        max(one.blocks for _, one in rates),
    )
    for name in ("latency_us", "threadblock_gbs", "link_gbs"):
        meter.noise.check_repeated(f"{what}: {name}", getattr(found, name))
    return found


def _median(figures: Sequence[Measured]) -> Measured:
    """Of odd and even numbers of them one that was measured."""
    return sorted(figures, key=lambda figure: figure.value)[len(figures) // 2]


def _best(
    costs: Mapping[str, Mapping[str, OnKind]], kinds: Iterable[str], key: Callable[[OnKind], float]
) -> dict[str, str]:
    """By kind of link the protocol of the least `key`. Raises InputError for a kind that none may be used on."""
    found = {}
    for kind in kinds:
        able = [name for name in costs if kind in costs[name]]
        if not able:
            raise InputError(f"links of kind {kind}: the topology's costs allow no protocol on them; it must be one")
        found[kind] = min(able, key=lambda name: key(costs[name][kind]))
    return found


def _spread_out(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """SAMPLES of them at most, from the first to the last."""
    if len(pairs) <= SAMPLES:
        return list(pairs)
    return [pairs[at * (len(pairs) - 1) // (SAMPLES - 1)] for at in range(SAMPLES)]


def _pairs_by_kind(topology: Topology) -> dict[str, list[tuple[int, int]]]:
    """The pairs of ranks by the slowest kind of link that their path crosses; of several paths the first one's."""
    found: dict[str, list[tuple[int, int]]] = {}
    seen = set()
    for pair, links in sorted(_crossed(topology)):
        if pair not in seen:
            seen.add(pair)
            found.setdefault(KINDS[int(topology.link_kind[links].max())], []).append(pair)
    return found


def executor_costs(measured: Calibration, stated: Costs | None, source: str) -> Costs:
    """What was measured as costs; what is not, where a protocol is right and what switches do, as it was stated.

    A protocol's efficiency is its part of the fastest one's rate on that kind of link. A threadblock's bandwidth is the
    most that one moved on any kind, and none where that is all that links carry.
    """
    best = {
        kind: max(by[kind].link_gbs.value for by in measured.costs.values() if kind in by)
        for by in measured.costs.values()
        for kind in by
    }
    protocols = {}
    for name, by_kind in measured.costs.items():
        limited = any(one.blocks > 1 for one in by_kind.values())
        block = max(_share(one) for one in by_kind.values()) if limited else math.inf
        old = stated.protocols[name] if stated is not None else Protocol()
        protocols[name] = replace(
            old,
            start_us=_rounded(median(one.start_us.value for one in by_kind.values())),
            threadblock_gbs=_rounded(block) if limited else math.inf,
            latency_us={kind: _rounded(one.latency_us.value) for kind, one in by_kind.items()},
            efficiency={kind: _rounded(one.link_gbs.value / best[kind]) for kind, one in by_kind.items()},
            gap_us={kind: gap for kind, one in by_kind.items() if (gap := _rounded(one.gap_us.value))},
            note=_origin(by_kind, limited, old),
        )
    return Costs(protocols, source)


def _share(one: OnKind) -> float:
    """GB/s of a threadblock: a whole part of its link's where it fills one, and no less for what noise adds to that."""
    parts = max(1, round(one.link_gbs.value / one.threadblock_gbs.value))
    return MARGIN * max(one.threadblock_gbs.value, one.link_gbs.value / parts)


def _origin(by_kind: Mapping[str, OnKind], limited: bool, stated: Protocol) -> str:
    """Where each figure of a protocol comes from, and how well it is known."""

    def within(*names: str) -> str:
        return ", ".join(f"{name} {worst_within(getattr(one, name) for one in by_kind.values())}" for name in names)

    kept = [*(["links"] if stated.links != KINDS else []), *(["switch_ops"] if stated.switch_ops is not None else [])]
    block = "" if limited else "; one threadblock fills a link, so none is stated for it"
    known = within("start_us", "latency_us", "gap_us", "link_gbs", *(["threadblock_gbs"] if limited else []))
    return f"measured, known within: {known.replace('link_gbs', 'efficiency')}{block}" + (
        f"; not measured: {', '.join(kept)}" if kept else ""
    )


def linked_pairs(topology: Topology) -> list[tuple[int, int]]:
    """The pairs of ranks to measure: those with a link, directly or through switches, each direction once.

    Raises InputError for a topology without links.
    """
    found = sorted({pair for pair, _ in _links(topology)})
    if not found:
        raise InputError(f"topology {topology.name}: no links, so there is nothing to measure")
    return found


def pairs_by_limit(topology: Topology) -> dict[str, list[tuple[int, int]]]:
    """The pairs of ranks whose links share each limit, by the limit's name."""
    limits = {limit.name for limit in topology.limits}
    found: dict[str, set[tuple[int, int]]] = {}
    for pair, names in _links(topology):
        for name in limits.intersection(names):
            found.setdefault(name, set()).add(pair)
    return {name: sorted(held) for name, held in sorted(found.items())}


def calibrate(topology: Topology, measured: Calibration, source: str) -> Topology:
    """The same topology with measured figures; source: the new one's, and that of its costs.

    A link through switches is measured as a whole. Each physical link on it gets the largest bandwidth seen through it,
    since the others may have held it back, and its share of α in the topology's own proportion. Limits that were not
    measured stay.

    Raises InputError for a figure that is not positive.
    """
    for (a, b), link in measured.links.items():
        if not (link.gbs > 0 and np.isfinite(link.gbs) and np.isfinite(link.alpha_us)):
            raise InputError(f"link {a}→{b}: {link.gbs} GB/s, {link.alpha_us} µs; it must be positive figures")
    gbs = np.zeros(topology.nlinks)
    alpha: dict[int, list[float]] = {}
    for pair, links in _crossed(topology):
        seen = measured.links.get(pair)
        if seen is None:
            continue
        whole = float(topology.alpha_us[links].sum())
        for physical in links:
            gbs[physical] = max(gbs[physical], seen.gbs)
            share = float(topology.alpha_us[physical]) / whole if whole else 1 / len(links)
            alpha.setdefault(physical, []).append(max(0.0, seen.alpha_us) * share)
    new_gbs, new_alpha = topology.bandwidth_gbs.copy(), topology.alpha_us.copy()
    groups: dict[tuple[float, float], list[int]] = {}  # of equal figures in the topology
    for physical, shares in sorted(alpha.items()):
        new_gbs[physical], new_alpha[physical] = gbs[physical], float(np.median(shares))
        figures = float(topology.bandwidth_gbs[physical]), float(topology.alpha_us[physical])
        groups.setdefault(figures, []).append(physical)
    for group in groups.values():
        for kind in _kinds(new_gbs, group):
            new_gbs[kind] = _rounded(float(np.median(new_gbs[kind])))
            new_alpha[kind] = _rounded(float(np.median(new_alpha[kind])))
    limits = tuple(
        replace(limit, bandwidth_gbs=_rounded(measured.shared_gbs.get(limit.name, limit.bandwidth_gbs)))
        for limit in topology.limits
    )
    return replace(
        topology,
        bandwidth_gbs=new_gbs,
        alpha_us=new_alpha,
        limits=limits,
        alpha_assumed=False,
        summary=f"{topology.nranks} ranks wired as {topology.name}, figures measured",
        source=source,
        costs=executor_costs(measured, topology.costs, source) if measured.costs else topology.costs,
    )


def _links(topology: Topology) -> list[tuple[tuple[int, int], list[str]]]:
    """Every link as a pair of ranks, with the names of the physical links that it crosses and of its limits."""
    net = network(topology, range(topology.nranks))
    pairs = zip(net.src.tolist(), net.dst.tolist(), strict=True)
    return [(pair, [net.resource_names[use] for use in net.uses(link).tolist()]) for link, pair in enumerate(pairs)]


def _crossed(topology: Topology) -> list[tuple[tuple[int, int], list[int]]]:
    """Every link as a pair of ranks, with the physical links that it crosses."""
    physical = {
        f"{topology.vertex_name(int(a))}→{topology.vertex_name(int(b))}": number
        for number, (a, b) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))
    }
    return [(pair, [physical[name] for name in names if name in physical]) for pair, names in _links(topology)]


def _kinds(gbs: Floats, links: Sequence[int]) -> list[Ints]:
    """Links by kind: sorted by bandwidth, neighbours that differ by more than APART are of different kinds."""
    order = np.array(sorted(links, key=lambda link: (gbs[link], link)), dtype=np.int64)
    return np.split(order, 1 + np.flatnonzero(gbs[order[1:]] > APART * gbs[order[:-1]]))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
