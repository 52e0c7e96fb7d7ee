"""One rank's calls of a process group: chosen, executed or handed to the wrapped back end, counted and watched."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from emit.program import Program
from runtime.buffers import Layout
from runtime.torch.choice import REDUCED_TYPES, Call, Choice, Chooser, Method
from runtime.torch.compare import check_same_call, check_same_choices
from runtime.torch.counters import counters
from runtime.torch.lost import OWN_TAG, FailureWatch, error_text
from runtime.torch.operations import OPERATIONS, Buffers, Operation
from runtime.torch.rank_program import RankProgram, rank_program
from runtime.torch.run import FIRST_TAG, MAX_CHANNELS, Transport
from runtime.torch.work import Task, TaskThread, WrappedWork
from topologies.errors import InputError

Tensor: TypeAlias = Any

_REDUCTIONS = {"SUM": "sum", "PRODUCT": "prod", "MAX": "max", "MIN": "min", "AVG": "avg"}  # torch's → ours
_REDUCTION_NAMES = (*_REDUCTIONS, "BAND", "BOR", "BXOR", "PREMUL_SUM")
# the back end named for the calls at hand: of each thread, and of each task of asyncio, its own
asked_method: ContextVar[Method | None] = ContextVar("asked_method", default=None)


def _reduction_name(redop: Any) -> str:
    """Torch's name of a reduction."""
    return next((name for name in _REDUCTION_NAMES if redop == getattr(dist.ReduceOp, name)), "unknown")


def reduction_of(redop: Any) -> str | None:
    """Our name of torch's reduction; None for one that we do not know."""
    return _REDUCTIONS.get(_reduction_name(redop))


def type_name(tensor: Tensor) -> str:
    """Torch's name of its elements' type, as tables have it."""
    return str(tensor.dtype).removeprefix("torch.")


class Copies(dict[int, Tensor]):
    """Contiguous copies for Gloo, which takes a tensor for its memory: it mixes up layouts and runs over gaps."""

    def __init__(self, wanted: bool) -> None:
        super().__init__()
        self._wanted = wanted

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors, or copies of those that are not contiguous."""
        return [self._one(tensor) for tensor in tensors]

    def _one(self, tensor: Tensor) -> Tensor:
        if not self._wanted or tensor.layout != torch.strided or tensor.is_contiguous():
            return tensor
        return self.setdefault(id(tensor), tensor.contiguous())

    def write_back(self, tensors: Sequence[Tensor]) -> None:
        """Put what the copies hold into the tensors."""
        for tensor in tensors:
            if id(tensor) in self:
                tensor.copy_(self[id(tensor)])


Arguments = Callable[[Copies], Sequence[Any]]  # of the wrapped back end's method, before its options


@dataclass(frozen=True)
class _Issued:
    """A call that all ranks make: which of the group's it is, in words for errors, and torch's options of it."""

    call: Call
    number: int
    text: str
    opts: Any


class Dispatcher:
    """What `runtime.torch.process_group.Group` passes on; raises as it does.

    Attributes:
        wrapped: by device type, torch's kind of the wrapped back end and the back end.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, ranks: Sequence[int]) -> None:
        """rank: of `size`, in the group; ranks: the members, as the whole job numbers them."""
        self._me, self._n, self._store = rank, size, store
        self._ranks = tuple(ranks) or tuple(range(size))
        self._names = ", ".join(map(str, self._ranks))
        self._watch = FailureWatch(store, rank, self._ranks)
        gloo = self._make_gloo(timeout)
        self.wrapped: dict[str, tuple[Any, Any]] = {"cpu": (dist.ProcessGroup.BackendType.GLOO, gloo)}
        if torch.cuda.is_available() and dist.is_nccl_available():
            wanted = dist.ProcessGroupNCCL.Options()
            wanted._timeout = timeout
            nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl/", store), rank, size, wanted)
            nccl._set_sequence_number_for_group()
            self.wrapped["cuda"] = (dist.ProcessGroup.BackendType.NCCL, nccl)
        self._thread = TaskThread(f"group of ranks {self._names}")
        self._parts: dict[int, tuple[Program, RankProgram]] = {}  # by the program's id, which lives as long as this
        self._number = 0  # of the last call that all ranks make
        self._checks = os.environ.get("SYNTH_CHECK", "0") not in ("", "0")
        fault, basis = None, ""
        try:
            self._chooser = Chooser.of_environment()
            if not dist.is_initialized():  # this group is the whole job
                self._chooser.check_ranks(size)
            basis = f"{self._chooser.basis} {self._checks}"
        except InputError as error:
            fault = str(error)
        if size > 1:
            with self._watch.guard(f"making a {self._thread.name}"):
                check_same_choices(gloo, basis, fault, self._ranks)
        elif fault is not None:
            raise InputError(fault)

    def _make_gloo(self, timeout: Any) -> Any:
        """The wrapped back end for CPU tensors. Raises RuntimeError, naming who did not come, at the time-out."""
        self._store.set(f"here/{self._me}", "1")
        try:
            gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo/", self._store), self._me, self._n, timeout=timeout)
        except RuntimeError as error:
            absent: list[int] = []
            with suppress(RuntimeError):
                absent = [r for k, r in enumerate(self._ranks) if not self._store.check([f"here/{k}"])]
            lost = f"; lost: rank {', '.join(map(str, absent))} (no word of it)" if absent else ""
            raise RuntimeError(f"making a group of ranks {self._names}: {error_text(error)}{lost}") from error
        gloo._set_sequence_number_for_group()
        self._watch.wrapped = gloo
        return gloo

    def _wrapped_for(self, tensor: Tensor) -> Any:
        device = tensor.device.type
        if device not in self.wrapped:
            raise RuntimeError(
                f"a tensor on {device}; this group's tensors must be on {' or '.join(sorted(self.wrapped))}"
            )
        return self.wrapped[device][1]

    # ---- collectives

    def run(self, name: str, buffers: Buffers, opts: Any, arguments: Arguments) -> Any:
        """Run a collective, a row of OPERATIONS; torch's Work.

        opts: torch's of the call, or None. arguments: those of the wrapped back end's method, given what copies tensors
        that are not contiguous. Raises InputError for an output whose elements share memory or an algorithm that is not
        there, RuntimeError for tensors on a device that this group does not serve.
        """
        operation = OPERATIONS[name]
        opts = opts or operation.options()
        wrapped = self._wrapped_for(buffers.tensors[0])
        for tensor in buffers.written:
            if tensor.layout == torch.strided and _overlaps_itself(tensor):
                raise InputError(
                    f"{operation.kind.name}: several elements of an output of shape {list(tensor.shape)} are one place"
                    " in memory; it must be a tensor of its own, as by .contiguous()"
                )
        redop = opts.reduceOp if operation.kind.reduces else None
        call = self._call(operation, buffers, opts)
        choice, part = self._choose(call, buffers, redop)
        reduced = "" if redop is None else f" {reduction_of(redop) or _reduction_name(redop)}"
        root = f" of root {self._ranks[call.root]}" if operation.kind.rooted else ""
        text = f"{call.collective}{reduced}{root}, {call.size_bytes} bytes of {call.kind}"
        issued = self._issue(call, text, opts, f", on {wrapped.name() if part is None else part.program.name}")
        if part is None:
            if choice.reason not in ("asked for", "by the table"):
                counters.count_fallback(call.collective, choice.reason)
            return self._run_wrapped(issued, operation, wrapped, buffers, arguments, redop)
        op = "sum" if redop is None else reduction_of(redop)
        assert op is not None
        by = f"synth {part.program.name}"
        return self._start(issued, by, lambda transport: buffers.execute(part, op, transport), buffers.written, op)

    def run_custom(self, name: str, buffers: Buffers, redop: Any, opts: Any) -> Task:
        """Run the library's program of a custom collective that serves these tensors.

        buffers: their block is not looked at. opts: torch's of an all-reduce. Raises InputError where there is none.
        """
        call = Call(name, 0, type_name(buffers.tensors[0]), self._ranks)
        op = reduction_of(redop)
        if op is None or any(t.device.type != "cpu" or t.layout != torch.strided for t in buffers.tensors):
            raise InputError(f"{name}: must be of dense tensors on the CPU, with sum, avg, prod, max or min")
        elements = [tensors[0].numel() if tensors else 0 for tensors in (buffers.given, buffers.written)]
        for entry, program in self._chooser.custom(name, self._ranks):
            part = self._part(program)
            block = _custom_block(program, self._me, elements)
            size_bytes = block * buffers.tensors[0].element_size()
            if block and part.fits(block) and entry.serves(size_bytes):
                break
        else:
            raise InputError(
                f"{name}: the library has no program of it for {self._n} ranks that serves {elements[0]} elements in"
                f" and {elements[1]} out on rank {self._ranks[self._me]}"
            )
        call, buffers = call._replace(size_bytes=size_bytes), replace(buffers, block=block)
        issued = self._issue(call, f"{name} {op}, {size_bytes} bytes of {call.kind}", opts, f", on {program.name}")
        by = f"synth {program.name}"
        return self._start(issued, by, lambda transport: buffers.execute(part, op, transport), buffers.written, op)

    def send_blocks(
        self, name: str, buffers: Buffers, opts: Any, work: Callable[[Transport], None], op: str = "sum"
    ) -> Task:
        """A collective of blocks of several sizes, which neither programs nor Gloo know: sent one by one, by `work`."""
        operation = OPERATIONS[name]
        opts = opts or operation.options()
        call = self._call(operation, buffers, opts)
        counters.count_fallback(call.collective, "blocks may be of unequal sizes: sent one by one")
        issued = self._issue(call, f"{call.collective} of unequal blocks, {call.kind}", opts)
        return self._start(issued, "one by one", work, buffers.written, op)

    def _call(self, operation: Operation, buffers: Buffers, opts: Any) -> Call:
        """What choices depend on; the size is that of the rank that has most elements."""
        like = buffers.tensors[0]
        size_bytes = buffers.block * buffers.blocks * like.element_size()
        root = opts.rootRank if operation.kind.rooted else 0
        return Call(operation.kind.name, size_bytes, type_name(like), self._ranks, root, buffers.in_place)

    def _choose(self, call: Call, buffers: Buffers, redop: Any) -> tuple[Choice, RankProgram | None]:
        """What runs a call; its reason where that is not ours."""
        first, *others = buffers.tensors
        why = ""
        if first.device.type != "cpu":
            why = f"tensors on {first.device.type}: our algorithms run on the CPU's"
        elif any(
            t.layout != torch.strided or t.device != first.device or t.dtype != first.dtype for t in (first, *others)
        ):
            why = "tensors that are sparse, or of several types or devices"
        elif redop is not None and reduction_of(redop) is None:
            why = f"reduction {_reduction_name(redop)}"
        elif redop is not None and call.kind not in REDUCED_TYPES:
            why = f"type {call.kind}"
        elif not call.size_bytes:
            why = "nothing to move"
        if why:
            return Choice(None, why), None
        choice = self._chooser.choose(call, asked_method.get())
        if choice.program is None:
            return choice, None
        name, part = choice.program.name, self._part(choice.program)
        if choice.program.nchannels > MAX_CHANNELS:
            return Choice(None, f"{name}: more than {MAX_CHANNELS} channels"), None
        if not part.fits(buffers.block):
            return Choice(None, f"{name}: not on {buffers.block} elements, chunks would differ"), None
        return choice, part

    def _part(self, program: Program) -> RankProgram:
        """This rank's part of a program, made once; the program is the key as it is, since hashing it reads all."""
        if id(program) not in self._parts:
            self._parts[id(program)] = program, rank_program(program, self._me)
        return self._parts[id(program)][1]

    def _issue(self, call: Call, text: str, opts: Any, on: str = "") -> _Issued:
        """Number the group's next call, and compare it between ranks where that is asked for."""
        self._number += 1
        if self._checks and self._n > 1:
            with self._watch.guard(text + on, self._number):
                check_same_call(self.wrapped["cpu"][1], text + on, self._ranks)
        return _Issued(call, self._number, text, opts)

    def _run_wrapped(
        self, issued: _Issued, operation: Operation, wrapped: Any, buffers: Buffers, arguments: Arguments, redop: Any
    ) -> Any:
        name, opts = wrapped.name(), issued.opts
        record = counters.count(issued.call.collective, name, issued.call.size_bytes)
        copies = Copies(name == "gloo")
        averages = name == "gloo" and redop is not None and reduction_of(redop) == "avg"
        if averages:
            opts.reduceOp = dist.ReduceOp.SUM  # not every version of Gloo knows averages
        work = getattr(wrapped, operation.method)(*arguments(copies), opts)

        def guard() -> AbstractContextManager[None]:
            return self._watch.guard(f"{issued.text} on {name}", issued.number)

        if not averages and not copies:
            return WrappedWork(work, record, self._watch, guard)

        def finish() -> None:
            with guard():
                work.wait()
            copies.write_back(buffers.written)
            if averages:
                self._divide(buffers.written)

        task = Task(finish, buffers.written, record)
        self._thread.put(task, not getattr(opts, "asyncOp", True))
        return task

    def _start(
        self, issued: _Issued, by: str, work: Callable[[Transport], None], written: Sequence[Tensor], op: str
    ) -> Task:
        """Run `work` after what this group was given before it."""
        call, number, text, opts = issued.call, issued.number, issued.text, issued.opts
        tag = FIRST_TAG | (zlib.crc32(f"{number} {text}".encode()) & 0x7FFF) << 15
        waited: dict[int, float] = defaultdict(float)
        limit = getattr(opts, "timeout", None)
        timeout = limit if limit is not None and limit.total_seconds() > 0 else None
        transport = Transport(self.wrapped["cpu"][1], self._ranks, self._me, tag, text, waited, timeout)

        def function() -> None:
            try:
                with self._watch.guard(text, number):
                    work(transport)
                    if op == "avg":
                        self._divide(written)
            finally:
                for peer, seconds in waited.items():
                    counters.count_wait(self._ranks[peer], seconds)

        task = Task(function, written, counters.count(call.collective, by, call.size_bytes))
        self._thread.put(task, not getattr(opts, "asyncOp", True))
        return task

    def _divide(self, sums: Sequence[Tensor]) -> None:
        for tensor in sums:
            whole = not tensor.is_floating_point() and not tensor.is_complex()
            tensor.copy_(torch.div(tensor, self._n, rounding_mode="trunc" if whole else None))

    # ---- what is no collective of data

    def barrier(self, opts: Any) -> Task:
        opts = opts or c10d.BarrierOptions()

        def function() -> None:
            with self._watch.guard(f"barrier of ranks {self._names}"):
                self.wrapped["cpu"][1].barrier(opts).wait()

        task = Task(function, [], counters.count("barrier", "gloo", 0))
        self._thread.put(task, not getattr(opts, "asyncOp", True))
        return task

    def monitored_barrier(self, timeout: Any, wait_all_ranks: bool) -> None:
        """Raises RuntimeError that names the ranks that did not come."""
        self._thread.drain()
        self.wrapped["cpu"][1].monitored_barrier(timeout, wait_all_ranks)

    def message(self, method: str, tensors: Sequence[Tensor], tag: int, peer: int | None = None) -> WrappedWork:
        """A single message by the wrapped back end's `method`, to or from a peer; None: from any."""
        if not 0 <= tag < OWN_TAG:
            raise InputError(f"tag {tag}: is a schedule's; it must be 0 to {OWN_TAG - 1}")
        wrapped = self._wrapped_for(tensors[0])
        size_bytes = sum(t.numel() * t.element_size() for t in tensors)
        whom = "any rank" if peer is None else f"rank {self._ranks[peer]}"
        text = f"{'send to' if method == 'send' else 'receive from'} {whom}, {size_bytes} bytes"
        peers = [] if peer is None else [peer]

        def guard() -> AbstractContextManager[None]:
            return self._watch.guard(text, peers=peers or None)

        with guard():
            work = getattr(wrapped, method)(tensors, *peers, tag)
        record = counters.count(method.removesuffix("_anysource"), wrapped.name(), size_bytes)
        return WrappedWork(work, record, self._watch, guard)

    def shutdown(self) -> None:
        if self._thread.interrupted:  # what is under way waits for ranks that may be gone
            self.abort()
            return
        self._thread.drain()
        self._thread.stop()
        for _, wrapped in self.wrapped.values():
            with suppress(RuntimeError):
                wrapped.shutdown()

    def abort(self) -> None:
        self._thread.stop()
        for _, wrapped in self.wrapped.values():
            with suppress(RuntimeError):
                wrapped.abort()


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements are one place in memory."""
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _custom_block(program: Program, rank: int, elements: Sequence[int]) -> int:
    """Elements of a custom program's block where a rank's input and output have so many; 0 where that cannot be."""
    chunks = Layout.of(program, 0).chunks
    cells = Layout.of(program, 0).cells(rank)
    found = {n * chunks // k for n, k in zip(elements, cells, strict=True) if k}
    block = found.pop() if len(found) == 1 else 0
    return block if list(Layout.of(program, block).sizes(rank)) == list(elements) else 0
