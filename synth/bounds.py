"""Lower limits on the time of any algorithm for a problem, each with its witness.

Latency: hop distance weighted by α. Bandwidth: cuts (single ranks, nodes, and the worst by max-flow as in
ForestColl, section 4) and, for allreduce, parts. Small messages: direct exchange, until two hops could pay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from synth.collective import Floats, Ints
from synth.engines.linear import LinearAnswer
from synth.engines.workers import Workers
from synth.problem import Problem, least_latency
from synth.relaxation import LARGEST_PROGRAM, prices, steady, variables
from synth.symmetry import free_symmetry
from synth.witness import Witness, check, recompute

_NEVER = float("inf")


@dataclass(frozen=True)
class Bound:
    """The best of several witnesses at each size."""

    witnesses: tuple[Witness, ...]

    def at(self, size_bytes: float) -> tuple[float, Witness]:
        """The highest limit at a message size, in µs, and what proves it."""
        best = max(self.witnesses, key=lambda w: (w.at(size_bytes), w.kind == "path"))
        return best.at(size_bytes), best

    @property
    def per_byte_us(self) -> float:
        """The steepest limit: µs per byte that no algorithm can beat for large messages."""
        return max((w.per_byte_us for w in self.witnesses if w.cap_us == _NEVER), default=0.0)


def prove(problem: Problem, *, max_flow: bool = True) -> Bound:
    """Bounds of a problem; `max_flow` also looks for the worst cut among all sets of ranks.

    Of chunks made from the same data (a scan's sums) only some count: one send may serve several of them.
    """
    problem = apart(problem)
    finder = _Finder(problem)
    found = [finder.path(), *finder.direct()]
    for inside in _plain_cuts(problem):
        found += finder.cut(inside)
    if finder.all_to_all_sum:
        for parts in (_node_parts(problem), *_tight_parts(problem)):
            found += finder.parts(parts)
        found += finder.parts([[r] for r in range(problem.collective.nranks)])
    if max_flow:
        from synth.max_flow import worst_cut

        start = max((w.per_byte_us for w in found if w.kind == "cut"), default=0.0)
        for inside in worst_cut(problem, start):
            found += finder.cut(inside)
    bound = Bound(tuple(_useful(found)))
    for witness in bound.witnesses:
        check(problem, witness)
    return bound


def apart(problem: Problem) -> Problem:
    """The problem with only such chunks wanted as share no place of an input buffer with each other."""
    old = problem.collective
    places: dict[tuple[int, int], int] = {}
    shared = np.zeros(old.nchunks, dtype=bool)
    by_chunk: dict[int, list[tuple[int, int]]] = {}
    for (rank, chunk), index in zip(old.pre.tolist(), old.in_index.tolist(), strict=True):
        by_chunk.setdefault(chunk, []).append((rank, index))
    # the sums of most parts first: they say most
    for chunk in sorted(by_chunk, key=lambda c: (-len(by_chunk[c]), c)):
        if any(place in places for place in by_chunk[chunk]):
            shared[chunk] = True
        else:
            places |= dict.fromkeys(by_chunk[chunk], chunk)
    if not shared.any():
        return problem
    kept = ~shared[old.post[:, 1]]
    fewer = replace(old, post=old.post[kept], out_index=old.out_index[kept])
    return replace(problem, collective=fewer)


def _useful(witnesses: list[Witness]) -> list[Witness]:
    """Without those that another one beats at every size."""
    kept: list[Witness] = []
    for w in sorted(witnesses, key=lambda w: (-w.per_byte_us, -w.base_us)):
        if w.base_us <= 0 and w.per_byte_us <= 0:
            continue
        if not any(
            o.base_us >= w.base_us and o.per_byte_us >= w.per_byte_us and o.cap_us >= w.cap_us for o in kept
        ):
            kept.append(w)
    return kept or witnesses[:1]


def _plain_cuts(problem: Problem) -> Iterable[list[int]]:
    k, n = problem.collective.nranks, problem.nranks
    for rank in range(k):
        yield [rank]
        yield [r for r in range(n) if r != rank]
    for part in _node_parts(problem):
        if len(part) < n:
            yield part
            yield sorted(set(range(n)) - set(part))


def _node_parts(problem: Problem) -> list[list[int]]:
    """Local ranks of every node of the cluster that the group touches."""
    node = problem.topology.nodes[np.array(problem.ranks)]
    return [np.flatnonzero(node == i).tolist() for i in np.unique(node)]


def _tight_parts(problem: Problem) -> Iterable[list[list[int]]]:
    """Ranks that wide links join, for every width that links have: what is between the parts is narrow."""
    net = problem.network
    for width in np.unique(net.bandwidth_gbs)[::-1]:
        part = np.arange(net.nranks)
        wide = net.bandwidth_gbs >= width
        while True:
            low = part.copy()
            np.minimum.at(low, net.dst[wide], part[net.src[wide]])
            np.minimum.at(low, net.src[wide], part[net.dst[wide]])
            if np.array_equal(low, part):
                break
            part = low
        yield [np.flatnonzero(part == i).tolist() for i in np.unique(part)]


class _Finder:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        net, collective = problem.network, problem.collective
        self.latency = least_latency(net.nranks, net.src, net.dst, net.alpha_us)
        self.holds, self.wants = collective.holds, collective.wants
        self.all_to_all_sum = bool(
            collective.reduces.all() and self.holds.all() and self.wants.all() and collective.nranks > 1
        )
        counts = net.uses_ptr[1:] - net.uses_ptr[:-1]
        self.link_of = np.repeat(np.arange(net.nlinks), counts)

    def name(self, ranks: Iterable[int]) -> str:
        names = [self.problem.ranks[r] for r in ranks]
        if len(names) > 12:
            return f"{{{', '.join(map(str, names[:10]))}, … {len(names)} ranks}}"
        return "{" + ", ".join(map(str, names)) + "}"

    def path(self) -> Witness:
        """The pair that is furthest apart among those between which something must travel."""
        reduces = self.problem.collective.reduces
        travel = np.zeros((self.problem.collective.nranks,) * 2, dtype=bool)
        single = self.holds.sum(axis=1) == 1
        for these in (reduces, ~reduces & single):
            if these.any():
                travel |= self.holds[these].astype(np.float32).T @ self.wants[these].astype(np.float32) > 0
        away = np.where(travel, self.latency[: len(travel), : len(travel)], -1.0)
        first, last = (int(x) for x in np.unravel_index(int(away.argmax()), away.shape))
        base = max(0.0, float(away[first, last]))
        text = f"path {self.problem.ranks[first]}→{self.problem.ranks[last]}, {base:.4g} µs"
        return Witness("path", (first, last), (), (), base, 0.0, _NEVER, text)

    def cut(self, inside: list[int]) -> list[Witness]:
        net, collective = self.problem.network, self.problem.collective
        member = np.zeros(net.nranks, dtype=bool)
        member[inside] = True
        ways = np.flatnonzero(member[net.src] & ~member[net.dst])
        within = member[: collective.nranks]
        some = (self.holds & within).any(axis=1)
        whole = some & ~(self.holds & ~within).any(axis=1)
        crossing = (self.wants & ~within).any(axis=1) & np.where(collective.reduces, some, whole)
        if not crossing.any() or not len(ways):
            return []
        resources = self._cover(ways)
        capacity = float(net.capacity_gbs[resources].sum())
        sources = (self.holds[crossing] & within).any(axis=0)
        goals = (self.wants[crossing] & ~within).any(axis=0)
        before = self.latency[: collective.nranks][sources][:, net.src[ways]].min()
        after = net.alpha_us[ways] + self.latency[net.dst[ways]][:, : collective.nranks][:, goals].min(axis=1)
        per_byte = float(collective.fraction[crossing].sum()) / capacity / 1e3
        smaller = inside if 2 * len(inside) <= net.nranks else sorted(set(range(net.nranks)) - set(inside))
        way = "" if smaller is inside else " inward"
        text = f"cut {self.name(smaller)}{way}, {capacity:.6g} GB/s"
        base = float(before + after.min())
        ranks, used = tuple(sorted(inside)), tuple(resources.tolist())
        return [Witness("cut", ranks, (), used, base, per_byte, _NEVER, text)]

    def parts(self, parts: list[list[int]]) -> list[Witness]:
        """For allreduce; relays join the part of a member of their node, or the first."""
        net = self.problem.network
        k = self.problem.collective.nranks
        parts = [list(part) for part in parts if min(part) < k]  # relays alone make no part
        node = self.problem.topology.nodes[np.array(self.problem.ranks)]
        for rank in sorted(set(range(net.nranks)) - {r for part in parts for r in part}):
            home = next((p for p in parts if node[p[0]] == node[rank]), parts[0])
            home.append(rank)
        if len(parts) < 2:
            return []
        side = np.empty(net.nranks, dtype=np.int64)
        for i, part in enumerate(parts):
            side[part] = i
        ways = np.flatnonzero(side[net.src] != side[net.dst])
        resources = self._cover(ways)
        capacity = float(net.capacity_gbs[resources].sum())
        per_byte = 2 * (len(parts) - 1) / capacity / 1e3 * float(self.problem.collective.fraction.sum())
        text = f"{len(parts)} parts, {2 * (len(parts) - 1)} sends a byte, {capacity:.6g} GB/s"
        base = float(net.alpha_us.min())
        split = tuple(tuple(sorted(part)) for part in parts)
        return [Witness("parts", (), split, tuple(resources.tolist()), base, per_byte, _NEVER, text)]

    def direct(self) -> list[Witness]:
        """Loads when every contribution or copy comes in one hop (if all of them can)."""
        net, collective = self.problem.network, self.problem.collective
        k = collective.nranks
        load = np.zeros((k, k))  # bytes that can only come straight from i to j, per byte of message
        holds, wants = self.holds.astype(np.float64), self.wants.astype(np.float64)
        these = collective.reduces
        load += (holds[these] * collective.fraction[these][:, None]).T @ wants[these]
        single = ~these & (self.holds.sum(axis=1) == 1)
        load += (holds[single] * collective.fraction[single][:, None]).T @ wants[single]
        np.fill_diagonal(load, 0.0)
        ways = np.zeros((net.nranks, net.nranks), dtype=np.int64)
        np.add.at(ways, (net.src, net.dst), 1)
        if (load > 0)[ways[:k, :k] == 0].any():
            return []
        single_way = ways[net.src, net.dst] == 1
        both = (net.src < k) & (net.dst < k) & single_way
        carried = np.zeros(net.nlinks)
        carried[both] = load[net.src[both], net.dst[both]]
        loads = np.bincount(net.uses_idx, weights=carried[self.link_of], minlength=net.nresources)
        busy: Floats = loads / net.capacity_gbs
        worst = int(busy.argmax())
        alpha = float(net.alpha_us.min())
        text = f"one hop or two: {net.resource_names[worst]}, {net.capacity_gbs[worst]:.6g} GB/s"
        return [Witness("direct", (), (), (worst,), alpha, float(busy[worst]) / 1e3, 2 * alpha, text)]

    def _cover(self, ways: Ints) -> Ints:
        """Resources of little capacity of which every one of the links uses at least one (greedy)."""
        net = self.problem.network
        uses = [set(net.uses(w).tolist()) for w in ways.tolist()]
        users: dict[int, set[int]] = {}
        for i, resources in enumerate(uses):
            for r in resources:
                users.setdefault(r, set()).add(i)
        best = self._greedy(users, len(ways), net.capacity_gbs)
        return np.array(sorted(best), dtype=np.int64)

    @staticmethod
    def _greedy(users: dict[int, set[int]], count: int, capacity: Floats) -> list[int]:
        open_links, chosen = set(range(count)), []
        while open_links:
            pick = min(
                (r for r in users if users[r] & open_links),
                key=lambda r: (capacity[r] / len(users[r] & open_links), r),
            )
            chosen.append(pick)
            open_links -= users[pick]
        for r in sorted(chosen, key=lambda r: -capacity[r]):
            rest = [o for o in chosen if o != r]
            if set().union(*(users[o] for o in rest)) >= set(range(count)):
                chosen = rest
        return chosen


def lengths_witness(problem: Problem, workers: Workers, budget_s: float) -> Witness | None:
    """Link lengths from the dual of the flow relaxation, for problems that copy each chunk to one rank."""
    problem = apart(problem)
    if problem.collective.reducing:
        return None
    symmetry = free_symmetry(problem)
    if variables(problem, 1, symmetry) > LARGEST_PROGRAM:
        return None
    relaxation = steady(problem, symmetry)
    if relaxation is None:
        return None
    answer: LinearAnswer | None = workers.answer(
        time.monotonic() + budget_s, "linear", "solve", relaxation.program, budget_s
    )
    if answer is None or not answer.solved:
        return None
    pairs = tuple(sorted(prices(problem, relaxation, answer, symmetry)[0].items()))
    text = f"link lengths, {len(pairs)} loaded resources"
    claim = Witness("lengths", (), (), (), 0.0, 0.0, _NEVER, text, pairs)
    base, per_byte, _ = recompute(problem, claim)
    return replace(claim, base_us=base, per_byte_us=per_byte)
