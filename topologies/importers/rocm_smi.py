"""Reads what `rocm-smi --showtopo` prints, as text or with --json.

Weights count, not hops: 15 for each xGMI link on the way; over PCIe more.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.importers import rates
from topologies.importers.matrix import LEVELS, place_pcie
from topologies.importers.node import MOST_DEVICES, Node, Vertex

_TITLES = {"weight": "Weight between two GPUs", "type": "Link Type between two GPUs"}
_PAIR = re.compile(r"\(Topology\) (Weight|Link type) between DRM devices ([0-9]{1,4}) and ([0-9]{1,4})", re.IGNORECASE)
_NUMA = re.compile(r"GPU\[([0-9]{1,4})\]\s*:\s*\(Topology\) Numa Node:\s*(-?[0-9]{1,4})")
_RIGHT = "the whole output of rocm-smi --showtopo"
_ONE_HOP = 15


def is_rocm_smi(text: str) -> bool:
    """Whether a text has such a table, or such keys."""
    return _TITLES["type"].lower() in text.lower() or "between DRM devices" in text


def read_rocm_smi(text: str, origin: str) -> Machine:
    """The machine of either form. Raises InputError (one line)."""
    weight, kind = _of_json(text, origin) if text.lstrip().startswith("{") else _of_text(text, origin)
    numa = {int(match[1]): int(match[2]) for match in _NUMA.finditer(text)}
    devices = 1 + max((rank for pair in kind for rank in pair), default=0)
    node = Node(devices, kind="xGMI")
    nearness: dict[tuple[Vertex, Vertex], int] = {}
    for a in range(devices):
        for b in range(devices):
            if a == b:
                continue
            if (a, b) not in kind or (a, b) not in weight:
                raise InputError(f"{origin}: nothing between GPU{a} and GPU{b}; it must be {_RIGHT}")
            if kind[a, b] == "XGMI" and weight[a, b] == _ONE_HOP:
                node.fast[a, b] = 0.0
            same = numa.get(a, 0) == numa.get(b, 1)
            nearness[a, b] = LEVELS.index("NODE" if same else "SYS")
    mesh = devices == 8 and len(node.fast) == devices * (devices - 1)
    gbs = rates.MESH_XGMI_GBS if mesh else rates.USUAL_XGMI_GBS
    node.fast = dict.fromkeys(node.fast, gbs)
    if node.fast:
        why = "as of eight MI300X, all joined pairwise" if mesh else "as of MI200; rocm-smi does not say"
        node.remarks.append(f"{gbs:g} GB/s an xGMI link, one a pair: assumed, {why}")
    place_pcie(node, nearness, rates.USUAL_PCIE_GBS)
    if node.pcie:
        node.pcie_remarks.append(
            f"PCIe: sockets are read; {rates.USUAL_PCIE_GBS:.3g} GB/s a device and {rates.USUAL_SMP_GBS:g} GB/s a"
            " socket are assumed"
        )
    return node.machine(Path(origin).stem or "node", origin)


def _of_text(text: str, origin: str) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], str]]:
    weight: dict[tuple[int, int], int] = {}
    kind: dict[tuple[int, int], str] = {}
    table, columns = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if "====" in line:
            table = next((key for key, title in _TITLES.items() if title.lower() in line.lower()), "")
            columns = 0
        cells = line.split()
        if not table or not cells or not cells[0].startswith("GPU"):
            continue
        if not columns:
            columns = len(cells)
            if cells != [f"GPU{i}" for i in range(columns)] or columns > MOST_DEVICES:
                raise InputError(f"{origin}:{number}: not GPU0, GPU1 and so on; it must be {_RIGHT}")
            continue
        row = cells[0].removeprefix("GPU")
        if not row.isdecimal() or not int(row) < columns or len(cells) != columns + 1:
            raise InputError(f"{origin}:{number}: {len(cells) - 1} cells for {columns} columns; it must be {_RIGHT}")
        for column, cell in enumerate(cells[1:]):
            _put(weight, kind, table, (int(row), column), cell, f"{origin}:{number}")
    if not kind:
        raise InputError(f"{origin}: no table of link types; it must be {_RIGHT}")
    return weight, kind


def _of_json(text: str, origin: str) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], str]]:
    weight: dict[tuple[int, int], int] = {}
    kind: dict[tuple[int, int], str] = {}
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{origin}: not JSON: {' '.join(str(error).split())[:100]}; it must be {_RIGHT}") from None
    system = document.get("system") if isinstance(document, dict) else None
    for key, value in (system if isinstance(system, dict) else {}).items():
        match = _PAIR.fullmatch(key)
        if match is None or not isinstance(value, str):
            continue
        table = "weight" if match[1].lower() == "weight" else "type"
        for pair in ((int(match[2]), int(match[3])), (int(match[3]), int(match[2]))):
            if max(pair) >= MOST_DEVICES:
                raise InputError(f"{origin}: device {max(pair)}; it must be less than {MOST_DEVICES}")
            _put(weight, kind, table, pair, value, f"{origin}: {key[:80]}")
    if not kind:
        raise InputError(f"{origin}: no link types; it must be {_RIGHT}, with --json")
    return weight, kind


def _put(
    weight: dict[tuple[int, int], int],
    kind: dict[tuple[int, int], str],
    table: str,
    pair: tuple[int, int],
    cell: str,
    place: str,
) -> None:
    if pair[0] == pair[1]:
        return
    if table == "weight":
        if not re.fullmatch(r"[0-9]{1,6}", cell):
            raise InputError(f"{place}: weight {cell[:20]!r}; it must be a whole number")
        weight[pair] = int(cell)
    else:
        if cell.upper() not in ("XGMI", "PCIE"):
            raise InputError(f"{place}: link type {cell[:20]!r}; it must be XGMI or PCIE")
        kind[pair] = cell.upper()
