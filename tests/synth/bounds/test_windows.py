"""Windows of time: no reached time is refuted, and a refutation is checked without the program that produced it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.baselines import baseline
from synth.bounds.check import check, proved
from synth.bounds.prove import Bound, prove, refute
from synth.bounds.registry import BOUND_KINDS
from synth.bounds.search import DEFAULT, BoundSearch, BoundTuning
from synth.bounds.windows.edges import window_edges
from synth.bounds.windows.limit import Window, alike_chunks, first_whole, slots_of, useful
from synth.bounds.windows.shapes import _farthest, find_shapes, flows_at
from synth.bounds.windows.windows import _latest, _next_time, _stretched, _WindowProgram, refutations
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.search.search import search
from synth.solvers.workers import Workers
from tests.oracles.exact_times import exact
from topologies.errors import BadWitness
from topologies.load import load

COARSE = replace(DEFAULT, window_slots=(4, 12))
FAR = 1e3  # In seconds: no test waits so long.


def refuted(
    problem: Problem, size: float, reached_us: float, workers: Workers, start: Bound | None = None,
    tuning: BoundTuning = COARSE,
) -> Bound:  # fmt: skip
    bound = prove(problem, max_flow=False) if start is None else start
    *_, bound = bound, *refute(problem, bound, size, reached_us, workers, now() + FAR, tuning)
    return bound


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall"])
@pytest.mark.parametrize("spec", ["ring:4", "star:4", "dgx1"])
def test_a_reached_time_is_not_refuted(spec: str, collective: str, workers: Workers) -> None:
    problem = make_problem(load(spec), collective, tuple(range(4)))
    algorithms = baseline(problem)
    best_us = min(algorithm.time_us(5e4) for algorithm in algorithms)
    bound = refuted(problem, 5e4, best_us, workers)
    for size in (5e3, 5e4, 5e5):
        assert bound.at(size)[0] <= min(algorithm.time_us(size) for algorithm in algorithms) * (1 + 1e-9)


def test_windows_prove_more_than_cuts_in_the_middle(workers: Workers) -> None:
    problem = make_problem(load("dgx1"), "allreduce")
    before = prove(problem)
    # More slots prove hardly more of so many ranks, and take most of a minute.
    after = refuted(problem, 65536.0, 3.0, workers, before, replace(COARSE, window_slots=COARSE.window_slots[:1]))
    assert after.at(65536.0)[0] > 1.03 * before.at(65536.0)[0]
    decisive = after.at(65536.0)[1]
    assert decisive.kind == "window"
    check(problem, decisive)


def test_a_time_that_a_search_reaches_is_not_refuted(workers: Workers) -> None:
    problem = make_problem(load("line:3"), "broadcast")
    result = search(problem, Options(size=100_000, budget_s=0.5), workers)
    reached_us = result.fastest(100_000).time_us(100_000)
    assert refuted(problem, 1e5, reached_us, workers).at(1e5)[0] <= reached_us * (1 + 1e-9)


@pytest.fixture(scope="module")
def window_claim(workers: Workers) -> tuple[Problem, Window]:
    problem = make_problem(load("dgx1"), "allreduce", (0, 1, 4, 5))
    search = BoundSearch(problem, COARSE, list(prove(problem).witnesses), workers=workers)
    search.size_bytes, search.reached_us, search.budget_s = 3e4, 2.8, FAR
    claim = [refutation for refutation in refutations(search) if refutation is not None][-1]
    return problem, proved(problem, claim)


def test_a_witness_that_is_tampered_with_is_refused(window_claim: tuple[Problem, Window]) -> None:
    problem, witness = window_claim
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


def test_shares_that_are_too_large_gain_nothing(window_claim: tuple[Problem, Window]) -> None:
    """Check that flows of a chunk never pay more than the price of the resource between them."""
    problem, witness = window_claim
    larger = replace(witness, shares=tuple((*row[:5], 2 * row[5]) for row in witness.shares))
    limit = proved(problem, larger)
    assert limit.cap_us in (witness.cap_us, float("inf"))


def test_edges_are_where_latencies_end_from_both_sides() -> None:
    net = make_problem(load("line:3"), "broadcast").network  # α is 0.7 µs.
    assert window_edges(net, 2.0, 12) == pytest.approx([0, 0.6, 0.7, 1.3, 1.4, 2.0])
    assert window_edges(net, 7.0, 25) == pytest.approx(np.arange(11) * 0.7)
    assert window_edges(net, 50.0, 5) == pytest.approx([0, 0.7, 1.4, 48.6, 49.3, 50.0])
    unlike = replace(net, alpha_us=np.array([0.5, 0.7, 1.0, 2.0]))
    for end_us, slots in ((0.1, 9), (1.9, 9), (1.9, 41), (30.0, 9), (30.0, 41), (1e4, 21)):
        edges = window_edges(unlike, end_us, slots)
        assert (edges[0], edges[-1]) == (0, end_us)
        assert (np.diff(edges) > 0).all()
        assert len(edges) <= slots + 3
    edges = window_edges(unlike, 30.0, 41)
    assert {0.5, 0.7, 1.0, 1.2, 1.4} <= set(np.round(edges, 9))
    assert {28.6, 28.8, 29.0, 29.3, 29.5} <= set(np.round(edges, 9))


def test_few_slots_lose_nothing_where_latencies_fill_them(workers: Workers) -> None:
    """Check that one long slot between short ones proves as much as short slots throughout."""
    problem = make_problem(load("dgx1"), "broadcast", (0, 1, 2))
    paid = []
    for slots in (9, 80):
        program = _WindowProgram(problem, window_edges(problem.network, 9.0, slots), 1e6)
        *_, values = program.solved(workers, now() + FAR)
        assert values is not None
        paid.append(program.paid(values))
    assert paid[0] == pytest.approx(paid[1], rel=1e-4)


def test_a_send_without_time_to_arrive_counts_for_nothing() -> None:
    net = make_problem(load("line:3"), "broadcast").network
    slots = slots_of(net, np.array([0.0, 1.3, 2.0]))
    assert not slots.in_time[:, 1].any()
    assert slots.in_time[:, 0].all()
    assert slots_of(net, np.array([0.0, 1.29, 2.0])).in_time[:, 1].all()


def test_a_sum_is_first_whole_in_some_part() -> None:
    """Check that three parts pay for four sends between them, in slots in which these sends are of use."""
    problem = make_problem(load("line:4"), "allreduce", (0, 1, 3), [2])
    net = problem.network
    (chunk_class,) = alike_chunks(problem)
    slots = slots_of(net, np.array([0.0, 0.7, 1.4, 2.1, 20.0]))
    price = np.ones((net.nlinks, len(slots)))
    assert first_whole(problem, chunk_class, slots, price) == 4
    assert first_whole(problem, chunk_class, slots, price, ((0, 1), (2, 3))) == 2
    # The relay has nothing in the first slot, and whatever it gets in the last two slots goes nowhere.
    relay = net.ranks[net.src] == 2
    assert useful(net, chunk_class, slots)[relay].tolist() == [[False, True, True, True]] * 2
    assert (
        useful(net, chunk_class, slots_of(net, np.array([0.0, 10.0, 18.6, 20.0])))[net.ranks[net.dst] == 2].tolist()
        == [[True, True, False]] * 2
    )
    with pytest.raises(BadWitness, match="parts"):
        Window(at_bytes=1.0, times=(0.0, 1.0), parts=((0, 1), (1, 2))).limit(problem)
    with pytest.raises(BadWitness, match="parts"):
        Window(at_bytes=1.0, times=(0.0, 1.0), parts=((), (1, 2))).limit(problem)


@pytest.mark.parametrize("relays", [[], [3]])
def test_the_best_time_is_not_refuted(relays: list[int], workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check an all-reduce of three ranks over links of unequal latency, solved exactly, with and without a relay."""
    monkeypatch.delitem(BOUND_KINDS, "contributions")  # It proves as much.
    topology = load("full:4")
    alpha_us = np.where((topology.link_src == 3) | (topology.link_dst == 3), 0.5, 1.5)
    problem = make_problem(replace(topology, alpha_us=alpha_us), "allreduce", (0, 1, 2), relays)
    best = exact(problem, 1e5)
    assert best is not None
    bound = refuted(problem, 1e5, best.time_us * 1.2, workers)
    assert any(witness.kind == "window" and bool(witness.shares) <= (not relays) for witness in bound.witnesses)
    assert bound.at(1e5)[0] <= best.time_us * (1 + 1e-9)


def test_times_between_the_bound_and_the_best_schedule_are_tried() -> None:
    for tried in ([], [(4.0, 1.3)], [(4.0, 1.3), (6.0, 0.9)], [(4.0, 50.0)], [(4.0, 0.0)]):
        assert 3.0 < _next_time(3.0, 7.0, tried) < 7.0
    assert _next_time(4.0, 6.0, [(4.0, 1.2), (6.0, 0.9)]) == pytest.approx(5.16, abs=0.1)


def test_prices_are_tried_on_later_ends(window_claim: tuple[Problem, Window]) -> None:
    problem, witness = window_claim
    end_us, slot_us = witness.times[-1], witness.times[-1] - witness.times[-2]
    sooner = replace(witness, times=(*witness.times[:-1], end_us - slot_us / 2))
    assert sooner.limit(problem)[2] == pytest.approx(sooner.times[-1])
    later = _stretched(problem, sooner, end_us + slot_us)
    assert later.times[-1] >= end_us - slot_us / 16
    assert later.limit(problem)[2] == pytest.approx(later.times[-1])
    assert f"{later.times[-1]:.6g} µs" in later.text
    assert _stretched(problem, replace(witness, at_bytes=1.0), end_us).times == witness.times  # It refutes nothing.


def test_prices_say_how_far_they_refute(workers: Workers) -> None:
    """Check that from an end far too early and from one far too late, prices lead to nearly the same end."""
    problem = make_problem(load("dgx1"), "broadcast", (0, 1, 2))
    least_us = prove(problem, max_flow=False).at(1e6)[0]
    ends = []
    for try_us in (0.8 * least_us, 1.3 * least_us):
        program = _WindowProgram(problem, window_edges(problem.network, try_us, 9), 1e6)
        *_, values = program.solved(workers, now() + FAR)
        assert values is not None
        claim = program.claim(values)
        assert (claim.limit(problem)[2] < np.inf) == (try_us < least_us)
        latest = _latest(problem, claim, 2 * least_us)
        assert latest is not None
        check(problem, proved(problem, latest))
        ends.append(latest.times[-1])
    assert ends == pytest.approx([np.mean(ends)] * 2, rel=0.02)
    assert min(ends) > 0.98 * least_us
    assert _latest(problem, replace(claim, windows=()), 2 * least_us) is None


def test_small_programs_come_first() -> None:
    problem = make_problem(load("dgx1"), "allreduce")
    shapes = find_shapes(BoundSearch(problem, witnesses=list(prove(problem).witnesses), size_bytes=1e5))
    assert (shapes[0].ends, shapes[0].parts) == ((), tuple((rank,) for rank in range(8)))
    assert shapes[-1].ends is None
    assert [shape.slots for shape in shapes] == sorted(shape.slots for shape in shapes)
    near = next(shape.ends for shape in shapes if shape.ends)
    (chunk_class,) = alike_chunks(problem)
    flows = flows_at(chunk_class, near)
    assert len(flows) == 14
    assert all(near[0] in flow for flow in flows)
    assert flows_at(chunk_class, ()) == []
    broadcast = make_problem(load("dgx1"), "broadcast")
    assert {shape.ends for shape in find_shapes(BoundSearch(broadcast, size_bytes=1e5))} == {None}
    # Here the ranks that hold all chunks first prove nothing.
    switches = make_problem(load("dgx-h100"), "allreduce", (0, 1, 2))
    assert () not in {shape.ends for shape in find_shapes(BoundSearch(switches, size_bytes=1e5))}


def test_the_centre_is_behind_the_slowest_links() -> None:
    topology = load("line:4")
    slow = np.where((topology.link_src == 3) | (topology.link_dst == 3), 1.0, 50.0)
    problem = make_problem(replace(topology, bandwidth_gbs=slow), "allreduce")
    assert _farthest(problem, 1e6) == 3
