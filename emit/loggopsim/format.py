"""Programs as GOAL text, which LogGOPSim and other simulators of networks take, and back.

Source: Hoefler, Siebert, Lumsdaine, "Group Operation Assembly Language" (ICPP 2009), and the grammar of LogGOPSim's
txt2bin.re. All operations of a rank are on its CPU 0 and NIC 0: LogGOPSim carries the time from an operation to those
that require it only within one CPU. The program itself stands in comments behind the first line.
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
    """(end of the file's name, content), for a message of `size_bytes`; the program must be checked.

    Raises InputError as `operations_of`.
    """
    yield ".goal", encode(operations_of(program, size_bytes), text_of(program))


def encode(ranks: Operations, text: str = "") -> bytes:
    """The file of operations; text: the program's that stands in its comments."""
    lines = [f"num_ranks {len(ranks)}", *(f"// {line}" for line in text.splitlines())]
    for rank, own in enumerate(ranks):
        lines += ["", f"rank {rank} {{"]
        # txt2bin takes no label before the operation that has it
        lines += [f"l{position}: {_written(one)}" for position, one in enumerate(own)]
        lines += [f"l{position} requires l{other}" for position, one in enumerate(own) for other in one.after]
        lines.append("}")
    return ("\n".join(lines) + "\n").encode()


def _written(one: Operation) -> str:
    if one.kind == CALC:
        return "calc 0"
    return f"{_NAMES[one.kind]} {one.bytes}b {'to' if one.kind == SEND else 'from'} {one.peer} tag {one.tag}"


def verify(path: Path, goal: Goal | None = None, fifo_depth: int | None = None) -> Verdict:
    """Read and check a file; never raises for bad input.

    Its operations must be those of the program in its comments, which is replayed as any other.
    """
    return judge(partial(read, path), _NAMES, goal, fifo_depth)


def read(path: Path) -> tuple[list[list[Operation]], str | None]:
    """The operations of each rank, and the MSCCL XML in the comments if there is one.

    One statement a line, as all generators write it. Raises InputError with file and line.
    """
    text = read_text(path, "a GOAL file", MAX_BYTES, most_lines=None)
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reader.take(line)
        except InputError as error:
            raise InputError(f"{origin_of(path)}:{number}: {error}") from None
    try:
        return reader.ranks(), "\n".join(reader.comments) if any("<algo" in x for x in reader.comments) else None
    except InputError as error:
        raise InputError(f"{origin_of(path)}: {error}") from None


class _Reader:
    """What was read so far; `waits`: of the open rank, (operation, label that it requires)."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.count = -1
        self.done: dict[int, list[Operation]] = {}
        self.rank = -1
        self.own: list[Operation] = []
        self.labels: dict[str, int] = {}
        self.waits: list[tuple[str, str]] = []

    def take(self, line: str) -> None:
        """Raises InputError for what is no statement, or does not fit here."""
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
            if opening is None or int(opening[1]) >= self.count or int(opening[1]) in self.done:
                raise InputError(f"{shown(line)}; it must be rank R {{, each of 0..{self.count - 1} once")
            self.rank, self.own, self.labels, self.waits = int(opening[1]), [], {}, []
        elif line == "}":
            self._close()
        else:
            self._statement(line)

    def _statement(self, line: str) -> None:
        if found := _REQUIRES.fullmatch(line):
            self.waits.append((found[1], found[2]))
            return
        found = _OPERATION.fullmatch(line)
        if found is None:
            right = (
                "send Nb to R, recv Nb from R, calc N, each with a label before and a tag behind it, or A requires B"
            )
            raise InputError(f"{shown(line)}; it must be {right}")
        label, rest = found[1], found[10]
        if label is not None:
            if label in self.labels:
                raise InputError(f"label {label} is there already; it must be one of its own")
            self.labels[label] = len(self.own)
        tag = _TAG.search(rest)
        kind = _KINDS[found[2] or found[4] or found[7]]
        size, peer = (0, -1) if kind == CALC else (int(found[5] or found[8]), int(found[6] or found[9]))
        self.own.append(Operation(kind, (), peer, int(tag[1]) if tag and kind != CALC else 0, size))

    def _close(self) -> None:
        after: list[dict[int, None]] = [{} for _ in self.own]
        for waits, other in self.waits:
            for label in (waits, other):
                if label not in self.labels:
                    raise InputError(f"rank {self.rank} has no label {label}, which a requires names; it must be there")
            after[self.labels[waits]][self.labels[other]] = None
        self.done[self.rank] = [
            Operation(one.kind, tuple(before), one.peer, one.tag, one.bytes)
            for one, before in zip(self.own, after, strict=True)
        ]
        self.rank = -1

    def ranks(self) -> list[list[Operation]]:
        """All ranks in order. Raises InputError where one is missing or open."""
        if self.count < 0:
            raise InputError("is empty; it must begin with num_ranks N")
        if self.rank >= 0:
            raise InputError(f"rank {self.rank} has no }}; it must be closed")
        missing = [rank for rank in range(self.count) if rank not in self.done]
        if missing:
            raise InputError(f"rank {missing[0]} is missing; it must have each of 0..{self.count - 1}")
        return [self.done[rank] for rank in range(self.count)]


def threadblocks(program: Program, _: str | Path) -> list[int]:
    """Of each rank."""
    return [len(gpu.threadblocks) for gpu in program.gpus]
