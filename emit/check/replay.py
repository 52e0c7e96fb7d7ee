"""What every cell holds at the end, contribution by contribution."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from emit.check.cells import Cells
from emit.columns import Columns
from emit.findings import Findings
from emit.goal import Goal
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST
from topologies.errors import InputError

MAX_HELD = 1 << 25  # contributions in all different values together
SHOWN = 8  # contributions spelt out in a message

NOTHING, GARBAGE, TOO_MANY = 0, 1, 2
_SPECIAL = 3


class Values:
    """Multisets of contributions, each known by a number; adding two keeps every repetition.

    A sum of more than `most` contributions becomes TOO_MANY: reductions only add, so it can never again be
    what a goal asks for.
    """

    def __init__(self, goal: Goal) -> None:
        self.nchunks = 1 + max(int(goal.initial[4].max(initial=0)), int(goal.sets.chunk.max(initial=0)))
        self.most = max(64, 2 * int(np.diff(goal.sets.start).max(initial=0)))
        self.content: list[tuple[int, ...]] = [(), (), ()]
        self.number: dict[tuple[int, ...], int] = {}
        self.sums: dict[tuple[int, int], int] = {}
        self.held = 0

    def of(self, contributions: tuple[int, ...]) -> int:
        """The number of a sorted tuple of source × nchunks + chunk."""
        number = self.number.get(contributions)
        if number is None:
            number = self.number[contributions] = len(self.content)
            self.content.append(contributions)
            self.held += len(contributions)
            if self.held > MAX_HELD:
                raise InputError(
                    f"program makes more than {MAX_HELD} different partial sums: too large to replay"
                )
        return number

    def add(self, a: int, b: int) -> int:
        """The number of a ⊕ b."""
        if a > b:
            a, b = b, a
        if a < _SPECIAL:
            return GARBAGE if a in (NOTHING, GARBAGE) else TOO_MANY
        total = self.sums.get((a, b))
        if total is None:
            x, y = self.content[a], self.content[b]
            total = TOO_MANY if len(x) + len(y) > self.most else self.of(tuple(sorted(x + y)))
            self.sums[a, b] = total
        return total

    def words(self, number: int, other: int = NOTHING) -> str:
        """What a value is; `other` is what it will be compared with."""
        if number == NOTHING:
            return "nothing"
        if number == GARBAGE:
            return "what stood in uninitialised memory"
        if number == TOO_MANY:
            return f"more than {self.most} contributions"
        pairs = [divmod(x, self.nchunks) for x in self.content[number]]
        chunks = {chunk for _, chunk in pairs}
        if len(pairs) == 1:
            return f"chunk {pairs[0][1]} of rank {pairs[0][0]}"
        if len(chunks) > 1:
            told = ", ".join(f"rank {r} chunk {k}" for r, k in pairs[:SHOWN])
            return f"contributions {told}" + (f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else "")
        ranks = [r for r, _ in pairs]
        if len(ranks) > 4 * SHOWN:
            return f"{len(ranks)} contributions to chunk {pairs[0][1]}" + self._difference(number, other)
        return f"contributions of ranks {','.join(map(str, ranks))} to chunk {pairs[0][1]}"

    def _difference(self, number: int, other: int) -> str:
        if other < _SPECIAL:
            return ""
        mine, theirs = Counter(self.content[number]), Counter(self.content[other])
        more, less = sorted((mine - theirs).elements()), sorted((theirs - mine).elements())
        parts = []
        for word, extra in (("too many of", more), ("none of", less)):
            if extra:
                parts.append(f"{word} ranks {','.join(str(x // self.nchunks) for x in extra[:SHOWN])}")
        return f" ({'; '.join(parts)})" if parts else ""


def replay(c: Columns, order: list[int], cells: Cells, goal: Goal, found: Findings, prefix: str = "") -> None:
    """Execute in `order` (complete and topological) and compare with the goal.

    Raises InputError for a program with more different partial sums than can be held.
    """
    values = Values(goal)
    ranks, buffers, index, source, chunk = goal.initial
    start = (source * values.nchunks + chunk).tolist()
    memory = dict(zip(cells.of(ranks, buffers, index), (values.of((x,)) for x in start), strict=True))
    _execute(c, order, cells, memory, values, found, prefix)
    wrong = _wrong(cells, goal, memory, values)
    if wrong:
        _tell(c, order, cells, goal, memory, values, wrong, found, prefix)


def _execute(
    c: Columns,
    order: list[int],
    cells: Cells,
    memory: dict[int, int],
    values: Values,
    found: Findings,
    prefix: str,
) -> None:
    reads, writes, both = c.is_op(READS_SRC), c.is_op(WRITES_DST), c.is_op(READS_DST)
    kind = list(zip(reads.tolist(), writes.tolist(), both.tolist(), strict=True))
    sends, receives, count = c.sends.tolist(), c.receives.tolist(), c.count.tolist()
    flying: list[deque[int]] = [deque() for _ in c.connections]
    chunk_of = [0] * len(count)
    src, dst, add = cells.src, cells.dst, values.add

    def uninitialised(step: int, chunk: int, is_dst: bool) -> int:
        """Told here; what comes of it is garbage, so that nobody who gets it is told of too."""
        if found.full("read before write"):
            found.add("read before write", "")
            return GARBAGE
        code, at = (c.dst[step], c.dst_at[step]) if is_dst else (c.src[step], c.src_at[step])
        name, where = BUFFERS[int(code)], int(at) + chunk
        found.add(
            "read before write",
            f"{prefix}{OPS[c.op[step]]} reads {name}[{where}], which nothing has written",
            *c.place(step),
            cell=(name, where),
        )
        return GARBAGE

    for step in order:
        out, into = sends[step], receives[step]
        reads_src, writes_dst, reads_dst = kind[step]
        if out < 0 and into < 0:
            for chunk in range(count[step]):
                value = memory.get(src[step] + chunk, NOTHING)
                if value == NOTHING:
                    value = uninitialised(step, chunk, False)
                if reads_dst:
                    old = memory.get(dst[step] + chunk, NOTHING)
                    if old == NOTHING:
                        old = uninitialised(step, chunk, True)
                    value = add(old, value)
                memory[dst[step] + chunk] = value
            continue
        chunk = chunk_of[step]
        chunk_of[step] = chunk + 1
        value = NOTHING
        if reads_src:
            value = memory.get(src[step] + chunk, NOTHING)
            if value == NOTHING:
                value = uninitialised(step, chunk, False)
        if into >= 0:
            came = flying[into].popleft()
            value = add(came, value) if reads_src else came
        if out >= 0:
            flying[out].append(value)
        if writes_dst:
            memory[dst[step] + chunk] = value


def _wrong(cells: Cells, goal: Goal, memory: dict[int, int], values: Values) -> list[tuple[int, int, int]]:
    """(row of `required`, cell, number of what it should hold) wherever it holds something else."""
    sets = goal.sets
    ids = (sets.source * values.nchunks + sets.chunk).tolist()
    bounds = sets.start.tolist()
    number: dict[int, int] = {}
    wrong = []
    for row, (cell, which) in enumerate(
        zip(cells.of(*goal.required[:3]), goal.required[3].tolist(), strict=True)
    ):
        right = number.get(which)
        if right is None:
            right = number[which] = values.of(tuple(sorted(ids[bounds[which] : bounds[which + 1]])))
        if memory.get(cell, NOTHING) != right:
            wrong.append((row, cell, right))
    return wrong


def _tell(
    c: Columns,
    order: list[int],
    cells: Cells,
    goal: Goal,
    memory: dict[int, int],
    values: Values,
    wrong: list[tuple[int, int, int]],
    found: Findings,
    prefix: str,
) -> None:
    """Add what is wrong, at the step that wrote it last."""
    last = _last_writers(c, order, cells, {cell for _, cell, _ in wrong})
    for row, cell, right in wrong:
        if found.full("wrong result"):
            found.add("wrong result", "")
            continue
        rank, code, where = (int(column[row]) for column in goal.required[:3])
        name = BUFFERS[code]
        should = values.words(right) + (" once each" if len(values.content[right]) > 1 else "")
        if code == 0 and goal.o_in_i[rank] is None:
            should += " (out-of-place, the input must stay as it was)"
        tb, position = c.place(last[cell])[1:] if cell in last else (None, None)
        holds = values.words(memory.get(cell, NOTHING), right)
        found.add(
            "wrong result",
            f"{prefix}{name}[{where}] {'holds' if tb is None else 'is left with'} {holds}; should hold {should}",
            rank,
            tb,
            position,
            (name, where),
        )


def _last_writers(c: Columns, order: list[int], cells: Cells, wanted: set[int]) -> dict[int, int]:
    """The step that wrote each of these cells last; none for those that nothing wrote."""
    count = c.count.tolist()
    moves = ((c.sends >= 0) | (c.receives >= 0)).tolist()
    still = (c.op == OPS.index("cpy")) & (np.array(cells.src) == np.array(cells.dst))
    writes = (c.is_op(WRITES_DST) & ~still).tolist()
    chunk_of = [0] * len(count)
    last: dict[int, int] = {}
    for step in order:
        low, high = (chunk_of[step], chunk_of[step] + 1) if moves[step] else (0, count[step])
        chunk_of[step] = high
        if writes[step]:
            for chunk in range(low, high):
                if cells.dst[step] + chunk in wanted:
                    last[cells.dst[step] + chunk] = step
    return last
