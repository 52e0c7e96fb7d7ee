"""Direct exchange: the busiest resource when every contribution or copy comes in one hop, until two hops could pay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.kind import Search
from synth.bounds.metric import chunks_by_ends, pairs, resource_loads
from synth.bounds.witness import Witness
from synth.model.requirements import find_requirements, sum_by


def find_direct(search: Search) -> Iterator[Witness]:
    """The busiest resource, if all that must move can go in one hop."""
    net, collective = search.problem.network, search.problem.collective
    k, need, listed = collective.nranks, find_requirements(collective), pairs(collective)
    if k * k > search.tuning.table_cells or not need.any:
        return
    forced = collective.reduces | (need.nhold == 1)
    share = listed.of_pairs(np.where(forced, collective.fraction, 0.0)[listed.chunk])
    load = sum_by(listed.holder * k + listed.goal, share, k * k).reshape(k, k)
    for same, holders, goals in chunks_by_ends(collective, listed.others[forced[listed.others]]):
        load[np.ix_(holders, goals)] += float(collective.fraction[same].sum())
    np.fill_diagonal(load, 0.0)
    inner = (net.src < k) & (net.dst < k)
    links = np.bincount(net.src[inner] * k + net.dst[inner], minlength=k * k).reshape(k, k)
    if ((load > 0) & (links == 0)).any():
        return
    at = net.src[inner], net.dst[inner]
    carried = np.zeros(net.nlinks)
    carried[inner] = np.where(links[at] == 1, load[at], 0.0)
    worst = int(resource_loads(net, carried).argmax())
    text = f"one hop or two: {net.resource_names[worst]}, {net.capacity_gbs[worst]:.6g} GB/s"
    yield Witness("direct", resources=(worst,), text=text)
