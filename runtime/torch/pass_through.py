"""Calls that the wrapped back end serves as they are: decided once for a range of sizes, and then handed on.

With two ranks on one machine a call of 4 bytes takes Gloo some 30 µs of work, and code that ran before the last wait is
no longer in the processor's caches. So what is done with every call stands in one function, without others to call:
nothing is sent, no thread is changed, and nothing is looked up, locked or made anew that can be kept.
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

from runtime.torch.blocks import Buffers, holds_values
from runtime.torch.choice import CHOSEN, Method
from runtime.torch.core import Core, asked_method, type_text
from runtime.torch.counters import HELD, Tally, counters
from runtime.torch.failures.apart import PARTS_FROM_BYTES, wait_apart, wait_in_turns
from runtime.torch.failures.causes import Waiting
from runtime.torch.operations import Operation
from runtime.torch.table import Call
from runtime.torch.untraced import untraced_methods
from runtime.torch.work import WrappedWork

Tensor: TypeAlias = Any
Describe: TypeAlias = Callable[[Operation, int, Any, Any], str]


class _Range(NamedTuple):
    """Sizes from `low` on and below `high`: what counts their calls if they are passed on, None if they are not.

    kind: type of the elements. averages: whether a call may be of an average that Gloo does not know.
    """

    kind: Any
    low: int
    high: float
    tally: Tally | None
    averages: bool


_Key: TypeAlias = tuple[Any, Method | None]  # type of the elements, method asked for
_FLOAT_AVERAGES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)  # Gloo knows them since then


class PassThrough:
    """The calls of an operation that a group's wrapped back end for CPU tensors, Gloo, serves.

    Attributes:
        call: makes one, given its tensors and options; torch's Work, or None where more than what is looked at here
            must be known before. Where it is not the first tensor that is read and written in place: buffers, and the
            arguments of the wrapped back end's method before its options.
    """

    def __init__(self, core: Core, wrapped: Any, operation: Operation, describe: Describe) -> None:
        """describe: a call in words, for errors, given its bytes, their type and its options."""
        self._core, self._operation, self._describe, self._by = core, operation, describe, wrapped.name()
        self._ranges: dict[_Key, list[tuple[int, str | None]]] = {}
        self._method = getattr(wrapped, operation.method)
        self.call = self.calls_or(lambda *_: None)

    def calls_or(self, other: Callable[..., Any]) -> Callable[..., Any]:
        """As `call`, but with what `other` gives for the same arguments in place of None."""
        method = self._method
        watch, collective, by = self._core.watch, self._operation.kind.name, self._by
        average, over, unlimited = dist.ReduceOp.AVG, _Over(), self._operation.unlimited
        calls, theirs, left, ends = watch.calls, watch.theirs, watch.left, watch.ends
        numbers, waits, lately, last_ran = calls.numbers, calls.passed, calls.lately, counters.last_ran
        find, describe, asked, last = self._find, self._text, asked_method.get, _Range(None, 0, -1, None, False)
        clock, thread = time.monotonic, threading.get_ident
        plain, strided = torch.Tensor, torch.strided
        modes, profiled = torch._C._len_torch_dispatch_stack, torch._C._autograd._profiler_enabled

        def call(
            tensors: Sequence[Tensor], opts: Any, buffers: Buffers | None = None, arguments: Sequence[Any] = ()
        ) -> Any:
            nonlocal last
            # not behind the back of modes and profilers, nor where a rank is known to be lost or to differ
            if opts is None or modes() or profiled() or theirs or left or ends or watch.cause is not None:
                return other(tensors, opts)
            for tensor in tensors:  # whose history may be any: Gloo does not look at it
                if not (type(tensor) is plain and tensor.is_cpu and tensor.layout is strided and holds_values(tensor)):
                    return other(tensors, opts)
            size_bytes, kind, held = tensor.nbytes if buffers is None else buffers.size_bytes, tensor.dtype, last
            if asked() is not None:
                held = find(kind, size_bytes)
            elif held[0] is not kind or not held[1] <= size_bytes < held[2]:
                held = last = find(kind, size_bytes)
            tally = held[3]
            if tally is None or (held[4] and opts.reduceOp == average) or (unlimited and opts.asyncOp):
                return other(tensors, opts)
            if opts.asyncOp:
                waiting = watch.issue(describe(size_bytes, kind, opts))
                with watch.guard(waiting, new=True, closes=False):
                    work = method(tensors, opts) if buffers is None else method(*arguments, opts)
                tally.start(size_bytes)
                wait = partial(wait_in_turns, work, watch.is_left)
                written = tensors if buffers is None else buffers.written
                return WrappedWork(work, tally.end, watch, waiting, wait, written)

            number = 0
            try:
                work = method(tensors, opts) if buffers is None else method(*arguments, opts)
                # the rest is done while others work
                calls.made = number = next(numbers)
                begun = clock()
                entry = waits[number] = number, begun, thread(), describe, size_bytes, kind, opts
                lately.append(entry)
                tally.sizes.append(size_bytes)
                last_ran[collective] = by
                if size_bytes < PARTS_FROM_BYTES:
                    work.wait()
                elif unlimited:
                    wait_apart(work.wait, watch.is_left)
                else:
                    wait_in_turns(work, watch.is_left)
            except RuntimeError:
                with watch.guard(Waiting(describe(size_bytes, kind, opts), calls.made)):
                    raise
            finally:
                waits.pop(number, None)
            times = tally.times
            times.append(clock() - begun)
            if len(times) > HELD:
                tally.add_up()
            return over

        return call

    def _text(self, size_bytes: int, kind: Any, opts: Any) -> str:
        return f"{self._describe(self._operation, size_bytes, kind, opts)}, on {self._by}"

    def _find(self, kind: Any, size_bytes: int) -> _Range:
        """The range of a size, of elements of a type, for the method that is asked for."""
        core, collective, key = self._core, self._operation.kind, (kind, asked_method.get())
        if key not in self._ranges:
            call = Call(collective.name, 0, type_text(kind), core.ranks)
            self._ranges[key] = [(0, None)] if core.compares else core.wrapped_ranges(call)
        ranges = self._ranges[key]
        at = bisect_right(ranges, size_bytes, key=lambda each: each[0])
        low, why = ranges[at - 1]
        high = ranges[at][0] if at < len(ranges) else math.inf
        tally = None if why is None else counters.tally(collective.name, self._by, "" if why in CHOSEN else why)
        averages = collective.reduces and not (_FLOAT_AVERAGES and kind.is_floating_point)
        return _Range(kind, low, high, tally, averages)


@untraced_methods
class _Over(Work):  # type: ignore[misc]
    """Of a call that its caller waits for, which is over when it returns."""

    def wait(self, _: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def get_future(self) -> Any:
        done: Any = torch.futures.Future()
        done.set_result([])
        return done
