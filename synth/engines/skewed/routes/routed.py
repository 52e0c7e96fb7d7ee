"""Plans for groups of any network: blocks are cut into chunks, which take paths that share the load.

    planner = RoutedPlanner(routed_shape(load("torus:4x4")))
    plan = planner.plan(sizes)               # bytes from position to position, int64, shape (16, 16)

A pair of ranks has several paths, found once: the shortest ones, and those that begin with each link of the source and
end with each link of the goal. `routing` chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synth.bounds.borders import border_times
from synth.engines.skewed.plan import SizesPlanner
from synth.engines.skewed.routes.routing import FAR, plan_routed
from synth.model.collective import Floats, Ints
from synth.model.deadline import check_deadline
from synth.model.problem import least_latency
from topologies.arrays import pointers
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.topology import Topology

MOST_RANKS = 128  # Distances take k³ steps, some twenty times a plan.
_MOST_PATHS = 24  # Of a pair of ranks.
_TREES = 4  # Choices among equally short paths.
_JITTER = 0.01  # How far prices differ by chance, so that equally short paths are all found.
_SEED = 1
_PARTS_OF_ONE = 2.0**44  # Parts of resources are multiples of 2⁻⁴⁴: sums are exact, and what is idle has all free.


@dataclass(frozen=True, eq=False)
class RoutedShape:
    """A process group of k ranks in N nodes, with paths between all of them.

    Attributes:
        net: The network of the group.
        node_of: Node of each position, int64, shape (k,).
        node_us: Time of a byte out of each node and into each node, in µs, float64, shape (2 · N,); 0 for one node.
        node_alpha_us: Least α of a link out of each node and into each node, shape (2 · N,).
        path_ptr: First path of each pair of positions i · k + j, int64, shape (k · k + 1,); the shortest one is first.
        path_hops: Number of links of each path, int64, shape (paths,).
        path_link: Links of each path, int64, shape (paths · width,).
        width: Most links of a path.
        unit_bytes: Bytes of a unit of size. All times of a byte are times of a unit, and plans cut blocks at units.
    """

    net: Network
    node_of: Ints
    node_us: Floats
    node_alpha_us: Floats
    path_ptr: Ints
    path_hops: Ints
    path_link: Ints
    width: int
    unit_bytes: float = 1.0


def routed_shape(topology: Topology, group: Sequence[int] | None = None, net: Network | None = None) -> RoutedShape:
    """Return the paths of a process group.

    Args:
        topology: The topology, whose costs count where they are on.
        group: Rank of the topology at each position; None for all ranks.
        net: The network of exactly these ranks, if the caller has it.

    Raises:
        InputError: There are fewer than two ranks or too many, or some rank does not reach another one.
        TimeUp: The time of the work around is over.
    """
    net = network(topology, range(topology.nranks) if group is None else group) if net is None else net
    k = net.nranks
    if not 2 <= k <= MOST_RANKS:
        raise InputError(
            f"group: has {k} ranks; on networks that are no nodes of linked ranks it must be 2 to {MOST_RANKS}"
        )
    paths, ptr = list[tuple[int, ...]](), [0]
    for pair in _Paths(topology.name, net).pairs():
        paths += pair
        ptr.append(len(paths))
    hops = np.array([len(path) for path in paths], dtype=np.int64)
    width = int(hops.max())
    path_link = np.zeros((len(paths), width), dtype=np.int64)
    path_link[np.arange(width) < hops[:, None]] = np.concatenate([np.array(path) for path in paths])
    node_of = np.unique(topology.nodes[net.ranks], return_inverse=True)[1].reshape(-1).astype(np.int64)
    n = int(node_of.max()) + 1
    nodes = border_times(net, node_of, n) if n > 1 else ((np.zeros(1), np.zeros(1)),) * 2
    node_us, node_alpha_us = (np.concatenate(columns) for columns in zip(*nodes, strict=True))
    return RoutedShape(net, node_of, node_us, node_alpha_us, np.array(ptr), hops, path_link.ravel(), width)


def in_units(shape: RoutedShape, unit_bytes: float) -> RoutedShape:
    """Return the shape for sizes that count units of so many bytes, where `shape` is for bytes."""
    return replace(shape, unit_bytes=unit_bytes, node_us=shape.node_us * unit_bytes)


class _Paths:
    """The paths of all pairs of ranks of a network."""

    def __init__(self, name: str, net: Network) -> None:
        self._name, self._net = name, net
        self._price = net.bandwidth_gbs.max(initial=1.0) / net.bandwidth_gbs + 1e-3 * net.alpha_us
        draw = np.random.default_rng(_SEED)
        factors = [np.ones(net.nlinks), *(1 + _JITTER * draw.random((_TREES - 1, net.nlinks)))]
        trees = [self._tree(self._price * factor) for factor in factors]
        self._length, self._next = trees[0][0], [tree for _, tree in trees]

    def _tree(self, price: Floats) -> tuple[Floats, Ints]:
        """Return the length of a shortest path from each rank to each rank, and its first link; shapes (k, k)."""
        net, k = self._net, self._net.nranks
        length, first = np.full((k, k), FAR), np.full((k, k), -1, dtype=np.int64)
        np.fill_diagonal(length, 0.0)
        order = np.argsort(-price, kind="stable")  # The cheapest link of two ranks is written last.
        length[net.src[order], net.dst[order]] = price[order]
        first[net.src[order], net.dst[order]] = order
        for via in range(k):
            through = length[:, via : via + 1] + length[via]
            shorter = through < length
            length = np.where(shorter, through, length)
            first = np.where(shorter, first[:, via : via + 1], first)
        if (length >= FAR).any():
            i, j = np.argwhere(length >= FAR)[0]
            raise InputError(f"{self._name}: rank {net.ranks[i]} does not reach rank {net.ranks[j]} inside the group")
        return length, first

    def pairs(self) -> Iterator[list[tuple[int, ...]]]:
        """Yield the paths of each pair i · k + j as their links, the shortest one first; none from i to i."""
        net, k = self._net, self._net.nranks
        out, into = ([np.flatnonzero(ends == rank) for rank in range(k)] for ends in (net.src, net.dst))
        for i in range(k):
            check_deadline()
            for j in range(k):
                yield [] if i == j else self._between(i, j, out[i], into[j])

    def _between(self, i: int, j: int, out: Ints, into: Ints) -> list[tuple[int, ...]]:
        """Return the paths from i to j: shortest ones, then those over each link out of i and each link into j."""
        net, price = self._net, self._price
        paths = dict.fromkeys(self._walk(i, j, tree) for tree in range(_TREES))
        length = price[out, None] + self._length[np.ix_(net.dst[out], net.src[into])] + price[into]
        order = np.argsort(length, axis=None, kind="stable")[: 2 * _MOST_PATHS]
        for tree in range(_TREES):
            for a, b in zip(*(column.tolist() for column in np.unravel_index(order, length.shape)), strict=True):
                first, last = int(out[a]), int(into[b])
                if len(paths) >= _MOST_PATHS:
                    return list(paths)
                if net.dst[first] == j or net.src[last] == i:
                    path: tuple[int, ...] = (first,) if net.dst[first] == j else (last,)
                else:
                    path = (first, *self._walk(int(net.dst[first]), int(net.src[last]), tree), last)
                if len(set(net.dst[list(path)].tolist()) | {i}) == len(path) + 1:
                    paths[path] = None
        return list(paths)

    def _walk(self, i: int, j: int, tree: int) -> tuple[int, ...]:
        """Return the links of a shortest path from i to j."""
        links = []
        while i != j:
            links.append(int(self._next[tree][i, j]))
            i = int(self._net.dst[links[-1]])
        return tuple(links)


class RoutedPlanner(SizesPlanner):
    """A planner of all-to-alls for one process group of any network.

    A block that is sent straight takes a shortest path as a whole.

    Attributes:
        shape: The paths of the group.
    """

    def __init__(self, shape: RoutedShape, interpreted: bool = False) -> None:
        """Prepare the columns and the workspace.

        Args:
            shape: The paths of the group.
            interpreted: Whether Python runs the loops; otherwise they are compiled at the first plan.
        """
        super().__init__(shape.net, interpreted)
        self.shape = shape
        self._fixed = list(fixed_columns(shape).values())
        link_us = 1e-3 / shape.net.bandwidth_gbs * shape.unit_bytes
        self._numbers = (
            *(shape.net.nranks, len(shape.node_us) // 2, shape.net.nlinks, shape.width, shape.net.start_us),
            *(float(shape.net.alpha_us.min()), float(link_us.min())),
        )
        self._make_room(2 * shape.net.nranks**2 + 64 * shape.net.nlinks)

    def bound(self, sizes: ArrayLike) -> float:
        """Return a time in µs that no schedule of these sizes can beat, as `Plan.bound_us`.

        It is the largest of the terms that `Planner.bound` explains, and of `routing.volume_bound_us` for some prices,
        after which the last byte still needs the least α.
        """
        return self.plan(sizes).bound_us

    def _make_room(self, room: int) -> None:
        """Allocate the columns for plans of up to `room` chunks."""
        net, k, width = self.net, self.net.nranks, self.shape.width
        cells, links = k * k, net.nlinks
        sends = max(room, cells) * min(width, 8)
        ints, reals = np.int64, np.float64
        # The order must be that of the parameters of `plan_routed`, which takes these after those of `fixed_columns`.
        lengths = {
            "to_node": (k * len(self.shape.node_us) // 2, ints), "pair_bytes": (len(self.shape.node_us) ** 2 // 4,
            ints), "rank_bytes": (2 * k, ints), "load": (net.nresources, reals), "cost": (net.nresources, reals),
            "price": (links, reals), "dist": (cells, reals), "used": (net.nresources, reals), "done": (max(room, cells),
            ints), "routes": (max(room, cells), ints), "queue_ptr": (links + 1, ints), "queue_key": (sends, reals),
            "queue_chunk": (sends, ints), "queue_count": (links, ints), "is_busy": (links, ints), "touched": (links,
            ints), "is_touched": (links, ints), "event_us": (max(room, cells) + links, reals), "event": (max(room,
            cells) + links, ints),
        }  # fmt: skip
        work = [np.zeros(length, dtype=kind) for length, kind in lengths.values()]
        straight_sends = cells * width
        outputs = [
            [*(np.zeros(count, dtype=ints) for count in (chunks,) * 4 + (rows,) * 3), np.zeros(rows)]
            for chunks, rows in ((room, sends), (cells, straight_sends))
        ]
        if straight_sends > sends:
            for name in ("queue_key", "queue_chunk"):
                place = list(lengths).index(name)
                work[place] = np.zeros(straight_sends, dtype=lengths[name][1])
        self._room, self._outputs = room, outputs
        self._state = [np.zeros(2, dtype=ints), np.zeros(2, dtype=ints), np.zeros(2)]
        columns: list[Any] = [*self._fixed, *work, *outputs[0], *outputs[1], *self._state]
        self._arguments: tuple[Any, ...] = tuple(
            memoryview(column) if self._run.interpreted else column for column in columns
        )

    def _call(self, column: Any, only_straight: bool) -> int:
        return int(self._run(plan_routed, column, *self._numbers, only_straight, *self._arguments))


def fixed_columns(shape: RoutedShape) -> dict[str, NDArray[Any]]:
    """Return the columns of a shape and of its links by name, in the order in which `plan_routed` takes them.

    Those that `RoutedShape` and `Network` do not explain:

    - rank_us, rank_alpha_us: As `node_us` and `node_alpha_us`, but for ranks, shape (2 · k,).
    - least_us: Least sum of α on a path from each position to each position, in µs, shape (k · k,).
    - link_us: Time of a unit on each link in µs, shape (links,).
    - uses, users: Resources by link from `uses_ptr` on, and links by resource from `users_ptr` on.
    - part: Part of the resource's capacity that a send takes, for each entry of `uses`.
    - busy_us: Time in µs of the whole resource that a unit takes, for each entry of `uses`.
    """
    net, k, unit = shape.net, shape.net.nranks, shape.unit_bytes
    outward, inward = border_times(net, np.arange(k), k)
    link_us = 1e-3 / net.bandwidth_gbs * unit
    part = np.minimum(net.bandwidth_gbs[net.link_of_use] / net.capacity_gbs[net.uses_idx], 1.0)
    # They are rounded down, so that as many links as share a resource evenly can use it together.
    part = np.maximum(np.floor(part * _PARTS_OF_ONE), 1.0) / _PARTS_OF_ONE
    columns = {
        "node_of": shape.node_of,
        "rank_us": np.concatenate([outward[0], inward[0]]) * unit,
        "rank_alpha_us": np.concatenate([outward[1], inward[1]]),
        "node_us": shape.node_us,
        "node_alpha_us": shape.node_alpha_us,
        "least_us": least_latency(k, net.src, net.dst, net.alpha_us).ravel(),
        "src": net.src,
        "dst": net.dst,
        "alpha": net.alpha_us,
        "link_us": link_us,
        "gap": net.gap_us if len(net.gap_us) else np.zeros(net.nlinks),
        "uses_ptr": net.uses_ptr,
        "uses": net.uses_idx,
        "part": part,
        "busy_us": part * link_us[net.link_of_use],
        "users_ptr": pointers(np.bincount(net.uses_idx, minlength=net.nresources)),
        "users": net.link_of_use[np.argsort(net.uses_idx, kind="stable")],
        "path_ptr": shape.path_ptr,
        "path_hops": shape.path_hops,
        "path_link": shape.path_link,
    }
    return {name: np.array(x, dtype=np.float64 if x.dtype.kind == "f" else np.int64) for name, x in columns.items()}
