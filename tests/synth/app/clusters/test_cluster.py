"""Cluster files: the questions that they state, and one line with the field for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.app.clusters.cluster import Cluster, read_cluster
from synth.search.settings import AUTO
from topologies.errors import InputError


def read(folder: Path, text: str, without: tuple[str, ...] = ()) -> Cluster:
    path = folder / "cluster.toml"
    path.write_text(text)
    return read_cluster(path, without)


def test_axes_lists_and_subsets_become_groups_each_once(tmp_path: Path) -> None:
    cluster = read(tmp_path, 'topology = "dgx-a100:2"\ngroups = ["tp=8", "dp=2", "0,2,4,6", "0-7"]')
    ranks = [group.ranks for group in cluster.groups]
    assert ranks[:3] == [tuple(range(8)), tuple(range(8, 16)), (0, 8)]
    assert len(ranks) == len(set(ranks)) == 2 + 8 + 1
    two_axes = read(tmp_path, 'topology = "dgx-a100:2"\ngroups = ["tp=8,dp=2"]')
    assert [group.ranks for group in two_axes.groups] == ranks[:-1]
    subsets = read(tmp_path, 'topology = "dgx-a100:2"\ngroups = "all 7..8 in a node"\nsizes = "64K:1M"\nbudget = "90s"')
    assert [len(group.ranks) for group in subsets.groups] == ([7] * 8 + [8]) * 2 or len(subsets.groups) == 18
    assert (subsets.low, subsets.high, subsets.budget_s) == (64 << 10, 1 << 20, 90.0)
    assert "alltoallv" not in subsets.collectives
    assert subsets.targets == (AUTO,)


def test_dead_ranks_are_left_out_of_groups(tmp_path: Path) -> None:
    text = 'topology = "dgx-a100:2"\ngroups = ["tp=8", "dp=2", "1,9"]\nwithout = ["rank:1"]'
    groups = [group.ranks for group in read(tmp_path, text).groups]
    assert groups[0] == (0, 2, 3, 4, 5, 6, 7)
    assert all(1 not in ranks for ranks in groups)
    assert len(groups) == 2 + 7
    assert read(tmp_path, 'topology = "dgx1"\ngroups = ["tp=8"]', ("link:0-1",)).without == ("link:0-1",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('groups = ["tp=3"]', "2: groups: 'tp=3' has 3 ranks"),
        ('groups = ["0,99"]', "2: groups: rank 99 is not in this topology"),
        ('groups = ["tp=4", "tp=8"]', "2: groups: axis 'tp' has 4 ranks, but 8 in"),
        ('groups = ["all 9..9 in a node"]', "2: groups: 'all 9..9 in a node': no node has such groups"),
        ("groups = []", "2: groups: is empty"),
        ('groups = ["tp=8"]\ncollectives = []', "3: collectives: is empty; it must be one of all, allreduce,"),
        ('groups = ["0,1", 3]', "2: groups: holds 3"),
        ('groups = ["tp=8"]\nbudget = "soon"', "3: budget: 'soon': is not a time"),
        ('groups = ["tp=8"]\nsizes = "1G:1K"', "3: sizes: '1G:1K' has its larger end first"),
        ('groups = ["tp=8"]\nsizes = "1K:1Q"', "3: sizes: '1K:1Q' is no size and no range of sizes"),
        ('groups = ["tp=8"]\nsizes = "64K-4M"', 'it must be as in "1M" or "64K:4M"'),
        ('groups = ["tp=8"]\nsizes = ["64K", "4M"]', "3: sizes: an array of 2 is no size and no range of sizes"),
        ('groups = ["tp=8"]\ncollectives = ["alreduce"]', "3: collectives: 'alreduce' is not known"),
        ('groups = ["tp=8"]\ncollectives = ["alltoallv"]', "3: collectives: 'alltoallv' is not known"),
        ('groups = ["tp=8"]\ntargets = ["nccl"]', "3: targets: 'nccl' is not known"),
        ('groups = ["tp=8"]\nroots = "some"', "3: roots: 'some' is not known"),
        ('groups = ["tp=8"]\nwithout = ["link:0-9"]', "3: without: --without link:0-9: rank 9 does not exist"),
        ('groups = ["tp=8"]\nseed = -1', "3: seed: -1 is out of range"),
        (
            'groups = ["tp=8"]\ncosts = "NCCL"',
            "3: costs: 'NCCL' is not known; it must be auto, machine, none or a .toml file",
        ),
        ('groups = ["tp=8"]\ncosts = 3', "3: costs: 3 is no text"),
        ('groups = ["tp=8"]\nrelays = "some"', "3: relays: 'some' is not known; it must be"),
        ('groups = ["tp=4"]\nrelays = "7-9"', "3: relays: "),
        ('groups = ["tp=4"]\nswitch_ops = "no"', "3: switch_ops: 'no' is neither true nor false"),
        ('groups = ["tp=4"]\ntargets = "msccl"\nswitch_ops = true', "4: switch_ops: files for msccl cannot express it"),
        ('grops = ["tp=8"]', "2: 'grops': unknown key; did you mean groups"),
    ],
)
def test_a_wrong_field_is_one_line_that_names_it(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, f'topology = "dgx1"\n{line}\n')
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_topology_is_reported_for_its_field(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cluster\.toml:1: topology: .*dgx-a100:x"):
        read(tmp_path, 'topology = "dgx-a100:x"\ngroups = ["tp=8"]')


def test_too_many_groups_are_refused_before_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is 13\d+ groups; it must be at most"):
        read(tmp_path, 'topology = "gb200-nvl72"\ngroups = "all 2..8 in a node"')


def test_costs_without_switches_operations_are_refused_for_them(tmp_path: Path) -> None:
    """Check costs of LL alone, under which no switch multicasts or reduces."""
    (tmp_path / "ll.toml").write_text("[costs.LL]\nstart_us = 1.0\n")
    text = 'topology = "dgx-h100"\ngroups = ["tp=4"]\nswitch_ops = true\n'
    assert read(tmp_path, text + 'costs = "machine"\n').switch_ops
    with pytest.raises(InputError, match="switch_ops: the costs do not cover operations of switches"):
        read(tmp_path, text + 'costs = "ll.toml"\n')
