"""Where every chunk goes: paths and trees at prices that keep all resources equally loaded, pass by pass.

Chunks are routed one at a time over what is cheapest at prices that grow exponentially with the load of each
resource, as in on-line routing of virtual circuits (Aspnes, Azar, Fiat, Plotkin and Waarts, 1997), and are taken out
and routed again in later passes at steeper prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synth.engines.flow.congestion_prices import Congestion, add_load, cost_of, set_prices
from synth.engines.flow.csr_network import CsrNetwork, csr_network, reverse_network
from synth.engines.flow.trees import Csr, route_trees
from synth.engines.flow.tuning import TUNING, Tuning
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import Allowed, Problem
from synth.phases.split import sum_owners
from topologies.arrays import pointers, ranges, row_of_entry, strongly_connected
from topologies.errors import InputError

_LEAST_IN_TIME = 0.25  # of a time, where latency is nearly all of it: routes then count it themselves


@dataclass(frozen=True, eq=False)
class Routing:
    """Where every chunk goes.

    Attributes:
        gather: the tree of a sum, grown from its owner against the links; CSR by chunk, links in order of growth.
        spread: the tree of a value or a whole sum to its goals; CSR as `gather`.
        load_us: how long each resource is busy, shape (resources,).
    """

    gather: Csr
    spread: Csr
    load_us: Floats

    @property
    def busiest_us(self) -> float:
        """The longest time that a resource is busy."""
        return float(self.load_us.max(initial=0.0))


class Router:
    """Routes of one problem for messages of one size, better pass by pass.

    Attributes:
        net: the network. in_time: see `in_time`; loads are priced by it.
        single: every chunk has one holder and one goal, so that trees are paths.
        order: chunks in the order in which they are routed. work: kilobytes of every chunk.
    """

    def __init__(
        self,
        problem: Problem,
        size_bytes: float,
        run: Runner,
        *,
        depth: float = 0.5,
        likely_us: float = 0.0,
        latency_us: float = 0.0,
        narrow: bool = True,
        bias: float = 0.05,
        tuning: Tuning = TUNING,
    ) -> None:
        """State what is to be routed.

        Args:
            run: how loops are run.
            depth: 0 for trees that only mind the load, 1 for trees that also count the whole path from the root.
            likely_us: how long the busiest resource will be busy, about. latency_us: how long the smallest message
                takes, about.
            narrow: let the first passes take paths of fewest links only. bias: what a byte costs on an idle link, in
                parts of what it costs on the busiest: large for short paths, small for even loads.
        """
        collective = problem.collective
        self.problem, self.depth, self.run, self.tuning = problem, depth, run, tuning
        self.likely_us, self.latency_us, self.bias = likely_us, latency_us, bias
        self.net = csr_network(problem.network)
        self.loop_net = run.table(self.net)
        self.in_time = in_time(self.net, likely_us + latency_us)
        priced = self.net._replace(capacity_gbs=self.net.capacity_gbs * self.in_time)
        self.priced_net = run.table(priced)
        self.work = collective.chunk_bytes(size_bytes) * 1e-3
        self.allowed = problem.allowed or Allowed(
            np.zeros(collective.nchunks, dtype=np.int64), np.ones((1, problem.nranks), dtype=bool)
        )
        holders, self.goals = collective.holders, collective.goals
        none = np.zeros(collective.nchunks + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.owned = self.parts = self.gathering = self.spreading = none
        self.sources = holders
        if collective.reducing:
            sums = collective.reduces & (np.diff(self.goals[0]) > 0)  # what nobody wants is not gathered
            self.owned = (pointers(sums.astype(np.int64)), owners(problem)[sums])
            self.parts = only(holders, sums)
            self.sources = merged(self.owned, only(holders, ~sums))
        self.passes = 0
        nres, nbundles = len(self.net.capacity_gbs), self.net.nbundles
        zeros = (np.zeros(count) for count in (nres, nres, nbundles, nbundles, 2))
        self.congestion = Congestion(*run.columns(*zeros))
        self.order = np.arange(collective.nchunks)
        self.single = bool((np.diff(self.sources[0]) == 1).all() and (np.diff(self.goals[0]) == 1).all())
        plain = self.single and problem.allowed is None and not collective.reducing
        self.wide = not plain or collective.nchunks * problem.network.nlinks <= tuning.wide_links
        self.narrow = plain and (narrow or not self.wide)
        if self.single:
            # sources take turns: all send to their next, then to the one after
            source, goal = self.sources[1], self.goals[1]
            self.order = np.argsort((goal - source) % collective.nranks, kind="stable")
        if self.narrow:
            roots, self.row = np.unique(source, return_inverse=True)
            self.hops = hop_table(run, self.net, roots)
            self.path_ptr = pointers(self.hops[self.row, goal])

    def improve(self) -> Routing:
        """One more pass: every chunk is taken out and routed again.

        Raises InputError where a chunk cannot get to where it is wanted.
        """
        self._reprice()
        if self.narrow and (self.passes < 2 or not self.wide):
            path = self.spreading[1] if self.passes else np.zeros(self.path_ptr[-1], dtype=np.int64)
            path = route_shortest(
                self.run, self.priced_net, self.congestion, self.order, self.sources[1], self.goals[1], self.work,
                self.row, self.hops, (self.path_ptr, path), self.passes == 0,
            )  # fmt: skip
            self.spreading = self.path_ptr, path
        else:
            missed = lost = 0
            if len(self.parts[1]):
                back = reverse_network(self.priced_net)
                self.gathering, missed = self._route_trees(back, self.owned, self.parts, self.gathering)
            self.spreading, lost = self._route_trees(self.priced_net, self.sources, self.goals, self.spreading)
            if missed or lost:
                raise InputError(
                    f"{self.problem.collective.name}: {missed + lost} chunks cannot get to where they are wanted over"
                    " the ranks that may hold them; another group or relays may help"
                )
        self.passes += 1
        return Routing(self.gathering, self.spreading, np.asarray(self.congestion.load) * self.in_time)

    def _route_trees(self, net: CsrNetwork, holders: Csr, goals: Csr, trees: Csr) -> tuple[Csr, int]:
        return route_trees(
            self.run, net, self.congestion, self.order, holders, goals, self.work, self.allowed, self.depth, trees
        )

    def _reprice(self) -> None:
        congestion, net = self.congestion, self.net
        load = np.asarray(congestion.load)
        beta = self.tuning.sharpness[min(self.passes, len(self.tuning.sharpness) - 1)]
        sends = self.work * (np.diff(self.goals[0]) + np.diff(self.parts[0]))
        if self.narrow:
            sends = self.work * np.diff(self.path_ptr)
        even = max(float(sends.sum()) / float(net.bandwidth_gbs.sum()), self.likely_us, 1e-12)
        target = max(float(load.max(initial=0.0)), 1e-12) if self.passes else even
        # short paths win among paths of one price, and over all others where latency is what counts
        weight = self.bias * np.exp(beta * (min(even / target, 1.0) - 1.0))
        weight += self.latency_us / (self.latency_us + target)
        mean = max(float(self.work.mean()), 1e-12) if len(self.work) else 1.0
        bias = weight * net.alpha_us / mean + weight / net.bandwidth_gbs
        self.congestion = congestion._replace(
            **dict(zip(("bias", "knobs"), self.run.columns(bias, np.array([beta, target])), strict=True))
        )
        self.run(set_prices, self.priced_net, self.congestion)


def in_time(net: CsrNetwork, whole_us: float) -> Floats:
    """The part of a time in which what each resource sends still arrives, beside that of least latency.

    What leaves less than a latency before the end comes too late, so that slow links can carry less than their rate
    says. Shape (resources,); 1 where all latencies are alike, or no time is given.
    """
    alpha_us = np.full(len(net.capacity_gbs), np.inf)
    np.minimum.at(alpha_us, net.uses_idx, net.alpha_us[row_of_entry(net.uses_ptr)])
    late_us = np.where(np.isfinite(alpha_us), alpha_us - float(net.alpha_us.min(initial=np.inf)), 0.0)
    return np.clip(1 - late_us / whole_us, _LEAST_IN_TIME, 1) if whole_us > 0 else np.ones_like(late_us)


def route_shortest(
    run: Runner, net: CsrNetwork, congestion: Congestion, order: Ints, source: Ints, goal: Ints, work: Floats,
    row: Ints, hops: Ints, paths: Csr, fresh: bool,
) -> Ints:  # fmt: skip
    """Route the chunks of `order` again over paths of fewest links; returns them, by chunk, first link first.

    Only what lies between source and goal is looked at, so that a pass over a million chunks takes a second.

    Args:
        net, congestion: as loops take them; the loads change.
        source, goal: of every chunk. row: its source's row of `hops` (see `hop_table`).
        paths: where each chunk's links stand, and those that are in the loads now. fresh: none are.
    """
    links = np.asarray(net.in_link)
    enters = np.column_stack([np.asarray(net.src)[links], np.asarray(net.bundle)[links]]).ravel()
    zeros = np.zeros(net.nranks, dtype=np.int64)
    columns = run.columns(
        order, source, goal, work, row, hops.ravel(), paths[0], enters, np.zeros(net.nranks), zeros, zeros - 1,
        zeros.copy(), paths[1].copy(),
    )  # fmt: skip
    run(_route_shortest, net, congestion, fresh, *columns)
    return np.asarray(columns[-1], dtype=np.int64)


def hop_table(run: Runner, net: CsrNetwork, sources: Ints) -> Ints:
    """Fewest links from each source to every rank, shape (len(sources), nranks); nranks where there is no path."""
    size = len(sources) * net.nranks
    columns = run.columns(sources, np.full(size, net.nranks), np.zeros(net.nranks, dtype=np.int64))
    run(_count_hops, run.table(net), *columns)
    return np.asarray(columns[1], dtype=np.int64).reshape(-1, net.nranks)


def _route_shortest(
    net: CsrNetwork, congestion: Congestion, fresh: bool, order: Any, source: Any, goal: Any, work: Any, row: Any,
    table: Any, path_ptr: Any, enters: Any, cost: Any, via: Any, stamp: Any, queue: Any, path: Any,
) -> None:  # fmt: skip
    """Write `path`. enters: source and bundle of every entry of in_link, side by side; cost … queue: by rank."""
    nranks = net.nranks
    for i in range(len(order)):
        chunk = order[i]
        base, end = path_ptr[chunk], path_ptr[chunk + 1]
        if base == end:
            continue
        if not fresh:
            for j in range(base, end):
                add_load(net, congestion, net.bundle[path[j]], -work[chunk])
        # backwards from the goal: what it costs from each rank on the way
        s, t = source[chunk], goal[chunk]
        far = row[chunk] * nranks
        cost[t] = 0.0
        stamp[t] = i
        queue[0] = t
        first, last = 0, 1
        while first < last:
            v = queue[first]
            first += 1
            if v == s:
                break
            so_far, nearer = cost[v], table[far + v] - 1
            for j in range(net.in_ptr[v], net.in_ptr[v + 1]):
                u = enters[2 * j]
                if table[far + u] != nearer:
                    continue
                through = so_far + cost_of(net, congestion, enters[2 * j + 1])
                if stamp[u] != i:
                    stamp[u] = i
                    queue[last] = u
                    last += 1
                elif through >= cost[u]:
                    continue
                cost[u] = through
                via[u] = net.in_link[j]
        at = s
        for j in range(base, end):
            link = via[at]
            path[j] = link
            add_load(net, congestion, net.bundle[link], work[chunk])
            at = net.dst[link]


def _count_hops(net: CsrNetwork, sources: Any, table: Any, queue: Any) -> None:
    """Set table[i · ranks + v], the fewest links from sources[i] to rank v; it comes as nranks everywhere."""
    n = net.nranks
    for i in range(len(sources)):
        table[i * n + sources[i]] = 0
        queue[0] = sources[i]
        first, last = 0, 1
        while first < last:
            u = queue[first]
            first += 1
            for j in range(net.out_ptr[u], net.out_ptr[u + 1]):
                v = net.dst[net.out_link[j]]
                if table[i * n + v] == n:
                    table[i * n + v] = table[i * n + u] + 1
                    queue[last] = v
                    last += 1


def only(table: Csr, which: Bools) -> Csr:
    """The rows of the chunks given."""
    count = np.diff(table[0])
    return pointers(np.where(which, count, 0)), table[1][np.repeat(which, count)]


def merged(one: Csr, two: Csr) -> Csr:
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
