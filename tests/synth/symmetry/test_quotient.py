"""A schedule of the quotient problem, with all its translates, is a schedule of the whole problem."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.symmetry.quotient import expand, quotient_problem, whole_problem
from synth.symmetry.quotient_check import check_quotient
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from tests.random_problems import TRANSLATABLE
from tests.synth.symmetry.quotients import answer, chunk_image, expands, products, quotient, translated
from topologies.errors import InputError, QuotientRefused, ScheduleRefused
from topologies.load import load
from topologies.topology import Limit, Topology

SPECS = (
    "ring:2", "ring:5", "torus:3x3", "torus:2x4", "torus:2x3x2", "hypercube:3", "full:5", "star:4", "mesh:4x2",
    "ndv2:2", "dgx-a100:2", "mi250",
)  # fmt: skip
KINDS = {"hypercube:3", "torus:3x3", "torus:2x4", "mesh:4x2"}  # These are tested with all numbers of chunks.


@pytest.mark.parametrize("name", TRANSLATABLE)
@pytest.mark.parametrize("spec", SPECS)
def test_schedules_expand(spec: str, name: str) -> None:
    for chunks in (1, 2, 3) if spec in KINDS else (1,):
        problem = quotient(spec, name, chunks)
        check_quotient(problem)
        if spec in ("dgx-a100:2", "mi250") and name in ("alltoall", "allreduce"):
            continue  # The others of these have tested it.
        expands(problem, answer(problem))


def test_random_symmetric_networks() -> None:
    """Check circulants with shared limits, of which some have room for more than one copy of a send."""
    translation_sets, verdicts = set(), []
    for seed in range(60):
        rng = random.Random(seed)
        problem = quotient_problem(circulant(rng), rng.choice(TRANSLATABLE), rng.choice((1, 2)))
        if problem is None:
            continue
        assert problem.quotient is not None
        check_quotient(problem)
        schedule = answer(problem, rng.choice((1.0, 1e4, 1e8)))
        expands(problem, schedule)
        translation_sets.add(problem.quotient.translations)
        for _ in range(4):  # Right or wrong, both give the same verdict.
            moved = shaken(schedule, rng)
            refused = is_refused(problem, moved)
            assert refused == is_refused(*expand(problem, moved))
            verdicts.append(refused)
    assert len(translation_sets) >= 6
    assert {True, False} == set(verdicts)


def shaken(schedule: Schedule, rng: random.Random) -> Schedule:
    """Return the schedule with some sends a little later or earlier; it is often still right."""
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
    full_problem = make_problem(load(spec), name, chunks=chunks * k if name == "allreduce" else chunks)
    assert np.array_equal(full_problem.collective.post, full.post)
    assert (base.name, base.chunks, base.nranks, base.root) == (full.name, full.chunks, k, full.root)
    chunk = np.arange(base.nchunks)
    images = [chunk_image(problem, chunk, by).tolist() for by in products(problem.quotient)]
    # Every chunk is a translate of exactly one base chunk.
    assert sorted(c for image in images for c in image) == list(range(full.nchunks))
    for c, of_whole in zip(chunk.tolist(), images[0], strict=True):
        assert base.fraction[c] == full.fraction[of_whole]
        assert base.reduces[c] == full.reduces[of_whole]
        for rows, index, rows_of_whole, index_of_whole in (
            (base.pre, base.in_index, full.pre, full.in_index),
            (base.post, base.out_index, full.post, full.out_index),
        ):
            of_base, of_whole_chunk = rows[:, 1] == c, rows_of_whole[:, 1] == of_whole
            assert rows[of_base, 0].tolist() == rows_of_whole[of_whole_chunk, 0].tolist()
            assert index[of_base].tolist() == index_of_whole[of_whole_chunk].tolist()
    for rows in (base.pre, base.post):
        assert rows.tolist() == sorted(rows.tolist())


def test_a_ring_by_hand() -> None:
    """Check that one chunk goes round: its translates are the ring algorithm, and every link is always busy."""
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


def test_copies_that_would_collide_are_refused_in_the_quotient() -> None:
    """Check sends in both directions at once, which are right, and two in one direction, whose copies share a link."""
    problem = quotient("ring:6", "alltoall")
    net = problem.network
    ways = {(u, v): i for i, (u, v) in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True))}
    # Chunk 1 uses 0→1; chunk 2 uses 1→2 at the same time, and its translate uses 0→1.
    rows = [(2, ways[0, 1], 0, 0.0), (2, ways[1, 2], 1, 5.0), (1, ways[0, 1], 1, 5.0)]
    chunk, link, step, start = (np.array(column) for column in zip(*rows, strict=True))
    lasts = problem.collective.fraction[chunk] * 6e5 / 50.0 / 1e3
    clash = Schedule(chunk, link, step, np.zeros(3, dtype=bool), start, start + lasts, 6e5)
    with pytest.raises(ScheduleRefused, match="and its translates carries 100 GB/s"):
        replay(problem, clash)
    with pytest.raises(ScheduleRefused, match="at once"):
        replay(*expand(problem, clash))


def test_at_scale() -> None:
    """Check that nothing as large as the whole problem is built."""
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


def test_problems_without_a_quotient() -> None:
    assert quotient_problem(load("mesh:3x4"), "allgather") is None  # It has no translation.
    assert quotient_problem(load("ring:4"), "broadcast") is None  # The root is fixed.
    assert quotient_problem(load("ring:4"), "allgather", group=[0, 1], relays=[2]) is None
    two = load("ring:8")
    apart = (two.link_src // 4 == two.link_dst // 4) & (two.link_src >= 0)
    columns = {c: getattr(two, c)[apart] for c in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "link_kind")}
    assert quotient_problem(replace(two, **columns), "allgather") is None  # The two lines are equal, but not connected.
    for wrong in (
        {"group": [0, 9]}, {"group": [0, 0]}, {"group": [1]}, {"chunks": 0}, {"name": "allgathr"},
    ):  # fmt: skip
        with pytest.raises(InputError):
            quotient_problem(load("ring:8"), **{"name": "allgather", **wrong})
    with pytest.raises(InputError, match="no quotient"):
        whole_problem(make_problem(load("ring:4"), "allgather"))
    with pytest.raises(QuotientRefused, match="is no quotient"):
        check_quotient(make_problem(load("ring:4"), "allgather"))


def test_a_group_in_another_order() -> None:
    problem = quotient("torus:4x4", "allgather", group=[1, 5, 9, 13])
    assert problem.quotient is not None
    assert problem.quotient.translations == ((1, 4),)
    expands(problem, answer(problem))
