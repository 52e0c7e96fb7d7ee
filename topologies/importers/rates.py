"""The rates of links by kind, for tools that print kinds and widths but no rates.

They are in GB/s of one link, per direction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Rates by compute capability; from NVIDIA's data sheets.
NVLINK_GBS = {60: 20.0, 70: 25.0, 72: 25.0, 75: 25.0, 80: 25.0, 86: 14.0625, 90: 25.0, 100: 50.0, 103: 50.0}
BLACKWELL = re.compile(r"\bG?B[123]00\b")  # Names of devices of compute capability 10.
NVLINKS = 18  # The most NVLinks of any device; where a matrix states more in all, they lead to a switch.
BRIDGED_LINKS, BRIDGED_GBS = 4, 14.0625  # Workstation cards (GA102) have four links, all to one other card.
USUAL_NVLINK_GBS = 25.0
SMS = {70: 80, 80: 108, 90: 132, 100: 148, 103: 152}  # SMs of the largest device by compute capability.
# Rates by the number after gfx (RCCL writes gfx90a as 910); from AMD's data sheets.
XGMI_GBS = {"906": 46.0, "908": 46.0, "90a": 50.0, "910": 50.0, "940": 64.0, "941": 64.0, "942": 64.0, "950": 76.8}
USUAL_XGMI_GBS = 50.0
MESH_XGMI_GBS = 64.0  # Eight devices that are all joined pairwise, as MI300X are.
USUAL_PCIE_GBS = 16 * 16 * 128 / 130 / 8  # 16 lanes of the fourth generation.
USUAL_SMP_GBS = 16.0
USUAL_NIC_GBS = 25.0
# Latencies in µs, none of them published: an NVLink or xGMI link (half of it to or from a switch); a PCIe link at a
# device, and between switches; from rank to rank over the network.
FAST_ALPHA_US, PCIE_ALPHA_US, INNER_ALPHA_US, NIC_ALPHA_US = 0.7, 0.5, 0.1, 2.6

_GT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s\b.*")


def pcie_gbs(speed: str, width: str) -> float | None:
    """Return the GB/s of a PCIe link per direction, or None where its speed or width says nothing.

    Args:
        speed: The generation's speed, such as `16.0 GT/s PCIe`.
        width: Number of lanes.
    """
    rate = _GT.fullmatch(speed)
    if rate is None or not re.fullmatch(r"[0-9]{1,2}", width) or not int(width):
        return None
    transfers = float(rate[1])
    coded = 0.8 if transfers < 8 else 128 / 130 if transfers < 64 else 242 / 256
    return transfers * coded * int(width) / 8 or None


def xgmi_gbs(gcn: str) -> float | None:
    """Return the GB/s of one xGMI link per direction by the device's `gcn`, or None where that is unknown.

    `gcn` is as tools print it: gfx942, 942 or gfx942:sramecc+.
    """
    return XGMI_GBS.get(gcn.removeprefix("gfx").split(":")[0])


def smp_gbs(cpu: Mapping[str, str]) -> float:
    """Return the GB/s between two NUMA nodes per direction, as NCCL assumes it (graph/topo.h).

    Args:
        cpu: Attributes arch, vendor and modelid of a <cpu> element; without any, a usual rate is returned.
    """
    vendor, model = cpu.get("vendor", ""), cpu.get("modelid", "")
    if cpu.get("arch") == "ppc64":
        return 32.0
    if cpu.get("arch") == "arm64":
        return 6.0
    if vendor == "GenuineIntel" and model.isdigit():
        number = int(model)
        return 40.0 if number >= 173 else 22.0 if number >= 143 else 10.0 if number >= 85 else 6.0
    return 16.0 if vendor == "AuthenticAMD" else 6.0 if vendor else USUAL_SMP_GBS
