"""What tools print of machines, read: files of others, compared with a reader of this script's own.

    python -m results.scripts.imported FOLDER [FOLDER …]

makes imported.md of all files below the folders. The script's reader takes XML by ElementTree and matrices cell by
cell, and asks of what was read: as many ranks; what leaves each over NVLink or xGMI by the file's counts; between each
pair over PCIe the narrowest link on the way in the file's tree; NICs that the file has, at their stated speed; of
fabrics as many ranks as hosts' ports, and the cables between switches. What two folders both hold counts once.
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
_WAYS = 4  # devices of which all pairs over PCIe are compared


def differences(path: Path, machine: Machine) -> list[str]:
    """In what the machine is not that of the file; empty where it is."""
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
    above = {child: parent for parent in root.iter() for child in parent}
    gpus = list(root.iter("gpu")) or [p for p in root.iter("pci") if (p.get("class") or "").startswith("0x0302")]
    if all(gpu.get("dev") for gpu in gpus):
        gpus.sort(key=lambda gpu: int(gpu.get("dev") or 0))
    found = _ranks(machine, len(gpus))
    fast = [[link for link in gpu if link.tag in ("nvlink", "xgmi")] for gpu in gpus]
    busid = [(above[gpu] if gpu.tag == "gpu" else gpu).get("busid") for gpu in gpus]
    expected = []
    for rank, links in enumerate(fast):
        useful = [
            link
            for link in links
            if link.get("tclass") == "0x068000" or link.get("target") in set(busid) - {busid[rank]}
        ]
        each = xgmi_gbs(gpus[rank].get("gcn") or "") or NVLINK_GBS.get(int(gpus[rank].get("sm") or 0), 0.0)
        expected.append(sum(int(link.get("count") or 0) for link in useful) * each)
    pcie = "PCIe" in machine.topology.summary
    if any(expected):
        found += _leaving(machine, expected, pcie)
    if pcie:
        found += _of_elements(root, above, gpus, machine)
    speeds = [float(net.get("speed") or 0) / 8000 for net in root.iter("net")]
    if any(speeds) and machine.nics is not None and machine.nics.gbs > max(speeds) * len(speeds):
        found.append(f"a NIC of {machine.nics.gbs} GB/s, where all have {sum(speeds)}")
    if any(0 < speed <= 1000 for speed in speeds) and machine.nics is None:
        found.append("no NICs")
    return found


def _of_elements(
    root: ElementTree.Element,
    above: dict[ElementTree.Element, ElementTree.Element],
    gpus: Sequence[ElementTree.Element],
    machine: Machine,
) -> list[str]:
    """Between some pairs the narrowest link on the way, by walking up from both."""

    def up(element: ElementTree.Element) -> list[tuple[ElementTree.Element, float]]:
        way = []
        while element is not root:
            rate = pcie_gbs(element.get("link_speed") or "", element.get("link_width") or "")
            way.append((element, rate or 0.0))
            element = above[element]
        return way

    ways = [up(gpu) for gpu in gpus[:_WAYS]]
    widest = _pairs(machine)
    found = []
    for a, one in enumerate(ways):
        for b, other in enumerate(ways):
            shared = {id(element) for element, _ in one} & {id(element) for element, _ in other}
            apart = [(e, rate) for e, rate in (*one, *other) if id(e) not in shared]
            rates = [rate for e, rate in apart if e.tag == "pci"]
            cpus = [e for e, _ in apart if e.tag == "cpu"]
            if a == b or not rates or not all(rates):
                continue
            least = min([*rates, *[smp_gbs(cpu.attrib) for cpu in cpus]])
            if widest.get((a, b), 0.0) < least * (1 - _NEAR):
                found.append(f"{a} to {b} has {widest.get((a, b), 0.0):.4g} GB/s, not {least:.4g}")
            joined = any(link.get("target") for link in gpus[a])  # by xGMI perhaps, which is wider
            if not joined and widest[a, b] > least * (1 + _NEAR):
                found.append(f"{a} to {b} has {widest[a, b]:.4g} GB/s, more than {least:.4g}")
    return found


def _of_matrix(text: str, machine: Machine) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s+(X|NV|P|N|S)", line.strip())]
    rows = [row for i, row in enumerate(lines) if row[0] not in [other[0] for other in lines[:i]]]
    found = _ranks(machine, len(rows))
    counts = [Counter(cell for cell in row[1 : len(rows) + 1] if cell.startswith("NV")) for row in rows]
    expected = []
    for count in counts:
        total = sum(int(cell[2:]) * times for cell, times in count.items())
        each = 14.0625 if count == Counter({"NV4": 1}) else 25.0
        expected.append((total if total <= 18 else max(int(cell[2:]) for cell in count)) * each)
    if any(expected):
        return found + _leaving(machine, expected, "PCIe" in machine.topology.summary)
    widest = _pairs(machine)
    for a, row in enumerate(rows):
        for b, cell in enumerate(row[1 : len(rows) + 1]):
            least = USUAL_SMP_GBS if cell in ("SYS", "SOC") else USUAL_PCIE_GBS
            if a != b and abs(widest.get((a, b), 0.0) - least) > _NEAR * least:
                found.append(f"{a} to {b}, {cell}, has {widest.get((a, b), 0.0):.4g} GB/s, not {least:.4g}")
    return found


def _of_tree(text: str, machine: Machine) -> list[str]:
    """Slurm's or topograph's, line by line: a rank for each node that lists of names stand for; links both ways."""
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
            ends = [one.split("-") for one in part[1:-1].split(",")]
            count += sum(int(one[-1]) - int(one[0]) + 1 for one in ends)
    t = machine.topology
    even = np.bincount(t.link_src, minlength=t.nvertices) == np.bincount(t.link_dst, minlength=t.nvertices)
    return _ranks(machine, count) + ([] if even.all() else ["links that go one way"])


def _of_cables(text: str, machine: Machine) -> list[str]:
    """NetQ's: a rank for each cable of what is no switch; all cables between switches together."""
    (document,) = json.loads(text)
    switches = {
        one["id"] for tier in document["nodes"] for one in tier["compounded_nodes"] if one["device_type"] == "switch"
    }
    cables = [
        [end["node"] for end in one["interfaces"]] for row in document["links"] for one in row["compounded_links"]
    ]
    inside = [ends for ends in cables if switches >= set(ends)]
    t = machine.topology
    gbs = float(t.bandwidth_gbs[(t.link_src >= t.nranks) & (t.link_dst >= t.nranks)].sum())
    expected = 2 * USUAL_NIC_GBS * len(inside)
    found = _ranks(machine, len(cables) - len(inside))
    return found + (
        [] if abs(gbs - expected) < _NEAR * max(expected, 1.0) else [f"{gbs:g} GB/s inside, not {expected:g}"]
    )


def _of_amd(text: str, machine: Machine) -> list[str]:
    """As many ranks as rows of link types; what leaves each: its cells' second rates, or one link of 64 or 50 each."""
    tables = {
        title: [line.split()[1:] for line in body.splitlines() if re.match(r"[0-9a-f]{4}:\S+\s+\S", line)]
        for title, body in re.findall(r"^([A-Z -]+) TABLE:\n((?:.*\S.*\n)*)", text, re.MULTILINE)
    }
    kinds = tables["LINK TYPE"]
    found = _ranks(machine, len(kinds))
    rates = [re.findall(r"\d+-(\d+)", " ".join(row)) for row in tables.get("NUMA BW", [])]
    read = [sum(map(int, row)) / 1000 for row in rates]
    each = 64.0 if len(kinds) == 8 and all(row.count("XGMI") == 7 for row in kinds) else 50.0
    assumed = [row.count("XGMI") * each for row in kinds]
    return found + _leaving(machine, read if any(read) else assumed, "PCIe" in machine.topology.summary)


def _of_fabric(text: str, machine: Machine) -> list[str]:
    """As many ranks as HCAs on switches; between switches what all lines of links together have."""
    adapters = re.findall(r"^Ca\s[^#]*#(?!.*Aggregation)[^\n]*\n((?:\[[^\n]*\n?)*)", text, re.MULTILINE)
    found = _ranks(machine, sum(block.count('"S-') for block in adapters))
    t = machine.topology
    inner = float(t.bandwidth_gbs[(t.link_src >= t.nranks) & (t.link_dst >= t.nranks)].sum())
    lines = [block for block in text.split("\n\n") if "\nSwitch" in block]
    expected = 50.0 * sum(len(re.findall(r'^\[\d+\]\s+"S-.*4xNDR', block, re.MULTILINE)) for block in lines)
    return found + ([] if abs(inner - expected) < _NEAR * expected else [f"{inner:g} GB/s inside, not {expected:g}"])


def _of_rocm(text: str, machine: Machine) -> list[str]:
    table = text.split("Link Type between", 1)[1]
    rows = [line.split()[1:] for line in table.splitlines() if re.match(r"GPU\d+\s+(0|XGMI|PCIE)", line.strip())]
    found = _ranks(machine, len(rows))
    peers = [row.count("XGMI") for row in rows]
    each = 64.0 if len(rows) == 8 and min(peers) == 7 else 50.0
    return found + _leaving(machine, [count * each for count in peers], "PCIe" in machine.topology.summary)


def _ranks(machine: Machine, expected: int) -> list[str]:
    have = machine.topology.nranks
    return [] if have == expected else [f"{have} ranks, not {expected}"]


def _leaving(machine: Machine, expected: Sequence[float], pcie: bool) -> list[str]:
    """What leaves each rank; with PCIe, over direct links only."""
    t = machine.topology
    counted = (t.link_dst < t.nranks) | (not pcie)
    out = np.bincount(t.link_src[counted], weights=t.bandwidth_gbs[counted], minlength=t.nvertices)
    return [
        f"{gbs:.4g} GB/s leave {rank}, not {wanted:.4g}"
        for rank, (gbs, wanted) in enumerate(zip(out[: t.nranks].tolist(), expected, strict=False))
        if abs(gbs - wanted) > _NEAR * max(1.0, wanted)
    ]


def _pairs(machine: Machine) -> dict[tuple[int, int], float]:
    net = network(machine.topology, range(machine.topology.nranks))
    found: dict[tuple[int, int], float] = {}
    for pair, gbs in zip(zip(net.src.tolist(), net.dst.tolist(), strict=True), net.bandwidth_gbs, strict=True):
        found[pair] = max(found.get(pair, 0.0), float(gbs))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Read all, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    given = parser.parse_args(arguments)
    if not given.folders:
        print("no FOLDER of others' files: the table stays")
        return
    paths = sorted(
        path
        for folder in given.folders
        for path in folder.rglob("*")
        if path.suffix in (".xml", ".txt", ".conf", ".out", ".yaml", ".json")
    )
    rows: list[tuple[str, str, str]] = []
    held: set[bytes] = set()
    for path in paths:
        if (content := path.read_bytes()) in held:  # collections hold each other's
            continue
        held.add(content)
        try:
            machine = load_machine(path)
        except InputError as error:
            rows.append((path.name, "refused", str(error).removeprefix(str(path)).lstrip(":")))
            continue
        wrong = differences(path, machine)
        nics = "" if machine.nics is None else f"; {len(machine.nics.sends)} NICs of {machine.nics.gbs:.4g} GB/s"
        about = f"{machine.topology.summary}; {machine.topology.nlinks} links{nics}"
        rows.append((path.name, "; ".join(wrong[:3]) or "as the file", about))
    verdicts = Counter(verdict if verdict in ("refused", "as the file") else "differs" for _, verdict, _ in rows)
    summary = grid(("files", *verdicts), [(len(rows), *verdicts.values())])
    table = grid(("file", "verdict", "what it is, or why not"), rows)
    write(__file__, page(__file__, "What tools print of machines, read", [summary, table]))


if __name__ == "__main__":
    main()
