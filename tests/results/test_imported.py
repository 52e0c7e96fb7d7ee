"""The script that compares imported machines with their files finds what is not as the file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from results.scripts.imported import differences
from tests.topologies.importers.dumps import cpu, gpu, mesh, rocm, smi, switch, system
from topologies.load import load_machine

XGMI = [["0", "XGMI"], ["XGMI", "0"]]
TO = '<nvlink target="{}" count="3" tclass="0x030200"/>'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("matrix.txt", smi(mesh(8, "NV12"))),
        ("rocm.txt", rocm(XGMI, [[0, 15], [15, 0]], {0: 0, 1: 0})),
        ("links.xml", system(cpu(0, gpu("01", 0, TO.format("02")), gpu("02", 1, TO.format("01"))))),
        ("pcie.xml", system(cpu(0, switch("a", gpu("01", 0), gpu("02", 1))), cpu(1, gpu("03", 2)))),
    ],
)
def test_planted_differences_are_found(tmp_path: Path, name: str, text: str) -> None:
    (path := tmp_path / name).write_text(text)
    machine = load_machine(path)
    assert not differences(path, machine)
    for factor in (0.5, 2.0):
        slower = replace(machine.topology, bandwidth_gbs=machine.topology.bandwidth_gbs * factor)
        assert differences(path, replace(machine, topology=slower))
    fewer = load_machine("ring:2").topology if machine.topology.nranks != 2 else load_machine("ring:3").topology
    assert differences(path, replace(machine, topology=fewer))
