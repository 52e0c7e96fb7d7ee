"""The trace of a predicted run says what the prediction says."""

from __future__ import annotations

import itertools
import json

import pytest

from emit.compiler.lower import lower
from emit.timing.predict import Predictor
from emit.timing.trace import chrome_trace
from synth import synthesize
from topologies.load import load


@pytest.mark.parametrize(("collective", "size"), [("allreduce", 1 << 20), ("broadcast", 1 << 10)])
def test_slices_are_the_transfers(collective: str, size: int) -> None:
    answer = synthesize(collective, "dgx1", [0, 1, 2, 3], budget=2, target="none")
    program, _ = lower(answer.found.ranges[-1].algorithm, "x")
    predictor = Predictor(program, load("dgx1"), [0, 1, 2, 3])
    events = json.loads(chrome_trace(predictor, size))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    moved = predictor.transfers(size)
    sent, received = ([one for one in slices if one["cat"] == kind] for kind in ("send", "recv"))
    assert len(sent) == len(received) == len(moved)
    assert [one["ts"] for one in sent] == pytest.approx(moved.start_us.tolist())
    assert sum(one["args"]["bytes"] for one in sent) == pytest.approx(moved.bytes.sum())
    assert max(one["ts"] + one["dur"] for one in received) == pytest.approx(predictor.time_us(size), rel=1e-4)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(one["pid"], one["tid"]) for one in slices} <= named
    for thread in named:  # a threadblock sends one thing at a time
        spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in sent if (one["pid"], one["tid"]) == thread)
        assert all(end <= start + 1e-5 for (_, end), (start, _) in itertools.pairwise(spans))
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len(arrows) == 2 * len(moved)
    assert all(one["bp"] == "e" for one in arrows if one["ph"] == "f")
