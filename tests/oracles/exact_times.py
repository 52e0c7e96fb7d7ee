"""The fastest schedule of a very small problem with given chunks, by constraint programming over its sends.

Every send is an optional interval, and the resources that it uses are busy meanwhile. A copied chunk reaches every rank
by one send, or by several where a switch multicasts. A sum is formed at one rank, over a tree into it, and is copied
from there over a tree out of it; or every rank that has a part sends it to every rank that wants the sum. All times are
whole numbers of a small unit, so that the optimum over whole numbers is the optimum. The model shares no code with
bounds or engines.

Limits: without hyperlinks, and except for sums that several ranks want, no schedule of these chunks is faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from ortools.sat.python import cp_model

from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed

UNITS = 60  # Units of time in a µs, and of rate in a GB/s.
EFFORT = 0.15  # Limit of the solver's deterministic time.
_NEAR = 1e-7


class NotWhole(ValueError):
    """A time or a rate that is not a whole number of units."""


@dataclass(frozen=True)
class Exact:
    """The fastest schedule that the solver found.

    Attributes:
        time_us: Time of the schedule in µs.
        schedule: The schedule.
        proved: Whether the solver proved that no other schedule of the model is faster.
    """

    time_us: float
    schedule: Schedule
    proved: bool


@dataclass(frozen=True)
class _Send:
    """An optional send of a chunk over a carrier.

    Attributes:
        number: Index in the model's list of sends.
        chunk: Chunk that is sent.
        carrier: Link or hyperlink.
        forth: Whether it copies the value or the complete sum; else it adds a part.
        used: Whether the schedule has this send.
        start: Start in units.
        lasts: Units for which the send occupies its carrier.
        arrives: Units at which the chunk can be used at its target.
    """

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
    """The constraint model of a problem at a message size."""

    problem: Problem
    size_bytes: float
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    sends: list[_Send] = field(default_factory=list)
    # (send, earlier send, conditions): the send passes on what the earlier one brings, where all conditions hold.
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
                    raise  # Hyperlinks may be left out: schedules without them are slower.
        longest = [max(self.lasts[c][k] + self.alpha[c] + self.gap[c] for c in self.lasts) for k in range(len(hold))]
        self.horizon = 2 * net.nranks * sum(longest)
        self.makespan = self.cp.new_int_var(0, self.horizon, "")

    def send(self, chunk: int, carrier: int, *, forth: bool) -> _Send:
        """Add an optional send."""
        cp, lasts = self.cp, self.lasts[carrier][chunk]
        used, start = cp.new_bool_var(""), cp.new_int_var(0, self.horizon, "")
        new_send = _Send(
            len(self.sends), chunk, carrier, forth, used, start, lasts, start + lasts + self.alpha[carrier]
        )
        cp.add(self.makespan >= new_send.arrives).only_enforce_if(used)
        self.sends.append(new_send)
        return new_send

    def after(self, send: _Send, before: _Send, *conditions: cp_model.IntVar) -> None:
        """Make `send` start after the arrival of `before`, where all of the conditions hold."""
        self.cp.add(send.start >= before.arrives).only_enforce_if(*conditions)
        self.brought.append((send.number, before.number, conditions))

    def share(self) -> None:
        """Make sends on a link disjoint and keep all shared resources within their capacity."""
        net, cp = self.problem.network, self.cp
        _, _, ptr, uses, _, rates = net.carriers
        through: dict[int, list[tuple[_Send, cp_model.IntervalVar, int]]] = {}
        for send in self.sends:
            busy = send.lasts + self.gap[send.carrier]
            interval = cp.new_optional_fixed_size_interval_var(send.start, busy, send.used, "")
            rate = _whole(float(rates[send.carrier]))
            for resource in [-1 - send.carrier, *uses[ptr[send.carrier] : ptr[send.carrier + 1]].tolist()]:
                through.setdefault(resource, []).append((send, interval, rate))
        for resource, users in through.items():
            capacity = 0 if resource < 0 else int(float(net.capacity_gbs[resource]) * UNITS * (1 + _NEAR))
            if 2 * min(rate for *_, rate in users) > capacity:
                cp.add_no_overlap([interval for _, interval, _ in users])
            else:
                cp.add_cumulative([i for _, i, _ in users], [rate for *_, rate in users], capacity)

    def copied(self, chunk: int, holders: list[int], goals: list[int]) -> None:
        """Add sends that bring a value from any of its holders to all ranks that want it."""
        forth = [c for c in self.lasts if self._is_forth(c) and not all(d in holders for _, d in self.pairs[c])]
        self._spread([self.send(chunk, c, forth=True) for c in forth], dict.fromkeys(holders), goals)

    def _spread(
        self, sends: list[_Send], roots: dict[int, cp_model.IntVar | None], goals: list[int], *, once: bool = False
    ) -> None:
        """Make every goal receive a copy by one send, and let ranks pass on only what they have.

        Args:
            sends: The optional sends of copies.
            roots: The ranks that have the value at first; for each a variable that says whether it does, or None if it
                always does.
            goals: The ranks that want the value.
            once: Whether no rank may receive the value twice.
        """
        cp = self.cp
        into: dict[int, list[tuple[_Send, cp_model.IntVar]]] = {}
        for send in sends:
            for _, rank in self.pairs[send.carrier]:
                counts = cp.new_bool_var("")
                cp.add_implication(counts, send.used)
                if once or len(self.pairs[send.carrier]) == 1:
                    cp.add_implication(send.used, counts)
                into.setdefault(rank, []).append((send, counts))
        for rank in range(self.problem.nranks):
            root = roots.get(rank)
            is_root: list[cp_model.IntVar] = [] if root is None else [root]
            arrivals = [counts for _, counts in into.get(rank, [])]
            out = [send for send in sends if self.pairs[send.carrier][0][0] == rank]
            if rank in roots and root is None:
                cp.add(sum(arrivals) == 0)
                continue
            if rank in goals:
                cp.add(sum(arrivals) + sum(is_root) == 1)
            else:
                cp.add(sum(arrivals) + sum(is_root) <= 1)
            for send in out:
                cp.add_bool_or([*arrivals, *is_root]).only_enforce_if(send.used)
                for before, counts in into.get(rank, []):
                    self.after(send, before, send.used, counts)

    def summed(self, chunk: int, holders: list[int], goals: list[int]) -> None:
        """Add sends that bring the parts of all holders, each once, to all ranks that want the sum."""
        cp, net = self.cp, self.problem.network
        ranks = range(net.nranks)
        # One rank has the sum first: the only goal, or any rank where there are several goals.
        root = {r: cp.new_bool_var("") for r in (goals if len(goals) == 1 else ranks)}
        exchanged = cp.new_bool_var("") if len(goals) > 1 else None
        cp.add(sum(root.values()) + (0 if exchanged is None else exchanged) == 1)
        adding = [c for c in self.lasts if not self._is_forth(c) or c < net.nlinks]
        parts = [self.send(chunk, c, forth=False) for c in adding]
        for rank in ranks:
            into = [part_send for part_send in parts if any(d == rank for _, d in self.pairs[part_send.carrier])]
            out = [part_send for part_send in parts if any(s == rank for s, _ in self.pairs[part_send.carrier])]
            goes = sum(part_send.used for part_send in out)
            tree = [] if exchanged is None else [exchanged.negated()]
            if rank in holders:
                cp.add(goes + root.get(rank, 0) == 1).only_enforce_if(*tree)
            else:
                cp.add(goes + root.get(rank, 0) <= 1).only_enforce_if(*tree)
                for part_send in into:
                    cp.add(goes + root.get(rank, 0) == 1).only_enforce_if(part_send.used, *tree)
                for part_send in out:
                    cp.add_bool_or([before.used for before in into] or [False]).only_enforce_if(part_send.used, *tree)
            for part_send in out:
                for before in into:
                    self.after(part_send, before, part_send.used, before.used, *tree)
        if exchanged is None:
            return
        for part_send in parts:
            (source, goal), *more = self.pairs[part_send.carrier]
            if more or source not in holders or goal not in goals:
                cp.add_implication(exchanged, part_send.used.negated())
        for source in holders:
            for goal in goals:
                if source != goal:
                    direct = [
                        part_send.used for part_send in parts if self.pairs[part_send.carrier] == [(source, goal)]
                    ]
                    cp.add(sum(direct) == 1).only_enforce_if(exchanged)
        wholes = [self.send(chunk, c, forth=True) for c in self.lasts if self._is_forth(c)]
        cp.add(sum(part_send.used for part_send in wholes) == 0).only_enforce_if(exchanged)
        self._spread(wholes, dict(root), [], once=True)
        for rank in ranks:
            copies_into = [
                part_send.used for part_send in wholes if any(d == rank for _, d in self.pairs[part_send.carrier])
            ]
            if rank in goals:
                cp.add_bool_or([*copies_into, root[rank], exchanged])
            for copy in wholes:
                if self.pairs[copy.carrier][0][0] != rank:
                    continue
                for part in parts:
                    if any(d == rank for _, d in self.pairs[part.carrier]):
                        self.after(copy, part, copy.used, part.used, root[rank])

    def _is_forth(self, carrier: int) -> bool:
        net = self.problem.network
        return carrier < net.nlinks or bool(net.hyperlinks and net.hyperlinks.multicast[carrier - net.nlinks])


def exact(problem: Problem, size_bytes: float, effort: float = EFFORT) -> Exact | None:
    """Return the fastest schedule found within the solver's deterministic time, or None if there is none.

    Raises:
        NotWhole: A time of a link is not a whole number of units.
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
    used = sorted((send for send in model.sends if solver.value(send.used)), key=lambda send: solver.value(send.start))
    feeds: dict[int, list[int]] = {}
    for number, before, conditions in model.brought:
        if all(solver.boolean_value(condition) for condition in conditions):
            feeds.setdefault(number, []).append(before)
    step: dict[int, int] = {}
    for send in used:  # Sends that feed it started earlier, so that their steps are known.
        step[send.number] = 1 + max((step[before] for before in feeds.get(send.number, [])), default=-1)
    columns = [[send.chunk for send in used], [send.carrier for send in used], [step[send.number] for send in used]]
    adds = np.array([not send.forth for send in used], dtype=bool)
    schedule = untimed(*(np.array(column, dtype=np.int64) for column in columns), adds)
    time_us = solver.value(model.makespan) / UNITS + (problem.network.start_us if used else 0.0)
    return Exact(time_us, schedule, status == cp_model.OPTIMAL)


def _whole(value: float) -> int:
    """Return a time in µs, or a rate in GB/s, as a number of units."""
    nearest = Fraction(value * UNITS).limit_denominator(1)
    if abs(value * UNITS - nearest) > _NEAR * max(1.0, abs(value) * UNITS):
        raise NotWhole(f"{value} is no whole number of 1/{UNITS}")
    return int(nearest)
