"""Reader of the output of `amd-smi topology`: tables, or the output with --json or --csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from topologies.errors import InputError
from topologies.importers.node import MOST_DEVICES, Node
from topologies.importers.xgmi import XgmiPairs
from topologies.text.files import parse_json

_TITLE = re.compile(r"\s*([A-Z][A-Z -]{1,40}) TABLE:\s*")
_TABLES = {"LINK TYPE": "kind", "WEIGHT": "weight", "NUMA BW": "gbs"}
_KEYS = {"link_type": "kind", "weight": "weight", "bandwidth": "gbs", "numa_bandwidth": "gbs"}
_COLUMN = re.compile(r"(link_type|weight|numa_bandwidth)_gpu_([0-9]{1,4})")
_RIGHT = "the whole output of amd-smi topology, with link types"


def is_amd_smi(text: str) -> bool:
    """Return whether a text has the table of link types of `amd-smi topology`, or its key in JSON or column in CSV."""
    return re.search(r'^[ \t]*LINK TYPE TABLE:|"link_type"\s*:|^gpu,.*\blink_type_gpu_', text, re.MULTILINE) is not None


def read_amd_smi(text: str, origin: str) -> Node:
    """Return the node of an output as tables, JSON or CSV, without NICs.

    Raises:
        InputError: The text states no node; the message is one line.
    """
    pairs = XgmiPairs(origin, _RIGHT)
    if text.lstrip()[:1] in ("[", "{"):
        _read_json(text, pairs)
    elif re.search(r"^[ \t]*LINK TYPE TABLE:", text, re.MULTILINE):
        _read_text(text, pairs)
    else:
        _read_csv(text, pairs)
    if not pairs.kind:
        raise InputError(f"{origin}: no link types; it must be {_RIGHT}")
    return pairs.node()


def _read_text(text: str, pairs: XgmiPairs) -> None:
    """Add the cells of an output's tables to `pairs`, or raise InputError for a table that is not complete."""
    table = ""
    columns: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        place = f"{pairs.origin}:{number}"
        title, cells = _TITLE.fullmatch(line), line.split()
        if title is not None:
            table, columns = _TABLES.get(title[1], ""), {}
        elif table and not cells:
            table = table if not columns else ""
        elif table and not columns:
            columns = {bdf: i for i, bdf in enumerate(cells)}
            if len(columns) < len(cells) or len(cells) > MOST_DEVICES:
                raise InputError(f"{place}: {len(cells)} columns, not all different; it must be {_RIGHT}")
        elif table:
            if cells[0] not in columns or (len(cells) != len(columns) + 1 and table != "gbs"):
                raise InputError(f"{place}: {len(cells) - 1} cells for {len(columns)} columns; it must be {_RIGHT}")
            for column, cell in enumerate(cells[1:]) if len(cells) == len(columns) + 1 else ():
                pairs.put(table, (columns[cells[0]], column), cell, place)


def _read_csv(text: str, pairs: XgmiPairs) -> None:
    """Add the cells of a CSV output to `pairs`, or raise InputError where its head, a device or a cell is wrong."""
    lines = text.split("\n")
    heads = (i for i, line in enumerate(lines) if line.startswith("gpu,") and "link_type_gpu_" in line)
    start = next(heads, None)
    if start is None:
        raise InputError(f"{pairs.origin}: has no line gpu,… that names the columns; it must be {_RIGHT}")
    try:
        rows = list(csv.DictReader(line for line in lines[start : start + 1 + MOST_DEVICES] if line.strip()))
    except csv.Error as error:
        raise InputError(f"{pairs.origin}: not CSV: {str(error)[:100]}; it must be {_RIGHT}") from None
    for i, row in enumerate(rows):
        for column, cell in row.items():
            match = _COLUMN.fullmatch(column or "")
            if match is not None:
                place = f"{pairs.origin}: row {i + 1}, {column}"
                pairs.put(_KEYS[match[1]], (_device(row.get("gpu"), place), int(match[2])), cell or "", place)


def _read_json(text: str, pairs: XgmiPairs) -> None:
    """Add the cells of a JSON output to `pairs`.

    The output is a list of devices. Each has `links`, or in old versions a mapping per table with the keys gpu_0 and so
    on.

    Raises:
        InputError: It is no JSON, or a device or a cell is wrong.
    """
    document = parse_json(text, pairs.origin, _RIGHT)
    if isinstance(document, dict):
        document = next((value for value in document.values() if isinstance(value, list)), [])
    for i, entry in enumerate(document if isinstance(document, list) else []):
        place = f"{pairs.origin}: entry {i + 1}"
        if not isinstance(entry, Mapping):
            raise InputError(f"{place}: is no mapping; it must be {_RIGHT}")
        source = _device(entry.get("gpu"), place)
        links = entry.get("links")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, Mapping):
                target = _device(link.get("gpu"), f"{place}: links")
                for key in [key for key in _KEYS if key in link]:
                    pairs.put(_KEYS[key], (source, target), str(link[key]), f"{place}: links: {key}")
        for key in [key for key in _KEYS if key in entry]:
            cells = entry[key]
            for name, cell in cells.items() if isinstance(cells, Mapping) else ():
                target = _device(str(name).removeprefix("gpu_"), f"{place}: {key}")
                pairs.put(_KEYS[key], (source, target), str(cell), f"{place}: {key}")


def _device(value: object, place: str) -> int:
    """Return the number of a device that a cell states, at most four digits, or raise InputError, at `place`."""
    if not re.fullmatch(r"[0-9]{1,4}", str(value)):
        raise InputError(f"{place}: device {str(value)[:20]!r}; it must be a number, as in {_RIGHT}")
    return int(str(value))
