"""The collectives that have a root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.distributed import distributed_c10d as c10d

from runtime.torch.calls import Calls, back, flat
from runtime.torch.rank_program import Part
from runtime.torch.run import Wire, run

Tensor: TypeAlias = Any


class Rooted(Calls):
    """Methods and their arguments are those that torch.distributed calls."""

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.BroadcastOptions()
        tensor, root = tensors[0], opts.rootRank
        count = tensor.numel()

        def own(part: Part, wire: Wire, op: str) -> None:
            values = flat(tensor)
            run(part, values, values, count, op, wire)
            if self._me != root:
                back(tensor, values)

        return self._do(
            self._call("broadcast", tensor, count, root),
            tensors,
            opts,
            own,
            lambda inner, o, c: inner.broadcast(c(tensors), o),
            tensors,
            count,
        )

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceOptions()
        tensor, root = tensors[0], opts.rootRank
        count = tensor.numel()
        made = tensors if self._me == root else []

        def own(part: Part, wire: Wire, op: str) -> None:
            values = flat(tensor)
            run(part, values, values if made else None, count, op, wire)
            if made:
                back(tensor, values)

        return self._do(
            self._call("reduce", tensor, count, root),
            tensors,
            opts,
            own,
            lambda inner, o, c: inner.reduce(c(tensors), o),
            made,
            count,
            opts.reduceOp,
        )

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.GatherOptions()
        tensor, root = inputs[0], opts.rootRank
        into = outputs[0] if self._me == root else []
        count = tensor.numel()
        if self._me == root:
            self._one_a_rank("gather", "outputs", into)

        def own(part: Part, wire: Wire, op: str) -> None:
            values = flat(tensor)
            made = values.new_empty(count * self._n) if into else None
            run(part, values, made, count, op, wire)
            if made is not None:
                spread(made, into)

        return self._do(
            self._call("gather", tensor, count * self._n, root),
            [tensor, *into],
            opts,
            own,
            lambda inner, o, c: inner.gather([c(into)] if into else [], c(inputs), o),
            into,
            count,
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ScatterOptions()
        out, root = outputs[0], opts.rootRank
        parts = inputs[0] if self._me == root else []
        count = out.numel()
        if self._me == root:
            self._one_a_rank("scatter", "inputs", parts)

        def own(part: Part, wire: Wire, op: str) -> None:
            made = flat(out)
            run(part, torch.cat([flat(values) for values in parts]) if parts else None, made, count, op, wire)
            back(out, made)

        return self._do(
            self._call("scatter", out, count * self._n, root),
            [out, *parts],
            opts,
            own,
            lambda inner, o, c: inner.scatter(c(outputs), [c(parts)] if parts else [], o),
            [out],
            count,
        )

    def _one_a_rank(self, what: str, word: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self._n:
            raise ValueError(f"{what}: {len(tensors)} {word}; it must be {self._n}, one a rank")


def spread(values: Tensor, into: Sequence[Tensor]) -> None:
    """Blocks of equal length to as many tensors."""
    first = 0
    for tensor in into:
        tensor.copy_(values[first : first + tensor.numel()].view(tensor.shape))
        first += tensor.numel()
