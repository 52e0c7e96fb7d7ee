"""Connect a process group to torch.distributed: to its options and Works, and to the back ends that are wrapped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from runtime.torch.added import ADDED
from runtime.torch.c10d.on_gloo.busy import BusyFlag
from runtime.torch.c10d.on_gloo.pass_through import PassThrough
from runtime.torch.c10d.on_gloo.rooted import Scatter, start_gather
from runtime.torch.c10d.on_gloo.straight import Straight
from runtime.torch.c10d.operations import ALL_REDUCE_COALESCED, GATHER, OPERATIONS, SCATTER, TorchOperation
from runtime.torch.c10d.work import TaskWork, WrappedWork
from runtime.torch.choice import CHOSEN, CallChoice
from runtime.torch.core import Core, Issued, Terms, stated_sizes, type_name, type_text
from runtime.torch.counters import counters
from runtime.torch.failures.apart import PARTS_FROM_BYTES, wait_apart, wait_in_intervals
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.messages import OWN_TAG, error_text
from runtime.torch.programs.blocks import Blocks, Buffers, as_values, flat, holds_values
from runtime.torch.programs.rank_program import RankProgram
from runtime.torch.programs.transport import Transport
from runtime.torch.table import PLANNED, TableCall
from topologies.errors import InputError

Tensor: TypeAlias = Any

_REDUCTIONS = {"SUM": "sum", "PRODUCT": "prod", "MAX": "max", "MIN": "min", "AVG": "avg"}  # torch's → ours
_REDUCTION_NAMES = (*_REDUCTIONS, "BAND", "BOR", "BXOR", "PREMUL_SUM")


def reduction_of(redop: Any) -> str:
    """Return our name of torch's reduction: sum, prod, max, min or avg.

    A reduction that we do not support keeps torch's name (BAND, BOR, BXOR, PREMUL_SUM); any other is "unknown".
    """
    name = next((name for name in _REDUCTION_NAMES if redop == getattr(dist.ReduceOp, name)), "unknown")
    return _REDUCTIONS.get(name, name)


@contextmanager
def _sums_for_averages(opts: Any, averages: bool) -> Iterator[None]:
    """Let torch's options of a call state a sum, where an average is wanted and the back end may not know averages."""
    if averages:
        opts.reduceOp = dist.ReduceOp.SUM
    try:
        yield
    finally:
        if averages:
            opts.reduceOp = dist.ReduceOp.AVG  # The options are the caller's.


def _store_rank(store: Any) -> int | None:
    """Return 0 if rank 0's process serves the store, a TCPStore; None if no rank serves it, or that is not known.

    torchrun's agent serves the store where TORCHELASTIC_USE_AGENT_STORE is True.
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    launched = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return 0 if isinstance(store, dist.TCPStore) and not launched else None


def _as_they_are(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the tensors unchanged; it stands for `Copies` where nothing is copied."""
    return tensors


class Copies(dict[int, Tensor]):
    """Copies of values for Gloo, which reads a tensor as plain memory: it mixes up layouts, gaps and signs.

    The keys are the ids of the tensors that were copied.
    """

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self._copies = copies

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors, or copies of those whose memory does not hold their values."""
        return [self._values_of(tensor) for tensor in tensors]

    def _values_of(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or its copy if its memory does not hold its values; the copy is kept for `write_back`.

        Without `copies` it always returns the tensor, and so it does for a sparse one.
        """
        if not self._copies or tensor.layout != torch.strided or holds_values(tensor):
            return tensor
        return self.setdefault(id(tensor), as_values(tensor))

    def write_back(self, tensors: Sequence[Tensor]) -> None:
        """Write the values of the copies back into those of the tensors that were copied."""
        for tensor in tensors:
            if id(tensor) in self:
                tensor.copy_(self[id(tensor)])


# Gives the arguments of the wrapped back end's method before its options, from a function that copies tensors.
Arguments = Callable[[Callable[[Sequence[Tensor]], Sequence[Tensor]]], Sequence[Any]]


class Dispatcher:
    """The part of `runtime.torch.c10d.group.Group` that gives each call to our core or to a wrapped back end.

    Its methods raise what those of `Group` raise.

    Attributes:
        wrapped: By device type, torch's kind of the wrapped back end and the back end.
        ranks: The members, as the whole job numbers them.
        core: Numbers, runs and watches the calls.
        added: The group's back ends that `runtime.torch.added` names, by their names.
        straight: Makes calls that need a few messages only.
        pass_through: By operation, the object that hands calls on CPU tensors straight to Gloo.
        split_exchange: The same for all-to-alls of rows with splits.
        coalesced: The same for many all-reduces in one call.
        gather: The same for gathers of equal blocks.
        scatter: The same for scatters.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, ranks: Sequence[int], name: str = "") -> None:
        """Wrap the back ends of a group.

        Args:
            store: torch's store of the group.
            rank: Place of this rank in the group.
            size: Number of ranks in the group.
            timeout: Time-out of the wrapped back ends, a timedelta.
            ranks: The members, as the job numbers them; empty for 0 to size − 1.
            name: torch's name of the group.

        Raises:
            InputError: Ranks would choose differently; every rank raises it.
            RuntimeError: A rank is lost or does not come in time; the message names it.
        """
        self.ranks, self._timeout = tuple(ranks) or tuple(range(size)), timeout
        watch = FailureWatch(rank, self.ranks, name=name)
        gloo, store = _make_gloo(store, watch, timeout)
        watch.messages = gloo
        self.wrapped: dict[str, tuple[Any, Any]] = {"cpu": (dist.ProcessGroup.BackendType.GLOO, gloo)}
        if torch.cuda.is_available() and dist.is_nccl_available():
            nccl_options = dist.ProcessGroupNCCL.Options()
            nccl_options._timeout = timeout
            nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl/", store), rank, size, nccl_options)
            nccl._set_sequence_number_for_group()
            self.wrapped["cuda"] = (dist.ProcessGroup.BackendType.NCCL, nccl)
        self.core = Core(watch, not dist.is_initialized(), TaskWork)
        # After the ranks have compared what they added: otherwise they could wait for each other here.
        self.added = {
            row.name: row.factory(dist.PrefixStore(f"added {row.name}/", store), rank, size, timeout)
            for row in ADDED.values()
        }
        self.straight = Straight(self.core, gloo, timeout)
        self.gather = PassThrough(self.core, gloo, GATHER, self._describe)
        self._scatter = Scatter(gloo, rank, watch.calls, self.straight.limit)
        self.scatter = PassThrough(self.core, gloo, SCATTER, self._describe, self._scatter.start)
        self.pass_through = {
            name: PassThrough(self.core, gloo, row, self._describe) for name, row in OPERATIONS.items()
        }
        self.split_exchange = PassThrough(
            self.core, gloo, OPERATIONS["all_to_all_single"], self._describe, has_splits=True
        )
        self.coalesced = PassThrough(self.core, gloo, ALL_REDUCE_COALESCED, self._describe)

    def terms(self, opts: Any) -> Terms:
        """Return how a call with torch's options, or None, is made; its caller waits at once if asyncOp is False.

        `Straight.limit` gives its time-out.
        """
        return Terms(not getattr(opts, "asyncOp", True), self.straight.limit(opts))

    def _wrapped_for(self, tensor: Tensor) -> Any:
        """Return the wrapped back end for the device of a tensor, or raise RuntimeError if there is none."""
        device = tensor.device.type
        if device not in self.wrapped:
            raise RuntimeError(
                f"a tensor on {device}; this group's tensors must be on {' or '.join(sorted(self.wrapped))}"
            )
        return self.wrapped[device][1]

    def _named(self, added: str, tensor: Tensor) -> tuple[str, Any]:
        """Return the name and the object of the back end `added`; if that is "", of the wrapped one for the device.

        Raises:
            RuntimeError: The group has no back end of this name, as it was made before the name was registered, or none
                for the device.
        """
        if not added:
            wrapped = self._wrapped_for(tensor)
            return wrapped.name(), wrapped
        if added not in self.added:
            raise RuntimeError(f"this group was made before back end {added} was registered; register it first")
        return added, self.added[added]

    # ---- collectives

    def run(self, name: str, buffers: Buffers, opts: Any, arguments: Arguments) -> Any:
        """Start a collective and return torch's Work.

        Args:
            name: Name of a row of OPERATIONS.
            buffers: Tensors that the call reads and writes on this rank.
            opts: torch's options of the call, or None.
            arguments: Gives the arguments of the wrapped back end's method before its options, from a function that
                copies tensors whose memory does not hold their values.

        Raises:
            InputError: The elements of an output share memory, an algorithm does not exist, or the root is not in the
                group.
            RuntimeError: The tensors are on a device that this group does not serve, or the call is known to be in
                vain.
        """
        operation = OPERATIONS[name]
        opts = opts or operation.options()
        like, values = buffers.tensors[0], arguments(_as_they_are)
        times = buffers.size_bytes // max(1, like.numel() * like.element_size())
        work = self.pass_through[name].call(buffers.tensors, times, buffers.outputs, opts, values)
        if work is not None:
            return work
        buffers.check_outputs(operation.kind.name)
        op = reduction_of(opts.reduceOp) if operation.kind.reduces else None
        call = self._call(operation, buffers, opts)
        choice, part = self.core.choices.choose(call, buffers, op)
        backend = part.program.name if part is not None else self._named(choice.added, buffers.tensors[0])[0]
        issued = self.core.issue(
            call, self._describe(operation, buffers.size_bytes, buffers.tensors[0].dtype, opts), f", on {backend}"
        )
        if part is None:
            return self._run_wrapped(issued, operation, choice, buffers, arguments, opts, op)
        return self.core.execute(issued, part, buffers, op or "sum", self.terms(opts))

    def run_blocks(
        self,
        name: str,
        blocks: Blocks,
        buffers: Buffers,
        opts: Any,
        arguments: Arguments,
        has_splits: bool = False,
    ) -> Any:
        """Start a collective in which a rank does not know all block sizes of the other ranks, and return torch's Work.

        Args:
            name: Name of a row of OPERATIONS.
            blocks: This rank's blocks.
            buffers: Tensors that the call reads and writes on this rank; the block is this rank's own.
            opts: torch's options of the call, or None.
            arguments: Gives the arguments of the wrapped back end's method before its options, from a function that
                copies tensors whose memory does not hold their values.
            has_splits: Whether the caller states the sizes of blocks. They do not count as stated if `known_sizes`
                states those of all ranks.

        Raises:
            InputError: The elements of an output share memory, an algorithm does not exist, the tensors are sparse or
                of more than one type or device, or the root is not in the group.
            RuntimeError: The tensors are on a device that this group does not serve, or the call is known to be in
                vain.
        """
        operation = OPERATIONS[name]
        opts = opts or operation.options()
        like = buffers.tensors[0]
        buffers.check_outputs(operation.kind.name)
        call = self._call(operation, buffers, opts)
        all_know_sizes, choices = stated_sizes.get() is not None, self.core.choices
        states_splits = has_splits and (not all_know_sizes or choices.chooser.measures_splits(call))
        call = call._replace(has_splits=states_splits)
        text = f"{call.collective}{self._root(operation, opts)} of blocks of {call.kind}"
        paths = choices.paths(call)
        if choices.decides_by_size(call) and not all_know_sizes:
            choice, part = choices.choose(call, buffers, None)
            path = choices.chooser.path(choice)
            if part is not None and path == "program":
                issued = self.core.issue(call, f"{text}, {call.size_bytes} bytes", f", on {part.program.name}")
                return self.core.execute(issued, part, buffers, "sum", self.terms(opts))
            served_by = PLANNED if choice.planned else path if part is not None or choice.added else "wrapped"
            paths = frozenset([served_by])
        only_path = next(iter(paths)) if len(paths) == 1 else ""
        # Ranks that compare their calls compare the sizes of blocks, too, which only our own exchange does.
        goes_on = operation.uneven and only_path == "wrapped" and not self.core.compares
        if like.device.type != "cpu" or only_path in ADDED or goes_on:
            choice = self.core.choices.choose(call, buffers, None)[0]
            issued = self.core.issue(call, text, f", on {self._named(choice.added, like)[0]}")
            return self._run_wrapped(issued, operation, choice, buffers, arguments, opts, None)
        if name in ("gather", "scatter") and only_path == "wrapped" and not self.core.compares:
            return self._run_rooted(call, text, blocks, buffers, opts)
        unheard = {"direct"} if operation.uneven and not self.core.compares else {"direct", "wrapped"}
        agrees = bool(paths - unheard)
        return self.core.run_blocks(call, text, blocks, buffers, agrees, self.terms(opts))

    def send_blocks(
        self,
        name: str,
        buffers: Buffers,
        sizes: Sequence[int],
        opts: Any,
        work: Callable[[RankProgram | None, Transport], None],
        op: str = "sum",
    ) -> Any:
        """Start a collective of unequal blocks whose sizes all ranks know, and return torch's Work.

        Args:
            name: Name of a row of OPERATIONS.
            buffers: Tensors of the call, on the CPU; the size of the block is that of all blocks.
            sizes: Elements of the block of each rank, by its place.
            opts: torch's options of the call, or None.
            work: Runs this rank's part of a program for these sizes, or sends the blocks one by one for None, given the
                messages of the call, and writes the outputs.
            op: A key of REDUCERS; for avg `work` leaves sums, which are then divided.

        Raises:
            InputError: The root is not a rank of the group.
        """
        operation = OPERATIONS[name]
        opts = opts or operation.options()
        call = self._call(operation, buffers, opts)
        part = self.core.choices.part_for_sizes(call, sizes) if buffers.are_plain else None
        return self.core.send_blocks(call, buffers, partial(work, part), op, self.terms(opts), part)

    def _call(self, operation: TorchOperation, buffers: Buffers, opts: Any) -> TableCall:
        """Return the facts on which the choice of an algorithm depends: size, type, root and the group's ranks.

        The type is that of the first tensor; the root is a place in the group, 0 for a collective without a root.

        Raises:
            InputError: The root is not a rank of the group.
        """
        like = buffers.tensors[0]
        root, ranks = opts.rootRank if operation.kind.rooted else 0, len(self.ranks)
        if not 0 <= root < ranks:
            raise InputError(f"{operation.kind.name}: root {root}; it must be a rank of the group, 0 to {ranks - 1}")
        return TableCall(
            operation.kind.name, buffers.size_bytes, type_name(like), self.core.ranks, root, buffers.in_place
        )

    def _describe(self, operation: TorchOperation, size_bytes: int, kind: Any, opts: Any) -> str:
        """Return the text of a call for errors, the same on all ranks, such as "allreduce sum, 8 bytes of float32".

        It has no size where ranks may have blocks of other sizes. Ranks are those of the whole job. `kind` is torch's
        type of the elements; `opts` must not be None.
        """
        reduced = f" {reduction_of(opts.reduceOp)}" if operation.kind.reduces else ""
        size = " of blocks" if operation.uneven else f", {size_bytes} bytes"
        return f"{operation.kind.name}{reduced}{self._root(operation, opts)}{size} of {type_text(kind)}"

    def _root(self, operation: TorchOperation, opts: Any) -> str:
        """Return " of root N", with the root as the whole job numbers it, or "" for a collective without a root."""
        return f" of root {self.core.ranks[opts.rootRank]}" if operation.kind.rooted else ""

    def _run_wrapped(
        self,
        issued: Issued,
        operation: TorchOperation,
        choice: CallChoice,
        buffers: Buffers,
        arguments: Arguments,
        opts: Any,
        op: str | None,
    ) -> Any:
        """Start a collective on a wrapped back end, count it with its reason, and return torch's Work.

        For an average on Gloo it sets the reduction of `opts` to a sum, and a task divides the sums. A task also waits
        for a call whose tensors are copied, or that Gloo ends only when somebody waits for it.

        Args:
            issued: The call.
            operation: Its operation.
            choice: The choice, without a program.
            buffers: Tensors of the call, of which the outputs are written.
            arguments: Gives the arguments of the back end's method before its options, from a function that copies
                tensors.
            why: Reason of the choice; a deliberate choice is counted as "".
            opts: torch's options of the call.
            op: Our name of the reduction; None without one.

        Raises:
            RuntimeError: The back end refuses the call, or it is known to be in vain.
        """
        core, like = self.core, buffers.tensors[0]
        served_by, wrapped = self._named(choice.added, like)
        name, on_cpu = wrapped.name(), like.device.type == "cpu"
        reason = "" if choice.reason in CHOSEN else choice.reason
        record = counters.count(issued.call.collective, served_by, issued.call.size_bytes, reason, len(core.ranks))
        copies, averages = Copies(on_cpu), on_cpu and op == "avg"
        with core.watch.guard(issued.waiting, new=True, closes=False), _sums_for_averages(opts, averages):
            work = getattr(wrapped, operation.method)(*arguments(copies), opts)
        unlimited = name == "gloo" and operation.unlimited
        wait = work.wait
        if unlimited:
            wait = partial(wait_apart, work.wait, core.watch.abandons_waits)
        elif name == "gloo":
            wait = partial(wait_in_intervals, work, core.watch.abandons_waits)
        if not averages and not copies and not unlimited:
            return WrappedWork(work, record, core.watch, issued.waiting, wait, buffers.outputs, streams=not on_cpu)

        def finish() -> None:
            """Wait for the wrapped back end, then write back copies and divide sums for an average."""
            with core.watch.guard(issued.waiting):
                wait()
            copies.write_back(buffers.outputs)
            if averages:
                core.divide(buffers.outputs)

        task = TaskWork(finish, buffers.outputs, record)
        core.lane.put(task, self.terms(opts).waits)
        return task

    def _run_rooted(self, call: TableCall, text: str, blocks: Blocks, buffers: Buffers, opts: Any) -> TaskWork:
        """Start a gather or a scatter of blocks of any sizes on Gloo, and return torch's Work.

        A task writes the outputs.

        Args:
            call: Facts on which the choice depends.
            text: Text of the call for errors.
            blocks: This rank's blocks.
            buffers: Tensors of the call.
            opts: torch's options of the call.

        Raises:
            InputError: The tensors are sparse or of more than one type or device.
            RuntimeError: The call is known to be in vain.
        """
        if not buffers.are_plain:
            raise InputError(
                f"{call.collective}: sparse tensors, or of several types; they must be dense and of one type"
            )
        core, gloo, like = self.core, self.wrapped["cpu"][1], buffers.tensors[0]
        reason = core.choices.choose(call, buffers, None)[0].reason
        issued = core.issue(call, text, f", on {gloo.name()}")
        record = counters.count(
            call.collective, gloo.name(), call.size_bytes, "" if reason in CHOSEN else reason, len(core.ranks)
        )
        tensors = [flat(block) for block in buffers.inputs]
        with core.watch.guard(issued.waiting, new=True, closes=False):
            if call.collective == "gather":
                work, received = start_gather(
                    gloo, tensors[0], list(blocks.received_sizes), core.rank == call.root, opts
                )
                wait = partial(wait_in_intervals, work, core.watch.abandons_waits)
            else:
                received = [like.new_empty(buffers.outputs[0].numel())]
                work = self._scatter.start(received, [tensors], opts, issued.waiting.number)
                wait = partial(wait_apart, work.wait, core.watch.abandons_waits)

        def finish() -> None:
            """Wait for Gloo, then write the outputs."""
            with core.watch.guard(issued.waiting):
                wait()
            for output, values in zip(buffers.outputs, received, strict=True):
                output.copy_(values[: output.numel()].view(output.shape))

        task = TaskWork(finish, buffers.outputs, record)
        core.lane.put(task, self.terms(opts).waits)
        return task

    def pass_on(self, method: str, arguments: Sequence[Any]) -> WrappedWork:
        """Start a call with more than one tensor per rank on Gloo, which checks and serves it, and return torch's Work.

        Args:
            method: Name of the method of Gloo and of c10d.
            arguments: Its arguments; those that are None are left out.

        Raises:
            RuntimeError: Gloo refuses the call, or it is known to be in vain.
        """
        wrapped, watch = self.wrapped["cpu"][1], self.core.watch
        waiting = Waiting(f"{method} of several tensors a rank", peers=range(len(self.core.ranks)))
        with watch.guard(waiting, new=True, closes=False):
            work = getattr(wrapped, method)(*[argument for argument in arguments if argument is not None])
        record = counters.count(method, wrapped.name(), 0, "several tensors a rank")
        return WrappedWork(work, record, watch, waiting, partial(wait_apart, work.wait, watch.abandons_waits))

    def follow(self, work: Any, finish: Callable[[], None], outputs: Sequence[Tensor]) -> TaskWork:
        """Start a task that is over after `work` and after `finish`, which uses what `work` has written, and return it.

        Both are waited for on the group's thread, after the group's earlier tasks. If `work` fails, `finish` is not
        called, and the task keeps the error. `outputs` are the tensors that `finish` writes.
        """

        def function() -> None:
            """Wait for the work, then finish."""
            work.wait()
            finish()

        task = TaskWork(function, outputs, lambda _: None)  # The work has a record of its own.
        self.core.lane.put(task, wait=False)
        return task

    # ---- barriers, messages and the end of the group

    def barrier(self, opts: Any) -> Any:
        """Start a barrier after this group's earlier tasks, with torch's options, and return torch's Work."""
        gloo, terms, is_busy = self.wrapped["cpu"][1], self.terms(opts), BusyFlag()

        def begin(has_tasks: bool) -> Callable[[], bool]:
            """Start the exchange, and return what waits for its end."""
            work = is_busy.exchange(gloo, has_tasks, terms.timeout)

            def end() -> bool:
                """Return True if any rank has unfinished tasks."""
                work.wait()
                return bool(is_busy.value[0])

            return end

        return self.core.barrier(begin, gloo.name(), terms)

    def monitored_barrier(self, timeout: Any, wait_all_ranks: bool) -> None:
        """Wait for the group's earlier tasks, then run Gloo's barrier that names the ranks that did not come.

        Args:
            timeout: Limit of the barrier, a timedelta; None for Gloo's own.
            wait_all_ranks: Whether the error names all ranks that did not come, instead of the first.

        Raises:
            RuntimeError: A rank did not come in time.
        """
        self.core.lane.drain()
        self.wrapped["cpu"][1].monitored_barrier(timeout, wait_all_ranks)

    def message(self, method: str, tensors: Sequence[Tensor], tag: int, peer: int | None = None) -> WrappedWork:
        """Start to send or receive a single message by a method of the wrapped back end; return torch's Work.

        Args:
            method: send, recv or recv_anysource.
            tensors: torch's list of one tensor.
            tag: The caller's tag.
            peer: Place in the group of the other rank; None to receive from any rank.

        Raises:
            InputError: The tag is one of those that schedules use.
            RuntimeError: The tensor is on a device that this group does not serve, or the peer cannot be reached.
        """
        if not 0 <= tag < OWN_TAG:
            raise InputError(f"tag {tag} is used by schedules; it must be 0 to {OWN_TAG - 1}")
        wrapped = self._wrapped_for(tensors[0])
        size_bytes = sum(t.numel() * t.element_size() for t in tensors)
        whom = "any rank" if peer is None else f"rank {self.core.ranks[peer]}"
        text = f"{'send to' if method == 'send' else 'receive from'} {whom}, {size_bytes} bytes"
        peers = [] if peer is None else [peer]
        waiting, watch = Waiting(text, peers=peers or range(len(self.core.ranks))), self.core.watch
        with watch.guard(waiting, new=True, closes=False):
            work = getattr(wrapped, method)(tensors, *peers, tag)
        record = counters.count(method.removesuffix("_anysource"), wrapped.name(), size_bytes)
        wait = work.wait
        if wrapped.name() == "gloo" and size_bytes >= PARTS_FROM_BYTES:
            wait = partial(wait_apart, work.wait, partial(watch.abandons_waits, peers))
        return WrappedWork(work, record, watch, waiting, wait, streams=wrapped.name() != "gloo")

    def shutdown(self) -> None:
        """Wait until all open calls are over, then leave the group, and stop its thread and the wrapped back ends.

        A call that another rank does not make ends with an error. If calls are not over within the group's time-out, or
        if Ctrl-C ended one, it does as `abort` does.
        """
        if self.core.lane.interrupted:  # The calls under way wait for ranks that may be gone.
            self.abort()
            return
        self._scatter.drain(self._timeout.total_seconds())
        if not self.core.finish_calls(self._timeout.total_seconds()):
            self.abort("has left the group amid a call")
            return
        self.core.watch.leave()
        self.core.lane.stop()
        for backend in self._backends():
            with suppress(RuntimeError):
                backend.shutdown()

    def abort(self, why: str = "has aborted the group") -> None:
        """Stop all open calls, leave the group and stop its thread.

        The other ranks read `why` after "rank N"; if Ctrl-C ended a call, they read "was interrupted" instead.
        """
        why = "was interrupted" if self.core.lane.interrupted else why
        self.core.watch.leave(why, over=False)
        self.core.lane.stop()
        for backend in self._backends():
            with suppress(RuntimeError):
                backend.abort()

    def _backends(self) -> list[Any]:
        """Return the wrapped and the added back ends of the group."""
        return [*(wrapped for _, wrapped in self.wrapped.values()), *self.added.values()]


def _make_gloo(store: Any, watch: FailureWatch, timeout: Any) -> tuple[Any, Any]:
    """Wait for all ranks; return the wrapped back end for CPU tensors, and the part of the store of this group.

    A group of one rank waits for nobody, and keeps the store as it is.

    Raises:
        RuntimeError: The back end cannot be made; the message names the rank to blame.
    """
    size = len(watch.ranks)
    try:
        if size > 1:
            name = watch.meet(store, timeout, whole_job=not dist.is_initialized())
            store = dist.PrefixStore(f"{name}/", store)  # An earlier attempt may have left addresses elsewhere.
        gloo = watch.call_unless_gone(
            lambda: dist.ProcessGroupGloo(dist.PrefixStore("gloo/", store), watch.me, size, timeout=timeout)
        )
    except RuntimeError as error:
        gone = isinstance(error, dist.DistNetworkError) and _store_rank(store) in watch.ranks
        why = f"; the store of rank {_store_rank(store)} is gone" if gone else ""
        raise RuntimeError(f"making {watch.group}: {error_text(error)}{why}") from error
    gloo._set_sequence_number_for_group()
    return gloo, store
