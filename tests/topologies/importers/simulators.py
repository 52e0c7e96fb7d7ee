"""Files of made-up networks in the forms that simulators and other synthesizers read."""

from __future__ import annotations

import json
from collections.abc import Sequence

Link = tuple[int, int, str, str]


def ns3(nodes: int, switches: Sequence[int], links: Sequence[Link], servers: tuple[int, int, str] | None = None) -> str:
    """Return a topology of ns-3, or SimAI's with `servers` (GPUs a server, number of NVSwitches, type of the GPUs)."""
    counts: tuple[object, ...] = (nodes, len(switches), len(links))
    if servers is not None:
        counts = (nodes, servers[0], servers[1], len(switches) - servers[1], len(links), servers[2])
    rows = [counts, switches, *((*link, 0) for link in links)]
    return "\n".join(" ".join(map(str, row)) for row in rows) + "\n"


def rails(
    servers: int,
    size: int = 8,
    planes: int = 2,
    segment: int = 128,
    spines: int = 60,
    omit: Sequence[int] = (),
    port: str = "200Gbps",
) -> str:
    """Return SimAI's file of a rail-optimised fabric.

    GPU i of each server in a segment is on leaf i of that segment in every plane, and each leaf is on all spines of its
    plane.

    Args:
        servers: Number of servers.
        size: Number of GPUs of a server.
        planes: Number of planes; a GPU has a port in each.
        segment: Number of servers of a segment.
        spines: Number of spines of a plane.
        omit: Numbers of uplinks, in their order, that are missing.
        port: Rate of a GPU's port.
    """
    gpus, segments = servers * size, -(-servers // segment)
    leaf, leaves = gpus + servers, planes * segments * size
    links: list[Link] = []
    for gpu in range(gpus):
        server, rail = divmod(gpu, size)
        links.append((gpu, gpus + server, "2880Gbps", "0.000025ms"))
        links += [
            (gpu, leaf + (plane * segments + server // segment) * size + rail, port, "0.0005ms")
            for plane in range(planes)
        ]
    uplinks = [
        (leaf + i, leaf + leaves + i // (segments * size) * spines + j, "400Gbps", "500ns")
        for i in range(leaves)
        for j in range(spines)
    ]
    links += [link for i, link in enumerate(uplinks) if i not in omit]
    nodes = leaf + leaves + planes * spines
    return ns3(nodes, range(gpus, nodes), links, (size, servers, "H100"))


def racks(
    servers: int, size: int = 8, segment: int = 4, spines: int = 2, port: str = "100Gbps", server: str = "2400Gbps"
) -> str:
    """Return SimAI's file of a fabric in which all GPUs of a segment of servers are on one leaf (DCN+).

    `port` and `server` are the rates of a GPU's links to the leaf and to the switch of its server.
    """
    gpus, leaves = servers * size, -(-servers // segment)
    leaf = gpus + servers
    links: list[Link] = []
    for gpu in range(gpus):
        links.append((gpu, gpus + gpu // size, server, "0.000025ms"))
        links.append((gpu, leaf + gpu // size // segment, port, "0.0005ms"))
    links += [(leaf + i, leaf + leaves + j, "400Gbps", "0.0005ms") for i in range(leaves) for j in range(spines)]
    nodes = leaf + leaves + spines
    return ns3(nodes, range(gpus, nodes), links, (size, servers, "A100"))


def taccl_pairs() -> str:
    """Return TACCL's file of two pairs of GPUs, 0 and 1 and 2 and 3, which nothing joins."""
    links = [[int(i // 2 == j // 2 and i != j) for j in range(4)] for i in range(4)]
    betas = [[20 * count for count in row] for row in links]
    return json.dumps({"name": "pairs", "gpus_per_node": 4, "alpha": 1, "links": links, "betas": betas})


STAR = "5 1 4\n4\n0 4 100Gbps 1us 0\n1 4 100Gbps 1us 0\n2 4 100Gbps 1us 0\n3 4 100Gbps 1us 0\n"
ASTRA = "# GPUs\ntopology: [ Ring, FullyConnected, Switch ]\nnpus_count: [ 3, 2, 2 ]\nbandwidth: [ 200.0, 100, 5e1 ]\n"
ASTRA += "latency: [ 50.0, 500.0, 2000.0 ]  # ns\n"
OLDER_ASTRA = (
    '{"topology-name": "Hierarchical", "topologies-per-dim": ["Ring", "AllToAll", "Switch"], "dimensions-count": 3,'
    ' "units-count": [4, 3, 2], "links-count": [4, 2, 3], "link-latency": [500, 100, 200],'
    ' "link-bandwidth": [10, 20, 30], "nic-latency": [0, 5, 50], "router-latency": [0, 0, 20], "hbm-scale": [0, 0, 0]}'
)
TACCL = (
    '{"name": "box_1MB", "gpus_per_node": 4, "nics_per_node": 2, "alpha": 0.5, "node_betas_list": [8],'
    ' "node_invbws_list": [8], "remote_alpha": 2.5, "remote_beta": 100, "remote_invbw": 102.5}'
)
TACCL_NDV2 = (
    '{"name": "eight", "gpus_per_node": 8, "alpha": 0.7, "node_betas_list": [20, 40], "node_invbws_list": [20, 40]}'
)
TACCL_MATRICES = (
    '{"name": "chain", "gpus_per_node": 3, "alpha": 1, "links": [[0, 0, 0], [2, 0, 0], [0, 1, 0]],'
    ' "betas": [[0, 0, 0], [40, 0, 0], [0, 50.0, 0]], "invbws": [[0, 0, 0], [41, 0, 0], [0, 51, 0]]}'
)
TE_CCL = '{"TopologyParams": {"name": "NDv2", "chassis": 2, "chunk_size": 0.0625}, "InstanceParams": {}}'
NETGRAPH = """
# two racks below two spines
blueprints:
  rack:
    nodes:
      server: {count: 2, template: "srv-{n}", attrs: {role: server}}
      tor: {}
    links:
      - {source: /server, target: /tor, pattern: mesh, capacity: 100}
network:
  name: pod
  nodes:
    rack[1-2]: {blueprint: rack, params: {server.count: 3}}
    spine: {count: 2}
  links:
    - {source: "rack[1-2]/tor", target: {path: ^spine/}, capacity: 200, count: 2, cost: 1}
"""
OLDER_NETGRAPH = """
network:
  groups:
    a: {node_count: 2, name_template: "a-{node_num}"}
    b: {node_count: 4}
  adjacency:
    - {source: /a, target: /b, pattern: one_to_one, link_params: {capacity: 80, cost: 1}}
    - {source: a/a-1, target: a/a-2, link_params: {capacity: 8}}
"""
FILES = [rails(2, 2, 2, 2, 2), racks(2, 2, 1, 2), STAR, ASTRA, OLDER_ASTRA, TACCL, TACCL_NDV2, TACCL_MATRICES, TE_CCL]
FILES += [NETGRAPH, OLDER_NETGRAPH]
