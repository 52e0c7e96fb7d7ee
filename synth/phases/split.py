"""The phases that a problem comes down to: problems that copy only, and how their schedules are turned back.

A collective that reduces and spreads is two, one after the other: all-reduce = reduce-scatter, all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from synth.model.collective import Ints
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import reverse, reversible, unreverse
from topologies.errors import InputError


def sum_owners(problem: Problem) -> Ints:
    """A rank for every chunk at which its contributions can come together, spread over those that want it.

    Raises InputError where no member of the group can be reached by all contributors and reach all that want it.
    """
    collective, net = problem.collective, problem.network
    k = collective.nranks
    near = hops(net.nranks, net.src, net.dst)[:k, :k] < net.nranks
    # chunks are taken in blocks, so that an allreduce splits into a reducescatter and an allgather
    block = max(1, -(-collective.nchunks // k))
    known: dict[bytes, Ints] = {}
    found = np.zeros(collective.nchunks, dtype=np.int64)
    for chunk in range(collective.nchunks):
        holds, wants = collective.holds[chunk], collective.wants[chunk]
        if not collective.reduces[chunk] or not wants.any():
            found[chunk] = int(holds.argmax())  # a plain value stays with its first holder
            continue
        key = holds.tobytes() + wants.tobytes()
        if key not in known:
            able = near[holds].all(axis=0) & near[:, wants].all(axis=1)
            known[key] = np.flatnonzero(able & wants) if (able & wants).any() else np.flatnonzero(able)
        if not len(known[key]):
            raise InputError(
                f"{collective.name}: no rank of the group can gather chunk {chunk} from all that contribute and"
                " reach all that want it; it must have links back"
            )
        found[chunk] = known[key][(chunk // block) % len(known[key])]
    return found


def split(problem: Problem) -> tuple[Problem, Problem]:
    """Bring each chunk's contributions together at its owner, then copy from there (allreduce = both).

    In between every chunk has a place of its own.
    """
    old = problem.collective
    at = sum_owners(problem)
    cells = np.column_stack([at, np.arange(old.nchunks)])
    cells = cells[np.lexsort((cells[:, 1], cells[:, 0]))]
    # plain values stay where they are in the first phase
    moved = old.reduces[old.pre[:, 1]] | (old.pre[:, 0] == at[old.pre[:, 1]])
    gathering = replace(
        old,
        name=f"{old.name}, reducing phase",
        pre=old.pre[moved],
        in_index=old.in_index[moved],
        post=cells,
        out_index=cells[:, 1],
    )
    spreading = replace(
        old,
        name=f"{old.name}, copying phase",
        reduces=np.zeros(old.nchunks, dtype=bool),
        pre=(start := np.unique(np.concatenate([cells, old.pre[~old.reduces[old.pre[:, 1]]]]), axis=0)),
        in_index=start[:, 1],
    )
    return replace(problem, collective=gathering), replace(problem, collective=spreading)


def join(first: Schedule, second: Schedule) -> Schedule:
    """`second` after `first`, overlapped as far as the data allow when timed."""
    return untimed(
        np.concatenate([first.chunk, second.chunk]),
        np.concatenate([first.link, second.link]),
        np.concatenate([first.step, second.step + first.nsteps]),
        np.concatenate([first.reduces, second.reduces]),
    )


@dataclass(frozen=True)
class Phase:
    """A part of a problem as one that copies only, for any number of chunks.

    Attributes:
        asked: the problem, with one chunk a block.
        part: which problem of `split` it is: 0 the reducing phase, 1 the copying phase, None the whole problem.
        reversed: whether it is solved backwards (see `reversal`).
        share: chunks of a block of `asked` for each chunk here.
    """

    asked: Problem
    part: int | None = None
    reversed: bool = False
    share: int = 1

    def asked_chunks(self, chunks: int) -> int:
        """Chunks a block of the asked problem, of chunks a block of this phase."""
        return chunks * self.share

    def apply(self, chunks: int) -> Problem:
        """The copying problem with so many chunks a block."""
        problem = self._forwards(chunks)
        return reverse(problem) if self.reversed else problem

    def invert(self, chunks: int, schedule: Schedule) -> Schedule:
        """The part of the asked problem's schedule that a schedule of `apply(chunks)` stands for."""
        return unreverse(self._forwards(chunks), schedule) if self.reversed else schedule

    def _forwards(self, chunks: int) -> Problem:
        problem = self.asked.with_chunks(self.asked_chunks(chunks))
        return problem if self.part is None else split(problem)[self.part]


def phases(problem: Problem) -> list[Phase]:
    """The phases to solve, one after the other: one, or two for a collective that reduces and then spreads."""
    if not problem.collective.reducing:
        return [Phase(problem)]
    if reversible(problem.collective):
        return [Phase(problem, reversed=True)]
    # a chunk of a phase is a rank's share of the whole
    share = problem.collective.nranks if problem.collective.kind.in_shares else 1
    return [Phase(problem, part=0, reversed=True, share=share), Phase(problem, part=1, share=share)]
