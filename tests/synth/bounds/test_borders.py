"""The bound by borders: never above the time of a replayed schedule, and equal to that of the skewed planner."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds.borders import Borders, borders_of
from synth.bounds.check import recompute
from synth.bounds.resource_cover import cover
from synth.bounds.witnesses.cut import Cut
from synth.engines.skewed.schedule import message_bytes
from synth.model.collective import Ints
from synth.model.problem import Problem, least_latency, make_problem
from synth.model.schedule import untimed
from synth.verify.algorithm import Algorithm
from tests.synth.bounds.cases import SEEDS, never_beaten
from tests.synth.engines.skewed.questions import GROUPS, planner_of, topology_of
from topologies.costed import with_costs
from topologies.load import load
from topologies.topology import Topology

RANKS = {"dgx1": 8, "ring:5": 4, "torus:3x3": 9, "dgx-h100:2": 16, "dgx-a100": 5}


def topology(spec: str) -> Topology:
    return with_costs(load(spec)) if spec == "dgx-a100" else load(spec)


def random_sizes(k: int, seed: int) -> Ints:
    draw = np.random.default_rng(seed)
    sizes = draw.zipf(1.3, (k, k)).clip(max=10_000) * draw.integers(1, 10_000) * (draw.random((k, k)) < 0.7)
    np.fill_diagonal(sizes, 0)
    sizes[0, 1] += 1
    return sizes.astype(np.int64)


def problem_of(spec: str, sizes: Ints) -> Problem:
    k = len(sizes)
    relays = tuple(range(k, min(k + 1, load(spec).nranks)))
    return make_problem(topology(spec), "alltoallv", range(k), relays, sizes=sizes.astype(np.float64))


@cache
def borders(spec: str) -> Borders:
    k = RANKS[spec]
    examples = [problem_of(spec, random_sizes(k, seed)) for seed in (0, 1)]
    return borders_of(examples[0], examples)


def shortest(problem: Problem) -> Algorithm:
    """Return the algorithm that sends each block over a shortest path, in the order of the blocks."""
    net, collective = problem.network, problem.collective
    distance = least_latency(net.nranks, net.src, net.dst, net.alpha_us)
    sends = []
    for (source, chunk), (goal, same) in zip(collective.pre.tolist(), sorted_by_chunk(collective.post), strict=True):
        assert chunk == same
        at, step = source, 0
        while at != goal:
            out = np.flatnonzero(net.src == at)
            link = int(out[np.argmin(net.alpha_us[out] + distance[net.dst[out], goal])])
            sends.append((chunk, link, step))
            at, step = int(net.dst[link]), step + 1
    chunk, link, step = np.array(sends, dtype=np.int64).T
    return Algorithm(problem, untimed(chunk, link, step), "shortest")


def sorted_by_chunk(rows: Ints) -> list[list[int]]:
    ordered: list[list[int]] = rows[np.argsort(rows[:, 1])].tolist()
    return ordered


@pytest.mark.parametrize("spec", RANKS)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_no_schedule_beats_the_bound(spec: str, seed: int) -> None:
    sizes = random_sizes(RANKS[spec], seed)
    problem = problem_of(spec, sizes)
    size = message_bytes(sizes)
    bound_us = borders(spec).bound_us(sizes[None].astype(np.float64))[0]
    assert bound_us > 0
    for name in problem.protocols or [""]:
        time_us = shortest(problem.under(name) if name else problem).time_us(size)
        never_beaten(float(bound_us), time_us)


@pytest.mark.parametrize("spec", RANKS)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_the_check_of_cuts_proves_every_border(spec: str, seed: int) -> None:
    """Check each border by the witness of its cut, whose check shares no code with the borders but the cover."""
    sizes, all_borders = random_sizes(RANKS[spec], seed), borders(spec)
    problem, size = problem_of(spec, sizes), message_bytes(sizes)
    problem = problem.under(problem.protocols[0]) if problem.protocols else problem
    net = problem.network
    crossing, column = all_borders.crossing(sizes[None].astype(np.float64))[0], 0
    for label in all_borders.labels:
        for is_inward in (False, True):
            for part in range(int(label.max()) + 1):
                inside = np.zeros(net.nranks, dtype=bool)
                inside[: len(label)] = label == part
                sending = ~inside if is_inward else inside
                links = np.flatnonzero(sending[net.src] & ~sending[net.dst])
                if crossing[column] and len(label) == net.nranks:
                    resources = tuple(cover(net, links).tolist())
                    cut = Cut(ranks=tuple(np.flatnonzero(sending).tolist()), resources=resources, text="a border")
                    base_us, us_per_byte, _ = recompute(problem, cut)
                    bound_us = crossing[column] * all_borders.us[0, column] + all_borders.alpha_us[0, column]
                    assert bound_us <= (base_us - net.start_us + us_per_byte * size) * (1 + 1e-9)
                column += 1
    assert column == all_borders.us.shape[1] == len(crossing)


@settings(max_examples=30)
@given(group=st.sampled_from(GROUPS), seed=SEEDS)
def test_the_bound_is_that_of_the_planner(group: tuple[str, tuple[int, ...] | None], seed: int) -> None:
    planner = planner_of(*group)
    k = planner.shape.nranks
    sizes = random_sizes(k, seed)
    problem = make_problem(topology_of(group[0]), "alltoallv", group[1], sizes=sizes.astype(np.float64))
    assert borders_of(problem).bound_us(sizes[None].astype(np.float64))[0] == pytest.approx(planner.bound(sizes))


@settings(max_examples=30)
@given(seed=SEEDS, scale=st.integers(1, 1 << 20))
def test_a_scaled_matrix_has_the_bound_of_its_bytes(seed: int, scale: int) -> None:
    sizes = random_sizes(8, seed).astype(np.float64)
    scaled_us = borders("dgx1").scaled_us(sizes, np.array([scale, 1.0, np.inf]))
    assert scaled_us[:2] == pytest.approx(borders("dgx1").bound_us(np.stack([sizes * scale, sizes])))
    assert scaled_us[2] == np.inf


def test_nothing_takes_no_time_and_cuts_of_examples_count() -> None:
    assert borders("dgx1").bound_us(np.zeros((1, 8, 8))).tolist() == [0]
    crossing = np.zeros((1, 8, 8))
    crossing[0, :4, 4:] = 1e6  # Only half of the links of a DGX-1 join its two quads.
    plain = borders_of(problem_of("dgx1", random_sizes(8, 0)))
    with_cut = borders_of(problem_of("dgx1", random_sizes(8, 0)), [problem_of("dgx1", crossing[0].astype(np.int64))])
    assert with_cut.bound_us(crossing)[0] > 1.3 * plain.bound_us(crossing)[0]
