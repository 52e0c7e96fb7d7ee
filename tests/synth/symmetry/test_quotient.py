"""A schedule of the quotient problem, translated, is a schedule of the whole; what is no quotient is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.model.collective import Collective, Ints
from synth.model.problem import Problem, Quotient, make_problem
from synth.model.schedule import Schedule, untimed
from synth.symmetry.quotient import expand, quotient_by, quotient_problem, whole_problem
from synth.symmetry.quotient_check import check_quotient
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from tests.random_problems import TRANSLATABLE, answered
from topologies.errors import InputError, QuotientRefused, ScheduleRefused
from topologies.load import load
from topologies.network import Network, network
from topologies.symmetry.translations import representatives, translate, translate_links
from topologies.topology import Limit, Topology

SPECS = (
    "ring:2", "ring:5", "torus:3x3", "torus:2x4", "torus:2x3x2", "hypercube:3", "full:5", "star:4", "mesh:4x2",
    "ndv2:2", "dgx-a100:2", "mi250",
)  # fmt: skip
KINDS = {"hypercube:3", "torus:3x3", "torus:2x4", "mesh:4x2"}  # on these all chunk numbers


def quotient(spec: str | Topology, name: str, chunks: int = 1, group: list[int] | None = None) -> Problem:
    problem = quotient_problem(load(spec) if isinstance(spec, str) else spec, name, chunks, group)
    assert problem is not None
    return problem


def answer(problem: Problem, size_bytes: float = 1e6) -> Schedule:
    schedule = timed(problem, answered(problem, size_bytes), size_bytes)
    replay(problem, schedule)
    return schedule


def products(known: Quotient) -> Iterator[tuple[int, ...]]:
    """How often each translation is applied, of every product of them, the identity first."""
    extents = [extent for _, extent in known.translations]
    for number in np.ndindex(*extents[::-1]):
        yield tuple(number[::-1])


def chunk_image(problem: Problem, chunk: Ints, by: Sequence[int]) -> Ints:
    """Where translations bring chunks of a quotient problem: chunks of the whole problem."""
    assert problem.quotient is not None
    name, k, chunks = problem.collective.name, problem.collective.nranks, problem.collective.chunks
    chunks //= k if name == "allreduce" else 1
    shifts, (block, part) = problem.quotient.translations, divmod(chunk, chunks)
    owner, dest = divmod(block, k) if name == "alltoall" else (block, 0 * block)
    owner = translate(shifts, representatives(shifts, k)[owner], by)
    return (owner * k + translate(shifts, dest, by) if name == "alltoall" else owner) * chunks + part


def translated(problem: Problem, schedule: Schedule, by: Sequence[int]) -> Schedule:
    """One translate of a quotient problem's schedule, in chunks and links of the whole problem."""
    assert problem.quotient is not None
    link = translate_links(problem.quotient.whole, problem.quotient.translations, schedule.link, by)
    return replace(schedule, chunk=chunk_image(problem, schedule.chunk, by), link=link)


def expands(problem: Problem, schedule: Schedule) -> None:
    """The expansion is right, takes as long, and holds every translate of every send once."""
    full, sends = expand(problem, schedule)
    assert problem.quotient is not None
    replay(full, sends)
    assert full.quotient is None
    assert time_us(full, sends) == time_us(problem, schedule)
    assert len(sends) == len(schedule) * problem.quotient.order
    key = np.column_stack([sends.start_us, sends.step])
    assert (np.lexsort((key[:, 1], key[:, 0])) == np.arange(len(sends))).all()
    rows = sorted(zip(sends.chunk.tolist(), sends.link.tolist(), sends.start_us.tolist(), strict=True))
    one_by_one = []
    for by in products(problem.quotient):
        part = translated(problem, schedule, by)
        one_by_one += list(zip(part.chunk.tolist(), part.link.tolist(), part.start_us.tolist(), strict=True))
    assert sorted(one_by_one) == rows
    again = expand(problem, schedule)[1]
    assert all(np.array_equal(getattr(again, c), getattr(sends, c)) for c in ("chunk", "link", "step", "end_us"))


@pytest.mark.parametrize("name", TRANSLATABLE)
@pytest.mark.parametrize("spec", SPECS)
def test_schedules_expand(spec: str, name: str) -> None:
    for chunks in (1, 2, 3) if spec in KINDS else (1,):
        problem = quotient(spec, name, chunks)
        check_quotient(problem)
        if spec in ("dgx-a100:2", "mi250") and name in ("alltoall", "allreduce"):
            continue  # the others of these have seen to them
        expands(problem, answer(problem))


def test_random_symmetric_networks() -> None:
    """Circulants with shared limits, of which some have room for several copies of a send and some do not."""
    seen, verdicts = set(), []
    for seed in range(60):
        rng = random.Random(seed)
        problem = quotient_problem(circulant(rng), rng.choice(TRANSLATABLE), rng.choice((1, 2)))
        if problem is None:
            continue
        assert problem.quotient is not None
        check_quotient(problem)
        schedule = answer(problem, rng.choice((1.0, 1e4, 1e8)))
        expands(problem, schedule)
        seen.add(problem.quotient.translations)
        for _ in range(4):  # right or wrong, both say the same
            moved = shaken(schedule, rng)
            refused = is_refused(problem, moved)
            assert refused == is_refused(*expand(problem, moved))
            verdicts.append(refused)
    assert len(seen) >= 6
    assert {True, False} == set(verdicts)


def shaken(schedule: Schedule, rng: random.Random) -> Schedule:
    """Some sends a little later or earlier; often still right."""
    by = np.zeros(len(schedule))
    for row in rng.sample(range(len(schedule)), rng.choice((1, 1, 2))):
        by[row] = rng.choice((-0.5, -0.1, 0.1, 2.0)) * (schedule.end_us[row] - schedule.start_us[row])
    by = np.maximum(by, -schedule.start_us)
    return replace(schedule, start_us=schedule.start_us + by, end_us=schedule.end_us + by)


def is_refused(problem: Problem, schedule: Schedule) -> bool:
    try:
        replay(problem, schedule)
    except ScheduleRefused:
        return True
    return False


def circulant(rng: random.Random) -> Topology:
    n = rng.choice((4, 6, 8))
    unit = rng.choice([d for d in range(1, n) if n % d == 0])
    rates = {(r, (r + 1) % n): 20.0 for r in range(n)}
    groups = []
    for _ in range(rng.randint(1, 3)):
        u, v = rng.sample(range(n), 2)
        orbit = [((u + unit * i) % n, (v + unit * i) % n) for i in range(n // unit)]
        rates.update(dict.fromkeys(orbit, rng.choice((10.0, 20.0))))
        groups.append(orbit)
    pairs = sorted(rates)
    limits = [
        Limit(f"l{i}", np.array(sorted({pairs.index(p) for p in g})), rng.choice((10.0, 20.0, 40.0, 90.0)))
        for i, g in enumerate(groups)
        if rng.random() < 0.6
    ]
    src, dst = np.array(pairs).T
    gbs = np.array([rates[p] for p in pairs])
    alpha = np.full(len(pairs), 0.7)
    return Topology("random", n, (), src, dst, alpha, gbs, tuple(limits), nodes=np.zeros(n, dtype=np.int64))


@pytest.mark.parametrize("name", TRANSLATABLE)
@pytest.mark.parametrize(("spec", "chunks"), [("torus:2x4", 1), ("mesh:4x2", 2), ("ndv2:2", 3), ("ring:5", 2)])
def test_base_chunks_are_those_of_the_named_collective(spec: str, name: str, chunks: int) -> None:
    problem = quotient(spec, name, chunks)
    assert problem.quotient is not None
    base, full = problem.collective, whole_problem(problem).collective
    k = full.nranks
    asked = make_problem(load(spec), name, chunks=chunks * k if name == "allreduce" else chunks)
    assert np.array_equal(asked.collective.post, full.post)
    assert (base.name, base.chunks, base.nranks, base.root) == (full.name, full.chunks, k, full.root)
    chunk = np.arange(base.nchunks)
    images = [chunk_image(problem, chunk, by).tolist() for by in products(problem.quotient)]
    assert sorted(c for one in images for c in one) == list(range(full.nchunks))  # every chunk is one translate of one
    for c, of_whole in zip(chunk.tolist(), images[0], strict=True):
        assert base.fraction[c] == full.fraction[of_whole]
        assert base.reduces[c] == full.reduces[of_whole]
        for rows, index, rows_of_whole, index_of_whole in (
            (base.pre, base.in_index, full.pre, full.in_index),
            (base.post, base.out_index, full.post, full.out_index),
        ):
            mine, others = rows[:, 1] == c, rows_of_whole[:, 1] == of_whole
            assert rows[mine, 0].tolist() == rows_of_whole[others, 0].tolist()
            assert index[mine].tolist() == index_of_whole[others].tolist()
    for rows in (base.pre, base.post):
        assert rows.tolist() == sorted(rows.tolist())


def test_a_ring_by_hand() -> None:
    """One chunk goes round; its translates are the ring algorithm, every link busy all the time."""
    problem = quotient("ring:6", "allgather")
    ways = {
        (u, v): i
        for i, (u, v) in enumerate(zip(problem.network.src.tolist(), problem.network.dst.tolist(), strict=True))
    }
    links = np.array([ways[r, r + 1] for r in range(5)])
    rounds = untimed(np.zeros(5), links, np.arange(5), np.zeros(5, dtype=bool))
    schedule = timed(problem, rounds, 6e6)
    assert time_us(problem, schedule) == pytest.approx(5 * (0.7 + 20.0))
    expands(problem, schedule)
    sends = expand(problem, schedule)[1]
    assert (np.bincount(sends.link, minlength=12)[links] == 5).all()


def test_copies_that_would_meet_are_refused_in_the_quotient() -> None:
    """Both ways round at once are fine, twice one way is not: the other send's copy is on the same link."""
    problem = quotient("ring:6", "alltoall")
    net = problem.network
    ways = {(u, v): i for i, (u, v) in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True))}
    # chunk 1 goes 0→1; chunk 2 goes 1→2 at the same time, as its translate does 0→1
    rows = [(2, ways[0, 1], 0, 0.0), (2, ways[1, 2], 1, 5.0), (1, ways[0, 1], 1, 5.0)]
    chunk, link, step, start = (np.array(column) for column in zip(*rows, strict=True))
    lasts = problem.collective.fraction[chunk] * 6e5 / 50.0 / 1e3
    clash = Schedule(chunk, link, step, np.zeros(3, dtype=bool), start, start + lasts, 6e5)
    with pytest.raises(ScheduleRefused, match="and its translates carries 100 GB/s"):
        replay(problem, clash)
    with pytest.raises(ScheduleRefused, match="at once"):
        replay(*expand(problem, clash))


def test_at_scale() -> None:
    """Nothing as large as the whole is built."""
    problem = quotient("torus:16x16x16", "alltoall")
    assert problem.quotient is not None
    assert (problem.collective.nchunks, problem.quotient.order) == (4096, 4096)
    assert problem.network.nresources == 6
    check_quotient(problem)
    problem = quotient("ring:20000", "allgather")
    assert problem.collective.nchunks == 1
    assert len(problem.collective.post) == 20_000
    links = np.arange(5)
    rows = untimed(np.zeros(5), links, links, np.zeros(5, dtype=bool))
    assert len(translated(problem, rows, (17,))) == 5


def test_what_has_no_quotient() -> None:
    assert quotient_problem(load("mesh:3x4"), "allgather") is None  # no translation
    assert quotient_problem(load("ring:4"), "broadcast") is None  # the root stays
    assert quotient_problem(load("ring:4"), "allgather", group=[0, 1], relays=[2]) is None
    two = load("ring:8")
    apart = (two.link_src // 4 == two.link_dst // 4) & (two.link_src >= 0)
    columns = {c: getattr(two, c)[apart] for c in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "link_kind")}
    assert quotient_problem(replace(two, **columns), "allgather") is None  # two lines: equal, but apart
    for wrong in (
        {"group": [0, 9]}, {"group": [0, 0]}, {"group": [1]}, {"chunks": 0}, {"name": "allgathr"},
    ):  # fmt: skip
        with pytest.raises(InputError):
            quotient_problem(load("ring:8"), **{"name": "allgather", **wrong})
    with pytest.raises(InputError, match="no quotient"):
        whole_problem(make_problem(load("ring:4"), "allgather"))
    with pytest.raises(QuotientRefused, match="is none"):
        check_quotient(make_problem(load("ring:4"), "allgather"))


def test_a_group_in_its_own_order() -> None:
    problem = quotient("torus:4x4", "allgather", group=[1, 5, 9, 13])
    assert problem.quotient is not None
    assert problem.quotient.translations == ((1, 4),)
    expands(problem, answer(problem))


def slower(topology: Topology, link: int) -> Topology:
    gbs = topology.bandwidth_gbs.copy()
    gbs[link] /= 2
    return replace(topology, bandwidth_gbs=gbs)


def without(topology: Topology, link: int) -> Topology:
    columns = {
        c: np.delete(getattr(topology, c), link)
        for c in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "link_kind")
    }
    return replace(topology, **columns)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_stale_quotient_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    topology = load(rng.choice(("ring:6", "torus:3x4", "hypercube:3", "full:4", "mesh:4x2", "ndv2:2")))
    problem = quotient(topology, rng.choice(TRANSLATABLE))
    assert problem.quotient is not None
    change = rng.choice((slower, without))
    now = change(topology, rng.randrange(topology.nlinks)) if not topology.limits else slower(topology, 0)
    real = network(now, problem.group)
    with pytest.raises(QuotientRefused, match="its network is not that of"):
        check_quotient(replace(problem, topology=now))
    # also where somebody wrote the network of today beside the translations of yesterday
    assume(real.nlinks == problem.quotient.whole.nlinks)
    stale = replace(problem.network, bandwidth_gbs=real.bandwidth_gbs)
    with pytest.raises(QuotientRefused, match=r"no symmetry|does not keep"):
        check_quotient(
            replace(problem, topology=now, network=stale, quotient=Quotient(problem.quotient.translations, real))
        )
    with pytest.raises(QuotientRefused):
        quotient_by(now, problem.collective.name, 1, problem.group, problem.quotient.translations)
    fewer = quotient_problem(now, problem.collective.name)
    assert fewer is None or (fewer.quotient is not None and fewer.quotient.order < problem.quotient.order)


def test_other_links_are_refused() -> None:
    problem = quotient("torus:3x4", "allgather")
    alpha = problem.network.alpha_us + 0.1
    with pytest.raises(QuotientRefused, match="other links"):
        check_quotient(replace(problem, network=replace(problem.network, alpha_us=alpha)))
    with pytest.raises(QuotientRefused, match="must have none"):
        check_quotient(replace(problem, relays=(3,)))


def test_a_limit_that_the_translation_does_not_keep_is_refused() -> None:
    """The links are all alike, but of two that share one cable the images have a better one."""
    t = load("ring:6")
    ahead = (t.link_dst - t.link_src) % 6 == 1
    cables = [
        Limit(f"cable{r}", np.flatnonzero(ahead & (t.link_src >= r) & (t.link_src <= r + 1)), gbs)
        for r, gbs in ((0, 75.0), (3, 80.0))
    ]
    t = replace(t, limits=tuple(cables))
    assert quotient_problem(t, "allgather") is None
    with pytest.raises(QuotientRefused, match="does not keep the resources"):
        quotient_by(t, "allgather", 1, range(6), ((3, 2),))


def with_uses(net: Network, change: Callable[[list[list[int]]], None]) -> Network:
    lists = [net.uses(link).tolist() for link in range(net.nlinks)]
    change(lists)
    ptr = np.cumsum([0, *map(len, lists)])
    return replace(net, uses_ptr=ptr, uses_idx=np.array([r for uses in lists for r in uses]))


def swap_two(lists: list[list[int]]) -> None:
    i = next(i for i, uses in enumerate(lists) if uses != lists[0])
    lists[0], lists[i] = lists[i], lists[0]


def drop_last(lists: list[list[int]]) -> None:
    last = max(max(uses) for uses in lists)
    for uses in lists:
        if last in uses:
            uses.remove(last)


def one_uses_another_too(lists: list[list[int]]) -> None:
    lists[0] += [1 - lists[0][0]]


@pytest.mark.parametrize("spec", ["torus:3x4", "dgx-a100:2"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap_two, "some links and not by all|not in the quotient"),
        (drop_last, "not in the quotient"),
        (one_uses_another_too, "some links and not by all"),
    ],
)
def test_resources_in_wrong_orbits_are_refused(
    spec: str, change: Callable[[list[list[int]]], None], words: str
) -> None:
    problem = quotient(spec, "allgather")
    net = problem.network
    if spec == "dgx-a100:2" and change is swap_two:
        change = one_uses_another_too
    with pytest.raises(QuotientRefused, match=words):
        check_quotient(replace(problem, network=with_uses(net, change)))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_wrong_capacity_is_refused(factor: float) -> None:
    problem = quotient("dgx-a100:2", "allgather")
    for at in range(problem.network.nresources):
        capacity = problem.network.capacity_gbs.copy()
        capacity[at] *= factor
        with pytest.raises(QuotientRefused, match="not in the quotient"):
            check_quotient(replace(problem, network=replace(problem.network, capacity_gbs=capacity)))
    net = problem.network
    more = replace(
        net,
        uses_ptr=net.uses_ptr + np.arange(net.nlinks + 1),
        uses_idx=np.insert(net.uses_idx, net.uses_ptr[1:], net.nresources),
        capacity_gbs=np.append(net.capacity_gbs, 1.0),
        resource_names=(*net.resource_names, "invented"),
    )
    with pytest.raises(QuotientRefused, match="invented"):
        check_quotient(replace(problem, network=more))


def test_wrong_translations_are_refused() -> None:
    problem = quotient("torus:4x4", "alltoall")
    assert problem.quotient is not None
    for found, words in (
        (((1, 16),), "no symmetry"),
        (((1, 3),), "no digit"),
        (((1, 4), (2, 4)), "no digit"),
        (((4, 4), (1, 4)), "no digit"),
        (((0, 4),), "no digit"),
        (((-1, 4),), "no digit"),
        (((1, 1), (1, 4)), "no digit"),
        (((1, 4), (4, 8)), "no digit"),
        (((1, 4),), "not in the quotient|some links"),
        ((), "not in the quotient|some links|representative"),
    ):
        with pytest.raises(QuotientRefused, match=words):
            check_quotient(replace(problem, quotient=Quotient(found, problem.quotient.whole)))
        if found != ((1, 4),):
            with pytest.raises(QuotientRefused):
                quotient_by(problem.topology, "alltoall", 1, problem.group, found)
    again = quotient_by(problem.topology, "alltoall", 1, problem.group, ((1, 4),))
    assert again.collective.nchunks == 4 * 16  # fewer translations than there are will do
    expands(again, answer(again))
    with pytest.raises(QuotientRefused, match="it must be"):
        quotient_by(problem.topology, "broadcast", 1, problem.group, ((1, 4),))


def test_a_crowded_resource_is_refused() -> None:
    """The exchange of two ranks behind one NIC is a symmetry, but a send and its copy do not fit."""
    t = load("full:4")
    leaves = t.link_src // 2 != t.link_dst // 2
    limits = [Limit(f"nic{i}", np.flatnonzero(leaves & (t.link_src // 2 == i)), 50.0) for i in range(2)]
    t = replace(t, limits=tuple(limits))
    problem = quotient(t, "allgather")
    assert problem.quotient is not None
    assert problem.quotient.order == 2
    expands(problem, answer(problem))
    with pytest.raises(QuotientRefused, match="crowd"):
        quotient_by(t, "allgather", 1, range(4), ((1, 2), (2, 2)))
    with pytest.raises(QuotientRefused, match="crowd"):
        check_quotient(replace(problem, quotient=Quotient(((1, 2), (2, 2)), problem.quotient.whole)))


def break_row(c: Collective, which: str, row: int, column: int) -> Collective:
    table = getattr(c, which).copy()
    table[row, column] = (table[row, column] + 1) % (c.nranks if column == 0 else c.nchunks)
    return replace(c, **{which: table})


@pytest.mark.parametrize("name", TRANSLATABLE)
def test_a_collective_that_the_translations_do_not_move_is_refused(name: str) -> None:
    problem = quotient("mesh:4x2", name, 2)
    check_quotient(problem)
    c = problem.collective
    rng = random.Random(name)
    wrong: list[Collective] = [
        replace(c, name="broadcast"),
        replace(c, name="alltoall" if name != "alltoall" else "allgather"),
        replace(c, chunks=c.chunks + 1),
        replace(c, nranks=c.nranks + 1),
        replace(c, nchunks=c.nchunks + 2),
        replace(c, reduces=~c.reduces),
        replace(c, fraction=c.fraction * 2),
        replace(c, pre=c.pre[1:], in_index=c.in_index[1:]),
        replace(c, post=c.post[:-1], out_index=c.out_index[:-1]),
        replace(c, post=c.post[::-1]),
        replace(c, pre=c.pre + 1000),
        replace(c, in_index=c.in_index + 1),
        replace(c, out_index=np.roll(c.out_index, 1) + (c.out_index == np.roll(c.out_index, 1))),
    ]
    for which in ("pre", "post"):
        for _ in range(4):
            rows = getattr(c, which)
            wrong.append(break_row(c, which, rng.randrange(len(rows)), rng.randrange(2)))
    for collective in wrong:
        with pytest.raises(QuotientRefused):
            check_quotient(replace(problem, collective=collective))
