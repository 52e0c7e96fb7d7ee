"""Which way every chunk goes: paths and trees at prices that keep all resources equally loaded, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.engines.flow.congestion_prices import Market, hop_table, set_prices
from synth.engines.flow.csr_network import Wires, wires
from synth.engines.flow.paths import narrow_pass
from synth.engines.flow.trees import tree_pass
from synth.model.allowed import Allowed
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.phases.split import sum_owners
from topologies.arrays import pointers, ranges, strongly_connected
from topologies.errors import InputError

_SHARPNESS = (8.0, 12.0, 20.0, 30.0, 40.0, 60.0, 80.0)  # of the prices, pass by pass
_NARROW = 30_000_000  # links looked at in a pass, from which on only ways of fewest hops are


@dataclass(frozen=True, eq=False)
class Plan:
    """Where every chunk goes: a gathering tree (of a sum, grown from its owner) and a spreading tree.

    Attributes:
        gather_ptr, gather, spread_ptr, spread: CSR by chunk, links in the order in which the tree grew.
        load_us: how long each resource is busy, shape (resources,).
    """

    gather_ptr: Ints
    gather: Ints
    spread_ptr: Ints
    spread: Ints
    load_us: Floats

    @property
    def busiest_us(self) -> float:
        """The longest time that a resource is busy."""
        return float(self.load_us.max(initial=0.0))


class Router:
    """Routes of one problem for messages of one size, better pass by pass."""

    def __init__(
        self,
        problem: Problem,
        size_bytes: float,
        *,
        allowed: Allowed | None = None,
        depth: float = 0.5,
        likely_us: float = 0.0,
        latency_us: float = 0.0,
        narrow: bool = True,
        bias: float = 0.05,
    ) -> None:
        """State what is to be routed.

        Args:
            depth: 0 for trees that only mind the load, 1 for trees that also count the whole way from the root.
            likely_us: how long the busiest resource will be busy, about. latency_us: how long the smallest message
                takes, about.
            narrow: let the first passes take ways of fewest hops only. bias: what a byte costs on an idle link, in
                parts of what it costs on the busiest: large for short ways, small for even loads.
        """
        collective = problem.collective
        self.problem, self.size_bytes, self.depth = problem, size_bytes, depth
        self.likely_us, self.latency_us, self.bias = likely_us, latency_us, bias
        self.net = wires(problem.network)
        self.back = reversed_wires(self.net)
        self.work = collective.chunk_bytes(size_bytes) * 1e-3
        family = np.zeros(collective.nchunks) if allowed is None else allowed.family
        ranks = np.ones((1, problem.nranks), dtype=bool) if allowed is None else allowed.ranks
        self.family, self.ranks = family.astype(np.int64), np.ascontiguousarray(ranks)
        holders, self.goals = collective.holders, collective.goals
        none = np.zeros(collective.nchunks + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.owned = self.parts = none
        self.sources = holders
        if collective.reducing:
            sums = collective.reduces & (np.diff(self.goals[0]) > 0)  # what nobody wants is not gathered
            self.owned = one_each(np.flatnonzero(sums), owners(problem)[sums], collective.nchunks)
            self.parts = only(holders, sums)
            self.sources = merged(self.owned, only(holders, ~sums))
        self.gathering = self.spreading = none
        self.passes = 0
        nres, nlanes = len(self.net.capacity_gbs), self.net.nlanes
        self.market = Market(np.zeros(nres), np.zeros(nres), np.zeros(nlanes), np.zeros(nlanes), np.ones(2))
        self.order = np.arange(collective.nchunks)
        single = bool((np.diff(self.sources[0]) == 1).all() and (np.diff(self.goals[0]) == 1).all())
        self.single = single
        plain = single and allowed is None and not collective.reducing
        self.wide = not plain or collective.nchunks * problem.network.nlinks <= _NARROW
        self.narrow = plain and (narrow or not self.wide)
        if single:
            # sources take turns: all send to their next, then to the one after
            source, goal = self.sources[1], self.goals[1]
            self.order = np.argsort((goal - source) % collective.nranks, kind="stable")
        if self.narrow:
            roots, self.row = np.unique(source, return_inverse=True)
            self.hops = hop_table(self.net, roots)
            self.path_ptr = pointers(self.hops[self.row, goal])

    def improve(self) -> Plan:
        """One more pass: every chunk is taken out and routed again.

        Raises InputError where a chunk cannot get to where it is wanted.
        """
        self._reprice()
        net, market, work = self.net, self.market, self.work
        if self.narrow and (self.passes < 2 or not self.wide):
            path = self.spreading[1].copy() if self.passes else np.zeros(self.path_ptr[-1], dtype=np.int64)
            narrow_pass(
                net, market, self.order, self.sources[1], self.goals[1], work, self.row, self.hops, self.path_ptr,
                path, self.passes == 0,
            )  # fmt: skip
            self.spreading = self.path_ptr, path
        else:
            missed = 0
            if len(self.parts[1]):
                ptr, links, missed = tree_pass(
                    self.back, market, self.order, *self.owned, *self.parts, work, self.ranks, self.family,
                    self.depth, *self.gathering,
                )  # fmt: skip
                self.gathering = ptr, links
            ptr, links, lost = tree_pass(
                net, market, self.order, *self.sources, *self.goals, work, self.ranks, self.family,
                self.depth, *self.spreading,
            )  # fmt: skip
            self.spreading = ptr, links
            if missed or lost:
                raise InputError(
                    f"{self.problem.collective.name}: {missed + lost} chunks cannot get to where they are wanted over"
                    " the ranks that may hold them; another group or relays may help"
                )
        self.passes += 1
        return Plan(*self.gathering, *self.spreading, market.load.copy())

    def _reprice(self) -> None:
        market, net = self.market, self.net
        beta = _SHARPNESS[min(self.passes, len(_SHARPNESS) - 1)]
        sends = self.work * (np.diff(self.goals[0]) + np.diff(self.parts[0]))
        if self.narrow:
            sends = self.work * np.diff(self.path_ptr)
        even = max(float(sends.sum()) / float(net.bandwidth_gbs.sum()), self.likely_us, 1e-12)
        target = max(float(market.load.max(initial=0.0)), 1e-12) if self.passes else even
        market.knobs[:] = beta, target
        # short ways win among ways of one price, and over all others where latency is what counts
        weight = self.bias * np.exp(beta * (min(even / target, 1.0) - 1.0))
        weight += self.latency_us / (self.latency_us + target)
        mean = max(float(self.work.mean()), 1e-12) if len(self.work) else 1.0
        market.bias[:] = weight * net.alpha_us / mean + weight / net.bandwidth_gbs
        set_prices(net, market)


def reversed_wires(net: Wires) -> Wires:
    """Every link the other way round, on the same lanes."""
    return net._replace(
        src=net.dst,
        dst=net.src,
        out_ptr=net.in_ptr,
        out_link=net.in_link,
        in_ptr=net.out_ptr,
        in_link=net.out_link,
    )


def only(table: tuple[Ints, Ints], which: Bools) -> tuple[Ints, Ints]:
    """The rows of the chunks given."""
    count = np.diff(table[0])
    return pointers(np.where(which, count, 0)), table[1][np.repeat(which, count)]


def one_each(chunks: Ints, ranks: Ints, nchunks: int) -> tuple[Ints, Ints]:
    """One rank for each of the chunks given (ascending), as a CSR over all."""
    count = np.zeros(nchunks, dtype=np.int64)
    count[chunks] = 1
    return pointers(count), ranks.astype(np.int64)


def merged(one: tuple[Ints, Ints], two: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Two tables of which each chunk has rows in one only."""
    ptr = pointers(np.diff(one[0]) + np.diff(two[0]))
    ranks = np.empty(ptr[-1], dtype=np.int64)
    for begin, column in (one, two):
        ranks[ranges(ptr[:-1], np.diff(begin))] = column
    return ptr, ranks


def owners(problem: Problem) -> Ints:
    """Where each sum comes together: at those that want it in turn. Shape (chunks,); 0 where nobody does."""
    collective = problem.collective
    if not strongly_connected(problem.nranks, problem.network.src, problem.network.dst):
        return sum_owners(problem)
    ptr, ranks = collective.goals
    count = np.diff(ptr)
    block = max(1, -(-collective.nchunks // collective.nranks))
    turn = (np.arange(collective.nchunks) // block) % np.maximum(count, 1)
    padded = np.append(ranks, 0)
    return np.where(count > 0, padded[np.minimum(ptr[:-1] + turn, len(ranks))], 0)
