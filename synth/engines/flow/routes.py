"""Routes of every chunk: paths and trees at prices that keep all resources equally loaded, pass by pass.

Chunks are routed one at a time over the cheapest links at prices that grow exponentially with the load of each
resource, as in on-line routing of virtual circuits (Aspnes, Azar, Fiat, Plotkin and Waarts, 1997). In later passes each
chunk is removed and routed again at steeper prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synth.engines.flow.congestion_prices import Congestion, add_load, cost_of, set_prices
from synth.engines.flow.csr_network import CsrNetwork, csr_network, reverse_network
from synth.engines.flow.trees import Csr, route_trees
from synth.engines.flow.tuning import TUNING, FlowTuning
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import Allowed, Problem
from synth.phases.split import sum_owners
from topologies.arrays import pointers, ranges, row_of_entry, strongly_connected
from topologies.errors import InputError

_LEAST_IN_TIME = 0.25  # least usable part of a time that is nearly all latency, which routes then count themselves


@dataclass(frozen=True, eq=False)
class Routing:
    """The routes of every chunk.

    Attributes:
        gather: Tree of each sum, grown from its owner against the links; CSR by chunk, links in order of growth.
        spread: Tree of each value or whole sum to its goals; CSR as `gather`.
        load_us: Time in µs that each resource is busy, shape (resources,).
    """

    gather: Csr
    spread: Csr
    load_us: Floats

    @property
    def busiest_us(self) -> float:
        """Return the longest time in µs that a resource is busy."""
        return float(self.load_us.max(initial=0.0))


class FlowRouter:
    """A router of one problem for messages of one size, which improves its routes pass by pass.

    Attributes:
        net: The network.
        in_time: Usable part of the time for each resource (see the function `in_time`), by which loads are priced.
        single: Whether every chunk has one holder and one goal, so that trees are paths.
        order: Chunks in the order in which they are routed.
        work: Size of every chunk in kilobytes.
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
        tuning: FlowTuning = TUNING,
    ) -> None:
        """Build the tables for the routes of a problem.

        Args:
            problem: The problem.
            size_bytes: Message size in bytes.
            run: Runner of the compiled loops.
            depth: 0 for trees that only follow the load, 1 for trees that also count the whole path from the root.
            likely_us: Likely time in µs that the busiest resource will be busy.
            latency_us: Approximate time in µs of the smallest message.
            narrow: Whether the first passes take paths of fewest links only.
            bias: Cost of a byte on an idle link, as a fraction of its cost on the busiest link: large for short paths,
                small for balanced loads.
            tuning: Settings of routing.
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
        empty = np.zeros(collective.nchunks + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.owned = self.parts = self.gathering = self.spreading = empty
        self.sources = holders
        if collective.reducing:
            sums = collective.reduces & (np.diff(self.goals[0]) > 0)  # Sums that no rank wants are not gathered.
            self.owned = (pointers(sums.astype(np.int64)), owners(problem)[sums])
            self.parts = only(holders, sums)
            self.sources = merged(self.owned, only(holders, ~sums))
        self.passes = 0
        nres, nbundles = len(self.net.capacity_gbs), self.net.nbundles
        zeros = (np.zeros(count) for count in (nres, nres, nbundles, nbundles, 2))
        self.congestion = Congestion(*run.columns(*zeros))
        self.order = np.arange(collective.nchunks)
        self.single = bool((np.diff(self.sources[0]) == 1).all() and (np.diff(self.goals[0]) == 1).all())
        is_plain = self.single and problem.allowed is None and not collective.reducing
        self.wide = not is_plain or collective.nchunks * problem.network.nlinks <= tuning.wide_links
        self.narrow = is_plain and (narrow or not self.wide)
        if self.single:
            # All sources send to the next rank first, then to the rank after that.
            source, goal = self.sources[1], self.goals[1]
            self.order = np.argsort((goal - source) % collective.nranks, kind="stable")
        if self.narrow:
            roots, self.row = np.unique(source, return_inverse=True)
            self.hops = hop_table(run, self.net, roots)
            self.path_ptr = pointers(self.hops[self.row, goal])

    def improve(self) -> Routing:
        """Route every chunk once more, and return all routes.

        Raises:
            InputError: If a chunk cannot reach a goal.
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
            missed_sums = missed_goals = 0
            if len(self.parts[1]):
                reversed_net = reverse_network(self.priced_net)
                self.gathering, missed_sums = self._route_trees(reversed_net, self.owned, self.parts, self.gathering)
            self.spreading, missed_goals = self._route_trees(self.priced_net, self.sources, self.goals, self.spreading)
            if missed_sums or missed_goals:
                raise InputError(
                    f"{self.problem.collective.name}: {missed_sums + missed_goals} chunks cannot reach their goals over"
                    " the ranks that may hold them; choose another group, or add relays"
                )
        self.passes += 1
        return Routing(self.gathering, self.spreading, np.asarray(self.congestion.load) * self.in_time)

    def _route_trees(self, net: CsrNetwork, holders: Csr, goals: Csr, trees: Csr) -> tuple[Csr, int]:
        """Route all chunks over trees, and return the trees and the number of chunks that miss a goal."""
        return route_trees(
            self.run, net, self.congestion, self.order, holders, goals, self.work, self.allowed, self.depth, trees
        )

    def _reprice(self) -> None:
        """Set the prices of links for the next pass from the loads so far, with a bias towards short paths."""
        congestion, net = self.congestion, self.net
        load = np.asarray(congestion.load)
        beta = self.tuning.sharpness[min(self.passes, len(self.tuning.sharpness) - 1)]
        sends = self.work * (np.diff(self.goals[0]) + np.diff(self.parts[0]))
        if self.narrow:
            sends = self.work * np.diff(self.path_ptr)
        even_us = max(float(sends.sum()) / float(net.bandwidth_gbs.sum()), self.likely_us, 1e-12)
        target_us = max(float(load.max(initial=0.0)), 1e-12) if self.passes else even_us
        # Short paths win among paths of equal price, and over all other paths where latency dominates.
        weight = self.bias * np.exp(beta * (min(even_us / target_us, 1.0) - 1.0))
        weight += self.latency_us / (self.latency_us + target_us)
        mean = max(float(self.work.mean()), 1e-12) if len(self.work) else 1.0
        bias = weight * net.alpha_us / mean + weight / net.bandwidth_gbs
        self.congestion = congestion._replace(
            **dict(zip(("bias", "knobs"), self.run.columns(bias, np.array([beta, target_us])), strict=True))
        )
        self.run(set_prices, self.priced_net, self.congestion)


def in_time(net: CsrNetwork, whole_us: float) -> Floats:
    """Return the part of a time in which the sends of each resource still arrive, relative to that of least latency.

    A send that leaves less than a latency before the end comes too late, so that slow links can carry less than their
    bandwidth. The shape is (resources,); 1 where all latencies are equal, or no time is given.
    """
    alpha_us = np.full(len(net.capacity_gbs), np.inf)
    np.minimum.at(alpha_us, net.uses_idx, net.alpha_us[row_of_entry(net.uses_ptr)])
    late_us = np.where(np.isfinite(alpha_us), alpha_us - float(net.alpha_us.min(initial=np.inf)), 0.0)
    return np.clip(1 - late_us / whole_us, _LEAST_IN_TIME, 1) if whole_us > 0 else np.ones_like(late_us)


def route_shortest(
    run: Runner, net: CsrNetwork, congestion: Congestion, order: Ints, source: Ints, goal: Ints, work: Floats,
    row: Ints, hops: Ints, paths: Csr, fresh: bool,
) -> Ints:  # fmt: skip
    """Route the chunks of `order` again over paths of fewest links, and return the paths by chunk, first link first.

    It looks only at links between source and goal, so that a pass over a million chunks takes a second.

    Args:
        run: Runner of the compiled loops.
        net: The network as the loops need it.
        congestion: Loads and prices, which change.
        order: The chunks to route.
        source: Source of every chunk.
        goal: Goal of every chunk.
        work: Size of every chunk in kilobytes.
        row: Row of every chunk's source in `hops`.
        hops: Table of fewest links (see `hop_table`).
        paths: Place of each chunk's links, and the links in the present loads.
        fresh: Whether the loads contain no links yet.
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
    """Return the fewest links from each source to every rank, shape (sources, nranks); nranks without a path."""
    size = len(sources) * net.nranks
    columns = run.columns(sources, np.full(size, net.nranks), np.zeros(net.nranks, dtype=np.int64))
    run(_count_hops, run.table(net), *columns)
    return np.asarray(columns[1], dtype=np.int64).reshape(-1, net.nranks)


def _route_shortest(
    net: CsrNetwork, congestion: Congestion, fresh: bool, order: Any, source: Any, goal: Any, work: Any, row: Any,
    table: Any, path_ptr: Any, enters: Any, cost: Any, via: Any, stamp: Any, queue: Any, path: Any,
) -> None:  # fmt: skip
    """Write `path`, the links of all chunks.

    Args:
        net: The network as the loops need it.
        congestion: Loads and prices, which change.
        fresh: Whether the loads contain no links yet.
        order: The chunks to route.
        source: Source of every chunk.
        goal: Goal of every chunk.
        work: Size of every chunk in kilobytes.
        row: Row of every chunk's source in `table`.
        table: Fewest links from each source to every rank.
        path_ptr: CSR pointer from a chunk to its links.
        enters: Source and bundle of every entry of in_link, in turn.
        cost: Room for the cost of a byte from each rank.
        via: Room for the link that leaves each rank.
        stamp: Room for the last chunk that reached each rank.
        queue: Room for the ranks to look at.
        path: Links of all chunks.
    """
    nranks = net.nranks
    for i in range(len(order)):
        chunk = order[i]
        base, end = path_ptr[chunk], path_ptr[chunk + 1]
        if base == end:
            continue
        if not fresh:
            for j in range(base, end):
                add_load(net, congestion, net.bundle[path[j]], -work[chunk])
        # The cost from each rank to the goal is found backwards from the goal.
        s, t = source[chunk], goal[chunk]
        first_entry = row[chunk] * nranks
        cost[t] = 0.0
        stamp[t] = i
        queue[0] = t
        first, last = 0, 1
        while first < last:
            v = queue[first]
            first += 1
            if v == s:
                break
            so_far, nearer = cost[v], table[first_entry + v] - 1
            for j in range(net.in_ptr[v], net.in_ptr[v + 1]):
                u = enters[2 * j]
                if table[first_entry + u] != nearer:
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
        rank = s
        for j in range(base, end):
            link = via[rank]
            path[j] = link
            add_load(net, congestion, net.bundle[link], work[chunk])
            rank = net.dst[link]


def _count_hops(net: CsrNetwork, sources: Any, table: Any, queue: Any) -> None:
    """Set table[i · ranks + v], which is nranks everywhere, to the fewest links from sources[i] to rank v."""
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
    """Return the rows of the chunks marked in `which`."""
    count = np.diff(table[0])
    return pointers(np.where(which, count, 0)), table[1][np.repeat(which, count)]


def merged(first: Csr, second: Csr) -> Csr:
    """Return the union of two tables of which each chunk has rows in one only."""
    ptr = pointers(np.diff(first[0]) + np.diff(second[0]))
    ranks = np.empty(ptr[-1], dtype=np.int64)
    for begin, column in (first, second):
        ranks[ranges(ptr[:-1], np.diff(begin))] = column
    return ptr, ranks


def owners(problem: Problem) -> Ints:
    """Return the rank at which each sum comes together, in turn among the ranks that want it; shape (chunks,).

    It is 0 for a sum that no rank wants.
    """
    collective = problem.collective
    if not strongly_connected(problem.nranks, problem.network.src, problem.network.dst):
        return sum_owners(problem)
    ptr, ranks = collective.goals
    count = np.diff(ptr)
    block = max(1, -(-collective.nchunks // collective.nranks))
    goal_index = (np.arange(collective.nchunks) // block) % np.maximum(count, 1)
    padded = np.append(ranks, 0)
    return np.where(count > 0, padded[np.minimum(ptr[:-1] + goal_index, len(ranks))], 0)
