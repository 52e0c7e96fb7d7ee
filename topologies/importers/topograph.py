"""Reader of YAML and JSON that state how a cluster's nodes are connected.

The forms are Slurm's topology.yaml (since 25.05); the files that NVIDIA topograph writes and is tested with
(topology.yaml, its models, its graphs, the labels that it gives to Kubernetes' nodes, a ConfigMap with a
topology.conf); and NetQ's map of links, which topograph reads. YAML needs the library PyYAML; JSON does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from topologies.errors import InputError
from topologies.importers.fabric import Fabric, Port, expand, natural_key
from topologies.importers.rates import USUAL_NIC_GBS
from topologies.importers.slurm import is_slurm, read_slurm
from topologies.importers.tree import FabricTree
from topologies.text.files import parse_json
from topologies.text.yaml_files import parse_yaml

_MOST_TOPOLOGIES = 1000  # Most topologies in a file of Slurm.
_YAML = re.compile(
    r"(?:[ \t]*+(?:#[^\n]*+|---[^\n]*+)?+\n)*+"
    r"(?:- *topology|topology|switches|blocks|instances|apiVersion|kind|items|data|metadata)\s*:(?:\s|$)"
)
_JSON = re.compile(r"\s*(?:\[\s*)?\{")
# Kubernetes' labels of the switches above a node, the nearest first: by topograph (two versions), AWS and Google.
_LABELS = (
    tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(10)),
    tuple(f"network.topology.nvidia.com/{word}" for word in ("leaf", "block", "spine", "core", "datacenter")),
    tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (3, 2, 1)),
    tuple(f"cloud.google.com/gce-topology-{word}" for word in ("subblock", "block")),
)
_DOMAINS = (
    "accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator", "nvidia.com/gpu.clique",
    "accelerator.topology.test/domain",
)  # fmt: skip
_RIGHT = "of Slurm, topograph, Kubernetes, NetQ, networkx, rocm-smi or amd-smi (synth topo import --help)"


def is_topograph(text: str) -> bool:
    """Return whether a text begins as a JSON object or a list of them, or as YAML of one of the forms that are read.

    The YAML's first key is then, for example, topology, switches, blocks, instances, apiVersion or kind.
    """
    return _JSON.match(text) is not None or _YAML.match(text) is not None


def read_topograph(text: str, origin: str) -> Fabric:
    """Read a file that states how nodes are connected, and return the fabric; its rates are assumed.

    The module lists the forms of such files.

    Raises:
        InputError: The text states no fabric, or it is YAML and PyYAML is not installed; the message is one line.
    """
    document = _loaded(text, origin)
    if isinstance(document, Mapping) and isinstance(document.get("data"), Mapping):  # This is a ConfigMap.
        texts = [
            (key, value) for key, value in document["data"].items() if isinstance(value, str) and "topology" in key
        ]
        if len(texts) != 1:
            raise InputError(
                f"{origin}: data: {len(texts)} keys that name a topology; it must be one, as topology.conf"
            )
        key, inner = texts[0]
        if is_slurm(inner):
            return read_slurm(inner, f"{origin}: {key[:40]}")
        document = _loaded(inner, f"{origin}: {key[:40]}")
    if isinstance(document, list):
        if document and isinstance(document[0], Mapping) and "links" in document[0]:
            return _of_links(document[0], origin)
        return _of_slurm(document, origin)
    if isinstance(document, Mapping):
        if "instances" in document:
            return _of_instances(_list(document, "instances", origin), origin)
        if "blocks" in document:
            return _of_model(document, origin)
        if "items" in document or document.get("kind") == "Node":
            items = _list(document, "items", origin) if "items" in document else [document]
            return _of_instances([_instance(item, f"{origin}: items[{i}]") for i, item in enumerate(items)], origin)
    raise InputError(f"{origin}: has no known form; it must be {_RIGHT}")


def _loaded(text: str, origin: str) -> Any:
    """Return the document of a JSON or YAML text, in which YAML's scalars stay texts.

    The text is JSON if it begins as an object or as a list of objects; any other is YAML.

    Raises:
        InputError: The text is neither, or is YAML that `parse_yaml` refuses.
    """
    return parse_json(text, origin, _RIGHT) if _JSON.match(text) else parse_yaml(text, origin)


def _of_slurm(document: list[Any], origin: str) -> Fabric:
    """Return the fabric of a topology.yaml.

    Of the topologies with a tree or blocks it is the cluster's default, else the first.

    Raises:
        InputError: There is none, or an entry of it is wrong.
    """
    if len(document) > _MOST_TOPOLOGIES:
        raise InputError(f"{origin}: {len(document)} topologies; it must be at most {_MOST_TOPOLOGIES}")
    tables = [
        (f"{origin}: topology {i + 1}", _table(entry, f"{origin}: entry {i + 1}")) for i, entry in enumerate(document)
    ]
    shaped = [(place, table) for place, table in tables if "tree" in table or "block" in table]
    if not shaped:
        raise InputError(f"{origin}: no tree and no block; it must be {_RIGHT}")
    place, table = next(
        (
            place_and_table
            for place_and_table in shaped
            if str(place_and_table[1].get("cluster_default")).lower() == "true"
        ),
        shaped[0],
    )
    tree = FabricTree(origin, joined="block" in table)
    if len(tables) > 1:
        tree.remarks.append(f"of {len(tables)} topologies {str(table.get('topology', '?'))[:60]!r} is read")
    kind, entries, word = ("block", "blocks", "block") if tree.joined else ("tree", "switches", "switch")
    for i, entry in enumerate(_list(_table(table[kind], f"{place}: {kind}"), entries, place)):
        at = f"{place}: {entries}[{i}]"
        row = _table(entry, at)
        name = _text(row, word, at)
        tree.add(name, at)
        for key in ("children", "nodes"):
            if row.get(key):
                tree.hang(expand(_text(row, key, at), at), name, at, nodes=key == "nodes")
    return tree.fabric(_RIGHT)


def _of_model(document: Mapping[str, Any], origin: str) -> Fabric:
    """Return the fabric of a topograph model.

    `switches` states the switches below each switch, `blocks` the nodes on a switch.

    Raises:
        InputError: An entry is wrong, or the switches and nodes make no tree.
    """
    tree = FabricTree(origin)
    for name, entry in _table(document.get("switches") or {}, f"{origin}: switches").items():
        at = f"{origin}: switches: {str(name)[:40]}"
        below = [str(item) for item in _list(_table(entry or {}, at), "switches", at)]
        tree.switches.setdefault(str(name), at)
        tree.hang(below, str(name), at, nodes=False)
    for i, entry in enumerate(_list(document, "blocks", origin)):
        at = f"{origin}: blocks[{i}]"
        row = _table(entry, at)
        switch = _text(row, "switch", at)
        tree.switches.setdefault(switch, at)
        names = [name for item in _list(row, "nodes", at) for name in expand(str(item), at)]
        tree.hang(names, switch, at, nodes=True)
    for leaf, spine in tree.above.items():  # Leaves need no entry of their own.
        tree.switches.setdefault(leaf, tree.switches[spine])
    return tree.fabric(_RIGHT)


def _instance(item: Any, at: str) -> dict[str, Any]:
    """Return a Kubernetes node as a mapping with `id`, `network_layers` and `labels`, as in a topograph graph.

    `network_layers` has the switches above the node by its labels, the nearest first; it is empty without such labels.

    Args:
        item: The node.
        at: Place of the node in errors.

    Raises:
        InputError: The node, its metadata or its labels are no mapping.
    """
    data = _table(_table(item, at).get("metadata"), f"{at}: metadata")
    labels = _table(data.get("labels") or {}, f"{at}: labels")
    layers = next((switches for keys in _LABELS if (switches := [labels[key] for key in keys if labels.get(key)])), [])
    return {"id": data.get("name"), "network_layers": layers, "labels": labels}


def _of_instances(instances: list[Any], origin: str) -> Fabric:
    """Return the fabric of nodes: the switches above each, the nearest first, or the domain of its accelerator.

    The domain counts where a node names no switch. Nodes that state neither are left out, with a remark.

    Raises:
        InputError: An entry is wrong, a node stands twice, or no node is left.
    """
    tree = FabricTree(origin, joined=True)
    unplaced = 0
    for i, entry in enumerate(instances):
        at = f"{origin}: instance {i + 1}"
        row = _table(entry, at)
        name = _text(row, "id", at)
        layers = [str(layer) for layer in _list(row, "network_layers", at) if layer]
        labels = _table(row.get("labels") or {}, f"{at}: labels")
        layers = layers or [str(labels[key]) for key in _DOMAINS if labels.get(key)][:1]
        if not layers:
            unplaced += 1
            continue
        if name in tree.nodes:
            raise InputError(f"{at}: {name[:40]} stands twice; it must be once")
        for layer in layers:
            tree.switches.setdefault(layer, at)
        tree.hang([name], layers[0], at, nodes=True)
        for below, above in pairwise(layers):
            tree.hang([below], above, at, nodes=False)
    if unplaced:
        tree.remarks.append(f"{unplaced} nodes are left out: they state no switch")
    return tree.fabric(_RIGHT)


def _of_links(document: Mapping[str, Any], origin: str) -> Fabric:
    """Return the fabric of NetQ's links: switches, hosts and the cables between them; a host has a port per cable.

    Raises:
        InputError: An entry is wrong, a cable does not lead to a switch, or there is no host.
    """
    devices: dict[str, str] = {}
    switches: set[str] = set()
    for i, tier in enumerate(_list(document, "nodes", origin)):
        at = f"{origin}: nodes[{i}]"
        for entry in _list(_table(tier, at), "compounded_nodes", at):
            row = _table(entry, at)
            name = devices[_text(row, "id", at)] = _text(row, "name", at)
            if row.get("device_type") == "switch":
                switches.add(name)
    net = Fabric(assumed_gbs=USUAL_NIC_GBS)
    for i, entry in enumerate(_list(document, "links", origin)):
        at = f"{origin}: links[{i}]"
        for cable in _list(_table(entry, at), "compounded_links", at):
            ends = [_table(interface, at) for interface in _list(_table(cable, at), "interfaces", at)]
            names = [devices.get(_text(end, "node", at), "") for end in ends]
            if len(names) != 2 or names[0] == names[1] or "" in names or not switches & set(names):
                raise InputError(
                    f"{at}: {' to '.join(names)[:60]!r} is no cable to a switch; it must join two of `nodes`, one of"
                    " them a switch"
                )
            if switches >= set(names):
                net.add_link(names[0], names[1], USUAL_NIC_GBS)
                continue
            host_end = 0 if names[1] in switches else 1
            port = Port(_text(ends[host_end], "interface", at), names[1 - host_end], USUAL_NIC_GBS)
            net.hosts.setdefault(names[host_end], []).append(port)
    if not net.hosts:
        raise InputError(f"{origin}: no host is on a switch; it must be {_RIGHT}")
    net.hosts = {
        host: sorted(net.hosts[host], key=lambda port: natural_key(port.name))
        for host in sorted(net.hosts, key=natural_key)
    }
    net.remarks.append(f"cables are read; {USUAL_NIC_GBS:g} GB/s per cable, or the rate of a host's NICs, is assumed")
    return net


def _table(value: Any, place: str) -> Mapping[str, Any]:
    """Return the value, or raise InputError where it is no mapping."""
    if not isinstance(value, Mapping):
        raise InputError(f"{place}: is no mapping; it must be one, as in {_RIGHT}")
    return value


def _list(table: Mapping[str, Any], key: str, place: str) -> list[Any]:
    """Return the list of `key`, empty where it is missing, or raise InputError where it is no list."""
    value = table.get(key)
    if value is not None and not isinstance(value, list):
        raise InputError(f"{place}: {key} is no list; it must be one, as in {_RIGHT}")
    return value or []


def _text(table: Mapping[str, Any], key: str, place: str) -> str:
    """Return the text of `key`, or raise InputError where it is no printable text."""
    value = table.get(key)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InputError(f"{place}: {key} is no text; it must be one, as in {_RIGHT}")
    return value
