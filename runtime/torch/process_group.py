"""A back end of torch.distributed that runs our algorithms beside the one it wraps (Gloo, NCCL), call by call.

    import runtime.process_group
    torch.distributed.init_process_group("cpu:synth,cuda:synth")

Which of them serves a call is `runtime.torch.choice`'s matter: it follows from the collective, the size, the type and
the group alone, so all ranks agree without talking. Our algorithms are executed on CPU tensors over the wrapped back
end's messages, in the order of the calls, on one thread a group. What no algorithm of ours can do goes to the wrapped
back end; the reason is logged (logger `synth.torch`) and counted in `summary()`.

A rank that ends or hangs amid a call makes the others raise RuntimeError, at once where its process has ended, and
otherwise at the time-out (and the few seconds in which they look for it); the message ends with "lost: rank N", its
number in the whole job, on every rank (`runtime.torch.lost`). A group is of no use after that. Torch's
monitored_barrier asks for Gloo by name: call the group's own, `torch.distributed.group.WORLD.monitored_barrier()`.

SYNTH_BACKEND, SYNTH_LIBRARY, SYNTH_TABLE: see `runtime.torch.choice`. SYNTH_CHECK=1: ranks compare what they call
before each collective, and raise one error on every rank where it differs; without it such a call ends at its time-out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

try:
    import torch
except ImportError as error:
    raise ImportError(
        "runtime.process_group needs PyTorch: pip install 'synth-collectives[torch]'", name=error.name
    ) from None
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from runtime.torch.calls import REDUCED, asked, back, flat, op_of, tally
from runtime.torch.choice import BACKENDS, Way
from runtime.torch.rank_program import Part
from runtime.torch.rooted import Rooted, spread
from runtime.torch.run import FOLDS, Wire, exchange, run
from runtime.torch.work import Together
from topologies.errors import InputError

__all__ = ["Group", "summary", "using"]

Tensor: TypeAlias = Any


def summary() -> str:
    """What ran where, how often and how long, why calls fell back, and which ranks were waited for; also printed."""
    text = tally.text()
    print(text)
    return text


@contextmanager
def using(backend: str, algorithm: str | None = None) -> Iterator[None]:
    """Name the back end for the calls within: auto, synth or gloo. To be done alike on all ranks.

    algorithm: with synth, a program of the library or a built-in one. Raises InputError for another name.
    """
    if backend not in BACKENDS:
        raise InputError(f"back end {backend!r}; it must be one of {', '.join(BACKENDS)}")
    if algorithm is not None and backend != "synth":
        raise InputError(f"algorithm {algorithm} with back end {backend}; it must be with synth")
    asked.append(Way(backend, algorithm))
    try:
        yield
    finally:
        asked.pop()


class Group(Rooted):
    """The collectives. Methods and their arguments are those that torch.distributed calls, under all its names."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceOptions()
        tensor = tensors[0]
        count = tensor.numel()

        def own(part: Part, wire: Wire, op: str) -> None:
            values = flat(tensor)
            run(part, values, values, count, op, wire)
            back(tensor, values)

        return self._do(
            self._call("allreduce", tensor, count),
            tensors,
            opts,
            own,
            lambda inner, o, c: inner.allreduce(c(tensors), o),
            tensors,
            count,
            opts.reduceOp,
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        each = c10d.AllreduceOptions()
        if opts is not None:
            each.reduceOp, each.timeout = opts.reduceOp, opts.timeout
        return Together([self.allreduce([tensor], each) for tensor in tensors], tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        into, tensor = outputs[0], inputs[0]
        count = tensor.numel()
        self._one_a_rank("all_gather", "outputs", into)
        if any(out.numel() != count for out in into):
            return self._direct(
                self._call("allgather", tensor, sum(out.numel() for out in into)),
                opts,
                lambda wire: self._swap(wire, [tensor] * self._n, into),
                into,
            )

        def own(part: Part, wire: Wire, op: str) -> None:
            values = flat(tensor)
            made = values.new_empty(count * self._n)
            run(part, values, made, count, op, wire)
            spread(made, into)

        return self._do(
            self._call("allgather", tensor, count * self._n),
            [tensor, *into],
            opts,
            own,
            lambda inner, o, c: inner.allgather([c(into)], c(inputs), o),
            into,
            count,
        )

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        count = tensor.numel()
        self._blocks("all_gather_into_tensor", output.numel(), count)

        def own(part: Part, wire: Wire, op: str) -> None:
            made = flat(output)
            run(part, flat(tensor), made, count, op, wire)
            back(output, made)

        return self._do(
            self._call("allgather", tensor, count * self._n),
            [tensor, output],
            opts,
            own,
            lambda inner, o, c: inner._allgather_base(*c([output, tensor]), o),
            [output],
            count,
        )

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        each = _gathering(opts)
        pairs = zip(outputs, inputs, strict=True)
        return Together([self.all_gather_single(out, tensor, each) for out, tensor in pairs], outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        lists = zip(*outputs, strict=True) if len(outputs) == self._n != len(inputs) else outputs
        each = _gathering(opts)
        pairs = zip(lists, inputs, strict=True)
        return Together([self.allgather([list(into)], [tensor], each) for into, tensor in pairs], outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        out, parts = outputs[0], inputs[0]
        count = out.numel()
        self._one_a_rank("reduce_scatter", "inputs", parts)
        if parts[self._me].numel() != count:
            raise ValueError(
                f"reduce_scatter: input {self._me} has {parts[self._me].numel()} elements, the output {count}"
            )
        if any(part.numel() != count for part in parts):
            op = op_of(opts.reduceOp)
            if op is None or out.dtype not in REDUCED:
                raise ValueError(
                    f"reduce_scatter of unequal parts; it must be a reduction of numbers, not {op} of {out.dtype}"
                )
            return self._direct(
                self._call("reducescatter", out, sum(part.numel() for part in parts)),
                opts,
                lambda wire: self._sum_up(wire, out, parts, op),
                [out],
            )

        def own(part: Part, wire: Wire, op: str) -> None:
            made = flat(out)
            run(part, torch.cat([flat(values) for values in parts]), made, count, op, wire)
            back(out, made)

        return self._do(
            self._call("reducescatter", out, count * self._n),
            [out, *parts],
            opts,
            own,
            lambda inner, o, c: inner.reduce_scatter(c(outputs), [c(parts)], o),
            [out],
            count,
            opts.reduceOp,
        )

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        count = output.numel()
        self._blocks("reduce_scatter_tensor", tensor.numel(), count)

        def own(part: Part, wire: Wire, op: str) -> None:
            made = flat(output)
            run(part, flat(tensor), made, count, op, wire)
            back(output, made)

        return self._do(
            self._call("reducescatter", output, count * self._n),
            [output, tensor],
            opts,
            own,
            lambda inner, o, c: inner._reduce_scatter_base(*c([output, tensor]), o),
            [output],
            count,
            opts.reduceOp,
        )

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        works = []
        for output, tensor in zip(outputs, inputs, strict=True):
            each = c10d.ReduceScatterOptions()
            if opts is not None:
                each.reduceOp, each.timeout = opts.reduceOp, opts.timeout
            works.append(self.reduce_scatter_single(output, tensor, each))
        return Together(works, outputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, out_sizes: Any = None, in_sizes: Any = None, opts: Any = None
    ) -> Any:
        opts = opts or c10d.AllToAllOptions()
        if out_sizes or in_sizes:
            _cut(output, out_sizes, self._n)
            parts = _cut(tensor, in_sizes, self._n)

            def swapped(wire: Wire) -> None:
                made = flat(output)
                self._swap(wire, parts, _cut(made.view(output.shape), out_sizes, self._n))
                back(output, made)

            return self._direct(self._call("alltoall", tensor, tensor.numel()), opts, swapped, [output])
        count = tensor.numel() // self._n
        self._blocks("all_to_all_single", tensor.numel(), count)
        self._blocks("all_to_all_single", output.numel(), count)

        def own(part: Part, wire: Wire, op: str) -> None:
            made = flat(output)
            run(part, flat(tensor), made, count, op, wire)
            back(output, made)

        return self._do(
            self._call("alltoall", tensor, tensor.numel()),
            [tensor, output],
            opts,
            own,
            lambda inner, o, c: inner.alltoall_base(*c([output, tensor]), [], [], o),
            [output],
            count,
        )

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllToAllOptions()
        self._one_a_rank("all_to_all", "outputs", outputs)
        self._one_a_rank("all_to_all", "inputs", inputs)
        call = self._call("alltoall", inputs[0], sum(tensor.numel() for tensor in inputs))
        # one rank cannot know whether all blocks of the others are equal, so all lists are sent one by one
        return self._direct(call, opts, lambda wire: self._swap(wire, inputs, outputs), outputs)

    # earlier names of the same
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _blocks(self, what: str, elements: int, block: int) -> None:
        if elements != block * self._n:
            raise ValueError(
                f"{what}: {elements} elements in {self._n} blocks of {block}; it must be {block * self._n}"
            )

    def _swap(self, wire: Wire, parts: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """parts[r] goes to rank r; into[r] comes from it."""
        made = [flat(tensor) for tensor in into]
        given = [flat(tensor) for tensor in parts]
        made[self._me].copy_(given[self._me])
        exchange(wire, given, made)
        for tensor, values in zip(into, made, strict=True):
            back(tensor, values)

    def _sum_up(self, wire: Wire, out: Tensor, parts: Sequence[Tensor], op: str) -> None:
        """Everybody's part for this rank, reduced in the order of ranks."""
        given = [flat(tensor) for tensor in parts]
        made = [torch.empty_like(given[self._me]) for _ in given]
        made[self._me].copy_(given[self._me])
        exchange(wire, given, made)
        total = made[0]
        for values in made[1:]:
            FOLDS[op](total, values, total)
        out.copy_(total.view(out.shape))
        if op == "avg":
            self._divide([out])


def _gathering(opts: Any) -> Any:
    """The options of one of several gathers: as those of all, and not waited for one by one."""
    each = c10d.AllgatherOptions()
    if opts is not None:
        each.timeout = opts.timeout
    return each


def _cut(tensor: Tensor, sizes: Sequence[int] | None, ranks: int) -> list[Tensor]:
    """Blocks of so many rows; of equal ones where none are given. Raises ValueError where they do not add up."""
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    wanted = list(sizes) if sizes else [rows // ranks] * ranks
    if len(wanted) != ranks or sum(wanted) != rows:
        raise ValueError(
            f"all_to_all_single: blocks of {wanted} rows; it must be {ranks} that add up to {rows}"
        )
    return list(tensor.split(wanted))


def _create(options: Any, _: Any) -> Group:
    return Group(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.global_ranks_in_group,
    )


if "SYNTH" not in dist.Backend._plugins:
    dist.Backend.register_backend("synth", _create, extended_api=True, devices=["cpu", "cuda"])
