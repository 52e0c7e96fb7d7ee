"""Tests of the script that measures large fabrics."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from results.measuring.scale_runs import Answer
from results.scripts.fabrics import COLLECTIVES, FABRICS, FAULTS, FAULTY, GPUS, SIZES, Row, growth, questions
from tests.topologies.importers.test_importers import read
from topologies.faults.apply import apply_faults


def row(gpus: int, seconds: float, gap: float, peak_mb: float = 100.0, size: str = "64M") -> Row:
    """Return a row of an all-reduce with these figures."""
    answer = Answer("q", seconds, peak_mb, said={"algorithms": [{"gap": gap}]})
    return Row("HPN", gpus, "allreduce", size, answer)


def test_a_sample_asks_each_question_and_each_fabric() -> None:
    asked = questions(every=False)
    assert len({question[1:] for question in asked}) == len(asked) == len(GPUS) * len(COLLECTIVES) * len(SIZES)
    assert set(Counter((fabric, gpus) for fabric, gpus, _, _ in asked).values()) == {4}
    assert len(questions(every=True)) == len(FABRICS) * len(asked)


def test_each_missed_goal_is_named() -> None:
    assert row(512, 60.0, 1.02).misses == []
    assert row(512, 60.1, 1.021, 8001.0).misses == ["gap", "seconds", "memory"]
    assert row(512, 1.0, 1.2, size="1M").misses == []
    assert row(512, 1.0, math.inf, size="1M").misses == ["gap"]


def test_growth_is_the_exponent_between_the_fewest_and_the_most() -> None:
    rows = [row(512, 2.0, 1.0), row(512, 8.0, 1.0), row(1024, 99.0, 1.0), row(4096, 4.0 * 8**1.25, 1.0)]
    assert "| 1.25 | 1.3 |" in growth(rows)


@pytest.mark.parametrize("fabric", FABRICS)
def test_fabrics_have_no_cut_below_their_ports(fabric: str) -> None:
    topology = read(FABRICS[fabric](512)).topology
    assert topology.nranks == 512
    ports = topology.bandwidth_gbs[(topology.link_src < 512) & (topology.link_kind == topology.link_kind.max())]
    assert ports.sum() == pytest.approx(512 * 50.0)


def test_the_faulty_rail_is_named_as_the_topology_names_it() -> None:
    topology = read(FABRICS["HPN"](FAULTY)).topology
    parts = FAULTS["the ports of a rail have half of their rate"][1::2]
    slower = apply_faults(topology, [], parts)
    assert (slower.bandwidth_gbs < topology.bandwidth_gbs).sum() == 2 * FAULTY // 8
