"""Plans as others write them: gets, reductions of remote memory, packets, multicast, pipelines, groups of threadblocks.

Each is right as it stands; what it relies on is then taken away.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from emit.mscclpp.format import check_plan

Json = dict[str, Any]
NOP: Json = {"name": "nop"}


def L(kind: str, index: int, size: int = 1) -> Json:  # noqa: N802 - the format's own letter
    return {"type": kind, "index": index, "size": size}


def R(buffer: int, index: int, size: int = 1) -> Json:  # noqa: N802
    return {"buffer_id": buffer, "index": index, "size": size}


def op(name: str, src: list[Json], dst: list[Json], kind: str = "", **more: Any) -> Json:
    made: Json = {"name": name, "src_buff": src, "dst_buff": dst}
    if kind:
        made["channel_type"] = kind
    return made | more


def on(name: str, kind: str = "memory", *channels: int) -> Json:
    return {"name": name, "channel_ids": list(channels or (0,)), "channel_type": kind}


def hello(kind: str = "memory", relaxed: bool = False) -> list[Json]:
    """Both say that they are there."""
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
    """A rank of two: the other one's `buffers` are at hand in every threadblock, and each has its own channel."""
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
    """All-gather out of place: everyone fetches the other one's input, and says when it has it."""
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
    """All-reduce in place: each sums its half with the other one's copy in scratch, and stores it there too."""
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
    """All-reduce in place with packets: what a threadblock sends, another one's result comes back for."""
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
    """The same, every operation shared by two threadblocks."""
    made = packets()
    for each in made["gpus"]:
        blocks = []
        for block in each["threadblocks"]:
            for part in range(2):
                half = copy.deepcopy(block)
                half["id"] = len(blocks)
                half["ops"][0]["tbg_info"] = {"tb_id": part, "tbg_size": 2}
                blocks.append(half)
        each["threadblocks"] = blocks
    return made


def multicast() -> Json:
    """All-reduce in place in the switch, the chunk in pieces, with relaxed signals before and after."""
    switch = {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 2, "ranks": [0, 1]}]}
    gpus = []
    for r in range(2):
        chunk = {"switch_channel_id": 0, "index": r, "size": 1}
        inner = op("glres", [chunk], [dict(chunk)], "switch", reduce_op="sum")
        context = {"unit_size": 1 << 20, "num_chunks": 1}
        pipeline = {"name": "pipeline", "iter_context": context, "ops": [inner]}
        gpus.append(gpu(r, (2, 2, 0), [[*hello(relaxed=True), pipeline, *hello(relaxed=True)]], more=[switch]))
    return plan("allreduce", gpus)


def ports() -> Json:
    """All-gather in place between nodes: put with signal, and the other one's word that it is there."""
    gpus = []
    for r in range(2):
        put = op("pws", [L("o", r)], [R(0, r)], "port", channel_ids=[0])
        ops = [*hello("port"), put, on("wait", "port"), NOP, on("signal", "port"), on("wait", "port")]
        gpus.append(gpu(r, (1, 2, 0), [ops], "o", "port"))
    return plan("allgather", gpus)


def two_stages() -> Json:
    """All-gather out of place: two threadblocks hand pieces to each other with semaphores, in a pipeline."""
    gpus = []
    for r in range(2):
        turn = {"unit_size": 4096, "num_chunks": 1}
        first = [op("copy", [L("i", 0)], [L("s", 0)]), NOP, {"name": "sem_release", "semaphore_ids": [0]}]
        second = [
            {"name": "sem_acquire", "semaphore_ids": [0]},
            NOP,
            op("put", [L("s", 0)], [R(0, r)], "memory"),
            op("copy", [L("s", 0)], [L("o", r)]),
            NOP, on("signal"), on("wait"),
        ]  # fmt: skip
        blocks: list[list[Json]] = [
            [{"name": "pipeline", "iter_context": turn, "ops": first}],
            [*hello(), {"name": "pipeline", "iter_context": turn, "ops": second}],
        ]
        gpus.append(gpu(r, (1, 2, 1), blocks, "o") | {"semaphores": [{"init_value": 0}]})
    return plan("allgather", gpus, inplace=False)


RIGHT: dict[str, Callable[[], Json]] = {
    "gets": gets, "remote sums": remote_sums, "packets": packets, "grouped": grouped, "multicast": multicast,
    "ports": ports, "two stages": two_stages,
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    report = check_plan(json.dumps(RIGHT[name]()))
    assert (report.findings, report.notes, report.judged) == ((), (), True)


def ops(made: Json, rank: int = 0, tb: int = 0) -> list[Json]:
    found: list[Json] = made["gpus"][rank]["threadblocks"][tb]["ops"]
    return found


def drop(made: Json, rank: int, tb: int, *at: int) -> Json:
    for n in sorted(at, reverse=True):
        del ops(made, rank, tb)[n]
    return made


def _both(made: Json, *at: int) -> Json:
    return drop(drop(made, 0, 0, *at), 1, 0, *at)


def _unlike(made: Json) -> Json:
    """A get that reads one chunk to another place: the executor takes each side's offset from the other."""
    ops(made, 0)[5] = op("get", [R(0, 0)], [L("o", 1)], "memory", channel_ids=[0])
    return made


def _one_half(made: Json) -> Json:
    made["use_double_scratch_buffer"] = False
    return made


def _from_packets(made: Json) -> Json:
    """A packet that the kernel's threads have not finished is sent by a port channel."""
    for r, each in enumerate(made["gpus"]):
        each["scratch_chunks"] = 2
        for entry in (each["remote_buffers"][0],):
            entry["type"] = "s"
        each["threadblocks"][0]["ops"] = [
            op("cpkt", [L("o", r)], [L("s", r)]),
            op("ppkt", [L("s", r)], [R(0, r)], "port", channel_ids=[0]),
            op("upkt", [L("s", 1 - r)], [L("o", 1 - r)]),
        ]
    return made | {"protocol": "LL", "use_double_scratch_buffer": True}  # fmt: skip


def _no_double(made: Json) -> Json:
    return made | {"use_double_scratch_buffer": True}


WRONG: dict[str, tuple[Callable[[], Json], str, str]] = {
    "read before the other started": (lambda: _both(gets(), 0, 1, 2, 3, 4), "race", "may not have started"),
    "ends while it is read": (lambda: _both(gets(), 10, 11), "race", "can end before that"),
    "offsets of a get": (lambda: _unlike(gets()), "overrun", "get"),
    "no nop after a wait": (lambda: _both(remote_sums(), 5), "race", "in no fixed order"),
    "no nop before a signal": (lambda: _both(remote_sums(), 1), "race", "in no fixed order"),
    "last wait missing": (lambda: _both(remote_sums(), 8, 10), "race", "can end before that"),
    "one scratch for packets": (lambda: _one_half(packets()), "race", "may not have started"),
    "use after a packet was sent": (lambda: _later(packets()), "race", "upkt"),
    "puts into double scratch": (lambda: _no_double(remote_sums()), "inconsistent", "which half"),
    "half of a group": (lambda: _dropped_part(grouped()), "deadlock", "which nothing provides"),
    "no word before the switch": (lambda: _both(multicast(), 0, 1, 2, 3, 4), "race", "may not have started"),
    "no word after the switch": (lambda: _both(multicast(), 6, 7, 8, 9, 10), "race", "can end before that"),
    "overwritten under a port": (lambda: _overwritten(ports()), "race", "moves data on its own time"),
    "packets sent too early": (lambda: _from_packets(ports()), "race", "nop"),
    "a channel twice at once": (lambda: _at_once(gets()), "race", "another thread"),
    "stages without a semaphore": (lambda: _no_semaphore(two_stages()), "race", "in no fixed order"),
}


def _at_once(made: Json) -> Json:
    """Two words each way, and one wait for both: two threads would count on one counter."""
    for r in range(2):
        ops(made, r)[1:1] = [on("signal"), NOP]
        ops(made, r)[5] = on("wait", "memory", 0, 0)
    return made


def _later(made: Json) -> Json:
    """What a threadblock reads after it sent a packet, whoever answers the packet knows nothing of."""
    ops(made, 0, 0).append(op("copy", [L("i", 1)], [L("s", 5)]))
    return made


def _dropped_part(made: Json) -> Json:
    """One threadblock of a pair does the other one's share: half of the packets never come."""
    ops(made, 0, 3)[0]["tbg_info"]["tb_id"] = 0
    return made


def _overwritten(made: Json) -> Json:
    at = next(n for n, each in enumerate(ops(made)) if each["name"] == "pws")
    made["gpus"][0]["scratch_chunks"] = 1
    ops(made)[at + 1 : at + 1] = [NOP, op("copy", [L("o", 0)], [L("s", 0)]), NOP, op("copy", [L("s", 0)], [L("o", 0)])]
    return made


def _no_semaphore(made: Json) -> Json:
    for each in made["gpus"]:
        del each["threadblocks"][0]["ops"][0]["ops"][2]
        del each["threadblocks"][1]["ops"][5]["ops"][0]
    return made


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case: str) -> None:
    made, kind, words = WRONG[case]
    report = check_plan(json.dumps(made()))
    assert any(f.kind == kind and words in f.message for f in report.findings), report.findings


def test_a_port_that_still_reads_is_a_caution() -> None:
    """What a caller may overwrite after its call is its own; that flush does not wait is said."""
    made = drop(drop(ports(), 0, 0, 8, 9), 1, 0, 8, 9)
    made["gpus"][0]["threadblocks"][0]["ops"].append(on("flush", "port"))
    report = check_plan(json.dumps(made))
    assert report.ok
    assert len([note for note in report.notes if "still reads" in note]) == 2
    assert any("flush does nothing" in note for note in report.notes)


def test_a_sum_that_is_meant_to_be_another_reduction() -> None:
    made = remote_sums()
    ops(made)[6]["reduce_op"] = "max"
    assert [f.kind for f in check_plan(json.dumps(made)).findings] == ["inconsistent"]


def test_an_unknown_collective_is_not_judged() -> None:
    report = check_plan(json.dumps(gets() | {"collective": "hello"}))
    assert report.ok
    assert not report.judged
    assert any("not judged" in note for note in report.notes)
