"""The links, ranks, switches and limits of a topology that a fault names, and what to say where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from topologies.arrays import Ints
from topologies.errors import InputError, did_you_mean
from topologies.faults.notation import Fault
from topologies.text.fields import shown
from topologies.text.vertex_sets import format_set
from topologies.topology import Topology, is_switch_name

_LINK = "it must be link:3-5, or link:3>5 for one direction"
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def touched_links(topology: Topology, fault: Fault) -> Ints:
    """Physical links that a --degrade of a link, rank or switch is about. Raises InputError where there is none."""
    if fault.kind == "link":
        return links_at(topology, fault, "--degrade")
    mine = np.zeros(topology.nvertices, dtype=bool)
    mine[vertices_at(topology, fault, "--degrade")] = True
    return np.flatnonzero(mine[topology.link_src] | mine[topology.link_dst])


def vertices_at(topology: Topology, fault: Fault, option: str) -> Ints:
    """Vertices of rank:17, rank:8-15 or switch:NAME; `option` is what names it in errors. Raises InputError."""
    if fault.kind == "switch":
        if fault.where not in topology.switches:
            raise InputError(f"{option} {fault}: {_no_switch(topology, fault.where)}")
        return np.array([topology.nranks + topology.switches.index(fault.where)], dtype=np.int64)
    ends = _RANKS.fullmatch(fault.where)
    if ends is None:
        raise InputError(f"{option} {fault}: {shown(fault.where)} is no rank; it must be rank:17 or rank:8-15")
    low, high = int(ends[1]), int(ends[2] or ends[1])
    if low > high:
        raise InputError(f"{option} {fault}: runs backwards; it must be rank:{high}-{low}")
    if high >= topology.nranks:
        raise InputError(f"{option} {fault}: {_no_rank(topology, high)}")
    return np.arange(low, high + 1, dtype=np.int64)


def limit_at(topology: Topology, fault: Fault) -> Ints:
    """The limit of that name, one entry. Raises InputError where there is none."""
    names = [x.name for x in topology.limits]
    if fault.where not in names:
        raise InputError(
            f"--degrade {fault}: {topology.name} has no such limit; {_right_names('limits', fault.where, names)}"
        )
    return np.array([names.index(fault.where)], dtype=np.int64)


def _no_rank(topology: Topology, rank: int) -> str:
    return f"rank {rank} does not exist; ranks of {topology.name} are 0 to {topology.nranks - 1}"


def _no_switch(topology: Topology, name: str) -> str:
    return f"{topology.name} has no switch {shown(name)}; {_right_names('switches', name, topology.switches)}"


def _right_names(what: str, name: str, names: Sequence[str]) -> str:
    """What can be meant instead."""
    if not names:
        return f"it has no {what}"
    listed = f"its {what} are {', '.join(names[:6])}{', …' if len(names) > 6 else ''}"
    return did_you_mean(name, names) or listed


def _vertex(topology: Topology, name: str) -> int | None:
    if re.fullmatch(r"[0-9]{1,9}", name):
        return int(name) if int(name) < topology.nranks else None
    return topology.nranks + topology.switches.index(name) if name in topology.switches else None


def links_at(topology: Topology, fault: Fault, option: str) -> Ints:
    """Physical links of "3-5" (both directions, at least one there) or "3>5". Raises InputError."""
    where = fault.where.replace("→", ">").replace("->", ">")
    directed = ">" in where
    found = []
    for left, right in _cuts(where, ">" if directed else "-"):
        a, b = _vertex(topology, left), _vertex(topology, right)
        if a is not None and b is not None:
            ways = ((a, b),) if directed else ((a, b), (b, a))
            links = [np.flatnonzero((topology.link_src == s) & (topology.link_dst == d)) for s, d in ways]
            found.append((a, b, np.concatenate(links)))
    if len(found) > 1:  # a switch's name can have a - in it
        found = [x for x in found if len(x[2])] or found[:1]
    if len(found) > 1:
        readings = " or ".join(f"{topology.vertex_name(a)}>{topology.vertex_name(b)}" for a, b, _ in found)
        raise InputError(f"{option} {fault}: is ambiguous; it must be link:{readings}, and its other direction")
    if not found:
        raise InputError(f"{option} {fault}: {_unreadable(topology, where, '>' if directed else '-')}")
    a, b, there = found[0]
    if not len(there):
        raise InputError(f"{option} {fault}: {_no_link(topology, a, b, directed)}")
    return there


def _cuts(text: str, sign: str) -> Iterator[tuple[str, str]]:
    for at, letter in enumerate(text):
        if letter == sign:
            yield text[:at].strip(), text[at + 1 :].strip()


def _unreadable(topology: Topology, where: str, sign: str) -> str:
    """Why "3-99" or "leaf-0-5" names no two vertices."""
    ends = list(_cuts(where, sign))
    if not ends:
        return f"{shown(where)} does not name two ends; {_LINK}"
    for name in ends[0] if len(ends) == 1 else ():
        if _vertex(topology, name) is None:
            if re.fullmatch(r"[0-9]{1,9}", name):
                return _no_rank(topology, int(name))
            if is_switch_name(name):
                return _no_switch(topology, name)
            return f"{shown(name)} is no rank and no switch; {_LINK}"
    return f"{shown(where)} does not name two ranks or switches of {topology.name}; {_LINK}"


def _no_link(topology: Topology, a: int, b: int, directed: bool) -> str:
    near = topology.link_dst[topology.link_src == a]
    if not directed:
        near = np.union1d(near, topology.link_src[topology.link_dst == a])
    kind = "rank " if a < topology.nranks else "switch "
    what = f"{kind}{topology.vertex_name(a)} has no link to {topology.vertex_name(b)}"
    if not len(near):
        return f"{what}, nor to any other"
    listed = format_set(np.sort(near).tolist(), topology.nranks, topology.switches).replace(",", ", ")
    return f"{what}; it has links to {listed if len(listed) <= 80 else listed[:80] + '…'}"


def link_name(topology: Topology, link: int) -> str:
    """A physical link by its ends, as 0→nvswitch."""
    return "→".join(topology.vertex_name(int(ends[link])) for ends in (topology.link_src, topology.link_dst))
