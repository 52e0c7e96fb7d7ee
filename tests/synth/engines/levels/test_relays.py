"""Relays as members of a composition of levels: right for any group, and as fast as the NICs of all GPUs allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds.prove import prove
from synth.engines.levels import search as levels_search
from synth.engines.levels.composition import RING
from synth.engines.levels.plan import LevelsShape
from synth.engines.levels.relays import LevelsWithRelays, with_relays
from synth.engines.levels.search import NAME, accepts
from synth.engines.levels.tuning import TUNING
from synth.engines.request import Candidate, Options, Request
from synth.model.collective import uneven
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.timing.simulate import resource_loads_us
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from topologies.load import load

KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")


def _best(problem: Problem, size: int, doublings: int) -> Algorithm:
    """Return the fastest algorithm of the engine at a size; each of them is replayed."""
    assert not accepts(problem, Options())
    tuning = replace(TUNING, doublings=doublings, orders=2, passes=2, variants=2)
    bound = prove(problem, max_flow=False)
    request = Request(Options(size=size), (size,), np.inf, Workers(()), BestTimes(), bound, most_sends=1 << 20)
    outcomes = levels_search.solve(problem, request, tuning)
    candidates = [outcome for outcome in outcomes if isinstance(outcome, Candidate)]
    algorithms = [Algorithm(candidate.problem, candidate.schedule, NAME) for candidate in candidates]
    return min(algorithms, key=lambda algorithm: algorithm.time_us(size))


@settings(deadline=None, max_examples=12)
@given(
    collective=st.sampled_from(KINDS),
    first=st.sets(st.integers(0, 7), min_size=1, max_size=6),
    second=st.sets(st.integers(8, 15), min_size=1, max_size=6),
    data=st.data(),
)
def test_any_group_with_the_other_gpus_of_its_nodes_is_served(
    collective: str, first: set[int], second: set[int], data: st.DataObject
) -> None:
    topology = load("dgx-a100:3")
    group = data.draw(st.permutations(sorted(first | second)))
    others = [rank for rank in range(24) if rank not in group]  # Those of the third node take no part.
    root = data.draw(st.sampled_from(group)) if collective in ("broadcast", "reduce") else None
    algorithm = _best(make_problem(topology, collective, group, others, root=root), 1 << 20, 3)
    used = set(algorithm.problem.network.dst[algorithm.schedule.link].tolist())
    assert all(algorithm.problem.ranks[rank] < 16 for rank in used)


@pytest.mark.parametrize("collective", KINDS)
def test_a_gpu_of_each_node_uses_the_nics_of_its_whole_node(collective: str) -> None:
    topology, group, size = load("dgx-h100:2"), [3, 11], 1 << 30
    alone = make_problem(topology, collective, group)
    relays = [rank for rank in range(16) if rank not in group]
    algorithm = _best(make_problem(topology, collective, group, relays), size, 6)
    assert algorithm.time_us(size) < 0.3 * prove(alone).at(size)[0]
    loads_us = resource_loads_us(algorithm.problem, algorithm.timed(size))
    assert np.count_nonzero(loads_us > 0.5 * loads_us.max()) >= 16  # All NICs of both nodes work most of the time.


def test_the_nics_of_relays_carry_equal_shares_in_many_chunks() -> None:
    """Check that what goes to relays inside the nodes, and is left out, does not count when loads are shared."""
    topology = load("dgx-h100:4")
    group = [0, 8, 16, 24]
    problem = make_problem(topology, "allgather", group, [rank for rank in range(32) if rank % 8])
    joined = with_relays(problem, problem.relays)
    assert joined is not None
    levels = LevelsWithRelays(problem, joined, np.array([local_ranks(problem, node) for node in range(4)]), TUNING)
    for count in (8, 16, 32):
        plan = levels.plan(LevelsShape(RING), count)
        assert plan is not None
        nodes = np.array([rank // 8 for rank in problem.ranks])
        ends = problem.network.src[plan[1].link], problem.network.dst[plan[1].link]
        between = nodes[ends[0]] != nodes[ends[1]]
        bytes_of_nic = np.bincount(ends[0][between], plan[0].collective.fraction[plan[1].chunk[between]], 32)
        assert bytes_of_nic.max() < 1.01 * bytes_of_nic.mean()


def local_ranks(problem: Problem, node: int) -> list[int]:
    """Return the local ranks of the eight GPUs of a node."""
    return [problem.ranks.index(rank) for rank in range(8 * node, 8 * node + 8)]


def test_relays_that_cannot_be_members_are_left_to_others() -> None:
    topology = load("dgx-h100:2")
    whole = make_problem(topology, "allreduce", range(16))
    assert with_relays(whole, ()) is None
    problem = make_problem(topology, "allreduce", range(8), range(8, 16))
    unlike = replace(problem, collective=uneven("allgatherv", np.arange(1.0, 9.0)))
    assert with_relays(unlike, problem.relays) is None
    scatter = make_problem(topology, "alltoall", range(8), range(8, 16))
    assert with_relays(scatter, scatter.relays) is None
    assert "levels needs" in accepts(problem, Options())  # The second node has no member, so its GPUs are of no use.
