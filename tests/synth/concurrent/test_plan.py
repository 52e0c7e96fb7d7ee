"""Concurrent groups planned together: never slower than the simple plans, right in every part, fair on request."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.app.present.table import concurrent_table as table
from synth.baselines import baseline_named
from synth.bounds.check import check
from synth.bounds.prove import Bound
from synth.concurrent.isolated import isolated_parts, problem_digest, run_isolated
from synth.concurrent.plans import (
    even_counts,
    fairer,
    refine_sends,
)
from synth.concurrent.result import ConcurrentResult, statement
from synth.concurrent.search import plan
from synth.concurrent.union import (
    Member,
    UnionProblem,
    check_within_groups,
    isolated_problems,
    merge_schedules,
    split_by_group,
    times_by_group,
    union_problem,
)
from synth.engines.request import Options
from synth.model.collective import Collective, named, uneven
from synth.model.defects import DefectError
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule
from synth.search.plans import AT_ONCE, DIRECT, IN_TURN, JOINT, WITHIN
from synth.solvers.workers import Workers
from synth.symmetry.relabelling import IsomorphicGroups
from synth.timing.simulate import predict_us, resource_loads_us, time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from tests.random_problems import random_topology
from topologies.errors import InputError, ScheduleRefused
from topologies.load import load

NAMES = ("alltoall", "allgather", "broadcast", "reducescatter", "allreduce", "gather")
SPECS = ("ring:6", "mesh:2x3", "dgx1", "dgx-a100", "star:6", "fattree:2x2x2", "full:4")


def members_of(*parts: tuple[tuple[int, ...], str, float]) -> list[Member]:
    return [Member(ranks, named(name, len(ranks), 1), size) for ranks, name, size in parts]


def quick(topo: str, members: list[Member], **options: object) -> ConcurrentResult:
    question: dict[str, object] = {"engine": "flow", "budget": 0.4, "relays": "all", **options}
    return plan(topo, members, **question)  # type: ignore[arg-type]


def shown(result: ConcurrentResult) -> str:
    """Return the table that the command line prints."""
    labels = [member.label for member in result.problem.members]
    return table(statement(result), labels, result.problem.topology.nranks)


def random_question(rng: random.Random) -> tuple[object, list[Member], str]:
    topology = load(rng.choice(SPECS)) if rng.random() < 0.6 else random_topology(rng)
    order = rng.sample(range(topology.nranks), topology.nranks)
    members = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        at = rng.randint(0, topology.nranks - 2)  # Groups may overlap.
        ranks = tuple(order[at : at + rng.randint(2, min(4, topology.nranks - at))])
        name = rng.choice(NAMES)
        members.append(Member(ranks, named(name, len(ranks), 1), rng.choice((4096, 1e6, 3e7))))
    return topology, members, rng.choice(("none", "all", "all"))


@settings(max_examples=8, derandomize=True)
@given(st.integers(0, 2**32))
def test_never_slower_and_right_in_every_part(seed: int) -> None:
    rng = random.Random(seed)
    topology, members, relays = random_question(rng)
    objective = rng.choice(("makespan", "fair"))
    try:
        result = plan(topology, members, relays=relays, objective=objective, engine="flow", budget=0.1)  # type: ignore[arg-type]
    except InputError:  # The ranks are joined one way only, or not without other ranks.
        assume(False)
        raise
    union, size = result.problem, result.size_bytes
    at_size = timed(union, result.algorithm.schedule, size)
    replay(union, at_size)
    check_within_groups(union, at_size)
    assert result.times_us.tolist() == times_by_group(union, at_size).tolist()
    assert result.makespan_us == time_us(union, at_size)
    for (problem, part), member, took in zip(split_by_group(union, at_size), members, result.times_us, strict=True):
        assert problem.group == member.ranks
        replay(problem, part)
        assert time_us(problem, part) == took
    # Bounds hold for every plan.
    slack = 1 - 1e-9
    assert result.bound_us >= max(result.isolated_bound_us) * slack
    assert (result.isolated_us >= result.isolated_bound_us * slack).all()
    assert (result.times_us >= result.isolated_us * slack).all()
    assert all(took >= result.bound_us * slack for took, _ in result.best_by_method.values())
    assert result.gap >= slack
    # The chosen plan is the best for the objective.
    kinds = set(result.best_by_method)
    assert {AT_ONCE} <= kinds
    if objective == "makespan":
        assert result.makespan_us <= min(took for took, _ in result.best_by_method.values()) / slack
        assert result.makespan_us <= result.sum_us / slack
    assert result.slowdowns.max() <= min(slow for _, slow in result.best_by_method.values()) / slack or (
        objective == "makespan"
    )


def test_the_simple_plans_take_the_stated_times() -> None:
    """Check that the simple plans, computed again here, take the times that the answer states."""
    members = members_of(((0, 1, 4, 5), "alltoall", 1e7), ((2, 3, 6, 7), "allgather", 2e7))
    result = quick("mesh:2x4", members)
    assert set(result.best_by_method) - {JOINT} == {AT_ONCE, IN_TURN, DIRECT, WITHIN}
    union = union_problem(result.problem.topology, members, "all")
    direct = baseline_named(union, "direct", union.size_bytes)[0]
    assert result.direct_us == pytest.approx(direct.time_us(union.size_bytes))
    cut = union_problem(
        union.topology,
        [
            replace(m, collective=isolated_result.problem.collective)
            for m, isolated_result in zip(members, result.isolated, strict=True)
        ],
        "all",
    )
    parts = [timed(part.problem, part.schedule, part.size_bytes) for part in result.isolated]
    assert result.best_by_method[AT_ONCE][0] <= predict_us(cut, merge_schedules(cut, parts), cut.size_bytes) * (
        1 + 1e-9
    )
    for problem, part, member in zip(isolated_problems(union), result.isolated, members, strict=True):
        assert part.problem.ranks == problem.ranks
        assert part.time_us == pytest.approx(predict_us(part.problem, part.schedule, member.size_bytes))
    assert result.sum_us == pytest.approx(sum(part.time_us for part in result.isolated))


def test_groups_that_share_nothing_are_as_fast_as_isolated_groups() -> None:
    result = plan("mesh:4x2", members_of(*(((2 * i, 2 * i + 1), "alltoall", 1e6) for i in range(4))), budget=0.5)
    assert result.slowdowns.tolist() == [1.0] * 4
    assert result.sum_us == pytest.approx(4 * result.makespan_us)
    assert result.relay == "none"


def test_fair_is_never_less_fair_and_can_be_fairer() -> None:
    """Check that the fair objective is never less fair: a small message waits for a big one, unless its wait counts."""
    members = members_of(((0, 1, 2, 3), "alltoall", 1 << 24), ((4, 5, 6, 7), "allgather", 1 << 22))
    soon = quick("mesh:2x4", members, chunks=8, budget=20)
    fair = quick("mesh:2x4", members, chunks=8, budget=20, objective="fair")
    worst = float((soon.times_us / fair.isolated_us).max())
    assert fair.slowdowns.max() <= worst * (1 + 1e-9)
    assert fair.slowdowns.max() < 0.7 * worst
    assert fair.makespan_us >= soon.makespan_us * (1 - 1e-9)
    assert fair.slowdowns.max() == min(slow for _, slow in fair.best_by_method.values())


@settings(max_examples=15, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_fairer_order_is_an_order_of_the_same_sends(seed: int) -> None:
    rng = random.Random(seed)
    topology = load(rng.choice(SPECS))
    members = []
    for _ in range(3):
        ranks = tuple(rng.sample(range(topology.nranks), 3))
        members.append(Member(ranks, named("alltoall", 3, 1), rng.choice((1e4, 1e6, 1e7))))
    union = union_problem(topology, members, "all")
    parts = []
    for problem, member in zip(isolated_problems(union), members, strict=True):
        parts.append(timed(problem, baseline_named(problem, "direct")[0].schedule, member.size_bytes))
    schedule = merge_schedules(union, parts)
    alone_us = np.array([time_us(p, s) for p, s in zip(isolated_problems(union), parts, strict=True)])
    before = times_by_group(union, timed(union, schedule, union.size_bytes)) / alone_us
    better = fairer(union, schedule, union.size_bytes, alone_us)
    if better is None:
        return
    replay(union, better)
    assert (times_by_group(union, better) / alone_us).max() <= before.max() * (1 + 1e-8)
    for group in range(3):
        masks = [union.group_of_chunk[s.chunk] == group for s in (schedule, better)]
        for column in ("chunk", "link", "step"):
            assert np.array_equal(getattr(schedule, column)[masks[0]], getattr(better, column)[masks[1]])


def test_pinned_chunks() -> None:
    members = members_of(((0, 1, 2), "alltoall", 1e6), ((3, 4, 5), "allreduce", 1e6))
    result = quick("ring:6", members, chunks=6)
    assert [m.collective.chunks for m in result.problem.members] == [6, 6]
    assert result.direct_us is not None
    odd = quick("ring:6", members, chunks=4)
    assert [m.collective.chunks for m in odd.problem.members] == [4, 4]
    assert odd.direct_us is None  # It cuts an allreduce into one share for each rank.


def test_the_same_question_gets_the_same_answer() -> None:
    members = members_of(((0, 1), "alltoall", 1e6), ((1, 2), "allgather", 1e5))
    first_result, two = (plan("ring:4", members, relays="all", chunks=2, budget=20) for _ in range(2))
    assert first_result.stop_reason == two.stop_reason == ""
    for column in ("chunk", "link", "step", "start_us"):
        assert np.array_equal(getattr(first_result.algorithm.schedule, column), getattr(two.algorithm.schedule, column))
    first, second = statement(first_result), statement(two)
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_isomorphic_groups_are_answered_once_and_translated() -> None:
    torus, mesh = load("torus:4x4"), load("mesh:4x4")
    groups = [(0, 1, 5), (6, 7, 11), (3, 0, 4)]  # The last group runs over the edge.
    problems = [
        [make_problem(t, named("allgather", 3, 1), g, [r for r in range(16) if r not in g]) for g in groups]
        for t in (torus, mesh)
    ]
    translator = IsomorphicGroups(torus)
    ways = [translator.find_translation(problems[0][0], problem) for problem in problems[0]]
    assert None not in ways
    assert [IsomorphicGroups(mesh).find_translation(problems[1][0], problem) for problem in problems[1][1:]] == [
        None,
        None,
    ]
    with Workers() as workers:
        first, _ = run_isolated(problems[0][0], 1e6, Options(chunks=2, engine="flow", budget_s=0.1), workers)
    donor = first
    for problem, by in zip(problems[0], ways, strict=True):
        assert by is not None
        finer = problem.with_chunks(2)
        moved = translator.translate_schedule(donor.problem, donor.schedule, finer, by)
        replay(finer, moved)
        assert predict_us(finer, moved, 1e6) == pytest.approx(first.time_us)
    # After the wrong shift it is not the schedule of another group.
    finer = problems[0][1].with_chunks(2)
    wrong = translator.translate_schedule(donor.problem, donor.schedule, finer, ways[2] or ())
    with pytest.raises((ScheduleRefused, IndexError, ValueError)):
        replay(finer, timed(finer, wrong, 1e6))
    # Another order of the ranks, another size or other relays are another question.
    swapped = make_problem(torus, named("allgather", 3, 1), (7, 6, 11), [r for r in range(16) if r not in (6, 7, 11)])
    assert translator.find_translation(problems[0][0], swapped) is None
    fewer = make_problem(torus, named("allgather", 3, 1), groups[1])
    assert translator.find_translation(problems[0][0], fewer) is None
    assert problem_digest(finer, 1e6) == problem_digest(replace(finer), 1e6) != problem_digest(finer, 2e6)
    assert problem_digest(finer, 1e6) != problem_digest(problems[0][1], 1e6)


def test_parts_with_all_their_relays() -> None:
    """Check that a part of the union's schedule solves the group's problem, with all possible relays."""
    result = quick("mesh:2x4", members_of(((0, 1, 4, 5), "alltoall", 1e6), ((2, 3), "alltoall", 1e6)))
    at_size = timed(result.problem, result.algorithm.schedule, result.size_bytes)
    for (problem, part), whole, took in zip(
        isolated_parts(result.problem, at_size), isolated_problems(result.problem), result.times_us, strict=True
    ):
        assert problem.ranks == whole.ranks
        replay(problem, part)
        assert time_us(problem, part) == took


def test_chunks_of_similar_sizes() -> None:
    small, large = members_of(((0, 1), "alltoall", 1e6), ((2, 3), "alltoall", 4e6))
    assert even_counts([small, large]) == [1, 4]
    assert even_counts([small, replace(large, size_bytes=1e9)]) == [1, 8]
    assert even_counts(members_of(((0, 1, 2), "allreduce", 3e6), ((3, 4), "broadcast", 2e6))) == [3, 2]
    algorithm = baseline_named(make_problem(load("ring:4"), "alltoall"), "direct")[0]
    finer = refine_sends(algorithm.schedule, 3)
    cut = Algorithm(algorithm.problem.with_chunks(3), finer, "direct")
    assert cut.time_us(1e8) <= algorithm.time_us(1e8) * (1 + 1e-9)
    at_size = timed(cut.problem, cut.schedule, 1e8)
    busy = resource_loads_us(cut.problem, at_size)
    assert busy == pytest.approx(
        resource_loads_us(algorithm.problem, timed(algorithm.problem, algorithm.schedule, 1e8))
    )
    assert 0 < busy.max() <= time_us(cut.problem, at_size)


def test_names_that_a_file_takes() -> None:
    names = ("reducescatter", "allgather", "allreduce")
    members = members_of(*(((0, 1), name, 1e3) for name in names for _ in range(100)))
    assert union_problem(load("ring:2"), members[:200]).collective.name == "reducescatter-x100-allgather-x100"
    union = union_problem(load("ring:2"), members)
    again = union.restated([m.collective for m in members], "none", ())
    assert (union.collective.name, again.collective.name) == ("together", "together")


def test_an_interrupted_plan_has_an_answer() -> None:
    members = members_of(((0, 2, 4), "alltoall", 1e6), ((1, 3, 5), "alltoall", 1e6))
    for place in ("alone", "together"):
        stops: list[str] = []

        def stop(text: str, _best: Algorithm | None, place: str = place, stops: list[str] = stops) -> None:
            if place in text and not stops:
                stops.append(text)
                raise KeyboardInterrupt

        result = quick("ring:6", members, progress=stop, chunks=1, budget=20)
        assert stops
        assert result.stop_reason == "interrupted"
        assert AT_ONCE in result.best_by_method
        assert result.gap >= 1 - 1e-9


class _NoPrograms:
    """An executor that can hold no plan, as if the budget ended before any was lowered."""

    def isolated(self, _problem: Problem) -> None:
        return None

    def rank_sends(self, _union: UnionProblem) -> None:
        return None

    def time_us(self, _union: UnionProblem, _algorithm: Algorithm) -> float:
        raise InputError("no program was ready in time")


def test_without_programs_the_chosen_plan_is_the_fastest_of_those_printed() -> None:
    members = [Member(tuple(range(first, first + 4)), named("alltoall", 4, 1), 1 << 24) for first in (0, 4, 8, 12)]
    result = quick("mesh:4x4", members, budget=2.0, executor=_NoPrograms())
    assert result.makespan_us == min(makespan_us for makespan_us, _ in result.best_by_method.values())
    assert result.makespan_us < result.best_by_method[AT_ONCE][0]


def test_statement_and_table() -> None:
    members = members_of(((0, 1, 2), "alltoall", 1 << 20), ((3, 4, 5), "allgather", 1 << 24))
    result = quick("ring:6", members)
    document = statement(result)
    assert [g["ranks"] for g in document["groups"]] == [[0, 1, 2], [3, 4, 5]]
    assert document["time_us"] == max(g["time_us"] for g in document["groups"]) == result.makespan_us
    assert document["gap"] == pytest.approx(document["time_us"] / document["bound_us"])
    assert document["vs_sum"] == pytest.approx(sum(g["alone_us"] for g in document["groups"]) / document["time_us"])
    assert document["by"] in document["plans"]
    text = shown(result)
    for message in (
        "0-2",
        "3-5",
        "alltoall",
        "allgather",
        "1 MiB",
        "16 MiB",
        "alone, in sum",
        "direct",
        "gap",
    ):
        assert message in text
    many = plan("ring:80", members_of(*(((2 * i, 2 * i + 1), "alltoall", 1e6) for i in range(40))), budget=0.5)
    assert "… 9 more …" in shown(many)
    assert len(shown(many).splitlines()) < 50


def test_questions_that_cannot_be() -> None:
    pair = members_of(((0, 1), "alltoall", 1e6), ((2, 3), "alltoall", 1e6))
    wrong: list[tuple[str, dict[str, object]]] = [
        ("objective: 'quick' is not known", {"objective": "quick"}),
        ("engine: 'smt' is not known for several groups", {"engine": "smt"}),
        ("budget: 0 s", {"budget": 0}),
        ("chunks: 0", {"chunks": 0}),
        ("seed: -1", {"seed": -1}),
        ("relay: 'some'", {"relays": "some"}),
        ("relay: rank 3 is taken out", {"relays": [3], "without": ["rank:3"]}),
    ]
    for message, options in wrong:
        members = pair[:1] if "without" in options else pair
        with pytest.raises(InputError, match=message) as error:
            quick("ring:4", members, **options)
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(InputError, match="there is none"):
        quick("ring:4", [])
    with pytest.raises(InputError, match="is stated for 2"):
        quick("ring:4", [replace(pair[0], ranks=(0, 1, 2))])


@pytest.mark.usefixtures("planted_defects")
def test_a_stray_plan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a schedule that leaves its group does not become a plan without relays."""
    members = members_of(((0, 1), "alltoall", 1e6), ((2, 3), "alltoall", 1e6))
    union = union_problem(load("ring:4"), members)
    roundabout = union_problem(load("ring:4"), members, "all")

    def strays(_asked: object, _parts: list[Schedule]) -> Schedule:
        direct = baseline_named(roundabout, "direct")[0].schedule
        net = union.network
        back = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(net.src, net.dst, strict=True))}
        detour = [back[0, 3], back[3, 2], back[2, 1]]
        kept_sends = direct.take(direct.chunk != 1)
        return replace(
            kept_sends,
            chunk=np.append(kept_sends.chunk, [1, 1, 1]),
            link=np.append(kept_sends.link, detour),
            step=np.append(kept_sends.step, [0, 1, 2]),
            reduces=np.append(kept_sends.reduces, [False] * 3),
            start_us=np.append(kept_sends.start_us, [0.0] * 3),
            end_us=np.append(kept_sends.end_us, [0.0] * 3),
        )

    monkeypatch.setattr("synth.concurrent.plans.merge_schedules", strays)
    with pytest.raises(DefectError, match=r"ScheduleRefused .* group 0-1"):
        plan("ring:4", members, engine="flow", budget=0.2)


def test_patterns_and_unequal_sizes_in_one_union() -> None:
    sizes = uneven("alltoallv", [[0, 3, 1], [2, 0, 2], [5, 0, 0]])
    members = [Member((0, 1, 2), sizes, 1e6), *members_of(((3, 4), "broadcast", 5e6))]
    result = quick("ring:6", members)
    assert isinstance(result.problem.members[0].collective, Collective)
    assert result.gap >= 1 - 1e-9


def test_the_bound_of_isomorphic_groups_is_proved_by_the_group_that_was_searched(workers: Workers) -> None:
    """Check that a proof of a group's own bound fits that group, where isomorphic groups number their relays otherwise.

    The relays of 0,1 are 2,3,4,5; moved along the ring by two ranks they are 4,5,0,1, but the group 2,3 sorts them.
    """
    members = members_of(*(((first, first + 1), "allgather", 1 << 20) for first in (0, 2, 4)))
    result = plan("ring:6", members, relays="all", budget=2, workers=workers)
    assert len({answer.bound_us for answer in result.isolated}) == 1
    weak = tuple(replace(w, base_us=0.0, per_byte_us=w.per_byte_us / 100) for w in result.bound.witnesses)
    bound_us, _, group = replace(result, bound=Bound(weak)).decisive
    assert (bound_us, group) == (result.isolated[0].bound_us, 0)
    (problem,) = isolated_problems(result.problem, [0])
    for witness in result.isolated[0].bound.witnesses:
        check(problem, witness)
