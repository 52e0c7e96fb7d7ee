"""Plans for several groups at once: from those of each alone, Direct, and the engine's for the union."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from synth.bounds.lengths import from_loads
from synth.bounds.prove import Bound, prove, tighten
from synth.bounds.witness import Witness
from synth.concurrent.chunk_refinement import even_counts, restated
from synth.concurrent.direct import direct_together
from synth.concurrent.fair_order import fairer
from synth.concurrent.isolated import Alone, busy_us, each_alone, parts_alone
from synth.concurrent.union import Together, check_inside, merged, times_by_group, together
from synth.engines.flow.search import FLOW, FlowSearch, close_enough, estimated_sends
from synth.model.allowed import Allowed
from synth.model.collective import Collective, Floats, subdivided
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.result import Progress
from synth.solvers.workers import Workers
from synth.timing.simulate import time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.errors import InputError
from topologies.subnetwork import links_among

__all__ = ["AT_ONCE", "DIRECT", "IN_TURN", "TOGETHER", "WITHIN", "Candidate", "Planner", "Wish"]

TOGETHER, DIRECT = "planned together", "direct"
AT_ONCE, IN_TURN, WITHIN = "each alone, at once", "in turn, overlapped", "each without relays"
REORDERED = ", reordered"
_ALONE_SHARE, _WITHIN_SHARE, _UNION_SHARE = 0.3, 0.1, 0.85  # of the budget: for, or until, each phase
_CUTS = 256  # ranks up to which the worst cut is looked for before there is a plan
_MOST_SENDS = 400_000  # to which chunks are cut finer
_WORTH = 0.003  # what finer chunks must gain
_REORDERED = 4  # plans whose order is made fairer
_SETTLING = 4  # times that a plan may teach how a group is faster alone


@dataclass(frozen=True)
class Wish:
    """What is asked beside the groups; see `several.plan`. dead: ranks that are no relays."""

    relays: Sequence[int] | str = "none"
    dead: Sequence[int] = ()
    objective: str = "makespan"
    chunks: int | None = None
    engine: str = "auto"
    budget_s: float = 30.0


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan for all groups.

    Attributes:
        asked: the groups as one problem, with the chunks that the plan has.
        algorithm: of the union, replayed.
        way: how it was made.
        times_us: when each group is done, shape (groups,).
    """

    asked: Together
    algorithm: Algorithm
    way: str
    times_us: Floats

    @property
    def makespan_us(self) -> float:
        """When the last group is done."""
        return float(self.times_us.max())

    def slowdown(self, alone_us: Floats) -> float:
        """The largest time together / time alone over the groups."""
        return float((self.times_us / alone_us).max())


class Planner:
    """One question on its way to its answer.

    Attributes:
        alone: each group's answer by itself.
        candidates: every plan made.
        bound: on the union's time.
        ended, seconds: as in `several.Several`.
    """

    def __init__(self, asked: Together, wish: Wish, workers: Workers, progress: Progress | None) -> None:
        self.asked, self.wish, self.workers, self.progress = asked, wish, workers, progress
        self.alone: list[Alone] = []
        self.candidates: list[Candidate] = []
        self.bound = Bound(())
        self.latest: Algorithm | None = None
        self.priced: Candidate | None = None
        self.ended = ""
        self.seconds = 0.0
        self.begun = time.monotonic()
        self.size = asked.size_bytes
        self.inside = not bool(asked.allowed.all())

    def run(self) -> Candidate:
        """Make plans until one is near its bound, nothing more is to be tried, the budget ends or Ctrl-C."""
        wish = self.wish
        self.alone, interrupted = self._each(self.asked, self.begun + _ALONE_SHARE * wish.budget_s)
        try:
            if interrupted:
                raise KeyboardInterrupt
            self._without_relays()
            self._from_alone()
            self._direct()
            self.bound = prove(self.asked.problem, max_flow=self.asked.problem.nranks <= _CUTS)
            if len(self.asked.members) > 1:
                self._tighten(quick=True)
                with suppress(InputError):  # of sums where links go one way only; other plans are there
                    self._union()
            self._tighten()
        except KeyboardInterrupt:
            self.ended = "interrupted"
        if not any(c.way == AT_ONCE for c in self.candidates):
            self._from_alone()
        if not self.bound.witnesses:
            self.bound = prove(self.asked.problem, max_flow=False)
        chosen = self._settled()
        self.seconds = time.monotonic() - self.begun
        if not self.ended and self.seconds >= wish.budget_s:
            self.ended = "budget"
        return chosen

    def _tighten(self, quick: bool = False) -> None:
        """Work on the bound where neither it nor a group's own is near the best plan."""
        best = self._best("makespan")
        enough_us = best.makespan_us / close_enough(0)
        if self._least_us() >= enough_us:
            return
        problem = best.asked.problem
        at_size = timed(problem, best.algorithm.schedule, self.size)
        loads = partial(busy_us, problem, at_size)
        if best is not self.priced:
            self._say("bound: loads")
            self.bound = self.bound.merged([from_loads(self.asked.problem, loads())])
            self.priced = best
        if not quick:
            until = self.begun + self.wish.budget_s
            for better in tighten(
                self.asked.problem, self.bound, loads, self.size, enough_us, self.workers, until, self._say
            ):
                self.bound = better

    def _settled(self) -> Candidate:
        """The best plan, by times alone that no plan's own part beats."""
        for _ in range(_SETTLING):
            if self.wish.objective == "fair":
                self._reorder()
            if not self._learn_from(self._best(self.wish.objective)):
                break
            self._from_alone()
        return self._best(self.wish.objective)

    def by_way(self) -> dict[str, tuple[float, float]]:
        """(makespan in µs, largest slowdown) of the best plan of every way of making one."""
        found: dict[str, tuple[float, float]] = {}
        for one in sorted(self.candidates, key=lambda c: self._key(c, self.wish.objective)):
            found.setdefault(one.way, (one.makespan_us, one.slowdown(self._alone_us())))
        return found

    def _alone_us(self) -> Floats:
        return np.array([one.time_us for one in self.alone])

    def _least_us(self) -> float:
        """The highest bound on the makespan so far."""
        own = max(one.bound_us for one in self.alone)
        return max(own, self.bound.at(self.size)[0]) if self.bound.witnesses else own

    def _key(self, candidate: Candidate, objective: str) -> tuple[float, float]:
        """Less is better; what rounding alone keeps apart is alike."""
        makespan = float(f"{candidate.makespan_us:.9g}")
        slow = float(f"{candidate.slowdown(self._alone_us()):.9g}")
        return (slow, makespan) if objective == "fair" else (makespan, slow)

    def _best(self, objective: str) -> Candidate:
        return min(self.candidates, key=lambda c: self._key(c, objective))

    def _say(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text, self.latest)

    def _restated(self, collectives: Sequence[Collective]) -> Together:
        return restated(self.asked, collectives, self.wish.relays, self.wish.dead)

    def _add(self, asked: Together, schedule: Schedule, engine: str, way: str) -> float:
        """Take a plan; its makespan in µs."""
        if self.inside:
            check_inside(asked, schedule)
        algorithm = Algorithm(asked.problem, schedule, engine)
        at_size = timed(asked.problem, algorithm.schedule, self.size)
        made = Candidate(asked, algorithm, way, times_by_group(asked, at_size))
        self.candidates.append(made)
        self.latest = algorithm
        return made.makespan_us

    def _from_alone(self) -> None:
        """Every group as it is best alone: all at once, and one after another, the shortest first."""
        parts = [one.schedule for one in self.alone]
        engine = _one_name(self.alone)
        asked = self._restated([one.problem.collective for one in self.alone])
        self._add(asked, merged(asked, parts), engine, AT_ONCE)
        if len(parts) > 1:
            alone_us = self._alone_us()
            begin = np.zeros(len(parts))
            order = np.argsort(alone_us, kind="stable")
            begin[order] = np.cumsum(alone_us[order]) - alone_us[order]
            late = [
                replace(part, start_us=part.start_us + at, end_us=part.end_us + at)
                for part, at in zip(parts, begin.tolist(), strict=True)
            ]
            self._add(asked, merged(asked, late), engine, IN_TURN)

    def _without_relays(self) -> None:
        """Where relays are allowed: every group as it is best within itself, if it is joined; all at once."""
        if self.inside or len(self.asked.members) < 2:
            return
        topology = self.asked.problem.topology
        try:
            within = together(topology, self.asked.members)
        except InputError:
            return
        until = min(time.monotonic() + _WITHIN_SHARE * self.wish.budget_s, self.begun + self.wish.budget_s)
        found, interrupted = self._each(within, until)
        collectives = [one.problem.collective for one in found]
        members = [replace(m, collective=c) for m, c in zip(within.members, collectives, strict=True)]
        schedule = merged(together(topology, members), [one.schedule for one in found])
        asked = self._restated(collectives)
        # the union's ranks come first in both, in one order
        links = links_among(asked.problem.network, np.arange(len(within.problem.group)))[0]
        self._add(asked, replace(schedule, link=links[schedule.link]), _one_name(found), WITHIN)
        self._learn_from(self.candidates[-1])
        if interrupted:
            raise KeyboardInterrupt

    def _each(self, asked: Together, until: float) -> tuple[list[Alone], bool]:
        wish = self.wish
        return each_alone(
            asked, self.workers, chunks=wish.chunks, engine=wish.engine, until=until, say=self._say
        )

    def _direct(self) -> None:
        """What a library without a plan would do, all groups at once."""
        self._say("direct")
        found = direct_together(self.asked, self._restated, self.wish.chunks)
        if found is not None:
            self._add(*found, DIRECT, DIRECT)

    def _cut(self) -> Together:
        """The union with the chunks from which the engine begins."""
        members, chunks = self.asked.members, self.wish.chunks
        counts = even_counts(members) if chunks is None else [chunks] * len(members)
        known: dict[tuple[int, int], Collective] = {}  # many groups have one collective
        for member, count in zip(members, counts, strict=True):
            known[id(member.collective), count] = subdivided(member.collective, count)
        cut = self._restated(
            [known[id(m.collective), count] for m, count in zip(members, counts, strict=True)]
        )
        # a block is what the engine asks for part by part
        whole = replace(cut.problem.collective, chunks=chunks or 1)
        return replace(cut, problem=replace(cut.problem, collective=whole))

    def _union(self) -> None:
        """The engine's plans for all groups as one problem."""
        least_us = self._least_us()
        if self._best("makespan").makespan_us <= least_us * close_enough(0):
            return
        cut = self._cut()
        bound = Bound((*self.bound.witnesses, *self._own_witnesses()))
        if self.wish.chunks is not None:
            self._searched(cut, bound, pinned=True)
        elif self.inside:
            self._finer_and_finer(cut, bound, 1)
        else:
            self._searched(cut, bound)
            finest = 4 * max(_parts(c, cut) for c in self.candidates if c.way == TOGETHER)
            # beyond the number of sends that is only estimated
            if finest * estimated_sends(cut.problem) > _MOST_SENDS:
                self._finer_and_finer(cut, bound, finest)

    def _finer_and_finer(self, cut: Together, bound: Bound, parts: int) -> None:
        """From so many parts of every chunk on to more, one number at a time, while that gains."""
        until = self.begun + _UNION_SHARE * self.wish.budget_s
        enough_us = self._least_us() * close_enough(0)
        idle = 0
        while idle < 2:
            made = [c for c in self.candidates if c.way == TOGETHER]
            best_us = min((c.makespan_us for c in made), default=np.inf)
            sends = min((len(c.algorithm.schedule) // _parts(c, cut) for c in made), default=0)
            late = len(made) > 0 and time.monotonic() >= until
            if best_us <= enough_us or sends * parts > _MOST_SENDS or late:
                break
            self._searched(cut.with_chunks(parts), bound, pinned=True)
            took_us = min(c.makespan_us for c in self.candidates if c.way == TOGETHER)
            idle = 0 if took_us < best_us * (1 - _WORTH) else idle + 1
            parts *= 4

    def _searched(self, cut: Together, bound: Bound, pinned: bool = False) -> None:
        """Plans by the engine, with the chunks of `cut` or, where they are not pinned, more."""
        first = cut.problem.collective.nchunks

        def add(problem: Problem, schedule: Schedule, _size: int) -> float:
            finer = cut.with_chunks(problem.collective.nchunks // first)
            return self._add(replace(finer, problem=problem), schedule, FLOW, TOGETHER)

        search = FlowSearch(
            cut.problem,
            bound,
            add,
            size=max(1, round(self.size)),
            chunks=cut.problem.collective.chunks if pinned else None,
            allowed=Allowed(cut.group_of_chunk, cut.allowed) if self.inside else None,
            deadline=self.begun + _UNION_SHARE * self.wish.budget_s,
            say=lambda text: self._say(f"together: {text}"),
        )
        search.run()

    def _own_witnesses(self) -> list[Witness]:
        """The groups' own bounds at the union's sizes; good for their numbers only."""
        found = []
        for one in dict.fromkeys(self.alone):
            ratio = one.size_bytes / self.size
            found += [replace(w, per_byte_us=w.per_byte_us * ratio) for w in one.bound.witnesses]
        return found

    def _learn_from(self, candidate: Candidate) -> bool:
        """Take over what a plan does better for a group than its own plan did. Whether anything was."""
        late = time.monotonic() >= self.begun + self.wish.budget_s
        own_plans = candidate.way.removesuffix(REORDERED) in (AT_ONCE, IN_TURN)
        some = [
            group
            for group, own in enumerate(self.alone)
            if candidate.times_us[group] < own.time_us * (1 - 1e-9)
            or not (late or own_plans or own.time_us <= own.bound_us * close_enough(0))
        ]
        learned = False
        at_size = timed(candidate.asked.problem, candidate.algorithm.schedule, self.size)
        for group, (problem, part) in zip(some, parts_alone(candidate.asked, at_size, some), strict=True):
            own = self.alone[group]
            # beside no others it is as fast at least, but a greedy clock may not see that
            ways = [timed(problem, part, own.size_bytes), part]
            best = min(ways, key=lambda way: time_us(problem, way))
            if time_us(problem, best) < own.time_us * (1 - 1e-9):
                replay(problem, best)
                self.alone[group] = Alone(problem, best, candidate.algorithm.engine, own.bound)
                learned = True
        return learned

    def _reorder(self) -> None:
        """More plans: the best ones with the sends of slowed groups earlier."""
        alone_us = self._alone_us()
        ranked = sorted(self.candidates, key=lambda c: self._key(c, "fair"))
        for one in dict.fromkeys([self._best("makespan"), *ranked[:_REORDERED]]):
            self._say("fairer order")
            better = fairer(one.asked, one.algorithm.schedule, self.size, alone_us)
            if better is not None:
                way = one.way.removesuffix(REORDERED) + REORDERED
                self._add(one.asked, better, one.algorithm.engine, way)


def _one_name(answers: Sequence[Alone]) -> str:
    """The engine that found all of them, or `several`."""
    names = {one.engine for one in answers}
    return names.pop() if len(names) == 1 else "several"


def _parts(candidate: Candidate, cut: Together) -> int:
    """Into how many parts a plan cuts the chunks of `cut`."""
    return candidate.asked.problem.collective.nchunks // cut.problem.collective.nchunks
