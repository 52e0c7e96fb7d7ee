"""Translations that are said to keep a schedule map its sends onto its sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.baselines import baseline
from synth.model.collective import named
from synth.model.problem import make_problem
from synth.model.registry import PAIR
from synth.symmetry.invariance import image_of_chunks, invariant_under
from synth.verify.algorithm import Algorithm
from topologies.load import load
from topologies.symmetry.translations import translate

CASES = [
    (spec, name)
    for spec in ("full:8", "hypercube:3", "ring:8", "dgx-h100:2")
    for name in ("allgather", "reducescatter", "allreduce", "alltoall")
]


def _sends(algorithm: Algorithm, stride: int, extent: int) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Return the sends of a schedule by chunk, ends and step, and their images under a translation, rank by rank."""
    problem, schedule = algorithm.problem, algorithm.schedule
    n, kind = problem.nranks, problem.collective.kind
    parts = problem.collective.chunks // (n if kind.in_shares else 1)
    moved = [rank + ((rank // stride % extent + 1) % extent - rank // stride % extent) * stride for rank in range(n)]
    net, here, there = problem.network, set(), set()
    for chunk, link, step in zip(schedule.chunk.tolist(), schedule.link.tolist(), schedule.step.tolist(), strict=True):
        block, part = divmod(chunk, parts)
        owner, destination = divmod(block, n) if kind.unit == PAIR else (block, -1)
        source, target = int(net.src[link]), int(net.dst[link])
        here.add((owner, destination, part, source, target, step))
        there.add((
            moved[owner], moved[destination] if destination >= 0 else -1, part, moved[source], moved[target], step,
        ))  # fmt: skip
    return here, there


@pytest.mark.parametrize(("spec", "name"), CASES)
def test_translations_map_sends_onto_sends(spec: str, name: str) -> None:
    """Check each translation against the sends as a set, and that a schedule with a changed send is not kept."""
    for algorithm in baseline(make_problem(load(spec), name)):
        translations = invariant_under(algorithm.problem, algorithm.schedule)
        for stride, extent in translations:
            here, there = _sends(algorithm, stride, extent)
            assert here == there
        if translations:
            rows = np.arange(1, len(algorithm.schedule))
            assert not invariant_under(algorithm.problem, algorithm.schedule.take(rows))


def test_some_schedules_are_kept() -> None:
    """Check that there are cases of every collective."""
    for name in ("allgather", "reducescatter", "allreduce", "alltoall"):
        problems = [make_problem(load(spec), name) for spec in ("full:8", "ring:8")]
        assert any(invariant_under(a.problem, a.schedule) for problem in problems for a in baseline(problem))


def test_chunks_move_like_their_owners() -> None:
    """Check the images of chunks of an all-gather and of an all-to-all against those of ranks."""
    translations = ((2, 4),)
    for name in ("allgather", "alltoall"):
        problem = replace(make_problem(load("full:8"), name), collective=named(name, 8, 3))
        chunks = np.arange(problem.collective.nchunks)
        image = image_of_chunks(problem, translations, chunks, [1])
        owner = {chunk: rank for rank, chunk in problem.collective.pre.tolist()}
        moved = translate(translations, np.arange(8), [1])
        assert sorted(image.tolist()) == chunks.tolist()
        assert all(owner[int(image[chunk])] == moved[owner[chunk]] for chunk in chunks.tolist())
