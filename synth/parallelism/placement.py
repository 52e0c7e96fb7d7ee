"""Placements of axes on a hierarchy, ranked by the time that a workload's step takes under each.

Every parallelism matrix is timed by the estimate, in the best order of the axes within a level where that matters; the
best ones, and the default order, then by schedules that are searched for all groups at once (`synth.concurrent`), which
are replayed.
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
MOST_ORDERS = 24  # of the axes within levels, for one matrix
MOST_EXHAUSTIVE = 9  # ranks; their permutations are 9!


@dataclass(frozen=True, eq=False)
class Placement:
    """Which rank has which coordinates on the axes.

    Attributes:
        matrix: the parallelism matrix; None for an order that has none.
        mesh: int64 of the axes' sizes: the rank at each coordinate.
        step: its times.
    """

    matrix: Matrix | None
    mesh: Ints
    step: StepTime

    @property
    def order(self) -> list[int]:
        """The rank of each position of the mesh, the last axis fastest."""
        return [int(rank) for rank in self.mesh.reshape(-1)]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The answer.

    Attributes:
        placements: best first.
        default: the place among them of the ranks in their own order, the last axis fastest.
        bound_us: no placement whatever has a faster step.
        plans: what was searched, by call (its place) and the placement's mesh as bytes.
        ended: "" or "interrupted" (Ctrl-C): then fewer placements were searched.
    """

    topology: Topology
    hierarchy: Hierarchy
    axes: tuple[Axis, ...]
    workload: Workload
    placements: tuple[Placement, ...]
    default: int
    bound_us: float
    plans: dict[tuple[int, bytes], ConcurrentResult] = field(default_factory=dict)
    ended: str = ""

    @cached_property
    def best(self) -> Placement:
        """The fastest."""
        return self.placements[0]


def find_interchangeable_levels(net: Network, hierarchy: Hierarchy) -> list[list[int]]:
    """Sets of levels any two of which a symmetry of the network exchanges, as it does the dimensions of a cube.

    net: of all ranks in their own order.
    """
    sizes = hierarchy.sizes
    structure = Structure(net)
    grid = hierarchy.ranks.reshape(sizes)
    sets: list[list[int]] = []
    for level, size in enumerate(sizes):
        for known in sets:
            if sizes[known[0]] == size and size > 1:
                exchanged = np.empty(net.nranks, dtype=np.int64)
                exchanged[grid.reshape(-1)] = np.swapaxes(grid, known[0], level).reshape(-1)
                if find_link_image(structure, exchanged) is not None:
                    known.append(level)
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
    """All placements by parallelism matrices (alike ones once) and the default order, best first.

    Args:
        budget: seconds for the searches, shared out evenly; a placement that there is no time
            for keeps its estimate, but not the best or the default order of up to `MOST_ALWAYS` ranks.
        top: so many of the best by the estimate, and the default order, get searched schedules; 0: none does.
        exhaustive: also orders that have no matrix, all permutations of the ranks, alike ones once.

    Raises:
        InputError: too many matrices, or ranks for `exhaustive`; ranks that cannot reach each other.
    """
    estimator = Estimator(topology, hierarchy)
    made, at = _candidates(estimator, axes, workload, exhaustive)
    estimates = [_rounded(p.step.time_us) for p in made]
    order = sorted(range(len(made)), key=lambda i: (estimates[i], made[i].matrix is None, i))
    # the default order second, so that there is something to compare with when time is short
    chosen = list(dict.fromkeys([*order[: min(top, 1)], at, *order[:top]])) if top else []
    searches = Searches(estimator, workload, budget, seed)
    errors = []
    for i, step in zip(chosen, searches.run([made[i].mesh for i in chosen], progress), strict=True):
        if step is not None:
            errors.append(step.time_us / made[i].step.time_us)
            made[i] = replace(made[i], step=step)
    # Estimates err alike: with the median error of those that were searched they can be compared with these.
    error = float(np.median(errors)) if errors else 1.0
    made = [p if p.step.searched else replace(p, step=p.step.scaled(error)) for p in made]
    score = [_rounded(p.step.time_us) for p in made]
    order.sort(key=lambda i: (score[i], i != at))
    return Ranking(
        topology=topology, hierarchy=hierarchy, axes=tuple(axes), workload=workload,
        placements=tuple(made[i] for i in order), default=order.index(at),
        bound_us=step_bound(estimator.net, hierarchy, axes, workload), plans=searches.plans,
        ended="interrupted" if searches.interrupted else "",
    )  # fmt: skip


def _candidates(
    estimator: Estimator, axes: Sequence[Axis], workload: Workload, exhaustive: bool
) -> tuple[list[Placement], int]:
    """All placements with estimated times, and the place of the default order among them."""
    net, hierarchy = estimator.net, estimator.hierarchy
    rigid = find_rigid_levels(net, hierarchy)
    made = [
        min(
            (Placement(m, ranks, _estimated(estimator, workload, ranks)) for ranks in _meshes(hierarchy, m, rigid)),
            key=lambda p: _rounded(p.step.time_us),
        )
        for m in _matrices(net, hierarchy, axes)
    ]
    own = np.arange(net.nranks).reshape([axis.size for axis in axes])
    if exhaustive:
        orders = all_orders(net, own.shape, made)
        made += [Placement(None, ranks, _estimated(estimator, workload, ranks)) for ranks in orders]
    default = next((p for p in made if np.array_equal(p.mesh, own)), None) or _like_default(made, own, net)
    if default is None:
        default = Placement(None, own, _estimated(estimator, workload, own))
        made.append(default)
    at = next(i for i, p in enumerate(made) if p is default)
    return made, at


def _rounded(time_us: float) -> float:
    """Sums in another order are one time."""
    return float(f"{time_us:.6g}")


def find_rigid_levels(net: Network, hierarchy: Hierarchy) -> list[int]:
    """Levels whose parts cannot be exchanged at will, as those of a ring: it matters there which axis counts slowest.

    net: of all ranks in their own order.
    """
    structure = Structure(net)
    grid = hierarchy.ranks.reshape(hierarchy.sizes)
    rigid = []
    for level, size in enumerate(hierarchy.sizes):
        # These two generate all permutations of the parts.
        for new in ([1, 0, *range(2, size)], [*range(1, size), 0]) if size > 1 else ():
            image = np.empty(net.nranks, dtype=np.int64)
            image[grid.reshape(-1)] = np.take(grid, new, axis=level).reshape(-1)
            if find_link_image(structure, image) is None:
                rigid.append(level)
                break
    return rigid


def _meshes(hierarchy: Hierarchy, matrix: Matrix, rigid: Sequence[int]) -> Iterator[Ints]:
    """The mesh with the axes in their own order in every level, then with others in rigid levels."""
    naxes, nlevels = len(matrix), len(hierarchy.levels)
    choices = []
    for level in range(nlevels):
        several = [axis for axis in range(naxes) if matrix[axis][level] > 1]
        rest = [axis for axis in range(naxes) if matrix[axis][level] == 1]
        free = level in rigid and len(several) > 1
        choices.append([[*some, *rest] for some in permutations(several)] if free else [list(range(naxes))])
    for orders in islice(product(*choices), MOST_ORDERS):
        yield mesh(hierarchy, matrix, orders)


def _matrices(net: Network, hierarchy: Hierarchy, axes: Sequence[Axis]) -> Iterator[Matrix]:
    for count, matrix in enumerate(matrices(axes, hierarchy, find_interchangeable_levels(net, hierarchy))):
        if count == MOST_MATRICES:
            raise InputError(
                f"axes: more than {MOST_MATRICES} parallelism matrices on {hierarchy}; give fewer levels with --levels"
            )
        yield matrix


def _like_default(made: Sequence[Placement], own: Ints, net: Network) -> Placement | None:
    """The placement that a symmetry of the network makes of the default order, if one was found."""
    keys = {placement_key(p.mesh): p for p in made}
    for image in automorphisms(net, [], limit=200, budget_s=0.2):
        found = keys.get(placement_key(image[own]))
        if found is not None:
            return found
    return None


def placement_key(ranks: Ints) -> bytes:
    """Equal for meshes whose groups are the same sets: coordinates of an axis in another order are one."""
    for axis in range(ranks.ndim):
        # the smallest rank of every slice orders the slices
        first = ranks.min(axis=tuple(a for a in range(ranks.ndim) if a != axis)) if ranks.ndim > 1 else ranks
        ranks = np.take(ranks, np.argsort(first), axis=axis)
    return np.ascontiguousarray(ranks).tobytes()


def all_orders(net: Network, shape: tuple[int, ...], known: Sequence[Placement]) -> Iterator[Ints]:
    """Every way to number the axes' coordinates on all ranks, those alike by a symmetry of the network once.

    known: placements that need not come again. Raises InputError for more than `MOST_EXHAUSTIVE` ranks.
    """
    n = net.nranks
    if n > MOST_EXHAUSTIVE:
        raise InputError(f"exhaustive: {n} ranks have too many orders; it must be at most {MOST_EXHAUSTIVE} ranks")
    images = automorphisms(net, [], limit=2000, budget_s=1.0)
    seen = {placement_key(image[p.mesh]) for p in known for image in images}
    lines = [np.arange(n).reshape(shape)[tuple(slice(None) if a == b else 0 for b in range(len(shape)))]
             for a in range(len(shape))]  # fmt: skip
    for rest in permutations(range(1, n)):
        flat = np.array((0, *rest))
        # one of each set of orders that number the coordinates of an axis differently
        if any((np.diff(flat[line]) < 0).any() for line in lines):
            continue
        ranks = flat.reshape(shape)
        if placement_key(ranks) not in seen:
            seen.update(placement_key(image[ranks]) for image in images)
            yield ranks


def _estimated(estimator: Estimator, workload: Workload, ranks: Ints) -> StepTime:
    times = [
        estimator.estimate(call.collective, process_groups(ranks, call.over), call.size_bytes)
        for call in workload.calls
    ]
    return step_time(workload, times, estimator)
