"""Tests of libraries whose plans reduce and multicast in switches, for all groups, sizes and forms."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from emit.formats import verify_program
from emit.goal import goal_for, most_chunks
from emit.library.cells import CellNumbers
from emit.library.checking.check import check_library
from emit.library.index import load_index
from emit.library.lowered import Lowered, blocks_of
from emit.library.programs import Programs
from emit.mscclpp.in_switch import is_in_switch
from emit.mscclpp.read import read_plan
from emit.mscclpp.timing import PlanPredictor
from emit.targets import target_named
from synth import synthesize
from synth.model.problem import LARGEST, SMALLEST, make_problem
from synth.model.schedule import untimed
from synth.search.settings import TargetSettings
from tests.oracles.plan_results import ends_right
from tests.synth.engines.test_switch import answers
from topologies.costed import protocol_costs, with_costs
from topologies.errors import InputError
from topologies.load import load

_SIZE = 1 << 26


@pytest.mark.parametrize("group", [(6, 1, 3, 0), (0, 2, 4, 5, 7)])
def test_library_plans_use_switch_channels(tmp_path: Path, group: tuple[int, ...]) -> None:
    options = {"engine": "switch", "size": _SIZE, "chunks": 4 * len(group), "costs": "none"}
    result = synthesize("allreduce", "dgx-h100", group, target="mscclpp", **options)
    result.save(tmp_path, "mscclpp")
    report = check_library(tmp_path, load_index(tmp_path))
    assert (report.wrong, report.files) == ([], 2)
    for entry in load_index(tmp_path):
        plan = json.loads(entry.path.read_text())
        channels = [
            channel for gpu in plan["gpus"] for channel in gpu["channels"] if channel["channel_type"] == "switch"
        ]
        assert len(channels) == 2 * len(group)
        assert ends_right(plan, 1)
        verdict = verify_program(entry.path)
        assert (verdict.status, verdict.program is not None) == ("right", True)
        assert _SIZE % entry.divides == 0
        predictor = PlanPredictor(read_plan(entry.path), load("dgx-h100"), group)
        assert entry.row["time_us"] == pytest.approx(predictor.time_us(_SIZE))
        assert entry.row["time_us"] < 1.15 * entry.row["bound_us"]
    assert {entry.inplace for entry in load_index(tmp_path)} == {True, False}


def test_threadblocks_share_a_chunk_where_one_moves_less_than_a_port() -> None:
    size = 1 << 24
    problem = make_problem(with_costs(load("dgx-h100")), "broadcast", range(4)).under("Simple")
    algorithm = min(answers(problem, None), key=lambda answer: len(answer.schedule))
    assert len(algorithm.schedule) == 1
    programs = Programs(problem, TargetSettings("mscclpp"), size=size)
    lowered = programs.lower(algorithm)
    assert isinstance(lowered, Lowered)
    programs.complete(lowered)
    plan = json.loads(lowered.text)
    moving = [tb for tb in plan["gpus"][0]["threadblocks"] if any(op["name"] == "gstore" for op in tb["ops"])]
    assert len(moving) == 16
    assert ends_right(plan, 1)
    costs = protocol_costs(problem.topology)
    assert costs is not None
    assert lowered.time_us(size) < size * 1e-3 / costs.threadblock_gbs / 4  # One threadblock takes ten times as long.


@pytest.mark.parametrize(("size", "served"), [(3 << 20, True), (5 << 20, True), ((1 << 22) + 8, False)])
def test_cells_divide_the_size_of_interest(size: int, served: bool) -> None:
    problem = make_problem(load("dgx-h100"), "allreduce", range(5))
    programs = Programs(problem, TargetSettings("mscclpp"), size=size)
    lowered = [programs.lower(algorithm) for algorithm in answers(problem, 10)]
    assert all(isinstance(candidate, Lowered) and candidate.program.protocol == "Simple" for candidate in lowered)
    assert any(candidate.serves(size) for candidate in lowered) == served


def test_cells_fit_a_goal() -> None:
    for name, chunks in (("allreduce", 4608), ("allgather", 64), ("broadcast", 100)):
        problem = make_problem(load("gb200-nvl72"), name)
        refined = problem.with_chunks(chunks)
        schedule = untimed(*(np.zeros(0, dtype=kind) for kind in (np.int64, np.int64, np.int64, np.bool_)))
        idle = SimpleNamespace(problem=refined, schedule=schedule)
        cells = CellNumbers(target_named("mscclpp"), None).possible(idle, SMALLEST, LARGEST)  # type: ignore[arg-type]
        assert all(goal_for(name, 72, count * blocks_of(refined), True) for count in cells)
        most = most_chunks(name, 72)
        assert goal_for(name, 72, most - most % 72, True)
        with pytest.raises(InputError, match="cells in all"):
            goal_for(name, 72, most - most % 72 + 72, True)


def test_targets_and_collectives_without_switch_plans_are_refused() -> None:
    problem = make_problem(load("dgx-h100"), "reduce", range(4))
    with pytest.raises(InputError, match="only if the reader multicasts them"):
        Programs(problem, TargetSettings("mscclpp")).lower(answers(problem, 4)[0])
    with pytest.raises(InputError, match="XML file cannot express sums and multicasts of switches"):
        Programs(problem, TargetSettings("executor-nccl")).lower(answers(problem, 4)[0])


def test_sends_through_switches_of_many_ranks_are_counted() -> None:
    """Check ranks that translations carry into each other, whose links are no links of a switch."""
    problem = make_problem(load("gb200-nvl72"), "allreduce")
    programs = Programs(problem, TargetSettings("mscclpp"), size=_SIZE)
    algorithms = list(answers(problem, 72))
    assert algorithms
    for algorithm in algorithms:
        members = len(problem.group) * len(algorithm.schedule)  # Each member's port takes part in each send.
        assert len(algorithm.schedule) < programs.sends(algorithm) < members
        assert programs.refusal(algorithm) == ""


def test_what_a_plan_cannot_express_is_refused_before_it_is_lowered() -> None:
    """Check a reduce-scatter, whose sums no rank multicasts, and copies on a network that has two switches."""
    for name, spec, reason in (
        ("reducescatter", "dgx-h100", "sums in switches only if the reader multicasts them"),
        ("allgather", "dgx-h100:2", "multicasts only if one switch sends each of them to all ranks"),
    ):
        problem = make_problem(load(spec), name)
        programs = Programs(problem, TargetSettings("mscclpp"), size=_SIZE)
        algorithms = [algorithm for algorithm in answers(problem, 8) if is_in_switch(algorithm)]
        assert algorithms
        for algorithm in algorithms:
            assert reason in programs.refusal(algorithm)
            with pytest.raises(InputError, match=reason):
                programs.lower(algorithm)
