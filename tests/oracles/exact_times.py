"""The fastest schedule of a very small problem whose chunks are given, by constraint programming over its sends.

Every send is an optional interval; what it uses is busy meanwhile. A copied chunk reaches every rank by one send, or by
several where a switch multicasts. A sum meets at one rank, over a tree into it, and goes on from there over a tree out
of it, or everybody who has a part sends it to everybody who wants the sum. All times are whole numbers of a small unit,
so that the optimum over whole numbers is the optimum. It shares no code with bounds or engines.

Limits: without hyperlinks and but for sums that several ranks want, no schedule of these chunks is faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from ortools.sat.python import cp_model

from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed

UNITS = 60  # of time in a µs, and of rate in a GB/s
EFFORT = 0.15  # of the solver's deterministic time
_NEAR = 1e-7


class NotWhole(ValueError):
    """A time or a rate that is no whole number of units."""


@dataclass(frozen=True)
class Exact:
    """The fastest schedule, its time in µs, and whether the solver proved that no other is faster."""

    time_us: float
    schedule: Schedule
    proved: bool


@dataclass(frozen=True)
class _Send:
    """An optional send of a chunk over a carrier; forth: it copies the value or the whole sum, else it adds a part."""

    number: int
    chunk: int
    carrier: int
    forth: bool
    used: cp_model.IntVar
    start: cp_model.IntVar
    lasts: int
    arrives: cp_model.LinearExprT


@dataclass
class _Model:
    problem: Problem
    size_bytes: float
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    sends: list[_Send] = field(default_factory=list)
    # numbers of sends: the first carries what the second brings, where all of these hold
    brought: list[tuple[int, int, tuple[cp_model.IntVar, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        net, collective = self.problem.network, self.problem.collective
        self.alpha = [_whole(a) for a in net.carriers.alpha_us.tolist()]
        gap = net.carriers.gap_us
        self.gap = [_whole(g) for g in gap.tolist()] if len(gap) else [0] * net.ncarriers
        hold = collective.chunk_bytes(self.size_bytes) / 1e3
        self.pairs = [
            list(zip(net.pairs.src[a:b].tolist(), net.pairs.dst[a:b].tolist(), strict=True))
            for a, b in zip(net.pairs.ptr[:-1].tolist(), net.pairs.ptr[1:].tolist(), strict=True)
        ]
        self.lasts = {}
        for carrier, rate in enumerate(net.carriers.bandwidth_gbs.tolist()):
            try:
                self.lasts[carrier] = [_whole(h / rate) for h in hold.tolist()]
            except NotWhole:
                if carrier < net.nlinks:
                    raise  # hyperlinks may be left out: without them schedules are slower
        longest = [max(self.lasts[c][k] + self.alpha[c] + self.gap[c] for c in self.lasts) for k in range(len(hold))]
        self.horizon = 2 * net.nranks * sum(longest)
        self.makespan = self.cp.new_int_var(0, self.horizon, "")

    def send(self, chunk: int, carrier: int, *, forth: bool) -> _Send:
        """A further optional send."""
        cp, lasts = self.cp, self.lasts[carrier][chunk]
        used, start = cp.new_bool_var(""), cp.new_int_var(0, self.horizon, "")
        one = _Send(len(self.sends), chunk, carrier, forth, used, start, lasts, start + lasts + self.alpha[carrier])
        cp.add(self.makespan >= one.arrives).only_enforce_if(used)
        self.sends.append(one)
        return one

    def after(self, one: _Send, before: _Send, *when: cp_model.IntVar) -> None:
        """`one` carries what `before` brings, where all of `when` hold."""
        self.cp.add(one.start >= before.arrives).only_enforce_if(*when)
        self.brought.append((one.number, before.number, when))

    def share(self) -> None:
        """No link carries two sends at once, nothing that is shared carries more than it can."""
        net, cp = self.problem.network, self.cp
        _, _, ptr, uses, _, rates = net.carriers
        through: dict[int, list[tuple[_Send, cp_model.IntervalVar, int]]] = {}
        for one in self.sends:
            busy = one.lasts + self.gap[one.carrier]
            interval = cp.new_optional_fixed_size_interval_var(one.start, busy, one.used, "")
            rate = _whole(float(rates[one.carrier]))
            for resource in [-1 - one.carrier, *uses[ptr[one.carrier] : ptr[one.carrier + 1]].tolist()]:
                through.setdefault(resource, []).append((one, interval, rate))
        for resource, those in through.items():
            capacity = 0 if resource < 0 else int(float(net.capacity_gbs[resource]) * UNITS * (1 + _NEAR))
            if 2 * min(rate for *_, rate in those) > capacity:
                cp.add_no_overlap([interval for _, interval, _ in those])
            else:
                cp.add_cumulative([i for _, i, _ in those], [rate for *_, rate in those], capacity)

    def copied(self, chunk: int, holders: list[int], goals: list[int]) -> None:
        """One value from any of its holders to all that want it."""
        forth = [c for c in self.lasts if self._is_forth(c) and not all(d in holders for _, d in self.pairs[c])]
        self._spread([self.send(chunk, c, forth=True) for c in forth], dict.fromkeys(holders), goals)

    def _spread(
        self, sends: list[_Send], roots: dict[int, cp_model.IntVar | None], goals: list[int], *, once: bool = False
    ) -> None:
        """Copies: every rank gets it by one send that counts, before it passes it on.

        roots: who has it at first, where that is not None if this holds. once: nobody gets it twice.
        """
        cp = self.cp
        into: dict[int, list[tuple[_Send, cp_model.IntVar]]] = {}
        for one in sends:
            for _, rank in self.pairs[one.carrier]:
                counts = cp.new_bool_var("")
                cp.add_implication(counts, one.used)
                if once or len(self.pairs[one.carrier]) == 1:
                    cp.add_implication(one.used, counts)
                into.setdefault(rank, []).append((one, counts))
        for rank in range(self.problem.nranks):
            root = roots.get(rank)
            is_root: list[cp_model.IntVar] = [] if root is None else [root]
            came = [counts for _, counts in into.get(rank, [])]
            out = [one for one in sends if self.pairs[one.carrier][0][0] == rank]
            if rank in roots and root is None:
                cp.add(sum(came) == 0)
                continue
            if rank in goals:
                cp.add(sum(came) + sum(is_root) == 1)
            else:
                cp.add(sum(came) + sum(is_root) <= 1)
            for one in out:
                cp.add_bool_or([*came, *is_root]).only_enforce_if(one.used)
                for before, counts in into.get(rank, []):
                    self.after(one, before, one.used, counts)

    def summed(self, chunk: int, holders: list[int], goals: list[int]) -> None:
        """Parts of all holders, each once, at all that want the sum."""
        cp, net = self.cp, self.problem.network
        ranks = range(net.nranks)
        # of several that want it, or of none of these, one has it first
        root = {r: cp.new_bool_var("") for r in (goals if len(goals) == 1 else ranks)}
        exchanged = cp.new_bool_var("") if len(goals) > 1 else None
        cp.add(sum(root.values()) + (0 if exchanged is None else exchanged) == 1)
        adding = [c for c in self.lasts if not self._is_forth(c) or c < net.nlinks]
        parts = [self.send(chunk, c, forth=False) for c in adding]
        for rank in ranks:
            into = [one for one in parts if any(d == rank for _, d in self.pairs[one.carrier])]
            out = [one for one in parts if any(s == rank for s, _ in self.pairs[one.carrier])]
            goes = sum(one.used for one in out)
            tree = [] if exchanged is None else [exchanged.negated()]
            if rank in holders:
                cp.add(goes + root.get(rank, 0) == 1).only_enforce_if(*tree)
            else:
                cp.add(goes + root.get(rank, 0) <= 1).only_enforce_if(*tree)
                for one in into:
                    cp.add(goes + root.get(rank, 0) == 1).only_enforce_if(one.used, *tree)
                for one in out:
                    cp.add_bool_or([before.used for before in into] or [False]).only_enforce_if(one.used, *tree)
            for one in out:
                for before in into:
                    self.after(one, before, one.used, before.used, *tree)
        if exchanged is None:
            return
        for one in parts:
            (source, goal), *more = self.pairs[one.carrier]
            if more or source not in holders or goal not in goals:
                cp.add_implication(exchanged, one.used.negated())
        for source in holders:
            for goal in goals:
                if source != goal:
                    direct = [one.used for one in parts if self.pairs[one.carrier] == [(source, goal)]]
                    cp.add(sum(direct) == 1).only_enforce_if(exchanged)
        wholes = [self.send(chunk, c, forth=True) for c in self.lasts if self._is_forth(c)]
        cp.add(sum(one.used for one in wholes) == 0).only_enforce_if(exchanged)
        self._spread(wholes, dict(root), [], once=True)
        for rank in ranks:
            came = [one.used for one in wholes if any(d == rank for _, d in self.pairs[one.carrier])]
            if rank in goals:
                cp.add_bool_or([*came, root[rank], exchanged])
            for whole in wholes:
                if self.pairs[whole.carrier][0][0] != rank:
                    continue
                for part in parts:
                    if any(d == rank for _, d in self.pairs[part.carrier]):
                        self.after(whole, part, whole.used, part.used, root[rank])

    def _is_forth(self, carrier: int) -> bool:
        net = self.problem.network
        return carrier < net.nlinks or bool(net.hyperlinks and net.hyperlinks.multicast[carrier - net.nlinks])


def exact(problem: Problem, size_bytes: float, effort: float = EFFORT) -> Exact | None:
    """The fastest schedule that is found with so much of the solver's deterministic time; None: none was.

    Raises NotWhole where a time of a link is no whole number of units.
    """
    collective, model = problem.collective, _Model(problem, size_bytes)
    (from_ptr, from_), (to_ptr, to) = collective.holders, collective.goals
    for chunk in range(collective.nchunks):
        holders = from_[from_ptr[chunk] : from_ptr[chunk + 1]].tolist()
        goals = to[to_ptr[chunk] : to_ptr[chunk + 1]].tolist()
        if collective.reduces[chunk] and goals:
            model.summed(chunk, holders, goals)
        elif not collective.reduces[chunk] and not set(goals) <= set(holders):
            model.copied(chunk, holders, goals)
    model.share()
    model.cp.minimize(model.makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model.cp)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    used = sorted((one for one in model.sends if solver.value(one.used)), key=lambda one: solver.value(one.start))
    feeds: dict[int, list[int]] = {}
    for number, before, when in model.brought:
        if all(solver.boolean_value(each) for each in when):
            feeds.setdefault(number, []).append(before)
    step: dict[int, int] = {}
    for one in used:  # what brings it has arrived, so that its step is known
        step[one.number] = 1 + max((step[before] for before in feeds.get(one.number, [])), default=-1)
    columns = [[one.chunk for one in used], [one.carrier for one in used], [step[one.number] for one in used]]
    adds = np.array([not one.forth for one in used], dtype=bool)
    schedule = untimed(*(np.array(column, dtype=np.int64) for column in columns), adds)
    time_us = solver.value(model.makespan) / UNITS + (problem.network.start_us if used else 0.0)
    return Exact(time_us, schedule, status == cp_model.OPTIMAL)


def _whole(value: float) -> int:
    """A time in µs, or a rate in GB/s, as a number of units."""
    near = Fraction(value * UNITS).limit_denominator(1)
    if abs(value * UNITS - near) > _NEAR * max(1.0, abs(value) * UNITS):
        raise NotWhole(f"{value} is no whole number of 1/{UNITS}")
    return int(near)
