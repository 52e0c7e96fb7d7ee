"""The networks of a library's entries: known by their names, or kept in the library as topologies/NAME.toml.

A library keeps a network that no name of the package stands for, such as that of a user's own file or one with a dead
link, so that it can be checked, drawn and timed without that file. A network that is read is not believed: it is a
network only under the name that it states, an entry's digest says whether it is the entry's, and a name of the package
never means a kept file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from emit.library.entry import IndexEntry
from emit.library.overlay import FAULT, UP
from synth.model.text import as_file_name
from topologies.errors import InputError
from topologies.load import is_name, load
from topologies.text.files import check_below, origin_of, read_text
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import Topology

TOPOLOGIES = "topologies"  # folder of kept networks in a library's folder
_MAX_BYTES = 16 << 20  # of a kept network; a larger one is not kept
_LONGEST_NAME = 120


class Networks:
    """The topologies that entries may name: a given one, a failure's, those known by name, and those of a library.

    A given topology goes before a known one of the same name, and a known one before one that a library keeps.
    """

    def __init__(
        self, topology_given: Topology | None = None, hurt: Topology | None = None, library: Path | None = None
    ) -> None:
        self._given = {topology.name: topology for topology in (hurt, topology_given) if topology is not None}
        self._library = library
        self._load = lru_cache(64)(_load)

    def named(self, name: str, library: Path | None = None) -> Topology | None:
        """Return the topology of a name, a given one first; None if it is not known. Lookups are remembered.

        Args:
            name: The name.
            library: Folder of the library that may keep it; None for that of the constructor.
        """
        return self._given[name] if name in self._given else self._load(name, library or self._library)

    def is_kept(self, name: str) -> bool:
        """Return whether only a library could state the network of a name: it is not given, and no name of synth's."""
        return name not in self._given and not is_name(name)

    def of(self, entry: IndexEntry) -> Topology | None:
        """Return an entry's topology; None if it is not known, or has fewer ranks than the entry names."""
        topology = self.named(entry.topology, entry.folder)
        return topology if topology is not None and largest_rank(entry) < topology.nranks else None


def largest_rank(entry: IndexEntry) -> int:
    """Return the largest rank of the topology that an entry names."""
    return max(rank for group in (entry.communicator, *entry.isomorphic_groups) for rank in group)


def kept_file(topology: Topology) -> tuple[str, bytes] | None:
    """Return the name and the bytes of the file with which a library keeps a network; None if it needs none.

    A network whose name the package knows needs none. One that is too large for a file is not kept.
    """
    if is_name(topology.name):
        return None
    data = to_toml(topology).encode()
    return (_file_name(topology.name), data) if len(data) <= _MAX_BYTES else None


def kept_faults(library: Path) -> Iterator[tuple[str, str]]:
    """Yield the path in a library of each file of a network that cannot be read or has another network's name, and why.

    Args:
        library: The library's folder.

    Raises:
        InputError: The folder of networks is a link.
    """
    check_below(library, library / TOPOLOGIES)
    for path in sorted((library / TOPOLOGIES).glob("*")):
        name = f"{TOPOLOGIES}/{path.name}"
        try:
            topology = _read(library, name)
            if _file_name(topology.name) != name:
                yield name, f"states the network {topology.name}, whose file is {_file_name(topology.name)}"
        except InputError as error:
            yield name, str(error).removeprefix(f"{origin_of(path)}: ")


def _file_name(name: str) -> str:
    """Return the path in a library of the file for a network's name."""
    return f"{TOPOLOGIES}/{as_file_name(name)[:_LONGEST_NAME]}.toml"


def _load(name: str, library: Path | None) -> Topology | None:
    """Return the topology that the package knows by a name, or else the one that a library keeps; None if none does.

    Args:
        name: The name, as an entry states it.
        library: The library's folder, or that of a failure in it; None for no library.
    """
    with suppress(InputError):
        if is_name(name):
            named = load(name)
            return named if named.name == name else None
    is_failure = library is not None and os.path.lexists(library / FAULT)
    for file_name in (_file_name(name), *([UP + _file_name(name)] if is_failure else [])):
        with suppress(InputError):
            topology = None if library is None else _read(library, file_name)
            if topology is not None and topology.name == name:
                return topology
    return None


def _read(library: Path, file_name: str) -> Topology:
    """Return the network in a file of a library, or in one of the library that a failure's folder belongs to.

    Raises:
        InputError: The file is missing, a link, too large or no right topology.
    """
    path = library / file_name
    return from_toml(read_text(path, "a network's .toml file", _MAX_BYTES, library), origin_of(path))
