"""Bounds by messages with a gap: by hand, against counting every schedule of messages, and with planted faults."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from synth.bounds.check import check, proved
from synth.bounds.prove import prove
from synth.bounds.search import BoundSearch
from synth.bounds.searches.messages import find_messages, find_messages_with_data
from synth.bounds.witnesses.messages import MessageGaps
from synth.bounds.witnesses.spread import Spread
from synth.model.problem import Problem, make_problem
from tests.combinations import every_other
from tests.synth.engines.messages.answers import answers
from topologies.costed import with_costs
from topologies.errors import BadWitness
from topologies.families import family
from topologies.load import load


def _problem(spec: str, collective: str, group: range | None = None) -> Problem:
    return make_problem(with_costs(load(spec)), collective, group).under("LL")


def _base_us(problem: Problem) -> float:
    return max(proved(problem, witness).base_us for witness in find_messages(BoundSearch(problem)))


COSTS = load("dgx-h100").costs
assert COSTS is not None
LL = COSTS.protocols["LL"]
START_US, INSIDE_US, ALPHA_US, GAP_US = LL.start_us, LL.latency_us["nvlink"], LL.latency_us["network"], 1.0


def test_nodes_of_one_rank_follow_the_recurrence() -> None:
    assert LL.gap_us == {"network": GAP_US}
    assert _base_us(_problem("dgx-h100:2", "allgather", range(0, 16, 8))) == pytest.approx(START_US + ALPHA_US)
    assert _base_us(_problem("dgx-h100:3", "alltoall", range(0, 24, 8))) == pytest.approx(START_US + ALPHA_US + GAP_US)
    fourth_us = min(2 * ALPHA_US, ALPHA_US + 2 * GAP_US)
    assert _base_us(_problem("dgx-h100:4", "reduce", range(0, 32, 8))) == pytest.approx(START_US + fourth_us)
    # The fifth node is reached by a message of the first receiver, or a fourth of the first sender.
    fifth_us = min(2 * ALPHA_US, ALPHA_US + 3 * GAP_US)
    assert _base_us(_problem("dgx-h100:5", "broadcast", range(0, 40, 8))) == pytest.approx(START_US + fifth_us)


def test_eight_nics_reach_eight_nodes_and_pass_on_inside_them() -> None:
    """Check the two sends inside nodes that the 15 messages need besides a second one for each NIC."""
    second_us = ALPHA_US + GAP_US
    assert _base_us(_problem("dgx-h100:16", "broadcast")) == pytest.approx(START_US + 2 * INSIDE_US + second_us)
    assert _base_us(_problem("dgx-h100:2", "broadcast")) == pytest.approx(START_US + INSIDE_US + ALPHA_US)


def test_the_count_of_nodes_begins_anew() -> None:
    spread, fresh = Spread(2, 1, 3.0, 1.0, 0.5), Spread(2, 1, 3.0, 1.0, 0.5)
    spread.least_us(5, 1)
    for nodes in (9, 4):
        assert spread.least_us_of_all(nodes, 40, 2.0) == Spread(2, 1, 3.0, 1.0, 0.5).least_us_of_all(nodes, 40, 2.0)
    assert spread.least_us(7, 2) == fresh.least_us(7, 2)


@pytest.mark.parametrize(("nodes", "alpha", "gap"), [(3, 2, 1), (5, 2, 1), (4, 1, 2), (5, 3, 1), (4, 2, 2)])
def test_no_broadcast_of_messages_is_faster(nodes: int, alpha: int, gap: int) -> None:
    """Check against all schedules of messages at whole times, in which one node after another is informed."""

    @cache
    def informed(free: tuple[int, ...], left: int) -> int:
        """Return the earliest end at which `left` more nodes are informed; free: when each node can send next."""
        if not left:
            return 0
        best = 10**9
        for node, start in enumerate(free):
            arrival = start + alpha
            later = sorted([*free[:node], start + gap, *free[node + 1 :], arrival])
            best = min(best, max(arrival, informed(tuple(later), left - 1)))
        return best

    spec = f"full:{nodes},bw=8,alpha={alpha},gap_us={gap}"
    switch = f"star:{nodes},bw=8,alpha={alpha / 2},gap_us={gap}"
    fewest = informed((0,), nodes - 1)
    assert _base_us(make_problem(with_costs(family(switch)), "broadcast").under("Simple")) == pytest.approx(fewest)
    # Where every pair of ranks has a link of its own, all messages can go at once.
    assert _base_us(make_problem(with_costs(family(spec)), "broadcast").under("Simple")) == pytest.approx(alpha)


def _with_data_us(problem: Problem, size: int) -> float:
    search = BoundSearch(problem, size_bytes=size)
    return max(proved(problem, witness).at(size) for witness in find_messages_with_data(search))


@pytest.mark.parametrize(
    ("spec", "collective", "seconds"),
    [
        # A door passes 1 KB in a µs. Of 3 nodes each has 1/3 of the 3 KB: two messages of 1 µs, 2 µs apart, and α.
        ("star:3,bw=1,alpha=2,gap_us=2", "allgather", 1 + 2 + 1 + 4),
        ("star:3,bw=1,alpha=2,gap_us=2", "reducescatter", 1 + 2 + 1 + 4),
        ("star:3,bw=1,alpha=2,gap_us=2", "alltoall", 1 + 2 + 1 + 4),
        # Two nodes exchange what they have: one message.
        ("star:2,bw=1,alpha=5,gap_us=1", "allgather", 1.5 + 10),
        # Three doors pass two messages and twice the data; the first door can from 0 on, the others from 4 and 6 µs on.
        ("star:3,bw=1,alpha=2,gap_us=2", "broadcast", 4 - 2 + (2 * 3 + 2 * 2 + 4 + 6) / 3),
        ("star:3,bw=1,alpha=2,gap_us=2", "reduce", 4 - 2 + (2 * 3 + 2 * 2 + 4 + 6) / 3),
    ],
)
def test_data_keep_doors_busy(spec: str, collective: str, seconds: float) -> None:
    """Check by hand; time is counted in slots, which takes less than 1 % off."""
    problem = make_problem(with_costs(family(spec)), collective).under("Simple")
    assert seconds * 0.99 <= _with_data_us(problem, 3000) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("place", "collective"),
    every_other(
        [("dgx-h100:4", 8), ("dgx2:3", 8), ("mi300x:3", 2), ("p4d.24xlarge:5", 8), ("ndv2:2", 1)],
        ["allgather", "reducescatter", "alltoall", "broadcast", "reduce", "allreduce"],
    ),
)
def test_no_schedule_with_data_is_faster(place: tuple[str, int], collective: str) -> None:
    machine, stride = place
    topology = load(machine)
    problem = make_problem(with_costs(topology), collective, range(0, topology.nranks, stride)).under("LL")
    size = 1 << (13 + 2 * (len(collective) + stride + len(machine)) % 11)
    least_us = min(algorithm.time_us(size) for algorithm in answers(problem, size))
    assert _with_data_us(problem, size) <= least_us * (1 + 1e-9)
    assert prove(problem, size_bytes=size).at(size)[0] <= least_us * (1 + 1e-9)


def test_a_bound_over_protocols_counts_messages() -> None:
    problem = make_problem(with_costs(load("dgx-h100:4")), "allgather", range(0, 32, 8))
    bound = prove(problem)
    for witness in bound.witnesses:
        check(problem, witness)
    assert bound.at(1024)[1].kind == "messages"


def test_wrong_witnesses_are_refused() -> None:
    problem = _problem("dgx-h100:2", "allgather")
    witness = proved(problem, next(find_messages(BoundSearch(problem))))
    check(problem, witness)
    with_data = proved(problem, next(find_messages_with_data(BoundSearch(problem, size_bytes=1e4))))
    check(problem, with_data)
    for wrong, message in (
        (replace(witness, parts=witness.parts[:1]), "each local rank once"),
        (replace(witness, parts=(witness.parts[0], witness.parts[0])), "each local rank once"),
        (replace(witness, ranks=(16,)), "one rank of the group"),
        (replace(witness, ranks=(0, 1)), "one rank of the group"),
        (replace(witness, base_us=witness.base_us * 1.01), "claims"),
        (replace(witness, per_byte_us=1.0), "claims"),
        (replace(with_data, cap_us=with_data.cap_us * 1.01), "claims"),
        (replace(with_data, at_bytes=2e4), "claims"),
        (replace(with_data, at_bytes=-1.0), "the size is -1 bytes"),
        (replace(with_data, at_bytes=float("nan")), "the size is nan bytes"),
        (replace(with_data, at_bytes=1e300), "the size is 1e\\+300 bytes"),
    ):
        with pytest.raises(BadWitness, match=message):
            check(problem, wrong)


def test_parts_without_a_gap_between_them_prove_nothing() -> None:
    problem = _problem("dgx-h100:2", "allgather")
    halves = tuple(tuple(range(low, low + 4)) for low in range(0, 16, 4))
    assert proved(problem, MessageGaps(ranks=(0,), parts=halves)).base_us == 0.0
