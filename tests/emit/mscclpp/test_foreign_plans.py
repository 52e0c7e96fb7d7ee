"""Tests of plans as other tools write them: gets, remote reductions, packets, multicast, pipelines, threadblock groups.

Each plan is right; a variant of it lacks something that it relies on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emit.mscclpp.as_program import verify_program
from emit.mscclpp.format import check_plan, verify
from tests.oracles.plan_results import ends_right
from topologies.errors import InputError

Json = dict[str, Any]
NOP: Json = {"name": "nop"}


def L(kind: str, index: int, size: int = 1) -> Json:  # noqa: N802 - the format's own letter
    return {"type": kind, "index": index, "size": size}


def R(buffer: int, index: int, size: int = 1) -> Json:  # noqa: N802
    return {"buffer_id": buffer, "index": index, "size": size}


def op(name: str, src: list[Json], dst: list[Json], kind: str = "", **more: Any) -> Json:
    plan_json: Json = {"name": name, "src_buff": src, "dst_buff": dst}
    if kind:
        plan_json["channel_type"] = kind
    return plan_json | more


def on(name: str, kind: str = "memory", *channels: int) -> Json:
    return {"name": name, "channel_ids": list(channels or (0,)), "channel_type": kind}


def hello(kind: str = "memory", relaxed: bool = False) -> list[Json]:
    """Return operations by which both ranks learn that the other one has started."""
    word = "rlx" if relaxed else ""
    return [NOP, on(f"{word}signal", kind), NOP, on(f"{word}wait", kind), NOP]


def gpu(
    rank: int,
    sizes: tuple[int, int, int],
    blocks: list[list[Json]],
    buffers: str = "",
    kind: str = "memory",
    channels: int = 1,
    more: list[Json] | None = None,
) -> Json:
    """Return one of two ranks; each threadblock can access the peer's `buffers` and has a channel of its own."""
    switch = [c for c in more or [] if c["channel_type"] == "switch"]
    return {
        "id": rank,
        "input_chunks": sizes[0],
        "output_chunks": sizes[1],
        "scratch_chunks": sizes[2],
        "channels": [{"channel_type": kind, "connected_to": [1 - rank] * channels}, *switch],
        "remote_buffers": [{"rank": 1 - rank, "type": b, "access_channel_types": [kind]} for b in buffers],
        "threadblocks": [
            {
                "id": n,
                "ops": ops,
                "channels": [
                    {"channel_type": kind, "channel_ids": [min(n, channels - 1)]},
                    *({"channel_type": "switch", "channel_ids": [k]} for k in range(len(switch))),
                ],
                "remote_buffer_refs": [{"access_channel_type": kind, "remote_buffer_ids": list(range(len(buffers)))}],
            }
            for n, ops in enumerate(blocks)
        ],
    }


def plan(collective: str, gpus: list[Json], protocol: str = "Simple", inplace: bool = True, **more: Any) -> Json:
    head = {"name": "x", "collective": collective, "protocol": protocol, "inplace": inplace}
    return head | {"max_message_size": 1 << 20, "gpus": gpus} | more


def gets() -> Json:
    """Return an out-of-place all-gather: each rank fetches the peer's input and signals that it has it."""
    return plan(
        "allgather",
        [
            gpu(
                r,
                (1, 2, 1),
                [
                    [
                        *hello(),
                        op("get", [R(0, 0)], [L("s", 0)], "memory", channel_ids=[0]),
                        NOP,
                        op("copy", [L("s", 0)], [L("o", 1 - r)]),
                        op("copy", [L("i", 0)], [L("o", r)]),
                        NOP, on("signal"), on("wait"),
                    ]
                ],
                "i",
            )
            for r in range(2)
        ],
        inplace=False,
    )  # fmt: skip


def remote_sums() -> Json:
    """Return an in-place all-reduce: each rank sums its half with the peer's scratch, and stores it at the peer."""
    gpus = []
    for r in range(2):
        ops = [
            op("copy", [L("i", 1 - r)], [L("s", 1 - r)]),
            *hello(),
            op("rres", [L("i", r), R(0, r)], [L("i", r), R(1, r)], "memory", reduce_op="sum"),
            NOP, on("signal"), NOP, on("wait"), NOP,
        ]  # fmt: skip
        gpus.append(gpu(r, (2, 2, 2), [ops], "si"))
    return plan("allreduce", gpus)


def packets() -> Json:
    """Return an in-place all-reduce with packets, where one threadblock sends and another returns the result."""
    gpus = []
    for r in range(2):
        blocks = [
            [op("ppkt", [L("i", 1 - r)], [R(0, 1 - r)], "memory")],
            [op("respkt", [L("i", r), L("s", r)], [L("i", r), R(0, r)], "memory", reduce_op="sum")],
            [op("upkt", [L("s", 1 - r)], [L("i", 1 - r)])],
        ]
        gpus.append(gpu(r, (2, 2, 3), blocks, "s"))
    return plan("allreduce", gpus, "LL", use_double_scratch_buffer=True)


def grouped() -> Json:
    """Return the all-reduce with packets, with each operation shared by two threadblocks."""
    result = packets()
    for rank_json in result["gpus"]:
        blocks = []
        for block in rank_json["threadblocks"]:
            for part in range(2):
                half = copy.deepcopy(block)
                half["id"] = len(blocks)
                half["ops"][0]["tbg_info"] = {"tb_id": part, "tbg_size": 2}
                blocks.append(half)
        rank_json["threadblocks"] = blocks
    return result


def multicast() -> Json:
    """Return an in-place all-reduce in the switch, with a divided chunk and relaxed signals before it."""
    switch = {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 2, "ranks": [0, 1]}]}
    gpus = []
    for r in range(2):
        chunk = {"switch_channel_id": 0, "index": r, "size": 1}
        inner = op("glres", [chunk], [dict(chunk)], "switch", reduce_op="sum")
        context = {"unit_size": 1 << 20, "num_chunks": 1}
        pipeline = {"name": "pipeline", "iter_context": context, "ops": [inner]}
        gpus.append(gpu(r, (2, 2, 0), [[*hello(relaxed=True), pipeline, *hello()]], more=[switch]))
    return plan("allreduce", gpus)


def multicast_packets() -> Json:
    """Return an in-place all-gather in which the switch multicasts packets, which nobody has to wait for."""
    switch = {"channel_type": "switch", "buffer_type": "s", "rank_groups": [{"size": 2, "ranks": [0, 1]}]}
    gpus = []
    for r in range(2):
        into_switch = op("gstorepkt", [L("s", r)], [{"switch_channel_id": 0, "index": r, "size": 1}], "switch")
        blocks = [
            [op("cpkt", [L("o", r)], [L("s", r)]), into_switch],
            [op("upkt", [L("s", 0)], [L("o", 0)]), op("upkt", [L("s", 1)], [L("o", 1)])],
        ]
        gpus.append(gpu(r, (1, 2, 2), blocks, more=[switch]))
    return plan("allgather", gpus, "LL", use_double_scratch_buffer=True)


def ports() -> Json:
    """Return an in-place all-gather between nodes by puts with signals."""
    gpus = []
    for r in range(2):
        put = op("pws", [L("o", r)], [R(0, r)], "port", channel_ids=[0])
        ops = [*hello("port"), put, on("wait", "port"), NOP, on("signal", "port"), on("wait", "port")]
        gpus.append(gpu(r, (1, 2, 0), [ops], "o", "port"))
    return plan("allgather", gpus)


def flushed_ports() -> Json:
    """Return the all-gather between nodes with flushes: each rank may write what it has sent."""
    plan_json = ports()
    for r in range(2):
        operations = plan_json["gpus"][r]["threadblocks"][0]["ops"]
        position = next(n for n, operation in enumerate(operations) if operation["name"] == "pws")
        operations[position]["name"] = "pwsf"
        plan_json["gpus"][r]["scratch_chunks"] = 1
        operations[position + 1 : position + 1] = [NOP, op("copy", [L("s", 0)], [L("o", r)])]
        operations[position:position] = [op("copy", [L("o", r)], [L("s", 0)]), NOP]
    return plan_json


def two_stages() -> Json:
    """Return an out-of-place all-gather in which two threadblocks pass pieces on by semaphores, in a pipeline."""
    gpus = []
    for r in range(2):
        context_of_pipeline = {"unit_size": 4096, "num_chunks": 1}
        first = [op("copy", [L("i", 0)], [L("s", 0)]), NOP, {"name": "sem_release", "semaphore_ids": [0]}]
        second = [
            {"name": "sem_acquire", "semaphore_ids": [0]},
            NOP,
            op("put", [L("s", 0)], [R(0, r)], "memory"),
            op("copy", [L("s", 0)], [L("o", r)]),
            NOP, on("signal"), on("wait"),
        ]  # fmt: skip
        blocks: list[list[Json]] = [
            [{"name": "pipeline", "iter_context": context_of_pipeline, "ops": first}],
            [*hello(), {"name": "pipeline", "iter_context": context_of_pipeline, "ops": second}],
        ]
        gpus.append(gpu(r, (1, 2, 1), blocks, "o") | {"semaphores": [{"init_value": 0}]})
    return plan("allgather", gpus, inplace=False)


RIGHT: dict[str, Callable[[], Json]] = {
    "gets": gets, "remote sums": remote_sums, "packets": packets, "grouped": grouped, "multicast": multicast,
    "multicast of packets": multicast_packets, "ports": ports, "flushed ports": flushed_ports, "two stages": two_stages,
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_foreign_plans(name: str) -> None:
    report = check_plan(json.dumps(RIGHT[name]()))
    assert (report.findings, report.notes, report.judged) == ((), (), True)


@pytest.mark.parametrize("name", RIGHT)
def test_right_foreign_plans_end_right_in_random_runs(name: str) -> None:
    assert all(ends_right(RIGHT[name](), seed) for seed in range(10))


def ops(plan_of_ranks: Json, rank: int = 0, tb: int = 0) -> list[Json]:
    operations: list[Json] = plan_of_ranks["gpus"][rank]["threadblocks"][tb]["ops"]
    return operations


def drop(plan_json: Json, rank: int, tb: int, *at: int) -> Json:
    for n in sorted(at, reverse=True):
        del ops(plan_json, rank, tb)[n]
    return plan_json


def _both(plan_json: Json, *at: int) -> Json:
    return drop(drop(plan_json, 0, 0, *at), 1, 0, *at)


def _unlike(plan_json: Json) -> Json:
    """Make a get read a chunk to another place, although the executor swaps the offsets of both sides."""
    ops(plan_json, 0)[5] = op("get", [R(0, 0)], [L("o", 1)], "memory", channel_ids=[0])
    return plan_json


def _one_half(plan_json: Json) -> Json:
    plan_json["use_double_scratch_buffer"] = False
    return plan_json


def _from_packets(plan_json: Json) -> Json:
    """Send packets that are not complete by a port channel."""
    for r, rank_json in enumerate(plan_json["gpus"]):
        rank_json["scratch_chunks"] = 2
        for entry in (rank_json["remote_buffers"][0],):
            entry["type"] = "s"
        rank_json["threadblocks"][0]["ops"] = [
            op("cpkt", [L("o", r)], [L("s", r)]),
            op("ppkt", [L("s", r)], [R(0, r)], "port", channel_ids=[0]),
            op("upkt", [L("s", 1 - r)], [L("o", 1 - r)]),
        ]
    return plan_json | {"protocol": "LL", "use_double_scratch_buffer": True}  # fmt: skip


def _no_double(plan_json: Json) -> Json:
    return plan_json | {"use_double_scratch_buffer": True}


WRONG: dict[str, tuple[Callable[[], Json], str, str]] = {
    "read before the other started": (lambda: _both(gets(), 0, 1, 2, 3, 4), "race", "may not have started"),
    "ends while it is read": (lambda: _both(gets(), 10, 11), "race", "can end before that"),
    "offsets of a get": (lambda: _unlike(gets()), "overrun", "get"),
    "no nop after a wait": (lambda: _both(remote_sums(), 5), "race", "in no fixed order"),
    "no nop before a signal": (lambda: _both(remote_sums(), 1), "race", "in no fixed order"),
    "last wait missing": (lambda: _both(remote_sums(), 8, 10), "race", "can end before that"),
    "one scratch for packets of the switch": (
        lambda: _one_half(multicast_packets()),
        "calls",
        "no rank begins a call before all ranks have ended the last",
    ),
    "packets multicast before they are there": (
        lambda: _unpacked(multicast_packets()),
        "deadlock",
        "for a packet in s[0]",
    ),
    "another packet multicast over one": (lambda: _shifted(multicast_packets()), "race", "in no fixed order"),
    "one scratch for packets": (lambda: _one_half(packets()), "calls", "all calls have one size"),
    "use after a packet was sent": (lambda: _later(packets()), "race", "upkt"),
    "puts into double scratch": (lambda: _no_double(remote_sums()), "inconsistent", "which half"),
    "half of a group": (lambda: _dropped_part(grouped()), "deadlock", "which nothing provides"),
    "no word before the switch": (lambda: _both(multicast(), 0, 1, 2, 3, 4), "race", "may not have started"),
    "a relaxed word after the switch": (lambda: _relaxed(multicast()), "race", "must not be a relaxed one"),
    "no word after the switch": (lambda: _both(multicast(), 6, 7, 8, 9, 10), "race", "can end before that"),
    "overwritten under a port": (lambda: _overwritten(ports()), "race", "moves data on its own time"),
    "overwritten before the flush is over": (
        lambda: _at_position(flushed_ports(), "pwsf", 1),
        "race",
        "on its own time",
    ),
    "packets sent too early": (lambda: _from_packets(ports()), "race", "nop"),
    "a channel twice at once": (lambda: _at_once(gets()), "race", "another thread"),
    "stages without a semaphore": (lambda: _no_semaphore(two_stages()), "race", "in no fixed order"),
}


def _relaxed(plan_json: Json) -> Json:
    """Make all signals relaxed ones, which say nothing of the data before them."""
    for r in range(2):
        for operation in ops(plan_json, r):
            operation["name"] = {"signal": "rlxsignal", "wait": "rlxwait"}.get(operation["name"], operation["name"])
    return plan_json


def _at_once(plan_json: Json) -> Json:
    """Send two signals each way and wait for both at once, so that two threads use one counter."""
    for r in range(2):
        ops(plan_json, r)[1:1] = [on("signal"), NOP]
        ops(plan_json, r)[5] = on("wait", "memory", 0, 0)
    return plan_json


def _unpacked(plan_json: Json) -> Json:
    """Multicast packets that nobody has packed."""
    return _both(plan_json, 0)


def _shifted(plan_json: Json) -> Json:
    """Multicast the packets of rank 0 over those of rank 1, while they are read."""
    ops(plan_json)[1]["dst_buff"][0]["index"] = 1
    return plan_json


def _later(plan_json: Json) -> Json:
    """Read a chunk after a packet was sent, when the answer to the packet cannot know of it."""
    ops(plan_json, 0, 0).append(op("copy", [L("i", 1)], [L("s", 5)]))
    return plan_json


def _dropped_part(plan_json: Json) -> Json:
    """Make one threadblock of a group do the other's share, so that half of the packets are missing."""
    ops(plan_json, 0, 3)[0]["tbg_info"]["tb_id"] = 0
    return plan_json


def _overwritten(plan_json: Json) -> Json:
    position = next(n for n, operation in enumerate(ops(plan_json)) if operation["name"] == "pws")
    plan_json["gpus"][0]["scratch_chunks"] = 1
    ops(plan_json)[position + 1 : position + 1] = [
        NOP,
        op("copy", [L("o", 0)], [L("s", 0)]),
        NOP,
        op("copy", [L("s", 0)], [L("o", 0)]),
    ]
    return plan_json


def _at_position(plan_json: Json, name: str, place: int) -> Json:
    """Leave out the operation `place` after the first one of that name, on both ranks."""
    position = next(n for n, operation in enumerate(ops(plan_json)) if operation["name"] == name)
    return _both(plan_json, position + place)


def _no_semaphore(plan_json: Json) -> Json:
    for rank_json in plan_json["gpus"]:
        del rank_json["threadblocks"][0]["ops"][0]["ops"][2]
        del rank_json["threadblocks"][1]["ops"][5]["ops"][0]
    return plan_json


@pytest.mark.parametrize("case", WRONG)
def test_wrong_foreign_plans(case: str) -> None:
    make_plan, kind, message = WRONG[case]
    report = check_plan(json.dumps(make_plan()))
    assert any(f.kind == kind and message in f.message for f in report.findings), report.findings


@pytest.mark.parametrize(("make_plan", "is_right"), [(packets, True), (multicast_packets, False)])
def test_calls_of_one_size_in_random_runs(make_plan: Callable[[], Json], is_right: bool) -> None:
    """Check what plans with one half of scratch need of their caller, in runs whose calls have one size."""
    ends = [ends_right(_one_half(make_plan()), seed) for seed in range(40)]
    assert all(ends) == is_right


@pytest.mark.parametrize("name", ["late-store", "relaxed-end", "wait-for-one"])
def test_examples_of_races_end_wrong_in_random_runs(name: str) -> None:
    text = (Path(__file__).parents[3] / "examples" / "plans" / f"{name}.json").read_text(encoding="utf-8")
    assert {finding.kind for finding in check_plan(text).findings} == {"race"}
    assert not all(ends_right(json.loads(text), seed) for seed in range(40))


def test_a_port_that_still_reads_is_a_caution() -> None:
    """Check that reads after the end of a call and an ineffective flush are only cautions."""
    plan_json = drop(drop(ports(), 0, 0, 8, 9), 1, 0, 8, 9)
    plan_json["gpus"][0]["threadblocks"][0]["ops"].append(on("flush", "port"))
    report = check_plan(json.dumps(plan_json))
    assert report.ok
    assert len([note for note in report.notes if "still reads" in note]) == 2
    assert any("flush does nothing" in note for note in report.notes)


def test_a_reduction_other_than_a_sum_is_refused() -> None:
    plan_json = remote_sums()
    ops(plan_json)[6]["reduce_op"] = "max"
    assert [f.kind for f in check_plan(json.dumps(plan_json)).findings] == ["inconsistent"]


def late_first_store() -> Json:
    """Return an all-reduce in which a threadblock stores data, and another that gets it by packets adds to it.

    A packet orders no other data, so that the first store may come last.
    """
    plan_json = packets()
    for rank_json in plan_json["gpus"]:
        rank_json["scratch_chunks"] = 6
    blocks = plan_json["gpus"][0]["threadblocks"]
    adding = copy.deepcopy(blocks[1])
    adding["id"] = 3
    adding["ops"].insert(0, op("upkt", [L("s", 4)], [L("i", 0)]))
    blocks[1]["ops"] = [op("recpkt", [L("i", 0)], [L("i", 0), L("s", 4)], reduce_op="sum")]
    blocks.append(adding)
    return plan_json


def test_a_packet_orders_no_other_data() -> None:
    """Check a store that a packet seems to order: it is a race, and random runs with late stores show it."""
    plan_json = late_first_store()
    assert {finding.kind for finding in check_plan(json.dumps(plan_json)).findings} == {"race"}
    assert not all(ends_right(plan_json, seed) for seed in range(40))
    assert all(ends_right(plan_json, seed, late_stores=False) for seed in range(40))


def test_an_unknown_collective_is_not_checked() -> None:
    report = check_plan(json.dumps(gets() | {"collective": "hello"}))
    assert report.ok
    assert not report.judged
    assert any("not judged" in note for note in report.notes)


def sent_on() -> Json:
    """Return a plan that sends each of two ranks' inputs to the other; it does not say to which."""
    gpus = []
    for r in range(2):
        ops = [*hello(), op("put", [L("i", 0)], [R(0, 0)], "memory"), NOP, on("signal"), on("wait")]
        gpus.append(gpu(r, (1, 1, 0), [ops], "o"))
    return plan("sendrecv", gpus, inplace=False)


def test_whom_a_plan_sends_to_is_found(tmp_path: Path) -> None:
    """Check that the pairs of a plan are found, that its program runs with them, and that a wrong plan is wrong."""
    (tmp_path / "pairs.json").write_text(json.dumps(sent_on()))
    verdict = verify(tmp_path / "pairs.json")
    assert (verdict.status, verdict.lines[0].endswith(", from rank r to r + 1")) == ("right", True)
    with_program = verify_program(tmp_path / "pairs.json", None)
    assert with_program.goal is not None
    assert with_program.goal.required[0].tolist() == [0, 1]
    lost = drop(sent_on(), 0, 0, 5)
    assert any(finding.kind == "wrong result" for finding in check_plan(json.dumps(lost)).findings)


def test_a_plan_in_which_nobody_sends_serves_no_pairs() -> None:
    """Check that a rank is no partner of itself."""
    alone = sent_on()
    for r in range(2):
        alone["gpus"][r]["threadblocks"][0]["ops"] = [op("copy", [L("i", 0)], [L("o", 0)])]
    assert any(finding.kind == "wrong result" for finding in check_plan(json.dumps(alone)).findings)


def test_odd_plans_have_verdicts() -> None:
    """Check plans without threadblocks, with sizes that no call has, and with a huge input."""
    empty = gets()
    for rank_json in empty["gpus"]:
        rank_json["threadblocks"] = []
    assert {finding.kind for finding in check_plan(json.dumps(empty)).findings} == {"wrong result"}
    for_none = packets() | {"min_message_size": 100, "max_message_size": 10}
    assert any("no call fits" in finding.message for finding in check_plan(json.dumps(for_none)).findings)
    huge = sent_on()
    for rank_json in huge["gpus"]:
        rank_json["input_chunks"] = rank_json["output_chunks"] = 1 << 30
    with pytest.raises(InputError, match="cells"):
        check_plan(json.dumps(huge | {"max_message_size": (1 << 64) - 1}))
    assert any("taken for Simple" in note for note in check_plan(json.dumps(gets() | {"protocol": "ll"})).notes)
