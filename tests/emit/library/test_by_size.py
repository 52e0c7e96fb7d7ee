"""Tests that a range of sizes is divided between programs, each serving the sizes at which it is the fastest."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from emit.library.by_size import by_size
from emit.library.lowered import Lowered, LoweredBySize
from emit.library.programs import Programs
from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.baselines import baseline
from synth.model.problem import LARGEST
from synth.search.offer import Offer
from synth.search.settings import TargetSettings

ALGORITHM, *_ = baseline(make_question(QuestionArguments("allgather", "ring:3")).problem)
MADE = Programs(ALGORITHM.problem, TargetSettings("executor-nccl")).lower(ALGORITHM)
US = st.floats(0.1, 10)
PER_BYTE = st.floats(1e-6, 1e-3)


class Line:
    """A time in µs that is linear in the message size."""

    def __init__(self, us: float, per_byte: float) -> None:
        self.us, self.per_byte = us, per_byte

    def time_us(self, size_bytes: float) -> float:
        return self.us + self.per_byte * size_bytes


@settings(max_examples=25, derandomize=True)
@given(st.lists(st.tuples(US, PER_BYTE), min_size=3, max_size=3), st.integers(0, 20), st.integers(21, 30) | st.none())
def test_each_size_is_served_by_the_faster_program(
    lines: list[tuple[float, float]], low: int, high: int | None
) -> None:
    assert isinstance(MADE, LoweredBySize)
    small, large, largest = (
        replace(MADE.large, predictor=Line(*line), _times_us={})  # type: ignore[arg-type]
        for line in lines
    )
    first, last = (1 << low) + 1 if low else 0, None if high is None else 1 << high
    programs = LoweredBySize(small, large, largest)
    files = by_size([Offer(ALGORITHM, programs, first, last, max(first, 1024))])
    assert files[0].low == first
    assert files[-1].high == last
    assert all(before.high is not None and before.high + 1 == after.low for before, after in pairwise(files))
    for file in files:
        server = file.execution
        if server is None:
            assert "is a multiple of" in file.refused
            continue
        assert isinstance(server, Lowered)
        assert file.low <= file.shown <= (file.high or LARGEST)
        sizes = [1 << e for e in range(19, 31) if file.low <= 1 << e <= (file.high or LARGEST)]
        assert all(
            server.time_us(size) <= 1.002 * min(candidate.time_us(size) for candidate in (small, large, largest))
            for size in sizes
        )
