"""The machines of P² (MLSys 2022): nodes of 16 A100 (NVSwitch) or 8 V100 (a ring of NVLinks), one NIC a node.

The paper's own figures are not at hand: GPUs have their published bandwidths, the NIC 100 Gbit/s; α is assumed.
"""

from __future__ import annotations

import numpy as np

from topologies.clusters import Machine, Nics, join
from topologies.topology import Topology

NIC_GBS = 12.5
SWITCH_GBS = 300.0  # an A100's 12 NVLinks
RING_GBS = 50.0  # two NVLinks of a V100 to either neighbour
NVLINK_US, NIC_US = 0.7, 2.6


def a100(nodes: int, nic_gbs: float = NIC_GBS) -> Topology:
    """Nodes of 16 A100."""
    ranks = np.arange(16)
    return _cluster("p2-a100", ranks, np.full(16, 16), ("nvswitch",), SWITCH_GBS, NVLINK_US / 2, nodes, nic_gbs)


def v100(nodes: int, nic_gbs: float = NIC_GBS) -> Topology:
    """Nodes of 8 V100."""
    ranks = np.arange(8)
    return _cluster("p2-v100", ranks, np.roll(ranks, -1), (), RING_GBS, NVLINK_US, nodes, nic_gbs)


def _cluster(
    name: str, a: np.ndarray, b: np.ndarray, switches: tuple[str, ...], gbs: float, alpha: float, nodes: int, nic: float
) -> Topology:
    links = 2 * len(a)
    one = Topology(
        name=name,
        nranks=len(a),
        switches=switches,
        link_src=np.concatenate([a, b]),
        link_dst=np.concatenate([b, a]),
        alpha_us=np.full(links, alpha),
        bandwidth_gbs=np.full(links, gbs),
        alpha_assumed=True,
    )
    ranks = np.arange(len(a))
    nics = Nics(sends=(ranks,), receives=(ranks,), gbs=nic, alpha_us=NIC_US, assumed=True, fabrics=1)
    return join(Machine(one, nics), nodes, f"{name}:{nodes}")
