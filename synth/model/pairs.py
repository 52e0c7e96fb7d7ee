"""The pairs of ranks between which a schedule's rows send: one over a link, several over a hyperlink."""

from __future__ import annotations

import numpy as np

from synth.model.collective import Ints
from topologies.arrays import row_entries
from topologies.network import Network


def ordinary(net: Network, link: Ints) -> bool:
    """Whether no row goes over a hyperlink."""
    return net.hyperlinks is None or not len(link) or int(link.max()) < net.nlinks


def pairs_of_rows(net: Network, link: Ints) -> tuple[Ints, Ints, Ints]:
    """(row, source, destination) of every pair, row by row; `link` names links and hyperlinks."""
    ptr, src, dst = net.pairs
    if ordinary(net, link):
        return np.arange(len(link)), src[link], dst[link]
    entries = row_entries(ptr, link)
    return np.repeat(np.arange(len(link)), np.diff(ptr)[link]), src[entries], dst[entries]
