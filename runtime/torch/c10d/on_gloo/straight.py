"""Make messages and barriers straight on the thread of their caller.

Each function that this module builds makes only calls that need nothing else: plain tensors on the CPU, no watchers, no
lost rank, no earlier task. It leaves any other call to the full method, which does the same on Gloo, so ranks need not
agree on it. As in `runtime.torch.c10d.on_gloo.pass_through`, a call runs as little code as it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from runtime.torch.c10d.on_gloo.busy import BusyFlag
from runtime.torch.c10d.work import FINISHED, DeferredWork, HandedOnWork
from runtime.torch.core import Core
from runtime.torch.counters import Tally, counters
from runtime.torch.failures.causes import Waiting
from runtime.torch.messages import OWN_TAG

Tensor: TypeAlias = Any
Method: TypeAlias = Callable[..., Any]
_NO_TIME = timedelta(0)
_modes, _profiled = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled
_plain, _strided = torch.Tensor, torch.strided


def _text_of(_: int, __: Any, text: str) -> str:
    """Return the text of a call that has been handed on with its text in place of torch's options."""
    return text


class Straight:
    """The builder of functions that make a group's messages and barriers straight on its wrapped CPU back end."""

    def __init__(self, core: Core, wrapped: Any, timeout: timedelta) -> None:
        """Take what all calls share.

        Args:
            core: The core of the group.
            wrapped: The wrapped back end for CPU tensors.
            timeout: Time-out that the back end was made with.
        """
        self._core, self._wrapped, self._timeout, self._watch = core, wrapped, timeout, core.watch
        self._compares, self._ends = core.compares, core.watch.ends

    def limit(self, opts: Any) -> timedelta | None:
        """Return the time-out of a call with torch's options or None; None for that of the back end.

        It is that of the options, else the one that the group was given later.
        """
        limit = getattr(opts, "timeout", None)
        if limit is None or limit <= _NO_TIME:
            limit = self._wrapped.options._timeout
        return None if limit == self._timeout else limit

    # ---- single messages

    def message(self, name: str) -> Callable[[Method], Method]:
        """Return the builder of the function that replaces a method for single messages; it takes the full method.

        `name` is that of the method: send, recv or recv_anysource.
        """
        watch, method, ranks = self._watch, getattr(self._wrapped, name), self._core.ranks
        ends = watch.ends
        collective, backend = name.removesuffix("_anysource"), self._wrapped.name()
        length, everybody, clock = 1 if name == "recv_anysource" else 2, range(len(ranks)), time.monotonic
        tally: Tally | None = None  # It is made by the first call, since summaries show it.
        verb = "send to" if name == "send" else "receive from"

        def describe(size_bytes: int, _: Any, peers: Sequence[int]) -> str:
            """Return the text of a message for errors."""
            return f"{verb} {'any rank' if peers is everybody else f'rank {ranks[peers[0]]}'}, {size_bytes} bytes"

        def build(full: Method) -> Method:
            """Return the function for messages that need no look."""

            def call(tensors: Any, *rest: Any, **named: Any) -> Any:
                """Start a message and return torch's Work; by the full method where something must watch it."""
                nonlocal tally
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
                if tally is None:
                    tally = counters.tally(collective, backend)
                tally.sizes.append(size_bytes)
                entry = [None, clock(), None, describe, size_bytes, None, peers, peers, None]
                handle = HandedOnWork()
                handle.handed_on = work, entry, watch, tally, (), None, None, False
                return handle

            return call

        return build

    # ---- calls of all ranks

    def barrier(self, full: Method) -> Method:
        """Return the function for barriers, from the full method; see `BusyFlag`.

        The caller of an asynchronous one ends it, unless another task or question comes first: if another rank is busy,
        this rank must wait for it before its own later tasks.
        """
        options, core, watch, wrapped, ends = dist.BarrierOptions, self._core, self._watch, self._wrapped, self._ends
        calls, lane, compares, limit, clock = watch.calls, core.lane, self._compares, self.limit, time.monotonic
        numbers, open_calls, recent_calls, held, put = calls.numbers, calls.handed_on, calls.recent, lane.held, lane.put
        idle_flags: list[BusyFlag] = []  # Those of barriers that are over.
        tally: Tally | None = None  # It is made by the first call, since summaries show it.

        def call(opts: Any = None, *more: Any) -> Any:
            """Make a barrier and return torch's Work."""
            nonlocal tally
            last_task = lane.last
            if (
                more
                or type(opts) is not options
                or watch.is_alert
                or ends
                or _modes()
                or _profiled()
                or (last_task is not None and not last_task.is_completed())
                or compares
                or limit(opts) is not None
            ):
                return full(*(() if opts is None else (opts, *more)))
            try:
                flag = idle_flags.pop()
            except IndexError:
                flag = BusyFlag()
            calls.last_number = number = next(numbers)
            start = clock()
            entry = open_calls[number] = [number, start, None, _text_of, 0, None, "barrier", None, None]
            recent_calls.append(entry)
            try:
                work = flag.exchange(wrapped, False)
            except RuntimeError:
                open_calls.pop(number, None)
                with watch.guard(Waiting("barrier", number)):
                    raise
            if tally is None:
                tally = counters.tally("barrier", wrapped.name(), "", len(core.ranks))
            tally.sizes.append(0)

            def finish() -> None:
                """Wait until all ranks have come, and if one of them was busy, until all are here again."""
                entry[2], entry[8] = threading.get_ident(), None
                try:
                    work.wait()
                    if flag.value[0]:
                        core.wait_for_tasks(number)
                except RuntimeError:
                    with watch.guard(Waiting("barrier", number)):
                        raise
                finally:
                    open_calls.pop(number, None)
                    held.pop(number, None)
                idle_flags.append(flag)
                tally.end(0, clock() - start)

            if not opts.asyncOp:
                finish()
                return FINISHED
            deferred = entry[8] = DeferredWork()
            place = None  # It does not matter without outputs.
            deferred.deferred = finish, (), put, place, copy_context(), threading.Lock()
            held[number] = deferred.is_completed
            return deferred

        return call
