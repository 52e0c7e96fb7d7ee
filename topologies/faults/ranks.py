"""Which ranks faults leave."""

from __future__ import annotations

from collections.abc import Sequence

from topologies.errors import InputError
from topologies.faults.notation import removals
from topologies.faults.places import vertices_at
from topologies.topology import Topology


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
