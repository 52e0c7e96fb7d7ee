"""No schedule beats the bound, and the bound is at least the one computed by hand for many networks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.baselines import baseline
from synth.bounds.check import check
from synth.bounds.lengths import from_loads
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from synth.phases.reversal import reverse
from synth.symmetry.quotient import quotient_problem
from synth.timing.simulate import predict_us
from tests.oracles.exhaustive import fastest
from tests.random_problems import answered, random_problem, random_topology
from tests.synth.bounds.cases import (
    ROUND_OFF,
    SEEDS,
    SIZES,
    by_dimension,
    chunk_times,
    never_beaten,
    scan,
    uniform,
)
from topologies.errors import InputError
from topologies.load import load


@settings(max_examples=25, derandomize=True)
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


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_no_baseline_beats_the_bound(seed: int) -> None:
    """Check the bound against baselines, which choose their own numbers of chunks."""
    problem = random_problem(random.Random(seed))
    assume(problem.collective.chunks == 1)
    bound = prove(problem)
    for algorithm in baseline(problem):
        for size in SIZES:
            never_beaten(bound.at(size)[0], algorithm.time_us(size))


@settings(max_examples=25, derandomize=True)
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


@settings(max_examples=20, derandomize=True)
@given(SEEDS, st.sampled_from(["broadcast", "allgather", "gather", "scatter", "sendrecv", "alltonext", "reduce"]))
def test_the_best_of_all_small_schedules_does_not_beat_the_bound(seed: int, name: str) -> None:
    rng = random.Random(seed)
    topology = random_topology(rng, 4 if name in ("broadcast", "reduce") else 3)
    problem = make_problem(topology, name)
    size = rng.choice((1.0, 1e4, 1e6))
    assume(problem.network.nlinks <= 7)
    if name == "reduce":  # Reversed, it is the broadcast on the reversed network, send for send.
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
        # α is 0.7 µs and the bandwidth is 50 GB/s everywhere: 0.02 µs a KB.
        ("ring:2", "allgather", 1e6, 0.7 + 10),
        ("ring:2", "allreduce", 1e6, 0.7 + 20),  # The whole message crosses one link once in each direction.
        ("full:4", "allgather", 1e6, 0.7 + 5),  # 3/4 of the message enters a rank over three links.
        ("full:4", "alltoall", 1e6, 0.7 + 5),
        ("full:4", "broadcast", 1e9, 0.7 + 20e3 / 3),  # The message leaves the root over three links.
        ("star:4", "allgather", 1e6, 1.4 + 15),
        ("star:4", "allreduce", 1e9, 30e3),  # 2 · 3 sends of the message cross 4 ports of 50 GB/s.
        ("line:4", "broadcast", 1.0, 2.1),
        ("line:4", "allreduce", 1.0, 2.1),
        ("line:4", "alltonext", 1e6, 0.7 + 20),
        ("dgx1", "allgather", 1e9, 7 / 8 * 1e6 / 150),  # 7/8 of the message enters a GPU over six NVLinks of 25 GB/s.
    ],
)  # fmt: skip
def test_known_bounds(spec: str, name: str, size: float, least: float) -> None:
    """Check that the bound is at least the textbook value, computed by hand."""
    problem = make_problem(load(spec), name)
    limit, _ = prove(problem).at(size)
    assert limit >= least * (1 - 1e-3)
    never_beaten(limit, predict_us(problem, answered(problem, size), size))


@pytest.mark.parametrize(
    ("spec", "name", "chunks"),
    [
        ("mesh:12x12", "allgather", 143 / 2),  # All but one chunk enter a corner over two links.
        ("mesh:12x12", "reducescatter", 143 / 2),
        ("torus:5x5x4", "allgather", 99 / 6),
        ("fattree:16x8x8", "allgather", 127.0),  # All but one chunk enter a rank over its port.
        ("fattree:16x8x2", "alltoall", 8 * 120 / 2),  # They leave a leaf over two links to spines.
    ],
)
def test_known_bounds_of_a_hundred_ranks(spec: str, name: str, chunks: float) -> None:
    problem = make_problem(load(spec), name)
    bound = prove(problem)
    assert chunk_times(problem, bound.per_byte_us) == pytest.approx(chunks)
    for witness in bound.witnesses:
        check(problem, witness)


def test_the_bisections_of_a_mesh_bound_its_all_to_all() -> None:
    """Check that 256 · 256 chunks cross the 64 links of the middle, in each of three dimensions and both directions."""
    problem = make_problem(load("mesh:8x8x8"), "alltoall")
    witness = from_loads(problem, by_dimension(problem, (8, 8, 8)))
    check(problem, witness)
    assert chunk_times(problem, witness.per_byte_us) == pytest.approx(1024)
    assert len(witness.prices) == 3 * 2 * 64
    assert chunk_times(problem, prove(problem, max_flow=False).per_byte_us) == pytest.approx(1024)


def test_the_average_path_bounds_the_all_to_all_of_a_torus() -> None:
    """Check that 512 · 512 chunks take 6 links on average, of 3072 links."""
    problem = make_problem(load("torus:8x8x8"), "alltoall")
    (witness,) = uniform(problem)
    check(problem, witness)
    assert chunk_times(problem, witness.per_byte_us) == pytest.approx(512)
    assert chunk_times(problem, prove(problem, max_flow=False).per_byte_us) == pytest.approx(512)
    quotient = quotient_problem(load("torus:8x8x8"), "alltoall")
    assert quotient is not None
    assert chunk_times(quotient, prove(quotient).per_byte_us) == pytest.approx(512)


def test_an_all_reduce_sends_everything_twice_between_all_ranks() -> None:
    """Check 2 · (k - 1) sends of the message over the sum of all links, on the whole torus and on its quotient."""
    problem = make_problem(load("torus:6x5x4"), "allreduce")
    expected = 2 * 119 / 720 / 50e3
    assert prove(problem).per_byte_us == pytest.approx(expected)
    (witness,) = uniform(problem)
    assert witness.per_byte_us == pytest.approx(expected)
    quotient = quotient_problem(load("torus:6x5x4"), "allreduce")
    assert quotient is not None
    assert prove(quotient).per_byte_us == pytest.approx(expected)


def test_two_hundred_and_fifty_six_ranks_on_two_levels_of_switches() -> None:
    problem = make_problem(load("dgx-h100:32"), "allgather")
    bound = prove(problem)
    # 248 of 256 chunks enter a node over eight NICs of 50 GB/s.
    assert bound.per_byte_us == pytest.approx(248 / 256 / 400e3)


def test_few_members_and_many_relays() -> None:
    group = list(range(0, 64, 2))
    problem = make_problem(load("mesh:8x8"), "allgather", group, [r for r in range(64) if r % 2])
    assert prove(problem).per_byte_us == pytest.approx(31 / 32 / 100e3)  # They enter a corner over two links.


SPREAD = (
    ("ring:98", "allgather"), ("mesh:9x11", "reduce"), ("torus:5x5x4", "broadcast"),
    ("hypercube:7", "gather"), ("mesh:9x11", "allreduce"), ("dragonfly:7x7x2", "scatter"),
)  # fmt: skip


@pytest.mark.parametrize(("spec", "name"), SPREAD)
def test_no_schedule_of_a_hundred_ranks_beats_the_bound(spec: str, name: str) -> None:
    problem = make_problem(load(spec), name)
    bound = prove(problem)
    more = from_loads(problem, np.zeros(problem.network.nresources), rounds=2)
    schedule = answered(problem, 1e7)
    for size in (3e4, 1e7):
        took = predict_us(problem, schedule, size)
        for witness in (*bound.witnesses, more):
            check(problem, witness)
            assert witness.at(size) <= took * ROUND_OFF


def test_an_impossible_problem_has_no_bound() -> None:
    with pytest.raises(InputError):
        make_problem(load("line:5"), "allgather", [0, 2])


def test_sums_that_share_data_are_not_added_up(tmp_path: Path) -> None:
    """Check a scan, whose sums share their data: one send can serve more than one sum, so not all sums are counted."""
    problem = scan(tmp_path)
    # On 0 → 1 → 2 → 3, each rank adds its own data: every link carries the message once, one after the other, in
    # pieces.
    for size in (1e3, 1e6):
        assert prove(problem).at(size)[0] <= size / 1e3 * (1 + 1e-9)


def test_documents_leave_out_what_proves_nothing() -> None:
    bound = prove(make_problem(load("ring:4"), "allgather"))
    idle = replace(bound.witnesses[0], base_us=0.0, per_byte_us=0.0)
    assert replace(bound, witnesses=(*bound.witnesses, idle)).documents() == bound.documents()
    assert len(replace(bound, witnesses=(idle,)).documents()) == 1


def test_a_refusal_names_its_kind_once() -> None:
    witness = prove(make_problem(load("ring:4"), "allgather")).witnesses[0]
    assert str(replace(witness, text=f"{witness.kind} {{1}}").refusal("no")) == f"{witness.kind} {{1}}: no"
    assert str(replace(witness, text="{1}").refusal("no")) == f"{witness.kind} {{1}}: no"
