"""The registry of file formats that state a topology.

A new format is a reader in this folder (or in `simulators`, for what a simulator takes as input) and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from topologies.clusters import Machine
from topologies.graphs import is_graph_text, read_graph
from topologies.importers.amd_smi import is_amd_smi, read_amd_smi
from topologies.importers.fabric import Fabric
from topologies.importers.ibnetdiscover import is_ibnetdiscover, read_ibnetdiscover
from topologies.importers.nccl_xml import is_nccl_xml, read_nccl_xml
from topologies.importers.node import Node
from topologies.importers.nvidia_smi import is_nvidia_smi, read_nvidia_smi
from topologies.importers.rocm_smi import is_rocm_smi, read_rocm_smi
from topologies.importers.simulators.astra_sim import is_astra_sim, read_astra_sim
from topologies.importers.simulators.netgraph import is_netgraph, read_netgraph
from topologies.importers.simulators.ns3 import is_ns3, read_ns3
from topologies.importers.simulators.taccl import is_taccl, read_taccl
from topologies.importers.simulators.te_ccl import is_te_ccl, read_te_ccl
from topologies.importers.slurm import is_slurm, read_slurm
from topologies.importers.topograph import is_topograph, read_topograph
from topologies.text.reader import read_machine

MAX_FILE_BYTES = 16 * 2**20  # Largest file that states a topology.


@dataclass(frozen=True)
class TopologyFormat:
    r"""A format of files that state a topology.

    Attributes:
        name: Name of the format in error messages.
        suffix: End of the names of such files ("" for none); a topology's name that ends so is a file.
        matches: Function that returns whether a text (UTF-8, line ends \n) has this format, by its content.
        read: Function that reads a machine, a node or a fabric from a text and its name in errors, and raises
            InputError.
        is_fabric: Whether `read` returns a fabric.
        is_network: Whether a file states a whole network, which no other file completes.
    """

    name: str
    suffix: str
    matches: Callable[[str], bool]
    read: Callable[[str, str], Machine | Node | Fabric]
    is_fabric: bool = False
    is_network: bool = False

    def machine(self, text: str, origin: str) -> Machine:
        """Return the machine of a text, a fabric as one with a rank for each port of each host.

        Args:
            text: The text, which should be of this format.
            origin: Name of the text in errors, usually its path, whose stem names a node or fabric.

        Raises:
            InputError: The text states no machine; the message is one line that names `origin`.
        """
        content = self.read(text, origin)
        if isinstance(content, Machine):
            return content
        return content.machine(Path(origin).stem or ("fabric" if self.is_fabric else "node"), origin)


# The first format that matches reads the file. TOML is the last, and its reader reports the errors of unknown texts.
TOPOLOGY_FORMATS: list[TopologyFormat] = [
    TopologyFormat("GraphML, GML or node-link JSON", ".graphml", is_graph_text, read_graph),
    TopologyFormat("NCCL's or RCCL's XML", ".xml", is_nccl_xml, read_nccl_xml),
    TopologyFormat("ibnetdiscover", "", is_ibnetdiscover, read_ibnetdiscover, is_fabric=True),
    TopologyFormat("Slurm's topology.conf", ".conf", is_slurm, read_slurm, is_fabric=True),
    TopologyFormat("topology of SimAI or ns-3", "", is_ns3, read_ns3, is_network=True),
    TopologyFormat("network of ASTRA-sim", ".yml", is_astra_sim, read_astra_sim, is_network=True),
    TopologyFormat("input of TE-CCL", "", is_te_ccl, read_te_ccl, is_network=True),
    TopologyFormat("topology of TACCL", ".json", is_taccl, read_taccl),
    TopologyFormat("scenario of NetGraph", "", is_netgraph, read_netgraph, is_network=True),
    TopologyFormat("rocm-smi --showtopo", "", is_rocm_smi, read_rocm_smi),
    TopologyFormat("amd-smi topology", "", is_amd_smi, read_amd_smi),
    TopologyFormat(
        "YAML or JSON of a cluster (Slurm, topograph)", ".yaml", is_topograph, read_topograph, is_fabric=True
    ),
    TopologyFormat("nvidia-smi topo -m", ".txt", is_nvidia_smi, read_nvidia_smi),
    TopologyFormat("TOML", ".toml", lambda _: True, read_machine),
]


def format_of(text: str) -> TopologyFormat:
    """Return the format of a file's text; TOML, whose reader reports the error, where no format matches."""
    return next(row for row in TOPOLOGY_FORMATS if row.matches(text))
