"""Read execution plan JSON from any writer into a Plan."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from emit.check.capacity import CAPACITY
from emit.images import images_of, odd_part, unlike_widths
from emit.mscclpp.images import is_text_of_images
from emit.mscclpp.memory import collective_of
from emit.mscclpp.plan import (
    CHANNEL_TYPES,
    NO_LIMIT,
    NOP,
    PLAN_KEYS,
    SHAPES,
    ExecutionPlan,
    Op,
    PlanBlock,
    PlanGpu,
    PlanPart,
    RemoteBuffer,
)
from emit.mscclpp.widths import in_chunks_of_plan
from emit.program import BUFFERS
from synth.model.collective import Ints
from synth.model.deadline import check_deadline
from synth.model.registry import find_kind
from topologies.errors import InputError, right_name
from topologies.symmetry.translations import chains, sampled, single_translations, translate
from topologies.text.files import origin_of, parse_json, read_text

_EXPECTED = "an execution plan (JSON)"
_OWN_FORMAT = re.compile(r"synth-[a-z-]{1,40}-[0-9]{1,3}")
MAX_BYTES = 24 << 20  # The worst text of that size takes three quarters of a GiB when it is parsed.
MAX_RANKS = 4096
MAX_NUMBER = 1 << 31
_OP_CHANNEL_TYPES = (*CHANNEL_TYPES, "none")
_SIDE = {"type": "L", "buffer_id": "R", "switch_channel_id": "W"}


def read_plan(text_or_path: str | os.PathLike[str]) -> ExecutionPlan:
    """Read a file, or a text that starts with `{` after blanks; a Path is always a file.

    Keys that the executor does not know are ignored, as the executor does. The plan is not checked here, and has no
    translations.

    Raises:
        InputError: The executor would not take the plan, or the file cannot be read or has more than MAX_BYTES; the
            message names the place of the first fault.
    """
    text, source = _text_and_source(text_or_path)
    return _PlanReader(source).plan(parse_json(text, source, _EXPECTED))


def shared_plan(text_or_path: str | os.PathLike[str]) -> ExecutionPlan:
    """Read a plan as `read_plan` does, with translations where its ranks are images of representatives.

    A text that was read a short time ago, or that this process wrote from a plan with translations (see `remember`), is
    not read again, even with another name, so nobody may change the plan. Errors are those of `read_plan`.
    """
    text, source = _text_and_source(text_or_path)
    plan, name = _written.get(_digest(text)) or _recent_plan(text, source), _NAME.match(text)
    return plan if name is None else replace(plan, name=json.loads(name[1]))


def _text_and_source(text_or_path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the text of a plan, and what messages call it: "text", or the name of the file.

    A string that starts with `{` after blanks is the text itself; anything else is a path.

    Raises:
        InputError: The text or the file is too large, or the file cannot be read.
    """
    if isinstance(text_or_path, str) and text_or_path.lstrip()[:1] == "{":
        if len(text_or_path) > MAX_BYTES:
            raise InputError(f"text: too large; it must be {_EXPECTED} of at most {MAX_BYTES >> 20} MiB")
        return text_or_path, "text"
    path = Path(text_or_path)
    return read_text(path, _EXPECTED, MAX_BYTES, most_lines=None), origin_of(path)


def _recent_plan(text: str, source: str) -> ExecutionPlan:
    """Return the plan of a text as `shared_plan` does, whatever its name, and keep it for the next call.

    Raises:
        InputError: As `read_plan` raises it; the message begins with `source`.
    """
    _, plan = _recent.get(_digest(text), (0, None))
    if plan is None:
        document, reader = parse_json(text, source, _EXPECTED), _PlanReader(source)
        plan = _plan_of_representatives(document, text, reader) if len(text) >= _LARGE else None
        plan = plan or reader.plan(document)
    remember(text, plan)
    return plan


def _plan_of_representatives(document: Any, text: str, reader: _PlanReader) -> ExecutionPlan | None:
    """Return the plan with translations whose images are exactly the text; None if there is none.

    Translations are guessed from the threadblocks and peers of a few ranks, and proved by writing the images. None are
    looked for if the collective has no images, or a switch channel is not of all ranks.

    Args:
        document: The parsed text.
        text: The text.
        reader: Reader of the document.
    """
    # A plan that is wrong may name ranks, channels or buffers that do not exist; it is read and checked whole.
    with suppress(InputError, LookupError):
        head = reader.plan(document, ())
        if not find_kind(collective_of(head)).translatable:
            return None
        nranks, gpus = len(head.gpus), document["gpus"]
        shapes, peers = [_shape_of(gpu) for gpu in gpus], [_peers_of(gpu) for gpu in gpus]

        def looks_right(edge: tuple[int, int]) -> bool:
            """Return True if a translation maps the threadblocks and peers of a few ranks onto equal ones."""
            return all(
                shapes[rank] == shapes[image]
                and np.array_equal(np.sort(translate((edge,), peers[rank], (1,))), np.sort(peers[image]))
                for rank, image in sampled(edge, nranks)
            )

        edges = [edge for edge in single_translations(nranks) if looks_right(edge)]
        spent = 0
        for translations in islice(chains(nranks, edges), _GUESSES):
            plan = replace(head, gpus=list(head.gpus), translations=translations)
            images = images_of(translations, nranks)
            for rank in images.representatives.tolist():
                plan.gpus[rank] = reader.gpu(gpus[rank], rank)
            if not translations or not _has_whole_switches(plan):
                return None
            if is_text_of_images(plan, text):
                return plan
            for widths in possible_widths(plan, nranks // images.unit):
                if (spent := spent + _work(plan)) > _MOST_WORK:
                    break
                with suppress(InputError, LookupError):
                    guess = in_chunks_of_plan(replace(plan, widths=widths))
                    if is_text_of_images(guess, text):
                        return guess
    return None


def _work(plan: ExecutionPlan) -> int:
    """Return how long a guess of unlike chunks takes: as long as it takes to look at so many chunks of scratch."""
    nops = sum(len(block.ops) for gpu in plan.gpus for block in gpu.blocks)
    return _chunks_of_representatives(plan) + _WORK_OF_OP * (nops + len(plan.gpus))


def _chunks_of_representatives(plan: ExecutionPlan) -> int:
    """Return the chunks of the file in the input of a rank and in the scratch of all representatives."""
    ranks: list[int] = images_of(plan.translations, len(plan.gpus)).representatives.tolist()
    return plan.gpus[0].input_chunks + sum(plan.gpus[rank].scratch_chunks for rank in ranks)


def possible_widths(plan: ExecutionPlan, nblocks: int) -> Iterator[tuple[int, ...]]:
    """Yield the widths of so many blocks that may be those of a plan in chunks of its file, the finest first.

    None are possible if the number of blocks is a power of two, since all chunks are alike then, or if the collective
    is no all-reduce. None are looked for if the plan is too large to be checked.
    """
    runs, chunks = odd_part(nblocks), plan.gpus[0].input_chunks
    is_too_large = _chunks_of_representatives(plan) > CAPACITY.plan_cells
    if runs == 1 or is_too_large or not find_kind(collective_of(plan)).in_shares:
        return
    for doublings in reversed(range((runs - 1).bit_length(), chunks.bit_length())):
        widths = unlike_widths(nblocks, 1 << doublings)
        if chunks % sum(widths) == 0:
            yield widths


def _has_whole_switches(plan: ExecutionPlan) -> bool:
    """Return True if every switch channel of the ranks with threadblocks is of all ranks, which translations keep."""
    ranks = list(range(len(plan.gpus)))
    return all(sorted(members) == ranks for gpu in plan.gpus for _, members in gpu.switches)


def _shape_of(gpu: dict[str, Any]) -> list[int]:
    """Return the number of operations of each threadblock in the JSON of a rank; -1 where they are no list.

    The result is empty if the threadblocks are no list.
    """
    blocks = gpu.get("threadblocks")
    blocks = blocks if isinstance(blocks, list) else []
    ops = [block.get("ops") if isinstance(block, dict) else None for block in blocks]
    return [len(part) if isinstance(part, list) else -1 for part in ops]


def _peers_of(gpu: dict[str, Any]) -> Ints:
    """Return the ranks at the other ends of the channels in the JSON of a rank, int64, shape (channels,).

    Whatever is no list, or no number that can be a rank, is left out.
    """
    channels = gpu.get("channels")
    channels = channels if isinstance(channels, list) else []
    lists = [channel.get("connected_to") for channel in channels if isinstance(channel, dict)]
    peers = [peer for part in lists if isinstance(part, list) for peer in part]
    return np.array([peer for peer in peers if type(peer) is int and 0 <= peer <= MAX_NUMBER], dtype=np.int64)


def remember(text: str, plan: ExecutionPlan) -> None:
    """Keep a plan as what its text says, for `shared_plan`; those that were used longest ago are dropped.

    Of plans with translations _KEPT are kept, of others those whose texts have _RECENT characters in all. The name,
    which is the text's second line, does not matter: the plan serves texts that differ in it only.
    """
    key = _digest(text)
    if plan.translations:
        _written[key] = plan
        while len(_written) > _KEPT:
            del _written[next(iter(_written))]
        return
    _recent.pop(key, None)
    _recent[key] = len(text), plan
    while len(_recent) > 1 and sum(length for length, _ in _recent.values()) > _RECENT:
        del _recent[next(iter(_recent))]


_LARGE = 1 << 16  # Characters of a plan from which on representatives are looked for.
_GUESSES = 64  # Groups of translations that are tried, the largest first.
_WORK_OF_OP = 500  # Also of a rank.
_MOST_WORK = 1 << 29  # of all guesses of unlike chunks: some ten seconds
_KEPT = 32  # Plans of a few ranks each.
_NAME = re.compile(r'\{\n "name": ("[^"\\\n]*"),\n')  # The name is the second line of a text that was written.
_written: dict[bytes, ExecutionPlan] = {}
_RECENT = 4 << 20  # Characters of the plans that are kept as they were read; the plans take some thirty times as much.
# Other plans that were used last, each with the characters of its text, the latest last.
_recent: dict[bytes, tuple[int, ExecutionPlan]] = {}


def _digest(text: str) -> bytes:
    """Return a digest of a text, apart from its second line if that holds the name and nothing else."""
    name = _NAME.match(text)
    return hashlib.blake2b(text[0 if name is None else name.end() :].encode()).digest()


class _PlanReader:
    """A reader of a parsed document.

    Its methods raise InputError at a value that the executor would not take; the message names the place `where` in the
    document (empty for the whole) and what would be right.

    Attributes:
        source: What messages call the document.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._gpus: dict[int, PlanGpu] = {}  # Ranks that were read whole; guesses of translations read some again.

    def fail(self, where: str, message: str) -> InputError:
        """Return, without raising it, the error for a place in the document, "" for the whole."""
        return InputError(f"{self.source}: {where}: {message}" if where else f"{self.source}: {message}")

    def object(self, value: Any, where: str) -> dict[str, Any]:
        """Return a value that must be an object; raise InputError, which names the place `where`, if it is none."""
        if not isinstance(value, dict):
            raise self.fail(where, f"{_shown(value)}; it must be an object")
        return value

    def items(self, value: Any, where: str) -> list[Any]:
        """Return a value that must be a list; raise InputError, which names the place `where`, if it is none."""
        if not isinstance(value, list):
            raise self.fail(where, f"{_shown(value)}; it must be a list")
        return value

    def integer(self, value: Any, where: str, low: int = 0, high: int = MAX_NUMBER) -> int:
        """Return a value that must be a whole number in low..high, both included.

        Raises:
            InputError: It is none (true and false are none); the message names the place `where`.
        """
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(where, f"{_shown(value)}; it must be a whole number in {low}..{high}")
        return value

    def word(self, value: Any, where: str, choices: tuple[str, ...] = ()) -> str:
        """Return a value that must be text, and one of the choices if there are any; else raise InputError."""
        if not isinstance(value, str) or (choices and value not in choices):
            requirement = f"one of {', '.join(choices)}" if choices else "text"
            raise self.fail(where, f"{_shown(value)}; it must be {requirement}")
        return value

    def truth(self, value: Any, where: str) -> bool:
        """Return a value that must be true or false; raise InputError, which names `where`, if it is neither."""
        if not isinstance(value, bool):
            raise self.fail(where, f"{_shown(value)}; it must be true or false")
        return value

    def get(self, holder: dict[str, Any], name: str, where: str, take: Callable[..., Any], *bounds: Any) -> Any:
        """Call `take` with the value of a required key, its place and `bounds`, and return the result.

        Args:
            holder: Object that must have the key.
            name: The key.
            where: Place of the object in the document, "" for the whole.
            take: Reads the value.
            *bounds: Further arguments of `take`.

        Raises:
            InputError: The key is missing, or as `take` raises it.
        """
        if name not in holder:
            raise self.fail(where, f"no {name}; it must have it")
        return take(holder[name], f"{where}.{name}" if where else name, *bounds)

    def elements(self, holder: dict[str, Any], name: str, where: str, take: Callable[[Any, str], Any]) -> list[Any]:
        """Call `take` with each element of a required list and its place, and return the results in order.

        Args:
            holder: Object that must have the list.
            name: Key of the list.
            where: Place of the object in the document, "" for the whole.
            take: Reads an element.

        Raises:
            InputError: The list is missing or no list, or as `take` raises it.
        """
        place = f"{where}.{name}" if where else name
        return [take(value, f"{place}[{n}]") for n, value in enumerate(self.get(holder, name, where, self.items))]

    def plan(self, value: Any, ranks: Collection[int] | None = None) -> ExecutionPlan:
        """Read a plan: of all ranks the buffers' sizes, and of some or all ranks their threadblocks and channels.

        Keys that are missing and have a default in `ExecutionPlan` get it.

        Args:
            value: The parsed document.
            ranks: Ranks whose threadblocks and channels are read; None for all.

        Raises:
            InputError: The executor would not take a value; the message names its place and what would be right.
        """
        top = self.object(value, "")
        if "gpus" not in top:
            raise self.fail("", f"is no execution plan, which has gpus{_hint(top)}")
        gpus = self.items(top["gpus"], "gpus")
        if any(isinstance(gpu, dict) and ("inputChunks" in gpu or "outputChunks" in gpu) for gpu in gpus):
            raise self.fail("", "a plan of MSCCL++ 0.7, which later executors do not load; it must be of 0.8 or newer")
        if not 1 <= len(gpus) <= MAX_RANKS:
            raise self.fail("gpus", f"{len(gpus)} of them; it must be 1..{MAX_RANKS}")
        top = {
            PLAN_KEYS[field.name]: field.default
            for field in fields(ExecutionPlan)
            if field.default is not MISSING and field.name in PLAN_KEYS
        } | top
        return ExecutionPlan(
            name=self.get(top, "name", "", self.word),
            collective=self.get(top, "collective", "", self.word),
            protocol=self.get(top, "protocol", "", self.word),
            inplace=self.get(top, "inplace", "", self.truth),
            gpus=[self.gpu(gpu, n, is_whole=ranks is None or n in ranks) for n, gpu in enumerate(gpus)],
            double=self.get(top, PLAN_KEYS["double"], "", self.truth),
            reuse=self.get(top, PLAN_KEYS["reuse"], "", self.truth),
            alignment=self.get(top, PLAN_KEYS["alignment"], "", self.integer, 1),
            threads=self.get(top, PLAN_KEYS["threads"], "", self.integer, 1, 1024),
            min_bytes=self.get(top, PLAN_KEYS["min_bytes"], "", self.integer, 0, NO_LIMIT),
            max_bytes=self.get(top, PLAN_KEYS["max_bytes"], "", self.integer, 0, NO_LIMIT),
        )

    def gpu(self, value: Any, number: int, *, is_whole: bool = True) -> PlanGpu:
        """Read the rank `number`, with its sizes only unless `is_whole`; a whole rank is read once.

        Raises:
            InputError: The executor would not take a value, or an id is not the place in its list.
        """
        if number in self._gpus:
            return self._gpus[number]
        where = f"gpus[{number}]"
        gpu = self.object(value, where)
        if self.get(gpu, "id", where, self.integer) != number:
            raise self.fail(f"{where}.id", f"{gpu['id']}; it must be {number}, its place in gpus")
        sizes = [self.get(gpu, f"{side}_chunks", where, self.integer) for side in ("input", "output", "scratch")]
        result = PlanGpu(sizes[0], sizes[1], sizes[2])
        result.peers = {"memory": [], "port": []}
        if not is_whole:
            return result
        self.elements(gpu, "channels", where, lambda v, w: self.channel(v, w, result))
        result.buffers = self.elements(gpu, "remote_buffers", where, self.remote)
        if "semaphores" in gpu:
            result.semaphores = self.elements(gpu, "semaphores", where, self.semaphore)
        for place, (stated_number, block) in enumerate(self.elements(gpu, "threadblocks", where, self.block)):
            if stated_number != place:
                raise self.fail(
                    f"{where}.threadblocks[{place}].id", f"{stated_number}; it must be {place}, its place in the list"
                )
            result.blocks.append(block)
        self._gpus[number] = result
        return result

    def channel(self, value: Any, where: str, gpu: PlanGpu) -> None:
        """Read one entry of a rank's channels, which holds channels of one type, and append them to the lists of `gpu`.

        Raises:
            InputError: The executor would not take the entry.
        """
        channel = self.object(value, where)
        kind = self.get(channel, "channel_type", where, self.word, CHANNEL_TYPES)
        if kind == "switch":
            buffer = self.get(channel, "buffer_type", where, self.word, BUFFERS)
            gpu.switches += [(buffer, ranks) for ranks in self.elements(channel, "rank_groups", where, self.rank_group)]
            return
        gpu.peers[kind] += self.elements(channel, "connected_to", where, self.integer)

    def rank_group(self, value: Any, where: str) -> tuple[int, ...]:
        """Return the ranks of a switch channel; the size that is stated with them must be a number, and is not used."""
        group = self.object(value, where)
        self.get(group, "size", where, self.integer)
        return tuple(self.elements(group, "ranks", where, self.integer))

    def remote(self, value: Any, where: str) -> RemoteBuffer:
        """Return a remote buffer from its JSON; raise InputError if the executor would not take it."""
        buffer = self.object(value, where)
        types = self.elements(buffer, "access_channel_types", where, lambda v, w: self.word(v, w, ("memory", "port")))
        rank = self.get(buffer, "rank", where, self.integer)
        return RemoteBuffer(rank, self.get(buffer, "type", where, self.word, BUFFERS), tuple(types))

    def semaphore(self, value: Any, where: str) -> int:
        """Return the initial value in the JSON of a semaphore, which may be negative.

        Raises:
            InputError: It has none within ±MAX_NUMBER.
        """
        initial_value: int = self.get(self.object(value, where), "init_value", where, self.integer, -MAX_NUMBER)
        return initial_value

    def block(self, value: Any, where: str) -> tuple[int, PlanBlock]:
        """Return the number that a threadblock states as its id, and the threadblock.

        Raises:
            InputError: The executor would not take the threadblock.
        """
        check_deadline()
        block = self.object(value, where)
        result = PlanBlock()

        def read_ids(name: str, kind: str, ids: str, into: dict[str, list[int]]) -> None:
            """Append the ids in the list `name` of the threadblock to `into`, by channel type.

            Args:
                name: Key of the list.
                kind: Key of an entry's channel type.
                ids: Key of an entry's ids.
                into: Where the ids are added.
            """

            def take(value: Any, at: str) -> None:
                """Append the ids of one entry."""
                entry = self.object(value, at)
                word = self.get(entry, kind, at, self.word, CHANNEL_TYPES)
                into.setdefault(word, []).extend(self.elements(entry, ids, at, self.integer))

            self.elements(block, name, where, take)

        read_ids("channels", "channel_type", "channel_ids", result.channels)
        if "remote_buffer_refs" in block:
            read_ids("remote_buffer_refs", "access_channel_type", "remote_buffer_ids", result.buffers)
        result.ops = self.elements(block, "ops", where, self.op)
        return self.get(block, "id", where, self.integer), result

    def op(self, value: Any, where: str) -> Op:
        """Return an operation; raise InputError at a name, or another value, that the executor would not take.

        Of a nop, nothing but its name is read. A pipeline must not stand in a pipeline.
        """
        op = self.object(value, where)
        name = op.get("name")
        if name == "nop":
            return NOP
        if not isinstance(name, str) or name not in SHAPES:
            name = self.get(op, "name", where, self.word)
            raise self.fail(f"{where}.name", f"{_shown(name)}; {right_name(name, list(SHAPES))}")
        optional: dict[str, Any] = {}
        if "channel_type" in op:
            optional["channel_type"] = self.get(op, "channel_type", where, self.word, _OP_CHANNEL_TYPES)
        if "tbg_info" in op:
            info, at = self.get(op, "tbg_info", where, self.object), f"{where}.tbg_info"
            size = self.get(info, "tbg_size", at, self.integer, 1, 1024)
            optional["group"] = (self.get(info, "tb_id", at, self.integer, 0, size - 1), size)
        if name == "barrier":
            optional["barrier"] = self.get(op, "barrier_id", where, self.integer)
            optional["blocks"] = self.get(op, "num_threadblocks", where, self.integer, 1)
        if name == "pipeline":
            if where.count(".ops[") > 1:
                raise self.fail(where, "a pipeline inside a pipeline; it must stand in a threadblock")
            context, at = self.get(op, "iter_context", where, self.object), f"{where}.iter_context"
            optional["unit_bytes"] = self.get(context, "unit_size", at, self.integer, 1)
            optional["unit_chunks"] = self.get(context, "num_chunks", at, self.integer, 1)
            optional["ops"] = self.elements(op, "ops", where, self.op)
        if "reduce_op" in op:
            optional["redop"] = self.get(op, "reduce_op", where, self.word)
        return Op(
            name,
            self.parts(op, "src_buff", where) if "src_buff" in op else [],
            self.parts(op, "dst_buff", where) if "dst_buff" in op else [],
            channels=self.ids(op, "channel_ids", where) if "channel_ids" in op else [],
            semaphores=self.ids(op, "semaphore_ids", where) if "semaphore_ids" in op else [],
            **optional,
        )

    def parts(self, op: dict[str, Any], field: str, where: str) -> list[PlanPart]:
        """Return the spans in the list `field` of the operation at `where`; raise InputError if one is none."""
        values = op[field]
        parts = [_plain_part(value) for value in values] if isinstance(values, list) else [None]
        return self.elements(op, field, where, self.part) if None in parts else parts  # type: ignore[return-value]

    def ids(self, op: dict[str, Any], field: str, where: str) -> list[int]:
        """Return the ids in the list `field` of the operation at `where`; raise InputError if it is no list of ids."""
        ids = op[field]
        if isinstance(ids, list) and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= MAX_NUMBER:
            return ids
        return self.elements(op, field, where, self.integer)

    def part(self, value: Any, where: str) -> PlanPart:
        """Return a span, which must name exactly one of a buffer type, a remote buffer and a switch channel.

        Raises:
            InputError: The executor would not take the span.
        """
        part = self.object(value, where)
        sides = [key for key in _SIDE if key in part]
        if len(sides) != 1:
            raise self.fail(where, f"has {' and '.join(sides) or 'none'}; it must have one of {', '.join(_SIDE)}")
        key = sides[0]
        at = self.get(part, key, where, *((self.word, BUFFERS) if key == "type" else (self.integer,)))
        index = self.get(part, "index", where, self.integer)
        return PlanPart(_SIDE[key], at, index, self.get(part, "size", where, self.integer, 1))


def _hint(document: dict[str, Any]) -> str:
    """Return what a document of synth is, as the end of a message; "" for other objects."""
    form = document.get("format")
    if isinstance(form, str) and _OWN_FORMAT.fullmatch(form) and not form.startswith("synth-index-"):
        return f"; this is a document {form} of synth, no file for an executor; it may name such files (file)"
    return "; this is a library's index, which synth library check LIB checks" if "algorithms" in document else ""


def _plain_part(value: Any) -> PlanPart | None:
    """Return a span from its JSON if that has the usual form, in which nothing is wrong; else None."""
    if type(value) is not dict or len(value) != 3:
        return None
    index, size, kind, number = value.get("index"), value.get("size"), value.get("type"), value.get("buffer_id")
    if type(index) is not int or type(size) is not int or not (0 <= index <= MAX_NUMBER and 1 <= size <= MAX_NUMBER):
        return None
    if type(kind) is str and kind in BUFFERS:
        return PlanPart("L", kind, index, size)
    return PlanPart("R", number, index, size) if type(number) is int and 0 <= number <= MAX_NUMBER else None


def _shown(value: Any) -> str:
    """Return any value in at most 60 characters: an object or a list by that word, longer text cut."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
