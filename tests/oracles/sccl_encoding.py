"""SCCL's own encoding in Z3 (PPoPP'21, section 3.3), which shares no code with synth's."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import z3

from synth.engines.ksync.pareto import Shape
from synth.model.problem import Problem


def refuted_by_sccl(problem: Problem, shape: Shape, budget_s: float) -> bool | None:
    """Return whether SCCL's encoding in Z3 has no solution for a shape; None when the budget ends first.

    `problem` has shape.chunks chunks a block and copies only.
    """
    net, collective = problem.network, problem.collective
    unit = float(net.bandwidth_gbs.min())
    size = collective.fraction / collective.fraction.min()
    solver = z3.Solver()
    solver.set("timeout", max(1, int(budget_s * 1000)))
    rounds = [z3.Int(f"r{s}") for s in range(shape.steps)]
    for r in rounds:
        solver.add(r >= 1)
    solver.add(z3.Sum(rounds) == shape.rounds)
    late = shape.steps + 1
    arrival_step, send = {}, {}
    for chunk in range(collective.nchunks):
        holders = set(np.flatnonzero(collective.holds[chunk]).tolist())
        goals = set(np.flatnonzero(collective.wants[chunk]).tolist())
        for rank in range(net.nranks):
            arrival_step[chunk, rank] = t = z3.Int(f"t{chunk}_{rank}")
            if rank in holders:
                solver.add(t == 0)
            else:
                solver.add(t >= 1, t <= (shape.steps if rank in goals else late))
        for link in range(net.nlinks):
            send[chunk, link] = x = z3.Bool(f"s{chunk}_{link}")
            u, v = int(net.src[link]), int(net.dst[link])
            solver.add(z3.Implies(x, arrival_step[chunk, u] < arrival_step[chunk, v]))
        for rank in set(range(net.nranks)) - holders:
            into = [send[chunk, link] for link in np.flatnonzero(net.dst == rank).tolist()]
            solver.add(z3.Implies(arrival_step[chunk, rank] <= shape.steps, z3.Or(into)))
            for a, b in combinations(into, 2):
                solver.add(z3.Not(z3.And(a, b)))
    for resource in range(net.nresources + net.nlinks):
        link_number = resource - net.nresources
        if link_number >= 0:
            links, gbs = [link_number], float(net.bandwidth_gbs[link_number])
        else:
            gbs = float(net.capacity_gbs[resource])
            links = [link for link in range(net.nlinks) if resource in net.uses(link)]
        for step in range(shape.steps):
            load = [
                z3.If(
                    z3.And(send[chunk, link], arrival_step[chunk, int(net.dst[link])] == step + 1),
                    z3.RealVal(str(round(float(size[chunk]), 9))),
                    z3.RealVal(0),
                )
                for chunk in range(collective.nchunks)
                for link in links
            ]
            if load:
                solver.add(z3.Sum(load) <= z3.RealVal(str(round(gbs / unit, 9))) * rounds[step])
    status = solver.check()
    if status == z3.unknown:
        return None
    return bool(status == z3.unsat)
