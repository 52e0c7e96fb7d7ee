"""Windows of time: nothing that is reached is refuted; what is, is checked without the program that found it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.baselines import baseline
from synth.bounds.prove import Bound, prove, refute
from synth.bounds.registry import check, proved
from synth.bounds.search import DEFAULT, Search
from synth.bounds.window_limit import alike_chunks, window_limit
from synth.bounds.windows import _edges, _farthest, _flows, _next_time, _shapes, _stretched, refutations
from synth.bounds.witness import Witness
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.search.search import search
from synth.solvers.workers import Workers
from topologies.errors import BadWitness
from topologies.load import load

COARSE = replace(DEFAULT, window_slots=(4, 12))
FAR = 1e3  # s: no test waits for it


def refuted(problem: Problem, size: float, reached_us: float, workers: Workers, start: Bound | None = None) -> Bound:
    bound = prove(problem, max_flow=False) if start is None else start
    *_, bound = bound, *refute(problem, bound, size, reached_us, workers, now() + FAR, COARSE)
    return bound


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall"])
@pytest.mark.parametrize("spec", ["ring:4", "star:4", "dgx1"])
def test_what_is_reached_is_not_refuted(spec: str, collective: str, workers: Workers) -> None:
    problem = make_problem(load(spec), collective, tuple(range(4)))
    algorithms = baseline(problem)
    best_us = min(algorithm.time_us(5e4) for algorithm in algorithms)
    bound = refuted(problem, 5e4, best_us, workers)
    for size in (5e3, 5e4, 5e5):
        assert bound.at(size)[0] <= min(algorithm.time_us(size) for algorithm in algorithms) * (1 + 1e-9)


def test_windows_prove_more_than_cuts_in_the_middle(workers: Workers) -> None:
    problem = make_problem(load("dgx1"), "broadcast")
    before = prove(problem)
    after = refuted(problem, 65536.0, 3.0, workers, before)
    assert after.at(65536.0)[0] > 1.03 * before.at(65536.0)[0]
    decisive = after.at(65536.0)[1]
    assert decisive.kind == "window"
    check(problem, decisive)


def test_what_a_search_reaches_is_not_refuted(workers: Workers) -> None:
    problem = make_problem(load("line:3"), "broadcast")
    result = search(problem, Options(size=100_000, budget_s=0.5), workers)
    reached_us = result.fastest(100_000).time_us(100_000)
    assert refuted(problem, 1e5, reached_us, workers).at(1e5)[0] <= reached_us * (1 + 1e-9)


@pytest.fixture(scope="module")
def found(workers: Workers) -> tuple[Problem, Witness]:
    problem = make_problem(load("dgx1"), "allreduce", (0, 1, 4, 5))
    search = Search(problem, COARSE, list(prove(problem).witnesses), workers=workers)
    search.size_bytes, search.reached_us, search.budget_s = 3e4, 2.8, FAR
    claim = [one for one in refutations(search) if one is not None][-1]
    return problem, proved(problem, claim)


def test_a_witness_that_is_tampered_with_is_refused(found: tuple[Problem, Witness]) -> None:
    problem, witness = found
    check(problem, witness)
    assert witness.shares
    row, share = witness.windows[0], witness.shares[0]
    for wrong in (
        replace(witness, cap_us=witness.cap_us * 1.01),
        replace(witness, per_byte_us=witness.per_byte_us * 1.01),
        replace(witness, times=tuple(1.3 * t for t in witness.times)),
        replace(witness, at_bytes=witness.at_bytes / 4),
        replace(witness, windows=((*row[:2], 1e9 * row[2]), *witness.windows[1:])),
        replace(witness, windows=((10**6, 0, 1.0), *witness.windows)),
        replace(witness, windows=((row[0], len(witness.times), 1.0), *witness.windows)),
        replace(witness, times=witness.times[::-1]),
        replace(witness, shares=((share[0], 7, 7, *share[3:]), *witness.shares)),
    ):
        with pytest.raises(BadWitness, match="window"):
            check(problem, wrong)


def test_shares_that_are_too_large_gain_nothing(found: tuple[Problem, Witness]) -> None:
    """What several flows of a chunk pay together is never more than the price of the resource."""
    problem, witness = found
    larger = replace(witness, shares=tuple((*row[:5], 2 * row[5]) for row in witness.shares))
    limit = proved(problem, larger)
    assert limit.cap_us in (witness.cap_us, float("inf"))


def test_slots_end_where_they_are_to() -> None:
    net = make_problem(load("line:3"), "broadcast").network
    for end_us in (0.31, 2.0, 3.33, 7.7, 50.0):
        edges = _edges(net, end_us, 12)
        lengths = np.diff(edges)
        assert edges[0] == 0
        assert edges[-1] == end_us
        assert lengths.min() >= 0.09 * lengths.max()
        assert lengths.max() <= 1.1 * max(end_us / 12, 0.7)


def test_times_are_tried_between_what_is_proved_and_what_is_reached() -> None:
    for tried in ([], [(4.0, 1.3)], [(4.0, 1.3), (6.0, 0.9)], [(4.0, 50.0)], [(4.0, 0.0)]):
        assert 3.0 < _next_time(3.0, 7.0, tried) < 7.0
    assert _next_time(4.0, 6.0, [(4.0, 1.2), (6.0, 0.9)]) == pytest.approx(5.16, abs=0.1)


def test_prices_are_tried_on_later_ends(found: tuple[Problem, Witness]) -> None:
    problem, witness = found
    end_us, slot_us = witness.times[-1], witness.times[-1] - witness.times[-2]
    sooner = replace(witness, times=(*witness.times[:-1], end_us - slot_us / 2))
    assert window_limit(problem, sooner)[2] == sooner.times[-1]
    later = _stretched(problem, sooner, end_us + slot_us)
    assert later.times[-1] >= end_us - slot_us / 16
    assert window_limit(problem, later)[2] == later.times[-1]
    assert f"{later.times[-1]:.6g} µs" in later.text
    assert _stretched(problem, replace(witness, at_bytes=1.0), end_us).times == witness.times  # which refutes nothing


def test_flows_of_one_rank_come_first_where_there_are_many() -> None:
    problem = make_problem(load("dgx1"), "allreduce")
    first, *_, last = _shapes(problem, 1e5, DEFAULT)
    assert first.centre is not None
    assert not first.wholes
    assert (last.centre, last.wholes) == (None, True)
    (one,) = alike_chunks(problem)
    near = _flows(one, first.centre)
    assert len(near) == 14
    assert all(first.centre in flow for flow in near)
    assert {shape.centre for shape in _shapes(make_problem(load("dgx1"), "broadcast"), 1e5, DEFAULT)} == {None}


def test_the_centre_is_behind_the_slowest_links() -> None:
    topology = load("line:4")
    slow = np.where((topology.link_src == 3) | (topology.link_dst == 3), 1.0, 50.0)
    problem = make_problem(replace(topology, bandwidth_gbs=slow), "allreduce")
    assert _farthest(problem, 1e6) == 3
