"""A network with something broken: links, ranks or switches taken out, links or limits that are slower.

--without link:3-5            both directions between two vertices (ranks by number, switches by name)
--without link:3>5            one direction
--without rank:17, rank:8-15  the rank's links go; it keeps its number and cannot be in a group
--without switch:leaf0        the switch and its links
--degrade link:0-1=50%        what is left of the bandwidth; link:0>1 for one direction
--degrade link:0-1=12.5GB/s   the bandwidth that is left
--degrade rank:3=50%          all links of a rank (of several: rank:8-15=50%), or of a switch: switch:leaf0=50%
--degrade limit:NAME=50%      a shared capacity

Several stand in a list with commas. They all speak of the whole network, so their order says nothing; where
several slow the same link, the slowest counts.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from topologies.errors import InputError
from topologies.faults.notation import Fault, parse_fault, removals, slowdowns
from topologies.faults.places import arrow, limit_at, links_at, touched, vertices_at
from topologies.text.vertex_sets import format_set
from topologies.topology import Limit, Topology

__all__ = ["Fault", "alive", "dead_ranks", "hurt", "parse_fault"]

_LONG_NAME = 80  # characters of a list of faults that a name, and with it a file's, still takes


def hurt(topology: Topology, without: Sequence[str], degrade: Sequence[str]) -> Topology:
    """The topology without some parts and with others slower, its name saying so.

    Ranks keep their numbers, those taken out have no link (see `dead_ranks`); a switch taken out is gone.
    Latencies stay, and so do limits, over the links that are left to them; a limit without any goes.

    Args:
        without: texts of the faults that take out, each a list with commas.
        degrade: texts of the faults that slow down.

    Raises:
        InputError: no such fault, part or bandwidth, or nothing left.
    """
    missing, slower = removals(without), slowdowns(degrade)
    if not missing and not slower:
        return topology
    cut = np.zeros(topology.nlinks, dtype=bool)  # named themselves
    dead = np.zeros(topology.nvertices, dtype=bool)
    for fault in missing:
        if fault.kind == "link":
            cut[links_at(topology, fault, "--without")] = True
        else:
            dead[vertices_at(topology, fault, "--without")] = True
    gone = cut | dead[topology.link_src] | dead[topology.link_dst]
    _check_left(topology, gone, dead)
    slowed, limit_gbs = _slowed(topology, slower, gone)

    stays = ~dead
    stays[: topology.nranks] = True
    number = np.cumsum(stays) - 1  # of vertices
    kept, index = np.flatnonzero(~gone), np.cumsum(~gone) - 1  # of links
    switches = [
        name for name, left in zip(topology.switches, stays[topology.nranks :].tolist(), strict=True) if left
    ]
    limits = []
    for limit, gbs in zip(topology.limits, limit_gbs.tolist(), strict=True):
        links = limit.links[~gone[limit.links]]
        if len(links):
            limits.append(Limit(limit.name, index[links], gbs))
    words = _words(topology, cut & ~dead[topology.link_src] & ~dead[topology.link_dst], dead, slower, gone)
    return replace(
        topology,
        name=f"{topology.name} {words}",
        switches=tuple(switches),
        link_src=number[topology.link_src[kept]],
        link_dst=number[topology.link_dst[kept]],
        alpha_us=topology.alpha_us[kept],
        bandwidth_gbs=slowed[kept],
        limits=tuple(limits),
    )


def dead_ranks(topology: Topology, without: Sequence[str]) -> tuple[int, ...]:
    """Ranks that `--without rank:…` takes out, ascending. Raises InputError as `hurt` does."""
    found: set[int] = set()
    for fault in removals(without):
        if fault.kind == "rank":
            found.update(vertices_at(topology, fault, "--without").tolist())
    return tuple(sorted(found))


def alive(topology: Topology, dead: Sequence[int], group: Sequence[int] | None, what: str) -> tuple[int, ...]:
    """The group, which must have no dead rank in it; all ranks that live where there is none.

    Args:
        dead: as `dead_ranks` gives them.
        what: the option in errors ("--group").

    Raises:
        InputError: the group names a dead rank.
    """
    lost = set(dead)
    if group is None:
        return tuple(rank for rank in range(topology.nranks) if rank not in lost)
    for rank in group:
        if rank in lost:
            raise InputError(
                f"{what}: rank {rank} is taken out (--without rank:{rank}); leave it out here too"
            )
    return tuple(group)


def _check_left(topology: Topology, gone: NDArray[np.bool_], dead: NDArray[np.bool_]) -> None:
    living = np.flatnonzero(~dead[: topology.nranks])
    if len(living) < 2:
        left = f"rank {living[0]} alone is left" if len(living) else "no rank is left"
        raise InputError(f"--without: {left} of {topology.name}'s {topology.nranks}; leave at least 2")
    if gone.all():
        raise InputError(
            f"--without: no link is left of {topology.name}'s {topology.nlinks}; leave at least one"
        )


def _slowed(
    topology: Topology, faults: Sequence[Fault], gone: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """GB/s of every link and of every limit. Of several faults on one the slowest counts."""
    whole, caps = topology.bandwidth_gbs, np.array([x.bandwidth_gbs for x in topology.limits])
    links, limits = whole.copy(), caps.copy()
    for fault in faults:
        if fault.kind == "limit":
            at = limit_at(topology, fault)
            if gone[topology.limits[at[0]].links].all():
                raise InputError(
                    f"--degrade {fault}: all its links are taken out by --without; leave one of the two out"
                )
            now, into = caps, limits
        else:
            at = touched(topology, fault)
            at = at[~gone[at]]
            if not len(at):
                raise InputError(f"--degrade {fault}: is taken out by --without; leave one of the two out")
            now, into = whole, links
        if fault.gbs is None:
            left = now[at] * (fault.percent or 0.0) / 100
        else:
            left = np.full(len(at), fault.gbs)
            high = left >= now[at]
            if high.any():
                one = int(at[np.argmax(high)])
                which = "it" if fault.kind == "limit" else arrow(topology, one)
                raise InputError(
                    f"--degrade {fault}: {fault.gbs:g} GB/s is not below what {which} has, {now[one]:g} GB/s"
                )
        into[at] = np.minimum(into[at], left)
    return links, limits


def _words(
    topology: Topology,
    cut: NDArray[np.bool_],
    dead: NDArray[np.bool_],
    degraded: Sequence[Fault],
    gone: NDArray[np.bool_],
) -> str:
    """What is wrong, the same words for the same faults however they were written; plain ASCII without slashes.

    One direction is 3to5: a file's name, which takes no >, must tell it from 3-5. A long list becomes counts
    and a checksum of the list.
    """
    names = topology.switches
    ranks = np.flatnonzero(dead[: topology.nranks]).tolist()
    switches = [names[i] for i in np.flatnonzero(dead[topology.nranks :]).tolist()]
    missing = _pairs(topology, cut)
    missing += [f"rank:{run}" for run in format_set(ranks, topology.nranks, ()).split(",") if run]
    missing += [f"switch:{name}" for name in switches]
    slower = []
    for amount in sorted({fault.amount for fault in degraded}):
        these = [fault for fault in degraded if fault.amount == amount]
        links = np.zeros(topology.nlinks, dtype=bool)
        for fault in these:
            if fault.kind == "link":
                links[links_at(topology, fault, "--degrade")] = True
        parts = _pairs(topology, links & ~gone)
        hit = {v for f in these if f.kind == "rank" for v in vertices_at(topology, f, "--degrade").tolist()}
        living = sorted(v for v in hit if not dead[v])
        parts += [f"rank:{run}" for run in format_set(living, topology.nranks, ()).split(",") if run]
        parts += sorted({str(fault) for fault in these if fault.kind in ("switch", "limit")})
        slower += [f"{part}={amount}" for part in parts]
    text = " ".join(
        f"{word} {','.join(parts)}" for word, parts in (("without", missing), ("degraded", slower)) if parts
    )
    plain = re.sub(r"[^A-Za-z0-9_.:,=% -]+", "_", text)
    if len(text) <= _LONG_NAME and plain == text:
        return text
    # what a short name cannot tell apart, the checksum does
    mark = f"{zlib.crc32(text.encode()):08x}"
    if len(plain) <= _LONG_NAME:
        return f"{plain} {mark}"
    counts = [
        f"{word} {len(parts)} part{'s' if len(parts) > 1 else ''}"
        for word, parts in (("without", missing), ("degraded", slower))
        if parts
    ]
    return " ".join([*counts, mark])


def _pairs(topology: Topology, links: NDArray[np.bool_]) -> list[str]:
    """link:0-1 where all that goes between the two is meant, else link:0to1; by their ends."""
    chosen = np.flatnonzero(links)
    src, dst = topology.link_src[chosen].tolist(), topology.link_dst[chosen].tolist()
    mine = set(zip(src, dst, strict=True))
    found = []
    for a, b in sorted(mine):
        one, other = topology.vertex_name(a), topology.vertex_name(b)
        if (b, a) not in mine:
            found.append(f"link:{one}to{other}")
        elif a < b:
            found.append(f"link:{one}-{other}")
    return found
