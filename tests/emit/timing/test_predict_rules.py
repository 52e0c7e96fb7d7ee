"""Tests of a program's predicted time against the rules of time, its compiled loop, schedules and bounds."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emit.compiler.lower import lower
from emit.timing.predict import Predictor
from synth.bounds.prove import prove
from synth.model.problem import Problem, make_problem
from synth.verify.algorithm import Algorithm
from tests import ROOT
from tests.emit.small_programs import RIGHT, alltoall
from tests.emit.timing.random_timed_programs import random_program
from tests.emit.timing.schedule_as_program import transcribed
from tests.oracles.timing_rules import Rules, near
from tests.random_problems import answered, random_problem, random_topology, shares_nothing
from topologies.errors import InputError
from topologies.load import load

SIZES = (1.0, 4096.0, 1e6, 1e9)
SEEDS = st.integers(0, 2**32)
MANY = 1 << 40  # So many FIFO slots that no sender waits.


# --- the rules of time


def _random_case(seed: int) -> tuple[random.Random, Predictor, float]:
    rng = random.Random(seed)
    topology = load(rng.choice(("full:4", "star:4", "ndv2:2", "dgx-a100:2"))) if rng.random() < 0.4 else None
    topology = topology or random_topology(rng, 5)
    group = rng.sample(range(topology.nranks), rng.randint(2, min(topology.nranks, 6)))
    net = make_problem(topology, "sendrecv", group, [r for r in range(topology.nranks) if r not in group]).network
    inner = (net.src < len(group)) & (net.dst < len(group))
    pairs = sorted(set(zip(net.src[inner].tolist(), net.dst[inner].tolist(), strict=True)))
    assume(pairs)
    program = random_program(rng, len(group), pairs)
    depth = rng.choice((None, 1, 2, MANY))
    return rng, Predictor(program, topology, group, depth), rng.choice(SIZES)


@settings(max_examples=75, derandomize=True)
@given(SEEDS)
def test_transfers_keep_the_rules(seed: int) -> None:
    _, predictor, size = _random_case(seed)
    moves = predictor.transfers(size)
    rules = Rules(predictor, size, moves)
    assert rules.broken == []
    assert near(rules.end_us, predictor.time_us(size))
    assert len(moves) == int((predictor.columns.sends >= 0).sum())
    assert np.all(np.diff(moves.start_us) >= 0)


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_the_rules_report_changed_transfers(seed: int) -> None:
    rng, predictor, _ = _random_case(seed)
    moves = predictor.transfers(1e6)
    assume(len(moves))
    i = rng.randrange(len(moves))
    for shift_us in (-0.05, 0.05):
        for columns in (("start_us", "end_us", "arrive_us", "received_us"), ("received_us",), ("end_us",)):
            changed = {name: getattr(moves, name).copy() for name in columns}
            for column in changed.values():
                column[i] += shift_us
            assert Rules(predictor, 1e6, replace(moves, **changed)).broken, (columns, shift_us)
    assert Rules(predictor, 1e6, replace(moves, bytes=moves.bytes + 1)).broken
    assert Rules(predictor, 2e6, moves).broken


def test_the_rules_report_a_port_over_capacity() -> None:
    predictor = Predictor(alltoall(4), load("dgx-a100"))
    moves = predictor.transfers(1e9)
    assert Rules(predictor, 1e9, moves).broken == []
    lasts = moves.end_us - moves.start_us
    at_once = replace(
        moves,
        start_us=moves.start_us * 0,
        end_us=lasts,
        arrive_us=lasts + (moves.arrive_us - moves.end_us),
        received_us=lasts + (moves.arrive_us - moves.end_us),
    )
    assert any("over capacity" in line for line in Rules(predictor, 1e9, at_once).broken)


# --- the compiled loop


def test_the_compiled_loop_gives_identical_results() -> None:
    cases = [(p, load(f"full:{max(3, p.nranks)}"), 1e6) for p in RIGHT.values()]
    for seed in range(60):
        rng = random.Random(seed)
        topology = random_topology(rng, 5)
        net = make_problem(topology, "allreduce").network
        pairs = sorted(set(zip(net.src.tolist(), net.dst.tolist(), strict=True)))
        program = random_program(rng, topology.nranks, pairs)
        cases.append((program, topology, rng.choice(SIZES)))
    timed = 0
    for program, topology, size in cases:
        compiled, plain = (Predictor(program, topology, compiled_from=least) for least in (0, 1 << 60))
        try:
            by_machine = compiled._run(size)
        except InputError as deadlock:
            with pytest.raises(InputError, match=re.escape(str(deadlock))):
                plain._run(size)
            continue
        by_python = plain._run(size)
        assert by_machine[0] == by_python[0]
        assert by_machine[1].tobytes() == by_python[1].tobytes()
        assert by_machine[2].tobytes() == by_python[2].tobytes()
        timed += 1
    assert timed > len(cases) // 2


def test_small_programs_need_no_compiler() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.emit.small_programs import ring_allreduce\n"
        "from emit.timing.predict import Predictor\n"
        "from topologies.load import load\n"
        "assert Predictor(ring_allreduce(8, 4), load('ring:8')).times_us([1e3, 1e6, 1e9]).all()\n"
        "print('numba' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, check=True)
    assert completed.stdout == "False\n"


# --- against schedules and bounds


def _once(problem: Problem, algorithm: Algorithm) -> bool:
    """Return whether only sums arrive twice at a place, and no copy overwrites a sum."""
    schedule, collective = algorithm.schedule, problem.collective
    cells = schedule.chunk * problem.nranks + problem.network.dst[schedule.link]
    plain = ~schedule.reduces
    return len(np.unique(cells[plain])) == int(plain.sum()) and not (plain & collective.reduces[schedule.chunk]).any()


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_a_schedule_written_as_a_program_takes_its_own_time(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    assume(shares_nothing(problem) and np.ptp(problem.collective.fraction) < 1e-12)
    algorithm = Algorithm(problem, answered(problem, 1e6), "route")
    assume(_once(problem, algorithm))
    for size in SIZES:
        # The copy that arrives first may depend on the size.
        program = transcribed(problem, algorithm._clock.timed(size))
        time_us = algorithm.time_us(size)
        assert Predictor(program, problem.topology, problem.ranks, MANY).time_us(size) == pytest.approx(time_us)
        assert Predictor(program, problem.topology, problem.ranks).time_us(size) >= time_us * (1 - 1e-9)


@pytest.mark.parametrize("spec", ["ring:4", "dgx1", "torus:3x3", "full:5", "hypercube:3", "dgx-a100", "line:3"])
@pytest.mark.parametrize("name", ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "gather"])
def test_a_lowered_schedule_is_no_faster_than_the_bound(spec: str, name: str) -> None:
    problem = make_problem(load(spec), name)
    algorithm = Algorithm(problem, answered(problem, 1e6), "route")
    bound = prove(problem, max_flow=False)
    program, _ = lower(algorithm, "lowered", "LL")
    for size in SIZES:
        time_us = Predictor(program, problem.topology).time_us(size)
        assert time_us >= bound.at(size)[0] * (1 - 1e-9)
        if shares_nothing(problem) and _once(problem, algorithm):
            assert time_us >= algorithm.time_us(size) * (1 - 1e-9)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_hand_written_programs_are_no_faster_than_the_bound(name: str) -> None:
    program = RIGHT[name]
    for spec in (f"full:{max(3, program.nranks)}", "dgx-a100", "dgx-a100:2"):
        group = range(program.nranks)
        problem = make_problem(load(spec), program.collective, group, root=program.root)
        bound = prove(problem)
        predictor = Predictor(program, problem.topology, group)
        for size in SIZES:
            assert predictor.time_us(size) >= bound.at(size)[0] * (1 - 1e-9)
