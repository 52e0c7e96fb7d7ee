"""Linear relaxations of a copying problem: fractions of chunks flow, nothing else changes.

Their optimum is a bound for every number of chunks at once, and their prices are its witness: `rounds` when the
links go in lock step for a given number of steps, `load` when only the time of the busiest resource counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.engines.ksync.encoding import Capacity, capacities
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem, hops
from synth.solvers.linear import LinearAnswer, LinearProgram
from synth.symmetry.relabelling import Symmetry

LARGEST_PROGRAM = 400_000  # variables that are worth solving for


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
    found = [
        Demand(np.flatnonzero(np.frombuffer(h, dtype=bool)), False, np.flatnonzero(f), f)
        for h, f in flows.items()
    ]
    for (h, w), amount in spreads.items():
        wanted = np.flatnonzero(np.frombuffer(w, dtype=bool))
        found.append(Demand(np.flatnonzero(np.frombuffer(h, dtype=bool)), True, wanted, np.array([amount])))
    return found


def variables(problem: Problem, nsteps: int, symmetry: Symmetry) -> int:
    """About how many variables `lockstep` would have."""
    count = len(demands(problem, symmetry.orbits))
    return count * (problem.network.nlinks + problem.nranks) * nsteps


class _Rows:
    """Triplets of a growing constraint matrix; every row reads Σ value·x ≥ least."""

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[tuple[Ints, Ints, Floats]] = []
        self.least: list[Floats] = []

    def add(self, least: Floats, *terms: tuple[Ints, Ints, float | Floats]) -> int:
        """Rows with right sides `least`; a term is (row within this call, column, value)."""
        for row, column, value in terms:
            filled = np.broadcast_to(np.asarray(value, dtype=np.float64), row.shape)
            self.parts.append((row + self.count, column, filled))
        first = self.count
        self.count += len(least)
        self.least.append(least)
        return first


def lockstep(problem: Problem, nsteps: int, symmetry: Symmetry) -> Relaxation | None:
    """Least rounds a chunk in `nsteps` steps; None when some chunk has further to go than that.

    By convexity a solution may be averaged over the symmetry, so only one commodity of every orbit has variables.
    """
    net = problem.network
    n, nlinks = net.nranks, net.nlinks
    distance = hops(n, net.src, net.dst)
    rows = _Rows()
    lows: list[Floats] = []
    highs: list[Floats] = []
    columns = nsteps  # the rounds of every step come first
    lows.append(np.zeros(nsteps))
    use: dict[tuple[int, int], list[int]] = {}
    everything = demands(problem, symmetry.orbits)
    total = sum(float(d.amount.sum()) * len(d.wanted) for d in everything) * symmetry.order * n + nsteps
    highs.append(np.full(nsteps, total))
    for demand in everything:
        if distance[demand.holders][:, demand.wanted].min(axis=0).max() > nsteps:
            return None
        x = columns + np.arange(nlinks * nsteps).reshape(nlinks, nsteps)
        stock = columns + nlinks * nsteps + np.arange(n * (nsteps + 1)).reshape(n, nsteps + 1)
        columns += nlinks * nsteps + n * (nsteps + 1)
        amount = float(demand.amount.sum())
        most = np.full((n, nsteps + 1), amount)
        least = np.zeros((n, nsteps + 1))
        most[:, 0] = 0.0
        least[demand.wanted, -1] = demand.amount if demand.spread else demand.amount[demand.wanted]
        least[demand.holders] = most[demand.holders] = amount
        lows += [np.zeros(nlinks * nsteps), least.ravel()]
        highs += [np.full(nlinks * nsteps, amount), most.ravel()]
        _supply_rows(rows, problem, demand, nsteps, x, stock)
        for link in range(nlinks):
            for image in symmetry.links[:, link].tolist():
                for step in range(nsteps):
                    use.setdefault((image, step), []).append(int(x[link, step]))
    priced = _capacity_rows(rows, problem, nsteps, use)
    row, column, value = (np.concatenate(part) for part in zip(*rows.parts, strict=True))
    cost = np.zeros(columns)
    cost[:nsteps] = 1.0
    program = LinearProgram(
        cost, np.concatenate(lows), np.concatenate(highs), np.concatenate(rows.least), row, column, value
    )
    return Relaxation(program, priced)


def _supply_rows(rows: _Rows, problem: Problem, demand: Demand, nsteps: int, x: Ints, stock: Ints) -> None:
    """What is sent was there when the step began; what is there came in."""
    net = problem.network
    n, nlinks = net.nranks, net.nlinks
    step = np.tile(np.arange(nsteps), nlinks)
    link = np.repeat(np.arange(nlinks), nsteps)
    each = np.arange(nlinks * nsteps)
    cell = np.arange(n * nsteps)
    rank, at = np.divmod(cell, nsteps)
    into = net.dst[link] * nsteps + step
    out_of = net.src[link] * nsteps + step
    if demand.spread:
        rows.add(np.zeros(len(each)), (each, stock[net.src[link], step], 1.0), (each, x[link, step], -1.0))
        rows.add(
            np.zeros(len(cell)),
            (cell, stock[rank, at], 1.0),
            (cell, stock[rank, at + 1], -1.0),
            (into, x[link, step], 1.0),
        )
        return
    free = np.isin(net.src[link], demand.holders)
    rows.add(np.zeros(len(cell)), (cell, stock[rank, at], 1.0), (out_of[~free], x[link, step][~free], -1.0))
    rows.add(
        np.zeros(len(cell)),
        (cell, stock[rank, at], 1.0),
        (cell, stock[rank, at + 1], -1.0),
        (into, x[link, step], 1.0),
        (out_of[~free], x[link, step][~free], -1.0),
    )


def _capacity_rows(
    rows: _Rows, problem: Problem, nsteps: int, use: dict[tuple[int, int], list[int]]
) -> list[tuple[Capacity, int, int]]:
    """Σ x over the links of a row ≤ its chunks a round × the rounds of the step (column `step`)."""
    seen: set[tuple[int, ...]] = set()
    priced = []
    for capacity in capacities(problem):
        for step in range(nsteps):
            users = sorted(v for link in capacity.links.tolist() for v in use.get((link, step), ()))
            key = (step, *users)
            if not users or key in seen:
                continue
            seen.add(key)
            zero = np.zeros(len(users), dtype=np.int64)
            one = np.zeros(1, dtype=np.int64)
            first = rows.add(
                np.zeros(1),
                (one, np.array([step]), capacity.exact),
                (zero, np.array(users), -1.0),
            )
            priced.append((capacity, step, first))
    return priced


def steady(problem: Problem, symmetry: Symmetry) -> Relaxation | None:
    """Least load of the busiest capacity, in rounds a chunk, over any number of steps; for plain flows only."""
    net = problem.network
    n, nlinks = net.nranks, net.nlinks
    everything = demands(problem, symmetry.orbits)
    if any(d.spread for d in everything):
        return None
    rows = _Rows()
    lows, highs = [np.zeros(1)], [np.array([np.inf])]
    columns = 1
    use: dict[tuple[int, int], list[int]] = {}
    for demand in everything:
        x = columns + np.arange(nlinks)
        columns += nlinks
        lows.append(np.zeros(nlinks))
        highs.append(np.full(nlinks, float(demand.amount.sum())))
        inner = ~np.isin(np.arange(n), demand.holders)
        least = np.zeros(n)
        least[: len(demand.amount)] = demand.amount
        leaves = inner[net.src]
        rows.add(
            np.where(inner, least, -float(demand.amount.sum())),
            (net.dst, x, np.where(inner[net.dst], 1.0, 0.0)),
            (net.src[leaves], x[leaves], -1.0),
        )
        for link in range(nlinks):
            for image in symmetry.links[:, link].tolist():
                use.setdefault((image, 0), []).append(int(x[link]))
    priced = _capacity_rows(rows, problem, 1, use)
    total = sum(float(d.amount.sum()) for d in everything) * symmetry.order * n
    highs[0][0] = total
    row, column, value = (np.concatenate(part) for part in zip(*rows.parts, strict=True))
    cost = np.zeros(columns)
    cost[0] = 1.0
    program = LinearProgram(
        cost, np.concatenate(lows), np.concatenate(highs), np.concatenate(rows.least), row, column, value
    )
    return Relaxation(program, priced)


def prices(
    problem: Problem, relaxation: Relaxation, answer: LinearAnswer, symmetry: Symmetry
) -> list[dict[int, float]]:
    """Per step: the price of every resource (see `Capacity.resource`), the same for all images of a row.

    A step's prices, each times the chunks a round that its resource carries, sum to at most 1.
    """
    nsteps = 1 + max(step for _, step, _ in relaxation.rows)
    where = {c.links.tobytes(): c for c in capacities(problem)}
    found: list[dict[int, float]] = [{} for _ in range(nsteps)]
    for capacity, step, row in relaxation.rows:
        price = float(answer.price[row])
        if price <= 1e-12:
            continue
        images = {np.sort(image[capacity.links]).tobytes() for image in symmetry.links}
        for key in sorted(images):
            resource = where[key].resource
            found[step][resource] = found[step].get(resource, 0.0) + price / len(images)
    return found


def safe_value(relaxation: Relaxation, answer: LinearAnswer) -> float:
    """A true lower bound from any prices ≥ 0, whatever the solver's rounding did (weak duality over the box)."""
    program = relaxation.program
    price = np.maximum(answer.price, 0.0)
    reduced = program.cost - np.bincount(
        program.column, weights=program.value * price[program.row], minlength=len(program.cost)
    )
    return float(price @ program.least + np.minimum(reduced * program.low, reduced * program.high).sum())
