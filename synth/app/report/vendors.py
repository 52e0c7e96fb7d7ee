"""The times of vendor libraries by message size, as a page draws them beside a library's files."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from emit.library.checking.networks import Networks
from emit.library.entry import IndexEntry, vs_library
from synth.app.report.item import EXPONENTS, Points
from synth.baselines.vendors import LIBRARIES
from topologies.errors import InputError, NotModelled


def vendor_curves(entry: IndexEntry) -> dict[str, Points]:
    """Return the times of each vendor library with which an entry's row is compared, by the library's name.

    Libraries that the row does not name are left out, because their times are in another model; and so is everything on
    a network that this package does not know by its name.
    """
    curves = {
        name: _curve(name, entry.topology, entry.communicator, entry.collective)
        for name in LIBRARIES
        if vs_library(entry.row, name) is not None
    }
    return {name: curve for name, curve in curves.items() if curve}


@lru_cache(maxsize=64)
def _curve(library: str, topology: str, ranks: tuple[int, ...], collective: str) -> Points:
    """Return a library's times by size in its own model; empty where the model covers nothing of that."""
    network, points = Networks().named(topology), list[tuple[float, float]]()
    if network is None or max(ranks) >= network.nranks or not LIBRARIES[library].own_clock:
        return ()
    with suppress(InputError, NotModelled):
        model = LIBRARIES[library].model(network, ranks)
        for exponent in EXPONENTS:
            points.append((float(1 << exponent), model.choose(collective, 1 << exponent).time_us))
    return tuple(points)
