"""Tests that the comparison of imported machines with their files reports planted differences."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from results.scripts.imported import differences
from tests.topologies.importers.dumps import cpu, gpu, mesh, rocm, smi, switch, system
from tests.topologies.importers.test_amd_smi import OF_TWO
from tests.topologies.importers.test_amd_smi import text as amd
from tests.topologies.importers.test_fabrics import BLOCKS, TREE
from tests.topologies.importers.test_topograph import MODEL, SLURM, netq
from topologies.load import load_machine

XGMI = [["0", "XGMI"], ["XGMI", "0"]]
TO = '<nvlink target="{}" count="3" tclass="0x030200"/>'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("matrix.txt", smi(mesh(8, "NV12"))),
        ("rocm.txt", rocm(XGMI, [[0, 15], [15, 0]], {0: 0, 1: 0})),
        ("links.xml", system(cpu(0, gpu("01", 0, TO.format("02")), gpu("02", 1, TO.format("01"))))),
        ("amd.txt", amd(*OF_TWO)),
        ("cables.json", json.dumps([netq(2)])),
        ("pcie.txt", smi([["X", "PIX", "SYS"], ["PIX", "X", "SYS"], ["SYS", "SYS", "X"]])),
        ("pcie.xml", system(cpu(0, switch("a", gpu("01", 0), gpu("02", 1))), cpu(1, gpu("03", 2)))),
    ],
)
def test_planted_differences_are_reported(tmp_path: Path, name: str, text: str) -> None:
    (path := tmp_path / name).write_text(text)
    machine = load_machine(path)
    assert not differences(path, machine)
    for factor in (0.5, 2.0):
        slower = replace(machine.topology, bandwidth_gbs=machine.topology.bandwidth_gbs * factor)
        assert differences(path, replace(machine, topology=slower))
    fewer = load_machine("ring:2").topology if machine.topology.nranks != 2 else load_machine("ring:3").topology
    assert differences(path, replace(machine, topology=fewer))


@pytest.mark.parametrize(("name", "text"), [("t.conf", TREE), ("b.conf", BLOCKS), ("s.yaml", SLURM), ("m.yaml", MODEL)])
def test_planted_differences_in_trees_are_reported(tmp_path: Path, name: str, text: str) -> None:
    """Check files of trees, which state no rates."""
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
        text = (
            text[: text.index("- topology: flat")] + text[text.index("- topology: all") :] if name[0] == "s" else text
        )
    (path := tmp_path / name).write_text(text)
    machine = load_machine(path)
    assert not differences(path, machine)
    assert differences(path, replace(machine, topology=load_machine("ring:5").topology))
    columns = ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "link_kind")
    one_way = replace(machine.topology, **{name: getattr(machine.topology, name)[:-1] for name in columns})
    assert differences(path, replace(machine, topology=one_way))
