"""A topology with measured figures in place of a data sheet's: links, limits and an executor's costs.

Figures of single links are noisy, and a search that sees a hundred different links sees no symmetry. So links that
the topology describes by the same figures stay equal unless their measured figures differ too much: sorted by
bandwidth, neighbours that differ by more than a factor of APART begin a new kind. All links of a kind get its median.
Costs by protocol are measured on some pairs of every kind of link, with the protocols that the topology's own costs
allow there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from runtime.measure.fits import MOST_BLOCKS, Measured, Meter, each_direction, worst_within
from synth.model.collective import Floats, Ints
from topologies.costs import LINK_KINDS, MIN_EFFICIENCY, PROTOCOLS, Costs, Protocol
from topologies.errors import InputError
from topologies.network import network
from topologies.topology import Topology

APART = 1.5  # A factor above the differences between repeated measurements of equal links.
DIGITS = 3  # Significant digits of the written figures.
MARGIN = 1.01  # Factor on a threadblock's bandwidth, so that rounding does not make a link need one more.
SAMPLES = 3  # Pairs of a kind of link on which protocols are measured.


@dataclass(frozen=True)
class MeasuredLink:
    """The figures from one rank to another.

    Attributes:
        alpha_us: Latency in µs, by the protocol of least latency.
        gbs: Bandwidth in GB/s, by the fastest protocol.
        alpha_spread: Relative uncertainty of the latency.
        gbs_spread: Relative uncertainty of the bandwidth.
    """

    alpha_us: float
    gbs: float
    alpha_spread: float = 0.0
    gbs_spread: float = 0.0


@dataclass(frozen=True)
class OnKind:
    """The costs of a protocol on a kind of link: medians over the measured pairs.

    Attributes:
        latency_us: Latency in µs.
        start_us: Time of a call before its first step, in µs.
        gap_us: Time in µs for which a message occupies a link besides its bytes.
        threadblock_gbs: Rate of one threadblock in GB/s.
        link_gbs: Rate of the link in GB/s.
        blocks: Threadblocks that fill a link.
    """

    latency_us: Measured
    start_us: Measured
    gap_us: Measured
    threadblock_gbs: Measured
    link_gbs: Measured
    blocks: int


@dataclass(frozen=True)
class Calibration:
    """All measured figures of a machine.

    Attributes:
        links: Figures by pair of ranks.
        shared_gbs: Rate in GB/s of all pairs of a limit at the same time, by the limit's name.
        costs: Costs by protocol and kind of link.
        noise: A line for each figure that was accepted although its times say too little.
    """

    links: Mapping[tuple[int, int], MeasuredLink]
    shared_gbs: Mapping[str, float]
    costs: Mapping[str, Mapping[str, OnKind]]
    noise: tuple[str, ...] = ()


Report = Callable[[str, int, int], None]  # Gets the measured quantity, the number done, and the number of all.


def measure_machine(meter: Meter, topology: Topology, report: Report, apart: bool = True) -> Calibration:
    """Measure every link, every limit, and each protocol on a sample of every kind of link.

    Args:
        meter: Times of probes.
        topology: The topology.
        report: Function that gets the progress.
        apart: True if programs run differently under another protocol; otherwise one protocol is measured for all.

    Raises:
        InputError: The topology has no links, or the times of a figure say too little and the meter does not accept
            noise.
    """
    linked, by_kind = linked_pairs(topology), _pairs_by_kind(topology)
    costs = _measure_kinds(meter, topology, by_kind, report, apart)
    kinds = {pair: kind for kind, pairs in by_kind.items() for pair in pairs}
    fastest = _best(costs, by_kind, lambda on_kind: -on_kind.link_gbs.value)
    quickest = _best(
        costs, by_kind, lambda on_kind: on_kind.latency_us.value or math.inf
    )  # Latency 0 was not measurable.
    alpha: dict[tuple[int, int], Measured] = {}
    link_gbs: dict[tuple[int, int], Measured] = {}
    for pair in linked:
        kind = kinds[pair]
        block_gbs = costs[quickest[kind]][kind].threadblock_gbs.value
        alpha[pair], _ = meter.latency_and_start(pair, quickest[kind], block_gbs)
        link_gbs[pair] = meter.rate([pair], fastest[kind], costs[fastest[kind]][kind].blocks)
        for quantity, figure in (("α", alpha[pair]), ("bandwidth", link_gbs[pair])):
            meter.noise.check_repeated(f"link {pair[0]}→{pair[1]}: {quantity}", figure)
        report("links", len(link_gbs), len(linked))
    links = {}
    for (a, b), forward in link_gbs.items():
        gbs = each_direction(forward.value, link_gbs[b, a].value)[0] if (b, a) in link_gbs else forward.value
        links[a, b] = MeasuredLink(alpha[a, b].value, gbs, alpha[a, b].spread, forward.spread)
    shared = {}
    for limit, limit_pairs in pairs_by_limit(topology).items():
        slowest = max((kinds[pair] for pair in limit_pairs), key=LINK_KINDS.index)  # A program has one protocol.
        protocol = fastest[slowest]
        shared[limit] = _measure_shared(meter, limit, limit_pairs, protocol, costs[protocol][slowest].blocks)
    return Calibration(links, shared, costs, tuple(meter.noise.remarks))


def _measure_kinds(
    meter: Meter,
    topology: Topology,
    by_kind: Mapping[str, Sequence[tuple[int, int]]],
    report: Report,
    apart: bool,
) -> dict[str, dict[str, OnKind]]:
    """Measure the costs of each protocol on each kind of link where the topology's costs allow it.

    Args:
        meter: As for `measure_machine`.
        topology: As for `measure_machine`.
        by_kind: Pairs of ranks by kind of link.
        report: As for `measure_machine`.
        apart: As for `measure_machine`.

    Returns:
        The costs by protocol and kind of link; combinations that are not allowed are missing.

    Raises:
        InputError: The topology's costs allow no protocol on its links, or the times of a figure say too little.
    """
    allowed = topology.costs
    combinations = [
        (name, kind)
        for name in PROTOCOLS
        for kind in by_kind
        if allowed is None or (name in allowed.protocols and kind in allowed.protocols[name].links)
    ]
    if not combinations:
        raise InputError(f"topology {topology.name}: its costs allow no protocol on its links, so nothing is measured")
    costs: dict[str, dict[str, OnKind]] = {}
    last_of_kind: dict[str, OnKind] = {}
    for number, (name, kind) in enumerate(combinations, 1):
        if apart or kind not in last_of_kind:
            last_of_kind[kind] = _on_kind(meter, _spread_out(by_kind[kind]), name, f"{name} on {kind} links")
        costs.setdefault(name, {})[kind] = last_of_kind[kind]
        report("protocols by kind of link", number, len(combinations))
    return costs


def _measure_shared(meter: Meter, limit: str, pairs: Sequence[tuple[int, int]], protocol: str, blocks: int) -> float:
    """Measure the GB/s of a limit that these pairs share, all pairs sending at once.

    Each pair uses as many threadblocks as fill a link, or fewer where a rank cannot have so many.

    Args:
        meter: Times of probes.
        limit: Name of the limit, for remarks and errors.
        pairs: The pairs of ranks.
        protocol: Protocol of the messages.
        blocks: Number of threadblocks that fill a link.

    Raises:
        InputError: The times say too little and the meter does not accept noise.
    """
    most_pairs = max(sum(rank in pair for pair in pairs) for rank in {rank for pair in pairs for rank in pair})
    rate = meter.rate(pairs, protocol, max(1, min(blocks, MOST_BLOCKS // most_pairs)))
    meter.noise.check_repeated(f"limit {limit}: bandwidth", rate)
    return rate.value


def _on_kind(meter: Meter, pairs: Sequence[tuple[int, int]], protocol: str, subject: str) -> OnKind:
    """Measure the costs of a protocol on some pairs, and return the medians (of `blocks` the largest number).

    `subject` names the protocol and the links in remarks and errors.

    Raises:
        InputError: The times of a figure say too little and the meter does not accept noise.
    """
    rates = [(pair, meter.rates(pair, protocol)) for pair in pairs]
    steps = [meter.latency_and_start(pair, protocol, pair_rates.threadblock.value) for pair, pair_rates in rates]
    gaps = [
        meter.gap(pair, protocol, pair_rates, latency.value)
        for (pair, pair_rates), (latency, _) in zip(rates, steps, strict=True)
    ]
    on_kind = OnKind(
        _median([latency for latency, _ in steps]),
        _median([start for _, start in steps]),
        _median(gaps),
        _median([pair_rates.threadblock for _, pair_rates in rates]),
        _median([pair_rates.link for _, pair_rates in rates]),
        max(pair_rates.blocks for _, pair_rates in rates),
    )
    for name in ("latency_us", "threadblock_gbs", "link_gbs"):
        meter.noise.check_repeated(f"{subject}: {name}", getattr(on_kind, name))
    return on_kind


def _median(figures: Sequence[Measured]) -> Measured:
    """Return the figure of middle value, or the upper one of the two in the middle, so that it was measured."""
    return sorted(figures, key=lambda figure: figure.value)[len(figures) // 2]


def _best(
    costs: Mapping[str, Mapping[str, OnKind]], kinds: Iterable[str], key: Callable[[OnKind], float]
) -> dict[str, str]:
    """Return for each kind of link the protocol with the least `key`, the first one of equal protocols.

    Args:
        costs: Costs by protocol and kind of link.
        kinds: The kinds of links.
        key: Function of a protocol's costs on a kind of link.

    Raises:
        InputError: No protocol may be used on a kind of link.
    """
    best_protocol = {}
    for kind in kinds:
        allowed_protocols = [name for name in costs if kind in costs[name]]
        if not allowed_protocols:
            raise InputError(f"links of kind {kind}: the topology's costs allow no protocol on them; it must be one")
        best_protocol[kind] = min(allowed_protocols, key=lambda name: key(costs[name][kind]))
    return best_protocol


def _spread_out(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Select at most SAMPLES pairs, evenly from the first to the last."""
    if len(pairs) <= SAMPLES:
        return list(pairs)
    return [pairs[at * (len(pairs) - 1) // (SAMPLES - 1)] for at in range(SAMPLES)]


def _pairs_by_kind(topology: Topology) -> dict[str, list[tuple[int, int]]]:
    """Return the pairs of ranks, sorted, by the name of the slowest kind of link that they cross.

    The first path of a pair counts. Kinds without pairs are missing.
    """
    by_kind: dict[str, list[tuple[int, int]]] = {}
    counted_pairs = set()
    for pair, links in sorted(_crossed(topology)):
        if pair not in counted_pairs:
            counted_pairs.add(pair)
            by_kind.setdefault(LINK_KINDS[int(topology.link_kind[links].max())], []).append(pair)
    return by_kind


def executor_costs(calibration: Calibration, stated_costs: Costs | None, source: str) -> Costs:
    """Return the measured costs, of the measured protocols only; their links and switch operations stay as stated.

    A protocol's efficiency is its share of the fastest protocol's rate on that kind of link. A threadblock's bandwidth
    is the most that one moved on any kind of link; there is none if one threadblock fills every link.

    Args:
        calibration: The measurements.
        stated_costs: The topology's own costs, which must state all measured protocols; None if it has none.
        source: Source of the new costs.

    Raises:
        InputError: A measured figure is out of range, or no protocol was measured.
    """
    best: dict[str, float] = {}  # GB/s of the fastest protocol by kind of link.
    for by_kind in calibration.costs.values():
        for kind, on_kind in by_kind.items():
            best[kind] = max(best.get(kind, 0.0), on_kind.link_gbs.value)
    protocols = {}
    for name, by_kind in calibration.costs.items():
        limited = any(on_kind.blocks > 1 for on_kind in by_kind.values())
        block = max(_share(on_kind) for on_kind in by_kind.values()) if limited else math.inf
        stated_protocol = stated_costs.protocols[name] if stated_costs is not None else Protocol()
        protocols[name] = replace(
            stated_protocol,
            start_us=_rounded(median(on_kind.start_us.value for on_kind in by_kind.values())),
            threadblock_gbs=_rounded(block) if limited else math.inf,
            latency_us={kind: _rounded(on_kind.latency_us.value) for kind, on_kind in by_kind.items()},
            efficiency={
                kind: max(MIN_EFFICIENCY, _rounded(on_kind.link_gbs.value / best[kind]))
                for kind, on_kind in by_kind.items()
            },
            gap_us={kind: gap for kind, on_kind in by_kind.items() if (gap := _rounded(on_kind.gap_us.value))},
            note=_origin(by_kind, limited, stated_protocol),
        )
    return Costs(protocols, source)


def _share(on_kind: OnKind) -> float:
    """Return the GB/s to state for one threadblock: a whole part of its link's rate.

    It is the measured rate where that is higher, and has the factor MARGIN in either case.
    """
    parts = max(1, round(on_kind.link_gbs.value / on_kind.threadblock_gbs.value))
    return MARGIN * max(on_kind.threadblock_gbs.value, on_kind.link_gbs.value / parts)


def _origin(by_kind: Mapping[str, OnKind], limited: bool, stated: Protocol) -> str:
    """Describe where each figure of a protocol comes from, and its uncertainty, as text for the protocol's note.

    Args:
        by_kind: The protocol's measured costs by kind of link.
        limited: Whether a threadblock's rate is stated, because one does not fill every link.
        stated: The protocol as the topology states it; its links and switch operations are not measured.
    """

    def within(*names: str) -> str:
        """Describe the worst uncertainty of each named figure over all kinds of links."""
        return ", ".join(
            f"{name} {worst_within(getattr(on_kind, name) for on_kind in by_kind.values())}" for name in names
        )

    stated_fields = [
        *(["links"] if stated.links != LINK_KINDS else []),
        *(["switch_ops"] if stated.switch_ops is not None else []),
    ]
    block = "" if limited else "; one threadblock fills a link, so none is stated for it"
    uncertainties = within("start_us", "latency_us", "gap_us", "link_gbs", *(["threadblock_gbs"] if limited else []))
    return f"measured, known within: {uncertainties.replace('link_gbs', 'efficiency')}{block}" + (
        f"; not measured: {', '.join(stated_fields)}" if stated_fields else ""
    )


def linked_pairs(topology: Topology) -> list[tuple[int, int]]:
    """Return the pairs of ranks to measure: those with a link, directly or through switches, each direction once.

    Raises:
        InputError: The topology has no links.
    """
    pairs = sorted({pair for pair, _ in _links(topology)})
    if not pairs:
        raise InputError(f"topology {topology.name}: no links, so there is nothing to measure")
    return pairs


def pairs_by_limit(topology: Topology) -> dict[str, list[tuple[int, int]]]:
    """Return the pairs of ranks whose links share each limit, by the limit's name, both sorted.

    A pair counts if its path crosses a link of the limit. Limits that no pair crosses are missing.
    """
    limits = {limit.name for limit in topology.limits}
    pairs_of_limit: dict[str, set[tuple[int, int]]] = {}
    for pair, names in _links(topology):
        for name in limits.intersection(names):
            pairs_of_limit.setdefault(name, set()).add(pair)
    return {name: sorted(limit_pairs) for name, limit_pairs in sorted(pairs_of_limit.items())}


def calibrate(topology: Topology, calibration: Calibration, source: str) -> Topology:
    """Return a topology with the same ranks, switches and links, but measured figures.

    A link through switches is measured as a whole. Each physical link on it gets the largest bandwidth that was
    measured through it, since other links may have limited a measurement, and its share of α in the topology's own
    proportion. Links that the topology describes by equal figures get their median, unless sorted neighbours differ in
    bandwidth by more than a factor of APART. Links that were not measured stay. Figures of measured links and of all
    limits, also those that were not measured, are rounded to DIGITS significant digits.

    Args:
        topology: The topology.
        calibration: The measurements.
        source: Source of the new topology and of its costs.

    Raises:
        InputError: A link's bandwidth is not positive, or a figure is not finite or out of range.
    """
    for (a, b), link in calibration.links.items():
        if not (link.gbs > 0 and np.isfinite(link.gbs) and np.isfinite(link.alpha_us)):
            raise InputError(f"link {a}→{b}: {link.gbs} GB/s, {link.alpha_us} µs; it must be positive figures")
    gbs = np.zeros(topology.nlinks)
    alpha: dict[int, list[float]] = {}
    for pair, links in _crossed(topology):
        link_figures = calibration.links.get(pair)
        if link_figures is None:
            continue
        path_alpha = float(topology.alpha_us[links].sum())
        for physical in links:
            gbs[physical] = max(gbs[physical], link_figures.gbs)
            share = float(topology.alpha_us[physical]) / path_alpha if path_alpha else 1 / len(links)
            alpha.setdefault(physical, []).append(max(0.0, link_figures.alpha_us) * share)
    new_gbs, new_alpha = topology.bandwidth_gbs.copy(), topology.alpha_us.copy()
    groups: dict[tuple[float, float], list[int]] = {}  # By the figures in the topology.
    for physical, shares in sorted(alpha.items()):
        new_gbs[physical], new_alpha[physical] = gbs[physical], float(np.median(shares))
        figures = float(topology.bandwidth_gbs[physical]), float(topology.alpha_us[physical])
        groups.setdefault(figures, []).append(physical)
    for group in groups.values():
        for kind in _kinds(new_gbs, group):
            new_gbs[kind] = _rounded(float(np.median(new_gbs[kind])))
            new_alpha[kind] = _rounded(float(np.median(new_alpha[kind])))
    limits = tuple(
        replace(limit, bandwidth_gbs=_rounded(calibration.shared_gbs.get(limit.name, limit.bandwidth_gbs)))
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
        costs=executor_costs(calibration, topology.costs, source) if calibration.costs else topology.costs,
    )


def _links(topology: Topology) -> list[tuple[tuple[int, int], list[str]]]:
    """Return every link as a pair of ranks, with the names of its physical links and of its limits."""
    net = network(topology, range(topology.nranks))
    pairs = zip(net.src.tolist(), net.dst.tolist(), strict=True)
    return [(pair, [net.resource_names[use] for use in net.uses(link).tolist()]) for link, pair in enumerate(pairs)]


def _crossed(topology: Topology) -> list[tuple[tuple[int, int], list[int]]]:
    """Return every link as a pair of ranks, with the indices of the physical links that it crosses."""
    physical = {
        f"{topology.vertex_name(int(a))}→{topology.vertex_name(int(b))}": number
        for number, (a, b) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))
    }
    return [(pair, [physical[name] for name in names if name in physical]) for pair, names in _links(topology)]


def _kinds(gbs: Floats, links: Sequence[int]) -> list[Ints]:
    """Split links by bandwidth: sorted neighbours that differ by more than a factor of APART are of different kinds.

    Args:
        gbs: GB/s of every link of the topology.
        links: Indices of the links to split, at least one.

    Returns:
        The indices of each kind's links, by ascending bandwidth.
    """
    order = np.array(sorted(links, key=lambda link: (gbs[link], link)), dtype=np.int64)
    return np.split(order, 1 + np.flatnonzero(gbs[order[1:]] > APART * gbs[order[:-1]]))


def _rounded(value: float) -> float:
    """Return a figure rounded to DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")
