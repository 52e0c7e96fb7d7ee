"""A topology with faults: links, ranks or switches removed, and links or limits slowed down.

--without link:3-5            both directions between two vertices (ranks by number, switches by name)
--without link:3>5            one direction
--without rank:17, rank:8-15  the rank's links go; it keeps its number and cannot be in a group
--without switch:leaf0        the switch and its links
--degrade link:0-1=50%        the part of the bandwidth that remains; link:0>1 for one direction
--degrade link:0-1=12.5GB/s   the bandwidth that remains
--degrade rank:3=50%          all links of a rank (of several: rank:8-15=50%), or of a switch: switch:leaf0=50%
--degrade limit:NAME=50%      a shared capacity

Several faults form a list with commas. All faults refer to the whole network, so their order has no effect. Where
several slow the same link, the slowest counts.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.arrays import Bools, Floats
from topologies.errors import InputError
from topologies.faults.notation import Fault, limit_at, links_at, removals, slowdowns, touched_links, vertices_at
from topologies.text.vertex_sets import format_set
from topologies.topology import Limit, Topology

_LONG_NAME = 80  # Most characters of a list of faults in a topology's name, and so in a file's name.


def apply_faults(topology: Topology, without: Sequence[str], degrade: Sequence[str]) -> Topology:
    """Return the topology without some parts and with others slower, and with a name that says so.

    Ranks keep their numbers, and a removed rank has no link (see `notation.dead_ranks`). A removed switch is gone, so
    that later switches have smaller vertices. Latencies stay. A limit stays over its remaining links; a limit without
    links goes. Without any fault the result is the topology itself.

    Args:
        topology: The healthy topology.
        without: Texts of removed parts, each a list with commas.
        degrade: Texts of slowed parts, each a list with commas.

    Raises:
        InputError: A text is no fault, names no part or a wrong bandwidth, or fewer than two ranks or no link would
            remain.
    """
    missing, slower = removals(without), slowdowns(degrade)
    if not missing and not slower:
        return topology
    named_links = np.zeros(topology.nlinks, dtype=bool)
    dead = np.zeros(topology.nvertices, dtype=bool)
    for fault in missing:
        if fault.kind == "link":
            named_links[links_at(topology, fault, "--without")] = True
        else:
            dead[vertices_at(topology, fault, "--without")] = True
    links_of_dead = dead[topology.link_src] | dead[topology.link_dst]
    removed_links = named_links | links_of_dead
    _check_left(topology, removed_links, dead)
    link_gbs, limit_gbs = _bandwidths_left(topology, slower, removed_links)

    stays = ~dead
    stays[: topology.nranks] = True
    number = np.cumsum(stays) - 1
    links_left, index = np.flatnonzero(~removed_links), np.cumsum(~removed_links) - 1
    limits = []
    for limit, gbs in zip(topology.limits, limit_gbs.tolist(), strict=True):
        links = limit.links[~removed_links[limit.links]]
        if len(links):
            limits.append(Limit(limit.name, index[links], gbs))
    switch_flags = stays[topology.nranks :].tolist()
    switches = tuple(name for name, remains in zip(topology.switches, switch_flags, strict=True) if remains)
    return replace(
        topology,
        name=f"{topology.name} {_faults_text(topology, named_links & ~links_of_dead, dead, slower, removed_links)}",
        switches=switches,
        switch_ops=tuple(ops for ops in topology.switch_ops if ops.switch in switches),
        link_src=number[topology.link_src[links_left]],
        link_dst=number[topology.link_dst[links_left]],
        alpha_us=topology.alpha_us[links_left],
        bandwidth_gbs=link_gbs[links_left],
        link_kind=topology.link_kind[links_left],
        limits=tuple(limits),
    )


def _check_left(topology: Topology, removed_links: Bools, dead: Bools) -> None:
    """Raise InputError if fewer than two live ranks or no link would remain."""
    live = np.flatnonzero(~dead[: topology.nranks])
    if len(live) < 2:
        remaining = f"only rank {live[0]} is left" if len(live) else "no rank is left"
        raise InputError(f"--without: {remaining} of {topology.name}'s {topology.nranks}; it must be at least 2")
    if removed_links.all():
        raise InputError(f"--without: no link is left of {topology.name}'s {topology.nlinks}; it must be at least one")


def _bandwidths_left(topology: Topology, faults: Sequence[Fault], removed_links: Bools) -> tuple[Floats, Floats]:
    """Return the remaining GB/s of every link and of every limit; of several faults on one the slowest counts.

    Args:
        topology: The healthy topology.
        faults: The faults that slow parts down.
        removed_links: Whether each link is removed; removed links keep their GB/s.

    Raises:
        InputError: A fault names no part, a part that is removed, or no less GB/s than the part has.
    """
    link_gbs, limit_gbs = topology.bandwidth_gbs, np.array([x.bandwidth_gbs for x in topology.limits])
    links, limits = link_gbs.copy(), limit_gbs.copy()
    for fault in faults:
        if fault.kind == "limit":
            at, healthy, remaining = limit_at(topology, fault), limit_gbs, limits
            is_removed, removed_part = removed_links[topology.limits[at[0]].links].all(), "all its links are"
        else:
            at, healthy, remaining = touched_links(topology, fault), link_gbs, links
            at = at[~removed_links[at]]
            is_removed, removed_part = not len(at), "is"
        if is_removed:
            raise InputError(f"--degrade {fault}: {removed_part} taken out by --without; it must be one of the two")
        if fault.gbs is None:
            gbs = healthy[at] * (fault.percent or 0.0) / 100
        else:
            gbs = np.full(len(at), fault.gbs)
            high = gbs >= healthy[at]
            if high.any():
                link = int(at[np.argmax(high)])
                part_name = "it"
                if fault.kind != "limit":
                    ends = (topology.link_src[link], topology.link_dst[link])
                    part_name = "→".join(topology.vertex_name(end) for end in ends)
                right = f"it must be below what {part_name} has, {healthy[link]:g} GB/s"
                raise InputError(f"--degrade {fault}: {fault.gbs:g} GB/s is too much; {right}")
        remaining[at] = np.minimum(remaining[at], gbs)
    return links, limits


def _faults_text(
    topology: Topology, named_links: Bools, dead: Bools, slower: Sequence[Fault], removed_links: Bools
) -> str:
    """Return the faults as ASCII text that a file's name can hold, the same for the same faults in any notation.

    Characters that a file's name should not hold become "_", with a checksum of the text behind. In place of more than
    80 characters it is the number of parts and the checksum.

    Args:
        topology: The healthy topology.
        named_links: Whether each link is removed by its own name: bool (nlinks,).
        dead: Whether each vertex is removed: bool (nvertices,).
        slower: Faults that slow parts down; of these, removed links and ranks are left out.
        removed_links: Whether each link is removed for any reason: bool (nlinks,).
    """
    missing = _link_parts(topology, named_links) + _rank_parts(
        topology, np.flatnonzero(dead[: topology.nranks]).tolist()
    )
    missing += [f"switch:{topology.switches[i]}" for i in np.flatnonzero(dead[topology.nranks :]).tolist()]
    slowed = []
    for amount in sorted({fault.amount for fault in slower}):
        same_faults = [fault for fault in slower if fault.amount == amount]
        links = np.zeros(topology.nlinks, dtype=bool)
        ranks: set[int] = set()
        for fault in same_faults:
            if fault.kind == "link":
                links[links_at(topology, fault, "--degrade")] = True
            elif fault.kind == "rank":
                ranks.update(vertices_at(topology, fault, "--degrade").tolist())
        parts = _link_parts(topology, links & ~removed_links)
        parts += _rank_parts(topology, sorted(rank for rank in ranks if not dead[rank]))
        parts += sorted({str(fault) for fault in same_faults if fault.kind in ("switch", "limit")})
        slowed += [f"{part}={amount}" for part in parts]
    lists = [(word, parts) for word, parts in (("without", missing), ("degraded", slowed)) if parts]
    text = " ".join(f"{word} {','.join(parts)}" for word, parts in lists)
    plain = re.sub(r"[^A-Za-z0-9_.:,=% -]+", "_", text)
    if len(text) <= _LONG_NAME and plain == text:
        return text
    # The checksum distinguishes faults whose short names are equal.
    checksum = f"{zlib.crc32(text.encode()):08x}"
    if len(plain) <= _LONG_NAME:
        return f"{plain} {checksum}"
    counts = [f"{word} {len(parts)} part{'s' if len(parts) > 1 else ''}" for word, parts in lists]
    return " ".join([*counts, checksum])


def _rank_parts(topology: Topology, ranks: Sequence[int]) -> list[str]:
    """Return the ranks as parts such as rank:3 and rank:8-15, ascending."""
    return [f"rank:{run}" for run in format_set(ranks, topology.nranks, ()).split(",") if run]


def _link_parts(topology: Topology, links: Bools) -> list[str]:
    """Return the links as parts, sorted by ends: link:0-1 where both directions are among them, else link:0to1."""
    chosen = np.flatnonzero(links)
    src, dst = topology.link_src[chosen].tolist(), topology.link_dst[chosen].tolist()
    ends = set(zip(src, dst, strict=True))
    parts = []
    for a, b in sorted(ends):
        first_name, second_name = topology.vertex_name(a), topology.vertex_name(b)
        if (b, a) not in ends:
            parts.append(f"link:{first_name}to{second_name}")
        elif a < b:
            parts.append(f"link:{first_name}-{second_name}")
    return parts
