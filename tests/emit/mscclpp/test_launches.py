"""Launch after launch: what a plan leaves behind in scratch and on port channels, faults that one call hides."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from emit.mscclpp.format import check_plan, write_plan
from emit.program import Program
from tests.emit.mscclpp.plan_faults import beyond_int, beyond_offsets, single_scratch, uneven_scratch, unheard
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
    for spoilt in uneven_scratch(plan):
        (finding,) = check_plan(json.dumps(spoilt), root=root).findings
        assert "scratch_chunks" in finding.message
        assert "\n" not in finding.message
        assert ends_right(spoilt, 0, launches=1, root=root)
        assert not all(ends_right(spoilt, seed, launches=2, root=root) for seed in range(4))


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


@pytest.mark.parametrize("spoil", [unheard, single_scratch])
def test_packets_that_come_before_the_last_were_read(spoil: Callable[[Json], Iterator[Json]]) -> None:
    plan, root = made("broadcast")
    (spoilt,) = spoil(plan)
    assert "race" in {finding.kind for finding in check_plan(json.dumps(spoilt), root=root).findings}
    assert not all(ends_right(spoilt, seed, root=root) for seed in range(60))


SIZES = {beyond_offsets: "it must be at most 42949672", beyond_int: "it must be at most 2147483647"}


@pytest.mark.parametrize("spoil", SIZES)
def test_sizes_beyond_what_the_executor_keeps(spoil: Callable[[Json], Iterator[Json]]) -> None:
    plan = json.loads(write_plan(ring_allreduce(4, protocol="Simple")))
    for spoilt in spoil(plan):
        (finding,) = check_plan(json.dumps(spoilt)).findings
        assert finding.kind == "limit"
        assert SIZES[spoil] in finding.message


def test_what_is_not_stated_is_only_a_caution() -> None:
    plan = json.loads(write_plan(ring_allreduce(3, protocol="LL")))
    del plan["max_message_size"]
    for gpu in plan["gpus"]:
        gpu["scratch_chunks"] += 1
    report = check_plan(json.dumps(plan))
    assert report.ok
    assert [note.split(":")[0] for note in report.notes] == ["caution", "caution"]
