"""List the collectives of torch.distributed, one row each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.distributed import distributed_c10d as c10d

from synth.model.registry import CollectiveKind, find_kind, parse_name


@dataclass(frozen=True)
class TorchOperation:
    """A collective of torch.distributed.

    Attributes:
        name: Name of torch.distributed's function; `synth.model.registry` names its collective.
        method: Name of the wrapped back end's method with the same meaning.
        options: torch's class of the call's options.
        uneven: Whether Gloo's method takes blocks of several sizes.
        unlimited: Whether Gloo's Work ends only when somebody waits for it, without a time limit.
    """

    name: str
    method: str
    options: Any
    uneven: bool = False
    unlimited: bool = False

    @cached_property
    def kind(self) -> CollectiveKind:
        """Return the kind of the collective."""
        return find_kind(parse_name(self.name))


OPERATIONS = {
    row.name: row
    for row in (
        TorchOperation("all_reduce", "allreduce", c10d.AllreduceOptions),
        TorchOperation("all_gather", "allgather", c10d.AllgatherOptions),
        TorchOperation("all_gather_into_tensor", "_allgather_base", c10d.AllgatherOptions),
        TorchOperation("reduce_scatter", "reduce_scatter", c10d.ReduceScatterOptions, unlimited=True),
        TorchOperation("reduce_scatter_tensor", "_reduce_scatter_base", c10d.ReduceScatterOptions, unlimited=True),
        TorchOperation("all_to_all", "alltoall", c10d.AllToAllOptions),
        TorchOperation("all_to_all_single", "alltoall_base", c10d.AllToAllOptions, True),
        TorchOperation("broadcast", "broadcast", c10d.BroadcastOptions),
        TorchOperation("reduce", "reduce", c10d.ReduceOptions),
        TorchOperation("gather", "gather", c10d.GatherOptions),
        TorchOperation("scatter", "scatter", c10d.ScatterOptions),
    )
}
# Gloo's method that makes many all-reduces as one.
ALL_REDUCE_COALESCED = TorchOperation("all_reduce", "allreduce_coalesced", c10d.AllreduceCoalescedOptions)
# Gloo's own gathers and scatters, in calls that take blocks of several sizes; see `runtime.torch.c10d.on_gloo.rooted`.
SCATTER = TorchOperation("scatter", "scatter", c10d.ScatterOptions, uneven=True, unlimited=True)
GATHER = TorchOperation("gather", "gather", c10d.GatherOptions, uneven=True)
