"""Routes of every chunk: paths and trees at prices that keep all resources equally loaded, pass by pass.

Chunks are routed one at a time over the cheapest links at prices that grow exponentially with the load of each
resource, as in on-line routing of virtual circuits (Aspnes, Azar, Fiat, Plotkin and Waarts, 1997). In later passes each
chunk is removed and routed again at steeper prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from synth.bounds.prove import Bound
from synth.engines.flow.congestion_prices import Congestion, add_load, cost_of, set_prices
from synth.engines.flow.csr_network import CsrNetwork, csr_network, reverse_network
from synth.engines.flow.tree_sends import no_trees
from synth.engines.flow.trees import Csr, route_trees, tree_chunks
from synth.engines.flow.tuning import TUNING, FlowTuning
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import AllowedHolders, Problem
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


@dataclass(frozen=True)
class RouteShape:
    """The shape of the routes that a router prefers.

    Attributes:
        depth: 0 for trees that only follow the load, 1 for trees that also count the whole path from the root.
        narrow: Whether the first passes take paths of fewest links only.
        bias: Cost of a byte on an idle link, as a fraction of its cost on the busiest link: large for short paths,
            small for balanced loads.
    """

    depth: float = 0.5
    narrow: bool = True
    bias: float = 0.05


@dataclass(frozen=True)
class ExpectedTime:
    """What is known of a schedule's time in advance, without the time of a call before its first send; 0 if unknown.

    Attributes:
        likely_us: Likely time in µs that the busiest resource will be busy.
        latency_us: Approximate time in µs of the smallest message.
        enough_us: A time in µs that need not be improved (a bound, or a little above it).
    """

    likely_us: float = 0.0
    latency_us: float = 0.0
    enough_us: float = 0.0

    @classmethod
    def of(cls, bound: Bound, size_bytes: float, near: float, starts_us: float) -> ExpectedTime:
        """Return what a bound tells of the time at a message size, with all three times set.

        The time of the busiest resource is the bound less its value at 0 bytes, the latency is that value less the
        start of a call, and `enough_us` is the bound times `near`, less the start of a call.

        Args:
            bound: The bound, which counts the start of a call.
            size_bytes: Message size in bytes.
            near: Ratio time / bound up to which a schedule is not improved.
            starts_us: Time of a call before its first send in µs.
        """
        least_us, latency_us = bound.at(size_bytes)[0], bound.at(0.0)[0]
        return cls(max(least_us - latency_us, 0.0), max(latency_us - starts_us, 0.0), least_us * near - starts_us)


USUAL_SHAPE, UNKNOWN_TIME = RouteShape(), ExpectedTime()


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
        shape: RouteShape = USUAL_SHAPE,
        expected: ExpectedTime = UNKNOWN_TIME,
        tuning: FlowTuning = TUNING,
    ) -> None:
        """Build the tables for the routes of a problem; nothing is routed yet.

        Args:
            problem: The problem.
            size_bytes: Message size in bytes.
            run: Runner of the compiled loops.
            shape: The shape of routes to prefer.
            expected: What is known of the time.
            tuning: Settings of routing.

        Raises:
            InputError: If a sum has no rank that all its contributors reach and that reaches all its goals.
        """
        collective = problem.collective
        self.problem, self.size_bytes, self.run, self.tuning = problem, size_bytes, run, tuning
        self.shape, self.expected = shape, expected
        self.net = csr_network(problem.network)
        self.in_time = in_time(self.net, expected.likely_us + expected.latency_us)
        priced = self.net._replace(capacity_gbs=self.net.capacity_gbs * self.in_time)
        self.priced_net = run.table(priced)
        self.work = collective.chunk_bytes(size_bytes) * 1e-3
        self.allowed = problem.allowed_holders or AllowedHolders(
            np.zeros(collective.nchunks, dtype=np.int64), np.ones((1, problem.nranks), dtype=bool)
        )
        self._set_ends()
        self.passes = 0
        nres, nbundles = len(self.net.capacity_gbs), self.net.nbundles
        zeros = (np.zeros(count) for count in (nres, nres, nbundles, nbundles, 2))
        self.congestion = Congestion(*run.columns(*zeros))
        self.order = np.arange(collective.nchunks)
        self.single = bool((np.diff(self.sources[0]) == 1).all() and (np.diff(self.goals[0]) == 1).all())
        is_plain = self.single and problem.allowed_holders is None and not collective.reducing
        self.wide = not is_plain or collective.nchunks * problem.network.nlinks <= tuning.wide_links
        self.narrow = is_plain and (shape.narrow or not self.wide)
        if self.single:
            # All sources send to the next rank first, then to the rank after that.
            source, goal = self.sources[1], self.goals[1]
            self.order = np.argsort((goal - source) % collective.nranks, kind="stable")
        if self.narrow:
            roots, row = np.unique(source, return_inverse=True)
            hops = hop_table(run, self.net, roots)
            self.path_ptr = pointers(hops[row, goal])
            self.chunk_paths = run.table(
                ChunkPaths(self.order, source, goal, self.work, row, hops.ravel(), self.path_ptr)
            )

    def _set_ends(self) -> None:
        """Set the tables by chunk of where routes begin and end, and of the trees so far, which are empty.

        `owned` is the rank that gathers each sum, and `parts` are its contributors; a sum that no rank wants has
        neither. `sources` are these owners and the holders of all other chunks, and `goals` the ranks that want each
        chunk.
        """
        collective = self.problem.collective
        holders, self.goals = collective.holders, collective.goals
        empty = no_trees(collective.nchunks)
        self.owned = self.parts = self.gathering = self.spreading = empty
        self.sources = holders
        if collective.reducing:
            sums = collective.reduces & (np.diff(self.goals[0]) > 0)  # Sums that no rank wants are not gathered.
            self.owned = (pointers(sums.astype(np.int64)), owners(self.problem)[sums])
            self.parts = only(holders, sums)
            self.sources = merged(self.owned, only(holders, ~sums))

    def improve(self) -> Routing:
        """Route every chunk once more, at prices from the loads so far, and return all routes.

        Raises:
            InputError: If a chunk cannot reach a goal.
        """
        self._reprice()
        if self.narrow and (self.passes < 2 or not self.wide):
            path = self.spreading[1] if self.passes else np.zeros(self.path_ptr[-1], dtype=np.int64)
            path = route_shortest(self.run, self.priced_net, self.congestion, self.chunk_paths, path, self.passes == 0)
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
        """Route all chunks over new trees, and return the trees and the number of chunks that miss a goal.

        The loads and prices of `congestion` change. `trees` are the chunks' trees in the present loads.
        """
        chunks = tree_chunks(self.order, holders, goals, self.work, self.allowed)
        return route_trees(self.run, net, self.congestion, chunks, self.shape.depth, trees)

    def _reprice(self) -> None:
        """Set the prices of links for the next pass from the loads so far, with a bias towards short paths."""
        congestion, net, latency_us = self.congestion, self.net, self.expected.latency_us
        load = np.asarray(congestion.load)
        beta = self.tuning.sharpness[min(self.passes, len(self.tuning.sharpness) - 1)]
        sends = self.work * (np.diff(self.goals[0]) + np.diff(self.parts[0]))
        if self.narrow:
            sends = self.work * np.diff(self.path_ptr)
        even_us = max(float(sends.sum()) / float(net.bandwidth_gbs.sum()), self.expected.likely_us, 1e-12)
        target_us = max(float(load.max(initial=0.0)), 1e-12) if self.passes else even_us
        # Short paths win among paths of equal price, and over all other paths where latency dominates.
        weight = self.shape.bias * np.exp(beta * (min(even_us / target_us, 1.0) - 1.0))
        weight += latency_us / (latency_us + target_us)
        mean = max(float(self.work.mean()), 1e-12) if len(self.work) else 1.0
        bias = weight * net.alpha_us / mean + weight / net.bandwidth_gbs
        self.congestion = congestion._replace(
            **dict(zip(("bias", "knobs"), self.run.columns(bias, np.array([beta, target_us])), strict=True))
        )
        self.run(set_prices, self.priced_net, self.congestion)


def in_time(net: CsrNetwork, whole_us: float) -> Floats:
    """Return the part of a time in which the sends of each resource still arrive, relative to that of least latency.

    A send that leaves less than a latency before the end comes too late, so that slow links can carry less than their
    bandwidth.

    Args:
        net: The network.
        whole_us: Time of the whole schedule in µs; 0 where it is not known.

    Returns:
        Numbers from 0.25 to 1, shape (resources,): 1 at the resources of least latency, or where no time is known.
    """
    alpha_us = np.full(len(net.capacity_gbs), np.inf)
    np.minimum.at(alpha_us, net.uses_idx, net.alpha_us[row_of_entry(net.uses_ptr)])
    late_us = np.where(np.isfinite(alpha_us), alpha_us - float(net.alpha_us.min(initial=np.inf)), 0.0)
    return np.clip(1 - late_us / whole_us, _LEAST_IN_TIME, 1) if whole_us > 0 else np.ones_like(late_us)


class ChunkPaths(NamedTuple):
    """Chunks that are routed from one rank to one rank over paths of fewest links.

    Attributes:
        order: The chunks in the order in which they are routed.
        source: Source of every chunk.
        goal: Goal of every chunk.
        work: Size of every chunk in kilobytes.
        row: Row of every chunk's source in `hops`.
        hops: Table of fewest links from sources to ranks (see `hop_table`), row by row.
        ptr: CSR pointer from a chunk to its links.
    """

    order: Any
    source: Any
    goal: Any
    work: Any
    row: Any
    hops: Any
    ptr: Any


def route_shortest(
    run: Runner, net: CsrNetwork, congestion: Congestion, chunks: ChunkPaths, path: Ints, fresh: bool
) -> Ints:
    """Route chunks again over paths of fewest links, and return the links of all chunks, first link first.

    It looks only at links between source and goal, so that a pass over a million chunks takes a second.

    Args:
        run: Runner of the compiled loops.
        net: The network as the loops need it.
        congestion: Loads and prices, which change.
        chunks: The chunks as the loops need them.
        path: Links of all chunks in the present loads, by chunk as `chunks.ptr` says; it does not change.
        fresh: Whether the loads contain no links yet.
    """
    links = np.asarray(net.in_link)
    enters = np.column_stack([np.asarray(net.src)[links], np.asarray(net.bundle)[links]]).ravel()
    zeros = np.zeros(net.nranks, dtype=np.int64)
    scratch = _PathScratch(*run.columns(enters, np.zeros(net.nranks), zeros, zeros - 1, zeros.copy()))
    (path,) = run.columns(path.copy())
    run(_route_shortest, net, congestion, fresh, chunks, scratch, path)
    return np.asarray(path, dtype=np.int64)


def hop_table(run: Runner, net: CsrNetwork, sources: Ints) -> Ints:
    """Return the fewest links from each source to every rank, shape (sources, nranks); nranks without a path."""
    size = len(sources) * net.nranks
    columns = run.columns(sources, np.full(size, net.nranks), np.zeros(net.nranks, dtype=np.int64))
    run(_count_hops, run.table(net), *columns)
    return np.asarray(columns[1], dtype=np.int64).reshape(-1, net.nranks)


class _PathScratch(NamedTuple):
    """State of every rank while a path is searched for.

    Attributes:
        enters: Source and bundle of every entry of in_link, in turn.
        cost: Cost of a byte from each rank.
        via: Link that leaves each rank.
        stamp: Last chunk that reached each rank.
        queue: Ranks to look at.
    """

    enters: Any
    cost: Any
    via: Any
    stamp: Any
    queue: Any


def _route_shortest(
    net: CsrNetwork, congestion: Congestion, fresh: bool, chunks: ChunkPaths, scratch: _PathScratch, path: Any
) -> None:
    """Route every chunk again: write the links of all chunks to `path`, and keep loads and prices up to date.

    Args:
        net: The network.
        congestion: Loads and prices; changes.
        fresh: Whether the loads contain no links yet, so that none is removed from them.
        chunks: The chunks.
        scratch: State of every rank; changes.
        path: Links of all chunks, by chunk as `chunks.ptr` says; changes. A chunk without links is left out.
    """
    order, source, goal, work, row, table, path_ptr = chunks
    enters, cost, via, stamp, queue = scratch
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
    """Return a table with the entries of the chunks marked in `which`, shape (chunks,), and none for other chunks."""
    count = np.diff(table[0])
    return pointers(np.where(which, count, 0)), table[1][np.repeat(which, count)]


def merged(first: Csr, second: Csr) -> Csr:
    """Return the union of two tables by chunk, of which each chunk has entries in one at most."""
    ptr = pointers(np.diff(first[0]) + np.diff(second[0]))
    ranks = np.empty(ptr[-1], dtype=np.int64)
    for begin, column in (first, second):
        ranks[ranges(ptr[:-1], np.diff(begin))] = column
    return ptr, ranks


def owners(problem: Problem) -> Ints:
    """Return the rank at which each sum comes together, in turn among the ranks that want it; shape (chunks,).

    It is 0 or any other rank for a sum that no rank wants, and means nothing for a chunk that is no sum.

    Raises:
        InputError: If a sum has no rank that all its contributors reach and that reaches all its goals.
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
