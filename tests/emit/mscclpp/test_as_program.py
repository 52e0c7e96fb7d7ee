"""Tests of plans as programs: they are right where the plan is right, wrong where it is wrong, and they run."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from emit.check.program import check
from emit.findings import Verdict
from emit.formats import verify_program
from emit.goal import Goal
from emit.mscclpp.as_program import program_of
from emit.mscclpp.format import check_plan, write_plan
from emit.mscclpp.read import read_plan
from emit.program import Gpu, Program, Step, ThreadBlock
from runtime.bench import measure
from runtime.host.executor import HostExecutor
from tests.emit.mscclpp import test_foreign_plans as foreign
from tests.emit.small_programs import RIGHT, chain_reduce, ring_allgather
from topologies.errors import InputError

PLAN_PROGRAMS = {name: p for name, p in RIGHT.items() if p.collective not in ("gather", "scatter")}


def is_right(program: Program, goal: Goal | None = None) -> bool:
    """Return whether a program passes its check at every FIFO depth and the host's executor leaves right results."""
    assert all(check(program, goal, fifo_depth=depth, target=None).ok for depth in (1, 2, 8))
    return measure(program, goal, 4096, HostExecutor(program, goal, threads=2)).wrong == 0


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("name", PLAN_PROGRAMS)
def test_written_plans_as_programs(name: str, protocol: str) -> None:
    program = replace(PLAN_PROGRAMS[name], protocol=protocol, min_bytes=1 << 12, max_bytes=1 << 20)
    for inplace in (True, False):
        program_of_plan = program_of(read_plan(write_plan(program, inplace=inplace)), root=program.root)
        assert is_right(program_of_plan)
        assert (program_of_plan.inplace, program_of_plan.protocol, program_of_plan.root) == (
            inplace,
            protocol,
            program.root,
        )
        assert (program_of_plan.collective, program_of_plan.nchunks_per_loop) == (
            program.collective,
            program.nchunks_per_loop,
        )


def test_a_plan_between_nodes_as_program() -> None:
    assert is_right(program_of(read_plan(write_plan(ring_allgather(4), nodes=[0, 0, 1, 1]))))


@pytest.mark.parametrize("name", sorted(foreign.RIGHT.keys() - {"multicast", "multicast of packets"}))
def test_foreign_plans_as_programs(name: str) -> None:
    assert is_right(program_of(read_plan(json.dumps(foreign.RIGHT[name]()))))


def test_a_program_counts_the_chunks_of_its_file() -> None:
    """Check that a program whose chunks are parts of the plan's divides messages as the plan does."""
    finer = 0
    for plan in (read_plan(json.dumps(made())) for made in foreign.RIGHT.values()):
        with suppress(InputError):  # A multicast is no step of a program.
            program = program_of(plan)
            chunks = {count for gpu in plan.gpus for count in (gpu.input_chunks, gpu.output_chunks)}
            assert program.file_chunks in chunks
            finer += program.file_chunks < program.nchunks_per_loop
    assert finer


def test_a_plan_with_its_own_goal_as_program() -> None:
    goal = Goal.from_arrays(2, ([0, 1], "ii", [0, 0], [0, 1], [0, 0]), ([0, 1], "oo", [0, 0], [1, 0], [0, 0]))
    swap = [ThreadBlock(1 - r, 1 - r, 0, [Step("s", "i", 0, "o", 0, 1), Step("r", "i", 0, "o", 0, 1)]) for r in (0, 1)]
    program = Program("swap", "custom", "Simple", 2, 1, False, True, [Gpu(1, 1, 0, [block]) for block in swap])
    assert is_right(program_of(read_plan(write_plan(program, goal)), goal), goal)


def test_wrong_plans_become_wrong_programs(tmp_path: Path) -> None:
    """Check that a plan with a wrong offset becomes a wrong program."""
    right = json.loads(write_plan(ring_allgather(3), inplace=False))
    wrong_plans = 0
    for r, gpu in enumerate(right["gpus"]):
        for t, block in enumerate(gpu["threadblocks"]):
            for k, op in enumerate(block["ops"]):
                for side in ("src_buff", "dst_buff"):
                    if not op.get(side) or op[side][0].get("type") == "i":
                        continue
                    changed_plan = copy.deepcopy(right)
                    part = changed_plan["gpus"][r]["threadblocks"][t]["ops"][k][side][0]
                    part["index"] = (part["index"] + 1) % 3
                    if any(f.kind == "wrong result" for f in check_plan(json.dumps(changed_plan)).findings):
                        wrong_plans += 1
                        program = program_of(read_plan(json.dumps(changed_plan)))
                        assert not check(program, target=None).ok
                        (tmp_path / "a.json").write_text(json.dumps(changed_plan))
                        verdict = verify_program(tmp_path / "a.json")
                        assert verdict.status == "wrong"
    assert wrong_plans > 5


def test_verdicts_on_plan_files(tmp_path: Path) -> None:
    def verdict(plan_or_text: object) -> Verdict:
        (tmp_path / "a.json").write_text(plan_or_text if isinstance(plan_or_text, str) else json.dumps(plan_or_text))
        return verify_program(tmp_path / "a.json")

    root = verdict(write_plan(chain_reduce(4, 2)))
    assert root.program is not None
    assert (root.status, root.program.root) == ("right", 2)
    for case_content, status, message in (
        (foreign.gets() | {"collective": "hello"}, "not judged", "does not say what the result must be"),
        ("{}", "not readable", "is no execution plan, which has gpus"),
    ):
        refused = verdict(case_content)
        assert (refused.status, refused.program) == (status, None) or refused.program is not None
        assert refused.status == status
        assert message in refused.lines[0]
    stuck = foreign.gets()
    del stuck["gpus"][0]["threadblocks"][0]["ops"][1]
    refused = verdict(stuck)
    assert (refused.status, refused.program) == ("wrong", None)
    with pytest.raises(InputError, match="plan cannot become a program: it stops before its end"):
        program_of(read_plan(json.dumps(stuck)))
