"""Messages of several chunks: one instruction at each end, and right, wherever the chunks lie."""

from __future__ import annotations

import numpy as np
import pytest

from emit.check.program import check
from emit.compiler.lower import lower, lower_to_instructions
from synth.model.problem import make_problem
from tests.synth.engines.messages.answers import answers
from topologies.costed import with_costs
from topologies.load import load

_SIZE = 8 << 10
_EVERY_FOURTH = tuple(range(0, 64, 4))
_IN_NO_ORDER = (17, 1, 24, 9, 0, 8, 25, 16)


@pytest.mark.parametrize(
    ("topology", "group", "collective"),
    [
        ("dgx2:4", _EVERY_FOURTH, "alltoall"),
        ("dgx2:4", _EVERY_FOURTH, "reducescatter"),
        ("dgx-h100:4", _IN_NO_ORDER, "alltoall"),
        ("dgx-h100:4", _IN_NO_ORDER, "allgather"),
        ("dgx-h100:4", _IN_NO_ORDER, "reducescatter"),
        ("dgx-h100:4", _IN_NO_ORDER, "allreduce"),
    ],
)
def test_a_message_of_several_chunks_is_one_instruction_at_each_end(
    topology: str, group: tuple[int, ...], collective: str
) -> None:
    problem = make_problem(with_costs(load(topology)), collective, group).under("LL")
    joined = [algorithm for algorithm in answers(problem, _SIZE) if len(algorithm.schedule.joined)]
    assert joined
    for algorithm in joined:
        ir = lower_to_instructions(algorithm, "x", "LL")
        assert sum(op in ("s", "r", "rrc") for op in ir.op) == 2 * len(np.unique(algorithm.schedule.message))
        program, goal = lower(algorithm, "x", "LL")
        assert check(program, goal).ok


def test_images_of_ranks_send_the_same_messages() -> None:
    """Check that a program by images has the messages of its representatives in as few instructions."""
    problem = make_problem(with_costs(load("dgx2:4")), "alltoall", _EVERY_FOURTH).under("LL")
    *_, algorithm = answers(problem, _SIZE)
    ir = lower_to_instructions(algorithm, "x", "LL", by_images=True)
    images = len(np.unique(algorithm.schedule.message)) / ir.op.count("s")
    assert ir.header.translations
    assert images == np.prod([extent for _, extent in ir.header.translations])
