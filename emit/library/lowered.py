"""A program for one target, timed: what an algorithm becomes there, for messages of which sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

from emit.goal import Goal
from emit.program import Program
from emit.targets import LL_MOST_BYTES, Target, divisor
from emit.timing.predict import Timed
from synth.model.common_chunk import CommonChunk
from synth.model.problem import Problem

ELEMENT_BYTES = (4, 2, 1)  # of the types that sizes are looked at for, the usual one first
_UNABLE = 1e6  # times its time, a program takes where it cannot serve: whatever can is better


@dataclass(eq=False)
class Lowered:
    """A program of one protocol for one target, with its goal where its collective does not say it.

    scale: the size that an executor takes for that of its messages / the problem's message size.
    common: the cells of its chunks; `padding`: of the fullest buffer the part that holds nothing.
    largest: the most bytes of a message, as an executor sees it, that its file takes; None: there is no end. text: its
    file's, where that is not written from the program, which then has no threadblocks.
    """

    target: Target
    program: Program
    goal: Goal | None
    predictor: Timed
    common: CommonChunk
    scale: float = 1.0
    largest: int | None = None
    text: str = ""
    _times_us: dict[float, float] = field(default_factory=dict)

    def time_us(self, size_bytes: float) -> float:
        """In µs, for messages of `size_bytes`, as `simulate` has it."""
        if size_bytes not in self._times_us:
            self._times_us[size_bytes] = self.predictor.time_us(size_bytes * self.scale)
        return self._times_us[size_bytes]

    def takes(self, size_bytes: float) -> bool:
        """Whether messages of `size_bytes` are no larger than its file's largest."""
        return self.largest is None or size_bytes * self.scale <= self.largest

    @property
    def divides(self) -> int:
        """In bytes: a call is served only if this divides its message size."""
        return divisor(self.program, self.target)

    def serves(self, size_bytes: float) -> bool:
        """Whether it is for messages of about so many bytes.

        Of just so many where that is no power of two; else of blocks of powers of two of elements of the usual type.
        """
        if not self.takes(size_bytes):
            return False
        if self.common.padding or self.scale != 1.0:  # blocks of many sizes, of which these are the usual ones
            return True
        return divides_usual(self.divides, self.common.cells.chunks, self.target, int(size_bytes))

    def served(self, low: int, high: int | None) -> tuple[int, int | None]:
        """The sizes in bytes that an executor sees where the problem's are from `low` to `high` inclusive."""
        return int((low - 1) * self.scale) + 1 if low else 0, None if high is None else int(high * self.scale)


def divides_usual(divides: int, cells: int, target: Target, size: int) -> bool:
    """Whether a file of so many cells a block takes messages of about a size; see `Lowered.serves`."""
    if size & (size - 1):
        return size % divides == 0
    return divides * (1 if target.cell_bytes else ELEMENT_BYTES[0]) <= size and not cells & (cells - 1)


def blocks_of(problem: Problem) -> int:
    """Blocks of a message, into each of which the cells of a file go."""
    return round(1 / (float(problem.collective.fraction[0]) * problem.collective.chunks))


@dataclass(eq=False)
class LoweredBySize:
    """An algorithm's programs: `small` for messages of up to LL_MOST_BYTES, `large` for any (see `choose_protocol`).

    largest: one that is faster for the largest messages, where `large` is slower than the algorithm.
    """

    small: Lowered
    large: Lowered
    largest: Lowered | None = None

    def time_us(self, size_bytes: float) -> float:
        """In µs, of the program for messages of `size_bytes`; far more than any other's for what it does not take."""
        by = self._for(size_bytes)
        return by.time_us(size_bytes) * (1 if by.takes(size_bytes) else _UNABLE)

    def serves(self, size_bytes: float) -> bool:
        """Whether that program is for messages of about so many bytes."""
        return self._for(size_bytes).serves(size_bytes)

    def able(self, size_bytes: float) -> list[Lowered]:
        """Those for messages of `size_bytes`: beyond LL_MOST_BYTES `small` too, where all have its protocol."""
        if size_bytes <= LL_MOST_BYTES:
            return [self.small]
        same = self.small.program.protocol == self.large.program.protocol
        return [self.large, *([self.largest] if self.largest else []), *([self.small] if same else [])]

    def _for(self, size_bytes: float) -> Lowered:
        able = self.able(size_bytes)
        return min(able, key=lambda by: by.time_us(size_bytes)) if len(able) > 1 else able[0]
