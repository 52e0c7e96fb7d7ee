"""Calls of fixed tensors that are made again and again: all that does not change between them is found once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from runtime.torch.c10d.dispatch import reduction_of
from runtime.torch.c10d.group import Group, group_of_synth
from runtime.torch.c10d.operations import OPERATIONS
from runtime.torch.programs.blocks import Buffers
from runtime.torch.programs.rank_program import RankProgram
from runtime.torch.rank_choices import requested_method
from runtime.torch.table import TableCall
from topologies.errors import InputError

Tensor: TypeAlias = Any


@dataclass(frozen=True)
class _Form:
    """How a collective takes its tensors.

    Attributes:
        method: Name of the group's method.
        tensors: Number of tensors: 1 for one in place, 2 for an output and an input.
        blocks: Blocks of the rank's output and of its input, as "one" or "all", where there are two.
    """

    method: str
    tensors: int = 1
    blocks: tuple[str, str] = ("one", "one")


_FORMS = {
    "all_reduce": _Form("allreduce"),
    "broadcast": _Form("broadcast"),
    "reduce": _Form("reduce"),
    "all_gather_into_tensor": _Form("all_gather_single", 2, ("all", "one")),
    "reduce_scatter_tensor": _Form("reduce_scatter_single", 2, ("one", "all")),
    "all_to_all_single": _Form("all_to_all_single", 2, ("all", "all")),
}


class Persistent:
    """A collective of fixed tensors. `start` makes the call once more; only one may be under way at a time.

    What serves the call, this rank's part of a program and the call's text are found at the first start, and again if
    the ranks have agreed on a failure of the network since. All ranks start the call in the same order as their other
    calls, as if they made it anew each time.
    """

    def __init__(self, group: Group, name: str, tensors: Sequence[Tensor], op: Any, root: int) -> None:
        """Check the tensors, and prepare the call; nothing is sent.

        Args:
            group: The group.
            name: torch's name of the collective, a key of `_FORMS`.
            tensors: The tensor in place, or the output and the input.
            op: torch's reduction; ignored without one.
            root: Place of the root in the group; ignored without one.

        Raises:
            InputError: The collective cannot be persistent, or the tensors or the root do not fit it.
        """
        if name not in _FORMS:
            raise InputError(f"persistent: {name!r} is not known; it must be one of {', '.join(_FORMS)}")
        form, operation = _FORMS[name], OPERATIONS[name]
        if len(tensors) != form.tensors:
            expected = "one tensor" if form.tensors == 1 else "an output and an input"
            raise InputError(f"persistent: {name} of {len(tensors)} tensors; it must be {expected}")
        self._group, self._operation, self._options = group, operation, operation.options()
        self._options.asyncOp = True
        if operation.kind.reduces:
            self._options.reduceOp = op
        if operation.kind.rooted:
            self._options.rootRank = root
        self._buffers = _buffers(name, form, tensors, group.size(), group.rank(), root)
        self._buffers.check_outputs(operation.kind.name)
        split: tuple[Any, ...] = ([], []) if name == "all_to_all_single" else ()
        self._arguments = ([tensors[0]],) if form.tensors == 1 else (*tensors, *split)
        self._full = getattr(group, form.method)
        self._method = requested_method.get()
        self._op = reduction_of(self._options.reduceOp) if operation.kind.reduces else None
        self._planned: tuple[TableCall, str, str, RankProgram | None] | None = None
        self._version = -1  # Number of the core's choices from which the plan was made.
        self._last: Any = None

    def start(self) -> Any:
        """Start the call once more, and return torch's Work, as a call with async_op=True does.

        Raises:
            InputError: The last start is not over.
            RuntimeError: The call is known to be in vain, or ranks compare their calls, and these differ.
        """
        if self._last is not None and not self._last.is_completed():
            raise InputError(f"persistent {self._operation.name}: the last start is not over; it must be waited for")
        core = self._group._dispatch.core
        if self._planned is None or self._version != core.choices.version:
            self._planned, self._version = self._plan(), core.choices.version
        call, text, served_by, part = self._planned
        is_watched = (
            self._group._registered.hooked
            or torch._C._len_torch_dispatch_stack()
            or torch._C._autograd._profiler_enabled()
        )
        if part is not None and not is_watched:
            issued = core.issue(call, text, served_by)
            self._last = core.execute(issued, part, self._buffers, self._op or "sum", self._terms)
            return self._last
        token = requested_method.set(self._method)
        try:
            self._last = self._full(*self._arguments, self._options)
        finally:
            requested_method.reset(token)
        return self._last

    def _plan(self) -> tuple[TableCall, str, str, RankProgram | None]:
        """Return the call, its text, the text of what serves it, and this rank's part of a program, if one serves it.

        The blocks of an all-to-all are equal here, which its text states, so that ranks need not exchange their sizes.
        One that is planned for its sizes has no part.
        """
        dispatch, buffers = self._group._dispatch, self._buffers
        self._terms = dispatch.terms(self._options)
        call = dispatch._call(self._operation, buffers, self._options)
        text = dispatch._describe(self._operation, buffers.size_bytes, buffers.tensors[0].dtype, self._options)
        if self._operation.uneven:
            text = f"{text}, all of {buffers.block} elements"
        part = None
        if not dispatch.core.choices.chooser.plans(call, self._method):
            part = dispatch.core.choices.choose(call, buffers, self._op, self._method)[1]
        return call, text, "" if part is None else f", on {part.program.name}", part


def _buffers(name: str, form: _Form, tensors: Sequence[Tensor], ranks: int, me: int, root: int) -> Buffers:
    """Return the buffers of a call, whose tensors are on the CPU or on another device.

    Raises:
        InputError: The tensors' lengths do not fit together, or the root is not in the group.
    """
    if not 0 <= root < ranks:
        raise InputError(f"persistent: {name} of root {root}; it must be a rank of the group, 0 to {ranks - 1}")
    if form.tensors == 1:
        (tensor,) = tensors
        outputs = [] if name == "reduce" and me != root else [tensor]
        return Buffers([tensor], outputs, tensor.numel(), in_place=True)
    output, tensor = tensors
    blocks = [ranks if number == "all" else 1 for number in form.blocks]
    if output.numel() * blocks[1] != tensor.numel() * blocks[0] or output.numel() % blocks[0]:
        raise InputError(
            f"persistent: {name} of {tensor.numel()} elements into {output.numel()} on {ranks} ranks;"
            f" it must be {blocks[1]} and {blocks[0]} equal blocks"
        )
    return Buffers([tensor], [output], output.numel() // blocks[0], max(blocks))


def persistent(name: str, *tensors: Tensor, op: Any = None, root: int = 0, group: Any = None) -> Persistent:
    """Prepare a collective of fixed tensors that is made again and again; each `start()` of the result makes it once.

        sums = synth.torch.persistent("all_reduce", gradients)
        for batch in batches:
            ...  # write the gradients
            work = sums.start()
            work.wait()

    Args:
        name: torch's name of the collective: all_reduce, broadcast, reduce, all_gather_into_tensor,
            reduce_scatter_tensor or all_to_all_single (of equal blocks).
        tensors: The tensor in place, or the output and the input, as torch's function takes them.
        op: torch's reduction; None for sums.
        root: Root of a broadcast or a reduction, as the whole job numbers it.
        group: Group of synth; None for the default group.

    Raises:
        InputError: The collective cannot be persistent, the tensors do not fit it, or the group has another back end.
    """
    synth_group = group_of_synth(group, "persistent")
    members = dist.get_process_group_ranks(synth_group)
    place = members.index(root) if root in members else -1
    if not OPERATIONS.get(name) or not OPERATIONS[name].kind.rooted:
        place = 0
    return Persistent(synth_group, name, tensors, dist.ReduceOp.SUM if op is None else op, place)
