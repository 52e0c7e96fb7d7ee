"""Hand calls that the wrapped back end serves straight to it, after one decision for a whole range of sizes.

With two ranks on one machine a call of 4 bytes takes Gloo some 30 µs of work, and code that ran before the last wait
has left the processor's caches. So one function does everything that each call needs, without calls to other
functions: it sends nothing, changes no thread, and looks up, locks or creates nothing that can be kept.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import Work

from runtime.torch.c10d.operations import TorchOperation
from runtime.torch.c10d.untraced import untraced_methods
from runtime.torch.c10d.work import WrappedWork
from runtime.torch.choice import CHOSEN, Method
from runtime.torch.core import Core, requested_method, type_text
from runtime.torch.counters import HELD, Tally, counters
from runtime.torch.failures.apart import PARTS_FROM_BYTES, wait_apart, wait_in_turns
from runtime.torch.failures.causes import Waiting
from runtime.torch.programs.blocks import Buffers, holds_values
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
        averages: Whether a call may need an average that Gloo does not support.
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
        call: Makes a call, given its tensors and options, and returns torch's Work; None if the call must be examined
            more closely. A call that does not read and write its first tensor in place also gives its buffers, and the
            arguments of the wrapped back end's method before its options.
    """

    def __init__(self, core: Core, wrapped: Any, operation: TorchOperation, describe: Describe) -> None:
        """Build the function that makes the calls of an operation.

        Args:
            core: The core of the group.
            wrapped: The wrapped back end.
            operation: The operation whose calls are made.
            describe: Gives the text of a call for errors, from the operation, its bytes, their type and its options.
        """
        self._core, self._operation, self._describe, self._backend = core, operation, describe, wrapped.name()
        self._ranges: dict[_Key, list[tuple[int, str | None]]] = {}
        self._method = getattr(wrapped, operation.method)
        self.call = self.calls_or(lambda *_: None)

    # It is longer than other functions, because a call of a few bytes must call no further functions (see above).
    def calls_or(self, fallback: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function like `call`, which returns `fallback(tensors, opts)` where `call` returns None."""
        method = self._method
        watch, collective, backend = self._core.watch, self._operation.kind.name, self._backend
        average, finished, unlimited = dist.ReduceOp.AVG, _FinishedWork(), self._operation.unlimited
        calls, other_calls, gone_ranks, ends = watch.calls, watch.awaited_texts, watch.departures, watch.ends
        numbers, waiting_calls, recent_calls, last_ran = calls.numbers, calls.handed_on, calls.recent, counters.last_ran
        find, describe, current_method, last_range = (
            self._find,
            self._text,
            requested_method.get,
            _PassedRange(None, 0, -1, None, False),
        )
        clock, thread = time.monotonic, threading.get_ident
        plain, strided = torch.Tensor, torch.strided
        modes, profiled = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled

        def call(
            tensors: Sequence[Tensor], opts: Any, buffers: Buffers | None = None, arguments: Sequence[Any] = ()
        ) -> Any:
            """Make one call on Gloo, count it and return torch's Work, or return `fallback(tensors, opts)` instead.

            It calls `fallback` if the call must be watched, compared or examined. Unless the options are asynchronous,
            the call is over when the function returns.

            Args:
                tensors: Tensors of the call.
                opts: torch's options, or None, for which `fallback` is called.
                buffers: The call's buffers; None if the first tensor is read and written in place.
                arguments: With buffers, the arguments of the wrapped back end's method before its options.

            Raises:
                RuntimeError: The call failed; the message names the call and the rank to blame.
            """
            nonlocal last_range
            # Modes and profilers must see the call, and a rank that is lost or calls something else must be reported.
            if opts is None or modes() or profiled() or other_calls or gone_ranks or ends or watch.cause is not None:
                return fallback(tensors, opts)
            for tensor in tensors:  # Their autograd history does not matter: Gloo ignores it.
                if not (type(tensor) is plain and tensor.is_cpu and tensor.layout is strided and holds_values(tensor)):
                    return fallback(tensors, opts)
            size_bytes, kind, size_range = (
                tensor.nbytes if buffers is None else buffers.size_bytes,
                tensor.dtype,
                last_range,
            )
            if current_method() is not None:
                size_range = find(kind, size_bytes)
            elif size_range[0] is not kind or not size_range[1] <= size_bytes < size_range[2]:
                size_range = last_range = find(kind, size_bytes)
            tally = size_range[3]
            if tally is None or (size_range[4] and opts.reduceOp == average) or (unlimited and opts.asyncOp):
                return fallback(tensors, opts)
            if opts.asyncOp:
                waiting = watch.issue(describe(size_bytes, kind, opts))
                with watch.guard(waiting, new=True, closes=False):
                    work = method(tensors, opts) if buffers is None else method(*arguments, opts)
                tally.start(size_bytes)
                wait = partial(wait_in_turns, work, watch.is_left)
                outputs = tensors if buffers is None else buffers.outputs
                return WrappedWork(work, partial(tally.end, size_bytes), watch, waiting, wait, outputs)

            number = 0
            try:
                work = method(tensors, opts) if buffers is None else method(*arguments, opts)
                # The rest happens while other threads work.
                calls.last_number = number = next(numbers)
                start = clock()
                entry = waiting_calls[number] = number, start, thread(), describe, size_bytes, kind, opts
                recent_calls.append(entry)
                tally.sizes.append(size_bytes)
                last_ran[collective] = backend
                if size_bytes < PARTS_FROM_BYTES:
                    work.wait()
                elif unlimited:
                    wait_apart(work.wait, watch.is_left)
                else:
                    wait_in_turns(work, watch.is_left)
            except RuntimeError:
                with watch.guard(Waiting(describe(size_bytes, kind, opts), calls.last_number)):
                    raise
            finally:
                waiting_calls.pop(number, None)
            ended = tally.ended
            ended.append((size_bytes, start, clock() - start))
            if len(ended) > HELD:
                tally.add_up()
            return finished

        return call

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
            call = TableCall(collective.name, 0, type_text(kind), core.ranks)
            self._ranges[key] = [(0, None)] if core.compares else core.wrapped_ranges(call)
        ranges = self._ranges[key]
        at = bisect_right(ranges, size_bytes, key=lambda size_and_reason: size_and_reason[0])
        low, why = ranges[at - 1]
        if self._operation.uneven and len(ranges) > 1:
            why = None  # Other ranks may have blocks of other sizes, and must choose alike.
        high = ranges[at][0] if at < len(ranges) else math.inf
        reason = "" if why in CHOSEN else why or ""
        tally = None if why is None else counters.tally(collective.name, self._backend, reason, len(core.ranks))
        averages = collective.reduces and not (_FLOAT_AVERAGES and kind.is_floating_point)
        return _PassedRange(kind, low, high, tally, averages)


@untraced_methods
class _FinishedWork(Work):  # type: ignore[misc]
    """The Work of a call for which its caller has waited already: it is over from the start."""

    def wait(self, _: Any = None) -> bool:
        """Return True at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def get_future(self) -> Any:
        """Return a future that is already done, without tensors."""
        future: Any = torch.futures.Future()
        future.set_result([])
        return future
