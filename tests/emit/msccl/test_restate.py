"""Restating a written program gives the text of the program that it holds, with another name and other sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emit.compiler.lower import Lowering, forms
from emit.msccl.format import restate, write, xml_text
from emit.msccl.read import read
from emit.targets import TARGETS
from synth.baselines import baseline
from synth.model.problem import make_problem
from topologies.errors import InputError
from topologies.load import load


def _text(collective: str, target: str) -> str:
    """Return the text of a baseline's program on four ranks."""
    problem = make_problem(load("ring:4"), collective)
    lowering = Lowering(baseline(problem)[0], collective, TARGETS[target].limits, inplace=forms(problem)[0])
    return write(lowering.program("Simple"), None, TARGETS[target], None)


@pytest.mark.parametrize(
    ("collective", "target"),
    [
        (collective, name)
        for collective in ("allgather", "gather", "alltoall", "broadcast")
        for name, target in TARGETS.items()
        if target.format == "msccl" and collective in target.collectives
    ],
)
@pytest.mark.parametrize(("least", "most"), [(0, None), (5, 4096), (1024, 1 << 20)])
def test_only_the_first_line_changes(collective: str, target: str, least: int, most: int | None) -> None:
    text, row = _text(collective, target), TARGETS[target]
    program = replace(read(text).program, name="new", min_bytes=least, max_bytes=most or 0)
    restated = restate(text, "new", least, most, row)
    assert restated == xml_text(program, row)
    assert restated.partition(">")[2] == text.partition(">")[2]
    # A text of another writer is read, and written in our form.
    assert restate(text.replace("<algo name=", "<algo  name=", 1), "new", least, most, row) == restated


def test_sizes_that_no_call_has_are_refused() -> None:
    """Check a gather of four blocks, which has no size of 1 to 3 bytes."""
    with pytest.raises(InputError, match="equal blocks"):
        restate(_text("gather", "executor-nccl"), "new", 1, 3, TARGETS["executor-nccl"])
