"""The scripts about hand-written algorithms and the host, on small cases."""

from __future__ import annotations

import json

import pytest

from results.scripts import handwritten, host


def test_kept_figures_are_complete() -> None:
    kept = json.loads(handwritten.KEPT.read_text())
    assert set(kept) == {name for name, _, _ in handwritten.PAIRS}
    for figures in kept.values():
        assert len(figures["sha256"]) == 64
        assert set(handwritten.Shape._fields) < set(figures)


def test_a_program_that_is_longer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = json.loads(handwritten.KEPT.read_text())
    monkeypatch.setattr(handwritten, "PAIRS", handwritten.PAIRS[:1])
    monkeypatch.setattr(handwritten, "OTHERS", ())
    monkeypatch.setattr(handwritten, "emission", lambda: (0.1, 1))
    name = handwritten.PAIRS[0][0]
    assert "**none**" in handwritten.text(kept)
    page = handwritten.text({name: kept[name] | {"threadblocks": 0}})
    assert f"**{name}**" in page
    assert "A goal is not reached" in page


def test_host_on_little_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BYTES", 1 << 12)
    seconds, moved, wrong = host.timed("ring", {"ranks": 4})
    assert seconds > 0
    assert (moved, wrong) == (2 * 3 * (1 << 12), 0)
    assert host.copy_rate(2, 1 << 12) > 0
