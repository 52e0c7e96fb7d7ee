"""Tests of plans on switch channels: right by the check and the oracle, as fast as their schedule, or refused."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest

from emit.compiler.cuts import wide_cut
from emit.mscclpp import read
from emit.mscclpp.format import check_plan
from emit.mscclpp.images import whole_plan
from emit.mscclpp.in_switch import draft_in_switch, is_in_switch
from emit.mscclpp.plan import plan_text
from emit.mscclpp.read import read_plan, shared_plan
from emit.mscclpp.timing import PlanPredictor
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from synth.verify.algorithm import Algorithm
from tests.emit.mscclpp.plan_faults import with_changed_op
from tests.oracles.plan_results import ends_right
from tests.synth.engines.test_switch import answers
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import without_switch_ops


@cache
def switch_algorithm(name: str, ranks: int = 5, chunks: int | None = None) -> Algorithm:
    algorithms = answers(make_problem(load("dgx-h100"), name, range(ranks)), chunks)
    return min(algorithms, key=lambda algorithm: algorithm.time_us(1 << 30))


def switch_plan(name: str, chunks: int | None) -> Any:
    return json.loads(draft_in_switch(switch_algorithm(name, 4, chunks), "plan").text())


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(
    ("name", "ranks", "chunks"),
    [("allreduce", 3, 3), ("allreduce", 5, 10), ("broadcast", 4, None), ("allgather", 4, 1), ("allgather", 5, 3)],
)
def test_plans_end_right_in_the_oracle(name: str, ranks: int, chunks: int | None, inplace: bool) -> None:
    text = draft_in_switch(switch_algorithm(name, ranks, chunks), "plan", inplace=inplace).text()
    assert check_plan(text).findings == ()
    assert ends_right(json.loads(text), 1)


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "allgather"])
def test_a_plan_takes_the_time_of_schedule_and_barriers(name: str) -> None:
    algorithm = switch_algorithm(name, 8)
    plan = PlanPredictor(read_plan(draft_in_switch(algorithm, "plan").text()), load("dgx-h100"))
    assert plan.time_us(1 << 30) == pytest.approx(algorithm.time_us(1 << 30), rel=1e-2)
    assert plan.time_us(1 << 30) >= prove(algorithm.problem).at(1 << 30)[0]
    signal, least = (
        0.7,
        1.4 if name == "allreduce" else 0.7,
    )  # A signal comes before the data; the last one is sent with it.
    assert signal + least < plan.time_us(1 << 10) < algorithm.time_us(1 << 10) + signal + 1e-3


def test_a_topology_without_a_switch_is_refused() -> None:
    plan = read_plan(draft_in_switch(switch_algorithm("allreduce", 4, 4), "plan").text())
    for topology, group in ((without_switch_ops(load("dgx-h100")), range(4)), (load("dgx-h100:2"), (0, 1, 8, 9))):
        with pytest.raises(InputError, match="no switch of the topology"):
            PlanPredictor(plan, topology, tuple(group))


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("no first meeting", {"race"}),
        ("no last meeting", {"race"}),
        ("a missing signal", {"unpaired"}),
        ("a rank too few", {"wrong result"}),
        ("a foreign rank", {"dangling id"}),
        ("summed twice", {"wrong result", "race"}),
        ("nobody's share", {"wrong result"}),
    ],
)
def test_faulty_plans_are_refused(fault: str, kinds: set[str]) -> None:
    plan = switch_plan("allreduce", 4)
    gpu = plan["gpus"][1]
    ops = gpu["threadblocks"][0]["ops"]
    data = next(i for i, op in enumerate(ops) if op["name"] == "glres")
    switches = [channel for channel in gpu["channels"] if channel["channel_type"] == "switch"]
    if fault.startswith("no "):
        for plan_gpu in plan["gpus"]:
            block = plan_gpu["threadblocks"][0]
            block["ops"] = block["ops"][data:] if "first" in fault else block["ops"][: data + 1]
    elif fault == "a missing signal":
        del ops[next(i for i, op in enumerate(ops) if op["name"] == "signal")]
    elif fault == "a rank too few":
        switches[0]["rank_groups"] = [{"size": 3, "ranks": [0, 1, 2]}]
    elif fault == "a foreign rank":
        switches[0]["rank_groups"] = [{"size": 4, "ranks": [0, 1, 2, 9]}]
    elif fault == "summed twice":  # In place, all inputs hold the first sum.
        ops.insert(data, dict(ops[data]))
    else:
        del ops[data]
    findings = check_plan(json.dumps(plan)).findings
    assert {finding.kind for finding in findings} & kinds


@pytest.mark.parametrize(("name", "ranks", "chunks"), [("allreduce", 8, 8), ("allreduce", 6, 12), ("allgather", 5, 3)])
def test_plans_are_images_of_one_rank(name: str, ranks: int, chunks: int) -> None:
    """Check that one rank stands for all: the text is that of all ranks, and its check finds the same faults."""
    draft = draft_in_switch(switch_algorithm(name, ranks, chunks), "plan")
    assert draft.plan.translations == ((1, ranks),)
    assert [bool(gpu.blocks) for gpu in draft.plan.gpus] == [True] + [False] * (ranks - 1)
    whole = read_plan(draft.text())
    assert not whole.translations
    assert plan_text(whole_plan(draft.plan)) == draft.text() == plan_text(whole)
    rng, refused = random.Random(f"{name} {ranks}"), 0
    for _ in range(12):
        faulty = with_changed_op(draft.plan, rng)
        reports = [check_plan(candidate) for candidate in (faulty, whole_plan(faulty))]
        assert reports[0].ok == reports[1].ok, [f.message for report in reports for f in report.findings][:4]
        refused += not reports[0].ok
    assert refused


def test_unlike_shares_of_ranks_leave_fewer_images() -> None:
    """Check 72 ranks with 128 cells: each ninth rank has as many cells."""
    algorithm = answers(make_problem(load("gb200-nvl72"), "allreduce"), 72)[0]
    draft = draft_in_switch(algorithm, "plan", common=wide_cut(algorithm, [128], 1))
    assert draft.plan.translations == ((9, 8),)
    assert check_plan(draft.text()).ok


def test_a_switch_of_some_ranks_is_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a text that says for every rank what rank 0 does: its image would sum over other ranks."""
    monkeypatch.setattr(read, "_LARGE", 0)
    text = draft_in_switch(switch_algorithm("allreduce", 4, 4), "plan").text()
    assert shared_plan(text.replace("plan", "other")).translations
    ranks = json.dumps({"size": 4, "ranks": [0, 1, 2, 3]})
    assert text.count(ranks) == 8
    assert not shared_plan(text.replace(ranks, json.dumps({"size": 3, "ranks": [0, 1, 2]}))).translations


def test_an_all_gather_of_the_wrong_place_is_refused() -> None:
    plan = switch_plan("allgather", 2)
    ops = plan["gpus"][1]["threadblocks"][0]["ops"]
    store = next(op for op in ops if op["name"] == "gstore")
    store["src_buff"][0]["index"] = 1 - store["src_buff"][0]["index"]
    findings = check_plan(json.dumps(plan)).findings
    assert {finding.kind for finding in findings} & {"wrong result"}


def test_a_plan_never_has_more_threadblocks_than_it_may() -> None:
    algorithm = answers(make_problem(load("gb200-nvl72"), "broadcast", range(18)), None)[0]
    with pytest.raises(InputError, match="18 ranks need 2 threadblocks each to meet; each may have 1"):
        draft_in_switch(algorithm, "plan", sms=1)
    plan = json.loads(draft_in_switch(algorithm, "plan", sms=2).text())
    assert {len(gpu["threadblocks"]) for gpu in plan["gpus"]} == {2}


def test_collectives_without_switch_plans_are_refused() -> None:
    for name in ("reduce", "reducescatter"):
        with pytest.raises(InputError, match="only if the reader multicasts them"):
            draft_in_switch(switch_algorithm(name), "plan")
    assert is_in_switch(switch_algorithm("reduce"))
