"""Several files of one machine or cluster as one topology: what was dumped on each node, or by two tools on one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from topologies.clusters import Machine, join
from topologies.compare import compare
from topologies.errors import InputError
from topologies.importers import FORMATS, MAX_FILE_BYTES, format_of, ibnetdiscover, slurm, topograph
from topologies.importers.fabric import Dumped, Fabric, Port, ports_of
from topologies.importers.nvidia_smi import is_status
from topologies.text.files import origin_of, read_text
from topologies.text.writer import to_toml

_MOST_FILES = 4096
_ASSIGNS = re.compile(r"^[ \t]*[\w-]{1,40}[ \t]*=", re.MULTILINE)  # as TOML does
_SWITCH = "fabric"  # that joins nodes where no file says what does
# by their formats, what reads a network between nodes
_FABRICS: dict[str, Callable[[str, str], Fabric]] = {
    "ibnetdiscover": ibnetdiscover.fabric_of,
    "Slurm's topology.conf": slurm.fabric_of,
    "YAML or JSON of a cluster (Slurm, topograph)": topograph.fabric_of,
}


def import_files(paths: Sequence[str | Path], name: str | None = None, node: Machine | None = None) -> Machine:
    """One machine of one dump a node, by a name (None: the first file's), joined by their NICs.

    What NVLinks' status says goes with the matrix that is given beside it. Of a fabric's file and one node's, or
    `node`, each host of the fabric is that node; of a fabric's and several, each NIC is on its own port. Raises
    InputError (one line): a file that cannot be read, nodes without NICs, NICs that the fabric does not have.
    """
    if not 1 <= len(paths) <= _MOST_FILES:
        raise InputError(f"{len(paths)} files; it must be 1 to {_MOST_FILES}")
    texts = {path: read_text(path, "what a tool prints of a machine", MAX_FILE_BYTES) for path in map(Path, paths)}
    fabrics = {path: _FABRICS[kind] for path, text in texts.items() if (kind := format_of(text).name) in _FABRICS}
    others = {path: text for path, text in texts.items() if path not in fabrics}
    if fabrics and (node is not None or len(texts) > 1):
        (fabric, read), *more = fabrics.items()
        if more or (node is not None) == (len(others) > 0):
            raise InputError(
                f"{origin_of(fabric)}: with {len(texts) - 1} other files{' and a node' if node else ''}; it must be one"
                " fabric and its nodes, or --node"
            )
        called, net = name or fabric.stem or "fabric", read(texts[fabric], origin_of(fabric))
        nodes = _read_nodes(others) if node is None else [(fabric, node)]
        if len(nodes) == 1:
            return net.cluster(nodes[0][1], called, origin_of(fabric))
        dumped = [Dumped(origin_of(path), path.stem, machine) for path, machine in nodes]
        return net.join(dumped, called, origin_of(fabric))
    if node is not None:
        raise InputError(
            f"--node: {origin_of(next(iter(texts)))} is no fabric; it must be with one, as of ibnetdiscover"
        )
    return _side_by_side(_read_nodes(texts), name)


def _read_nodes(texts: Mapping[Path, str]) -> list[tuple[Path, Machine]]:
    """Of each file its machine; of a matrix and the status beside it one."""
    status = [path for path, text in texts.items() if is_status(text)]
    if len(status) == 1 and len(texts) == 2:
        (matrix,) = texts.keys() - set(status)
        texts = {matrix: f"{texts[matrix]}\n{texts[status[0]]}"}
    for path, text in texts.items():
        if format_of(text) is FORMATS[-1] and not _ASSIGNS.search(text):  # nor in our own form
            known = ", ".join(row.name for row in FORMATS)
            raise InputError(f"{origin_of(path)}: is of no form that is read here; it must be of {known}")
    return [(path, format_of(text).read(text, origin_of(path))) for path, text in texts.items()]


def _side_by_side(nodes: Sequence[tuple[Path, Machine]], name: str | None) -> Machine:
    """One node as it is; several on one switch, which is assumed."""
    (path, first), *more = nodes
    called = name or (f"{first.topology.name}:{len(nodes)}" if more else first.topology.name)
    if not more:
        return replace(first, topology=replace(first.topology, name=called))
    unlike = [(other, machine) for other, machine in more if _stated(machine) != _stated(first)]
    if not unlike:
        return Machine(join(first, len(nodes), called), None, first.remarks)
    net = Fabric()
    dumped: list[Dumped] = []
    for i, (other, machine) in enumerate(nodes):
        if machine.nics is None:
            raise InputError(f"{origin_of(other)}: states no NICs, by which it would be joined to others; it must")
        net.hosts[f"node {i}"] = [
            Port(nic.name, _SWITCH, machine.nics.gbs / len(drawn)) for drawn in ports_of(machine.nics) for nic in drawn
        ]
        dumped.append(Dumped(origin_of(other), f"node {i}", machine))
    for other, machine in unlike:
        told = compare(machine, first)
        net.remarks.append(f"{origin_of(other)} is not like {origin_of(path)}: {told[0] if told else 'other links'}")
    return net.join(dumped, called, origin_of(path))


def _stated(machine: Machine) -> str:
    """All of a node but what it is called and what is known of its devices and platform beside their links."""
    return to_toml(
        replace(machine.topology, name="node", summary="", source="", sms=0, compute_capability=0, gcn="", platform=""),
        machine.nics,
    )
