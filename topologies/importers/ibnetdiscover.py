"""Reader of the output of `ibnetdiscover` about an InfiniBand fabric: switches, HCAs and the rate of each link."""

from __future__ import annotations

import re
from collections import defaultdict

from topologies.errors import InputError
from topologies.importers.fabric import Fabric, Port, natural_key

# Gb/s of data per lane; four lanes of NDR are 50 GB/s per direction.
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
_AGGREGATION = "Aggregation Node"  # SHARP's node inside a switch.


def is_ibnetdiscover(text: str) -> bool:
    """Return whether a text has a line that heads a switch or an HCA."""
    return re.search(r'^(Switch|Ca)\s+[0-9]+\s+"[SH]-', text, re.MULTILINE) is not None


def read_ibnetdiscover(text: str, origin: str) -> Fabric:
    """Return the fabric of a text, with its hosts and their ports sorted by name.

    The bandwidths of parallel links between switches are added. HCAs that are on no switch, and SHARP's aggregation
    nodes, are left out. A host is named by the first word of its HCA's description, if that has two words.

    Args:
        text: The text.
        origin: Name of the text in errors.

    Raises:
        InputError: The text is no fabric; the message is one line, with the place if one line is wrong.
    """
    fabric = Fabric()
    names: dict[str, str] = {}
    links: list[tuple[str, str, float, str]] = []
    device = ""
    guids_above: list[str] = []
    guids: dict[str, list[str]] = {}  # The GUIDs above an HCA's head; NCCL prints that of the system image.
    for number, line in enumerate(text.split("\n"), 1):
        head = _HEAD.fullmatch(line.rstrip())
        if head is not None:
            device = head[2]
            names[device], guids[device], guids_above = head[3], guids_above, []
        elif line.startswith("["):
            link = _LINE.fullmatch(line.rstrip() + " ")
            if link is None or link[4] not in _LANE_GBPS or not device:
                raise InputError(f"{origin}:{number}: {line.strip()[:60]!r} is no link; it must be {_RIGHT}")
            links.append((device, link[2], int(link[3]) * _LANE_GBPS[link[4]] / 8, link[1] or "0"))
        elif not line.strip():
            device, guids_above = "", []
        elif (guid_line := _GUID.fullmatch(line.strip())) is not None:
            guids_above.append(guid_line[1])
    ports: dict[str, list[tuple[str, Port]]] = defaultdict(list)
    switch_links: dict[tuple[str, str], float] = defaultdict(float)
    for source, target, gbs, guid in links:  # Each link is listed at both of its ends.
        if source.startswith("S") and target.startswith("S"):
            switch_links[source, target] += gbs
        elif source.startswith("H") and target.startswith("S") and _AGGREGATION not in names.get(source, ""):
            words = names[source].split()
            is_named = len(words) == 2
            port_guids = tuple(int(text, 16) for text in (guid, source[2:], *guids[source]))
            name = words[1] if is_named else source
            ports[words[0] if is_named else source].append((name, Port(name, target, gbs, port_guids)))
    for (source, target), gbs in switch_links.items():
        reverse_gbs = switch_links.get((target, source))
        if reverse_gbs is None or abs(reverse_gbs - gbs) > 1e-6 * gbs:
            raise InputError(
                f"{origin}: {source} to {target} has {gbs:g} GB/s, and back {reverse_gbs or 0:g}; it must be {_RIGHT}"
            )
        if source < target:
            fabric.add_link(source, target, gbs)
    if not ports:
        raise InputError(f"{origin}: no HCA is on a switch; it must be {_RIGHT}")
    for host in sorted(ports, key=natural_key):
        fabric.hosts[host] = [port for _, port in sorted(ports[host], key=lambda entry: natural_key(entry[0]))]
    fabric.remarks.append("links of the fabric and their rates: read")
    return fabric
