"""Copying problems with unlike α and bandwidths as a mixed-integer program over time slots (after TE-CCL).

A send is a variable for the slot in which it starts. Rounding is always in the favour of the program: what is
possible in continuous time is possible in it. So its dual bound holds for every schedule with these chunks, and
its best order of sends, timed by the simulator, is compared with that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem, least_latency
from synth.model.schedule import Schedule, untimed
from synth.phases.prune import prune_copies
from synth.solvers.linear_program import LinearProgram, ProgramBuilder
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS


@dataclass(frozen=True)
class SlotModel:
    """A program, and what its variables mean: one a send, and the time at which all is done after them.

    sends: shape (n, 3), rows (chunk, link, slot) of the program's binary variables 0..n-1.
    """

    program: LinearProgram
    sends: Ints


def slot_model(problem: Problem, size_bytes: float, ceiling_us: float, slots: int) -> SlotModel:
    """The program for messages of `size_bytes`, given that `ceiling_us` can be reached, in so many slots or more."""
    net, collective = problem.network, problem.collective
    hold = collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
    # a slot no longer than any send, else two sends of one slot could each pretend to feed the other
    quickest = float(np.min(hold.min() / net.bandwidth_gbs + net.alpha_us))
    slots = max(slots, math.ceil(ceiling_us / quickest))
    slot = ceiling_us / slots
    sends: list[tuple[int, int, int]] = []
    into: dict[tuple[int, int], list[int]] = {}
    carriers: list[tuple[int, list[int]]] = []
    for chunk in range(collective.nchunks):
        if len(_goals(problem, chunk)):
            carriers += _add_chunk(problem, chunk, float(hold[chunk]), slot, ceiling_us, sends, into)
    table = np.array(sends, dtype=np.int64).reshape(-1, 3)
    n = end = len(table)
    program = ProgramBuilder()
    program.add_variables(n, 1.0, binary=True)
    program.add_variables(1, ceiling_us, cost=1.0)
    for (c, v), variables in into.items():
        exactly = v < collective.nranks and bool(collective.wants[c, v])
        _add_row(program, variables, [1.0] * len(variables), 1.0, 1.0 if exactly else -math.inf)
    for v, bring in carriers:
        _add_row(program, [v, *bring], [1.0] + [-1.0] * len(bring), 0.0)
    _add_windows(program, problem, sends, hold, slot, slots)
    takes_us = hold[table[:, 0]] / net.bandwidth_gbs[table[:, 1]] + net.alpha_us[table[:, 1]]
    arrives_us = table[:, 2] * slot + takes_us
    for c in range(collective.nchunks):
        for v in _goals(problem, c).tolist():
            variables = into.get((c, v), [])
            _add_row(program, [*variables, end], [*arrives_us[variables].tolist(), -1.0], 0.0)
    return SlotModel(program.build(), table)


def _add_row(
    program: ProgramBuilder, columns: list[int], values: list[float], most: float, least: float = -math.inf
) -> None:
    row = np.zeros(len(columns), dtype=np.int64), np.array(columns, dtype=np.int64), np.array(values)
    program.add_rows(np.array([least]), row, most=most)


def _add_chunk(
    problem: Problem,
    chunk: int,
    hold: float,
    slot: float,
    ceiling_us: float,
    sends: list[tuple[int, int, int]],
    into: dict[tuple[int, int], list[int]],
) -> list[tuple[int, list[int]]]:
    """Add a chunk's possible sends (chunk, link, slot) to `sends`, and to `into` by (chunk, rank that receives).

    Returns:
        (variable, variables): the first only after one of the others.
    """
    net = problem.network
    src, dst = net.src, net.dst
    takes = hold / net.bandwidth_gbs + net.alpha_us
    away = least_latency(net.nranks, src, dst, takes)
    holders = np.flatnonzero(problem.collective.holds[chunk])
    here = away[holders].min(axis=0)
    onward = away[:, _goals(problem, chunk)].min(axis=1)
    first = len(sends)
    for link in range(net.nlinks):
        if here[dst[link]] == 0 or np.isinf(here[src[link]]):
            continue
        soonest = math.floor(here[src[link]] / slot * (1 + 1e-12))
        latest = (ceiling_us - takes[link] - onward[dst[link]]) / slot
        for t in range(soonest, math.floor(latest * (1 + 1e-12) + 1e-9) + 1):
            into.setdefault((chunk, int(dst[link])), []).append(len(sends))
            sends.append((chunk, link, t))
    held = set(holders.tolist())
    carriers: list[tuple[int, list[int]]] = []
    for variable in range(first, len(sends)):
        _, link, t = sends[variable]
        u = int(src[link])
        if u not in held:
            bring = [
                w
                for w in into.get((chunk, u), ())
                if sends[w][2] + math.floor(takes[sends[w][1]] / slot * (1 + 1e-12)) <= t
            ]
            carriers.append((variable, bring))
    return carriers


def _goals(problem: Problem, chunk: int) -> Ints:
    missing: Bools = problem.collective.wants[chunk] & ~problem.collective.holds[chunk]
    return np.flatnonzero(missing)


def _add_windows(
    program: ProgramBuilder, problem: Problem, sends: list[tuple[int, int, int]], hold: Floats, slot: float, slots: int
) -> None:
    """Sends that start in a window take no more of a resource than the window and the last one's overhang.

    All that go through one resource end by the end, and none ends sooner than α after its resource is free again.
    """
    net = problem.network
    users: dict[int, list[int]] = {}
    for variable, (_, link, _) in enumerate(sends):
        for r in net.uses(link).tolist():
            users.setdefault(r, []).append(variable)
    totals = []
    for r, variables in sorted(users.items()):
        each = {v: float(hold[sends[v][0]] / net.capacity_gbs[r]) for v in variables}
        over = max(float(hold[sends[v][0]] / net.bandwidth_gbs[sends[v][1]]) for v in variables)
        totals.append((variables, [each[v] for v in variables]))
        by_slot: dict[int, list[int]] = {}
        for v in variables:
            by_slot.setdefault(sends[v][2], []).append(v)
        for a in sorted(by_slot):
            inside: list[int] = []
            for b in range(a, slots):
                inside = inside + by_slot.get(b, [])
                most = (b - a + 1) * slot + over
                if b in by_slot and sum(each[v] for v in inside) > most:
                    _add_row(program, inside, [each[v] for v in inside], most)
    for variables, times in totals:
        _add_row(program, [*variables, len(sends)], [*times, -1.0], -float(net.alpha_us.min()))


def read_schedule(problem: Problem, model: SlotModel, chosen: Ints) -> Schedule:
    """The chosen sends in the order of their slots; a send's step is its depth in its chunk's tree."""
    net = problem.network
    rows = model.sends[chosen]
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))]
    depth = {(c, r): 0 for r, c in problem.collective.pre.tolist()}
    kept = []
    waiting = rows[:, :2].tolist()
    while waiting:
        later = []
        for chunk, link in waiting:
            u, v = int(net.src[link]), int(net.dst[link])
            if (chunk, u) in depth:
                kept.append((chunk, link, depth[chunk, u]))
                depth.setdefault((chunk, v), depth[chunk, u] + 1)
            else:
                later.append([chunk, link])
        if len(later) == len(waiting):
            break
        waiting = later
    table = np.array(kept, dtype=np.int64).reshape(-1, 3)
    return prune_copies(problem, untimed(table[:, 0], table[:, 1], table[:, 2], np.zeros(len(table), dtype=bool)))
