"""Tests of the table of placements of experts: its rows, what it says on the goals, and its histograms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from results.scripts import experts
from synth.engines.skewed.planner import Planner
from synth.engines.skewed.shape import shape_of
from topologies.load import load


@pytest.fixture(scope="module")
def drawn() -> experts.Drawn:
    return experts.Drawn(shape_of(load("dgx-b200:2")), 1, np.random.default_rng(0))


def test_histograms_are_shares(drawn: experts.Drawn) -> None:
    assert len(experts.HISTOGRAMS) == 20
    for make in experts.HISTOGRAMS.values():
        routing = experts.routing_of(make(drawn), drawn.shape)
        assert routing.copies.shape == (1, 16, experts.EXPERTS)
        assert routing.copies.sum(axis=2) == pytest.approx(np.full((1, 16), experts.TOKENS * experts.CHOSEN))


def test_a_row_compares_with_eplb_and_the_bound(drawn: experts.Drawn) -> None:
    routing = experts.routing_of(experts.zipf(drawn, 0.9), drawn.shape)
    row = experts.measured("dgx-b200:2", "Zipf 0.9", routing, 18, Planner(drawn.shape, interpreted=True))
    assert max(row.traffic) < experts.GOAL
    assert row.speed < 1 <= min(row.gap)
    assert 1 <= row.even_imbalance <= row.eplb_imbalance
    text = experts.summary([row])
    assert "More than EPLB's: 0 of 1 layers" in text
    assert "Slower than EPLB's faster policy: 0 of 1." in text
    worse = experts.summary([row, replace(row, histogram="worse", traffic=(1.2,), speed=1.1, imbalance=1.3)])
    assert "More than EPLB's: 1 of 2 layers" in worse
    assert "1 of 2: worse on dgx-b200:2" in worse
    assert "Slower than EPLB's faster policy: 1 of 2." in worse
    assert "less even than EPLB by its own rule: 1." in worse


def test_tokens_have_different_experts() -> None:
    tokens = experts.whole_tokens(np.random.default_rng(0), 4.0, 0.5)
    assert tokens.shape == (2 * experts.SAMPLE, experts.CHOSEN)
    assert (np.diff(np.sort(tokens, axis=1), axis=1) > 0).all()
