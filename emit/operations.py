"""A program at one message size as network simulators take it: each rank's sends, receives and calculations.

An operation starts when all operations of its rank that it waits for have ended. A step becomes the receive, the
calculation and the send that it consists of, in this order; the steps of a threadblock wait for each other in turn.
Simulators cannot express which cells are read and written, nor the slots of a FIFO. Both are lost, so that no send
waits for its receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emit.program import RECEIVES, SENDS, Program, Step
from synth.model.registry import find_kind
from topologies.errors import InputError

SEND, RECV, CALC = "send", "receive", "calculation"
_CALCULATES = frozenset({"cpy", "re", "rrc", "rrs", "rrcs"})
MOST_OPERATIONS = 4_000_000  # of all ranks


@dataclass(frozen=True, slots=True)
class Operation:
    """A send, a receive or a calculation of one rank.

    Attributes:
        kind: SEND, RECV or CALC.
        after: Positions, among the operations of its rank, of the operations that must have ended before.
        peer: Rank at the other end of a message; -1 for a calculation.
        tag: Tag of a message; messages of one sender, receiver and tag are received in the order in which they are
            sent.
        bytes: Size of a message; 0 for a calculation.
        block: Threadblock that the operation is part of; -1 if that is not known.
        step: Position in the threadblock of the step that the operation is part of; -1 if that is not known.
    """

    kind: str
    after: tuple[int, ...]
    peer: int = -1
    tag: int = 0
    bytes: int = 0
    block: int = -1
    step: int = -1


Operations = Sequence[Sequence[Operation]]  # of each rank


def chunks_of(program: Program) -> int:
    """Return the number of equal chunks that a message consists of, if its size is counted as in nccl-tests.

    In gather and scatter the message is the root's buffer of a block for each rank.
    """
    return program.nchunks_per_loop * (program.nranks if find_kind(program.collective).blocks_at_root else 1)


def whole_size(program: Program, most_bytes: int) -> int:
    """Return the size of the largest message of at most `most_bytes` whose chunks are whole bytes, in bytes.

    If `most_bytes` is too small for that, return the size with chunks of one byte, which is larger.
    """
    chunks = chunks_of(program)
    return max(1, most_bytes // chunks) * chunks


def operations_of(program: Program, size_bytes: int) -> list[list[Operation]]:
    """Build the operations of each rank for a message of `size_bytes`, in order of threadblocks and steps.

    The program must have passed its check. The size is that of nccl-tests. A nop becomes no operation, and a rank
    without operations gets one calculation. The tag of a message is its channel.

    Returns:
        One list of operations for each rank, whose `after` counts in that list.

    Raises:
        InputError: If a chunk is no whole number of bytes, or there would be more than MOST_OPERATIONS operations.
    """
    chunks = chunks_of(program)
    if size_bytes < 1 or size_bytes % chunks:
        prefix = f"{size_bytes} bytes: {program.name} cuts a message into {chunks} chunks"
        raise InputError(f"{prefix}; it must be a multiple, as {whole_size(program, size_bytes)}")
    parts = sum(len(_parts(step.op)) for *_, step in program.steps())
    if parts > MOST_OPERATIONS:
        raise InputError(f"{program.name}: {parts} operations; it must be at most {MOST_OPERATIONS}")
    return [_operations_of_rank(program, rank, size_bytes // chunks) for rank in range(program.nranks)]


def _parts(op: str) -> list[str]:
    """Return the kinds of the operations that an instruction consists of, in order; empty for a nop."""
    return [RECV] * (op in RECEIVES) + [CALC] * (op in _CALCULATES) + [SEND] * (op in SENDS)


def _operations_of_rank(program: Program, rank: int, chunk_bytes: int) -> list[Operation]:
    """Build the operations of one rank, in order of threadblocks and steps, as `operations_of` describes them.

    `chunk_bytes` is the size of a chunk in bytes. A rank without operations gets one calculation.
    """
    gpu = program.gpus[rank]
    last: dict[tuple[int, int], int] = {}  # per step with operations, the last of them
    count = 0
    for tb, block in enumerate(gpu.threadblocks):
        for position, step in enumerate(block.steps):
            if parts := len(_parts(step.op)):
                count += parts
                last[tb, position] = count - 1

    def ended(tb: int, position: int) -> list[int]:
        """Return the positions of the operations whose end is the end of a step.

        For a step without operations, a nop, they are those of the steps that it waits for.
        """
        last_operations: list[int] = []
        pending, visited = [(tb, position)], {(tb, position)}
        while pending:
            place = pending.pop()
            if place in last:
                last_operations.append(last[place])
                continue
            for earlier in _before(gpu.threadblocks[place[0]].steps[place[1]], *place):
                if earlier not in visited:
                    visited.add(earlier)
                    pending.append(earlier)
        return last_operations

    operations: list[Operation] = []
    for tb, block in enumerate(gpu.threadblocks):
        for position, step in enumerate(block.steps):
            after = list(dict.fromkeys(x for place in _before(step, tb, position) for x in ended(*place)))
            for kind in _parts(step.op):
                peer = {SEND: block.send, RECV: block.recv, CALC: -1}[kind]
                tag, size = (0, 0) if kind == CALC else (block.channel, step.count * chunk_bytes)
                operations.append(Operation(kind, tuple(after), peer, tag, size, tb, position))
                after = [len(operations) - 1]
    return operations or [Operation(CALC, ())]  # Simulators take no rank without operations.


def _before(step: Step, tb: int, position: int) -> list[tuple[int, int]]:
    """Return the steps (threadblock, position) that a step waits for: the one it names, then the one before it."""
    return [(step.dep_tb, step.dep_step)] * (step.dep_tb >= 0) + [(tb, position - 1)] * (position > 0)
