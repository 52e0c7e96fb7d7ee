"""Check the importers of machine descriptions: compare what they read from real files with a second, simpler reader.

    python -m results.scripts.imported FOLDER [FOLDER …]

makes imported.md of all files below the folders. This script's reader takes XML by ElementTree and matrices cell by
cell. It compares these facts with what was imported: the number of ranks; the bandwidth that leaves each rank over
NVLink or xGMI by the file's counts; the narrowest PCIe link on the path of each pair in the file's tree; NICs of the
file at their stated speed; and for fabrics the number of hosts' ports and the cables between switches. A file that is
in two folders counts once.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from results.measuring.measure import grid, page, write
from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.importers.rates import (
    NVLINK_GBS,
    USUAL_NIC_GBS,
    USUAL_PCIE_GBS,
    USUAL_SMP_GBS,
    pcie_gbs,
    smp_gbs,
    xgmi_gbs,
)
from topologies.load import load_machine
from topologies.network import network

_NEAR = 1e-6
_COMPARED = 4  # All pairs of the first so many GPUs are compared over PCIe.


def differences(path: Path, machine: Machine) -> list[str]:
    """Return how the machine differs from its file; empty if it does not."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.lstrip().startswith("<"):
        return _of_xml(ElementTree.fromstring(text), machine)
    if "ibnetdiscover" in text or "Switch\t" in text:
        return _of_fabric(text, machine)
    if "compounded_links" in text:
        return _of_cables(text, machine)
    if re.search(r"^\s*(SwitchName=|BlockName=|blocks:|- topology:)", text, re.MULTILINE):
        return _of_tree(text, machine)
    if "LINK TYPE TABLE" in text:
        return _of_amd(text, machine)
    return _of_rocm(text, machine) if "Link Type between" in text else _of_matrix(text, machine)


def _of_xml(root: ElementTree.Element, machine: Machine) -> list[str]:
    """Return how a machine differs from an XML file of elements."""
    parent_of = {child: parent for parent in root.iter() for child in parent}
    gpus = list(root.iter("gpu")) or [p for p in root.iter("pci") if (p.get("class") or "").startswith("0x0302")]
    if all(gpu.get("dev") for gpu in gpus):
        gpus.sort(key=lambda gpu: int(gpu.get("dev") or 0))
    faults = _ranks(machine, len(gpus))
    fast = [[link for link in gpu if link.tag in ("nvlink", "xgmi")] for gpu in gpus]
    busid = [(parent_of[gpu] if gpu.tag == "gpu" else gpu).get("busid") for gpu in gpus]
    expected = []
    for rank, links in enumerate(fast):
        useful = [
            link
            for link in links
            if link.get("tclass") == "0x068000" or link.get("target") in set(busid) - {busid[rank]}
        ]
        link_gbs = xgmi_gbs(gpus[rank].get("gcn") or "") or NVLINK_GBS.get(int(gpus[rank].get("sm") or 0), 0.0)
        expected.append(sum(int(link.get("count") or 0) for link in useful) * link_gbs)
    pcie = "PCIe" in machine.topology.summary
    if any(expected):
        faults += _leaving(machine, expected, pcie)
    if pcie:
        faults += _of_elements(root, parent_of, gpus, machine)
    speeds = [float(net.get("speed") or 0) / 8000 for net in root.iter("net")]
    if any(speeds) and machine.nics is not None and machine.nics.gbs > max(speeds) * len(speeds):
        faults.append(f"a NIC has {machine.nics.gbs} GB/s, but all NICs of the file have {sum(speeds)} GB/s")
    if any(0 < speed <= 1000 for speed in speeds) and machine.nics is None:
        faults.append("the NICs of the file are missing")
    return faults


def _of_elements(
    root: ElementTree.Element,
    parent_of: dict[ElementTree.Element, ElementTree.Element],
    gpus: Sequence[ElementTree.Element],
    machine: Machine,
) -> list[str]:
    """Return pairs whose bandwidth differs from the narrowest link of their path.

    The path is found by walking up from both GPUs.
    """

    def up(element: ElementTree.Element) -> list[tuple[ElementTree.Element, float]]:
        """Return the elements from an element up to the root, each with the rate of its PCIe link in GB/s, or 0."""
        path_up = []
        while element is not root:
            rate = pcie_gbs(element.get("link_speed") or "", element.get("link_width") or "")
            path_up.append((element, rate or 0.0))
            element = parent_of[element]
        return path_up

    paths = [up(gpu) for gpu in gpus[:_COMPARED]]
    widest = _pairs(machine)
    faults = []
    for a, path in enumerate(paths):
        for b, peer_path in enumerate(paths):
            shared = {id(element) for element, _ in path} & {id(element) for element, _ in peer_path}
            apart = [(e, rate) for e, rate in (*path, *peer_path) if id(e) not in shared]
            rates = [rate for e, rate in apart if e.tag == "pci"]
            cpus = [e for e, _ in apart if e.tag == "cpu"]
            if a == b or not rates or not all(rates):
                continue
            least = min([*rates, *[smp_gbs(cpu.attrib) for cpu in cpus]])
            if widest.get((a, b), 0.0) < least * (1 - _NEAR):
                faults.append(f"{a} to {b} has {widest.get((a, b), 0.0):.4g} GB/s, not {least:.4g}")
            joined = any(link.get("target") for link in gpus[a])  # Such a GPU may be joined by xGMI, which is wider.
            if not joined and widest[a, b] > least * (1 + _NEAR):
                faults.append(f"{a} to {b} has {widest[a, b]:.4g} GB/s, more than {least:.4g}")
    return faults


def _of_matrix(text: str, machine: Machine) -> list[str]:
    """Return how a machine differs from a matrix of `nvidia-smi topo -m`."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s+(X|NV|P|N|S)", line.strip())]
    rows = [row for i, row in enumerate(lines) if row[0] not in [earlier[0] for earlier in lines[:i]]]
    faults = _ranks(machine, len(rows))
    counts = [Counter(cell for cell in row[1 : len(rows) + 1] if cell.startswith("NV")) for row in rows]
    expected = []
    for count in counts:
        total = sum(int(cell[2:]) * times for cell, times in count.items())
        link_gbs = 14.0625 if count == Counter({"NV4": 1}) else 25.0
        expected.append((total if total <= 18 else max(int(cell[2:]) for cell in count)) * link_gbs)
    if any(expected):
        return faults + _leaving(machine, expected, "PCIe" in machine.topology.summary)
    widest = _pairs(machine)
    for a, row in enumerate(rows):
        for b, cell in enumerate(row[1 : len(rows) + 1]):
            least = USUAL_SMP_GBS if cell in ("SYS", "SOC") else USUAL_PCIE_GBS
            if a != b and abs(widest.get((a, b), 0.0) - least) > _NEAR * least:
                faults.append(f"{a} to {b}, {cell}, has {widest.get((a, b), 0.0):.4g} GB/s, not {least:.4g}")
    return faults


def _of_tree(text: str, machine: Machine) -> list[str]:
    """Return how a machine differs from a tree of Slurm or topograph, read line by line.

    It has a rank for each node that the lists of names stand for, and links both ways.
    """
    listed: list[str] = re.findall(r"^\s*\w+Name=.*Nodes=(\S+)", text, re.MULTILINE)
    key = ""
    for line in (line.split("#")[0].rstrip() for line in text.splitlines()):
        stated = re.fullmatch(r"\s*(?:- )?([\w./-]+):\s*(.*)", line)
        key = stated[1] if stated else key
        item = stated[2] if stated else line.strip().removeprefix("- ")
        if key == "nodes" and item:
            listed.append(item[1:-1] if re.fullmatch(r'\["?\D.*\]', item) else item)
    count = 0
    for names in listed:
        for part in re.findall(r"\[[^\]]*\]|[^,\[\]]+", names.replace('"', "").replace(" ", "")):
            if not part.startswith("["):
                count += f"{part}[" not in names.replace('"', "")
                continue
            ranges = [number.split("-") for number in part[1:-1].split(",")]
            count += sum(int(number[-1]) - int(number[0]) + 1 for number in ranges)
    t = machine.topology
    even = np.bincount(t.link_src, minlength=t.nvertices) == np.bincount(t.link_dst, minlength=t.nvertices)
    return _ranks(machine, count) + ([] if even.all() else ["some links go one way only"])


def _of_cables(text: str, machine: Machine) -> list[str]:
    """Return how a machine differs from NetQ's cables: a rank for each cable of a device that is no switch.

    The cables between switches are compared as a sum.
    """
    (document,) = json.loads(text)
    switches = {
        entry["id"]
        for tier in document["nodes"]
        for entry in tier["compounded_nodes"]
        if entry["device_type"] == "switch"
    }
    cables = [
        [end["node"] for end in entry["interfaces"]] for row in document["links"] for entry in row["compounded_links"]
    ]
    inside = [ends for ends in cables if switches >= set(ends)]
    t = machine.topology
    gbs = float(t.bandwidth_gbs[(t.link_src >= t.nranks) & (t.link_dst >= t.nranks)].sum())
    expected = 2 * USUAL_NIC_GBS * len(inside)
    faults = _ranks(machine, len(cables) - len(inside))
    return faults + (
        [] if abs(gbs - expected) < _NEAR * max(expected, 1.0) else [f"{gbs:g} GB/s between switches, not {expected:g}"]
    )


def _of_amd(text: str, machine: Machine) -> list[str]:
    """Return how a machine differs from the tables of amd-smi.

    It has as many ranks as rows of link types. What leaves a rank is the sum of its cells' second rates; without rates,
    it is 64 or 50 GB/s for each link.
    """
    tables = {
        title: [line.split()[1:] for line in body.splitlines() if re.match(r"[0-9a-f]{4}:\S+\s+\S", line)]
        for title, body in re.findall(r"^([A-Z -]+) TABLE:\n((?:.*\S.*\n)*)", text, re.MULTILINE)
    }
    kinds = tables["LINK TYPE"]
    faults = _ranks(machine, len(kinds))
    rates = [re.findall(r"\d+-(\d+)", " ".join(row)) for row in tables.get("NUMA BW", [])]
    stated_gbs = [sum(map(int, row)) / 1000 for row in rates]
    link_gbs = 64.0 if len(kinds) == 8 and all(row.count("XGMI") == 7 for row in kinds) else 50.0
    assumed_gbs = [row.count("XGMI") * link_gbs for row in kinds]
    return faults + _leaving(
        machine, stated_gbs if any(stated_gbs) else assumed_gbs, "PCIe" in machine.topology.summary
    )


def _of_fabric(text: str, machine: Machine) -> list[str]:
    """Return how a machine differs from ibnetdiscover's output: a rank for each HCA port on a switch.

    The links between switches are compared as a sum.
    """
    adapters = re.findall(r"^Ca\s[^#]*#(?!.*Aggregation)[^\n]*\n((?:\[[^\n]*\n?)*)", text, re.MULTILINE)
    faults = _ranks(machine, sum(block.count('"S-') for block in adapters))
    t = machine.topology
    inner = float(t.bandwidth_gbs[(t.link_src >= t.nranks) & (t.link_dst >= t.nranks)].sum())
    lines = [block for block in text.split("\n\n") if "\nSwitch" in block]
    expected = 50.0 * sum(len(re.findall(r'^\[\d+\]\s+"S-.*4xNDR', block, re.MULTILINE)) for block in lines)
    return faults + (
        [] if abs(inner - expected) < _NEAR * expected else [f"{inner:g} GB/s between switches, not {expected:g}"]
    )


def _of_rocm(text: str, machine: Machine) -> list[str]:
    """Return how a machine differs from the link types of rocm-smi."""
    table = text.split("Link Type between", 1)[1]
    rows = [line.split()[1:] for line in table.splitlines() if re.match(r"GPU\d+\s+(0|XGMI|PCIE)", line.strip())]
    faults = _ranks(machine, len(rows))
    peers = [row.count("XGMI") for row in rows]
    link_gbs = 64.0 if len(rows) == 8 and min(peers) == 7 else 50.0
    return faults + _leaving(machine, [count * link_gbs for count in peers], "PCIe" in machine.topology.summary)


def _ranks(machine: Machine, expected: int) -> list[str]:
    """Return a line if the number of ranks differs."""
    have = machine.topology.nranks
    return [] if have == expected else [f"{have} ranks, not {expected}"]


def _leaving(machine: Machine, expected: Sequence[float], pcie: bool) -> list[str]:
    """Return ranks whose leaving bandwidth differs; with PCIe, count direct links only."""
    t = machine.topology
    counted = (t.link_dst < t.nranks) | (not pcie)
    out = np.bincount(t.link_src[counted], weights=t.bandwidth_gbs[counted], minlength=t.nvertices)
    return [
        f"{gbs:.4g} GB/s leave rank {rank}, not {expected_gbs:.4g}"
        for rank, (gbs, expected_gbs) in enumerate(zip(out[: t.nranks].tolist(), expected, strict=False))
        if abs(gbs - expected_gbs) > _NEAR * max(1.0, expected_gbs)
    ]


def _pairs(machine: Machine) -> dict[tuple[int, int], float]:
    """Return the largest bandwidth in GB/s of a link of the network between each pair of ranks."""
    net = network(machine.topology, range(machine.topology.nranks))
    gbs_of_pair: dict[tuple[int, int], float] = {}
    for pair, gbs in zip(zip(net.src.tolist(), net.dst.tolist(), strict=True), net.bandwidth_gbs, strict=True):
        gbs_of_pair[pair] = max(gbs_of_pair.get(pair, 0.0), float(gbs))
    return gbs_of_pair


def main(arguments: Sequence[str] | None = None) -> None:
    """Read all files, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if not options.folders:
        print("No FOLDER is given, so the table stays as it is.")
        return
    paths = sorted(
        path
        for folder in options.folders
        for path in folder.rglob("*")
        if path.suffix in (".xml", ".txt", ".conf", ".out", ".yaml", ".json")
    )
    rows: list[tuple[str, str, str]] = []
    contents_read: set[bytes] = set()
    for path in paths:
        if (content := path.read_bytes()) in contents_read:  # Collections contain copies of the same file.
            continue
        contents_read.add(content)
        try:
            machine = load_machine(path)
        except InputError as error:
            rows.append((path.name, "refused", str(error).removeprefix(str(path)).lstrip(":")))
            continue
        faults = differences(path, machine)
        nics = "" if machine.nics is None else f"; {len(machine.nics.sends)} NICs of {machine.nics.gbs:.4g} GB/s"
        about = f"{machine.topology.summary}; {machine.topology.nlinks} links{nics}"
        rows.append((path.name, "; ".join(faults[:3]) or "as in the file", about))
    verdicts = Counter(verdict if verdict in ("refused", "as in the file") else "differs" for _, verdict, _ in rows)
    summary = grid(("files", *verdicts), [(len(rows), *verdicts.values())])
    table = grid(("file", "verdict", "machine, or reason of the refusal"), rows)
    write(__file__, page(__file__, "Imported descriptions of machines", [summary, table]))


if __name__ == "__main__":
    main()
