"""The engine `switch`: switches reduce and multicast inside each of their groups, between groups ranks send to ranks.

Every chunk has a place in a group (the same place in all groups: its rail) and a home group. Each group's switch
reduces the chunk into the rank at that place, the partial sums add up along the rail at the home group, and the result
goes back along the rail and is multicast in each group (NVLS inside nodes and NVLS tree between them, in NCCL's words).
Where one group holds all ranks, that is a reduction and a multicast a chunk, which keep every port busy for 1 + 1/n of
the buffer in each direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from synth.engines.request import Candidate, Options, Outcome, Request
from synth.model.collective import Ints
from synth.model.deadline import checking_deadline
from synth.model.problem import Problem
from synth.model.registry import BUFFER, EVERY, OWN, ROOT, SHARE, CollectiveKind
from synth.model.schedule import Schedule, untimed
from synth.timing.simulate import Clock, time_us

NAME = "switch"


@dataclass(frozen=True)
class SwitchTuning:
    """Settings of the engine: blocks are cut in powers of two up to `waves` while that gains `worth` at some size.

    Attributes:
        waves: Most waves in a schedule.
        lags: Numbers of waves that begin before the next step of a wave, where a latency is longer than a wave.
        worth: Least gain as a fraction of the time for which the number of waves is doubled.
        most_pairs: Most pairs of ranks over all sends of a schedule; timing so many takes a second.
        near: Factor on the best time up to which a schedule with fewer sends is preferred for an executor.
        slices: Number of parts in which an executor's program moves the chunk of one send one after another.
    """

    waves: int = 128
    lags: tuple[int, ...] = (1, 2, 4)
    worth: float = 1e-3
    most_pairs: int = 1_500_000
    near: float = 1.05
    slices: int = 16


class _SwitchForm(NamedTuple):
    """The form of a schedule.

    Attributes:
        waves: Chunks that follow each other in each place.
        paced: Whether switches work at the paced rate, so that all members' multicasts and reductions fit in flight.
        chain: True if a chunk goes along its rail from rank to rank, False if it goes directly from or to the home
            group.
        lag: Number of waves that begin before the next step of a wave.
    """

    waves: int
    paced: bool
    chain: bool
    lag: int = 1


class _TimedSchedule(NamedTuple):
    """A schedule with its time in µs at the message size that it is for."""

    time_us: float
    form: _SwitchForm
    problem: Problem
    schedule: Schedule


class _Groups(NamedTuple):
    """The groups of ranks that share a switch with multicast or reduction.

    Attributes:
        at: Position of every place of every group, shape (groups, places).
        number: The group number of each group in `Hyperlinks.group`.
    """

    at: Ints
    number: list[int]


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for one group of ranks on switches with the needed operations."""
    if problem.quotient is not None or problem.allowed_holders is not None or problem.collective.chunks != 1:
        return "switch takes one group, no quotient problems and one chunk a block"
    if options.steps is not None or options.rounds is not None:
        return "switch takes no steps or rounds; leave --steps and --rounds out"
    if problem.network.hyperlinks is None:
        return "no switch multicasts or reduces among these ranks; it must be a topology with [[switch_ops]]"
    if not _shape(problem.collective.kind):
        return f"switch has no schedule for {problem.collective.name}; it must be one that sums or copies to all"
    groups = _groups(problem)
    if groups is None:
        return "not every rank is in a group on a switch that multicasts or reduces, with all groups of one size"
    able_switches = _able_switches(problem, groups)
    lacking = [word for word, able in zip(("reduce", "multicast"), able_switches, strict=True) if not able]
    needs = _needs(problem.collective.kind)
    if any(word in lacking for word in needs):
        return f"the switches cannot {' and '.join(lacking)}, which {problem.collective.name} needs"
    least = _chunks(problem.collective.kind, groups.at.shape, 1)
    if options.chunks is not None and options.chunks % least:
        return f"switch cuts into a multiple of {least} chunks; give --chunks {least} or leave it out"
    return ""


def solve(problem: Problem, request: Request, tuning: SwitchTuning = SwitchTuning()) -> Iterator[Outcome]:
    """Yield the schedule with the best number of waves for each size, in the form that is best for it.

    An executor may lack the time to check so many sends. For it, also yield the best schedule within
    `request.most_sends` sends, counted by pairs of ranks, and the schedule with the fewest sends whose program is
    expected to be nearly as good: a program moves a chunk slice by slice, so that it takes about the time of a schedule
    with more waves. A schedule that is chosen at several sizes comes once.
    """
    groups = _groups(problem)
    if groups is None:
        return
    sums_and_copies = len(_needs(problem.collective.kind)) == 2
    best: dict[tuple[int, bool], _TimedSchedule] = {}
    candidates_at: dict[int, list[_TimedSchedule]] = {size: [] for size in request.sizes}
    for chain in (False, True) if len(groups.at) > 2 else (False,):
        for paced in (False, True) if sums_and_copies else (False,):
            # Only operations at the paced rate, with nothing else between them, leave room for those of other waves.
            for lag in tuning.lags if paced and len(groups.at) == 1 else (1,):
                form = _SwitchForm(1, paced, chain, lag)
                for pairs, timed_schedules in _by_waves(problem, groups, form, request, tuning):
                    few = not request.most_sends or pairs <= request.most_sends
                    for size, candidate in timed_schedules.items():
                        if request.most_sends:
                            candidates_at[size].append(candidate)
                        for key in ((size, False), (size, True)) if few else ((size, False),):
                            if key not in best or candidate.time_us < best[key].time_us:
                                best[key] = candidate
    chosen = [(size, best[size, few]) for few in (False, True) for size in request.sizes if (size, few) in best]
    for size, candidates in candidates_at.items() if request.most_sends and best else ():
        enough_us = tuning.near * best[size, False].time_us
        near = [candidate for candidate in candidates if _sliced_us(candidate, candidates, tuning) <= enough_us]
        chosen += (
            [(size, min(near, key=lambda candidate: (len(candidate.schedule), candidate.time_us)))] if near else []
        )
    yielded: set[_SwitchForm] = set()
    # Schedules of few sends come first, because a program of them is soon ready.
    for size, (_, form, whole, schedule) in sorted(chosen, key=lambda choice: len(choice[1].schedule)):
        if form not in yielded:
            yielded.add(form)
            yield Candidate(whole, schedule, NAME, size)


def _sliced_us(candidate: _TimedSchedule, candidates: Iterable[_TimedSchedule], tuning: SwitchTuning) -> float:
    """Return the expected time in µs of a candidate whose chunks an executor moves slice by slice.

    It is the least time of all candidates of the same form that have up to `tuning.slices` times its waves.
    """
    most_waves = tuning.slices * candidate.form.waves
    return min(
        rival.time_us
        for rival in candidates
        if rival.form._replace(waves=candidate.form.waves) == candidate.form and rival.form.waves <= most_waves
    )


def _by_waves(
    problem: Problem, groups: _Groups, form: _SwitchForm, request: Request, tuning: SwitchTuning
) -> Iterator[tuple[int, dict[int, _TimedSchedule]]]:
    """Yield schedules with more and more waves as long as that is worth it; of pinned chunks only.

    Yields:
        For each number of waves the pairs of ranks over all sends, and by message size the schedule with its time.
    """
    least = _chunks(problem.collective.kind, groups.at.shape, 1)
    pinned, best_us_at = request.options.chunks, dict.fromkeys(request.sizes, np.inf)
    counts = [1 << e for e in range(tuning.waves.bit_length())]
    if pinned is not None:
        counts = [pinned // least]
    for waves in counts:
        form_of_waves = form._replace(waves=waves)
        whole = problem.with_chunks(least * waves)
        schedule = _schedule(whole, groups, form_of_waves)
        if schedule is None:
            return
        pairs = int(np.diff(whole.network.pairs.ptr)[schedule.link].sum())
        too_long = request.most_sends and len(schedule) > request.most_sends
        if waves > 1 and pinned is None and (too_long or pairs > tuning.most_pairs):
            return
        clock = Clock(whole, schedule)
        times = {size: time_us(whole, clock.timed(size)) for size in request.sizes}
        yield pairs, {size: _TimedSchedule(us, form_of_waves, whole, schedule) for size, us in times.items()}
        if all(times[size] > (1 - tuning.worth) * best_us_at[size] for size in times):
            return
        best_us_at = {size: min(times[size], best_us_at[size]) for size in times}


def _shape(kind: CollectiveKind) -> bool:
    """Return True if every chunk is summed over all ranks, or copied to all ranks, or both."""
    if kind.unit == BUFFER:
        return (kind.before, kind.after) in ((EVERY, EVERY), (ROOT, EVERY), (EVERY, ROOT))
    return kind.unit == SHARE and (kind.before, kind.after) in ((OWN, EVERY), (EVERY, OWN))


def _needs(kind: CollectiveKind) -> list[str]:
    """Return the switch operations that a collective needs."""
    return ["reduce"] * (kind.before == EVERY) + ["multicast"] * (kind.after == EVERY)


def _chunks(kind: CollectiveKind, shape: tuple[int, ...], waves: int) -> int:
    """Return the number of chunks in one block.

    That is `waves` where a block is one rank's share. It is `waves` times the ranks where all ranks want the sum of a
    buffer, and `waves` times the rails for a root's buffer (one rail if there is one group).

    Args:
        kind: The kind of the collective.
        shape: Number of groups and number of places in each.
        waves: Chunks that follow each other in each place.
    """
    if kind.unit == SHARE:
        return waves
    groups, places = shape
    if kind.in_shares:
        return waves * groups * places
    return waves * (places if groups > 1 else 1)


def _able_switches(problem: Problem, groups: _Groups) -> tuple[bool, bool]:
    """Return two flags: the switches of all groups reduce, and the switches of all groups multicast."""
    h = problem.network.hyperlinks
    if h is None:
        return False, False
    kinds = [{bool(x) for x in h.multicast[h.group == number]} for number in groups.number]
    return all(False in kind for kind in kinds), all(True in kind for kind in kinds)


def _groups(problem: Problem) -> _Groups | None:
    """Return groups of one size that hold each position once; None where there are none.

    Larger groups of the network are taken first, each if none of its positions is taken yet.
    """
    h = problem.network.hyperlinks
    if h is None:
        return None
    first = {number: int(np.argmax(h.group == number)) for number in np.unique(h.group).tolist()}
    members = {number: h.members(hyperlink) for number, hyperlink in first.items()}
    is_free, rows, numbers = np.ones(len(problem.group), dtype=bool), [], []
    for number in sorted(members, key=lambda number: (-len(members[number]), number)):
        if is_free[members[number]].all():
            is_free[members[number]] = False
            # Places follow the ranks' numbers, because rails join the nodes in that order.
            rows.append(members[number][np.argsort(np.array(problem.group)[members[number]])])
            numbers.append(number)
    if is_free.any() or len({len(row) for row in rows}) != 1:
        return None
    return _Groups(np.array(rows), numbers)


class _Rows:
    """The rows of a schedule as they are added, chunk by chunk, each with its step and the group's distance from home.

    Attributes:
        missing: True if a send has no link.
    """

    def __init__(self, problem: Problem, groups: _Groups, *, paced: bool) -> None:
        self.net, self.groups, self.missing = problem.network, groups, False
        self.rows: list[tuple[int, int, int, bool, int]] = []
        h = self.net.hyperlinks
        assert h is not None
        self._switch = {
            (bool(h.multicast[i]), int(h.group[i]), int(h.hub[i])): self.net.nlinks + i
            for i in np.flatnonzero(h.paced == paced).tolist()
        }
        # A pair of ranks keeps its widest link, which the dictionary gets last.
        order = np.argsort(-self.net.bandwidth_gbs, kind="stable")[::-1]
        ends = zip(self.net.src[order].tolist(), self.net.dst[order].tolist(), strict=True)
        self._link = dict(zip(ends, order.tolist(), strict=True))

    def switch(self, chunk: int, group: int, rank: int, step: int, distance: int, *, sums: bool) -> None:
        """Add a row in which a group's switch reduces a chunk into a rank of it, or multicasts the rank's chunk.

        Args:
            chunk: The chunk.
            group: Index of the group in `groups`.
            rank: The rank.
            step: Step of the send.
            distance: How many groups after the chunk's home group the group is.
            sums: True to reduce, False to multicast.
        """
        link = self._switch[not sums, self.groups.number[group], rank]
        self.rows.append((chunk, link, step, sums, distance))

    def send(self, chunk: int, source: int, goal: int, step: int, distance: int, *, sums: bool) -> None:
        """Add a row for one chunk from rank to rank over their widest link; set `missing` if they have none."""
        link = self._link.get((source, goal), -1)
        self.missing |= link < 0
        self.rows.append((chunk, link, step, sums, distance))


def _schedule(problem: Problem, groups: _Groups, form: _SwitchForm) -> Schedule | None:
    """Return the untimed schedule of a form; None where some rail has no link between two groups.

    Args:
        problem: The problem, with the chunks of the form.
        groups: The groups.
        form: The form.

    Raises:
        TimeUp: If the time of the work around is over.
    """
    kind, at = problem.collective.kind, groups.at
    count, places = at.shape
    rows = _Rows(problem, groups, paced=form.paced)
    place_of = {int(at[i, j]): (i, j) for i in range(count) for j in range(places)}
    root = place_of[problem.collective.root]
    for chunk in checking_deadline(range(problem.collective.nchunks), every=16):
        owner = chunk // form.waves
        if kind.in_shares:
            home, place = owner // places, owner % places
        elif kind.unit == SHARE:
            home, place = place_of[owner]
        else:
            home, place = root[0], owner if count > 1 else root[1]
        rail = [int(at[(home + d) % count, place]) for d in range(count)]
        summing_place = root if kind.rooted else (home, place)
        step = 0
        if kind.before == EVERY:
            step = _gather(rows, chunk, home, rail, int(at[summing_place]), form.chain)
        if kind.after == EVERY:
            _spread(rows, chunk, home, rail, int(at[summing_place]), step, form.chain)
    if rows.missing:
        return None
    chunks, links, steps, sums, distances = (np.array(column) for column in zip(*rows.rows, strict=True))
    # The waves are pipelined. In each stage of the pipeline early steps go first, because they wait for less. Sends
    # over the same distance, one from each home group, are a permutation of the groups: no port serves two of them.
    order = np.lexsort((chunks, distances, steps, chunks % form.waves + form.lag * steps))
    return untimed(chunks[order], links[order], steps[order], sums[order])


def _gather(rows: _Rows, chunk: int, home: int, rail: list[int], goal: int, chain: bool) -> int:
    """Add the rows that sum a chunk at `goal`, a rank of the home group, and return the step after them.

    Args:
        rows: Rows of the schedule.
        chunk: The chunk.
        home: Index of the chunk's home group.
        rail: Ranks at the chunk's place, one a group, from the home group on.
        goal: Rank of the home group that gets the sum.
        chain: True for partial sums from rank to rank along the rail, False for direct sends to the home group.
    """
    count, direct = len(rail), rail[0] == goal
    for d in range(0 if direct else 1, count):
        rows.switch(chunk, (home + d) % count, rail[d], 0, d, sums=True)
    for d in range(1, count):
        rows.send(chunk, rail[d], rail[(d + 1) % count] if chain else rail[0], d if chain else 1, d, sums=True)
    step = 1 if count == 1 else count if chain else 2
    if not direct:
        rows.switch(chunk, home, goal, step, 0, sums=True)
        step += 1
    return step


def _spread(rows: _Rows, chunk: int, home: int, rail: list[int], source: int, step: int, chain: bool) -> None:
    """Add the rows that bring a chunk from `source`, a rank of the home group, to all ranks, from `step` on.

    The other arguments are those of `_gather`.
    """
    count = len(rail)
    rows.switch(chunk, home, source, step, 0, sums=False)
    first = (
        step if rail[0] == source else step + 1
    )  # The rail's rank in the home group gets the chunk by the multicast.
    for d in range(1, count):
        send_step = first + (d - 1 if chain else 0)
        rows.send(chunk, rail[d - 1] if chain else rail[0], rail[d], send_step, d, sums=False)
        rows.switch(chunk, (home + d) % count, rail[d], send_step + 1, d, sums=False)
