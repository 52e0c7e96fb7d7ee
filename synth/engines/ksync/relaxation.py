"""The linear relaxation of the k-synchronous model: fractions of chunks flow, links in lock step.

For a number of steps its optimum bounds the rounds a chunk for every number of chunks at once; its dual prices are
the witness.
"""

from __future__ import annotations

import numpy as np

from synth.bounds.relaxation import Demand, Relaxation, add_capacities, demands
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem, hops
from synth.solvers.linear_program import ProgramBuilder
from synth.symmetry.relabelling import Symmetry


def lockstep(problem: Problem, nsteps: int, symmetry: Symmetry) -> Relaxation | None:
    """Least rounds a chunk in `nsteps` steps; None when some chunk has further to go than that.

    By convexity a solution may be averaged over the symmetry, so only one commodity of every orbit has variables.
    """
    net = problem.network
    n, nlinks = net.nranks, net.nlinks
    distance = hops(n, net.src, net.dst)
    everything = demands(problem, symmetry.orbits)
    total = sum(float(d.amount.sum()) * len(d.wanted) for d in everything) * symmetry.order * n + nsteps
    program = ProgramBuilder()
    program.add_variables(nsteps, total, cost=1.0)
    flows = []
    for demand in everything:
        if distance[demand.holders][:, demand.wanted].min(axis=0).max() > nsteps:
            return None
        amount = float(demand.amount.sum())
        most = np.full((n, nsteps + 1), amount)
        least = np.zeros((n, nsteps + 1))
        most[:, 0] = 0.0
        least[demand.wanted, -1] = demand.amount if demand.spread else demand.amount[demand.wanted]
        least[demand.holders] = most[demand.holders] = amount
        x = program.add_variables(nlinks * nsteps, amount).reshape(nlinks, nsteps)
        stock = program.add_variables(most.size, most.ravel(), least.ravel()).reshape(most.shape)
        _add_supplies(program, problem, demand, nsteps, x, stock)
        flows.append(x)
    priced = add_capacities(program, problem, symmetry, flows)
    return Relaxation(program.build(), priced)


def _add_supplies(program: ProgramBuilder, problem: Problem, demand: Demand, nsteps: int, x: Ints, stock: Ints) -> None:
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
        program.add_rows(np.zeros(len(each)), (each, stock[net.src[link], step], 1.0), (each, x[link, step], -1.0))
        program.add_rows(
            np.zeros(len(cell)),
            (cell, stock[rank, at], 1.0),
            (cell, stock[rank, at + 1], -1.0),
            (into, x[link, step], 1.0),
        )
        return
    free = np.isin(net.src[link], demand.holders)
    program.add_rows(np.zeros(len(cell)), (cell, stock[rank, at], 1.0), (out_of[~free], x[link, step][~free], -1.0))
    program.add_rows(
        np.zeros(len(cell)),
        (cell, stock[rank, at], 1.0),
        (cell, stock[rank, at + 1], -1.0),
        (into, x[link, step], 1.0),
        (out_of[~free], x[link, step][~free], -1.0),
    )


def safe_value(relaxation: Relaxation, row_prices: Floats) -> float:
    """A true lower bound from any dual prices, whatever the solver's rounding did (weak duality over the box)."""
    program = relaxation.program
    price = np.maximum(row_prices, 0.0)
    reduced = program.cost - np.bincount(
        program.column, weights=program.value * price[program.row], minlength=len(program.cost)
    )
    return float(price @ program.least + np.minimum(reduced * program.low, reduced * program.high).sum())
