"""Tests that the trace of a predicted run states the prediction."""

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
def test_trace_slices_equal_the_transfers(collective: str, size: int) -> None:
    answer = synthesize(collective, "dgx1", [0, 1, 2, 3], chunks=8, budget=0.3, target="none")
    program, _ = lower(answer.result.ranges[-1].algorithm, "x")
    predictor = Predictor(program, load("dgx1"), [0, 1, 2, 3])
    events = json.loads(chrome_trace(predictor, size))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    transfers = predictor.transfers(size)
    sent, received = ([entry for entry in slices if entry["cat"] == kind] for kind in ("send", "recv"))
    assert len(sent) == len(received) == len(transfers)
    assert [span["ts"] for span in sent] == pytest.approx(transfers.start_us.tolist())
    assert sum(span["args"]["bytes"] for span in sent) == pytest.approx(transfers.bytes.sum())
    assert max(span["ts"] + span["dur"] for span in received) == pytest.approx(predictor.time_us(size), rel=1e-4)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(span["pid"], span["tid"]) for span in slices} <= named
    for thread in named:  # A threadblock sends one chunk at a time.
        spans = sorted((span["ts"], span["ts"] + span["dur"]) for span in sent if (span["pid"], span["tid"]) == thread)
        assert all(end <= start + 1e-5 for (_, end), (start, _) in itertools.pairwise(spans))
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len(arrows) == 2 * len(transfers)
    assert all(span["bp"] == "e" for span in arrows if span["ph"] == "f")


def test_a_trace_holds_the_measured_and_the_predicted_run() -> None:
    program = ring_allreduce(3, 2)
    executor = HostExecutor(program, None, 2, record=True)
    assert wrong_after_run(executor, program, None, 40, "float", "sum", False) == 0
    assert executor.recorded is not None
    predictor = Predictor(program, load("ring:3"))
    all_events = json.loads(measured_trace(program, executor.recorded, predictor, 480))["traceEvents"]
    predicted = json.loads(chrome_trace(predictor, 480))["traceEvents"]
    slices = [event for event in all_events if event.get("cat") == "measured"]
    places = {(rank, 2 + tb, step) for rank, tb, step, _ in program.steps()}
    assert {(event["pid"], event["tid"], event["args"]["step"]) for event in slices} == places
    assert len(slices) == program.nsteps
    named = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in all_events if event["name"] == "thread_name"
    }
    assert all(", measured" in named[event["pid"], event["tid"]] for event in slices)
    assert [event for event in all_events if event["ph"] in "Xsf" and event not in slices] == [
        event for event in predicted if event["ph"] in "Xsf"
    ]
    measured_events = json.loads(measured_trace(program, executor.recorded, None, 480))["traceEvents"]
    assert [event for event in measured_events if event["ph"] == "X"] == slices
