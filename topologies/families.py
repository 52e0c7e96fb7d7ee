"""Regular topologies by formula: "ring:8", "torus:4x4x4,bw=50,alpha=0.7", "fattree:8".

They have an executor's costs only where options give them: "star:8,threadblock_gbs=20,gap_us=0.5,start_us=7" gives
these costs to both LL and Simple.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import Ints
from topologies.costs import LINK_KINDS, MAX_COST_US, Costs, Protocol
from topologies.errors import InputError, did_you_mean
from topologies.topology import MAX_ALPHA_US, MAX_GBS, MAX_LINKS, MAX_RANKS, MIN_GBS, Topology

DEFAULT_GBS = 50.0
DEFAULT_ALPHA_US = 0.7
_COSTS = {
    "threadblock_gbs": (MIN_GBS, MAX_GBS, "GB/s"),
    "gap_us": (0.0, MAX_COST_US, "µs"),
    "start_us": (0.0, MAX_COST_US, "µs"),
}
_SIZES = re.compile(r"[0-9]{1,7}(x[0-9]{1,7}){0,9}")


@dataclass(frozen=True, eq=False)
class _FamilyShape:
    """A member of a family without figures.

    Attributes:
        nranks: Number of ranks.
        ends: Vertices that links join in both directions, ends[0, i] with ends[1, i]: int64 (2, pairs).
        summary: Short description.
        switches: Names of the switches.
        nodes: Chassis of each rank; empty for one chassis.
    """

    nranks: int
    ends: Ints
    summary: str
    switches: Sequence[str] = ()
    nodes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def _grid(dims: Sequence[int], wrap: bool, summary: str) -> _FamilyShape:
    """Return a grid of any number of dimensions, in whose numbers of ranks the last coordinate counts fastest.

    Args:
        dims: Size of each dimension.
        wrap: Whether links close each dimension to a ring; one of fewer than three ranks has no such link.
        summary: Short description.
    """
    n = math.prod(dims)
    index = np.arange(n, dtype=np.int64).reshape(dims)
    pairs: list[tuple[Ints, Ints]] = []
    for axis, size in enumerate(dims):
        along = np.moveaxis(index, axis, 0)
        pairs.append((along[:-1].reshape(-1), along[1:].reshape(-1)))
        if wrap and size > 2:  # With two ranks, the link that closes the ring would be the same pair again.
            pairs.append((along[-1].reshape(-1), along[0].reshape(-1)))
    return _FamilyShape(n, np.concatenate(pairs, axis=1), summary)


def _tpu_slice(dims: Sequence[int]) -> _FamilyShape:
    """Return a slice of a TPU pod: a 3D torus where all three sizes are multiples of 4, else a mesh."""
    wrap = all(size % 4 == 0 for size in dims)
    return _grid(dims, wrap, f"TPU slice, {_by_x(dims)} {'torus' if wrap else 'mesh'}")


def _grid_summary(dims: Sequence[int], kind: str) -> str:
    """Return a summary such as `4x4 torus`, or `torus of 4` for a single dimension."""
    return f"{_by_x(dims)} {kind}" if len(dims) > 1 else f"{kind} of {dims[0]}"


def _by_x(dims: Sequence[int]) -> str:
    """Return sizes as "4x4"."""
    return "x".join(map(str, dims))


def _full(dims: Sequence[int]) -> _FamilyShape:
    """Return a full mesh of `dims[0]` ranks: a link between every two."""
    return _FamilyShape(dims[0], np.stack(np.triu_indices(dims[0], 1)), f"{dims[0]} ranks, all to all")


def _hypercube(dims: Sequence[int]) -> _FamilyShape:
    """Return a hypercube of 2^d ranks, where d is `dims[0]`, its number of dimensions."""
    n = 1 << dims[0]
    index = np.arange(n, dtype=np.int64)
    zeros = [(index[index & bit == 0], bit) for bit in 1 << np.arange(dims[0])]
    return _FamilyShape(n, np.concatenate([(low, low | bit) for low, bit in zeros], axis=1), f"hypercube of {n}")


def _star(dims: Sequence[int]) -> _FamilyShape:
    """Return `dims[0]` ranks on one switch, "switch"."""
    n = dims[0]
    return _FamilyShape(n, np.stack([np.arange(n), np.full(n, n)]), f"{n} ranks on one switch", ("switch",))


def _fattree(dims: Sequence[int]) -> _FamilyShape:
    """Return a k-ary fat tree (one size, k), or a tree of leaves and spines (sizes: leaves, ranks a leaf, spines).

    The ranks on one edge or leaf switch are a chassis.

    Raises:
        InputError: There are two sizes, or one that is odd or below 2.
    """
    if len(dims) == 3:
        return _leaf_spine(dims)
    if len(dims) != 1:
        raise InputError(
            f"topology fattree:{_by_x(dims)}: size must be K (k-ary) or LEAVESxRANKSxSPINES, "
            "such as fattree:4 or fattree:4x8x2"
        )
    k = dims[0]
    if k < 2 or k % 2:
        raise InputError(f"topology fattree:{k}: switches must have an even number of ports, as in fattree:4")
    half, hosts = k // 2, k**3 // 4
    # Layers after the hosts: k·k/2 edge switches, as many aggregation switches, (k/2)² cores.
    edge = hosts + np.arange(k * half, dtype=np.int64)
    aggregation = edge + k * half
    core = hosts + 2 * k * half + np.arange(half * half, dtype=np.int64)
    pod_edges, pod_tops = edge.reshape(k, half), aggregation.reshape(k, half)
    pairs = (
        (np.arange(hosts, dtype=np.int64), np.repeat(edge, half)),
        (np.repeat(pod_edges, half, axis=1).reshape(-1), np.tile(pod_tops, (1, half)).reshape(-1)),
        # Aggregation switch j of each pod reaches cores j·k/2 … j·k/2 + k/2 − 1.
        (np.repeat(aggregation, half), np.tile(core, k)),
    )
    layers = (("edge", len(edge)), ("aggr", len(edge)), ("core", len(core)))
    names = [f"{layer}{i}" for layer, count in layers for i in range(count)]
    nodes = np.arange(hosts, dtype=np.int64) // half
    return _FamilyShape(hosts, np.concatenate(pairs, axis=1), f"{k}-ary fat tree, {hosts} ranks", names, nodes)


def _leaf_spine(dims: Sequence[int]) -> _FamilyShape:
    """Return leaf switches with ranks, each joined to every spine switch; the ranks of a leaf are a chassis.

    `dims` is (leaves, ranks per leaf, spines).
    """
    leaves, ranks_per_leaf, spines = dims
    n = leaves * ranks_per_leaf
    leaf = n + np.arange(leaves, dtype=np.int64)
    spine = n + leaves + np.arange(spines, dtype=np.int64)
    ranks = np.arange(n, dtype=np.int64)
    ends = np.concatenate(
        [(ranks, np.repeat(leaf, ranks_per_leaf)), (np.repeat(leaf, spines), np.tile(spine, leaves))], axis=1
    )
    names = [f"leaf{i}" for i in range(leaves)] + [f"spine{i}" for i in range(spines)]
    return _FamilyShape(
        n, ends, f"{leaves} leaves of {ranks_per_leaf} ranks, {spines} spines", names, ranks // ranks_per_leaf
    )


def _dragonfly(dims: Sequence[int]) -> _FamilyShape:
    """Return a dragonfly; `dims` is (groups, routers per group, ranks per router), and a router's ranks are a chassis.

    Within a group every two routers have a link. Every two groups have one link, between one router of each.
    """
    groups, routers, hosts = dims
    n = groups * routers * hosts
    router = n + np.arange(groups * routers, dtype=np.int64).reshape(groups, routers)
    ranks = np.arange(n, dtype=np.int64)
    i, j = np.triu_indices(routers, 1)
    g, h = np.triu_indices(groups, 1)
    # Each pair of groups has one global link: the routers of group g lead to groups g+1, g+2, … in turn.
    up, down = (h - g - 1) % routers, (g - h - 1) % groups % routers
    pairs = (
        (ranks, np.repeat(router.reshape(-1), hosts)),
        (router[:, i].reshape(-1), router[:, j].reshape(-1)),
        (router[g, up], router[h, down]),
    )
    names = [f"g{x}r{y}" for x in range(groups) for y in range(routers)]
    summary = f"dragonfly, {groups} groups of {routers} routers of {hosts} ranks"
    return _FamilyShape(n, np.concatenate(pairs, axis=1), summary, names, ranks // hosts)


@dataclass(frozen=True)
class _Family:
    """A family of topologies.

    Attributes:
        build: Function from a member's dimensions to its shape.
        dimensions: Fewest and most dimensions.
        example: Example of a member's text.
        most_links: Function from dimensions to an upper bound on directed links, by which a size is refused before it
            is built.
        smallest: Smallest value of each dimension.
        gbs: Default bandwidth of a link in GB/s, each way.
        source: Source of the default bandwidth.
    """

    build: Callable[[Sequence[int]], _FamilyShape]
    dimensions: tuple[int, int]
    example: str
    most_links: Callable[[Sequence[int]], int]
    smallest: int = 1
    gbs: float = DEFAULT_GBS
    source: str = "default figures, nobody's machine"


def _grid_links(dims: Sequence[int]) -> int:
    """Return an upper bound on the directed links of a grid."""
    return 2 * len(dims) * math.prod(dims)


_TPU = "bandwidth: vendor; α not published, assumed"
FAMILIES: dict[str, _Family] = {
    "ring": _Family(lambda d: _grid(d, True, f"ring of {d[0]}"), (1, 1), "ring:8", _grid_links, 2),
    "line": _Family(lambda d: _grid(d, False, f"line of {d[0]}"), (1, 1), "line:8", _grid_links, 2),
    "full": _Family(_full, (1, 1), "full:8", lambda d: d[0] * (d[0] - 1)),
    "mesh": _Family(lambda d: _grid(d, False, _grid_summary(d, "mesh")), (1, 6), "mesh:6x6", _grid_links),
    "torus": _Family(lambda d: _grid(d, True, _grid_summary(d, "torus")), (1, 6), "torus:8x8x8", _grid_links),
    "hypercube": _Family(_hypercube, (1, 1), "hypercube:6", lambda d: d[0] << min(d[0], 64)),
    "star": _Family(_star, (1, 1), "star:8", lambda d: 2 * d[0]),
    "fattree": _Family(
        _fattree, (1, 3), "fattree:4",
        lambda d: 2 * d[0] * (d[1] + d[2]) if len(d) == 3 else 6 * d[0] ** 3 // 4,
    ),
    "dragonfly": _Family(
        _dragonfly, (3, 3), "dragonfly:4x4x2", lambda d: d[0] * d[1] * (2 * d[2] + d[1]) + d[0] * d[0]
    ),
    # Six links a chip: 300 and 600 GB/s each way in all.
    "tpu-v4": _Family(_tpu_slice, (3, 3), "tpu-v4:4x4x8", _grid_links, gbs=50.0, source=_TPU),
    "tpu-v5p": _Family(_tpu_slice, (3, 3), "tpu-v5p:8x8x8", _grid_links, gbs=100.0, source=_TPU),
}  # fmt: skip


def family(spec: str) -> Topology:
    """Return the topology of "kind:SIZExSIZE,bw=GB/s,alpha=µs", for which further options state costs.

    `bw` is the bandwidth of a link, each way, and `alpha` the latency of a hop. Without these options they are those of
    the family and DEFAULT_ALPHA_US, and α counts as assumed. The options threadblock_gbs (GB/s), gap_us and start_us
    (µs) state an executor's costs, which are off. The name is the text itself.

    Raises:
        InputError: There is no such family, size or option, or the topology would be too large.
    """
    where = f"topology {spec[:40]!r}"
    head, *options = spec.split(",")
    kind, _, sizes = head.partition(":")
    if kind not in FAMILIES:
        raise InputError(f"{where}: no family {kind[:40]!r}; it must be one of {', '.join(FAMILIES)}")
    chosen_family = FAMILIES[kind]
    if re.search(r"\d{8}", sizes):
        raise InputError(f"{where}: is too large; it must have at most {MAX_RANKS} ranks")
    dims = [int(size) for size in sizes.split("x")] if _SIZES.fullmatch(sizes) else []
    low, high = chosen_family.dimensions
    if not low <= len(dims) <= high or min(dims) < chosen_family.smallest:
        raise InputError(
            f"{where}: size {sizes[:40]!r} does not fit; it must be written as in {chosen_family.example}"
            + (f", with at least {chosen_family.smallest} ranks" if chosen_family.smallest > 1 else "")
        )
    if chosen_family.most_links(dims) > 2 * MAX_LINKS or (kind != "fattree" and math.prod(dims) > MAX_RANKS):
        raise InputError(f"{where}: too large; it must have at most {MAX_RANKS} ranks and {MAX_LINKS} links")
    figures = _options(where, options)
    gbs, alpha_us = figures.get("bw", chosen_family.gbs), figures.get("alpha", DEFAULT_ALPHA_US)
    shape = chosen_family.build(dims)
    src, dst = np.concatenate([shape.ends, shape.ends[::-1]], axis=1)
    source = "bw and alpha given" if {"bw", "alpha"} <= figures.keys() else chosen_family.source
    return Topology(
        name=spec,
        nranks=shape.nranks,
        switches=tuple(shape.switches),
        link_src=src,
        link_dst=dst,
        alpha_us=np.full(len(src), alpha_us),
        bandwidth_gbs=np.full(len(src), gbs),
        alpha_assumed="alpha" not in figures,
        nodes=shape.nodes,
        summary=f"{shape.summary}, {gbs:g} GB/s each way a link",
        source=f"formula {kind}; {source}",
        costs=_costs(figures),
    )


def _costs(figures: Mapping[str, float]) -> Costs | None:
    """Return the costs that the options of `family` state by name (GB/s and µs), or None where they state none.

    They are the same for LL and Simple, the two protocols that are right on any link.
    """
    if not any(key in figures for key in _COSTS):
        return None
    gap = dict.fromkeys(LINK_KINDS, figures["gap_us"]) if "gap_us" in figures else {}
    protocol = Protocol(figures.get("start_us", 0.0), figures.get("threadblock_gbs", math.inf), gap_us=gap)
    return Costs({"LL": protocol, "Simple": protocol}, "given")


def _options(where: str, options: Sequence[str]) -> dict[str, float]:
    """Return the values of the options that are set: bw (GB/s), alpha (µs) and those of _COSTS.

    Raises:
        InputError: An option is unknown, is given twice, or its value is out of range.
    """
    values: dict[str, float] = {}
    ranges = {"bw": (MIN_GBS, MAX_GBS, "GB/s"), "alpha": (0.0, MAX_ALPHA_US, "µs")} | _COSTS
    for option in options:
        key, _, text = option.partition("=")
        if key in values:
            raise InputError(f"{where}: {key} is given twice; give it once")
        if key not in ranges:
            names = ", ".join(f"{name}={unit}" for name, (*_, unit) in ranges.items())
            right = did_you_mean(key, ["bandwidth", *ranges]).replace("bandwidth", "bw") or f"it must be one of {names}"
            raise InputError(f"{where}: option {option[:40]!r} is not known; {right}")
        low, high, unit = ranges[key]
        try:
            value = float(text) if re.fullmatch(r"[0-9.eE+-]{1,30}", text) else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise InputError(f"{where}: {key}={text[:40]!r} must be {low:g} to {high:g} {unit}")
        values[key] = value
    return values
