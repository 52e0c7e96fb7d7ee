"""Tests that SCCL's encoding, written independently, and synth agree on the shapes that exist."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from results.measuring.sccl_like import (
    COLLECTIVES,
    Demand,
    Machine,
    Outcome,
    decide,
    demand,
    machine,
    solve,
    wrong,
)
from synth import synthesize
from synth.engines.registry import AUTO, processes
from synth.solvers.workers import Workers
from topologies.load import load

SHAPES = [(c, s, r) for c in (1, 2) for s in (1, 2, 3) for r in range(s, 4)]
DIRECT = [(1, 1, 1), (2, 1, 1), (2, 1, 2), (2, 2, 2), (1, 2, 3)]  # Where every rank has a link to every other one.
QUESTIONS = [(c, topo, shapes) for topo, shapes in (("ring:4", SHAPES), ("full:4", DIRECT)) for c in COLLECTIVES]
QUESTIONS += [
    ("allgather", "dgx1", [(2, 2, 2), (2, 2, 3)]),
    ("alltoall", "dgx1", [(1, 2, 2)]),
    ("broadcast", "dgx1", [(3, 2, 2), (3, 2, 3), (6, 3, 3)]),
    ("gather", "dgx1", [(2, 2, 3), (3, 2, 3)]),
]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(processes(AUTO)) as pool:
        yield pool


@pytest.mark.parametrize(
    ("collective", "topo", "shapes"),
    QUESTIONS,
    ids=[f"{collective}-{topo}" for collective, topo, _ in QUESTIONS],
)
def test_verdicts_equal_those_of_synth(
    collective: str, topo: str, shapes: list[tuple[int, int, int]], workers: Workers
) -> None:
    for chunks, steps, rounds in shapes:
        result = synthesize(collective, topo, chunks=chunks, steps=steps, rounds=rounds, workers=workers).result
        status = "sat" if result.ranges else "unsat" if result.impossible else "unknown"
        assert (chunks, steps, rounds, status) == (
            chunks,
            steps,
            rounds,
            decide(collective, topo, chunks, steps, rounds, 60),
        )


@pytest.mark.parametrize("topo", ["dgx1", "ring:4", "ring:8", "full:4"])
def test_machines_equal_those_of_synth(topo: str) -> None:
    encoded_machine, topology = machine(topo), load(topo)
    weight = {links[0]: carries for links, carries in encoded_machine.bandwidth}
    unit = topology.bandwidth_gbs.min()
    assert weight == {
        (u, v): gbs / unit
        for u, v, gbs in zip(
            topology.link_src.tolist(), topology.link_dst.tolist(), topology.bandwidth_gbs.tolist(), strict=True
        )
    }


def test_a_hub_limits_each_rank_to_one_chunk_each_way() -> None:
    hub = machine("hub:3")
    assert [len(links) for links, _ in hub.bandwidth] == [2] * 6
    assert decide("allgather", "hub:3", 1, 2, 2, 60) == "sat"
    assert decide("allgather", "hub:3", 1, 1, 1, 60) == "unsat"


TWO = Machine(2, ((0, 1), (1, 0)), ((((0, 1),), 1), (((1, 0),), 1)))


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome("sat", ((0, (0, 1), 0),), (1,)), "chunk 1 does not reach the ranks [0]"),
        (Outcome("sat", ((0, (1, 0), 0), (1, (1, 0), 0)), (1,)), "does not hold"),
        (Outcome("sat", ((0, (0, 1), 0), (1, (1, 0), 0)), (2,)), "rounds"),
        (Outcome("sat", ((0, (0, 1), 0), (1, (1, 0), 0)), (1,)), ""),
    ],
)
def test_its_replay_reports_faults(outcome: Outcome, message: str) -> None:
    fault = wrong(TWO, demand("allgather", 2, 1), 1, 1, outcome)
    assert message in fault
    assert bool(message) == bool(fault)


def test_its_replay_reports_a_full_link() -> None:
    demand_of_two = demand("broadcast", 2, 2)
    outcome = Outcome("sat", ((0, (0, 1), 0), (1, (0, 1), 0)), (1,))
    assert "2 chunks over" in wrong(TWO, demand_of_two, 1, 1, outcome)
    assert wrong(TWO, demand_of_two, 1, 2, Outcome("sat", outcome.sends, (2,))) == ""


def test_a_time_out_is_unknown() -> None:
    hard = Demand(tuple(range(8)) * 6, (tuple(range(8)),) * 48)
    assert solve(machine("dgx1"), hard, 3, 7, 0.05).status == "unknown"
