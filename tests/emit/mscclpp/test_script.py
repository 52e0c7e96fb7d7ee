"""Plans as programs in MSCCL++'s language: what the programs say is right, and ends right in random runs."""

from __future__ import annotations

import json

import pytest

from emit.mscclpp.format import check_plan, write_plan
from emit.mscclpp.read import read_plan
from emit.mscclpp.script import script_of
from tests.emit.mscclpp import test_foreign_plans as foreign
from tests.emit.small_programs import RIGHT
from tests.oracles.plan_language import printed_plan
from tests.oracles.plan_results import ends_right
from topologies.errors import InputError

PROGRAMS = sorted(name for name, program in RIGHT.items() if program.collective not in ("gather", "scatter"))


@pytest.mark.parametrize("nodes", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_our_plans(name: str, nodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program = RIGHT[name]
    node_of_rank = [rank * 2 // program.nranks for rank in range(program.nranks)] if nodes else None
    plan = read_plan(write_plan(program, nodes=node_of_rank))
    printed = printed_plan(script_of(plan), monkeypatch)
    report = check_plan(json.dumps(printed), root=program.root)
    assert (report.findings, report.judged) == ((), True)
    assert ends_right(printed, 1, root=program.root)


@pytest.mark.parametrize("name", sorted(foreign.RIGHT.keys() - {"grouped", "multicast"}))
def test_programs_of_other_plans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = printed_plan(script_of(read_plan(json.dumps(foreign.RIGHT[name]()))), monkeypatch)
    assert check_plan(json.dumps(printed)).findings == ()
    assert ends_right(printed, 1)


def test_what_the_language_cannot_say() -> None:
    grouped = read_plan(json.dumps(foreign.grouped()))
    with pytest.raises(InputError, match="MSCCL\\+\\+'s language has no call for one threadblock of a group; keep the"):
        script_of(grouped)


def test_sums_in_a_switch() -> None:
    """Check the two calls for a sum in a switch, which the language joins to one operation."""
    text = script_of(read_plan(json.dumps(foreign.multicast())))
    assert "switch = [SwitchChannel(rank_list=[0, 1], buffer_type=BufferType.input)]" in text
    assert "        switch[0].at_rank(1).reduce(1, 1, inputs[1][1:2], tb=0)\n" in text
    assert "        switch[0].at_rank(1).broadcast(inputs[1][1:2], 1, 1, tb=0)\n" in text


def test_operations_that_the_language_joins_are_parted_beyond_the_limit() -> None:
    """Check nine neighbouring puts of a threadblock, of which the executor takes eight as one."""
    plan_json = foreign.remote_sums()
    operations = foreign.ops(plan_json)
    operations += [foreign.op("put", [foreign.L("s", 0)], [foreign.R(0, 1)], "memory")] * 9
    lines = script_of(read_plan(json.dumps(plan_json))).splitlines()
    puts = [n for n, line in enumerate(lines) if "memory[0][0].put(" in line][-9:]
    assert "Parts what the executor cannot take" in lines[puts[-1] - 1]
    assert puts[:8] == list(range(puts[0], puts[0] + 8))


def test_odd_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an empty pipeline is left out, and what the language cannot say of others."""
    plan_json = foreign.gets()
    pipeline: foreign.Json = {"name": "pipeline", "iter_context": {"unit_size": 16, "num_chunks": 1}, "ops": []}
    foreign.ops(plan_json).insert(0, pipeline)
    assert check_plan(json.dumps(printed_plan(script_of(read_plan(json.dumps(plan_json))), monkeypatch))).ok
    for inner, reason in (
        ([{"name": "barrier", "barrier_id": 0, "num_threadblocks": 1}], "barrier in a pipeline"),
        ([foreign.op("copy", [foreign.L("i", 0)], [foreign.L("s", 0)]), foreign.NOP], "way to keep a nop before"),
    ):
        plan_json = foreign.gets()
        foreign.ops(plan_json)[:0] = [foreign.NOP, pipeline | {"ops": inner}]
        with pytest.raises(InputError, match=reason):
            script_of(read_plan(json.dumps(plan_json)))
