"""Concurrent groups with an executor's costs: the fastest protocol, under the bound over all protocols."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from emit.library.group_programs import GroupPrograms
from emit.library.saving.save_groups import save_groups
from synth.bounds.prove import prove
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.model.collective import named
from synth.search.settings import TargetSettings
from synth.storage.check import check_stored
from synth.storage.schedule_file import load_schedule
from topologies.costed import with_costs
from topologies.costs import Costs, Protocol
from topologies.load import load
from topologies.topology import Topology

_COSTS = Costs(
    {"LL": Protocol(1, efficiency={"other": 0.4}), "Simple": Protocol(6, latency_us={"other": 2})}, "made up"
)


def node() -> Topology:
    return with_costs(load("full:4"), _COSTS)


def members(size: int) -> list[Member]:
    return [Member(ranks, named("allgather", 2, 1), size) for ranks in ((0, 1), (2, 3))]


@pytest.mark.parametrize(("size", "protocol"), [(1 << 10, "LL"), (1 << 26, "Simple")])
def test_the_fastest_protocol_is_taken(size: int, protocol: str, tmp_path: Path) -> None:
    programs = GroupPrograms(TargetSettings("auto"))
    result = plan(node(), members(size), budget=6.0, executor=programs)
    assert result.problem.topology.protocol == protocol
    bounds_us = {name: prove(result.problem.under(name)).at(result.size_bytes)[0] for name in ("LL", "Simple")}
    assert min(bounds_us, key=lambda name: bounds_us[name]) == protocol
    # The bound of one group may be higher than the bound of the union.
    assert result.bound_us >= min(bounds_us.values()) * (1 - 1e-9)
    assert 1 - 1e-9 <= result.gap < 1.05
    saved = save_groups(result, tmp_path, programs, proof=True)
    assert saved.time_us == pytest.approx(result.makespan_us, rel=1e-6)
    path = next(path for path in saved.schedules if path.suffix == ".synth")
    checked = check_stored(path, load_schedule(path))
    assert (checked.wrong, checked.bound_us) == ("", pytest.approx(min(bounds_us.values())))


def test_protocols_that_the_executor_lacks_are_no_part_of_the_bound() -> None:
    """Check it with an LL128 that costs nearly nothing, and MSCCL++'s executor, which has none."""
    costs = Costs({**_COSTS.protocols, "LL128": Protocol(0.1, efficiency={"other": 1.0})}, "made up")
    topology, size = with_costs(load("full:4"), costs), 1 << 20
    result = plan(topology, members(size), budget=1.0, executor=GroupPrograms(TargetSettings("mscclpp")))
    assert {witness.protocol for rival in result.rivals for witness in rival.witnesses} <= {"LL", "Simple"}
    alone_us = [prove(result.problem.under(name)).at(result.size_bytes)[0] for name in ("LL", "Simple")]
    assert result.bound_us >= min(alone_us) * (1 - 1e-9)


def test_the_least_bound_of_all_protocols_counts() -> None:
    result = plan(node(), members(1 << 10), budget=6.0)
    (rival,) = result.rivals
    less = replace(result, rivals=(replace(rival, witnesses=tuple(replace(w, base_us=0.1) for w in rival.witnesses)),))
    assert less.bound_us < result.bound_us


@pytest.mark.parametrize(
    ("old", "new"), [("start_us = 1", "start_us = 2"), ("efficiency = {other = 0.4}", "efficiency = {other = 0.2}")]
)
def test_a_cost_that_was_changed_is_refused(old: str, new: str, tmp_path: Path) -> None:
    result = plan(node(), members(1 << 10), budget=6.0)
    saved = save_groups(result, tmp_path, GroupPrograms(TargetSettings("none")), proof=True)
    path = next(path for path in saved.schedules if path.suffix == ".synth")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    header = parts["header.json"].decode()
    assert header.count(old) == 1
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (parts | {"header.json": header.replace(old, new).encode()}).items():
            archive.writestr(name, data)
    assert check_stored(path, load_schedule(path)).wrong
