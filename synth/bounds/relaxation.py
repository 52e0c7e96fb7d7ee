"""The linear relaxation of a copying problem: fractions of chunks flow, and only the busiest resource counts.

Its optimum is a bound for every number of chunks at once, and its dual prices are the witness. Units: the smallest
chunk, and the round in which that goes over the slowest link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from synth.solvers.linear_program import LinearProgram, ProgramBuilder
from synth.symmetry.relabelling import Symmetry
from synth.timing.rounds import unit_gbs
from topologies.arrays import grouped


@dataclass(frozen=True, eq=False)
class Capacity:
    """Links that together carry `chunks` of the smallest chunks a round.

    resource: the network's resource, or its number of resources + a link whose own bandwidth is meant.
    """

    links: Ints
    chunks: float
    resource: int


def capacities(problem: Problem) -> list[Capacity]:
    """What limits the links, without what another limit of the same links, and perhaps more, implies."""
    net, unit = problem.network, unit_gbs(problem)
    rows: dict[bytes, Capacity] = {}
    ptr, entries = grouped(net.uses_idx, net.nresources)
    users = [*np.split(net.link_of_use[entries], ptr[1:-1]), *np.arange(net.nlinks)[:, None]]
    limits = np.concatenate([net.capacity_gbs, net.bandwidth_gbs]).tolist()
    for resource, (links, gbs) in enumerate(zip(users, limits, strict=True)):
        key = links.tobytes()
        if len(links) and (key not in rows or rows[key].chunks > gbs / unit):
            rows[key] = Capacity(links, gbs / unit, resource)
    if net.hyperlinks is not None:
        return list(rows.values())  # these take some of what looks implied
    each = [(row, set(row.links.tolist())) for row in rows.values()]
    around: dict[int, list[tuple[Capacity, set[int]]]] = {}
    for row, links in each:
        for link in links:
            around.setdefault(link, []).append((row, links))
    return [
        row
        for row, links in each
        if not any(other.chunks <= row.chunks and links < more for other, more in around[int(row.links[0])])
    ]


@dataclass(frozen=True, eq=False)
class Demand:
    """Chunks with the same holders that are routed as one commodity.

    `spread`: every wanting rank needs all of `amount` (copies are made on the way). Otherwise a plain flow:
    rank v takes out amount[v]. Amounts are in chunks of the smallest size.
    """

    holders: Ints
    spread: bool
    wanted: Ints
    amount: Floats


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A linear program, and which of its rows are the capacities (in every step, where there are steps)."""

    program: LinearProgram
    rows: list[tuple[Capacity, int, int]]  # capacity, step, row of the program


def demands(problem: Problem, chosen: Ints) -> list[Demand]:
    """The commodities of the chunks given (all of one orbit representative set)."""
    collective = problem.collective
    size = collective.fraction / collective.fraction.min()
    flows: dict[bytes, Floats] = {}
    spreads: dict[tuple[bytes, bytes], float] = {}
    for chunk in chosen.tolist():
        holds = collective.holds[chunk]
        wants = collective.wants[chunk] & ~holds
        count = int(wants.sum())
        if count == 1:
            flow = flows.setdefault(holds.tobytes(), np.zeros(collective.nranks))
            flow[wants] += size[chunk]
        elif count:
            key = (holds.tobytes(), wants.tobytes())
            spreads[key] = spreads.get(key, 0.0) + size[chunk]
    plain = [Demand(_ranks(h), False, np.flatnonzero(f), f) for h, f in flows.items()]
    return plain + [Demand(_ranks(h), True, _ranks(w), np.array([amount])) for (h, w), amount in spreads.items()]


def _ranks(flags: bytes) -> Ints:
    return np.flatnonzero(np.frombuffer(flags, dtype=bool))


def variables(problem: Problem, nsteps: int, symmetry: Symmetry) -> int:
    """About how many variables a relaxation over so many steps has."""
    return len(demands(problem, symmetry.orbits)) * (problem.network.nlinks + problem.nranks) * nsteps


def add_capacities(
    program: ProgramBuilder, problem: Problem, symmetry: Symmetry, flows: list[Ints]
) -> list[tuple[Capacity, int, int]]:
    """Rows for Σ flow over the links of a capacity ≤ its chunks a round × the rounds of the step.

    Args:
        program: its columns 0..nsteps-1 are the rounds.
        symmetry: a flow loads every image of its link.
        flows: columns, shape (nlinks, nsteps) each.

    Returns (capacity, step, row) of every row.
    """
    use: dict[tuple[int, int], list[int]] = {}
    for flow in flows:
        for link, columns in enumerate(flow.tolist()):
            for image in symmetry.links[:, link].tolist():
                for step, column in enumerate(columns):
                    use.setdefault((image, step), []).append(column)
    seen: set[tuple[int, ...]] = set()
    priced = []
    for capacity in capacities(problem):
        for step in range(flows[0].shape[1] if flows else 0):
            users = sorted(v for link in capacity.links.tolist() for v in use.get((link, step), ()))
            key = (step, *users)
            if not users or key in seen:
                continue
            seen.add(key)
            one, rest = np.zeros(1, dtype=np.int64), np.zeros(len(users), dtype=np.int64)
            terms = (one, np.array([step]), capacity.chunks), (rest, np.array(users), -1.0)
            priced.append((capacity, step, program.add_rows(np.zeros(1), *terms)))
    return priced


def steady(problem: Problem, symmetry: Symmetry) -> Relaxation | None:
    """Least load of the busiest capacity, in rounds a chunk, over any number of steps; for plain flows only.

    By convexity a solution may be averaged over the symmetry, so only one commodity of every orbit has variables.
    """
    net = problem.network
    everything = demands(problem, symmetry.orbits)
    if any(d.spread for d in everything):
        return None
    program = ProgramBuilder()
    total = sum(float(d.amount.sum()) for d in everything) * symmetry.order * net.nranks
    program.add_variables(1, total, cost=1.0)
    flows = []
    for demand in everything:
        amount = float(demand.amount.sum())
        x = program.add_variables(net.nlinks, amount)
        inner = ~np.isin(np.arange(net.nranks), demand.holders)
        least = np.zeros(net.nranks)
        least[: len(demand.amount)] = demand.amount
        leaves = inner[net.src]
        program.add_rows(
            np.where(inner, least, -amount),
            (net.dst, x, np.where(inner[net.dst], 1.0, 0.0)),
            (net.src[leaves], x[leaves], -1.0),
        )
        flows.append(x[:, None])
    return Relaxation(rows=add_capacities(program, problem, symmetry, flows), program=program.build())


def dual_prices(
    problem: Problem, relaxation: Relaxation, row_prices: Floats, symmetry: Symmetry
) -> list[dict[int, float]]:
    """Per step: the dual price of every resource (see `Capacity.resource`), the same for all images of a row.

    A step's prices, each times the chunks a round that its resource carries, sum to at most 1.
    """
    nsteps = 1 + max(step for _, step, _ in relaxation.rows)
    where = {c.links.tobytes(): c for c in capacities(problem)}
    found: list[dict[int, float]] = [{} for _ in range(nsteps)]
    for capacity, step, row in relaxation.rows:
        price = float(row_prices[row])
        if price <= 1e-12:
            continue
        images = {np.sort(image[capacity.links]).tobytes() for image in symmetry.links}
        for key in sorted(images):
            resource = where[key].resource
            found[step][resource] = found[step].get(resource, 0.0) + price / len(images)
    return found
