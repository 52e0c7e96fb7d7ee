"""Broadcast and reduce in two hops: right for every number of ranks, and as near to the bound as a pipeline can be."""

from __future__ import annotations

import pytest

from synth.app.synthesis import synthesize
from synth.bounds.prove import prove
from synth.engines.request import Options
from synth.engines.two_hops import NAME, _schedule, accepts
from synth.model.problem import make_problem
from synth.verify.algorithm import Algorithm
from topologies.costed import with_costs, with_protocol
from topologies.load import load


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("ranks", [3, 4, 5, 8, 9])
def test_it_is_right_for_any_number_of_ranks_root_and_pieces(collective: str, ranks: int) -> None:
    for root, pieces in ((0, 1), (ranks - 1, 2 * ranks + 1), (1, 32)):
        problem = make_problem(load(f"full:{ranks}"), collective, root=root)
        assert not accepts(problem, Options())
        whole = problem.with_chunks(pieces)
        algorithm = Algorithm(whole, _schedule(whole, 1 << 20), NAME)  # The constructor replays the schedule.
        assert algorithm.steps == 2
        assert len(algorithm.schedule) == pieces * (ranks - 1)


@pytest.mark.parametrize("size", [1 << 22, 1 << 26])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_through_a_switch_all_ports_work_except_for_two_latencies_and_a_round(collective: str, size: int) -> None:
    problem = make_problem(with_protocol(with_costs(load("dgx-a100")), "Simple"), collective)
    pieces = 64
    whole = problem.with_chunks(pieces)
    time_us = Algorithm(whole, _schedule(whole, size), NAME, size_bytes=size).time_us(size)
    slot_us = size / pieces / float(problem.network.bandwidth_gbs[0]) * 1e-3
    alpha_us = float(problem.network.alpha_us[0])
    # After its arrival a piece is sent to its six other peers in at most seven slots, which begin with a slot.
    assert time_us <= prove(problem, max_flow=False).at(size)[0] + alpha_us + 9 * slot_us


def test_it_is_for_whole_problems_of_one_root_where_all_are_linked() -> None:
    assert "link between every two" in accepts(make_problem(load("ring:5"), "broadcast"), Options())
    assert "broadcast and reduce" in accepts(make_problem(load("full:5"), "allgather"), Options())
    assert "three ranks" in accepts(make_problem(load("full:2"), "broadcast"), Options())
    assert "no steps" in accepts(make_problem(load("full:5"), "broadcast"), Options(steps=2))


def test_it_can_be_requested_by_name() -> None:
    result = synthesize("broadcast", "full:5", engine=NAME, size="1M", target="none", budget=10).result
    assert result.ranges[0].algorithm.engine in (NAME, "direct", "ring", "route")
    assert any(offer.algorithm.engine == NAME for offer in (*result.ranges, *result.unused))
