"""Bounds by data from and to far ranks: by hand, against many schedules, on fabrics, and with planted faults."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from synth.baselines import baseline
from synth.bounds.check import check, proved
from synth.bounds.prove import prove
from synth.bounds.search import BoundSearch
from synth.bounds.searches.ends import find_from_afar, find_to_afar
from synth.bounds.witness import Witness
from synth.bounds.witnesses.afar import Afar, FromAfar, ToAfar
from synth.engines.flow.quotients import quotient_of
from synth.model.problem import Problem, make_problem
from synth.timing.simulate import predict_us
from tests.combinations import every_other
from tests.random_problems import answered, random_problem
from tests.synth.bounds.cases import SEEDS, SIZES, never_beaten
from tests.topologies.importers.simulators import racks, rails
from tests.topologies.importers.test_importers import read
from topologies.errors import BadWitness
from topologies.load import load
from topologies.topology import Topology

MIB = 1 << 20


def two_pairs() -> Topology:
    """Return ranks 0 and 1, and 2 and 3, near each other at 100 GB/s; 0 and 2, 1 and 3 are 2 µs apart at 10 GB/s."""
    src, dst = np.array([0, 1, 2, 3, 0, 2, 1, 3]), np.array([1, 0, 3, 2, 2, 0, 3, 1])
    near = np.arange(8) < 4
    return Topology("pairs", 4, (), src, dst, np.where(near, 0.1, 2.0), np.where(near, 100.0, 10.0))


def found(problem: Problem, size: float) -> list[Afar]:
    """Return the witnesses of both searches at a message size, with what they prove."""
    search = BoundSearch(problem, size_bytes=size)
    return [proved(problem, claim) for claim in (*find_from_afar(search), *find_to_afar(search))]


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_far_data_use_near_links_late(collective: str) -> None:
    """Check by hand: 2 MB come to rank 0 from 2 µs away, over its far link at once, over its near link after 2.1 µs."""
    witnesses = found(make_problem(two_pairs(), collective), 4e6)
    least_us = max(w.at(4e6) for w in witnesses if isinstance(w, FromAfar) and w.times == (2.0,))
    assert least_us == pytest.approx((2000 + 10 * 2.0 + 100 * 2.1) / 110)


@pytest.mark.parametrize("collective", ["reducescatter", "alltoall"])
def test_far_data_leave_over_near_links_early(collective: str) -> None:
    witnesses = found(make_problem(two_pairs(), collective), 4e6)
    least_us = max(w.at(4e6) for w in witnesses if isinstance(w, ToAfar) and w.times == (2.0,))
    assert least_us == pytest.approx((2000 + 10 * 2.0 + 100 * 2.1) / 110)


def test_few_data_need_no_near_link() -> None:
    """Check that small messages wait for no near link: 500 bytes have come over the far link before."""
    witnesses = found(make_problem(two_pairs(), "allgather"), 1000.0)
    (least_us,) = (w.at(1000.0) for w in witnesses if isinstance(w, FromAfar) and w.ranks == (0,) and w.times == (2.0,))
    assert least_us == pytest.approx(2.0 + 0.5 / 10)


@settings(max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SEEDS)
def test_no_schedule_is_faster(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, tmp_path)
    sizes = rng.sample(SIZES, 2)
    times = [(size, predict_us(problem, answered(problem, size), size)) for size in sizes]
    if problem.collective.chunks == 1:
        times += [(size, algorithm.time_us(size)) for size in sizes for algorithm in baseline(problem)]
    for witness in found(problem, sizes[0]):
        for size, time_us in times:  # It holds at other sizes than its own.
            never_beaten(witness.at(size), time_us)


@pytest.mark.parametrize(
    ("spec", "collective"),
    every_other(
        ["dgx-a100:2", "torus:4x4", "mesh:3x4", "fattree:3x2x2", "mi250:2"],
        ["allgather", "reducescatter", "alltoall", "broadcast", "gather"],
    ),
)
def test_no_baseline_is_faster(spec: str, collective: str) -> None:
    problem = make_problem(load(spec), collective)
    algorithms = baseline(problem)
    for size in (1.0, 3e5, 1e9):
        for witness in found(problem, size):
            for algorithm in algorithms:
                never_beaten(witness.at(size), algorithm.time_us(size))


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "alltoall"])
@pytest.mark.parametrize("spec", ["dgx-a100:4", "torus:4x4", "fattree:3x2x2"])
def test_a_quotient_says_the_same_as_the_whole(spec: str, collective: str) -> None:
    problem = make_problem(load(spec), collective)
    quotient = quotient_of(problem)
    assert quotient is not None

    def limits(witnesses: list[Afar]) -> set[tuple[str, float, str]]:
        """Return what the witnesses of rank 0 prove, by their kind and distance."""
        return {(w.kind, w.times[0], f"{w.at(MIB):.9g}") for w in witnesses if w.ranks == (0,) and w.at(MIB) > 0}

    assert limits(found(quotient, MIB))
    assert limits(found(quotient, MIB)) <= limits(found(problem, MIB))  # A rank's own block is looked at there only.


def test_racks_have_higher_bounds_than_their_cuts_say() -> None:
    """Check 16 servers on 4 leaves at 1 MiB, where spines are as far as a quarter of the data takes."""
    text = racks(16, segment=4, spines=40, port="400Gbps", server="2880Gbps")
    bound = prove(make_problem(read(text).topology, "allgather"), size_bytes=MIB)
    least_us, decisive = bound.at(MIB)
    assert decisive.kind == "from-afar"
    assert least_us > 1.1 * max(w.at(MIB) for w in bound.witnesses if w.kind == "cut")


def faulty(witness: Witness) -> list[Witness]:
    """Return the witness with one fault each."""
    assert isinstance(witness, Afar)
    return [
        replace(witness, ranks=()),
        replace(witness, ranks=(0, 1)),
        replace(witness, ranks=(-1,)),
        replace(witness, ranks=(10_000,)),
        replace(witness, times=()),
        replace(witness, times=(1.0, 2.0)),
        replace(witness, at_bytes=0.0),
        replace(witness, at_bytes=np.nan),
        replace(witness, resources=()),
        replace(witness, resources=witness.resources[:1]),  # A link uses the other.
        replace(witness, resources=(*witness.resources, 10_000)),
        replace(witness, times=(np.inf,)),  # No data come from so far.
        replace(witness, times=(witness.times[0] * 1.01,)),
        replace(witness, per_byte_us=witness.per_byte_us * 1.001),
        replace(witness, base_us=witness.base_us * 1.001),
        replace(witness, cap_us=witness.cap_us * 1.001),
    ]


@pytest.mark.parametrize("text", [rails(8, planes=1, segment=4), racks(8, segment=2)])
@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_planted_faults_are_refused(collective: str, text: str) -> None:
    problem = make_problem(read(text).topology, collective)
    witness = max(found(problem, MIB), key=lambda witness: witness.at(MIB))
    check(problem, witness)
    for claim in faulty(witness):
        with pytest.raises(BadWitness):
            check(problem, claim)
