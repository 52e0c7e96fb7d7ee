"""The trace of a predicted run says what the prediction says."""

from __future__ import annotations

import itertools
import json

import pytest

from emit.compiler.lower import lower
from emit.timing.predict import Predictor
from emit.timing.trace import chrome_trace, measured_trace
from runtime.host.executor import HostExecutor
from synth import synthesize
from tests.emit.small_programs import ring_allreduce
from tests.runtime.example_runs import wrong_after_run
from topologies.load import load


@pytest.mark.parametrize(("collective", "size"), [("allreduce", 1 << 20), ("broadcast", 1 << 10)])
def test_slices_are_the_transfers(collective: str, size: int) -> None:
    answer = synthesize(collective, "dgx1", [0, 1, 2, 3], chunks=8, budget=2, target="none")
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


def test_a_measured_run_stands_beside_the_predicted_one() -> None:
    program = ring_allreduce(3, 2)
    executor = HostExecutor(program, None, 2, record=True)
    assert wrong_after_run(executor, program, None, 40, "float", "sum", False) == 0
    assert executor.recorded is not None
    predictor = Predictor(program, load("ring:3"))
    both = json.loads(measured_trace(program, executor.recorded, predictor, 480))["traceEvents"]
    predicted = json.loads(chrome_trace(predictor, 480))["traceEvents"]
    slices = [one for one in both if one.get("cat") == "measured"]
    places = {(rank, 2 + tb, step) for rank, tb, step, _ in program.steps()}
    assert {(one["pid"], one["tid"], one["args"]["step"]) for one in slices} == places
    assert len(slices) == program.nsteps
    named = {(one["pid"], one["tid"]): one["args"]["name"] for one in both if one["name"] == "thread_name"}
    assert all(", measured" in named[one["pid"], one["tid"]] for one in slices)
    assert [one for one in both if one["ph"] in "Xsf" and one not in slices] == [
        one for one in predicted if one["ph"] in "Xsf"
    ]
    alone = json.loads(measured_trace(program, executor.recorded, None, 480))["traceEvents"]
    assert [one for one in alone if one["ph"] == "X"] == slices
