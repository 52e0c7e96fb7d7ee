"""Tests of programs as operations of simulators: files are read back, and every planted fault is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from emit.chakra import format as chakra
from emit.formats import PROGRAM_FORMATS, verify_file, write_trace
from emit.loggopsim import format as goal
from emit.operations import CALC, RECV, SEND, Operation, chunks_of, operations_of, whole_size
from emit.operations_check import text_of
from emit.program import RECEIVES, SENDS, Program, Step, ThreadBlock
from tests.emit.small_programs import RIGHT, ring_allgather, ring_allreduce, with_gpu, with_step, with_steps
from topologies.errors import InputError

Ranks = list[list[Operation]]
TRACES = [trace_format for trace_format in PROGRAM_FORMATS.values() if trace_format.simulator]


def put(folder: Path, format_name: str, ranks: Ranks, program: Program | None) -> Path:
    """Write a trace's files into a folder and return the path of one of them."""
    folder.mkdir(exist_ok=True)
    if format_name == "goal":
        (folder / "a.goal").write_bytes(goal.encode(ranks, "" if program is None else text_of(program)))
        return folder / "a.goal"
    for end, content in chakra.encode(ranks, "allreduce", None if program is None else text_of(program)):
        (folder / f"a{end}").write_bytes(content)
    return folder / "a.0.et"


@pytest.mark.parametrize("trace_format", TRACES, ids=lambda trace_format: trace_format.name)
@pytest.mark.parametrize("name", RIGHT)
def test_written_traces_are_read_back(trace_format: object, name: str, tmp_path: Path) -> None:
    assert trace_format in TRACES
    program = RIGHT[name]
    size = 24 * chunks_of(program)
    files = write_trace(program, trace_format, size)  # type: ignore[arg-type]
    assert files == write_trace(program, trace_format, size)  # type: ignore[arg-type]
    for end, content in files:
        (tmp_path / f"a{end}").write_bytes(content)
    path = tmp_path / f"a{files[-1][0]}"
    verdict = verify_file(path)
    assert (verdict.status, verdict.findings) == ("right", ())
    assert verdict.program == replace(program, name=verdict.program.name if verdict.program else "")
    ranks, _ = (goal if trace_format.name == "goal" else chakra).read(path)  # type: ignore[attr-defined]
    assert [
        [replace(operation, block=-1, step=-1) for operation in operations]
        for operations in operations_of(program, size)
    ] == ranks


@pytest.mark.parametrize("name", RIGHT)
def test_operations_follow_the_steps_and_their_order(name: str) -> None:
    program = RIGHT[name]
    ranks = operations_of(program, chunks_of(program) * 8)
    for rank, operations in enumerate(ranks):
        gpu = program.gpus[rank]
        steps = [(tb, at) for tb, block in enumerate(gpu.threadblocks) for at in range(len(block.steps))]
        for kind, ops in ((SEND, SENDS), (RECV, RECEIVES)):
            steps_of_kind = [(operation.block, operation.step) for operation in operations if operation.kind == kind]
            assert steps_of_kind == [(tb, at) for tb, at in steps if gpu.threadblocks[tb].steps[at].op in ops]
        awaited = _all_before(operations)
        for position, operation in enumerate(operations):
            if operation.block < 0:
                continue
            step = gpu.threadblocks[operation.block].steps[operation.step]
            for earlier_position, candidate in enumerate(operations):
                earlier = candidate.block == operation.block and candidate.step < operation.step
                named = (candidate.block, candidate.step) == (step.dep_tb, step.dep_step)
                assert not (earlier or named) or earlier_position in awaited[position]


def _all_before(operations: list[Operation]) -> list[set[int]]:
    """Return for each operation all operations that must end before it."""
    awaited: list[set[int]] = [set() for _ in operations]
    for _ in operations:
        for position, operation in enumerate(operations):
            for dependency in operation.after:
                awaited[position] |= {dependency} | awaited[dependency]
    return awaited


@pytest.mark.parametrize("form", [trace_format.name for trace_format in TRACES])
def test_the_reduction_is_kept(form: str, tmp_path: Path) -> None:
    program = replace(ring_allreduce(3), redop="max", min_bytes=9, max_bytes=900)
    verdict = verify_file(put(tmp_path / "x", form, operations_of(program, 9), program))
    assert (verdict.status, verdict.program) == ("right", program)


def test_a_nop_passes_its_dependency_on() -> None:
    two = ThreadBlock(-1, -1, 1, [Step("cpy", "i", 0, "o", 0, 1, has_dep=True)])
    send = ThreadBlock(1, -1, 0, [Step("nop", dep_tb=0, dep_step=0), Step("nop"), Step("s", "i", 0, "o", 0, 1)])
    program = ring_allgather(2)
    gpu = replace(program.gpus[0], threadblocks=[two, send])
    operations = operations_of(with_gpu(program, 0, gpu), 16)[0]
    assert [(operation.kind, operation.after) for operation in operations] == [(CALC, ()), (SEND, (0,))]
    idle = operations_of(with_gpu(program, 0, replace(gpu, threadblocks=[])), 16)[0]
    assert [(operation.kind, operation.after) for operation in idle] == [(CALC, ())]


def test_sizes_are_whole_chunks() -> None:
    program = ring_allreduce(3)
    assert [whole_size(program, most) for most in (1, 100, 99)] == [chunks_of(program), 99, 99]
    for size in (0, -3, 100):
        with pytest.raises(InputError, match="it must be a multiple"):
            operations_of(program, size)


def drop_dependency(ranks: Ranks) -> Iterator[tuple[int, Ranks]]:
    """Yield traces in which an operation lacks one of its dependencies."""
    for rank, operations in enumerate(ranks):
        for position, operation in enumerate(operations):
            for dependency in operation.after:
                yield rank, changed(ranks, rank, position, after=tuple(x for x in operation.after if x != dependency))


def change_size(ranks: Ranks) -> Iterator[tuple[int, Ranks]]:
    for rank, operations in enumerate(ranks):
        for position, operation in enumerate(operations):
            if operation.kind != CALC:
                yield rank, changed(ranks, rank, position, bytes=operation.bytes + 1)


def change_peer(ranks: Ranks) -> Iterator[tuple[int, Ranks]]:
    for rank, operations in enumerate(ranks):
        for position, operation in enumerate(operations):
            if operation.kind != CALC:
                yield (
                    rank,
                    changed(ranks, rank, position, peer=next(x for x in range(9) if x not in (rank, operation.peer))),
                )


def change_tag(ranks: Ranks) -> Iterator[tuple[int, Ranks]]:
    for rank, operations in enumerate(ranks):
        for position, operation in enumerate(operations):
            if operation.kind != CALC:
                yield rank, changed(ranks, rank, position, tag=operation.tag + 7)


def leave_out(ranks: Ranks) -> Iterator[tuple[int, Ranks]]:
    """Yield traces without the last operation of a rank."""
    for rank, operations in enumerate(ranks):
        if len(operations) > 1:
            yield rank, [*ranks[:rank], operations[:-1], *ranks[rank + 1 :]]


def changed(ranks: Ranks, rank: int, position: int, **fields: object) -> Ranks:
    operations = list(ranks[rank])
    operations[position] = replace(operations[position], **fields)  # type: ignore[arg-type]
    return [*ranks[:rank], operations, *ranks[rank + 1 :]]


FAULTS: dict[str, Callable[[Ranks], Iterator[tuple[int, Ranks]]]] = {
    "missing dependency": drop_dependency, "wrong size": change_size, "wrong peer": change_peer,
    "wrong tag": change_tag, "operation left out": leave_out,
}  # fmt: skip


@pytest.mark.parametrize("form", [trace_format.name for trace_format in TRACES])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_reported(form: str, fault: str, tmp_path: Path) -> None:
    planted = 0
    for program in (ring_allreduce(3), RIGHT["alltoall"], RIGHT["doubling_allgather"]):
        right = operations_of(program, 16 * chunks_of(program))
        for rank, ranks in list(FAULTS[fault](right))[:: 7 if fault != "operation left out" else 1]:
            verdict = verify_file(put(tmp_path / "x", form, ranks, program))
            assert verdict.status in ("wrong", "deadlock")
            assert any(f.rank == rank for f in verdict.findings), (rank, verdict.lines)
            planted += 1
    assert planted > 9


@pytest.mark.parametrize("form", [trace_format.name for trace_format in TRACES])
def test_without_a_program_only_messages_are_checked(form: str, tmp_path: Path) -> None:
    program = ring_allreduce(3)
    right = operations_of(program, 16 * chunks_of(program))
    verdict = verify_file(put(tmp_path / "x", form, right, None))
    assert (verdict.status, verdict.program) == ("not readable", None)
    assert "the file holds no program" in verdict.lines[0]
    for fault in ("wrong size", "wrong peer", "wrong tag", "operation left out"):
        for _, ranks in list(FAULTS[fault](right))[::7]:
            assert verify_file(put(tmp_path / "x", form, ranks, None)).status in ("wrong", "deadlock"), fault
    circle = changed(changed(right, 0, 0, after=(1,)), 0, 1, after=(0,))
    assert verify_file(put(tmp_path / "x", form, circle, None)).status == "deadlock"


@pytest.mark.parametrize("form", [trace_format.name for trace_format in TRACES])
def test_a_wrong_program_in_a_trace_is_reported(form: str, tmp_path: Path) -> None:
    wrong = with_step(ring_allreduce(3), 1, 0, 0, src_off=2)
    verdict = verify_file(put(tmp_path / "x", form, operations_of(wrong, 9), wrong))
    assert verdict.status == "wrong"
    stuck = with_steps(ring_allgather(2), 0, 0, [])
    assert verify_file(put(tmp_path / "x", form, operations_of(stuck, 8), stuck)).status == "wrong"
