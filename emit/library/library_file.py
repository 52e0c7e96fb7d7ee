"""A file of a library, new or existing, what is required of it, and the check of an existing one.

What its entry says is not believed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emit.check.limits import check_limits
from emit.compiler.lower import goal_columns, program_collective
from emit.findings import Findings, Verdict, first_of
from emit.formats import PROGRAM_FORMATS, restate_program, verify_file
from emit.library.entry import IndexEntry
from emit.library.lowered import Lowered, blocks_of
from emit.library.programs import Programs
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, Target, check_between_nodes, check_resident, divisor, most_bytes
from emit.timing.timed import TimedProgram
from synth.model.collective import Collective, every_cut, subdivided, with_whole_blocks
from synth.model.common_chunk import common_chunk
from synth.model.problem import Problem
from synth.search.offer import Offer
from synth.storage.schedule_file import load_schedule
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, ScheduleError, ScheduleRefused
from topologies.text.files import origin_of, read_text
from topologies.topology import Topology

MOST_BYTES = 256 << 20  # of an existing file
CHECKED_PER_S = 400_000  # Bytes of files that are read, checked and timed in a second.
_MOST_CHUNKS = 4096  # chunks of a block that an entry may state
_HEAD = 1 << 12  # A file states its sizes within these characters.
_SIZES = re.compile(r'\b(?:min|max)(?:Bytes="|_message_size": )(\d+)')


@dataclass(eq=False)
class LibraryFile:
    """A file that could serve some sizes of a question.

    Attributes:
        entry: Its entry in the index.
        text: Its contents.
        time_us: Returns its time in µs at a message size in bytes, as its executor sees it.
        offer: Offer of a search that it is for; None for an existing file and for a hand-written program.
        existed: True if it existed before.
        within: True if it keeps the limits that are asked for.
        predictor: Predictor of an existing file, else None.
        serves: Returns True if its executor takes messages of about a size.
        precedence: Of two files the one with the lower number serves, whatever their times.
    """

    entry: IndexEntry
    text: str
    time_us: Callable[[float], float]
    offer: Offer | None = None
    existed: bool = False
    within: bool = True
    predictor: TimedProgram | None = None
    serves: Callable[[int], bool] = lambda _: True
    precedence: int = 0

    @property
    def low(self) -> int:
        """Return the smallest message in bytes."""
        return self.entry.min_bytes

    @property
    def high(self) -> int:
        """Return the largest message in bytes; a size beyond all messages if there is no limit."""
        return self.entry.last_bytes

    @property
    def scale(self) -> float:
        """Return the message size that an executor sees, divided by the problem's message size.

        It is 1 for a file that is of no offer with a program, as an existing one.
        """
        program = self.offer.execution if self.offer is not None else None
        return program.scale if isinstance(program, Lowered) else 1.0


@dataclass(frozen=True, eq=False)
class Requirement:
    """The properties that a library's file must have to be believed, whatever its entry says.

    Attributes:
        collective: Collective of the program.
        root: Root of the program; None for any.
        topology: Topology on which it runs.
        ranks: The topology's rank of each rank of the program.
        target: Executor, with the limits that are asked for.
        is_goal: Returns True if the goal of an entry is what is asked; the collective's name may not say it.
        network: `network_digest` of the question; None if not known.
        blocks: Number of blocks of a message, each of which is cut into the cells of a file.
    """

    collective: str
    root: int | None
    topology: Topology
    ranks: Sequence[int]
    target: Target
    is_goal: Callable[[IndexEntry], bool]
    network: str | None = None
    blocks: int = 1

    @property
    def nodes(self) -> list[int]:
        """Return the node of each rank of the program."""
        return [int(self.topology.nodes[rank]) for rank in self.ranks]


def requirement_of(programs: Programs) -> Requirement:
    """Return what a file of a library must be to answer the same question as these programs on the same target."""
    problem = programs.problem
    collective = program_collective(problem)
    custom = collective == CUSTOM

    def is_goal(entry: IndexEntry) -> bool:
        """Return True if an entry's goal is the problem's."""
        return (entry.stated_goal is not None) == custom and (not custom or states_goal(entry, problem))

    root = None if custom or not problem.collective.kind.rooted else problem.collective.root
    return Requirement(
        collective, root, problem.topology, problem.ranks, programs.target, is_goal, network_digest(problem),
        blocks_of(problem),
    )  # fmt: skip


_DECIMALS = 12  # of the fractions of a pattern's chunks, whose last bits differ after they were cut and joined


def network_digest(problem: Problem) -> str:
    """Return a digest of what a question's names do not say: the network of its ranks, and what a pattern asks for.

    It is 16 hexadecimal digits, which do not depend on the chunks of a collective or pattern, nor on how blocks of
    different sizes are cut. Limits and the nodes of the ranks count as parts of the network.
    """
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
    if collective.sizes:
        columns.append(np.array(collective.sizes))
    elif not collective.kind.by_name:
        collective = with_whole_blocks(collective)
        fraction = np.round(collective.fraction, _DECIMALS)
        columns += [collective.reduces, fraction, collective.pre, collective.post]
        columns += [collective.in_index, collective.out_index]
    digest = hashlib.sha256()
    for column in columns:
        digest.update(repr(column.shape).encode() + np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:16]


def read_again(entry: IndexEntry, requirement: Requirement) -> LibraryFile:
    """Return an existing file with its predictor, after checking it against a requirement.

    A file beyond the target's present limits is returned too, with `within` False.

    Args:
        entry: The file's entry in its index.
        requirement: What the file must be.

    Raises:
        InputError: If it is not what the requirement and its entry say; the message begins with its name.
    """
    text, program = read_right(entry, requirement)
    predictor = PROGRAM_FORMATS[TARGETS[entry.target].format].predictor(
        text, program, requirement.topology, requirement.ranks
    )
    within = _within(program, text, entry, requirement)
    return LibraryFile(entry, text, predictor.time_us, existed=True, within=within, predictor=predictor)


def read_right(entry: IndexEntry, requirement: Requirement) -> tuple[str, Program]:
    """Return the text and the program of an existing file after checking it.

    The program has no threadblocks if the file's format has a form of its own.

    Args:
        entry: The file's entry in its index.
        requirement: What the file must be. Of its target, the limits do not count here.

    Raises:
        InputError: If the file is not right, or is not what the requirement and its entry say; the message begins with
            its name.
    """
    target = TARGETS[entry.target]
    try:
        text = read_text(entry.path, "a file of the library", MOST_BYTES, entry.folder, None)
        goal = entry.goal()
    except InputError as error:
        raise InputError(str(error).replace(origin_of(entry.path), entry.file)) from None
    if not requirement.is_goal(entry):
        raise InputError(f"{entry.file}: its entry states another goal than the question")
    load_converter = PROGRAM_FORMATS[target.format].load_converter
    if load_converter is None:
        verdict = verify_file(entry.path, goal, None, target.name)
    else:
        verdict = load_converter().verify_header(entry.path, goal)
    program = _right(verdict, entry.file)
    fault = _mismatch(entry, program, requirement) or _other_sizes(entry, text)
    if fault:
        raise InputError(f"{entry.file}: {fault}, which is not what its entry says")
    return text, program


def schedule_again(path: Path, new: Algorithm, sizes: Collection[float]) -> tuple[Algorithm | None, bool]:
    """Return the replayed schedule of a file that no entry names, and whether it must stay next to the new schedule.

    The schedule is None if it is slower at one of the sizes, equals the new one, is for another network, or is missing
    or no right answer. Both schedules stay if one is faster at some sizes and the other at others.

    Args:
        path: Schedule file, which may be missing.
        new: New algorithm for the same question.
        sizes: Message sizes in bytes at which the two are compared.
    """
    stored = None
    if path.is_file():
        with suppress(InputError):
            stored = load_schedule(path)
    if stored is None or network_digest(stored.problem) != network_digest(new.problem):
        return None, False
    pairs = ((getattr(own, name) for own in (stored.schedule, new.schedule)) for name in ("chunk", "link", "step"))
    if all(np.array_equal(*pair) for pair in pairs):
        return None, False
    with suppress(ScheduleRefused, ScheduleError):
        engine, size = str(stored.header["engine"]), stored.schedule.size_bytes
        existing = Algorithm(stored.problem, stored.schedule, engine, size_bytes=size)
        longer = [existing.time_us(size) > new.time_us(size) for size in sizes]
        return (None if any(longer) else existing), any(longer) and not all(longer)
    return None, False


def _right(verdict: Verdict, file: str) -> Program:
    """Return the program of a verdict on a file.

    Raises:
        InputError: Unless the file is right; the message begins with `file`, its name.
    """
    if verdict.status != "right" or verdict.program is None:
        reason = first_of(verdict.findings) if verdict.findings else "; ".join(verdict.lines)
        raise InputError(f"{file}: {verdict.status}: {reason}")
    return verdict.program


def _mismatch(entry: IndexEntry, program: Program, requirement: Requirement) -> str:
    """Return in words the first difference of a right program from what its entry says or what is required; else "".

    Collective, ranks and root are compared with the requirement; form of calls, protocol and divisor with the entry.
    """
    target = TARGETS[entry.target]
    for subject, value, right in (
        ("it is", program.collective, requirement.collective),
        ("ranks are", program.nranks, len(requirement.ranks)),
        ("its root is", program.root, program.root if requirement.root is None else requirement.root),
        ("in place is", program.inplace, entry.inplace),
        ("its protocol is", target.protocols.get(program.protocol), entry.protocol),
    ):
        if value != right:
            return f"{subject} {value}"
    unit = divisor(program, target)
    return f"it divides into {unit}" if entry.divides % unit else ""


def _other_sizes(entry: IndexEntry, text: str) -> str:
    """Return what sizes a file states if they are not its entry's; else an empty text.

    If its text cannot be restated for the entry's sizes, the result is the reason.
    """
    target = TARGETS[entry.target]
    try:
        rewritten = restate_program(text, entry.file, entry.min_bytes, entry.max_bytes, target)
    except InputError as error:
        return str(error)
    stated, expected = (_SIZES.findall(contents[:_HEAD]) for contents in (text, rewritten))
    return "" if stated == expected else f"it is for {' to '.join(stated)} bytes"


def states_goal(entry: IndexEntry, problem: Problem) -> bool:
    """Return True if an entry's goal, which it must state, is that of a problem, for any chunks that its numbers allow.

    The numbers of its initial cells and of its `chunks` tell how the problem's collective may be cut.
    """
    stated = entry.stated_goal
    assert stated is not None
    ncells, stated_by_place = len(stated["initial"][0]), _by_place(stated)
    with suppress(InputError):  # The goal is too large for memory.
        for cells in _possible_cells(problem.collective, ncells, entry.row.get("chunks")):
            if len(cells.pre) == ncells and _by_place(goal_columns(cells)) == stated_by_place:
                return bool(stated["nranks"] == problem.nranks)
    return False


def _possible_cells(whole: Collective, ncells: int, chunks: object) -> Iterator[Collective]:
    """Yield a collective in each way in which engines and files may have cut it into cells of one size.

    Args:
        whole: The collective, with one chunk a block.
        ncells: Number of cells that all ranks hold at first.
        chunks: Chunks of a block as an index states them, unchecked.

    Raises:
        InputError: A cut would not fit in memory.
    """
    parts, remainder = divmod(ncells, len(whole.pre))
    if parts and not remainder:
        yield subdivided(whole, parts)
    if type(chunks) is not int or not 0 < chunks <= _MOST_CHUNKS:
        return
    for cut in every_cut(whole, max(1, chunks // whole.chunks)):  # The chunks differ in size.
        cells = common_chunk(cut).cells
        parts, remainder = divmod(ncells, len(cells.pre))
        if parts and not remainder:  # The compiler cuts all cells once more where programs become faster.
            yield subdivided(cells, parts)


def _by_place(goal: Mapping[str, Any]) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Return the rows of a goal's initial and required columns, with its chunks in a numbering that depends on places.

    A contribution is named by the rank that holds it first and its place there, since engines number chunks in
    different orders.
    """
    name_of: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    for rank, buffer, place, source, chunk in sorted(zip(*goal["initial"], strict=True)):
        name_of.setdefault((source, chunk), (rank, buffer, place))
    initial, required = (
        {
            (rank, buffer, place, source, name_of.get((source, chunk), (chunk,)))
            for rank, buffer, place, source, chunk in zip(*goal[key], strict=True)
        }
        for key in ("initial", "required")
    )
    return initial, required


def _within(program: Program, text: str, entry: IndexEntry, requirement: Requirement) -> bool:
    """Return True if a file keeps the limits of the requirement's target.

    They are threadblocks, scratch for the entry's largest message, the protocol, sends between nodes and limits of
    readers. Of a file that does not hold the program itself, the last two are not checked.
    """
    target, findings = requirement.target, Findings()
    form = PROGRAM_FORMATS[target.format]
    check_resident(form.threadblocks(program, text), target.limits.sms, findings)
    if form.holds_program:
        check_limits(program, target.limits, findings)
        check_between_nodes(program, requirement.nodes, target, findings)
    largest = most_bytes(program, target.limits)
    fits = largest is None or (entry.max_bytes is not None and entry.max_bytes <= largest)
    return fits and not findings.reported and program.protocol in target.protocols
