"""What every transmission of a program carries and what brought it, and the earliest tick of every step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from emit.check.cells import Cells
from emit.columns import Columns
from emit.program import READS_DST, READS_SRC, WRITES_DST

__all__ = ["Carried", "carried", "ticks", "value_words"]

MAX_HELD = 2_000_000  # contributions in all different sums together; beyond, contents are not told
_SHOWN = 4
_RANKS = 12

Value = tuple[tuple[int, int], ...]  # contributions (rank, place in its input), sorted; empty: not told


@dataclass(frozen=True)
class Carried:
    """By step of the program, for those that send: `values`, one a chunk, and `came`: the sending steps, by number,
    whose transmissions brought what is in them (none for what was there at the start)."""

    values: dict[int, tuple[Value, ...]]
    came: dict[int, tuple[int, ...]]


def ticks(c: Columns, order: list[int]) -> list[int]:
    """The tick of every step in `order` (topological), −1 for all others, if each step took one.

    A receive comes a tick after the send that it meets, a step a tick after the one before it in its threadblock and
    the one that it waits for. FIFO slots hold nobody up.
    """
    tick = [-1] * len(c.op)
    block, start, dep = c.block.tolist(), c.start.tolist(), c.dep.tolist()
    sends, receives = c.sends.tolist(), c.receives.tolist()
    flying: list[deque[int]] = [deque() for _ in c.connections]
    for step in order:
        at = 0
        if step > start[block[step]]:
            at = tick[step - 1] + 1
        if dep[step] >= 0:
            at = max(at, tick[dep[step]] + 1)
        if receives[step] >= 0:
            at = max(at, flying[receives[step]].popleft() + 1)
        if sends[step] >= 0:
            flying[sends[step]].append(at)
        tick[step] = at
    return tick


def carried(c: Columns, order: list[int], cells: Cells) -> Carried:
    """Execute in `order`. A cell that nothing wrote holds a contribution of its rank, named by its place in i."""
    reads, writes, both = (c.is_op(ops).tolist() for ops in (READS_SRC, WRITES_DST, READS_DST))
    sends, receives, count = c.sends.tolist(), c.receives.tolist(), c.count.tolist()
    rank_of = c.rank[c.block].tolist()
    base = cells.base[:, 0].tolist()
    memory: dict[int, tuple[Value, tuple[int, ...]]] = {}
    flying: list[deque[list[tuple[Value, tuple[int, ...]]]]] = [deque() for _ in c.connections]
    out = Carried({}, {})
    held = 0

    def read(cell: int, rank: int) -> tuple[Value, tuple[int, ...]]:
        found = memory.get(cell)
        return found if found is not None else (((rank, cell - base[rank]),), ())

    for step in order:
        rank, into = rank_of[step], receives[step]
        came = flying[into].popleft() if into >= 0 else []
        moved = []
        for i in range(count[step]):
            parts = [came[i]] if i < len(came) else []
            if reads[step]:
                parts.append(read(cells.src[step] + i, rank))
            if both[step]:
                parts.append(read(cells.dst[step] + i, rank))
            if not parts:
                continue
            value, via = parts[0]
            for more, also in parts[1:]:
                value = tuple(sorted(value + more)) if value and more and held < MAX_HELD else ()
                via = tuple(sorted({*via, *also}))
                held += len(value)
            moved.append((value, via))
            if writes[step]:
                memory[cells.dst[step] + i] = value, via
        if sends[step] >= 0:
            out.values[step] = tuple(value for value, _ in moved)
            out.came[step] = tuple(sorted({s for _, via in moved for s in via}))
            # for whoever gets it, it came by this step
            flying[sends[step]].append([(value, (step,)) for value, _ in moved])
    return out


def value_words(values: tuple[Value, ...]) -> str:
    """`rank 3's chunk 5`, `sum of ranks 0–3, chunks 4–7`."""
    if not values or not all(values):
        return "contents not told"
    pieces: list[tuple[tuple[int, ...], list[int]]] = []
    for value in values:
        ranks = tuple(r for r, _ in value)
        places = {place for _, place in value}
        if len(places) > 1:
            pieces.append((ranks, [-1]))
            continue
        place = places.pop()
        if pieces and pieces[-1][0] == ranks and pieces[-1][1][-1] == place - 1:
            pieces[-1][1].append(place)
        else:
            pieces.append((ranks, [place]))
    pieces = _together(pieces)
    words = [_piece(ranks, places) for ranks, places in pieces[:_SHOWN]]
    return "; ".join(words) + (f"; {len(pieces) - _SHOWN} more" if len(pieces) > _SHOWN else "")


def _together(pieces: list[tuple[tuple[int, ...], list[int]]]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Neighbouring ranks' chunks of the same places as one piece, its ranks negative: no sum of them."""
    if len(pieces) < 2 or any(len(ranks) != 1 or places != pieces[0][1] for ranks, places in pieces):
        return pieces
    return [(tuple(-1 - ranks[0] for ranks, _ in pieces), pieces[0][1])]


def _piece(ranks: tuple[int, ...], places: list[int]) -> str:
    if places == [-1]:
        return f"sum of different chunks of ranks {spans(sorted(set(ranks)))}"
    chunks = f"chunk{'s' if len(places) > 1 else ''} {spans(places)}"
    if ranks[0] < 0:
        return f"{chunks} of each of ranks {spans(sorted(-1 - r for r in ranks))}"
    if len(ranks) == 1:
        return f"rank {ranks[0]}'s {chunks}"
    different = sorted(set(ranks))
    twice = sorted({r for r, after in pairwise(ranks) if r == after})
    again = f", rank{'s' if len(twice) > 1 else ''} {spans(twice)} more than once" if twice else ""
    return f"sum over {len(different)} ranks ({spans(different)}{again}) of {chunks}"


def spans(numbers: list[int]) -> str:
    """`0–3, 7` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a}–{b}" for a, b in runs[:_RANKS]]
    return ", ".join(words) + (", …" if len(runs) > _RANKS else "")
