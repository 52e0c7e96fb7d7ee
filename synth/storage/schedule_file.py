"""Read and write a schedule with its problem in one file, NAME.synth: the problem, every send, and nothing else.

The file is a zip of columns (`synth.storage.columns`). `header.json` holds

    format      "synth-schedule-1"
    software, engine    the software that wrote the file and the engine of the schedule
    topology    the topology's text form, complete
    collective  name, ranks, chunks (a block), nchunks, root (position in the group); columns: whether the file
                states it in full (members collective/…) because the name alone does not define it;
                one_shot, where true: an allreduce in which every rank has its own sum
    group, relays       ranks of the topology
    fold        null, or the translations of a quotient problem: (stride, extent) pairs (`synth.symmetry.quotient`)
    links       number of links of the network; only where these are not all paths of a large one
    size_bytes  the message size that the times are for
    time_us     when the last chunk has arrived, as claimed
    sends       number of rows of the columns

and the columns are chunk, link, step, reduces and start_us, as in `Schedule`, and joined where some sends leave in one
message; a send's end follows from its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from synth.model.collective import in_shape, is_cut_of, named, one_shot
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import software_name
from synth.storage.columns import ColumnFile, write_columns
from synth.storage.problem import KEYS, describe_problem, rebuild_problem
from synth.symmetry.quotient import expanded
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
_EQUAL_FRACTION = 1e-9  # relative error that another order of divisions may cause
_KEYS = ("format", "software", "engine", *KEYS, "size_bytes", "time_us", "sends")
_SENDS = ("chunk", "link", "step", "reduces", "start_us")


@dataclass(frozen=True, eq=False)
class StoredSchedule:
    """The content of a schedule file.

    Only its form is checked, not that the schedule is right; see `synth prove`.

    Attributes:
        problem: The problem; a quotient where the file states one.
        schedule: The schedule at the message size of the file.
        header: The content of header.json.
    """

    problem: Problem
    schedule: Schedule
    header: Mapping[str, Any]

    @property
    def claimed_us(self) -> float:
        """Return the time that the file claims, in µs."""
        return float(self.header["time_us"])

    @property
    def as_named(self) -> bool:
        """Return whether the collective is defined by its name, and the sizes of its blocks if it has them.

        Else it is a pattern that the file states.
        """
        return not self.header["collective"]["columns"] or "sizes" in self.header["collective"]

    @property
    def orbit(self) -> int:
        """Return how many sends each row represents: the size of its orbit."""
        return 1 if self.problem.quotient is None else self.problem.quotient.order

    @property
    def bounded_problem(self) -> Problem:
        """Return the problem that a bound on the schedule's time is for.

        Where the name defines the collective, it is the whole problem with one chunk a block: bounds hold for all
        numbers of chunks, so the fewest are enough, and an all-reduce is not one-shot. Else it is the stored problem.

        Raises:
            InputError: The problem does not fit in memory.
        """
        if not self.as_named:
            return self.problem
        collective, quotient = self.problem.collective, self.problem.quotient
        return replace(
            self.problem,
            collective=named(
                collective.name,
                collective.nranks,
                1,
                collective.root,
                in_shape(collective.sizes, collective.nranks),
            ),
            network=self.problem.network if quotient is None else quotient.whole,
            quotient=None,
        )

    def algorithm_of(self, problem: Problem) -> Algorithm:
        """Return the stored schedule as an algorithm of a problem that the caller states, replayed on its network.

        The stated problem is first cut into the file's chunks, made one-shot if the file's is, and put under its
        protocol.

        Args:
            problem: The question, with one chunk a block. The file's own problem is only compared with it.

        Raises:
            InputError: The file is for another collective, another group, or chunks of other sizes.
            ScheduleRefused: The schedule is not right for this problem.
            ScheduleError: The schedule cannot be timed for this problem.
        """
        own, target = self.problem, problem.under(self.problem.topology.protocol) if problem.protocols else problem
        if own.collective.is_one_shot and not target.collective.is_one_shot:
            target = replace(target, collective=one_shot(target.collective))
        if (own.group, own.relays) != (
            target.group,
            target.relays,
        ) or own.topology.protocol != target.topology.protocol:
            raise InputError("the schedule is for other ranks or another protocol than the question")
        parts, remainder = divmod(own.collective.nchunks, target.collective.nchunks)
        if target.collective.sizes:  # Engines cut such blocks in different ways.
            is_same = is_cut_of(own.collective, target.collective)
            target = replace(target, collective=replace(own.collective, sizes=target.collective.sizes))
        else:
            target = target.with_chunks(max(1, parts))
            fraction = target.collective.fraction
            is_same = not remainder and own.collective.nchunks == target.collective.nchunks
            is_same = is_same and np.allclose(own.collective.fraction, fraction, rtol=_EQUAL_FRACTION, atol=0.0)
            is_same = is_same and replace(own.collective, fraction=fraction).equals(target.collective)
        if not is_same or self.schedule.link.max(initial=0) >= target.network.ncarriers:
            raise InputError("the schedule is for another collective or network than the question")
        engine = str(self.header["engine"])
        return Algorithm(target, self.schedule, engine, size_bytes=self.schedule.size_bytes)

    def expanded(self) -> tuple[Problem, Schedule]:
        """Return the whole problem and every send; the stored ones where the problem is no quotient.

        Raises:
            InputError: The whole problem does not fit in memory.
        """
        return expanded(self.problem, self.schedule)


def save_schedule(path: str | Path, algorithm: Algorithm, size_bytes: float) -> Path:
    """Write an algorithm with its times at a message size in bytes, replayed at that size first; return the path.

    An existing file is replaced. If the algorithm's schedule is timed at that size already, it is written as it is.

    Raises:
        InputError: The size is no message size, a file cannot hold the problem, or the file cannot be written.
        ScheduleRefused: The schedule is not right at that size.
    """
    schedule = algorithm.schedule
    if schedule.size_bytes != size_bytes:  # The algorithm was already replayed at its schedule's size.
        schedule = timed(algorithm.problem, schedule, size_bytes)
        replay(algorithm.problem, schedule)
    return write_schedule(path, algorithm.problem, schedule, algorithm.engine)


def write_schedule(path: str | Path, problem: Problem, schedule: Schedule, engine: str) -> Path:
    """Write a timed schedule that was replayed at the size that it is timed for, and return the path.

    An existing file is replaced. The schedule is not replayed here.

    Raises:
        InputError: The size is no message size, a file cannot hold the problem, or the file cannot be written.
    """
    if not 0 <= schedule.size_bytes <= MAX_SIZE_BYTES:
        raise InputError(f"size: {schedule.size_bytes} is no message size; it must be 0 to 2^60 bytes")
    problem_fields, columns = describe_problem(problem)
    header = {
        "format": FORMAT,
        "software": software_name(),
        "engine": engine,
        **problem_fields,
        "size_bytes": float(schedule.size_bytes),
        "time_us": time_us(problem, schedule),
        "sends": len(schedule),
    }
    columns |= {name: getattr(schedule, name) for name in _SENDS}
    columns |= {"joined": schedule.joined} if len(schedule.joined) else {}
    write_columns(path, header, columns)
    return Path(path)


def load_schedule(path: str | Path) -> StoredSchedule:
    """Read a schedule file and rebuild its problem; the schedule is not replayed here.

    Raises:
        InputError: The file cannot be read, or its content cannot be a problem and a schedule; the line names the file
            and the member or field.
    """
    with ColumnFile(path) as file:
        try:
            _check_header(file)
            problem = rebuild_problem(file)
            return StoredSchedule(problem, _read_schedule(file, problem), file.header)
        except MemoryError:
            raise InputError(f"{file.origin}: states a problem that does not fit in memory") from None


def _check_header(file: ColumnFile) -> None:
    """Raise InputError if a field of the header that does not belong to the problem is missing or wrong.

    Unknown fields are wrong too. Fields of the problem are not looked at.
    """
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


def _read_schedule(file: ColumnFile, problem: Problem) -> Schedule:
    """Read the columns of the schedule; the ends of its sends follow from their starts.

    Raises:
        InputError: A column is missing, damaged or superfluous, or holds a value that is out of range.
    """
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
    holds_us = hold_us[columns["chunk"]] / net.carriers.bandwidth_gbs[columns["link"]]
    schedule = Schedule(**columns, reduces=reduces, start_us=start_us, end_us=start_us, size_bytes=size_bytes)
    if "joined" in file.names:
        schedule = replace(schedule, joined=file.column("joined", "bool", (sends,)))
        if sends and schedule.joined[0]:
            raise InputError(f"{file.origin}: joined: the first send has no send before it")
        holds_us = np.bincount(schedule.message, weights=holds_us)[schedule.message]
    file.taken_all()
    return replace(schedule, end_us=start_us + holds_us)
