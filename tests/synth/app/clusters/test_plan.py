"""Which questions of a cluster are one problem, and which only look like one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emit.targets import TARGETS, target_for
from synth.app.cli.library import build as building
from synth.app.cli.library.build import _say_plan
from synth.app.clusters.cluster import read_cluster
from synth.app.clusters.plan import BuildPlan, estimated_s, make_plan, spread_s
from synth.app.clusters.task import solve, unpacked
from synth.model.deadline import now
from synth.storage.cache import open_cache
from topologies.costs import LINK_KINDS
from topologies.load import load


def planned(folder: Path, text: str, more: str = "") -> BuildPlan:
    path = folder / "cluster.toml"
    collectives = "" if "collectives" in text else 'collectives = ["allreduce"]\n'
    path.write_text(f'{text}\n{collectives}budget = "1s"\n{more}')
    return make_plan(read_cluster(path), 1)


def test_switch_operations_have_their_own_answers_for_targets_that_support_them(tmp_path: Path) -> None:
    text = 'topology = "dgx-h100"\ngroups = ["0,1,2", "5,6,7", "0,1"]\ntargets = ["executor-nccl", "mscclpp"]'
    plain, with_switch_ops = planned(tmp_path, text), planned(tmp_path, text, "switch_ops = true")
    assert plain.questions == with_switch_ops.questions == 3
    assert [(share.task.targets, len(share.questions)) for share in with_switch_ops.shares] == [
        (("mscclpp",), 2),
        (("executor-nccl",), 2),
        (("executor-nccl", "mscclpp"), 1),
    ]
    assert [bool(share.task.topology.switch_ops) for share in with_switch_ops.shares] == [True, False, False]
    keys = {share.task.key for share in plain.shares}
    assert [share.task.key in keys for share in with_switch_ops.shares] == [False, False, True]
    plain = planned(tmp_path, text.replace(', "mscclpp"', ""))  # The targets of the answer without the operations.
    assert with_switch_ops.shares[1].task.key in {share.task.key for share in plain.shares}


def test_switch_operations_are_used_where_they_are_requested(tmp_path: Path) -> None:
    text = 'topology = "dgx-h100"\ngroups = ["0,1,2,3"]\ntargets = "none"\nsizes = "64M"\ncosts = "none"'
    [task] = planned(tmp_path, text, "switch_ops = true").searches
    [row] = unpacked(solve(task)).unfiled
    assert row["switch_ops"]
    assert row["time_us"] < 2 * 3 / 4 * (64 << 20) / 450e3  # For sends alone, three quarters leave and arrive, twice.


@pytest.mark.parametrize(
    ("topology", "targets"),
    [("dgx-a100", {"mscclpp", "executor-nccl"}), ("dgx1", {"executor-nccl", "msccl"}), ("mi250", {"rccl", "mscclpp"})],
)
def test_files_are_for_the_target_that_a_search_would_take(tmp_path: Path, topology: str, targets: set[str]) -> None:
    """Check the default targets; not every executor has a gather, or loads a pattern without a name of its own."""
    text = f'topology = "{topology}"\ngroups = ["0-7"]\ncollectives = ["allreduce", "gather", "sendrecv"]\n'
    tasks = planned(tmp_path, text).searches
    assert {name for task in tasks for name in task.targets} == targets
    for task in tasks:
        assert task.targets == (target_for(task.problem()).name,)
    every_target = planned(tmp_path, text, 'targets = "all"').searches
    assert all(len(task.targets) == len(TARGETS) for task in every_target)


def test_different_relays_on_the_same_network_are_two_problems(tmp_path: Path) -> None:
    # A path 4-5-0-1-2-3: two neighbours in its middle and two at its end.
    text = 'topology = "ring:6"\ngroups = ["0,1", "2,3", "5,4"]\nwithout = ["link:3-4"]\ntargets = "executor-nccl"'
    assert len(planned(tmp_path, text).searches) == 1
    through = planned(tmp_path, text, 'relays = "all"')
    assert len(through.searches) == 3
    assert len({share.task.key for share in through.shares}) == 3


def test_the_links_as_rccl_and_mscclpp_see_them_are_part_of_the_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that network links make each device a node and PCIe links make one node; MSCCL++ knows one node only."""
    text, topology = 'topology = "mi300x"\ngroups = ["0-7"]\ntargets = "none"', load("mi300x")
    keys = []
    for kind in ("pcie", "network"):
        changed = replace(topology, link_kind=np.full_like(topology.link_kind, LINK_KINDS.index(kind)))
        monkeypatch.setattr("synth.app.clusters.cluster.load", lambda _, changed=changed: changed)
        keys += [task.key for task in planned(tmp_path, text).searches]
    assert len(set(keys)) == 2


@pytest.mark.parametrize("costs", ["none", "machine"])
def test_other_kinds_of_links_make_another_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, costs: str) -> None:
    """Check kinds of links: with another kind NCCL takes other algorithms, and with costs messages take other times."""
    text, topology = 'topology = "dgx1"\ngroups = ["0,1"]\ntargets = "executor-nccl"', load("dgx1")
    keys = []
    for kind in (topology.link_kind, np.full_like(topology.link_kind, LINK_KINDS.index("pcie"))):
        changed = replace(topology, link_kind=kind)
        monkeypatch.setattr("synth.app.clusters.cluster.load", lambda _, changed=changed: changed)
        keys += [task.key for task in planned(tmp_path, text, f'costs = "{costs}"').searches]
    assert len(set(keys)) == 2


def test_the_estimate_is_that_of_the_cores_that_work(tmp_path: Path) -> None:
    """Check that one problem takes as long on many cores, and that what is known takes no time."""
    text = 'topology = "dgx1"\ngroups = ["all"]\ncollectives = ["allgather"]\n'
    plan = planned(tmp_path, text)
    [task] = plan.searches
    assert plan.seconds() == replace(plan, cores=16).seconds() > estimated_s(task)
    assert plan.seconds({task.key}) == 0.0
    assert spread_s([3.0, 2.0, 2.0, 1.0], 2) - spread_s([4.0], 2) == pytest.approx(0.0)
    assert spread_s([1.0] * 8, 8) == spread_s([1.0], 1)


def test_the_estimate_states_what_other_load_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that free cores add nothing, and that --dry-run names the load and the longer time, as text and as JSON."""
    plan = planned(tmp_path, 'topology = "dgx1"\ngroups = ["all"]\ncollectives = ["allgather"]\n')
    monkeypatch.setattr("synth.app.clusters.plan.processors", lambda: 4)
    assert plan.loaded_seconds(3.0) == plan.seconds()
    assert plan.loaded_seconds(7.0) == pytest.approx(2 * plan.seconds())
    plan.cluster = replace(plan.cluster, budget_s=300.0)
    for present_load, is_stated in ((0.0, False), (11.0, True)):
        _say_plan(plan, set(), present_load, False)
        text = " ".join(capsys.readouterr().out.split())
        assert "idle core" in text
        assert ("this machine is busy now (load 11.0): about" in text) == is_stated
        _say_plan(plan, set(), present_load, True)
        document = json.loads(capsys.readouterr().out)
        assert (document["loaded_s"] > document["seconds"]) == is_stated


def test_the_estimate_is_within_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that --dry-run states no more than the budget, which a build keeps, and says that it is short."""
    plan = planned(tmp_path, 'topology = "dgx1"\ngroups = ["all"]\ncollectives = ["allreduce"]\n')
    for budget_s in (4.0, 300.0):
        plan.cluster = replace(plan.cluster, budget_s=budget_s)
        is_short = plan.seconds() > budget_s
        _say_plan(plan, set(), 0.0, False)
        assert ("time runs out for some" in capsys.readouterr().out) == is_short
        _say_plan(plan, set(), 0.0, True)
        assert json.loads(capsys.readouterr().out)["seconds"] == pytest.approx(min(plan.seconds(), budget_s), abs=0.1)


@pytest.mark.parametrize("is_first_run", [True, False])
def test_a_plan_and_its_build_state_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_first_run: bool
) -> None:
    """Check that both name what compiling adds to the budget if it does, and that the build may take that long."""
    monkeypatch.setattr(building, "are_some_on_disk", lambda: not is_first_run)
    plan = planned(tmp_path, 'topology = "dgx1"\ngroups = ["all"]\ncollectives = ["allgather"]')
    plan.cluster = replace(plan.cluster, budget_s=4.0)
    added_s = building.COMPILING_S if is_first_run else 0.0
    assert building._seconds(plan, now()) == pytest.approx(4.0 + added_s, abs=0.5)
    clause = building._compiling(building.COMPILING_S)
    _say_plan(plan, set(), 0.0, False)
    assert (clause in " ".join(capsys.readouterr().out.split())) == is_first_run
    building._warn_of_budget(plan, open_cache("none"))
    assert (clause in " ".join(capsys.readouterr().err.split())) == is_first_run


def test_more_work_takes_longer_only_where_engines_use_it(tmp_path: Path) -> None:
    """Check that all links alike end engines early, and that scatters are estimated like allgathers."""
    text = 'topology = "{}"\ngroups = ["all"]\ncollectives = ["allgather", "scatter", "allreduce"]\ntargets = "mscclpp"'
    for topology, is_uniform in (("dgx-h100", True), ("dgx-a100:2", False)):
        allgather, scatter, allreduce = planned(tmp_path, text.format(topology)).searches
        for task in (allgather, allreduce):
            little, much = (estimated_s(replace(task, work_s=work_s)) for work_s in (0.1, 100.0))
            assert (little == much) == is_uniform
        assert estimated_s(scatter) < estimated_s(replace(allreduce, work_s=scatter.work_s))


def test_the_estimate_grows_with_what_takes_longer(tmp_path: Path) -> None:
    plan = planned(tmp_path, 'topology = "dgx-a100:2"\ngroups = ["0-7"]\ncollectives = ["allgather"]\ntargets = "none"')
    [task] = plan.searches
    for change in (
        {"work_s": 1.0},
        {"targets": ("mscclpp",)},
        {"group": tuple(range(16))},
        {"collective": "allreduce"},
    ):
        assert estimated_s(replace(task, **change)) > estimated_s(task), change
    assert estimated_s(replace(task, low=1 << 20, high=1 << 20)) < estimated_s(task)
    assert estimated_s(replace(task, order=tuple(range(8)))) < estimated_s(task)
