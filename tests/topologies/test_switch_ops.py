"""Tests of switches that multicast and reduce: stated, written and read, joined, with faults, shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from synth.app.cli.topologies import topo
from topologies.clusters import join
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.graphs import from_networkx
from topologies.load import load
from topologies.text.reader import from_toml, read_machine
from topologies.text.writer import to_toml
from topologies.topology import SwitchOps, Topology

NODE = """
name = "node"
ranks = 4
switches = ["a", "b"]
[[links]]
from = "0-3"
to = "a,b"
both = true
gbs = 100
alpha_us = 0.5
[[switch_ops]]
switches = ["a"]
multicast = 1
reduce = 0.5
[nic]
count = 4
gbs = 10
alpha_us = 2
"""


def test_switch_operations_are_kept_in_text_and_graphs() -> None:
    t = from_toml(NODE, "node.toml")
    assert t.switch_ops == (SwitchOps("a", 1.0, 0.5),)
    assert from_toml(to_toml(t), "again").switch_ops == t.switch_ops
    assert from_networkx(t.to_networkx()).switch_ops == t.switch_ops


def test_each_node_of_a_cluster_has_switch_operations() -> None:
    t = join(read_machine(NODE, "node.toml"), 2, "two")
    assert t.switch_ops == (SwitchOps("a.0", 1.0, 0.5), SwitchOps("a.1", 1.0, 0.5))
    assert from_toml(to_toml(t), "again").switch_ops == t.switch_ops


def test_a_removed_switch_has_no_operations() -> None:
    t = from_toml(NODE, "node.toml")
    assert apply_faults(t, ["switch:a"], []).switch_ops == ()
    assert apply_faults(t, ["switch:b"], []).switch_ops == t.switch_ops


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('switches = ["c"]\nreduce = 1', "'c' is no switch of this topology"),
        ('switches = ["b"]\nreduce = 1.5', "out of range; it must be 0 to 1 of a port's rate"),
        ('switches = ["b"]', "must have multicast or reduce"),
        ("reduce = 1", "switches: missing or empty"),
        ('switches = ["a"]\nreduce = 1', "'a' is named twice"),
        ('switches = ["b"]\nreduces = 1', "did you mean reduce"),
    ],
)
def test_wrong_statements_are_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        from_toml(NODE.replace("[nic]", f"[[switch_ops]]\n{line}\n[nic]"), "node.toml")
    assert str(error.value).startswith("node.toml:")
    assert "[[switch_ops]] number 2" in str(error.value)


def test_a_topology_refuses_wrong_switch_operations() -> None:
    t = load("dgx-a100")
    for ops, message in (
        ((SwitchOps("nowhere"),), "no such switch"),
        ((SwitchOps("nvswitch", float("nan")),), "multicast nan must be 0 to 1"),
        ((SwitchOps("nvswitch"), SwitchOps("nvswitch")), "two switch_ops are named"),
    ):
        with pytest.raises(InputError, match=message):
            replace(t, switch_ops=ops)
    without_abilities: Topology = replace(t, switch_ops=(SwitchOps("nvswitch", 0.0, 0.0),))
    assert without_abilities.switch_ops == ()


def test_the_command_shows_switch_operations(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(NODE)
    result = CliRunner().invoke(topo, ["check", str(path)])
    assert "multicast and reduce at 0.5 of the rate in a" in result.output
