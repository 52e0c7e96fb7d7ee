"""A second, naive executor of plans: one random interleaving of threads at a time, to hold the check against.

It shares nothing with the package: it works on the parsed JSON. A threadblock has two threads, a chunk four elements.
Threads meet only at a nop; operations on packets deal their elements out differently from the others. A port channel
moves data when it likes. A rank starts when it likes, and what was written to its buffers before is lost; when its
threads are done, what its buffers hold then counts.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from typing import Any

Value = tuple[tuple[int, int], ...] | None  # contributions (rank, chunk), None: garbage
Json = dict[str, Any]
THREADS, PARTS = 2, 4  # elements of a chunk
PACKETS = {"cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt", "recspkt"}


class Stuck(Exception):
    """Nothing can go on."""


class PlanRun:
    """One execution of a plan; `result[rank][buffer]` are its chunks' elements when the rank ended."""

    def __init__(self, plan: Json, rng: random.Random) -> None:
        self.plan, self.rng = plan, rng
        self.gpus = plan["gpus"]
        self.double = plan.get("use_double_scratch_buffer", False)
        n = len(self.gpus)
        self.memory: list[dict[tuple[str, int], Any]] = [{} for _ in range(n)]
        self.started = [False] * n
        self.result: list[dict[tuple[str, int], Any] | None] = [None] * n
        self.inbound: Counter[tuple[int, str, int]] = Counter()
        self.queues: dict[tuple[int, int], deque[tuple[Any, ...]]] = defaultdict(deque)
        self.semaphores = {
            (rank, k): s["init_value"] for rank, gpu in enumerate(self.gpus) for k, s in enumerate(gpu["semaphores"])
        }
        self.peers = [
            {
                kind: [p for c in gpu["channels"] if c["channel_type"] == kind for p in c["connected_to"]]
                for kind in ("memory", "port")
            }
            for gpu in self.gpus
        ]
        self.at = {
            (r, tb, t): 0
            for r, gpu in enumerate(self.gpus)
            for tb in range(len(gpu["threadblocks"]))
            for t in range(THREADS)
        }
        self.met: dict[tuple[int, int, int], set[int]] = defaultdict(set)

    def run(self) -> None:
        """Execute to the end, or raise Stuck."""
        n = len(self.gpus)
        while any(x is None for x in self.result):
            todo: list[tuple[str, Any]] = [("start", r) for r in range(n) if not self.started[r]]
            todo += [("port", key) for key, queue in sorted(self.queues.items()) if queue]
            todo += [("thread", key) for key in self.at if self.started[key[0]] and self.ready(*key)]
            if not todo:
                raise Stuck
            kind, key = self.rng.choice(todo)
            if kind == "start":
                self.start(key)
            elif kind == "port":
                self.deliver(key)
            else:
                for _ in range(self.rng.choice((1, 1, 4, 16))):
                    if not self.ready(*key):
                        break
                    self.step(*key)
            for r in range(n):
                if self.result[r] is None and self.started[r] and all(self.done(*k) for k in self.at if k[0] == r):
                    self.result[r] = {k: v for k, v in self.memory[r].items() if k[0] != "s"}

    def start(self, rank: int) -> None:
        gpu, memory = self.gpus[rank], self.memory[rank]
        self.started[rank] = True
        for kind, size in (("o", gpu["output_chunks"]), ("i", gpu["input_chunks"])):
            for e in range(size * PARTS):
                memory[self.alias(rank, kind, e)] = ((rank, e // PARTS),) if kind == "i" else None
        if not self.double:
            for e in range(gpu["scratch_chunks"] * PARTS * 2):
                memory.pop(("s", e), None)

    def alias(self, rank: int, kind: str, element: int) -> tuple[str, int]:
        """In place, input and output share memory: the larger one's cells are meant."""
        if not self.plan["inplace"] or kind == "s":
            return kind, element
        gpu = self.gpus[rank]
        i, o = gpu["input_chunks"], gpu["output_chunks"]
        if kind == "i" and o > i:
            return "o", element + rank * i * PARTS
        if kind == "o" and i > o:
            return "i", element + rank * o * PARTS
        return ("i" if i == o else kind), element

    def ops(self, rank: int, tb: int) -> list[Json]:
        found: list[Json] = self.gpus[rank]["threadblocks"][tb]["ops"]
        return found

    def done(self, rank: int, tb: int, thread: int) -> bool:
        return self.at[rank, tb, thread] >= len(self.ops(rank, tb))

    def ready(self, rank: int, tb: int, thread: int) -> bool:
        if self.done(rank, tb, thread):
            return False
        op = self.ops(rank, tb)[self.at[rank, tb, thread]]
        here = (rank, tb, self.at[rank, tb, thread])
        name = op["name"]
        if name == "nop" or (name == "rppkt" and op["channel_type"] == "port"):
            if name == "rppkt" and not all(self.flagged(rank, tb, op, t) for t in range(THREADS)):
                return False
            self.met[here].add(thread)
            return len(self.met[here]) == THREADS
        if name in ("wait", "rlxwait"):
            mine = [c for k, c in enumerate(op["channel_ids"]) if k % THREADS == thread]
            ends = Counter(self.end(rank, tb, op["channel_type"], c) for c in mine)
            return all(self.inbound[end] >= count for end, count in ends.items())
        if name == "sem_acquire":
            ids = Counter(x for k, x in enumerate(op["semaphore_ids"]) if k % THREADS == thread)
            return all(self.semaphores[rank, x] >= count for x, count in ids.items())
        if name in PACKETS:
            return self.flagged(rank, tb, op, thread)
        return True

    def end(self, rank: int, tb: int, kind: str, local: int) -> tuple[int, str, int]:
        lists = self.gpus[rank]["threadblocks"][tb]["channels"]
        ids = [i for entry in lists if entry["channel_type"] == kind for i in entry["channel_ids"]]
        return rank, kind, ids[local]

    def across(self, end: tuple[int, str, int]) -> tuple[int, str, int] | None:
        rank, kind, number = end
        peers = self.peers[rank][kind]
        nth = peers[:number].count(peers[number])
        back = [k for k, p in enumerate(self.peers[peers[number]][kind]) if p == rank]
        return (peers[number], kind, back[nth]) if nth < len(back) else None

    def place(self, rank: int, tb: int, op: Json, part: Json) -> tuple[int, str]:
        if "type" in part:
            return rank, part["type"]
        lists = self.gpus[rank]["threadblocks"][tb]["remote_buffer_refs"]
        ids = [i for x in lists if x["access_channel_type"] == op["channel_type"] for i in x["remote_buffer_ids"]]
        buffer = self.gpus[rank]["remote_buffers"][ids[part["buffer_id"]]]
        return buffer["rank"], buffer["type"]

    def lanes(self, op: Json) -> list[tuple[list[tuple[Json, bool]], list[tuple[Json, bool]]]]:
        """(sources, targets) of each lane, with whether each holds packets."""
        name, src, dst = op["name"], op.get("src_buff", []), op.get("dst_buff", [])
        if name in ("put", "pws", "pwsf", "get"):
            return [([(a, False)], [(b, False)]) for a, b in zip(src, dst, strict=True)]
        if name == "ppkt":
            return [([(a, op["channel_type"] == "port")], [(b, True)]) for a, b in zip(src, dst, strict=True)]
        packed = name in PACKETS
        first = name in ("upkt", "rppkt")
        sources = [(a, first or (packed and name != "cpkt" and k > 0)) for k, a in enumerate(src)]
        targets = [
            (b, name in ("cpkt", "rppkt") or (name in ("recpkt", "respkt", "recspkt") and k > 0))
            for k, b in enumerate(dst)
        ]
        return [(sources, targets)] if src else []

    def elements(self, op: Json, size: int, thread: int) -> list[int]:
        if op.get("channel_type") == "port":
            return list(range(size * PARTS)) if thread == 0 else []
        wide = 2 if op["name"] in PACKETS else 1
        return [e for e in range(size * PARTS) if e // wide % THREADS == thread]

    def flagged(self, rank: int, tb: int, op: Json, thread: int) -> bool:
        """Whether the packets that the thread reads are there."""
        if op["name"] == "ppkt" and op["channel_type"] == "port":
            return True
        for sources, _ in self.lanes(op):
            for part, packet in sources:
                if packet:
                    owner, kind = self.place(rank, tb, op, part)
                    wide = range(part["size"] * PARTS) if op.get("channel_type") == "port" else None
                    for e in wide if wide is not None else self.elements(op, part["size"], thread):
                        if self.cell(owner, kind, part["index"], e, True)[1] != "flag":
                            return False
        return True

    def cell(self, rank: int, kind: str, index: int, e: int, packet: bool) -> tuple[Value, str]:
        found = self.memory[rank].get(self.key(rank, kind, index, e, packet))
        if packet:
            return found if isinstance(found, tuple) and len(found) == 2 and found[1] == "flag" else (None, "")
        return (None, "") if isinstance(found, tuple) and len(found) == 2 and found[1] == "flag" else (found, "")

    def key(self, rank: int, kind: str, index: int, e: int, packet: bool) -> tuple[str, int]:
        return self.alias(rank, kind, (index * PARTS + e) * 2 if packet else index * PARTS + e)

    def move(self, rank: int, tb: int, op: Json, lane: int, elements: list[int], target: int | None = None) -> None:
        sources, targets = self.lanes(op)[lane]
        for e in elements:
            total: Value = ()
            for part, packet in sources:
                index = op["dst_buff"][lane]["index"] if op["name"] == "get" else part["index"]
                value = self.cell(*self.place(rank, tb, op, part), index, e, packet)[0]
                total = None if total is None or value is None else tuple(sorted((*total, *value)))
            for k, (part, packet) in enumerate(targets):
                if target is None or k == target:
                    owner, kind = self.place(rank, tb, op, part)
                    index = op["src_buff"][lane]["index"] if op["name"] == "get" else part["index"]
                    key = self.key(owner, kind, index, e, packet)
                    self.memory[owner][key] = (total, "flag") if packet else total

    def step(self, rank: int, tb: int, thread: int) -> None:
        op = self.ops(rank, tb)[self.at[rank, tb, thread]]
        name, port = op["name"], op.get("channel_type") == "port"
        here = (rank, tb, self.at[rank, tb, thread])
        if here in self.met:
            for other in range(THREADS):
                self.at[rank, tb, other] += 1
            if name == "nop":
                return
            self.push(rank, tb, op)
            return
        self.at[rank, tb, thread] += 1
        if name in ("signal", "rlxsignal"):
            for k, c in enumerate(op["channel_ids"]):
                if k % THREADS == thread:
                    end = self.end(rank, tb, op["channel_type"], c)
                    if port:
                        self.queues[rank, end[2]].append(("signal", end))
                    else:
                        self.say(end)
        elif name in ("wait", "rlxwait"):
            for k, c in enumerate(op["channel_ids"]):
                if k % THREADS == thread:
                    self.inbound[self.end(rank, tb, op["channel_type"], c)] -= 1
        elif name in ("sem_acquire", "sem_release"):
            for k, x in enumerate(op["semaphore_ids"]):
                if k % THREADS == thread:
                    self.semaphores[rank, x] += 1 if name == "sem_release" else -1
        elif port and op.get("dst_buff"):
            if thread == 0:
                self.push(rank, tb, op)
        else:
            for lane, (sources, _) in enumerate(self.lanes(op)):
                self.move(rank, tb, op, lane, self.elements(op, sources[0][0]["size"], thread))

    def say(self, end: tuple[int, str, int]) -> None:
        other = self.across(end)
        if other is not None:
            self.inbound[other] += 1

    def push(self, rank: int, tb: int, op: Json) -> None:
        for lane, (_, targets) in enumerate(self.lanes(op)):
            for k in range(len(targets)):
                end = self.end(rank, tb, "port", op["channel_ids"][lane + k])
                self.queues[rank, end[2]].append(("put", tb, op, lane, k))
                if op["name"] in ("pws", "pwsf"):
                    self.queues[rank, end[2]].append(("signal", end))

    def deliver(self, key: tuple[int, int]) -> None:
        what, *rest = self.queues[key].popleft()
        if what == "signal":
            self.say(rest[0])
            return
        tb, op, lane, target = rest
        size = op["src_buff"][lane]["size"]
        self.move(key[0], tb, op, lane, list(range(size * PARTS)), target)


def ends_right(plan: Json, seed: int) -> bool:
    """Whether one random run ends, and ends with what an allreduce, allgather, reducescatter or alltoall asks for."""
    run = PlanRun(plan, random.Random(seed))
    try:
        run.run()
    except Stuck:
        return False
    n = len(plan["gpus"])
    if any(run.inbound.values()) or any(
        run.semaphores[r, k] != s["init_value"]
        for r, gpu in enumerate(plan["gpus"])
        for k, s in enumerate(gpu["semaphores"])
    ):
        return False
    for rank, gpu in enumerate(plan["gpus"]):
        memory = run.result[rank]
        assert memory is not None
        inputs = gpu["input_chunks"]
        for e in range(gpu["output_chunks"] * PARTS):
            c = e // PARTS
            want: Value
            if plan["collective"] == "allreduce":
                want = tuple((r, c) for r in range(n))
            elif plan["collective"] == "allgather":
                want = ((c // inputs, c % inputs),)
            elif plan["collective"] == "reducescatter":
                want = tuple((r, rank * gpu["output_chunks"] + c) for r in range(n))
            else:
                want = ((c // (inputs // n), rank * (inputs // n) + c % (inputs // n)),)
            if memory.get(run.alias(rank, "o", e)) != want:
                return False
        if not plan["inplace"]:
            for e in range(inputs * PARTS):
                if memory.get(("i", e)) != ((rank, e // PARTS),):
                    return False
    return True
