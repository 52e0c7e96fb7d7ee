"""Comparison of two topologies, such as a measured or imported one and a known one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from topologies.clusters import Machine
from topologies.network import network
from topologies.topology import Topology

_SHOWN = 4  # different figures per line
_DIGITS = 4  # significant digits by which figures are compared


def compare(first: Machine, second: Machine) -> list[str]:
    """Return a line with the figures of each machine for every property in which the machines differ.

    The properties are ranks, chassis, devices, bandwidth out of a rank, links from rank to rank, whether these share
    limits, NICs, and switches that multicast or reduce, in this order, but not α and names. GB/s are compared to four
    digits, and only in number: which ranks have them does not matter. The list is empty where all properties agree.
    """
    lines: list[str] = []
    properties: tuple[tuple[str, Callable[[Machine], str]], ...] = (
        ("ranks", lambda machine: str(machine.topology.nranks)),
        ("chassis", lambda machine: str(len(np.unique(machine.topology.nodes)))),
        ("SMs a device", lambda machine: str(machine.topology.sms or "not known")),
        ("compute capability", lambda machine: str(machine.topology.compute_capability or "not known")),
        ("architecture", lambda machine: machine.topology.gcn or "not known"),
        ("platform", lambda machine: machine.topology.platform or "not known"),
        ("out of a rank", lambda machine: _leaving(machine.topology)),
        ("links from rank to rank", lambda machine: _links(machine.topology)),
        ("NICs", _nics),
        ("switches that multicast or reduce", lambda machine: str(len(machine.topology.switch_ops) or "none")),
    )
    for label, describe in properties:
        first_figure, second_figure = describe(first), describe(second)
        if first_figure != second_figure:
            lines.append(f"{label}: {first_figure} in {first.topology.name}, {second_figure} in {second.topology.name}")
    return lines


def _leaving(topology: Topology) -> str:
    """Return how many ranks send how many GB/s in all over their links, as text such as "8 × 300 GB/s"."""
    out = np.bincount(topology.link_src, weights=topology.bandwidth_gbs, minlength=topology.nvertices)
    return _counted([f"{gbs:.{_DIGITS}g} GB/s" for gbs in out[: topology.nranks]])


def _links(topology: Topology) -> str:
    """Return how many links from rank to rank have which bandwidth, as text such as "56 × 25 GB/s"; "none" for none.

    A bandwidth is followed by "shared" for links that use a resource that another link uses too.
    """
    if topology.nranks < 2 or not topology.nlinks:
        return "none"
    net = network(topology, range(topology.nranks))
    shared = np.bincount(net.uses_idx, minlength=net.nresources)[net.uses_idx] > 1
    unshared = np.ones(net.nlinks, dtype=bool)
    unshared[net.link_of_use[shared]] = False
    suffixes = np.where(unshared, "", " shared").tolist()
    return _counted(
        [f"{gbs:.{_DIGITS}g} GB/s{suffix}" for gbs, suffix in zip(net.bandwidth_gbs, suffixes, strict=True)]
    )


def _nics(machine: Machine) -> str:
    """Return as text how many NICs a machine has, with which bandwidth, and how many ranks share one; or "none"."""
    nics = machine.nics
    if nics is None:
        return "none"
    ranks = _counted([str(len(served)) for served in nics.sends])
    return f"{len(nics.sends)} of {nics.gbs:.{_DIGITS}g} GB/s (ranks a NIC: {ranks})"


def _counted(figures: list[str]) -> str:
    """Return the most frequent figures with their counts, as in "8 × 300 GB/s, 2 × 50 GB/s", the most frequent first.

    After four different figures the text ends in the number of others.
    """
    counts = Counter(figures).most_common()
    listed = [f"{count} × {figure}" for figure, count in counts[:_SHOWN]]
    return ", ".join(listed) + (f" and {len(counts) - _SHOWN} other figures" if len(counts) > _SHOWN else "")
