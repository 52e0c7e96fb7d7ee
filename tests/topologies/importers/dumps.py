"""Dumps of made-up machines in the forms of the tools that print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def smi(cells: Sequence[Sequence[str]], names: Sequence[str] | None = None, numa: Sequence[int] | None = None) -> str:
    """Return the text of `nvidia-smi topo -m` for a square of cells.

    Args:
        cells: Cells by row and column.
        names: Names of the devices; None: GPU0, GPU1, ...
        numa: NUMA node of each device; None: the text has no such column.
    """
    names = names or [f"GPU{i}" for i in range(len(cells))]
    affinity_titles = "\tCPU Affinity\tNUMA Affinity" if numa is not None else ""
    lines = ["\t" + "\t".join(names) + affinity_titles]
    for i, (name, row) in enumerate(zip(names, cells, strict=True)):
        affinity_cells = f"\t0-7\t{numa[i]}" if numa is not None and i < len(numa) else ""
        lines.append(name + "\t" + "\t".join(" X " if cell == "X" else cell for cell in row) + affinity_cells)
    return "\n".join(lines) + "\n" + LEGEND


def mesh(count: int, cell: str) -> list[list[str]]:
    """Return a square of equal cells."""
    return [["X" if i == j else cell for j in range(count)] for i in range(count)]


def gpu(busid: str, dev: int, links: str = "", sm: int = 90) -> str:
    """Return a device on 16 lanes of PCIe 5."""
    return (
        f'<pci busid="{busid}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{dev}" sm="{sm}" rank="{dev}">{links}</gpu></pci>'
    )


def nic(busid: str, name: str, mbps: int) -> str:
    """Return a NIC on 16 lanes of PCIe 5."""
    return (
        f'<pci busid="{busid}" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<nic><net name="{name}" dev="0" speed="{mbps}" port="1"/></nic></pci>'
    )


def switch(busid: str, *inside: str, speed: str = "32.0 GT/s PCIe") -> str:
    """Return a PCIe switch."""
    return f'<pci busid="{busid}" class="0x060400" link_speed="{speed}" link_width="16">{"".join(inside)}</pci>'


def cpu(numa: int, *inside: str, vendor: str = "GenuineIntel", model: int = 143, host: str = "") -> str:
    """Return a NUMA node."""
    host_hash = f' host_hash="{host}"' if host else ""
    return f'<cpu numaid="{numa}" arch="x86_64" vendor="{vendor}" modelid="{model}"{host_hash}>{"".join(inside)}</cpu>'


def system(*cpus: str) -> str:
    """Return a complete dump."""
    return f'<system version="1">\n{chr(10).join(cpus)}\n</system>\n'


def rocm(kind: Sequence[Sequence[str]], weight: Sequence[Sequence[int]], numa: Mapping[int, int]) -> str:
    """Return the text of `rocm-smi --showtopo`."""
    names = [f"GPU{i}" for i in range(len(kind))]
    text = "====== ROCm System Management Interface ======\nWARNING: a device is asleep\n"
    for title, table in (("Weight between two GPUs", weight), ("Link Type between two GPUs", kind)):
        text += f"\n===== {title} =====\n       {'  '.join(names)}\n"
        text += "".join(f"{name}   {'   '.join(map(str, row))}\n" for name, row in zip(names, table, strict=True))
    lines = (f"GPU[{rank}]\t\t: (Topology) Numa Node: {node}\n" for rank, node in numa.items())
    return text + "\n===== Numa Nodes =====\n" + "".join(lines)
