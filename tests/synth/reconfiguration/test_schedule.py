"""Schedules over states: never worse than one state, right from phase to phase, refused with a planted fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from synth.engines.request import Options
from synth.model.problem import make_problem
from synth.reconfiguration.routing import StatePhase, exchange, in_blocks, route
from synth.reconfiguration.schedule import ChangingSchedule
from synth.reconfiguration.search import ChangesSearch, search_changes
from synth.reconfiguration.states import ChangingNetwork, read_states
from synth.search.plans import ISOLATED
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, VerificationError
from topologies.topology import Topology

MIB = 1 << 20
CUBE = "ring:4,bw=50 + axes:2x2,bw=100"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers() as pool:
        yield pool


def solve(network: ChangingNetwork, phase: StatePhase, workers: Workers) -> Algorithm:
    problem = make_problem(network.states[phase.state], phase.collective)
    answer = search(problem, Options(size=MIB, budget_s=1.0), workers, plan=replace(ISOLATED, work_s=0.05))
    return answer.fastest(MIB).algorithm


def make_schedule(name: str, sequence: tuple[int, ...], workers: Workers, spec: str = CUBE) -> ChangingSchedule:
    network = read_states(spec)
    blocks = in_blocks(name, network.nranks)
    routed = route(network, blocks, sequence, MIB)
    assert routed is not None
    return ChangingSchedule(
        network, blocks, routed.phases, tuple(solve(network, phase, workers) for phase in routed.phases)
    )


@pytest.mark.parametrize(
    "name",
    ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "scatter", "gather", "sendrecv"],
)
def test_every_collective_in_phases_is_right(name: str, workers: Workers) -> None:
    schedule = make_schedule(name, (1, 2), workers)
    expected = {"allreduce": (2, 1, 2), "reducescatter": (2, 1), "reduce": (2, 1)}  # Sums are gathered in reverse.
    assert schedule.states == expected.get(name, (1, 2))
    assert 0 < schedule.sending_us(MIB) < np.inf


def make_exchange(
    sequence: tuple[int, ...], workers: Workers, spec: str, own_sums: bool = False
) -> ChangingSchedule | None:
    network = read_states(spec)
    blocks = in_blocks("allreduce", network.nranks)
    routed = exchange(network, blocks, sequence, MIB, own_sums)
    if routed is None:
        return None
    return ChangingSchedule(
        network, blocks, routed.phases, tuple(solve(network, phase, workers) for phase in routed.phases)
    )


@pytest.mark.parametrize("own_sums", [False, True])
@pytest.mark.parametrize(
    ("spec", "sequence"), [("axes:2x2x2", (0, 1, 2)), ("axes:2x3", (1, 0)), ("axes:2x2 + ring:4", (0, 2)), (CUBE, (0,))]
)
def test_sums_of_parts_make_an_all_reduce_with_fewer_changes(
    spec: str, sequence: tuple[int, ...], own_sums: bool, workers: Workers
) -> None:
    schedule = make_exchange(sequence, workers, spec, own_sums)
    assert schedule is not None
    assert schedule.states == sequence
    last = len(sequence) - 1
    with pytest.raises(VerificationError):
        replace(schedule, phases=schedule.phases[:last], algorithms=schedule.algorithms[:last])


def test_sums_that_overlap_or_are_not_whole_are_no_exchange() -> None:
    network = read_states("axes:2x2x2")
    assert exchange(network, in_blocks("allreduce", 8), (0, 1), MIB, False) is None
    first, second = (
        Topology(name, 4, (), np.array(ends), np.array(ends[::-1]), np.ones(2), np.ones(2))
        for name, ends in (("first", [0, 1]), ("second", [1, 2]))
    )
    whole = read_states("ring:4").states[0]
    times = np.ones((3, 3)) - np.eye(3)
    blocks = in_blocks("allreduce", 4)
    # Ranks 0 and 1 hold one sum, which counts once; later 1 and 2 hold a sum that has a part in common with that of 0.
    assert exchange(ChangingNetwork("n", (first, second, whole), times), blocks, (0, 2), MIB, True) is not None
    assert exchange(ChangingNetwork("n", (first, second, whole), times), blocks, (0, 1, 2), MIB, True) is None


def test_links_that_go_one_way_only(workers: Workers) -> None:
    network = read_states("ring:3,bw=50")
    ring = network.states[0]
    clockwise = (ring.link_dst - ring.link_src) % 3 == 1
    one_way = replace(
        ring, name="one way", link_src=ring.link_src[clockwise], link_dst=ring.link_dst[clockwise],
        alpha_us=ring.alpha_us[clockwise], bandwidth_gbs=ring.bandwidth_gbs[clockwise],
        link_kind=ring.link_kind[clockwise],
    )  # fmt: skip
    network = ChangingNetwork("n", (ring, one_way), np.array([[0.0, 1.0], [1.0, 0.0]]))
    for name in ("allgather", "reducescatter"):
        blocks = in_blocks(name, 3)
        routed = route(network, blocks, (1,), MIB)
        assert routed is not None
        algorithms = tuple(solve(network, phase, workers) for phase in routed.phases)
        assert ChangingSchedule(network, blocks, routed.phases, algorithms).states == (1,)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("reduce", [[(1, 0)], [(2, 1)]]),
        ("reducescatter", [[(0, 1), (2, 0)], [(1, 2)]]),
        ("allreduce", [[(0, 1), (1, 0)], [(2, 0)], [(0, 2), (2, 1)]]),
    ],
)
def test_links_of_one_direction_that_gather_in_several_states(name: str, links: list[list[tuple[int, int]]]) -> None:
    states = tuple(
        Topology(f"state {number}", 3, (), *np.array(ends).T, np.ones(len(ends)), np.ones(len(ends)))
        for number, ends in enumerate(links)
    )
    network = ChangingNetwork("n", states, np.ones((len(states),) * 2) - np.eye(len(states)))
    choice = search_changes(network, name, MIB, budget_s=0.3).choose()
    assert choice.bound_us * (1 - 1e-9) <= choice.time_us < np.inf


def test_a_sequence_that_does_not_join_the_ranks_has_no_phases() -> None:
    network = read_states(CUBE)
    assert route(network, in_blocks("allgather", 4), (1,), MIB) is None


FAULTS = {
    "a phase is missing": lambda s: replace(s, phases=s.phases[1:], algorithms=s.algorithms[1:]),
    "the last phase is missing": lambda s: replace(s, phases=s.phases[:-1], algorithms=s.algorithms[:-1]),
    "phases are swapped": lambda s: replace(s, phases=s.phases[::-1], algorithms=s.algorithms[::-1]),
    "a phase without algorithm": lambda s: replace(s, algorithms=s.algorithms[:-1]),
    "algorithms are swapped": lambda s: replace(s, algorithms=s.algorithms[::-1]),
    "a phase comes twice": lambda s: replace(
        s, phases=(s.phases[0], *s.phases), algorithms=(s.algorithms[0], *s.algorithms)
    ),
    "another state": lambda s: replace(s, phases=(replace(s.phases[0], state=0), *s.phases[1:])),
    "no such state": lambda s: replace(s, phases=(replace(s.phases[0], state=9), *s.phases[1:])),
    "other blocks": lambda s: replace(
        s, phases=(replace(s.phases[0], blocks=s.phases[0].blocks[1:] + s.phases[0].blocks[:1]), *s.phases[1:])
    ),
    "blocks are missing": lambda s: replace(
        s, phases=(replace(s.phases[0], blocks=s.phases[0].blocks[1:]), *s.phases[1:])
    ),
    "a block too many": lambda s: replace(
        s, phases=(replace(s.phases[0], blocks=tuple((*b, 0) for b in s.phases[0].blocks)), *s.phases[1:])
    ),
    "another network's times": lambda s: replace(s, network=read_states("ring:4,bw=51 + axes:2x2,bw=101")),
}


@pytest.mark.parametrize("name", ["allgather", "reducescatter"])
def test_a_planted_fault_is_refused(name: str, workers: Workers) -> None:
    schedule = make_schedule(name, (1, 2), workers)
    for what, plant in FAULTS.items():
        if (name, what) == ("allgather", "a phase comes twice"):
            continue  # A copy may come twice; a contribution may not.
        with pytest.raises(VerificationError):
            plant(schedule)


@pytest.fixture(scope="module")
def answered() -> ChangesSearch:
    return search_changes(read_states("strides:5,bw=50"), "alltoall", 64 * MIB, budget_s=4.0, deltas_us=(0, 1e6))


def test_no_answer_is_worse_than_the_best_state(answered: ChangesSearch) -> None:
    choices = [answered.choose(delta_us) for delta_us in (0.0, 10.0, 1e3, 1e6)]
    for choice in choices:
        assert choice.single_us is not None
        assert choice.bound_us * (1 - 1e-9) <= choice.time_us <= choice.single_us
    assert [choice.changes for choice in choices] == sorted((choice.changes for choice in choices), reverse=True)
    assert choices[0].changes == 1  # Each rank reaches two others in each of two states.
    assert choices[0].gap < 1.01
    assert choices[-1].changes == 0


def test_results_are_shown_in_one_line(answered: ChangesSearch) -> None:
    for shown in (repr(answered), repr(answered.choose(10.0))):
        assert re.fullmatch(r"<(ChangesSearch of|Choice:) .{10,100}>", shown)


def test_the_arguments_of_synthesize_are_taken_too() -> None:
    """Check sizes and budgets as text, the network as text, both spellings, and that a size is given once."""
    by_text = search_changes("ring:4 + axes:2x2", "allgather", "1M", budget="300ms")
    for other in (
        search_changes("ring:4 + axes:2x2", "allgather", size=MIB, root=None, budget=0.3),
        search_changes(read_states("ring:4 + axes:2x2"), "allgather", size_bytes=MIB, budget_s=0.3),
    ):
        assert other.size_bytes == by_text.size_bytes == MIB
        assert {choice.name for choice in other.network.states} == {choice.name for choice in by_text.network.states}
        assert other.choose(1.0).time_us >= by_text.choose(1.0).bound_us  # The clock ends either search.
    for sizes in ({}, {"size": "1M", "size_bytes": MIB}):
        with pytest.raises(InputError, match="size: must be given once"):
            search_changes("ring:4 + axes:2x2", "allgather", **sizes)


def test_a_root_of_a_collective_without_one_is_refused() -> None:
    with pytest.raises(InputError, match="allreduce has no root; leave it out"):
        search_changes(read_states("ring:4 + axes:2x2"), "allreduce", 1 << 20, root=1)


def test_a_state_to_start_from_costs_a_change() -> None:
    network = replace(read_states("ring:4 + full:4"), start=0)
    choice = search_changes(network, "alltoall", 64 * MIB, budget_s=1.0).choose(5.0)
    assert (choice.changes, [network.states[state].name for state in choice.schedule.states]) == (1, ["full:4"])
    assert choice.time_us == pytest.approx(choice.schedule.sending_us(64 * MIB) + 5.0)


def test_states_that_never_join_the_ranks_are_refused() -> None:
    half = ChangingNetwork("half", read_states("axes:2x2").states[:1], np.zeros((1, 1)))
    with pytest.raises(InputError, match="no sequence"):
        search_changes(half, "allgather", MIB, budget_s=1.0)
