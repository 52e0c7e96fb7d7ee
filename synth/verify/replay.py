"""Replay of a timed schedule: the check that every Algorithm passes at construction.

It shares no code with the simulator or the engines: times are checked against the model, contents are counted.
Small problems are counted in a table (chunk, rank, contributor), large ones by compiled loops,
`synth.verify.replay_compiled`
and `synth.verify.sums_compiled`; what is refused is the same and said in the same words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import row_entries
from topologies.errors import ScheduleRefused

SLACK = 1e-9  # of the whole time: what floating point may lose in sums of times
COMPILED_FROM = 20_000  # sends; from here on, or
COMPILED_FROM_CELLS = 50_000_000  # of the table, it costs more than to load the compiled loops
_CELLS_AT_ONCE = 20_000_000
_NAMED = 32  # ranks in a message


def replay(problem: Problem, schedule: Schedule) -> None:
    """Check a schedule against its problem at the size it is timed for.

    Raises:
        ScheduleRefused: a send outside the problem, earlier than what it carries, a link or resource over capacity, or
            an output that does not hold each contribution exactly once.
    """
    _check_lengths(schedule)
    cells = problem.collective.nchunks * problem.nranks * problem.collective.nranks
    if len(schedule) < COMPILED_FROM and cells < COMPILED_FROM_CELLS:
        _replay_dense(problem, schedule)
    else:
        _replay_compiled(problem, schedule)


def _tolerance(schedule: Schedule) -> float:
    return SLACK * max(1.0, float(schedule.end_us.max(initial=0.0)))


def _replay_dense(problem: Problem, schedule: Schedule) -> None:
    _check_columns(problem, schedule)
    net = problem.network
    tolerance = _tolerance(schedule)
    _check_links(problem, schedule, tolerance)
    _check_resources(problem, schedule, tolerance)
    order = np.argsort(schedule.chunk, kind="stable")
    cuts = np.searchsorted(schedule.chunk[order], np.arange(problem.collective.nchunks + 1))
    arrival = schedule.end_us + net.alpha_us[schedule.link]
    batch = max(1, _CELLS_AT_ONCE // max(1, net.nranks * problem.collective.nranks))
    for first in range(0, problem.collective.nchunks, batch):
        last = min(first + batch, problem.collective.nchunks)
        _replay_chunks(problem, schedule, arrival, order[cuts[first] : cuts[last]], first, last, tolerance)


def _replay_compiled(problem: Problem, schedule: Schedule) -> None:
    from synth.verify import replay_compiled as fast  # brings Numba
    from synth.verify.sums_compiled import sums

    columns = fast.Columns(problem, schedule)
    if not fast.sensible(columns, SLACK):
        _check_columns(problem, schedule)  # to say why
    tolerance = _tolerance(schedule)
    code, one, two, value = fast.side_by_side(columns, tolerance)
    if code == fast.ON_LINK:
        raise _at_once(problem, schedule, one, two)
    if code == fast.OVER:
        raise _over(problem, one, value, float(schedule.start_us[two]))
    ptr, sends = fast.by_chunk(columns)
    code, one, two, value = fast.plain_values(columns, ptr, sends, tolerance)
    counts = np.zeros(0, dtype=np.int64)
    if code == fast.OK:
        code, one, two, value, counts = sums(columns, ptr, sends, tolerance)
    if code == fast.MISSING:
        raise _wrong_output(problem, one, two, counts)
    if code == fast.ABSENT:
        raise _absent(problem, schedule, one)
    if code == fast.EARLY:
        raise _early(problem, schedule, one, value)
    if code != fast.OK:
        say = {fast.CLASH: _clash, fast.BEFORE: _before, fast.OVERTAKEN: _overtaken}
        raise say[code](problem, schedule, one)


def _at_once(problem: Problem, schedule: Schedule, one: int, two: int) -> ScheduleRefused:
    return ScheduleRefused(
        f"sends {one} and {two} are on link {problem.link_name(int(schedule.link[one]))} at once"
    )


def _over(problem: Problem, resource: int, gbs: float, when_us: float) -> ScheduleRefused:
    net = problem.network
    return ScheduleRefused(
        f"{net.resource_names[resource]} carries {gbs:.6g} GB/s at {when_us:.9g} µs;"
        f" it can carry {net.capacity_gbs[resource]:.6g}"
    )


def _from(problem: Problem, schedule: Schedule, row: int) -> int:
    return problem.ranks[int(problem.network.src[schedule.link[row]])]


def _to(problem: Problem, schedule: Schedule, row: int) -> int:
    return problem.ranks[int(problem.network.dst[schedule.link[row]])]


def _absent(problem: Problem, schedule: Schedule, row: int) -> ScheduleRefused:
    return ScheduleRefused(
        f"send {row}: chunk {schedule.chunk[row]} is not at rank {_from(problem, schedule, row)}"
        f" before step {schedule.step[row]}"
    )


def _early(problem: Problem, schedule: Schedule, row: int, ready_us: float) -> ScheduleRefused:
    return ScheduleRefused(
        f"send {row}: chunk {schedule.chunk[row]} leaves rank {_from(problem, schedule, row)} at"
        f" {schedule.start_us[row]:.9g} µs but is complete there only at {ready_us:.9g} µs"
    )


def _clash(problem: Problem, schedule: Schedule, row: int) -> ScheduleRefused:
    return ScheduleRefused(
        f"send {row}: chunk {schedule.chunk[row]} is replaced at rank {_to(problem, schedule, row)}"
        f" in step {schedule.step[row]}, in which another send changes it too"
    )


def _before(problem: Problem, schedule: Schedule, row: int) -> ScheduleRefused:
    return ScheduleRefused(
        f"send {row}: chunk {schedule.chunk[row]} is replaced at rank {_to(problem, schedule, row)}"
        " before an earlier step's arrival"
    )


def _overtaken(problem: Problem, schedule: Schedule, row: int) -> ScheduleRefused:
    return ScheduleRefused(
        f"send {row}: is added to chunk {schedule.chunk[row]} at rank {_to(problem, schedule, row)} before the"
        " copy of an earlier step that it follows has come"
    )


def _wrong_output(
    problem: Problem, chunk: int, position: int, counts: NDArray[np.integer]
) -> ScheduleRefused:
    """`counts`: how often each position's contribution is there, shape (k,)."""
    collective = problem.collective
    at = f"rank {problem.group[position]}, chunk {chunk}"
    if not collective.reduces[chunk]:
        return ScheduleRefused(f"{at}: never arrives")
    ptr, holders = collective.holders
    parts = holders[ptr[chunk] : ptr[chunk + 1]]
    if len(parts) > _NAMED:
        off = np.array(counts)
        off[parts] -= 1
        wrong = np.flatnonzero(off).tolist()
        named = [f"{problem.group[i]}×{counts[i]}" for i in wrong[:_NAMED]] + ["…"] * (len(wrong) > _NAMED)
        return ScheduleRefused(
            f"{at}: holds the contributions of ranks {', '.join(named)};"
            f" should hold those of {len(parts)} ranks, each once"
        )
    has = [f"{problem.group[i]}×{n}" if n > 1 else f"{problem.group[i]}" for i, n in enumerate(counts) if n]
    needs = [str(problem.group[i]) for i in parts]
    return ScheduleRefused(
        f"{at}: holds the contributions of ranks {', '.join(has) or 'none'};"
        f" should hold {', '.join(needs)}, each once"
    )


def _check_lengths(schedule: Schedule) -> None:
    lengths = {
        len(column)
        for column in (
            schedule.chunk,
            schedule.link,
            schedule.step,
            schedule.reduces,
            schedule.start_us,
            schedule.end_us,
        )
    }
    if len(lengths) != 1:
        raise ScheduleRefused(f"columns have different lengths {sorted(lengths)}")
    if not (np.isfinite(schedule.size_bytes) and schedule.size_bytes >= 0):
        raise ScheduleRefused(f"the message size {schedule.size_bytes} is not a number of bytes")


def _check_columns(problem: Problem, schedule: Schedule) -> None:
    net, collective = problem.network, problem.collective
    if not len(schedule):
        return
    for name, column, end in (
        ("chunk", schedule.chunk, collective.nchunks),
        ("link", schedule.link, net.nlinks),
        ("step", schedule.step, np.iinfo(np.int64).max),
    ):
        bad = np.flatnonzero((column < 0) | (column >= end))
        if len(bad):
            raise ScheduleRefused(f"send {bad[0]}: {name} {column[bad[0]]} does not exist (0..{end - 1})")
    bad = np.flatnonzero(schedule.reduces & ~collective.reduces[schedule.chunk])
    if len(bad):
        raise ScheduleRefused(
            f"send {bad[0]}: reduces chunk {schedule.chunk[bad[0]]}, which is a plain value"
        )
    lasts = collective.fraction[schedule.chunk] * schedule.size_bytes / net.bandwidth_gbs[schedule.link] / 1e3
    wrong = ~np.isfinite(schedule.start_us) | ~np.isfinite(schedule.end_us) | (schedule.start_us < 0)
    wrong |= np.abs(schedule.end_us - schedule.start_us - lasts) > SLACK * np.maximum(1, schedule.end_us)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ScheduleRefused(
            f"send {row}: holds its link from {schedule.start_us[row]:.9g} to {schedule.end_us[row]:.9g} µs;"
            f" at its bandwidth it takes {lasts[row]:.9g} µs"
        )


def _check_links(problem: Problem, schedule: Schedule, tolerance: float) -> None:
    order = np.lexsort((schedule.start_us, schedule.link))
    link = schedule.link[order]
    same = link[1:] == link[:-1]
    early = same & (schedule.start_us[order][1:] < schedule.end_us[order][:-1] - tolerance)
    if early.any():
        at = int(np.argmax(early))
        raise _at_once(problem, schedule, int(order[at]), int(order[at + 1]))


def _check_resources(problem: Problem, schedule: Schedule, tolerance: float) -> None:
    net = problem.network
    counts = np.diff(net.uses_ptr)[schedule.link]
    if not counts.sum():
        return
    row = np.repeat(np.arange(len(schedule)), counts)
    resource = net.uses_idx[row_entries(net.uses_ptr, schedule.link)]
    # a send that ends within the tolerance of another's start has made room for it
    busy = np.maximum(schedule.end_us - tolerance, schedule.start_us)[row]
    rate = net.bandwidth_gbs[schedule.link[row]]
    when = np.concatenate([schedule.start_us[row], busy])
    change = np.concatenate([rate, -rate])
    both = np.concatenate([resource, resource])
    opening = np.concatenate([np.ones(len(row)), np.zeros(len(row))])
    order = np.lexsort((opening, when, both))
    level = np.cumsum(change[order])
    kept = both[order]
    begins = np.flatnonzero(np.diff(kept, prepend=-1))
    base = np.repeat(np.concatenate([[0.0], level[begins[1:] - 1]]), np.diff(np.append(begins, len(kept))))
    over = level - base > net.capacity_gbs[kept] * (1 + 1e-6)
    if over.any():
        at = int(np.argmax(over))
        raise _over(problem, int(kept[at]), float(level[at] - base[at]), float(when[order[at]]))


def _replay_chunks(
    problem: Problem,
    schedule: Schedule,
    arrival: Floats,
    rows: Ints,
    first: int,
    last: int,
    tolerance: float,
) -> None:
    net, collective = problem.network, problem.collective
    holds = collective.holds[first:last]
    reducing = collective.reduces[first:last]
    # content[chunk, rank, contributor]: how often; a plain value counts as one contribution of its holder 0
    content = np.zeros((last - first, net.nranks, collective.nranks), dtype=np.int32)
    position = np.arange(collective.nranks)
    content[:, position, position] = np.where(reducing[:, None], holds, 0)
    content[:, : collective.nranks, 0] += np.where(reducing[:, None], 0, holds)
    first_at = np.where(holds, 0.0, np.inf)
    earliest = np.full((last - first, net.nranks), np.inf)  # a plain value: any copy will do
    earliest[:, : collective.nranks] = first_at
    latest = np.zeros((last - first, net.nranks))  # a sum: every part must be there
    replaced_at = np.zeros((last - first, net.nranks))
    if len(rows):
        rows = rows[np.argsort(schedule.step[rows], kind="stable")]
        step = schedule.step[rows]
        for part in np.split(rows, np.flatnonzero(np.diff(step)) + 1):
            _replay_step(
                problem,
                schedule,
                arrival,
                part,
                first,
                content,
                earliest,
                latest,
                replaced_at,
                reducing,
                tolerance,
            )
    _check_outputs(problem, content, first, holds, reducing)


def _replay_step(
    problem: Problem,
    schedule: Schedule,
    arrival: Floats,
    rows: Ints,
    first: int,
    content: NDArray[np.int32],
    earliest: Floats,
    latest: Floats,
    replaced_at: Floats,
    reducing: Bools,
    tolerance: float,
) -> None:
    net = problem.network
    chunk = schedule.chunk[rows] - first
    src, dst = net.src[schedule.link[rows]], net.dst[schedule.link[rows]]
    carried = content[chunk, src]
    empty = ~carried.any(axis=1)
    if empty.any():
        raise _absent(problem, schedule, int(rows[np.argmax(empty)]))
    ready = np.where(reducing[chunk], latest[chunk, src], earliest[chunk, src])
    early = schedule.start_us[rows] < ready - tolerance
    if early.any():
        at = int(np.argmax(early))
        raise _early(problem, schedule, int(rows[at]), float(ready[at]))
    adds = schedule.reduces[rows]
    replaced = ~adds & reducing[chunk]
    if replaced.any():
        cell, times = np.unique(chunk * net.nranks + dst, return_counts=True)
        clash = np.isin(chunk * net.nranks + dst, cell[times > 1]) & replaced
        if clash.any():
            raise _clash(problem, schedule, int(rows[np.argmax(clash)]))
        before = replaced & (arrival[rows] < latest[chunk, dst] - tolerance)
        if before.any():
            raise _before(problem, schedule, int(rows[np.argmax(before)]))
    overtaken = adds & (arrival[rows] < replaced_at[chunk, dst] - tolerance)
    if overtaken.any():
        raise _overtaken(problem, schedule, int(rows[np.argmax(overtaken)]))
    copies = ~adds
    content[chunk[copies], dst[copies]] = carried[copies]
    np.add.at(content, (chunk[adds], dst[adds]), carried[adds])
    # twice is wrong already; more would only wrap round in the end
    content[chunk[adds], dst[adds]] = np.minimum(content[chunk[adds], dst[adds]], 2)
    np.maximum.at(replaced_at, (chunk[replaced], dst[replaced]), arrival[rows[replaced]])
    np.minimum.at(earliest, (chunk, dst), arrival[rows])
    np.maximum.at(latest, (chunk, dst), arrival[rows])


def _check_outputs(
    problem: Problem, content: NDArray[np.int32], first: int, holds: Bools, reducing: Bools
) -> None:
    collective = problem.collective
    wants = collective.wants[first : first + len(content)]
    right = np.where(
        reducing[:, None],
        (content[:, : collective.nranks] == holds[:, None, :]).all(axis=2),
        content[:, : collective.nranks].any(axis=2),
    )
    wrong = np.argwhere(wants & ~right)
    if not len(wrong):
        return
    chunk, rank = (int(x) for x in wrong[0])
    raise _wrong_output(problem, chunk + first, rank, content[chunk, rank])
