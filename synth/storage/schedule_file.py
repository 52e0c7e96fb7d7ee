"""A schedule with its problem in one file, NAME.synth: what is asked, every send, and nothing that is not needed.

The file is a zip of columns (`synth.storage.columns`). `header.json` holds

    format      "synth-schedule-1"
    software, engine    what wrote the file and what found the schedule
    topology    the topology's text form, whole
    collective  name, ranks, chunks (a block), nchunks, root (position in the group); columns: whether the file
                states it in full (members collective/…) because it is not what the name alone means;
                one_shot, where true: an allreduce with a sum of its own for every rank
    group, relays       ranks of the topology
    fold        null, or the translations of a quotient problem: (stride, extent) pairs (`synth.symmetry.quotient`)
    size_bytes  the message size that the times are for
    time_us     when the last chunk has arrived, as claimed
    sends       rows of the columns

and the columns are chunk, link, step, reduces and start_us, as in `Schedule`; a send's end follows from its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from synth.model.collective import named, one_shot
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.storage.columns import ColumnFile, write_columns
from synth.storage.problem import KEYS, describe_problem, rebuild_problem
from synth.symmetry.quotient import expand
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS, time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.errors import InputError
from topologies.text.fields import Fields, shown

FORMAT = "synth-schedule-1"
MAX_SIZE_BYTES = float(1 << 60)
MAX_STEP = (1 << 24) - 1
MAX_SENDS = 1 << 40
MAX_US = 1e18
_EQUAL_FRACTION = 1e-9  # relative: what another order of divisions may lose
_KEYS = ("format", "software", "engine", *KEYS, "size_bytes", "time_us", "sends")
_SENDS = ("chunk", "link", "step", "reduces", "start_us")


@dataclass(frozen=True, eq=False)
class Stored:
    """What a schedule file holds. Nothing of it is checked but that it can be what it says; see `synth prove`.

    Attributes:
        problem: a quotient where the file states one.
        schedule: at the message size of the file.
        header: header.json.
    """

    problem: Problem
    schedule: Schedule
    header: Mapping[str, Any]

    @property
    def claimed_us(self) -> float:
        """The time that the file claims, in µs."""
        return float(self.header["time_us"])

    @property
    def as_named(self) -> bool:
        """Whether the collective is what its name means, and not a pattern that the file states."""
        return not self.header["collective"]["columns"]

    @property
    def orbit(self) -> int:
        """How many sends each row stands for: the size of its orbit."""
        return 1 if self.problem.quotient is None else self.problem.quotient.order

    @property
    def asked(self) -> Problem:
        """What a bound on its time is about: the whole problem, with one chunk a block where the name says all.

        Bounds hold for all numbers of chunks, so the fewest are enough. InputError where it is too large to be
        held in memory.
        """
        if not self.as_named:
            return self.problem
        known, quotient = self.problem.collective, self.problem.quotient
        return replace(
            self.problem,
            collective=named(known.name, known.nranks, 1, known.root),
            network=self.problem.network if quotient is None else quotient.whole,
            quotient=None,
        )

    def algorithm_of(self, problem: Problem) -> Algorithm:
        """Return the stored schedule as an algorithm of a problem that the caller states, replayed on its network.

        Args:
            problem: The question, with one chunk a block. Nothing of the file's own problem is taken for it.

        Raises:
            InputError: The file is for another collective, another group, or chunks of other sizes.
            ScheduleRefused: The schedule is not right for this problem.
        """
        own, asked = self.problem, problem.under(self.problem.topology.protocol) if problem.protocols else problem
        if own.collective.is_one_shot and not asked.collective.is_one_shot:
            asked = replace(asked, collective=one_shot(asked.collective))
        if (own.group, own.relays) != (asked.group, asked.relays) or own.topology.protocol != asked.topology.protocol:
            raise InputError("the schedule is for other ranks or another protocol than what is asked")
        parts, rest = divmod(own.collective.nchunks, asked.collective.nchunks)
        asked = asked.with_chunks(max(1, parts))
        carriers, fraction = asked.network.ncarriers, asked.collective.fraction
        is_same = own.collective.nchunks == asked.collective.nchunks
        is_same = is_same and np.allclose(own.collective.fraction, fraction, rtol=_EQUAL_FRACTION, atol=0.0)
        is_same = is_same and replace(own.collective, fraction=fraction).equals(asked.collective)
        if rest or not is_same or self.schedule.link.max(initial=0) >= carriers:
            raise InputError("the schedule is for another collective or network than what is asked")
        engine = str(self.header["engine"])
        return Algorithm(asked, self.schedule, engine, size_bytes=self.schedule.size_bytes)

    def expanded(self) -> tuple[Problem, Schedule]:
        """The whole problem and every send; what is stored where that is no quotient.

        InputError where that is too large to be held in memory.
        """
        if self.problem.quotient is None:
            return self.problem, self.schedule
        return expand(self.problem, self.schedule)


def save_schedule(path: str | Path, algorithm: Algorithm, size_bytes: float) -> Path:
    """Write an algorithm with its times at a message size, replayed at that size first.

    Raises:
        InputError: a size that is none, a problem that a file cannot hold, or the file cannot be written.
        ScheduleRefused: the schedule is not right at that size.
    """
    schedule = algorithm.schedule
    if schedule.size_bytes != size_bytes:  # it was replayed at the size that it has
        schedule = timed(algorithm.problem, schedule, size_bytes)
        replay(algorithm.problem, schedule)
    return write_schedule(path, algorithm.problem, schedule, algorithm.engine)


def write_schedule(path: str | Path, problem: Problem, schedule: Schedule, engine: str) -> Path:
    """Write a timed schedule that was replayed at the size that it is timed for.

    Raises InputError: a size that is none, a problem that a file cannot hold, or the file cannot be written.
    """
    if not 0 <= schedule.size_bytes <= MAX_SIZE_BYTES:
        raise InputError(f"size: {schedule.size_bytes} is no message size; it must be 0 to 2^60 bytes")
    about, columns = describe_problem(problem)
    header = {
        "format": FORMAT,
        "software": _software(),
        "engine": engine,
        **about,
        "size_bytes": float(schedule.size_bytes),
        "time_us": time_us(problem, schedule),
        "sends": len(schedule),
    }
    columns |= {name: getattr(schedule, name) for name in _SENDS}
    write_columns(path, header, columns)
    return Path(path)


def _software() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to start, and only writers need it

    try:
        return f"synth {version('synth-collectives')}"
    except PackageNotFoundError:
        return "synth"


def load_schedule(path: str | Path) -> Stored:
    """Read a schedule file and rebuild its problem. The schedule itself is not replayed here.

    Raises InputError: the file cannot be read, or what it holds cannot be a problem and a schedule; the line names the
    file and the member or field.
    """
    with ColumnFile(path) as file:
        try:
            _check_header(file)
            problem = rebuild_problem(file)
            return Stored(problem, _schedule(file, problem), file.header)
        except MemoryError:
            raise InputError(f"{file.origin}: states a problem that does not fit in memory") from None


def _check_header(file: ColumnFile) -> None:
    top = Fields(file.header, "", f"{file.origin}: header.json")
    if top.string("format") != FORMAT:
        top.fail("format", f"{shown(file.header['format'])} is not known; it must be {FORMAT}")
    top.only(_KEYS)
    for key in ("software", "engine"):
        if not top.string(key).isprintable() or len(top.string(key)) > 200:
            top.fail(key, "it must be at most 200 printable characters")
    top.number("size_bytes", 0.0, MAX_SIZE_BYTES, "bytes")
    top.number("time_us", 0.0, MAX_US, "µs")
    top.integer("sends", 0, MAX_SENDS)


def _schedule(file: ColumnFile, problem: Problem) -> Schedule:
    net, collective, sends = problem.network, problem.collective, file.header["sends"]
    columns: dict[str, Any] = {}
    for name, end in (("chunk", collective.nchunks), ("link", net.ncarriers), ("step", MAX_STEP + 1)):
        column = file.column(name, "int", (sends,))
        file.within(name, column, 0, end - 1)
        columns[name] = column.astype(np.int64)
    start_us = file.column("start_us", "float", (sends,))
    file.within("start_us", start_us, 0.0, MAX_US)
    size_bytes, reduces = float(file.header["size_bytes"]), file.column("reduces", "bool", (sends,))
    hold_us = collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
    end_us = start_us + hold_us[columns["chunk"]] / net.carriers.bandwidth_gbs[columns["link"]]
    file.taken_all()
    return Schedule(**columns, reduces=reduces, start_us=start_us, end_us=end_us, size_bytes=size_bytes)
