"""Concurrent groups as one problem: its parts are the groups' own problems, and so are the parts of its answers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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
from synth.engines.route import quick_schedule
from synth.model.collective import Collective, named, subdivided
from synth.model.problem import make_problem
from synth.model.schedule import Schedule
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from tests.random_problems import ROOTED, answered, random_collective, random_topology
from topologies.errors import InputError, ScheduleRefused
from topologies.load import load
from topologies.network import network, subnetwork
from topologies.topology import Topology

SEEDS = st.integers(0, 2**32)
SIZES = (1024.0, 4096.0, 1e6, 3e7)
SPECS = (
    "dgx1",
    "ndv2:2",
    "full:4",
    "full:6",
    "dgx-a100",
    "star:8",
    "torus:3x3",
    "ring:6",
    "fattree:3x2x2",
    "mi250",
    "dragonfly:3x2x2",
)


def random_groups(rng: random.Random, nranks: int) -> list[tuple[int, ...]]:
    """Return blocks, strides or random ranks, with and without overlap."""
    kind = rng.choice(("blocks", "strides", "apart", "any"))
    if kind in ("blocks", "strides"):
        extents = [e for e in range(2, nranks + 1) if nranks % e == 0]
        extent = rng.choice(extents)
        many = nranks // extent
        blocks = [tuple(range(extent * i, extent * (i + 1))) for i in range(many)]
        return (blocks if kind == "blocks" else [tuple(range(i, nranks, many)) for i in range(many)])[:3]
    order = rng.sample(range(nranks), nranks)
    if kind == "apart" and nranks >= 4:
        cut = rng.randint(2, nranks - 2)
        return [tuple(order[:cut]), tuple(order[cut : rng.randint(cut + 2, nranks)])]
    return [tuple(rng.sample(order, rng.randint(2, min(5, nranks)))) for _ in range(rng.randint(1, 3))]


def random_members(rng: random.Random, groups: list[tuple[int, ...]], copying: bool) -> list[Member]:
    members = []
    for ranks in groups:
        collective = random_collective(rng, len(ranks), None)
        if isinstance(collective, str):
            if copying and "reduce" in collective:
                collective = "allgather"
            root = rng.randrange(len(ranks)) if collective in ROOTED else 0
            collective = named(collective, len(ranks), rng.choice((1, 2)), root)
        members.append(Member(ranks, collective, rng.choice(SIZES)))
    return members


def random_union(rng: random.Random, copying: bool = False, relays: str | None = None) -> UnionProblem:
    topology = load(rng.choice(SPECS)) if rng.random() < 0.5 else random_topology(rng)
    members = random_members(rng, random_groups(rng, topology.nranks), copying)
    rule = relays or rng.choice(("none", "all"))
    try:
        return union_problem(topology, members, rule)
    except InputError:
        return union_problem(topology, members, "all")


def answered_alone(union: UnionProblem) -> list[Schedule]:
    try:
        return [
            timed(p, answered(p, m.size_bytes), m.size_bytes)
            for p, m in zip(isolated_problems(union), union.members, strict=True)
        ]
    except InputError:  # A group that is joined one way only cannot gather a sum at one of its ranks.
        assume(False)
        raise


def check_parts(union: UnionProblem, schedule: Schedule) -> None:
    """Check that a timed schedule of the union and its parts are right, and have the same times."""
    replay(union, schedule)
    parts = split_by_group(union, schedule)
    times = times_by_group(union, schedule)
    assert times.max() == time_us(union, schedule)
    assert sum(len(part) for _, part in parts) == len(schedule)
    for (problem, part), member, last in zip(parts, union.members, times, strict=True):
        assert problem.group == member.ranks
        assert part.size_bytes == pytest.approx(member.size_bytes * schedule.size_bytes / union.size_bytes)
        replay(problem, part)  # This uses the union's times.
        assert time_us(problem, part) == last
        again = timed(problem, part, member.size_bytes)
        replay(problem, again)
        same = make_problem(problem.topology, member.collective, member.ranks, problem.relays)
        replay(same, again)


@settings(max_examples=80, derandomize=True)
@given(SEEDS)
def test_the_union_states_the_same_as_its_groups(seed: int) -> None:
    union = random_union(random.Random(seed))
    whole = union.collective
    assert whole.nchunks == union.first_chunk[-1] == sum(m.collective.nchunks for m in union.members)
    assert set(union.group) == {r for m in union.members for r in m.ranks}
    size = 12345.0
    places: dict[tuple[str, int, int], int] = {}
    cells_of_groups: dict[str, set[tuple[int, int]]] = {"pre": set(), "post": set()}
    for side, rows, index in (("pre", whole.pre, whole.in_index), ("post", whole.post, whole.out_index)):
        assert np.array_equal(np.lexsort((rows[:, 1], rows[:, 0])), np.arange(len(rows)))
        for (rank, chunk), at in zip(rows.tolist(), index.tolist(), strict=True):
            group = int(union.group_of_chunk[chunk])
            assert places.setdefault((side, rank, at), group) == group  # No place belongs to two groups.
            cells_of_groups[side].add((union.group[rank], chunk))
    for group, member in enumerate(union.members):
        own, first = member.collective, int(union.first_chunk[group])
        own_chunks = slice(first, int(union.first_chunk[group + 1]))
        assert (union.group_of_chunk[own_chunks] == group).all()
        assert np.array_equal(whole.reduces[own_chunks], own.reduces)
        assert whole.chunk_bytes(size)[own_chunks] == pytest.approx(own.chunk_bytes(union.member_bytes(group, size)))
        assert whole.chunk_bytes(union.size_bytes)[own_chunks] == pytest.approx(own.chunk_bytes(member.size_bytes))
        for side, rows in (("pre", own.pre), ("post", own.post)):
            cells = {(member.ranks[r], c + first) for r, c in rows.tolist()}
            assert cells <= cells_of_groups[side]
            cells_of_groups[side] -= cells
        positions = [union.group[i] for i in union.positions[group].tolist()]
        assert tuple(positions) == member.ranks
    assert cells_of_groups == {"pre": set(), "post": set()}


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_schedules_of_the_union_fall_into_schedules_of_the_groups(seed: int) -> None:
    union = random_union(random.Random(seed), copying=True, relays="all")
    check_parts(union, timed(union, quick_schedule(union, union.size_bytes), union.size_bytes))


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_schedules_of_the_groups_make_one_of_the_union(seed: int) -> None:
    union = random_union(random.Random(seed))
    own = answered_alone(union)
    for size in (union.size_bytes, union.size_bytes * 100):
        check_parts(union, timed(union, merge_schedules(union, own), size))
    back = split_by_group(union, merge_schedules(union, own))
    for (problem, part), before, whole in zip(back, own, isolated_problems(union), strict=True):
        names = [whole.link_name(i) for i in before.link.tolist()]
        assert Counter(problem.link_name(i) for i in part.link.tolist()) == Counter(names)
        assert np.array_equal(part.chunk, before.chunk)  # The order is the same.
        assert np.array_equal(part.step, before.step)


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_a_part_of_a_network_is_the_network_of_a_part(seed: int) -> None:
    rng = random.Random(seed)
    topology = load(rng.choice(SPECS)) if rng.random() < 0.5 else random_topology(rng)
    ranks = rng.sample(range(topology.nranks), rng.randint(2, topology.nranks))
    chosen = np.array(rng.sample(range(len(ranks)), rng.randint(1, len(ranks))))
    whole = network(topology, ranks)
    part, links = subnetwork(whole, chosen)
    right = network(topology, [ranks[i] for i in chosen.tolist()])
    columns = "ranks src dst alpha_us bandwidth_gbs uses_ptr uses_idx capacity_gbs"
    for name in columns.split():
        assert np.array_equal(getattr(part, name), getattr(right, name)), name
    assert part.resource_names == right.resource_names
    assert np.array_equal(whole.ranks[whole.src[links]], part.ranks[part.src])


@settings(max_examples=30, derandomize=True)
@given(SEEDS, st.sampled_from([2, 3]))
def test_more_chunks(seed: int, chunks: int) -> None:
    union = random_union(random.Random(seed))
    finer = union.with_chunks(chunks)
    members = [replace(m, collective=subdivided(m.collective, chunks)) for m in union.members]
    again = union_problem(union.topology, members, "all")
    assert np.array_equal(finer.first_chunk, again.first_chunk)
    assert np.array_equal(finer.group_of_chunk, again.group_of_chunk)
    collective, other_collective = finer.collective, again.collective
    for name in ("pre", "post", "in_index", "out_index", "reduces", "chunks", "nchunks", "root", "name"):
        assert np.array_equal(getattr(collective, name), getattr(other_collective, name)), name
    assert collective.fraction == pytest.approx(other_collective.fraction)


def halves(relays: str | list[int] = "none", spec: str = "torus:2x4") -> UnionProblem:
    topology = load(spec)
    members = [Member(ranks, named("alltoall", 4, 1), 4096) for ranks in ((0, 1, 2, 3), (4, 5, 6, 7))]
    return union_problem(topology, members, relays)


def test_which_ranks_may_hold_a_chunk() -> None:
    inside = halves()
    assert inside.ranks == tuple(range(8))
    assert inside.may_hold().tolist() == [[True] * 4 + [False] * 4, [False] * 4 + [True] * 4]
    assert halves("all").allowed_holders is None
    topology = load("ring:6")
    members = [Member((0, 1), named("allgather", 2, 1), 64), Member((2, 1), named("allgather", 2, 1), 64)]
    named_relays = union_problem(topology, members, [2, 5])  # Rank 2 is in a group and may relay anyway.
    assert named_relays.ranks == (0, 1, 2, 5)
    assert named_relays.allowed_holders is None
    assert union_problem(topology, members, "all", dead=(4,)).relays == (3, 5)
    assert union_problem(topology, members, []).may_hold().tolist() == [
        [True, True, False],
        [False, True, True],
    ]
    assert [p.ranks for p in isolated_problems(inside)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [p.ranks for p in isolated_problems(halves("all"), [1])] == [(4, 5, 6, 7, 0, 1, 2, 3)]


def test_a_chunk_that_strays_is_refused() -> None:
    union = halves()
    schedule = merge_schedules(union, answered_alone(union))
    check_within_groups(union, schedule)
    net = union.network
    out = int(np.flatnonzero((net.src < 4) & (net.dst >= 4))[0])
    row = int(np.flatnonzero(net.src[schedule.link] == net.src[out])[0])
    link = schedule.link.copy()
    link[row] = out
    with pytest.raises(ScheduleRefused, match=rf"send {row}: .* group 0-3 is at rank {net.dst[out]}, which is not"):
        split_by_group(union, replace(schedule, link=link))
    # A chunk of another group uses a link of this group.
    chunk = schedule.chunk.copy()
    own_send = int(np.flatnonzero(union.group_of_chunk[chunk] == 0)[0])
    chunk[own_send] = union.first_chunk[1]
    with pytest.raises(ScheduleRefused, match="group 4-7"):
        split_by_group(union, replace(schedule, chunk=chunk))
    freely = replace(union, allowed_holders=None)
    check_within_groups(freely, replace(schedule, link=link))


def test_a_missing_send_shows_in_its_own_part_only() -> None:
    union = halves()
    schedule = merge_schedules(union, answered_alone(union))
    last = int(np.flatnonzero(union.group_of_chunk[schedule.chunk] == 1)[-1])
    fewer = timed(union, schedule.take(np.arange(len(schedule)) != last), 4096)
    good, bad = split_by_group(union, fewer)
    replay(*good)
    with pytest.raises(ScheduleRefused, match="never arrives"):
        replay(*bad)


def test_names_and_a_single_group() -> None:
    ring = load("full:4")

    def name(*collectives: str) -> str:
        members = [Member((0, 1, 2), named(c, 3, 1), 64) for c in collectives]
        return union_problem(ring, members).collective.name

    assert name("alltoall", "alltoall") == "alltoall-x2"
    assert name("allreduce", "alltoall", "allreduce") == "allreduce-x2-alltoall"
    assert name("allreduce", "alltoall", "allgather", "broadcast") == "together"
    lone = named("scatter", 3, 2, 1)
    union = union_problem(ring, [Member((3, 0, 1), lone, 64)])
    same = union.collective
    assert (same.name, same.root, same.chunks) == ("scatter", 1, 2)
    for column in ("pre", "post", "in_index", "out_index", "fraction"):
        assert np.array_equal(getattr(same, column), getattr(lone, column))
    assert Member((0, 1, 2, 5), lone, 1).label == "0-2,5"
    assert Member(tuple(range(0, 100, 2)), lone, 1).label == "0,2,… (50 ranks)"


def test_many_groups_are_stated_at_once() -> None:
    topology = load("torus:16x16")
    shared: Collective = named("allgather", 2, 1)
    members = [Member((i, i + 1), shared, 64) for i in range(0, 256, 2)]
    union = union_problem(topology, members)
    assert union.collective.nchunks == 256
    finer = union.with_chunks(2)
    assert finer.members[0].collective is finer.members[127].collective


def test_questions_that_cannot_be() -> None:
    ring = load("ring:6")

    def refused(message: str, *members: Member, relays: str | list[int] = "none", on: Topology = ring) -> None:
        with pytest.raises(InputError, match=message) as error:
            union_problem(on, members, relays)
        assert len(str(error.value).splitlines()) == 1

    good = Member((0, 1), named("allgather", 2, 1), 64)
    refused("there is none")
    refused("group 0,6: rank 6 is not in this topology", good, Member((0, 6), named("allgather", 2, 1), 64))
    refused("group 0,0: rank 0 is given twice", Member((0, 0), named("allgather", 2, 1), 64))
    refused(
        "group x: has 3 ranks, but allgather is stated for 2",
        Member((0, 1, 2), named("allgather", 2, 1), 64, "x"),
    )
    refused("0 is no message size", Member((0, 1), named("allgather", 2, 1), 0))
    refused("nan is no message size", Member((0, 1), named("allgather", 2, 1), float("nan")))
    refused("'some' is not known", good, relays="some")
    refused("rank 7 is not in this topology", good, relays=[7])
    # The ranks are joined only through the other group's ranks, where its chunks are not allowed.
    pair = (Member((0, 2, 4), named("allgather", 3, 1), 64), Member((1, 3, 5), named("allgather", 3, 1), 64))
    refused(
        r"^group 0,2,4: rank 2 cannot reach rank 0 inside the group; add relays that join the group: --relay 1,3",
        *pair,
    )
    for rule in ("all", [1, 3]):
        assert union_problem(ring, pair, rule).allowed_holders is None
