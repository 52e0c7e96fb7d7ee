"""Trees as a pipelined schedule: what one round of chunks does, one chunk a tree, as often as the message wants.

All rounds are one list schedule in which earlier rounds go first, each in an order that is good for one alone. A link
that has nothing of a round to send serves the next one, so that the message takes little more than what the cut bound
says, and what of one round alone no other could fill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.ordering import Sends
from synth.engines.trees.packing import Tree, depths
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed

_SLACK = 0.7  # of what a round takes: by so much later chunks of the next one are asked for


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


def listed(
    problem: Problem, one: Round, k: int, rounds: int, size_bytes: float, enough_us: float, orders: int, deadline: float
) -> tuple[float, Schedule]:
    """(µs, the schedule, not timed) of so many rounds: the best of some list schedules; `orders` are made at most.

    Two rules: rounds one after another, each in the order that is best for one alone; and the least slack, which comes
    first where sums go up trees before they come down, as links then have much of other rounds to do beside.

    Args:
        problem: one chunk a block. one: of k trees a root.
    """
    sends, period_us = _sends_of_rounds(problem, one, k, rounds, size_bytes, orders)
    turn = np.repeat(np.arange(rounds), len(one.link)) * period_us

    def urgent() -> Iterator[Floats]:
        if one.reduces.any():
            yield sends.chains_us() - _SLACK * turn
        if rounds > 1:
            alone, _ = _sends_of_rounds(problem, one, k, 1, size_bytes / rounds, orders)
            _, rows, start_us = alone.listed([alone.chains_us()], 0.0, deadline=deadline)
            begin_us = np.empty(len(rows))
            begin_us[rows] = start_us
            yield -np.tile(begin_us, rounds) - turn
        if not one.reduces.any():
            yield sends.chains_us() - _SLACK * turn

    took_us, rows, _ = sends.listed(urgent(), enough_us, orders, deadline)
    return took_us, untimed(sends.chunk[rows], sends.link[rows], sends.step[rows], sends.reduces[rows])


def _sends_of_rounds(
    problem: Problem, one: Round, k: int, rounds: int, size_bytes: float, orders: int
) -> tuple[Sends, float]:
    """The sends of so many rounds, each round's after those of the one before; and what a round takes among others."""
    cut, net = problem.with_chunks(k * rounds), csr_network(problem.network)
    many, turn, kilobytes = len(one.link), np.arange(rounds)[:, None], cut.collective.chunk_bytes(size_bytes) * 1e-3
    root, tree = np.divmod(one.tree, k)
    run = choose_runner(1e-5 * many * rounds * orders)
    uses = np.bincount(one.link, minlength=problem.network.nlinks)
    period_us = float((uses / problem.network.bandwidth_gbs).max() * kilobytes[0])
    chunk = ((root * rounds + turn) * k + tree).ravel()
    link, step, reduces = np.tile(one.link, rounds), np.tile(one.step, rounds), np.tile(one.reduces, rounds)
    before, after = (np.asarray(column + turn * many).ravel() for column in (one.before, one.after))
    sends = Sends(
        cut, net, run.table(net), run, kilobytes, chunk, link, step, reduces, before, after, period_us * rounds
    )
    return sends, period_us
