"""Several files of one machine or cluster as one topology: what was dumped on each node, or by two tools on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from topologies.clusters import Machine, join
from topologies.errors import InputError
from topologies.importers import MAX_FILE_BYTES, format_of, ibnetdiscover, slurm
from topologies.importers.fabric import Fabric
from topologies.importers.nvidia_smi import is_status
from topologies.text.files import origin_of, read_text
from topologies.text.writer import to_toml

_MOST_FILES = 4096
# by their formats, what reads a network between nodes
_FABRICS: dict[str, Callable[[str, str], Fabric]] = {
    "ibnetdiscover": ibnetdiscover.fabric_of,
    "Slurm's topology.conf": slurm.fabric_of,
}


def import_files(paths: Sequence[str | Path], name: str | None = None, node: Machine | None = None) -> Machine:
    """One machine of one dump a node, by a name (None: the first file's); nodes are alike and joined by their NICs.

    What NVLinks' status says goes with the matrix that is given beside it. Of a fabric's file and a node's, or `node`,
    each host of the fabric is that node. Raises InputError (one line): a file that cannot be read, nodes that differ or
    have no NICs.
    """
    if not 1 <= len(paths) <= _MOST_FILES:
        raise InputError(f"{len(paths)} files; it must be 1 to {_MOST_FILES}")
    texts = {path: read_text(path, "what a tool prints of a machine", MAX_FILE_BYTES) for path in map(Path, paths)}
    fabrics = {path: _FABRICS[kind] for path, text in texts.items() if (kind := format_of(text).name) in _FABRICS}
    if fabrics and (node is not None or len(texts) > 1):
        (fabric, read), *more = fabrics.items()
        others = [path for path in texts if path not in fabrics]
        if more or (node is not None) == (len(others) > 0):
            raise InputError(
                f"{origin_of(fabric)}: with {len(texts) - 1} other files{' and a node' if node else ''}; it must be one"
                " fabric and one node, or --node"
            )
        inside = node or import_files(others)
        stem = fabric.stem or "fabric"
        return read(texts[fabric], origin_of(fabric)).cluster(inside, name or stem, origin_of(fabric))
    if node is not None:
        raise InputError(
            f"--node: {origin_of(next(iter(texts)))} is no fabric; it must be with one (ibnetdiscover, Slurm)"
        )
    status = [path for path, text in texts.items() if is_status(text)]
    if len(status) == 1 and len(texts) == 2:
        (matrix,) = texts.keys() - set(status)
        texts = {matrix: f"{texts[matrix]}\n{texts[status[0]]}"}
    nodes = [format_of(text).read(text, origin_of(path)) for path, text in texts.items()]
    first, paths = nodes[0], list(texts)
    for machine, path in zip(nodes[1:], paths[1:], strict=True):
        if _stated(machine) != _stated(first):
            raise InputError(
                f"{origin_of(path)}: not like {origin_of(paths[0])}; nodes of one cluster must have the same devices,"
                " links and NICs"
            )
    called = (name or first.topology.name) if len(nodes) == 1 else (name or f"{first.topology.name}:{len(nodes)}")
    if len(nodes) == 1:
        return replace(first, topology=replace(first.topology, name=called))
    return Machine(join(first, len(nodes), called), None, first.remarks)


def _stated(machine: Machine) -> str:
    """All of a node but what it is called and what is known of its devices beside their links."""
    return to_toml(replace(machine.topology, name="node", summary="", source="", sms=0), machine.nics)
