"""Reader of the output of `rocm-smi --showtopo`, as text or with --json."""

from __future__ import annotations

import re

from topologies.errors import InputError
from topologies.importers.node import MOST_DEVICES, Node
from topologies.importers.xgmi import XgmiPairs
from topologies.text.files import parse_json

_TITLES = {"weight": "Weight between two GPUs", "kind": "Link Type between two GPUs"}
_PAIR = re.compile(r"\(Topology\) (Weight|Link type) between DRM devices ([0-9]{1,4}) and ([0-9]{1,4})", re.IGNORECASE)
_NUMA = re.compile(r"GPU\[([0-9]{1,4})\]\s*:\s*\(Topology\) Numa Node:\s*(-?[0-9]{1,4})")
_RIGHT = "the whole output of rocm-smi --showtopo"


def is_rocm_smi(text: str) -> bool:
    """Return whether a text has the table of link types that `rocm-smi --showtopo` prints, or its keys of --json."""
    return _TITLES["kind"].lower() in text.lower() or "between DRM devices" in text


def read_rocm_smi(text: str, origin: str) -> Node:
    """Return the node of an output as text or JSON, without NICs.

    Raises:
        InputError: The text states no node; the message is one line.
    """
    pairs = XgmiPairs(origin, _RIGHT)
    if text.lstrip().startswith("{"):
        _read_json(text, pairs)
    else:
        _read_text(text, pairs)
    pairs.numa = {int(match[1]): int(match[2]) for match in _NUMA.finditer(text)}
    return pairs.node()


def _read_text(text: str, pairs: XgmiPairs) -> None:
    """Add the cells of an output's tables to `pairs`; raise InputError for a wrong table, or without link types."""
    table, columns = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if "====" in line:
            table = next((key for key, title in _TITLES.items() if title.lower() in line.lower()), "")
            columns = 0
        cells = line.split()
        if not table or not cells or not cells[0].startswith("GPU"):
            continue
        place = f"{pairs.origin}:{number}"
        if not columns:
            columns = len(cells)
            if columns > MOST_DEVICES or cells != [f"GPU{i}" for i in range(columns)]:
                raise InputError(f"{place}: not GPU0, GPU1 and so on; it must be {_RIGHT}")
            continue
        row = cells[0].removeprefix("GPU")
        if not row.isdecimal() or len(row) > 4 or not int(row) < columns or len(cells) != columns + 1:
            raise InputError(f"{place}: {len(cells) - 1} cells for {columns} columns; it must be {_RIGHT}")
        for column, cell in enumerate(cells[1:]):
            pairs.put(table, (int(row), column), cell, place)
    if not pairs.kind:
        raise InputError(f"{pairs.origin}: no table of link types; it must be {_RIGHT}")


def _read_json(text: str, pairs: XgmiPairs) -> None:
    """Add the values of a JSON output to `pairs`; raise InputError for a wrong value, or without link types."""
    document = parse_json(text, pairs.origin, _RIGHT)
    system = document.get("system") if isinstance(document, dict) else None
    for key, value in (system if isinstance(system, dict) else {}).items():
        match = _PAIR.fullmatch(key)
        if match is None or not isinstance(value, str):
            continue
        table = "weight" if match[1].lower() == "weight" else "kind"
        for pair in ((int(match[2]), int(match[3])), (int(match[3]), int(match[2]))):
            pairs.put(table, pair, value, f"{pairs.origin}: {key[:80]}")
    if not pairs.kind:
        raise InputError(f"{pairs.origin}: no link types; it must be {_RIGHT}, with --json")
