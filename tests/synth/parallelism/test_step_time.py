"""The time of a step whose calls overlap, and reduction programs as plans of given groups."""

from __future__ import annotations

import numpy as np
import pytest

from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.model.collective import named
from synth.parallelism.placement_search import plan_groups
from synth.parallelism.reduction.program_plans import program_plans
from synth.parallelism.step_time import overlapped_us
from synth.parallelism.workload import Call
from synth.timing.simulate import resource_loads_us
from synth.verify.replay import replay
from topologies.load import load

SIZE = 1 << 24


def planned(spec: str, groups: list[list[int]], collective: str = "allgather") -> ConcurrentResult:
    return plan_groups(load(spec), Call("x", collective, (0,), SIZE), np.array(groups), 0.2)


def members(groups: list[list[int]], collective: str = "allreduce", size: float = SIZE) -> list[Member]:
    return [Member(tuple(group), named(collective, len(group), 1), size) for group in groups]


def test_calls_on_different_links_take_as_long_as_the_longer_one() -> None:
    first_call, second_call = (
        planned("fattree:2x4x1", [[0, 1, 2, 3]]),
        planned("fattree:2x4x1", [[4, 5, 6, 7]], "allreduce"),
    )
    assert overlapped_us([first_call, second_call], [1, 1]) == pytest.approx(
        max(first_call.makespan_us, second_call.makespan_us)
    )
    assert overlapped_us([first_call, second_call], [100, 1]) == pytest.approx(100 * first_call.makespan_us, rel=0.02)


def test_calls_on_the_same_links_take_as_long_as_in_turn() -> None:
    call = planned("star:4,alpha=0", [[0, 1, 2, 3]])
    assert overlapped_us([call, call], [1, 1]) == pytest.approx(2 * call.makespan_us)


@pytest.mark.parametrize("times", [(1.0, 1.0), (3.0, 1.0), (1.0, 0.5)])
def test_no_overlap_is_shorter_than_the_busiest_resource(times: tuple[float, float]) -> None:
    """Check groups of two axes, whose calls share only some links."""
    rows, columns = planned("mesh:2x3", [[0, 1, 2], [3, 4, 5]]), planned("mesh:2x3", [[0, 3], [1, 4], [2, 5]])
    took = overlapped_us([rows, columns], times)
    assert took is not None
    separate_us = [count * own.makespan_us for own, count in zip((rows, columns), times, strict=True)]
    for own, count in zip((rows, columns), times, strict=True):
        assert took >= count * float(resource_loads_us(own.problem, own.at_size).max()) * (1 - 1e-9)
    assert took <= sum(separate_us) * (1 + 1e-9)


def test_programs_are_plans_of_the_given_groups() -> None:
    topology = load("dgx-a100:2")
    groups = [[9, 0, 1, 8], [2, 11, 10, 3]]
    programs = list(program_plans(topology, members(groups)))
    assert len(programs) == 3
    for own in programs:
        assert [list(m.ranks) for m in own.problem.members] == groups
        replay(own.problem, own.at_size)
        assert own.method.startswith("reduction program: reducescatter node inside")
    without = plan(topology, members(groups), budget=0.3)
    result = plan(topology, members(groups), budget=0.3, first=programs)
    assert result.makespan_us <= min(own.makespan_us for own in programs) * (1 + 1e-9)
    assert result.makespan_us <= without.makespan_us * 1.05  # With the same time, neither search finishes its work.


@pytest.mark.parametrize(
    ("spec", "group_members"),
    [
        ("dgx-a100:2", members([list(range(16))], "allgather")),
        ("dgx-a100:2", members([list(range(8)), list(range(8, 16))])),  # One level.
        ("dgx-a100:2", [*members([[0, 1, 8, 9]]), *members([[2, 3, 10, 11]], size=2.0 * SIZE)]),
        ("dgx-a100:2", members([[0, 1, 2, 8]])),  # Three in one node, one in the other.
        ("ring:8", members([list(range(8))])),
    ],
)
def test_there_are_no_programs_without_levels_or_without_a_single_all_reduce(
    spec: str, group_members: list[Member]
) -> None:
    assert list(program_plans(load(spec), group_members)) == []


def test_no_program_is_made_after_the_deadline() -> None:
    assert list(program_plans(load("dgx-a100:2"), members([list(range(16))]), until=0.0)) == []
