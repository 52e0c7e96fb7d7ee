"""The times that a library's index states of a file, and those of vendor libraries, as a page shows them."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from emit.library.entry import IndexEntry, is_figure, vs_library
from emit.library.networks import Networks
from synth.app.report.item import EXPONENTS, ItemTiming, Points
from synth.baselines.vendors import LIBRARIES
from topologies.errors import InputError, NotModelled


def stated_timing(entry: IndexEntry | None) -> ItemTiming:
    """Return the size, time, bound and curves that an index states of a file, without a proof.

    Without an entry the timing is empty; if size, time or bound is missing in the entry, only the topology's name is
    set.
    """
    if entry is None:
        return ItemTiming(None)
    size, time_us, bound_us = entry.shown_bytes, entry.time_us, entry.bound_us
    if not (is_figure(size) and is_figure(time_us) and is_figure(bound_us)):
        return ItemTiming(entry.topology)
    curve, bound = (tuple((row[0], row[column]) for row in entry.curve) for column in (1, 2))
    return ItemTiming(entry.topology, size, time_us, bound_us, curve, bound, vendors=vendor_curves(entry))


def vendor_curves(entry: IndexEntry) -> dict[str, Points]:
    """Return the times of each vendor library with which an entry's row is compared, as points (bytes, µs) by its name.

    Left out are libraries that the row does not name or that have no cost model of their own, and everything on a
    network that neither this package knows by its name nor the library keeps.
    """
    curves = {
        name: _curve(name, entry.topology, entry.folder, entry.communicator, entry.collective)
        for name in LIBRARIES
        if vs_library(entry.row, name) is not None
    }
    return {name: curve for name, curve in curves.items() if curve}


@lru_cache(maxsize=64)
def _curve(library: str, topology: str, folder: Path, ranks: tuple[int, ...], collective: str) -> Points:
    """Return a library's times in its own model as points (bytes, µs) from 1 KiB to 1 GiB; results are cached.

    It is empty for an unknown topology, a rank that it lacks, a library without a model of its own, or a collective
    that the model does not cover. The points end before the first size that the model does not cover.
    """
    network, points = Networks().named(topology, folder), list[tuple[float, float]]()
    if network is None or max(ranks) >= network.nranks or not LIBRARIES[library].own_clock:
        return ()
    with suppress(InputError, NotModelled):
        model = LIBRARIES[library].model(network, ranks)
        for exponent in EXPONENTS:
            points.append((float(1 << exponent), model.choose(collective, 1 << exponent).time_us))
    return tuple(points)
