"""What is counted of the calls of torch.distributed: size classes, percentiles, the document and the trace."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import synth
from runtime.torch.counters import MOST_TRACED, Counters
from runtime.torch.logs import EndedCall, SizeClass, TracedCall, file_of_rank, trace_events, write_json
from topologies.errors import InputError


def counted(*calls: tuple[str, str, int, float], traces: bool = False) -> Counters:
    """Return counters of calls of 4 ranks: collective, back end, size in bytes and seconds of each."""
    counters = Counters()
    counters.trace(traces)
    for collective, backend, size_bytes, seconds in calls:
        counters.count(collective, backend, size_bytes, "" if backend == "synth ring" else "no table", 4)(seconds)
    return counters


def test_calls_are_counted_by_size_class() -> None:
    counters = counted(
        ("allreduce", "gloo", 1024, 1e-5), ("allreduce", "gloo", 2047, 3e-5), ("allreduce", "gloo", 2048, 1e-3),
        ("allreduce", "synth ring", 1024, 1e-6), ("allreduce", "gloo", 0, 1e-6),
    )  # fmt: skip
    rows = counters.document()["calls"]
    assert [(r["backend"], r["min_bytes"], r["max_bytes"], r["calls"], r["bytes"]) for r in rows] == [
        ("gloo", 0, 0, 1, 0),
        ("gloo", 1024, 2047, 2, 3071),
        ("gloo", 2048, 4095, 1, 2048),
        ("synth ring", 1024, 2047, 1, 1024),
    ]
    assert rows[1]["mean_us"] == pytest.approx(20.0)
    # As nccl-tests: 2 (n − 1) / n of the rate at which a rank's buffer is done with.
    assert rows[2]["algbw_gbs"] == pytest.approx(2048 / 1e-3 / 1e9)
    assert rows[2]["busbw_gbs"] == pytest.approx(1.5 * rows[2]["algbw_gbs"])
    assert "from 2 KiB" in counters.text_by_size()
    (fallback,) = counters.document()["fallbacks"]
    assert (fallback["reason"], fallback["calls"]) == ("no table", 4)


def evenly(generator: random.Random) -> float:
    return generator.random()


def with_a_long_tail(generator: random.Random) -> float:
    return generator.paretovariate(1.5)


@pytest.mark.parametrize("draw", [evenly, with_a_long_tail])
def test_percentiles_are_exact_to_within_five_percent(draw: Callable[[random.Random], float]) -> None:
    generator, of_size = random.Random(1), SizeClass()
    seconds = [1e-6 + 1e-3 * draw(generator) for _ in range(5000)]
    for value in seconds:
        of_size.add(EndedCall(8, 0.0, value))
    ascending = sorted(seconds)
    for percent in (50, 90, 99):
        exact = ascending[len(ascending) * percent // 100 - 1]
        assert of_size.percentile(percent) == pytest.approx(exact, rel=0.05)
    assert of_size.longest == ascending[-1]


def test_the_document_keeps_its_schema() -> None:
    validator = Draft202012Validator(synth.json_schema("torch-log"))
    counters = counted(("allgather", "gloo", 64, 1e-5), ("send", "gloo", 64, 1e-5))
    counters.count_wait(3, 0.5)
    validator.validate(counters.document())
    validator.validate(Counters().document())
    assert counters.document()["waits"] == [{"rank": 3, "seconds": 0.5}]


def test_only_calls_while_tracing_are_traced() -> None:
    counters = counted(("allreduce", "gloo", 8, 1e-5))
    counters.trace(True)
    counters.count("allreduce", "gloo", 16, "", 4)(1e-5)
    counters.trace(False)
    counters.count("allreduce", "gloo", 32, "", 4)(1e-5)
    events = counters.trace_document()["traceEvents"]
    assert [event["args"]["bytes"] for event in events] == [16]


def test_a_trace_keeps_the_latest_calls_within_its_limit() -> None:
    counters = Counters()
    counters.trace(True)
    for size in range(MOST_TRACED + 5000):
        counters.count("allreduce", "gloo", size, "", 4)(1e-9)
    sizes = [event["args"]["bytes"] for event in counters.trace_document()["traceEvents"]]
    assert len(sizes) == MOST_TRACED
    assert max(sizes) == MOST_TRACED + 4999


def test_calls_that_overlap_stand_in_different_rows() -> None:
    """Check random calls: no two of a row overlap, times are µs since 1970, and there are no more rows than needed."""
    generator = random.Random(3)
    calls = [
        TracedCall("allreduce", "gloo", EndedCall(8, generator.random(), generator.random() / 10)) for _ in range(300)
    ]
    events = trace_events(calls, rank=2, zero_s=1000.0)
    assert {event["pid"] for event in events} == {2}
    for row in {event["tid"] for event in events}:
        of_row = [event for event in events if event["tid"] == row]
        assert all(a["ts"] + a["dur"] <= b["ts"] * (1 + 1e-9) for a, b in pairwise(of_row))
    starts = [(traced.call.start, traced.call.start + traced.call.seconds) for traced in calls]
    most = max(sum(a <= start < b for a, b in starts) for start, _ in starts)
    assert len({event["tid"] for event in events}) == most
    assert min(event["ts"] for event in events) == pytest.approx((1000.0 + min(starts)[0]) * 1e6)


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = file_of_rank(tmp_path / "log.json", 3)
    assert path.name == "log.3.json"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(InputError, match="cannot be written"):
        write_json(tmp_path / "absent" / "log.json", {})


def test_variables_let_each_rank_write_a_log_and_a_trace(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
import torch, torch.distributed as dist, synth.torch
dist.init_process_group("cpu:synth", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
    values = {**os.environ, "RANK": "5", "SYNTH_LOG": str(tmp_path / "log.json"), "SYNTH_TRACE": "absent/trace.json"}
    completed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=values, capture_output=True, text=True, check=False
    )
    document = json.loads((tmp_path / "log.5.json").read_text())
    assert (document["rank"], [row["calls"] for row in document["calls"]]) == (5, [1])
    (line,) = [line for line in completed.stderr.splitlines() if "absent" in line]
    assert line.startswith("synth.torch: absent/trace.5.json: cannot be written")
    assert "Traceback" not in completed.stderr
