"""Sends through switches that multicast and reduce: which exist, how long they take, what the replay refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.storage.check import check_stored
from synth.storage.schedule_file import load_schedule, save_schedule
from synth.timing.simulate import resource_loads_us, time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.errors import ScheduleRefused
from topologies.faults.apply import apply_faults
from topologies.load import load
from topologies.network import Network, network
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import Limit, SwitchOps, Topology

MB = 1 << 20


def node(multicast: float = 1.0, reduce: float = 1.0, spec: str = "dgx-h100") -> Topology:
    topology = load(spec)
    return replace(topology, switch_ops=tuple(SwitchOps(name, multicast, reduce) for name in topology.switches))


def hyperlink(net: Network, rank: int, multicast: bool, paced: bool = False) -> int:
    """Return the number among all carriers of the only hyperlink of this kind whose hub is a local rank."""
    h = net.hyperlinks
    assert h is not None
    (number,) = np.flatnonzero((h.hub == rank) & (h.multicast == multicast) & (h.paced == paced))
    return int(net.nlinks + number)


def by_switch(problem: Problem, paced: bool = True) -> Schedule:
    """Return an all-reduce in which each rank reads its share of the sum from the switch and multicasts it."""
    n, net = len(problem.group), problem.network
    links = [hyperlink(net, rank, multicast, paced) for multicast in (False, True) for rank in range(n)]
    chunk = np.tile(np.arange(n), 2)
    return untimed(chunk, np.array(links), np.repeat([0, 1], n), np.repeat([True, False], n))


def test_a_multicast_uses_its_own_port_up_and_all_ports_down() -> None:
    net = network(node(), [1, 3, 5, 7], 3)
    h = net.hyperlinks
    assert h is not None
    assert len(h) == 12
    up, down = (hyperlink(net, 1, multicast) - net.nlinks for multicast in (True, False))
    names = [[net.resource_names[i] for i in h.uses_idx[h.uses_ptr[x] : h.uses_ptr[x + 1]]] for x in (up, down)]
    assert names[0] == ["3→nvswitch", "nvswitch→1", "nvswitch→3", "nvswitch→5"]
    assert names[1] == ["1→nvswitch", "3→nvswitch", "5→nvswitch", "nvswitch→3"]
    assert h.bandwidth_gbs[[up, down]].tolist() == [450.0, 450.0]
    assert h.members(up).tolist() == [0, 1, 2]
    assert np.allclose(h.bandwidth_gbs[h.paced], 450 / 4)


def test_a_rank_that_is_not_linked_in_both_directions_is_no_member() -> None:
    hurt = network(apply_faults(node(), ["link:nvswitch>3"], []), [r for r in range(8) if r != 3])
    assert hurt.hyperlinks is not None
    assert len(hurt.hyperlinks.members(0)) == 7
    assert network(load("dgx-a100"), range(8)).hyperlinks is None
    assert network(node(), [0, 1]).hyperlinks is None
    t = node()
    ports = np.flatnonzero(t.link_dst == 8)
    assert network(replace(t, limits=(Limit("root", ports[:2], 500.0),)), range(8)).hyperlinks is None


def test_an_all_reduce_takes_an_eighth_more_than_a_buffer_each_way() -> None:
    problem = make_problem(node(), "allreduce", chunks=8)
    schedule = timed(problem, by_switch(problem), 8 * MB)
    replay(problem, schedule)
    assert time_us(problem, schedule) == pytest.approx(2 * (0.7 + MB / 50e3), rel=1e-12)
    assert np.allclose(resource_loads_us(problem, schedule), 9 * MB / 450e3)
    wide = timed(problem, by_switch(problem, paced=False), 8 * MB)
    replay(problem, wide)
    # All reductions use all ports up; a multicast waits only for its sum.
    assert time_us(problem, wide) >= 16 * MB / 450e3


def test_a_switch_that_reduces_at_half_the_rate_takes_twice_as_long() -> None:
    problem = make_problem(node(reduce=0.5), "allreduce", chunks=8)
    schedule = timed(problem, by_switch(problem), 8 * MB)
    replay(problem, schedule)
    assert schedule.end_us[7] == pytest.approx(8 * MB / 225e3, rel=1e-12)
    assert resource_loads_us(problem, schedule).max() == pytest.approx(8 * MB / 225e3, rel=1e-12)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("twice", "contributions of ranks 0, 1×2, 2×2"),
        ("missing", "rank 0, chunk 3: holds the contributions of ranks 3;"),
        ("early", "complete there only at"),
        ("replaces", "a switch's reduction adds"),
        ("adds", "a multicast replaces"),
        ("crowded", "can carry 450"),
        ("none", "link 9999 does not exist"),
    ],
)
def test_the_replay_refuses_wrong_schedules(fault: str, says: str) -> None:
    problem = make_problem(node(), "allreduce", chunks=8)
    plan = by_switch(problem)
    rows = np.arange(16)
    if fault == "twice":
        rows = np.append(0, rows)
    if fault == "missing":
        rows = np.delete(rows, 3)
    schedule = timed(problem, plan.take(rows), 8 * MB)
    if fault == "early":
        schedule = replace(
            schedule,
            start_us=schedule.start_us - 9 * (schedule.step == 1),
            end_us=schedule.end_us - 9 * (schedule.step == 1),
        )
    if fault in ("replaces", "adds"):
        row = 0 if fault == "replaces" else 8
        schedule.reduces[row] = not schedule.reduces[row]
    if fault == "crowded":
        schedule = timed(problem, by_switch(problem, paced=False), 8 * MB)
        lasts = schedule.end_us - schedule.start_us
        schedule = replace(schedule, start_us=0 * lasts, end_us=lasts)
    if fault == "none":
        schedule.link[0] = 9999
    with pytest.raises(ScheduleRefused, match=says):
        replay(problem, schedule)


def test_files_keep_hyperlinks(tmp_path: Path) -> None:
    problem = make_problem(from_toml(to_toml(node(0.9, 0.8)), "x"), "allreduce", chunks=8)
    algorithm = Algorithm(problem, by_switch(problem), "by hand")
    path = save_schedule(tmp_path / "a.synth", algorithm, 8 * MB)
    stored = load_schedule(path)
    assert not check_stored(path, stored).wrong
    assert stored.claimed_us == algorithm.time_us(8 * MB)
    assert algorithm.steps == 2
