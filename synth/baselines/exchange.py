"""Closed forms of exchanges: in every phase members send to partners that a formula names, all that these lack.

An algorithm of this kind is its `Pattern`, stated as an all-gather. Reduce-scatter is the same backwards, allreduce is
both, broadcast and reduce take the tree of the root's own block. Where the phases' partial sums never overlap, an
allreduce also exchanges whole sums, in the phases' reverse order: half the steps, for short messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from synth.baselines.fifo import Unordered, stepped
from synth.baselines.routes import Routes, reverse_links
from synth.baselines.spreading import GATHERING, Messages, added, first_copies, gathered
from synth.model.collective import MAX_ENTRIES, Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from topologies.arrays import positions
from topologies.errors import TooManySends
from topologies.network import Network

Goals = Ints
"""Shape (members,): whom each member sends to, -1: nobody. No member gets from two."""
Phase = Sequence[Goals]
"""What a member sends at once; it depends on earlier phases alone."""
Pattern = Sequence[Phase]
"""The phases of an all-gather, first to last."""

EXCHANGED = (*GATHERING, "broadcast", "reduce")


def exchange_baselines(problem: Problem, engine: str, patterns: Sequence[Pattern], most: int) -> list[Unordered]:
    """The algorithms of some patterns, each of which takes an equal part of every block.

    Partners that are no neighbours send over fixed shortest routes. A block goes on as soon as it is there, so that
    phases may overlap.

    Returns:
        Empty for collectives but allgather, reducescatter, allreduce, broadcast and reduce, and for patterns that do
        not bring all blocks to all members.

    Raises:
        TooManySends: more than `most`.
    """
    k, name = problem.collective.nranks, problem.collective.name
    parts = len(patterns)
    if name not in EXCHANGED or not parts or k * k * parts > MAX_ENTRIES:
        return []
    if name in GATHERING and k * (k - 1) * parts * (2 if name == "allreduce" else 1) > most:
        raise TooManySends(f"baseline: {engine} among {k} ranks has more than {most} sends; use fewer ranks")
    held = [_blocks_sent(pattern, k) for pattern in patterns]
    if not all(len(sent) == k * (k - 1) for sent in held):
        return []

    def spread(net: Network) -> Schedule:
        return _spread(net, k, held, most)

    if name not in GATHERING:
        return [_rooted(problem, engine, held, most)]
    made = [gathered(problem, spread, engine, parts)]
    if name == "allreduce":
        made += _whole_sums(problem, engine, patterns)
    return made


def _blocks_sent(pattern: Pattern, k: int) -> Ints:
    """Rows (phase, from, to, block, place) of all that is sent, in the order of the phases.

    place: how many blocks the sender had when this one came: blocks go on in the order in which they came.
    """
    came = np.where(np.eye(k, dtype=bool), 0, -1)
    count = np.ones(k, dtype=np.int64)
    rows = [np.zeros((0, 5), dtype=np.int64)]
    for number, phase in enumerate(pattern):
        before = came.copy()
        for goals in phase:
            at = np.flatnonzero(goals >= 0)
            goal = goals[at]
            message, block = np.nonzero((before[at] >= 0) & (came[goal] < 0))
            place = before[at[message], block]
            order = np.lexsort((place, message))
            message, block, place = message[order], block[order], place[order]
            sent = np.bincount(message, minlength=len(at))
            came[goal[message], block] = count[goal[message]] + positions(sent)
            count[goal] += sent
            rows.append(np.column_stack([np.full(len(block), number), at[message], goal[message], block, place]))
    return np.concatenate(rows)


def _spread(net: Network, k: int, held: Sequence[Ints], most: int) -> Schedule:
    """All patterns side by side; chunk b · patterns + i is the part of block b that the i-th pattern carries."""
    rows = np.concatenate([np.column_stack([sent, np.full(len(sent), part)]) for part, sent in enumerate(held)])
    messages = Messages(Routes(net, np.arange(k), most))
    for now in np.unique(rows[:, 0]):
        _, at, goal, block, place, part = rows[rows[:, 0] == now].T
        messages.phase(block * len(held) + part, at, goal, place)
    return messages.copies()


def _rooted(problem: Problem, engine: str, held: Sequence[Ints], most: int) -> Unordered:
    """A broadcast, or a reduce, along the trees of the root's own block."""
    cut = problem.with_chunks(len(held))
    k = cut.collective.nranks
    root = np.full(len(held), cut.collective.root)
    own = [sent[sent[:, 3] == cut.collective.root] * (1, 1, 1, 0, 1) for sent in held]
    if cut.collective.name == "broadcast":
        return stepped(cut, first_copies(cut, cut.network, _spread(cut.network, k, own, most), root), engine)
    return stepped(cut, added(cut, _spread(reverse_links(cut.network), k, own, most), root), engine)


def _whole_sums(problem: Problem, engine: str, patterns: Sequence[Pattern]) -> list[Unordered]:
    """Exchanges of all that is summed so far, the last phase first; none where parts would be added twice."""
    if not all(_adds_once(pattern, problem.collective.nranks) for pattern in patterns):
        return []
    routes = Routes(problem.network, np.arange(problem.collective.nranks))
    columns = []
    for part, pattern in enumerate(patterns):
        for step, phase in enumerate(reversed(pattern)):
            for goals in phase:
                at = np.flatnonzero(goals >= 0)
                if (routes.hops(at, goals[at]) != 1).any():
                    return []
                columns.append(np.array([np.full(len(at), part), routes.link(at, goals[at]), np.full(len(at), step)]))
    chunk, link, step = np.concatenate(columns, axis=1)
    order = np.argsort(step, kind="stable")
    whole = untimed(chunk[order], link[order], step[order], np.ones(len(order), dtype=bool))
    return [stepped(problem.with_chunks(len(patterns)), whole, engine)]


def _adds_once(pattern: Pattern, k: int) -> bool:
    """Whether sums of sums, phase by phase from the last to the first, hold every contribution once in the end."""
    sums = np.eye(k, dtype=np.int64)
    for phase in reversed(pattern):
        before, sums = sums, sums.copy()
        for goals in phase:
            at = np.flatnonzero(goals >= 0)
            sums[goals[at]] += before[at]
        if sums.max() > 1:
            return False
    return bool((sums == 1).all())


def along(extents: Sequence[int], dimension: int, goals: Goals) -> Goals:
    """Goals among `extents[dimension]` places, on every line of a grid in that dimension.

    Args:
        goals: shape (extents[dimension],), -1: nobody.

    Returns:
        Shape (members,), members numbered by coordinates, the last counting fastest.
    """
    stride, extent = math.prod(extents[dimension + 1 :]), extents[dimension]
    member = np.arange(math.prod(extents))
    digit = member // stride % extent
    return np.asarray(np.where(goals[digit] < 0, -1, member + (goals[digit] - digit) * stride))


def mirrored(goals: Goals) -> Goals:
    """The same on a ring in the other direction, place 0 where it was."""
    back = -np.arange(len(goals)) % len(goals)
    return np.asarray(np.where(goals[back] < 0, -1, -goals[back] % len(goals)))


def in_turns(lines: Sequence[Pattern], extents: Sequence[int], first: int) -> Pattern:
    """Phases of one pattern a dimension, in turns as far as each has any, so that they end with the dimension `first`.

    lines[d] is a pattern among extents[d] places.
    """
    order = [(first + i) % len(extents) for i in range(len(extents))]
    longest = max(map(len, lines))
    return [
        [along(extents, d, goals) for goals in lines[d][at]]
        for back in range(longest, 0, -1)
        for d in reversed(order)
        if (at := len(lines[d]) - back) >= 0
    ]


def fewest(base: int, places: int) -> int:
    """The fewest phases whose members multiply by `base` each time that reach so many places."""
    phases = 0
    while base**phases < places:
        phases += 1
    return phases
