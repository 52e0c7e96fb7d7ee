"""Faults as they are written, link:3-5, rank:17, switch:leaf0=50%, and the parts of a topology that they name.

The forms are at `topologies.faults.apply`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import Ints, marked
from topologies.errors import InputError, did_you_mean
from topologies.text.fields import shown
from topologies.text.vertex_sets import format_set
from topologies.topology import Topology, is_switch_name

_KINDS = ("link", "rank", "switch", "limit")
_AMOUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})\s*(%|gb/s|gbps)", re.IGNORECASE)
_LINK = "it must be link:3-5, or link:3>5 for one direction"
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class Fault:
    """One fault as written."""

    kind: str  # link, rank, switch or limit
    where: str  # what follows the kind: "3-5", "3>5", "17", "8-15", a switch's or a limit's name
    percent: float | None = None  # what is left of the bandwidth, above 0 and below 100
    gbs: float | None = None  # the bandwidth that is left

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}"

    @property
    def amount(self) -> str:
        """What is left, in words; "" where the part is gone. Without a slash: it becomes part of a name."""
        if self.percent is not None:
            return f"{self.percent:.12g}%"
        return "" if self.gbs is None else f"{self.gbs:.12g}GBps"


def parse_fault(text: str, option: str) -> Fault:
    """One fault of its text, such as link:3-5 or rank:3=50%; `option` names it in errors. Raises InputError."""
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip()
    if kind not in _KINDS:
        raise InputError(
            f"{option}: {shown(text.strip())} does not say what it is; it must be link:3-5, rank:17, switch:NAME"
            + (" or limit:NAME, each with =50%" if option == "--degrade" else "")
        )
    where, equals, amount = (part.strip() for part in rest.rpartition("="))
    if not equals:
        where, amount = amount, ""
    if not where:
        example = {"link": "link:3-5 or link:3>5", "rank": "rank:17"}.get(kind, f"{kind}:NAME")
        raise InputError(f"{option}: {shown(text.strip())} names no {kind}; it must be written as in {example}")
    if not equals:
        return Fault(kind, where)
    place, number = f"{option} {kind}:{where[:60]}", _AMOUNT.fullmatch(amount)
    if number is None:
        raise InputError(f"{place}: {shown(amount)} is no bandwidth that is left; it must be =50% or =12.5GB/s")
    value, percent = float(number[1]), number[2] == "%"
    if not 0 < value < (100 if percent else np.inf):
        what, right = (f"{value:g}%", "above 0% and below 100%") if percent else ("0 GB/s", "above 0")
        raise InputError(f"{place}: {what} is out of range; it must be {right} (what is gone goes to --without)")
    return Fault(kind, where, value) if percent else Fault(kind, where, gbs=value)


def _parsed(texts: Sequence[str], option: str) -> list[Fault]:
    """All faults of an option that can be given several times, each a list with commas."""
    faults = []
    for text in texts:
        items: list[str] = []
        for part in text.split(","):
            # only a limit's name can have a comma in it
            if items and items[-1].startswith("limit:") and part.strip().partition(":")[0] not in _KINDS:
                items[-1] += "," + part
            else:
                items.append(part.strip())
        faults += [parse_fault(item, option) for item in items]
    return faults


def removals(texts: Sequence[str]) -> list[Fault]:
    """All faults of --without. Raises InputError for one that does not take a part out."""
    faults = _parsed(texts, "--without")
    for fault in faults:
        if fault.kind == "limit":
            raise InputError(
                f"--without {fault}: a limit is a capacity, no part that can be missing;"
                f" it must be --degrade {fault}=50%"
            )
        if fault.amount:
            raise InputError(f"--without {fault}: takes no {fault.amount}; it must be --degrade {fault}={fault.amount}")
    return faults


def slowdowns(texts: Sequence[str]) -> list[Fault]:
    """All faults of --degrade. Raises InputError for one that does not say what is left."""
    faults = _parsed(texts, "--degrade")
    for fault in faults:
        if not fault.amount:
            raise InputError(
                f"--degrade {fault}: does not say what is left; it must be {fault}=50%, or --without {fault}"
            )
        if fault.gbs is not None and fault.kind in ("rank", "switch"):
            raise InputError(
                f"--degrade {fault}: a {fault.kind} has several links;"
                f" it must be what is left of each, as in {fault}=50%"
            )
    return faults


def touched_links(topology: Topology, fault: Fault) -> Ints:
    """Physical links that a --degrade of a link, rank or switch is about. Raises InputError where there is none."""
    if fault.kind == "link":
        return links_at(topology, fault, "--degrade")
    mine = marked(topology.nvertices, vertices_at(topology, fault, "--degrade"))
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


def dead_ranks(topology: Topology, without: Sequence[str]) -> tuple[int, ...]:
    """Ranks that `--without rank:…` takes out, ascending. Raises InputError as `apply.degraded` does."""
    found: set[int] = set()
    for fault in removals(without):
        if fault.kind == "rank":
            found.update(vertices_at(topology, fault, "--without").tolist())
    return tuple(sorted(found))


def live_ranks(topology: Topology, dead: Sequence[int], group: Sequence[int] | None, option: str) -> tuple[int, ...]:
    """The group; all ranks that are not dead where there is none. option: what gave the group, for errors ("--group").

    Raises InputError where the group names a dead rank.
    """
    lost = set(dead)
    if group is None:
        return tuple(rank for rank in range(topology.nranks) if rank not in lost)
    for rank in group:
        if rank in lost:
            raise InputError(
                f"{option}: rank {rank} is taken out (--without rank:{rank}); it must be left out here too"
            )
    return tuple(group)


def relay_ranks(topology: Topology, dead: Sequence[int], relay: Sequence[int] | str, taken: Iterable[int]) -> list[int]:
    """Who may forward: "none", "all" that live and are not `taken`, or these ranks.

    Raises InputError where there is no such rule, or a rank is dead.
    """
    if not isinstance(relay, str):
        return list(live_ranks(topology, dead, relay, "relay"))
    if relay not in ("none", "all"):
        raise InputError(f"relay: {relay!r} is not known; it is none, all or ranks")
    return sorted(set(range(topology.nranks)) - {*taken, *dead}) if relay == "all" else []
