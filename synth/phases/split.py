"""Split a problem into phases that copy only, and turn their schedules back.

A collective that reduces and spreads is two phases, one after the other: all-reduce = reduce-scatter, all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from synth.model.collective import Ints
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule, follows_same, untimed
from synth.phases.reversal import reverse, reversible, unreverse
from topologies.errors import InputError


def sum_owners(problem: Problem) -> Ints:
    """Return for every chunk a rank that can gather its contributions, spread over the ranks that want it.

    Returns:
        A position in the group for each chunk, shape (nchunks,). A plain value, or a sum that nobody wants, has its
        first holder.

    Raises:
        InputError: No rank of the group can be reached by all contributors and reach all ranks that want the chunk; or
            the tables of the collective take too much memory.
    """
    collective, net = problem.collective, problem.network
    k = collective.nranks
    is_reachable = hops(net.nranks, net.src, net.dst)[:k, :k] < net.nranks
    # Owners change from block to block, so that an allreduce splits into a reducescatter and an allgather.
    block = max(1, -(-collective.nchunks // k))
    owners_by_key: dict[bytes, Ints] = {}
    owner = np.zeros(collective.nchunks, dtype=np.int64)
    for chunk in range(collective.nchunks):
        holds, wants = collective.holds[chunk], collective.wants[chunk]
        if not collective.reduces[chunk] or not wants.any():
            owner[chunk] = int(holds.argmax())  # A plain value stays with its first holder.
            continue
        key = holds.tobytes() + wants.tobytes()
        if key not in owners_by_key:
            able = is_reachable[holds].all(axis=0) & is_reachable[:, wants].all(axis=1)
            owners_by_key[key] = np.flatnonzero(able & wants) if (able & wants).any() else np.flatnonzero(able)
        if not len(owners_by_key[key]):
            raise InputError(
                f"{collective.name}: no rank of the group can gather chunk {chunk} from all ranks that contribute"
                " and reach all ranks that want it; the group needs a rank with paths from and to them"
            )
        owner[chunk] = owners_by_key[key][(chunk // block) % len(owners_by_key[key])]
    return owner


def split(problem: Problem) -> tuple[Problem, Problem]:
    """Split a problem into a phase that gathers each chunk's sum at its owner and a phase that copies it from there.

    Between the phases every chunk has its own place in the buffer.

    Returns:
        The reducing phase and the copying phase, with the chunks of the problem under the same numbers.

    Raises:
        InputError: A chunk has no owner; see `sum_owners`.
    """
    collective = problem.collective
    owner = sum_owners(problem)
    cells = np.column_stack([owner, np.arange(collective.nchunks)])
    cells = cells[np.lexsort((cells[:, 1], cells[:, 0]))]
    # Plain values stay at their places in the first phase.
    in_first_phase = collective.reduces[collective.pre[:, 1]] | (collective.pre[:, 0] == owner[collective.pre[:, 1]])
    gathering = replace(
        collective,
        name=f"{collective.name}, reducing phase",
        pre=collective.pre[in_first_phase],
        in_index=collective.in_index[in_first_phase],
        post=cells,
        out_index=cells[:, 1],
    )
    spreading = replace(
        collective,
        name=f"{collective.name}, copying phase",
        reduces=np.zeros(collective.nchunks, dtype=bool),
        pre=(
            start := np.unique(
                np.concatenate([cells, collective.pre[~collective.reduces[collective.pre[:, 1]]]]), axis=0
            )
        ),
        in_index=start[:, 1],
    )
    return replace(problem, collective=gathering), replace(problem, collective=spreading)


def join(first: Schedule, second: Schedule) -> Schedule:
    """Return the schedule of `second` after `first`, without times; timing overlaps them as far as the data allow.

    Rows of `first` come first, and the steps of `second` follow its last step.
    """
    return untimed(
        np.concatenate([first.chunk, second.chunk]),
        np.concatenate([first.link, second.link]),
        np.concatenate([first.step, second.step + first.nsteps]),
        np.concatenate([first.reduces, second.reduces]),
        follows_same(np.concatenate([first.message, second.message + len(first)])),
    )


@dataclass(frozen=True)
class Phase:
    """A part of a problem that is solved as a copying problem, for any number of chunks.

    Attributes:
        problem: The whole problem, with one chunk a block.
        part: Which problem of `split` it is: 0 the reducing phase, 1 the copying phase, None the whole problem.
        is_reversed: Whether it is solved backwards (see `reversal`).
        share: Chunks of a block of `problem` for each chunk of this phase.
    """

    problem: Problem
    part: int | None = None
    is_reversed: bool = False
    share: int = 1

    def whole_chunks(self, chunks: int) -> int:
        """Return the chunks a block of the whole problem, from those of this phase."""
        return chunks * self.share

    def apply(self, chunks: int) -> Problem:
        """Return the copying problem that this phase is, with `chunks` chunks a block of the phase.

        Raises:
            InputError: The problem does not fit in memory, or cannot be split.
        """
        problem = self._forwards(chunks)
        return reverse(problem) if self.is_reversed else problem

    def invert(self, chunks: int, schedule: Schedule) -> Schedule:
        """Return the part of the whole problem's schedule that corresponds to a schedule of `apply(chunks)`.

        It is the schedule itself, or without times where the phase is solved backwards. The parts of two phases are
        joined by `join`.
        """
        return unreverse(self._forwards(chunks), schedule) if self.is_reversed else schedule

    def _forwards(self, chunks: int) -> Problem:
        """Return the phase's problem before it is reversed."""
        problem = self.problem.with_chunks(self.whole_chunks(chunks))
        return problem if self.part is None else split(problem)[self.part]


def phases(problem: Problem) -> list[Phase]:
    """Return the phases to solve, one after the other: one, or two for a collective that reduces and then spreads.

    Args:
        problem: The problem, with one chunk a block.
    """
    if not problem.collective.reducing:
        return [Phase(problem)]
    if reversible(problem.collective):
        return [Phase(problem, is_reversed=True)]
    # A chunk of a phase is a rank's share of the block.
    share = problem.collective.nranks if problem.collective.kind.in_shares else 1
    return [Phase(problem, part=0, is_reversed=True, share=share), Phase(problem, part=1, share=share)]
