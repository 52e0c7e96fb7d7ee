"""Bounds by what nodes know: by hand, against all small schedules and many random ones, and with planted faults."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from synth.baselines import baseline
from synth.bounds.check import check, proved
from synth.bounds.parts import find_parts_with_steps
from synth.bounds.prove import prove
from synth.bounds.search import BoundSearch
from synth.bounds.searches.messages import find_knowledge
from synth.bounds.witnesses.knowledge import Knowledge
from synth.model.problem import Problem, make_problem
from synth.phases.reversal import reverse
from synth.timing.simulate import predict_us
from tests.oracles.exhaustive import fastest
from tests.random_problems import random_topology
from tests.synth.bounds.cases import SEEDS, never_beaten
from tests.synth.bounds.gossip import random_cluster, random_schedules
from tests.synth.bounds.test_hyperlinks import every_schedule
from topologies.costed import with_costs
from topologies.costs import LINK_KINDS, Costs, Protocol
from topologies.errors import BadWitness, InputError
from topologies.families import family
from topologies.load import load


def _least_us(problem: Problem, size: float) -> float:
    search = BoundSearch(problem, size_bytes=size)
    return max((proved(problem, witness).at(size) for witness in find_knowledge(search)), default=0.0)


def _star(spec: str, collective: str) -> Problem:
    return make_problem(with_costs(family(spec)), collective).under("Simple")


@pytest.mark.parametrize(
    ("spec", "collective", "microseconds"),
    [
        # A door passes 1 KB in a µs, and α is longer than everything else: all is sent by those that have it at first.
        ("star:2,bw=1,alpha=50,gap_us=2", "broadcast", 3 + 100),
        ("star:3,bw=1,alpha=50,gap_us=2", "broadcast", 3 + 2 + 3 + 100),
        ("star:3,bw=1,alpha=50,gap_us=2", "reduce", 3 + 2 + 3 + 100),
        ("star:3,bw=1,alpha=50,gap_us=2", "allgather", 1 + 2 + 1 + 100),
        ("star:3,bw=1,alpha=50,gap_us=2", "reducescatter", 1 + 2 + 1 + 100),
        ("star:3,bw=1,alpha=50,gap_us=2", "allreduce", 3 + 2 + 3 + 100),
        # Where each pair of nodes has a link of its own, a node sends to all others at once.
        ("full:3,bw=1,alpha=50,gap_us=2", "broadcast", 3 + 50),
        ("full:3,bw=1,alpha=50,gap_us=2", "reduce", 3 + 50),
        ("full:3,bw=1,alpha=50,gap_us=2", "allgather", 1 + 50),
        ("full:3,bw=1,alpha=50,gap_us=2", "allreduce", 3 + 50),
        # The bound does not know that one message cannot serve both goals.
        ("star:3,bw=1,alpha=50,gap_us=2", "scatter", 2 + 100),
    ],
)
def test_what_is_known_at_first_is_sent_directly(spec: str, collective: str, microseconds: float) -> None:
    """Check by hand; time is counted in slots, which takes less than 1 % off."""
    least_us = _least_us(_star(spec, collective), 3000)
    assert microseconds * 0.99 <= least_us <= microseconds * (1 + 1e-9)


def test_what_comes_is_passed_on_as_fast_as_it_is_known() -> None:
    """Check the second hop of a broadcast against the integral, from 0 on, of the root's rate and of the others'."""
    size_us, alpha, gap, nodes = 40.0, 10.0, 2.0, 9
    own = size_us / (size_us + gap)
    times = np.linspace(0, 2 * alpha, 200_001)
    # Until 2α what the others know comes from the root only: they have an equal part each.
    other = np.minimum(own * (np.maximum(times - alpha, 0) + gap), np.maximum(times - alpha, 0)) / (nodes - 1)
    told = np.cumsum(own + (nodes - 1) * other / (other + gap)) * times[1]
    # The second hop brings about so much by 3α; what is known between 2α and 2α + g is that of 2α.
    by_30_us = told[-1] + gap * (own + (nodes - 1) * other[-1] / (other[-1] + gap))
    scale = by_30_us / (size_us * (nodes - 1))
    assert scale < 1  # All nodes lack more than that at 3α.
    problem = _star(f"star:{nodes},bw=1,alpha={alpha / 2},gap_us={gap}", "broadcast")
    assert _least_us(problem, size_us * 1e3) > 3 * alpha


def _known_at_random(rng: random.Random) -> Problem:
    """Return a problem with gaps on all links, for every kind of link and every sort of group."""
    topology = random_topology(rng, 5)
    costs = Costs({"Simple": Protocol(gap_us=dict.fromkeys(LINK_KINDS, rng.choice((0.3, 1.0, 4.0))))})
    ranks = range(topology.nranks)
    group = sorted(rng.sample(ranks, rng.randint(2, topology.nranks)))
    relays = [rank for rank in ranks if rank not in group]
    name = rng.choice(("broadcast", "allgather", "reduce", "reducescatter", "allreduce", "alltoall", "gather"))
    root = rng.choice(group) if name in ("broadcast", "reduce", "gather") else None
    topology = replace(topology, alpha_us=np.maximum(topology.alpha_us, 0.1))
    topology = replace(with_costs(topology, costs), protocol="Simple")
    return make_problem(topology, name, group, relays, rng.choice((1, 2, 4)), root)


def _in_parts(rng: random.Random, problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Return a random partition of the local ranks."""
    count = rng.randint(2, problem.nranks)
    part = [rng.randrange(count) for _ in range(problem.nranks)]
    parts = (tuple(rank for rank, own in enumerate(part) if own == number) for number in range(count))
    return tuple(ranks for ranks in parts if ranks)


@settings(max_examples=30, derandomize=True)
@given(SEEDS)
def test_no_schedule_of_random_messages_is_faster(seed: int) -> None:
    rng = random.Random(seed)
    problem = _known_at_random(rng)
    sizes = (500.0, 2e4, 1e6)
    for _ in range(3):
        parts = _in_parts(rng, problem)
        limits = [proved(problem, Knowledge(parts=parts, at_bytes=size)) for size in sizes]
        if not any(limit.cap_us < np.inf for limit in limits):
            continue
        for schedule in random_schedules(rng, problem):
            for size in sizes:
                reached_us = predict_us(problem, schedule, size)
                for limit in limits:  # It holds at other sizes than its own.
                    never_beaten(limit.at(size), reached_us)


@settings(max_examples=20, derandomize=True)
@given(SEEDS)
def test_no_schedule_of_nodes_of_several_ranks_is_faster(seed: int) -> None:
    """Check against schedules in which ranks of a node share what comes, or each get it from other nodes."""
    rng = random.Random(seed)
    problem = random_cluster(rng)
    size = rng.choice((16.0, 1e4, 1e6))
    search = BoundSearch(problem, size_bytes=size)
    witnesses = [*find_knowledge(search), *find_parts_with_steps(search)]
    least_us = max(proved(problem, witness).at(size) for witness in witnesses)
    for schedule in random_schedules(rng, problem):
        never_beaten(least_us, predict_us(problem, schedule, size))
    for algorithm in baseline(problem):
        never_beaten(least_us, algorithm.time_us(size))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
@pytest.mark.parametrize("spec", ["star:8,alpha=0.05", "star:6,alpha=2", "full:4", "fattree:3x2x2"])
@pytest.mark.parametrize("gap_us", [0.3, 4.0])
def test_no_baseline_is_faster(collective: str, spec: str, gap_us: float) -> None:
    """Check against algorithms that exchange partial sums, as recursive doubling, among single ranks and others."""
    topology = load(spec)
    costs = Costs({"Simple": Protocol(gap_us=dict.fromkeys(LINK_KINDS, gap_us))})
    problem = make_problem(replace(with_costs(topology, costs), protocol="Simple"), collective)
    algorithms = baseline(problem)
    rng = random.Random(f"{collective} {spec}")
    for parts in (tuple((rank,) for rank in range(problem.nranks)), _in_parts(rng, problem)):
        for size in (512.0, 2e4, 1e6):
            limit = proved(problem, Knowledge(parts=parts, at_bytes=size))
            for algorithm in algorithms:
                never_beaten(limit.at(size), algorithm.time_us(size))


@settings(max_examples=12, derandomize=True)
@given(SEEDS)
def test_the_best_of_all_smallrandom_schedules_is_not_faster(seed: int) -> None:
    """Check copies and sums of one chunk against all schedules."""
    rng = random.Random(seed)
    topology = random_topology(rng, 4)
    costs = Costs({"Simple": Protocol(gap_us=dict.fromkeys(LINK_KINDS, rng.choice((0.3, 1.0, 4.0))))})
    topology = replace(topology, alpha_us=np.maximum(topology.alpha_us, 0.1))
    topology = replace(with_costs(topology, costs), protocol="Simple")
    size, name = rng.choice((500.0, 1e4, 1e6)), rng.choice(("broadcast", "allgather", "reduce"))
    try:
        problem = make_problem(topology, name)
    except InputError:
        assume(False)
    assume(problem.nranks < 4 if name == "allgather" else True)
    assume(problem.network.nlinks <= 7)
    least_us = fastest(reverse(problem) if name == "reduce" else problem, size, 6 if problem.nranks == 3 else 5)
    assume(least_us is not None)
    assert least_us is not None
    limit = proved(problem, Knowledge(parts=tuple((rank,) for rank in range(problem.nranks)), at_bytes=size))
    never_beaten(limit.at(size), least_us)


@pytest.mark.parametrize("size", [100.0, 2e3, 1e5])
@pytest.mark.parametrize(("name", "ranks", "most"), [("allreduce", 2, 3), ("allreduce", 3, 4), ("reduce", 3, 4)])
def test_no_sum_of_one_chunk_is_faster(name: str, ranks: int, most: int, size: float) -> None:
    """Check against all sequences of sends of one chunk, with partial sums that are exchanged."""
    problem = _star(f"star:{ranks},bw=1,alpha=1,gap_us=2", name)
    least_us = min(predict_us(problem, schedule, size) for schedule in every_schedule(problem, most))
    never_beaten(_least_us(problem, size), least_us)


def test_wrong_witnesses_are_refused() -> None:
    problem = make_problem(with_costs(load("dgx-h100:4")), "allreduce", range(0, 32, 4)).under("LL")
    witness = proved(problem, next(find_knowledge(BoundSearch(problem, size_bytes=1e5))))
    check(problem, witness)
    for wrong, message in (
        (replace(witness, parts=witness.parts[:1]), "each local rank once"),
        (replace(witness, parts=(*witness.parts, witness.parts[0])), "each local rank once"),
        (replace(witness, parts=((0, 1, 2, 3), (4, 5, 6, 8))), "each local rank once"),
        (replace(witness, base_us=witness.base_us * 1.01), "claims"),
        (replace(witness, per_byte_us=witness.per_byte_us * 1.01), "claims"),
        (replace(witness, cap_us=witness.cap_us * 1.01), "claims"),
        (replace(witness, at_bytes=witness.at_bytes / 2), "claims"),
        (replace(witness, parts=((*witness.parts[0], *witness.parts[1]), *witness.parts[2:])), "claims"),
        (replace(witness, at_bytes=0.0), "the size is 0 bytes"),
        (replace(witness, at_bytes=-1.0), "the size is -1 bytes"),
        (replace(witness, at_bytes=float("nan")), "the size is nan bytes"),
        (replace(witness, at_bytes=1e300), "the size is 1e\\+300 bytes"),
    ):
        with pytest.raises(BadWitness, match=message):
            check(problem, wrong)


def test_parts_without_a_gap_between_them_prove_nothing() -> None:
    problem = make_problem(with_costs(load("dgx-h100:2")), "allgather").under("LL")
    halves = tuple(tuple(range(low, low + 4)) for low in range(0, 16, 4))
    assert proved(problem, Knowledge(parts=halves, at_bytes=1e4)).claims == (0.0, 0.0, np.inf)


def test_a_bound_at_a_size_has_what_nodes_know() -> None:
    problem = make_problem(with_costs(load("mi300x:8")), "broadcast", range(0, 64, 4))
    bound = prove(problem, size_bytes=1 << 19)
    for witness in bound.witnesses:
        check(problem, witness)
    assert bound.at(1 << 19)[1].kind == "knowledge"
