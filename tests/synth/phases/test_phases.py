"""Phases: joined solutions of the phases solve the problem, and pruning removes only unneeded sends."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.engines.route import quick_schedule
from synth.model.problem import make_problem
from synth.phases.prune import prune_copies, prune_sums
from synth.phases.reversal import mirror_links, reverse, unreverse
from synth.phases.split import join, phases, split
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from tests.random_problems import answered, random_problem
from topologies.errors import ScheduleRefused
from topologies.load import load

SEEDS = st.integers(0, 2**32)


@settings(max_examples=25, derandomize=True)
@given(SEEDS, st.sampled_from(["reduce", "reducescatter"]))
def test_reversal(seed: int, name: str) -> None:
    """Check that reversing twice gives as many sends over the same links, with the same loads."""
    problem = random_problem(random.Random(seed), name=name)
    mirrored = reverse(problem)
    assert mirrored.collective.pre.tolist() == problem.collective.post.tolist()
    assert mirrored.network.src.tolist() == problem.network.dst.tolist()
    forward = prune_copies(mirrored, answered(mirrored, 1e6))
    back = unreverse(problem, forward)
    replay(mirrored, timed(mirrored, forward, 1e6))
    replay(problem, timed(problem, back, 1e6))
    rows = [sorted(zip(s.chunk.tolist(), s.link.tolist(), strict=True)) for s in (forward, back)]
    assert rows[0] == rows[1]
    assert back.reduces.all()
    assert len(prune_sums(problem, back)) == len(back)


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_the_two_phases_of_an_allreduce(seed: int) -> None:
    problem = random_problem(random.Random(seed), name="allreduce")
    gathering, spreading = split(problem)
    assert gathering.collective.post.tolist() == spreading.collective.pre.tolist()
    first = unreverse(gathering, answered(reverse(gathering), 1e6))
    second = answered(spreading, 1e6)
    whole = timed(problem, join(first, second), 1e6)
    replay(problem, whole)
    apart = sum(time_us(p, timed(p, s, 1e6)) for p, s in ((gathering, first), (spreading, second)))
    assert time_us(problem, whole) <= apart * (1 + 1e-9)
    with pytest.raises(ScheduleRefused, match=r"should hold|never"):
        replay(problem, timed(problem, first, 1e6))


@settings(max_examples=25, derandomize=True)
@given(SEEDS, st.integers(1, 3))
def test_any_problem_by_its_phases(tmp_path_factory: pytest.TempPathFactory, seed: int, chunks: int) -> None:
    folder: Path = tmp_path_factory.getbasetemp()
    problem = random_problem(random.Random(seed), folder)
    parts = phases(problem)
    for phase in parts:
        assert not phase.apply(chunks).collective.reducing
    schedules = [phase.invert(chunks, quick_schedule(phase.apply(chunks), 1e6)) for phase in parts]
    whole_problem = problem.with_chunks(parts[0].whole_chunks(chunks))
    schedule = reduce(join, schedules)
    replay(whole_problem, timed(whole_problem, schedule, 1e6))


def test_links_back() -> None:
    net = make_problem(load("ring:4"), "allgather").network
    mirror = mirror_links(net)
    assert mirror is not None
    assert net.src[mirror].tolist() == net.dst.tolist()
    assert mirror_links(replace(net, alpha_us=net.alpha_us + np.arange(net.nlinks))) is None
