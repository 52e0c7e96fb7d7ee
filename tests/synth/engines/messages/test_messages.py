"""Few messages between nodes: right for every form, collective and group, and few indeed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from synth.engines.flow.csr_network import carrier_network
from synth.engines.messages.exchange import exchanging, factors_of, shards_of
from synth.engines.messages.nodes import nodes_of
from synth.engines.messages.ordering import ordered
from synth.engines.messages.plans import MessagesForm, moving, spreading
from synth.engines.messages.search import accepts
from synth.engines.request import Options
from synth.model.problem import Problem, make_problem
from synth.verify.algorithm import Algorithm
from tests.combinations import every_other
from tests.synth.engines.messages.answers import answers
from topologies.costed import with_costs, without_costs
from topologies.load import load

_KIB = 1024
_COLLECTIVES = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce", "alltoall", "gather", "scatter")
_GROUPS = {
    "dgx-h100:3": tuple(range(24)),
    "dgx-h100:2": (15, 3, 0, 9, 4, 12),
    "dgx-h100:5": (0, 8, 16, 24, 32),
    "dgx-a100:4": (0, 1, 8, 9, 16, 17, 24, 25),
    "ndv2:3": tuple(range(24)),
    "dgx2:2": tuple(range(0, 32, 2)),
}


def _problem(topology: str, collective: str, protocol: str = "LL") -> Problem:
    return make_problem(with_costs(load(topology)), collective, _GROUPS.get(topology)).under(protocol)


@pytest.mark.parametrize(("topology", "collective"), every_other(list(_GROUPS), _COLLECTIVES))
def test_answers_are_right(topology: str, collective: str) -> None:
    problem = _problem(topology, collective)
    assert not accepts(problem, Options())
    assert answers(problem, 8 * _KIB)


def test_shares_of_an_all_reduce_may_be_smaller_than_an_executor_likes() -> None:
    """Check that ranks whose NIC is a relay's have an answer: a chunk for each rank's share is the least there is."""
    problem = make_problem(with_costs(load("ndv2:3")), "allreduce", (1, 5, 9, 13, 17, 21), (0, 8, 16)).under("LL")
    size = 1024 * _KIB
    chunks, least_chunks = ({answer.chunks for answer in answers(problem, size, least)} for least in (None, size))
    assert max(chunks) > 6
    assert least_chunks == {6}


@pytest.mark.parametrize(
    "form", [MessagesForm(3, 8), MessagesForm(2, 2), MessagesForm(3, 1, True), MessagesForm(2, 4), MessagesForm(1, 8)]
)
@pytest.mark.parametrize("waves", [1, 3])
def test_every_form_of_copies_is_right(form: MessagesForm, waves: int) -> None:
    problem = _problem("dgx-h100:3", "allgather")
    nodes = nodes_of(problem.network)
    assert nodes is not None
    schedule = spreading(nodes, problem.collective, form).schedule(waves)
    Algorithm(problem.with_chunks(waves), schedule, "test")
    assert len(schedule) == 24 * 23 * waves  # Every rank gets every chunk once.


@pytest.mark.parametrize("collective", ["allgatherv", "reducescatterv", "gatherv", "scatterv", "alltoallv"])
def test_uneven_answers_are_right(collective: str) -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(0, 50, 8) ** 2 if collective != "alltoallv" else rng.integers(0, 50, (8, 8)) ** 2
    topology = with_costs(load("dgx-a100:4"))
    problem = make_problem(topology, collective, _GROUPS["dgx-a100:4"], sizes=sizes.astype(float)).under("Simple")
    assert answers(problem, 8 * _KIB * _KIB)


def test_in_a_ring_data_leave_the_node_of_their_rank_once_and_links_share_them() -> None:
    topology = with_costs(load("dgx-h100:4"))
    sizes = np.array([70.0, 0, 5, 0, 20, 0, 1, 9] + [0.0] * 23 + [1.0])
    problem = make_problem(topology, "allgatherv", sizes=sizes).under("Simple").with_chunks(8)
    nodes, net, fraction = nodes_of(problem.network), problem.network, problem.collective.fraction
    assert nodes is not None
    schedule = spreading(nodes, problem.collective, MessagesForm(1, 8)).schedule(1)
    Algorithm(problem, schedule, "test")
    between = net.gap_us[schedule.link] > 0
    from_first = between & (nodes.node_of[net.src[schedule.link]] == 0)
    assert Counter(nodes.node_of[net.dst[schedule.link[from_first]]].tolist()).keys() == {1}
    by_link = np.bincount(schedule.link[from_first], fraction[schedule.chunk[from_first]])
    loads = by_link[by_link > 0]
    assert loads.sum() == pytest.approx(1.0)  # Everything but what the second node holds, and that comes from the last.
    assert len(loads) == 8
    assert loads.max() <= 1 / 8 + fraction.max()


def test_one_message_carries_the_data_of_a_node_to_another() -> None:
    """Check all-to-all with one link for each pair of nodes: so many messages, spread over the NICs."""
    problem = _problem("dgx-h100:3", "alltoall")
    nodes = nodes_of(problem.network)
    assert nodes is not None
    schedule = moving(nodes, problem.collective, MessagesForm(3, 1)).schedule(1)
    Algorithm(problem, schedule, "test")
    leaves = np.flatnonzero((problem.network.gap_us[schedule.link] > 0) & ~schedule.joined)
    assert len(leaves) == 3 * 2
    senders = Counter(problem.network.src[schedule.link[leaves]].tolist())
    assert max(senders.values()) == 1


@pytest.mark.parametrize(
    ("topology", "radixes"), [("dgx-h100:3", (3,)), ("dgx-a100:4", (2, 2)), ("dgx2:6", (3, 2)), ("dgx2:6", (2, 3))]
)
def test_places_exchange_their_sums(topology: str, radixes: tuple[int, ...]) -> None:
    problem = _problem(topology, "allreduce")
    nodes = nodes_of(problem.network)
    assert nodes is not None
    plan = exchanging(nodes, MessagesForm(1, 1, exchanged=True, radixes=radixes))
    assert plan is not None
    whole = problem.with_chunks(len(nodes.members[0]))
    assert Algorithm(whole, plan.schedule(1), "test").steps == len(radixes) + 2


@pytest.mark.parametrize(
    ("topology", "radixes", "halved"),
    [
        ("dgx-h100:3", (3,), 1), ("dgx-a100:4", (2, 2), 1), ("dgx-a100:4", (2, 2), 2), ("dgx2:6", (3, 2), 1),
        ("dgx2:6", (2, 3), 2), ("dgx-a100:8", (2, 2, 2), 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("waves", [1, 2])
def test_halved_phases_send_less(topology: str, radixes: tuple[int, ...], halved: int, waves: int) -> None:
    """Check that results are right, and that a place sends the parts that halving leaves to each phase."""
    problem = _problem(topology, "allreduce")
    nodes = nodes_of(problem.network)
    assert nodes is not None
    form = MessagesForm(1, 1, exchanged=True, radixes=radixes, halved=halved)
    plan = exchanging(nodes, form)
    assert plan is not None
    schedule, places = plan.schedule(waves), len(nodes.members[0])
    chunks = places * shards_of(form) * waves
    algorithm = Algorithm(problem.with_chunks(chunks), schedule, "test")
    assert algorithm.steps == len(radixes) + halved + 2
    left = [prod(radixes[: min(phase + 1, halved)]) for phase in range(len(radixes))]
    shares = sum((radix - 1) / parts for radix, parts in zip(radixes, left, strict=True))
    shares += sum((radixes[phase] - 1) / left[phase] for phase in range(halved))
    between = problem.network.gap_us[schedule.link] > 0
    assert between.sum() / chunks == pytest.approx(len(nodes) * shares)


@pytest.mark.parametrize(
    ("topology", "form"),
    [
        ("dgx-h100:4", MessagesForm(1, 2, exchanged=True, radixes=(4,), gathered=True)),
        ("dgx-h100:4", MessagesForm(1, 2, scattered=True, exchanged=True, radixes=(4,), gathered=True)),
        ("dgx-a100:9", MessagesForm(1, 4, exchanged=True, radixes=(3, 3), gathered=True)),
        ("dgx-a100:9", MessagesForm(1, 1, scattered=True, exchanged=True, radixes=(9,), gathered=True)),
        ("dgx-h100:16", MessagesForm(1, 2, scattered=True, exchanged=True, radixes=(4, 4), gathered=True)),
        ("dgx-a100:8", MessagesForm(1, 2, exchanged=True, radixes=(4, 2), gathered=True)),
        ("dgx-a100:8", MessagesForm(1, 2, scattered=True, exchanged=True, radixes=(2, 4), gathered=True)),
        ("dgx-a100:6", MessagesForm(1, 4, exchanged=True, radixes=(3, 2), gathered=True)),
    ],
)
@pytest.mark.parametrize("waves", [1, 2])
def test_a_node_sends_its_sum_from_different_ranks(topology: str, form: MessagesForm, waves: int) -> None:
    problem = _problem(topology, "allreduce")
    nodes = nodes_of(problem.network)
    assert nodes is not None
    plan = exchanging(nodes, form)
    assert plan is not None
    schedule = plan.schedule(waves)
    Algorithm(problem.with_chunks(form.carriers * shards_of(form) * waves), schedule, "test")
    leaves = np.flatnonzero(problem.network.gap_us[schedule.link] > 0)
    leaves = leaves[np.unique(schedule.message[leaves], return_index=True)[1]]
    senders = Counter(problem.network.src[schedule.link[leaves]].tolist())
    assert max(senders.values()) == waves * len(form.radixes)  # One message a rank and phase.


def test_radixes_multiply_to_the_number_of_nodes() -> None:
    nodes = nodes_of(_problem("dgx-h100:3", "allreduce").network)
    assert nodes is not None
    assert exchanging(nodes, MessagesForm(1, 1, exchanged=True, radixes=(2,))) is None
    assert factors_of(16) == [(16,), (8, 2), (4, 4), (4, 2, 2), (2, 2, 2, 2)]
    for count in range(2, 40):
        ways = factors_of(count)
        assert len(ways) == len(set(ways))
        assert all(prod(way) == count and [*way] == sorted(way, reverse=True) for way in ways)


def test_a_message_of_a_node_is_faster_than_one_of_each_rank() -> None:
    """Check an all-gather of five nodes with one rank each, where doubling needs three messages and not four."""
    problem = _problem("dgx-h100:5", "allgather")
    best = min(answers(problem, _KIB), key=lambda algorithm: algorithm.time_us(_KIB))
    direct = problem.network.start_us + problem.network.alpha_us.max() + 3 * 1.0
    assert best.time_us(_KIB) <= direct + 0.2


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (make_problem(without_costs(load("dgx-h100:2")), "allgather"), "need"),
        (make_problem(with_costs(load("dgx-h100")), "allgather").under("LL"), "need"),
        (_problem("dgx-h100:2", "allgather").with_chunks(2), "one chunk a block"),
    ],
)
def test_other_problems_are_refused(problem: Problem, reason: str) -> None:
    assert reason in accepts(problem, Options())


def test_a_pinned_shape_is_refused() -> None:
    assert "leave --chunks" in accepts(_problem("dgx-h100:2", "allgather"), Options(chunks=2))


def test_sums_are_not_added_to_what_a_late_message_replaces() -> None:
    """Check a network with one late link: what other ranks of the node send then comes before the message."""
    problem = _problem("dgx-h100:4", "allreduce")
    net = problem.network
    late = np.flatnonzero((net.gap_us > 0) & (net.dst == 9))
    uneven = replace(problem, network=replace(net, alpha_us=net.alpha_us + 5 * np.isin(np.arange(net.nlinks), late)))
    nodes, form = nodes_of(uneven.network), MessagesForm(1, 2, exchanged=True, radixes=(4,), gathered=True)
    assert nodes is not None
    plan, whole = exchanging(nodes, form), uneven.with_chunks(2)
    assert plan is not None
    in_order = ordered(whole, plan.schedule(1), _KIB, np.zeros(2), carrier_network(whole.network), 8, np.inf)
    Algorithm(whole, in_order, "test", size_bytes=_KIB)
    assert answers(uneven, _KIB)
