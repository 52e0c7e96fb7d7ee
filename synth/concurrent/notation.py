"""Several groups with what each does, as they are written on the command line.

0-7;8-15                     groups as `synth.model.process_groups` reads them; all do what the command says
0-7;allgather:8-15           another collective for the groups of one part
tp=8;allreduce:tp=8,dp=*:dp  parts along axes too
allgather@64M:8-15           and another size; @64M:8-15 another size only

Axes are over the ranks that live; ranks are the topology's own numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from synth.concurrent.union import Member
from synth.model.collective import Collective, named
from synth.model.process_groups import parse_groups
from synth.model.registry import parse_name
from synth.model.sizes import parse_size
from topologies.errors import InputError
from topologies.faults.ranks import live_ranks
from topologies.text.fields import shown
from topologies.topology import Topology

__all__ = ["parse_members"]

_PART = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z_-]*)?\s*(?:@(?P<size>[^:=,]*))?:(?P<ranks>.*)", re.S)


def parse_members(
    text: str,
    collective: str | Collective,
    topology: Topology,
    *,
    dead: Sequence[int] = (),
    size: str | None = None,
    sizes: str | None = None,
) -> list[Member]:
    """The groups of `text`, each with its collective (the first rank is the root of a rooted one) and size.

    Args:
        text: as the head of this module says.
        collective: what groups do that do not say otherwise.
        topology: the machine or cluster. dead: its ranks that do not live.
        size: of groups that do not say otherwise.
        sizes: one a group, with commas.

    Raises:
        InputError: groups, a collective or a size that cannot be, no size, or two for one group.
    """
    living = live_ranks(topology, dead, None, "--groups")
    known: dict[tuple[str, int], Collective] = {}
    found: list[tuple[tuple[int, ...], Collective, str | None]] = []
    for part in text.split(";"):
        match = _PART.fullmatch(part)
        name, own, body = (match["name"], match["size"], match["ranks"]) if match else (None, None, part)
        if name is None and own is None:
            body = part
        what: str | Collective = collective if name is None else parse_name(name)
        for ranks in _groups(body, topology, dead, living):
            if isinstance(what, str):
                key = (parse_name(what), len(ranks))
                if key not in known:
                    known[key] = named(what, len(ranks), 1)
                stated = known[key]
            else:
                stated = what
            found.append((ranks, stated, own))
    each = _sizes(found, size, sizes)
    return [Member(ranks, stated, size_bytes) for (ranks, stated, _), size_bytes in zip(found, each, strict=True)]


def _groups(body: str, topology: Topology, dead: Sequence[int], living: Sequence[int]) -> list[tuple[int, ...]]:
    if "=" in body:
        return [tuple(living[i] for i in group) for group in parse_groups(body, len(living))]
    return [live_ranks(topology, dead, group, "--groups") for group in parse_groups(body, topology.nranks)]


def _sizes(
    found: Sequence[tuple[tuple[int, ...], Collective, str | None]], size: str | None, sizes: str | None
) -> list[int]:
    """Bytes of every group."""
    given = [None] * len(found) if sizes is None else sizes.split(",")
    if len(given) != len(found):
        raise InputError(
            f"--group-sizes: {shown(sizes)} has {len(given)} sizes for {len(found)} groups; give one a group"
        )
    each = []
    for (ranks, _, own), listed in zip(found, given, strict=True):
        if own is not None and listed is not None:
            raise InputError(
                f"--group-sizes: the group that begins with rank {ranks[0]} has a size of its own, @{own}; give one"
                " or the other"
            )
        if own is not None:
            each.append(parse_size(own, "--groups"))
        elif listed is not None:
            each.append(parse_size(listed, "--group-sizes"))
        elif size is not None:
            each.append(parse_size(size, "--size"))
        else:
            raise InputError(
                "--groups: needs message sizes; give --size 64M, --group-sizes one a group, or @64M: before a group"
            )
    return each
