"""The topologies that entries of a library name."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from emit.library.index import Entry
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology


class Networks:
    """The topologies of entries: one that was given, a failure's, or the one that its name is known by."""

    def __init__(self, given: Topology | None = None, hurt: Topology | None = None) -> None:
        self._given = {one.name: one for one in (hurt, given) if one is not None}
        self._load = lru_cache(64)(_known)

    def named(self, name: str) -> Topology | None:
        """Return the topology of a name; None where it is not known."""
        return self._given[name] if name in self._given else self._load(name)

    def of(self, entry: Entry) -> Topology | None:
        """Return an entry's topology; None where it is not known, or has fewer ranks than the entry names."""
        found = self.named(entry.topology)
        return found if found is not None and largest_rank(entry) < found.nranks else None


def largest_rank(entry: Entry) -> int:
    """Return the largest rank of the topology that an entry names."""
    return max(rank for group in (entry.communicator, *entry.isomorphic_groups) for rank in group)


def _known(name: str) -> Topology | None:
    with suppress(InputError):
        found = None if "/" in name or name.endswith((".toml", ".xml", ".json")) else load(name)
        return found if found is not None and found.name == name else None
    return None
