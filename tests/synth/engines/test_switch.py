"""The engine that reduces and multicasts in switches: right and near the bound, for any group and cluster."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import synth
from emit.compiler.lower import lower
from emit.mscclpp.in_switch import draft_in_switch
from emit.mscclpp.read import read_plan
from emit.mscclpp.timing import PlanPredictor
from synth import synthesize
from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.bounds.prove import prove
from synth.engines.request import Candidate, Options, Request
from synth.engines.route import quick_schedule
from synth.engines.switch import accepts, solve
from synth.model.pairs import ordinary
from synth.model.problem import Problem, make_problem
from synth.symmetry.quotient import quotient_problem
from synth.timing.simulate import predict_us, resource_loads_us, timed
from synth.verify.algorithm import Algorithm
from tests.synth.bounds.test_hyperlinks import star
from tests.synth.timing.test_hyperlinks import node
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.load import load
from topologies.topology import SwitchOps, Topology

SIZES = (1 << 30, 1 << 20, 1 << 10)


def answers(problem: Problem, chunks: int | None = None) -> list[Algorithm]:
    request = Request(Options(chunks=chunks), SIZES, np.inf, None, None, None)  # type: ignore[arg-type]
    candidates = [outcome for outcome in solve(problem, request) if isinstance(outcome, Candidate)]
    return [
        Algorithm(candidate.problem, candidate.schedule, candidate.engine, size_bytes=candidate.size_bytes)
        for candidate in candidates
    ]


def gaps(problem: Problem) -> dict[int, float]:
    """Return time / bound of the best answer by size, after a check that no answer is below the bound at any size."""
    bound, algorithms = prove(problem), answers(problem)
    assert algorithms
    times = {size: [algorithm.time_us(size) / bound.at(size)[0] for algorithm in algorithms] for size in SIZES}
    assert min(map(min, times.values())) >= 1 - 1e-9
    return {size: min(size_gaps) for size, size_gaps in times.items()}


@pytest.mark.parametrize("group", [range(8), (6, 1, 3), (0, 2, 4, 5, 7)])
@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce"])
def test_large_messages_take_the_time_of_the_bound(name: str, group: tuple[int, ...]) -> None:
    assert gaps(make_problem(node(), name, group))[1 << 30] <= 1.02


def test_an_all_reduce_moves_1_125_buffers_through_every_port() -> None:
    problem = make_problem(load("dgx-h100"), "allreduce")
    best = answers(problem)[0]
    loads = resource_loads_us(best.problem, timed(best.problem, best.schedule, 1 << 30))
    assert np.allclose(loads, 1.125 * (1 << 30) / 450e3)


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce", "allgather", "reducescatter"])
def test_nodes_of_a_cluster_reduce_and_multicast_by_their_own_switch(name: str) -> None:
    t = load("dgx-h100:3")
    group = [r for r in range(24) if r % 8 in (0, 2, 3, 7)]
    problem = make_problem(t, name, group)
    gap = gaps(problem)
    assert gap[1 << 30] <= {"allreduce": 1.02, "broadcast": 1.06, "reduce": 1.06}.get(name, 1.4)


@pytest.mark.parametrize(("name", "gap"), [("allgather", 1.15), ("reducescatter", 1.15), ("allreduce", 1.6)])
def test_homes_of_chunks_in_all_nodes_keep_all_nics_busy(name: str, gap: float) -> None:
    """Check that the rails' sends are permutations of the nodes: two sends at once to a node would double the gap."""
    problem = make_problem(load("dgx-h100:4"), name, [rank for rank in range(32) if rank % 8 in (0, 2, 3, 7)])
    assert gaps(problem)[1 << 20] <= gap


@pytest.mark.parametrize("seed", range(6))
def test_any_star_with_ports_of_its_own_rates(seed: int) -> None:
    rng = random.Random(seed)
    topology = replace(star(rng, rng.randint(3, 5)), switch_ops=(SwitchOps("w", rng.choice([0.5, 1.0]), 1.0),))
    for name in ("allreduce", "broadcast", "reduce", "allgather", "reducescatter"):
        problem = make_problem(topology, name)
        assert accepts(problem, Options()) == ""
        gaps(problem)


@pytest.mark.parametrize(
    ("topology", "group", "name", "says"),
    [
        (node(1.0, 0.0), None, "allreduce", "cannot reduce"),
        (node(0.0, 1.0), None, "broadcast", "cannot multicast"),
        (node(), None, "alltoall", "no schedule for alltoall"),
        (load("dgx-a100"), None, "allreduce", "no switch multicasts or reduces"),
        (apply_faults(node(), ["link:nvswitch-3"], []), None, "allreduce", ""),
        (load("dgx-h100:2"), (0, 1, 2, 8, 9, 10, 11), "allreduce", "all groups of one size"),
    ],
)  # fmt: skip
def test_it_states_the_reason_where_it_cannot_answer(
    topology: Topology, group: tuple[int, ...] | None, name: str, says: str
) -> None:
    if not says:
        with pytest.raises(InputError):
            make_problem(topology, name, group)
        return
    assert says in accepts(make_problem(topology, name, group), Options())


def test_a_pinned_number_of_chunks_is_kept_or_refused() -> None:
    problem = make_problem(node(), "allreduce")
    assert {answer.chunks for answer in answers(problem, 16)} == {16}
    assert "a multiple of 8 chunks" in accepts(problem, Options(chunks=12))


def test_a_named_engine_answers_under_the_protocols_that_it_accepts() -> None:
    """Check that an executor's LL, whose sends no switch multicasts, does not refuse for Simple."""
    answer = synthesize("broadcast", "dgx-h100", range(4), engine="switch", size="1M", budget=3)
    assert {row["engine"] for row in answer.algorithms} == {"switch"}
    with pytest.raises(InputError, match="switch cuts into a multiple of 4 chunks"):
        synthesize("allreduce", "dgx-h100", range(4), engine="switch", chunks=6, size="1M", budget=3)


def test_answers_state_whether_switches_do_more_than_forward() -> None:
    answer = synth.synthesize("broadcast", "dgx-h100", size="64M", costs="none")
    assert not ordinary(answer.result.problem.network, answer.algorithm("64M").schedule.link)
    document = answer.algorithms[0]
    assert document["switch_ops"]
    assert document["optimal"]
    assert "sums or multicasts in switches are used in 1 of 1 algorithm" in answer.table(None)


def test_a_target_without_switch_operations_is_searched_without_them() -> None:
    assert make_question(QuestionArguments("broadcast", "dgx-h100")).problem.network.hyperlinks is not None
    assert (
        make_question(QuestionArguments("broadcast", "dgx-h100", switch_ops=False)).problem.network.hyperlinks is None
    )
    answer = make_question(QuestionArguments("broadcast", "dgx-h100", target="msccl"))
    assert answer.problem.network.hyperlinks is None
    assert answer.why_switches_forward.startswith("msccl's files cannot express multicast and reduction in switches")
    assert make_question(QuestionArguments("broadcast", "dgx-a100", target="msccl")).why_switches_forward == ""
    with pytest.raises(InputError, match="--engine switch: msccl's files cannot express"):
        make_question(QuestionArguments("broadcast", "dgx-h100", target="msccl", engine="switch"))


def test_lowering_refuses_operations_that_no_program_has() -> None:
    with pytest.raises(InputError, match="multicast or reduce; no program can express them"):
        lower(answers(make_problem(node(), "broadcast"))[0], "b")


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_a_quotient_has_no_hyperlinks_and_expands_to_the_whole(part: float) -> None:
    small = quotient_problem(node(part, part), "allgather", 1)
    assert small is not None
    assert small.network.hyperlinks is None
    assert small.quotient is not None
    assert small.quotient.whole.hyperlinks is not None
    assert np.isfinite(predict_us(small, quick_schedule(small, 1 << 20, 1.0), 1 << 20))


def test_an_executor_also_gets_few_chunks_whose_program_is_nearly_as_fast_as_the_best_schedule() -> None:
    problem, size = make_problem(load("dgx-h100"), "allreduce"), 1 << 30
    request = Request(Options(), (size,), np.inf, None, None, None, most_sends=1 << 20)  # type: ignore[arg-type]
    candidates = [outcome for outcome in solve(problem, request) if isinstance(outcome, Candidate)]
    times = [predict_us(candidate.problem, candidate.schedule, size) for candidate in candidates]
    few = candidates[0]
    assert len(few.schedule) < len(candidates[int(np.argmin(times))].schedule) / 4
    plan = draft_in_switch(Algorithm(few.problem, few.schedule, "switch"), "plan").text()
    assert min(times) < PlanPredictor(read_plan(plan), problem.topology).time_us(size) <= 1.05 * min(times)
