"""`synth reconfigure`: a row for each time of a change, as table and JSON; wrong input in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from synth.app.present.changes import _phases, changes_table
from synth.reconfiguration.routing import in_blocks, route
from synth.reconfiguration.schedule import ChangingSchedule
from synth.reconfiguration.states import ChangingNetwork, read_states
from synth.solvers.workers import Workers
from tests.synth.app.cli.calling import Call
from tests.synth.reconfiguration.test_schedule import MIB, solve
from topologies.topology import Topology

WORDS = ["reconfigure", "alltoall", "--states", "strides:5,bw=50", "--budget", "4s", "--delta", "0,1000000"]


def test_the_command_prints_a_row_for_each_time_of_a_change(synth: Call) -> None:
    answer = synth(*WORDS, "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    changing, staying = document["rows"]
    assert (changing["delta_us"], sorted(changing["states"])) == (0.0, ["stride 1", "stride 2"])
    assert (staying["changes"], staying["time_us"]) == (0, staying["single_us"])
    assert changing["time_us"] < staying["time_us"]
    assert all(row["gap"] >= 1 - 1e-9 for row in document["rows"])
    for row in document["rows"]:
        phases = document["schedules"][row["schedule"]]
        assert row["time_us"] == sum(phase["time_us"] for phase in phases) + row["changes"] * row["delta_us"]
        for phase in phases:
            assert {chunk for chunk, *_ in phase["sends"]} <= set(range(len(phase["blocks"])))
            assert all(0 <= part < phase["parts"] for _, part, *_ in phase["sends"])
    lines = changes_table(document, 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[:3] for line in lines[2:4]] == [["0", "µs", "1"], ["1", "s", "0"]]


def test_the_direct_all_reduce_of_one_state_is_listed(synth: Call) -> None:
    words = ["reconfigure", "allreduce", "--states", "full:3", "--size", "1K", "--budget", "1s", "--json"]
    (phase,) = json.loads(synth(*words).out)["schedules"][0]
    assert {chunk for chunk, *_ in phase["sends"]} <= set(range(len(phase["blocks"])))


def test_the_sends_of_a_document_make_the_sums() -> None:
    """A rank with a part of a sum relays another part: the replay needs to know who holds a chunk at first."""
    network, blocks = read_states("axes:2x2 + ring:4"), in_blocks("reduce", 4)
    routed = route(network, blocks, (0, 1), MIB)
    assert routed is not None
    phases = (routed.phases[0], replace(routed.phases[1], state=2))
    with Workers() as workers:
        algorithms = tuple(solve(network, phase, workers) for phase in phases)
    schedule = ChangingSchedule(network, blocks, phases, algorithms)
    names = [state.name for state in network.states]
    document = _phases(schedule, names, MIB)
    every_rank = [{**phase, "holders": [range(4) for _ in phase["holders"]]} for phase in document]
    assert whole_sums(document, network) == 4
    with pytest.raises(AssertionError):
        whole_sums(every_rank, network)


def whole_sums(phases: list[dict[str, Any]], network: ChangingNetwork) -> int:
    """Return how many of four blocks rank 0 has in whole after the phases of a reduction of a MiB over four ranks."""
    states = {state.name: state for state in network.states}
    held = {(rank, block): 1 << rank for rank in range(4) for block in range(4)}  # Contributions, as bits of ranks.
    for phase in phases:
        held |= replayed(phase, states[phase["state"]], held, MIB / 4)
    return sum(held[0, block] == 0b1111 for block in range(4))


def replayed(
    phase: dict[str, Any], state: Topology, held: dict[tuple[int, int], int], block_bytes: float
) -> dict[tuple[int, int], int]:
    """Return what the goals of a phase hold of each block after all its sends, by (rank, block)."""
    ends = list(zip(state.link_src.tolist(), state.link_dst.tolist(), strict=True))
    sums: dict[tuple[int, ...], int] = {}  # By chunk, part, rank and block.
    for chunk, (blocks, holders) in enumerate(zip(phase["blocks"], phase["holders"], strict=True)):
        for part, rank, block in product(range(phase["parts"]), holders, blocks):
            sums[chunk, part, rank, block] = held[rank, block]
    flying: list[tuple[float, tuple[int, ...], int, bool]] = []
    for chunk, part, here, there, adds, start_us in sorted(phase["sends"], key=lambda send: send[5]):
        arrived = [each for each in flying if each[0] <= start_us + 1e-9]
        flying = [each for each in flying if each[0] > start_us + 1e-9]
        for _, place, value, adds_value in sorted(arrived):
            assert not (adds_value and sums.get(place, 0) & value)
            sums[place] = value | (sums.get(place, 0) if adds_value else 0)
        link = ends.index((here, there))
        bytes_sent = len(phase["blocks"][chunk]) * block_bytes / phase["parts"]
        end_us = start_us + float(state.alpha_us[link]) + bytes_sent / float(state.bandwidth_gbs[link]) / 1e3
        assert end_us <= phase["time_us"] + 1e-9
        flying += [(end_us, (chunk, part, there, b), sums[chunk, part, here, b], adds) for b in phase["blocks"][chunk]]
    for _, place, value, adds_value in sorted(flying):
        assert not (adds_value and sums.get(place, 0) & value)
        sums[place] = value | (sums.get(place, 0) if adds_value else 0)
    after: dict[tuple[int, int], int] = {}
    for chunk, (blocks, goals) in enumerate(zip(phase["blocks"], phase["goals"], strict=True)):
        for part, rank, block in product(range(phase["parts"]), goals, blocks):
            after[rank, block] = after.get((rank, block), -1) & sums[chunk, part, rank, block]
    return after


def test_blocks_of_several_sizes_are_refused(synth: Call) -> None:
    assert "equal blocks" in synth("reconfigure", "alltoallv", "--states", "ring:4").refusal
