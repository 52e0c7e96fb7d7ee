"""Serve calls of torchcomms: a back end in Python, over the same groups as the back end of torch.distributed.

`import synth.torch` registers it: `torchcomms.new_comm("synth", torch.device("cpu"), name="world")`.

Source: the interface is that of torchcomms' TorchCommBackend (comms/torchcomms/TorchCommBackendPy.cpp, 59426ba).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torchcomms._comms import TorchCommBackend

from runtime.torch.c10d.group import Group
from topologies.errors import InputError

Tensor: TypeAlias = Any

NAME = "synth"
# Variables with a process's rank and the number of ranks, in the order in which torchcomms' own back ends read them.
_RANK_AND_SIZE = (
    ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)  # fmt: skip
_REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")


class SynthComm(TorchCommBackend):  # type: ignore[misc]  # The package has no types.
    """A rank's end of a communicator of torchcomms.

    Each method of a collective or message takes torchcomms' arguments, writes its outputs, and returns None, or with
    `async_op` an object whose `wait()` ends when the outputs are there. It raises InputError if tensors do not fit
    together or the reduction is not one of torch.distributed's, and RuntimeError if a rank is lost or too late.
    """

    def __init__(self) -> None:
        """Build a back end, which `init` connects."""
        super().__init__()
        self._group: Group | None = None
        self._name = ""
        self._timeout: timedelta | None = None

    # ---- life

    def init(self, device: Any, name: str, options: Any) -> None:  # noqa: ARG002
        """Meet the other ranks, as the process's variables number them, over the store of the options or of the job.

        Args:
            device: Ignored.
            name: Name of the communicator.
            options: torchcomms' options; its `store` and `timeout` are used if they are set.

        Raises:
            InputError: No variables state the rank, or ranks would choose differently.
            RuntimeError: A rank does not come in time.
        """
        rank, size = rank_and_size()
        store = getattr(options, "store", None)
        if store is None:
            store, _, _ = next(iter(dist.rendezvous("env://", rank, size)))
        timeout = getattr(options, "timeout", None) or c10d.default_pg_timeout
        self._name = name
        self._group = Group(dist.PrefixStore(f"torchcomms/{name}/", store), rank, size, timeout, [], name)

    def finalize(self) -> None:
        """Wait for the open calls, and leave the communicator; raise InputError if it is not connected."""
        self._connected().shutdown()
        self._group = None

    def split(self, ranks: Sequence[int], name: str, options: Any) -> SynthComm | None:
        """Return a communicator of some of these ranks, in this order; None on a rank that is not among them.

        Its time-out is that of the options, else the one that was set here, else that of this communicator.

        Raises:
            InputError: This communicator is not connected, or ranks would choose differently.
            RuntimeError: A rank does not come in time.
        """
        timeout = getattr(options, "timeout", None) or self._timeout
        group = self._connected().split_group(list(ranks), timeout, name)
        if group is None:
            return None
        part = SynthComm()
        part._group, part._name = group, name
        return part

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of all further collectives, not of messages, and of communicators that are split later."""
        self._timeout = timeout

    def get_rank(self) -> int:
        """Return this rank's place in the communicator; raise InputError if it is not connected."""
        return int(self._connected().rank())

    def get_size(self) -> int:
        """Return the number of ranks; raise InputError if the communicator is not connected."""
        return int(self._connected().size())

    def get_backend_name(self) -> str:
        """Return the name under which the back end is registered."""
        return NAME

    def get_comm_name(self) -> str:
        """Return the communicator's name, "" before it is connected."""
        return self._name

    # ---- messages

    def send(self, tensor: Tensor, dst: int, async_op: bool) -> Any:
        """Send a tensor to a rank and return None; with `async_op` return its work at once."""
        return _ended(self._connected().send([tensor], dst, 0), async_op)

    def recv(self, tensor: Tensor, src: int, async_op: bool) -> Any:
        """Receive a tensor from a rank, in place, and return None; with `async_op` return its work at once."""
        return _ended(self._connected().recv([tensor], src, 0), async_op)

    # ---- collectives

    def broadcast(self, tensor: Tensor, root: int, async_op: bool) -> Any:
        """Run a broadcast in place and return None; with `async_op` return its work at once."""
        options = self._options(c10d.BroadcastOptions, async_op, root=root)
        return _ended(self._connected().broadcast([tensor], options), async_op)

    def all_reduce(self, tensor: Tensor, op: Any, async_op: bool) -> Any:
        """Run an all-reduce in place and return None; with `async_op` return its work at once."""
        options = self._options(c10d.AllreduceOptions, async_op, op)
        return _ended(self._connected().allreduce([tensor], options), async_op)

    def reduce(self, tensor: Tensor, root: int, op: Any, async_op: bool) -> Any:
        """Run a reduction to the root, in place there, and return None; with `async_op` return its work at once."""
        options = self._options(c10d.ReduceOptions, async_op, op, root)
        return _ended(self._connected().reduce([tensor], options), async_op)

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor, async_op: bool) -> Any:
        """Run an all-gather into one tensor for each rank and return None; with `async_op` return its work at once."""
        options = self._options(c10d.AllgatherOptions, async_op)
        return _ended(self._connected().allgather([tensor_list], [tensor], options), async_op)

    def all_gather_v(self, tensor_list: list[Tensor], tensor: Tensor, async_op: bool) -> Any:
        """Run an all-gather of tensors that may differ in size and return None; with `async_op` return its work."""
        return self.all_gather(tensor_list, tensor, async_op)

    def all_gather_single(self, output: Tensor, input: Tensor, async_op: bool) -> Any:
        """Run an all-gather into one tensor, by rank, and return None; with `async_op` return its work at once."""
        options = self._options(c10d.AllgatherOptions, async_op)
        return _ended(self._connected().all_gather_single(output, input, options), async_op)

    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any, async_op: bool) -> Any:
        """Run a reduce-scatter of one tensor for each rank and return None; with `async_op` return its work at once."""
        options = self._options(c10d.ReduceScatterOptions, async_op, op)
        return _ended(self._connected().reduce_scatter([output], [input_list], options), async_op)

    def reduce_scatter_v(self, output: Tensor, input_list: list[Tensor], op: Any, async_op: bool) -> Any:
        """Run a reduce-scatter of tensors that may differ in size and return None; with `async_op` return its work."""
        return self.reduce_scatter(output, input_list, op, async_op)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, op: Any, async_op: bool) -> Any:
        """Run a reduce-scatter of one tensor with a block per rank and return None; with `async_op` return its work."""
        options = self._options(c10d.ReduceScatterOptions, async_op, op)
        return _ended(self._connected().reduce_scatter_single(output, input, options), async_op)

    def all_to_all(self, output_list: list[Tensor], input_list: list[Tensor], async_op: bool) -> Any:
        """Run an all-to-all of one tensor for each rank and return None; with `async_op` return its work at once.

        The tensors may differ in size.
        """
        options = self._options(c10d.AllToAllOptions, async_op)
        return _ended(self._connected().alltoall(output_list, input_list, options), async_op)

    def all_to_all_single(self, output: Tensor, input: Tensor, async_op: bool) -> Any:
        """Run an all-to-all of one tensor's rows in equal blocks and return None; with `async_op` return its work."""
        return self.all_to_all_v_single(output, input, [], [], async_op)

    def all_to_all_v_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], async_op: bool
    ) -> Any:
        """Run an all-to-all of the rows of one tensor and return None; with `async_op` return its work at once.

        `output_splits` has the rows of `output` that come from each rank, `input_splits` the rows of `input` that go to
        each. An empty list stands for equal blocks.
        """
        options = self._options(c10d.AllToAllOptions, async_op)
        work = self._connected().all_to_all_single(output, input, output_splits, input_splits, options)
        return _ended(work, async_op)

    def gather(self, output_list: list[Tensor], input: Tensor, root: int, async_op: bool) -> Any:
        """Run a gather to the root and return None; with `async_op` return its work at once.

        The root's `output_list` has one tensor for each rank; elsewhere the list is ignored.
        """
        group = self._connected()
        outputs = [output_list] if group.rank() == root else []
        options = self._options(c10d.GatherOptions, async_op, root=root)
        return _ended(group.gather(outputs, [input], options), async_op)

    def scatter(self, output: Tensor, input_list: list[Tensor], root: int, async_op: bool) -> Any:
        """Run a scatter from the root and return None; with `async_op` return its work at once.

        The root's `input_list` has one tensor for each rank; elsewhere the list is ignored.
        """
        group = self._connected()
        inputs = [input_list] if group.rank() == root else []
        options = self._options(c10d.ScatterOptions, async_op, root=root)
        return _ended(group.scatter([output], inputs, options), async_op)

    def barrier(self, async_op: bool) -> Any:
        """Wait until all ranks have called it and return None; with `async_op` return its work at once."""
        return _ended(self._connected().barrier(self._options(c10d.BarrierOptions, async_op)), async_op)

    # ---- inside

    def _connected(self) -> Group:
        """Return the group; raise InputError before `init` and after `finalize`."""
        if self._group is None:
            raise InputError(f"communicator {self._name or 'without a name'}: is not connected; init must come first")
        return self._group

    def _options(self, kind: Any, async_op: bool, op: Any = None, root: int | None = None) -> Any:
        """Return torch's options of a call, with the time-out that was set, if any.

        Args:
            kind: torch's class of the options.
            async_op: Whether the caller goes on before the call is over.
            op: torchcomms' reduction; None for a call that does not reduce.
            root: Root of a rooted collective, otherwise None.

        Raises:
            InputError: The reduction has a factor, which only NCCL supports.
        """
        options = kind()
        options.asyncOp = async_op
        if op is not None:
            options.reduceOp = reduction(op)
        if root is not None:
            options.rootRank = root
        if self._timeout is not None:
            options.timeout = self._timeout
        return options


def _ended(work: Any, async_op: bool) -> Any:
    """Return the work of an asynchronous call; wait for that of another one, and return None."""
    if async_op:
        return work
    work.wait()
    return None


def reduction(op: Any) -> Any:
    """Return torch's reduction for torchcomms' one; raise InputError for one with a factor, which only NCCL has."""
    name = op.type.name
    if name not in _REDUCTIONS:
        raise InputError(f"reduction {name}: must be one of {', '.join(_REDUCTIONS)}")
    return getattr(dist.ReduceOp, name)


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, from the first launcher's variables that are whole numbers.

    Raises:
        InputError: No launcher states the two numbers, or the rank is not less than the number of ranks.
    """
    for rank, size in _RANK_AND_SIZE:
        stated = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(text.isdecimal() for text in stated):
            if int(stated[0]) < int(stated[1]):
                return int(stated[0]), int(stated[1])
            raise InputError(f"{rank}={stated[0]}: must be less than {size}={stated[1]}")
    names = " and ".join(_RANK_AND_SIZE[0])
    raise InputError(f"{names}: are not set; they must be this process's rank and the number of ranks (torchrun)")
