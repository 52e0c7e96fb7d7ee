"""Where a page draws the vertices of a network: grids as grids, trees of switches in tiers, the rest on a circle."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from emit.report.shares import pack_table, round_all, round_value
from synth.model.requirements import sum_by
from topologies.arrays import Bools, Floats, Ints

MOST_EDGES = 10_000  # of a network whose links are drawn
MOST_VERTICES = 20_000  # of a network that is drawn

_MOST_ON_CIRCLE = 128  # ranks; more lie in a square
_MOST_BENT = 64  # ranks of a grid whose links round the ends are drawn whole, as arcs
_PANEL_GAP = 1.6  # between the planes of a grid of three dimensions, in distances of neighbours


@dataclass(frozen=True, eq=False)
class Places:
    """Places in units of the distance of neighbours; y grows downwards.

    x, y: shape (vertices,), float: ranks in the order asked for, then switches.  spacing: about the distance of
    neighbours. stub: shape (links, 3): each link that is cut short, since it would lie across others, and the direction
    in which it leaves.
    """

    x: Floats
    y: Floats
    spacing: float = 1.0
    stub: Floats = field(default_factory=lambda: np.zeros((0, 3)))


def place_vertices(name: str, total: int, ranks: Sequence[int], nodes: Ints, nswitches: int, ends: Ints) -> Places:
    """Places of some ranks of a topology, and of switches after them.

    name, total: the topology's (a grid family's name says its dimensions), and its number of ranks.  ranks, nodes: each
    vertex's topology rank and its chassis.  ends: shape (edges, 2): vertices that physical links join.
    """
    n = len(ranks)
    if nswitches:
        level = _levels(n, nswitches, ends)
        if int(level.max()) >= 2 or len(np.unique(nodes)) > 1:
            return _tiers(n, nodes, level, ends)
        return _circle(n, nswitches, ends)
    dims = _dimensions(name, total)
    if dims is not None and n:
        return _grid(dims, np.asarray(ranks, dtype=np.int64), ends)
    if n > _MOST_ON_CIRCLE:
        y, x = np.divmod(np.arange(n), math.ceil(math.sqrt(n * 1.5)))
        return Places(x.astype(np.float64), y.astype(np.float64))
    return _circle(n, 0, ends)


def network_view(
    at: Places,
    ends: Ints,
    nranks: int,
    members: int,
    names: list[str],
    load: Floats,
    now: Floats,
    *,
    gbs: Floats,
    moved: Floats | None = None,
    limits: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The network as a page holds it; what has too many vertices or links is not drawn, and its figures stand alone.

    ends: shape (edges, 2): vertices.  members: ranks of the group, the first of the `nranks`.  load: shape (edges,):
    the part of the time in which each is in use; now: shape (edges, pieces of time), perhaps without edges that are not
    drawn. gbs: shape (edges,), or empty where not known.  moved: chunks, where counted.  limits: name, gbs, load of
    each.
    """
    few = len(at.x) <= MOST_VERTICES
    drawn = drawn_edges(len(at.x), len(ends))
    view: dict[str, Any] = {
        "n": nranks,
        "members": members,
        "names": names if few else [],
        "x": round_all(at.x) if few else [],
        "y": round_all(at.y) if few else [],
        "spacing": round_value(at.spacing),
        "stub": [[int(row[0]), *round_all(row[1:])] for row in at.stub] if drawn else [],
        "edges": len(ends),
        "u": ends[:drawn, 0].tolist(),
        "v": ends[:drawn, 1].tolist(),
        "gbs": round_all(gbs[:drawn]),
    }
    if moved is not None:
        view["moved"] = moved[:drawn].astype(int).tolist()
    return view | {
        "load": round_all(load[:drawn]),
        "busiest": round_value(float(load.max(initial=0.0))),
        "mean": round_value(float(load.mean())) if len(ends) else 0.0,
        "spread": np.histogram(np.clip(load, 0, 1), bins=20, range=(0, 1))[0].tolist(),
        "now": pack_table(now[:drawn]),
        "limits": list(limits),
    }


def drawn_edges(nvertices: int, nedges: int) -> int:
    """How many of a network's links are drawn: all or none."""
    return nedges if nvertices <= MOST_VERTICES and nedges <= MOST_EDGES else 0


def _dimensions(name: str, total: int) -> tuple[int, ...] | None:
    """The extents of a mesh, torus or hypercube of this name, the last counting fastest; None for all others."""
    words = re.match(r"(mesh|torus|hypercube):([0-9]{1,7}(?:x[0-9]{1,7})*)(?![0-9x])", name)
    if words is None:
        return None
    dims = tuple(int(n) for n in words[2].split("x"))
    if words[1] == "hypercube":
        if len(dims) > 1 or dims[0] > 20:
            return None
        dims = (1 << dims[0] // 2, 1 << (dims[0] + 1) // 2)
    return dims if math.prod(dims) == total and len(dims) > 1 else None


def _grid(dims: tuple[int, ...], ranks: Ints, ends: Ints) -> Places:
    """Planes of the last two dimensions, side by side; the links round the ends and between planes cut short."""
    height, width = dims[-2:]
    x = (ranks % width).astype(np.float64)
    y = (ranks // width % height).astype(np.float64)
    plane = ranks // (width * height)
    planes = math.prod(dims[:-2])
    least = math.ceil(math.sqrt(planes * height / width))
    # full rows of planes where that does not make the drawing too wide
    across = next((n for n in range(least, 2 * least + 1) if planes % n == 0), math.ceil(least * 1.3))
    x += plane % across * (width - 1 + _PANEL_GAP)
    y += plane // across * (height - 1 + _PANEL_GAP)
    way = np.zeros((len(ends), 2))
    if len(ranks) > _MOST_BENT or len(dims) > 2:
        a, b = ends[:, 0], ends[:, 1]
        apart = np.column_stack([x[b] - x[a], y[b] - y[a]])
        length = np.hypot(apart[:, 0], apart[:, 1])
        same = plane[a] == plane[b]
        long = same & (length > 1.5)
        way[long] = -apart[long] / length[long, None]
        way[~same] = np.where((plane[a] < plane[b])[~same, None], [0.7, -0.7], [-0.7, 0.7])
    cut = np.flatnonzero(way.any(axis=1))
    return Places(x, y, stub=np.column_stack([cut, way[cut]]))


def _levels(n: int, nswitches: int, ends: Ints) -> Ints:
    """How many links every vertex is from the nearest rank; unreachable ones count as 1."""
    shape = (n + nswitches, n + nswitches)
    graph = csr_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=shape)
    level = dijkstra(graph, directed=False, indices=np.arange(n), unweighted=True, min_only=True)
    return np.where(np.isinf(level), 1, level).astype(np.int64)


def _barycentres(x: Floats, vertices: Ints, below: Bools, ends: Ints) -> Floats:
    """The mean place of each vertex's neighbours among `below` (flags)."""
    both = np.concatenate([ends, ends[:, ::-1]])
    a, b = both[below[both[:, 0]]].T
    total, count = sum_by(b, x[a], len(x)), np.bincount(b, minlength=len(x))
    return np.where(count > 0, total / np.maximum(count, 1), x[below].mean())[vertices]


def _circle(n: int, nswitches: int, ends: Ints) -> Places:
    """Ranks on a circle, a little wider than high, and switches within it, near those that they serve."""
    radius = max(1.2, n / (2 * math.pi))
    angle = 2 * np.pi * np.arange(n) / max(n, 1)
    x = np.append(1.25 * radius * np.sin(angle), np.zeros(nswitches))
    y = np.append(-radius * np.cos(angle), np.zeros(nswitches))
    every = np.arange(n, n + nswitches)
    below = np.arange(n + nswitches) < n
    x[n:] = _barycentres(x, every, below, ends) * 0.6
    y[n:] = _barycentres(y, every, below, ends) * 0.6
    # switches that serve the same ranks would lie on each other
    places = np.round(np.column_stack([x[n:], y[n:]]), 1)
    which = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)
    for place in np.flatnonzero(np.bincount(which) > 1):
        same = every[which == place]
        angle = 2 * np.pi * np.arange(len(same)) / len(same)
        x[same] += 0.45 * radius * np.cos(angle)
        y[same] += 0.45 * radius * np.sin(angle)
    return Places(x, y, min(1.0, 2 * math.pi * radius / max(n, 1)))


def _tiers(n: int, nodes: Ints, level: Ints, ends: Ints) -> Places:
    """Ranks below, chassis by chassis, switches above them by their distance from the ranks."""
    x, y = np.zeros(len(level)), np.zeros(len(level))
    order = np.argsort(nodes, kind="stable")
    chassis = np.split(order, np.flatnonzero(np.diff(nodes[order])) + 1)
    deep = 1 if n <= 64 else math.ceil(math.sqrt(n) / 4)  # rows of ranks in a chassis
    at = 0.0
    for mine in chassis:
        across = math.ceil(len(mine) / deep)
        x[mine] = at + np.arange(len(mine)) % across
        y[mine] = np.arange(len(mine)) // across
        at += across + (0.8 if len(chassis) > 1 else 0.0)
    width = max(1.0, float(x[:n].max()))
    for tier in range(1, int(level.max()) + 1):
        mine = np.flatnonzero(level == tier)
        if not len(mine):
            continue
        centre = _barycentres(x, mine, level == tier - 1, ends)
        ranked = np.argsort(centre, kind="stable")
        offset = np.arange(len(mine)) * min(1.0, width / len(mine))
        spread = np.empty(len(mine))
        spread[ranked] = np.maximum.accumulate(centre[ranked] - offset) + offset
        x[mine] = spread - (spread.mean() - centre.mean())
        y[mine] = -max(1.4, width / 2 / int(level.max())) * tier
    return Places(x, y)
