"""The linear relaxation of a copying problem: fractions of chunks flow, and only the busiest resource counts.

Its optimum is a bound for every number of chunks, and its dual prices are the witness. The unit of data is the
smallest chunk; the unit of time is the round in which that chunk crosses the slowest link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.deadline import checking_deadline
from synth.model.problem import Problem
from synth.solvers.linear_program import LinearProgram, ProgramBuilder
from synth.symmetry.relabelling import Symmetry
from synth.timing.rounds import unit_gbs
from topologies.arrays import grouped


@dataclass(frozen=True, eq=False)
class LinkCapacity:
    """A set of links that share a limit on their traffic.

    Attributes:
        links: Indices of the links.
        chunks: Number of smallest chunks that the links carry in a round, in sum.
        resource: Index of the network's resource, or nresources + link for the link's own bandwidth.
    """

    links: Ints
    chunks: float
    resource: int


def capacities(problem: Problem) -> list[LinkCapacity]:
    """Return the capacities of the network's resources, and then of the links' own bandwidths, without implied ones.

    Of capacities of the same links only the smallest stays, the first of equal ones. Without hyperlinks, a capacity is
    also left out if the capacity of a larger set, with all its links, is no higher. Resources that no link uses are
    left out.
    """
    net, unit = problem.network, unit_gbs(problem)
    rows: dict[bytes, LinkCapacity] = {}
    ptr, entries = grouped(net.uses_idx, net.nresources)
    users = [*np.split(net.link_of_use[entries], ptr[1:-1]), *np.arange(net.nlinks)[:, None]]
    limits = np.concatenate([net.capacity_gbs, net.bandwidth_gbs]).tolist()
    for resource, (links, gbs) in enumerate(zip(users, limits, strict=True)):
        key = links.tobytes()
        if len(links) and (key not in rows or rows[key].chunks > gbs / unit):
            rows[key] = LinkCapacity(links, gbs / unit, resource)
    if net.hyperlinks is not None:
        return list(rows.values())  # Hyperlinks also take some of the capacities that look implied.
    capacity_links = [(row, set(row.links.tolist())) for row in rows.values()]
    capacities_at_link: dict[int, list[tuple[LinkCapacity, set[int]]]] = {}
    for row, links in capacity_links:
        for link in links:
            capacities_at_link.setdefault(link, []).append((row, links))
    return [
        row
        for row, links in capacity_links
        if not any(wider.chunks <= row.chunks and links < more for wider, more in capacities_at_link[int(row.links[0])])
    ]


@dataclass(frozen=True, eq=False)
class Demand:
    """Chunks with the same holders that are routed as one commodity. Amounts are in chunks of the smallest size.

    Attributes:
        holders: Ranks that hold the chunks at the start.
        spread: True: every wanting rank needs all of `amount`, and ranks copy on the way. False: a plain flow.
        goals: Ranks that want the chunks.
        amount: Shape (1,) if `spread`; otherwise shape (nranks,), and rank v takes out amount[v].
    """

    holders: Ints
    spread: bool
    goals: Ints
    amount: Floats


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A linear program and the rows of its capacities.

    Attributes:
        program: The linear program.
        rows: (capacity, step, row of the program) for every capacity, in every step where the program has steps.
    """

    program: LinearProgram
    rows: list[tuple[LinkCapacity, int, int]]  # capacity, step, row of the program


def demands(problem: Problem, chosen: Ints) -> list[Demand]:
    """Return what the chosen chunks must carry, in units of the smallest chunk: first plain flows, then spreads.

    A receiver is a rank that wants a chunk and does not hold it. Chunks with one receiver are one demand for each set
    of holders; chunks with more receivers are one demand for each set of holders and receivers. Chunks without a
    receiver are left out. A chosen chunk represents its orbit but is not weighted by the size of it.

    Args:
        problem: The problem.
        chosen: Numbers of the chunks.

    Raises:
        InputError: The tables of the collective take too much memory.
        TimeUp: The time of the work around is over.
    """
    collective = problem.collective
    size = collective.fraction / collective.fraction.min()
    flows: dict[bytes, Floats] = {}
    spreads: dict[tuple[bytes, bytes], float] = {}
    for chunk in checking_deadline(chosen.tolist(), every=256):
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
    """Return the ranks that the bytes of a boolean array flag."""
    return np.flatnonzero(np.frombuffer(flags, dtype=bool))


def variables(problem: Problem, nsteps: int, symmetry: Symmetry) -> int:
    """Return about the number of variables that a relaxation over `nsteps` steps has; nothing is built.

    It is the number of demands × (links + local ranks) × steps.
    """
    return len(demands(problem, symmetry.orbits)) * (problem.network.nlinks + problem.nranks) * nsteps


def add_capacities(
    program: ProgramBuilder, problem: Problem, symmetry: Symmetry, flows: list[Ints]
) -> list[tuple[LinkCapacity, int, int]]:
    """Add the rows Σ flow over the links of a capacity ≤ its chunks a round × the rounds of the step.

    A row without flows, and one with the same flows as an earlier row, is left out.

    Args:
        program: The program to extend; its columns 0..nsteps-1 are the rounds of the steps.
        problem: The problem whose capacities count.
        symmetry: A flow on a link loads every image of the link.
        flows: Columns of the flows, shape (nlinks, nsteps) each.

    Returns:
        (capacity, step, row) of every row that was added.

    Raises:
        TimeUp: The time of the work around is over.
    """
    use: dict[tuple[int, int], list[int]] = {}
    for flow in checking_deadline(flows):
        for link, columns in enumerate(flow.tolist()):
            for image in symmetry.links[:, link].tolist():
                for step, column in enumerate(columns):
                    use.setdefault((image, step), []).append(column)
    added: set[tuple[int, ...]] = set()
    priced = []
    for capacity in checking_deadline(capacities(problem), every=16):
        for step in range(flows[0].shape[1] if flows else 0):
            users = sorted(v for link in capacity.links.tolist() for v in use.get((link, step), ()))
            key = (step, *users)
            if not users or key in added:
                continue
            added.add(key)
            round_entry, flow_entries = np.zeros(1, dtype=np.int64), np.zeros(len(users), dtype=np.int64)
            terms = (round_entry, np.array([step]), capacity.chunks), (flow_entries, np.array(users), -1.0)
            priced.append((capacity, step, program.add_rows(np.zeros(1), *terms)))
    return priced


def steady(problem: Problem, symmetry: Symmetry) -> Relaxation | None:
    """Build the program of the least load of the busiest capacity, in rounds for all chunks, over any number of steps.

    A solution may be averaged over the symmetry, because the problem is convex. So only one commodity of every orbit
    has variables. The objective, variable 0, is the load; all rows are of step 0. The result is None where a demand is
    not a plain flow: some chunk has more than one receiver.

    Raises:
        TimeUp: The time of the work around is over.
    """
    net = problem.network
    all_demands = demands(problem, symmetry.orbits)
    if any(demand_of_orbit.spread for demand_of_orbit in all_demands):
        return None
    program = ProgramBuilder()
    total = sum(float(demand_of_orbit.amount.sum()) for demand_of_orbit in all_demands) * symmetry.order * net.nranks
    program.add_variables(1, total, cost=1.0)
    flows = []
    for demand in checking_deadline(all_demands):
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
    """Return, for every step, the dual price of each resource, equal for all images of a row.

    A step's prices, each times the chunks a round that its resource carries, sum to at most 1.

    Args:
        problem: The problem of the relaxation.
        relaxation: The linear program with at least one row of a capacity.
        row_prices: Dual prices of all rows of the program, as `Solution.dual_prices`.
        symmetry: The symmetry with which the relaxation was built.

    Returns:
        For each step the prices > 0 by resource, numbered as in `LinkCapacity.resource`; negligible ones are left out.
    """
    nsteps = 1 + max(step for _, step, _ in relaxation.rows)
    capacity_of_links = {known_capacity.links.tobytes(): known_capacity for known_capacity in capacities(problem)}
    prices: list[dict[int, float]] = [{} for _ in range(nsteps)]
    for capacity, step, row in relaxation.rows:
        price = float(row_prices[row])
        if price <= 1e-12:
            continue
        images = {np.sort(image[capacity.links]).tobytes() for image in symmetry.links}
        for key in sorted(images):
            resource = capacity_of_links[key].resource
            prices[step][resource] = prices[step].get(resource, 0.0) + price / len(images)
    return prices
