"""Link lengths that prove much in the metric bound: uniform ones, ones from a routing's loads, and optimal ones.

In the linear program whose dual variables are the lengths, only the busiest resources of a best routing have a price.
So the loads of a good routing show which resources need prices. Trials find how high the prices are, and mirror ascent
improves them (multiplicative weights, as in Young, 1995): the shortest paths under the prices show what should cost
more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from synth.bounds.metric import fewer_ends, lengths_at_ends, link_lengths, pairs, resource_loads
from synth.bounds.relaxation import dual_prices, steady, variables
from synth.bounds.search import DEFAULT, BoundSearch, BoundTuning
from synth.bounds.witness import countable
from synth.bounds.witnesses.lengths import Lengths, lengths_us_per_byte
from synth.model.collective import Bools, Floats, Ints
from synth.model.deadline import checking_deadline, now
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by
from synth.symmetry.relabelling import free_symmetry
from topologies.arrays import flags_of

_NEGLIGIBLE = 1e-12  # of the highest price: not worth a place in the witness
_FLOOR = 1e-4  # of the average weight: mirror ascent could never raise a weight of 0
_STEP = 1.0  # step size of mirror ascent


def find_uniform(search: BoundSearch) -> Iterator[Lengths]:
    """Yield lengths from equal prices, which prove that the average path needs capacity.

    Prices are equal by the byte; where capacities differ, a second witness has prices equal by the busy µs. Where some
    resources of a network with hyperlinks are used by no link (ports of switches), two more have equal prices by the
    byte for all others, and a lower price or none for these.
    """
    net = search.problem.network
    capacity = net.capacity_gbs
    yield _claim(np.ones(len(capacity)), "link lengths, every resource alike")
    if np.ptp(capacity) > 1e-9 * capacity.max():
        yield _claim(capacity.max() / capacity, "link lengths, every resource alike by its time")
    if net.hyperlinks is not None and not (is_used := flags_of(net.nresources, net.uses_idx)).all():
        # A multicast that takes only a part of the rate gets the length of the sends that it replaces.
        members = int(np.diff(net.hyperlinks.ptr).max()) + 1
        for price in (0.0, max(0.0, 1 - 3 / members)):
            yield _claim(np.where(is_used, 1.0, price), "link lengths, every port alike")


def find_by_loads(search: BoundSearch) -> Iterator[Lengths]:
    """Yield one witness of prices from the loads of the search's routing, improved by mirror ascent.

    Nothing is yielded without loads.
    """
    if search.loads_us is not None:
        yield _claim(_prices_from_loads(search.problem, search.loads_us, search.tuning))


def find_by_linear_program(search: BoundSearch) -> Iterator[Lengths]:
    """Yield the dual prices of the flow relaxation as one witness, for problems that copy each chunk to one rank.

    It waits for the solver. Nothing is yielded for other problems, for quotient problems and large ones, without
    workers, and where the solver does not end within `search.budget_s`.

    Raises:
        TimeUp: The time of the work around is over.
    """
    problem, tuning = search.problem, search.tuning
    collective = problem.collective
    if collective.reducing or problem.quotient is not None or search.workers is None:
        return
    if collective.nchunks * collective.nranks > tuning.program_cells:
        return
    symmetry = free_symmetry(problem)
    if variables(problem, 1, symmetry) > tuning.program_variables:
        return
    relaxation = steady(problem, symmetry)
    if relaxation is None:
        return
    deadline = now() + search.budget_s
    result = search.workers.answer(deadline, "linear", relaxation.program, search.budget_s)
    if result is None or result.solution is None:
        return
    (prices,) = dual_prices(problem, relaxation, result.solution.dual_prices, symmetry)
    text = f"link lengths, {len(prices)} loaded resources"
    yield Lengths(text=text, prices=tuple(sorted(prices.items())))


def from_prices(problem: Problem, prices: Floats) -> Lengths:
    """Return the witness of some prices, with the numbers that it proves (without the start of a call).

    Args:
        problem: The problem.
        prices: Prices ≥ 0, shape (nresources,), or (nresources + nlinks,) with those of every link's own bandwidth.
            Only their ratios matter.

    Raises:
        BadWitness: A price is negative or not finite.
    """
    claim = _claim(prices)
    base, per_byte, _ = claim.limit(countable(problem))
    return replace(claim, base_us=base, per_byte_us=per_byte)


def from_loads(problem: Problem, loads_us: Floats, rounds: int = 0) -> Lengths:
    """Return the best lengths that the loads of a routing lead to, with the numbers that they prove; any loads serve.

    The start of a call is not included in the numbers.

    Args:
        problem: The problem, or a quotient problem; best with one chunk a block.
        loads_us: How long each resource is busy, shape (nresources,), in any unit (see `resource_loads_us`).
        rounds: Rounds of mirror ascent from the best candidate; each computes the shortest paths once.

    Raises:
        TimeUp: The time of the work around is over.
    """
    tuning = replace(DEFAULT, mirror_rounds=rounds)
    return from_prices(problem, _prices_from_loads(countable(problem), loads_us, tuning))


def lengths_by_loads(problem: Problem, loads_us: Callable[[], Floats]) -> list[Lengths]:
    """Return what `from_loads` proves, or nothing where lengths say nothing of the problem.

    Args:
        problem: As `from_loads` takes it.
        loads_us: Returns the loads that `from_loads` takes; called only when they are needed.

    Raises:
        TimeUp: The time of the work around is over.
    """
    return [] if Lengths.says_nothing_of(problem) else [from_loads(problem, loads_us())]


def _claim(prices: Floats, text: str = "") -> Lengths:
    """Return the witness of some prices, shape (resources,), without numbers; negligible prices are left out.

    Args:
        prices: The prices ≥ 0.
        text: Its text; "" for one that counts the prices.
    """
    loaded = np.flatnonzero(prices > _NEGLIGIBLE * prices.max(initial=0.0))
    rows = tuple(zip(loaded.tolist(), prices[loaded].tolist(), strict=True))
    return Lengths(text=text or f"link lengths, {len(loaded)} loaded resources", prices=rows)


def _prices_from_loads(problem: Problem, loads_us: Floats, tuning: BoundTuning) -> Floats:
    """Return the prices that prove most among candidates from the loads and from mirror ascent, shape (nresources,).

    Args:
        problem: The problem, as `countable` returns it.
        loads_us: How long each resource is busy, shape (nresources,), in any unit; other values than numbers ≥ 0 count
            as 0.
        tuning: Limits of the search.
    """
    load = np.maximum(np.nan_to_num(np.asarray(loads_us, dtype=np.float64)), 0.0)
    small = sampled(problem, tuning.sampled_ranks)
    best, value = _best(problem, small, [np.ones(len(load)), *_weights(load, tuning)], tuning)
    if tuning.mirror_rounds > 0:
        better, loads = ascend(shared_out(problem, tuning.step_ranks), best, tuning.mirror_rounds)
        further = [better, *_weights(better, tuning, steep=False), *_weights(loads, tuning)]
        better, proved = _best(problem, small, further, tuning)
        best = better if proved > value else best
    return best / problem.network.capacity_gbs


def _weights(load: Floats, tuning: BoundTuning, steep: bool = True) -> list[Floats]:
    """Return weights of the resources from their loads, shape (nresources,) each; none where no load is above 0.

    For each of the tuning's `near_full` they are 1 for loads of at least that part of the highest and 0 else. With
    `steep` there are also some that grow exponentially with the load, one for each of its `steepness`.
    """
    highest = float(load.max(initial=0.0))
    if highest <= 0:
        return []
    flat = [(load >= near * highest).astype(np.float64) for near in tuning.near_full]
    return flat + [np.exp(exponent * (load / highest - 1.0)) for exponent in (tuning.steepness if steep else ())]


def _best(problem: Problem, small: Problem, weights: list[Floats], tuning: BoundTuning) -> tuple[Floats, float]:
    """Return the weights that prove most, and their value in µs per byte.

    Args:
        problem: The problem.
        small: A sample of it by which the weights to try on the problem are chosen; or the problem itself.
        weights: Weights of the resources, shape (nresources,) each, at least one.
        tuning: Limits of the search.
    """
    capacity = problem.network.capacity_gbs
    weights = list({w.tobytes(): w for w in weights}.values())
    values = [_value(small, w / capacity) for w in checking_deadline(weights)]
    if small is not problem:
        order = np.argsort(-np.array(values), kind="stable")[: tuning.tried]
        weights = [weights[i] for i in order]
        values = [_value(problem, w / capacity) for w in checking_deadline(weights)]
    best = int(np.argmax(values))
    return weights[best], values[best]


def _value(problem: Problem, price: Floats) -> float:
    """Return the µs per byte that prices of the resources, shape (nresources,), prove."""
    return lengths_us_per_byte(problem, np.concatenate([price, np.zeros(problem.network.nlinks)]))


def sampled(problem: Problem, ranks: int) -> Problem:
    """Return the problem with the moving chunks of a fixed random sample of about `ranks` ranks.

    Chunks are numbered anew. Where three such samples would be more than all, it is the problem itself.
    """
    parts = _drawn(problem, ranks)
    return problem if len(parts) < 3 else _only(problem, parts[0])


def shared_out(problem: Problem, ranks: int) -> list[Problem]:
    """Return problems that share the moving chunks at random, each with the chunks of about `ranks` ranks.

    Chunks are numbered anew in each. If one problem would have all, it is the problem itself.
    """
    parts = _drawn(problem, ranks)
    return [problem] if len(parts) < 2 else [_only(problem, chunks) for chunks in parts]


def _drawn(problem: Problem, ranks: int) -> list[Ints]:
    """Return the numbers of the chunks that move, in random parts with the chunks of about `ranks` ranks each.

    A chunk belongs to the first of its holders, or of its goals where goals are fewer distinct ranks. The draw is
    always the same. Chunks of a part are ascending; there is at least one part.
    """
    collective = problem.collective
    (ptr, ends), _ = fewer_ends(collective)
    moving = np.flatnonzero((np.diff(ptr) > 0) & (find_requirements(collective).ngoal > 0))
    anchor = ends[ptr[moving]]
    distinct = np.random.default_rng(0).permutation(np.unique(anchor))
    count = max(1, round(len(distinct) / ranks))
    part = np.zeros(collective.nranks, dtype=np.int64)
    part[distinct] = np.arange(len(distinct)) % count
    return [moving[part[anchor] == i] for i in range(count)]


def _only(problem: Problem, chunks: Ints) -> Problem:
    """Return the problem with only these chunks, numbered anew in this order; places in the buffers stay."""
    old = problem.collective
    number = np.full(old.nchunks, -1, dtype=np.int64)
    number[chunks] = np.arange(len(chunks))
    before, after = number[old.pre[:, 1]] >= 0, number[old.post[:, 1]] >= 0
    pre, post = old.pre[before], old.post[after]
    smaller = replace(
        old,
        nchunks=len(chunks),
        reduces=old.reduces[chunks],
        fraction=old.fraction[chunks],
        pre=np.column_stack([pre[:, 0], number[pre[:, 1]]]),
        post=np.column_stack([post[:, 0], number[post[:, 1]]]),
        in_index=old.in_index[before],
        out_index=old.out_index[after],
    )
    return replace(problem, collective=smaller)


def ascend(parts: list[Problem], weight: Floats, rounds: int) -> tuple[Floats, Floats]:
    """Return weights that prove more than the initial ones, and the loads of the paths that proved it.

    The paths of many steps are a good routing on average: no resource is much busier than the value says.

    Args:
        parts: Problems that share the chunks at random, with about equal traffic; every step looks at one of them as if
            it were the whole.
        weight: Initial weights, one a resource; it is not changed.
        rounds: How often every part is looked at.

    Returns:
        The weights and, for each resource, the sum of the loads over the later half of the rounds. With one part the
        weights are those of the best value; with more they are the sum over these rounds, not normalized.

    Raises:
        TimeUp: The time of the work around is over.
    """
    least = _FLOOR / len(weight)
    weight = np.maximum(weight / weight.sum(), least)
    weight /= weight.sum()
    duals = [Dual(part) for part in parts]
    best, best_value, loads, late = weight, 0.0, np.zeros(len(weight)), np.zeros(len(weight))
    for step in checking_deadline(range(rounds * len(parts))):
        value, load = duals[step % len(parts)].slope(weight)
        if value > best_value:
            best, best_value = weight, value
        if step // len(parts) >= rounds // 2:  # The first paths come from poor weights.
            loads += load
            late += weight
        rate = _STEP / np.sqrt(step + 1.0) / max(float(load.max()), 1e-300)
        weight = np.maximum(weight * np.exp(rate * (load - value)), least)
        weight /= weight.sum()
    return best if len(parts) == 1 else late, loads


class Dual:
    """The value of weights w over resources (price = weight / capacity), and its slope.

    The value is the µs per byte that the lengths prove, Σ required length / Σ w. Where every chunk goes from one rank
    to one rank, it is concave on weights of sum 1, and the loads of the chosen paths (µs per byte of every resource)
    are a supergradient. Of other chunks the limit that is highest at w counts.

    Attributes:
        problem: The problem.
        listed: Pairs of holders and goals.
        need: Requirements of the collective.
        key: Number of each link's pair of ranks, src · nranks + dst.
        order: Links sorted by `key`.
        first: Index in `order` of each pair's first link.
        keys: Distinct pairs, ascending.
        forth: True if paths start at holders, which are then fewer than the goals.
        root: Rank of each listed pair at which its path's tree has its root.
        end: The other rank of each listed pair.
        roots: Distinct roots.
        place: Index in `roots` of each listed pair's root.
        share: Share of the message of each chunk.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        net, self.listed = problem.network, pairs(problem.collective)
        self.need = find_requirements(problem.collective)
        self.key = net.src * net.nranks + net.dst
        self.order = np.argsort(self.key, kind="stable")
        self.first = np.flatnonzero(np.diff(self.key[self.order], prepend=-1))
        self.keys = self.key[self.order][self.first]
        self.forth = fewer_ends(problem.collective)[1]
        roots, ends = self.listed.holder, self.listed.goal
        self.root, self.end = (roots, ends) if self.forth else (ends, roots)
        self.roots, self.place = np.unique(self.root, return_inverse=True)
        self.share = problem.collective.fraction

    def slope(self, weight: Floats) -> tuple[float, Floats]:
        """Return the value, and the load of every resource, both in µs per byte, if chunks take the cheapest paths.

        Args:
            weight: Weight of every resource, shape (nresources,), some above 0.

        Returns:
            The value, and the loads, shape (nresources,).
        """
        net, collective = self.problem.network, self.problem.collective
        price = np.concatenate([weight / net.capacity_gbs, np.zeros(net.nlinks)])
        length = link_lengths(self.problem, price)
        links = self.order  # becomes the shortest link of every pair in `keys`
        if len(self.keys) < net.nlinks:
            links = np.lexsort((length, self.key))[self.first]
        distance, parent = self._trees(length[links])
        row, required = self._furthest(distance)
        into, out = (_shortest(end, length, net.nranks) for end in (net.dst, net.src))
        ends = lengths_at_ends(collective, *(np.where(link >= 0, length[link], 0.0) for link in (into, out)))
        most = np.maximum.reduce([required, *ends])
        carried = np.zeros(net.nlinks)
        undecided = np.ones(collective.nchunks, dtype=bool)
        for number, value in enumerate(ends):
            decided = undecided & (value >= most) & (value > required)
            undecided &= ~decided
            if decided.any():
                self._at_ends(number, decided, into, out, length, carried)
        self._on_trees(row[undecided & (row >= 0)], parent, links, carried)
        return float(most @ self.share) / float(weight.sum()) / 1e3, resource_loads(net, carried) / 1e3

    def _trees(self, length: Floats) -> tuple[Floats, Ints]:
        """Return distances from (or to) every root, and the previous (next) rank on each shortest path.

        Both have shape (roots, nranks). The rank is -1 at roots and where there is no path.

        Args:
            length: Length of the shortest link of every pair in `keys`.
        """
        from scipy.sparse import csr_array  # Imported here: SciPy starts slowly, and only mirror ascent needs it.
        from scipy.sparse.csgraph import dijkstra

        n = self.problem.nranks
        src, dst = self.keys // n, self.keys % n
        ends = (src, dst) if self.forth else (dst, src)
        graph = csr_array((length, ends), shape=(n, n))
        distance, parent = dijkstra(graph, indices=self.roots, return_predecessors=True)
        return distance, np.maximum(parent, -1).astype(np.int64)

    def _furthest(self, distance: Floats) -> tuple[Ints, Floats]:
        """Return the listed pair whose path counts for each chunk, or -1, and the path's length, shape (nchunks,) each.

        Args:
            distance: Distances as `_trees` returns them.
        """
        collective, listed = self.problem.collective, self.listed
        row, required = np.full(collective.nchunks, -1, dtype=np.int64), np.zeros(collective.nchunks)
        length = distance[self.place, self.end]
        index, chunk = np.arange(len(length)), listed.of_pairs(listed.chunk)
        if not listed.single:
            nearest = listed.of_pairs(np.minimum.reduceat(length, listed.start))
            relevant = collective.reduces[chunk] | (length <= nearest)
            index, chunk, length = index[relevant], chunk[relevant], length[relevant]
        np.maximum.at(required, chunk, length)
        best = np.flatnonzero(length >= required[chunk])
        row[chunk[best]] = index[best]
        return row, required

    def _at_ends(self, number: int, chunk_flags: Bools, into: Ints, out: Ints, length: Floats, carried: Floats) -> None:
        """Add the chunks flagged to the shortest links into their goals, out of their holders, or both.

        Args:
            number: Index of the limit in `lengths_at_ends`: 0 into goals, 1 out of holders, 2 both.
            chunk_flags: Chunks for which this limit counts.
            into: Shortest link into every rank, or -1.
            out: Shortest link out of every rank, or -1.
            length: Length of every link.
            carried: Share that every link carries; it is changed.
        """
        collective, need = self.problem.collective, self.need
        hold, goal = collective.holders[1], collective.goals[1]
        comes = chunk_flags[need.goal_chunk] & (need.arrive if number == 0 else number == 2)
        leaves = chunk_flags[need.hold_chunk] & (need.depart if number == 1 else number == 2)
        for flags, rank, chunk, link in ((comes, goal, need.goal_chunk, into), (leaves, hold, need.hold_chunk, out)):
            at = np.flatnonzero(flags)
            at = at[link[rank[at]] >= 0]
            np.add.at(carried, link[rank[at]], self.share[chunk[at]])
        if number == 2:  # The first rank with the whole sum need not receive or send it, so the costliest is taken off.
            at = np.flatnonzero(comes)
            rank, goal_holds, chunk = goal[at], need.goal_is_holder[at], need.goal_chunk[at]
            cost = length[into[rank]] + length[out[rank]] * goal_holds
            by_chunk = np.lexsort((-cost, chunk))
            costliest = by_chunk[np.flatnonzero(np.diff(chunk[by_chunk], prepend=-1))]
            share = self.share[chunk[costliest]]
            np.add.at(carried, into[rank[costliest]], -share)
            np.add.at(carried, out[rank[costliest]], -share * goal_holds[costliest])

    def _on_trees(self, rows: Ints, parent: Ints, links: Ints, carried: Floats) -> None:
        """Add the shares of the chunks of some listed pairs to the links on the paths between root and end.

        Args:
            rows: Indices of the listed pairs.
            parent: Ranks as `_trees` returns them.
            links: Link of every pair in `keys`.
            carried: Share that every link carries; it is changed.
        """
        n, roots = self.problem.nranks, len(self.roots)
        shares = self.share[self.listed.of_pairs(self.listed.chunk)[rows]]
        flow = sum_by(self.place[rows] * n + self.end[rows], shares, roots * n)
        base = np.arange(roots)[:, None] * n
        parent_node = np.where(parent >= 0, parent + base, np.arange(n) + base).ravel()
        depth = (parent >= 0).astype(np.int64).ravel()
        jump = parent_node
        while True:
            parent_depth = depth[jump]
            if not parent_depth.any():
                break
            depth = depth + parent_depth
            jump = jump[jump]
        order = np.argsort(depth, kind="stable")
        cuts = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
        for low, high in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
            nodes = order[low:high]
            np.add.at(flow, parent_node[nodes], flow[nodes])
        used = np.flatnonzero((flow > 0) & (parent_node != np.arange(len(parent_node))))
        node, before = used % n, parent_node[used] % n
        key = before * n + node if self.forth else node * n + before
        np.add.at(carried, links[np.searchsorted(self.keys, key)], flow[used])


def _shortest(end: Ints, length: Floats, nranks: int) -> Ints:
    """Return the shortest of the links at every rank, shape (nranks,), or -1 where there is none.

    Args:
        end: The rank at which each link counts: its source or its destination.
        length: Length of each link.
        nranks: Number of ranks.
    """
    order = np.lexsort((length, end))
    first = np.flatnonzero(np.diff(end[order], prepend=-1))
    shortest = np.full(nranks, -1, dtype=np.int64)
    shortest[end[order][first]] = order[first]
    return shortest
