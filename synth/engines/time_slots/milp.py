"""Copying problems with unlike α and bandwidths as a mixed-integer program over time slots (after TE-CCL).

A send is a variable for the slot in which it starts. Rounding is always in the favour of the program: what is
possible in continuous time is possible in it. So its dual bound holds for every schedule with these chunks, and
its best order of sends, timed by the simulator, is compared with that. Solvers come through PuLP: HiGHS, or CBC
where HiGHS is not installed.
"""

from __future__ import annotations

import math
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem, least_latency
from synth.model.schedule import Schedule, untimed
from synth.phases.prune import prune_copies
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS

NAME = "milp"
_MOST_NODES = 20_000


@dataclass(frozen=True)
class SlotModel:
    """What the child process needs.

    Attributes:
        sends: shape (n, 3), rows (chunk, link, slot) of the binary variables.
        arrives_us: shape (n,): the soonest that what is sent can be used at the far end.
        carriers: (variable, variables): the first only after one of the others.
        once: (variables, whether exactly one of them, else at most one).
        windows: (variables, µs each, µs): those that start in a window of one resource take no more than this.
        totals: (variables, µs each): all that go through one resource.
        ends: for every chunk and rank that wants it, the variables that bring it.
        least_alpha_us: no send is done sooner after its resource is free again.
        ceiling_us: time of a schedule that is known.
    """

    sends: Ints
    arrives_us: Floats
    carriers: list[tuple[int, list[int]]]
    once: list[tuple[list[int], bool]]
    windows: list[tuple[list[int], list[float], float]]
    totals: list[tuple[list[int], list[float]]]
    ends: list[list[int]]
    least_alpha_us: float
    ceiling_us: float


@dataclass(frozen=True)
class SlotAnswer:
    """Chosen variables (None: no schedule found), the dual bound in µs, and the solver."""

    chosen: Ints | None
    bound_us: float
    solver: str


def slot_model(problem: Problem, size_bytes: float, ceiling_us: float, slots: int) -> SlotModel:
    """The program for messages of `size_bytes`, given that `ceiling_us` can be reached, in so many slots or more."""
    net, collective = problem.network, problem.collective
    hold = collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
    # a slot no longer than any send, else two sends of one slot could each pretend to feed the other
    quickest = float(np.min(hold.min() / net.bandwidth_gbs + net.alpha_us))
    slots = max(slots, math.ceil(ceiling_us / quickest))
    slot = ceiling_us / slots
    src, dst = net.src, net.dst
    rows: list[tuple[int, int, int]] = []
    into: dict[tuple[int, int], list[int]] = {}
    carriers: list[tuple[int, list[int]]] = []
    for chunk in range(collective.nchunks):
        takes = hold[chunk] / net.bandwidth_gbs + net.alpha_us
        away = least_latency(net.nranks, src, dst, takes)
        holders, goals = np.flatnonzero(collective.holds[chunk]), _goals(problem, chunk)
        if not len(goals):
            continue
        here = away[holders].min(axis=0)
        onward = away[:, goals].min(axis=1)
        first = len(rows)
        for link in range(net.nlinks):
            if here[dst[link]] == 0 or np.isinf(here[src[link]]):
                continue
            soonest = math.floor(here[src[link]] / slot * (1 + 1e-12))
            latest = (ceiling_us - takes[link] - onward[dst[link]]) / slot
            for t in range(soonest, math.floor(latest * (1 + 1e-12) + 1e-9) + 1):
                into.setdefault((chunk, int(dst[link])), []).append(len(rows))
                rows.append((chunk, link, t))
        held = set(holders.tolist())
        for var in range(first, len(rows)):
            _, link, t = rows[var]
            u = int(src[link])
            if u not in held:
                bring = [
                    w
                    for w in into.get((chunk, u), ())
                    if rows[w][2] + math.floor(takes[rows[w][1]] / slot * (1 + 1e-12)) <= t
                ]
                carriers.append((var, bring))
    ends = [into.get((c, int(v)), []) for c in range(collective.nchunks) for v in _goals(problem, c)]
    once = [(vs, v < collective.nranks and bool(collective.wants[c, v])) for (c, v), vs in into.items()]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    takes_us = hold[table[:, 0]] / net.bandwidth_gbs[table[:, 1]] + net.alpha_us[table[:, 1]]
    windows, totals = _windows(problem, rows, hold, slot, slots)
    return SlotModel(
        table,
        table[:, 2] * slot + takes_us,
        carriers,
        once,
        windows,
        totals,
        ends,
        float(net.alpha_us.min()),
        ceiling_us,
    )


def _goals(problem: Problem, chunk: int) -> Ints:
    missing: Bools = problem.collective.wants[chunk] & ~problem.collective.holds[chunk]
    return np.flatnonzero(missing)


def _windows(
    problem: Problem, rows: list[tuple[int, int, int]], hold: Floats, slot: float, slots: int
) -> tuple[list[tuple[list[int], list[float], float]], list[tuple[list[int], list[float]]]]:
    """Sends that start in a window take no more of a resource than the window and the last one's overhang."""
    net = problem.network
    users: dict[int, list[int]] = {}
    for var, (_, link, _) in enumerate(rows):
        for r in net.uses(link).tolist():
            users.setdefault(r, []).append(var)
    windows, totals = [], []
    for r, variables in sorted(users.items()):
        each = {v: float(hold[rows[v][0]] / net.capacity_gbs[r]) for v in variables}
        over = max(float(hold[rows[v][0]] / net.bandwidth_gbs[rows[v][1]]) for v in variables)
        totals.append((variables, [each[v] for v in variables]))
        by_slot: dict[int, list[int]] = {}
        for v in variables:
            by_slot.setdefault(rows[v][2], []).append(v)
        for a in sorted(by_slot):
            inside: list[int] = []
            for b in range(a, slots):
                inside = inside + by_slot.get(b, [])
                most = (b - a + 1) * slot + over
                if b in by_slot and sum(each[v] for v in inside) > most:
                    windows.append((inside, [each[v] for v in inside], most))
    return windows, totals


def warm() -> None:
    """Load the library ahead of the first question."""
    import pulp  # noqa: F401


def solve(model: SlotModel, budget_s: float, seed: int) -> SlotAnswer:
    """Minimise the time; in a child process."""
    import pulp

    program = pulp.LpProblem("slots", pulp.LpMinimize)
    x = [program.add_variable(f"x{i}", cat="Binary") for i in range(len(model.sends))]
    end = program.add_variable("end", 0, model.ceiling_us)
    program += end
    for variables, exactly in model.once:
        total = pulp.lpSum(x[v] for v in variables)
        program += total == 1 if exactly else total <= 1
    for v, others in model.carriers:
        program += x[v] <= pulp.lpSum(x[w] for w in others)
    for variables, each, most in model.windows:
        program += pulp.lpSum(m * x[v] for v, m in zip(variables, each, strict=True)) <= most
    for variables, each in model.totals:
        load = pulp.lpSum(m * x[v] for v, m in zip(variables, each, strict=True))
        program += load + model.least_alpha_us <= end
    for variables in model.ends:
        program += pulp.lpSum(float(model.arrives_us[v]) * x[v] for v in variables) <= end
    bound, status, name = _run(program, budget_s, seed)
    if status == "infeasible":  # nothing beats the schedule that is known
        return SlotAnswer(None, model.ceiling_us, name)
    values = [v.value() for v in x]
    chosen = None
    if status == "feasible" and all(value is not None for value in values):
        chosen = np.array([i for i, value in enumerate(values) if value > 0.5], dtype=np.int64)
    return SlotAnswer(chosen, min(bound, model.ceiling_us), name)


def _run(program: Any, budget_s: float, seed: int) -> tuple[float, str, str]:
    """(dual bound, "feasible" | "infeasible" | "", solver)."""
    import pulp

    try:
        # nodes, not seconds: so that the bound is the same each time, unless the budget ends first
        highs = pulp.HiGHS(
            msg=False, timeLimit=budget_s, threads=1, random_seed=seed, mip_max_nodes=_MOST_NODES
        )
        if highs.available():
            program.solve(highs)
            info = program.solverModel.getInfo()
            status = {1: "feasible", -1: "infeasible"}.get(program.status, "")
            found = bool(np.isfinite(info.primal_solution_status) and info.primal_solution_status == 2)
            return float(info.mip_dual_bound), "feasible" if found else status, "HiGHS"
    except (ImportError, AttributeError):
        pass
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        cbc = pulp.COIN_CMD(
            path=pulp.PULP_CBC_CMD.pulp_cbc_path,
            msg=False,
            timeLimit=budget_s,
            threads=1,
            logPath=log.name,
            options=[f"randomSeed {seed}"],
        )
        program.solve(cbc)
        said = Path(log.name).read_text(encoding="utf-8", errors="replace")
    if program.status == -1:
        return 0.0, "infeasible", "CBC"
    bounds = re.findall(r"Lower bound:\s+([-0-9.e+]+)", said)
    if program.sol_status == 1 and not bounds:
        return float(program.objective.value()), "feasible", "CBC"  # solved to the end
    return float(bounds[-1]) if bounds else 0.0, "feasible" if program.sol_status > 0 else "", "CBC"


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
    return prune_copies(
        problem, untimed(table[:, 0], table[:, 1], table[:, 2], np.zeros(len(table), dtype=bool))
    )
