"""Write an execution plan as a program in MSCCL++'s own language (DSL), which prints the same plan.

The language joins neighbouring operations: it has calls for single channels and buffers, and a plan's operation on
several of them is several calls. The program lists each threadblock's calls in order. A `barrier` of one threadblock
stands for each nop of the plan. Where the language would join more calls than an operation can hold, one more nop keeps
them apart.

Source: python/mscclpp/language of MSCCL++ 0.9 (operations.py: what it joins).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emit.mscclpp.plan import IN_SWITCH, MAX_OP_CHANNELS, PLAN_KEYS, ExecutionPlan, Op, PlanBlock, PlanPart
from topologies.errors import InputError

_BUFFER = {"i": "inputs", "o": "outputs", "s": "scratch"}
_SYNC = "data_sync=SyncType.none"
_LOCAL = {"copy": "copy", "cpkt": "copy_packets", "upkt": "unpack_packets"}
_REMOTE = {
    "put": "put", "ppkt": "put_packets", "rppkt": "read_put_packets", "get": "get", "pws": "put_with_signal",
    "pwsf": "put_with_signal_and_flush",
}  # fmt: skip
_HEAD = '''"""{title}: a plan for MSCCL++ as a program in its language, which prints the plan."""

from mscclpp.language.channel import MemoryChannel, PortChannel, SwitchChannel
from mscclpp.language.collectives import TestCollective
from mscclpp.language.general import JSON
from mscclpp.language.internal.types import BufferType, SyncType
from mscclpp.language.loop import LoopIterationContext
from mscclpp.language.program import CollectiveProgram
from mscclpp.language.rank import Buffer, Rank, Semaphore

COLLECTIVE = TestCollective({ranks}, {inputs}, {outputs})  # ranks, chunks of the input, chunks of the output
COLLECTIVE.name, COLLECTIVE.inplace = {collective!r}, {inplace}

with CollectiveProgram(
    {name!r}, COLLECTIVE, {ranks}, auto_sync=False,
{options}):
    ranks = [Rank(rank) for rank in range({ranks})]
    inputs = [rank.get_input_buffer() for rank in ranks]
    outputs = [rank.get_output_buffer() for rank in ranks]
    scratch = [Buffer(rank, chunks) for rank, chunks in enumerate({scratch})]
    # Channels by rank and number; the list has the rank at the other end of each.
    memory = [[MemoryChannel(peer, rank) for peer in peers] for rank, peers in enumerate({memory})]
    port = [[PortChannel(peer, rank) for peer in peers] for rank, peers in enumerate({port})]
'''


def script_of(plan: ExecutionPlan) -> str:
    """Return the text of a Python program in MSCCL++'s language that prints a right plan.

    In the printed plan, the threadblocks' lists of channels and buffers may be in another order, and some nops are new.

    Raises:
        InputError: The language cannot say the plan: buffers of different sizes, groups of threadblocks, sums of a
            single buffer, sums in switches from one buffer into another, switch channels that differ between ranks,
            barriers that the threadblocks do not meet in one order, or barriers in pipelines.
    """
    sizes = {(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus}
    if len(sizes) > 1:
        raise _inexpressible("buffers whose sizes differ between ranks")
    ((inputs, outputs),) = sizes
    keys = ("double", "reuse", "alignment", "threads", "min_bytes", "max_bytes")
    options = f"    protocol={'LL' if plan.packets else 'Simple'!r},\n"
    options += "".join(f"    {PLAN_KEYS[key]}={getattr(plan, key)!r},\n" for key in keys)
    title = "".join(c for c in plan.name if c.isprintable() and c not in '"\\')
    of_gpus = {
        "scratch": [gpu.scratch_chunks for gpu in plan.gpus],
        "memory": [gpu.peers["memory"] for gpu in plan.gpus],
        "port": [gpu.peers["port"] for gpu in plan.gpus],
    }
    of_plan = {"name": plan.name, "collective": plan.collective, "inplace": plan.inplace, "ranks": len(plan.gpus)}
    sizes_and_options = {"inputs": inputs, "outputs": outputs, "title": title, "options": options}
    lines = [_HEAD.format(**of_gpus, **of_plan, **sizes_and_options)]
    if any(gpu.semaphores for gpu in plan.gpus):
        values = [gpu.semaphores for gpu in plan.gpus]
        lines.append(
            f"    semaphores = [[Semaphore(rank, value) for value in values] for rank, values in enumerate({values})]\n"
        )
    lines += _switch_lines(plan)
    for rank in range(len(plan.gpus)):
        lines += _RankLines(plan, rank).lines()
    return "".join([*lines, "    print(JSON())\n"])


def _inexpressible(what: str) -> InputError:
    """Return, without raising it, the error for what the language cannot say."""
    return InputError(f"MSCCL++'s language has no {what}; keep the plan (JSON)")


def _switch_lines(plan: ExecutionPlan) -> list[str]:
    """Return the line that makes the switch channels, in a list; the list is empty if there are none.

    Raises:
        InputError: Ranks differ in their switch channels.
    """
    channels = plan.gpus[0].switches
    if any(gpu.switches != channels for gpu in plan.gpus):
        raise _inexpressible("switch channels that some ranks lack")
    if not channels:
        return []
    words = {"i": "input", "o": "output", "s": "scratch"}
    calls = [
        f"SwitchChannel(rank_list={list(ranks)}, buffer_type=BufferType.{words[kind]})" for kind, ranks in channels
    ]
    return [f"    switch = [{', '.join(calls)}]\n"]


class _RankLines:
    """The calls of one rank's threadblocks.

    Attributes:
        plan: The plan.
        rank: The rank.
    """

    def __init__(self, plan: ExecutionPlan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.gpu = plan.gpus[rank]

    def lines(self) -> list[str]:
        """Return the lines of all threadblocks; a barrier stands where all its threadblocks have come to it.

        Raises:
            InputError: See `script_of`.
        """
        blocks, lines = self.gpu.blocks, list[str]()
        at = [0] * len(blocks)
        while True:
            waiting: dict[tuple[int, int], list[int]] = {}
            for tb, block in enumerate(blocks):
                first = at[tb]
                while at[tb] < len(block.ops) and block.ops[at[tb]].name != "barrier":
                    at[tb] += 1
                if first < at[tb]:
                    lines.append(f"\n    # Rank {self.rank}, threadblock {tb}\n")
                    lines += self._of_ops(tb, block, block.ops[first : at[tb]], "    ")
                if at[tb] < len(block.ops):
                    op = block.ops[at[tb]]
                    waiting.setdefault((op.barrier, op.blocks), []).append(tb)
            if not waiting:
                return lines
            ready = [tbs for (_, count), tbs in waiting.items() if len(tbs) == count]
            if not ready:
                raise _inexpressible("barriers that threadblocks meet in different orders")
            for tbs in ready:
                lines.append(f"    ranks[{self.rank}].barrier({tbs})\n")
                for tb in tbs:
                    at[tb] += 1

    def _of_ops(self, tb: int, block: PlanBlock, ops: Sequence[Op], indent: str) -> Iterator[str]:
        """Yield the lines of operations of a threadblock that follow each other, each begun by `indent`.

        Raises:
            InputError: The language cannot say an operation, a barrier in a pipeline, or a nop before a pipeline that
                ends with a nop.
        """
        before: Op | None = None
        width = 0  # Channels or buffers of the operation that the language joins the calls to.
        for op in ops:
            if op.name == "pipeline":
                if not op.ops:
                    continue
                if any(inner.name == "barrier" for inner in op.ops):
                    raise _inexpressible("barrier in a pipeline")
                if before == Op("nop") and op.ops[-1] == before != op.ops[0]:
                    raise _inexpressible("way to keep a nop before a pipeline that ends with one")
                yield f"{indent}with LoopIterationContext(unit={op.unit_bytes}, num_chunks={op.unit_chunks}):\n"
                yield from self._of_ops(tb, block, op.ops, indent + "    ")
                before = None
                continue
            is_joined = before is not None and _is_joined(before, op)
            width = (width if is_joined else 0) + _width(op)
            if is_joined and width > MAX_OP_CHANNELS:
                yield f"{indent}ranks[{self.rank}].barrier([{tb}])  # Parts what the executor cannot take as one.\n"
                width = _width(op)
            yield from (f"{indent}{call}\n" for call in self._calls(tb, block, op))
            before = op

    def _calls(self, tb: int, block: PlanBlock, op: Op) -> Iterator[str]:
        """Yield the calls of one operation, without indent; it is no barrier between threadblocks and no pipeline.

        Raises:
            InputError: The language cannot say the operation.
        """
        me, at_tb = f"ranks[{self.rank}]", f"tb={tb}"
        if op.group != (0, 1):
            raise _inexpressible("call for one threadblock of a group")
        if op.name == "nop":
            yield f"{me}.barrier([{tb}])"
        elif op.name in ("signal", "wait", "rlxsignal", "rlxwait", "flush"):
            relaxed = ", relaxed=True" if op.name.startswith("rlx") else ""
            for number in op.channels:
                channel = self._channel(block, op.channel_type, number)
                yield f"{channel}.{op.name.removeprefix('rlx')}({at_tb}, {_SYNC}{relaxed})"
        elif op.name in ("sem_acquire", "sem_release"):
            for number in op.semaphores:
                yield f"semaphores[{self.rank}][{number}].{op.name[4:]}({at_tb}, {_SYNC})"
        elif op.name in _LOCAL:
            yield f"{me}.{_LOCAL[op.name]}({self._chunk(op.dst[0])}, {self._chunk(op.src[0])}, {at_tb})"
        elif op.name in _REMOTE:
            sources = op.src if len(op.src) == len(op.dst) else [op.src[0]] * len(op.dst)
            for k, (source, target) in enumerate(zip(sources, op.dst, strict=True)):
                far_part = source if op.name == "get" else target
                channel, remote = self._to(block, op, far_part, k), self._there(block, op, far_part)
                chunks = (self._chunk(target), remote) if op.name == "get" else (remote, self._chunk(source))
                yield f"{channel}.{_REMOTE[op.name]}({', '.join(chunks)}, {at_tb})"
        elif op.name in IN_SWITCH:
            yield from self._in_switch(block, op, at_tb)
        else:
            yield from self._sums(block, op, at_tb)

    def _sums(self, block: PlanBlock, op: Op, at_tb: str) -> Iterator[str]:
        """Yield the calls of a sum, then those that pass the sum to packets and other ranks; the language joins them.

        Raises:
            InputError: The sum is of one buffer, or a rank is reached without a memory channel to it.
        """
        own, packet = op.src[0], "pkt" in op.name
        into = op.dst[0]
        local_parts = [part for part in op.src[1:] if part.side == "L"]
        if op.name in ("rre", "rres"):
            for k, part in enumerate(op.src[1:]):
                channel, remote = self._to(block, op, part, k), self._there(block, op, part)
                yield f"{channel}.reduce({self._chunk(own)}, [{remote}], {at_tb}, local_dst_chunk={self._chunk(into)})"
        else:
            if not local_parts:
                raise _inexpressible("sum of one buffer")
            chunks = ", ".join(map(self._chunk, local_parts))
            packets = ", packet=True" if packet else ""
            call = f"ranks[{self.rank}].reduce({self._chunk(own)}, [{chunks}], {at_tb}"
            yield f"{call}, dst_chunk={self._chunk(into)}{packets})"
        targets = list(op.dst[1:])
        packed = targets.pop(0) if op.name in ("recpkt", "recspkt") else None
        if packed is not None:
            yield f"ranks[{self.rank}].copy_packets({self._chunk(packed)}, {self._chunk(into)}, {at_tb})"
        for k, part in enumerate(targets):
            channel, remote = self._to(block, op, part, k), self._there(block, op, part)
            yield f"{channel}.{'put_packets' if packet else 'put'}({remote}, {self._chunk(into)}, {at_tb})"

    def _in_switch(self, block: PlanBlock, op: Op, at_tb: str) -> Iterator[str]:
        """Yield the calls of an operation in the switch: a multicast, or a sum followed by its multicast.

        Raises:
            InputError: The sum is from one buffer into another.
        """
        source, target = op.src[0], op.dst[0]
        number = block.channels["switch"][int(target.at)]
        channel = f"switch[{number}].at_rank({self.rank})"
        if op.name != "glres":
            call = "broadcast_packets" if op.name == "gstorepkt" else "broadcast"
            yield f"{channel}.{call}({self._chunk(source)}, {target.first}, {target.size}, {at_tb})"
            return
        if source != target:
            raise _inexpressible("sum in a switch from one buffer into another")
        chunk = self._chunk(PlanPart("L", self.gpu.switches[number][0], target.first, target.size))
        yield f"{channel}.reduce({target.first}, {target.size}, {chunk}, {at_tb})"
        yield f"{channel}.broadcast({chunk}, {target.first}, {target.size}, {at_tb})"

    def _chunk(self, part: PlanPart) -> str:
        """Return a span of the rank's own buffers as the language writes it: "inputs[0][2:4]"."""
        return f"{_BUFFER[str(part.at)]}[{self.rank}][{part.first}:{part.first + part.size}]"

    def _there(self, block: PlanBlock, op: Op, part: PlanPart) -> str:
        """Return a span of another rank's buffer, which `part` of an operation names, as the language writes it."""
        buffer = self.gpu.buffers[block.buffers[op.channel_type][int(part.at)]]
        return f"{_BUFFER[buffer.kind]}[{buffer.rank}][{part.first}:{part.first + part.size}]"

    def _to(self, block: PlanBlock, op: Op, part: PlanPart, number: int) -> str:
        """Return the channel to the rank of a remote span as the language writes it.

        A port channel is the one with place `number` among those that the operation states. Of the memory channels to
        that rank, the first serves.

        Raises:
            InputError: The rank has no memory channel to that rank.
        """
        if op.channel_type == "port":
            return self._channel(block, "port", op.channels[number])
        peer = self.gpu.buffers[block.buffers["memory"][int(part.at)]].rank
        ids = [*block.channels.get("memory", ()), *range(len(self.gpu.peers["memory"]))]
        channel = next((n for n in ids if self.gpu.peers["memory"][n] == peer), None)
        if channel is None:
            raise _inexpressible("access to a rank without a memory channel to it")
        return f"memory[{self.rank}][{channel}]"

    def _channel(self, block: PlanBlock, kind: str, number: int) -> str:
        """Return channel `number` in a threadblock's list of type `kind` as the language writes it."""
        return f"{kind}[{self.rank}][{block.channels[kind][number]}]"


def _is_joined(before: Op, op: Op) -> bool:
    """Return True if the language joins an operation to the one before it."""
    if before.name != op.name:
        passes_sum_on = op.name in ("put", "ppkt") and before.name in ("re", "res", "rre", "rres", "repkt", "respkt")
        return passes_sum_on and op.channel_type == "memory" and before.dst[0] == op.src[0]
    if op.name in ("put", "ppkt", "pws", "pwsf", "get"):
        return before.channel_type == op.channel_type and before.src[0].size == op.src[0].size
    if op.name in ("signal", "wait", "rlxsignal", "rlxwait"):
        return before.channel_type == op.channel_type and not set(before.channels) & set(op.channels)
    if op.name == "rppkt":
        return before.channel_type == op.channel_type and before.src == op.src
    if op.name in ("re", "repkt", "rre"):
        return before.src[0] == op.src[0] and before.dst == op.dst
    return op.name in ("sem_acquire", "sem_release")


def _width(op: Op) -> int:
    """Return the number of calls that an operation becomes.

    It is the largest number of its channels (if it moves no data), semaphores, destinations, and sources but the first.
    """
    return max(len(op.channels) if not op.dst else 0, len(op.semaphores), len(op.dst), len(op.src) - 1)
