"""The phases that a problem comes down to: problems that copy only, and how their schedules are turned back."""

from __future__ import annotations

from dataclasses import dataclass

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.phases.reversal import reverse, reversible, unreverse
from synth.phases.split import split


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
