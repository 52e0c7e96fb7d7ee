"""The k-synchronous model as a set of boolean constraints (SCCL, section 3).

Copying problems are time-expanded and pruned by distance: a variable says that a chunk goes over a link in a step. It
exists only where the chunk can be at the link's source by then and can still get from its end to a rank that wants
it. Under a symmetry only one chunk of every orbit has variables; its translates load the links too.

A problem that sums is taken for an all-reduce in few steps (for small messages): unlike in a reduce-scatter and an
all-gather one after the other, every rank may add and send in every step. What a rank holds of a chunk is a set of
contributions, each at most once; complete sums are copied. One variable stands for each orbit under the symmetry.
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

_LARGEST_TERM = 64  # denominators beyond this would make the solvers' sums overflow or crawl

_Users = dict[tuple[int, int], list[int]]  # by link and step: variables of the sends, as often as each is made there


@dataclass
class StepModel:
    """A shape's constraints, and what its variables mean.

    Attributes:
        constraints: for the solvers; variables 0..n-1 say whether a send is made.
        sends: shape (n, 3), rows (chunk, link, step).
        adds: shape (n,): whether the send adds; else it copies.
        impossible: a reason for which no assignment can exist, found while building.
    """

    constraints: BooleanModel
    sends: Ints = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    adds: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    impossible: str = ""


def fewest_steps(problem: Problem) -> int:
    """Links that some chunk, or contribution to a sum, must go over one after the other."""
    net, collective = problem.network, problem.collective
    distance = hops(net.nranks, net.src, net.dst)[: collective.nranks, : collective.nranks]
    needed = 0
    for holds, wants, sums in zip(collective.holds, collective.wants, collective.reduces, strict=True):
        away = distance[holds][:, wants]
        if away.size:
            # a sum needs all holders, a value the nearest
            needed = max(needed, int(away.max() if sums else away.min(axis=0).max()))
    return needed


def step_model(problem: Problem, nsteps: int, nrounds: int, symmetry: Symmetry) -> StepModel:
    """Constraints of a copying problem, or of an all-reduce, in `nsteps` steps and `nrounds` rounds."""
    model = StepModel(BooleanModel(nsteps, nrounds))
    if problem.collective.reducing:
        _state_sums(model, problem, symmetry)
    else:
        _state_copies(model, problem, symmetry)
    return model


def read_schedule(problem: Problem, model: StepModel, chosen: Ints, symmetry: Symmetry) -> Schedule:
    """The schedule of the chosen sends and all their images, without useless sends."""
    rows = model.sends[chosen]
    images = (_chunk_images(problem, symmetry)[:, rows[:, 0]], symmetry.links[:, rows[:, 1]])
    step, adds = (np.tile(column, symmetry.order) for column in (rows[:, 2], model.adds[chosen]))
    step, chunk, link, adds = np.unique([step, *(image.ravel() for image in images), adds], axis=1)
    prune = prune_sums if problem.collective.reducing else prune_copies
    return prune(problem, untimed(chunk, link, step, adds))


def _chunk_images(problem: Problem, symmetry: Symmetry) -> Ints:
    """How the symmetry moves the chunks; of sums all stay, or, where they are so many, each rank's share goes with it.

    Shape (order, chunks).
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
    """The value as a fraction of small terms, rounded in the direction given where it is none."""
    near = Fraction(value).limit_denominator(_LARGEST_TERM)
    if abs(float(near) - value) <= 1e-12 * value:
        return near
    scaled = value * _LARGEST_TERM
    return Fraction(math.ceil(scaled) if up else math.floor(scaled), _LARGEST_TERM)


def _add_loads(model: StepModel, problem: Problem, users: _Users) -> None:
    """What is sent over the links of a capacity in a step takes no more than it carries in the step's rounds.

    Capacities are rounded up and sizes of chunks down: what is refuted with a little more capacity is with less.
    """
    fraction = problem.collective.fraction
    sizes = [_short(f / fraction.min(), up=False) for f in fraction.tolist()]
    chunk = model.sends[:, 0].tolist()
    seen = set()
    for row in capacities(problem):
        carries = _short(row.chunks, up=True)
        for step in range(model.constraints.nsteps):
            sends = [var for link in row.links.tolist() for var in users.get((link, step), ())]
            if not sends:
                continue
            variables, counts = (column.tolist() for column in np.unique(sends, return_counts=True))
            each = [sizes[chunk[v]] * n for v, n in zip(variables, counts, strict=True)]
            scale = math.lcm(carries.denominator, *(w.denominator for w in each))
            weights = [int(w * scale) for w in each]
            capacity = int(carries * scale)
            key = (tuple(variables), tuple(weights), step, capacity)
            if key not in seen:
                seen.add(key)
                model.constraints.loads.append((variables, weights, step, capacity))


def _state_copies(model: StepModel, problem: Problem, symmetry: Symmetry) -> None:
    net, collective = problem.network, problem.collective
    distance = hops(net.nranks, net.src, net.dst)
    src, dst = net.src, net.dst
    constraints = model.constraints
    nsteps, steps = constraints.nsteps, np.arange(constraints.nsteps)
    sends: list[Ints] = []
    for chunk in symmetry.orbits.tolist():
        holders, wanted = np.flatnonzero(collective.holds[chunk]), np.flatnonzero(collective.wants[chunk])
        wanted = np.setdiff1d(wanted, holders)
        if not len(wanted):
            continue
        here = distance[holders].min(axis=0)
        onward = distance[:, wanted].min(axis=1)
        if here[wanted].max() > nsteps:
            model.impossible = "a chunk has further to go than there are steps"
            return
        possible = (here[src][:, None] <= steps) & (onward[dst][:, None] <= nsteps - 1 - steps)
        possible &= (here[dst] > 0)[:, None]
        link, step = np.nonzero(possible)
        rows = np.column_stack([np.full(len(link), chunk), link, step])
        _add_tree(model, rows, constraints.nvars, holders, wanted, src, dst)
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


def _add_tree(model: StepModel, rows: Ints, first: int, holders: Ints, wanted: Ints, src: Ints, dst: Ints) -> None:
    """Each rank gets a chunk at most once, those that want it exactly once, and sends only what it has got."""
    constraints = model.constraints
    into: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for var, (_, link, step) in enumerate(rows.tolist(), start=first):
        into[int(dst[link])].append((var, step))
    wants = set(wanted.tolist())
    for rank, came in into.items():
        (constraints.exactly_one if rank in wants else constraints.at_most_one).append([var for var, _ in came])
    for rank in wants - into.keys():
        model.impossible = f"rank {rank} cannot be reached in time"
    have = set(holders.tolist())
    for var, (_, link, step) in enumerate(rows.tolist(), start=first):
        rank = int(src[link])
        if rank not in have:
            constraints.implies.append((var, [v for v, s in into[rank] if s < step]))


@dataclass
class _Variables:
    """Numbers for named variables, one for each orbit under the symmetry."""

    chunks: Ints
    ranks: Ints
    links: Ints
    number: dict[tuple[int, ...], int] = field(default_factory=dict)

    def send(self, adds: int, chunk: int, link: int, step: int) -> int:
        return self._of(adds, step, self.chunks[:, chunk], self.links[:, link])

    def has(self, chunk: int, rank: int, part: int, step: int) -> int:
        return self._of(2, step, self.chunks[:, chunk], self.ranks[:, rank], self.ranks[:, part])

    def arrives(self, chunk: int, link: int, part: int, step: int) -> int:
        return self._of(3, step, self.chunks[:, chunk], self.links[:, link], self.ranks[:, part])

    def _of(self, kind: int, step: int, *images: Ints) -> int:
        key = (kind, *_least(*images), step)
        return self.number.setdefault(key, len(self.number))


def _least(*images: Ints) -> tuple[int, ...]:
    """The least of the images of a tuple, of whose entries each has a column of images."""
    return min(zip(*(column.tolist() for column in images), strict=True))


def _state_sums(model: StepModel, problem: Problem, symmetry: Symmetry) -> None:
    net, nchunks = problem.network, problem.collective.nchunks
    constraints = model.constraints
    if fewest_steps(problem) > constraints.nsteps:
        model.impossible = "a contribution has further to go than there are steps"
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
    """What a rank holds of a chunk before and after every step; `part`: the contribution of a rank."""
    net, k = problem.network, problem.collective.nranks
    into = np.flatnonzero(net.dst == rank).tolist()
    for part in range(k):
        model.clauses.append([(names.has(chunk, rank, part, 0), rank == part)])
        if rank < k:
            model.clauses.append([(names.has(chunk, rank, part, model.nsteps), True)])
    for step in range(model.nsteps):
        adds = {link: names.send(1, chunk, link, step) for link in into}
        copies = {link: names.send(0, chunk, link, step) for link in into}
        if len(into) > 1:
            model.at_most_one.append(sorted(copies.values()))
        for link, copied in copies.items():
            u = int(net.src[link])
            model.clauses.append([(copied, False), (adds[link], False)])
            model.clauses += [[(copied, False), (a, False)] for a in adds.values()]
            for part in range(k):
                model.clauses.append([(copied, False), (names.has(chunk, u, part, step), True)])
                model.clauses.append([(copied, False), (names.has(chunk, rank, part, step + 1), True)])
        for part in range(k):
            now, then = names.has(chunk, rank, part, step), names.has(chunk, rank, part, step + 1)
            came = []
            for link, added in adds.items():
                there = names.has(chunk, int(net.src[link]), part, step)
                arrives = names.arrives(chunk, link, part, step)
                model.clauses += [
                    [(arrives, False), (added, True)],
                    [(arrives, False), (there, True)],
                    [(arrives, True), (added, False), (there, False)],
                    [(arrives, False), (then, True)],
                ]
                came.append(arrives)
            model.clauses.append([(now, False), (then, True)])
            model.clauses.append([(then, False), (now, True), *((v, True) for v in came + list(copies.values()))])
            model.at_most_one.append([now, *came])
