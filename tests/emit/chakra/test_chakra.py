"""Tests of Chakra execution traces: they have the bytes of ASTRA-sim's own converter; damaged traces are refused."""

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

# sha256 of all nodes, each after its length, of ranks 0 to 7 of ASTRA-sim's example
# examples/system/custom_collectives/custom_ring_allreduce_8npus_1MB (commit cb9c7d3).
GOLDEN = "81be69059359f5f9e5cac3f137ef9b9c17149a06266dce7cedea7a6a37fef855"


def golden_program() -> Program:
    """Return the program of that example: one channel, in place, one threadblock a rank."""
    gpus = []
    for rank in range(8):
        steps = [Step("s", "i", rank, "i", rank, 1)]
        for hop in range(1, 15):
            at = (rank - hop) % 8
            steps.append(Step("rrc" if hop < 8 else "r", "i", at, "i", at, 1))
            if hop < 14:
                steps.append(Step("s", "i", at, "i", at, 1))
        gpus.append(Gpu(8, 0, 0, [ThreadBlock((rank + 1) % 8, (rank - 1) % 8, 0, steps)]))
    return Program("ring", "allreduce", "LL128", 8, 8, True, False, gpus)


def test_nodes_equal_those_of_astra_sims_example() -> None:
    digest = hashlib.sha256()
    for _, content in write(golden_program(), 1 << 20, reduce_us=7):
        head = next(messages(content))
        digest.update(content[len(varint(len(head))) + len(head) :])
    assert digest.hexdigest() == GOLDEN


def test_protobuf_reads_written_nodes() -> None:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    attribute, node = file.message_type.add(name="Attribute"), file.message_type.add(name="Node")
    attribute.oneof_decl.add(name="value")  # A member of a oneof is written even if it is 0.
    attribute.field.add(name="name", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    for at, name, field_type in ((7, "i32", kind.TYPE_INT32), (9, "i64", kind.TYPE_INT64)):
        attribute.field.add(name=name, number=at, type=field_type, label=kind.LABEL_OPTIONAL, oneof_index=0)
    for at, name, field_type in (
        (1, "id", kind.TYPE_UINT64),
        (2, "name", kind.TYPE_STRING),
        (3, "type", kind.TYPE_INT32),
    ):
        node.field.add(name=name, number=at, type=field_type, label=kind.LABEL_OPTIONAL)
    node.field.add(name="data_deps", number=5, type=kind.TYPE_UINT64, label=kind.LABEL_REPEATED)
    node.field.add(name="attr", number=10, type=kind.TYPE_MESSAGE, type_name=".x.Attribute", label=kind.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    node_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Node"))
    large = 300 * chunks_of(RIGHT["alltoall"])
    for _, content in write(RIGHT["alltoall"], large):
        for position, part in enumerate(list(messages(content))[1:]):
            node = node_class.FromString(part)
            assert (node.id, node.SerializeToString(deterministic=True)) == (position, part)
            numbers = {node_attribute.name: node_attribute.i32 or node_attribute.i64 for node_attribute in node.attr}
            assert numbers.get("comm_size", 300) % 300 == 0


def test_encoded_numbers_and_blocks_are_decoded() -> None:
    values = [0, 1, 127, 128, 300, 2**32, 2**64 - 1]
    data = b"".join(number(at, value) for at, value in enumerate(values, 1)) + block(30, b"ab")
    assert list(fields(data)) == [*enumerate(values, 1), (30, b"ab")]
    for bad, message in ((b"\xff" * 11, "does not end"), (b"\x0a\x05a", "it must be whole"), (b"\x0b", "wire type 3")):
        with pytest.raises(InputError, match=message):
            list(fields(bad))


def _files(folder: Path) -> list[Path]:
    paths = []
    for end, content in write(ring_allreduce(3), 12):
        paths.append(folder / f"a{end}")
        paths[-1].write_bytes(content)
    return paths


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
def test_damaged_traces_are_refused_with_a_message(name: str, tmp_path: Path) -> None:
    damage, file_name, message = REFUSED[name]
    damage(_files(tmp_path))  # type: ignore[no-untyped-call]
    verdict = verify(tmp_path / file_name)
    assert verdict.status == ("wrong" if name == "last" else "not readable")
    assert any(message in line for line in verdict.lines), verdict.lines
    assert all(len(line.splitlines()) == 1 for line in verdict.lines)
