"""Trees as a pipelined schedule: a round sends one chunk a tree, and the schedule repeats it for the whole message.

All rounds are one list schedule in which earlier rounds go first, each in an order that is good for one round. A link
that has nothing of a round to send serves the next round, so that the message takes little more than the cut bound plus
the part of one round that no other round could fill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.ordering import OrderedSends
from synth.engines.trees.packing import Tree, depths
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed

_SLACK = 0.7  # part of a round's time by which the chunks of the next round are less urgent


@dataclass(frozen=True, eq=False)
class Round:
    """The sends of one chunk a tree, and their dependencies.

    Attributes:
        tree: Tree of each send, int, shape (sends,).
        link: Link of each send, int, shape (sends,).
        reduces: Whether each send reduces, bool, shape (sends,).
        step: Step of each send, int, shape (sends,); no send waits for a send of its own step or a later one.
        before: The earlier send of each dependency, int, shape (waits,): send after[i] waits for send before[i].
        after: The later send of each dependency, int, shape (waits,).
        ntrees: Number of trees.
    """

    tree: Ints
    link: Ints
    reduces: Bools
    step: Ints
    before: Ints
    after: Ints
    ntrees: int


def one_round(trees: list[Tree], src: Ints, dst: Ints, mirror: Ints | None) -> Round:
    """Return one round of trees over links src→dst, each tree as often as its weight says.

    Args:
        trees: The trees.
        src: Source rank of every link.
        dst: Destination rank of every link.
        mirror: None, or for an all-reduce the reverse of every link: sums go up each tree before results go down.
    """
    sends: list[tuple[int, int, bool, int]] = []
    waits: list[tuple[int, int]] = []
    ntrees = 0
    for tree in trees:
        for _ in range(tree.weight):
            _add_tree(sends, waits, tree, ntrees, (src, dst), mirror)
            ntrees += 1
    columns = np.array(sends, dtype=np.int64).reshape(-1, 4).T
    before, after = np.array(waits, dtype=np.int64).reshape(-1, 2).T
    return Round(columns[0], columns[1], columns[2].astype(bool), columns[3], before, after, ntrees)


def _add_tree(
    sends: list[tuple[int, int, bool, int]],
    waits: list[tuple[int, int]],
    tree: Tree,
    number: int,
    ends: tuple[Ints, Ints],
    mirror: Ints | None,
) -> None:
    """Add the sends and dependencies of one tree."""
    tails, heads = (end[list(tree.arcs)].tolist() for end in ends)
    depth = depths(tree, *ends)
    first = max(depth.values()) if mirror is not None else 0
    inputs_of: dict[int, list[int]] = {}  # rank → the sends that bring its data
    if mirror is not None:
        for arc, tail, head in list(zip(tree.arcs, tails, heads, strict=True))[::-1]:
            waits += [(earlier, len(sends)) for earlier in inputs_of.get(head, ())]
            inputs_of.setdefault(tail, []).append(len(sends))
            sends.append((number, int(mirror[arc]), True, first - depth[head]))
    inputs_of = {tree.root: inputs_of.get(tree.root, [])}
    for arc, tail, head in zip(tree.arcs, tails, heads, strict=True):
        waits += [(earlier, len(sends)) for earlier in inputs_of[tail]]
        inputs_of[head] = [len(sends)]
        sends.append((number, arc, False, first + depth[tail]))


def listed(
    problem: Problem,
    round_of_trees: Round,
    k: int,
    rounds: int,
    size_bytes: float,
    enough_us: float,
    orders: int,
    deadline: float,
) -> tuple[float, Schedule]:
    """Return the time in µs and the untimed schedule of `rounds` rounds, the best of at most `orders` list schedules.

    Two rules are tried: rounds one after another, each in the order that is best for one round; and the least slack.
    The least slack comes first where sums go up trees before results come down, as links then have sends of other
    rounds in between.

    Args:
        problem: A problem with one chunk a block.
        round_of_trees: A round of k trees a root.
        k: Trees a root.
        rounds: Number of rounds.
        size_bytes: Message size in bytes.
        enough_us: A time that need not be improved.
        orders: Most list schedules.
        deadline: Time on the clock `synth.model.deadline.now`.
    """
    sends, period_us = _sends_of_rounds(problem, round_of_trees, k, rounds, size_bytes, orders)
    round_start_us = np.repeat(np.arange(rounds), len(round_of_trees.link)) * period_us

    def urgencies() -> Iterator[Floats]:
        """Yield the urgencies of all sends by each rule."""
        if round_of_trees.reduces.any():
            yield sends.chains_us() - _SLACK * round_start_us
        if rounds > 1:
            one_round_sends, _ = _sends_of_rounds(problem, round_of_trees, k, 1, size_bytes / rounds, orders)
            _, rows, start_us = one_round_sends.listed([one_round_sends.chains_us()], 0.0, deadline=deadline)
            begin_us = np.empty(len(rows))
            begin_us[rows] = start_us
            yield -np.tile(begin_us, rounds) - round_start_us
        if not round_of_trees.reduces.any():
            yield sends.chains_us() - _SLACK * round_start_us

    time_us, rows, _ = sends.listed(urgencies(), enough_us, orders, deadline)
    return time_us, untimed(sends.chunk[rows], sends.link[rows], sends.step[rows], sends.reduces[rows])


def _sends_of_rounds(
    problem: Problem, round_of_trees: Round, k: int, rounds: int, size_bytes: float, orders: int
) -> tuple[OrderedSends, float]:
    """Return the sends of `rounds` rounds, each after the one before, and the time that a round takes among others."""
    cut, net = problem.with_chunks(k * rounds), csr_network(problem.network)
    nsends, round_index, kilobytes = (
        len(round_of_trees.link),
        np.arange(rounds)[:, None],
        cut.collective.chunk_bytes(size_bytes) * 1e-3,
    )
    root, tree = np.divmod(round_of_trees.tree, k)
    run = choose_runner(1e-5 * nsends * rounds * orders)
    uses = np.bincount(round_of_trees.link, minlength=problem.network.nlinks)
    period_us = float((uses / problem.network.bandwidth_gbs).max() * kilobytes[0])
    chunk = ((root * rounds + round_index) * k + tree).ravel()
    link, step, reduces = (
        np.tile(round_of_trees.link, rounds),
        np.tile(round_of_trees.step, rounds),
        np.tile(round_of_trees.reduces, rounds),
    )
    before, after = (
        np.asarray(column + round_index * nsends).ravel() for column in (round_of_trees.before, round_of_trees.after)
    )
    sends = OrderedSends(
        cut, net, run.table(net), run, kilobytes, chunk, link, step, reduces, before, after, period_us * rounds
    )
    return sends, period_us
