"""A library's execution plans registered with MSCCL++, which loads no folder of plans from 0.9 on.

In every process, before its communicator is made:

    from runtime.mscclpp import Plans

    plans = Plans("out", rank, world_size, ranks_per_node)
    plans.register(only_sums=True)    # NCCL's calls through MSCCL++'s shim (LD_PRELOAD=libmscclpp_nccl.so)

The shim asks a selector for allreduce, allgather, reducescatter and broadcast; every other collective of the library
(alltoall, reduce, custom) goes through MSCCL++'s own executor:

    executor = mscclpp.Executor(communicator)
    plans.execute(executor, "alltoall", send, recv, nbytes, nbytes, mscclpp.DataType.float16, stream=stream)

The selector is ours: the shim's compares neither the root nor whether the chunks divide the message, and takes the
form (in place or not) of the first plan for that of all. What it declines goes on to MSCCL++'s own kernels, then to
NCCL. What a request does not tell it is the reduction, and plans always sum: plans of collectives that reduce are
registered only where the caller states that the communicator reduces by sums alone.

What a run must see to (MSCCL++ of August 2026; nothing checks it):

- A communicator takes the selector that is set when it is made. Its ranks stand in the order of the library's
  `communicator`; one selector serves one group, so register again before the communicator of another group is made.
- Buffers lie at equal offsets in their allocations on all ranks, since a rank writes to another's buffer at its own
  offset; with port channels (plans over several nodes) at an allocation's base.
- All ranks are in place, or none; a broadcast too, of whose send buffer NCCL looks only at the root's.
- A rank that is in several communicators needs plans of protocol Simple: the flags of packets (LL) are counted by
  process, over all communicators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from emit.library.index import Entry
from emit.library.overlay import load_library
from emit.library.selector import Selector, entries_in_order
from emit.mscclpp.memory import counted_chunks
from emit.mscclpp.plan import SUMS, Plan
from emit.mscclpp.read import read_plan
from synth.model.registry import find_kind, parse_name
from synth.model.text import format_listed
from topologies.errors import InputError

TARGET = "mscclpp"
ASKED_FOR = frozenset({"allreduce", "allgather", "reducescatter", "broadcast"})  # for which the shim asks a selector
# MSCCL++'s names of the types that its executor runs plans for
_TYPES = (
    "float16", "float32", "bfloat16", "int32", "uint32",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3b15",
)  # fmt: skip
_NO_NODE = -1  # ranks a node of no machine: the shim's own selector never takes a plan that states it
_INSTALL = (
    "MSCCL++'s Python package is not installed, and not on PyPI; get it with: git clone"
    " https://github.com/microsoft/mscclpp && pip install './mscclpp[cuda12]'"
)


@dataclass(frozen=True, eq=False)
class _Loaded:
    """One plan of the library: what its file says, and itself as MSCCL++ has it."""

    entry: Entry
    plan: Plan
    native: Any  # mscclpp.ExecutionPlan

    def takes(self, size_bytes: int) -> bool:
        """Whether the executor takes a message of this size; it raises for others."""
        most = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in self.plan.gpus)
        asked = size_bytes * counted_chunks(self.plan) // most
        whole = size_bytes % (self.plan.alignment * most) == 0
        return whole and self.plan.min_bytes <= asked <= self.plan.max_bytes


class Plans:
    """The plans of a library for one communicator, on one of its ranks."""

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
        """Load all plans that are for a communicator of this size.

        Args:
            library: its folder.  rank, world_size: of the communicator.
            ranks_per_node: that reach each other by memory channels: of a node, or of an NVLink domain
                (`CommGroup.nranks_per_ipc_domain`).
            group: the topology's rank of each of the communicator's.  topology: its name.  None: the library's only.

        Raises InputError without MSCCL++'s Python package, for a library that has no such plan or plans of several
        groups, for plans of one name, or one with memory channels between nodes.
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
        self._by_file = {one.entry.file: one for one in self._loaded}
        names = [one.plan.name for one in self._loaded]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{library}: two plans are called {twice!r}, by which MSCCL++ keeps them; write them anew")

    def _check_one_group(self, library: str | Path) -> None:
        if not self._entries:
            raise InputError(
                f"{library}: holds no execution plan for a communicator of {self.world_size} ranks; write some with"
                f" --target {TARGET}"
            )
        places = sorted({(entry.topology, entry.communicator) for entry in self._entries})
        if len(places) > 1:
            shown = "; ".join(f"{topology} {format_listed(ranks)}" for topology, ranks in places[:6])
            raise InputError(f"{library}: has plans for several groups: {shown}; give group and topology")

    def _load(self, entry: Entry) -> _Loaded:
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
        """Register the plans that NCCL's calls can use, and the selector; how many they are.

        only_sums: all reductions of the communicator are sums. A request does not say it, and plans always sum:
        without it those that reduce are left out.
        """
        builder = _package("mscclpp.ext").AlgorithmCollectionBuilder()
        self._registered = {
            one.plan.name
            for one in self._loaded
            if one.plan.collective in ASKED_FOR and (only_sums or not find_kind(one.plan.collective).reduces)
        }
        algorithm = self._api.Algorithm
        for one in self._loaded:
            if one.plan.name in self._registered:
                limits = algorithm.Constraint(world_size=self.world_size, n_ranks_per_node=_NO_NODE)
                builder.add_algorithm_builder(algorithm(id=one.plan.name, execution_plan=one.native, constraint=limits))
        builder.set_algorithm_selector(self.select)
        return len(self._registered)

    def select(self, algorithms: Mapping[str, Mapping[str, Any]], request: Any) -> Any | None:
        """The selector: of the registered algorithms (by collective and name) the one for a request, or None.

        request: MSCCL++'s CollectiveRequest: collective, world_size, rank, message_size (bytes; of an allgather one
        rank's), input_buffer, output_buffer (addresses), dtype, hints (of a broadcast: root).
        """
        collective, size = request.collective, int(request.message_size)
        if request.world_size != self.world_size or collective not in ASKED_FOR:
            return None
        root = None
        if find_kind(collective).rooted:
            hint = request.hints.get("root")
            if not hint:
                return None
            root = int(hint[0])
        send, recv = int(request.input_buffer), int(request.output_buffer)
        given = size // self.world_size if collective == "reducescatter" else size
        whole = size * self.world_size if collective == "allgather" else size
        sent, made = (given, whole) if collective == "allgather" else (whole, given)
        inplace = self._is_in_place(send, recv, sent, made)
        found = self._find(collective, whole, inplace, request.dtype, root)
        if found is None or found.plan.name not in self._registered:
            return None
        return algorithms.get(collective, {}).get(found.plan.name)

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
        """Launch the plan for a call, if the library has one; whether it has.

        Args:
            executor: mscclpp.Executor of the communicator.  collective: torch's spellings too.
            send, recv: addresses of the rank's buffers, of so many bytes.  dtype: of mscclpp.DataType.
            op: the reduction, where the collective reduces.  root: rank of the communicator.  stream: CUDA's handle.

        Raises InputError for a collective that is not known, or a root that is no rank of the communicator.
        """
        if collective not in {entry.collective for entry in self._entries}:
            collective = parse_name(collective)
        if root is not None and not 0 <= root < self.world_size:
            raise InputError(f"root {root}: must be a rank of the communicator, 0 to {self.world_size - 1}")
        inplace = self._is_in_place(send, recv, send_bytes, recv_bytes)
        found = self._find(collective, max(send_bytes, recv_bytes), inplace, dtype, root)
        if found is None or (op != "sum" and _sums(found.plan)):
            return False
        executor.execute(self.rank, send, recv, send_bytes, recv_bytes, dtype, found.native, stream)
        return True

    def _is_in_place(self, send: int, recv: int, send_bytes: int, recv_bytes: int) -> bool:
        """Whether one buffer is this rank's block of the other, or both are one."""
        block = self.rank * min(send_bytes, recv_bytes)
        if send_bytes == recv_bytes:
            return send == recv
        return recv == send + block if send_bytes > recv_bytes else send == recv + block

    def _find(self, collective: str, size_bytes: int, inplace: bool, dtype: Any, root: int | None) -> _Loaded | None:
        """The plan that serves a call; root: rank of the communicator."""
        runs = [getattr(self._api.DataType, name, None) for name in _TYPES]
        entries = [entry for entry in self._entries if entry.collective == collective]
        if not entries or dtype is None or dtype not in runs:
            return None
        asked = entries[0]
        entry = self._selector.choose(
            collective,
            asked.nranks,
            asked.group,
            size_bytes,
            inplace,
            root=None if root is None else asked.communicator[root],
            relays=asked.relays,
        )
        found = None if entry is None else self._by_file[entry.file]
        return found if found is not None and found.takes(size_bytes) else None


def _sums(plan: Plan) -> bool:
    """Whether any operation of a plan reduces."""
    return any(op.name in SUMS for *_, op in plan.ops())


def _package(name: str) -> Any:
    """A module of MSCCL++'s Python package, which is optional and built from its sources."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(_INSTALL if error.name in (name, "mscclpp") else f"{name}: {error}") from None
