"""Hand calls that the wrapped back end serves straight to it, after one decision for a whole range of sizes.

With two ranks on one machine a call of 4 bytes takes Gloo some 30 µs of work, and code that ran before the last wait
has left the processor's caches. So one function does everything that each call needs, without calls to other
functions: it sends nothing, changes no thread, and looks up, locks or creates nothing that can be kept.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from runtime.torch.c10d.operations import TorchOperation
from runtime.torch.c10d.work import FINISHED, PYTHON_CALLERS, DeferredWork, HandedOnWork, caller_place, end_call
from runtime.torch.choice import CHOSEN, Method
from runtime.torch.core import Core, type_text
from runtime.torch.counters import HELD, Tally, counters
from runtime.torch.failures.apart import wait_apart, wait_in_intervals
from runtime.torch.failures.causes import Waiting
from runtime.torch.rank_choices import requested_method
from runtime.torch.table import TableCall

Tensor: TypeAlias = Any
Describe: TypeAlias = Callable[[TorchOperation, int, Any, Any], str]


class _PassedRange(NamedTuple):
    """A range of message sizes, with the tally of its calls if they go straight to Gloo.

    Attributes:
        kind: torch's type of the elements.
        low: First size of the range in bytes.
        high: First size in bytes above the range.
        tally: Counts the calls; None if they do not go straight to Gloo.
        averages: Whether a call may need an average that Gloo does not support, or its tensors may hold the
            conjugates of their values, as only complex ones can; torch's functions make these real.
    """

    kind: Any
    low: int
    high: float
    tally: Tally | None
    averages: bool


_Key: TypeAlias = tuple[Any, Method | None]  # Type of the elements, method asked for.
_FLOAT_AVERAGES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)  # Gloo has them since 2.13.


class PassThrough:
    """The calls of an operation that Gloo, a group's wrapped back end for CPU tensors, serves.

    Attributes:
        call: Makes a call and returns torch's Work, or None if the call must be examined more closely; see `_build`.
    """

    def __init__(
        self,
        core: Core,
        wrapped: Any,
        operation: TorchOperation,
        describe: Describe,
        method: Callable[..., Any] | None = None,
        has_splits: bool = False,
    ) -> None:
        """Build the function that makes the calls of an operation.

        Args:
            core: The core of the group.
            wrapped: The wrapped back end.
            operation: The operation whose calls are made.
            describe: Gives the text of a call for errors, from the operation, its bytes, their type and its options.
            method: Makes a call; None for the wrapped back end's method of the operation's name.
            has_splits: Whether the callers state the sizes of blocks.
        """
        self._has_splits = has_splits
        self._core, self._operation, self._describe, self._backend = core, operation, describe, wrapped.name()
        self._ranges: dict[_Key, list[tuple[int, str | None]]] = {}
        self._method = method or getattr(wrapped, operation.method)
        self.call, forget = self._build()
        core.choices.listeners.append(forget)

    # It is longer than other functions, because a call of a few bytes must call no further functions (see above).
    def _build(self) -> tuple[Callable[..., Any], Callable[[], None]]:
        """Return the function that makes a call, and one that forgets all ranges, since choices have changed."""
        method, operation = self._method, self._operation
        watch, average, unlimited = self._core.watch, dist.ReduceOp.AVG, operation.unlimited
        calls, ends, put_task = watch.calls, watch.ends, self._core.lane.put
        numbers, open_calls, recent_calls = calls.numbers, calls.handed_on, calls.recent
        find, describe, current_method = self._find, self._text, requested_method.get
        no_range = last_range = tuple(_PassedRange(None, 0, -1, None, False))  # A plain tuple is taken apart faster.
        clock, thread, frame_of, lock = time.monotonic, threading.get_ident, sys._getframe, threading.Lock
        parts_from_bytes = watch.parts_from_bytes
        modes, profiled = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled
        plain, strided = torch.Tensor, torch.strided

        def call(
            tensors: Sequence[Tensor], times: int, outputs: Sequence[Tensor], opts: Any, arguments: Sequence[Any]
        ) -> Any:
            """Make one call on Gloo, count it and return torch's Work.

            Unless the options are asynchronous, the call is over when the function returns. It returns None, and has
            done nothing, if the call must be watched, compared or examined.

            Args:
                tensors: Tensors of the call, all of one type.
                times: How many times as large as the first tensor the message is; 0 if it is as large as all outputs.
                outputs: The tensors that are written.
                opts: torch's options.
                arguments: Arguments of the wrapped back end's method before its options.

            Raises:
                RuntimeError: The call failed; the message names the call and the rank to blame.
            """
            nonlocal last_range
            # Modes and profilers must see the call, and a rank that is lost or calls something else must be reported.
            if watch.is_alert or ends or modes() or profiled():
                return None
            for tensor in tensors:  # Their autograd history does not matter: Gloo ignores it.
                if not (
                    type(tensor) is plain
                    and tensor.is_cpu
                    and tensor.layout is strided
                    and tensor.is_contiguous()
                    and not tensor.is_neg()
                ):
                    return None
            first = tensors[0]
            size_bytes, kind, using = first.nbytes * times, first.dtype, current_method()
            if not times:
                size_bytes = sum(tensor.nbytes for tensor in outputs)
            range_kind, low, high, tally, averages = last_range
            if using is not None:
                *_, tally, averages = find(kind, size_bytes)
            elif kind is not range_kind or not low <= size_bytes < high:
                *_, tally, averages = last_range = tuple(find(kind, size_bytes))
            if tally is None or (averages and (kind.is_complex or opts.reduceOp == average)):
                return None
            is_async, number = opts.asyncOp, 0
            try:
                work = method(*arguments, opts)
                # The rest happens while other threads work.
                calls.last_number = number = next(numbers)
                tally.sizes.append(size_bytes)
                start = clock()
                if is_async:
                    entry = open_calls[number] = [number, start, None, describe, size_bytes, kind, opts, None, work]
                    recent_calls.append(entry)
                    try:
                        place = None if id(frame_of(2).f_code) in PYTHON_CALLERS else caller_place(2)
                    except ValueError:  # There are not so many frames: no Python code called the group.
                        place = None
                    if unlimited:
                        finish = partial(end_call, work, entry, watch, tally)
                        entry[-1] = deferred = DeferredWork()
                        deferred.deferred = finish, outputs, put_task, place, copy_context(), lock()
                        return deferred
                    handle = HandedOnWork()
                    handle.handed_on = work, entry, watch, tally, outputs, place, using, False
                    return handle
                entry = open_calls[number] = [number, start, thread(), describe, size_bytes, kind, opts]
                recent_calls.append(entry)
                if size_bytes < parts_from_bytes:
                    work.wait()
                elif unlimited:
                    wait_apart(work.wait, watch.abandons_waits)
                else:
                    wait_in_intervals(work, watch.abandons_waits)
            except RuntimeError:
                with watch.guard(Waiting(describe(size_bytes, kind, opts), calls.last_number)):
                    raise
            finally:
                if not is_async:
                    open_calls.pop(number, None)
            ended = tally.ended
            ended.append((size_bytes, start, clock() - start))
            if len(ended) > HELD:
                tally.add_up()
            return FINISHED

        def forget() -> None:
            """Forget the ranges of sizes."""
            nonlocal last_range
            self._ranges.clear()
            last_range = no_range

        return call, forget

    def _text(self, size_bytes: int, kind: Any, opts: Any) -> str:
        """Return the text of a call for errors, with the back end that serves it."""
        return f"{self._describe(self._operation, size_bytes, kind, opts)}, on {self._backend}"

    def _find(self, kind: Any, size_bytes: int) -> _PassedRange:
        """Return the range that holds a size, of elements of a type, for the method that `using` names now.

        Its tally is None if calls of these sizes must be examined one by one, as all must if ranks compare their calls.
        The ranges of each type and method are kept.
        """
        core, collective, key = self._core, self._operation.kind, (kind, requested_method.get())
        if key not in self._ranges:
            call = TableCall(collective.name, 0, type_text(kind), core.ranks, has_splits=self._has_splits)
            unknown: list[tuple[int, str | None]] = [(0, None)]
            ranges = unknown if core.compares else core.choices.wrapped_ranges(call)
            # Other ranks may have blocks of other sizes, and must choose alike.
            differs = self._operation.uneven and len(ranges) > 1 and not core.choices.decides_by_size(call)
            self._ranges[key] = unknown if differs else ranges
        ranges = self._ranges[key]
        at = bisect_right(ranges, size_bytes, key=lambda size_and_reason: size_and_reason[0])
        low, why = ranges[at - 1]
        high = ranges[at][0] if at < len(ranges) else math.inf
        reason = "" if why in CHOSEN else why or ""
        tally = None if why is None else counters.tally(collective.name, self._backend, reason, len(core.ranks))
        averages = kind.is_complex or (collective.reduces and not (_FLOAT_AVERAGES and kind.is_floating_point))
        return _PassedRange(kind, low, high, tally, averages)
