"""Launch after launch: what a plan leaves behind in scratch and on port channels, faults that one call hides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from emit.mscclpp.format import check_plan, write_plan
from emit.program import Program
from tests.emit.small_programs import alltoall, chain_broadcast, chain_reduce, ring_allgather, ring_allreduce
from tests.oracles.plan_runs import ends_right

Json = dict[str, Any]
UNEVEN: dict[str, tuple[Program, list[int]]] = {  # the nodes make ranks need different scratch
    "allgather": (ring_allgather(4), [0, 0, 1, 1]),
    "allreduce": (ring_allreduce(4), [0, 0, 1, 1]),
    "alltoall": (alltoall(4), [0, 1, 1, 1]),
    "broadcast": (chain_broadcast(4, 2), [0, 0, 1, 1]),
    "reduce": (chain_reduce(4, 1), [0, 1, 1, 2]),
}


def made(name: str) -> tuple[Json, int]:
    """A plan of packets, and its root."""
    program, nodes = UNEVEN[name]
    return json.loads(write_plan(replace(program, protocol="LL", max_bytes=1 << 18), nodes=nodes)), program.root


@pytest.mark.parametrize("name", UNEVEN)
def test_unequal_scratch_is_refused(name: str) -> None:
    plan, root = made(name)
    assert len({gpu["scratch_chunks"] for gpu in plan["gpus"]}) == 1
    assert all(ends_right(plan, seed, root=root) for seed in range(4))
    plan["gpus"][-1]["scratch_chunks"] += 8
    report = check_plan(json.dumps(plan), root=root)
    (finding,) = report.findings
    assert "scratch_chunks" in finding.message
    assert "\n" not in finding.message
    assert ends_right(plan, 0, launches=1, root=root)
    assert not any(ends_right(plan, seed, launches=2, root=root) for seed in range(4))


def test_a_port_that_still_reads_what_the_third_launch_overwrites() -> None:
    """Rank 3 sends on from packets on a port, and ends; rank 2, which puts them there, hears nothing of rank 0."""
    plan, root = made("broadcast")
    ahead = json.loads(json.dumps(plan))
    for rank, name, place in ((3, "wait", -1), (0, "signal", -1)):  # that the port is done
        block = ahead["gpus"][rank]["threadblocks"][0]["ops"]
        at = [n for n, op in enumerate(block) if op["name"] == name and op["channel_type"] == "port"][place]
        del block[at]
    start = {"channel_ids": [0], "channel_type": "port"}  # only that rank 0 has begun
    ahead["gpus"][0]["threadblocks"][0]["ops"].insert(0, {"name": "signal"} | start)
    ahead["gpus"][3]["threadblocks"][0]["ops"].append({"name": "wait"} | start)
    report = check_plan(json.dumps(ahead), root=root)
    assert report.findings
    assert {finding.kind for finding in report.findings} == {"race"}
    assert all(finding.message.startswith("launch 3: ") for finding in report.findings)
    assert not all(ends_right(ahead, seed, root=root) for seed in range(60))
    assert all(ends_right(plan, seed, root=root) for seed in range(60))


def _silent(plan: Json) -> None:
    """The root no longer hears that rank 3 has begun: it runs ahead."""
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if op["name"] not in ("signal", "wait")]


def _single(plan: Json) -> None:
    plan["use_double_scratch_buffer"] = False


@pytest.mark.parametrize("spoil", [_silent, _single])
def test_packets_that_come_before_the_last_were_read(spoil: Callable[[Json], None]) -> None:
    plan, root = made("broadcast")
    spoil(plan)
    assert "race" in {finding.kind for finding in check_plan(json.dumps(plan), root=root).findings}
    assert not all(ends_right(plan, seed, root=root) for seed in range(60))


SIZES = {
    "offsets": ("max_message_size", 8 << 30, "it must be at most 42949672"),
    "minimum": ("min_message_size", 3 << 30, "it must be at most 2147483647"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_beyond_what_the_executor_keeps(case: str) -> None:
    key, value, words = SIZES[case]
    plan = json.loads(write_plan(ring_allreduce(4, protocol="Simple")))
    (finding,) = check_plan(json.dumps(plan | {key: value})).findings
    assert finding.kind == "limit"
    assert words in finding.message


def test_what_is_not_stated_is_only_a_caution() -> None:
    plan = json.loads(write_plan(ring_allreduce(3, protocol="LL")))
    del plan["max_message_size"]
    for gpu in plan["gpus"]:
        gpu["scratch_chunks"] += 1
    report = check_plan(json.dumps(plan))
    assert report.ok
    assert [note.split(":")[0] for note in report.notes] == ["caution", "caution"]
