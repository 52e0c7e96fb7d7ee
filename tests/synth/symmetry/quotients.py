"""Quotient problems by specification, and what must hold for their schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from synth.model.collective import Ints
from synth.model.problem import Problem, Quotient
from synth.model.schedule import Schedule
from synth.symmetry.quotient import expand, quotient_problem
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from tests.random_problems import answered
from topologies.load import load
from topologies.symmetry.translations import representatives, translate, translate_links
from topologies.topology import Topology


def quotient(spec: str | Topology, name: str, chunks: int = 1, group: list[int] | None = None) -> Problem:
    problem = quotient_problem(load(spec) if isinstance(spec, str) else spec, name, chunks, group)
    assert problem is not None
    return problem


def answer(problem: Problem, size_bytes: float = 1e6) -> Schedule:
    schedule = timed(problem, answered(problem, size_bytes), size_bytes)
    replay(problem, schedule)
    return schedule


def products(quotient_data: Quotient) -> Iterator[tuple[int, ...]]:
    """Yield how often each translation is applied, for every product of them, the identity first."""
    extents = [extent for _, extent in quotient_data.translations]
    for number in np.ndindex(*extents[::-1]):
        yield tuple(number[::-1])


def chunk_image(problem: Problem, chunk: Ints, by: Sequence[int]) -> Ints:
    """Return the chunks of the whole problem to which translations carry chunks of a quotient problem."""
    assert problem.quotient is not None
    name, k, chunks = problem.collective.name, problem.collective.nranks, problem.collective.chunks
    chunks //= k if name == "allreduce" else 1
    shifts, (block, part) = problem.quotient.translations, divmod(chunk, chunks)
    owner, dest = divmod(block, k) if name == "alltoall" else (block, 0 * block)
    owner = translate(shifts, representatives(shifts, k)[owner], by)
    return (owner * k + translate(shifts, dest, by) if name == "alltoall" else owner) * chunks + part


def translated(problem: Problem, schedule: Schedule, by: Sequence[int]) -> Schedule:
    """Return one translate of a quotient problem's schedule, in chunks and links of the whole problem."""
    assert problem.quotient is not None
    link = translate_links(problem.quotient.whole, problem.quotient.translations, schedule.link, by)
    return replace(schedule, chunk=chunk_image(problem, schedule.chunk, by), link=link)


def expands(problem: Problem, schedule: Schedule) -> None:
    """Check that the expansion is right, takes as long, and has every translate of every send once."""
    full, sends = expand(problem, schedule)
    assert problem.quotient is not None
    replay(full, sends)
    assert full.quotient is None
    assert time_us(full, sends) == time_us(problem, schedule)
    assert len(sends) == len(schedule) * problem.quotient.order
    key = np.column_stack([sends.start_us, sends.step])
    assert (np.lexsort((key[:, 1], key[:, 0])) == np.arange(len(sends))).all()
    rows = sorted(zip(sends.chunk.tolist(), sends.link.tolist(), sends.start_us.tolist(), strict=True))
    one_by_one = []
    for by in products(problem.quotient):
        part = translated(problem, schedule, by)
        one_by_one += list(zip(part.chunk.tolist(), part.link.tolist(), part.start_us.tolist(), strict=True))
    assert sorted(one_by_one) == rows
    again = expand(problem, schedule)[1]
    assert all(np.array_equal(getattr(again, c), getattr(sends, c)) for c in ("chunk", "link", "step", "end_us"))
