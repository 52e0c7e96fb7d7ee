"""Placements of axes on a hierarchy, ranked by the time of a workload's step under each.

Every parallelism matrix is timed by the estimate, in the best order of the axes within a level where that order
matters. The best placements and the default order are then timed by schedules that are searched for all groups at the
same time (`synth.concurrent`) and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, permutations, product

import numpy as np

from synth.concurrent.result import ConcurrentResult
from synth.model.collective import Ints
from synth.parallelism.axes import Axis, Matrix, matrices, mesh, process_groups
from synth.parallelism.estimate import Estimator
from synth.parallelism.placement_bound import step_bound
from synth.parallelism.placement_search import Searches
from synth.parallelism.step_time import StepTime, step_time
from synth.parallelism.workload import Workload
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy
from topologies.network import Network
from topologies.symmetry.automorphism import automorphisms
from topologies.symmetry.refinement import Structure, find_link_image
from topologies.topology import Topology

MOST_MATRICES = 20_000
MOST_ORDERS = 24  # Orders of the axes within levels, for one matrix.
MOST_EXHAUSTIVE = 9  # Ranks; they have 9! permutations.


@dataclass(frozen=True, eq=False)
class Placement:
    """An assignment of ranks to the coordinates on the axes.

    Attributes:
        matrix: The parallelism matrix; None for an order that has none.
        mesh: The rank at each coordinate: int64, shaped as the axes' sizes.
        step: Times of the step.
    """

    matrix: Matrix | None
    mesh: Ints
    step: StepTime

    @property
    def order(self) -> list[int]:
        """Return the rank at each position of the mesh, the last axis fastest."""
        return [int(rank) for rank in self.mesh.reshape(-1)]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The placements of a workload's axes, ranked.

    Attributes:
        topology: The topology.
        hierarchy: Its levels.
        axes: The axes.
        workload: The calls of the step.
        placements: All placements, the fastest first; of equal ones the default order first.
        default: Position among them of the default order (the ranks in their own order, the last axis fastest), or of
            a placement that a symmetry of the network makes equal to it.
        bound_us: Lower bound on the time of a step under any placement, in µs.
        plans: Searched results, by the call's position in the workload and the bytes of the placement's mesh; only
            for placements whose `step.searched` is True.
        stop_reason: "", or "interrupted" (Ctrl-C): then fewer placements were searched.
    """

    topology: Topology
    hierarchy: Hierarchy
    axes: tuple[Axis, ...]
    workload: Workload
    placements: tuple[Placement, ...]
    default: int
    bound_us: float
    plans: dict[tuple[int, bytes], ConcurrentResult] = field(default_factory=dict)
    stop_reason: str = ""

    @cached_property
    def best(self) -> Placement:
        """Return the fastest placement."""
        return self.placements[0]


def find_interchangeable_levels(net: Network, hierarchy: Hierarchy) -> list[list[int]]:
    """Find sets of levels any two of which a symmetry of the network exchanges, like the dimensions of a cube.

    Args:
        net: Network of all ranks in their own order.
        hierarchy: Levels of the network.

    Returns:
        Disjoint sets of at least two levels (0: the outermost), each ascending; levels of one part are in none.
    """
    sizes = hierarchy.sizes
    structure = Structure(net)
    grid = hierarchy.ranks.reshape(sizes)
    sets: list[list[int]] = []
    for level, size in enumerate(sizes):
        for level_set in sets:
            if sizes[level_set[0]] == size and size > 1:
                exchanged = np.empty(net.nranks, dtype=np.int64)
                exchanged[grid.reshape(-1)] = np.swapaxes(grid, level_set[0], level).reshape(-1)
                if find_link_image(structure, exchanged) is not None:
                    level_set.append(level)
                    break
        else:
            sets.append([level])
    return [levels for levels in sets if len(levels) > 1]


def rank_placements(
    topology: Topology,
    hierarchy: Hierarchy,
    axes: Sequence[Axis],
    workload: Workload,
    *,
    budget: float = 20.0,
    top: int = 8,
    exhaustive: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Ranking:
    """Rank all placements by parallelism matrices (symmetric ones once) and the default order, the fastest first.

    Args:
        topology: The topology.
        hierarchy: Its levels.
        axes: Axes to place.
        workload: Calls of the step.
        budget: Seconds for the searches, shared equally. A placement keeps its estimate if the time is over, except the
            best one and the default order of up to `MOST_ALWAYS` ranks.
        top: Number of placements, the best by the estimate, that get searched schedules besides the default order;
            0: none does.
        exhaustive: Also rank orders that have no matrix: all permutations of the ranks, symmetric ones once.
        seed: Seed of the searches.
        progress: Function that gets a text before each search.

    Raises:
        InputError: There are too many matrices, or too many ranks for `exhaustive`, or a call cannot be searched.
        NoRoute: Ranks cannot reach each other.
        KeyboardInterrupt: Ctrl-C came outside of a search, or before it had an answer; otherwise see `stop_reason`.
    """
    estimator = Estimator(topology, hierarchy)
    placements, default = _candidates(estimator, axes, workload, exhaustive)
    estimates = [_rounded(p.step.time_us) for p in placements]
    order = sorted(range(len(placements)), key=lambda i: (estimates[i], placements[i].matrix is None, i))
    # The default order comes second, so that a short search can compare the best one with it.
    chosen = list(dict.fromkeys([*order[: min(top, 1)], default, *order[:top]])) if top else []
    searches = Searches(estimator, workload, budget, seed)
    errors = []
    for i, step in zip(chosen, searches.run([placements[i].mesh for i in chosen], progress), strict=True):
        if step is not None:
            errors.append(step.time_us / placements[i].step.time_us)
            placements[i] = replace(placements[i], step=step)
    # Estimates have similar errors: scaled by the median error, they compare with the searched times.
    error = float(np.median(errors)) if errors else 1.0
    placements = [p if p.step.searched else replace(p, step=p.step.scaled(error)) for p in placements]
    scores = [_rounded(p.step.time_us) for p in placements]
    order.sort(key=lambda i: (scores[i], i != default))
    return Ranking(
        topology=topology, hierarchy=hierarchy, axes=tuple(axes), workload=workload,
        placements=tuple(placements[i] for i in order), default=order.index(default),
        bound_us=step_bound(estimator.net, hierarchy, axes, workload), plans=searches.plans,
        stop_reason="interrupted" if searches.interrupted else "",
    )  # fmt: skip


def _candidates(
    estimator: Estimator, axes: Sequence[Axis], workload: Workload, exhaustive: bool
) -> tuple[list[Placement], int]:
    """Return all placements with estimated times, and the position of the default order or its image among them.

    There is one placement a matrix, with the fastest order of the axes, then with `exhaustive` the orders without a
    matrix. The default order comes last where no other placement is equal to it.

    Raises:
        InputError: There are too many matrices, or too many ranks for `exhaustive`.
        NoRoute: Ranks cannot reach each other.
    """
    net, hierarchy = estimator.net, estimator.hierarchy
    rigid = find_rigid_levels(net, hierarchy)
    placements = [
        min(
            (
                Placement(matrix, ranks, _estimated(estimator, workload, ranks))
                for ranks in _meshes(hierarchy, matrix, rigid)
            ),
            key=lambda p: _rounded(p.step.time_us),
        )
        for matrix in _matrices(net, hierarchy, axes)
    ]
    default_mesh = np.arange(net.nranks).reshape([axis.size for axis in axes])
    if exhaustive:
        orders = all_orders(net, default_mesh.shape, placements)
        placements += [Placement(None, ranks, _estimated(estimator, workload, ranks)) for ranks in orders]
    default = next((p for p in placements if np.array_equal(p.mesh, default_mesh)), None) or _like_default(
        placements, default_mesh, net
    )
    if default is None:
        default = Placement(None, default_mesh, _estimated(estimator, workload, default_mesh))
        placements.append(default)
    position = next(i for i, p in enumerate(placements) if p is default)
    return placements, position


def _rounded(time_us: float) -> float:
    """Return a time rounded to six digits, so that sums of the same terms in another order are equal."""
    return float(f"{time_us:.6g}")


def find_rigid_levels(net: Network, hierarchy: Hierarchy) -> list[int]:
    """Find levels whose parts the network's symmetries do not permute freely, as in a ring.

    In these levels the order of the axes matters.

    Args:
        net: Network of all ranks in their own order.
        hierarchy: Levels of the network.

    Returns:
        The levels (0: the outermost), ascending; a level of one part is never among them.
    """
    structure = Structure(net)
    grid = hierarchy.ranks.reshape(hierarchy.sizes)
    rigid = []
    for level, size in enumerate(hierarchy.sizes):
        # An exchange and a rotation generate all permutations of the parts.
        for permutation in ([1, 0, *range(2, size)], [*range(1, size), 0]) if size > 1 else ():
            image = np.empty(net.nranks, dtype=np.int64)
            image[grid.reshape(-1)] = np.take(grid, permutation, axis=level).reshape(-1)
            if find_link_image(structure, image) is None:
                rigid.append(level)
                break
    return rigid


def _meshes(hierarchy: Hierarchy, matrix: Matrix, rigid: Sequence[int]) -> Iterator[Ints]:
    """Yield the mesh with the axes in their own order in every level, then with other orders in rigid levels.

    At most `MOST_ORDERS` meshes are yielded.
    """
    naxes, nlevels = len(matrix), len(hierarchy.levels)
    choices = []
    for level in range(nlevels):
        split_axes = [axis for axis in range(naxes) if matrix[axis][level] > 1]
        unsplit_axes = [axis for axis in range(naxes) if matrix[axis][level] == 1]
        free = level in rigid and len(split_axes) > 1
        choices.append(
            [[*order, *unsplit_axes] for order in permutations(split_axes)] if free else [list(range(naxes))]
        )
    for orders in islice(product(*choices), MOST_ORDERS):
        yield mesh(hierarchy, matrix, orders)


def _matrices(net: Network, hierarchy: Hierarchy, axes: Sequence[Axis]) -> Iterator[Matrix]:
    """Yield the parallelism matrices without symmetric ones; raise InputError if there are too many."""
    for count, matrix in enumerate(matrices(axes, hierarchy, find_interchangeable_levels(net, hierarchy))):
        if count == MOST_MATRICES:
            raise InputError(
                f"axes: more than {MOST_MATRICES} parallelism matrices on {hierarchy}; give fewer levels with --levels"
            )
        yield matrix


def _like_default(placements: Sequence[Placement], default_mesh: Ints, net: Network) -> Placement | None:
    """Return a placement that is the image of the default order under a symmetry of the network, or None.

    Only the first 200 symmetries, or those that take 0.2 seconds, are tried.
    """
    keys = {placement_key(p.mesh): p for p in placements}
    for image in automorphisms(net, [], limit=200, budget_s=0.2):
        placement = keys.get(placement_key(image[default_mesh]))
        if placement is not None:
            return placement
    return None


def placement_key(ranks: Ints) -> bytes:
    """Return a key that is equal for meshes of one shape whose groups over every axis have the same ranks.

    The order of an axis's coordinates does not count.
    """
    for axis in range(ranks.ndim):
        # The smallest rank of every slice orders the slices.
        first = ranks.min(axis=tuple(a for a in range(ranks.ndim) if a != axis)) if ranks.ndim > 1 else ranks
        ranks = np.take(ranks, np.argsort(first), axis=axis)
    return np.ascontiguousarray(ranks).tobytes()


def all_orders(net: Network, shape: tuple[int, ...], placements: Sequence[Placement]) -> Iterator[Ints]:
    """Yield meshes for every assignment of all ranks to the axes' coordinates, shaped as `shape`.

    Assignments that a symmetry of the network exchanges, or that only number an axis's coordinates differently, are
    yielded once.

    Args:
        net: Network of all ranks in their own order.
        shape: Sizes of the axes; their product is the number of ranks.
        placements: Placements to leave out, with all their images under symmetries.

    Raises:
        InputError: There are more than `MOST_EXHAUSTIVE` ranks.
    """
    n = net.nranks
    if n > MOST_EXHAUSTIVE:
        raise InputError(f"exhaustive: {n} ranks have too many orders; it must be at most {MOST_EXHAUSTIVE} ranks")
    images = automorphisms(net, [], limit=2000, budget_s=1.0)
    known_keys = {placement_key(image[p.mesh]) for p in placements for image in images}
    lines = [np.arange(n).reshape(shape)[tuple(slice(None) if a == b else 0 for b in range(len(shape)))]
             for a in range(len(shape))]  # fmt: skip
    for order in permutations(range(1, n)):
        flat = np.array((0, *order))
        # Orders that only number an axis's coordinates differently are equal: keep the ascending one.
        if any((np.diff(flat[line]) < 0).any() for line in lines):
            continue
        ranks = flat.reshape(shape)
        if placement_key(ranks) not in known_keys:
            known_keys.update(placement_key(image[ranks]) for image in images)
            yield ranks


def _estimated(estimator: Estimator, workload: Workload, ranks: Ints) -> StepTime:
    """Estimate the step's time under a mesh."""
    times = [
        estimator.estimate(call.collective, process_groups(ranks, call.over), call.size_bytes)
        for call in workload.calls
    ]
    return step_time(workload, times, estimator)
