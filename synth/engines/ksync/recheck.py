"""Step bounds of the k-synchronous model, proved again by other means than they were found by.

From its dual prices alone: the cheapest delivery of every chunk in time, by dynamic programming over subsets
(Dreyfus and Wagner) or, for many goals, by a linear program of another solver.
"""

from __future__ import annotations

import numpy as np

from synth.engines.ksync.pareto import StepBound
from synth.model.collective import Floats
from synth.model.problem import Problem
from topologies.errors import BadWitness

MOST_GOALS = 8  # of the dynamic program over subsets


def check_step_bound(problem: Problem, bound: StepBound) -> float:
    """Rounds a chunk that the bound's prices prove for its number of steps (problem with one chunk a block).

    Raises:
        BadWitness: the bound claims more than that, or a price is negative.
    """
    net, collective = problem.network, problem.collective
    unit = float(net.bandwidth_gbs.min())
    smallest = float(collective.fraction.min())
    room = 0.0
    price = np.zeros((bound.steps, net.nlinks))
    for step, prices in enumerate(bound.prices):
        spent = 0.0
        for resource, value in prices.items():
            if value < 0:
                raise BadWitness(f"step {step}: a negative price")
            own = resource - net.nresources
            gbs = net.bandwidth_gbs[own] if own >= 0 else net.capacity_gbs[resource]
            spent += value * float(gbs) / unit
        room = max(room, spent)
        for link in range(net.nlinks):
            uses = net.uses(link).tolist()
            price[step, link] = prices.get(net.nresources + link, 0.0) + sum(prices.get(r, 0.0) for r in uses)
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    total = 0.0
    for chunk in range(collective.nchunks):
        holders = tuple(collective.pre[collective.pre[:, 1] == chunk][:, 0].tolist())
        wanted = collective.post[collective.post[:, 1] == chunk][:, 0].tolist()
        goals = tuple(r for r in wanted if r not in holders)
        if goals:
            if (holders, goals) not in known:
                known[holders, goals] = _delivery(problem, price, holders, goals)
            total += known[holders, goals] * float(collective.fraction[chunk]) / smallest
    proved = total / room if room > 0 else 0.0
    if bound.ratio > proved * (1 + 1e-6) + 1e-9:
        raise BadWitness(
            f"{bound.steps} steps: claims {bound.ratio} rounds a chunk, its prices prove {proved}"
        )
    return proved


def _delivery(problem: Problem, price: Floats, holders: tuple[int, ...], goals: tuple[int, ...]) -> float:
    """Least price at which a chunk gets from its holders to all goals in the steps there are."""
    if len(goals) > MOST_GOALS:
        return _fractional(problem, price, holders, goals)
    net, steps = problem.network, len(price)
    full = 1 << len(goals)
    best = np.full((steps + 1, net.nranks, full), np.inf)
    best[:, :, 0] = 0.0
    for i, goal in enumerate(goals):
        best[:, goal, 1 << i] = 0.0
    sets = sorted(range(1, full), key=lambda s: s.bit_count())
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
    # several holders may share the goals among them
    shared = np.full(full, np.inf)
    shared[0] = 0.0
    for holder in holders:
        before = shared.copy()
        for subset in range(full):
            part = subset
            while part:
                shared[subset] = min(shared[subset], before[subset ^ part] + best[0, holder, part])
                part = (part - 1) & subset
    return float(shared[-1])


def _fractional(problem: Problem, price: Floats, holders: tuple[int, ...], goals: tuple[int, ...]) -> float:
    """The same with fractions of the chunk, which costs no more: a linear program, by CBC."""
    import pulp

    net, steps = problem.network, len(price)
    program = pulp.LpProblem("delivery", pulp.LpMinimize)
    sent = {
        (link, step): program.add_variable(f"x{link}_{step}", 0, 1)
        for link in range(net.nlinks)
        for step in range(steps)
    }
    has: dict[tuple[int, int], object] = {}
    for rank in range(net.nranks):
        for step in range(steps + 1):
            if rank in holders:
                has[rank, step] = 1.0
            else:
                has[rank, step] = program.add_variable(f"h{rank}_{step}", 0, 1) if step else 0.0
    program += pulp.lpSum(float(price[step, link]) * x for (link, step), x in sent.items())
    for (link, step), x in sent.items():
        program += x <= has[int(net.src[link]), step]
    for rank in range(net.nranks):
        if rank in holders:
            continue
        for step in range(steps):
            came = [sent[link, step] for link in np.flatnonzero(net.dst == rank).tolist()]
            program += has[rank, step + 1] <= has[rank, step] + pulp.lpSum(came)
        if rank in goals:
            program += has[rank, steps] == 1
    program.solve(pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, msg=False))
    if pulp.LpStatus[program.status] != "Optimal":
        raise BadWitness(f"the delivery program ended as {pulp.LpStatus[program.status]}")
    return float(pulp.value(program.objective))
