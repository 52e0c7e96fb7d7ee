"""The bound by two steps: by hand, never above a schedule, higher than other bounds, and hostile witnesses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.baselines import baseline
from synth.bounds.check import check, proved, recompute
from synth.bounds.prove import prove
from synth.bounds.witnesses.two_steps import TwoSteps
from synth.model.problem import Problem, make_problem
from synth.model.schedule import untimed
from synth.verify.algorithm import Algorithm
from tests.synth.bounds.cases import never_beaten
from tests.synth.engines.test_switch import answers
from topologies.costed import with_costs
from topologies.errors import BadWitness
from topologies.load import load

SIZES = [1 << e for e in range(6, 31, 3)]


def least_us(problem: Problem, size_bytes: float) -> float:
    return recompute(problem, TwoSteps(at_bytes=size_bytes))[2]


def test_the_limit_is_that_of_the_inequalities() -> None:
    """Check equal ports of rate c: T = 2 α (1 - 1/k) + (1 - 1/k) S / c, and for few bytes α + (k - 1) S / 2c."""
    problem = make_problem(load("star:8"), "allreduce")
    net = problem.network
    alpha_us, byte_us = float(net.alpha_us[0]), 1e-3 / float(net.capacity_gbs[0])
    for size in (1 << 20, 1 << 30):
        assert least_us(problem, size) == pytest.approx(7 / 8 * (2 * alpha_us + byte_us * size))
    assert least_us(problem, 64) == pytest.approx(alpha_us + 7 / 2 * byte_us * 64)


def in_one_step(problem: Problem) -> Algorithm:
    """Return the all-reduce in which a switch sums all contributions for each rank at the same time."""
    net, h = problem.network, problem.network.hyperlinks
    assert h is not None
    links = net.nlinks + np.flatnonzero(~h.multicast & h.paced)
    zeros = np.zeros(len(links), dtype=np.int64)
    return Algorithm(problem, untimed(zeros, links, zeros, np.ones(len(links), dtype=bool)), "one step")


@pytest.mark.parametrize("costs", [False, True])
@pytest.mark.parametrize("group", [range(8), (6, 1, 3), (0, 2, 4, 5, 7)])
def test_no_schedule_is_faster(group: tuple[int, ...], costs: bool) -> None:
    """Check sums in switches in two steps and in one, and direct exchanges, with and without an executor's costs."""
    problem = make_problem(load("dgx-h100"), "allreduce", group)
    if costs:
        problem = make_problem(with_costs(load("dgx-h100")), "allreduce", group).under("Simple")
    algorithms = [*answers(problem), *baseline(problem), in_one_step(problem)]
    ratios = []
    for size in SIZES:
        least = least_us(problem, size)
        for algorithm in algorithms:
            never_beaten(least + problem.network.start_us * (not costs), algorithm.time_us(size))
            ratios.append(algorithm.time_us(size) / least)
    assert min(ratios) < 1.5


def test_racks_have_higher_bounds_than_their_cuts_say() -> None:
    problem = make_problem(with_costs(load("gb200-nvl72")), "allreduce").under("Simple")
    bound = prove(problem, size_bytes=4 << 20)
    limit_us, decisive = bound.at(4 << 20)
    assert decisive.kind == "two-steps"
    assert limit_us > 1.1 * max(w.at(4 << 20) for w in bound.witnesses if w.kind != "two-steps")
    check(problem, decisive)


def test_hostile_witnesses_prove_nothing() -> None:
    problem = make_problem(load("star:8"), "allreduce")
    witness = proved(problem, TwoSteps(at_bytes=1 << 20))
    for wrong in (
        replace(witness, per_byte_us=witness.per_byte_us * 1.01),
        replace(witness, cap_us=witness.cap_us * 1.01),
        replace(witness, at_bytes=float("nan")),
        replace(witness, at_bytes=0.0),
    ):
        with pytest.raises(BadWitness, match="two-steps"):
            check(problem, wrong)
    for name, group in (("reduce", range(8)), ("allgather", range(8)), ("allreduce", range(2))):
        with pytest.raises(BadWitness, match="allreduce of three or more ranks"):
            check(make_problem(load("star:8"), name, group), witness)


def test_ranks_without_a_common_port_have_no_limit() -> None:
    assert recompute(make_problem(load("full:4"), "allreduce"), TwoSteps(at_bytes=1 << 20)) == (0.0, 0.0, np.inf)
