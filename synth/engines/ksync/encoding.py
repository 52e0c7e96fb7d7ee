"""The k-synchronous model as a set of boolean constraints (SCCL, section 3; time-expanded and pruned by distance).

One variable says that a chunk goes over a link in a step. It exists only where the chunk can be at the link's
source by then and can still get from its end to a rank that wants it. Under a symmetry only one chunk of every
orbit has variables; its translates load the links too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from synth.bounds.relaxation import Capacity, capacities
from synth.model.collective import Bools, Ints
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule, untimed
from synth.phases.prune import prune_copies
from synth.solvers.boolean_model import BooleanModel
from synth.symmetry.relabelling import Symmetry

_LARGEST_TERM = 64  # denominators beyond this would make the solvers' sums overflow or crawl


@dataclass
class StepModel:
    """A shape's constraints, and what its variables mean.

    Attributes:
        constraints: for the solvers; variables 0..n-1 say whether a send is made.
        sends: shape (n, 3), rows (chunk, link, step).
        adds: shape (n,), for models in which a send may add or copy: which of the two it does.
        impossible: a reason for which no assignment can exist, found while building.
    """

    constraints: BooleanModel
    sends: Ints = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    adds: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    impossible: str = ""


def carried(capacity: Capacity) -> Fraction:
    """Chunks a round that a capacity carries, or a little more, as a short fraction.

    What is refuted with a little more capacity is refuted with less.
    """
    return _short(capacity.chunks, up=True)


def chunk_sizes(problem: Problem) -> list[Fraction]:
    """Every chunk's size in smallest chunks, or a little less."""
    fraction = problem.collective.fraction
    return [_short(f / fraction.min(), up=False) for f in fraction.tolist()]


def _short(value: float, *, up: bool) -> Fraction:
    """The value as a fraction of small terms, rounded in the direction given where it is none."""
    near = Fraction(value).limit_denominator(_LARGEST_TERM)
    if abs(float(near) - value) <= 1e-12 * value:
        return near
    scaled = value * _LARGEST_TERM
    return Fraction(math.ceil(scaled) if up else math.floor(scaled), _LARGEST_TERM)


def step_model(problem: Problem, nsteps: int, nrounds: int, symmetry: Symmetry) -> StepModel:
    """Constraints of a copying problem in `nsteps` steps and `nrounds` rounds."""
    net, collective = problem.network, problem.collective
    distance = hops(net.nranks, net.src, net.dst)
    src, dst = net.src, net.dst
    sends: list[Ints] = []
    model = StepModel(BooleanModel(nsteps, nrounds))
    constraints = model.constraints
    steps = np.arange(nsteps)
    for chunk in symmetry.orbits.tolist():
        holders, wanted = np.flatnonzero(collective.holds[chunk]), np.flatnonzero(collective.wants[chunk])
        wanted = np.setdiff1d(wanted, holders)
        if not len(wanted):
            continue
        here = distance[holders].min(axis=0)
        onward = distance[:, wanted].min(axis=1)
        if here[wanted].max() > nsteps:
            model.impossible = "a chunk has further to go than there are steps"
            return model
        possible = (here[src][:, None] <= steps) & (onward[dst][:, None] <= nsteps - 1 - steps)
        possible &= (here[dst] > 0)[:, None]
        link, step = np.nonzero(possible)
        rows = np.column_stack([np.full(len(link), chunk), link, step])
        _tree_constraints(model, rows, constraints.nvars, holders, wanted, src, dst)
        constraints.nvars += len(rows)
        sends.append(rows)
    model.sends = np.concatenate(sends) if sends else model.sends
    constraints.nasked = constraints.nvars
    _load_constraints(model, problem, symmetry)
    return model


def _tree_constraints(
    model: StepModel, rows: Ints, first: int, holders: Ints, wanted: Ints, src: Ints, dst: Ints
) -> None:
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


def _load_constraints(model: StepModel, problem: Problem, symmetry: Symmetry) -> None:
    sizes = chunk_sizes(problem)
    by_link: dict[tuple[int, int], list[int]] = defaultdict(list)
    for var, (_, link, step) in enumerate(model.sends.tolist()):
        for image in symmetry.links[:, link].tolist():
            by_link[image, step].append(var)
    chunk = model.sends[:, 0].tolist()
    seen = set()
    for row in capacities(problem):
        carries = carried(row)
        for step in range(model.constraints.nsteps):
            users = sorted(var for link in row.links.tolist() for var in by_link.get((link, step), ()))
            if not users:
                continue
            names, counts = np.unique(users, return_counts=True)
            each = [sizes[chunk[v]] * n for v, n in zip(names.tolist(), counts.tolist(), strict=True)]
            scale = math.lcm(carries.denominator, *(w.denominator for w in each))
            weights = [int(w * scale) for w in each]
            capacity = int(carries * scale)
            key = (tuple(names.tolist()), tuple(weights), step, capacity)
            if key not in seen:
                seen.add(key)
                model.constraints.loads.append((names.tolist(), weights, step, capacity))


def read_schedule(problem: Problem, model: StepModel, chosen: Ints, symmetry: Symmetry) -> Schedule:
    """The schedule of the chosen send variables, translated to all chunks, without useless sends."""
    rows = model.sends[chosen]
    chunk = symmetry.chunks[:, rows[:, 0]].ravel()
    link = symmetry.links[:, rows[:, 1]].ravel()
    step = np.tile(rows[:, 2], symmetry.order)
    order = np.lexsort((link, chunk, step))
    none = np.zeros(len(order), dtype=bool)
    return prune_copies(problem, untimed(chunk[order], link[order], step[order], none))
