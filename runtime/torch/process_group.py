"""A back end of torch.distributed that runs our algorithms beside the one it wraps (Gloo, NCCL), call by call.

    from synth import process_group
    torch.distributed.init_process_group("cpu:synth,cuda:synth")

Which of them serves a call is `runtime.torch.choice`'s matter: it follows from the collective, the size, the type and
the group alone, so all ranks agree without talking. Our algorithms are executed on CPU tensors over the wrapped back
end's messages, in the order of the calls, on one thread a group. What no algorithm of ours can do goes to the wrapped
back end; the reason is logged (logger `synth.torch`) and counted in `summary()`.

A rank whose process ends makes the others raise RuntimeError at once, with its number in the whole job on every rank:
"lost: rank N" where it ended without a word, otherwise why ("rank N raised …", "was interrupted", "has left the
group"). So do calls that differ, a second after all have begun. What lives and only waits, computes or is stopped is
never lost: at the time-out, and a second in which ranks ask one another, the message says where it is
(`runtime.torch.failures.lost`). A group is of no use after that.

Before torch 2.15 its monitored_barrier asks for Gloo by name: call the group's own,
`torch.distributed.group.WORLD.monitored_barrier()`.

How CommDebugMode, profilers, hooks and tensors without data meet these groups: `runtime.torch.registered`.

SYNTH_BACKEND, SYNTH_LIBRARY, SYNTH_TABLE: see `runtime.torch.choice`. SYNTH_CHECK=1: ranks compare what they call
before each collective, and raise one error on every rank where it differs, before anything is sent: Gloo can end a
process whose message is longer or shorter than its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

try:
    import torch
except ImportError as error:
    raise ImportError(
        "synth.process_group needs PyTorch: pip install 'synth-collectives[torch]'", name=error.name
    ) from None
import torch.distributed as dist

from runtime.torch.blocks import Blocks, Buffers, exchange_blocks, flat, reduce_blocks, split_rows, write_back
from runtime.torch.choice import Method
from runtime.torch.core import asked_method, type_name
from runtime.torch.counters import counters
from runtime.torch.dispatch import Dispatcher, reduction_of
from runtime.torch.operations import OPERATIONS
from runtime.torch.packing import Coalesced, group_calls, pack
from runtime.torch.rank_program import RankProgram
from runtime.torch.registered import EARLIER, Watched, plain, watched
from runtime.torch.run import REDUCERS, Transport
from runtime.torch.table import BACKENDS, REDUCED_TYPES
from runtime.torch.untraced import untraced_methods
from runtime.torch.work import CombinedWork
from topologies.errors import InputError

Tensor: TypeAlias = Any


def summary() -> str:
    """What ran where, how often and how long, why calls fell back, and which ranks were waited for; also printed."""
    text = counters.text()
    print(text)
    return text


@contextmanager
def using(backend: str, algorithm: str | None = None) -> Iterator[None]:
    """Name the back end for the calls within, of this thread: auto, synth or gloo. Must be the same on all ranks.

    algorithm: with synth, a program of the library or a built-in one. Raises InputError for another name.
    """
    if backend not in BACKENDS:
        raise InputError(f"back end {backend!r} is not known; it must be one of {', '.join(BACKENDS)}")
    if algorithm is not None and backend != "synth":
        raise InputError(f"algorithm {algorithm}: not with back end {backend}; it must be with synth")
    before = asked_method.set(Method(backend, algorithm))
    try:
        yield
    finally:
        asked_method.reset(before)


def custom(name: str, output: Tensor, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    """Run a collective of one's own, such as a hand-written one, by its name in the library (SYNTH_LIBRARY).

    output, tensor: as many elements as the rank's o and i hold; empty where it has none. op: torch's reduction, by
    default sums. Returns torch's Work with async_op, else None. Raises InputError where the library has no program that
    serves them, on this rank alone if the tensors are wrong on this rank alone.
    """
    within = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(within, Group):
        raise InputError(f"{name}: is of a group of another back end; it must be one of synth")
    opts = dist.AllreduceOptions()
    opts.asyncOp = async_op
    work = within.custom(name, output, tensor, dist.ReduceOp.SUM if op is None else op, opts)
    if async_op:
        return work
    work.wait()
    return None


# by torch's function: which method makes one call of several, and whether its input, its output has a block a rank
_PACKED = {
    "all_reduce": ("allreduce", (False, False)),
    "all_gather_into_tensor": ("all_gather_single", (False, True)),
    "reduce_scatter_tensor": ("reduce_scatter_single", (True, False)),
}
_IN_PLACE = ("all_reduce", "broadcast", "reduce")
# Which of a method's lists hold one tensor: torch's functions give no other, but Gloo knows several devices a rank.
ONE_TENSOR = {"allreduce": (0,), "broadcast": (0,), "reduce": (0,), "allgather": (0, 1), "reduce_scatter": (0, 1),
              "gather": (1,), "scatter": (0,)}  # fmt: skip


@untraced_methods
class Group(Watched):
    """One rank's end of a process group. Methods and arguments are those that torch.distributed calls.

    Raises InputError on every rank where ranks would choose differently.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, ranks: Sequence[int], name: str = "") -> None:
        super().__init__(store, rank, size)
        self._me, self._n, self._timeout = rank, size, timeout
        self._dispatch = Dispatcher(store, rank, size, timeout, ranks, name)
        for each in _IN_PLACE:
            self._shorten(OPERATIONS[each].method, self._dispatch.pass_through[each].calls_or)
        for device, (kind, wrapped) in self._dispatch.wrapped.items():
            self._register_backend(torch.device(device), kind, wrapped)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    # ---- collectives

    @watched
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        buffers = Buffers(tensors, tensors, tensors[0].numel(), in_place=True)
        return self._dispatch.run("all_reduce", buffers, opts, lambda copy: [copy(tensors)])

    @watched
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        distinct = {(t.data_ptr(), t.shape, t.stride()): t for t in tensors}.values()  # as Gloo, which reads all first
        calls = [Coalesced(([tensor],), [tensor], [tensor]) for tensor in distinct]
        return self._coalesced("all_reduce", "allreduce", tensors, calls, opts)

    @watched
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        into, tensor = outputs[0], inputs[0]
        count = tensor.numel()
        self._check_one_a_rank("all_gather", "outputs", into)
        if into[self._me].numel() != count:
            raise InputError(
                f"all_gather: output {self._me} has {into[self._me].numel()} elements; it must be {count}, as the input"
                " has"
            )
        if tensor.device.type == "cpu" and any(out.numel() != count for out in into):
            return self._dispatch.send_blocks(
                "all_gather",
                Buffers([tensor], into, sum(out.numel() for out in into)),
                opts,
                lambda transport: exchange_blocks(transport, [tensor] * self._n, into),
            )
        buffers = Buffers([tensor], into, count, self._n)
        return self._dispatch.run("all_gather", buffers, opts, lambda copy: [[copy(into)], copy(inputs)])

    @watched
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        self._check_blocks("all_gather_into_tensor", output.numel(), tensor.numel())
        buffers = Buffers([tensor], [output], tensor.numel(), self._n)
        return self._dispatch.run("all_gather_into_tensor", buffers, opts, lambda copy: copy([output, tensor]))

    @watched
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        calls = []
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_blocks("all_gather_into_tensor", output.numel(), tensor.numel())
            calls.append(Coalesced((output, tensor), [tensor], [output]))
        return self._coalesced("all_gather_into_tensor", "all_gather_single", outputs, calls, opts)

    @watched
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        lists = zip(*outputs, strict=True) if len(outputs) == self._n != len(inputs) else outputs
        calls = []
        for into, tensor in zip(lists, inputs, strict=True):
            even = len(into) == self._n and all(out.numel() == tensor.numel() for out in into)
            calls.append(Coalesced(([list(into)], [tensor]), [tensor], list(into), even))
        return self._coalesced("all_gather_into_tensor", "allgather", outputs, calls, opts)

    @watched
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        out, parts = outputs[0], inputs[0]
        count = out.numel()
        self._check_one_a_rank("reduce_scatter", "inputs", parts)
        if parts[self._me].numel() != count:
            raise InputError(
                f"reduce_scatter: input {self._me} has {parts[self._me].numel()} elements; it must be {count}, as the"
                " output has"
            )
        op = reduction_of((opts or OPERATIONS["reduce_scatter"].options()).reduceOp)
        uneven = any(part.numel() != count for part in parts)
        total = sum(part.numel() for part in parts)  # the same on all ranks, as all lists are
        buffers = Buffers(parts, [out], total) if uneven else Buffers(parts, [out], count, self._n)
        if uneven and out.device.type == "cpu" and op in REDUCERS and type_name(out) in REDUCED_TYPES:
            return self._dispatch.send_blocks(
                "reduce_scatter", buffers, opts, lambda transport: reduce_blocks(transport, out, parts, op), op
            )
        return self._dispatch.run("reduce_scatter", buffers, opts, lambda copy: [copy(outputs), [copy(parts)]])

    @watched
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        self._check_blocks("reduce_scatter_tensor", tensor.numel(), output.numel())
        buffers = Buffers([tensor], [output], output.numel(), self._n)
        return self._dispatch.run("reduce_scatter_tensor", buffers, opts, lambda copy: copy([output, tensor]))

    @watched
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        calls = []
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_blocks("reduce_scatter_tensor", tensor.numel(), output.numel())
            calls.append(Coalesced((output, tensor), [tensor], [output]))
        return self._coalesced("reduce_scatter_tensor", "reduce_scatter_single", outputs, calls, opts)

    @watched
    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, out_sizes: Any = None, in_sizes: Any = None, opts: Any = None
    ) -> Any:
        if not out_sizes and not in_sizes:
            count = tensor.numel() // self._n
            self._check_blocks("all_to_all_single", tensor.numel(), count)
            self._check_blocks("all_to_all_single", output.numel(), count)
        made = flat(output)
        into = split_rows(made.view(output.shape), out_sizes, self._n)
        blocks = Blocks.of(split_rows(tensor, in_sizes, self._n), into)

        def exchange_rows(transport: Transport) -> None:
            blocks.exchange(transport)
            write_back(output, made)

        return self._dispatch.run_blocks(
            "all_to_all_single",
            replace(blocks, exchange=exchange_rows),
            Buffers([tensor], [output], tensor.numel() // self._n, self._n),
            opts,
            lambda copy: [*copy([output, tensor]), out_sizes or [], in_sizes or []],
        )

    @watched
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        self._check_one_a_rank("all_to_all", "outputs", outputs)
        self._check_one_a_rank("all_to_all", "inputs", inputs)
        buffers = Buffers(inputs, outputs, sum(tensor.numel() for tensor in inputs) // self._n, self._n)
        return self._dispatch.run_blocks(
            "all_to_all",
            Blocks.of(inputs, outputs),
            buffers,
            opts,
            lambda copy: [copy(outputs), copy(inputs)],
        )

    @watched
    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        buffers = Buffers(tensors, tensors, tensors[0].numel(), in_place=True)
        return self._dispatch.run("broadcast", buffers, opts, lambda copy: [copy(tensors)])

    @watched
    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        made = tensors if self._is_root("reduce", opts) else []
        buffers = Buffers(tensors, made, tensors[0].numel(), in_place=True)
        return self._dispatch.run("reduce", buffers, opts, lambda copy: [copy(tensors)])

    @watched
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
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
        parts = inputs[0] if self._is_root("scatter", opts) else []
        if self._is_root("scatter", opts):
            self._check_one_a_rank("scatter", "inputs", parts)
        into = self._at_root("scatter", opts, outputs[0])
        return self._dispatch.run_blocks(
            "scatter",
            Blocks.of(parts or [None] * self._n, into),
            Buffers(parts, outputs, outputs[0].numel(), self._n),
            opts,
            lambda copy: [copy(outputs), [copy(parts)] if parts else []],
        )

    def _serve(self, name: str, arguments: Sequence[Any]) -> Any:
        if any(len(arguments[place]) != 1 for place in ONE_TENSOR.get(name, ())):
            return self._dispatch.pass_on(name, [plain(each) for each in arguments])
        return super()._serve(name, arguments)

    def _coalesced(
        self, name: str, method: str, written: Sequence[Any], calls: Sequence[Coalesced], opts: Any
    ) -> CombinedWork:
        """Several calls as one: those of one type are one call of torch's function `name`, each other one its own.

        method: makes one of them. All have the options that are given, and are not waited for one by one.
        """
        row = OPERATIONS[name]
        works = []
        for together in group_calls(calls):
            each = row.options()
            if opts is not None:
                each.timeout = opts.timeout
                if row.kind.reduces:
                    each.reduceOp = opts.reduceOp
            if len(together) == 1:
                works.append(self._serve(method, [*together[0].arguments, each]))
                continue
            for call in together:
                Buffers(call.given, call.written, 0).check_outputs(row.kind.name)
            packed, blocks = _PACKED[name]
            tensor, output, unpack = pack(together, *(self._n if several else 1 for several in blocks))
            arguments = [[tensor]] if output is tensor else [output, tensor]
            work = self._serve(packed, [*arguments, each])
            works.append(self._dispatch.follow(work, unpack, [made for call in together for made in call.written]))
        return CombinedWork(works, written)

    def _is_root(self, name: str, opts: Any) -> bool:
        return bool((opts or OPERATIONS[name].options()).rootRank == self._me)

    def _at_root(self, name: str, opts: Any, block: Tensor) -> list[Tensor | None]:
        """By rank, a block that goes to the root or comes from it."""
        root = (opts or OPERATIONS[name].options()).rootRank
        return [block if rank == root else None for rank in range(self._n)]

    def _check_one_a_rank(self, name: str, which: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self._n:
            raise InputError(f"{name}: {len(tensors)} {which}; it must be {self._n}, one a rank")

    def _check_blocks(self, name: str, elements: int, block: int) -> None:
        if elements != block * self._n:
            raise InputError(
                f"{name}: {elements} elements in {self._n} blocks of {block}; it must be {block * self._n}"
            )

    def custom(self, name: str, output: Any, tensor: Any, redop: Any, opts: Any) -> Any:
        given, written = ([plain(each)] if each.numel() else [] for each in (tensor, output))
        if not given and not written:
            raise InputError(f"{name}: has neither input nor output on this rank; it must have one of them")
        return self._dispatch.run_custom(name, Buffers(given, written, 0), redop, opts)

    def run_program(self, part: RankProgram, buffers: Buffers, op: str) -> Any:
        """As `Dispatcher.run_program`."""
        return self._dispatch.run_program(part, buffers, op)

    # ---- what is no collective of data

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """As torch asks for it."""
        return "synth"

    @watched
    def barrier(self, opts: Any = None) -> Any:
        """After all that was given to this group."""
        return self._dispatch.barrier(opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not come."""
        self._dispatch.monitored_barrier(timeout, wait_all_ranks)

    @watched
    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._dispatch.message("send", tensors, tag, peer)

    @watched
    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._dispatch.message("recv", tensors, tag, peer)

    @watched
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._dispatch.message("recv_anysource", tensors, tag)

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        **_: Any,
    ) -> Group | None:
        """A group of some of these ranks, called by all of them; None for those that are none of it.

        Torch's `split_group` calls it; before 2.15 that refuses groups without a device, ours as Gloo's.
        """
        if self._me not in new_ranks:
            return None
        members = [self._dispatch.ranks[r] for r in new_ranks]
        name = group_name or f"split {','.join(map(str, members))}"
        store = dist.PrefixStore(f"{name}/", self.get_group_store())
        made = Group(store, new_ranks.index(self._me), len(new_ranks), timeout or self._timeout, members, name)
        made._set_group_name(name)
        made._set_group_desc(group_desc or "undefined")
        return made

    def shutdown(self) -> None:
        """What was given is still done; then the thread ends."""
        self._dispatch.shutdown()

    def abort(self) -> None:
        """The thread ends when it can."""
        self._dispatch.abort()


for _name, _earlier in EARLIER.items():
    setattr(Group, _earlier, getattr(Group, _name))


def _create(options: Any, backend_options: Any) -> Group:
    """Return a rank's group. Raises InputError for options of torch's that this back end would ignore."""
    if backend_options is not None:
        given = type(backend_options).__qualname__
        raise InputError(f"pg_options: {given} is not for the back end synth; it must be None, as synth has no options")
    ranks, name = options.global_ranks_in_group, options.group_id
    return Group(options.store, options.group_rank, options.group_size, options.timeout, ranks, name)


if "SYNTH" not in dist.Backend._plugins:
    dist.Backend.register_backend("synth", _create, extended_api=True, devices=["cpu", "cuda"])
