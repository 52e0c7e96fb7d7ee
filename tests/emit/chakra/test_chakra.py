"""Chakra execution traces: the bytes that ASTRA-sim's own converter writes, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from emit.chakra.format import verify, write
from emit.chakra.wire import block, fields, messages, number, varint
from emit.operations import chunks_of
from emit.program import Gpu, Program, Step, ThreadBlock
from tests.emit.small_programs import RIGHT, ring_allreduce
from topologies.errors import InputError

# sha256 of all nodes, behind their lengths, of ranks 0 to 7 of ASTRA-sim's example
# examples/system/custom_collectives/custom_ring_allreduce_8npus_1MB (commit cb9c7d3)
GOLDEN = "81be69059359f5f9e5cac3f137ef9b9c17149a06266dce7cedea7a6a37fef855"


def golden_program() -> Program:
    """The XML of that example: one channel, in place, a threadblock a rank."""
    gpus = []
    for rank in range(8):
        steps = [Step("s", "i", rank, "i", rank, 1)]
        for turn in range(1, 15):
            at = (rank - turn) % 8
            steps.append(Step("rrc" if turn < 8 else "r", "i", at, "i", at, 1))
            if turn < 14:
                steps.append(Step("s", "i", at, "i", at, 1))
        gpus.append(Gpu(8, 0, 0, [ThreadBlock((rank + 1) % 8, (rank - 1) % 8, 0, steps)]))
    return Program("ring", "allreduce", "LL128", 8, 8, True, False, gpus)


def test_the_nodes_are_those_of_astra_sims_example() -> None:
    digest = hashlib.sha256()
    for _, content in write(golden_program(), 1 << 20, reduce_us=7):
        head = next(messages(content))
        digest.update(content[len(varint(len(head))) + len(head) :])
    assert digest.hexdigest() == GOLDEN


def test_protobuf_reads_what_is_written() -> None:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    attribute, node = file.message_type.add(name="Attribute"), file.message_type.add(name="Node")
    attribute.oneof_decl.add(name="value")  # of which also a 0 is written
    attribute.field.add(name="name", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    for at, name, of in ((7, "i32", kind.TYPE_INT32), (9, "i64", kind.TYPE_INT64)):
        attribute.field.add(name=name, number=at, type=of, label=kind.LABEL_OPTIONAL, oneof_index=0)
    for at, name, of in ((1, "id", kind.TYPE_UINT64), (2, "name", kind.TYPE_STRING), (3, "type", kind.TYPE_INT32)):
        node.field.add(name=name, number=at, type=of, label=kind.LABEL_OPTIONAL)
    node.field.add(name="data_deps", number=5, type=kind.TYPE_UINT64, label=kind.LABEL_REPEATED)
    node.field.add(name="attr", number=10, type=kind.TYPE_MESSAGE, type_name=".x.Attribute", label=kind.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Node"))
    large = 300 * chunks_of(RIGHT["alltoall"])
    for _, content in write(RIGHT["alltoall"], large):
        for position, part in enumerate(list(messages(content))[1:]):
            node = made.FromString(part)
            assert (node.id, node.SerializeToString(deterministic=True)) == (position, part)
            numbers = {one.name: one.i32 or one.i64 for one in node.attr}
            assert numbers.get("comm_size", 300) % 300 == 0


def test_numbers_and_blocks_come_back() -> None:
    values = [0, 1, 127, 128, 300, 2**32, 2**64 - 1]
    data = b"".join(number(at, value) for at, value in enumerate(values, 1)) + block(30, b"ab")
    assert list(fields(data)) == [*enumerate(values, 1), (30, b"ab")]
    for bad, why in ((b"\xff" * 11, "does not end"), (b"\x0a\x05a", "it must be whole"), (b"\x0b", "wire type 3")):
        with pytest.raises(InputError, match=why):
            list(fields(bad))


def _files(folder: Path) -> list[Path]:
    made = []
    for end, content in write(ring_allreduce(3), 12):
        made.append(folder / f"a{end}")
        made[-1].write_bytes(content)
    return made


REFUSED = {
    "name": (lambda files: files[0].rename(files[0].with_name("a.et")), "a.et", "it must be NAME.RANK.et"),
    "first": (lambda files: files[0].unlink(), "a.1.et", "a.0.et: no such file"),
    "last": (lambda files: files[2].unlink(), "a.0.et", "2 ranks; it must have its program's 3"),
    "asked": (lambda files: files[2].touch(), "a.7.et", "a.7.et: no such file; there are those of ranks 0..2"),
    "cut": (lambda files: files[1].write_bytes(files[1].read_bytes()[:-3]), "a.0.et", "a.1.et: a message of"),
    "empty": (lambda files: files[1].write_bytes(b""), "a.0.et", "a.1.et: is empty"),
    "type": (lambda files: _put(files[1], number(3, 7)), "a.0.et", "a.1.et: node 0 of the file: is of type 7"),
    "peer": (lambda files: _put(files[1], number(3, 5)), "a.0.et", "a.1.et: node 0: has no attribute comm_dst"),
    "there": (lambda files: _put(files[1], number(3, 4) + number(5, 9)), "a.0.et", "waits for node 9, which is not"),
    "ids": (lambda files: _put(files[1], number(3, 4), number(3, 4)), "a.0.et", "two nodes have one id"),
}


def _put(file: Path, *nodes: bytes) -> None:
    file.write_bytes(b"".join(varint(len(part)) + part for part in (b"", *nodes)))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_trace_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    spoil, asked, why = REFUSED[name]
    spoil(_files(tmp_path))  # type: ignore[no-untyped-call]
    verdict = verify(tmp_path / asked)
    assert verdict.status == ("wrong" if name == "last" else "not readable")
    assert any(why in line for line in verdict.lines), verdict.lines
    assert all(len(line.splitlines()) == 1 for line in verdict.lines)
