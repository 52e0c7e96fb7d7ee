"""A naive executor of plans: launch after launch, one random interleaving of threads at a time.

Several plans can take turns; each has buffers, scratch, semaphores and channels of its own, but launches are counted
over all plans, and that count is in the flags of packets and chooses the half of a double scratch buffer.

It shares nothing with the package: it works on the parsed JSON, as the executor's kernel does. A threadblock has two
threads, a chunk four elements. Threads synchronize only at a nop; operations on packets deal their elements out
differently from other operations. A port channel moves data at any time. A rank starts a launch at any time, each
launch with inputs of its own: the earlier content of its buffers is lost, and the content of its buffers counts when
its threads are done. Scratch, the flags of the packets in it, semaphores and the counts of channels stay for the next
launch. Every second launch uses the upper half of a double scratch buffer, at half the size of the scratch of the
rank that executes, also for scratch of other ranks.

With late stores, plain stores of a thread become visible to others in any order, until it signals, releases a
semaphore, meets a barrier or hands data to a port; a nop shows them to its threadblock only. Packets, whose flags come
with the data, overtake them.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any

from tests.oracles.plan_operations import PACKETS, PARTS, THREADS, Json, Value, elements, lanes, read, span, unrolled

Key = tuple[str, int]
Thread = tuple[int, int, int]  # (rank, threadblock, thread)
LAUNCHES = 4
EARLY = 0.2  # Probability that one late store becomes visible at a step.
SLOW = 0.02  # Probability that a slow rank or port goes on when it is drawn.


class Wrong(Exception):
    """The run cannot go on, or an operation reaches beyond a rank's scratch."""


def _shortest_iteration(plan: Json) -> int:
    """Return the bytes of the shortest iteration of all pipelines; 1 if there is none."""
    ops = (op for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"])
    return min((op["iter_context"]["unit_size"] for op in ops if op["name"] == "pipeline"), default=1)


class PlanRun:
    """A run of several launches.

    Rank r of the k-th plan on n ranks is rank k · n + r here; of the ranks with one r only one is in a launch at a
    time.

    Attributes:
        turns: Index of the plan of each launch.
        given: Input of the first plan's goal: from (rank, place) to (source rank, chunk).
        last: A rank that goes on only where no other can.
        late_stores: Whether plain stores become visible to others late.
        late: Stores that only a thread, or, with None for the thread, only its threadblock sees, oldest first.
        results: Elements of input and output by launch and rank, when the rank ended the launch.
    """

    def __init__(
        self,
        plans: Sequence[Json],
        rng: random.Random,
        turns: Sequence[int],
        goal: Json | None = None,
        last: int | None = None,
        *,
        late_stores: bool = False,
    ) -> None:
        self.late_stores = late_stores
        self.late: dict[tuple[int, int, int | None], list[tuple[int, Key, Any]]] = defaultdict(list)
        self.given = {} if goal is None else {(r, i): (s, c) for r, _, i, s, c in zip(*goal["initial"], strict=True)}
        self.plans, self.rng, self.turns, self.last = plans, rng, turns, last
        self.nranks = len(plans[0]["gpus"])
        self.gpus = [gpu for plan in plans for gpu in plan["gpus"]]
        n = len(self.gpus)
        self.operations = [
            [unrolled(block["ops"], shortest) for block in gpu["threadblocks"]]
            for plan in plans
            for shortest in [_shortest_iteration(plan)]
            for gpu in plan["gpus"]
        ]
        self.double = [plan.get("use_double_scratch_buffer", False) for plan in plans for _ in plan["gpus"]]
        self.inplace = [plan["inplace"] for plan in plans for _ in plan["gpus"]]
        wide = [PARTS * (2 if plan["protocol"] == "LL" else 1) for plan in plans for _ in plan["gpus"]]
        self.scratch = [
            gpu["scratch_chunks"] * elements * (2 if double else 1)
            for gpu, elements, double in zip(self.gpus, wide, self.double, strict=True)
        ]
        self.memory: list[dict[Key, Any]] = [{} for _ in range(n)]
        self.launch = [0] * n  # Launch that each rank is in, or has ended last.
        self.busy = [0] * n  # Threads of each rank that have not ended the launch.
        self.ended = [0] * self.nranks  # Number of launches that each rank has ended.
        self.results: list[list[dict[Key, Any]]] = [[{} for _ in range(self.nranks)] for _ in turns]
        self.inbound: Counter[tuple[int, str, int]] = Counter()
        self.queues: dict[tuple[int, int], deque[tuple[Any, ...]]] = defaultdict(deque)
        self.semaphores = {
            (rank, k): s["init_value"]
            for rank, gpu in enumerate(self.gpus)
            for k, s in enumerate(gpu.get("semaphores", ()))
        }
        self.peers = [
            {
                kind: [
                    self.first(rank) + p
                    for c in gpu["channels"]
                    if c["channel_type"] == kind
                    for p in c["connected_to"]
                ]
                for kind in ("memory", "port")
            }
            for rank, gpu in enumerate(self.gpus)
        ]
        self.at: dict[Thread, int] = {}
        self.flushing: dict[Thread, list[tuple[int, int]]] = defaultdict(list)  # Ports that a thread waits for.
        self.met: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.barriers: dict[tuple[int, int], set[Thread]] = defaultdict(set)
        self.runnable: list[Thread] = []
        self.asleep: dict[Hashable, list[Thread]] = defaultdict(list)
        self.pace: dict[Hashable, float] = defaultdict(lambda: rng.choice((1.0, 1.0, SLOW)))  # By rank or port.

    def run(self) -> None:
        """Run to the end.

        Raises:
            Wrong: A thread waits for ever, or an operation reaches beyond a rank's scratch.
        """
        idle = list(range(self.nranks))  # Ranks between two launches.
        while idle or self.runnable or any(self.queues.values()):
            busy = [key for key, queue in self.queues.items() if queue]
            pick, rank, port = self.drawn(idle, busy)
            real = rank % self.nranks
            if self.late and self.rng.random() < EARLY:
                self.show_one(self.rng.choice(list(self.late)))
            if pick < len(idle):
                idle.pop(pick)
                self.start(rank)
            elif port is not None:
                self.deliver(port)
            else:
                self.go_on(pick - len(idle) - len(busy))
            if not self.busy[rank] and self.launch[rank] == self.ended[real] + 1:
                self.results[self.ended[real]][real] = {k: v for k, v in self.memory[rank].items() if k[0] != "s"}
                self.ended[real] += 1
                if self.ended[real] < len(self.turns):
                    idle.append(real)
        if any(self.asleep.values()):
            raise Wrong("it stops")

    def drawn(self, idle: Sequence[int], busy: Sequence[tuple[int, int]]) -> tuple[int, int, tuple[int, int] | None]:
        """Draw from `choices` until something is fast enough to go on; return its place, its rank, a port's key."""
        choices, first_thread = self.choices(idle, busy), len(idle) + len(busy)
        count, random_share = len(choices), self.rng.random
        while True:  # A slow rank is drawn fifty times before it goes on; `choice` would take thrice as long.
            pick, port = choices[int(random_share() * count)], None
            if pick < len(idle):
                rank = self.turns[self.ended[idle[pick]]] * self.nranks + idle[pick]
            elif pick < first_thread:
                port = busy[pick - len(idle)]
                rank = port[0]
            else:
                rank = self.runnable[pick - first_thread][0]
            if random_share() <= self.pace[rank % self.nranks if port is None else port]:
                return pick, rank, port

    def choices(self, idle: Sequence[int], busy: Sequence[tuple[int, int]]) -> Sequence[int]:
        """Return the places of what can go on: idle ranks, busy ports, threads. `last` can only if nothing else can."""
        every = range(len(idle) + len(busy) + len(self.runnable))
        if self.last is None:
            return every
        ranks = chain(idle, (port[0] for port in busy), (thread[0] for thread in self.runnable))
        return [k for k, rank in enumerate(ranks) if rank % self.nranks != self.last] or every

    def go_on(self, number: int) -> None:
        """Run up to 16 steps of one of the runnable threads."""
        thread = self.runnable[number]
        for _ in range(self.rng.choice((1, 1, 4, 16))):
            missing = self.unflushed(thread)
            if missing is None and self.at[thread] >= len(self.ops(*thread[:2])):
                self.show(*thread)
                self.busy[thread[0]] -= 1
                break
            missing = missing or self.missing(*thread)
            if missing is not None:
                self.asleep[missing].append(thread)
                break
            self.step(*thread)
        else:
            return
        # Woken threads were appended, so that this thread is still at its index.
        self.runnable[number] = self.runnable[-1]
        self.runnable.pop()

    def unflushed(self, thread: Thread) -> Hashable | None:
        """Return the key of a port whose requests a thread with a flush waits for; None if they are done."""
        key = next((("flush", port) for port in self.flushing[thread] if self.queues[port]), None)
        if key is None:
            self.flushing[thread].clear()
        return key

    def show(self, rank: int, tb: int, thread: int) -> None:
        """Let all see the late stores of a thread and of its threadblock."""
        for writer in ((rank, tb, None), (rank, tb, thread)):
            for owner, key, cell in self.late.pop(writer, ()):
                self.memory[owner][key] = cell

    def show_one(self, writer: tuple[int, int, int | None]) -> None:
        """Let all see one of the late stores of a writer; of several to one cell the oldest."""
        stores = self.late[writer]
        picked = self.rng.choice(stores)
        store = next(store for store in stores if store[:2] == picked[:2])
        stores.remove(store)
        self.memory[store[0]][store[1]] = store[2]
        if not stores:
            del self.late[writer]

    def load(self, reader: Thread | None, owner: int, key: Key) -> Any:
        """Return what a thread, or a port (None), sees in a cell."""
        for writer in (reader, (*reader[:2], None)) if reader is not None and self.late else ():
            for store in reversed(self.late.get(writer, ())):
                if store[:2] == (owner, key):
                    return store[2]
        return self.memory[owner].get(key)

    def wake(self, key: Hashable) -> None:
        """Make the threads that wait for a key of `missing` runnable again."""
        self.runnable += self.asleep.pop(key, ())

    def start(self, rank: int) -> None:
        """Start a rank's next launch with fresh inputs and lost outputs."""
        gpu, memory = self.gpus[rank], self.memory[rank]
        self.launch[rank] = self.ended[rank % self.nranks] + 1
        for kind, size in (("o", gpu["output_chunks"]), ("i", gpu["input_chunks"])):
            for e in range(size * PARTS):
                value = ((self.launch[rank], *self.content(rank, e // PARTS)),) if kind == "i" else None
                memory[self.alias(rank, kind, e)] = value
        threads = [(rank, tb, t) for tb in range(len(gpu["threadblocks"])) for t in range(THREADS)]
        self.at.update(dict.fromkeys(threads, 0))
        self.runnable += threads
        self.busy[rank] = len(threads)

    def content(self, rank: int, chunk: int) -> tuple[int, int]:
        """Return the initial content of an input chunk as (rank, chunk)."""
        input_of_goal = self.given if rank < self.nranks else {}
        real = rank % self.nranks
        return input_of_goal.get((real, chunk), (real, -1 - chunk if input_of_goal else chunk))

    def first(self, rank: int) -> int:
        """Return the first rank of a rank's plan."""
        return rank - rank % self.nranks

    def alias(self, rank: int, kind: str, element: int) -> Key:
        """Return the memory cell of a buffer's element: in place, input and output share the larger buffer."""
        if not self.inplace[rank] or kind == "s":
            return kind, element
        gpu = self.gpus[rank]
        i, o = gpu["input_chunks"], gpu["output_chunks"]
        if kind == "i" and o > i:
            return "o", element + rank % self.nranks * i * PARTS
        if kind == "o" and i > o:
            return "i", element + rank % self.nranks * o * PARTS
        return ("i" if i == o else kind), element

    def ops(self, rank: int, tb: int) -> list[Json]:
        return self.operations[rank][tb]

    def missing(self, rank: int, tb: int, thread: int) -> Hashable | None:
        """Return the key of what a thread waits for, as `wake` takes it; None if the thread can go on."""
        op = self.ops(rank, tb)[self.at[rank, tb, thread]]
        name = op["name"]
        if name == "nop" or (name == "rppkt" and op["channel_type"] == "port"):
            if name == "rppkt":
                for thread_number in range(THREADS):
                    if (lack := self.unflagged(rank, tb, op, thread_number)) is not None:
                        return lack
            return self.meets((rank, tb), thread)
        if name == "barrier":
            self.show(rank, tb, thread)
            waiting_threads = self.barriers[rank, op["barrier_id"]]
            waiting_threads.add((rank, tb, thread))
            if len(waiting_threads) < op["num_threadblocks"] * THREADS:
                return "barrier", rank, op["barrier_id"]
            return None
        if name in ("wait", "rlxwait"):
            ends = [self.end(rank, tb, op["channel_type"], c) for c in op["channel_ids"][thread::THREADS]]
            return next((("in", end) for end in ends if self.inbound[end] < ends.count(end)), None)
        if name == "sem_acquire":
            ids = op["semaphore_ids"][thread::THREADS]
            return next((("sem", rank, x) for x in ids if self.semaphores[rank, x] < ids.count(x)), None)
        return self.unflagged(rank, tb, op, thread) if name in PACKETS else None

    def meets(self, block: tuple[int, int], thread: int) -> Hashable | None:
        """Record that a thread has reached a synchronization; return the key to wait for, or None when all have."""
        self.met[block].add(thread)
        return None if len(self.met[block]) == THREADS else ("met", block)

    def end(self, rank: int, tb: int, kind: str, local: int) -> tuple[int, str, int]:
        """Return (rank, kind, channel number in the rank) of a threadblock's local channel."""
        lists = self.gpus[rank]["threadblocks"][tb]["channels"]
        ids = [i for entry in lists if entry["channel_type"] == kind for i in entry["channel_ids"]]
        return rank, kind, ids[local]

    def across(self, end: tuple[int, str, int]) -> tuple[int, str, int] | None:
        """Return the other end of a channel, or None if the peer has no such channel."""
        rank, kind, number = end
        peers = self.peers[rank][kind]
        nth = peers[:number].count(peers[number])
        back = [k for k, p in enumerate(self.peers[peers[number]][kind]) if p == rank]
        return (peers[number], kind, back[nth]) if nth < len(back) else None

    def place(self, rank: int, tb: int, op: Json, part: Json) -> tuple[int, str]:
        """Return the rank and the buffer of an operation's part."""
        if "type" in part:
            return rank, part["type"]
        lists = self.gpus[rank]["threadblocks"][tb]["remote_buffer_refs"]
        ids = [i for x in lists if x["access_channel_type"] == op["channel_type"] for i in x["remote_buffer_ids"]]
        buffer = self.gpus[rank]["remote_buffers"][ids[part["buffer_id"]]]
        return self.first(rank) + buffer["rank"], buffer["type"]

    def places(self, rank: int, tb: int, op: Json, part: Json) -> list[tuple[int, str]]:
        """Return every member's rank and buffer of a switch channel, else the single place."""
        if "switch_channel_id" not in part:
            return [self.place(rank, tb, op, part)]
        lists = self.gpus[rank]["threadblocks"][tb]["channels"]
        ids = [i for x in lists if x["channel_type"] == "switch" for i in x["channel_ids"]]
        switch_groups = [
            (x["buffer_type"], group["ranks"])
            for x in self.gpus[rank]["channels"]
            if x["channel_type"] == "switch"
            for group in x["rank_groups"]
        ]
        kind, members = switch_groups[ids[part["switch_channel_id"]]]
        return [(self.first(rank) + member, kind) for member in members]

    def unflagged(self, rank: int, tb: int, op: Json, thread: int) -> Hashable | None:
        """Return the key of a packet that the thread reads and that lacks its launch's flag; None if there is none."""
        if op["name"] == "ppkt" and op["channel_type"] == "port":
            return None
        for sources, _ in lanes(op):
            for part, packet in sources:
                if packet:
                    owner, kind = self.place(rank, tb, op, part)
                    port = op.get("channel_type") == "port"
                    for e in span(op, part["size"]) if port else elements(op, part["size"], thread):
                        keys = self.keys(rank, owner, kind, part["index"], e, True, False)
                        for key in keys:
                            cell = self.memory[owner].get(key)
                            if not isinstance(cell, list) or cell[2] != self.launch[rank]:
                                return "flag", owner, key
        return None

    def keys(
        self, rank: int, owner: int, kind: str, index: int, e: int, packet: bool, port: bool, launch: int = 0
    ) -> list[Key]:
        """Return the cells of an element in the buffer of `owner`, as an operation of `rank` reaches them."""
        if kind != "s":
            return [self.alias(owner, kind, index * PARTS + e)]
        offset = (index * PARTS + e) * (2 if packet else 1)
        upper = self.double[rank] and (launch or self.launch[rank]) % 2 == 0
        if upper and (packet or (owner == rank and not port)):  # Other ranks' plain data and ports have no halves.
            offset += self.scratch[rank] // 2
        if not 0 <= offset < self.scratch[owner]:
            raise Wrong(f"rank {rank} reaches beyond the scratch of rank {owner}")
        return [("s", offset), ("s", offset + 1)] if packet else [("s", offset)]

    def move(
        self, rank: int, tb: int, op: Json, lane: int, elements: Iterable[int], *late: int, thread: int | None = None
    ) -> None:
        """Apply an operation to elements of a lane.

        Args:
            rank: Rank that executes the operation.
            tb: Threadblock of the operation.
            op: The operation.
            lane: Index of the lane.
            elements: Elements to move.
            late: Target and launch of a delayed put by a port channel.
            thread: The thread that moves them; None for a port channel.
        """
        mover = None if thread is None else (rank, tb, thread)
        sources, targets = lanes(op)[lane]
        port, launch = op.get("channel_type") == "port", late[1] if late else 0
        get = op["name"] == "get"  # In a get, the offsets of source and target are swapped.
        for e in elements:
            total: Value = ()
            raw: list[Any] = []
            for part, packet in sources:
                for owner, kind in self.places(rank, tb, op, part):
                    index = op["dst_buff"][lane]["index"] if get else part["index"]
                    keys = self.keys(rank, owner, kind, index, e, packet, port, launch)
                    raw = [self.load(mover, owner, key) for key in keys]
                    value = read(raw, packet)
                    total = None if total is None or value is None else tuple(sorted((*total, *value)))
            for k, (part, packet) in enumerate(targets):
                if late and k != late[0]:
                    continue
                index = op["src_buff"][lane]["index"] if get else part["index"]
                if not packet:
                    raw = [total]
                elif not port:
                    raw = [["packet", total, self.launch[rank]]] * 2
                for owner, kind in self.places(rank, tb, op, part):
                    keys = self.keys(rank, owner, kind, index, e, packet, port, launch)
                    if self.late_stores and mover is not None and not packet:
                        self.late[mover].append((owner, keys[0], total))
                        continue
                    for key, cell in zip(keys, raw, strict=True):
                        self.memory[owner][key] = cell
                        self.wake(("flag", owner, key))

    def step(self, rank: int, tb: int, thread: int) -> None:
        """Run the next operation of a thread that can go on."""
        op = self.ops(rank, tb)[self.at[rank, tb, thread]]
        name, port = op["name"], op.get("channel_type") == "port"
        if len(self.met[rank, tb]) == THREADS:
            for thread_number in range(THREADS):
                self.at[rank, tb, thread_number] += 1
                if stores := self.late.pop((rank, tb, thread_number), None):
                    self.late[rank, tb, None] += stores
            self.met[rank, tb].clear()
            self.wake(("met", (rank, tb)))
            if name != "nop":
                self.show(rank, tb, thread)
                self.push(rank, tb, op)
            return
        if name == "barrier":
            for waiting_rank, waiting_tb, thread_number in self.barriers.pop((rank, op["barrier_id"])):
                self.at[waiting_rank, waiting_tb, thread_number] += 1
            self.wake(("barrier", rank, op["barrier_id"]))
            return
        self.at[rank, tb, thread] += 1
        if name in ("signal", "sem_release") or port:
            self.show(rank, tb, thread)
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
                    self.wake(("sem", rank, x))
        elif port and op.get("dst_buff"):
            if thread == 0:
                self.push(rank, tb, op)
        else:
            for lane, (sources, _) in enumerate(lanes(op)):
                self.move(rank, tb, op, lane, elements(op, sources[0][0]["size"], thread), thread=thread)

    def say(self, end: tuple[int, str, int]) -> None:
        """Send a signal to the other end of a channel."""
        far_end = self.across(end)
        if far_end is not None:
            self.inbound[far_end] += 1
            self.wake(("in", far_end))

    def push(self, rank: int, tb: int, op: Json) -> None:
        """Add an operation's puts and signals to the queues of its port channels."""
        for lane, (_, targets) in enumerate(lanes(op)):
            for k in range(len(targets)):
                end = self.end(rank, tb, "port", op["channel_ids"][lane + k])
                self.queues[rank, end[2]].append(("put", tb, op, lane, k, self.launch[rank]))
                if op["name"] in ("pws", "pwsf"):
                    self.queues[rank, end[2]].append(("signal", end))
                if op["name"] == "pwsf":
                    self.flushing[rank, tb, 0].append((rank, end[2]))

    def deliver(self, key: tuple[int, int]) -> None:
        """Handle the first request in a port's queue."""
        request, *fields = self.queues[key].popleft()
        self.wake(("flush", key))
        if request == "signal":
            self.say(fields[0])
            return
        tb, op, lane, target, launch = fields
        self.move(key[0], tb, op, lane, span(op, op["src_buff"][lane]["size"]), target, launch)
