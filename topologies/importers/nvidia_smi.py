"""Reads what `nvidia-smi topo -m` prints, in all its shapes, with or without `nvidia-smi nvlink --status` behind it.

Tabs or spaces, escape sequences, headers that lost their first tab, NICs by name or as NICk with a legend, none to
three columns behind. Cells: X; NVn, n NVLinks; PIX, PXB, PHB, NODE, SYS (SOC of old), how near over PCIe.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.importers import rates
from topologies.importers.matrix import LEVELS, place_pcie
from topologies.importers.node import Nic, Node, Vertex

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"GPU([0-9]{1,4})")
_HEADER = re.compile(r"^[ \t]*GPU0\s[^\n]*$|^[ \t]*GPU0$", re.MULTILINE)
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (?:([0-9.]{1,12}) GB/s|<inactive>)\s*")
_OF_DEVICE = re.compile(r"GPU ([0-9]{1,4}): (.{1,100}?) \(UUID.*")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}): (\S{1,60})\s*")  # behind the matrix: what the system calls them
_CELL = re.compile(r"X|NV([0-9]{1,3})|" + "|".join((*LEVELS, "SOC")))
_P2P = ("OK", "CNS", "GNS", "TNS", "NS", "DR")
_RIGHT = "the whole output of nvidia-smi topo -m"
_MOST_COLUMNS = 512  # a node has some 20 devices and 40 NICs


def is_nvidia_smi(text: str) -> bool:
    """Whether a text has a line of that matrix's header, or what NVLinks' status begins with."""
    header = _HEADER.search(_ESCAPE.sub("", text))
    return (header is not None and "=" not in header[0]) or is_status(text)


def is_status(text: str) -> bool:
    """Whether a text is what `nvidia-smi nvlink --status` prints, and nothing else."""
    return _OF_DEVICE.match(text.lstrip()) is not None and _HEADER.search(_ESCAPE.sub("", text)) is None


def read_nvidia_smi(text: str, origin: str) -> Machine:
    """The machine of a matrix. Raises InputError (one line, with the line of the file)."""
    lines = [_ESCAPE.sub("", line).rstrip() for line in text.split("\n")]
    status, name = _status(lines, origin)
    matrix = _Matrix(lines, origin)
    node = matrix.node(status, name)
    return node.machine(Path(origin).stem or "node", origin)


def _status(lines: list[str], origin: str) -> tuple[dict[int, list[float]], str]:
    """GB/s of each device's NVLinks that are up, as `nvidia-smi nvlink --status` has them; the first device's name."""
    found: dict[int, list[float]] = {}
    name = ""
    here: list[float] | None = None
    for number, line in enumerate(lines, 1):
        device, link = _OF_DEVICE.fullmatch(line.strip()), _LINK.fullmatch(line)
        if device is not None:
            here = found.setdefault(int(device[1]), [])
            name = name or device[2]
        elif link is not None and here is None:
            raise InputError(f"{origin}:{number}: a link of no device; it must stand below GPU 0: …")
        elif link is not None and here is not None and link[2]:
            try:
                here.append(float(link[2]))
            except ValueError:
                raise InputError(f"{origin}:{number}: {link[2]!r} is no rate; it must be as in 25.781 GB/s") from None
    return found, name


class _Matrix:
    """The cells between all devices and NICs."""

    def __init__(self, lines: list[str], origin: str) -> None:
        self.origin = origin
        at = next((i for i, line in enumerate(lines) if _HEADER.match(line) and "=" not in line), None)
        if at is None:
            raise InputError(f"{origin}: says nothing of what joins devices; it must have {_RIGHT}")
        tokens = lines[at].split()
        end = next((i for i, token in enumerate(tokens) if token in ("CPU", "NUMA", "GPU")), len(tokens))
        self.names = tokens[:end]
        self.has_numa = tokens[end : end + 4] == ["CPU", "Affinity", "NUMA", "Affinity"]
        self.numa: dict[str, str] = {}  # of devices, where it is told
        self.ranks = [name for name in self.names if _DEVICE.fullmatch(name)]
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            self._fail(at, f"{twice[0][:20]} stands twice")
        if len(self.names) > _MOST_COLUMNS:
            self._fail(at, f"{len(self.names)} columns, more than {_MOST_COLUMNS}")
        self.cells: dict[tuple[str, str], tuple[str, int]] = {}
        seen: set[str] = set()
        for i in range(at + 1, len(lines)):
            label = next(iter(lines[i].split()), "")
            if label not in self.names:
                if seen:
                    break
                continue
            if label in seen:
                self._fail(i, f"a second row {label[:20]}")
            seen.add(label)
            self._row(i, label, lines[i].strip()[len(label) :])
        missing = [name for name in self.names if name not in seen]
        if missing:
            have = f"rows for {len(seen)} of {len(self.names)} columns, none for {missing[0][:20]}"
            raise InputError(f"{origin}:{at + 1}: {have}; it must be {_RIGHT}")
        self._check_even()
        legend = {line.split("=")[0].strip() for line in lines if "=" in line}
        self.is_pcie_only = "PIX" in legend and "NV#" not in legend
        told = [match for match in map(_LEGEND.fullmatch, lines) if match and match[2].isprintable()]
        self.legend = {match[1]: match[2] for match in told} if len({match[2] for match in told}) == len(told) else {}

    def _fail(self, at: int, problem: str) -> None:
        raise InputError(f"{self.origin}:{at + 1}: {problem}; it must be {_RIGHT}")

    def _row(self, at: int, label: str, rest: str) -> None:
        cells = rest.split()
        if "\t" in rest:  # between which cells may be empty, unless someone doubled them or made some spaces
            tabbed = [cell.strip() for cell in rest.partition("\t")[2].split("\t")]
            own = self.names.index(label)
            aligned = tabbed[own : own + 1] == ["X"] and len(tabbed) >= len(self.names)
            if aligned or cells[own : own + 1] != ["X"] or len(cells) < len(self.names):
                cells = tabbed
        if len(cells) < len(self.names):
            self._fail(at, f"row {label[:20]} has {len(cells)} of {len(self.names)} cells")
        behind = cells[len(self.names) :]
        if self.has_numa and len(behind) > 1 and behind[1].isdecimal():
            self.numa[label] = behind[1]
        for name, cell in zip(self.names, cells, strict=False):
            if not cell:
                continue
            if cell in _P2P:
                self._fail(at, f"{cell!r} is of topo -p2p, which says only whether devices reach each other")
            if not _CELL.fullmatch(cell) or (cell == "X") != (name == label):
                self._fail(at, f"row {label[:20]}, column {name[:20]}: {cell[:20]!r} is not known there")
            self.cells[label, name] = "SYS" if cell == "SOC" else cell, at

    def _check_even(self) -> None:
        """What a cell says, that across the diagonal says too; an empty one is taken from there, as is a lower NVn.

        What a device has into switches may be fewer links than what it leads to has: then `uneven` says where.
        """
        self.uneven: tuple[int, str] | None = None
        for (a, b), (cell, at) in list(self.cells.items()):
            other = self.cells.setdefault((b, a), (cell, at))[0]
            if other != cell:
                self.uneven = at, f"{a[:20]} to {b[:20]} is {cell}, and the other way {other}"
                if not (cell.startswith("NV") and other.startswith("NV")):
                    self._fail(*self.uneven)
                fewer = min(cell, other, key=lambda text: int(text[2:]))
                self.cells[a, b] = self.cells[b, a] = fewer, at
        for a in self.ranks:
            for b in self.ranks:
                if (a, b) not in self.cells:
                    raise InputError(f"{self.origin}: nothing between {a} and {b}; it must be {_RIGHT}")

    def node(self, status: dict[int, list[float]], name: str) -> Node:
        """What it comes to; status: of NVLinks, where it is known."""
        node = Node(len(self.ranks))
        rank_of = {label: rank for rank, label in enumerate(self.ranks)}
        links: dict[tuple[int, int], int] = {}
        nearness: dict[tuple[Vertex, Vertex], int] = {}
        for (a, b), (cell, _) in self.cells.items():
            match = _CELL.fullmatch(cell)
            if match is not None and match[1]:
                if a not in rank_of or b not in rank_of:
                    raise InputError(f"{self.origin}: {a} to {b} is {cell}; it must be between two GPUs")
                links[rank_of[a], rank_of[b]] = int(match[1])
                if a in self.numa and b in self.numa:  # NVLinks hide how near they are over PCIe
                    level = "NODE" if self.numa[a] == self.numa[b] else "SYS"
                    nearness[rank_of[a], rank_of[b]] = LEVELS.index(level)
            elif a != b:
                nearness[rank_of.get(a, a), rank_of.get(b, b)] = LEVELS.index(cell)
        if links:
            self._place_nvlinks(node, links, status, name)
        elif self.is_pcie_only:
            node.remarks.append("the legend has no NV#, as of topo -mp, which leaves NVLinks out: topo -m has them")
        place_pcie(node, nearness, rates.USUAL_PCIE_GBS)
        if node.pcie:
            node.pcie_remarks.append(
                f"PCIe: who shares what is read; {rates.USUAL_PCIE_GBS:.3g} GB/s a device and"
                f" {rates.USUAL_SMP_GBS:g} GB/s a socket are assumed"
            )
        for label in self.names:
            if label not in rank_of:
                far = tuple(nearness.get((label, rank), len(LEVELS)) for rank in range(node.devices))
                node.nics.append(Nic(self.legend.get(label, label), rates.USUAL_NIC_GBS, far))
        if node.nics:
            node.remarks.append(f"{rates.USUAL_NIC_GBS:g} GB/s a NIC: assumed, nvidia-smi does not say")
        return node

    def _place_nvlinks(
        self, node: Node, links: dict[tuple[int, int], int], status: dict[int, list[float]], name: str
    ) -> None:
        peers: dict[int, dict[int, int]] = defaultdict(dict)
        for (a, b), count in links.items():
            peers[a][b] = count
        most = max(sum(counts.values()) for counts in peers.values())
        measured = [gbs for rates_of in status.values() for gbs in rates_of]
        bridged = all(len(counts) == 1 and set(counts.values()) == {rates.BRIDGED_LINKS} for counts in peers.values())
        if measured:
            gbs = float(f"{min(measured):.6g}")
            node.remarks.append(f"{gbs:g} GB/s an NVLink{' of ' + name if name else ''}: read")
        elif rates.BLACKWELL.search(name):
            gbs = rates.NVLINK_GBS[100]
            node.remarks.append(f"{gbs:g} GB/s an NVLink: derived from {name}")
        elif bridged:
            gbs = rates.BRIDGED_GBS
            node.remarks.append(f"{gbs:g} GB/s an NVLink: assumed, as of two cards that a bridge of four links joins")
        else:
            gbs = rates.USUAL_NVLINK_GBS
            node.remarks.append(f"{gbs:g} GB/s an NVLink: assumed (Volta to Hopper; of Blackwell it is 50)")
        if most <= rates.NVLINKS:
            if self.uneven is not None:
                self._fail(*self.uneven)
            for (a, b), count in links.items():
                node.fast[a, b] = count * gbs
            return
        group: dict[int, str] = {}
        own = {a: max(counts.values()) for a, counts in peers.items()}  # into the switches
        for a, counts in sorted(peers.items()):
            wrong = next((b for b, count in counts.items() if count != min(own[a], own[b])), None)
            if wrong is not None:
                raise InputError(
                    f"{self.origin}: {self.ranks[a]} has {sum(counts.values())} NVLinks, more than {rates.NVLINKS}, and"
                    f" {counts[wrong]} of {own[a]} to {self.ranks[wrong]}; it must be at most so many, or as many as"
                    " both have into switches"
                )
            switch = group.setdefault(min(a, *counts), f"nvswitch{len(group)}")
            node.fast[a, switch] = node.fast[switch, a] = (len(status.get(a, ())) or own[a]) * gbs
        node.remarks.append(f"more than {rates.NVLINKS} NVLinks a device in all: through NVSwitches, drawn as one")
        few = [self.ranks[a] for a in sorted(own) if own[a] < max(own.values())]
        if few:
            node.remarks.append(f"fewer NVLinks than others have: {', '.join(few)}")
