"""Direct exchange: its limit holds up to the size from which two hops pay."""

from __future__ import annotations

import numpy as np

from synth.bounds.prove import prove
from synth.model.problem import make_problem
from synth.model.schedule import untimed
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from tests.random_problems import answered
from tests.synth.bounds.cases import never_beaten
from topologies.load import load


def test_the_two_hop_bound_ends_where_two_hops_pay() -> None:
    """Check that the bound for direct sends is capped at two latencies, from which two hops pay."""
    problem = make_problem(load("full:4"), "allreduce")
    bound = prove(problem)
    straight = [w for w in bound.witnesses if w.kind == "direct"]
    assert straight
    assert straight[0].at(1e12) == straight[0].cap_us == 1.4
    replay(problem, timed(problem, answered(problem, 1e6), 1e6))


def test_two_hops_through_eight_are_no_faster_than_the_bound() -> None:
    """Check a broadcast: the root's port is busy 63 times for direct sends, and eight times through eight relays."""
    problem = make_problem(load("star:64"), "broadcast")
    ways = {(int(u), int(v)): i for i, (u, v) in enumerate(zip(problem.network.src, problem.network.dst, strict=True))}
    first = [(0, ways[0, head]) for head in range(8, 64, 8)]
    second = [(1, ways[head, head + i]) for i in range(1, 8) for head in range(8, 64, 8)]
    near = [(0, ways[0, i]) for i in range(1, 8)]
    table = np.array(first + near + second)
    rows = untimed(table[:, 0] * 0, table[:, 1], table[:, 0], np.zeros(len(table), dtype=bool))
    bound = prove(problem, max_flow=False)
    kinds = set()
    for size in (100.0, 1000.0, 1800.0, 2500.0, 1e4, 1e6):
        at = timed(problem, rows, size)
        replay(problem, at)
        limit, witness = bound.at(size)
        never_beaten(limit, time_us(problem, at))
        kinds.add(witness.kind)
    assert "direct" in kinds
