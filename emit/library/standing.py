"""A file that a library has already, believed only after a check: it is replayed against what is asked, and not what
its entry says, and timed anew on the network at hand.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emit.check.limits import check_limits
from emit.compiler.lower import goal_columns, program_collective
from emit.findings import Findings, Verdict, first_of
from emit.formats import FORMATS, restate_program, verify_file, verify_program
from emit.library.index import Entry
from emit.library.programs import Programs
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, Target, check_between_nodes, check_resident, divisor, most_bytes
from emit.timing.predict import Timed
from synth.model.collective import Collective, subdivided
from synth.model.common_chunk import common_chunk
from synth.model.problem import Problem
from synth.search.frontier import Range
from synth.storage.schedule_file import load_schedule
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, ScheduleError, ScheduleRefused
from topologies.text.files import origin_of, read_text
from topologies.topology import Topology

MOST_BYTES = 256 << 20  # of a file that is read again
_MOST_CHUNKS = 4096  # a block, that an entry is believed to have
_HEAD = 1 << 12  # characters in which a file states its sizes
_SIZES = re.compile(r'\b(?:min|max)(?:Bytes="|_message_size": )(\d+)')


@dataclass(eq=False)
class File:
    """A file that could serve some sizes of a question.

    entry: as an index has it.  text: what is in it.  time_us: for messages of a size, as its executor sees it.
    served: the range of a search's answers that it is for.  there: whether it was there, and then its predictor;
    within: whether it keeps the limits that are asked for.
    """

    entry: Mapping[str, Any]
    text: str
    time_us: Callable[[float], float]
    served: Range | None = None
    there: bool = False
    within: bool = True
    predictor: Timed | None = None


@dataclass(frozen=True, eq=False)
class Wanted:
    """What a file of a library must be to be believed, whatever its entry says.

    collective, root: of the program, root None: whichever.  topology, ranks: where it runs, a rank of the topology for
    each of the program's.  target: with the limits asked for.  is_goal: whether what an entry states is what is asked,
    where the collective's name does not say it.
    """

    collective: str
    root: int | None
    topology: Topology
    ranks: Sequence[int]
    target: Target
    is_goal: Callable[[Entry], bool]

    @property
    def nodes(self) -> list[int]:
        """The node of each rank."""
        return [int(self.topology.nodes[rank]) for rank in self.ranks]


def wanted_by(programs: Programs) -> Wanted:
    """What a search's programs must be."""
    problem = programs.problem
    named = program_collective(problem)
    custom = named == CUSTOM

    def is_goal(entry: Entry) -> bool:
        return (entry.values["goal"] is not None) == custom and (not custom or states_goal(entry, problem))

    root = None if custom or not problem.collective.kind.rooted else problem.collective.root
    return Wanted(named, root, problem.topology, problem.ranks, programs.target, is_goal)


def network_digest(problem: Problem) -> str:
    """What a question's names do not say: the network between its ranks, and what a pattern asks for."""
    net, collective = problem.network, problem.collective
    columns: list[NDArray[Any]] = [
        net.src,
        net.dst,
        net.alpha_us,
        net.bandwidth_gbs,
        net.uses_ptr,
        net.uses_idx,
        net.capacity_gbs,
    ]
    columns.append(problem.topology.nodes[list(problem.ranks)])
    if not collective.kind.by_name:
        columns += [collective.reduces, collective.fraction, collective.pre, collective.post]
        columns += [collective.in_index, collective.out_index]
    digest = hashlib.sha256()
    for column in columns:
        digest.update(repr(column.shape).encode() + np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:16]


def read_again(entry: Entry, wanted: Wanted) -> File:
    """A file that was there, checked. Raises InputError, beginning with its name, where it is not what it must be."""
    text, program = read_right(entry, wanted)
    predictor = FORMATS[TARGETS[entry.target].format].predictor(text, program, wanted.topology, wanted.ranks)
    within = _within(program, text, entry, wanted)
    return File(entry.values, text, predictor.time_us, there=True, within=within, predictor=predictor)


def read_right(entry: Entry, wanted: Wanted) -> tuple[str, Program]:
    """The text and the program of a file that was there; errors as those of `read_again`."""
    target = TARGETS[entry.target]
    try:
        text = read_text(entry.path, "a file of the library", MOST_BYTES, entry.folder, None)
        goal = entry.goal()
    except InputError as error:
        raise InputError(str(error).replace(origin_of(entry.path), entry.file)) from None
    if not wanted.is_goal(entry):
        raise InputError(f"{entry.file}: its entry states another goal than what is asked")
    converts = FORMATS[target.format].converter
    verdict = verify_program(entry.path, goal) if converts else verify_file(entry.path, goal, None, target.name)
    program = _right(verdict, entry.file)
    wrong = _mismatch(entry, program, wanted) or _other_sizes(entry, text)
    if wrong:
        raise InputError(f"{entry.file}: {wrong}, which is not what its entry says")
    return text, program


def schedule_again(path: Path, found: Algorithm, sizes: Collection[float]) -> tuple[Algorithm | None, bool]:
    """What stands in a schedule file that no entry names, replayed, and whether it must stay beside what was found.

    None where it is slower at all of the sizes, sends the same, or is no right answer; both stay where one is faster at
    some sizes and the other at others.
    """
    stored = None
    if path.is_file():
        with suppress(InputError):
            stored = load_schedule(path)
    if stored is None or network_digest(stored.problem) != network_digest(found.problem):
        return None, False
    pairs = ((getattr(own, name) for own in (stored.schedule, found.schedule)) for name in ("chunk", "link", "step"))
    if all(np.array_equal(*pair) for pair in pairs):
        return None, False
    with suppress(ScheduleRefused, ScheduleError):
        engine, size = str(stored.header["engine"]), stored.schedule.size_bytes
        there = Algorithm(stored.problem, stored.schedule, engine, size_bytes=size)
        longer = [there.time_us(size) > found.time_us(size) for size in sizes]
        return (None if any(longer) else there), any(longer) and not all(longer)
    return None, False


def _right(verdict: Verdict, file: str) -> Program:
    if verdict.status != "right" or verdict.program is None:
        why = first_of(verdict.findings) if verdict.findings else "; ".join(verdict.lines)
        raise InputError(f"{file}: {verdict.status}: {why}")
    return verdict.program


def _mismatch(entry: Entry, program: Program, wanted: Wanted) -> str:
    """What a right program is that the entry's is not; empty where all is as it says."""
    target = TARGETS[entry.target]
    for what, value, right in (
        ("it is", program.collective, wanted.collective),
        ("ranks are", program.nranks, len(wanted.ranks)),
        ("its root is", program.root, program.root if wanted.root is None else wanted.root),
        ("in place is", program.inplace, entry.inplace),
        ("its protocol is", target.protocols.get(program.protocol), entry.protocol),
    ):
        if value != right:
            return f"{what} {value}"
    unit = divisor(program, target)
    return f"it divides into {unit}" if entry.divides % unit else ""


def _other_sizes(entry: Entry, text: str) -> str:
    """The sizes that a file states, where they are not its entry's."""
    target = TARGETS[entry.target]
    try:
        right = restate_program(text, entry.file, entry.min_bytes, entry.max_bytes, target)
    except InputError as error:
        return str(error)
    stated, wanted = (_SIZES.findall(one[:_HEAD]) for one in (text, right))
    return "" if stated == wanted else f"it is for {' to '.join(stated)} bytes"


def states_goal(entry: Entry, problem: Problem) -> bool:
    """Whether an entry's goal is that of a problem whose program has a name of no collective."""
    stated, whole = entry.values["goal"], problem.collective
    cells, rest = divmod(len(stated["initial"][0]), len(whole.pre))
    chunks = entry.values.get("chunks")
    cuts: list[Callable[[], Collective]] = [lambda: subdivided(whole, cells)] if cells and not rest else []
    if type(chunks) is int and 0 < chunks <= _MOST_CHUNKS:  # of different sizes
        cuts.append(lambda: common_chunk(problem.with_chunks(max(1, chunks // whole.chunks)).collective).cells)
    for cut in cuts:
        try:
            right = goal_columns(cut())
        except InputError:  # more than is held in memory
            continue
        if all(_rows(stated[key]) == _rows(right[key]) for key in ("initial", "required")):
            return bool(stated["nranks"] == problem.nranks)
    return False


def _rows(columns: Sequence[Sequence[Any]]) -> set[tuple[Any, ...]]:
    return set(zip(*columns, strict=True))


def _within(program: Program, text: str, entry: Entry, wanted: Wanted) -> bool:
    """Whether it keeps the limits that the target has now: threadblocks, scratch, packets, what crosses nodes."""
    target, found = wanted.target, Findings()
    form = FORMATS[target.format]
    check_resident(form.threadblocks(program, text), target.limits.sms, found)
    if form.holds_program:
        check_limits(program, target.limits, found)
        check_between_nodes(program, wanted.nodes, target, found)
    largest = most_bytes(program, target.limits)
    fits = largest is None or (entry.max_bytes is not None and entry.max_bytes <= largest)
    return fits and not found.reported and program.protocol in target.protocols
