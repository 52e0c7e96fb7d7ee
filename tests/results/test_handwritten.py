"""Tests of the scripts about hand-written algorithms and the host, on small cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from results.scripts import handwritten


def test_stored_figures_are_complete() -> None:
    stored_figures = json.loads(handwritten.KEPT.read_text())
    names = {name for name, _, _ in handwritten.PAIRS}
    assert set(stored_figures) == names | {
        f"instances-{times}/{name}" for times in handwritten.INSTANCES for name in names
    }
    for figures in stored_figures.values():
        assert len(figures["sha256"]) == 64
        assert set(handwritten.Shape._fields) < set(figures)


@pytest.mark.parametrize("pair", [pair for pair in handwritten.PAIRS if pair[2].get("nodes") != 4], ids=str)
def test_no_program_takes_more_than_msccl_tools(pair: tuple[str, str, dict[str, Any]]) -> None:
    stored_figures, (name, example, settings) = json.loads(handwritten.KEPT.read_text()), pair
    for times in (1, 2):
        arguments = settings | {"instances": times * settings.get("instances", 1)}
        shape = handwritten.shape_of(handwritten.right(handwritten.instructions_of(example, arguments)))
        stored_shape = stored_figures[handwritten.kept_name(name, times)]
        assert all(value <= stored_shape[field] for field, value in shape._asdict().items())


def test_a_longer_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stored_figures = json.loads(handwritten.KEPT.read_text())
    monkeypatch.setattr(handwritten, "PAIRS", handwritten.PAIRS[:1])
    monkeypatch.setattr(handwritten, "OTHERS", ())
    monkeypatch.setattr(handwritten, "INSTANCES", (2,))
    monkeypatch.setattr(handwritten, "emission", lambda: (0.1, 1))
    name = handwritten.PAIRS[0][0]
    assert "**none**" in handwritten.text(stored_figures)
    page = handwritten.text(stored_figures | {name: stored_figures[name] | {"threadblocks": 0}})
    assert f"**{name}**" in page
    assert "A goal is not reached" in page
    double_name = handwritten.kept_name(name, 2)
    page = handwritten.text(stored_figures | {double_name: stored_figures[double_name] | {"channels": 0}})
    assert "**examples/ring.py --set instances=2** (goal: none)" in page
    assert "A goal is not reached" in page


def test_instances_that_cost_more_than_their_number_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stored_figures = json.loads(handwritten.KEPT.read_text())
    monkeypatch.setattr(handwritten, "PAIRS", handwritten.PAIRS[:1])
    figures = iter([handwritten.Shape(9, 1, 0, 1), *(handwritten.Shape(n, 1, 0, 1) for n in (18, 37, 72))])
    monkeypatch.setattr(handwritten, "shape_of", lambda _: next(figures))
    assert handwritten.instances(stored_figures)[1] == ["examples/ring.py --set instances=4"]
