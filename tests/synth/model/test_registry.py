"""A collective is one row: once registered, it is searched for, written and stored like any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from synth import synthesize
from synth.app.cli import cli
from synth.model.collective import Collective, make_collective, named
from synth.model.registry import AHEAD, BUFFER, COLLECTIVE_KINDS, OWN, CollectiveKind, find_kind, parse_name, register
from synth.storage.schedule_file import load_schedule, save_schedule
from topologies.errors import InputError


def exchange(k: int, _root: int) -> Collective:
    """Build a collective in which neighbours 2i and 2i + 1 swap their buffers."""
    rank = np.arange(k - k % 2)
    pre, post = np.column_stack([rank, rank]), np.column_stack([rank ^ 1, rank])
    return make_collective("", k, 1.0, pre, post, 0 * rank, 0 * rank, nchunks=len(rank))


TOY = CollectiveKind("swap", "Neighbours swap their buffers.", spellings=("exchange",), build=exchange)


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    register(TOY)
    yield
    del COLLECTIVE_KINDS["swap"]


def test_python(tmp_path: Path) -> None:
    result = synthesize("ex_change", topo="ring:5", size=1 << 20, budget=0.3)
    best = result.algorithm(1 << 20)
    assert best.problem.collective.name == "swap"
    assert len(best.schedule) == 4
    path = save_schedule(tmp_path / "a.synth", best, 1 << 20)
    stored = load_schedule(path)
    assert stored.as_named
    assert stored.problem.collective.equals(best.problem.collective)


def test_command_line(tmp_path: Path) -> None:
    def call(*arguments: str) -> str:
        return CliRunner().invoke(cli, arguments, catch_exceptions=False).output

    assert "swap " in call("--help")
    assert "Neighbours swap" in call("swap", "--help")
    question = ("--topo", "ring:4", "--size", "1M", "--budget", "2s", "--engine", "route")
    assert "swap" in call("exchange", *question, "--out", str(tmp_path))
    assert list(tmp_path.rglob("*.xml"))


def test_a_row_without_a_builder() -> None:
    """Check a row that has no builder."""
    register(CollectiveKind("onward", "As alltonext.", OWN, AHEAD, BUFFER))
    try:
        assert named("onward", 4, 2).equals(replace(named("alltonext", 4, 2), name="onward"))
    finally:
        del COLLECTIVE_KINDS["onward"]


@pytest.mark.parametrize("name", ["swap", "exchange", "allgatherintotensor"])
def test_names_are_taken_once(name: str) -> None:
    with pytest.raises(InputError, match="registered already"):
        register(CollectiveKind(name, ""))
    assert parse_name("exchange") == "swap"


def test_bus_factors() -> None:
    assert find_kind("allreduce").bus_factor(8) == 1.75
    assert {find_kind(c).bus_factor(4) for c in ("allgather", "reducescatter", "alltoall", "gather", "scatter")} == {
        0.75
    }
    assert find_kind("broadcast").bus_factor(8) == find_kind("reduce").bus_factor(8) == 1.0
    assert find_kind("custom").bus_factor(8) is None
