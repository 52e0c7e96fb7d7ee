"""An algorithm's programs for one target, with their times and the message sizes that they serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from emit.compiler.fill import ONCE, Repetition
from emit.formats import Draft
from emit.goal import Goal
from emit.program import Program
from emit.targets import LL_MOST_BYTES, Target, divisor
from emit.timing.timed import TimedProgram
from synth.model.common_chunk import CommonChunk
from synth.model.problem import Problem
from synth.model.registry import BUFFER
from synth.model.text import format_size

ELEMENT_BYTES = (4, 2, 1)  # element sizes of the types considered, the usual one first
_ROUNDING = 1e-9  # relative rounding between two equal sizes
_MOST_CELLS = 1 << 16  # of a buffer, as the divisor of a scale
_LAST_BITS = 1e-14  # relative error of a sum of many fractions
_UNABLE = 1e6  # factor on the time of a program that cannot serve a size, so that any that can is better


@dataclass(eq=False)
class Lowered:
    """A program of one protocol for one target.

    Attributes:
        target: Executor.
        program: The program; without threadblocks where switches multicast or reduce.
        goal: What it must achieve if its collective does not say so, else None.
        predictor: Predictor of its time.
        common: Cells of its chunks; `padding` is the empty share of the fullest buffer.
        scale: Message size that the executor sees, divided by the problem's message size.
        largest: Largest message in bytes, as the executor sees it, that its file takes; None for no limit.
        text: Text of its file, checked, once it is written.
        draft: What its file says until it is written, if that is not the program itself.
        repetition: How often the lowered schedule runs side by side in the program.
    """

    target: Target
    program: Program
    goal: Goal | None
    predictor: TimedProgram
    common: CommonChunk
    scale: float = 1.0
    largest: int | None = None
    text: str = ""
    draft: Draft | None = None
    repetition: Repetition = ONCE
    _times_us: dict[float, float] = field(default_factory=dict)

    def time_us(self, size_bytes: float) -> float:
        """Return the predicted time in µs for messages of `size_bytes` of the problem; it is remembered."""
        if size_bytes not in self._times_us:
            self._times_us[size_bytes] = self.predictor.time_us(size_bytes * self.scale)
        return self._times_us[size_bytes]

    def takes(self, size_bytes: float) -> bool:
        """Return True if messages of `size_bytes` of the problem are no larger than its file's largest."""
        return self.largest is None or size_bytes * self.scale <= self.largest

    @property
    def why_no_larger(self) -> str:
        """Return why its file takes no messages larger than `largest`; only for a program that has such a size."""
        if limit := self.target.limits.scratch_bytes:
            begin = f"{self.target.limits.name} allocates its scratch at the communicator's start"
            return f"{begin}, and larger messages need more than --scratch-limit {format_size(limit)}"
        return f"offsets beyond {int((self.largest or 0) / self.scale)} bytes of a message do not fit 32 bits"

    @property
    def cells(self) -> int:
        """Return the number of the file's cells of a block."""
        return self.common.cells.chunks * self.program.file_chunks // self.program.nchunks_per_loop

    @property
    def divides(self) -> int:
        """Return of how many bytes (or elements, if the target counts these) a served message must be a multiple."""
        return divisor(self.program, self.target)

    def serves(self, size_bytes: float) -> bool:
        """Return True if the program is for messages of about a size of the problem.

        Its file must take messages that large. Any such size will do for a program with padding, or whose message size
        the executor sees otherwise. Else a size that is no power of two must be a multiple of `divides`. A power of two
        stands for blocks of powers of two of elements of 4 bytes: it must be large enough for `divides` of these (or
        bytes, if the target counts these), and the cells of a block must be a power of two.
        """
        if not self.takes(size_bytes):
            return False
        if self.common.padding or self.scale != 1.0:  # Its blocks differ in size, so any size may be usual.
            return True
        return divides_usual(self.divides, self.cells, self.target, int(size_bytes))

    def unit_bytes(self, _size_bytes: float) -> int:
        """Return the number of bytes of which sizes that it serves, except powers of two, are multiples."""
        return 1 if self.common.padding or self.scale != 1.0 else self.divides

    def served(self, low: int, high: int | None) -> tuple[int, int | None]:
        """Return the sizes (smallest, largest) in bytes that an executor sees if the problem's are `low` to `high`.

        Both ends are inclusive; `high` is None where there is no end, and so is the largest size then. One size (`low`
        equals `high`) that no call has, because it does not divide into the collective's blocks, stands for the sizes
        from the next multiple below to the next above that the file serves. So does one of blocks of different sizes
        that the file does not serve itself.
        """
        first, last = int((low - 1) * self.scale) + 1 if low else 0, None if high is None else int(high * self.scale)
        cell_bytes = self.target.cell_bytes or 1
        blocks = max(1, self.divides // (self.cells * cell_bytes))
        whole = self.divides if self.common.cells.sizes else blocks
        if last is None or low != high or last % whole == 0:
            return first, last
        unit = self.divides * (ELEMENT_BYTES[0] if cell_bytes == 1 else 1)
        below = last // unit * unit
        return max(below, 1), below + unit


def exact_scale(scale: float) -> float:
    """Return a `Lowered.scale` without the rounding of the sums that it comes from.

    It is a quotient of numbers of cells. Programs in which sends begin at the same time are timed by their order, which
    a different last bit of the size changes, by a percent of the time; so all who compute a scale must find the same.
    """
    if abs(scale - 1) < _ROUNDING:
        return 1.0
    quotient = float(Fraction(scale).limit_denominator(_MOST_CELLS))
    return quotient if abs(quotient - scale) < _LAST_BITS * scale else scale


def has_text(execution: object) -> bool:
    """Return True if an execution is a `Lowered` whose file's text is written and checked already."""
    return isinstance(execution, Lowered) and bool(execution.text)


def divides_usual(divides: int, cells: int, target: Target, size: int) -> bool:
    """Return True if a file takes messages of about a size (see `Lowered.serves`).

    Args:
        divides: Number of bytes, or of elements if the target counts these, of which a message must be a multiple.
        cells: Cells of a block.
        target: Executor.
        size: Message size in bytes.
    """
    if size & (size - 1):
        return size % divides == 0
    return divides * (1 if target.cell_bytes else ELEMENT_BYTES[0]) <= size and not cells & (cells - 1)


def blocks_of(problem: Problem) -> int:
    """Return the number of blocks of a message, each of which is cut into the cells of a file; 1 in an allreduce."""
    if problem.collective.kind.unit == BUFFER:
        return 1
    return round(1 / (float(problem.collective.fraction[0]) * problem.collective.chunks))


@dataclass(eq=False)
class LoweredBySize:
    """The programs of an algorithm by message size (see `choose_protocol`).

    Attributes:
        small: Program for messages of up to LL_MOST_BYTES.
        large: Program for messages of any size.
        largest: Program that is faster for the largest messages, if `large` is slower than the algorithm there; else
            None.
    """

    small: Lowered
    large: Lowered
    largest: Lowered | None = None

    def time_us(self, size_bytes: float) -> float:
        """Return the time in µs of the fastest program for messages of `size_bytes`.

        If its file does not take them, it is a million times as long.
        """
        program = self._for(size_bytes)
        return program.time_us(size_bytes) * (1 if program.takes(size_bytes) else _UNABLE)

    def serves(self, size_bytes: float) -> bool:
        """Return True if the fastest program for a size is for messages of about that size (see `Lowered.serves`)."""
        return self._for(size_bytes).serves(size_bytes)

    def unit_bytes(self, size_bytes: float) -> int:
        """Return the `unit_bytes` of the fastest program for a size."""
        return self._for(size_bytes).unit_bytes(size_bytes)

    def able(self, size_bytes: float) -> list[Lowered]:
        """Return the programs that may run messages of `size_bytes`: up to LL_MOST_BYTES only `small`.

        Beyond that they are `large`, then `largest` if there is one, then `small` if it has the protocol of `large`.
        """
        if size_bytes <= LL_MOST_BYTES:
            return [self.small]
        has_one_protocol = self.small.program.protocol == self.large.program.protocol
        return [self.large, *([self.largest] if self.largest else []), *([self.small] if has_one_protocol else [])]

    def _for(self, size_bytes: float) -> Lowered:
        """Return the fastest of the programs that may run messages of `size_bytes`."""
        programs = self.able(size_bytes)
        return min(programs, key=lambda program: program.time_us(size_bytes)) if len(programs) > 1 else programs[0]
