"""Which questions of a cluster are one problem, and which only look so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synth.app.clusters.cluster import read_cluster
from synth.app.clusters.plan import Plan, make_plan
from synth.app.clusters.task import solve, unpacked
from topologies.costs import KINDS
from topologies.load import load


def planned(folder: Path, text: str, more: str = "") -> Plan:
    path = folder / "cluster.toml"
    path.write_text(f'{text}\ncollectives = ["allreduce"]\nbudget = "1s"\n{more}')
    return make_plan(read_cluster(path), 1)


def test_what_switches_do_has_answers_of_its_own_for_targets_that_can_say_it(tmp_path: Path) -> None:
    text = 'topology = "dgx-h100"\ngroups = ["0,1,2", "5,6,7", "0,1"]\ntargets = ["executor-nccl", "mscclpp"]'
    plain, both = planned(tmp_path, text), planned(tmp_path, text, "switch_ops = true")
    assert plain.questions == both.questions == 3
    assert [(share.task.targets, len(share.questions)) for share in both.shares] == [
        (("mscclpp",), 2),
        (("executor-nccl",), 2),
        (("executor-nccl", "mscclpp"), 1),
    ]
    assert [bool(share.task.topology.switch_ops) for share in both.shares] == [True, False, False]
    keys = {share.task.key for share in plain.shares}
    assert [share.task.key in keys for share in both.shares] == [False, False, True]


def test_what_switches_do_is_used_where_it_is_asked_for(tmp_path: Path) -> None:
    text = 'topology = "dgx-h100"\ngroups = ["0,1,2,3"]\ntargets = "none"\nsizes = "64M"'
    [task] = planned(tmp_path, text, "switch_ops = true").searches
    [row] = unpacked(solve(task)).unfiled
    assert row["switch_ops"]
    assert row["time_us"] < 2 * 3 / 4 * (64 << 20) / 450e3  # of sends alone: three quarters leave and come, twice


def test_of_the_same_network_with_other_relays_around_it_there_are_two_problems(tmp_path: Path) -> None:
    # a path 4-5-0-1-2-3: of two neighbours in its middle and two at its end
    text = 'topology = "ring:6"\ngroups = ["0,1", "2,3", "5,4"]\nwithout = ["link:3-4"]\ntargets = "executor-nccl"'
    assert len(planned(tmp_path, text).searches) == 1
    through = planned(tmp_path, text, 'relays = "all"')
    assert len(through.searches) == 3
    assert len({share.task.key for share in through.shares}) == 3


def test_what_rccl_and_mscclpp_make_of_links_is_part_of_the_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links of the network make a node of each device, PCIe one of all: MSCCL++ speaks of one node alone."""
    text, known = 'topology = "mi300x"\ngroups = ["0-7"]\ntargets = "none"', load("mi300x")
    keys = []
    for kind in ("pcie", "network"):
        made = replace(known, link_kind=np.full_like(known.link_kind, KINDS.index(kind)))
        monkeypatch.setattr("synth.app.clusters.cluster.load", lambda _, made=made: made)
        keys += [task.key for task in planned(tmp_path, text).searches]
    assert len(set(keys)) == 2


@pytest.mark.parametrize("costs", ["none", "machine"])
def test_the_same_network_of_links_of_another_kind_is_another_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, costs: str
) -> None:
    """NCCL takes other algorithms on them, and with costs on messages take other times."""
    text, known = 'topology = "dgx1"\ngroups = ["0,1"]\ntargets = "executor-nccl"', load("dgx1")
    keys = []
    for kind in (known.link_kind, np.full_like(known.link_kind, KINDS.index("pcie"))):
        made = replace(known, link_kind=kind)
        monkeypatch.setattr("synth.app.clusters.cluster.load", lambda _, made=made: made)
        keys += [task.key for task in planned(tmp_path, text, f'costs = "{costs}"').searches]
    assert len(set(keys)) == 2
