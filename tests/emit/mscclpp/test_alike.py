"""Cells that are alike: a check of the first of them finds what a check of all finds, and there are few to look at."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from emit.compiler.lower import Lowering, forms
from emit.mscclpp import alike, replay
from emit.mscclpp.acts import acts_of
from emit.mscclpp.alike import first_of_alike
from emit.mscclpp.format import check_plan, write_plan
from emit.mscclpp.memory import goal_of, memory_of
from emit.mscclpp.plan import ExecutionPlan
from emit.mscclpp.read import read_plan
from emit.targets import target_named
from synth.baselines import baseline
from synth.model.common_chunk import cut_blocks
from synth.model.problem import make_problem
from tests.emit.mscclpp.plan_faults import with_changed_op
from topologies.errors import InputError
from topologies.load import load

_PLANS = 3  # or one more, as algorithms have two forms
_SENDS = 100  # of an algorithm, at most
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")
CASES = [(spec, name, protocol) for spec, protocol in (("full:3", "LL"), ("ring:5", "Simple")) for name in COLLECTIVES]


@cache
def _plans(spec: str, name: str, protocol: str) -> list[ExecutionPlan]:
    """Return plans whose chunks have 5 or 6 cells, of algorithms that libraries would run, in both forms of calls."""
    problem = make_problem(load(spec), name)
    plans = []
    few = (algorithm for algorithm in baseline(problem) if algorithm.schedule.chunk.size <= _SENDS)
    for algorithm in {algorithm.engine: algorithm for algorithm in few}.values():
        collective = algorithm.problem.collective
        widths = [5 + chunk % 2 for chunk in range(collective.chunks)]
        for inplace in forms(problem) if len(plans) < _PLANS else ():
            common = cut_blocks(collective, widths)
            lowering = Lowering(algorithm, name, target_named("mscclpp").limits, inplace=inplace, common=common)
            with suppress(InputError):
                program = lowering.program(protocol, min_bytes=1 << 20, max_bytes=1 << 20)
                plans.append(read_plan(write_plan(program, nodes=problem.topology.nodes.tolist())))
    return plans


@pytest.mark.parametrize(("spec", "name", "protocol"), CASES)
def test_few_cells_are_looked_at(spec: str, name: str, protocol: str) -> None:
    plans = _plans(spec, name, protocol)
    assert plans
    for plan in plans:
        goal = goal_of(plan)
        assert goal is not None
        memory = memory_of(plan, goal)
        begins = first_of_alike(memory, goal, [acts_of(memory).acts])
        assert begins is not None
        assert begins.sum() <= 0.4 * len(begins)


@pytest.mark.parametrize(("spec", "name", "protocol"), CASES)
def test_checks_of_first_cells_and_of_all_cells_agree(
    spec: str, name: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that both checks find the same in plans with a planted fault."""
    rng, found, cut_apart = random.Random(f"{spec} {name} {protocol}"), 0, 0
    for plan in _plans(spec, name, protocol):
        assert check_plan(plan).ok
        for _ in range(4):
            faulty = with_changed_op(plan, rng)
            first = check_plan(faulty, root=0)
            with monkeypatch.context() as patch:
                patch.setattr(replay, "first_of_alike", lambda *_: None)
                every = check_plan(faulty, root=0)
            found += not every.ok
            cut_apart += any(part.size > 1 for *_, op in faulty.ops() for part in op.src)
            # A wrong chunk is one finding, which would be one for each of its cells.
            firsts = [{f.kind: (f.rank, f.tb, f.step) for f in reversed(report.findings)} for report in (first, every)]
            assert firsts[0] == firsts[1]
    assert found
    assert cut_apart


def test_a_move_of_a_part_of_a_chunk_cuts_it_at_both_ends() -> None:
    """Check that a cut in one rank's buffer cuts what moves bring there and from there."""
    plan = next(plan for plan in _plans("full:3", "allreduce", "LL") if not plan.translations)
    goal = goal_of(plan)
    assert goal is not None
    memory = memory_of(plan, goal)
    acts = acts_of(memory).acts
    begins = first_of_alike(memory, goal, [acts])
    assert begins is not None
    moves = [move for own in acts for act in own for move in act.moves if move.length > 4]
    part = moves[0]._replace(
        length=1, sources=tuple(run._replace(cell=run.cell + (6 if run.packet else 3)) for run in moves[0].sources),
        targets=tuple(run._replace(cell=run.cell + (6 if run.packet else 3)) for run in moves[0].targets),
    )  # fmt: skip
    act = next(act for own in acts for act in own if moves[0] in act.moves)
    cut = first_of_alike(memory, goal, [[*acts, [type(act)(act.kind, act.op, act.name, moves=(part,))]]])
    assert cut is not None
    for move in moves:
        for run in (*move.sources, *move.targets):
            width = 2 if run.packet else 1
            inside = cut[run.cell : run.cell + move.length * width : width]
            assert np.array_equal(inside, cut[slice(*_span(move.sources[0], move.length))])
    assert cut.sum() > begins.sum() + 2


def test_all_cells_are_looked_at_where_the_first_are_not_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plans("full:3", "allreduce", "LL")[0]
    goal = goal_of(plan)
    assert goal is not None
    memory = memory_of(plan, goal)
    monkeypatch.setattr(alike, "_MOST_PASSES", 1)
    assert first_of_alike(memory, goal, [acts_of(memory).acts]) is None
    assert check_plan(plan).ok


def _span(run: replay.ActRun, length: int) -> tuple[int, int, int]:
    width = 2 if run.packet else 1
    return run.cell, run.cell + length * width, width


def _swapped(column: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    swapped = column.copy()
    swapped[[first, first + 1]] = column[[first + 1, first]]
    return swapped


@pytest.mark.parametrize("what", ["initial", "required", "sets"])
@pytest.mark.parametrize("name", ["allgather", "broadcast", "alltoall"])
def test_goals_that_differ_inside_a_chunk_are_not_met(what: str, name: str) -> None:
    """Check goals in which two neighbouring cells of a chunk, not the first one, change their places."""
    for plan in _plans("full:3", name, "Simple"):
        goal = goal_of(plan)
        assert goal is not None
        assert check_plan(plan, goal).ok
        if what == "initial":
            other = replace(goal, initial=(*goal.initial[:4], _swapped(goal.initial[4], 2)))
        elif what == "required":
            other = replace(goal, required=(*goal.required[:3], _swapped(goal.required[3], 2)))
        else:
            other = replace(goal, sets=replace(goal.sets, chunk=_swapped(goal.sets.chunk, 2)))
        assert {finding.kind for finding in check_plan(plan, other).findings} == {"wrong result"}
