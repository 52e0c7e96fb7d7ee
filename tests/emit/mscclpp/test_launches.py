"""Tests of several launches: remains of a launch in scratch and on port channels are faults that one call hides."""

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
    allpairs_allreduce,
    alltoall,
    chain_broadcast,
    chain_reduce,
    ring_allgather,
    ring_allreduce,
)
from tests.oracles.plan_results import ends_right

Json = dict[str, Any]
UNEVEN: dict[str, tuple[Program, list[int]]] = {  # With these nodes, ranks need different amounts of scratch.
    "allgather": (ring_allgather(4), [0, 0, 1, 1]),
    "allreduce": (ring_allreduce(4), [0, 0, 1, 1]),
    "alltoall": (alltoall(4), [0, 1, 1, 1]),
    "broadcast": (chain_broadcast(4, 2), [0, 0, 1, 1]),
    "reduce": (chain_reduce(4, 1), [0, 1, 1, 2]),
}


def plan_and_root(name: str) -> tuple[Json, int]:
    """Return a plan of packets and its root."""
    program, nodes = UNEVEN[name]
    return json.loads(write_plan(replace(program, protocol="LL", max_bytes=1 << 18), nodes=nodes)), program.root


@pytest.mark.parametrize("name", UNEVEN)
def test_unequal_scratch_is_refused(name: str) -> None:
    plan, root = plan_and_root(name)
    assert len({gpu["scratch_chunks"] for gpu in plan["gpus"]}) == 1
    assert all(ends_right(plan, seed, root=root) for seed in range(4))
    for faulty_plan in uneven_scratch(plan):
        (finding,) = check_plan(json.dumps(faulty_plan), root=root).findings
        assert "scratch_chunks" in finding.message
        assert "\n" not in finding.message
        assert ends_right(faulty_plan, 0, launches=1, root=root)
        assert not all(ends_right(faulty_plan, seed, launches=2, root=root) for seed in range(4))


def _only_neighbours(plan: Json, pairs: list[tuple[int, int, str]]) -> Json:
    """Replace the last threadblocks: the first rank of each pair waits for the second one's start."""
    (changed_plan,) = unmet(plan)
    for hears, starts, kind in pairs:
        for rank, peer, name in ((starts, hears, "signal"), (hears, starts, "wait")):
            gpu = changed_plan["gpus"][rank]
            block = gpu["threadblocks"][0]
            ends = [p for c in gpu["channels"] if c["channel_type"] == kind for p in c["connected_to"]]
            lists = {c["channel_type"]: c["channel_ids"] for c in block["channels"]}
            if kind not in lists:
                block["channels"].append({"channel_type": kind, "channel_ids": lists.setdefault(kind, [])})
            lists[kind].append(ends.index(peer))
            op = {"name": name, "channel_ids": [len(lists[kind]) - 1], "channel_type": kind}
            block["ops"].insert(0 if name == "signal" else len(block["ops"]), op)
    return changed_plan


def test_a_port_that_still_reads_what_the_third_launch_overwrites() -> None:
    """Check a port that forwards packets while the rank that writes them does not wait for rank 0."""
    plan, root = plan_and_root("broadcast")
    ahead = _only_neighbours(plan, [(2, 3, "memory"), (3, 0, "port"), (0, 1, "memory")])
    report = check_plan(json.dumps(ahead), root=root)
    (finding,) = report.findings
    assert finding.kind == "calls"
    assert "no rank begins a call before all ranks have ended the last one; else a race: launch 3: " in finding.message
    assert not all(ends_right(ahead, seed, root=root) for seed in range(60))
    assert all(ends_right(plan, seed, root=root) for seed in range(60))


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
@pytest.mark.parametrize("nodes", [None, [0, 0, 1, 1]])
def test_a_broadcast_between_launches_of_a_plan_of_packets(protocol: str, nodes: list[int] | None) -> None:
    """Check that the ranks of a broadcast wait for all, or unread packets of the other plan are overwritten."""
    plan = json.loads(write_plan(replace(alltoall(4), protocol="LL"), nodes=nodes))
    between = json.loads(write_plan(replace(chain_broadcast(4, 2), protocol=protocol), nodes=nodes))
    assert not check_plan(json.dumps(between), root=2).notes
    assert all(ends_right(plan, 1, 6, beside=[(between, 2)], last=rank) for rank in range(4))
    (faulty_plan,) = unmet(between)
    assert not all(
        ends_right(plan, seed, 6, beside=[(faulty_plan, 2)], last=rank) for rank in range(4) for seed in range(5)
    )
    report = check_plan(json.dumps(faulty_plan), root=2)
    assert report.ok == (protocol == "Simple")
    assert report.findings or ["hears nothing of rank" in note for note in report.notes] == [True]


def test_ranks_that_wait_only_for_neighbours() -> None:
    """Check a plan that is right on its own, but not between launches of another plan."""
    plan = json.loads(write_plan(replace(alltoall(4), protocol="LL")))
    between = json.loads(write_plan(replace(chain_broadcast(4, 2), protocol="LL")))
    ahead = _only_neighbours(between, [(2, 3, "memory"), (3, 0, "memory"), (0, 1, "memory")])
    (finding,) = check_plan(json.dumps(ahead), root=2).findings
    assert "hears nothing of rank" in finding.message
    assert "\n" not in finding.message
    assert all(ends_right(ahead, 1, 6, root=2, last=rank) for rank in range(4))
    assert not all(ends_right(plan, seed, 6, beside=[(ahead, 2)], last=rank) for rank in range(4) for seed in range(5))


def test_unconnected_ranks_are_only_noted() -> None:
    plan = json.loads(write_plan(replace(chain_broadcast(2, 0), protocol="LL")))
    unconnected = plan | {"gpus": [{**gpu, "id": k} for k, gpu in enumerate(plan["gpus"] * 2)]}
    unconnected = json.loads(json.dumps(unconnected | {"collective": "pairs", "name": "pairs"}))
    for gpu in unconnected["gpus"][2:]:
        for channel in gpu["channels"]:
            channel["connected_to"] = [2 + peer for peer in channel["connected_to"]]
        for buffer in gpu["remote_buffers"]:
            buffer["rank"] += 2
    report = check_plan(json.dumps(unconnected))
    assert not report.findings
    assert ["rank 0 hears nothing of rank 2" in note for note in report.notes] == [True, False]


@pytest.mark.parametrize("plant_fault", [unheard, single_scratch])
def test_packets_that_overwrite_unread_ones(plant_fault: Callable[[Json], Iterator[Json]]) -> None:
    plan, root = plan_and_root("broadcast")
    (faulty_plan,) = plant_fault(plan)
    (finding,) = check_plan(json.dumps(faulty_plan), root=root).findings
    assert finding.kind == "calls"
    assert not all(ends_right(faulty_plan, seed, root=root) for seed in range(60))


SIZES = {beyond_offsets: "it must be at most 42949672", beyond_int: "it must be at most 2147483647"}


@pytest.mark.parametrize("plant_fault", SIZES)
def test_sizes_beyond_the_executors_integers(plant_fault: Callable[[Json], Iterator[Json]]) -> None:
    plan = json.loads(write_plan(ring_allreduce(4, protocol="Simple")))
    for faulty_plan in plant_fault(plan):
        (finding,) = check_plan(json.dumps(faulty_plan)).findings
        assert finding.kind == "limit"
        assert SIZES[plant_fault] in finding.message


def test_missing_sizes_are_only_a_caution() -> None:
    plan = json.loads(write_plan(ring_allreduce(3, protocol="LL")))
    del plan["max_message_size"]
    for gpu in plan["gpus"]:
        gpu["scratch_chunks"] += 1
    report = check_plan(json.dumps(plan))
    assert report.ok
    assert [note.split(":")[0] for note in report.notes] == ["caution", "caution"]


def _early_plan(name: str) -> Json:
    """Return a plan of puts that begins with puts into scratch, without a signal that their receivers have started."""
    program = {"ring": ring_allreduce(3), "pairs": allpairs_allreduce(3)}[name]
    plan: Json = json.loads(write_plan(replace(program, protocol="Simple"), inplace=False))
    assert check_plan(json.dumps(plan)).findings == ()
    return plan


@pytest.mark.parametrize("name", ["ring", "pairs"])
def test_puts_into_scratch_that_is_used_up_need_no_signal(name: str) -> None:
    """Check that early puts are right however far a rank is ahead, and never in scratch that plans share."""
    plan = _early_plan(name)
    assert all(ends_right(plan, seed, 6, last=rank) for seed in range(5) for rank in range(3))
    report = check_plan(json.dumps(plan | {"reuse_resources": True}))
    assert any("may not have started the call" in finding.message for finding in report.findings)


@pytest.mark.parametrize("name", ["ring", "pairs"])
def test_scratch_that_nobody_hears_of_is_not_used_up(name: str) -> None:
    """Check that calls of other sizes count: their early puts may come to where this call still uses scratch."""
    plan = _early_plan(name)
    gpu = plan["gpus"][1]
    copy = {
        "name": "copy",
        "src_buff": [{"type": "i", "index": 0, "size": 1}],
        "dst_buff": [{"type": "s", "index": gpu["scratch_chunks"], "size": 1}],
    }
    gpu["scratch_chunks"] += 1
    gpu["threadblocks"].append(
        {"id": len(gpu["threadblocks"]), "ops": [copy], "channels": [], "remote_buffer_refs": []}
    )
    (finding,) = check_plan(json.dumps(plan)).findings
    assert finding.kind == "calls"
    assert "right only if all calls have one size" in finding.message
    assert "launch 2: " in finding.message
