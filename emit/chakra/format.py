"""Programs as Chakra execution traces, and back: as ASTRA-sim loads a custom collective, a file a rank.

Source: et_def.proto of MLCommons' Chakra (GlobalMetadata, then Nodes, each behind its length), and ASTRA-sim's
CustomAlgorithm, which reads NAME.RANK.et, takes peer, tag and bytes of a node from its attributes, has a send end when
its message arrives, and starts a node once all that it depends on has ended. The nodes are those that ASTRA-sim's own
converter makes of MSCCL XML; the program itself is kept in the metadata of rank 0, as there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emit.chakra.wire import block, fields, messages, number, read_varint, varint
from emit.findings import Verdict
from emit.goal import Goal
from emit.operations import CALC, RECV, SEND, Operation, Operations, operations_of
from emit.operations_check import judge, text_of
from emit.program import Program
from topologies.errors import InputError
from topologies.text.files import origin_of, read_bytes

SCHEMA = "1.0.2-chakra.0.0.4"
MAX_BYTES = 256 << 20  # of all files of a trace
MAX_RANKS = 4096
_TYPES = {CALC: 4, SEND: 5, RECV: 6}
_NAMES = {CALC: "COMP_NODE", SEND: "COMM_SEND_NODE", RECV: "COMM_RECV_NODE"}
_KINDS = {code: kind for kind, code in _TYPES.items()}
_PEERS = {SEND: "comm_dst", RECV: "comm_src"}
_FILE = re.compile(r"(.*)\.(0|[1-9][0-9]{0,5})\.et", re.DOTALL | re.IGNORECASE)
_UNSIGNED = range(5, 15)  # an attribute's values that are numbers or lists of such; 15 to 18 are in zigzag


def write(program: Program, size_bytes: int, reduce_us: int = 0) -> Iterator[tuple[str, bytes]]:
    """(end of the file's name, content) of each rank, for a message of `size_bytes`; the program must be checked.

    reduce_us: of a calculation, whole µs; ASTRA-sim makes 0 one ns. Raises InputError as `operations_of`.
    """
    return encode(operations_of(program, size_bytes), program.collective, text_of(program), reduce_us)


def encode(
    ranks: Operations, collective: str, text: str | None = None, reduce_us: int = 0
) -> Iterator[tuple[str, bytes]]:
    """The files of operations; text: the program's that rank 0 keeps."""
    for rank, own in enumerate(ranks):
        attributes = {"schema": SCHEMA}
        if rank == 0 and text is not None:
            attributes["input_file"] = text
        attributes["collective"] = collective
        texts = (block(1, name.encode()) + block(29, said.encode()) for name, said in attributes.items())
        head = b"".join(block(2, one) for one in texts)
        nodes = (_node(position, one, reduce_us) for position, one in enumerate(own))
        yield f".{rank}.et", b"".join(varint(len(message)) + message for message in (head, *nodes))


def _node(position: int, one: Operation, reduce_us: int) -> bytes:
    """A Node message; numbers that are 0 are left out, as proto3 has it, but for those of attributes."""
    out = [number(1, position)] if position else []
    name = f"{_NAMES[one.kind]}_tb{one.block}_step{one.step}"
    out += [block(2, name.encode()), number(3, _TYPES[one.kind])]
    if one.after:
        out.append(block(5, b"".join(map(varint, one.after))))
    if one.kind == CALC:
        return b"".join([*out, *([number(7, reduce_us)] if reduce_us else [])])
    attributes = (("comm_type", 9, _TYPES[one.kind]), ("comm_size", 9, one.bytes), (_PEERS[one.kind], 7, one.peer),
                  ("comm_tag", 7, one.tag))  # fmt: skip
    out += [block(10, block(1, name.encode()) + number(kind, value)) for name, kind, value in attributes]
    return b"".join(out)


def verify(path: Path, goal: Goal | None = None, fifo_depth: int | None = None) -> Verdict:
    """Read and check a trace, all its files, given one of them; never raises for bad input.

    Its nodes must be those of the program in it, which is replayed as any other.
    """
    return judge(partial(read, path), _NAMES, goal, fifo_depth)


def read(path: Path) -> tuple[list[list[Operation]], str | None]:
    """The operations of each rank, and the MSCCL XML that they were made from if one says it, given one rank's file.

    Raises InputError with file and node.
    """
    base = base_of(path)
    ranks: list[list[Operation]] = []
    text: str | None = None
    left = MAX_BYTES
    while (file := Path(f"{base}.{len(ranks)}.et")).exists() or not ranks:
        if len(ranks) == MAX_RANKS:
            raise InputError(f"{origin_of(file)}: is of more than {MAX_RANKS} ranks; it must be at most as many")
        data = read_bytes(file, "a Chakra trace's file of this rank", left)
        left -= len(data)
        try:
            metadata, own = _rank(data)
        except InputError as error:
            raise InputError(f"{origin_of(file)}: {error}") from None
        ranks.append(own)
        text = metadata.get("input_file", text)
    if not path.exists():
        raise InputError(f"{origin_of(path)}: no such file; there are those of ranks 0..{len(ranks) - 1}")
    return ranks, text


def base_of(path: Path) -> str:
    """The path of a trace without rank and suffix; InputError where it is not named so."""
    found = _FILE.fullmatch(str(path))
    if found is None:
        raise InputError(f"{origin_of(path)}: is no name of a Chakra trace's file; it must be NAME.RANK.et, as a.0.et")
    return found[1]


@dataclass(frozen=True, slots=True)
class _Node:
    id: int
    kind: str
    waits: list[int]
    numbers: dict[str, int]


def _rank(data: bytes) -> tuple[dict[str, str], list[Operation]]:
    """The texts of a file's metadata, and its operations."""
    parts = messages(data)
    head = next(parts, None)
    if head is None:
        raise InputError("is empty; it must begin with Chakra's metadata")
    metadata = {}
    for field, value in fields(head):
        if field == 2 and isinstance(value, bytes):
            attribute = dict(fields(value))
            name, said = attribute.get(1), attribute.get(29)
            if isinstance(name, bytes) and isinstance(said, bytes):
                metadata[name.decode(errors="replace")] = said.decode(errors="replace")
    nodes = []
    for part in parts:
        try:
            nodes.append(_read_node(part))
        except InputError as error:
            raise InputError(f"node {len(nodes)} of the file: {error}") from None
    where = {node.id: place for place, node in enumerate(nodes)}
    if len(where) < len(nodes):
        raise InputError("two nodes have one id; it must be an id of its own")
    made = []
    for node in nodes:
        missing = [other for other in node.waits if other not in where]
        if missing:
            raise InputError(
                f"node {node.id}: waits for node {missing[0]}, which is not there; it must be of this file"
            )
        after = tuple(where[other] for other in dict.fromkeys(node.waits))
        has = node.numbers
        if node.kind == CALC:
            made.append(Operation(CALC, after))
            continue
        for needed in (_PEERS[node.kind], "comm_size"):
            if needed not in has:
                raise InputError(f"node {node.id}: has no attribute {needed}; it must say it")
        made.append(Operation(node.kind, after, has[_PEERS[node.kind]], has.get("comm_tag", 0), has["comm_size"]))
    return metadata, made


def _read_node(part: bytes) -> _Node:
    numbers: dict[int, int] = {}
    waits: list[int] = []
    attributes: dict[str, int] = {}
    for field, value in fields(part):
        if isinstance(value, int):
            if field in (4, 5):
                waits.append(value)
            numbers[field] = value
        elif field in (4, 5):  # control and data: ASTRA-sim waits for both
            waits += _packed(value)
        elif field == 10:
            inner = dict(fields(value))
            name = inner.get(1)
            for kind, said in inner.items():
                if isinstance(name, bytes) and isinstance(said, int) and kind in _UNSIGNED:
                    attributes[name.decode(errors="replace")] = said
    code = numbers.get(3, 0)
    if code not in _KINDS:
        right = ", ".join(f"{code} ({_NAMES[kind]})" for code, kind in sorted(_KINDS.items()))
        raise InputError(f"is of type {code}; it must be one of {right}")
    return _Node(numbers.get(1, 0), _KINDS[code], waits, attributes)


def _packed(data: bytes) -> list[int]:
    from_file, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        from_file.append(value)
    return from_file


def threadblocks(program: Program, _: str | Path) -> list[int]:
    """Of each rank."""
    return [len(gpu.threadblocks) for gpu in program.gpus]
