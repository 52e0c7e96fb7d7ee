"""A topology with the α and bandwidths that were measured, in place of a data sheet's.

Figures of single links are noisy, and a search that sees a hundred different links sees no symmetry. So links that
the topology describes by the same figures stay equal unless their measured ones fall apart: sorted, neighbours that
differ by more than APART begin another kind. All links of a kind have its median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.model.collective import Floats, Ints
from topologies.costs import KINDS, Costs, Protocol
from topologies.errors import InputError
from topologies.network import network
from topologies.topology import Topology

APART = 1.5  # times: beyond what repeated measurements of equal links differ by
DIGITS = 3  # significant ones, of what is written
AGREE = 3  # of a figure's measurements must be about the least
ENOUGH = 0.1  # of it: how far they may lie apart without more measurements
NOISE = 0.5  # of it: figures that lie further apart say nothing of a link
MOST = 40  # measurements of one figure


@dataclass(frozen=True)
class MeasuredLink:
    """Figures from one rank to another: µs and GB/s, and how far what they follow from repeats (`repeated_least`).

    gap_us: that a message keeps the link busy for besides its bytes.
    """

    alpha_us: float
    gbs: float
    alpha_spread: float = 0.0
    gbs_spread: float = 0.0
    gap_us: float = 0.0


def repeated_least(measure: Callable[[], float]) -> tuple[float, float]:
    """The least of a time's measurements, repeated until AGREE of them are about the least, or MOST times.

    What else runs here makes times longer, never shorter. Beside it the spread: by which part of the least the last of
    those AGREE is longer.
    """
    times: list[float] = []
    while len(times) < MOST:
        times.append(measure())
        least = sorted(times)[:AGREE]
        if len(least) == AGREE and least[-1] <= (1 + ENOUGH) * least[0]:
            break
    return least[0], least[-1] / least[0] - 1


def check_repeated(measured: Mapping[tuple[int, int], MeasuredLink]) -> None:
    """Raises InputError for a figure that does not repeat: it is of what else ran, not of the link."""
    for (a, b), link in measured.items():
        for name, spread in (("α", link.alpha_spread), ("bandwidth", link.gbs_spread)):
            if not spread <= NOISE:
                raise InputError(
                    f"link {a}→{b}: {name} does not repeat, the least {AGREE} of {MOST} measurements lie"
                    f" {spread:.0%} apart; it must be {NOISE:.0%} or less, on a machine that is less busy"
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


def calibrate(
    topology: Topology,
    measured: Mapping[tuple[int, int], MeasuredLink],
    shared_gbs: Mapping[str, float],
    source: str,
    start_us: float = 0.0,
) -> Topology:
    """The same topology with measured figures; source: the new one's.

    A link through switches is measured as a whole. Each physical link on it gets the largest bandwidth seen through it,
    since the others may have held it back, and its share of α in the topology's own proportion. shared_gbs: by limit,
    what all its pairs carry at once; others stay. Its costs are the gaps of the links, by kind the median, and
    start_us, what a call takes beside its messages, whatever the protocol: this executor has but one.

    Raises InputError for a figure that is not positive.
    """
    for (a, b), link in measured.items():
        if not (link.gbs > 0 and np.isfinite(link.gbs) and np.isfinite(link.alpha_us)):
            raise InputError(f"link {a}→{b}: {link.gbs} GB/s, {link.alpha_us} µs; it must be positive figures")
    gbs = np.zeros(topology.nlinks)
    alpha: dict[int, list[float]] = {}
    for pair, links in _crossed(topology):
        seen = measured.get(pair)
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
        replace(limit, bandwidth_gbs=_rounded(shared_gbs.get(limit.name, limit.bandwidth_gbs)))
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
        costs=_costs(topology, measured, source, _rounded(start_us)),
    )


def _costs(
    topology: Topology, measured: Mapping[tuple[int, int], MeasuredLink], source: str, start_us: float
) -> Costs | None:
    """The start, and the gaps of the links by kind, the slowest that each crosses; None where all are nothing."""
    by_kind: dict[str, list[float]] = {}
    for pair, links in _crossed(topology):
        if pair in measured:
            kind = KINDS[int(topology.link_kind[links].max())]
            by_kind.setdefault(kind, []).append(max(0.0, measured[pair].gap_us))
    gap = {kind: found for kind, gaps in by_kind.items() if (found := _rounded(float(np.median(gaps)))) > 0}
    if not gap and not start_us:
        return None
    return Costs({name: Protocol(start_us, gap_us=gap) for name in ("LL", "Simple")}, source)


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
