"""The engine `switch`: switches reduce and multicast inside each of their groups, between groups ranks send to ranks.

Every chunk has a place in a group (the same in all: its rail) and a home group. A sum is reduced by each group's switch
into the rank at that place, these add up over the rail at the home, and the result goes back over the rail and is
multicast in each group (NVLS inside nodes, and NVLS tree between them, in NCCL's words). Where one group is all, that
is a reduction and a multicast a chunk, which keep every port busy for 1 + 1/n of the buffer each way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from synth.engines.request import Candidate, Options, Outcome, Request
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.registry import BUFFER, EVERY, OWN, ROOT, SHARE, Kind
from synth.model.schedule import Schedule, untimed
from synth.timing.simulate import Clock, time_us

NAME = "switch"


@dataclass(frozen=True)
class Tuning:
    """How finely chunks are cut: in powers of two up to `waves`, while that gains `worth` of the time at some size.

    most_pairs: pairs of ranks between which the sends of a schedule go; timing so many takes a second.
    near: times the best time, up to which a schedule is nearly as good.
    """

    waves: int = 128
    worth: float = 1e-3
    most_pairs: int = 1_500_000
    near: float = 1.05


class _Form(NamedTuple):
    """waves: chunks that follow each other in each place. chain: along the rail one after another, else directly."""

    waves: int
    paced: bool
    chain: bool


class _Made(NamedTuple):
    """time_us: at the size that it is for."""

    time_us: float
    form: _Form
    problem: Problem
    schedule: Schedule


class _Groups(NamedTuple):
    """at: the position of every place of every group, shape (groups, places). number: the hyperlinks' group of each."""

    at: Ints
    number: list[int]


def accepts(problem: Problem, options: Options) -> str:
    """Whole problems of one group whose ranks are all on switches that can; no steps or rounds."""
    if problem.quotient is not None or problem.allowed is not None or problem.collective.chunks != 1:
        return "switch is for one group that is not planned by its symmetry, stated with one chunk a block"
    if options.steps is not None or options.rounds is not None:
        return "switch takes no steps or rounds; leave --steps and --rounds out"
    if problem.network.hyperlinks is None:
        return "no switch multicasts or reduces among these ranks; it must be a topology with [[switch_ops]]"
    if not _shape(problem.collective.kind):
        return f"switch has nothing for {problem.collective.name}; it must be one that sums or copies to all"
    found = _groups(problem)
    if found is None:
        return "the ranks are not in groups of one size on switches that multicast or reduce; it must be all of them"
    counts = _able(problem, found)
    lacking = [word for word, able in zip(("reduce", "multicast"), counts, strict=True) if not able]
    needs = _needs(problem.collective.kind)
    if any(word in lacking for word in needs):
        return f"the switches do not {' and '.join(lacking)}; for {problem.collective.name} they must"
    return ""


def solve(problem: Problem, request: Request, tuning: Tuning = Tuning()) -> Iterator[Outcome]:
    """The best number of waves for each size, in the form that is best for it.

    For an executor, which may lack the time to check so many sends, also the best of fewer than it can hold by links,
    and the fewest waves that are nearly as good: a plan pipelines what is in a wave.
    """
    groups = _groups(problem)
    if groups is None:
        return
    sums_and_copies = len(_needs(problem.collective.kind)) == 2
    best: dict[tuple[int, bool], _Made] = {}
    every: dict[int, list[_Made]] = {size: [] for size in request.sizes}
    for chain in (False, True) if len(groups.at) > 2 else (False,):
        for paced in (False, True) if sums_and_copies else (False,):
            for pairs, made in _by_waves(problem, groups, _Form(1, paced, chain), request, tuning):
                few = not request.most_sends or pairs <= request.most_sends
                for size, found in made.items():
                    if request.most_sends:
                        every[size].append(found)
                    for key in ((size, False), (size, True)) if few else ((size, False),):
                        if key not in best or found.time_us < best[key].time_us:
                            best[key] = found
    chosen = [(size, best[size, few]) for few in (False, True) for size in request.sizes if (size, few) in best]
    for size, those in every.items() if request.most_sends else ():
        near = [one for one in those if one.time_us <= tuning.near * best[size, False].time_us]
        chosen += [(size, min(near, key=lambda one: (len(one.schedule), one.time_us)))] if near else []
    yielded: set[_Form] = set()
    for size, (_, form, whole, schedule) in chosen:
        if form not in yielded:
            yielded.add(form)
            yield Candidate(whole, schedule, NAME, size)


def _by_waves(
    problem: Problem, groups: _Groups, form: _Form, request: Request, tuning: Tuning
) -> Iterator[tuple[int, dict[int, _Made]]]:
    """For more and more waves as long as that is worth it: the pairs of ranks between which the sends go, and by size
    the time, form, problem and schedule."""
    least = _chunks(problem.collective.kind, groups.at.shape, 1)
    pinned, last = request.options.chunks, dict.fromkeys(request.sizes, np.inf)
    counts = [1 << e for e in range(tuning.waves.bit_length())]
    if pinned is not None:
        counts = [pinned // least] if pinned % least == 0 else []
    for waves in counts:
        now = form._replace(waves=waves)
        whole = problem.with_chunks(least * waves)
        schedule = _schedule(whole, groups, now)
        if schedule is None:
            return
        pairs = int(np.diff(whole.network.pairs.ptr)[schedule.link].sum())
        too_long = request.most_sends and len(schedule) > request.most_sends
        if waves > 1 and pinned is None and (too_long or pairs > tuning.most_pairs):
            return
        clock = Clock(whole, schedule)
        times = {size: time_us(whole, clock.timed(size)) for size in request.sizes}
        yield pairs, {size: _Made(us, now, whole, schedule) for size, us in times.items()}
        if all(times[size] > (1 - tuning.worth) * last[size] for size in times):
            return
        last = {size: min(times[size], last[size]) for size in times}


def _shape(kind: Kind) -> bool:
    """Whether every chunk is summed over all, or copied to all, or both."""
    if kind.unit == BUFFER:
        return (kind.before, kind.after) in ((EVERY, EVERY), (ROOT, EVERY), (EVERY, ROOT))
    return kind.unit == SHARE and (kind.before, kind.after) in ((OWN, EVERY), (EVERY, OWN))


def _needs(kind: Kind) -> list[str]:
    return ["reduce"] * (kind.before == EVERY) + ["multicast"] * (kind.after == EVERY)


def _chunks(kind: Kind, shape: tuple[int, ...], waves: int) -> int:
    """Chunks a block: so many waves for each rank's share of a sum that all want, or each rail of a root's buffer."""
    if kind.unit == SHARE:
        return waves
    groups, places = shape
    if kind.in_shares:
        return waves * groups * places
    return waves * (places if groups > 1 else 1)


def _able(problem: Problem, groups: _Groups) -> tuple[bool, bool]:
    """Whether all groups' switches reduce, and multicast."""
    h = problem.network.hyperlinks
    if h is None:
        return False, False
    kinds = [{bool(x) for x in h.multicast[h.group == number]} for number in groups.number]
    return all(False in kind for kind in kinds), all(True in kind for kind in kinds)


def _groups(problem: Problem) -> _Groups | None:
    """All positions in groups of one size, the largest there are; None where they are not."""
    h = problem.network.hyperlinks
    if h is None:
        return None
    first = {number: int(np.argmax(h.group == number)) for number in np.unique(h.group).tolist()}
    members = {number: h.members(hyperlink) for number, hyperlink in first.items()}
    left, rows, numbers = np.ones(len(problem.group), dtype=bool), [], []
    for number in sorted(members, key=lambda number: (-len(members[number]), number)):
        if left[members[number]].all():
            left[members[number]] = False
            # places by the ranks' numbers: that is how rails join nodes
            rows.append(members[number][np.argsort(np.array(problem.group)[members[number]])])
            numbers.append(number)
    if left.any() or len({len(row) for row in rows}) != 1:
        return None
    return _Groups(np.array(rows), numbers)


class _Rows:
    """Sends as they are added: chunk by chunk, each in a step; `missing`: one has no link."""

    def __init__(self, problem: Problem, groups: _Groups, *, paced: bool) -> None:
        self.net, self.groups, self.missing = problem.network, groups, False
        self.rows: list[tuple[int, int, int, bool]] = []
        h = self.net.hyperlinks
        assert h is not None
        self._switch = {
            (bool(h.multicast[i]), int(h.group[i]), int(h.one[i])): self.net.nlinks + i
            for i in np.flatnonzero(h.paced == paced).tolist()
        }
        # of several links of a pair the widest
        order = np.argsort(-self.net.bandwidth_gbs, kind="stable")[::-1]
        ends = zip(self.net.src[order].tolist(), self.net.dst[order].tolist(), strict=True)
        self._link = dict(zip(ends, order.tolist(), strict=True))

    def add(self, chunk: int, link: int, step: int, *, sums: bool) -> None:
        self.rows.append((chunk, link, step, sums))

    def switch(self, chunk: int, group: int, rank: int, step: int, *, sums: bool) -> None:
        """The group's switch reduces into the rank, or multicasts what it has."""
        self.add(chunk, self._switch[not sums, self.groups.number[group], rank], step, sums=sums)

    def send(self, chunk: int, source: int, goal: int, step: int, *, sums: bool) -> None:
        link = self._link.get((source, goal))
        self.missing |= link is None
        self.add(chunk, -1 if link is None else link, step, sums=sums)


def _schedule(problem: Problem, groups: _Groups, form: _Form) -> Schedule | None:
    """None where two groups are not joined at some place."""
    kind, at = problem.collective.kind, groups.at
    count, places = at.shape
    rows = _Rows(problem, groups, paced=form.paced)
    where = {int(at[i, j]): (i, j) for i in range(count) for j in range(places)}
    root = where[problem.collective.root]
    for chunk in range(problem.collective.nchunks):
        owner = chunk // form.waves
        if kind.in_shares:
            home, place = owner // places, owner % places
        elif kind.unit == SHARE:
            home, place = where[owner]
        else:
            home, place = root[0], owner if count > 1 else root[1]
        rail = [int(at[(home + d) % count, place]) for d in range(count)]
        last = root if kind.rooted else (home, place)
        step = 0
        if kind.before == EVERY:
            step = _gather(rows, chunk, home, rail, int(at[last]), form.chain)
        if kind.after == EVERY:
            _spread(rows, chunk, home, rail, int(at[last]), step, form.chain)
    if rows.missing:
        return None
    chunks, links, steps, sums = (np.array(column) for column in zip(*rows.rows, strict=True))
    # a wave behind the other; what a wave begins first, since it waits for no arrival
    order = np.lexsort((chunks, steps, chunks % form.waves + steps))
    return untimed(chunks[order], links[order], steps[order], sums[order])


def _gather(rows: _Rows, chunk: int, home: int, rail: list[int], goal: int, chain: bool) -> int:
    """The sum at `goal`, of the home group; the step after. rail: ranks at the chunk's place from the home on."""
    count, direct = len(rail), rail[0] == goal
    for d in range(0 if direct else 1, count):
        rows.switch(chunk, (home + d) % count, rail[d], 0, sums=True)
    for d in range(1, count):
        rows.send(chunk, rail[d], rail[(d + 1) % count] if chain else rail[0], d if chain else 1, sums=True)
    step = 1 if count == 1 else count if chain else 2
    if not direct:
        rows.switch(chunk, home, goal, step, sums=True)
        step += 1
    return step


def _spread(rows: _Rows, chunk: int, home: int, rail: list[int], source: int, step: int, chain: bool) -> None:
    """From `source`, of the home group, to all."""
    count = len(rail)
    rows.switch(chunk, home, source, step, sums=False)
    first = step if rail[0] == source else step + 1  # the home's rank of the rail hears of it by the multicast
    for d in range(1, count):
        sent = first + (d - 1 if chain else 0)
        rows.send(chunk, rail[d - 1] if chain else rail[0], rail[d], sent, sums=False)
        rows.switch(chunk, (home + d) % count, rail[d], sent + 1, sums=False)
