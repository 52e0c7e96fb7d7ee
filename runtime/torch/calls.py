"""The part of a process group that all its collectives share: choosing, running, telling, and single messages."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from emit.program import Program
from runtime.torch.choice import Call, Choice, Chooser, Way
from runtime.torch.compare import agree, same_choices
from runtime.torch.lost import OWN_TAG, Lookout, plain
from runtime.torch.rank_program import Part, part_of
from runtime.torch.run import FIRST_TAG, MAX_CHANNELS, Wire
from runtime.torch.tally import Tally
from runtime.torch.work import Lane, Passed, Task
from topologies.errors import InputError

Tensor: TypeAlias = Any
Own = Callable[[Part, Wire, str], None]
Inner = Callable[[Any, Any, "_Copies"], Any]

OPS = {"SUM": "sum", "PRODUCT": "prod", "MAX": "max", "MIN": "min", "AVG": "avg"}
_NAMES = (*OPS, "BAND", "BOR", "BXOR", "PREMUL_SUM")
REDUCED = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
                     torch.int16, torch.int8, torch.uint8})  # fmt: skip
tally = Tally()
asked: list[Way] = []  # back ends named for the calls at hand, the innermost last


@lru_cache(maxsize=256)
def _part(program: Program, rank: int) -> Part:
    return part_of(program, rank)


def flat(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it where it is not contiguous, in one dimension."""
    return tensor.contiguous().view(-1)


def back(tensor: Tensor, values: Tensor) -> None:
    """Put `flat`'s values back where they are a copy."""
    if not tensor.is_contiguous():
        tensor.copy_(values.view(tensor.shape))


def op_of(redop: Any) -> str | None:
    """Our name of a reduction; None for one that we do not know."""
    return OPS.get(name_of(redop))


def name_of(redop: Any) -> str:
    """Torch's name of a reduction."""
    return next((name for name in _NAMES if redop == getattr(dist.ReduceOp, name)), "unknown")


def _shares(tensor: Tensor) -> bool:
    """Whether it has two elements in one place."""
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


class _Copies(dict[int, Tensor]):
    """Contiguous copies for Gloo, which takes a tensor for its memory: it mixes up layouts and runs over gaps."""

    def __init__(self, wanted: bool) -> None:
        super().__init__()
        self._wanted = wanted

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors, or copies of those that are strewn."""
        return [self._one(tensor) for tensor in tensors]

    def _one(self, tensor: Tensor) -> Tensor:
        if not self._wanted or tensor.layout != torch.strided or tensor.is_contiguous():
            return tensor
        return self.setdefault(id(tensor), tensor.contiguous())

    def back(self, tensors: Sequence[Tensor]) -> None:
        """Put what the copies hold into the tensors."""
        for tensor in tensors:
            if id(tensor) in self:
                tensor.copy_(self[id(tensor)])


class Calls(dist.ProcessGroup):  # type: ignore[misc]
    """One rank's end of a process group, without its collectives.

    Raises InputError on every rank where ranks would choose differently.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, ranks: Sequence[int]) -> None:
        super().__init__(rank, size)
        self._me, self._n, self._store = rank, size, store
        self._ranks = tuple(ranks) or tuple(range(size))
        self._inner: dict[str, Any] = {}
        self._lookout = Lookout(store, rank, self._ranks)
        gloo = self._gloo(timeout)
        gloo._set_sequence_number_for_group()
        self._wrap("cpu", dist.ProcessGroup.BackendType.GLOO, gloo)
        if torch.cuda.is_available() and dist.is_nccl_available():
            wanted = dist.ProcessGroupNCCL.Options()
            wanted._timeout = timeout
            nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl/", store), rank, size, wanted)
            nccl._set_sequence_number_for_group()
            self._wrap("cuda", dist.ProcessGroup.BackendType.NCCL, nccl)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._lane = Lane(f"group of ranks {self._names()}")
        self._number = 0
        self._checks = os.environ.get("SYNTH_CHECK", "0") not in ("", "0")
        fault, said = None, ""
        try:
            self._chooser = Chooser.of_environment()
            if not dist.is_initialized():  # this group is the whole job
                self._chooser.fits(size)
            said = f"{self._chooser.said} {self._checks}"
        except InputError as error:
            fault = str(error)
        if size > 1:
            with self._lookout.over(f"making a {self._lane.name}"):
                same_choices(gloo, said, fault, self._ranks)
        elif fault is not None:
            raise InputError(fault)

    def _gloo(self, timeout: Any) -> Any:
        """The wrapped back end for CPU tensors. Raises RuntimeError, naming who did not come, at the time-out."""
        self._store.set(f"here/{self._me}", "1")
        try:
            gloo = dist.ProcessGroupGloo(
                dist.PrefixStore("gloo/", self._store), self._me, self._n, timeout=timeout
            )
        except RuntimeError as error:
            absent: list[int] = []
            with suppress(RuntimeError):
                absent = [r for k, r in enumerate(self._ranks) if not self._store.check([f"here/{k}"])]
            lost = f"; lost: rank {', '.join(map(str, absent))} (no word of it)" if absent else ""
            raise RuntimeError(f"making a group of ranks {self._names()}: {plain(error)}{lost}") from error
        self._lookout.inner = gloo
        return gloo

    def _names(self) -> str:
        return ", ".join(map(str, self._ranks))

    def _wrap(self, device: str, kind: Any, inner: Any) -> None:
        self._inner[device] = inner
        self._register_backend(torch.device(device), kind, inner)

    def _on(self, tensor: Tensor) -> Any:
        device = tensor.device.type
        if device not in self._inner:
            raise RuntimeError(
                f"a tensor on {device}: this group has tensors on {' or '.join(sorted(self._inner))} only"
            )
        return self._inner[device]

    def _call(self, collective: str, tensor: Tensor, elements: int, root: int = 0) -> Call:
        """A call that moves so many elements, seen from the rank that has most of them."""
        kind = str(tensor.dtype).removeprefix("torch.")
        return Call(collective, elements * tensor.element_size(), kind, self._ranks, root)

    def _choice(
        self, call: Call, tensors: Sequence[Tensor], redop: Any, elements: int
    ) -> tuple[Choice, Part | None]:
        """What runs a call; its reason where that is not ours."""
        first = tensors[0]
        why = ""
        if first.device.type != "cpu":
            why = f"tensors on {first.device.type}: our algorithms run on the CPU's"
        elif any(
            t.layout != torch.strided or t.device != first.device or t.dtype != first.dtype for t in tensors
        ):
            why = "tensors that are sparse, or of several types or devices"
        elif redop is not None and op_of(redop) is None:
            why = f"reduction {name_of(redop)}"
        elif redop is not None and first.dtype not in REDUCED:
            why = f"type {call.kind}"
        elif not call.size_bytes:
            why = "nothing to move"
        if why:
            return Choice(None, why), None
        choice = self._chooser.choose(call, asked[-1] if asked else None)
        if choice.program is None:
            return choice, None
        part = _part(choice.program, self._me)
        if choice.program.nchannels > MAX_CHANNELS:
            return Choice(None, f"{choice.program.name}: more than {MAX_CHANNELS} channels"), None
        if not part.fits(elements):
            return Choice(
                None, f"{choice.program.name}: not on {elements} elements, chunks would differ"
            ), None
        return choice, part

    def _do(
        self,
        call: Call,
        tensors: Sequence[Tensor],
        opts: Any,
        own: Own,
        inner: Inner,
        made: Sequence[Tensor],
        elements: int,
        redop: Any = None,
    ) -> Any:
        """Run a collective.

        Args:
            call, elements: what is chosen by; elements of a block, as in `Layout`.
            tensors: all that take part, the one that says type and device first. made: those it writes.
            own: what a program of ours does.
            inner: the wrapped back end's method, given it, the options, and what copies tensors.
            redop: torch's reduction, None where nothing is reduced.
        """
        within = self._on(tensors[0])
        for tensor in made:
            if tensor.layout == torch.strided and _shares(tensor):
                raise ValueError(
                    f"{call.collective}: several elements of an output of shape {list(tensor.shape)} are one place in"
                    " memory; it must be a tensor of its own, as by .contiguous()"
                )
        choice, part = self._choice(call, tensors, redop, elements)
        self._number += 1
        told = self._told(call, redop)
        self._agree(f"{told}, on {within.name() if part is None else part.program.name}")
        if part is None:
            if choice.reason not in ("asked for", "by the table"):
                tally.fell(call.collective, choice.reason)
            return self._by_inner(call, within, opts, inner, made, redop, told)
        op = op_of(redop) if redop is not None else "sum"
        assert op is not None

        def work(wire: Wire) -> None:
            own(part, wire, op)
            if op == "avg":
                self._divide(made)

        return self._task(call, f"synth {part.program.name}", work, made, opts, told)

    def _agree(self, told: str) -> None:
        if self._checks and self._n > 1:
            with self._lookout.over(told, self._number):
                agree(self._inner["cpu"], told, self._ranks)

    def _told(self, call: Call, redop: Any) -> str:
        reduced = "" if redop is None else f" {op_of(redop) or name_of(redop)}"
        root = f" of root {self._ranks[call.root]}" if call.collective in (
            "broadcast", "reduce", "gather", "scatter") else ""  # fmt: skip
        return f"{call.collective}{reduced}{root}, {call.size_bytes} bytes of {call.kind}"

    def _by_inner(
        self, call: Call, within: Any, opts: Any, inner: Inner, made: Sequence[Tensor], redop: Any, told: str
    ) -> Any:
        name, number = within.name(), self._number
        note = tally.note(call.collective, name, call.size_bytes)
        copies = _Copies(name == "gloo")
        averages = name == "gloo" and redop is not None and op_of(redop) == "avg"
        if averages:
            opts.reduceOp = dist.ReduceOp.SUM  # not every version of Gloo knows averages
        work = inner(within, opts, copies)

        def watched() -> AbstractContextManager[None]:
            return self._lookout.over(f"{told} on {name}", number)

        if not averages and not copies:
            return Passed(work, note, self._lookout, watched)

        def finished() -> None:
            with watched():
                work.wait()
            copies.back(made)
            if averages:
                self._divide(made)

        task = Task(finished, made, note)
        self._lane.put(task, not getattr(opts, "asyncOp", True))
        return task

    def _direct(self, call: Call, opts: Any, work: Callable[[Wire], None], made: Sequence[Tensor]) -> Any:
        """Blocks of several sizes, which neither programs nor Gloo know, are sent one by one."""
        self._number += 1
        tally.fell(call.collective, "blocks may be of unequal sizes: sent one by one")
        told = f"{call.collective} of unequal blocks, {call.kind}"
        self._agree(told)
        return self._task(call, "one by one", work, made, opts, told)

    def _task(
        self, call: Call, by: str, work: Callable[[Wire], None], made: Sequence[Tensor], opts: Any, told: str
    ) -> Task:
        number = self._number
        tag = FIRST_TAG | (zlib.crc32(f"{number} {told}".encode()) & 0x7FFF) << 15
        waited: dict[int, float] = defaultdict(float)
        wire = Wire(self._inner["cpu"], self._ranks, self._me, tag, told, waited)
        limit = getattr(opts, "timeout", None)
        if limit is not None and limit.total_seconds() > 0:
            wire = replace(wire, timeout=limit)

        def function() -> None:
            try:
                with self._lookout.over(told, number):
                    work(wire)
            finally:
                for peer, seconds in waited.items():
                    tally.waited(self._ranks[peer], seconds)

        task = Task(function, made, tally.note(call.collective, by, call.size_bytes))
        self._lane.put(task, not getattr(opts, "asyncOp", True))
        return task

    def _divide(self, made: Sequence[Tensor]) -> None:
        for tensor in made:
            whole = not tensor.is_floating_point() and not tensor.is_complex()
            tensor.copy_(torch.div(tensor, self._n, rounding_mode="trunc" if whole else None))

    # ---- what is no collective of data

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """As torch asks for it."""
        return "synth"

    def barrier(self, opts: Any = None) -> Any:
        """After all that was given to this group."""
        self._lane.drain()
        note = tally.note("barrier", "gloo", 0)
        work = self._inner["cpu"].barrier(opts or c10d.BarrierOptions())
        return Passed(
            work, note, self._lookout, lambda: self._lookout.over(f"barrier of ranks {self._names()}")
        )

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not come. Torch's function of this name refuses our groups."""
        self._lane.drain()
        self._inner["cpu"].monitored_barrier(timeout, wait_all_ranks)

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._message("send", tensors, tag, f"send to rank {self._ranks[peer]}", [peer])

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._message("recv", tensors, tag, f"receive from rank {self._ranks[peer]}", [peer])

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._message("recv_anysource", tensors, tag, "receive from any rank", [])

    def _message(self, name: str, tensors: Any, tag: int, what: str, peers: list[int]) -> Passed:
        if not 0 <= tag < OWN_TAG:
            raise ValueError(f"tag {tag}; it must be 0 to {OWN_TAG - 1}; those above are the schedules'")
        within = self._on(tensors[0])
        size_bytes = sum(t.numel() * t.element_size() for t in tensors)
        told = f"{what}, {size_bytes} bytes"

        def watched() -> AbstractContextManager[None]:
            return self._lookout.over(told, peers=peers or None)

        with watched():
            work = getattr(within, name)(tensors, *peers, tag)
        note = tally.note(name.removesuffix("_anysource"), within.name(), size_bytes)
        return Passed(work, note, self._lookout, watched)

    def shutdown(self) -> None:
        """What was given is still done; then the thread ends."""
        self._lane.drain()
        self._lane.stop()
        for inner in self._inner.values():
            with suppress(RuntimeError):
                inner.shutdown()

    def abort(self) -> None:
        """The thread ends when it can."""
        self._lane.stop()
        for inner in self._inner.values():
            with suppress(RuntimeError):
                inner.abort()
