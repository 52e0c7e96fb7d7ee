"""Bounds on the rounds a chunk in a number of steps, for every number of chunks at once: found, then proved again.

The linear relaxation of the k-synchronous model (fractions of chunks flow, links in lock step) gives the bounds; its
dual prices are the witness. `check_step_bound` proves them again from the prices alone: the cheapest delivery of every
chunk in time, by dynamic programming over subsets (Dreyfus and Wagner), exponential in the ranks that want a chunk.
"""

from __future__ import annotations

import numpy as np

from synth.bounds.relaxation import Demand, Relaxation, add_capacities, demands
from synth.engines.request import StepBound
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem, hops
from synth.solvers.linear_program import ProgramBuilder
from synth.symmetry.relabelling import Symmetry
from synth.timing.rounds import unit_gbs
from topologies.errors import BadWitness

MOST_GOALS = 8  # of a chunk; more goals take longer than a second


def lockstep(problem: Problem, nsteps: int, symmetry: Symmetry) -> Relaxation | None:
    """Return the relaxation for `nsteps` steps; None where some chunk has a longer path than that.

    Its least value is the rounds a chunk. By convexity a solution may be averaged over the symmetry, so only one
    commodity of every orbit has variables.
    """
    net = problem.network
    n, nlinks = net.nranks, net.nlinks
    distance = hops(n, net.src, net.dst)
    commodities = demands(problem, symmetry.orbits)
    total = sum(float(d.amount.sum()) * len(d.goals) for d in commodities) * symmetry.order * n + nsteps
    program = ProgramBuilder()
    program.add_variables(nsteps, total, cost=1.0)
    flows = []
    for demand in commodities:
        if distance[demand.holders][:, demand.goals].min(axis=0).max() > nsteps:
            return None
        amount = float(demand.amount.sum())
        most = np.full((n, nsteps + 1), amount)
        least = np.zeros((n, nsteps + 1))
        most[:, 0] = 0.0
        least[demand.goals, -1] = demand.amount if demand.spread else demand.amount[demand.goals]
        least[demand.holders] = most[demand.holders] = amount
        x = program.add_variables(nlinks * nsteps, amount).reshape(nlinks, nsteps)
        stock = program.add_variables(most.size, most.ravel(), least.ravel()).reshape(most.shape)
        _add_supplies(program, problem, demand, x, stock)
        flows.append(x)
    return Relaxation(rows=add_capacities(program, problem, symmetry, flows), program=program.build())


def _add_supplies(program: ProgramBuilder, problem: Problem, demand: Demand, x: Ints, stock: Ints) -> None:
    """Add the rows of supplies: a rank sends only data that it held at a step's start, and holds arrived data."""
    net = problem.network
    nsteps = x.shape[1]
    flows = np.arange(x.size)
    link, step = np.divmod(flows, nsteps)
    cell = np.arange(net.nranks * nsteps)
    before = cell, stock[:, :-1].ravel(), 1.0
    after = cell, stock[:, 1:].ravel(), -1.0
    arrivals = net.dst[link] * nsteps + step, x.ravel(), 1.0
    if demand.spread:
        program.add_rows(np.zeros(len(flows)), (flows, stock[net.src[link], step], 1.0), (flows, x.ravel(), -1.0))
        program.add_rows(np.zeros(len(cell)), before, after, arrivals)
        return
    is_relayed = ~np.isin(net.src[link], demand.holders)
    departures = (net.src[link] * nsteps + step)[is_relayed], x.ravel()[is_relayed], -1.0
    program.add_rows(np.zeros(len(cell)), before, departures)
    program.add_rows(np.zeros(len(cell)), before, after, arrivals, departures)


def safe_value(relaxation: Relaxation, row_prices: Floats) -> float:
    """Return a valid lower bound on the relaxation's least value from any dual prices, despite the solver's rounding.

    It is weak duality over the box of the variables; a price below 0 counts as 0.
    """
    program = relaxation.program
    price = np.maximum(row_prices, 0.0)
    reduced = program.cost - np.bincount(
        program.column, weights=program.value * price[program.row], minlength=len(program.cost)
    )
    return float(price @ program.least + np.minimum(reduced * program.low, reduced * program.high).sum())


def check_step_bound(problem: Problem, bound: StepBound) -> float:
    """Return the rounds a chunk that the bound's dual prices prove for its number of steps (one chunk a block).

    Args:
        problem: The copying problem, with one chunk a block.
        bound: The bound with its prices.

    Raises:
        BadWitness: If the bound claims more than that, or a price is negative.
    """
    net, collective = problem.network, problem.collective
    chunks_a_round = np.concatenate([net.capacity_gbs, net.bandwidth_gbs]) / unit_gbs(problem)
    room = 0.0
    price = np.zeros((bound.steps, net.nlinks))
    for step, prices in enumerate(bound.prices):
        price_of_resource = np.zeros(len(chunks_a_round))
        for resource, value in prices.items():
            if value < 0:
                raise BadWitness(f"step {step}: the price {value} of resource {resource}; it must be at least 0")
            price_of_resource[resource] = value
        room = max(room, float(price_of_resource @ chunks_a_round))
        price[step] = price_of_resource[net.nresources :] + np.bincount(
            net.link_of_use, price_of_resource[net.uses_idx], net.nlinks
        )
    price_of_delivery: dict[tuple[bytes, bytes], float] = {}
    total = 0.0
    for holds, wants, size in zip(collective.holds, collective.wants, collective.fraction.tolist(), strict=True):
        holders, goals = np.flatnonzero(holds), np.flatnonzero(wants & ~holds)
        if len(goals):
            key = holders.tobytes(), goals.tobytes()
            if key not in price_of_delivery:
                price_of_delivery[key] = _delivery(problem, price, holders, goals)
            total += price_of_delivery[key] * size / float(collective.fraction.min())
    proved = total / room if room > 0 else 0.0
    if bound.ratio > proved * (1 + 1e-6) + 1e-9:
        raise BadWitness(f"{bound.steps} steps: claims {bound.ratio} rounds a chunk, its prices prove {proved}")
    return proved


def _delivery(problem: Problem, price: Floats, holders: Ints, goals: Ints) -> float:
    """Return the least price at which a chunk gets from its holders to all goals; inf if the steps are too few.

    Args:
        problem: The problem.
        price: Price of each link in each step, shape (steps, links).
        holders: Ranks that hold the chunk.
        goals: Ranks that want it and do not hold it; the work grows exponentially with their number.
    """
    net, steps = problem.network, len(price)
    full = 1 << len(goals)
    best = np.full((steps + 1, net.nranks, full), np.inf)
    best[:, :, 0] = 0.0
    best[:, goals, 1 << np.arange(len(goals))] = 0.0
    sets = sorted(range(1, full), key=int.bit_count)
    for step in range(steps, -1, -1):
        for subset in sets:
            now = best[step, :, subset]
            if step < steps:
                np.minimum(now, best[step + 1, :, subset], out=now)
                np.minimum.at(now, net.src, price[step] + best[step + 1, net.dst, subset])
            part = (subset - 1) & subset
            while part > subset ^ part:
                np.minimum(now, best[step, :, part] + best[step, :, subset ^ part], out=now)
                part = (part - 1) & subset
    # Several holders may share out the goals.
    shared = np.full(full, np.inf)
    shared[0] = 0.0
    for holder in holders.tolist():
        before = shared.copy()
        for subset in range(full):
            part = subset
            while part:
                shared[subset] = min(shared[subset], before[subset ^ part] + best[0, holder, part])
                part = (part - 1) & subset
    return float(shared[-1])
