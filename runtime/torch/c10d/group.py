"""Define the process group whose methods torch.distributed calls: one per collective, over a `Dispatcher`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from runtime.torch.c10d.dispatch import Dispatcher, reduction_of
from runtime.torch.c10d.operations import OPERATIONS
from runtime.torch.c10d.packing import Coalesced, group_calls, pack
from runtime.torch.c10d.registered import EARLIER, Watched, plain, watched
from runtime.torch.c10d.short_cuts import ShortCuts
from runtime.torch.c10d.untraced import untraced_methods
from runtime.torch.c10d.work import CombinedWork
from runtime.torch.core import Terms, type_name
from runtime.torch.programs.blocks import (
    Blocks,
    Buffers,
    Move,
    flat,
    gather_blocks,
    reduce_blocks,
    split_rows,
    write_back,
)
from runtime.torch.programs.rank_program import RankProgram
from runtime.torch.programs.run import REDUCERS
from runtime.torch.programs.transport import Transport
from runtime.torch.table import REDUCED_TYPES
from topologies.errors import InputError

Tensor: TypeAlias = Any

# By torch's function: the method that makes the packed call, and whether its input and output have a block per rank.
_PACKED = {
    "all_reduce": ("allreduce", (False, False)),
    "all_gather_into_tensor": ("all_gather_single", (False, True)),
    "reduce_scatter_tensor": ("reduce_scatter_single", (True, False)),
}
# Places of the arguments that are lists of one tensor. torch's functions give no other lists, but Gloo supports several
# devices per rank.
ONE_TENSOR = {"allreduce": (0,), "broadcast": (0,), "reduce": (0,), "allgather": (0, 1), "reduce_scatter": (0, 1),
              "gather": (1,), "scatter": (0,)}  # fmt: skip


def group_of_synth(group: Any, user: str) -> Group:
    """Return a group, or the default group for None; raise InputError, which names the user, if it is none of synth."""
    own_group = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(own_group, Group):
        raise InputError(f"{user}: the group has another back end; it must be a group of synth")
    return own_group


@untraced_methods
class Group(Watched):
    """A rank's end of a process group, with the methods that torch.distributed calls.

    The methods of collectives and messages take torch's arguments (lists of one tensor where torch gives such lists)
    and options (None: torch's defaults), start the call, and return torch's Work. They write the outputs and raise
    InputError if tensors do not fit together, or if an algorithm that was named does not exist.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, ranks: Sequence[int], name: str = "") -> None:
        """Build the group of a rank.

        Args:
            store: torch's store of the group.
            rank: Place of this rank in the group.
            size: Number of ranks in the group.
            timeout: Time-out of the calls, a timedelta.
            ranks: The members, as the job numbers them; empty for 0 to size − 1.
            name: torch's name of the group.

        Raises:
            InputError: Ranks would choose differently; every rank raises it.
            RuntimeError: A rank is lost or does not come in time; the message names it.
        """
        super().__init__(store, rank, size)
        self._me, self._n, self._timeout = rank, size, timeout
        self._dispatch = Dispatcher(store, rank, size, timeout, ranks, name)
        for method, build in ShortCuts(self._dispatch, rank, size).builds.items():
            self._shorten(method, build)
        for device, (kind, wrapped) in self._dispatch.wrapped.items():
            self._register_backend(torch.device(device), kind, wrapped)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    # ---- collectives

    @watched
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Start an all-reduce of a list of one tensor in place, and return torch's Work."""
        buffers = Buffers(tensors, tensors, tensors[0].numel(), in_place=True)
        return self._dispatch.run("all_reduce", buffers, opts, lambda copy: [copy(tensors)])

    @watched
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Start all-reduces of the tensors of a list in place, packed by type, and return one torch's Work for all.

        A tensor that is listed more than once is reduced once.
        """
        distinct = {
            (t.data_ptr(), t.shape, t.stride()): t for t in tensors
        }.values()  # Like Gloo, which reads all tensors first, it reduces a repeated tensor once.
        calls = [Coalesced(([tensor],), [tensor], [tensor]) for tensor in distinct]
        return self._coalesced("all_reduce", "allreduce", tensors, calls, opts)

    @watched
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start an all-gather into one output tensor per rank, which may differ in size, and return torch's Work.

        outputs[0] has one tensor per rank, inputs[0] is this rank's tensor.

        Raises:
            InputError: There is not one output per rank, or this rank's output is not as long as its input.
        """
        into, tensor = outputs[0], inputs[0]
        count = tensor.numel()
        self._check_one_a_rank("all_gather", "outputs", into, count, "input")
        if tensor.device.type == "cpu" and any(out.numel() != count for out in into):
            sizes = [out.numel() for out in into]
            return self._dispatch.send_blocks(
                "all_gather",
                Buffers([tensor], into, sum(sizes)),
                sizes,
                opts,
                lambda part, transport: gather_blocks(transport, tensor, into, part),
            )
        buffers = Buffers([tensor], into, count, self._n)
        return self._dispatch.run("all_gather", buffers, opts, lambda copy: [[copy(into)], copy(inputs)])

    @watched
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Start an all-gather of equally long tensors into one output, in the order of ranks, and return torch's Work.

        Raises:
            InputError: The output does not have as many elements as the inputs of all ranks.
        """
        self._check_blocks("all_gather_into_tensor", output.numel(), tensor.numel())
        buffers = Buffers([tensor], [output], tensor.numel(), self._n)
        return self._dispatch.run("all_gather_into_tensor", buffers, opts, lambda copy: copy([output, tensor]))

    @watched
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start all-gathers of each tensor of `inputs` into one of `outputs`, packed by type; return one Work for all.

        Raises:
            InputError: An output does not have as many elements as its input has on all ranks.
        """
        calls = []
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_blocks("all_gather_into_tensor", output.numel(), tensor.numel())
            calls.append(Coalesced((output, tensor), [tensor], [output]))
        return self._coalesced("all_gather_into_tensor", "all_gather_single", outputs, calls, opts)

    @watched
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start all-gathers of the tensors of `inputs` into lists of outputs, packed by type; return one Work for all.

        `outputs` has for each input a list of one tensor per rank. If it has as many lists as ranks, but not as many as
        inputs, it has for each rank a list of one tensor per input.
        """
        lists = zip(*outputs, strict=True) if len(outputs) == self._n != len(inputs) else outputs
        calls = []
        for into, tensor in zip(lists, inputs, strict=True):
            even = len(into) == self._n and all(out.numel() == tensor.numel() for out in into)
            calls.append(Coalesced(([list(into)], [tensor]), [tensor], list(into), even))
        return self._coalesced("all_gather_into_tensor", "allgather", outputs, calls, opts)

    @watched
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start a reduce-scatter of one input tensor per rank, which may differ in size, and return torch's Work.

        inputs[0] has one tensor for each rank, outputs[0] is this rank's output.

        Raises:
            InputError: There is not one input per rank, or this rank's input is not as long as its output.
        """
        out, parts = outputs[0], inputs[0]
        count = out.numel()
        self._check_one_a_rank("reduce_scatter", "inputs", parts, count, "output")
        op = reduction_of((opts or OPERATIONS["reduce_scatter"].options()).reduceOp)
        uneven = any(part.numel() != count for part in parts)
        total = sum(part.numel() for part in parts)  # All lists are the same on all ranks, and so is this.
        buffers = Buffers(parts, [out], total) if uneven else Buffers(parts, [out], count, self._n)
        if uneven and out.device.type == "cpu" and op in REDUCERS and type_name(out) in REDUCED_TYPES:
            return self._dispatch.send_blocks(
                "reduce_scatter",
                buffers,
                [part.numel() for part in parts],
                opts,
                lambda part, transport: reduce_blocks(transport, out, parts, op, part),
                op,
            )
        return self._dispatch.run("reduce_scatter", buffers, opts, lambda copy: [copy(outputs), [copy(parts)]])

    @watched
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Start a reduce-scatter of one tensor with a block per rank, in the order of ranks; return torch's Work.

        Raises:
            InputError: The tensor does not have as many elements as the outputs of all ranks.
        """
        self._check_blocks("reduce_scatter_tensor", tensor.numel(), output.numel())
        buffers = Buffers([tensor], [output], output.numel(), self._n)
        return self._dispatch.run("reduce_scatter_tensor", buffers, opts, lambda copy: copy([output, tensor]))

    @watched
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start reduce-scatters of each tensor of `inputs` into one of `outputs`, packed by type; return one Work.

        Raises:
            InputError: An input does not have as many elements as its output has on all ranks.
        """
        calls = []
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_blocks("reduce_scatter_tensor", tensor.numel(), output.numel())
            calls.append(Coalesced((output, tensor), [tensor], [output]))
        return self._coalesced("reduce_scatter_tensor", "reduce_scatter_single", outputs, calls, opts)

    @watched
    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, out_sizes: Any = None, in_sizes: Any = None, opts: Any = None
    ) -> Any:
        """Start an all-to-all of the rows of one tensor, in blocks of equal or given numbers of rows; return a Work.

        Args:
            output: Tensor that is written; its rows lie along its first dimension.
            tensor: Tensor that is sent, likewise.
            out_sizes: Rows of `output` that come from each rank; None or empty for equal blocks.
            in_sizes: Rows of `tensor` that go to each rank; None or empty for equal blocks.
            opts: torch's options, or None.

        Raises:
            InputError: The sizes do not fit the tensors or the number of ranks.
        """
        if not out_sizes and not in_sizes:
            count = tensor.numel() // self._n
            self._check_blocks("all_to_all_single", tensor.numel(), count)
            self._check_blocks("all_to_all_single", output.numel(), count)
        values = flat(output)
        into = split_rows(values.view(output.shape), out_sizes, self._n)
        blocks = Blocks.of(split_rows(tensor, in_sizes, self._n), into)

        def exchange_rows(transport: Transport, move: Move) -> None:
            """Bring the blocks to their destinations by `move`, and write the received rows into the output."""
            blocks.exchange(transport, move)
            write_back(output, values)

        return self._dispatch.run_blocks(
            "all_to_all_single",
            replace(blocks, exchange=exchange_rows),
            Buffers([tensor], [output], tensor.numel() // self._n, self._n),
            opts,
            lambda copy: [*copy([output, tensor]), out_sizes or [], in_sizes or []],
            bool(out_sizes or in_sizes),
        )

    @watched
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start an all-to-all of one tensor per rank, which may differ in size, and return torch's Work.

        inputs[r] goes to rank r, and outputs[r] comes from it.

        Raises:
            InputError: There is not one output and one input per rank.
        """
        self._check_one_a_rank("all_to_all", "outputs", outputs)
        self._check_one_a_rank("all_to_all", "inputs", inputs)
        buffers = Buffers(inputs, outputs, sum(tensor.numel() for tensor in inputs) // self._n, self._n)
        return self._dispatch.run_blocks(
            "all_to_all",
            Blocks.of(inputs, outputs),
            buffers,
            opts,
            lambda copy: [copy(outputs), copy(inputs)],
            True,
        )

    @watched
    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Start a broadcast of a list of one tensor in place, from the root in the options, and return torch's Work."""
        buffers = Buffers(tensors, tensors, tensors[0].numel(), in_place=True)
        return self._dispatch.run("broadcast", buffers, opts, lambda copy: [copy(tensors)])

    @watched
    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Start a reduction of a list of one tensor to the root in the options, in place there; return torch's Work."""
        outputs = tensors if self._is_root("reduce", opts) else []
        buffers = Buffers(tensors, outputs, tensors[0].numel(), in_place=True)
        return self._dispatch.run("reduce", buffers, opts, lambda copy: [copy(tensors)])

    @watched
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start a gather to the root in the options, of blocks that may differ in size, and return torch's Work.

        inputs[0] is this rank's block. On the root outputs[0] has one tensor per rank; elsewhere `outputs` is ignored.

        Raises:
            InputError: The root does not have one output per rank.
        """
        into = outputs[0] if self._is_root("gather", opts) else []
        if self._is_root("gather", opts):
            self._check_one_a_rank("gather", "outputs", into)
        parts = self._at_root("gather", opts, inputs[0])
        return self._dispatch.run_blocks(
            "gather",
            Blocks.of(parts, into or [None] * self._n),
            Buffers(inputs, into, inputs[0].numel(), self._n),
            opts,
            lambda copy: [[copy(into)] if into else [], copy(inputs)],
        )

    @watched
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Start a scatter from the root in the options, of blocks that may differ in size, and return torch's Work.

        outputs[0] is this rank's block. On the root inputs[0] has one tensor per rank; elsewhere `inputs` is ignored.

        Raises:
            InputError: The root does not have one input per rank, or its own is not as long as its output.
        """
        parts = inputs[0] if self._is_root("scatter", opts) else []
        if self._is_root("scatter", opts):
            self._check_one_a_rank("scatter", "inputs", parts, outputs[0].numel(), "output")
        into = self._at_root("scatter", opts, outputs[0])
        return self._dispatch.run_blocks(
            "scatter",
            Blocks.of(parts or [None] * self._n, into),
            Buffers(parts, outputs, outputs[0].numel(), self._n),
            opts,
            lambda copy: [copy(outputs), [copy(parts)] if parts else []],
        )

    def _serve(self, name: str, arguments: Sequence[Any]) -> Any:
        """Call the method of this name without another look for watchers, and return its Work.

        Gloo serves the call instead if a list that should have one tensor does not.
        """
        if any(len(arguments[place]) != 1 for place in ONE_TENSOR.get(name, ())):
            return self._dispatch.pass_on(name, [plain(argument) for argument in arguments])
        return super()._serve(name, arguments)

    def _coalesced(
        self, name: str, method: str, outputs: Sequence[Any], calls: Sequence[Coalesced], opts: Any
    ) -> CombinedWork:
        """Start calls packed into one call per element type, and return one Work for all.

        Calls that cannot be packed run on their own.

        Args:
            name: torch's function, a row of OPERATIONS.
            method: Method that makes one call.
            outputs: Outputs of all calls, which are the result of the Work.
            calls: The calls.
            opts: torch's options of all calls, or None; the time-out, the reduction and whether the caller waits are
                used. The calls are not waited for one by one.

        Raises:
            InputError: Elements of an output of a packed call share memory.
        """
        row, is_async = OPERATIONS[name], getattr(opts, "asyncOp", True)
        works = []
        unpacks: list[Callable[[], None]] = []
        for packable in group_calls(calls):
            call_options = row.options()
            if opts is not None:
                call_options.timeout, call_options.asyncOp = opts.timeout, is_async
                if row.kind.reduces:
                    call_options.reduceOp = opts.reduceOp
            if len(packable) == 1:
                works.append(self._serve(method, [*packable[0].arguments, call_options]))
                continue
            for call in packable:
                Buffers(call.inputs, call.outputs, 0).check_outputs(row.kind.name)
            packed, blocks = _PACKED[name]
            tensor, output, unpack = pack(
                packable, *(self._n if has_block_per_rank else 1 for has_block_per_rank in blocks)
            )
            arguments = [[tensor]] if output is tensor else [output, tensor]
            work = self._serve(packed, [*arguments, call_options])
            if is_async:
                work = self._dispatch.follow(work, unpack, [tensor for call in packable for tensor in call.outputs])
            else:
                unpacks.append(unpack)
            works.append(work)
        if not is_async:
            for work in works:
                work.wait()
            with torch.inference_mode():  # As in tasks, it may write any tensor, and leaves nothing for autograd.
                for unpack in unpacks:
                    unpack()
        return CombinedWork(works, outputs)

    def _is_root(self, name: str, opts: Any) -> bool:
        """Return True if this rank is the root of a call."""
        return bool((opts or OPERATIONS[name].options()).rootRank == self._me)

    def _at_root(self, name: str, opts: Any, block: Tensor) -> list[Tensor | None]:
        """Return a list of one item per rank: `block` at the root's place, and None elsewhere."""
        root = (opts or OPERATIONS[name].options()).rootRank
        return [block if rank == root else None for rank in range(self._n)]

    def _check_one_a_rank(
        self, name: str, which: str, tensors: Sequence[Tensor], count: int | None = None, model: str = ""
    ) -> None:
        """Raise InputError if there is not one tensor per rank, or this rank's has another length than it must have.

        Args:
            name: Name of the call.
            which: What the tensors are, in the plural.
            tensors: The tensors.
            count: Elements that this rank's tensor must have; None for any.
            model: The tensor that has as many.
        """
        if len(tensors) != self._n:
            raise InputError(f"{name}: {len(tensors)} {which}; it must be {self._n}, one per rank")
        if count is not None and tensors[self._me].numel() != count:
            own = f"{which[:-1]} {self._me} has {tensors[self._me].numel()} elements"
            raise InputError(f"{name}: {own}; it must be {count}, as the {model} has")

    def _check_blocks(self, name: str, elements: int, block: int) -> None:
        """Raise InputError, which names the call, unless `elements` is the number of ranks times `block`."""
        if elements != block * self._n:
            raise InputError(
                f"{name}: {elements} elements in {self._n} blocks of {block}; it must be {block * self._n}"
            )

    def custom(self, name: str, output: Any, tensor: Any, redop: Any, opts: Any) -> Any:
        """Start a custom collective by its name in the library, and return its task.

        Args:
            name: Name of the collective.
            output: Tensor on the CPU that is written, of any shape; empty if the rank has none.
            tensor: Tensor that is read, likewise.
            redop: torch's reduction.
            opts: torch's options of an all-reduce, for the time-out and whether the caller waits at once.

        Raises:
            InputError: Both tensors are empty, the reduction is not supported, or no program of the library serves the
                tensors.
            RuntimeError: Ranks compare their calls, and these differ, or a rank is lost.
        """
        inputs, outputs = ([plain(value)] if value.numel() else [] for value in (tensor, output))
        if not inputs and not outputs:
            raise InputError(f"{name}: has neither input nor output on this rank; it must have one of them")
        terms = self._dispatch.terms(opts)
        return self._dispatch.core.execute_custom(name, Buffers(inputs, outputs, 0), reduction_of(redop), terms)

    def agree_on_failures(self, seen: Sequence[str]) -> tuple[str, ...]:
        """Agree with all ranks on the failed parts of the network; see `runtime.torch.core.Core.agree_on_failures`."""
        return self._dispatch.core.agree_on_failures(seen)

    def run_program(self, part: RankProgram, buffers: Buffers, op: str) -> Any:
        """Start this rank's part of a custom program, which need not be in a library; return its task.

        The caller must wait at once: without earlier tasks, the part runs on this thread before the function returns.

        Args:
            part: This rank's part.
            buffers: Tensors of the call; the outputs are written.
            op: A key of REDUCERS.
        """
        return self._dispatch.core.execute_program(part.program.name, part, buffers, op, Terms(waits=True))

    # ---- barriers, messages, and the beginning and end of groups

    def getBackendName(self) -> str:  # noqa: N802 - the name is torch's
        """Return the name of the back end."""
        return "synth"

    @watched
    def barrier(self, opts: Any = None) -> Any:
        """Start a barrier after this group's earlier tasks, and return torch's Work, which ends when all have come."""
        return self._dispatch.barrier(opts or dist.BarrierOptions())

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for the group's earlier tasks, then for all ranks.

        Args:
            timeout: Limit of the wait for ranks, a timedelta; None for Gloo's own.
            wait_all_ranks: Whether the error names all ranks that did not come, instead of the first.

        Raises:
            RuntimeError: A rank did not come in time.
        """
        self._dispatch.monitored_barrier(timeout, wait_all_ranks)

    @watched
    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Start to send a list of one tensor to a place in the group, and return torch's Work.

        Raises:
            InputError: The tag is negative, or one of those that schedules use.
        """
        return self._dispatch.message("send", tensors, tag, peer)

    @watched
    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Start to receive into a list of one tensor from a place in the group, and return torch's Work.

        Raises:
            InputError: The tag is negative, or one of those that schedules use.
        """
        return self._dispatch.message("recv", tensors, tag, peer)

    @watched
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Start to receive into a list of one tensor from any rank, and return torch's Work, which knows the sender.

        Raises:
            InputError: The tag is negative, or one of those that schedules use.
        """
        return self._dispatch.message("recv_anysource", tensors, tag)

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        **_: Any,
    ) -> Group | None:
        """Build a group of some of these ranks, as all of its members do; return None on other ranks.

        torch's `split_group` calls it. Before torch 2.15 that function refuses groups without a device, as it does for
        Gloo.

        Args:
            new_ranks: Places in this group, in the order of the new group.
            timeout: Time-out of the new group, a timedelta; None for this group's.
            group_name: Its name; None for one made of its ranks.
            group_desc: Its description; None for "undefined".

        Raises:
            InputError: Ranks would choose differently.
            RuntimeError: A rank is lost or does not come in time.
        """
        if self._me not in new_ranks:
            return None
        members = [self._dispatch.ranks[r] for r in new_ranks]
        name = group_name or f"split {','.join(map(str, members))}"
        store = dist.PrefixStore(f"{name}/", self.get_group_store())
        new_group = Group(store, new_ranks.index(self._me), len(new_ranks), timeout or self._timeout, members, name)
        new_group._set_group_name(name)
        new_group._set_group_desc(group_desc or "undefined")
        return new_group

    def shutdown(self) -> None:
        """Wait for the open calls, leave the group and stop its thread.

        Calls that are not over within the group's time-out are stopped, and so are all if Ctrl-C ended a call. A call
        that another rank does not make ends with an error.
        """
        self._dispatch.shutdown()

    def abort(self) -> None:
        """Stop the open calls, leave the group and stop its thread."""
        self._dispatch.abort()


for _name, _earlier in EARLIER.items():
    setattr(Group, _earlier, getattr(Group, _name))
