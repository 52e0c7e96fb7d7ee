"""The sends of trees and what each waits for: sums go up to roots, roots exchange their parts, and results go down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork, reverse_network
from synth.engines.flow.trees import Csr, find_parents
from synth.model.collective import Bools, Ints
from synth.model.compiled import Runner
from topologies.arrays import ranges, row_of_entry


class Sends(NamedTuple):
    """Sends and their dependencies.

    Attributes:
        chunk: Chunk of each send, int, shape (sends,).
        link: Link of each send, int, shape (sends,).
        step: Step of each send, int, shape (sends,), later than the steps of the sends that it waits for.
        reduces: Whether each send reduces, bool, shape (sends,).
        before: Earlier send of each dependency, int, shape (waits,): send after[i] carries data that send before[i]
            brings.
        after: Later send of each dependency, int, shape (waits,).
    """

    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools
    before: Ints
    after: Ints


def no_trees(nchunks: int) -> Csr:
    """Return the table of no links for each chunk."""
    return np.zeros(nchunks + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)


def tree_sends(run: Runner, net: CsrNetwork, gather: Csr, spread: Csr, exchange: Csr | None = None) -> Sends:
    """Return the sends of all chunks over their trees: the gathers first, then the exchanges, then the spreads.

    Gathers and exchanges reduce, spreads copy.

    Args:
        run: Runner of the compiled loops.
        net: The network.
        gather: Trees by which sums come to the roots of each chunk, grown from the roots against the links; CSR by
            chunk, links in an order in which each comes after its parent.
        spread: Trees from the holders or roots of each chunk, as `gather`, along the links.
        exchange: Links between the roots of each chunk, over which each root sends what it gathered, CSR by chunk; None
            for none.
    """
    nchunks = len(spread[0]) - 1
    tables = gather, exchange or no_trees(nchunks), spread
    chunks = [row_of_entry(ptr) for ptr, _ in tables]
    chunk, link = np.concatenate(chunks), np.concatenate([links for _, links in tables])
    ngathers, nothers = len(chunks[0]), len(chunks[0]) + len(chunks[1])
    up, up_depth = find_parents(run, run.table(reverse_network(net)), gather)
    down, down_depth = find_parents(run, run.table(net), spread)
    # Sends that are nearest to a root go last in a gather. Both directions of an exchange have one step, so that no
    # root sends back what it gets.
    deepest = np.zeros(nchunks, dtype=np.int64)
    np.maximum.at(deepest, chunks[0], up_depth + 1)
    first_down = deepest + (np.diff(tables[1][0]) > 0)
    step = np.concatenate([deepest[chunks[0]] - 1 - up_depth, deepest[chunks[1]], first_down[chunks[2]] + down_depth])
    before, after = [np.flatnonzero(up >= 0)], [up[up >= 0]]
    if nothers:
        # What leaves a root waits for all that came to the root before.
        into_roots, exchanges = np.flatnonzero(up < 0), np.arange(ngathers, nothers)
        from_roots = np.flatnonzero(down < 0) + nothers
        leaves, comes = chunk * net.nranks + net.src[link], chunk * net.nranks + net.dst[link]
        for arrivals, departures in ((into_roots, exchanges), (np.append(into_roots, exchanges), from_roots)):
            arrivals = arrivals[np.argsort(comes[arrivals], kind="stable")]
            first = np.searchsorted(comes[arrivals], leaves[departures])
            count = np.searchsorted(comes[arrivals], leaves[departures], side="right") - first
            before.append(arrivals[ranges(first, count)])
            after.append(np.repeat(departures, count))
    inner = np.flatnonzero(down >= 0)
    before, after = [*before, down[inner] + nothers], [*after, inner + nothers]
    return Sends(chunk, link, step, np.arange(len(chunk)) < nothers, np.concatenate(before), np.concatenate(after))
