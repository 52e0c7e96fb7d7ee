"""Reader of the output of `nvidia-smi topo -m` in all its shapes, also followed by `nvidia-smi nvlink --status`.

Columns are separated by tabs or spaces, with escape sequences, or with a header that lost its first tab. NICs stand by
name, or as NICk with a legend, and none to three more columns follow. Cells are X; NVn, n NVLinks; PIX, PXB, PHB, NODE
or SYS (SOC in old versions), the nearness over PCIe.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from topologies.errors import InputError
from topologies.importers import rates
from topologies.importers.matrix import LEVELS, assumed_pcie, place_pcie
from topologies.importers.node import Nic, Node, Vertex

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"GPU([0-9]{1,4})")
_HEADER = re.compile(r"^[ \t]*GPU0\s[^\n]*$|^[ \t]*GPU0$", re.MULTILINE)
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (?:([0-9.]{1,12}) GB/s|<inactive>)\s*")
_OF_DEVICE = re.compile(r"GPU ([0-9]{1,4}): (.{1,100}?) \(UUID.*")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}): (\S{1,60})\s*")  # The system's names of the NICs, after the matrix.
_CELL = re.compile(r"X|NV([0-9]{1,3})|" + "|".join((*LEVELS, "SOC")))
_P2P = ("OK", "CNS", "GNS", "TNS", "NS", "DR")
_RIGHT = "the whole output of nvidia-smi topo -m"
_MOST_COLUMNS = 512  # A node has some 20 devices and 40 NICs.


def is_nvidia_smi(text: str) -> bool:
    """Return whether a text has a header line of the matrix, or begins as NVLinks' status does."""
    header = _HEADER.search(_ESCAPE.sub("", text))
    return (header is not None and "=" not in header[0]) or is_status(text)


def is_status(text: str) -> bool:
    """Return whether a text is the output of `nvidia-smi nvlink --status` and nothing else."""
    return _OF_DEVICE.match(text.lstrip()) is not None and _HEADER.search(_ESCAPE.sub("", text)) is None


def read_nvidia_smi(text: str, origin: str) -> Node:
    """Return the node of a matrix.

    Raises:
        InputError: The text has no matrix; the message is one line with the line of the file.
    """
    lines = [_ESCAPE.sub("", line).rstrip() for line in text.split("\n")]
    status, name = _status(lines, origin)
    return _Matrix(lines, origin).node(status, name)


def _status(lines: list[str], origin: str) -> tuple[dict[int, list[float]], str]:
    """Return the GB/s of each device's active NVLinks in `nvidia-smi nvlink --status`, and the first device's name.

    Without a status in the lines these are {} and "".

    Raises:
        InputError: A link stands below no device, or its rate is no number.
    """
    rates_of_device: dict[int, list[float]] = {}
    name = ""
    current_rates: list[float] | None = None
    for number, line in enumerate(lines, 1):
        device, link = _OF_DEVICE.fullmatch(line.strip()), _LINK.fullmatch(line)
        if device is not None:
            current_rates = rates_of_device.setdefault(int(device[1]), [])
            name = name or device[2]
        elif link is not None and current_rates is None:
            raise InputError(f"{origin}:{number}: a link of no device; it must stand below GPU 0: …")
        elif link is not None and current_rates is not None and link[2]:
            try:
                current_rates.append(float(link[2]))
            except ValueError:
                raise InputError(f"{origin}:{number}: {link[2]!r} is no rate; it must be as in 25.781 GB/s") from None
    return rates_of_device, name


class _Matrix:
    """The cells between all devices and NICs.

    Attributes:
        origin: Name of the text in errors.
        names: Labels of the columns, devices and NICs.
        ranks: Labels of the devices, in the order of their ranks.
        has_numa: Whether a column with NUMA nodes follows.
        numa: NUMA node of each device, where it is stated.
        cells: Cell of each pair of labels, and the index of its line.
        uneven: Index of a line and the problem where two cells of a pair differ, else None.
        is_pcie_only: Whether the output leaves NVLinks out (`topo -mp`).
        legend: Name of each NIC by its label.
    """

    def __init__(self, lines: list[str], origin: str) -> None:
        self.origin = origin
        at = next((i for i, line in enumerate(lines) if _HEADER.match(line) and "=" not in line), None)
        if at is None:
            raise InputError(f"{origin}: does not state what joins devices; it must be {_RIGHT}")
        tokens = lines[at].split()
        end = next((i for i, token in enumerate(tokens) if token in ("CPU", "NUMA", "GPU")), len(tokens))
        self.names = tokens[:end]
        self.has_numa = tokens[end : end + 4] == ["CPU", "Affinity", "NUMA", "Affinity"]
        self.numa: dict[str, str] = {}
        self.ranks = [name for name in self.names if _DEVICE.fullmatch(name)]
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            self._fail(at, f"{repeated[0][:20]} stands twice")
        if len(self.names) > _MOST_COLUMNS:
            self._fail(at, f"{len(self.names)} columns, more than {_MOST_COLUMNS}")
        self.cells: dict[tuple[str, str], tuple[str, int]] = {}
        labels: set[str] = set()
        for i in range(at + 1, len(lines)):
            label = next(iter(lines[i].split()), "")
            if label not in self.names:
                if labels:
                    break
                continue
            if label in labels:
                self._fail(i, f"a second row {label[:20]}")
            labels.add(label)
            self._row(i, label, lines[i].strip()[len(label) :])
        missing = [name for name in self.names if name not in labels]
        if missing:
            problem = f"rows for {len(labels)} of {len(self.names)} columns, none for {missing[0][:20]}"
            raise InputError(f"{origin}:{at + 1}: {problem}; it must be {_RIGHT}")
        self._check_even()
        legend = {line.split("=")[0].strip() for line in lines if "=" in line}
        self.is_pcie_only = "PIX" in legend and "NV#" not in legend
        entries = [match for match in map(_LEGEND.fullmatch, lines) if match and match[2].isprintable()]
        self.legend = (
            {match[1]: match[2] for match in entries} if len({match[2] for match in entries}) == len(entries) else {}
        )

    def _fail(self, at: int, problem: str) -> None:
        """Raise InputError with the problem and the file's line, whose index from 0 is `at`."""
        raise InputError(f"{self.origin}:{at + 1}: {problem}; it must be {_RIGHT}")

    def _row(self, at: int, label: str, text: str) -> None:
        """Read the cells of a row, which follow its label, into `cells` and `numa`; empty cells are skipped.

        Args:
            at: Index of the line, from 0.
            label: Label of the row.
            text: The line after the label.

        Raises:
            InputError: The row has too few cells, or one that is not known there.
        """
        cells = text.split()
        # Cells between tabs may be empty, unless tabs were doubled or replaced by spaces.
        if "\t" in text:
            tabbed = [cell.strip() for cell in text.partition("\t")[2].split("\t")]
            own = self.names.index(label)
            aligned = tabbed[own : own + 1] == ["X"] and len(tabbed) >= len(self.names)
            if aligned or cells[own : own + 1] != ["X"] or len(cells) < len(self.names):
                cells = tabbed
        if len(cells) < len(self.names):
            self._fail(at, f"row {label[:20]} has {len(cells)} of {len(self.names)} cells")
        more_cells = cells[len(self.names) :]
        if self.has_numa and len(more_cells) > 1 and more_cells[1].isdecimal():
            self.numa[label] = more_cells[1]
        for name, cell in zip(self.names, cells, strict=False):
            if not cell:
                continue
            if cell in _P2P:
                self._fail(at, f"{cell!r} is from topo -p2p, which states only whether devices reach each other")
            if not _CELL.fullmatch(cell) or (cell == "X") != (name == label):
                self._fail(at, f"row {label[:20]}, column {name[:20]}: {cell[:20]!r} is not known there")
            self.cells[label, name] = "SYS" if cell == "SOC" else cell, at

    def _check_even(self) -> None:
        """Check that the two cells of a pair agree; an empty cell takes the other's value.

        Of two numbers of NVLinks the lower one counts, because a device can have fewer links into switches than its
        peer; `uneven` then says where.

        Raises:
            InputError: The two cells differ otherwise, or both are empty between two devices.
        """
        self.uneven: tuple[int, str] | None = None
        for (a, b), (cell, at) in list(self.cells.items()):
            opposite = self.cells.setdefault((b, a), (cell, at))[0]
            if opposite != cell:
                self.uneven = at, f"{a[:20]} to {b[:20]} is {cell}, but the reverse is {opposite}"
                if not (cell.startswith("NV") and opposite.startswith("NV")):
                    self._fail(*self.uneven)
                fewer = min(cell, opposite, key=lambda text: int(text[2:]))
                self.cells[a, b] = self.cells[b, a] = fewer, at
        for a in self.ranks:
            for b in self.ranks:
                if (a, b) not in self.cells:
                    raise InputError(f"{self.origin}: nothing between {a} and {b}; it must be {_RIGHT}")

    def node(self, status: dict[int, list[float]], name: str) -> Node:
        """Return the node whose devices, NICs and links the matrix states.

        Args:
            status: GB/s of each device's active NVLinks, where they are known.
            name: Name of the first device, "" where it is unknown.

        Raises:
            InputError: NVLinks lead to a NIC, or their numbers fit neither links of devices nor links into switches.
        """
        node = Node(len(self.ranks))
        rank_of = {label: rank for rank, label in enumerate(self.ranks)}
        links: dict[tuple[int, int], int] = {}
        nearness: dict[tuple[Vertex, Vertex], int] = {}
        for (a, b), (cell, _) in self.cells.items():
            match = _CELL.fullmatch(cell)
            if match is not None and match[1]:
                if a not in rank_of or b not in rank_of:
                    raise InputError(f"{self.origin}: {a[:20]} to {b[:20]} is {cell}; it must be between two GPUs")
                links[rank_of[a], rank_of[b]] = int(match[1])
                if a in self.numa and b in self.numa:  # A cell with NVLinks does not state the nearness over PCIe.
                    level = "NODE" if self.numa[a] == self.numa[b] else "SYS"
                    nearness[rank_of[a], rank_of[b]] = LEVELS.index(level)
            elif a != b:
                nearness[rank_of.get(a, a), rank_of.get(b, b)] = LEVELS.index(cell)
        if links:
            self._place_nvlinks(node, links, status, name)
        elif self.is_pcie_only:
            node.remarks.append(
                "the legend has no NV#: this is the output of topo -mp, which leaves out NVLinks; topo -m has them"
            )
        place_pcie(node, nearness, rates.USUAL_PCIE_GBS)
        if node.pcie:
            node.pcie_remarks.append(f"PCIe: shared links are read; {assumed_pcie(node)}")
        for label in self.names:
            if label not in rank_of:
                distance = tuple(nearness.get((label, rank), len(LEVELS)) for rank in range(node.devices))
                node.nics.append(Nic(self.legend.get(label, label), rates.USUAL_NIC_GBS, distance))
        if node.nics:
            node.remarks.append(f"{rates.USUAL_NIC_GBS:g} GB/s a NIC: assumed, nvidia-smi does not say")
        return node

    def _place_nvlinks(
        self, node: Node, links: dict[tuple[int, int], int], status: dict[int, list[float]], name: str
    ) -> None:
        """Add the NVLinks to the node, and remarks on them.

        They lead through NVSwitches where a device has more in all than any device has.

        Args:
            node: The node, which is changed.
            links: Number of NVLinks from one device to another, by their ranks; not empty.
            status: GB/s of each device's active NVLinks, where they are known; the least of all is taken for each.
            name: Name of the first device, "" where it is unknown.

        Raises:
            InputError: The two numbers of a pair differ without switches, the numbers do not fit links into switches,
                or switches would join two devices between which no NVLinks are stated.
        """
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
        own = {a: max(counts.values()) for a, counts in peers.items()}  # NVLinks into the switches.
        for a, counts in sorted(peers.items()):
            wrong_peer = next((b for b, count in counts.items() if count != min(own[a], own[b])), None)
            if wrong_peer is not None:
                raise InputError(
                    f"{self.origin}: {self.ranks[a]} has {sum(counts.values())} NVLinks, more than {rates.NVLINKS}, and"
                    f" {counts[wrong_peer]} of {own[a]} to {self.ranks[wrong_peer]}; it must be at most"
                    f" {rates.NVLINKS}, or as many as both have into switches"
                )
            apart = next(((b, c) for b in counts for c in peers[b] if c != a and c not in counts), None)
            if apart is not None:
                middle, distant = (self.ranks[rank] for rank in apart)
                raise InputError(
                    f"{self.origin}: {self.ranks[a]} and {distant} have NVLinks to {middle}, but none to each other; it"
                    " must be both, as on NVSwitches"
                )
            switch = group.setdefault(min(a, *counts), f"nvswitch{len(group)}")
            node.fast[a, switch] = node.fast[switch, a] = (len(status.get(a, ())) or own[a]) * gbs
        node.remarks.append(f"more than {rates.NVLINKS} NVLinks a device in all: through NVSwitches, drawn as one")
        few = [self.ranks[a] for a in sorted(own) if own[a] < max(own.values())]
        if few:
            node.remarks.append(f"devices with fewer NVLinks than others: {', '.join(few)}")
