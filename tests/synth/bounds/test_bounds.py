"""No schedule is faster than the bound, and no witness is believed that claims more than it proves."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.baselines import baseline
from synth.bounds.prove import prove
from synth.bounds.registry import check, recompute
from synth.bounds.witness import Witness
from synth.model.collective import named
from synth.model.pattern import read_pattern
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import reverse
from synth.timing.simulate import predict_us, time_us, timed
from synth.verify.replay import replay
from tests.random_problems import answered, random_problem, random_topology
from topologies.errors import BadWitness, InputError
from topologies.load import load

SEEDS = st.integers(0, 2**32)
SIZES = (1.0, 512.0, 1e4, 3e5, 1e7, 1e9)
ROUND_OFF = 1 + 1e-9


def never_beaten(limit: float, time: float) -> None:
    assert limit <= time * ROUND_OFF + 1e-12


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SEEDS)
def test_no_schedule_beats_the_bound(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    problem = random_problem(random.Random(seed), tmp_path_factory.getbasetemp())
    bound = prove(problem)
    schedules = [answered(problem, size) for size in (100.0, 1e8)]
    for size in SIZES:
        limit, witness = bound.at(size)
        assert limit == max(w.at(size) for w in bound.witnesses)
        assert witness in bound.witnesses
        for schedule in schedules:
            never_beaten(limit, predict_us(problem, schedule, size))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS)
def test_no_baseline_beats_the_bound(seed: int) -> None:
    """They cut the message into chunks of their own: the bound holds for all numbers of chunks."""
    problem = random_problem(random.Random(seed))
    assume(problem.collective.chunks == 1)
    bound = prove(problem)
    for algorithm in baseline(problem):
        for size in SIZES:
            never_beaten(bound.at(size)[0], algorithm.time_us(size))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS, st.integers(2, 6))
def test_more_chunks_change_no_bound(seed: int, chunks: int) -> None:
    problem = random_problem(random.Random(seed))
    cut = problem.with_chunks(chunks)
    bound, of_cut = prove(problem, max_flow=False), prove(cut, max_flow=False)
    for size in SIZES:
        np.testing.assert_allclose(bound.at(size)[0], of_cut.at(size)[0], rtol=1e-9)
    schedule = answered(cut, 1e6)
    for size in SIZES:
        never_beaten(bound.at(size)[0], predict_us(cut, schedule, size))


def trees(problem: Problem, chunk: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways (link, step) in which one chunk can get to all that want it and not by chance further."""
    net, collective = problem.network, problem.collective
    holders = np.flatnonzero(collective.holds[chunk]).tolist()
    goals = set(np.flatnonzero(collective.wants[chunk]).tolist()) - set(holders)
    others = [r for r in range(net.nranks) if r not in holders]
    into = [[-1, *np.flatnonzero(net.dst == r).tolist()] for r in others]
    for choice in itertools.product(*into):
        way = dict(zip(others, choice, strict=True))
        depth = dict.fromkeys(holders, 0)
        while True:
            ready = [r for r in others if r not in depth and way[r] >= 0 and int(net.src[way[r]]) in depth]
            if not ready:
                break
            for r in ready:
                depth[r] = depth[int(net.src[way[r]])] + 1
        used = [r for r in others if way[r] >= 0]
        leads = {int(net.src[way[r]]) for r in used}
        if goals <= depth.keys() and all(r in depth and (r in goals or r in leads) for r in used):
            yield tuple((way[r], depth[r] - 1) for r in used)


def fastest(problem: Problem, size: float, most_sends: int) -> float | None:
    """The least time of all schedules of a copying problem: every tree of every chunk in every order of sends."""
    best = np.inf
    for choice in itertools.product(*(list(trees(problem, c)) for c in range(problem.collective.nchunks))):
        rows = [(step, chunk, link) for chunk, tree in enumerate(choice) for link, step in tree]
        if len(rows) > most_sends:
            return None
        for order in itertools.permutations(rows):
            seen: dict[int, set[int]] = {}
            table = np.array(order, dtype=np.int64).reshape(-1, 3)
            if not _in_order(problem, table, seen):
                continue
            plain = np.zeros(len(table), dtype=bool)
            best = min(best, _time(problem, untimed(table[:, 1], table[:, 2], table[:, 0], plain), size))
    return float(best)


def _in_order(problem: Problem, table: np.ndarray, seen: dict[int, set[int]]) -> bool:
    net, collective = problem.network, problem.collective
    for _, chunk, link in table.tolist():
        have = seen.setdefault(chunk, set(np.flatnonzero(collective.holds[chunk]).tolist()))
        if int(net.src[link]) not in have:
            return False
        have.add(int(net.dst[link]))
    return True


def _time(problem: Problem, schedule: Schedule, size: float) -> float:
    return time_us(problem, timed(problem, schedule, size))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    SEEDS, st.sampled_from(["broadcast", "allgather", "gather", "scatter", "sendrecv", "alltonext", "reduce"])
)
def test_not_even_the_best_of_all_small_schedules(seed: int, name: str) -> None:
    rng = random.Random(seed)
    topology = random_topology(rng, 4 if name in ("broadcast", "reduce") else 3)
    problem = make_problem(topology, name)
    size = rng.choice((1.0, 1e4, 1e6))
    assume(problem.network.nlinks <= 9)
    if name == "reduce":  # backwards it is the broadcast on the reversed network, send for send
        least = fastest(reverse(problem), size, 5)
    else:
        least = fastest(problem, size, 6 if problem.nranks == 3 else 5)
    assume(least is not None)
    assert least is not None
    never_beaten(prove(problem).at(size)[0], least)
    never_beaten(least, predict_us(problem, answered(problem, size), size))


@pytest.mark.parametrize(
    ("spec", "name", "size", "least"),
    [
        # α 0.7 µs and 50 GB/s everywhere: 0.02 µs a KB
        ("ring:2", "allgather", 1e6, 0.7 + 10),
        ("ring:2", "allreduce", 1e6, 0.7 + 20),  # all of it, once each way, over one link each way
        ("full:4", "allgather", 1e6, 0.7 + 5),  # 3/4 of it into a rank over three links
        ("full:4", "alltoall", 1e6, 0.7 + 5),
        ("full:4", "broadcast", 1e9, 0.7 + 20e3 / 3),  # out of the root over three links
        ("star:4", "allgather", 1e6, 1.4 + 15),
        ("star:4", "allreduce", 1e9, 30e3),  # 2 · 3 sends of it over 4 ports of 50 GB/s
        ("line:4", "broadcast", 1.0, 2.1),
        ("line:4", "allreduce", 1.0, 2.1),
        ("line:4", "alltonext", 1e6, 0.7 + 20),
        ("dgx1", "allgather", 1e9, 7 / 8 * 1e6 / 150),  # into a GPU over six NVLinks of 25 GB/s
    ],
)  # fmt: skip
def test_known_bounds(spec: str, name: str, size: float, least: float) -> None:
    """At least what a textbook says, by hand."""
    problem = make_problem(load(spec), name)
    limit, _ = prove(problem).at(size)
    assert limit >= least * (1 - 1e-3)
    never_beaten(limit, predict_us(problem, answered(problem, size), size))


def witnesses(seed: int, name: str | None = None) -> tuple[Problem, tuple[Witness, ...], random.Random]:
    rng = random.Random(seed)
    problem = random_problem(rng, name=name)
    return problem, prove(problem).witnesses, rng


@settings(max_examples=120, deadline=None, derandomize=True)
@given(SEEDS)
def test_raised_numbers_are_refused(seed: int) -> None:
    problem, found, _ = witnesses(seed)
    for witness in found:
        check(problem, witness)
        lower = replace(witness, base_us=witness.base_us * 0.9, per_byte_us=witness.per_byte_us * 0.9)
        check(problem, lower)
        raised = [
            replace(witness, base_us=witness.base_us * (1 + 1e-6) + 1e-9),
            replace(witness, per_byte_us=witness.per_byte_us * (1 + 1e-6) + 1e-11),
            replace(witness, base_us=float("inf")),
            replace(witness, base_us=float("nan")),
            replace(witness, per_byte_us=float("nan")),
        ]
        if witness.kind == "direct":
            raised += [replace(witness, cap_us=c) for c in (witness.cap_us * 1.001 + 1e-9, float("inf"))]
        for more in raised:
            with pytest.raises(BadWitness, match=witness.kind):
                check(problem, more)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(SEEDS)
def test_a_dropped_resource_is_refused(seed: int) -> None:
    problem, found, rng = witnesses(seed)
    for witness in found:
        if witness.kind in ("cut", "parts", "arrivals", "departures"):
            left = tuple(r for r in witness.resources if r != rng.choice(witness.resources))
            if len(left) == len(witness.resources):
                left = witness.resources[1:]
            with pytest.raises(BadWitness, match=r"uses none of its resources|resources are missing"):
                check(problem, replace(witness, resources=left))
            # more resources than needed prove less
            extra = tuple(range(problem.network.nresources))
            if len(extra) > len(witness.resources) and witness.per_byte_us > 0:
                with pytest.raises(BadWitness, match="proves"):
                    check(problem, replace(witness, resources=extra))


def random_witness(problem: Problem, rng: random.Random) -> Witness:
    """Of any kind, with as few resources as the check lets pass, claiming nothing yet."""
    net, k = problem.network, problem.collective.nranks
    kind = rng.choice(
        ("path", "cut", "cut", "parts", "direct", "lengths", "lengths", "arrivals", "departures")
    )
    empty = Witness(kind, (), (), (), 0.0, 0.0, float("inf"), "at random")
    if kind == "path":
        return replace(empty, ranks=(rng.randrange(k), rng.randrange(k)))
    if kind == "direct":
        return replace(empty, resources=(rng.randrange(net.nresources),))
    if kind == "lengths":
        priced = rng.sample(range(net.nresources + net.nlinks), rng.randint(1, net.nresources))
        return replace(empty, prices=tuple((r, rng.choice((0.0, 0.5, 1.0, 3.0))) for r in priced))
    if kind in ("cut", "arrivals", "departures"):
        members = rng.sample(range(net.nranks), rng.randint(1, net.nranks))
        claim = replace(empty, ranks=tuple(sorted(members)))
    else:
        side = [rng.randrange(3) for _ in range(net.nranks)]
        parts = (tuple(r for r in range(net.nranks) if side[r] == p) for p in sorted(set(side)))
        claim = replace(empty, parts=tuple(parts))
    claim = replace(claim, resources=tuple(range(net.nresources)))
    for drop in rng.sample(claim.resources, net.nresources):
        fewer = replace(claim, resources=tuple(r for r in claim.resources if r != drop))
        if fewer.resources and proved(problem, fewer) is not None:
            claim = fewer
    return claim


def proved(problem: Problem, witness: Witness) -> tuple[float, float, float] | None:
    try:
        return recompute(problem, witness)
    except BadWitness:
        return None


@settings(max_examples=250, deadline=None, derandomize=True)
@given(SEEDS)
def test_whatever_the_check_believes_is_true(seed: int) -> None:
    """Sets, parts, pairs, prices and resources drawn at random, claiming as much as the check lets them."""
    rng = random.Random(seed)
    problem = random_problem(rng, name=rng.choice(("allreduce", None, None)))
    schedules = [answered(problem, size) for size in (1.0, 1e7)]
    for _ in range(8):
        witness = random_witness(problem, rng)
        limit = proved(problem, witness)
        if limit is None:
            with pytest.raises(BadWitness):
                check(problem, witness)
            continue
        witness = replace(witness, base_us=limit[0], per_byte_us=limit[1], cap_us=limit[2])
        check(problem, witness)
        with pytest.raises(BadWitness):
            check(problem, replace(witness, per_byte_us=limit[1] * (1 + 1e-6) + 1e-11))
        for schedule in schedules:
            for size in SIZES:
                never_beaten(witness.at(size), predict_us(problem, schedule, size))


def test_a_witness_without_resources_is_refused_not_crashed_on() -> None:
    problem = make_problem(load("full:4"), "allreduce")
    for kind, ranks, parts in (("cut", (0, 1, 2, 3), ()), ("parts", (), ((0, 1, 2, 3),))):
        with pytest.raises(BadWitness):
            check(problem, Witness(kind, ranks, parts, (), 1.0, 1.0, float("inf"), "none"))


def test_the_wrong_set_is_refused() -> None:
    problem = make_problem(load("full:4"), "broadcast")
    cut = next(w for w in prove(problem).witnesses if w.kind == "cut")
    outside = tuple(r for r in range(4) if r not in cut.ranks)
    with pytest.raises(BadWitness):
        check(problem, replace(cut, ranks=outside))
    with pytest.raises(BadWitness, match="nothing has to get from 1 to 0"):
        check(problem, Witness("path", (1, 0), (), (), 0.1, 0.0, float("inf"), "1→0"))
    summed = make_problem(load("full:4"), "allreduce")
    parts = next(w for w in prove(summed).witnesses if w.kind == "parts")
    for wrong in (((0, 1), (2,)), ((0, 1), (1, 2, 3)), ((0, 1, 2, 3), ()), ((0,), (1,), (2,), (3,), (4,))):
        with pytest.raises(BadWitness):
            check(summed, replace(parts, parts=wrong))
    with pytest.raises(BadWitness, match="must be an allreduce"):
        check(make_problem(load("full:4"), named("reducescatter", 4, 1)), parts)


def test_the_two_hop_bound_ends_where_two_hops_pay() -> None:
    """Slow links between all, so that ever larger messages go straight and then round."""
    problem = make_problem(load("full:4"), "allreduce")
    bound = prove(problem)
    straight = [w for w in bound.witnesses if w.kind == "direct"]
    assert straight
    assert straight[0].at(1e12) == straight[0].cap_us == 1.4
    replay(problem, timed(problem, answered(problem, 1e6), 1e6))


def test_two_hops_through_eight_are_no_faster_than_the_bound() -> None:
    """A root's port is busy 63 times straight; through eight others each is busy eight times only."""
    problem = make_problem(load("star:64"), "broadcast")
    ways = {
        (int(u), int(v)): i
        for i, (u, v) in enumerate(zip(problem.network.src, problem.network.dst, strict=True))
    }
    first = [(0, ways[0, head]) for head in range(8, 64, 8)]
    second = [(1, ways[head, head + i]) for i in range(1, 8) for head in range(8, 64, 8)]
    near = [(0, ways[0, i]) for i in range(1, 8)]
    table = np.array(first + near + second)
    rows = untimed(table[:, 0] * 0, table[:, 1], table[:, 0], np.zeros(len(table), dtype=bool))
    bound = prove(problem, max_flow=False)
    kinds = set()
    for size in (100.0, 1000.0, 1800.0, 2500.0, 1e4, 1e6):
        at = timed(problem, rows, size)
        replay(problem, at)
        limit, witness = bound.at(size)
        never_beaten(limit, time_us(problem, at))
        kinds.add(witness.kind)
    assert "direct" in kinds


def test_a_problem_that_cannot_be_has_no_bound() -> None:
    with pytest.raises(InputError):
        make_problem(load("line:5"), "allgather", [0, 2])


def test_a_sum_that_passes_along_is_not_held_against_the_bound(tmp_path: Path) -> None:
    """A scan's sums share their data: one send can serve several, so only some of them may be counted."""
    path = tmp_path / "scan.toml"
    entries = "".join(
        f'[[chunk]]\nreduce = true\ndata = "x"\nfrom = "0-3"\nof = "0-{last}"\nto = [{last}]\n'
        for last in range(1, 4)
    )
    path.write_text('name = "scan"\nranks = 4\n' + entries, encoding="utf-8")
    problem = make_problem(load("line:4,bw=1,alpha=0"), read_pattern(path))
    # 0 → 1 → 2 → 3, each adding its own: every link carries the message once, one after the other, in pieces
    for size in (1e3, 1e6):
        assert prove(problem).at(size)[0] <= size / 1e3 * (1 + 1e-9)
