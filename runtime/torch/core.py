"""One rank's calls of a group: chosen, executed over messages, numbered, counted and watched. It knows no c10d.

What speaks to a library of collectives, as `runtime.torch.dispatch` does to torch.distributed, gives it messages, and
turns that library's calls, options and results into those of here.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias

import torch

from emit.program import Program
from runtime.algorithms.built_in import DIRECT
from runtime.buffers import Layout
from runtime.torch.agree import agree_on_block, exchange_sizes, wait_for_all
from runtime.torch.blocks import Blocks, Buffers
from runtime.torch.choice import Choice, Chooser, Method
from runtime.torch.counters import counters
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.compare import check_same_call, check_same_choices
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.pieces import PieceMap, Sizes, map_pieces
from runtime.torch.rank_program import RankProgram, rank_program
from runtime.torch.run import FIRST_TAG, MAX_CHANNELS, REDUCERS, Transport
from runtime.torch.table import REDUCED_TYPES, Call
from runtime.torch.tasks import Record, Task, TaskThread
from topologies.errors import InputError

Tensor: TypeAlias = Any

_KEPT = 256  # of the programs that served calls, this rank's parts: a broadcast has one for each root
_TICK_S = 0.005  # between two looks at whether calls of the wrapped back end are over
# The largest block, as a multiple of the mean one of the rank that gives or takes most. A program shares out its links
# for equal blocks; none of them carries more than so many times what it would carry of equal ones.
_MOST_UNEVEN = 4.0
# the back end named for the calls at hand: of each thread, and of each task of asyncio, its own
asked_method: ContextVar[Method | None] = ContextVar("asked_method", default=None)


def type_text(dtype: Any) -> str:
    """Torch's name of a type, as tables have it."""
    return str(dtype).removeprefix("torch.")


def type_name(tensor: Tensor) -> str:
    """Of its elements' type."""
    return type_text(tensor.dtype)


@dataclass(frozen=True)
class Terms:
    """How a call is made."""

    waits: bool = False  # the caller waits for it at once
    timeout: timedelta | None = None  # None: that of the messages


@dataclass(frozen=True)
class Issued:
    """A call that all ranks make: how it is waited for, and in words for errors."""

    call: Call
    waiting: Waiting
    text: str


class Core:
    """The calls of one rank.

    Attributes:
        ranks: the members, as the whole job numbers them; rank: this one's place among them.
        messages: what moves bytes; watch: over its waits; lane: on which calls run one after the other.
    """

    def __init__(
        self,
        watch: FailureWatch,
        is_whole_job: bool = False,
        task: Callable[[Callable[[], None], Sequence[Tensor], Any], Task] = Task,
    ) -> None:
        """watch: of the group; task: makes what callers are given. Raises InputError as `check_same_choices` does."""
        self.watch, self.messages = watch, watch.messages
        self.rank, self.ranks = watch.me, watch.ranks
        self.names = ", ".join(map(str, self.ranks))
        self.lane = TaskThread(f"group of ranks {self.names}")
        self.task = task
        # by the program's id and the order of its ranks, the last
        self._parts: OrderedDict[tuple[int, tuple[int, ...] | None], tuple[Program, RankProgram]] = OrderedDict()
        self._maps: OrderedDict[tuple[int, tuple[int, ...] | None], tuple[RankProgram, PieceMap | None]] = OrderedDict()
        self._checks = os.environ.get("SYNTH_CHECK", "0") not in ("", "0")
        fault, basis = None, ""
        try:
            self._chooser = Chooser.of_environment()
            self._chooser.check(len(self.ranks), is_whole_job)
            basis = f"{self._chooser.basis} {self._checks}"
        except InputError as error:
            fault = str(error)
        if len(self.ranks) > 1:
            with watch.guard(Waiting(f"making {watch.group}")):
                check_same_choices(self.messages, basis, fault, self.ranks)
        elif fault is not None:
            raise InputError(fault)

    def paths(self, call: Call) -> frozenset[str]:
        """As `Chooser.paths`, for the calls at hand."""
        return self._chooser.paths(call, asked_method.get())

    @property
    def compares(self) -> bool:
        """Whether ranks compare each call, as SYNTH_CHECK says."""
        return self._checks and len(self.ranks) > 1

    def wrapped_ranges(self, call: Call) -> list[tuple[int, str | None]]:
        """Sizes that the wrapped back end serves, as `Chooser.wrapped_ranges`, of the method that is asked for."""
        return self._chooser.wrapped_ranges(call, asked_method.get())

    def choose(
        self, call: Call, buffers: Buffers, op: str | None, method: Method | None = None
    ) -> tuple[Choice, RankProgram | None]:
        """What runs a call; its reason where that is not ours.

        op: one of REDUCERS, None where nothing is reduced. method: the one named for the calls at hand, by default.
        """
        first, why = buffers.tensors[0], ""
        if first.device.type != "cpu":
            why = f"tensors on {first.device.type}: our algorithms run on the CPU's"
        elif not buffers.are_plain:
            why = "tensors that are sparse, or of several types or devices"
        elif op is not None and op not in REDUCERS:
            why = f"reduction {op}"
        elif op is not None and call.kind not in REDUCED_TYPES:
            why = f"type {call.kind}"
        elif not call.size_bytes:
            why = "nothing to move"
        if why:
            return Choice(None, why), None
        choice = self._chooser.choose(call, method or asked_method.get())
        if choice.program is None:
            return choice, None
        name, part = choice.program.name, self._part(choice.program, choice.order)
        if choice.program.nchannels > MAX_CHANNELS:
            return Choice(None, f"{name}: more than {MAX_CHANNELS} channels"), None
        if not part.fits(buffers.block):
            return Choice(None, f"{name}: not on such sizes, chunks would differ"), None
        return choice, part

    def _part(self, program: Program, order: tuple[int, ...] | None = None) -> RankProgram:
        """This rank's part of a program, made once; the program is the key as it is, since hashing it reads all."""
        key = id(program), order
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = program, rank_program(program, self.rank, order)
            while len(self._parts) > _KEPT:
                self._parts.popitem(last=False)
        return known[1]

    def issue(self, call: Call, text: str, on: str = "") -> Issued:
        """Number the group's next call, and compare it between ranks where that is asked for."""
        waiting = self.watch.issue(text + on)
        if self.compares:
            with self.watch.guard(waiting, new=True, closes=False):
                check_same_call(self.messages, waiting.text, self.ranks)
        return Issued(call, waiting, text)

    def execute(self, issued: Issued, part: RankProgram, buffers: Buffers, op: str, terms: Terms) -> Task:
        """Run this rank's part of a program. op: one of REDUCERS, any where nothing is reduced."""
        record = counters.count(issued.call.collective, f"synth {part.program.name}", issued.call.size_bytes)
        return self._start(
            issued, record, lambda transport: buffers.execute(part, op, transport), buffers.written, op, terms
        )

    def execute_custom(self, name: str, buffers: Buffers, op: str | None, terms: Terms) -> Task:
        """Run the library's program of a custom collective that serves these tensors.

        buffers: their block is not looked at. op: one of REDUCERS. Raises InputError where there is none.
        """
        if op not in REDUCERS or any(t.device.type != "cpu" or t.layout != torch.strided for t in buffers.tensors):
            raise InputError(f"{name}: must be of dense tensors on the CPU, with sum, avg, prod, max or min")
        elements = [tensors[0].numel() if tensors else 0 for tensors in (buffers.given, buffers.written)]
        for entry, program in self._chooser.custom(name, self.ranks):
            part = self._part(program)
            block = _custom_block(program, self.rank, elements)
            size_bytes = block * buffers.tensors[0].element_size()
            if block and part.fits(block) and entry.serves(size_bytes):
                break
        else:
            raise InputError(
                f"{name}: the library has no program of it for {len(self.ranks)} ranks that serves {elements[0]}"
                f" elements in and {elements[1]} out on rank {self.ranks[self.rank]}"
            )
        return self.execute_program(name, part, replace(buffers, block=block), op, terms)

    def execute_program(self, name: str, part: RankProgram, buffers: Buffers, op: str, terms: Terms) -> Task:
        """Run this rank's part of a custom collective's program, on a block that fits it. op: one of REDUCERS."""
        call = Call(name, buffers.size_bytes, type_name(buffers.tensors[0]), self.ranks)
        text = f"{name} {op}, {call.size_bytes} bytes of {call.kind}"
        return self.execute(self.issue(call, text, f", on {part.program.name}"), part, buffers, op, terms)

    def run_blocks(self, call: Call, text: str, blocks: Blocks, buffers: Buffers, agrees: bool, terms: Terms) -> Task:
        """Run a collective whose blocks may be of other sizes on other ranks, which a rank cannot know.

        agrees: whether ranks first tell one another the sizes, on which a program may run, as they must where calls of
        some size would take one; otherwise blocks go straight to where they belong. Raises InputError for sparse
        tensors or several types; the task, the same on every rank, where two ranks that agree take a block for one of
        two sizes.
        """
        if not buffers.are_plain:
            raise InputError(f"{call.collective}: sparse tensors, or of several types; they must be dense and of one")
        method, ran = asked_method.get(), f"synth {DIRECT}"

        def work(transport: Transport) -> None:
            nonlocal ran
            block = agree_on_block(transport, blocks) if agrees else None
            sizes = exchange_sizes(transport, blocks) if self._checks or (agrees and block is None) else []
            if agrees and block is None:
                uneven = self._choose_uneven(call, buffers, sizes, method)
                if uneven is not None:
                    ran = f"synth {uneven[0].program.name}"
                    return buffers.execute_uneven(*uneven, blocks, sizes, transport)
            if block:
                size_bytes = block * buffers.blocks * buffers.tensors[0].element_size()
                even = replace(buffers, block=block)
                choice, part = self.choose(call._replace(size_bytes=size_bytes), even, None, method)
                if part is not None and self._chooser.path(choice) == "program":
                    ran = f"synth {part.program.name}"
                    return even.execute(part, "sum", transport)
            return blocks.exchange(transport)

        def record(seconds: float) -> None:
            counters.count(call.collective, ran, call.size_bytes)(seconds)

        issued = self.issue(call, text, ", agreed" if agrees else f", {DIRECT}")
        return self._start(issued, record, work, buffers.written, "sum", terms)

    def _choose_uneven(
        self, call: Call, buffers: Buffers, sizes: Sizes, method: Method | None
    ) -> tuple[RankProgram, PieceMap] | None:
        """Return the program that runs on blocks of unequal sizes, the same on every rank; None: blocks go straight.

        It is the one that serves equal blocks of as many bytes at the rank that gives or takes most. sizes: those of
        all blocks, by place. The reason is counted where such a program cannot have these blocks.
        """
        busiest = max(*(sum(row) for row in sizes), *(sum(column) for column in zip(*sizes, strict=True)))
        size_bytes = busiest * buffers.tensors[0].element_size()
        choice, part = self.choose(call._replace(size_bytes=size_bytes), replace(buffers, block=0), None, method)
        if part is None or self._chooser.path(choice) != "program":
            return None
        pieces, name = self._map(part), part.program.name
        if pieces is None:
            counters.count_fallback(call.collective, f"{name} is for blocks of equal sizes: sent directly")
        elif max(map(max, sizes)) * len(sizes) > _MOST_UNEVEN * busiest:
            counters.count_fallback(call.collective, f"blocks too unequal for {name}: sent directly")
        else:
            return part, pieces
        return None

    def _map(self, part: RankProgram) -> PieceMap | None:
        """Return `map_pieces` of a rank's part, worked out once."""
        key = id(part.program), part.order
        if key not in self._maps or self._maps[key][0] is not part:
            self._maps[key] = part, map_pieces(part)
            while len(self._maps) > _KEPT:
                self._maps.popitem(last=False)
        return self._maps[key][1]

    def send_blocks(
        self, call: Call, buffers: Buffers, work: Callable[[Transport], None], op: str, terms: Terms
    ) -> Task:
        """A collective of blocks of several sizes, which all ranks know: sent one by one, by `work`."""
        counters.count_fallback(call.collective, "blocks of unequal sizes: sent one by one")
        issued = self.issue(call, f"{call.collective} of unequal blocks, {call.kind}")
        record = counters.count(call.collective, "one by one", call.size_bytes)
        return self._start(issued, record, work, buffers.written, op, terms)

    def finish_calls(self, limit_s: float) -> bool:
        """Wait for the calls under way before this rank leaves; return whether they came to their end.

        As `FailureWatch.leave_calls`, which ends those that wait for a rank which does not make them.
        """

        def are_over(seconds: float) -> bool:
            until = time.monotonic() + seconds
            if not self.lane.drain(seconds):
                return False
            while self.watch.is_in_call():  # the wrapped back end's own
                if time.monotonic() > until:
                    return False
                time.sleep(_TICK_S)
            return True

        return self.watch.leave_calls(are_over, limit_s)

    def barrier(self, terms: Terms) -> Task:
        """All ranks have made the calls before it.

        By messages: collectives of what is wrapped begin in their callers' order, which is not that of the lane.
        """
        issued = self.issue(Call("barrier", 0, "", self.ranks), "barrier")
        return self._start(issued, counters.count("barrier", "messages", 0), wait_for_all, [], "sum", terms)

    def _start(
        self,
        issued: Issued,
        record: Record,
        work: Callable[[Transport], None],
        written: Sequence[Tensor],
        op: str,
        terms: Terms,
    ) -> Task:
        """Run `work` after what this group was given before it."""
        waiting = issued.waiting
        tag = FIRST_TAG | (zlib.crc32(f"{waiting.number} {issued.text}".encode()) & 0x7FFF) << 15
        waited: dict[int, float] = defaultdict(float)
        text, limit, in_vain = waiting.text, terms.timeout, self.watch.is_left
        transport = Transport(self.messages, self.ranks, self.rank, tag, text, waited, limit, in_vain)

        def function() -> None:
            try:
                with self.watch.guard(waiting, new=True):
                    work(transport)
                    if op == "avg":
                        self.divide(written)
            finally:
                for peer, seconds in waited.items():
                    counters.count_wait(self.ranks[peer], seconds)

        task = self.task(function, written, record)
        self.lane.put(task, terms.waits)
        return task

    def divide(self, sums: Sequence[Tensor]) -> None:
        """Sums become averages; of whole numbers what is behind the point is left out."""
        for tensor in sums:
            whole = not tensor.is_floating_point() and not tensor.is_complex()
            tensor.copy_(torch.div(tensor, len(self.ranks), rounding_mode="trunc" if whole else None))


def _custom_block(program: Program, rank: int, elements: Sequence[int]) -> int:
    """Elements of a custom program's block where a rank's input and output have so many; 0 where that cannot be."""
    chunks = Layout.of(program, 0).chunks
    cells = Layout.of(program, 0).cells(rank)
    found = {n * chunks // k for n, k in zip(elements, cells, strict=True) if k}
    block = found.pop() if len(found) == 1 else 0
    return block if list(Layout.of(program, block).sizes(rank)) == list(elements) else 0
