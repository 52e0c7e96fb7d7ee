"""List the pairs of ranks between which a schedule's rows send: one over a link, several over a hyperlink."""

from __future__ import annotations

import numpy as np

from synth.model.collective import Ints
from topologies.arrays import row_entries
from topologies.network import Network


def ordinary(net: Network, link: Ints) -> bool:
    """Return whether no row goes over a hyperlink.

    Args:
        net: The network.
        link: The link or hyperlink of every row, shape (rows,); it may be empty.
    """
    return net.hyperlinks is None or not len(link) or int(link.max()) < net.nlinks


def pairs_of_rows(net: Network, link: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the arrays (row, source, destination) of every pair of ranks, row by row, shape (pairs,) each.

    Rows are indices of `link`; a row over a link has one pair. Ranks are local.

    Args:
        net: The network.
        link: The link or hyperlink of every row, shape (rows,).
    """
    ptr, src, dst = net.pairs
    if ordinary(net, link):
        return np.arange(len(link)), src[link], dst[link]
    entries = row_entries(ptr, link)
    return np.repeat(np.arange(len(link)), np.diff(ptr)[link]), src[entries], dst[entries]


def count_pairs(net: Network, link: Ints) -> int:
    """Return how many pairs of ranks the rows have, as `pairs_of_rows` lists them."""
    return len(link) if ordinary(net, link) else int(np.diff(net.pairs.ptr)[link].sum())
