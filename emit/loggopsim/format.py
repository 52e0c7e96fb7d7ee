"""Writing and reading programs as GOAL text, which LogGOPSim and other network simulators take.

Source: Hoefler, Siebert, Lumsdaine, "Group Operation Assembly Language" (ICPP 2009), and the grammar of LogGOPSim's
txt2bin.re. All operations of a rank are on its CPU 0 and NIC 0, because LogGOPSim carries the time from an operation to
those that require it only within one CPU. The program itself stands in comments after the first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from emit.findings import Verdict
from emit.goal import Goal
from emit.operations import CALC, RECV, SEND, Operation, Operations, operations_of
from emit.operations_check import judge, text_of
from emit.program import Program
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import origin_of, read_text

MAX_BYTES = 256 << 20
MAX_RANKS = 1 << 16
_NAMES = {CALC: "calc", SEND: "send", RECV: "recv"}
_KINDS = {name: kind for kind, name in _NAMES.items()}
_HEAD = re.compile(r"num_ranks\s+([0-9]{1,9})")
_RANK = re.compile(r"rank\s+([0-9]{1,9})\s*\{")
_OPERATION = re.compile(
    r"(?:([a-zA-Z]\w*)\s*:\s*)?(?:(calc)\s+([0-9]{1,18})|(send)\s+([0-9]{1,18})b\s+to\s+([0-9]{1,9})"
    r"|(recv)\s+([0-9]{1,18})b\s+from\s+([0-9]{1,9}))((?:\s+(?:tag|cpu|nic)\s+[0-9]{1,9})*)"
)
_REQUIRES = re.compile(r"([a-zA-Z]\w*)\s+requires\s+([a-zA-Z]\w*)")
_TAG = re.compile(r"tag\s+([0-9]+)")


def write(program: Program, size_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield one pair (".goal", content of the file) for a message of `size_bytes`; the program must be checked.

    Raises:
        InputError: As `operations_of` or `text_of` raises it.
    """
    yield ".goal", encode(operations_of(program, size_bytes), text_of(program))


def encode(ranks: Operations, text: str = "") -> bytes:
    """Return LogGOPSim's GOAL text, the input of txt2bin, in UTF-8.

    Args:
        ranks: Operations of each rank.
        text: The program as MSCCL XML, which stands at the head as comments; empty for none.
    """
    lines = [f"num_ranks {len(ranks)}", *(f"// {line}" for line in text.splitlines())]
    for rank, operations in enumerate(ranks):
        lines += ["", f"rank {rank} {{"]
        # txt2bin requires a label's operation to stand before its uses.
        lines += [f"l{position}: {_statement_of(operation)}" for position, operation in enumerate(operations)]
        lines += [
            f"l{position} requires l{awaited}"
            for position, operation in enumerate(operations)
            for awaited in operation.after
        ]
        lines.append("}")
    return ("\n".join(lines) + "\n").encode()


def _statement_of(operation: Operation) -> str:
    """Return an operation as GOAL writes it, without a label; a calculation takes no time."""
    if operation.kind == CALC:
        return "calc 0"
    return (
        f"{_NAMES[operation.kind]} {operation.bytes}b {'to' if operation.kind == SEND else 'from'} "
        f"{operation.peer} tag {operation.tag}"
    )


def verify(path: Path, goal: Goal | None = None, fifo_depth: int | None = None, _: str | None = None) -> Verdict:
    """Read and check a file; never raise for bad input.

    Its operations must be those of the program in its comments, which is replayed as any other program. A file without
    a program is never "right".

    Args:
        path: The file.
        goal: What the program must achieve; None for the goal of its collective.
        fifo_depth: Slots of a FIFO; None for those of the program's protocol.
        _: Ignored.
    """
    return judge(partial(read, path), _NAMES, goal, fifo_depth)


def read(path: Path) -> tuple[list[list[Operation]], str | None]:
    """Return the operations of each rank, and the MSCCL XML in the comments or None.

    Each line holds one statement, as all generators write it. The time of a calculation, and CPU and NIC, are not kept.

    Raises:
        InputError: If the file is too large or malformed; the message names the file, and the line if one is at fault.
    """
    text = read_text(path, "a GOAL file", MAX_BYTES, most_lines=None)
    reader = _GoalReader()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reader.take(line)
        except InputError as error:
            raise InputError(f"{origin_of(path)}:{number}: {error}") from None
    try:
        return reader.ranks(), "\n".join(reader.comments) if any("<algo" in x for x in reader.comments) else None
    except InputError as error:
        raise InputError(f"{origin_of(path)}: {error}") from None


class _GoalReader:
    """A reader of GOAL text, line by line.

    Attributes:
        comments: Comments read so far.
        count: Number of ranks; -1 before the first statement.
        operations_of_rank: Operations of each rank that was read.
        rank: Rank that is open; -1 for none.
        operations: Operations of the open rank.
        labels: Position of the operation of each label.
        waits: (label of an operation, label that it requires) in the open rank.
    """

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.count = -1
        self.operations_of_rank: dict[int, list[Operation]] = {}
        self.rank = -1
        self.operations: list[Operation] = []
        self.labels: dict[str, int] = {}
        self.waits: list[tuple[str, str]] = []

    def take(self, line: str) -> None:
        """Read a line, with its comment; raise InputError if it is no statement, or one that does not fit here.

        An empty line or a lone comment is right everywhere.
        """
        line, _, comment = line.partition("//")
        if comment:
            self.comments.append(comment.strip())
        line = line.strip()
        if not line:
            return
        if self.count < 0:
            head = _HEAD.fullmatch(line)
            if head is None or not 1 <= int(head[1]) <= MAX_RANKS:
                raise InputError(f"{shown(line)}; it must be num_ranks N first, of 1..{MAX_RANKS}")
            self.count = int(head[1])
        elif self.rank < 0:
            opening = _RANK.fullmatch(line)
            if opening is None or int(opening[1]) >= self.count or int(opening[1]) in self.operations_of_rank:
                raise InputError(f"{shown(line)}; it must be rank R {{, each of 0..{self.count - 1} once")
            self.rank, self.operations, self.labels, self.waits = int(opening[1]), [], {}, []
        elif line == "}":
            self._close()
        else:
            self._statement(line)

    def _statement(self, line: str) -> None:
        """Read a statement of the open rank: an operation, or what one requires.

        Raises:
            InputError: It is neither, or its label is there already.
        """
        if match := _REQUIRES.fullmatch(line):
            self.waits.append((match[1], match[2]))
            return
        match = _OPERATION.fullmatch(line)
        if match is None:
            forms = (
                "send Nb to R, recv Nb from R, calc N, each with a label before and a tag behind it, or A requires B"
            )
            raise InputError(f"{shown(line)}; it must be {forms}")
        label, options = match[1], match[10]
        if label is not None:
            if label in self.labels:
                raise InputError(f"label {shown(label)} is there already; it must be one of its own")
            self.labels[label] = len(self.operations)
        tag = _TAG.search(options)
        kind = _KINDS[match[2] or match[4] or match[7]]
        size, peer = (0, -1) if kind == CALC else (int(match[5] or match[8]), int(match[6] or match[9]))
        self.operations.append(Operation(kind, (), peer, int(tag[1]) if tag and kind != CALC else 0, size))

    def _close(self) -> None:
        """Close the open rank, and resolve the labels that its operations require.

        Raises:
            InputError: The rank has no operation of such a label.
        """
        after: list[dict[int, None]] = [{} for _ in self.operations]
        for waiting, required in self.waits:
            for label in (waiting, required):
                if label not in self.labels:
                    fault = f"rank {self.rank} has no label {shown(label)}, which a requires names"
                    raise InputError(f"{fault}; it must be there")
            after[self.labels[waiting]][self.labels[required]] = None
        self.operations_of_rank[self.rank] = [
            Operation(operation.kind, tuple(awaited), operation.peer, operation.tag, operation.bytes)
            for operation, awaited in zip(self.operations, after, strict=True)
        ]
        self.rank = -1

    def ranks(self) -> list[list[Operation]]:
        """Return the operations of all ranks in order.

        Raises:
            InputError: The text was empty, or a rank is missing or open.
        """
        if self.count < 0:
            raise InputError("is empty; it must begin with num_ranks N")
        if self.rank >= 0:
            raise InputError(f"rank {self.rank} has no }}; it must be closed")
        missing = [rank for rank in range(self.count) if rank not in self.operations_of_rank]
        if missing:
            raise InputError(f"rank {missing[0]} is missing; it must have each of 0..{self.count - 1}")
        return [self.operations_of_rank[rank] for rank in range(self.count)]
