"""Writing and reading programs as Chakra execution traces, one file per rank, as ASTRA-sim loads a custom collective.

Source: et_def.proto of MLCommons' Chakra (GlobalMetadata, then Nodes, each preceded by its length), and ASTRA-sim's
CustomAlgorithm. It reads NAME.RANK.et, takes peer, tag and bytes of a node from its attributes, ends a send when its
message arrives, and starts a node once all nodes that it depends on have ended. The nodes are those that ASTRA-sim's
own converter makes of MSCCL XML. As there, the program itself is kept in the metadata of rank 0.
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
_UNSIGNED = range(5, 15)  # fields of an attribute's value that hold numbers or lists of them; 15 to 18 use zigzag


def write(program: Program, size_bytes: int, reduce_us: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield (end of the file's name, content) of each rank, for a message of `size_bytes`; the program must be checked.

    Args:
        program: The program.
        size_bytes: Message size in bytes.
        reduce_us: Time of a calculation in whole µs; ASTRA-sim takes 0 as one ns.

    Raises:
        InputError: As `operations_of` raises it.
    """
    return encode(operations_of(program, size_bytes), program.collective, text_of(program), reduce_us)


def encode(
    ranks: Operations, collective: str, text: str | None = None, reduce_us: int = 0
) -> Iterator[tuple[str, bytes]]:
    """Yield (end of the file's name, content) of each rank's operations, ranks in order: ".0.et", ".1.et", and so on.

    Args:
        ranks: Operations of each rank.
        collective: Name of the collective, for the metadata of each file.
        text: The program as MSCCL XML, which rank 0's file keeps; None to keep none.
        reduce_us: Time of a calculation in whole µs; ASTRA-sim takes 0 as one ns.
    """
    for rank, operations in enumerate(ranks):
        attributes = {"schema": SCHEMA}
        if rank == 0 and text is not None:
            attributes["input_file"] = text
        attributes["collective"] = collective
        texts = (block(1, name.encode()) + block(29, value.encode()) for name, value in attributes.items())
        head = b"".join(block(2, part) for part in texts)
        nodes = (_node(position, part, reduce_us) for position, part in enumerate(operations))
        yield f".{rank}.et", b"".join(varint(len(message)) + message for message in (head, *nodes))


def _node(position: int, operation: Operation, reduce_us: int) -> bytes:
    """Return the Node message of an operation, whose id is its position in its rank, without the length before it.

    As in proto3, numbers that are 0 are left out, except for those of attributes. `reduce_us` is the time of a
    calculation in µs.
    """
    parts = [number(1, position)] if position else []
    name = f"{_NAMES[operation.kind]}_tb{operation.block}_step{operation.step}"
    parts += [block(2, name.encode()), number(3, _TYPES[operation.kind])]
    if operation.after:
        parts.append(block(5, b"".join(map(varint, operation.after))))
    if operation.kind == CALC:
        return b"".join([*parts, *([number(7, reduce_us)] if reduce_us else [])])
    attributes = (
        ("comm_type", 9, _TYPES[operation.kind]),
        ("comm_size", 9, operation.bytes),
        (_PEERS[operation.kind], 7, operation.peer),
        ("comm_tag", 7, operation.tag),
    )
    parts += [block(10, block(1, name.encode()) + number(kind, value)) for name, kind, value in attributes]
    return b"".join(parts)


def verify(path: Path, goal: Goal | None = None, fifo_depth: int | None = None, _: str | None = None) -> Verdict:
    """Read and check a trace with all its files, given one of them; never raise for bad input.

    Its nodes must be those of the program in it, which is replayed as any other program. A trace without a program is
    never "right".

    Args:
        path: File of one rank.
        goal: What the program must achieve; None for the goal of its collective.
        fifo_depth: Slots of a FIFO; None for those of the program's protocol.
        _: Ignored.
    """
    return judge(partial(read, path), _NAMES, goal, fifo_depth)


def read(path: Path) -> tuple[list[list[Operation]], str | None]:
    """Return the operations of each rank, and the MSCCL XML in the trace or None, given one rank's file.

    The ranks are those of the files NAME.0.et, NAME.1.et, … up to the first that is missing.

    Raises:
        InputError: If a file is missing or malformed; the message names file and node.
    """
    base = base_of(path)
    ranks: list[list[Operation]] = []
    text: str | None = None
    remaining_bytes = MAX_BYTES
    while (file := Path(f"{base}.{len(ranks)}.et")).exists() or not ranks:
        if len(ranks) == MAX_RANKS:
            raise InputError(f"{origin_of(file)}: is of more than {MAX_RANKS} ranks; it must be at most as many")
        data = read_bytes(file, "a Chakra trace's file of this rank", remaining_bytes)
        remaining_bytes -= len(data)
        try:
            metadata, operations = _rank(data)
        except InputError as error:
            raise InputError(f"{origin_of(file)}: {error}") from None
        ranks.append(operations)
        text = metadata.get("input_file", text)
    if not path.exists():
        raise InputError(f"{origin_of(path)}: no such file; there are those of ranks 0..{len(ranks) - 1}")
    return ranks, text


def base_of(path: Path) -> str:
    """Return the path of a trace's file without its end .RANK.et.

    Raises:
        InputError: If the path has no such end.
    """
    match = _FILE.fullmatch(str(path))
    if match is None:
        raise InputError(f"{origin_of(path)}: is no name of a Chakra trace's file; it must be NAME.RANK.et, as a.0.et")
    return match[1]


@dataclass(frozen=True, slots=True)
class _ChakraNode:
    """A node of a trace.

    Attributes:
        id: Its number.
        kind: SEND, RECV or CALC.
        waits: Numbers of the nodes that it waits for.
        numbers: Its attributes that are numbers, by name.
    """

    id: int
    kind: str
    waits: list[int]
    numbers: dict[str, int]


def _rank(data: bytes) -> tuple[dict[str, str], list[Operation]]:
    """Return the texts in a file's metadata, by name, and its operations, in the order of its nodes.

    Raises:
        InputError: The file is empty or malformed, two nodes have one id, or a node waits for one that is not there or
            lacks an attribute.
    """
    parts = messages(data)
    head = next(parts, None)
    if head is None:
        raise InputError("is empty; it must begin with Chakra's metadata")
    metadata = {}
    for field, value in fields(head):
        if field == 2 and isinstance(value, bytes):
            attribute = dict(fields(value))
            name, text = attribute.get(1), attribute.get(29)
            if isinstance(name, bytes) and isinstance(text, bytes):
                metadata[name.decode(errors="replace")] = text.decode(errors="replace")
    nodes = []
    for part in parts:
        try:
            nodes.append(_read_node(part))
        except InputError as error:
            raise InputError(f"node {len(nodes)} of the file: {error}") from None
    position_of = {node.id: place for place, node in enumerate(nodes)}
    if len(position_of) < len(nodes):
        raise InputError("two nodes have one id; it must be an id of its own")
    operations = []
    for node in nodes:
        missing = [awaited for awaited in node.waits if awaited not in position_of]
        if missing:
            raise InputError(
                f"node {node.id}: waits for node {missing[0]}, which is not there; it must be of this file"
            )
        after = tuple(position_of[awaited] for awaited in dict.fromkeys(node.waits))
        attributes = node.numbers
        if node.kind == CALC:
            operations.append(Operation(CALC, after))
            continue
        for required in (_PEERS[node.kind], "comm_size"):
            if required not in attributes:
                raise InputError(f"node {node.id}: has no attribute {required}; it must say it")
        operations.append(
            Operation(
                node.kind, after, attributes[_PEERS[node.kind]], attributes.get("comm_tag", 0), attributes["comm_size"]
            )
        )
    return metadata, operations


def _read_node(part: bytes) -> _ChakraNode:
    """Return a node from its message, with control and data dependencies as waits.

    Raises:
        InputError: It is malformed, or of another type than send, receive and calculation.
    """
    numbers: dict[int, int] = {}
    waits: list[int] = []
    attributes: dict[str, int] = {}
    for field, value in fields(part):
        if isinstance(value, int):
            if field in (4, 5):
                waits.append(value)
            numbers[field] = value
        elif field in (4, 5):  # Control and data dependencies: ASTRA-sim waits for both.
            waits += _packed(value)
        elif field == 10:
            inner = dict(fields(value))
            name = inner.get(1)
            for kind, attribute_value in inner.items():
                if isinstance(name, bytes) and isinstance(attribute_value, int) and kind in _UNSIGNED:
                    attributes[name.decode(errors="replace")] = attribute_value
    code = numbers.get(3, 0)
    if code not in _KINDS:
        known_types = ", ".join(f"{code} ({_NAMES[kind]})" for code, kind in sorted(_KINDS.items()))
        raise InputError(f"is of type {code}; it must be one of {known_types}")
    return _ChakraNode(numbers.get(1, 0), _KINDS[code], waits, attributes)


def _packed(data: bytes) -> list[int]:
    """Return the numbers in a packed field, each a varint; raise InputError if one does not end."""
    numbers, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        numbers.append(value)
    return numbers
