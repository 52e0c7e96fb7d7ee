"""What proves a bound on the time: objects that can be checked from the problem alone.

Each witness gives a lower limit in µs for any message size, in the model of the design document, over all
algorithms and all numbers of chunks. `check` recomputes what it claims and shares nothing with the search for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.collective import Collective
from synth.problem import Problem


class BadWitness(ValueError):
    """The witness does not prove what it claims."""


@dataclass(frozen=True)
class Witness:
    """At message size s the time is at least `base_us + per_byte_us · s`, and never over `cap_us`.

    Attributes:
        kind: path, cut, parts, direct or lengths.
        ranks: path: (from, to). cut: local ranks on the sending side. direct: none.
        parts: parts: local ranks of every part.
        resources: indices of the network's resources that the crossing sends must use.
        base_us, per_byte_us, cap_us: the limit. cap_us is inf but for `direct`, which holds only until a second
            hop could pay: time ≥ min(cap, base + per_byte · s).
        text: for the reader.
        prices: lengths: (resource, price) pairs; a link is as long as its resources' prices together. A resource
            beyond the network's own (nresources + link) is that link's own bandwidth.
    """

    kind: str
    ranks: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    resources: tuple[int, ...]
    base_us: float
    per_byte_us: float
    cap_us: float
    text: str
    prices: tuple[tuple[int, float], ...] = ()

    def at(self, size_bytes: float) -> float:
        return min(self.cap_us, self.base_us + self.per_byte_us * size_bytes)


def check(problem: Problem, witness: Witness) -> None:
    """Recompute a witness from the problem.

    Raises:
        BadWitness: it claims more than it proves, or its resources do not cover what they must.
    """
    base, per_byte, cap = recompute(problem, witness)
    for name, claimed, proved in (
        ("µs", witness.base_us, base),
        ("µs per byte", witness.per_byte_us, per_byte),
        ("µs at most", witness.cap_us, cap),
    ):
        if claimed > proved * (1 + 1e-9) + 1e-12:
            raise BadWitness(f"{witness.kind} {witness.text}: claims {claimed} {name}, proves {proved}")


def recompute(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """What the witness proves: (µs, µs per byte, µs at most), whatever numbers it claims."""
    return {"path": _path, "cut": _cut, "parts": _parts, "direct": _direct, "lengths": _lengths}[
        witness.kind
    ](problem, witness)


def _latency(problem: Problem) -> list[list[float]]:
    """Floyd and Warshall, in plain loops."""
    net, n = problem.network, problem.nranks
    best = [[0.0 if i == j else np.inf for j in range(n)] for i in range(n)]
    for u, v, alpha in zip(net.src.tolist(), net.dst.tolist(), net.alpha_us.tolist(), strict=True):
        best[u][v] = min(best[u][v], alpha)
    for m in range(n):
        through = best[m]
        for row in best:
            if row[m] < np.inf:
                for j in range(n):
                    if row[m] + through[j] < row[j]:
                        row[j] = row[m] + through[j]
    return best


def _path(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """A chunk that must get from one rank to another spends at least the least sum of α on the way."""
    first, last = witness.ranks
    collective = problem.collective
    for chunk in collective.post[collective.post[:, 0] == last][:, 1].tolist():
        holders = collective.pre[collective.pre[:, 1] == chunk][:, 0].tolist()
        if collective.reduces[chunk] and first in holders:
            return _latency(problem)[first][last], 0.0, np.inf
        if not collective.reduces[chunk] and holders == [first]:
            return _latency(problem)[first][last], 0.0, np.inf
    raise BadWitness(f"path {witness.text}: nothing has to get from {first} to {last}")


def _crosses(collective: Collective, inside: set[int]) -> tuple[list[int], set[int], set[int]]:
    """Chunks of which at least one copy or partial sum must leave `inside`, their sources and their goals."""
    holders: dict[int, list[int]] = {}
    for rank, chunk in collective.pre.tolist():
        holders.setdefault(chunk, []).append(rank)
    outside: dict[int, list[int]] = {}
    for rank, chunk in collective.post.tolist():
        if rank not in inside:
            outside.setdefault(chunk, []).append(rank)
    chunks, sources, goals = [], set(), set()
    for chunk, wanted in outside.items():
        within = [r for r in holders.get(chunk, []) if r in inside]
        needed = bool(within) if collective.reduces[chunk] else len(within) == len(holders.get(chunk, []))
        if needed and within:
            chunks.append(chunk)
            sources.update(within)
            goals.update(wanted)
    return chunks, sources, goals


def _covered(problem: Problem, witness: Witness, side: dict[int, int]) -> None:
    net = problem.network
    if not witness.resources or not set(witness.resources) <= set(range(net.nresources)):
        raise BadWitness(f"{witness.kind} {witness.text}: needs resources of the network")
    for link in range(net.nlinks):
        u, v = int(net.src[link]), int(net.dst[link])
        if side[u] == side[v] or side[u] < 0:
            continue
        uses = net.uses(link).tolist()
        if not set(uses) & set(witness.resources):
            raise BadWitness(f"{witness.kind} {witness.text}: link {problem.link_name(link)} goes round it")


def _cut(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """What must leave a set of ranks shares the capacity of all ways out of it."""
    net, collective = problem.network, problem.collective
    inside = set(witness.ranks)
    _covered(problem, witness, {r: (0 if r in inside else -1) for r in range(problem.nranks)})
    capacity = float(net.capacity_gbs[sorted(set(witness.resources))].sum())
    chunks, sources, goals = _crosses(collective, inside)
    leaving = float(collective.fraction[chunks].sum()) / capacity / 1e3
    latency = _latency(problem)
    ways = [
        link
        for link in range(net.nlinks)
        if int(net.src[link]) in inside and int(net.dst[link]) not in inside
    ]
    if not chunks or not ways:
        return 0.0, 0.0, np.inf
    before = min(min(latency[s][int(net.src[link])] for s in sources) for link in ways)
    after = min(
        float(net.alpha_us[link]) + min(latency[int(net.dst[link])][g] for g in goals) for link in ways
    )
    return before + after, leaving, np.inf


def _parts(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """An all-to-all sum over k parts needs 2(k-1) sends of every chunk between parts.

    Take the first part that has all contributions: each other part has sent by then, and each must still receive.
    """
    net, collective = problem.network, problem.collective
    if sorted(r for part in witness.parts for r in part) != list(range(problem.nranks)):
        raise BadWitness(f"parts {witness.text}: not every rank is in exactly one part")
    k = collective.nranks
    if not collective.reduces.all() or not (collective.holds.all() and collective.wants.all()):
        raise BadWitness("parts: holds for allreduce only")
    if any(min(part, default=k) >= k for part in witness.parts):
        raise BadWitness(f"parts {witness.text}: a part without a member of the group")
    side = {rank: i for i, part in enumerate(witness.parts) for rank in part}
    _covered(problem, witness, side)
    capacity = float(net.capacity_gbs[sorted(set(witness.resources))].sum())
    sends = 2 * (len(witness.parts) - 1)
    return float(net.alpha_us.min()), sends * float(collective.fraction.sum()) / capacity / 1e3, np.inf


def _direct(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """Faster than two hops, everything comes straight from where it was: the busiest resource's load."""
    net, collective = problem.network, problem.collective
    alpha = float(net.alpha_us.min())
    if len(witness.resources) != 1:
        raise BadWitness("direct: needs one resource")
    (resource,) = witness.resources
    user = {link for link in range(net.nlinks) if resource in net.uses(link)}
    pairs: dict[tuple[int, int], list[int]] = {}
    for link in range(net.nlinks):
        pairs.setdefault((int(net.src[link]), int(net.dst[link])), []).append(link)
    holders: dict[int, list[int]] = {}
    for rank, chunk in collective.pre.tolist():
        holders.setdefault(chunk, []).append(rank)
    load = 0.0
    for rank, chunk in collective.post.tolist():
        sources = holders.get(chunk, [])
        if not collective.reduces[chunk] and rank in sources:
            continue
        needed = [s for s in sources if s != rank]
        forced = [
            all(link in user for link in pairs.get((s, rank), [-1])) and (s, rank) in pairs for s in needed
        ]
        if collective.reduces[chunk]:
            load += sum(forced) * float(collective.fraction[chunk])
        elif all(forced) and forced:
            load += float(collective.fraction[chunk])
    return alpha, load / float(net.capacity_gbs[resource]) / 1e3, 2 * alpha


def _lengths(problem: Problem, witness: Witness) -> tuple[float, float, float]:
    """Every byte on a link uses up its length; what must travel, over the shortest ways, must find room.

    The dual of the multi-commodity flow (Shahrokhi and Matula, 1990). Of a chunk that goes to several ranks, or
    from several together, only the furthest counts.
    """
    net, collective = problem.network, problem.collective
    price = dict(witness.prices)
    if not set(price) <= set(range(net.nresources + net.nlinks)) or min(price.values(), default=0.0) < 0:
        raise BadWitness("lengths: a negative price, or one of a resource that does not exist")
    room = 0.0
    for resource, value in price.items():
        own = resource - net.nresources
        room += value * float(net.bandwidth_gbs[own] if own >= 0 else net.capacity_gbs[resource])
    n = problem.nranks
    far = [[0.0 if i == j else np.inf for j in range(n)] for i in range(n)]
    for link in range(net.nlinks):
        u, v = int(net.src[link]), int(net.dst[link])
        uses = net.uses(link).tolist()
        length = price.get(net.nresources + link, 0.0) + sum(price.get(r, 0.0) for r in uses)
        far[u][v] = min(far[u][v], length)
    table = np.array(far)
    for middle in range(n):
        table = np.minimum(table, table[:, middle, None] + table[None, middle, :])
    holders: dict[int, list[int]] = {}
    for rank, chunk in collective.pre.tolist():
        holders.setdefault(chunk, []).append(rank)
    travels: dict[int, float] = {}
    for rank, chunk in collective.post.tolist():
        from_holders = table[holders[chunk], rank]
        way = float(from_holders.max() if collective.reduces[chunk] else from_holders.min())
        travels[chunk] = max(travels.get(chunk, 0.0), way)
    used = sum(float(collective.fraction[chunk]) * way for chunk, way in travels.items())
    return float(net.alpha_us.min()), used / room / 1e3 if room > 0 else 0.0, np.inf
