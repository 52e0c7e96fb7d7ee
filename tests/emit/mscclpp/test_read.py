"""Tests of reading execution plans: wrong files are refused in one line that says where."""

from __future__ import annotations

import copy
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.mscclpp.format import check_plan, verify, write_plan
from emit.mscclpp.plan import plan_text, with_other_head
from emit.mscclpp.read import MAX_BYTES, read_plan
from tests.emit.small_programs import allpairs_allreduce, alltoall
from topologies.errors import InputError

Json = dict[str, Any]


@pytest.fixture(scope="module")
def text() -> str:
    return write_plan(allpairs_allreduce(3, protocol="Simple"), nodes=[0, 0, 1])


def test_a_plan_is_written_as_it_was_read(text: str, tmp_path: Path) -> None:
    plan = read_plan(text)
    assert plan_text(plan) == text
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert plan_text(read_plan(path)) == text
    assert plan_text(read_plan(json.dumps(json.loads(text), indent=4))) == text


def test_another_head_is_written_as_the_whole_plan(text: str) -> None:
    plan = read_plan(text)
    other_plan = replace(plan, name='a "gpus": [', min_bytes=96, max_bytes=1 << 20)
    assert with_other_head(text, plan, other_plan) == plan_text(other_plan)
    assert with_other_head(text.replace("{", "{ ", 1), plan, other_plan) == ""
    assert with_other_head(plan_text(other_plan), other_plan, plan) == text


def test_unknown_keys_are_ignored(text: str) -> None:
    plan = json.loads(text)
    plan["author"] = {"x": [1]}
    plan["gpus"][0]["threadblocks"][0]["ops"][0]["comment"] = "y"
    assert plan_text(read_plan(json.dumps(plan))) == text


def test_optional_keys(text: str) -> None:
    plan = json.loads(text)
    for key in (
        "reuse_resources", "use_double_scratch_buffer", "buffer_alignment", "num_threads_per_block",
        "min_message_size", "max_message_size",
    ):  # fmt: skip
        del plan[key]
    rewritten = plan_text(read_plan(json.dumps(plan)))
    assert (
        rewritten.replace('"min_message_size": 0', '"min_message_size": 48').replace(  # 3 chunks of 16 bytes.
            f'"max_message_size": {(1 << 64) - 1}', f'"max_message_size": {(1 << 32) - 16}'
        )
        == text
    )


def _missing(*path: str | int) -> Any:
    def spoil(plan: Json) -> None:
        at: Any = plan
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return spoil


def _set(value: Any, *path: str | int) -> Any:
    def spoil(plan: Json) -> None:
        at: Any = plan
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return spoil


FIRST = ("gpus", 0, "threadblocks", 0)
REFUSED = {
    "no name": (_missing("name"), "no name"),
    "no gpus": (_missing("gpus"), "is no execution plan"),
    "no ranks": (_set([], "gpus"), "0 of them"),
    "in place as a number": (_set(1, "inplace"), "inplace: 1; it must be true or false"),
    "older format": (_set({"inputChunks": 1}, "gpus", 0), "0.7"),
    "gpu id": (_set(2, "gpus", 0, "id"), "must be 0, its place"),
    "negative chunks": (_set(-1, "gpus", 1, "scratch_chunks"), "gpus[1].scratch_chunks: -1"),
    "text for a number": (_set("8", "gpus", 1, "input_chunks"), 'gpus[1].input_chunks'),
    "huge number": (_set(10**30, "gpus", 1, "input_chunks"), "whole number"),
    "half a chunk": (_set(0.5, "gpus", 1, "input_chunks"), "0.5"),
    "no threadblocks": (_missing("gpus", 0, "threadblocks"), "gpus[0]: no threadblocks"),
    "threadblock id": (_set(4, *FIRST, "id"), "must be 0, its place"),
    "unknown operation": (_set("glre", *FIRST, "ops", 0, "name"), "'glre'; did you mean glres"),
    "channel type": (_set("radio", "gpus", 0, "channels", 0, "channel_type"), "'radio'; it must be one of"),
    "buffer type": (_set("x", "gpus", 0, "remote_buffers", 0, "type"), "'x'; it must be one of i, o, s"),
    "operations as an object": (_set({}, *FIRST, "ops"), "an object; it must be a list"),
    "operation as text": (_set("nop", *FIRST, "ops", 0), "must be an object"),
    "part without a place": (_set([{"index": 0, "size": 1}], *FIRST, "ops", 0, "src_buff"), "has none"),
    "part of two places": (
        _set([{"type": "i", "buffer_id": 0, "index": 0, "size": 1}], *FIRST, "ops", 0, "src_buff"),
        "has type and buffer_id",
    ),
    "part of nothing": (
        _set([{"type": "i", "index": 0, "size": 0}], *FIRST, "ops", 0, "src_buff"), "size: 0"),
    "barrier of nobody": (_set({"name": "barrier"}, *FIRST, "ops", 0), "no barrier_id"),
    "pipelines in each other": (
        _set(
            {"name": "pipeline", "iter_context": {"unit_size": 1, "num_chunks": 1},
             "ops": [{"name": "pipeline", "iter_context": {"unit_size": 1, "num_chunks": 1}, "ops": []}]},
            *FIRST, "ops", 0,
        ),
        "a pipeline inside a pipeline",
    ),
    "part of no group": (_set({"tb_id": 2, "tbg_size": 2}, *FIRST, "ops", 2, "tbg_info"), "tb_id: 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_plans_are_refused(case: str, text: str) -> None:
    spoil, words = REFUSED[case]
    plan = json.loads(text)
    spoil(plan)
    with pytest.raises(InputError) as error:
        read_plan(json.dumps(plan))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


BYTES = {
    "empty": b"",
    "text": b"hello\n",
    "binary": bytes(range(256)) * 40,
    "utf-16": json.dumps({"gpus": []}).encode("utf-16"),
    "a list": b"[]",
    "nan": b'{"name": NaN}',
    "deep": b'{"gpus":' + b"[" * 200_000,
    "deep objects": b'{"gpus":' * 100_000,
    "long number": b'{"gpus": ' + b"9" * 10_000 + b"}",
    "twice": b'{"name": "a", "name": "b", "gpus": []}',
    "unfinished": b'{"name": "a", "gpus": [',
    "lone surrogate": b'{"name": "\\ud800", "gpus": [{}]}',
}


@pytest.mark.parametrize("case", BYTES)
def test_hostile_bytes(case: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(BYTES[case])
    verdict = verify(path)
    assert (verdict.status, verdict.exit_code) == ("not readable", 2)
    assert len(verdict.lines) == 1
    assert verdict.lines[0].startswith(str(path))
    assert "\n" not in verdict.lines[0]


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json", Path("/dev/zero")):
        assert verify(path).status == "not readable"
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_BYTES + 1))
    assert "too large; it must be an execution plan (JSON) of at most 24 MiB" in verify(large).lines[0]


def messages_of(text: str) -> str:
    """Return the messages of a check, or of a refusal, which must be one line."""
    try:
        return "\n".join(f.message for f in check_plan(text).findings)
    except InputError as error:
        return str(error) if "\n" not in str(error) else pytest.fail(str(error))


LARGE = {
    "cells": lambda p: [gpu.update(input_chunks=1 << 30, output_chunks=1 << 30) for gpu in p["gpus"]],
    "scratch": lambda p: p["gpus"][0].update(scratch_chunks=1 << 31),
    "groups": lambda p: [
        op.update(tbg_info={"tb_id": 0, "tbg_size": size})
        for op, size in zip(
            [o for tb in p["gpus"][0]["threadblocks"] for o in tb["ops"] if "src_buff" in o],
            (1019, 1021, 1013),
            strict=False,
        )
    ],
    "pipeline": lambda p: p["gpus"][0]["threadblocks"][0]["ops"].insert(
        0, {"name": "pipeline", "iter_context": {"unit_size": 1, "num_chunks": 1 << 30}, "ops": [{"name": "nop"}]}
    ),
}


@pytest.mark.parametrize("case", LARGE)
def test_plans_too_large_to_check_are_refused(case: str) -> None:
    plan = json.loads(write_plan(alltoall(3), inplace=False))
    LARGE[case](plan)
    messages = messages_of(json.dumps(plan))
    assert re.search("checked|must be|would be", messages)


@settings(max_examples=75)
@given(st.integers(0, 1 << 30))
def test_random_values_anywhere(seed: int) -> None:
    """Check that random values at random places give a report or one line, but no other error."""
    rng = random.Random(seed)
    plan = copy.deepcopy(_SMALL)
    for _ in range(rng.randrange(1, 4)):
        at: Any = plan
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.85:
                at = at[key]
                continue
            if rng.random() < 0.2:
                del at[key]
            else:
                at[key] = rng.choice((0, 1, 2, 7, 65, -1, 1 << 20, True, None, "i", "s", "port", "wait", [], {}, 0.5))
            break
    assert isinstance(messages_of(json.dumps(plan)), str)


_SMALL: Json = json.loads(write_plan(allpairs_allreduce(2), nodes=[0, 1]))


@settings(max_examples=50)
@given(st.integers(0, 1 << 30))
def test_random_bytes_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(json.dumps(_SMALL).encode())
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(32, 127)
    assert isinstance(messages_of(data.decode()), str)
