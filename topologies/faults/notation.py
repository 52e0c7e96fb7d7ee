"""The notation of faults, link:3-5, rank:17, switch:leaf0=50%, and the parts of a topology that they name.

The forms are at `topologies.faults.apply`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import Ints, flags_of
from topologies.errors import InputError, did_you_mean
from topologies.text.fields import shown
from topologies.text.rates import parse_rate
from topologies.text.vertex_sets import RANKS, format_set
from topologies.topology import Topology, is_switch_name

_KINDS = ("link", "rank", "switch", "limit")
_PERCENT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})\s*%")
_LINK = "it must be link:3-5, or link:3>5 for one direction"


@dataclass(frozen=True)
class Fault:
    """A fault as written.

    Attributes:
        kind: "link", "rank", "switch" or "limit".
        where: Text after the kind: "3-5", "3>5", "17", "8-15", or a switch's or limit's name.
        percent: Remaining percentage of the bandwidth, above 0 and below 100; None where none is written.
        gbs: Remaining bandwidth in GB/s, above 0; None where none is written. With neither, the part is removed.
    """

    kind: str
    where: str
    percent: float | None = None
    gbs: float | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}"

    @property
    def amount(self) -> str:
        """Return the remaining bandwidth in words, or "" where the part is removed.

        The text has no slash, because it becomes part of a file's name.
        """
        if self.percent is not None:
            return f"{self.percent:.12g}%"
        return "" if self.gbs is None else f"{self.gbs:.12g}GBps"


def parse_fault(text: str, option: str) -> Fault:
    """Return the fault of a text such as link:3-5 or rank:3=50%.

    Args:
        text: The text.
        option: Name of the option in error messages; any fault is taken, whether it fits the option or not.

    Raises:
        InputError: The text is no fault, or what remains is out of range. Whether the part exists is not checked.
    """
    kind, _, body = text.strip().partition(":")
    kind = kind.strip()
    if kind not in _KINDS:
        raise InputError(
            f"{option}: {shown(text.strip())} does not say what it is; it must be link:3-5, rank:17, switch:NAME"
            + (" or limit:NAME, each with =50%" if option == "--degrade" else "")
        )
    where, equals, amount = (part.strip() for part in body.rpartition("="))
    if not equals:
        where, amount = amount, ""
    if not where:
        example = {"link": "link:3-5 or link:3>5", "rank": "rank:17"}.get(kind, f"{kind}:NAME")
        raise InputError(f"{option}: {shown(text.strip())} names no {kind}; it must be written as in {example}")
    if not equals:
        return Fault(kind, where)
    place, share = f"{option} {kind}:{where[:60]}", _PERCENT.fullmatch(amount)
    value = float(share[1]) if share else parse_rate(amount)
    if value is None:
        raise InputError(
            f"{place}: {shown(amount)} is no bandwidth that is left; it must be =50%, =12.5GB/s or =100Gbps (bits)"
        )
    if not 0 < value < (100 if share else np.inf):
        shown_amount, right = (f"{value:g}%", "above 0% and below 100%") if share else ("0 GB/s", "above 0")
        raise InputError(
            f"{place}: {shown_amount} is out of range; it must be {right} (a removed part belongs in --without)"
        )
    return Fault(kind, where, value) if share else Fault(kind, where, gbs=value)


def _parsed(texts: Sequence[str], option: str) -> list[Fault]:
    """Return all faults of an option that can be repeated and whose every text is a list with commas, in their order.

    Raises:
        InputError: A text is no fault; the message begins with `option`.
    """
    faults = []
    for text in texts:
        items: list[str] = []
        for part in text.split(","):
            # Only a limit's name can contain a comma.
            if items and items[-1].startswith("limit:") and part.strip().partition(":")[0] not in _KINDS:
                items[-1] += "," + part
            else:
                items.append(part.strip())
        faults += [parse_fault(item, option) for item in items]
    return faults


def removals(texts: Sequence[str]) -> list[Fault]:
    """Return all faults of --without in their order.

    Args:
        texts: The option's values, each a list with commas.

    Raises:
        InputError: A text is no fault, or the fault does not remove a part.
    """
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
    """Return all faults of --degrade in their order.

    Args:
        texts: The option's values, each a list with commas.

    Raises:
        InputError: A text is no fault, or the fault does not say how much bandwidth remains, or says it in GB/s for a
            rank or switch, which have several links.
    """
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
    """Return the indices of the physical links that a --degrade of a link, rank or switch slows down: int64 (links,).

    Of a rank or switch these are all links from it and to it.

    Raises:
        InputError: The topology has no such part.
    """
    if fault.kind == "link":
        return links_at(topology, fault, "--degrade")
    is_named = flags_of(topology.nvertices, vertices_at(topology, fault, "--degrade"))
    return np.flatnonzero(is_named[topology.link_src] | is_named[topology.link_dst])


def vertices_at(topology: Topology, fault: Fault, option: str) -> Ints:
    """Return the vertices of rank:17, rank:8-15 (both included) or switch:NAME, ascending: int64 (vertices,).

    `option` names the option in error messages.

    Raises:
        InputError: The topology has no such rank or switch, or the text names no ranks.
    """
    if fault.kind == "switch":
        if fault.where not in topology.switches:
            raise InputError(f"{option} {fault}: {_no_switch(topology, fault.where)}")
        return np.array([topology.nranks + topology.switches.index(fault.where)], dtype=np.int64)
    ends = RANKS.fullmatch(fault.where)
    if ends is None:
        raise InputError(f"{option} {fault}: {shown(fault.where)} is no rank; it must be rank:17 or rank:8-15")
    low, high = int(ends[1]), int(ends[2] or ends[1])
    if low > high:
        raise InputError(f"{option} {fault}: runs backwards; it must be rank:{high}-{low}")
    if high >= topology.nranks:
        raise InputError(f"{option} {fault}: {_no_rank(topology, high)}")
    return np.arange(low, high + 1, dtype=np.int64)


def limit_at(topology: Topology, fault: Fault) -> Ints:
    """Return the index of the limit that the fault names: int64 (1,).

    Raises:
        InputError: The topology has no such limit.
    """
    names = [x.name for x in topology.limits]
    if fault.where not in names:
        raise InputError(
            f"--degrade {fault}: {topology.name} has no such limit; {_right_names('limits', fault.where, names)}"
        )
    return np.array([names.index(fault.where)], dtype=np.int64)


def _no_rank(topology: Topology, rank: int) -> str:
    """Return the message about a rank that does not exist."""
    return f"rank {rank} does not exist; ranks of {topology.name} are 0 to {topology.nranks - 1}"


def _no_switch(topology: Topology, name: str) -> str:
    """Return the message about a switch that does not exist."""
    return f"{topology.name} has no switch {shown(name)}; {_right_names('switches', name, topology.switches)}"


def _right_names(kinds: str, name: str, names: Sequence[str]) -> str:
    """Return the end of a message about a wrong name: similar names, or else the first six of the topology's names.

    Args:
        kinds: Plural of what the names name ("switches").
        name: The wrong name.
        names: The right names.
    """
    if not names:
        return f"it has no {kinds}"
    listed = f"its {kinds} are {', '.join(names[:6])}{', …' if len(names) > 6 else ''}"
    return did_you_mean(name, names) or listed


def _vertex(topology: Topology, name: str) -> int | None:
    """Return the vertex of a rank's number or a switch's name, or None where there is none."""
    if re.fullmatch(r"[0-9]{1,9}", name):
        return int(name) if int(name) < topology.nranks else None
    return topology.nranks + topology.switches.index(name) if name in topology.switches else None


def links_at(topology: Topology, fault: Fault, option: str) -> Ints:
    """Return the physical links that a fault link:3-5 (both directions, at least one must exist) or link:3>5 names.

    The result has their indices, int64 (1 or 2,). `option` names the option in error messages.

    Raises:
        InputError: The text names no two vertices, can be read in two ways, or there is no such link.
    """
    where = fault.where.replace("→", ">").replace("->", ">")
    directed = ">" in where
    matches = []
    for source, destination in _cuts(where, ">" if directed else "-"):
        a, b = _vertex(topology, source), _vertex(topology, destination)
        if a is not None and b is not None:
            directions = ((a, b),) if directed else ((a, b), (b, a))
            links = [np.flatnonzero((topology.link_src == s) & (topology.link_dst == d)) for s, d in directions]
            matches.append((a, b, np.concatenate(links)))
    if len(matches) > 1:  # A switch's name can contain the sign.
        matches = [reading for reading in matches if len(reading[2])] or matches[:1]
    if len(matches) > 1:
        choices = " or ".join(f"{topology.vertex_name(a)}>{topology.vertex_name(b)}" for a, b, _ in matches)
        raise InputError(f"{option} {fault}: is ambiguous; it must be link:{choices}, and its other direction")
    if not matches:
        raise InputError(f"{option} {fault}: {_unreadable(topology, where, '>' if directed else '-')}")
    a, b, chosen_links = matches[0]
    if not len(chosen_links):
        raise InputError(f"{option} {fault}: {_no_link(topology, a, b, directed)}")
    return chosen_links


def _cuts(text: str, sign: str) -> Iterator[tuple[str, str]]:
    """Yield the texts before and after each `sign` in a text."""
    for at, letter in enumerate(text):
        if letter == sign:
            yield text[:at].strip(), text[at + 1 :].strip()


def _unreadable(topology: Topology, where: str, sign: str) -> str:
    """Return why "3-99" or "leaf-0-5" names no two vertices."""
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
    """Return that vertex `a` has no link to `b`, and to which vertices it has links, as text.

    With `directed` only links from `a` count, else also links to `a`.
    """
    neighbours = topology.link_dst[topology.link_src == a]
    if not directed:
        neighbours = np.union1d(neighbours, topology.link_src[topology.link_dst == a])
    kind = "rank " if a < topology.nranks else "switch "
    problem = f"{kind}{topology.vertex_name(a)} has no link to {topology.vertex_name(b)}"
    if not len(neighbours):
        return f"{problem}, nor to any other"
    listed = format_set(np.sort(neighbours).tolist(), topology.nranks, topology.switches).replace(",", ", ")
    return f"{problem}; it has links to {listed if len(listed) <= 80 else listed[:80] + '…'}"


def dead_ranks(topology: Topology, without: Sequence[str]) -> tuple[int, ...]:
    """Return the ranks that `--without rank:…` removes, ascending, each once.

    Args:
        topology: The topology.
        without: The option's values, each a list with commas; faults of links and switches remove no rank.

    Raises:
        InputError: A text is no fault of --without, or names no rank of the topology.
    """
    ranks: set[int] = set()
    for fault in removals(without):
        if fault.kind == "rank":
            ranks.update(vertices_at(topology, fault, "--without").tolist())
    return tuple(sorted(ranks))


def live_ranks(topology: Topology, dead: Sequence[int], group: Sequence[int] | None, option: str) -> tuple[int, ...]:
    """Return the group in its order, or all live ranks, ascending, where there is no group.

    Args:
        topology: The topology.
        dead: Ranks that faults remove.
        group: Ranks that take part, which are only compared with the dead ones; None for all live ranks.
        option: Name of the group's option in error messages ("--group").

    Raises:
        InputError: The group names a dead rank.
    """
    dead_set = set(dead)
    if group is None:
        return tuple(rank for rank in range(topology.nranks) if rank not in dead_set)
    for rank in group:
        if rank in dead_set:
            raise InputError(
                f"{option}: rank {rank} is taken out (--without rank:{rank}); it must be left out here too"
            )
    return tuple(group)


def relay_ranks(
    topology: Topology, dead: Sequence[int], relay: Sequence[int] | str, members: Iterable[int]
) -> list[int]:
    """Return the ranks that may forward without taking part in the collective: ascending, or in the order of `relay`.

    Args:
        topology: The topology.
        dead: Ranks that faults remove.
        relay: "none", "all" for all live ranks that are not members, or the ranks themselves, which are returned as
            they are and only compared with the dead ones.
        members: Ranks that take part in the collective.

    Raises:
        InputError: There is no such rule, or a rank is dead.
    """
    if not isinstance(relay, str):
        return list(live_ranks(topology, dead, relay, "relay"))
    if relay not in ("none", "all"):
        raise InputError(f"relay: {relay!r} is not known; it is none, all or ranks")
    return sorted(set(range(topology.nranks)) - {*members, *dead}) if relay == "all" else []
