"""Number the multisets of contributions that cells can hold, add them, and compare a final memory with a goal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.executor import Place
from emit.findings import Findings
from emit.goal import Goal
from emit.images import Images, image_of_chunk
from emit.program import BUFFERS
from synth.model.collective import Bools, Ints
from synth.model.deadline import checking_deadline
from topologies.errors import InputError

_SPELT_OUT = 8  # contributions that a message names; the others are counted

NOTHING, GARBAGE, TOO_MANY = 0, 1, 2  # NOTHING is 0, so that it is false.
_SPECIAL = 3


class ProgramContents:
    """The multisets of contributions that occur in a replay, each known by a number; a sum keeps every repetition.

    Number 0 (NOTHING) is an empty cell, 1 (GARBAGE) uninitialised memory that was used.
    A sum of more than `most` contributions becomes 2 (TOO_MANY): reductions only add, so such a sum never meets a goal
    again.

    Attributes:
        goal: The goal that the contents are compared with.
        nchunks: Number of chunks of an input; contribution (source, chunk) is the number source · nchunks + chunk.
        most: Largest number of contributions of a multiset that is tracked.
        contributions: Sorted contributions of each multiset, by its number.
        number: Number of each multiset.
        sums: Number of the sum of two multisets, by their numbers in ascending order.
        ncontributions: Number of contributions in all multisets.
        images: Images of the ranks, if the goal holds only the cells of representatives; else None.
        block: Chunks of a block of the input, as `emit.images.block_of_buffer` returns them.
    """

    def __init__(self, goal: Goal, images: Images | None = None, block: int = 0) -> None:
        self.goal, self.images, self.block = goal, images, block
        self._image_of: dict[tuple[int, int], int] = {}
        self.nchunks = 1 + max(int(goal.initial[4].max(initial=0)), int(goal.sets.chunk.max(initial=0)))
        self.most = max(64, 2 * int(np.diff(goal.sets.start).max(initial=0)))
        self.contributions: list[tuple[int, ...]] = [(), (), ()]
        self.number: dict[tuple[int, ...], int] = {}
        self.sums: dict[tuple[int, int], int] = {}
        self.ncontributions = 0

    def of(self, contributions: tuple[int, ...]) -> int:
        """Return the number of a multiset, given as a sorted tuple of contributions (source · nchunks + chunk).

        A multiset that is new gets the next number.

        Raises:
            InputError: If all multisets have more than CAPACITY.contributions contributions.
        """
        number = self.number.get(contributions)
        if number is None:
            number = self.number[contributions] = len(self.contributions)
            self.contributions.append(contributions)
            self.ncontributions += len(contributions)
            if self.ncontributions > CAPACITY.contributions:
                raise InputError(
                    f"program makes more than {CAPACITY.contributions} different partial sums: too large to replay"
                )
        return number

    def initial(self, rows: Bools | slice = slice(None)) -> list[int]:
        """Return the number of the multiset, of one contribution, that each of some rows of the goal's `initial` holds.

        Args:
            rows: Mask or slice of the rows; all by default.

        Raises:
            InputError: As `of` raises it.
        """
        _, _, _, source, chunk = self.goal.initial
        return [self.of((x,)) for x in (source * self.nchunks + chunk)[rows].tolist()]

    def image(self, number: int, element: int) -> int:
        """Return the number of the image of a multiset under a group element of `images`.

        NOTHING, GARBAGE and TOO_MANY are their own images. Without `images`, only these may be given.

        Raises:
            InputError: As `of` raises it.
        """
        if number < _SPECIAL:
            return number
        image = self._image_of.get((number, element))
        if image is None:
            assert self.images is not None
            source, chunk = np.divmod(np.array(self.contributions[number], dtype=np.int64), self.nchunks)
            source, chunk = self.images.moved(element)[source], image_of_chunk(self.images, self.block, element, chunk)
            image = self.of(tuple(sorted((source * self.nchunks + chunk).tolist())))
            self._image_of[number, element] = image
        return image

    def add(self, a: int, b: int) -> int:
        """Return the number of the sum of the multisets with the numbers `a` and `b`.

        The sum is GARBAGE if one of them is NOTHING or GARBAGE, else TOO_MANY if it has more than `most` contributions.

        Raises:
            InputError: If all multisets have more than CAPACITY.contributions contributions.
        """
        if a > b:
            a, b = b, a
        if a < _SPECIAL:
            return GARBAGE if a in (NOTHING, GARBAGE) else TOO_MANY
        total = self.sums.get((a, b))
        if total is None:
            x, y = self.contributions[a], self.contributions[b]
            total = TOO_MANY if len(x) + len(y) > self.most else self.of(tuple(sorted(x + y)))
            self.sums[a, b] = total
        return total

    def report_wrong(
        self,
        memory: Mapping[int, int],
        first: Ints,
        units: int,
        writer: Callable[[int], Place | None],
        findings: Findings,
        prefix: str = "",
        looked_at: Bools | None = None,
    ) -> None:
        """Add one finding for each required chunk that does not hold each of its contributions exactly once.

        The finding has kind "wrong result" and stands at the last writer of the chunk's first wrong cell, or at the
        chunk's rank if nothing wrote it.

        Args:
            memory: Number of the multiset that each cell holds at the end; a cell that is missing holds nothing.
            first: First cell of each row of the goal's `required`, shape (rows,).
            units: Number of cells of a chunk, which follow each other; each of them must hold the contributions.
            writer: Returns (rank, threadblock, step) of the last writer of a cell; None if nothing wrote it.
            findings: Where the findings are added.
            prefix: Prefix of the messages.
            looked_at: Whether each row is looked at, shape (rows,); None for all rows.

        Raises:
            InputError: As `of` raises it.
        """
        sets = self.goal.sets
        contributions = sets.source * self.nchunks + sets.chunk
        rows = np.arange(len(first)) if looked_at is None else np.flatnonzero(looked_at)
        numbers: dict[int, int] = {}
        columns = zip(rows.tolist(), first[rows].tolist(), self.goal.required[3][rows].tolist(), strict=True)
        for row, first_cell, set_number in checking_deadline(columns, every=256):
            required_number = numbers.get(set_number)
            if required_number is None:
                of_set = slice(sets.start[set_number], sets.start[set_number + 1])
                required_number = numbers[set_number] = self.of(tuple(sorted(contributions[of_set].tolist())))
            if units == 1 and memory.get(first_cell) == required_number:
                continue
            cell = next(
                (x for x in range(first_cell, first_cell + units) if memory.get(x, NOTHING) != required_number), None
            )
            if cell is None:
                continue
            if findings.full("wrong result"):
                findings.add("wrong result", "")
                continue
            rank, code, at = (int(column[row]) for column in self.goal.required[:3])
            name = BUFFERS[code]
            required = self.describe(required_number) + (
                " once each" if len(self.contributions[required_number]) > 1 else ""
            )
            if code == 0 and self.goal.o_in_i[rank] is None:
                required += " (out-of-place, the input must stay as it was)"
            writer_rank, tb, step = writer(cell) or (rank, None, None)
            rank_phrase = "" if writer_rank == rank else f" of rank {rank}"
            holds = self.describe(memory.get(cell, NOTHING), required_number)
            verb = "holds" if tb is None else "is left with"
            message = f"{prefix}{name}[{at}]{rank_phrase} {verb} {holds}; should hold {required}"
            findings.add("wrong result", message, writer_rank, tb, step, (name, at))

    def describe(self, number: int, required: int = NOTHING) -> str:
        """Describe the multiset with a number in words, for a comparison with that of number `required`.

        With NOTHING for `required`, the words name no difference. Of many contributions, only their number or the first
        few are named.
        """
        if number < _SPECIAL:
            return ("nothing", "uninitialised memory", f"more than {self.most} contributions")[number]
        pairs = [divmod(x, self.nchunks) for x in self.contributions[number]]
        chunks = {chunk for _, chunk in pairs}
        if len(pairs) == 1:
            return f"chunk {pairs[0][1]} of rank {pairs[0][0]}"
        if len(chunks) > 1:
            named = ", ".join(f"rank {r} chunk {k}" for r, k in pairs[:_SPELT_OUT])
            unnamed = len(pairs) - _SPELT_OUT
            return f"contributions {named}" + (f" and {unnamed} more" if unnamed > 0 else "")
        ranks = [r for r, _ in pairs]
        if len(ranks) > 4 * _SPELT_OUT:
            return f"{len(ranks)} contributions to chunk {pairs[0][1]}" + self._difference(number, required)
        return f"contributions of ranks {','.join(map(str, ranks))} to chunk {pairs[0][1]}"

    def _difference(self, number: int, required: int) -> str:
        """Describe in words which contributions a multiset has too often and which it lacks, by up to eight ranks each.

        The text is empty if `required` is NOTHING, GARBAGE or TOO_MANY, or if there is no difference.
        """
        if required < _SPECIAL:
            return ""
        actual, expected = Counter(self.contributions[number]), Counter(self.contributions[required])
        parts = []
        for word, extra in (("too many of", actual - expected), ("none of", expected - actual)):
            if extra:
                ranks = (str(x // self.nchunks) for x in sorted(extra.elements())[:_SPELT_OUT])
                parts.append(f"{word} ranks {','.join(ranks)}")
        return f" ({'; '.join(parts)})" if parts else ""
