"""Bounds of quotient problems are bounds of the whole problem."""

from __future__ import annotations

import numpy as np
import pytest

from synth.baselines import baseline
from synth.bounds.check import WITNESSES, check
from synth.bounds.lengths import from_loads, from_prices
from synth.bounds.prove import prove
from synth.bounds.windows.limit import Window
from synth.bounds.witness import Witness
from synth.bounds.witnesses.cut import Cut
from synth.bounds.witnesses.ends import Arrivals, Departures
from synth.bounds.witnesses.hops import Direct, Path
from synth.bounds.witnesses.parts import Parts
from synth.model.problem import make_problem
from synth.symmetry.quotient import quotient_problem
from synth.timing.simulate import predict_us
from tests.random_problems import TRANSLATABLE, answered
from tests.synth.bounds.cases import (
    ROUND_OFF,
    SIZES,
    chunk_times,
)
from topologies.errors import BadWitness
from topologies.load import load


@pytest.mark.parametrize("name", TRANSLATABLE)
def test_the_quotient_of_a_large_torus(name: str) -> None:
    problem = quotient_problem(load("torus:40x30"), name)
    assert problem is not None
    n = 1200
    # In the time of one chunk: 10 links on average along the rings of 40, or all other chunks over a rank's four links.
    expected = {"alltoall": 10 * n / 2, "allreduce": 2 * (n - 1) / 4}.get(name, (n - 1) / 4)
    bound = prove(problem)
    assert chunk_times(problem, bound.per_byte_us) == pytest.approx(expected)
    assert bound.at(1.0)[0] == pytest.approx(0.7 * 35, rel=1e-3)
    for witness in bound.witnesses:
        check(problem, witness)


PLACES = ("torus:4x3", "torus:2x3x2", "ring:5", "hypercube:3", "full:5", "ndv2:2", "star:4")


@pytest.mark.parametrize("name", TRANSLATABLE)
@pytest.mark.parametrize("spec", PLACES)
def test_bounds_of_a_quotient_are_bounds_of_the_whole(spec: str, name: str) -> None:
    problem = quotient_problem(load(spec), name)
    assert problem is not None
    bound = prove(problem)
    rng = np.random.default_rng(0)
    priced = [from_prices(problem, rng.random(problem.network.nresources)) for _ in range(3)]
    claims = (*bound.witnesses, *priced, from_loads(problem, rng.random(problem.network.nresources), rounds=5))
    times = {size: predict_us(problem, answered(problem, size), size) for size in SIZES}
    for algorithm in baseline(make_problem(load(spec), name)):
        times = {size: min(took, algorithm.time_us(size)) for size, took in times.items()}
    for witness in claims:
        check(problem, witness)
        assert witness.kind in ("path", "cut", "lengths", "arrivals", "departures")
        for size, took in times.items():
            assert witness.at(size) <= took * ROUND_OFF


@pytest.mark.parametrize("name", TRANSLATABLE)
def test_a_quotient_refuses_witnesses_that_need_the_whole(name: str) -> None:
    problem = quotient_problem(load("torus:4x3"), name)
    assert problem is not None
    net = problem.network
    everything = tuple(range(net.nresources))
    halves = (tuple(range(6)), tuple(range(6, 12)))
    wrong_witnesses: tuple[Witness, ...] = (
        Path(), Path(ranks=halves[0]), Direct(), Direct(resources=(0,)), Parts(resources=everything),
        Parts(resources=(0,)), Arrivals(resources=everything), Arrivals(resources=(0,)),
        Departures(resources=everything), Departures(resources=(0,)), Window(), Window(parts=halves),
    )  # fmt: skip
    for wrong in wrong_witnesses:
        with pytest.raises(BadWitness):
            check(problem, wrong)
    for of_whole in (witness_class() for witness_class in WITNESSES.values() if not witness_class.of_quotients):
        with pytest.raises(BadWitness, match="this kind proves nothing about a quotient problem"):
            check(problem, of_whole)
    with pytest.raises(BadWitness, match="uses none"):  # A cut uses resources of the whole problem.
        check(problem, Cut(ranks=halves[0], resources=everything))
    with pytest.raises(
        BadWitness, match="uses none" if name == "allreduce" else "must be an allreduce"
    ):  # So do parts.
        check(problem, Parts(parts=halves, resources=everything))
    for witness_class in (Arrivals, Departures):
        check(problem, witness_class(ranks=tuple(range(12)), resources=everything))
        with pytest.raises(BadWitness, match="all ranks"):
            check(problem, witness_class(ranks=halves[0], resources=everything))
