"""Build short cuts of a group's methods, for calls in the forms in which torch's functions make them.

A short cut looks only at the form of a call, and hands it straight to Gloo or to messages if nothing else is due
(`runtime.torch.c10d.on_gloo.pass_through`, `runtime.torch.c10d.on_gloo.straight`). It leaves every other call to the
method itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from runtime.torch.c10d.dispatch import Dispatcher
from runtime.torch.c10d.operations import ALL_REDUCE_COALESCED, OPERATIONS
from runtime.torch.c10d.packing import MOST_BYTES, fuse
from runtime.torch.c10d.work import FINISHED
from runtime.torch.core import stated_sizes
from runtime.torch.programs.blocks import rows_fit

Method: TypeAlias = Callable[..., Any]
Build: TypeAlias = Callable[[Method], Method]  # Builds the function that replaces a method from the method.

_IN_PLACE = ("all_reduce", "broadcast", "reduce")


class ShortCuts:
    """The short cuts of the methods of a group.

    Attributes:
        builds: By name of the method, a function that takes the full method and returns its short cut.
    """

    def __init__(self, dispatch: Dispatcher, rank: int, size: int) -> None:
        """Prepare the short cuts of a rank's end of a group.

        Args:
            dispatch: Dispatcher of the group.
            rank: Place of this rank in the group.
            size: Number of ranks in the group.
        """
        self._dispatch, self._me, self._n = dispatch, rank, size
        straight = dispatch.straight
        self.builds: dict[str, Build] = {
            **{OPERATIONS[operation].method: self._in_place(operation) for operation in _IN_PLACE},
            "all_gather_single": self._pair("all_gather_into_tensor", 1, size),
            "reduce_scatter_single": self._pair("reduce_scatter_tensor", size, 1),
            "all_to_all_single": self._exchange(),
            "allgather": self._lists("all_gather", 0),
            "reduce_scatter": self._lists("reduce_scatter", 1),
            "gather": self._gather,
            "scatter": self._scatter,
            "barrier": straight.barrier,
            "allreduce_coalesced": self._all_reduces,
            "all_gather_single_coalesced": self._fused("all_gather_into_tensor", size, 1),
            "reduce_scatter_single_coalesced": self._fused("reduce_scatter_tensor", 1, size),
            **{message: straight.message(message) for message in ("send", "recv", "recv_anysource")},
        }

    def _in_place(self, operation: str) -> Build:
        """Return the builder of a short cut for calls with a list of one tensor and options."""
        hand_over, options = self._dispatch.pass_through[operation].call, OPERATIONS[operation].options

        def build(full: Method) -> Method:
            """Return the short cut, which leaves other calls to the full method."""

            def call(tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
                """Make a call and return torch's Work."""
                if type(opts) is options and type(tensors) is list and len(tensors) == 1 and not more and not named:
                    work = hand_over(tensors, 1, tensors, opts, (tensors,))
                    if work is not None:
                        return work
                return full(tensors, *(() if opts is None else (opts, *more)), **named)

            return call

        return build

    def _pair(self, operation: str, out_blocks: int, in_blocks: int) -> Build:
        """Return the builder of a short cut for calls with one output, one input and options.

        `out_blocks` outputs have as many elements as `in_blocks` inputs.
        """
        hand_over, options = self._dispatch.pass_through[operation].call, OPERATIONS[operation].options

        def build(full: Method) -> Method:
            """Return the short cut, which leaves other calls to the full method."""

            def call(output: Any, tensor: Any = None, opts: Any = None, *more: Any, **named: Any) -> Any:
                """Make a call and return torch's Work."""
                are_two = type(opts) is options and type(output) is type(tensor) is torch.Tensor
                if are_two and not (more or named) and out_blocks * output.numel() == in_blocks * tensor.numel():
                    work = hand_over((output, tensor), out_blocks, (output,), opts, (output, tensor))
                    if work is not None:
                        return work
                positional = [value for value in (tensor, opts) if value is not None]
                return full(output, *positional, *more, **named)

            return call

        return build

    def _exchange(self) -> Build:
        """Return the builder of a short cut for all-to-alls of rows with options.

        Calls inside `known_sizes` take the full method: all ranks know their sizes, so the table may have an algorithm
        of synth for them.
        """
        n, options = self._n, OPERATIONS["all_to_all_single"].options
        whole, split = self._dispatch.pass_through["all_to_all_single"].call, self._dispatch.split_exchange.call

        def build(full: Method) -> Method:
            """Return the short cut, which leaves other calls to the full method."""

            def call(output: Any, tensor: Any = None, *rest: Any, **named: Any) -> Any:
                """Make a call and return torch's Work."""
                is_usual = len(rest) == 3 and type(rest[2]) is options and not named and stated_sizes.get() is None
                if is_usual and output.dim() and tensor.dim():
                    out_sizes, in_sizes, opts = rest
                    rows, in_rows = output.size(0), tensor.size(0)
                    if out_sizes or in_sizes:
                        fit = rows_fit(rows, out_sizes, n) and rows_fit(in_rows, in_sizes, n)
                    else:
                        fit = not (rows % n or in_rows % n) and output.numel() == tensor.numel()
                    if fit:
                        arguments = output, tensor, out_sizes, in_sizes
                        hand_over = split if out_sizes or in_sizes else whole
                        work = hand_over((tensor, output), 1, (output,), opts, arguments)
                        if work is not None:
                            return work
                return full(output, *(() if tensor is None else (tensor,)), *rest, **named)

            return call

        return build

    def _lists(self, operation: str, place: int) -> Build:
        """Return the builder of a short cut for calls with one tensor on one side and one for each rank on the other.

        Both sides are lists: [tensor] and [[tensor of rank 0, …]].

        Args:
            operation: all_gather or reduce_scatter.
            place: 0 if the list with one for each rank is the outputs (all_gather), 1 if it is the inputs.
        """
        n, hand_over = self._n, self._dispatch.pass_through[operation].call
        options, gathers = OPERATIONS[operation].options, place == 0

        def build(full: Method) -> Method:
            """Return the short cut, which leaves other calls to the full method."""

            def call(outputs: Any, inputs: Any = None, opts: Any = None, *more: Any, **named: Any) -> Any:
                """Make a call and return torch's Work."""
                if type(opts) is options and not more and not named and len(outputs) == len(inputs) == 1:
                    tensor, blocks = (inputs[0], outputs[0]) if gathers else (outputs[0], inputs[0])
                    count = tensor.numel()
                    for block in blocks:
                        if block.numel() != count:
                            break
                    else:
                        if len(blocks) == n:
                            written = blocks if gathers else outputs
                            work = hand_over((tensor, *blocks), n, written, opts, (outputs, inputs))
                            if work is not None:
                                return work
                positional = [value for value in (inputs, opts) if value is not None]
                return full(outputs, *positional, *more, **named)

            return call

        return build

    def _gather(self, full: Method) -> Method:
        """Return the short cut for gathers with options; on the root it is only for blocks of one shape and dtype.

        It leaves other calls to the full method.
        """
        n, me, hand_over, options = self._n, self._me, self._dispatch.gather.call, OPERATIONS["gather"].options

        def call(outputs: Any, inputs: Any = None, opts: Any = None, *more: Any, **named: Any) -> Any:
            """Make a call and return torch's Work."""
            work = None
            if type(opts) is options and type(inputs) is list and len(inputs) == 1 and not more and not named:
                tensor, root = inputs[0], opts.rootRank
                if root == me and len(outputs) == 1 and len(outputs[0]) == n:
                    for block in outputs[0]:
                        if block.shape != tensor.shape or block.dtype is not tensor.dtype:
                            break
                    else:
                        work = hand_over((tensor, *outputs[0]), n, outputs[0], opts, (outputs, inputs))
                elif root != me and 0 <= root < n:
                    work = hand_over(inputs, n, (), opts, ([], inputs))
            if work is not None:
                return work
            positional = [value for value in (inputs, opts) if value is not None]
            return full(outputs, *positional, *more, **named)

        return call

    def _scatter(self, full: Method) -> Method:
        """Return the short cut for scatters with options; it leaves other calls to the full method."""
        n, me, hand_over, options = self._n, self._me, self._dispatch.scatter.call, OPERATIONS["scatter"].options

        def call(outputs: Any, inputs: Any = None, opts: Any = None, *more: Any, **named: Any) -> Any:
            """Make a call and return torch's Work."""
            work = None
            if type(opts) is options and type(outputs) is list and len(outputs) == 1 and not more and not named:
                output, root = outputs[0], opts.rootRank
                if root == me and len(inputs) == 1 and len(inputs[0]) == n:
                    kind = output.dtype
                    for block in inputs[0]:
                        if block.dtype is not kind:
                            break
                    else:
                        if inputs[0][me].numel() == output.numel():
                            work = hand_over((output, *inputs[0]), n, outputs, opts, (outputs, inputs))
                elif root != me and 0 <= root < n:
                    work = hand_over(outputs, n, outputs, opts, (outputs, inputs))
            if work is not None:
                return work
            positional = [value for value in (inputs, opts) if value is not None]
            return full(outputs, *positional, *more, **named)

        return call

    def _all_reduces(self, full: Method) -> Method:
        """Return the function for many all-reduces in one call with options; it leaves other calls to the full method.

        It hands a call to Gloo if its two or more tensors have one dtype, share no data, are not empty and have at most
        `MOST_BYTES` bytes in all. On another rank the same call may take the full method: that packs the tensors in the
        same order as Gloo, so the messages of both fit.
        """
        hand_over, options = self._dispatch.coalesced.call, ALL_REDUCE_COALESCED.options

        def call(tensors: Any, opts: Any = None, *more: Any, **named: Any) -> Any:
            """Make the calls and return torch's Work."""
            if type(opts) is options and len(tensors) > 1 and not more and not named:
                kind, places = tensors[0].dtype, {tensor.data_ptr() for tensor in tensors}
                are_alike = all(tensor.dtype is kind and tensor.numel() for tensor in tensors)
                if are_alike and len(places) == len(tensors) and sum(t.nbytes for t in tensors) <= MOST_BYTES:
                    work = hand_over(tensors, 0, tensors, opts, (tensors,))
                    if work is not None:
                        return work
            return full(tensors, *(() if opts is None else (opts, *more)), **named)

        return call

    def _fused(self, operation: str, out_blocks: int, in_blocks: int) -> Build:
        """Return the builder of a short cut for many calls in one, with lists of outputs and inputs and options.

        An output has `out_blocks` blocks, an input `in_blocks`.
        """
        hand_over, options = self._dispatch.pass_through[operation].call, OPERATIONS[operation].options
        follow = self._dispatch.follow

        def build(full: Method) -> Method:
            """Return the short cut, which leaves other calls to the full method."""

            def call(outputs: Any, inputs: Any = None, opts: Any = None, *more: Any, **named: Any) -> Any:
                """Make the calls and return torch's Work."""
                if type(opts) is options and len(outputs) > 1 and not more and not named:
                    fused = fuse(outputs, inputs, out_blocks, in_blocks)
                    if fused is not None:
                        tensor, output, unpack = fused
                        work = hand_over((output, tensor), in_blocks, (output,), opts, (output, tensor))
                        if work is FINISHED:
                            with torch.inference_mode():  # It may write any tensor, and leaves nothing for autograd.
                                unpack()
                            return work
                        if work is not None:
                            return follow(work, unpack, outputs)
                positional = [value for value in (inputs, opts) if value is not None]
                return full(outputs, *positional, *more, **named)

            return call

        return build
