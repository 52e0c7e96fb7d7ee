"""Tests of trees of switches as YAML and JSON: Slurm, topograph, Kubernetes, NetQ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.importers.dumps import cpu, gpu, nic, system
from tests.topologies.importers.test_fabrics import TREE, between
from topologies.errors import InputError
from topologies.importers import format_of
from topologies.importers.combine import import_files
from topologies.load import load, load_machine
from topologies.topology import Topology

SLURM = """---
# made up
- topology: flat
  cluster_default: false
  flat: true
- topology: racks
  cluster_default: false
  block:
    block_sizes: [2]
    blocks:
      - block: b1
        nodes: n[01-02]
      - block: b2
        nodes: n[03-04]
- topology: all
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: leaf[0-1]
      - switch: leaf0
        nodes: n[01-02]
      - switch: leaf1
        nodes: "n03,n04"
"""
MODEL = """# made up
switches:
  top:
    labels: {zone: a}
    switches: [leaf0, leaf1]
blocks:
- switch: leaf0
  nodes: ["n[01-02]"]
  annotations:
    accelerator.topology.test/domain: d0
- switch: leaf1
  nodes:
  - n03
  - n04
"""


def instances(layers_of_node: dict[str, list[str]], labels: dict[str, dict[str, str]] | None = None) -> dict[str, Any]:
    rows = [{"id": name, "network_layers": layers} for name, layers in layers_of_node.items()]
    return {"instances": [row | {"labels": (labels or {}).get(str(row["id"]), {})} for row in rows]}


def kubernetes(keys: list[str], layers_of_node: dict[str, list[str]]) -> dict[str, Any]:
    data = [{"name": name, "labels": dict(zip(keys, layers, strict=False))} for name, layers in layers_of_node.items()]
    return {"apiVersion": "v1", "kind": "List", "items": [{"kind": "Node", "metadata": metadata} for metadata in data]}


LAYERS = {"n01": ["leaf0", "top"], "n02": ["leaf0", "top"], "n03": ["leaf1", "top"], "n04": ["leaf1", "top"]}
AS_JSON = [
    instances(LAYERS),
    kubernetes(["fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"], LAYERS),
    kubernetes(["network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"], LAYERS),
    kubernetes(["topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2"], LAYERS),
    {"apiVersion": "v1", "kind": "ConfigMap", "data": {"topology.conf": TREE, "other": "x"}},
]


def read(text: str) -> Topology:
    return format_of(text).machine(text, "made").topology


def is_tree(topology: Topology) -> bool:
    hosts = [[topology.switches[b - 4] for a, b in links(topology) if a == host] for host in range(4)]
    return (
        topology.nranks == 4
        and set(topology.switches) == {"top", "leaf0", "leaf1"}
        and between(topology, "leaf0", "top") == between(topology, "top", "leaf1") == 50
        and hosts == [["leaf0"], ["leaf0"], ["leaf1"], ["leaf1"]]
    )


def links(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))


@pytest.mark.parametrize("document", AS_JSON, ids=range(len(AS_JSON)))
def test_json_forms_are_equivalent(document: dict[str, Any]) -> None:
    assert is_tree(read(json.dumps(document)))
    assert is_tree(read(json.dumps(document, indent=2)))


@pytest.mark.parametrize("text", [SLURM, MODEL], ids=["slurm", "model"])
def test_yaml_forms_are_equivalent(text: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    assert is_tree(read(text))
    (path := tmp_path / "topology.yaml").write_text(text)
    assert is_tree(load(str(path)))
    cluster = import_files([path], None, load_machine("dgx-h100")).topology
    assert between(cluster, "leaf0", "top") == 2 * 8 * 50


def test_yaml_of_kubernetes_and_of_blocks() -> None:
    yaml = pytest.importorskip("yaml")
    for document in AS_JSON:
        assert is_tree(read(yaml.safe_dump(document)))
    blocks = read(SLURM.replace("cluster_default: true", "cluster_default: false"))
    assert set(blocks.switches) == {"b1", "b2", "core"}


def test_yaml_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"needs PyYAML; it must be installed \(pip install"):
        read(SLURM)


def test_domains_replace_unnamed_switches() -> None:
    labels = {f"n{i}": {"accelerator.topograph.run/domain": f"3f-{i // 2}.1"} for i in range(4)}
    machine = format_of("{}").machine(json.dumps(instances({name: [] for name in [*labels, "head"]}, labels)), "made")
    assert set(machine.topology.switches) == {"s3f-0.1", "s3f-1.1", "core"}
    assert "1 nodes are left out: they state no switch" in machine.remarks


def netq(cables: int, hosts: int = 2) -> dict[str, Any]:
    """Return hosts with `cables` to each of two leaves, each of which has two cables to a spine."""
    tier = [("s0", "spine", "switch"), ("l0", "leaf0", "switch"), ("l1", "leaf1", "switch")]
    tier += [(f"h{i}", f"host{i}", "discovered_via_lldp") for i in range(hosts)]
    nodes = [{"id": key, "name": name, "device_type": kind} for key, name, kind in tier]
    between_them = [(f"h{i}", f"l{j}", k) for i in range(hosts) for j in range(2) for k in range(cables)]
    between_them += [("s0", f"l{j}", k) for j in range(2) for k in range(2)]
    cable = [
        [{"node": a, "interface": f"e{b[1]}{k}"}, {"node": b, "interface": f"swp{a[1]}{k}"}] for a, b, k in between_them
    ]
    return {"nodes": [{"compounded_nodes": nodes}], "links": [{"compounded_links": [{"interfaces": c}]} for c in cable]}


def test_cables_of_netq(tmp_path: Path) -> None:
    """Check that a port has one cable, and that cables between switches have the NICs' 50 GB/s."""
    (path := tmp_path / "net.json").write_text(json.dumps([netq(1)]))
    fabric_alone = import_files([path]).topology
    assert (fabric_alone.nranks, fabric_alone.nodes.tolist()) == (4, [0, 0, 1, 1])
    assert between(fabric_alone, "spine", "leaf1") == 50
    nvlink = '<nvlink target="09" count="18" tclass="0x068000"/>'
    (node := tmp_path / "node.xml").write_text(
        system(
            cpu(0, gpu("01", 0, nvlink), nic("02", "m0", 400000)), cpu(1, gpu("03", 1, nvlink), nic("04", "m1", 400000))
        )
    )
    cluster = import_files([path, node]).topology
    assert between(cluster, "spine", "leaf1") == 100
    first = cluster.nranks + cluster.switches.index("leaf0")
    assert {(0, first), (2, first)} <= set(links(cluster))
    assert not {(1, first), (3, first)} & set(links(cluster))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"instances": 3}', "instances is no list"),
        ('{"instances": [3]}', "instance 1: is no mapping"),
        (json.dumps(instances({"a": ["x"], "b": []})).replace('"b"', '"a"').replace("[]", '["x"]'), "stands twice"),
        (json.dumps(instances({"a": ["x", "y"], "b": ["x", "z"]})), "x hangs on y too"),
        (json.dumps(instances({"a": ["x", "y"], "b": ["y", "x"]})), "in a ring"),
        (json.dumps(instances({"a": []})), "names no nodes"),
        ('{"instances": [' * 100_000, "not JSON"),
        ('{"a": 1}', "has no known form"),
        ('[{"a": 1}]', "no tree and no block"),
        ('{"data": {"topology.a": "x", "topology.b": "y"}}', "2 keys that name a topology"),
        (json.dumps([netq(1)]).replace('"node": "l0"', '"node": "h1"', 1), "is no cable to a switch"),
        (json.dumps([netq(1)]).replace('"node": "h0"', '"node": "l0"', 1), "links[0]: 'leaf0 to leaf0' is no cable"),
        (json.dumps([netq(1, 0)]), "no host is on a switch"),
    ],
)
def test_broken_json_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)
    assert "must" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SLURM.replace("leaf[0-1]", "leaf[0-2]"), "leaf2 has no line"),
        (SLURM.replace("switch: leaf1", "switch: leaf0"), "stands twice"),
        (SLURM.replace("      - switch: top", "      - [top]\n      - switch: top"), "switches[0]: is no mapping"),
        (SLURM.replace("switches:", "switches: x #"), ":19: not YAML: while parsing a block mapping"),
        (SLURM[: SLURM.index("- topology: racks")], "no tree and no block"),
        (MODEL.replace("[leaf0, leaf1]", "leaf0"), "switches is no list"),
        (MODEL.replace("n04", "n01"), "n01 hangs on leaf0 too"),
        ("switches: " + "[" * 50_000, "more than 16 levels"),
        ("switches: &a [1]\nblocks: *a\n", "a reference"),
        ("switches: !!python/object/apply:os.system [ls]\n", "has no known form"),
        ("blocks:\n- switch: a\n" + "#" * (1 << 20), "at most 1048576"),
        ("kind: \t@\n", "made:1: not YAML: while scanning for the next token, found character"),
        ("blocks:\n- [a, b\n\n\n", "made:2: not YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("blocks:\n- \x07\n", "made:2: not YAML: special characters are not allowed"),
        ("kind: a\n---\nkind: b\n", "made:2: not YAML: expected a single document in the stream"),
    ],
)
def test_broken_yaml_is_refused_in_one_line(text: str, message: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(InputError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)
    assert "must" in str(caught.value) or "not YAML: " in str(caught.value)
