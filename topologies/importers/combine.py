"""Import of several files as one topology: dumps of a cluster's nodes, or of one node by two tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from topologies.clusters import Machine, join
from topologies.compare import compare
from topologies.errors import InputError
from topologies.importers import MAX_FILE_BYTES, TOPOLOGY_FORMATS, format_of
from topologies.importers.fabric import Dumped, Fabric, Port, ports_of
from topologies.importers.nvidia_smi import is_status
from topologies.text.files import origin_of, read_text
from topologies.text.writer import to_toml

_MOST_FILES = 4096
_ASSIGNS = re.compile(r"^[ \t]*[\w-]{1,40}[ \t]*=", re.MULTILINE)  # An assignment, as TOML has it.
_SWITCH = "fabric"  # Name of the assumed switch that joins nodes.


def import_files(paths: Sequence[str | Path], name: str | None = None, node: Machine | None = None) -> Machine:
    """Return one machine from the dumps of its nodes, which their NICs join.

    A status of NVLinks belongs to the matrix that is given with it. With a fabric's file and one node's file, or
    `node`, each host of the fabric is that node. With a fabric's file and several nodes' files, each NIC is on its own
    port. A single file gives its own machine, with its NICs; every other result has none. Several nodes without a
    fabric are joined as `clusters.join` does where they are alike, else by one assumed switch.

    Args:
        paths: The files, at least one.
        name: Name of the machine; None: the fabric's file, or the first node (with the number of nodes after a colon).
        node: The node that each host of a fabric is, given with the fabric's file only; None: no such node.

    Raises:
        InputError: A file cannot be read or has no known format, the files do not go together, a simulator's file is
            not the only one, a node has no NICs, or the fabric does not have a node's NICs; one line.
    """
    if not 1 <= len(paths) <= _MOST_FILES:
        raise InputError(f"{len(paths)} files; it must be 1 to {_MOST_FILES}")
    texts = {path: read_text(path, "what a tool prints of a machine", MAX_FILE_BYTES) for path in map(Path, paths)}
    networks = [path for path, text in texts.items() if format_of(text).is_network]
    if networks and (node is not None or len(texts) > 1):
        companion = "another file" if len(texts) > 1 else "--node"
        raise InputError(
            f"{origin_of(networks[0])}: is a simulator's file, which states a whole network, with {companion}; it must"
            " be imported by itself"
        )
    fabrics = [path for path, text in texts.items() if format_of(text).is_fabric]
    node_texts = {path: text for path, text in texts.items() if path not in fabrics}
    if fabrics and (node is not None or len(texts) > 1):
        fabric, *other_fabrics = fabrics
        if other_fabrics or (node is not None) == (len(node_texts) > 0):
            raise InputError(
                f"{origin_of(fabric)}: with {len(texts) - 1} other files{' and a node' if node else ''}; it must be one"
                " fabric and its nodes, or --node"
            )
        machine_name, net = (
            name or fabric.stem or "fabric",
            format_of(texts[fabric]).read(texts[fabric], origin_of(fabric)),
        )
        assert isinstance(net, Fabric)
        nodes = _read_nodes(node_texts) if node is None else [(fabric, node)]
        if len(nodes) == 1:
            return net.cluster(nodes[0][1], machine_name, origin_of(fabric))
        dumps = [Dumped(origin_of(path), path.stem, machine) for path, machine in nodes]
        return net.join(dumps, machine_name, origin_of(fabric))
    if node is not None:
        raise InputError(
            f"--node: {origin_of(next(iter(texts)))} is no fabric; it must be with one, as of ibnetdiscover"
        )
    return _side_by_side(_read_nodes(texts), name)


def _read_nodes(texts: Mapping[Path, str]) -> list[tuple[Path, Machine]]:
    """Return (file, machine) of each file; a matrix and the status that is given with it are one machine.

    Raises:
        InputError: A text has no known format or states no machine.
    """
    status = [path for path, text in texts.items() if is_status(text)]
    if len(status) == 1 and len(texts) == 2:
        (matrix,) = texts.keys() - set(status)
        texts = {matrix: f"{texts[matrix]}\n{texts[status[0]]}"}
    for path, text in texts.items():
        if format_of(text) is TOPOLOGY_FORMATS[-1] and not _ASSIGNS.search(text):  # The text is no TOML either.
            raise InputError(
                f"{origin_of(path)}: is of no known format; it must be what a tool prints of a machine, as synth topo "
                "import --help lists"
            )
    return [(path, format_of(text).machine(text, origin_of(path))) for path, text in texts.items()]


def _side_by_side(nodes: Sequence[tuple[Path, Machine]], name: str | None) -> Machine:
    """Return the machine of one node as it is, or of several nodes, joined as `import_files` says.

    Raises:
        InputError: There are several nodes and one has no NICs, or the cluster would be too large.
    """
    (path, first), *other_nodes = nodes
    machine_name = name or (f"{first.topology.name}:{len(nodes)}" if other_nodes else first.topology.name)
    if not other_nodes:
        return replace(first, topology=replace(first.topology, name=machine_name))
    different = [(node_path, machine) for node_path, machine in other_nodes if _stated(machine) != _stated(first)]
    if not different:
        return Machine(join(first, len(nodes), machine_name), None, first.remarks)
    net = Fabric()
    dumps: list[Dumped] = []
    for i, (node_path, machine) in enumerate(nodes):
        if machine.nics is None:
            raise InputError(
                f"{origin_of(node_path)}: states no NICs that could join it to other nodes; it must state them"
            )
        net.hosts[f"node {i}"] = [
            Port(nic.name, _SWITCH, machine.nics.gbs / len(physical_nics))
            for physical_nics in ports_of(machine.nics)
            for nic in physical_nics
        ]
        dumps.append(Dumped(origin_of(node_path), f"node {i}", machine))
    for node_path, machine in different:
        differences = compare(machine, first)
        difference = differences[0] if differences else "other links"
        net.remarks.append(f"{origin_of(node_path)} is not like {origin_of(path)}: {difference}")
    return net.join(dumps, machine_name, origin_of(path))


def _stated(machine: Machine) -> str:
    """Return the text form of a node, by which nodes are compared.

    The name, summary and source, the properties of devices, and the platform are left out; links and NICs stay.
    """
    return to_toml(
        replace(machine.topology, name="node", summary="", source="", sms=0, compute_capability=0, gcn="", platform=""),
        machine.nics,
    )
