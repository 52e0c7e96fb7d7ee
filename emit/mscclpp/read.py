"""Execution plan JSON, whoever wrote it, into a Plan."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emit.mscclpp.plan import (
    CHANNEL_TYPES,
    NO_LIMIT,
    SHAPES,
    Op,
    Part,
    Plan,
    PlanBlock,
    PlanGpu,
    RemoteBuffer,
)
from synth.storage.columns import opened, origin_of
from topologies.errors import InputError

MAX_BYTES = 24 << 20  # parsed, the worst text of that size takes three quarters of a GiB
MAX_RANKS = 4096
MAX_NUMBER = 1 << 31
_BUFFERS = ("i", "o", "s")
_SIDE = {"type": "L", "buffer_id": "R", "switch_channel_id": "W"}


def read_plan(text_or_path: str | os.PathLike[str]) -> Plan:
    """Read a file, or a text that starts with `{`.

    Keys that the executor does not know are ignored, as it does. The plan is not checked here.

    Raises InputError with the place of the first thing that the executor would not take.
    """
    if isinstance(text_or_path, str) and text_or_path.lstrip()[:1] == "{":
        if len(text_or_path) > MAX_BYTES:
            raise InputError(f"text: more than {MAX_BYTES} bytes; would be at most that")
        return _Reader("text").plan(_parsed(text_or_path, "text"))
    path = Path(text_or_path)
    shown = origin_of(path)
    with opened(path, "an execution plan (JSON)") as file:
        try:
            data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"{shown}: cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{shown}: more than {MAX_BYTES} bytes; would be at most that")
    try:
        return _Reader(shown).plan(_parsed(data.decode("utf-8"), shown))
    except UnicodeDecodeError as error:
        raise InputError(f"{shown}: byte {error.start} is not UTF-8; would be JSON") from None


def _parsed(text: str, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source} line {error.lineno}: {error.msg}; would be an execution plan (JSON)"
        ) from None
    except _TwiceError as error:
        raise InputError(f"{source}: key {str(error)[:60]!a} twice in one object; would be once") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: {str(error)[:100]}; would be an execution plan (JSON)") from None


class _TwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(x for x in names if names.count(x) > 1))
    return made


class _Reader:
    """Takes a parsed document apart; every refusal names the place."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, where: str, message: str) -> InputError:
        return InputError(f"{self.source}: {where}: {message}" if where else f"{self.source}: {message}")

    def object(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(where, f"{_shown(value)}; would be an object")
        return value

    def items(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(where, f"{_shown(value)}; would be a list")
        return value

    def integer(self, value: Any, where: str, low: int = 0, high: int = MAX_NUMBER) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(where, f"{_shown(value)}; would be a whole number in {low}..{high}")
        return value

    def word(self, value: Any, where: str, choices: tuple[str, ...] = ()) -> str:
        if not isinstance(value, str) or (choices and value not in choices):
            told = f"one of {', '.join(choices)}" if choices else "text"
            raise self.fail(where, f"{_shown(value)}; would be {told}")
        return value

    def truth(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise self.fail(where, f"{_shown(value)}; would be true or false")
        return value

    def field(self, holder: dict[str, Any], name: str, where: str) -> Any:
        if name not in holder:
            raise self.fail(where, f"no {name}; would have it")
        return holder[name]

    def each(
        self, holder: dict[str, Any], name: str, where: str, take: Callable[[Any, str], Any]
    ) -> list[Any]:
        """`take` on each element of a list that must be there."""
        place = f"{where}.{name}" if where else name
        values = self.items(self.field(holder, name, where), place)
        return [take(value, f"{place}[{n}]") for n, value in enumerate(values)]

    def plan(self, value: Any) -> Plan:
        top = self.object(value, "")
        if "gpus" not in top:
            raise self.fail("", "no gpus; would be an execution plan")
        gpus = self.items(top["gpus"], "gpus")
        if any(isinstance(gpu, dict) and ("inputChunks" in gpu or "outputChunks" in gpu) for gpu in gpus):
            raise self.fail(
                "", "a plan of MSCCL++ 0.7, which later executors do not load; would be of 0.8 or newer"
            )
        if not 1 <= len(gpus) <= MAX_RANKS:
            raise self.fail("gpus", f"{len(gpus)} of them; would be 1..{MAX_RANKS}")
        return Plan(
            name=self.word(self.field(top, "name", ""), "name"),
            collective=self.word(self.field(top, "collective", ""), "collective"),
            protocol=self.word(self.field(top, "protocol", ""), "protocol"),
            inplace=self.truth(self.field(top, "inplace", ""), "inplace"),
            gpus=[self.gpu(gpu, n) for n, gpu in enumerate(gpus)],
            double=self.truth(top.get("use_double_scratch_buffer", False), "use_double_scratch_buffer"),
            reuse=self.truth(top.get("reuse_resources", False), "reuse_resources"),
            alignment=self.integer(top.get("buffer_alignment", 16), "buffer_alignment", 1),
            threads=self.integer(top.get("num_threads_per_block", 1024), "num_threads_per_block", 1, 1024),
            min_bytes=self.integer(top.get("min_message_size", 0), "min_message_size", 0, NO_LIMIT),
            max_bytes=self.integer(top.get("max_message_size", NO_LIMIT), "max_message_size", 0, NO_LIMIT),
        )

    def gpu(self, value: Any, number: int) -> PlanGpu:
        where = f"gpus[{number}]"
        gpu = self.object(value, where)
        if self.integer(self.field(gpu, "id", where), f"{where}.id") != number:
            raise self.fail(f"{where}.id", f"{gpu['id']}; would be {number}, its place in gpus")
        sizes = [
            self.integer(self.field(gpu, f"{name}_chunks", where), f"{where}.{name}_chunks")
            for name in ("input", "output", "scratch")
        ]
        made = PlanGpu(sizes[0], sizes[1], sizes[2])
        made.peers = {"memory": [], "port": []}
        self.each(gpu, "channels", where, lambda v, w: self.channel(v, w, made))
        made.buffers = self.each(gpu, "remote_buffers", where, self.remote)
        if "semaphores" in gpu:
            made.semaphores = self.each(gpu, "semaphores", where, self.semaphore)
        blocks: list[tuple[int, PlanBlock]] = self.each(gpu, "threadblocks", where, self.block)
        for place, (at, block) in enumerate(blocks):
            if at != place:
                raise self.fail(
                    f"{where}.threadblocks[{place}].id", f"{at}; would be {place}, its place in the list"
                )
            made.blocks.append(block)
        return made

    def channel(self, value: Any, where: str, gpu: PlanGpu) -> None:
        channel = self.object(value, where)
        kind = self.word(self.field(channel, "channel_type", where), f"{where}.channel_type", CHANNEL_TYPES)
        if kind == "switch":
            buffer = self.word(self.field(channel, "buffer_type", where), f"{where}.buffer_type", _BUFFERS)
            for ranks in self.each(channel, "rank_groups", where, self.rank_group):
                gpu.switches.append((buffer, tuple(ranks)))
            return
        gpu.peers[kind] += self.each(channel, "connected_to", where, self.integer)

    def rank_group(self, value: Any, where: str) -> list[int]:
        group = self.object(value, where)
        self.integer(self.field(group, "size", where), f"{where}.size")
        return self.each(group, "ranks", where, self.integer)

    def remote(self, value: Any, where: str) -> RemoteBuffer:
        buffer = self.object(value, where)
        types = self.each(
            buffer, "access_channel_types", where, lambda v, w: self.word(v, w, ("memory", "port"))
        )
        return RemoteBuffer(
            self.integer(self.field(buffer, "rank", where), f"{where}.rank"),
            self.word(self.field(buffer, "type", where), f"{where}.type", _BUFFERS),
            tuple(types),
        )

    def semaphore(self, value: Any, where: str) -> int:
        held = self.field(self.object(value, where), "init_value", where)
        return self.integer(held, f"{where}.init_value", -MAX_NUMBER)

    def block(self, value: Any, where: str) -> tuple[int, PlanBlock]:
        block = self.object(value, where)
        made = PlanBlock()

        def listed(name: str, kind: str, ids: str, into: dict[str, list[int]]) -> None:
            def take(value: Any, at: str) -> None:
                entry = self.object(value, at)
                word = self.word(self.field(entry, kind, at), f"{at}.{kind}", CHANNEL_TYPES)
                into.setdefault(word, []).extend(self.each(entry, ids, at, self.integer))

            self.each(block, name, where, take)

        listed("channels", "channel_type", "channel_ids", made.channels)
        if "remote_buffer_refs" in block:
            listed("remote_buffer_refs", "access_channel_type", "remote_buffer_ids", made.buffers)
        made.ops = self.each(block, "ops", where, self.op)
        return self.integer(self.field(block, "id", where), f"{where}.id"), made

    def op(self, value: Any, where: str) -> Op:
        op = self.object(value, where)
        name = self.word(self.field(op, "name", where), f"{where}.name")
        if name not in SHAPES:
            raise self.fail(f"{where}.name", f"{_shown(name)}; would be one of {', '.join(SHAPES)}")
        if name == "nop":
            return _NOP
        kind = ""
        if "channel_type" in op:
            kind = self.word(op["channel_type"], f"{where}.channel_type", (*CHANNEL_TYPES, "none"))

        def numbers(field: str) -> list[int]:
            found = op.get(field, [])
            if isinstance(found, list) and all(type(x) is int and 0 <= x <= MAX_NUMBER for x in found):
                return found
            return self.each(op, field, where, self.integer)

        def parts(field: str) -> list[Part]:
            return self.each(op, field, where, self.part) if field in op else []

        group = (0, 1)
        if "tbg_info" in op:
            info = self.object(op["tbg_info"], f"{where}.tbg_info")
            size = self.integer(self.field(info, "tbg_size", where), f"{where}.tbg_info.tbg_size", 1, 1024)
            group = (
                self.integer(self.field(info, "tb_id", where), f"{where}.tbg_info.tb_id", 0, size - 1),
                size,
            )
        barrier = blocks = unit = chunks = 0
        if name == "barrier":
            barrier = self.integer(self.field(op, "barrier_id", where), f"{where}.barrier_id")
            blocks = self.integer(self.field(op, "num_threadblocks", where), f"{where}.num_threadblocks", 1)
        inner: list[Op] = []
        if name == "pipeline":
            if where.count(".ops[") > 1:
                raise self.fail(where, "a pipeline inside a pipeline; would stand in a threadblock")
            context = self.object(self.field(op, "iter_context", where), f"{where}.iter_context")
            unit = self.integer(self.field(context, "unit_size", where), f"{where}.iter_context.unit_size", 1)
            chunks = self.integer(
                self.field(context, "num_chunks", where), f"{where}.iter_context.num_chunks", 1
            )
            inner = self.each(op, "ops", where, self.op)
        redop = self.word(op["reduce_op"], f"{where}.reduce_op") if "reduce_op" in op else ""
        return Op(
            name=name,
            src=parts("src_buff"),
            dst=parts("dst_buff"),
            channel_type=kind,
            channels=numbers("channel_ids"),
            semaphores=numbers("semaphore_ids"),
            barrier=barrier if name == "barrier" else -1,
            blocks=blocks,
            group=group,
            redop=redop,
            ops=inner,
            unit_bytes=unit,
            unit_chunks=chunks,
        )

    def part(self, value: Any, where: str) -> Part:
        part = self.object(value, where)
        if len(part) == 3 and type(part.get("index")) is type(part.get("size")) is int:  # as most are
            index, size, kind = part["index"], part["size"], part.get("type")
            if 0 <= index <= MAX_NUMBER and 1 <= size <= MAX_NUMBER and kind in _BUFFERS:
                return Part("L", kind, index, size)
        if ("type" in part) + ("buffer_id" in part) + ("switch_channel_id" in part) != 1:
            has = " and ".join(key for key in _SIDE if key in part)
            raise self.fail(where, f"has {has or 'none'}; would have one of {', '.join(_SIDE)}")
        key = next(key for key in _SIDE if key in part)
        at: str | int
        if key == "type":
            at = self.word(part[key], f"{where}.type", _BUFFERS)
        else:
            at = self.integer(part[key], f"{where}.{key}")
        index = self.integer(self.field(part, "index", where), f"{where}.index")
        size = self.integer(self.field(part, "size", where), f"{where}.size", 1)
        return Part(_SIDE[key], at, index, size)


_NOP = Op("nop")


def _shown(value: Any) -> str:
    """A value in few characters, whatever it is."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
