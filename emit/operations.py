"""A Program at one message size as what simulators of networks take: of each rank, sends, receives and calculations.

An operation starts when all operations of its rank that it waits for have ended. A step becomes the receive, the
calculation and the send that it consists of, in this order; steps of a threadblock wait for each other in turn. What
simulators have no word for is lost: which cells are read and written, and the slots of a FIFO, so that no send waits
for its receiver.
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
    """kind: SEND, RECV or CALC.  after: positions, in its rank's operations, of those that must have ended.

    peer, tag, bytes: of a message; messages of one sender, receiver and tag are received in the order they are sent.
    block, step: the threadblock and the step that it is part of, -1 where that is not known.
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
    """The chunks that a message (nccl-tests' size) of the program is made of."""
    return program.nchunks_per_loop * (program.nranks if find_kind(program.collective).blocks_at_root else 1)


def whole_size(program: Program, most_bytes: int) -> int:
    """The largest message of at most `most_bytes` whose chunks are whole bytes, or else the smallest."""
    chunks = chunks_of(program)
    return max(1, most_bytes // chunks) * chunks


def operations_of(program: Program, size_bytes: int) -> list[list[Operation]]:
    """What each rank does for a message of `size_bytes` (nccl-tests' size), in order of threadblocks and steps.

    The program must have passed its check. Raises InputError for a size that is no whole number of bytes a chunk, and
    for more than MOST_OPERATIONS.
    """
    chunks = chunks_of(program)
    if size_bytes < 1 or size_bytes % chunks:
        what = f"{size_bytes} bytes: {program.name} cuts a message into {chunks} chunks"
        raise InputError(f"{what}; it must be a multiple, as {whole_size(program, size_bytes)}")
    parts = sum(len(_parts(step.op)) for *_, step in program.steps())
    if parts > MOST_OPERATIONS:
        raise InputError(f"{program.name}: {parts} operations; it must be at most {MOST_OPERATIONS}")
    return [_of_rank(program, rank, size_bytes // chunks) for rank in range(program.nranks)]


def _parts(op: str) -> list[str]:
    return [RECV] * (op in RECEIVES) + [CALC] * (op in _CALCULATES) + [SEND] * (op in SENDS)


def _of_rank(program: Program, rank: int, chunk_bytes: int) -> list[Operation]:
    gpu = program.gpus[rank]
    last: dict[tuple[int, int], int] = {}  # of each step that does something its last operation
    count = 0
    for tb, block in enumerate(gpu.threadblocks):
        for position, step in enumerate(block.steps):
            if parts := len(_parts(step.op)):
                count += parts
                last[tb, position] = count - 1

    def ended(tb: int, position: int) -> list[int]:
        """The operations whose end is that of a step: of a nop, what it waits for."""
        found: list[int] = []
        asked, seen = [(tb, position)], {(tb, position)}
        while asked:
            place = asked.pop()
            if place in last:
                found.append(last[place])
                continue
            for other in _before(gpu.threadblocks[place[0]].steps[place[1]], *place):
                if other not in seen:
                    seen.add(other)
                    asked.append(other)
        return found

    made: list[Operation] = []
    for tb, block in enumerate(gpu.threadblocks):
        for position, step in enumerate(block.steps):
            after = list(dict.fromkeys(x for place in _before(step, tb, position) for x in ended(*place)))
            for kind in _parts(step.op):
                peer = {SEND: block.send, RECV: block.recv, CALC: -1}[kind]
                tag, size = (0, 0) if kind == CALC else (block.channel, step.count * chunk_bytes)
                made.append(Operation(kind, tuple(after), peer, tag, size, tb, position))
                after = [len(made) - 1]
    return made or [Operation(CALC, ())]  # simulators take no rank without any


def _before(step: Step, tb: int, position: int) -> list[tuple[int, int]]:
    """The steps (threadblock, position) that one waits for: the one it names, then the one before it."""
    return [(step.dep_tb, step.dep_step)] * (step.dep_tb >= 0) + [(tb, position - 1)] * (position > 0)
