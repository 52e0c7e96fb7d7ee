"""Replay a timed schedule: the check that every Algorithm passes at construction.

It shares no code with the simulator or the engines: times are checked against the model, contents are counted
(`synth.verify.contents`). A refused schedule's message is one line that names the first fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synth.model.collective import Ints
from synth.model.compiled import Runner, is_little
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.verify.contents import ABSENT, BEFORE, CLASH, EARLY, MISSING, OVERTAKEN, Contents, ReplayFault
from topologies.arrays import pointers, row_of_entry
from topologies.errors import ScheduleRefused

_ON_LINK, _OVER, _UNSORTED = range(100, 103)  # faults besides those of `contents`
_MOST_RANKS = 32  # in a message


@dataclass(frozen=True)
class ReplayTuning:
    """Tolerances of a replay for rounding, and thresholds for compiled loops.

    Attributes:
        slack: Share of the whole time that floating point may lose in sums of times.
        capacity_slack: Share of a resource's capacity that floating point may lose in sums of rates.
        compiled_from: Sends, each times the words that count its contributions. The interpreter takes about 2 µs for
            each, and loading Numba and the loops takes 0.5 s; but a process that makes so large a schedule has loaded
            them before.
        chunk_bytes: Sizes of the smallest chunk, in bytes, at which an Algorithm is replayed: latency dominates at one,
            bandwidth at the other.
        once_from: Sends above which a replay takes a second, so that the Algorithm is replayed at its own size only.
    """

    slack: float = 1e-9
    capacity_slack: float = 1e-6
    compiled_from: int = 20_000
    chunk_bytes: tuple[int, ...] = (1 << 10, 1 << 20)
    once_from: int = 1_000_000


TUNING = ReplayTuning()


def replay(problem: Problem, schedule: Schedule, tuning: ReplayTuning = TUNING) -> None:
    """Check a schedule against its problem, at the size that the schedule is timed for.

    Takes O(sends · log sends) time, and O(sends · contributors) where a sum is not gathered in a tree.

    Raises:
        ScheduleRefused: Columns differ in length, a send is outside the problem or earlier than what it carries, takes
            another time than its link needs, a link or resource is over its capacity, or an output does not hold each
            contribution exactly once.
    """
    _check_lengths(schedule)
    _check_rows(problem, schedule, tuning.slack)
    words = 1 + problem.collective.nranks // 64 if problem.collective.reducing else 1
    run = Runner(interpreted=is_little(len(schedule) * words, tuning.compiled_from))
    tolerance = tuning.slack * max(1.0, float(schedule.end_us.max(initial=0.0)))
    code, index, row, gbs = _first_overlap(problem, schedule, run, tolerance, tuning.capacity_slack)
    if code == _ON_LINK:
        link = problem.link_name(int(schedule.link[index]))
        raise ScheduleRefused(f"sends {index} and {row} are on link {link} at once")
    if code == _OVER:
        net = problem.network
        raise ScheduleRefused(
            f"{net.resource_names[index]} carries {gbs:.6g} GB/s at {schedule.start_us[row]:.9g} µs;"
            f" it can carry {net.capacity_gbs[index]:.6g}"
        )
    contents = Contents(problem, schedule, run, tolerance)
    for fault in (contents.check_plain_values(), contents.check_sums()):
        if fault.code:
            raise ScheduleRefused(_message(problem, schedule, contents, fault))


def _check_lengths(schedule: Schedule) -> None:
    """Raise ScheduleRefused if columns have different lengths or the message size is negative or not finite.

    An empty `joined` column is right.
    """
    columns = ["chunk", "link", "step", "reduces", "start_us", "end_us"]
    columns += ["joined"] if len(schedule.joined) else []
    lengths = {len(getattr(schedule, name)) for name in columns}
    if len(lengths) != 1:
        raise ScheduleRefused(f"columns have different lengths {sorted(lengths)}")
    if not (np.isfinite(schedule.size_bytes) and schedule.size_bytes >= 0):
        raise ScheduleRefused(f"the message size {schedule.size_bytes} is not a number of bytes")


def _check_rows(problem: Problem, schedule: Schedule, slack: float) -> None:
    """Check every row by itself: its numbers, its kind, and its duration on the link.

    Args:
        problem: The problem.
        schedule: The timed schedule.
        slack: Relative error of times that counts as rounding.

    Raises:
        ScheduleRefused: A row is wrong; the line names the first row that fails the first of the checks that any fails.
    """
    net, collective = problem.network, problem.collective
    if not len(schedule):
        return
    for name, column, end in (
        ("chunk", schedule.chunk, collective.nchunks),
        ("link", schedule.link, net.ncarriers),
        ("step", schedule.step, np.iinfo(np.int64).max),
    ):
        bad = np.flatnonzero((column < 0) | (column >= end))
        if len(bad):
            raise ScheduleRefused(f"send {bad[0]}: {name} {column[bad[0]]} does not exist (0..{end - 1})")
    bad = np.flatnonzero(schedule.reduces & ~collective.reduces[schedule.chunk])
    if len(bad):
        raise ScheduleRefused(f"send {bad[0]}: reduces chunk {schedule.chunk[bad[0]]}, which is a plain value")
    if net.hyperlinks is not None:
        hyperlink = schedule.link - net.nlinks
        is_multicast = np.append(net.hyperlinks.multicast, False)[np.maximum(hyperlink, -1)]
        bad = np.flatnonzero((hyperlink >= 0) & (is_multicast == schedule.reduces))
        if len(bad):
            rule = "a multicast replaces" if is_multicast[bad[0]] else "a switch's reduction adds"
            raise ScheduleRefused(f"send {bad[0]}: {problem.link_name(int(schedule.link[bad[0]]))}: {rule}")
    _check_messages(schedule)
    rates = net.carriers.bandwidth_gbs[schedule.link]
    duration = collective.fraction[schedule.chunk] * schedule.size_bytes / rates / 1e3
    if len(schedule.joined):
        duration = np.asarray(np.bincount(schedule.message, duration), dtype=np.float64)[schedule.message]
    early = schedule.start_us < net.start_us * (1 - slack)
    if net.start_us and early.any():
        row = int(np.argmax(early))
        at, begins = schedule.start_us[row], net.start_us
        raise ScheduleRefused(f"send {row}: takes its link at {at:.9g} µs; the call's start takes {begins:.9g} µs")
    wrong = ~np.isfinite(schedule.start_us) | ~np.isfinite(schedule.end_us) | (schedule.start_us < 0)
    wrong |= np.abs(schedule.end_us - schedule.start_us - duration) > slack * np.maximum(1, schedule.end_us)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleRefused(
            f"send {row}: holds its link from {schedule.start_us[row]:.9g} to {schedule.end_us[row]:.9g} µs;"
            f" at its bandwidth it takes {duration[row]:.9g} µs"
        )


def _check_messages(schedule: Schedule) -> None:
    """Raise ScheduleRefused if a joined send differs from the send before it in its link, step, kind or times.

    The first send must not be joined.
    """
    rows = np.flatnonzero(schedule.joined)
    if len(rows) and rows[0] == 0:
        raise ScheduleRefused("send 0: is joined to a send before it; there is none")
    for name in ("link", "step", "reduces", "start_us", "end_us"):
        column = getattr(schedule, name)
        bad = rows[column[rows] != column[rows - 1]]
        if len(bad):
            raise ScheduleRefused(f"send {bad[0]}: is in one message with send {bad[0] - 1} and has another {name}")


def _first_overlap(
    problem: Problem, schedule: Schedule, run: Runner, tolerance: float, capacity_slack: float
) -> tuple[int, int, int, float]:
    """Find the first link that carries two sends at once, or else the first resource over its capacity.

    Args:
        problem: The problem.
        schedule: The timed schedule.
        run: Runner of the loop.
        tolerance: Overlap in µs that counts as rounding.
        capacity_slack: Share of a resource's capacity by which it may be exceeded.

    Returns:
        (_ON_LINK, row, later row, 0), (_OVER, resource, row with whose start it is over, GB/s then), or (0, …) if there
        is none.
    """
    net = problem.network
    _, _, uses_ptr, uses, gap, takes = net.carriers
    link_of = row_of_entry(uses_ptr)
    total = np.bincount(uses, weights=takes[link_of], minlength=net.nresources)
    # A resource whose links' rates add up to no more than its capacity is never over capacity.
    may_exceed = (total > net.capacity_gbs * (1 + capacity_slack / 2))[uses]
    # The resources of a link are busy during the gap too.
    busy_until = schedule.end_us + gap[schedule.link] if len(gap) else schedule.end_us
    columns = run.columns(
        schedule.link,
        schedule.start_us,
        busy_until,
        takes,
        pointers(np.bincount(link_of[may_exceed], minlength=len(takes))),
        uses[may_exceed],
        pointers(2 * np.bincount(uses[may_exceed], minlength=net.nresources)),
        net.capacity_gbs * (1 + capacity_slack),
    )
    # The sends of a message hold their link once.
    order = np.flatnonzero(~schedule.joined) if len(schedule.joined) else np.arange(len(schedule))
    overlap = run(_overlap, *run.columns(order), *columns, tolerance)
    if overlap[0] == _UNSORTED:
        order = order[np.argsort(schedule.start_us[order], kind="stable")]
        overlap = run(_overlap, *run.columns(order), *columns, tolerance)
    code, index, row, level = overlap
    return int(code), int(index), int(row), float(level)


def _overlap(  # A loop that Numba compiles takes columns, however many.
    order: Any, link: Any, start: Any, end: Any, rate: Any, ptr: Any, uses: Any, slots: Any, most: Any,
    tolerance: float,
) -> tuple[int, int, int, float]:  # fmt: skip
    """Find the first overlap in one pass over the rows in `order`.

    It returns _UNSORTED if the starts on a link or a resource go down. The ends of the sends in flight through resource
    r lie in closes[first[r] : first[r] + count[r]], ascending. There is never more than one send a link, and
    slots[r] … slots[r + 1] hold twice as many.
    """
    nlinks, nresources = len(rate), len(most)
    last, last_start, last_end = [-1] * nlinks, [0.0] * nlinks, [0.0] * nlinks
    first, count = [slots[r] for r in range(nresources)], [0] * nresources
    closes, frees = [0.0] * slots[nresources], [0.0] * slots[nresources]
    level, newest = [0.0] * nresources, [0.0] * nresources
    over, over_row, over_level = -1, -1, 0.0
    for i in range(len(order)):
        row = order[i]
        carrier, begin = link[row], start[row]
        if begin < last_start[carrier]:
            return _UNSORTED, 0, 0, 0.0
        if begin < last_end[carrier] - tolerance:
            return _ON_LINK, last[carrier], row, 0.0
        last[carrier], last_start[carrier], last_end[carrier] = row, begin, end[row]
        # A send that ends within the tolerance of another send's start no longer occupies the resource.
        until = max(end[row] - tolerance, begin)
        for u in range(ptr[carrier], ptr[carrier + 1]):
            r = uses[u]
            if begin < newest[r]:
                return _UNSORTED, 0, 0, 0.0
            newest[r] = begin
            while count[r] and closes[first[r]] <= begin:
                level[r] -= frees[first[r]]
                first[r] += 1
                count[r] -= 1
            if until == begin:
                continue
            if count[r] == 0:
                first[r], level[r] = slots[r], 0.0
            level[r] += rate[carrier]
            if level[r] > most[r] and over < 0:
                over, over_row, over_level = r, row, level[r]
            if first[r] + count[r] == slots[r + 1]:
                for k in range(count[r]):
                    closes[slots[r] + k], frees[slots[r] + k] = closes[first[r] + k], frees[first[r] + k]
                first[r] = slots[r]
            k = first[r] + count[r]
            while k > first[r] and closes[k - 1] > until:
                closes[k], frees[k] = closes[k - 1], frees[k - 1]
                k -= 1
            closes[k], frees[k] = until, rate[carrier]
            count[r] += 1
    if over >= 0:
        return _OVER, over, over_row, over_level
    return 0, 0, 0, 0.0


def _message(problem: Problem, schedule: Schedule, contents: Contents, fault: ReplayFault) -> str:
    """Return the line that describes a fault of the contents."""
    if fault.code == MISSING:
        return _wrong_output(problem, fault.which, fault.rank, fault.counts)
    row, *ends = (int(column[fault.which]) for column in contents.pairs)
    source, goal = (problem.ranks[end] for end in ends)
    chunk, step = schedule.chunk[row], schedule.step[row]
    texts = {
        ABSENT: f"chunk {chunk} is not at rank {source} before step {step}",
        EARLY: f"chunk {chunk} leaves rank {source} at {schedule.start_us[row]:.9g} µs but is complete there only at"
        f" {fault.value:.9g} µs",
        CLASH: f"chunk {chunk} is replaced at rank {goal} in step {step}, in which another send changes it too",
        BEFORE: f"chunk {chunk} is replaced at rank {goal} before an earlier step's arrival",
        OVERTAKEN: f"is added to chunk {chunk} at rank {goal} before the copy of an earlier step has arrived",
    }
    return f"send {row}: {texts[fault.code]}"


def _wrong_output(problem: Problem, chunk: int, position: int, counts: Ints) -> str:
    """Return the line that describes a wrong output.

    Args:
        problem: The problem.
        chunk: The chunk that is wrong.
        position: The group's position whose output is wrong.
        counts: How often each position's contribution is present, shape (k,).
    """
    collective = problem.collective
    place = f"rank {problem.group[position]}, chunk {chunk}"
    if not collective.reduces[chunk]:
        return f"{place}: never arrives"
    ptr, holders = collective.holders
    parts = holders[ptr[chunk] : ptr[chunk + 1]]
    if len(parts) > _MOST_RANKS:
        excess = np.array(counts)
        excess[parts] -= 1
        wrong = np.flatnonzero(excess).tolist()
        wrong_ranks = [f"{problem.group[i]}×{counts[i]}" for i in wrong[:_MOST_RANKS]] + ["…"] * (
            len(wrong) > _MOST_RANKS
        )
        return (
            f"{place}: holds the contributions of ranks {', '.join(wrong_ranks)};"
            f" should hold those of {len(parts)} ranks, each once"
        )
    actual = [f"{problem.group[i]}×{n}" if n > 1 else f"{problem.group[i]}" for i, n in enumerate(counts) if n]
    expected = [str(problem.group[i]) for i in parts]
    return (
        f"{place}: holds the contributions of ranks {', '.join(actual) or 'none'};"
        f" should hold {', '.join(expected)}, each once"
    )
