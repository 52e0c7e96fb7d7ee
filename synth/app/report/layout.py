"""Places of a network's vertices on a page: grids as grids, trees of switches in tiers, all others on a circle."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from synth.app.report.shares import pack_table, round_all, round_value
from synth.model.requirements import sum_by
from topologies.arrays import Bools, Floats, Ints

MOST_EDGES = 10_000  # edges of a network whose links are drawn
MOST_VERTICES = 20_000  # vertices of a network that is drawn

_MOST_ON_CIRCLE = 128  # ranks on a circle; more are placed in a rectangle
_MOST_BENT = 64  # ranks of a mesh or hypercube whose long links are drawn whole, as arcs
_PANEL_GAP = 1.6  # between the planes of a grid of three dimensions, in distances of neighbours


@dataclass(frozen=True, eq=False)
class DrawnPlaces:
    """Places in units of the distance of neighbours; y grows downwards.

    Attributes:
        x: Horizontal place of ranks, in the order asked for, then of switches, float, shape (vertices,).
        y: Vertical place, as `x`.
        spacing: Approximate distance of neighbours.
        stub: Each link that is cut short because it would cross other links, and the direction in which it leaves,
            shape (links, 3).
    """

    x: Floats
    y: Floats
    spacing: float = 1.0
    stub: Floats = field(default_factory=lambda: np.zeros((0, 3)))


def place_vertices(name: str, total: int, ranks: Sequence[int], nodes: Ints, nswitches: int, ends: Ints) -> DrawnPlaces:
    """Return the places of some ranks of a topology, followed by those of switches.

    Grids of a family's name are placed as grids, trees of switches in tiers. All others are on a circle, or on a circle
    for each chassis, or in a rectangle without their links if there are over 128 ranks and no switch.

    Args:
        name: Name of the topology; the name of a grid family states its dimensions.
        total: Number of ranks of the topology.
        ranks: Topology rank of each vertex.
        nodes: Chassis of each of these ranks, shape (ranks,).
        nswitches: Number of switches; they are the vertices after the ranks.
        ends: Vertices that physical links join, shape (edges, 2).
    """
    n = len(ranks)
    if nswitches:
        level = _levels(n, nswitches, ends)
        if int(level.max()) >= 2 or len(np.unique(nodes)) > 1:
            return _tiers(n, nodes, level, ends)
        return _circle(n, nswitches, ends)
    dims = _dimensions(name, total)
    if dims is not None and n:
        # Whole arcs around the ends of a torus would cross all others.
        bends = len(ranks) <= _MOST_BENT and len(dims) <= 2 and not name.startswith("torus:")
        return _grid(dims, np.asarray(ranks, dtype=np.int64), ends, bends)
    if n > _MOST_ON_CIRCLE:
        y, x = np.divmod(np.arange(n), math.ceil(math.sqrt(n * 1.5)))
        return DrawnPlaces(x.astype(np.float64), y.astype(np.float64))
    return _circle(n, 0, ends) if len(np.unique(nodes)) < 2 else _circles(nodes)


@dataclass(frozen=True, eq=False)
class EdgeFigures:
    """The figures of a drawn network's edges.

    Attributes:
        load: Share of the time in which each edge is in use, shape (edges,).
        load_over_time: The same in each piece of time, shape (edges, pieces of time), with or without edges that are
            not drawn.
        gbs: GB/s of each edge, shape (edges,), or empty where not known.
        moved: Number of chunks over each edge, shape (edges,), or None.
    """

    load: Floats
    load_over_time: Floats
    gbs: Floats
    moved: Floats | None = None


def network_view(
    at: DrawnPlaces,
    ends: Ints,
    nranks: int,
    members: int,
    names: list[str],
    edges: EdgeFigures,
    limits: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return the page's data about the network.

    Over 20 000 vertices are not drawn, and their names and places are []. Then, and if there are over 10 000 edges, no
    edge is listed; busiest, mean and spread count all edges in any case.

    Args:
        at: Places of the vertices.
        ends: Vertices of the edges, shape (edges, 2).
        nranks: Number of ranks.
        members: Number of ranks of the group, which come first.
        names: Names of the vertices.
        edges: Figures of the edges.
        limits: Name, GB/s and load of each limit.

    Returns:
        A dictionary: n, members, names, x, y, spacing and stub describe the vertices; edges is the number of edges; u,
        v, gbs, moved (if known) and load are lists over the drawn edges; busiest and mean are of all loads; spread
        counts them in 20 bins from 0 to 1; now is the packed table of loads over time (see `pack_table`); limits is a
        list.
    """
    has_places = len(at.x) <= MOST_VERTICES
    drawn, load = drawn_edges(len(at.x), len(ends)), edges.load
    view: dict[str, Any] = {
        "n": nranks,
        "members": members,
        "names": names if has_places else [],
        "x": round_all(at.x) if has_places else [],
        "y": round_all(at.y) if has_places else [],
        "spacing": round_value(at.spacing),
        "stub": [[int(row[0]), *round_all(row[1:])] for row in at.stub] if drawn else [],
        "edges": len(ends),
        "u": ends[:drawn, 0].tolist(),
        "v": ends[:drawn, 1].tolist(),
        "gbs": round_all(edges.gbs[:drawn]),
    }
    if edges.moved is not None:
        view["moved"] = edges.moved[:drawn].astype(int).tolist()
    return view | {
        "load": round_all(load[:drawn]),
        "busiest": round_value(float(load.max(initial=0.0))),
        "mean": round_value(float(load.mean())) if len(ends) else 0.0,
        "spread": np.histogram(np.clip(load, 0, 1), bins=20, range=(0, 1))[0].tolist(),
        "now": pack_table(edges.load_over_time[:drawn]),
        "limits": list(limits),
    }


def drawn_edges(nvertices: int, nedges: int) -> int:
    """Return how many of a network's edges are drawn: all, or 0 with over 20 000 vertices or 10 000 edges."""
    return nedges if nvertices <= MOST_VERTICES and nedges <= MOST_EDGES else 0


def _dimensions(name: str, total: int) -> tuple[int, ...] | None:
    """Return the extents of a mesh, torus or hypercube of this name, the last counting fastest; None for all others.

    A hypercube is drawn as a grid of two dimensions. None is also for a single dimension, and if the extents do not
    multiply to `total`.
    """
    words = re.match(r"(mesh|torus|hypercube):([0-9]{1,7}(?:x[0-9]{1,7})*)(?![0-9x])", name)
    if words is None:
        return None
    dims = tuple(int(n) for n in words[2].split("x"))
    if words[1] == "hypercube":
        if len(dims) > 1 or dims[0] > 20:
            return None
        dims = (1 << dims[0] // 2, 1 << (dims[0] + 1) // 2)
    return dims if math.prod(dims) == total and len(dims) > 1 else None


def _grid(dims: tuple[int, ...], ranks: Ints, ends: Ints, bends: bool) -> DrawnPlaces:
    """Return the places of a grid's ranks: planes of its last two dimensions next to each other in rows.

    Args:
        dims: Extents of the grid, the last counting fastest.
        ranks: Number of each vertex in the grid.
        ends: Vertices of the edges, shape (edges, 2).
        bends: Whether all links are drawn whole. Otherwise those around and between planes are cut short (`stub`).
    """
    height, width = dims[-2:]
    x = (ranks % width).astype(np.float64)
    y = (ranks // width % height).astype(np.float64)
    plane = ranks // (width * height)
    planes = math.prod(dims[:-2])
    least = math.ceil(math.sqrt(planes * height / width))
    # Rows of planes are full unless that makes the drawing too wide.
    across = next((n for n in range(least, 2 * least + 1) if planes % n == 0), math.ceil(least * 1.3))
    x += plane % across * (width - 1 + _PANEL_GAP)
    y += plane // across * (height - 1 + _PANEL_GAP)
    direction = np.zeros((len(ends), 2))
    if not bends:
        a, b = ends[:, 0], ends[:, 1]
        offset = np.column_stack([x[b] - x[a], y[b] - y[a]])
        length = np.hypot(offset[:, 0], offset[:, 1])
        same = plane[a] == plane[b]
        long = same & (length > 1.5)
        direction[long] = -offset[long] / length[long, None]
        direction[~same] = np.where((plane[a] < plane[b])[~same, None], [0.7, -0.7], [-0.7, 0.7])
    cut = np.flatnonzero(direction.any(axis=1))
    return DrawnPlaces(x, y, stub=np.column_stack([cut, direction[cut]]))


def _levels(n: int, nswitches: int, ends: Ints) -> Ints:
    """Return the number of links from every vertex to the nearest rank, int, shape (n + nswitches,); 0 for ranks.

    Vertices that no link connects to a rank count as 1.
    """
    shape = (n + nswitches, n + nswitches)
    graph = csr_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=shape)
    level = dijkstra(graph, directed=False, indices=np.arange(n), unweighted=True, min_only=True)
    return np.where(np.isinf(level), 1, level).astype(np.int64)


def _barycentres(x: Floats, vertices: Ints, below: Bools, ends: Ints) -> Floats:
    """Return the mean place of the neighbours of some vertices; the mean of all of `below` if one has no neighbour.

    Args:
        x: Place of every vertex.
        vertices: The vertices whose neighbours count.
        below: True for each vertex that counts as a neighbour.
        ends: Vertices of the edges, shape (edges, 2).
    """
    directed_ends = np.concatenate([ends, ends[:, ::-1]])
    a, b = directed_ends[below[directed_ends[:, 0]]].T
    total, count = sum_by(b, x[a], len(x)), np.bincount(b, minlength=len(x))
    return np.where(count > 0, total / np.maximum(count, 1), x[below].mean())[vertices]


def _circle(n: int, nswitches: int, ends: Ints) -> DrawnPlaces:
    """Return places with ranks on a circle, a little wider than high, and switches in it, near the ranks they serve."""
    radius = max(1.2, n / (2 * math.pi))
    angle = 2 * np.pi * np.arange(n) / max(n, 1)
    x = np.append(1.25 * radius * np.sin(angle), np.zeros(nswitches))
    y = np.append(-radius * np.cos(angle), np.zeros(nswitches))
    switches = np.arange(n, n + nswitches)
    below = np.arange(n + nswitches) < n
    x[n:] = _barycentres(x, switches, below, ends) * 0.6
    y[n:] = _barycentres(y, switches, below, ends) * 0.6
    # Without an offset, switches that serve the same ranks would cover each other.
    places = np.round(np.column_stack([x[n:], y[n:]]), 1)
    which = np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)
    for place in np.flatnonzero(np.bincount(which) > 1):
        same = switches[which == place]
        angle = 2 * np.pi * np.arange(len(same)) / len(same)
        x[same] += 0.45 * radius * np.cos(angle)
        y[same] += 0.45 * radius * np.sin(angle)
    return DrawnPlaces(x, y, min(1.0, 2 * math.pi * radius / max(n, 1)))


def _circles(nodes: Ints) -> DrawnPlaces:
    """Return places with a circle of ranks for each chassis, the circles in rows; `nodes` has each rank's chassis."""
    chassis = np.unique(nodes, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(chassis)
    radius = max(0.6, float(sizes.max()) / (2 * math.pi))
    row, column = np.divmod(np.arange(len(sizes)), math.ceil(math.sqrt(len(sizes))))
    place = np.array([int((chassis[:rank] == own).sum()) for rank, own in enumerate(chassis)])
    angle = 2 * np.pi * place / sizes[chassis]
    x = column[chassis] * (2 * radius + 1.5) + radius * np.sin(angle)
    y = row[chassis] * (2 * radius + 1.5) - radius * np.cos(angle)
    return DrawnPlaces(x, y, min(1.0, 2 * math.pi * radius / float(sizes.max())))


def _tiers(n: int, nodes: Ints, level: Ints, ends: Ints) -> DrawnPlaces:
    """Return places with ranks below, chassis by chassis, and switches above them by their distance from the ranks.

    Args:
        n: Number of ranks, which are the first vertices.
        nodes: Chassis of each rank, shape (n,).
        level: Number of links from each vertex to the nearest rank, shape (vertices,).
        ends: Vertices of the edges, shape (edges, 2).
    """
    x, y = np.zeros(len(level)), np.zeros(len(level))
    order = np.argsort(nodes, kind="stable")
    chassis = np.split(order, np.flatnonzero(np.diff(nodes[order])) + 1)
    deep = 1 if n <= 64 else math.ceil(math.sqrt(n) / 4)  # rows of ranks in a chassis
    at = 0.0
    for members in chassis:
        across = math.ceil(len(members) / deep)
        x[members] = at + np.arange(len(members)) % across
        y[members] = np.arange(len(members)) // across
        at += across + (0.8 if len(chassis) > 1 else 0.0)
    width = max(1.0, float(x[:n].max()))
    for tier in range(1, int(level.max()) + 1):
        members = np.flatnonzero(level == tier)
        if not len(members):
            continue
        centre = _barycentres(x, members, level == tier - 1, ends)
        ranked = np.argsort(centre, kind="stable")
        offset = np.arange(len(members)) * min(1.0, width / len(members))
        spread = np.empty(len(members))
        spread[ranked] = np.maximum.accumulate(centre[ranked] - offset) + offset
        x[members] = spread - (spread.mean() - centre.mean())
        y[members] = -max(1.4, width / 2 / int(level.max())) * tier
    return DrawnPlaces(x, y)
