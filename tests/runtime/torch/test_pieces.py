"""Programs for equal blocks on unequal ones: right for every matrix of sizes, however early messages are copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import pytest

from tests import EXAMPLES

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.compiler.compile import compile_instructions
from emit.language import Script, load_scripts
from emit.program import Program
from runtime.algorithms.built_in import built_in
from runtime.torch.programs.blocks import Blocks, Buffers
from runtime.torch.programs.pieces import map_pieces
from runtime.torch.programs.rank_program import rank_program
from runtime.torch.programs.transport import Transport
from tests.runtime.torch.test_rank_program import Post
from tests.runtime.torch.threads import run_ranks
from tests.runtime.torch.uneven import relays


def _examples() -> list[Program]:
    scripts = [
        load_scripts(EXAMPLES / "alltoall.py", ["nodes=2", "gpus=2", f"steps={steps}"])[0].instructions()
        for steps in (2, 3)
    ]
    scripts += [script.instructions() for ranks in (3, 4) for script in relays(ranks)]
    programs = [compile_instructions(script).program for script in scripts]
    for collective in ("alltoall", "gather", "scatter"):
        programs.append(built_in(collective, "direct", 4, 0 if collective == "alltoall" else 2))
    return programs


PROGRAMS = _examples()


def _wrong_after(program: Program, sizes: list[list[int]], order: tuple[int, ...] | None, early: bool) -> list[str]:
    """Run a program on all ranks and return the faults; the arguments after it are those of `wrong_after`.

    Args:
        program: The program.
        sizes: Elements of each block, by places of the source and of the target.
        order: Place of each rank of the program.
        early: Messages are copied as soon as possible.
    """

    def execute(buffers: Buffers, blocks: Blocks, transport: Transport) -> None:
        part = rank_program(program, transport.rank, order)
        assert map_pieces(part) is not None
        buffers.execute_uneven(part, blocks, sizes, transport)

    return wrong_after(execute, sizes, early)


def wrong_after(
    execute: Callable[[Buffers, Blocks, Transport], None], sizes: Sequence[Sequence[int]], early: bool
) -> list[str]:
    """Run an all-to-all on all ranks, with a thread each, and return the faults.

    Args:
        execute: Runs one rank's part.
        sizes: Elements of each block, by places of the source and of the target.
        early: Messages are copied as soon as possible.
    """
    n, post = len(sizes), Post(early)
    faults: list[str] = []

    def values(source: int, target: int) -> torch.Tensor:
        return torch.arange(sizes[source][target]) + 1000 * source + 100 * target

    def run_rank(me: int) -> None:
        parts = [values(me, r) for r in range(n)]
        into = [torch.zeros(sizes[r][me], dtype=torch.int64) for r in range(n)]
        transport = Transport(post.end(me), range(n), me, 0, "a test")
        try:
            with torch.inference_mode():  # As tasks run.
                execute(Buffers(parts, into, 0), Blocks.of(parts, into), transport)
        except Exception as error:
            faults.append(f"rank {me}: {error!r}")
        for r in range(n):
            if not torch.equal(into[r], values(r, me)) or not torch.equal(parts[r], values(me, r)):
                faults.append(f"rank {me}, block of rank {r}")

    run_ranks(n, run_rank)
    return faults


@settings(max_examples=80)
@given(st.data(), st.sampled_from(PROGRAMS), st.booleans(), st.booleans())
def test_every_matrix_of_sizes_is_right(data: st.DataObject, program: Program, early: bool, is_mixed: bool) -> None:
    n = program.nranks
    order = tuple(data.draw(st.permutations(range(n)))) if is_mixed else None
    block = st.one_of(st.just(0), st.integers(0, 20), st.integers(20_000, 20_001))
    sizes = data.draw(st.lists(st.lists(block, min_size=n, max_size=n), min_size=n, max_size=n))
    root = program.root if order is None else order[program.root]
    if program.collective == "gather":
        sizes = [[size if target == root else 0 for target, size in enumerate(row)] for row in sizes]
    if program.collective == "scatter":
        sizes = [row if source == root else [0] * n for source, row in enumerate(sizes)]
    assert _wrong_after(program, sizes, order, early) == []


def test_a_relays_scratch_is_as_large_as_its_traffic() -> None:
    """Check that a relay's scratch is as large as its traffic, however large the largest block is."""
    alltoall = next(p for p in PROGRAMS if p.name == "relayed" and p.nranks == 4)
    sizes = [[10] * 4 for _ in range(4)]
    sizes[0][0] = 1 << 30  # This block does not move.
    for rank in range(4):
        pieces = map_pieces(rank_program(alltoall, rank))
        assert pieces is not None
        assert pieces.spans(sizes)[2][-1] <= 10 * len(pieces.scratch)


def test_a_program_that_needs_equal_blocks_has_no_map() -> None:
    """Check programs in which a block on its path is stored in another block's place, or blocks are summed."""
    through = Script("borrows", "alltoall", 3)
    through.chunk(0, "i", 1).copy(2, "o", 1).copy(1, "o", 0)
    for a in range(3):
        for b in range(3):
            if (a, b) != (0, 1):
                through.chunk(a, "i", b).copy(b, "o", a)
    borrows = compile_instructions(through.instructions()).program
    assert [map_pieces(rank_program(borrows, rank)) for rank in range(3)] == [None] * 3
    reduces = built_in("reducescatter", "direct", 3)
    assert map_pieces(rank_program(reduces, 0)) is None
