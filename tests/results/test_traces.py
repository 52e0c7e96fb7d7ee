"""Tests of the table of traces: its traces, and what a row says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from results.scripts import traces


def test_traces_have_kinds_of_calls() -> None:
    trace = traces.trace_of(traces.Drawn(2, 1.0, 2), 8, 12)
    assert trace.shape == (12, 8, 8)
    assert (trace.sum(axis=2) == traces.COPIES * traces.TOKEN_BYTES).all()
    received = trace.sum(axis=1) / trace.sum(axis=(1, 2))[:, None]
    assert np.abs(received[0] - received[2]).max() < 0.03 < np.abs(received[0] - received[1]).max()
    other = traces.trace_of(traces.Drawn(0, 1.0, 2), 8, 3)
    assert len({tuple(np.argsort(call.sum(axis=0))) for call in other}) == 3


def test_a_row_states_what_the_command_says(tmp_path: Path) -> None:
    drawn = traces.Drawn(2, 1.0, 2)
    document = traces.asked("full:3", drawn, 10, 2.0, tmp_path)
    row = traces.table_row("full:3", drawn, document)
    assert len(row) == 12
    assert row[:2] == ["full:3", "2 layers, Zipf 1"]
    assert (row[3], row[9]) == ("100%", "100%")
    assert row[5] == f"{document['chosen']['files']['gap']:.3f} ({document['chosen']['files']['worst_gap']:.3f})"
