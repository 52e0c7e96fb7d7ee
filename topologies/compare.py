"""How two topologies differ: what a measured or imported one lacks or has beside one that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from topologies.clusters import Machine
from topologies.network import network
from topologies.topology import Topology

_SHOWN = 4  # different figures in a line
_DIGITS = 4  # to which figures are the same


def compare(one: Machine, other: Machine) -> list[str]:
    """A line for each thing in which they differ, with both sides' figures; none where all is alike.

    Ranks, devices, what leaves a rank, links from rank to rank, limits that these share, and NICs; not α and names.
    """
    lines: list[str] = []
    looks: tuple[tuple[str, Callable[[Machine], str]], ...] = (
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
    for what, look in looks:
        here, there = look(one), look(other)
        if here != there:
            lines.append(f"{what}: {here} in {one.topology.name}, {there} in {other.topology.name}")
    return lines


def _leaving(topology: Topology) -> str:
    """GB/s over all links of a rank."""
    out = np.bincount(topology.link_src, weights=topology.bandwidth_gbs, minlength=topology.nvertices)
    return _counted([f"{gbs:.{_DIGITS}g} GB/s" for gbs in out[: topology.nranks]])


def _links(topology: Topology) -> str:
    if topology.nranks < 2 or not topology.nlinks:
        return "none"
    net = network(topology, range(topology.nranks))
    shared = np.bincount(net.uses_idx, minlength=net.nresources)[net.uses_idx] > 1
    alone = np.ones(net.nlinks, dtype=bool)
    alone[net.link_of_use[shared]] = False
    words = np.where(alone, "", " shared").tolist()
    return _counted([f"{gbs:.{_DIGITS}g} GB/s{word}" for gbs, word in zip(net.bandwidth_gbs, words, strict=True)])


def _nics(machine: Machine) -> str:
    nics = machine.nics
    if nics is None:
        return "none"
    ranks = _counted([str(len(served)) for served in nics.sends])
    return f"{len(nics.sends)} of {nics.gbs:.{_DIGITS}g} GB/s (ranks a NIC: {ranks})"


def _counted(figures: list[str]) -> str:
    counts = Counter(figures).most_common()
    listed = [f"{count} × {figure}" for figure, count in counts[:_SHOWN]]
    return ", ".join(listed) + (f" and {len(counts) - _SHOWN} other figures" if len(counts) > _SHOWN else "")
