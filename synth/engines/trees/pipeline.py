"""Trees as a pipelined schedule: what one round of chunks does, one chunk a tree, repeated at a fixed period.

Every link has as many slots in a period as trees use it, and each use keeps one of them, round after round, so that no
round waits for another: the message takes the rounds times the period, which is what the cut bound says, and the time
that the first chunk takes (Rau's modulo scheduling, 1981, for a network).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from synth.engines.trees.packing import Tree, depths
from synth.model.collective import Bools, Floats, Ints
from synth.model.schedule import Schedule, untimed
from topologies.arrays import grouped

_ROUND_OFF = 1e-9


@dataclass(frozen=True, eq=False)
class Round:
    """The sends of one chunk a tree, and what they wait for.

    Attributes:
        tree, link: int, shape (sends,). reduces: bool, shape (sends,).
        step: int, shape (sends,): no send waits for one of its own step or a later one.
        before, after: int, shape (waits,): send after[i] waits for send before[i].
        ntrees: how many.
    """

    tree: Ints
    link: Ints
    reduces: Bools
    step: Ints
    before: Ints
    after: Ints
    ntrees: int


def one_round(trees: list[Tree], src: Ints, dst: Ints, mirror: Ints | None) -> Round:
    """One round of trees over links src→dst, each as often as its weight says.

    mirror: None, or for an all-reduce the link back of every link: sums come up each tree before they go down it.
    """
    sends: list[tuple[int, int, bool, int]] = []
    waits: list[tuple[int, int]] = []
    many = 0
    for one in trees:
        for _ in range(one.weight):
            _add_tree(sends, waits, one, many, (src, dst), mirror)
            many += 1
    columns = np.array(sends, dtype=np.int64).reshape(-1, 4).T
    before, after = np.array(waits, dtype=np.int64).reshape(-1, 2).T
    return Round(columns[0], columns[1], columns[2].astype(bool), columns[3], before, after, many)


def _add_tree(
    sends: list[tuple[int, int, bool, int]],
    waits: list[tuple[int, int]],
    one: Tree,
    number: int,
    ends: tuple[Ints, Ints],
    mirror: Ints | None,
) -> None:
    tails, heads = (end[list(one.arcs)].tolist() for end in ends)
    depth = depths(one, *ends)
    first = max(depth.values()) if mirror is not None else 0
    came: dict[int, list[int]] = {}  # the sends that bring to a rank what it sends on
    if mirror is not None:
        for arc, tail, head in list(zip(one.arcs, tails, heads, strict=True))[::-1]:
            waits += [(other, len(sends)) for other in came.get(head, ())]
            came.setdefault(tail, []).append(len(sends))
            sends.append((number, int(mirror[arc]), True, first - depth[head]))
    came = {one.root: came.get(one.root, [])}
    for arc, tail, head in zip(one.arcs, tails, heads, strict=True):
        waits += [(other, len(sends)) for other in came[tail]]
        came[head] = [len(sends)]
        sends.append((number, arc, False, first + depth[tail]))


class Slots:
    """Free slots of every link in a period."""

    def __init__(self, count: Ints) -> None:
        self.next = [
            list(range(n)) for n in count.tolist()
        ]  # the first slot from each on that is free, as far as known
        self.taken = [0] * len(count)

    def take(self, link: int, earliest: int) -> int:
        """The first slot from `earliest` on, counted over all periods, that is free in every period."""
        free, n = self.next[link], len(self.next[link])
        if self.taken[link] == n:
            raise ValueError("a link has no slot left")
        self.taken[link] += 1
        at = earliest
        while free[at % n] != at % n:
            # a jump to the slot that is known to be no earlier than the first free one
            at += (free[at % n] - at) % n or n
        free[at % n] = (at + 1) % n
        return at


def offsets_us(one: Round, hold_us: Floats, alpha_us: Floats, period_us: float, *, urgent_first: bool) -> Floats:
    """When each send of the first round starts: in a slot of its own, which it may keep every period.

    Which send chooses its slot first: of those that could go, that which could go first, or (urgent_first) that with
    most steps behind it. The first on a link says where in the period the link's slots begin.

    Args:
        hold_us, alpha_us: of every link, for a chunk.
        period_us: in which every link can serve all sends of a round over it.
    """
    count = len(one.link)
    ptr, following = grouped(one.before, count)
    following = one.after[following]
    left = np.bincount(one.after, minlength=count).tolist()
    links, ready = one.link.tolist(), [0.0] * count
    slots = np.maximum(1, np.floor(period_us / hold_us + _ROUND_OFF)).astype(np.int64)  # 1 of a link that none uses
    grid = (period_us / slots).tolist()
    hold, alpha, first = hold_us.tolist(), alpha_us.tolist(), _steps_behind(one).tolist()
    free, phases = Slots(slots), dict[int, float]()
    heap = [(-first[i], 0.0, i) if urgent_first else (0.0, -first[i], i) for i in range(count) if not left[i]]
    heapify(heap)
    found = np.zeros(count)
    pointers, after = ptr.tolist(), following.tolist()
    while heap:
        i = heappop(heap)[2]
        link, at = links[i], ready[i]
        phase = phases.setdefault(link, at % grid[link])
        slot = free.take(link, max(0, math.ceil((at - phase) / grid[link] - _ROUND_OFF)))
        found[i] = max(at, phase + slot * grid[link])
        end = found[i] + hold[link] + alpha[link]
        for other in after[pointers[i] : pointers[i + 1]]:
            ready[other] = max(ready[other], end)
            left[other] -= 1
            if not left[other]:
                key = (-first[other], ready[other]) if urgent_first else (ready[other], -first[other])
                heappush(heap, (*key, other))
    return found


def _steps_behind(one: Round) -> Ints:
    """How many sends the longest chain has that waits for each send."""
    behind = np.zeros(len(one.link), dtype=np.int64)
    order = np.argsort(-one.step[one.after], kind="stable")  # what waits for a send has a later step
    for before, after in zip(one.before[order].tolist(), one.after[order].tolist(), strict=True):
        behind[before] = max(behind[before], behind[after] + 1)
    return behind


def repeated(one: Round, offset_us: Floats, period_us: float, rounds: int, chunk: Ints) -> Schedule:
    """`rounds` rounds, each a period after the one before; tree t's chunk in round j is chunk[t] + j. Not timed."""
    turn = np.floor(offset_us / period_us + _ROUND_OFF).astype(np.int64)
    order = np.lexsort((one.step, offset_us - turn * period_us))
    turn = turn[order]
    period, place = np.nonzero(_running(turn, rounds))
    row = order[place]
    return untimed(chunk[one.tree[row]] + period - turn[place], one.link[row], one.step[row], one.reduces[row])


def _running(turn: Ints, rounds: int) -> Bools:
    """Which sends of a round run in each period, shape (periods, sends)."""
    number = np.arange(rounds + int(turn.max(initial=0)))[:, None] - turn
    return (number >= 0) & (number < rounds)
