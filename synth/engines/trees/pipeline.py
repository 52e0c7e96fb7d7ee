"""Trees as a pipelined schedule: a round sends one chunk a tree, and the schedule repeats it for the whole message.

All rounds are one list schedule in which earlier rounds go first, each in an order that is good for one round. A link
that has nothing of a round to send serves the next round, so that the message takes little more than the cut bound plus
the part of one round that no other round could fill.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.ordering import OrderedSends
from synth.engines.flow.tree_sends import Sends, no_trees, tree_sends
from synth.engines.trees.packing import Tree
from synth.model.collective import Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers
from topologies.network import Network

_SLACK = 0.7  # part of a round's time by which the chunks of the next round are less urgent


def one_round(net: Network, trees: list[Tree], mirror: Ints | None) -> Sends:
    """Return one round: one chunk a tree, each tree as often as its weight says; chunks are numbered as the trees.

    Args:
        net: The network.
        trees: The trees, whose arcs are links of the network.
        mirror: None, or for an all-reduce the reverse of every link: sums go up each tree before results go down.
    """
    ptr = pointers(np.array([len(tree.arcs) for tree in trees for _ in range(tree.weight)]))
    arcs = np.array([arc for tree in trees for arc in tree.arcs * tree.weight], dtype=np.int64)
    gather = no_trees(len(ptr) - 1) if mirror is None else (ptr, mirror[arcs])
    return tree_sends(choose_runner(1e-6 * len(arcs)), csr_network(net), gather, (ptr, arcs))


def listed(
    problem: Problem,
    round_of_trees: Sends,
    k: int,
    rounds: int,
    size_bytes: float,
    enough_us: float,
    orders: int,
    deadline: float,
) -> tuple[float, Schedule]:
    """Return the time in µs and the untimed schedule of `rounds` rounds, the best of about `orders` list schedules.

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
        orders: List schedules after which the best one is the answer.
        deadline: Time on the clock `synth.model.deadline.now` at which the best so far is the answer; one list schedule
            is made even after it.
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
    return time_us, sends.schedule(rows)


def _sends_of_rounds(
    problem: Problem, round_of_trees: Sends, k: int, rounds: int, size_bytes: float, orders: int
) -> tuple[OrderedSends, float]:
    """Return the sends of `rounds` rounds, and the time in µs that a round takes among others on its busiest link.

    The sends are those of one round after another. The arguments are those of `listed`.
    """
    single, nsends, number = round_of_trees, len(round_of_trees.link), np.arange(rounds)[:, None]
    problem_of_rounds = problem.with_chunks(k * rounds)
    chunk_kb = float(problem_of_rounds.collective.chunk_bytes(size_bytes)[0]) * 1e-3
    uses = np.bincount(single.link, minlength=problem.network.nlinks)
    period_us = float((uses / problem.network.bandwidth_gbs).max() * chunk_kb)
    root, tree = np.divmod(single.chunk, k)
    sends = Sends(
        ((root * rounds + number) * k + tree).ravel(),
        np.tile(single.link, rounds),
        np.tile(single.step, rounds),
        np.tile(single.reduces, rounds),
        (single.before + number * nsends).ravel(),
        (single.after + number * nsends).ravel(),
    )
    run = choose_runner(1e-5 * nsends * rounds * orders)
    net = csr_network(problem.network)
    return OrderedSends(problem_of_rounds, size_bytes, sends, run, net, period_us * rounds), period_us
