"""The look-up of the topologies that entries of a library name."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from emit.library.entry import IndexEntry
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology


class Networks:
    """The topologies that entries may name: a given one, a failure's, or those that are known by their names.

    A given topology goes before a known one of the same name.
    """

    def __init__(self, topology_given: Topology | None = None, hurt: Topology | None = None) -> None:
        self._given = {topology.name: topology for topology in (hurt, topology_given) if topology is not None}
        self._load = lru_cache(64)(_known)

    def named(self, name: str) -> Topology | None:
        """Return the topology of a name, a given one first; None if it is not known. Lookups are remembered."""
        return self._given[name] if name in self._given else self._load(name)

    def of(self, entry: IndexEntry) -> Topology | None:
        """Return an entry's topology; None if it is not known, or has fewer ranks than the entry names."""
        topology = self.named(entry.topology)
        return topology if topology is not None and largest_rank(entry) < topology.nranks else None


def largest_rank(entry: IndexEntry) -> int:
    """Return the largest rank of the topology that an entry names."""
    return max(rank for group in (entry.communicator, *entry.isomorphic_groups) for rank in group)


def _known(name: str) -> Topology | None:
    """Return the topology that the package itself knows by a name; None for any other, such as a file's name."""
    with suppress(InputError):
        topology = None if "/" in name or name.endswith((".toml", ".xml", ".json")) else load(name)
        return topology if topology is not None and topology.name == name else None
    return None
