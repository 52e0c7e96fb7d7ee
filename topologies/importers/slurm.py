"""Reader of Slurm's topology.conf, as administrators and topograph write it: a tree of switches, or blocks of nodes."""

from __future__ import annotations

import re

from topologies.errors import InputError
from topologies.importers.fabric import Fabric, expand
from topologies.importers.tree import FabricTree

_LINE = re.compile(r"\s*(SwitchName|BlockName)\s*=", re.IGNORECASE)
_RIGHT = "topology.conf: SwitchName=s Switches=… or Nodes=…, BlockName=b Nodes=…"


def is_slurm(text: str) -> bool:
    """Return whether a text's first line that is no comment begins with SwitchName= or BlockName=."""
    first = next((line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")), "")
    return _LINE.match(first) is not None


def read_slurm(text: str, origin: str) -> Fabric:
    """Read Slurm's topology.conf, and return its tree of switches as a fabric; its rates are assumed.

    Raises:
        InputError: The text is no topology.conf; the message is one line with the line of the file.
    """
    tree = FabricTree(origin)
    for number, line in enumerate(text.split("\n"), 1):
        line, place = line.split("#")[0].strip(), f"{origin}:{number}"
        if not line or line.lower().startswith("blocksizes"):
            continue
        fields = dict(part.partition("=")[::2] for part in line.split())
        fields = {key.lower(): value for key, value in fields.items()}
        block = fields.get("blockname")
        name = fields.get("switchname") or block
        empty = bool(block) and len(fields) == 1  # topograph pads levels of blocks with empty ones.
        if not name or (("switches" in fields) == ("nodes" in fields) and not empty):
            raise InputError(f"{place}: {line[:60]!r}; it must be {_RIGHT}")
        tree.add(name, place)
        tree.joined = tree.joined or bool(block)
        below = expand(fields.get("switches") or fields.get("nodes", ""), place)
        tree.hang(below, name, place, nodes="nodes" in fields)
    return tree.fabric(_RIGHT)
