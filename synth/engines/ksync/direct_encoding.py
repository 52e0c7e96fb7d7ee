"""All-reduce in few steps: partial sums exchanged and, once complete, copied (for small messages).

Unlike reduce-scatter and all-gather one after the other, every rank may add and send in every step. What a rank
holds of a chunk is a set of contributions, each at most once: `has[chunk, rank, contributor, step]`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from synth.bounds.relaxation import capacities
from synth.engines.ksync.encoding import StepModel, carried
from synth.model.collective import Ints
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule, untimed
from synth.phases.prune import prune_sums
from synth.solvers.boolean_model import BooleanModel
from synth.symmetry.relabelling import Symmetry

_Key = tuple[int, ...]


@dataclass
class _Variables:
    """Numbers for named variables, one for each orbit under the symmetry."""

    chunk_images: Ints
    rank_images: Ints
    link_images: Ints
    number: dict[_Key, int] = field(default_factory=dict)

    def send(self, adds: int, chunk: int, link: int, step: int) -> int:
        images = zip(self.chunk_images[:, chunk].tolist(), self.link_images[:, link].tolist(), strict=True)
        return self._of((adds, *min(images), step))

    def has(self, chunk: int, rank: int, part: int, step: int) -> int:
        p = self.rank_images
        images = zip(self.chunk_images[:, chunk].tolist(), p[:, rank].tolist(), p[:, part].tolist(), strict=True)
        return self._of((2, *min(images), step))

    def arrives(self, chunk: int, link: int, part: int, step: int) -> int:
        images = zip(
            self.chunk_images[:, chunk].tolist(),
            self.link_images[:, link].tolist(),
            self.rank_images[:, part].tolist(),
            strict=True,
        )
        return self._of((3, *min(images), step))

    def _of(self, key: _Key) -> int:
        return self.number.setdefault(key, len(self.number))


def chunk_action(problem: Problem, symmetry: Symmetry) -> Ints:
    """How the symmetry may move the chunks: all stay, or as many as there are members go along with the ranks."""
    nchunks, k = problem.collective.nchunks, problem.collective.nranks
    if nchunks % k == 0:
        block = nchunks // k
        chunk = np.arange(nchunks)
        image: Ints = symmetry.ranks[:, chunk // block] * block + chunk % block
        return image
    return np.tile(np.arange(nchunks), (symmetry.order, 1))


def step_model(problem: Problem, nsteps: int, nrounds: int, symmetry: Symmetry) -> StepModel:
    """Constraints of an all-reduce in `nsteps` steps and `nrounds` rounds."""
    net, collective = problem.network, problem.collective
    k, n, steps = collective.nranks, net.nranks, range(nsteps)
    constraints = BooleanModel(nsteps, nrounds)
    model = StepModel(constraints)
    distance = hops(n, net.src, net.dst)
    if distance[:k, :k].max() > nsteps:
        model.impossible = "a contribution has further to go than there are steps"
        return model
    names = _Variables(chunk_action(problem, symmetry), symmetry.ranks, symmetry.links)
    rows: list[tuple[int, int, int, int]] = []
    for adds in (0, 1):
        for chunk in range(collective.nchunks):
            for link in range(net.nlinks):
                for step in steps:
                    before = len(names.number)
                    if names.send(adds, chunk, link, step) == before:
                        rows.append((adds, chunk, link, step))
    model.sends = np.array([r[1:] for r in rows], dtype=np.int64)
    model.adds = np.array([r[0] for r in rows], dtype=bool)
    into: dict[int, list[int]] = defaultdict(list)
    for link, v in enumerate(net.dst.tolist()):
        into[v].append(link)
    done: set[_Key] = set()
    for chunk in range(collective.nchunks):
        for rank in range(n):
            first = min(zip(names.chunk_images[:, chunk].tolist(), names.rank_images[:, rank].tolist(), strict=True))
            if first in done:
                continue
            done.add(first)
            _cell(constraints, names, problem, chunk, rank, into[rank], nsteps)
    constraints.nvars, constraints.nasked = len(names.number), len(rows)
    _loads(constraints, names, problem, nsteps)
    return model


def _cell(
    model: BooleanModel, names: _Variables, problem: Problem, chunk: int, rank: int, into: list[int], nsteps: int
) -> None:
    net, k = problem.network, problem.collective.nranks
    for part in range(k):
        model.clauses.append([(names.has(chunk, rank, part, 0), rank == part)])
        if rank < k:
            model.clauses.append([(names.has(chunk, rank, part, nsteps), True)])
    for step in range(nsteps):
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


def _loads(model: BooleanModel, names: _Variables, problem: Problem, nsteps: int) -> None:
    seen = set()
    for row in capacities(problem):
        links, carries = row.links, carried(row)
        for step in range(nsteps):
            users = sorted(
                names.send(adds, chunk, link, step)
                for adds in (0, 1)
                for chunk in range(problem.collective.nchunks)
                for link in links.tolist()
            )
            variables, counts = np.unique(users, return_counts=True)
            weights = (counts * carries.denominator).tolist()
            key = (tuple(variables.tolist()), tuple(weights), step, carries)
            if key not in seen:
                seen.add(key)
                model.loads.append((variables.tolist(), weights, step, carries.numerator))


def read_schedule(problem: Problem, model: StepModel, chosen: Ints, symmetry: Symmetry) -> Schedule:
    """The schedule of the chosen sends and all their images."""
    images = chunk_action(problem, symmetry)
    rows, adds = model.sends[chosen], model.adds[chosen]
    table = np.column_stack(
        [
            np.tile(rows[:, 2], symmetry.order),
            images[:, rows[:, 0]].ravel(),
            symmetry.links[:, rows[:, 1]].ravel(),
            np.tile(adds, symmetry.order),
        ]
    )
    table = np.unique(table, axis=0)
    return prune_sums(problem, untimed(table[:, 1], table[:, 2], table[:, 0], table[:, 3].astype(bool)))
