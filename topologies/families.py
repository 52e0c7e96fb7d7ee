"""Regular topologies by formula: "ring:8", "torus:4x4x4,bw=50,alpha=0.7", "fattree:8"."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.errors import InputError
from topologies.topology import MAX_ALPHA_US, MAX_GBS, MAX_LINKS, MAX_RANKS, MIN_GBS, Topology

__all__ = ["DEFAULT_ALPHA_US", "DEFAULT_GBS", "FAMILIES", "family"]

DEFAULT_GBS = 50.0
DEFAULT_ALPHA_US = 0.7

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Shape:
    """Undirected pairs (int64 columns) of a family's member, before figures."""

    nranks: int
    switches: tuple[str, ...]
    a: Ints
    b: Ints
    nodes: Ints | None
    summary: str


def _pairs(pairs: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


def _grid(dims: Sequence[int], wrap: bool, summary: str) -> _Shape:
    n = math.prod(dims)
    index = np.arange(n, dtype=np.int64).reshape(dims)
    pairs: list[tuple[Ints, Ints]] = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))]
    for axis, size in enumerate(dims):
        if size < 2:
            continue
        low = np.take(index, np.arange(size - 1), axis=axis)
        high = np.take(index, np.arange(1, size), axis=axis)
        pairs.append((low.reshape(-1), high.reshape(-1)))
        if wrap and size > 2:  # with two, the way around is the same pair again
            ends = np.take(index, size - 1, axis=axis), np.take(index, 0, axis=axis)
            pairs.append((ends[0].reshape(-1), ends[1].reshape(-1)))
    a, b = _pairs(pairs)
    return _Shape(n, (), a, b, None, summary)


def _ring(dims: Sequence[int]) -> _Shape:
    return _grid(dims, True, f"ring of {dims[0]}")


def _line(dims: Sequence[int]) -> _Shape:
    return _grid(dims, False, f"line of {dims[0]}")


def _mesh(dims: Sequence[int]) -> _Shape:
    return _grid(dims, False, f"{'x'.join(map(str, dims))} mesh")


def _torus(dims: Sequence[int]) -> _Shape:
    return _grid(dims, True, f"{'x'.join(map(str, dims))} torus")


def _full(dims: Sequence[int]) -> _Shape:
    a, b = np.triu_indices(dims[0], 1)
    return _Shape(dims[0], (), a.astype(np.int64), b.astype(np.int64), None, f"{dims[0]} ranks, all to all")


def _hypercube(dims: Sequence[int]) -> _Shape:
    if dims[0] > 19:
        raise InputError(
            f"hypercube:{dims[0]} has more than {MAX_RANKS} ranks; the dimension must be 1 to 19"
        )
    n = 1 << dims[0]
    index = np.arange(n, dtype=np.int64)
    a, b = _pairs(
        [(index[index & bit == 0], index[index & bit == 0] | bit) for bit in 1 << np.arange(dims[0])]
    )
    return _Shape(n, (), a, b, None, f"hypercube of {n}")


def _star(dims: Sequence[int]) -> _Shape:
    ranks = np.arange(dims[0], dtype=np.int64)
    return _Shape(
        dims[0], ("switch",), ranks, np.full(dims[0], dims[0]), None, f"{dims[0]} ranks on one switch"
    )


def _fattree(dims: Sequence[int]) -> _Shape:
    if len(dims) == 3:
        return _leaf_spine(dims)
    if len(dims) != 1:
        raise InputError("fattree takes K (k-ary) or LEAVESxRANKSxSPINES, such as fattree:4 or fattree:4x8x2")
    k = dims[0]
    if k < 2 or k % 2:
        raise InputError(f"fattree:{k} needs switches of an even number of ports, such as fattree:4")
    half, hosts = k // 2, k**3 // 4
    # Layers after the hosts: k·k/2 edge switches, as many aggregation switches, (k/2)² cores.
    edge = hosts + np.arange(k * half, dtype=np.int64)
    aggregation = edge + k * half
    core = hosts + 2 * k * half + np.arange(half * half, dtype=np.int64)
    host_links = (np.arange(hosts, dtype=np.int64), np.repeat(edge, half))
    pod_edges, pod_tops = edge.reshape(k, half), aggregation.reshape(k, half)
    pod_links = (np.repeat(pod_edges, half, axis=1).reshape(-1), np.tile(pod_tops, (1, half)).reshape(-1))
    # Aggregation switch j of each pod reaches cores j·k/2 … j·k/2 + k/2 − 1.
    core_links = (np.repeat(aggregation, half), np.tile(core, k))
    a, b = _pairs([host_links, pod_links, core_links])
    names = [f"edge{i}" for i in range(k * half)] + [f"aggr{i}" for i in range(k * half)]
    names += [f"core{i}" for i in range(half * half)]
    nodes = np.arange(hosts, dtype=np.int64) // half
    return _Shape(hosts, tuple(names), a, b, nodes, f"{k}-ary fat tree, {hosts} ranks")


def _leaf_spine(dims: Sequence[int]) -> _Shape:
    leaves, each, spines = dims
    n = leaves * each
    leaf = n + np.arange(leaves, dtype=np.int64)
    spine = n + leaves + np.arange(spines, dtype=np.int64)
    ranks = np.arange(n, dtype=np.int64)
    a, b = _pairs([(ranks, np.repeat(leaf, each)), (np.repeat(leaf, spines), np.tile(spine, leaves))])
    names = [f"leaf{i}" for i in range(leaves)] + [f"spine{i}" for i in range(spines)]
    return _Shape(n, tuple(names), a, b, ranks // each, f"{leaves} leaves of {each} ranks, {spines} spines")


def _dragonfly(dims: Sequence[int]) -> _Shape:
    groups, routers, hosts = dims
    n = groups * routers * hosts
    router = n + np.arange(groups * routers, dtype=np.int64).reshape(groups, routers)
    ranks = np.arange(n, dtype=np.int64)
    i, j = np.triu_indices(routers, 1)
    g, h = np.triu_indices(groups, 1)
    # One global link a pair of groups: group g takes g+1, g+2, … around, router by router.
    up, down = (h - g - 1) % routers, (g - h - 1) % groups % routers
    a, b = _pairs(
        [
            (ranks, np.repeat(router.reshape(-1), hosts)),
            (router[:, i].reshape(-1), router[:, j].reshape(-1)),
            (router[g, up], router[h, down]),
        ]
    )
    names = tuple(f"g{x}r{y}" for x in range(groups) for y in range(routers))
    words = f"dragonfly, {groups} groups of {routers} routers of {hosts} ranks"
    return _Shape(n, names, a, b, ranks // hosts, words)


@dataclass(frozen=True)
class _Family:
    build: Callable[[Sequence[int]], _Shape]
    sizes: tuple[int, int]  # fewest and most dimensions
    example: str
    links: Callable[
        [Sequence[int]], int
    ]  # at least the number of directed links, so that size is refused first


def _grid_links(dims: Sequence[int]) -> int:
    return 2 * len(dims) * math.prod(dims)


FAMILIES: dict[str, _Family] = {
    "ring": _Family(_ring, (1, 1), "ring:8", _grid_links),
    "line": _Family(_line, (1, 1), "line:8", _grid_links),
    "full": _Family(_full, (1, 1), "full:8", lambda d: d[0] * (d[0] - 1)),
    "mesh": _Family(_mesh, (1, 6), "mesh:6x6", _grid_links),
    "torus": _Family(_torus, (1, 6), "torus:8x8x8", _grid_links),
    "hypercube": _Family(_hypercube, (1, 1), "hypercube:6", lambda d: d[0] << min(d[0], 64)),
    "star": _Family(_star, (1, 1), "star:8", lambda d: 2 * d[0]),
    "fattree": _Family(
        _fattree, (1, 3), "fattree:4",
        lambda d: 2 * d[0] * (d[1] + d[2]) if len(d) == 3 else 6 * d[0] ** 3 // 4,
    ),
    "dragonfly": _Family(
        _dragonfly, (3, 3), "dragonfly:4x4x2", lambda d: d[0] * d[1] * (2 * d[2] + d[1]) + d[0] * d[0]
    ),
}  # fmt: skip


def family(spec: str) -> Topology:
    """The topology of a formula "kind:SIZExSIZE,bw=GB/s,alpha=µs". Raises InputError.

    bw (default 50 GB/s) and alpha (default 0.7 µs, then marked assumed) hold for every link, also each hop
    through a switch.
    """
    head, *options = spec.split(",")
    kind, _, sizes = head.partition(":")
    if kind not in FAMILIES:
        raise InputError(
            f"topology {spec[:80]!r}: no family {kind[:40]!r}; families are {', '.join(FAMILIES)}"
        )
    known = FAMILIES[kind]
    if not re.fullmatch(r"[0-9]{1,7}(x[0-9]{1,7}){0,9}", sizes):
        raise InputError(
            f"topology {spec[:80]!r}: size {sizes[:40]!r} cannot be read; write it as in {known.example}"
        )
    dims = [int(size) for size in sizes.split("x")]
    if not known.sizes[0] <= len(dims) <= known.sizes[1] or min(dims) < 1:
        raise InputError(
            f"topology {spec[:80]!r}: size {sizes[:40]!r} does not fit; write it as in {known.example}"
        )
    if kind == "line" or kind == "ring":
        smallest = 2
        if dims[0] < smallest:
            raise InputError(
                f"topology {spec[:80]!r}: a {kind} has at least {smallest} ranks, such as {known.example}"
            )
    if known.links(dims) > 2 * MAX_LINKS or (kind != "fattree" and math.prod(dims) > MAX_RANKS):
        raise InputError(
            f"topology {spec[:80]!r}: too large; at most {MAX_RANKS} ranks and {MAX_LINKS} links"
        )
    gbs, alpha = _options(spec, options)
    shape = known.build(dims)
    links = 2 * len(shape.a)
    alpha_us = DEFAULT_ALPHA_US if alpha is None else alpha
    rate = DEFAULT_GBS if gbs is None else gbs
    assumed = (
        "bw and alpha given" if gbs is not None and alpha is not None else "default figures, nobody's machine"
    )
    return Topology(
        name=spec,
        nranks=shape.nranks,
        switches=shape.switches,
        link_src=np.concatenate([shape.a, shape.b]),
        link_dst=np.concatenate([shape.b, shape.a]),
        alpha_us=np.full(links, alpha_us),
        bandwidth_gbs=np.full(links, rate),
        limits=(),
        alpha_assumed=alpha is None,
        nodes=np.zeros(shape.nranks, dtype=np.int64) if shape.nodes is None else shape.nodes,
        summary=f"{shape.summary}, {rate:g} GB/s each way a link",
        source=f"formula {kind}; {assumed}",
    )


def _options(spec: str, options: Sequence[str]) -> tuple[float | None, float | None]:
    values: dict[str, float] = {}
    bounds = {"bw": (MIN_GBS, MAX_GBS, "GB/s"), "alpha": (0.0, MAX_ALPHA_US, "µs")}
    for option in options:
        key, _, text = option.partition("=")
        if key not in bounds or key in values:
            raise InputError(
                f"topology {spec[:80]!r}: option {option[:40]!r} is not known or given twice; "
                "options are bw=GB/s and alpha=µs, once each"
            )
        low, high, unit = bounds[key]
        try:
            value = float(text) if re.fullmatch(r"[0-9.eE+-]{1,30}", text) else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise InputError(
                f"topology {spec[:80]!r}: {key}={text[:40]!r} must be {low:g} to {high:g} {unit}"
            )
        values[key] = value
    return values.get("bw"), values.get("alpha")
