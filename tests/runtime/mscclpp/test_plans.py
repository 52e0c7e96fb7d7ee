"""The loader of a library's plans: what is registered, and which plan a call gets, equal on every rank."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emit.library.index import index_text, load_index
from emit.mscclpp.format import write_plan
from emit.program import Program
from runtime.mscclpp import Plans
from tests.emit.library.made_indices import entry_row
from tests.emit.small_programs import alltoall, chain_broadcast, ring_allgather, ring_allreduce, ring_reducescatter
from tests.runtime.mscclpp.stand_in import AlgorithmCollectionBuilder, DataType, Executor, Request, install
from topologies.errors import InputError

RANKS = (0, 2, 4, 6)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> AlgorithmCollectionBuilder:
    return install(monkeypatch)


def add(folder: Path, *programs: tuple[Program, bool], nodes: Sequence[int] | None = None, **fields: Any) -> Path:
    """Add a plan for each program, in place or not, to a library."""
    (folder / "mscclpp").mkdir(parents=True, exist_ok=True)
    rows = [dict(entry.row) for entry in load_index(folder)] if (folder / "index.json").exists() else []
    for program, inplace in programs:
        name = f"{program.collective}-{len(rows)}"
        text = write_plan(replace(program, name=name), nodes=nodes, inplace=inplace)
        (folder / "mscclpp" / f"{name}.json").write_text(text)
        root = RANKS[program.root] if program.collective in ("broadcast", "reduce") else None
        rows.append(
            entry_row(
                collective=program.collective, target="mscclpp", file=f"mscclpp/{name}.json", inplace=inplace,
                root=root, min_bytes=program.min_bytes, max_bytes=program.max_bytes or None, **fields,
            )
        )  # fmt: skip
    (folder / "index.json").write_bytes(index_text(rows))
    return folder


def both_forms(program: Program) -> list[tuple[Program, bool]]:
    return [(program, True), (program, False)]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    small = replace(ring_allreduce(4), max_bytes=65536, protocol="LL")
    large = replace(ring_allreduce(4), min_bytes=65537)
    return add(
        tmp_path / "out", *both_forms(small), *both_forms(large), *both_forms(ring_allgather(4)),
        *both_forms(ring_reducescatter(4)), *both_forms(chain_broadcast(4, 0, 4)), (alltoall(4), False),
    )  # fmt: skip


def chosen(builder: AlgorithmCollectionBuilder, request: Request) -> str | None:
    plan_algorithm = builder.selector(builder.collection(), request)
    return None if plan_algorithm is None else plan_algorithm.plan.name


def test_the_plans_that_are_registered(library: Path, builder: AlgorithmCollectionBuilder) -> None:
    assert Plans(library, 1, 4, 4).register(only_sums=True) == 10
    names = {algorithm.plan.name for algorithm in builder.algorithms}
    assert names == {Path(e.file).stem for e in load_index(library) if e.collective != "alltoall"}
    assert {algorithm.plan.rank for algorithm in builder.algorithms} == {1}
    for algorithm in builder.algorithms:
        assert algorithm.constraint is not None
        assert algorithm.constraint.world_size == 4
        # Otherwise the shim's own selector would take requests that ours declined.
        assert algorithm.constraint.n_ranks_per_node != 4


def test_reductions_are_left_out_unless_all_are_sums(library: Path, builder: AlgorithmCollectionBuilder) -> None:
    assert Plans(library, 1, 4, 4).register() == 4
    assert {algorithm.plan.collective for algorithm in builder.algorithms} == {"allgather", "broadcast"}
    assert chosen(builder, Request("allreduce", 4096)) is None


def test_the_plan_of_a_request(library: Path, builder: AlgorithmCollectionBuilder) -> None:
    Plans(library, 1, 4, 4).register(only_sums=True)
    at = 1 << 20
    for request, name in (
        (Request("allreduce", 4096), "allreduce-1"),
        (Request("allreduce", 4096, output_buffer=at), "allreduce-0"),
        (Request("allreduce", 1 << 20), "allreduce-3"),
        (Request("allgather", 1024), "allgather-5"),
        (Request("allgather", 1024, output_buffer=at - 1024), "allgather-4"),  # Its block of the output.
        (Request("allgather", 1024, output_buffer=at), "allgather-5"),
        (Request("reducescatter", 4096), "reducescatter-7"),
        (Request("reducescatter", 4096, output_buffer=at + 1024), "reducescatter-6"),
        (Request("broadcast", 4096, hints={"root": [0]}), "broadcast-9"),
        (Request("broadcast", 4096, hints={"root": [0]}, output_buffer=at), "broadcast-8"),
        # No plan serves these.
        (Request("broadcast", 4096, hints={"root": [1]}), None),
        (Request("broadcast", 4096), None),
        (Request("allreduce", 4100), None),  # No whole chunks.
        (Request("allreduce", 32), None),  # Less than the least chunk.
        (Request("allreduce", 4096, dtype=DataType.uint8), None),
        (Request("allreduce", 4096, world_size=8), None),
        (Request("alltoall", 4096), None),
    ):
        assert chosen(builder, request) == name, request


def test_a_request_that_another_plan_would_serve_wrongly_is_declined(tmp_path: Path, builder: Any) -> None:
    """Check that a broadcast gets the plan of its own root, or none."""
    library = add(tmp_path, (chain_broadcast(4, 0, 4), False))
    Plans(library, 0, 4, 4).register()
    assert chosen(builder, Request("broadcast", 4096, rank=0, hints={"root": [0]})) == "broadcast-0"
    assert [chosen(builder, Request("broadcast", 4096, rank=0, hints={"root": [r]})) for r in (1, 2, 3)] == [None] * 3


def test_all_ranks_choose_the_same_plan(library: Path, builder: AlgorithmCollectionBuilder) -> None:
    for inplace in (False, True):
        names = set()
        for rank in range(4):
            Plans(library, rank, 4, 4).register(only_sums=True)
            send = (1 << 30) + 1024 * rank if inplace else 1 << 20
            names.add(chosen(builder, Request("allgather", 1024, rank=rank, input_buffer=send)))
        assert names == {"allgather-4" if inplace else "allgather-5"}


def test_calls_through_the_executor(library: Path, builder: AlgorithmCollectionBuilder) -> None:  # noqa: ARG001
    plans, executor = Plans(library, 2, 4, 4), Executor()
    half = DataType.float16
    assert plans.execute(executor, "all_to_all_single", 4096, 1 << 20, 8192, 8192, half, stream=7)
    assert executor.launched == [(2, 4096, 1 << 20, 8192, 8192, half, "alltoall-10", 7)]
    assert plans.execute(executor, "broadcast", 0, 1 << 20, 4096, 4096, half, root=0)
    assert executor.launched[-1][-2] == "broadcast-9"
    assert plans.execute(executor, "allreduce", 0, 1 << 20, 4096, 4096, half)
    assert plans.execute(executor, "alltoall", 0, 1 << 20, 4096, 4096, half, op="max")  # It reduces nothing.
    launched = len(executor.launched)
    assert not plans.execute(executor, "allreduce", 0, 1 << 20, 4096, 4096, half, op="max")
    assert not plans.execute(executor, "broadcast", 0, 1 << 20, 4096, 4096, half, root=3)
    assert not plans.execute(executor, "allreduce", 0, 1 << 20, 4100, 4100, half)
    assert len(executor.launched) == launched
    with pytest.raises(InputError, match=r"give root$"):
        plans.execute(executor, "broadcast", 0, 1 << 20, 4096, 4096, half)
    with pytest.raises(InputError, match=r"root 4: must be a rank of the communicator, 0 to 3"):
        plans.execute(executor, "broadcast", 0, 1 << 20, 4096, 4096, half, root=4)


def test_refusals(library: Path, tmp_path: Path, builder: AlgorithmCollectionBuilder) -> None:  # noqa: ARG001
    for arguments, message in (
        ((library, 0, 8, 8), "holds no execution plan for a communicator of 8 ranks"),
        ((library, 4, 4, 4), "it must be 0 <= rank < world_size"),
        ((library, 0, 4, 2), "which are on two nodes of 2; it must be a plan for this number of ranks a node"),
        ((tmp_path / "nothing", 0, 4, 4), "it must be a library's index.json"),
    ):
        with pytest.raises(InputError) as error:
            Plans(*arguments)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    two = add(tmp_path / "two", (ring_allreduce(4), True))
    add(two, (ring_allreduce(4), True), group=[1, 3, 5, 7], communicator=[1, 3, 5, 7])
    with pytest.raises(InputError, match=r"plans for several groups: dgx1 0,2,4,6; dgx1 1,3,5,7; give group"):
        Plans(two, 0, 4, 4)
    assert Plans(two, 0, 4, 4, group=(1, 3, 5, 7)).register(only_sums=True) == 1
    isomorphic = add(tmp_path / "alike", (ring_allreduce(4), True), isomorphic_groups=[[1, 3, 5, 7]])
    assert Plans(isomorphic, 0, 4, 4, group=(1, 3, 5, 7)).register(only_sums=True) == 1
    with pytest.raises(InputError, match="holds no execution plan for a communicator of 4 ranks"):
        Plans(isomorphic, 0, 4, 4, group=(1, 3, 7, 5))
    for file in (two / "mscclpp").iterdir():
        file.write_text(json.dumps(json.loads(file.read_text()) | {"name": "one"}))
    add(two, (ring_allgather(4), True))
    plan_path = next((two / "mscclpp").glob("allgather*"))
    plan_path.write_text(json.dumps(json.loads(plan_path.read_text()) | {"name": "one"}))
    with pytest.raises(InputError, match="two plans are called 'one'"):
        Plans(two, 0, 4, 4, group=RANKS)


def test_between_nodes_port_channels_are_fine(tmp_path: Path, builder: AlgorithmCollectionBuilder) -> None:  # noqa: ARG001
    library = add(tmp_path, (ring_allgather(4), False), nodes=[0, 0, 1, 1])
    assert Plans(library, 3, 4, 2).register() == 1


def test_without_mscclpp(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mscclpp", None)
    with pytest.raises(InputError) as error:
        Plans(library, 0, 4, 4)
    assert "pip install './mscclpp[cuda12]'" in str(error.value)
    assert "\n" not in str(error.value)
