"""Tests of the table of shaped networks for known times, without a network."""

from __future__ import annotations

import math

import pytest

from results.measuring.shaped import first_steps, topology
from results.scripts import shaped_placements as shaped
from topologies.levels.hierarchy import parse_levels
from topologies.text.reader import from_toml


def program(predicted_us: float, *seconds: float) -> dict[str, object]:
    return {"predicted_us": predicted_us, "seconds": list(seconds), "steps": "x"}


def test_every_network_is_a_tree_with_the_rates_of_its_levels() -> None:
    for shape, rates in shaped.NETWORKS.values():
        wires = shaped.links(shape, rates)
        assert math.prod(size for _, size in shape) == shaped.RANKS
        vertices = {v for pair in wires for v in pair}
        assert len(wires) == len(vertices) - 1
        assert sorted(v for v in vertices if v < shaped.RANKS) == list(range(shaped.RANKS))
        near: dict[int, list[int]] = {v: [] for v in vertices}
        for a, b in wires:
            near[a].append(b)
            near[b].append(a)
        assert all(len(first_steps(v, near)) == len(vertices) - 1 for v in vertices)
        topo = from_toml(topology(shaped.RANKS, wires, 1000.0), "test")
        levels = parse_levels(",".join(f"{name}:{size}" for name, size in shape), topo)
        assert len(topo.link_src) == 2 * len(wires)
        cases = [case for case, *_ in shaped.requests(levels)]
        assert len({case.parts for case in cases}) == len(cases) >= 7
        assert all(sorted(rank for group in case.groups for rank in group) == list(range(16)) for case in cases)


def test_rank_of_the_fastest_program() -> None:
    programs = [program(100, 3.0, 1.5), program(100.5, 1.0, 9.0), program(102, 2.0), program(90, 2.0)]
    assert shaped.place(programs, shaped.APART) == 2
    assert shaped.place(programs, 1.0) == 3
    assert shaped.place([program(1, 1.0)], shaped.APART) == 1


def test_rank_correlation() -> None:
    assert shaped.spearman([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert shaped.spearman([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)
    assert shaped.spearman([(1, 1), (2, 3), (3, 2), (3, 4)]) == pytest.approx(math.sqrt(0.4))
    assert math.isnan(shaped.spearman([(1, 1), (1, 2)]))


def test_missed_accuracy_is_reported() -> None:
    right = [program(1.0 + i, 0.01 * (1 + i)) for i in range(4)]
    wrong = [program(1.0 + i, 0.01 * (4 - i)) for i in range(4)]
    good, bad = shaped.Accuracy.of([right, right]), shaped.Accuracy.of([right, wrong, wrong])
    assert (good.first, good.lost, good.within) == ({1: 1.0, 5: 1.0, 10: 1.0}, 0.0, pytest.approx(1))
    assert "not reached" not in good.verdict
    assert bad.first[1] == pytest.approx(1 / 3)
    assert bad.lost == pytest.approx(2.0)
    assert bad.verdict.count("not reached") == 2
