"""Make messages, barriers, gathers and scatters straight on the thread of their caller.

Gloo has gathers and scatters of equal blocks only, so messages make them. Each function that this module builds makes
only calls that need nothing else: plain tensors on the CPU, no watchers, no lost rank, no earlier task. It leaves any
other call to the full method, which sends the same messages, so ranks need not agree on it. As in
`runtime.torch.c10d.pass_through`, a call runs as little code as it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias

import torch
import torch.distributed as dist

from runtime.algorithms.built_in import DIRECT
from runtime.torch.c10d.busy import BusyFlag
from runtime.torch.c10d.operations import OPERATIONS
from runtime.torch.c10d.work import FINISHED, DeferredWork, HandedOnWork
from runtime.torch.core import Core, requested_method, type_text
from runtime.torch.counters import Tally, counters
from runtime.torch.failures.apart import wait_apart
from runtime.torch.failures.causes import Waiting
from runtime.torch.messages import OWN_TAG
from runtime.torch.programs.transport import MAX_CHANNELS, Transport, call_tag
from runtime.torch.table import TableCall
from topologies.errors import MessageLost

Tensor: TypeAlias = Any
Method: TypeAlias = Callable[..., Any]
_NO_TIME = timedelta(0)
_modes, _profiled = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled
_plain, _strided = torch.Tensor, torch.strided


Started: TypeAlias = tuple[Any, int]  # A message that has started: Gloo's Work, and the place of the other rank.


def _text_of(_: int, __: Any, text: str) -> str:
    """Return the text of a call that has been handed on with its text in place of torch's options."""
    return text


class _Exchange:
    """A call of all ranks for which this rank sends some blocks, or receives some.

    Attributes:
        entry: The call, as a list in the form of `HandedOnCall`.
    """

    entry: list[Any]
    __slots__ = ("_core", "_longest_bytes", "_sends", "_started", "_tag", "_tally", "_wrapped", "entry")

    def __init__(
        self,
        core: Core,
        wrapped: Any,
        tally: Tally,
        text: str,
        size_bytes: int,
        blocks: Sequence[tuple[Tensor, int]],
        sends: bool,
    ) -> None:
        """Start the messages of the group's next call.

        Args:
            core: The core of the group.
            wrapped: The wrapped back end for CPU tensors.
            tally: Tally of the calls of its kind.
            text: Text of the call for errors; without what stands behind its last comma it gives the tag of the
                messages, with the call's number.
            size_bytes: Size of the call's message in bytes.
            blocks: Blocks, each with the place of the other rank.
            sends: Whether this rank sends the blocks; otherwise it receives them.

        Raises:
            RuntimeError: A rank cannot be reached; the message names it.
        """
        calls = core.watch.calls
        calls.last_number = number = next(calls.numbers)
        self._core, self._wrapped, self._tally, self._sends = core, wrapped, tally, sends
        self._tag = tag = call_tag(number, text.rpartition(", ")[0])
        self._started: list[Started] = []
        self._longest_bytes = 0
        entry: list[Any] = [
            number,
            time.monotonic(),
            threading.get_ident(),
            _text_of,
            size_bytes,
            None,
            text,
            None,
            None,
        ]
        self.entry = calls.handed_on[number] = entry
        calls.recent.append(entry)
        begin, started = wrapped.send if sends else wrapped.recv, self._started
        for tensor, peer in blocks:
            block_bytes = tensor.nbytes
            self._longest_bytes = max(self._longest_bytes, block_bytes)
            try:
                started.append((begin([tensor], peer, tag + block_bytes % MAX_CHANNELS), peer))
            except RuntimeError as error:
                self._fail(peer, "reaches", error)

    def finish(self) -> None:
        """Wait for the messages, and count the call.

        Raises:
            RuntimeError: A message did not come; the error names the call and the rank to blame.
        """
        entry, watch = self.entry, self._core.watch
        entry[2] = threading.get_ident()
        entry[8] = None
        if self._longest_bytes < watch.parts_from_bytes:
            self._wait()
        else:
            try:
                wait_apart(self._wait, watch.is_left)
            except MessageLost:
                raise
            except RuntimeError as error:
                self._fail(self._started[0][1], "waits for", error)
        watch.calls.handed_on.pop(entry[0], None)
        self._tally.start(entry[4])
        self._tally.end(entry[4], time.monotonic() - entry[1])

    def _wait(self) -> None:
        """Wait for the messages one by one, and count the waits."""
        before, ranks = time.monotonic(), self._core.ranks
        for work, peer in self._started:
            try:
                work.wait()
            except RuntimeError as error:
                self._fail(peer, "sends to" if self._sends else "waits for", error)
            after = time.monotonic()
            counters.count_wait(ranks[peer], after - before)
            before = after

    def _fail(self, peer: int, word: str, error: RuntimeError) -> NoReturn:
        """Count and close the call, and raise its error, with the verb `word` between the names of both ranks."""
        core, entry = self._core, self.entry
        core.watch.calls.handed_on.pop(entry[0], None)
        self._tally.start(entry[4])
        self._tally.end(entry[4], time.monotonic() - entry[1])
        transport = Transport(self._wrapped, core.ranks, core.rank, self._tag, entry[6])
        with core.watch.guard(Waiting(entry[6], entry[0])):
            raise transport.loss(peer, word, error) from error
        raise error  # The guard raises one already.


class Straight:
    """The calls of a group that need only a few messages of its wrapped back end for CPU tensors."""

    def __init__(self, core: Core, wrapped: Any, timeout: timedelta) -> None:
        """Take what all calls share.

        Args:
            core: The core of the group.
            wrapped: The wrapped back end for CPU tensors.
            timeout: Time-out that the back end was made with.
        """
        self._core, self._wrapped, self._timeout, self._watch = core, wrapped, timeout, core.watch
        self._compares = core.compares
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._direct_texts: dict[Any, str | None] = {}

    def _must_be_examined(self, opts: Any) -> bool:
        """Return True if a call of all ranks, with torch's options, must take the full path."""
        watch, last_task = self._watch, self._core.lane.last
        return bool(
            watch.is_alert
            or watch.ends
            or _modes()
            or _profiled()
            or (last_task is not None and not last_task.is_completed())
            or self._compares
            or opts.timeout > _NO_TIME
            or self._wrapped.options._timeout != self._timeout
        )

    def _tally(self, collective: str, backend: str, ranks: int) -> Tally:
        """Return the tally of calls, built the first time."""
        tally = self._tallies.get((collective, backend))
        if tally is None:
            tally = self._tallies[collective, backend] = counters.tally(collective, backend, "", ranks)
        return tally

    # ---- single messages

    def message(self, name: str) -> Callable[[Method], Method]:
        """Return what builds the function for a method that sends or receives a single message, from the full method.

        `name` is send, recv or recv_anysource.
        """
        watch, method, ranks = self._watch, getattr(self._wrapped, name), self._core.ranks
        ends = watch.ends
        collective, backend = name.removesuffix("_anysource"), self._wrapped.name()
        length, everybody, clock = 1 if name == "recv_anysource" else 2, range(len(ranks)), time.monotonic
        verb = "send to" if name == "send" else "receive from"

        def describe(size_bytes: int, _: Any, peers: Sequence[int]) -> str:
            """Return the text of a message for errors."""
            return f"{verb} {'any rank' if peers is everybody else f'rank {ranks[peers[0]]}'}, {size_bytes} bytes"

        def build(full: Method) -> Method:
            """Return the function for messages that need no look."""

            def call(tensors: Any, *rest: Any, **named: Any) -> Any:
                """Start a message and return torch's Work."""
                if (
                    named
                    or len(rest) != length
                    or type(tensors) is not list
                    or len(tensors) != 1
                    or _modes()
                    or _profiled()
                    or watch.is_alert
                    or ends
                    or not 0 <= rest[-1] < OWN_TAG
                ):
                    return full(tensors, *rest, **named)
                tensor = tensors[0]
                if not (type(tensor) is _plain and tensor.is_cpu and tensor.layout is _strided):
                    return full(tensors, *rest, **named)
                size_bytes, peers = tensor.nbytes, everybody if length == 1 else rest[:1]
                try:
                    work = method(tensors, *rest)
                except RuntimeError:
                    with watch.guard(Waiting(describe(size_bytes, None, peers), None, peers)):
                        raise
                tally = self._tally(collective, backend, 0)
                tally.start(size_bytes)
                entry = [None, clock(), None, describe, size_bytes, None, peers, peers, None]
                handle = HandedOnWork()
                handle.made = work, entry, watch, tally, (), None, None, False
                return handle

            return call

        return build

    # ---- calls of all ranks

    def barrier(self, full: Method) -> Method:
        """Return the function for barriers, from the full method; see `BusyFlag`."""
        options, watch, wrapped = dist.BarrierOptions, self._watch, self._wrapped
        calls, put_task, backend = watch.calls, self._core.lane.put, wrapped.name()
        n = len(self._core.ranks)

        def call(opts: Any = None, *more: Any) -> Any:
            """Make a barrier and return torch's Work."""
            if more or type(opts) is not options or self._must_be_examined(opts):
                return full(*(() if opts is None else (opts, *more)))
            is_busy, start = BusyFlag(), time.monotonic()
            try:
                work = is_busy.exchange(wrapped, False)
                calls.last_number = number = next(calls.numbers)
                tally = self._tally("barrier", backend, n)
                tally.sizes.append(0)
                entry: list[Any] = [number, start, threading.get_ident(), _text_of, 0, None, "barrier", None, None]
                calls.handed_on[number] = entry
                calls.recent.append(entry)
            except RuntimeError:
                with watch.guard(Waiting("barrier", calls.last_number)):
                    raise

            def finish() -> None:
                """Wait for the other ranks, for their tasks too if they have any, and count the barrier."""
                entry[2] = threading.get_ident()
                entry[8] = None
                try:
                    work.wait()
                    if is_busy:
                        self._core.wait_for_tasks(number)
                except RuntimeError:
                    with watch.guard(Waiting("barrier", number)):
                        raise
                finally:
                    calls.handed_on.pop(number, None)
                tally.end(0, time.monotonic() - start)

            if opts.asyncOp:
                entry[8] = deferred = DeferredWork(finish, (), put_task)
                return deferred
            finish()
            return FINISHED

        return call

    def gather(self, full: Method) -> Method:
        """Return the function for gathers, from the full method."""

        def call(outputs: Any, inputs: Any = None, opts: Any = None, *more: Any, **named: Any) -> Any:
            """Make a gather and return torch's Work."""
            work = None if more or named else self._rooted("gather", inputs, outputs, opts)
            if work is not None:
                return work
            return full(outputs, *[value for value in (inputs, opts) if value is not None], *more, **named)

        return call

    def scatter(self, full: Method) -> Method:
        """Return the function for scatters, from the full method."""

        def call(outputs: Any, inputs: Any = None, opts: Any = None, *more: Any, **named: Any) -> Any:
            """Make a scatter and return torch's Work."""
            work = None if more or named else self._rooted("scatter", outputs, inputs, opts)
            if work is not None:
                return work
            return full(outputs, *[value for value in (inputs, opts) if value is not None], *more, **named)

        return call

    def _rooted(self, name: str, own: Any, lists: Any, opts: Any) -> Any:
        """Make a gather or a scatter by a message for each block, and return torch's Work; None if it must be examined.

        Args:
            name: gather or scatter.
            own: torch's list of this rank's block.
            lists: At the root torch's list of the list of all ranks' blocks.
            opts: torch's options of the call.
        """
        if type(opts) is not OPERATIONS[name].options or type(own) is not list or len(own) != 1:
            return None
        if self._must_be_examined(opts):
            return None
        core, root, block, gathers = self._core, opts.rootRank, own[0], name == "gather"
        me, n, kind, blocks = core.rank, len(core.ranks), block.dtype, own
        if root == me:
            if len(lists) != 1 or len(lists[0]) != n:
                return None
            blocks = [block, *lists[0]]
        for tensor in blocks:
            if not (
                type(tensor) is _plain
                and tensor.is_cpu
                and tensor.layout is _strided
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and not tensor.is_conj()
                and tensor.dtype is kind
                and tensor.numel()
            ):
                return None
        key = name, kind, root, requested_method.get()
        text = self._direct_texts[key] if key in self._direct_texts else self._direct_text(*key)
        if text is None:
            return None
        if root == me:
            source, target = (block, blocks[me + 1]) if gathers else (blocks[me + 1], block)
            if source.shape != target.shape or target.is_inference():
                return None
            target.data.copy_(source.data)
            exchanged = [(blocks[peer + 1], peer) for peer in range(n) if peer != me]
        else:
            exchanged = [(block, root)]
        tally = self._tally(name, f"synth {DIRECT}", n)
        exchange = _Exchange(core, self._wrapped, tally, text, block.nbytes * n, exchanged, gathers != (root == me))
        if not opts.asyncOp:
            exchange.finish()
            return FINISHED
        outputs = own if not gathers else blocks[1:]
        work = DeferredWork(exchange.finish, outputs, core.lane.put)
        exchange.entry[2], exchange.entry[8] = None, work
        return work

    def _direct_text(self, name: str, kind: Any, root: int, using: Any) -> str | None:
        """Return the text of gathers or scatters whose blocks go straight to their destinations; None for others.

        The answer is for the method that `using` names now, and is kept.
        """
        ranks, text = self._core.ranks, None
        if 0 <= root < len(ranks):
            call = TableCall(OPERATIONS[name].kind.name, 1, type_text(kind), ranks, root)
            if not self._core.paths(call) - {"direct", "wrapped"}:
                text = f"{call.collective} of root {ranks[root]} of blocks of {call.kind}, {DIRECT}"
        self._direct_texts[name, kind, root, using] = text
        return text
