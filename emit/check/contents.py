"""What cells hold, contribution by contribution, and whether that is what a goal asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.executor import Place
from emit.findings import Findings
from emit.goal import Goal
from emit.program import BUFFERS
from topologies.errors import InputError

_SPELT_OUT = 8  # contributions that a message names; the others are counted

NOTHING, GARBAGE, TOO_MANY = 0, 1, 2  # nothing is the one that is false
_SPECIAL = 3


class Contents:
    """Multisets of contributions, each known by a number; adding two keeps every repetition.

    A sum of more than `most` contributions becomes TOO_MANY: reductions only add, so it can never again be
    what a goal asks for.
    """

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.nchunks = 1 + max(int(goal.initial[4].max(initial=0)), int(goal.sets.chunk.max(initial=0)))
        self.most = max(64, 2 * int(np.diff(goal.sets.start).max(initial=0)))
        self.contributions: list[tuple[int, ...]] = [(), (), ()]
        self.number: dict[tuple[int, ...], int] = {}
        self.sums: dict[tuple[int, int], int] = {}
        self.held = 0

    def of(self, contributions: tuple[int, ...]) -> int:
        """The number of a sorted tuple of source × nchunks + chunk."""
        number = self.number.get(contributions)
        if number is None:
            number = self.number[contributions] = len(self.contributions)
            self.contributions.append(contributions)
            self.held += len(contributions)
            if self.held > CAPACITY.contributions:
                raise InputError(
                    f"program makes more than {CAPACITY.contributions} different partial sums: too large to replay"
                )
        return number

    def initial(self) -> list[int]:
        """What each row of the goal's `initial` holds at the start."""
        _, _, _, source, chunk = self.goal.initial
        return [self.of((x,)) for x in (source * self.nchunks + chunk).tolist()]

    def add(self, a: int, b: int) -> int:
        """The number of a ⊕ b."""
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
        first: Sequence[int],
        units: int,
        writers: Callable[[set[int]], Mapping[int, Place]],
        found: Findings,
        prefix: str = "",
    ) -> None:
        """Add a finding for each required chunk that does not hold its contributions once each.

        Args:
            memory: the number of what each cell holds at the end; a cell that is left out holds nothing.
            first, units: the first cell of each row of the goal's `required`, and the cells of a chunk.
            writers: of those of the given cells that were written, who wrote them last.
            prefix: of the messages.
        """
        sets = self.goal.sets
        ids = (sets.source * self.nchunks + sets.chunk).tolist()
        bounds = sets.start.tolist()
        numbers: dict[int, int] = {}
        wrong: list[tuple[int, int, int]] = []  # row, first cell that holds something else, what it should hold
        for row, (cell, which) in enumerate(zip(first, self.goal.required[3].tolist(), strict=True)):
            right = numbers.get(which)
            if right is None:
                right = numbers[which] = self.of(tuple(sorted(ids[bounds[which] : bounds[which + 1]])))
            if units == 1 and memory.get(cell) == right:
                continue
            other = [x for x in range(cell, cell + units) if memory.get(x, NOTHING) != right]
            if other:
                wrong.append((row, other[0], right))
        if not wrong:
            return
        last = writers({cell for _, cell, _ in wrong})
        for row, cell, right in wrong:
            if found.full("wrong result"):
                found.add("wrong result", "")
                continue
            rank, code, at = (int(column[row]) for column in self.goal.required[:3])
            name = BUFFERS[code]
            should = self.describe(right) + (" once each" if len(self.contributions[right]) > 1 else "")
            if code == 0 and self.goal.o_in_i[rank] is None:
                should += " (out-of-place, the input must stay as it was)"
            by, tb, step = last.get(cell, (rank, None, None))
            whose = "" if by == rank else f" of rank {rank}"
            holds = self.describe(memory.get(cell, NOTHING), right)
            verb = "holds" if tb is None else "is left with"
            message = f"{prefix}{name}[{at}]{whose} {verb} {holds}; should hold {should}"
            found.add("wrong result", message, by, tb, step, (name, at))

    def describe(self, number: int, other: int = NOTHING) -> str:
        """A content in words; `other` is what it will be compared with."""
        if number < _SPECIAL:
            return ("nothing", "what stood in uninitialised memory", f"more than {self.most} contributions")[number]
        pairs = [divmod(x, self.nchunks) for x in self.contributions[number]]
        chunks = {chunk for _, chunk in pairs}
        if len(pairs) == 1:
            return f"chunk {pairs[0][1]} of rank {pairs[0][0]}"
        if len(chunks) > 1:
            named = ", ".join(f"rank {r} chunk {k}" for r, k in pairs[:_SPELT_OUT])
            rest = len(pairs) - _SPELT_OUT
            return f"contributions {named}" + (f" and {rest} more" if rest > 0 else "")
        ranks = [r for r, _ in pairs]
        if len(ranks) > 4 * _SPELT_OUT:
            return f"{len(ranks)} contributions to chunk {pairs[0][1]}" + self._difference(number, other)
        return f"contributions of ranks {','.join(map(str, ranks))} to chunk {pairs[0][1]}"

    def _difference(self, number: int, other: int) -> str:
        if other < _SPECIAL:
            return ""
        mine, theirs = Counter(self.contributions[number]), Counter(self.contributions[other])
        parts = []
        for word, extra in (("too many of", mine - theirs), ("none of", theirs - mine)):
            if extra:
                ranks = (str(x // self.nchunks) for x in sorted(extra.elements())[:_SPELT_OUT])
                parts.append(f"{word} ranks {','.join(ranks)}")
        return f" ({'; '.join(parts)})" if parts else ""
