"""Reads what `ibnetdiscover` prints of an InfiniBand fabric: switches, HCAs and the rate of each link."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.importers.fabric import Fabric, Port, natural

# Gb/s of data a lane; four lanes of NDR are 50 GB/s each way
_LANE_GBPS = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
_HEAD = re.compile(r'(Switch|Ca|Rt)\s+[0-9]+\s+"([SHR]-[0-9a-f]{1,16})"\s*#\s*"([^"]*)".*')
_LINE = re.compile(
    r'\[[0-9]+\](?:\(([0-9a-f]{1,16})\))?\s+"([SHR]-[0-9a-f]{1,16})"\[[0-9]+\].*?\s([0-9]{1,2})x([A-Z]+[0-9]*)\s*'
)
_GUID = re.compile(r"(?:ca|sysimg)guid=0x([0-9a-f]{1,16})\b.*")
_RIGHT = "the whole output of ibnetdiscover"
_AGGREGATION = "Aggregation Node"  # of SHARP, in a switch


def is_ibnetdiscover(text: str) -> bool:
    """Whether a text has a line that heads a switch or an HCA."""
    return re.search(r'^(Switch|Ca)\s+[0-9]+\s+"[SH]-', text, re.MULTILINE) is not None


def read_ibnetdiscover(text: str, origin: str) -> Machine:
    """The fabric with a rank for each HCA's port."""
    return fabric_of(text, origin).machine(Path(origin).stem or "fabric", origin)


def fabric_of(text: str, origin: str) -> Fabric:
    """The fabric. Raises InputError (one line, with the line of the file)."""
    fabric = Fabric()
    names: dict[str, str] = {}
    links: list[tuple[str, str, float, str]] = []
    here = ""
    above: list[str] = []
    guids: dict[str, list[str]] = {}  # of an HCA, as stand above its head; NCCL prints that of the system image
    for number, line in enumerate(text.split("\n"), 1):
        head = _HEAD.fullmatch(line.rstrip())
        if head is not None:
            here = head[2]
            names[here], guids[here], above = head[3], above, []
        elif line.startswith("["):
            link = _LINE.fullmatch(line.rstrip() + " ")
            if link is None or link[4] not in _LANE_GBPS or not here:
                raise InputError(f"{origin}:{number}: {line.strip()[:60]!r} is no link; it must be {_RIGHT}")
            links.append((here, link[2], int(link[3]) * _LANE_GBPS[link[4]] / 8, link[1] or "0"))
        elif not line.strip():
            here, above = "", []
        elif (stated := _GUID.fullmatch(line.strip())) is not None:
            above.append(stated[1])
    ports: dict[str, list[tuple[str, Port]]] = defaultdict(list)
    between: dict[tuple[str, str], float] = defaultdict(float)
    for one, other, gbs, guid in links:  # each stands on both sides
        if one.startswith("S") and other.startswith("S"):
            between[one, other] += gbs
        elif one.startswith("H") and other.startswith("S") and _AGGREGATION not in names.get(one, ""):
            words = names[one].split()
            named = len(words) == 2
            known = tuple(int(text, 16) for text in (guid, one[2:], *guids[one]))
            name = words[1] if named else one
            ports[words[0] if named else one].append((name, Port(name, other, gbs, known)))
    for (one, other), gbs in between.items():
        back = between.get((other, one))
        if back is None or abs(back - gbs) > 1e-6 * gbs:
            raise InputError(
                f"{origin}: {one} to {other} has {gbs:g} GB/s, and back {back or 0:g}; it must be {_RIGHT}"
            )
        if one < other:
            fabric.add_link(one, other, gbs)
    if not ports:
        raise InputError(f"{origin}: no HCA is on a switch; it must be {_RIGHT}")
    for host in natural(ports):
        order = natural(name for name, _ in ports[host])
        fabric.hosts[host] = [port for _, port in sorted(ports[host], key=lambda one: order.index(one[0]))]
    fabric.remarks.append("links of the fabric and their rates: read")
    return fabric
