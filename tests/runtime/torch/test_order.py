"""Programs in groups whose order differs from their ranks: the part of each rank, and the place of each block."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch

from emit.program import Program
from runtime.algorithms.built_in import COLLECTIVES, built_in, names
from runtime.torch.programs.blocks import Buffers
from runtime.torch.programs.rank_program import rank_program
from runtime.torch.programs.transport import Transport
from tests.runtime.torch.test_rank_program import Post
from tests.runtime.torch.threads import run_ranks

ORDER = (2, 0, 3, 1)  # The place of each rank of the program.
N = len(ORDER)


def buffers_of(collective: str, place: int, root: int, elements: int) -> tuple[Buffers, torch.Tensor | None]:
    """Return the tensors of a place, and its required result."""
    own = [torch.arange(elements, dtype=torch.int64) + 100 * r for r in range(N)]
    # Rank r's input has a block for every rank.
    inputs = [torch.cat([block + 1000 * r for block in own]) for r in range(N)]
    room, whole, own_place = (
        torch.zeros(elements, dtype=torch.int64),
        torch.zeros(N * elements, dtype=torch.int64),
        place,
    )
    block = slice(own_place * elements, (own_place + 1) * elements)
    if collective in ("allreduce", "broadcast", "reduce"):
        tensor = own[place].clone()
        expected = own[root] if collective == "broadcast" else torch.stack(own).sum(0)
        outputs = [tensor] if collective != "reduce" or place == root else []
        return Buffers([tensor], outputs, elements, in_place=True), expected if outputs else None
    if collective == "allgather":
        return Buffers([own[place]], [whole], elements, N), torch.cat(own)
    if collective == "gather":
        return Buffers([own[place]], [whole] if place == root else [], elements, N), torch.cat(own)
    if collective == "reducescatter":
        return Buffers([inputs[place]], [room], elements, N), torch.stack(inputs).sum(0)[block]
    if collective == "scatter":
        return Buffers([inputs[root]] if place == root else [], [room], elements, N), inputs[root][block]
    return Buffers([inputs[place]], [whole], elements, N), torch.cat([of[block] for of in inputs])


def run_all(program: Program, root: int, elements: int) -> list[str]:
    """Return the places with a wrong result."""
    post = Post(True)
    faults: list[str] = []

    def run(place: int) -> None:
        try:
            buffers, expected = buffers_of(program.collective, place, root, elements)
            part = rank_program(program, place, ORDER)
            buffers.execute(part, "sum", Transport(post.end(place), range(N), place, 0, "a test"))
            if buffers.outputs and not torch.equal(buffers.outputs[0], expected):
                faults.append(f"place {place}: {buffers.outputs[0].tolist()}, must be {expected.tolist()}")
        except Exception as error:
            faults.append(f"place {place}: {error}")

    run_ranks(N, run)
    return faults


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_blocks_belong_to_places(collective: str) -> None:
    for name in names(collective, N):
        for root in range(N) if collective in ("broadcast", "reduce", "gather", "scatter") else (0,):
            program = built_in(collective, name, N, ORDER.index(root))
            assert run_all(program, root, 8) == [], name


def test_each_place_has_the_part_of_its_rank() -> None:
    program = built_in("allgather", "ring", N)
    after = {ORDER[r]: ORDER[(r + 1) % N] for r in range(N)}  # Around the ring.
    for place in range(N):
        steps = rank_program(program, place, ORDER).steps
        assert {step.target[0] for step in steps if step.target is not None} == {after[place]}
