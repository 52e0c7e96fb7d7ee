"""Concurrent groups planned together: never slower than the simple plans, right in every part, and fair if asked."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.app.present.table import concurrent_table as table
from synth.baselines import baseline_named
from synth.concurrent.isolated import isolated_parts, problem_digest, run_isolated
from synth.concurrent.plans import (
    AT_ONCE,
    DIRECT,
    IN_TURN,
    TOGETHER,
    WITHIN,
    even_counts,
    fairer,
    refine_sends,
)
from synth.concurrent.result import ConcurrentResult, statement
from synth.concurrent.search import plan
from synth.concurrent.union import (
    Member,
    check_within_groups,
    isolated_problems,
    merge_schedules,
    split_by_group,
    times_by_group,
    union_problem,
)
from synth.engines.request import Options
from synth.model.collective import Collective, alltoallv, named
from synth.model.defects import DefectError
from synth.model.problem import make_problem
from synth.model.schedule import Schedule
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
    asked: dict[str, object] = {"engine": "flow", "budget": 0.4, "relays": "all", **options}
    return plan(topo, members, **asked)  # type: ignore[arg-type]


def shown(found: ConcurrentResult) -> str:
    """As the command line prints it."""
    labels = [member.label for member in found.problem.members]
    return table(statement(found), labels, found.problem.topology.nranks)


def random_question(rng: random.Random) -> tuple[object, list[Member], str]:
    topology = load(rng.choice(SPECS)) if rng.random() < 0.6 else random_topology(rng)
    order = rng.sample(range(topology.nranks), topology.nranks)
    members = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        at = rng.randint(0, topology.nranks - 2)  # groups may overlap
        ranks = tuple(order[at : at + rng.randint(2, min(4, topology.nranks - at))])
        name = rng.choice(NAMES)
        members.append(Member(ranks, named(name, len(ranks), 1), rng.choice((4096, 1e6, 3e7))))
    return topology, members, rng.choice(("none", "all", "all"))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_never_slower_and_right_in_every_part(seed: int) -> None:
    rng = random.Random(seed)
    topology, members, relays = random_question(rng)
    objective = rng.choice(("makespan", "fair"))
    try:
        found = plan(topology, members, relays=relays, objective=objective, engine="flow", budget=0.1)  # type: ignore[arg-type]
    except InputError:  # joined one way only, or not without the others
        assume(False)
        raise
    asked, size = found.problem, found.size_bytes
    at_size = timed(asked, found.algorithm.schedule, size)
    replay(asked, at_size)
    check_within_groups(asked, at_size)
    assert found.times_us.tolist() == times_by_group(asked, at_size).tolist()
    assert found.makespan_us == time_us(asked, at_size)
    for (problem, part), member, took in zip(split_by_group(asked, at_size), members, found.times_us, strict=True):
        assert problem.group == member.ranks
        replay(problem, part)
        assert time_us(problem, part) == took
    # bounds hold for everything that was found
    slack = 1 - 1e-9
    assert found.bound_us >= max(found.isolated_bound_us) * slack
    assert (found.isolated_us >= found.isolated_bound_us * slack).all()
    assert (found.times_us >= found.isolated_us * slack).all()
    assert all(took >= found.bound_us * slack for took, _ in found.others.values())
    assert found.gap >= slack
    # of all ways the one taken is the best for what was asked
    kinds = set(found.others)
    assert {AT_ONCE} <= kinds
    if objective == "makespan":
        assert found.makespan_us <= min(took for took, _ in found.others.values()) / slack
        assert found.makespan_us <= found.sum_us / slack
    assert found.slowdowns.max() <= min(slow for _, slow in found.others.values()) / slack or (objective == "makespan")


def test_what_it_is_compared_with_is_what_it_says() -> None:
    """The plans of each alone at once and Direct, made here again, take what the answer says they take."""
    members = members_of(((0, 1, 4, 5), "alltoall", 1e7), ((2, 3, 6, 7), "allgather", 2e7))
    found = quick("mesh:2x4", members)
    assert set(found.others) - {TOGETHER} == {AT_ONCE, IN_TURN, DIRECT, WITHIN}
    asked = union_problem(found.problem.topology, members, "all")
    direct = baseline_named(asked, "direct", asked.size_bytes)[0]
    assert found.direct_us == pytest.approx(direct.time_us(asked.size_bytes))
    cut = union_problem(
        asked.topology,
        [replace(m, collective=one.problem.collective) for m, one in zip(members, found.isolated, strict=True)],
        "all",
    )
    parts = [timed(one.problem, one.schedule, one.size_bytes) for one in found.isolated]
    assert found.others[AT_ONCE][0] <= predict_us(cut, merge_schedules(cut, parts), cut.size_bytes) * (1 + 1e-9)
    for problem, one, member in zip(isolated_problems(asked), found.isolated, members, strict=True):
        assert one.problem.ranks == problem.ranks
        assert one.time_us == pytest.approx(predict_us(one.problem, one.schedule, member.size_bytes))
    assert found.sum_us == pytest.approx(sum(one.time_us for one in found.isolated))


def test_groups_that_share_nothing_are_as_fast_as_alone() -> None:
    found = plan("mesh:4x2", members_of(*(((2 * i, 2 * i + 1), "alltoall", 1e6) for i in range(4))), budget=0.5)
    assert found.slowdowns.tolist() == [1.0] * 4
    assert found.sum_us == pytest.approx(4 * found.makespan_us)
    assert found.relay == "none"


def test_fair_is_never_less_fair_and_can_be_fairer() -> None:
    """A little message beside a big one waits for it, unless its wait counts."""
    members = members_of(((0, 1, 2, 3), "alltoall", 1 << 24), ((4, 5, 6, 7), "allgather", 1 << 22))
    soon = quick("mesh:2x4", members, chunks=8, budget=20)
    fair = quick("mesh:2x4", members, chunks=8, budget=20, objective="fair")
    worst = float((soon.times_us / fair.isolated_us).max())
    assert fair.slowdowns.max() <= worst * (1 + 1e-9)
    assert fair.slowdowns.max() < 0.7 * worst
    assert fair.makespan_us >= soon.makespan_us * (1 - 1e-9)
    assert fair.slowdowns.max() == min(slow for _, slow in fair.others.values())


@settings(max_examples=15, deadline=None, derandomize=True)
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
        mine = [union.group_of_chunk[s.chunk] == group for s in (schedule, better)]
        for column in ("chunk", "link", "step"):
            assert np.array_equal(getattr(schedule, column)[mine[0]], getattr(better, column)[mine[1]])


def test_pinned_chunks() -> None:
    members = members_of(((0, 1, 2), "alltoall", 1e6), ((3, 4, 5), "allreduce", 1e6))
    found = quick("ring:6", members, chunks=6)
    assert [m.collective.chunks for m in found.problem.members] == [6, 6]
    assert found.direct_us is not None
    odd = quick("ring:6", members, chunks=4)
    assert [m.collective.chunks for m in odd.problem.members] == [4, 4]
    assert odd.direct_us is None  # it cuts an allreduce into a share a rank


def test_the_same_question_gets_the_same_answer() -> None:
    members = members_of(((0, 1), "alltoall", 1e6), ((1, 2), "allgather", 1e5))
    one, two = (plan("ring:4", members, relays="all", chunks=2, budget=20) for _ in range(2))
    assert one.ended == two.ended == ""
    for column in ("chunk", "link", "step", "start_us"):
        assert np.array_equal(getattr(one.algorithm.schedule, column), getattr(two.algorithm.schedule, column))
    first, second = statement(one), statement(two)
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_like_groups_are_answered_once_and_moved() -> None:
    torus, mesh = load("torus:4x4"), load("mesh:4x4")
    groups = [(0, 1, 5), (6, 7, 11), (3, 0, 4)]  # the last one runs over the edge
    problems = [
        [make_problem(t, named("allgather", 3, 1), g, [r for r in range(16) if r not in g]) for g in groups]
        for t in (torus, mesh)
    ]
    alike = IsomorphicGroups(torus)
    ways = [alike.find_translation(problems[0][0], other) for other in problems[0]]
    assert None not in ways
    assert [IsomorphicGroups(mesh).find_translation(problems[1][0], other) for other in problems[1][1:]] == [
        None,
        None,
    ]
    with Workers() as workers:
        first, _ = run_isolated(problems[0][0], 1e6, Options(chunks=2, engine="flow", budget_s=0.1), workers)
    known = first
    for other, by in zip(problems[0], ways, strict=True):
        assert by is not None
        finer = other.with_chunks(2)
        moved = alike.translate_schedule(known.problem, known.schedule, finer, by)
        replay(finer, moved)
        assert predict_us(finer, moved, 1e6) == pytest.approx(first.time_us)
    # moved by the wrong shift it is not another group's schedule
    finer = problems[0][1].with_chunks(2)
    wrong = alike.translate_schedule(known.problem, known.schedule, finer, ways[2] or ())
    with pytest.raises((ScheduleRefused, IndexError, ValueError)):
        replay(finer, timed(finer, wrong, 1e6))
    # another order of the ranks, another size or other relays are another question
    swapped = make_problem(torus, named("allgather", 3, 1), (7, 6, 11), [r for r in range(16) if r not in (6, 7, 11)])
    assert alike.find_translation(problems[0][0], swapped) is None
    fewer = make_problem(torus, named("allgather", 3, 1), groups[1])
    assert alike.find_translation(problems[0][0], fewer) is None
    assert problem_digest(finer, 1e6) == problem_digest(replace(finer), 1e6) != problem_digest(finer, 2e6)
    assert problem_digest(finer, 1e6) != problem_digest(problems[0][1], 1e6)


def test_parts_with_all_their_relays() -> None:
    """A part of the union's schedule is one of the group's problem with everybody who might have relayed."""
    found = quick("mesh:2x4", members_of(((0, 1, 4, 5), "alltoall", 1e6), ((2, 3), "alltoall", 1e6)))
    at_size = timed(found.problem, found.algorithm.schedule, found.size_bytes)
    for (problem, part), whole, took in zip(
        isolated_parts(found.problem, at_size), isolated_problems(found.problem), found.times_us, strict=True
    ):
        assert problem.ranks == whole.ranks
        replay(problem, part)
        assert time_us(problem, part) == took


def test_chunks_of_like_sizes() -> None:
    small, large = members_of(((0, 1), "alltoall", 1e6), ((2, 3), "alltoall", 4e6))
    assert even_counts([small, large]) == [1, 4]
    assert even_counts([small, replace(large, size_bytes=1e9)]) == [1, 8]
    assert even_counts(members_of(((0, 1, 2), "allreduce", 3e6), ((3, 4), "broadcast", 2e6))) == [3, 2]
    made = baseline_named(make_problem(load("ring:4"), "alltoall"), "direct")[0]
    finer = refine_sends(made.schedule, 3)
    cut = Algorithm(made.problem.with_chunks(3), finer, "direct")
    assert cut.time_us(1e8) <= made.time_us(1e8) * (1 + 1e-9)
    at_size = timed(cut.problem, cut.schedule, 1e8)
    busy = resource_loads_us(cut.problem, at_size)
    assert busy == pytest.approx(resource_loads_us(made.problem, timed(made.problem, made.schedule, 1e8)))
    assert 0 < busy.max() <= time_us(cut.problem, at_size)


def test_names_that_a_file_takes() -> None:
    names = ("reducescatter", "allgather", "allreduce")
    members = members_of(*(((0, 1), name, 1e3) for name in names for _ in range(100)))
    assert union_problem(load("ring:2"), members[:200]).collective.name == "reducescatter-x100-allgather-x100"
    asked = union_problem(load("ring:2"), members)
    again = asked.restated([m.collective for m in members], "none", ())
    assert (asked.collective.name, again.collective.name) == ("together", "together")


def test_interrupted_there_is_an_answer() -> None:
    members = members_of(((0, 2, 4), "alltoall", 1e6), ((1, 3, 5), "alltoall", 1e6))
    for place in ("alone", "together"):
        seen: list[str] = []

        def stop(text: str, _best: Algorithm | None, place: str = place, seen: list[str] = seen) -> None:
            if place in text and not seen:
                seen.append(text)
                raise KeyboardInterrupt

        found = quick("ring:6", members, progress=stop, chunks=1, budget=20)
        assert seen
        assert found.ended == "interrupted"
        assert AT_ONCE in found.others
        assert found.gap >= 1 - 1e-9


def test_statement_and_table() -> None:
    members = members_of(((0, 1, 2), "alltoall", 1 << 20), ((3, 4, 5), "allgather", 1 << 24))
    found = quick("ring:6", members)
    said = statement(found)
    assert [g["ranks"] for g in said["groups"]] == [[0, 1, 2], [3, 4, 5]]
    assert said["time_us"] == max(g["time_us"] for g in said["groups"]) == found.makespan_us
    assert said["gap"] == pytest.approx(said["time_us"] / said["bound_us"])
    assert said["vs_sum"] == pytest.approx(sum(g["alone_us"] for g in said["groups"]) / said["time_us"])
    assert said["by"] in said["plans"]
    text = shown(found)
    for words in (
        "0-2",
        "3-5",
        "alltoall",
        "allgather",
        "1 MiB",
        "16 MiB",
        "one after another",
        "direct",
        "gap",
    ):
        assert words in text
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
    for words, options in wrong:
        members = pair[:1] if "without" in options else pair
        with pytest.raises(InputError, match=words) as error:
            quick("ring:4", members, **options)
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(InputError, match="there is none"):
        quick("ring:4", [])
    with pytest.raises(InputError, match="is stated for 2"):
        quick("ring:4", [replace(pair[0], ranks=(0, 1, 2))])


@pytest.mark.usefixtures("planted_defects")
def test_a_stray_plan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody relays, a schedule that leaves its group does not become a plan."""
    members = members_of(((0, 1), "alltoall", 1e6), ((2, 3), "alltoall", 1e6))
    union = union_problem(load("ring:4"), members)
    roundabout = union_problem(load("ring:4"), members, "all")

    def strays(_asked: object, _parts: list[Schedule]) -> Schedule:
        made = baseline_named(roundabout, "direct")[0].schedule
        net = union.network
        back = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(net.src, net.dst, strict=True))}
        way = [back[0, 3], back[3, 2], back[2, 1]]
        kept = made.take(made.chunk != 1)
        return replace(
            kept,
            chunk=np.append(kept.chunk, [1, 1, 1]),
            link=np.append(kept.link, way),
            step=np.append(kept.step, [0, 1, 2]),
            reduces=np.append(kept.reduces, [False] * 3),
            start_us=np.append(kept.start_us, [0.0] * 3),
            end_us=np.append(kept.end_us, [0.0] * 3),
        )

    monkeypatch.setattr("synth.concurrent.plans.merge_schedules", strays)
    with pytest.raises(DefectError, match=r"ScheduleRefused .* group 0-1"):
        plan("ring:4", members, engine="flow", budget=0.2)


def test_patterns_and_unequal_sizes_together() -> None:
    sizes = alltoallv([[0, 3, 1], [2, 0, 2], [5, 0, 0]])
    members = [Member((0, 1, 2), sizes, 1e6), *members_of(((3, 4), "broadcast", 5e6))]
    found = quick("ring:6", members)
    assert isinstance(found.problem.members[0].collective, Collective)
    assert found.gap >= 1 - 1e-9
