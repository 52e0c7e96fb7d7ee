"""The k-synchronous model as a set of boolean constraints (SCCL, section 3).

Copying problems are time-expanded and pruned by distance: a variable says that a chunk goes over a link in a step. It
exists only where the chunk can be at the link's source by then and can still get from its end to a rank that wants it.
Under a symmetry only one chunk of every orbit has variables; its translates load the links too.

A problem with sums counts as an all-reduce in few steps (for small messages): unlike in a reduce-scatter followed by an
all-gather, every rank may add and send in every step. Each rank holds of a chunk a set of contributions, each at most
once; complete sums are copied. One variable stands for each orbit under the symmetry.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

import numpy as np

from synth.bounds.relaxation import capacities
from synth.model.collective import Bools, Ints
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule, untimed
from synth.phases.prune import prune_copies, prune_sums
from synth.solvers.boolean_model import BooleanModel
from synth.symmetry.relabelling import Symmetry

_LARGEST_TERM = 64  # larger denominators would make the solvers' sums overflow or slow

_Users = dict[tuple[int, int], list[int]]  # (link, step) → the variables of its sends, each as often as it occurs


@dataclass
class StepModel:
    """The constraints of a shape, and the meaning of its variables.

    Attributes:
        constraints: Constraints for the solvers; variables 0..n-1 say whether a send is made.
        sends: Rows (chunk, link, step), int, shape (n, 3).
        adds: Whether each send adds, else it copies, bool, shape (n,).
        impossible: A reason for which no assignment can exist, found while building; empty without one.
    """

    constraints: BooleanModel
    sends: Ints = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    adds: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    impossible: str = ""


def fewest_steps(problem: Problem) -> int:
    """Return the most links that a chunk, or a contribution to a sum, must go over one after the other; 0 for none."""
    net, collective = problem.network, problem.collective
    distance = hops(net.nranks, net.src, net.dst)[: collective.nranks, : collective.nranks]
    needed = 0
    for holds, wants, sums in zip(collective.holds, collective.wants, collective.reduces, strict=True):
        distances = distance[holds][:, wants]
        if distances.size:
            # A sum needs all holders, and a value the nearest one.
            needed = max(needed, int(distances.max() if sums else distances.min(axis=0).max()))
    return needed


def step_model(problem: Problem, nsteps: int, nrounds: int, symmetry: Symmetry) -> StepModel:
    """Return the constraints of a copying problem, or of an all-reduce, in `nsteps` steps and `nrounds` rounds.

    Where `impossible` says why no schedule exists, the constraints are incomplete.
    """
    model = StepModel(BooleanModel(nsteps, nrounds))
    if problem.collective.reducing:
        _state_sums(model, problem, symmetry)
    else:
        _state_copies(model, problem, symmetry)
    return model


def read_schedule(problem: Problem, model: StepModel, chosen: Ints, symmetry: Symmetry) -> Schedule:
    """Return the untimed schedule of the chosen rows of `model.sends` and all their images, without useless sends."""
    rows = model.sends[chosen]
    images = (_chunk_images(problem, symmetry)[:, rows[:, 0]], symmetry.links[:, rows[:, 1]])
    step, adds = (np.tile(column, symmetry.order) for column in (rows[:, 2], model.adds[chosen]))
    step, chunk, link, adds = np.unique([step, *(image.ravel() for image in images), adds], axis=1)
    prune = prune_sums if problem.collective.reducing else prune_copies
    return prune(problem, untimed(chunk, link, step, adds))


def _chunk_images(problem: Problem, symmetry: Symmetry) -> Ints:
    """Return how the symmetry moves the chunks, shape (order, chunks).

    The chunks of sums stay, or, where the number of ranks divides theirs, each rank's share moves with the rank.
    """
    nchunks, k = problem.collective.nchunks, problem.collective.nranks
    if not problem.collective.reducing:
        return symmetry.chunks
    if nchunks % k:
        return np.tile(np.arange(nchunks), (symmetry.order, 1))
    share, place = np.divmod(np.arange(nchunks), nchunks // k)
    images: Ints = symmetry.ranks[:, share] * (nchunks // k) + place
    return images


def _short(value: float, *, up: bool) -> Fraction:
    """Return a value of 0 or more as a fraction with a denominator up to 64.

    It is rounded up or down where no such fraction is equal to it.
    """
    near = Fraction(value).limit_denominator(_LARGEST_TERM)
    if abs(float(near) - value) <= 1e-12 * value:
        return near
    scaled = value * _LARGEST_TERM
    return Fraction(math.ceil(scaled) if up else math.floor(scaled), _LARGEST_TERM)


def _add_loads(model: StepModel, problem: Problem, users: _Users) -> None:
    """Add the constraint that the links of a capacity carry no more in a step than its rounds allow.

    Capacities are rounded up and sizes of chunks down: a refutation with a little more capacity holds with less.
    """
    fraction = problem.collective.fraction
    sizes = [_short(f / fraction.min(), up=False) for f in fraction.tolist()]
    chunk = model.sends[:, 0].tolist()
    existing = set()
    for row in capacities(problem):
        carries = _short(row.chunks, up=True)
        for step in range(model.constraints.nsteps):
            sends = [var for link in row.links.tolist() for var in users.get((link, step), ())]
            if not sends:
                continue
            variables, counts = (column.tolist() for column in np.unique(sends, return_counts=True))
            scaled_sizes = [sizes[chunk[v]] * n for v, n in zip(variables, counts, strict=True)]
            scale = math.lcm(carries.denominator, *(w.denominator for w in scaled_sizes))
            weights = [int(w * scale) for w in scaled_sizes]
            capacity = int(carries * scale)
            key = (tuple(variables), tuple(weights), step, capacity)
            if key not in existing:
                existing.add(key)
                model.constraints.loads.append((variables, weights, step, capacity))


def _state_copies(model: StepModel, problem: Problem, symmetry: Symmetry) -> None:
    """Add the variables, sends and constraints of a copying problem to an empty model.

    Only one chunk of every orbit has variables. If some goal cannot be reached in time, `model.impossible` is set.
    """
    net, collective = problem.network, problem.collective
    distance = hops(net.nranks, net.src, net.dst)
    src, dst = net.src, net.dst
    constraints = model.constraints
    nsteps, steps = constraints.nsteps, np.arange(constraints.nsteps)
    sends: list[Ints] = []
    for chunk in symmetry.orbits.tolist():
        holders, goals = np.flatnonzero(collective.holds[chunk]), np.flatnonzero(collective.wants[chunk])
        goals = np.setdiff1d(goals, holders)
        if not len(goals):
            continue
        distance_to = distance[holders].min(axis=0)
        onward = distance[:, goals].min(axis=1)
        if distance_to[goals].max() > nsteps:
            model.impossible = "a chunk has a longer path than the number of steps"
            return
        possible = (distance_to[src][:, None] <= steps) & (onward[dst][:, None] <= nsteps - 1 - steps)
        possible &= (distance_to[dst] > 0)[:, None]
        link, step = np.nonzero(possible)
        rows = np.column_stack([np.full(len(link), chunk), link, step])
        _add_tree(model, rows, constraints.nvars, holders, goals, src, dst)
        constraints.nvars += len(rows)
        sends.append(rows)
    model.sends = np.concatenate(sends) if sends else model.sends
    model.adds = np.zeros(len(model.sends), dtype=bool)
    constraints.nasked = constraints.nvars
    users: _Users = defaultdict(list)
    for var, (_, link, step) in enumerate(model.sends.tolist()):
        for image in symmetry.links[:, link].tolist():
            users[image, step].append(var)
    _add_loads(model, problem, users)


def _add_tree(model: StepModel, rows: Ints, first: int, holders: Ints, goals: Ints, src: Ints, dst: Ints) -> None:
    """Add the constraints of a chunk's tree.

    Each rank gets the chunk at most once, a goal exactly once, and a rank sends only a chunk that it holds. If no row
    reaches some goal, `model.impossible` is set instead.

    Args:
        model: The model to extend.
        rows: The possible sends, rows (chunk, link, step); their variables are numbered consecutively.
        first: The variable of the first row.
        holders: The ranks that hold the chunk at the start.
        goals: The ranks that must get it, none of which is a holder.
        src: The sender of each link.
        dst: The receiver of each link.
    """
    constraints = model.constraints
    arrivals_at: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for var, (_, link, step) in enumerate(rows.tolist(), start=first):
        arrivals_at[int(dst[link])].append((var, step))
    goal_ranks = set(goals.tolist())
    for rank, arrivals in arrivals_at.items():
        (constraints.exactly_one if rank in goal_ranks else constraints.at_most_one).append(
            [var for var, _ in arrivals]
        )
    for rank in goal_ranks - arrivals_at.keys():
        model.impossible = f"rank {rank} cannot be reached in time"
    initial_holders = set(holders.tolist())
    for var, (_, link, step) in enumerate(rows.tolist(), start=first):
        rank = int(src[link])
        if rank not in initial_holders:
            constraints.implies.append((var, [v for v, s in arrivals_at[rank] if s < step]))


@dataclass
class _Variables:
    """The numbers of named variables, one for each orbit under the symmetry."""

    chunks: Ints
    ranks: Ints
    links: Ints
    number: dict[tuple[int, ...], int] = field(default_factory=dict)

    def send(self, adds: int, chunk: int, link: int, step: int) -> int:
        """Return the number of the variable that a chunk goes over a link in a step.

        It is an addend where `adds` is 1, and a copy where it is 0.
        """
        return self._of(adds, step, self.chunks[:, chunk], self.links[:, link])

    def has(self, chunk: int, rank: int, part: int, step: int) -> int:
        """Return the number of the variable that a rank holds rank `part`'s contribution to a chunk at a step."""
        return self._of(2, step, self.chunks[:, chunk], self.ranks[:, rank], self.ranks[:, part])

    def arrives(self, chunk: int, link: int, part: int, step: int) -> int:
        """Return the number of the variable that rank `part`'s addend of a chunk arrives over a link in a step."""
        return self._of(3, step, self.chunks[:, chunk], self.links[:, link], self.ranks[:, part])

    def _of(self, kind: int, step: int, *images: Ints) -> int:
        """Return the number of a named variable, and add it if it is new."""
        key = (kind, *_least(*images), step)
        return self.number.setdefault(key, len(self.number))


def _least(*images: Ints) -> tuple[int, ...]:
    """Return the least of the images of a tuple, of which each entry has a column of images."""
    return min(zip(*(column.tolist() for column in images), strict=True))


def _state_sums(model: StepModel, problem: Problem, symmetry: Symmetry) -> None:
    """Add the variables, sends and constraints of an all-reduce to an empty model.

    If some contribution cannot come in time, only `model.impossible` is set.
    """
    net, nchunks = problem.network, problem.collective.nchunks
    constraints = model.constraints
    if fewest_steps(problem) > constraints.nsteps:
        model.impossible = "a contribution has a longer path than the number of steps"
        return
    names = _Variables(_chunk_images(problem, symmetry), symmetry.ranks, symmetry.links)
    rows: list[tuple[int, int, int]] = []
    adding: list[bool] = []
    users: _Users = defaultdict(list)
    for adds, chunk, link, step in product((0, 1), range(nchunks), range(net.nlinks), range(constraints.nsteps)):
        var = names.send(adds, chunk, link, step)
        if var == len(rows):
            rows.append((chunk, link, step))
            adding.append(bool(adds))
        users[link, step].append(var)
    model.sends, model.adds = np.array(rows, dtype=np.int64), np.array(adding)
    for chunk, rank in product(range(nchunks), range(net.nranks)):
        if (chunk, rank) == _least(names.chunks[:, chunk], names.ranks[:, rank]):
            _add_contents(constraints, names, problem, chunk, rank)
    constraints.nvars, constraints.nasked = len(names.number), len(rows)
    _add_loads(model, problem, users)


def _add_contents(model: BooleanModel, names: _Variables, problem: Problem, chunk: int, rank: int) -> None:
    """Add the constraints on the parts (one rank's contribution each) of a chunk that a rank holds at every step."""
    net, k = problem.network, problem.collective.nranks
    links_into = np.flatnonzero(net.dst == rank).tolist()
    for part in range(k):
        model.clauses.append([(names.has(chunk, rank, part, 0), rank == part)])
        if rank < k:
            model.clauses.append([(names.has(chunk, rank, part, model.nsteps), True)])
    for step in range(model.nsteps):
        adds = {link: names.send(1, chunk, link, step) for link in links_into}
        copies = {link: names.send(0, chunk, link, step) for link in links_into}
        if len(links_into) > 1:
            model.at_most_one.append(sorted(copies.values()))
        for link, copy_var in copies.items():
            u = int(net.src[link])
            model.clauses.append([(copy_var, False), (adds[link], False)])
            model.clauses += [[(copy_var, False), (a, False)] for a in adds.values()]
            for part in range(k):
                model.clauses.append([(copy_var, False), (names.has(chunk, u, part, step), True)])
                model.clauses.append([(copy_var, False), (names.has(chunk, rank, part, step + 1), True)])
        for part in range(k):
            before, after = names.has(chunk, rank, part, step), names.has(chunk, rank, part, step + 1)
            arrivals = []
            for link, add_var in adds.items():
                source_has = names.has(chunk, int(net.src[link]), part, step)
                arrives = names.arrives(chunk, link, part, step)
                model.clauses += [
                    [(arrives, False), (add_var, True)],
                    [(arrives, False), (source_has, True)],
                    [(arrives, True), (add_var, False), (source_has, False)],
                    [(arrives, False), (after, True)],
                ]
                arrivals.append(arrives)
            model.clauses.append([(before, False), (after, True)])
            model.clauses.append(
                [(after, False), (before, True), *((v, True) for v in arrivals + list(copies.values()))]
            )
            model.at_most_one.append([before, *arrivals])
