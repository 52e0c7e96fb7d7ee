"""Machines of P² (MLSys 2022): nodes of 16 A100 (NVSwitch) or 8 V100 (a ring of NVLinks), with one NIC a node.

The paper's own figures are not at hand. Links have their published bandwidths, and the NIC has 100 Gbit/s. α is
assumed, and so is the PCIe path between V100 that are not neighbours on the ring.
"""

from __future__ import annotations

import numpy as np

from topologies.clusters import Machine, Nics, join
from topologies.topology import Topology

NIC_GBS, NIC_US = 12.5, 10.0
SWITCH_GBS, SWITCH_US = 300.0, 0.35  # 12 NVLinks of an A100.
RING_GBS, RING_US = 75.0, 0.7  # Three of a V100's 6 NVLinks go to each neighbour.
PCIE_GBS, PCIE_US = 13.0, 2.5
Links = tuple[np.ndarray, np.ndarray, float, float]  # from, to (both ways), GB/s, µs


def a100(nodes: int, nic_gbs: float = NIC_GBS) -> Topology:
    """Return a cluster of nodes with 16 A100."""
    ranks = np.arange(16)
    return _cluster("p2-a100", "nvswitch", 16, [(ranks, np.full(16, 16), SWITCH_GBS, SWITCH_US)], nodes, nic_gbs)


def v100(nodes: int, nic_gbs: float = NIC_GBS) -> Topology:
    """Return a cluster of nodes with 8 V100."""
    ranks = np.arange(8)
    ring, pcie = (ranks, np.roll(ranks, -1), RING_GBS, RING_US), (ranks, np.full(8, 8), PCIE_GBS, PCIE_US)
    return _cluster("p2-v100", "pcie", 8, [ring, pcie], nodes, nic_gbs)


MACHINES = {"16 A100": a100, "8 V100": v100}


def _cluster(name: str, switch: str, nranks: int, links: list[Links], nodes: int, nic_gbs: float) -> Topology:
    """Return a cluster of equal nodes, each with its links and one NIC."""
    node = Topology(
        name=name,
        nranks=nranks,
        switches=(switch,),
        link_src=np.concatenate([end for a, b, _, _ in links for end in (a, b)]),
        link_dst=np.concatenate([end for a, b, _, _ in links for end in (b, a)]),
        alpha_us=np.concatenate([np.full(2 * len(a), us) for a, _, _, us in links]),
        bandwidth_gbs=np.concatenate([np.full(2 * len(a), gbs) for a, _, gbs, _ in links]),
        alpha_assumed=True,
    )
    ranks = np.arange(nranks)
    nics = Nics(sends=(ranks,), receives=(ranks,), gbs=nic_gbs, alpha_us=NIC_US, assumed=True, fabrics=1)
    return join(Machine(node, nics), nodes, f"{name}:{nodes}")
