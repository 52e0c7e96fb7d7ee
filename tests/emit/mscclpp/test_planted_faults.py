"""Tests of planted faults: of each kind at least twenty faulty plans are reported, at the fault's place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from emit.mscclpp import format
from emit.mscclpp.format import check_plan, write_plan
from emit.program import Program
from tests.emit.mscclpp.plan_faults import (
    DATA,
    PACKETS,
    FaultyPlan,
    Json,
    at_random,
    changed,
    crossed,
    swapped,
    without,
)
from tests.emit.small_programs import (
    allpairs_allreduce,
    alltoall,
    doubling_allgather,
    ring_allreduce,
    ring_reducescatter,
)
from tests.oracles.plan_results import ends_right
from topologies.errors import InputError

LEAST = 20


@cache
def bases() -> list[Json]:
    programs: list[tuple[Program, str]] = [
        (ring_allreduce(3), "Simple"),
        (allpairs_allreduce(3), "Simple"),
        (alltoall(3), "Simple"),
        (doubling_allgather(4), "LL"),
        (ring_reducescatter(3), "LL"),
    ]
    plans = []
    for program, protocol in programs:
        for nodes in (None, [0, 0, 1, 1][: program.nranks]):
            text = write_plan(replace(program, protocol=protocol), nodes=nodes)
            assert check_plan(text).findings == ()
            plans.append(json.loads(text))
    return plans


def _other_chunk(op: Json, _gpu: Json) -> bool:
    """Read another chunk of the input or output."""
    parts = [part for part in op["src_buff"] if part.get("type") in ("i", "o")]
    for part in parts[:1]:
        part["index"] += 1 if part["index"] == 0 else -1
    return bool(parts)


def _unwritten(op: Json, gpu: Json) -> bool:
    """Read scratch that nobody writes: a plain chunk beyond those that there were."""
    if op["name"] not in ("copy", "put", "pws", "re", "res"):
        return False
    gpu["scratch_chunks"] += 1
    op["src_buff"][0] = {"type": "s", "index": gpu["scratch_chunks"] - 1, "size": op["src_buff"][0]["size"]}
    return True


def _beyond(op: Json, gpu: Json) -> bool:
    part = next((part for part in op["src_buff"] if part.get("type") in ("i", "o")), None)
    if part is not None:
        part["index"] = gpu["input_chunks" if part["type"] == "i" else "output_chunks"]
    return part is not None


def _beyond_there(op: Json, _gpu: Json) -> bool:
    part = next((part for part in op["dst_buff"] if "buffer_id" in part), None)
    if part is not None:
        part["index"] += 100
    return part is not None


def _no_such(field: str, entry: str) -> Callable[[Json, Json], bool]:
    def change(op: Json, _gpu: Json) -> bool:
        if not op.get(field):
            return False
        if entry:
            parts = [part for part in op[field] if entry in part]
            for part in parts[:1]:
                part[entry] += 40
            return bool(parts)
        op[field][0] += 40
        return True

    return change


def _lists_no_such(plan: Json) -> Iterator[FaultyPlan]:
    """Yield plans whose threadblock lists, channels or remote buffers name ids or ranks that do not exist."""
    for r, gpu in enumerate(plan["gpus"]):
        for t, tb in enumerate(gpu["threadblocks"]):
            for name, ids in (("channels", "channel_ids"), ("remote_buffer_refs", "remote_buffer_ids")):
                if tb[name]:
                    changed_plan = json.loads(json.dumps(plan))
                    changed_plan["gpus"][r]["threadblocks"][t][name][0][ids][0] += 99
                    yield r, t, changed_plan
        for name, field in (("channels", "connected_to"), ("remote_buffers", "rank")):
            changed_plan = json.loads(json.dumps(plan))
            entry = changed_plan["gpus"][r][name][0]
            entry[field] = [77] if field == "connected_to" else 77
            yield r, -1, changed_plan


def _too_many(plan: Json) -> Iterator[FaultyPlan]:
    """Yield plans with more entries than the executor's structures hold."""
    for r, gpu in enumerate(plan["gpus"]):
        for t, tb in enumerate(gpu["threadblocks"]):
            for change in range(4):
                changed_plan = json.loads(json.dumps(plan))
                block = changed_plan["gpus"][r]["threadblocks"][t]
                if change == 0:
                    block["ops"] += [{"name": "nop"}] * (65 - len(tb["ops"]))
                elif change == 1:
                    block["channels"] = [{"channel_type": "memory", "channel_ids": [0] * 17}]
                elif change == 2:
                    changed_plan["gpus"][r]["semaphores"] = [{"init_value": 1}] * 17
                    block["ops"].append({"name": "sem_release", "semaphore_ids": list(range(17))})
                else:
                    block["ops"].append({"name": "barrier", "barrier_id": 16, "num_threadblocks": 1})
                yield r, t, changed_plan


def _moved_write(op: Json, gpu: Json) -> bool:
    """Write another cell of the output, which another threadblock writes or reads."""
    part = op["dst_buff"][0]
    if "type" not in part or part["type"] == "s":
        return False
    chunks = gpu["input_chunks" if part["type"] == "i" else "output_chunks"]
    part["index"] = (part["index"] + 1) % (chunks - part["size"] + 1)
    return True


ALL = (*DATA, *PACKETS)
# The expected kind of finding, the planter, and whether the finding names the fault's place: the sender of a missing
# packet is unknown.
KINDS: dict[str, tuple[str, Callable[[Json], Iterator[FaultyPlan]], bool]] = {
    "missing wait": ("unpaired", lambda p: without(p, ("wait",)), True),
    "missing signal": ("unpaired", lambda p: without(p, ("signal",)), True),
    "missing acquire": ("unpaired", lambda p: without(p, ("sem_acquire",)), True),
    "missing release": ("unpaired", lambda p: without(p, ("sem_release",)), True),
    "wait too late": ("race", lambda p: swapped(p, ("wait",), DATA), True),
    "signal too early": ("race", lambda p: swapped(p, ("put", "res"), ("signal",)), True),
    "wrong chunk": ("wrong result", lambda p: changed(p, ALL, _other_chunk), False),
    "missing move": ("wrong result", lambda p: without(p, ("put", "re", "res", "copy")), False),
    "read before write": ("read before write", lambda p: changed(p, ALL, _unwritten), True),
    "another's cell": ("race", lambda p: changed(p, ALL, _moved_write), True),
    "packets that nobody sends": ("deadlock", lambda p: without(p, ("ppkt", "rppkt", "respkt", "recpkt")), False),
    "crossed waits": ("deadlock", crossed, True),
    "limits exceeded": ("limit", _too_many, True),
    "read beyond a buffer": ("overrun", lambda p: changed(p, ALL, _beyond), True),
    "write beyond a buffer": ("overrun", lambda p: changed(p, ALL, _beyond_there), True),
    "no such channel": (
        "dangling id", lambda p: changed(p, ("signal", "wait", "pws"), _no_such("channel_ids", "")), True),
    "no such remote buffer": ("dangling id", lambda p: changed(p, ALL, _no_such("dst_buff", "buffer_id")), True),
    "no such semaphore": (
        "dangling id", lambda p: changed(p, ("sem_acquire", "sem_release"), _no_such("semaphore_ids", "")), True),
    "lists that lead nowhere": ("dangling id", _lists_no_such, True),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_planted_faults_are_reported(kind: str) -> None:
    expected, plant, place = KINDS[kind]
    planted = counted = named = 0
    for plan in bases():
        for rank, tb, faulty_plan in plant(plan):
            planted += 1
            report = check_plan(json.dumps(faulty_plan))
            assert report.findings, (kind, plan["name"], plan["protocol"], rank, tb)
            findings = [f for f in report.findings if f.kind == expected]
            counted += bool(findings)
            named += any(f.rank == rank or f"rank {rank}" in f.message for f in findings)
            for finding in report.findings:
                assert finding.rank is not None
                if finding.kind in ("race", "read before write") and " on memory channel " not in finding.message:
                    assert finding.tb is not None
                    assert finding.step is not None
                    assert finding.cell is not None
    assert counted >= LEAST
    assert 2 * counted >= planted, (planted, counted)
    assert named == counted or not place, (counted, named)


def test_missing_nops() -> None:
    """Check that a missing nop, by which threads synchronize, is reported, except where none is needed."""
    reported = planted = 0
    for plan in bases():
        for rank, tb, faulty_plan in without(plan, ("nop",)):
            report = check_plan(json.dumps(faulty_plan))
            planted += 1
            if report.findings:
                reported += 1
                assert {f.kind for f in report.findings} in ({"race"}, {"calls"})
                # The race is at this rank, or where a rank uses what this threadblock passed on.
                assert any(f.rank == rank or f"rank {rank} " in f.message for f in report.findings), (rank, tb)
            else:
                assert all(ends_right(faulty_plan, seed) for seed in range(3))
    assert reported >= LEAST
    assert reported * 4 >= planted * 3


def test_a_deadlock_is_reported_as_a_cycle() -> None:
    plan = json.loads(write_plan(replace(ring_reducescatter(3), protocol="Simple")))
    for gpu in plan["gpus"]:  # Each rank waits for the next rank's first signal before it sends its own.
        ops = gpu["threadblocks"][0]["ops"]
        ops.insert(1, ops.pop(0))
        assert [op["name"] for op in ops[:2]] == ["wait", "signal"]
    report = check_plan(json.dumps(plan))
    assert report.status == "deadlock"
    (finding,) = report.findings
    assert sorted(finding.cycle) == [(rank, 0, 0) for rank in range(3)]
    assert finding.message.endswith("and the cycle repeats")


def test_semaphores_and_barriers() -> None:
    """Check two threadblocks that synchronize by semaphores or a barrier, and faults in either."""

    def plan(before: list[Json], after: list[Json], semaphores: int = 1) -> str:
        def part(kind: str, index: int) -> Json:
            return {"type": kind, "index": index, "size": 1}

        def gpu(rank: int) -> Json:
            blocks = [
                [{"name": "copy", "src_buff": [part("i", 0)], "dst_buff": [part("s", 0)]}, {"name": "nop"}, *before],
                [*after, {"name": "nop"}, {"name": "copy", "src_buff": [part("s", 0)], "dst_buff": [part("o", 0)]}],
            ]
            return {
                "id": rank, "input_chunks": 1, "output_chunks": 1, "scratch_chunks": 1, "channels": [],
                "remote_buffers": [], "semaphores": [{"init_value": 0}] * semaphores,
                "threadblocks": [
                    {"id": n, "ops": ops, "channels": [], "remote_buffer_refs": []} for n, ops in enumerate(blocks)
                ],
            }  # fmt: skip

        return json.dumps(
            {"name": "x", "collective": "allreduce", "protocol": "Simple", "inplace": False, "gpus": [gpu(0)]}
        )

    release: list[Json] = [{"name": "sem_release", "semaphore_ids": [0]}]
    acquire: list[Json] = [{"name": "sem_acquire", "semaphore_ids": [0]}]
    barrier: list[Json] = [{"name": "barrier", "barrier_id": 3, "num_threadblocks": 2}]
    assert check_plan(plan(release, acquire)).ok
    assert check_plan(plan(barrier, barrier)).ok
    kinds = lambda text: {f.kind for f in check_plan(text).findings}  # noqa: E731
    assert "race" in kinds(plan([], []))
    assert "unpaired" in kinds(plan(barrier, []))
    assert "unpaired" in kinds(plan([{**barrier[0], "num_threadblocks": 3}], [{**barrier[0], "num_threadblocks": 3}]))
    assert "race" in kinds(plan(release, acquire).replace('"init_value": 0', '"init_value": 1'))
    two = release + release
    assert kinds(plan(two, acquire + acquire)) == set()
    assert "unpaired" in kinds(plan(two, acquire))


@pytest.mark.parametrize("seed", range(2))
def test_accepted_random_plans_end_right(seed: int) -> None:
    """Check that no randomly changed plan that passes the check ends wrong in a random run."""
    rng = random.Random(seed)
    right = wrong = confirmed = 0
    for _ in range(40):
        faulty_plan = at_random(rng.choice(bases()), rng)
        try:
            report = check_plan(json.dumps(faulty_plan))
        except InputError:
            continue
        if any(f.kind in ("inconsistent", "overrun", "limit", "dangling id") for f in report.findings):
            continue
        ends = all(ends_right(faulty_plan, rng.randrange(1 << 30)) for _ in range(3))
        right += report.ok
        wrong += not report.ok
        confirmed += not report.ok and not ends
        assert ends or not report.ok, json.dumps(faulty_plan)
    assert right > 0
    assert 2 * confirmed > wrong > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_third_launch_finds_nothing_more_without_double_scratch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    bases_without = [plan | {"use_double_scratch_buffer": False} for plan in bases()]
    plans = [json.dumps(at_random(rng.choice(bases_without), rng)) for _ in range(10)]
    reports: list[list[tuple[object, ...]]] = []
    for launches in (2, 3):
        monkeypatch.setattr(format, "_LAUNCHES", launches)
        reports.append([])
        for plan in plans:
            try:
                report = check_plan(plan)
                reports[-1].append((report.findings, report.notes))
            except InputError as error:
                reports[-1].append((str(error),))
    assert reports[0] == reports[1]
    assert len({len(findings) > 0 for findings, *_ in reports[0] if isinstance(findings, tuple)}) == 2
