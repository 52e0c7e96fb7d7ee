"""Step bounds of the k-synchronous model, proved again by other means than they were found by.

From the dual prices alone: the cheapest delivery of every chunk in time, by dynamic programming over subsets
(Dreyfus and Wagner), exponential in the number of ranks that want a chunk.
"""

from __future__ import annotations

import numpy as np

from synth.engines.request import StepBound
from synth.model.collective import Floats
from synth.model.problem import Problem
from topologies.errors import BadWitness

MOST_GOALS = 8  # of a chunk: longer than a second beyond


def check_step_bound(problem: Problem, bound: StepBound) -> float:
    """Rounds a chunk that the bound's dual prices prove for its number of steps (problem with one chunk a block).

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
                raise BadWitness(f"step {step}: the price {value} of resource {resource}; it must be at least 0")
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
        raise BadWitness(f"{bound.steps} steps: claims {bound.ratio} rounds a chunk, its prices prove {proved}")
    return proved


def _delivery(problem: Problem, price: Floats, holders: tuple[int, ...], goals: tuple[int, ...]) -> float:
    """Least price at which a chunk gets from its holders to all goals in the steps there are."""
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
