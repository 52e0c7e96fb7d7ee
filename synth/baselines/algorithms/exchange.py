"""Closed forms of exchanges: in every phase members send to partners that a formula names what these lack.

An algorithm of this kind is its `Pattern`, stated as an all-gather. Reduce-scatter is the same backwards, allreduce is
both, broadcast and reduce take the tree of the root's own block. Where the phases' partial sums never overlap, an
allreduce also exchanges whole sums, in the phases' reverse order: half the steps, for short messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from synth.baselines.algorithms.spreading import GATHERING, SpreadMessages, added, first_copies, gathered
from synth.baselines.fifo import Unordered, stepped
from synth.baselines.routes import Routes
from synth.model.collective import MAX_ENTRIES, Ints
from synth.model.deadline import checking_deadline
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from topologies.arrays import positions
from topologies.errors import TooManySends
from topologies.network import Network

Goals = Ints
"""Rank to which each member sends, shape (members,); -1: none. No member receives from two."""
Phase = Sequence[Goals]
"""Sends of a member that start at once; they depend on earlier phases only."""
Pattern = Sequence[Phase]
"""The phases of an all-gather, first to last."""

EXCHANGED = (*GATHERING, "broadcast", "reduce")


def exchange_baselines(problem: Problem, engine: str, patterns: Sequence[Pattern], most: int) -> list[Unordered]:
    """Build the algorithms of some patterns, each of which takes an equal part of every block.

    Partners that are not neighbours send over fixed shortest routes. A block goes on as soon as it arrives, so phases
    may overlap.

    Args:
        problem: The problem with one chunk a block.
        engine: Name of the algorithms.
        patterns: Patterns that run at once.
        most: Most sends.

    Returns:
        One plan, and for an allreduce a second one where whole sums can be exchanged. Empty for collectives other than
        allgather, reducescatter, allreduce, broadcast and reduce, for groups that are too large, and for patterns that
        do not bring all blocks to all members.

    Raises:
        NoRoute: Two partners have no route.
        TooManySends: There are more than `most` sends.
    """
    k, name = problem.collective.nranks, problem.collective.name
    parts = len(patterns)
    if name not in EXCHANGED or not parts or k * k * parts > MAX_ENTRIES:
        return []
    if name in GATHERING and k * (k - 1) * parts * (2 if name == "allreduce" else 1) > most:
        raise TooManySends(f"baseline: {engine} among {k} ranks has more than {most} sends; use fewer ranks")
    blocks_sent = [_blocks_sent(pattern, k) for pattern in patterns]
    if not all(len(sent) == k * (k - 1) for sent in blocks_sent):
        return []

    def spread(net: Network) -> Schedule:
        """Build the all-gather of all patterns over a network."""
        return _spread(net, k, blocks_sent, most)

    if name not in GATHERING:
        return [_rooted(problem, engine, blocks_sent, most)]
    plans = [gathered(problem, spread, engine, parts)]
    if name == "allreduce":
        plans += _whole_sums(problem, engine, patterns)
    return plans


def _blocks_sent(pattern: Pattern, k: int) -> Ints:
    """Return rows (phase, from, to, block, place) of all that is sent among k members, in the order of the phases.

    At the start member i has block i. In a phase a member sends each of its goals all blocks that it had before the
    phase and the goal lacks. The place is the number of blocks that the sender had when this one came: blocks go on in
    the order in which they came.

    Args:
        pattern: The pattern.
        k: Number of members.

    Returns:
        Shape (blocks sent, 5), int.
    """
    place_of_block = np.where(np.eye(k, dtype=bool), 0, -1)
    count = np.ones(k, dtype=np.int64)
    rows = [np.zeros((0, 5), dtype=np.int64)]
    for number, phase in checking_deadline(enumerate(pattern)):
        before = place_of_block.copy()
        for goals in phase:
            at = np.flatnonzero(goals >= 0)
            goal = goals[at]
            message, block = np.nonzero((before[at] >= 0) & (place_of_block[goal] < 0))
            place = before[at[message], block]
            order = np.lexsort((place, message))
            message, block, place = message[order], block[order], place[order]
            sent = np.bincount(message, minlength=len(at))
            place_of_block[goal[message], block] = count[goal[message]] + positions(sent)
            count[goal] += sent
            rows.append(np.column_stack([np.full(len(block), number), at[message], goal[message], block, place]))
    return np.concatenate(rows)


def _spread(net: Network, k: int, blocks_sent: Sequence[Ints], most: int) -> Schedule:
    """Build all patterns at once; chunk b · patterns + i is the part of block b that the i-th pattern carries.

    Args:
        net: The network.
        k: Number of members.
        blocks_sent: What each pattern sends, as `_blocks_sent` returns it.
        most: Most sends of a phase.

    Returns:
        An untimed schedule, in the order of its steps.

    Raises:
        NoRoute: Two partners have no route.
        TooManySends: A phase has more than `most` sends.
    """
    rows = np.concatenate([np.column_stack([sent, np.full(len(sent), part)]) for part, sent in enumerate(blocks_sent)])
    messages = SpreadMessages(Routes(net, np.arange(k), most))
    for phase in checking_deadline(np.unique(rows[:, 0])):
        _, at, goal, block, place, part = rows[rows[:, 0] == phase].T
        messages.phase(block * len(blocks_sent) + part, at, goal, place)
    return messages.copies()


def _rooted(problem: Problem, engine: str, blocks_sent: Sequence[Ints], most: int) -> Unordered:
    """Build a broadcast, or a reduce, along the trees of the root's own block.

    The i-th part of the root's buffer takes the i-th pattern.

    Args:
        problem: A problem of broadcast or reduce with one chunk a block.
        engine: Name of the algorithm.
        blocks_sent: What each pattern sends, as `_blocks_sent` returns it.
        most: Most sends of a phase.

    Raises:
        NoRoute: Two partners have no route.
        TooManySends: A phase has more than `most` sends.
    """
    cut = problem.with_chunks(len(blocks_sent))
    k = cut.collective.nranks
    root = np.full(len(blocks_sent), cut.collective.root)
    own = [sent[sent[:, 3] == cut.collective.root] * (1, 1, 1, 0, 1) for sent in blocks_sent]
    if cut.collective.name == "broadcast":
        return stepped(cut, first_copies(cut, cut.network, _spread(cut.network, k, own, most), root), engine)
    return stepped(cut, added(cut, _spread(cut.network.reversed(), k, own, most), root), engine)


def _whole_sums(problem: Problem, engine: str, patterns: Sequence[Pattern]) -> list[Unordered]:
    """Build the allreduce that exchanges all that is summed so far, the last phase first, as a list of one plan.

    The i-th part of the buffer takes the i-th pattern. The list is empty where contributions would be added twice or be
    missing, or where partners are not neighbours.

    Args:
        problem: A problem of an allreduce with one chunk a block.
        engine: Name of the algorithm.
        patterns: The patterns.
    """
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
    """Return True if sums of sums, from the last phase to the first, contain every contribution once in the end.

    In a phase a member adds what its partners had before the phase. `k` is the number of members.
    """
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
    """Return goals on every line of a grid in a dimension, from goals among `extents[dimension]` places.

    Args:
        extents: Extents of the grid's dimensions.
        dimension: The dimension of the lines.
        goals: Place to which each place sends, shape (extents[dimension],), -1: nobody.

    Returns:
        Member to which each member sends, shape (members,), -1: nobody. Members are numbered by coordinates, the last
        counting fastest.
    """
    stride, extent = math.prod(extents[dimension + 1 :]), extents[dimension]
    member = np.arange(math.prod(extents))
    digit = member // stride % extent
    return np.asarray(np.where(goals[digit] < 0, -1, member + (goals[digit] - digit) * stride))


def mirrored(goals: Goals) -> Goals:
    """Return the goals on a ring in the other direction, shape (places,); place 0 stays.

    Where place i sends to j, place -i now sends to -j, modulo the places. -1 (nobody) stays -1.
    """
    back = -np.arange(len(goals)) % len(goals)
    return np.asarray(np.where(goals[back] < 0, -1, -goals[back] % len(goals)))


def in_turns(lines: Sequence[Pattern], extents: Sequence[int], first: int) -> Pattern:
    """Return one pattern of a pattern per dimension, one dimension after another, that ends with dimension `first`.

    Each round has a phase of every dimension, in descending order, cyclically. The last phases of all patterns are the
    last round, so shorter patterns leave out the first rounds.

    Args:
        lines: lines[d] is a pattern among extents[d] places.
        extents: Extents of the grid's dimensions.
        first: Dimension of the last phase.
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
    """Return the fewest phases that reach so many places from one, if each multiplies the reached ones by `base`.

    It is 0 for one place.
    """
    phases = 0
    while base**phases < places:
        phases += 1
    return phases
