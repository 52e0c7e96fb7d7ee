"""Register a library's execution plans with MSCCL++, which loads no folder of plans from version 0.9 on.

In every process, before its communicator is created:

    from runtime.mscclpp import Plans

    plans = Plans("out", rank, world_size, ranks_per_node)
    plans.register(only_sums=True)  # For NCCL's calls through MSCCL++'s shim (LD_PRELOAD=libmscclpp_nccl.so).

The shim asks a selector for allreduce, allgather, reducescatter and broadcast; every other collective of the library
(alltoall, reduce, custom) goes through MSCCL++'s own executor:

    executor = mscclpp.Executor(communicator)
    plans.execute(executor, "alltoall", send, recv, nbytes, nbytes, mscclpp.DataType.float16, stream=stream)

The selector is ours, because the shim's own does not compare the root, does not check that the chunks divide the
message, and assumes that all plans have the form (in place or not) of the first one. A call that our selector declines
goes on to MSCCL++'s own kernels, then to NCCL. A request does not state its reduction, and plans always sum: plans of
collectives that reduce are registered only if the caller states that the communicator reduces only by sums.

Conditions that a run must meet (MSCCL++ of August 2026; nothing checks them):

- A communicator takes the selector that is set when it is created. Its ranks stand in the order of the library's
  `communicator`. One selector serves one group, so register again before the communicator of another group is created.
- Buffers lie at equal offsets in their allocations on all ranks, since a rank writes to another's buffer at its own
  offset; with port channels (plans over more than one node) at an allocation's base.
- All ranks are in place, or none. This includes a broadcast, of which NCCL reads only the root's send buffer.
- A rank that is in more than one communicator needs plans of protocol Simple: the flags of packets (LL) are counted by
  process, over all communicators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from emit.library.entry import IndexEntry
from emit.library.overlay import load_library
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector, entries_in_order
from emit.mscclpp.memory import counted_chunks
from emit.mscclpp.plan import SUMS, ExecutionPlan
from emit.mscclpp.read import read_plan
from synth.model.numbers import taking
from synth.model.registry import find_kind, parse_name
from synth.model.text import format_listed
from topologies.errors import InputError

TARGET = "mscclpp"
SHIM_COLLECTIVES = frozenset(
    {"allreduce", "allgather", "reducescatter", "broadcast"}
)  # The shim asks a selector for these.
# The types for which MSCCL++'s executor runs plans, by its names.
_TYPES = (
    "float16", "float32", "bfloat16", "int32", "uint32",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3b15",
)  # fmt: skip
_NO_NODE = -1  # No machine has it, so the shim's own selector never takes such a plan.
_INSTALL = (
    "MSCCL++'s Python package is not installed, and not on PyPI; get it with: git clone"
    " https://github.com/microsoft/mscclpp && pip install './mscclpp[cuda12]'"
)


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A plan of the library.

    Attributes:
        entry: Its line of the index.
        plan: Its file.
        native: The mscclpp.ExecutionPlan.
    """

    entry: IndexEntry
    plan: ExecutionPlan
    native: Any

    def takes(self, size_bytes: int) -> bool:
        """Return True if the executor takes a message of this size; for other sizes it raises an error."""
        most_chunks = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in self.plan.gpus)
        counted_bytes = size_bytes * counted_chunks(self.plan) // most_chunks
        is_divisible = size_bytes % (self.plan.alignment * most_chunks) == 0
        return is_divisible and self.plan.min_bytes <= counted_bytes <= self.plan.max_bytes


class Plans:
    """The plans of a library for one communicator, on one of its ranks."""

    @taking('synth.Plans("lib", rank=0, world_size=8, ranks_per_node=8)')
    def __init__(
        self,
        library: str | Path,
        rank: int,
        world_size: int,
        ranks_per_node: int,
        *,
        group: Sequence[int] | None = None,
        topology: str | None = None,
    ) -> None:
        """Load all plans for a communicator of this size.

        Args:
            library: Folder of the library.
            rank: Rank of this process in the communicator.
            world_size: Number of ranks of the communicator.
            ranks_per_node: Number of ranks that reach each other by memory channels: of a node, or of an NVLink domain
                (`CommGroup.nranks_per_ipc_domain`).
            group: The topology's rank of each rank of the communicator; None: the only group of the library.
            topology: Name of the topology; None: the only topology of the library.

        Raises:
            InputError: MSCCL++'s Python package is not installed; the numbers are not possible; the library cannot be
                read, or has no such plan, plans of more than one group, or two plans of one name; or a plan has memory
                channels between nodes.
        """
        if world_size < 1 or not 0 <= rank < world_size or ranks_per_node < 1:
            raise InputError(
                f"rank {rank} of {world_size}, {ranks_per_node} a node: is not possible; it must be 0 <= rank <"
                " world_size, and 1 or more a node"
            )
        self.rank, self.world_size, self.ranks_per_node = rank, world_size, ranks_per_node
        self._api = _package("mscclpp")
        entries = load_library(library)
        if group is not None:
            ranks, relaying = tuple(group), [entry for entry in entries if entry.relays]
            entries = [e for e in (*entries_in_order(entries, ranks), *relaying) if e.communicator == ranks]
        self._entries = [
            entry
            for entry in entries
            if entry.target == TARGET and len(entry.communicator) == world_size and topology in (None, entry.topology)
        ]
        self._check_one_group(library)
        self._selector = Selector(self._entries)
        self._loaded = [self._load(entry) for entry in self._entries]
        self._registered: set[str] = set()
        self._by_file = {loaded.entry.file: loaded for loaded in self._loaded}
        names = [loaded.plan.name for loaded in self._loaded]
        repeated_name = next((name for name in names if names.count(name) > 1), None)
        if repeated_name is not None:
            raise InputError(
                f"{library}: two plans are called {repeated_name!r}, but MSCCL++ knows plans by name; write them again"
            )

    def _check_one_group(self, library: str | Path) -> None:
        """Raise InputError unless the plans are for exactly one group."""
        if not self._entries:
            raise InputError(
                f"{library}: holds no execution plan for a communicator of {self.world_size} ranks; write some with"
                f" --target {TARGET}"
            )
        places = sorted({(entry.topology, entry.communicator) for entry in self._entries})
        if len(places) > 1:
            shown = "; ".join(f"{topology} {format_listed(ranks)}" for topology, ranks in places[:6])
            raise InputError(f"{library}: has plans for several groups: {shown}; give group and topology")

    def _load(self, entry: IndexEntry) -> _Loaded:
        """Load a plan.

        Raises:
            InputError: The plan has memory channels between nodes.
        """
        plan = read_plan(entry.path)
        for rank, gpu in enumerate(plan.gpus):
            for peer in gpu.peers.get("memory", ()):
                if peer // self.ranks_per_node != rank // self.ranks_per_node:
                    raise InputError(
                        f"{entry.path}: memory channels between ranks {rank} and {peer}, which are on two nodes of"
                        f" {self.ranks_per_node}; it must be a plan for this number of ranks a node"
                    )
        return _Loaded(entry, plan, self._api.ExecutionPlan(str(entry.path), self.rank))

    def register(self, *, only_sums: bool = False) -> int:
        """Register the plans that NCCL's calls can use, and the selector; return the number of plans.

        The selector takes the place of any that MSCCL++ had. Plans of an earlier call of this method that are not
        registered now are no longer selected.

        Args:
            only_sums: True if all reductions of the communicator are sums. Otherwise plans that reduce are left out,
                because a request does not state its reduction and plans always sum.

        Raises:
            InputError: A part of MSCCL++'s Python package is missing.
        """
        builder = _package("mscclpp.ext").AlgorithmCollectionBuilder()
        self._registered = {
            loaded.plan.name
            for loaded in self._loaded
            if loaded.plan.collective in SHIM_COLLECTIVES
            and (only_sums or not find_kind(loaded.plan.collective).reduces)
        }
        algorithm = self._api.Algorithm
        for loaded in self._loaded:
            if loaded.plan.name in self._registered:
                limits = algorithm.Constraint(world_size=self.world_size, n_ranks_per_node=_NO_NODE)
                builder.add_algorithm_builder(
                    algorithm(id=loaded.plan.name, execution_plan=loaded.native, constraint=limits)
                )
        builder.set_algorithm_selector(self.select)
        return len(self._registered)

    def select(self, algorithms: Mapping[str, Mapping[str, Any]], request: Any) -> Any | None:
        """Select the registered algorithm for a request; MSCCL++ calls this. None leaves the call to others.

        Args:
            algorithms: The registered algorithms, by collective and name.
            request: MSCCL++'s CollectiveRequest: collective, world_size, rank, message_size (bytes; one rank's for an
                allgather), input_buffer, output_buffer (addresses), dtype, hints (of a broadcast: root).
        """
        collective, size = request.collective, int(request.message_size)
        if request.world_size != self.world_size or collective not in SHIM_COLLECTIVES:
            return None
        root = None
        if find_kind(collective).rooted:
            hint = request.hints.get("root")
            if not hint:
                return None
            root = int(hint[0])
        send, recv = int(request.input_buffer), int(request.output_buffer)
        part_bytes = size // self.world_size if collective == "reducescatter" else size
        whole_bytes = size * self.world_size if collective == "allgather" else size
        send_bytes, recv_bytes = (part_bytes, whole_bytes) if collective == "allgather" else (whole_bytes, part_bytes)
        inplace = self._is_in_place(send, recv, send_bytes, recv_bytes)
        loaded = self._find(collective, whole_bytes, inplace, request.dtype, root)
        if loaded is None or loaded.plan.name not in self._registered:
            return None
        return algorithms.get(collective, {}).get(loaded.plan.name)

    # Its parameters are those of MSCCL++'s `Executor.execute`, and what a library needs to choose a plan.
    def execute(
        self,
        executor: Any,
        collective: str,
        send: int,
        recv: int,
        send_bytes: int,
        recv_bytes: int,
        dtype: Any,
        *,
        op: str = "sum",
        root: int | None = None,
        stream: int = 0,
    ) -> bool:
        """Run the plan for a call; return False, with nothing done, if the library has none that serves it.

        A plan that sums serves only `op` "sum". Where the plan runs, this only starts it on the stream.

        Args:
            executor: mscclpp.Executor of the communicator.
            collective: Name of the collective, also in torch's spelling.
            send: Address of the rank's send buffer.
            recv: Address of its receive buffer.
            send_bytes: Size of the send buffer in bytes.
            recv_bytes: Size of the receive buffer in bytes.
            dtype: Data type, of mscclpp.DataType.
            op: The reduction, if the collective reduces.
            root: Rank of the communicator that is the root, if the collective has one.
            stream: CUDA's handle of the stream.

        Raises:
            InputError: The collective is unknown, or the root is not a rank of the communicator.
        """
        if collective not in {entry.collective for entry in self._entries}:
            collective = parse_name(collective)
        if root is not None and not 0 <= root < self.world_size:
            raise InputError(f"root {root}: must be a rank of the communicator, 0 to {self.world_size - 1}")
        inplace = self._is_in_place(send, recv, send_bytes, recv_bytes)
        loaded = self._find(collective, max(send_bytes, recv_bytes), inplace, dtype, root)
        if loaded is None or (op != "sum" and _sums(loaded.plan)):
            return False
        executor.execute(self.rank, send, recv, send_bytes, recv_bytes, dtype, loaded.native, stream)
        return True

    def _is_in_place(self, send: int, recv: int, send_bytes: int, recv_bytes: int) -> bool:
        """Return True if one buffer is this rank's block of the other, or both are the same."""
        block = self.rank * min(send_bytes, recv_bytes)
        if send_bytes == recv_bytes:
            return send == recv
        return recv == send + block if send_bytes > recv_bytes else send == recv + block

    def _find(self, collective: str, size_bytes: int, inplace: bool, dtype: Any, root: int | None) -> _Loaded | None:
        """Return the plan that serves a call, or None.

        Args:
            collective: The collective, by our name.
            size_bytes: Size of the fuller buffer in bytes.
            inplace: Whether the call is in place.
            dtype: Data type, of mscclpp.DataType.
            root: Rank of the communicator that is the root; None without one.
        """
        supported_types = [getattr(self._api.DataType, name, None) for name in _TYPES]
        entries = [entry for entry in self._entries if entry.collective == collective]
        if not entries or dtype is None or dtype not in supported_types:
            return None
        first_entry = entries[0]
        root_rank = None if root is None else first_entry.communicator[root]
        nranks, group, relays = first_entry.nranks, first_entry.group, first_entry.relays
        # Without the check of the fields, which are right; it would take longer than the choice.
        call = LibraryCall._make((collective, nranks, group, inplace, None, None, root_rank, relays, 1, False, ()))
        entry = self._selector.choose(call, size_bytes)
        loaded = None if entry is None else self._by_file[entry.file]
        return loaded if loaded is not None and loaded.takes(size_bytes) else None


def _sums(plan: ExecutionPlan) -> bool:
    """Return True if any operation of a plan reduces."""
    return any(op.name in SUMS for *_, op in plan.ops())


def _package(name: str) -> Any:
    """Import a module of MSCCL++'s Python package, which is optional and built from its sources.

    Raises:
        InputError: The package is not installed, or it cannot be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(_INSTALL if error.name in (name, "mscclpp") else f"{name}: {error}") from None
