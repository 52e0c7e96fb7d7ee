"""Tests of the least chunk size that keeps an executor's slots busy, and of the room for instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from emit.check.program import check
from emit.compiler.fill import ProgramRequest, Repetition, least_bytes, rank_instances, repeated
from emit.compiler.instances import side_by_side
from emit.compiler.ir import instructions_of
from emit.compiler.lower import Lowering, lower
from emit.images import whole_program
from emit.program import FIFO_DEPTH, SENDS, Program
from emit.targets import target_named
from synth.baselines import baseline_named
from synth.model.problem import Problem, make_problem
from topologies.costed import with_costs, with_protocol
from topologies.errors import InputError
from topologies.load import load

LIMITS = replace(target_named("executor-nccl").limits, sms=72)
SIZE = 1 << 20


def costed(machine: str, collective: str, protocol: str = "Simple") -> Problem:
    return make_problem(with_protocol(with_costs(load(machine)), protocol), collective)


def test_least_chunk_shrinks_with_slots_and_latency() -> None:
    net = costed("dgx1", "broadcast").network
    least = least_bytes(net, LIMITS, FIFO_DEPTH["Simple"])
    assert least_bytes(net, LIMITS, 2 * FIFO_DEPTH["Simple"]) == pytest.approx(least / 2, abs=1)
    assert least_bytes(replace(net, alpha_us=net.alpha_us / 2), LIMITS, 2) == pytest.approx(least / 2, abs=1)
    assert least_bytes(net, replace(LIMITS, sms=36), 2) == pytest.approx(
        least * 9 / 4, abs=3
    )  # There are 4 channels instead of 9.
    assert least_bytes(replace(net, alpha_us=0 * net.alpha_us), LIMITS, 2) == 0


def test_links_divide_a_shared_port() -> None:
    """Check that seven links with the rate of one port get a seventh of it each."""
    problem = costed("dgx-a100", "broadcast")
    net, simple = problem.network, problem.topology.costs.protocols["Simple"]  # type: ignore[union-attr]
    link_us, link_gbs = simple.latency_us["nvlink"], 300 * simple.efficiency["nvlink"]
    slots = (LIMITS.sms // 14) * 2
    assert least_bytes(net, LIMITS, 2) == pytest.approx(1.5 * link_us * link_gbs * 1e3 / 7 / slots, rel=1e-3)


def test_too_many_instances_are_refused_before_they_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = costed("dgx1", "broadcast")
    ring = min(baseline_named(problem, "ring", SIZE), key=lambda program: len(program.schedule))
    program = lower(ring, "chain", protocol="Simple", limits=LIMITS)[0]
    blocks_of_instance = max(
        sum(peer >= 0 for peer in side)
        for gpu in program.gpus
        for side in ([tb.send for tb in gpu.threadblocks], [tb.recv for tb in gpu.threadblocks])
    )
    ir = replace(instructions_of(program, None, False), instances=2, interleaved=None)
    assert (
        max(
            len(gpu.threadblocks) for gpu in side_by_side(program, ir, replace(LIMITS, sms=2 * blocks_of_instance)).gpus
        )
        <= 2 * blocks_of_instance
    )
    monkeypatch.setattr("emit.compiler.instances.repeat", lambda *_: pytest.fail("laid out"))
    with pytest.raises(
        InputError,
        match=f"{2 * blocks_of_instance} threadblocks a rank; there is room for {2 * blocks_of_instance - 1}",
    ):
        side_by_side(program, ir, replace(LIMITS, sms=2 * blocks_of_instance - 1))


@pytest.mark.parametrize("most", [1_000, 4_000])
def test_in_haste_as_many_instances_fill_links_as_there_is_time_for(most: int) -> None:
    problem = costed("dgx-h100", "allgather")
    ring = baseline_named(problem, "ring", SIZE)[0]
    lowering = Lowering(ring, "ring", target_named("mscclpp").limits)
    request = ProgramRequest("Simple", 1 << 30, 1 << 30, (1 << 30,), until=-math.inf)
    program = lowering.program("Simple", until=-math.inf)
    ranked = rank_instances(lowering, program, target_named("mscclpp").limits, request, most)
    steps = [candidate.nsteps for _, candidate in ranked]
    assert steps[0] == max(steps) <= most
    assert ranked[0][0].instances == 16 or 2 * steps[0] > most


def messages_of(program: Program, nodes: Sequence[int]) -> tuple[int, int]:
    """Return how many messages are sent inside nodes, and how many between them."""
    program = whole_program(program)
    crossing = [
        nodes[rank] != nodes[block.send]
        for rank, gpu in enumerate(program.gpus)
        for block in gpu.threadblocks
        for step in block.steps
        if step.op in SENDS
    ]
    return crossing.count(False), crossing.count(True)


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall", "broadcast"])
@pytest.mark.parametrize("machine", ["dgx-a100:2", "p4d.24xlarge:2"])  # In p4d, NICs join ranks of a node too.
def test_messages_inside_nodes_are_divided_and_those_between_nodes_are_not(machine: str, collective: str) -> None:
    problem = costed(machine, collective)
    algorithm = baseline_named(problem, "direct", SIZE)[0]
    lowering = Lowering(algorithm, "divided", target_named("mscclpp").limits)
    once = lowering.program("Simple")
    nodes = problem.topology.nodes.tolist()
    inside, between = messages_of(once, nodes)
    assert min(inside, between) > 0
    four_parts, request = Repetition(4, is_inside=True), ProgramRequest("Simple", 0, 0)
    divided = repeated(lowering, once, four_parts, target_named("mscclpp").limits, request)
    divided_inside, whole_between = messages_of(divided, nodes)
    assert whole_between == between
    assert 2 * inside < divided_inside < 8 * inside  # Passes merge messages, and parts of them, as they fit.
    check(divided).raise_if_wrong()


def test_only_networks_with_gaps_on_some_links_have_messages_to_divide() -> None:
    for machine, has_inside in (("dgx-a100:2", True), ("dgx-a100", False)):
        algorithm = baseline_named(costed(machine, "allgather"), "direct", SIZE)[0]
        limits, request = target_named("mscclpp").limits, ProgramRequest("Simple", SIZE, 16 * SIZE)
        lowering = Lowering(algorithm, "divided", limits)
        ranked = rank_instances(lowering, lowering.program("Simple"), limits, request)
        assert any(repetition.is_inside for repetition, _ in ranked) is has_inside
