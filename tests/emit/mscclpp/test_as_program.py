"""A plan as a program: right where the plan is, wrong where it is, and run by the executors here."""

from __future__ import annotations

import copy
import json
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

SAYABLE = {name: p for name, p in RIGHT.items() if p.collective not in ("gather", "scatter")}


def is_right(program: Program, goal: Goal | None = None) -> bool:
    """By its check at every depth of FIFO, and by what the host's executor leaves behind."""
    assert all(check(program, goal, fifo_depth=depth, target=None).ok for depth in (1, 2, 8))
    return measure(program, goal, 4096, HostExecutor(program, goal, threads=2)).wrong == 0


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("name", SAYABLE)
def test_a_plan_that_we_write(name: str, protocol: str) -> None:
    program = replace(SAYABLE[name], protocol=protocol, min_bytes=1 << 12, max_bytes=1 << 20)
    for inplace in (True, False):
        made = program_of(read_plan(write_plan(program, inplace=inplace)), root=program.root)
        assert is_right(made)
        assert (made.inplace, made.protocol, made.root) == (inplace, protocol, program.root)
        assert (made.collective, made.nchunks_per_loop) == (program.collective, program.nchunks_per_loop)


def test_between_nodes() -> None:
    assert is_right(program_of(read_plan(write_plan(ring_allgather(4), nodes=[0, 0, 1, 1]))))


@pytest.mark.parametrize("name", sorted(foreign.RIGHT.keys() - {"multicast"}))
def test_a_plan_of_others(name: str) -> None:
    assert is_right(program_of(read_plan(json.dumps(foreign.RIGHT[name]()))))


def test_a_plan_with_a_goal_of_its_own() -> None:
    goal = Goal.from_arrays(2, ([0, 1], "ii", [0, 0], [0, 1], [0, 0]), ([0, 1], "oo", [0, 0], [1, 0], [0, 0]))
    swap = [ThreadBlock(1 - r, 1 - r, 0, [Step("s", "i", 0, "o", 0, 1), Step("r", "i", 0, "o", 0, 1)]) for r in (0, 1)]
    program = Program("swap", "custom", "Simple", 2, 1, False, True, [Gpu(1, 1, 0, [block]) for block in swap])
    assert is_right(program_of(read_plan(write_plan(program, goal)), goal), goal)


def test_what_is_wrong_stays_wrong(tmp_path: Path) -> None:
    """Whatever place an operation writes or reads instead."""
    right = json.loads(write_plan(ring_allgather(3), inplace=False))
    found = 0
    for r, gpu in enumerate(right["gpus"]):
        for t, block in enumerate(gpu["threadblocks"]):
            for k, op in enumerate(block["ops"]):
                for side in ("src_buff", "dst_buff"):
                    if not op.get(side) or op[side][0].get("type") == "i":
                        continue
                    made = copy.deepcopy(right)
                    part = made["gpus"][r]["threadblocks"][t]["ops"][k][side][0]
                    part["index"] = (part["index"] + 1) % 3
                    if any(f.kind == "wrong result" for f in check_plan(json.dumps(made)).findings):
                        found += 1
                        program = program_of(read_plan(json.dumps(made)))
                        assert not check(program, target=None).ok
                        (tmp_path / "a.json").write_text(json.dumps(made))
                        verdict = verify_program(tmp_path / "a.json")
                        assert verdict.status == "wrong"
    assert found > 5


def test_files(tmp_path: Path) -> None:
    def verdict(made: object) -> Verdict:
        (tmp_path / "a.json").write_text(made if isinstance(made, str) else json.dumps(made))
        return verify_program(tmp_path / "a.json")

    root = verdict(write_plan(chain_reduce(4, 2)))
    assert root.program is not None
    assert (root.status, root.program.root) == ("right", 2)
    for made, words in (
        (foreign.gets() | {"collective": "hello"}, "does not say what the result must be"),
        ("{}", "no gpus; it must be an execution plan"),
    ):
        found = verdict(made)
        assert (found.status, found.program) == ("not readable", None) or found.program is not None
        assert found.status == "not readable"
        assert words in found.lines[0]
    stuck = foreign.gets()
    del stuck["gpus"][0]["threadblocks"][0]["ops"][1]
    found = verdict(stuck)
    assert (found.status, found.program) == ("wrong", None)
    with pytest.raises(InputError, match="plan cannot become a program: it stops before its end"):
        program_of(read_plan(json.dumps(stuck)))
