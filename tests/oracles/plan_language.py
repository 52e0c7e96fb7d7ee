"""A stand-in for MSCCL++'s language: it records the calls of a program one by one, and joins none of them.

What it prints is a plan of more and smaller operations than the language's own, which says the same.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple

import pytest

Json = dict[str, Any]


class SyncType(Enum):
    none = "none"


class BufferType(Enum):
    input = "i"
    output = "o"
    scratch = "s"


class Chunk(NamedTuple):
    rank: int
    kind: str
    first: int
    size: int

    def local(self) -> Json:
        return {"type": self.kind, "index": self.first, "size": self.size}


class Recorded:
    """What a program has called so far; `language` makes the calls of a program lead here."""

    def __init__(self) -> None:
        self.head: Json = {}
        self.gpus: list[Json] = []
        self.loop: dict[tuple[int, int], list[Json]] | None = None

    def block(self, rank: int, tb: int) -> Json:
        blocks = self.gpus[rank]["threadblocks"]
        while len(blocks) <= tb:
            blocks.append({"id": len(blocks), "ops": [], "channels": [], "remote_buffer_refs": []})
        found: Json = blocks[tb]
        return found

    def add(self, rank: int, tb: int, op: Json) -> None:
        block = self.block(rank, tb)
        (block["ops"] if self.loop is None else self.loop[rank, tb]).append(op)

    def listed(self, rank: int, tb: int, name: str, kind_key: str, kind: str, ids: str, number: int) -> int:
        """Return the place of a number in a list of a threadblock, to which it is added if it is new."""
        lists = self.block(rank, tb)[name]
        entry = next((entry for entry in lists if entry[kind_key] == kind), None)
        if entry is None:
            entry = {kind_key: kind, ids: []}
            lists.append(entry)
        if number not in entry[ids]:
            entry[ids].append(number)
        place: int = entry[ids].index(number)
        return place

    def channel(self, rank: int, tb: int, kind: str, number: int) -> int:
        return self.listed(rank, tb, "channels", "channel_type", kind, "channel_ids", number)

    def remote(self, rank: int, tb: int, kind: str, chunk: Chunk) -> Json:
        buffers = self.gpus[rank]["remote_buffers"]
        entry = {"rank": chunk.rank, "type": chunk.kind, "access_channel_types": [kind]}
        if entry not in buffers:
            buffers.append(entry)
        place = self.listed(
            rank, tb, "remote_buffer_refs", "access_channel_type", kind, "remote_buffer_ids", buffers.index(entry)
        )
        return {"buffer_id": place, "index": chunk.first, "size": chunk.size}


class Buffers:
    def __init__(self, rank: int, kind: str) -> None:
        self.rank, self.kind = rank, kind

    def __getitem__(self, span: slice) -> Chunk:
        return Chunk(self.rank, self.kind, span.start, span.stop - span.start)


def classes(recorded: Recorded) -> dict[str, Any]:
    """Return the names that a program imports."""

    class TestCollective:
        def __init__(self, ranks: int, inputs: int, outputs: int) -> None:
            self.sizes, self.name, self.inplace = (ranks, inputs, outputs), "", False

    class CollectiveProgram:
        def __init__(self, name: str, collective: Any, ranks: int, *, auto_sync: bool, **options: Any) -> None:
            assert not auto_sync
            assert collective.sizes[0] == ranks
            recorded.head = {"name": name, "collective": collective.name, "inplace": collective.inplace, **options}
            for rank in range(ranks):
                sizes = {"input_chunks": collective.sizes[1], "output_chunks": collective.sizes[2]}
                empty: Json = {name: [] for name in ("channels", "remote_buffers", "semaphores", "threadblocks")}
                recorded.gpus.append({"id": rank, **sizes, "scratch_chunks": 0, **empty})

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    class Rank:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def get_input_buffer(self) -> Buffers:
            return Buffers(self.rank, "i")

        def get_output_buffer(self) -> Buffers:
            return Buffers(self.rank, "o")

        def barrier(self, tbs: list[int]) -> None:
            if len(tbs) == 1:
                recorded.add(self.rank, tbs[0], {"name": "nop"})
                return
            barriers = recorded.gpus[self.rank].setdefault("barriers", [])
            if tbs not in barriers:
                barriers.append(tbs)
            op = {"name": "barrier", "barrier_id": barriers.index(tbs), "num_threadblocks": len(tbs)}
            for tb in tbs:
                recorded.add(self.rank, tb, op)

        def _local(self, name: str, to: Chunk, sources: list[Chunk], tb: int) -> None:
            assert {chunk.rank for chunk in (to, *sources)} == {self.rank}
            op = {"name": name, "src_buff": [chunk.local() for chunk in sources], "dst_buff": [to.local()]}
            recorded.add(self.rank, tb, op)

        def copy(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._local("copy", to, [source], tb)

        def copy_packets(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._local("cpkt", to, [source], tb)

        def unpack_packets(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._local("upkt", to, [source], tb)

        def reduce(self, source: Chunk, others: list[Chunk], tb: int, dst_chunk: Chunk, packet: bool = False) -> None:
            self._local("repkt" if packet else "re", dst_chunk, [source, *others], tb)

    def scratch(rank: int, chunks: int) -> Buffers:
        recorded.gpus[rank]["scratch_chunks"] = chunks
        return Buffers(rank, "s")

    class Channel:
        kind = ""

        def __init__(self, peer: int, rank: int) -> None:
            self.peer, self.rank = peer, rank
            lists = recorded.gpus[rank]["channels"]
            entry = next((entry for entry in lists if entry["channel_type"] == self.kind), None)
            if entry is None:
                entry = {"channel_type": self.kind, "connected_to": []}
                lists.append(entry)
            self.number = len(entry["connected_to"])
            entry["connected_to"].append(peer)

        def _word(self, name: str, tb: int, data_sync: SyncType, relaxed: bool = False) -> None:
            assert data_sync == SyncType.none
            ids = [recorded.channel(self.rank, tb, self.kind, self.number)]
            name = f"rlx{name}" if relaxed else name
            recorded.add(self.rank, tb, {"name": name, "channel_ids": ids, "channel_type": self.kind})

        def signal(self, tb: int, **options: Any) -> None:
            self._word("signal", tb, **options)

        def wait(self, tb: int, **options: Any) -> None:
            self._word("wait", tb, **options)

        def _move(self, name: str, source: Json, to: Json, tb: int) -> None:
            ids = [recorded.channel(self.rank, tb, self.kind, self.number)]
            op = {"name": name, "src_buff": [source], "dst_buff": [to], "channel_type": self.kind}
            recorded.add(self.rank, tb, op | ({"channel_ids": ids} if self.kind == "port" or name == "get" else {}))

        def _put(self, name: str, to: Chunk, source: Chunk, tb: int) -> None:
            assert (to.rank, source.rank, to.size) == (self.peer, self.rank, source.size)
            self._move(name, source.local(), recorded.remote(self.rank, tb, self.kind, to), tb)

        def put(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._put("put", to, source, tb)

        def put_packets(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._put("ppkt", to, source, tb)

        def read_put_packets(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._put("rppkt", to, source, tb)

    class MemoryChannel(Channel):
        kind = "memory"

        def get(self, to: Chunk, source: Chunk, tb: int) -> None:
            assert (to.rank, source.rank, to.size) == (self.rank, self.peer, source.size)
            self._move("get", recorded.remote(self.rank, tb, self.kind, source), to.local(), tb)

        def reduce(self, own: Chunk, others: list[Chunk], tb: int, local_dst_chunk: Chunk) -> None:
            assert {chunk.rank for chunk in others} == {self.peer}
            sources = [own.local(), *(recorded.remote(self.rank, tb, self.kind, chunk) for chunk in others)]
            op = {"name": "rre", "src_buff": sources, "dst_buff": [local_dst_chunk.local()], "channel_type": self.kind}
            recorded.add(self.rank, tb, op)

    class PortChannel(Channel):
        kind = "port"

        def put_with_signal(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._put("pws", to, source, tb)

        def put_with_signal_and_flush(self, to: Chunk, source: Chunk, tb: int) -> None:
            self._put("pwsf", to, source, tb)

        def flush(self, tb: int, **options: Any) -> None:
            self._word("flush", tb, **options)

    class SwitchChannel:
        def __init__(self, rank_list: list[int], buffer_type: BufferType) -> None:
            self.ranks, self.rank = rank_list, -1
            group = {"size": len(rank_list), "ranks": rank_list}
            entry = {"channel_type": "switch", "buffer_type": buffer_type.value, "rank_groups": [group]}
            for rank in rank_list:
                switches = [c for c in recorded.gpus[rank]["channels"] if c["channel_type"] == "switch"]
                self.number = len(switches)
                recorded.gpus[rank]["channels"].append(entry)

        def at_rank(self, rank: int) -> SwitchChannel:
            assert rank in self.ranks
            self.rank = rank
            return self

        def _store(self, name: str, source: Chunk, first: int, size: int, tb: int) -> None:
            place = recorded.channel(self.rank, tb, "switch", self.number)
            into = {"switch_channel_id": place, "index": first, "size": size}
            op = {"name": name, "src_buff": [source.local()], "dst_buff": [into], "channel_type": "switch"}
            recorded.add(self.rank, tb, op)

        def broadcast(self, source: Chunk, first: int, size: int, tb: int) -> None:
            self._store("gstore", source, first, size, tb)

        def broadcast_packets(self, source: Chunk, first: int, size: int, tb: int) -> None:
            self._store("gstorepkt", source, first, size, tb)

    class Semaphore:
        def __init__(self, rank: int, value: int) -> None:
            self.rank, self.number = rank, len(recorded.gpus[rank]["semaphores"])
            recorded.gpus[rank]["semaphores"].append({"init_value": value})

        def acquire(self, tb: int, data_sync: SyncType) -> None:
            assert data_sync == SyncType.none
            recorded.add(self.rank, tb, {"name": "sem_acquire", "semaphore_ids": [self.number]})

        def release(self, tb: int, data_sync: SyncType) -> None:
            assert data_sync == SyncType.none
            recorded.add(self.rank, tb, {"name": "sem_release", "semaphore_ids": [self.number]})

    @contextmanager
    def loop(unit: int, num_chunks: int) -> Iterator[None]:
        recorded.loop = defaultdict(list)
        yield
        inner, recorded.loop = recorded.loop, None
        for (rank, tb), ops in inner.items():
            context = {"unit_size": unit, "num_chunks": num_chunks}
            recorded.add(rank, tb, {"name": "pipeline", "iter_context": context, "ops": ops})

    return {
        "channel": {"MemoryChannel": MemoryChannel, "PortChannel": PortChannel, "SwitchChannel": SwitchChannel},
        "collectives": {"TestCollective": TestCollective},
        "general": {"JSON": lambda: recorded},
        "internal": {},
        "internal.types": {"BufferType": BufferType, "SyncType": SyncType},
        "loop": {"LoopIterationContext": loop},
        "program": {"CollectiveProgram": CollectiveProgram},
        "rank": {"Buffer": scratch, "Rank": Rank, "Semaphore": Semaphore},
    }


def printed_plan(script: str, monkeypatch: pytest.MonkeyPatch) -> Json:
    """Run a program, and return the plan that it prints."""
    recorded = Recorded()
    for name, contents in {"": {}, **classes(recorded)}.items():
        full_name = f"mscclpp.language.{name}".rstrip(".")
        module = ModuleType(full_name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, full_name, module)
    monkeypatch.setitem(sys.modules, "mscclpp", ModuleType("mscclpp"))
    printed: list[Any] = []
    exec(compile(script, "script", "exec"), {"print": printed.append})
    assert printed == [recorded]
    for gpu in recorded.gpus:
        gpu.pop("barriers", None)
    return recorded.head | {"gpus": recorded.gpus}
