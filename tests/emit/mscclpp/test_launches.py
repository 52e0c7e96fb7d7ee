"""Launch after launch: what a plan leaves behind in scratch and on port channels, faults that one call hides."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from emit.mscclpp.format import check_plan, write_plan
from emit.program import Program
from tests.emit.mscclpp.plan_faults import beyond_int, beyond_offsets, single_scratch, uneven_scratch, unheard, unmet
from tests.emit.small_programs import (
    alltoall,
    chain_broadcast,
    chain_reduce,
    ring_allgather,
    ring_allreduce,
)
from tests.oracles.plan_results import ends_right

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


def _only_neighbours(plan: Json, pairs: list[tuple[int, int, str]]) -> Json:
    """Instead of all ranks of all, the first of each pair hears, before it ends, that the second has started."""
    (made,) = unmet(plan)
    for hears, starts, kind in pairs:
        for rank, peer, name in ((starts, hears, "signal"), (hears, starts, "wait")):
            gpu = made["gpus"][rank]
            block = gpu["threadblocks"][0]
            ends = [p for c in gpu["channels"] if c["channel_type"] == kind for p in c["connected_to"]]
            lists = {c["channel_type"]: c["channel_ids"] for c in block["channels"]}
            if kind not in lists:
                block["channels"].append({"channel_type": kind, "channel_ids": lists.setdefault(kind, [])})
            lists[kind].append(ends.index(peer))
            op = {"name": name, "channel_ids": [len(lists[kind]) - 1], "channel_type": kind}
            block["ops"].insert(0 if name == "signal" else len(block["ops"]), op)
    return made


def test_a_port_that_still_reads_what_the_third_launch_overwrites() -> None:
    """Rank 3 sends on from packets on a port, and ends; rank 2, which puts them there, hears nothing of rank 0."""
    plan, root = made("broadcast")
    ahead = _only_neighbours(plan, [(2, 3, "memory"), (3, 0, "port"), (0, 1, "memory")])
    report = check_plan(json.dumps(ahead), root=root)
    assert {finding.kind for finding in report.findings} == {"race"}
    assert all(finding.message.startswith("launch 3: ") for finding in report.findings)
    assert not all(ends_right(ahead, seed, root=root) for seed in range(60))
    assert all(ends_right(plan, seed, root=root) for seed in range(60))


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
@pytest.mark.parametrize("nodes", [None, [0, 0, 1, 1]])
def test_a_broadcast_between_launches_of_a_plan_of_packets(protocol: str, nodes: list[int] | None) -> None:
    """If its ranks did not hear of all, one would be two launches behind others that overwrite what it has not read."""
    plan = json.loads(write_plan(replace(alltoall(4), protocol="LL"), nodes=nodes))
    between = json.loads(write_plan(replace(chain_broadcast(4, 2), protocol=protocol), nodes=nodes))
    assert not check_plan(json.dumps(between), root=2).notes
    assert all(ends_right(plan, 1, 6, beside=[(between, 2)], last=rank) for rank in range(4))
    (spoilt,) = unmet(between)
    assert not all(ends_right(plan, 1, 6, beside=[(spoilt, 2)], last=rank) for rank in range(4))
    report = check_plan(json.dumps(spoilt), root=2)
    assert report.ok == (protocol == "Simple")
    assert report.findings or ["hears nothing of rank" in note for note in report.notes] == [True]


def test_who_hears_only_of_its_neighbours_may_be_launched_alone() -> None:
    """It is right however often it follows itself, and lets a rank run ahead of others between two of another plan."""
    plan = json.loads(write_plan(replace(alltoall(4), protocol="LL")))
    between = json.loads(write_plan(replace(chain_broadcast(4, 2), protocol="LL")))
    ahead = _only_neighbours(between, [(2, 3, "memory"), (3, 0, "memory"), (0, 1, "memory")])
    (finding,) = check_plan(json.dumps(ahead), root=2).findings
    assert "hears nothing of rank" in finding.message
    assert "\n" not in finding.message
    assert all(ends_right(ahead, 1, 6, root=2, last=rank) for rank in range(4))
    assert not all(ends_right(plan, 1, 6, beside=[(ahead, 2)], last=rank) for rank in range(4))


def test_ranks_that_no_channels_connect_are_only_told_of() -> None:
    plan = json.loads(write_plan(replace(chain_broadcast(2, 0), protocol="LL")))
    apart = plan | {"gpus": [{**gpu, "id": k} for k, gpu in enumerate(plan["gpus"] * 2)]}
    apart = json.loads(json.dumps(apart | {"collective": "pairs", "name": "pairs"}))
    for gpu in apart["gpus"][2:]:
        for channel in gpu["channels"]:
            channel["connected_to"] = [2 + peer for peer in channel["connected_to"]]
        for buffer in gpu["remote_buffers"]:
            buffer["rank"] += 2
    report = check_plan(json.dumps(apart))
    assert not report.findings
    assert ["rank 0 hears nothing of rank 2" in note for note in report.notes] == [True, False]


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
