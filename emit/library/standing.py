"""A file that a library has already, believed only after a check: it is replayed against what is asked, and not what
its entry says, and timed anew on the network at hand.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emit.compiler.lower import goal_columns, program_collective
from emit.findings import Findings, Verdict, first_of
from emit.formats import FORMATS, restate_program, verify_file, verify_program
from emit.library.index import Entry
from emit.library.programs import Programs
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, check_between_nodes, check_limits, check_resident, divisor, most_bytes
from emit.timing.predict import Timed
from synth.model.collective import Collective, subdivided
from synth.model.common_chunk import common_chunk
from synth.model.problem import Problem
from synth.search.frontier import Range
from topologies.errors import InputError
from topologies.text.files import origin_of, read_text

MOST_BYTES = 256 << 20  # of a file that is read again
_MOST_CHUNKS = 4096  # a block, that an entry is believed to have
_HEAD = 1 << 12  # characters in which a file states its sizes
_SIZES = re.compile(r'\b(?:min|max)(?:Bytes="|_message_size": )(\d+)')


@dataclass(eq=False)
class File:
    """A file that could serve some sizes of a question.

    entry: as an index has it.  text: what is in it.  time_us: for messages of a size, as its executor sees it.
    served: the range of this command's answers that it is for; None: it was there.  within: whether it keeps the limits
    that are asked for.  predictor: of one that was there.
    """

    entry: Mapping[str, Any]
    text: str
    time_us: Callable[[float], float]
    served: Range | None = None
    within: bool = True
    predictor: Timed | None = None


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


def read_again(entry: Entry, programs: Programs) -> File:
    """A file that was there, checked. Raises InputError, beginning with its name, where it is not what it must be."""
    problem, target = programs.problem, TARGETS[entry.target]
    form = FORMATS[target.format]
    try:
        text = read_text(entry.path, "a file of the library", MOST_BYTES)
        goal = entry.goal()
    except InputError as error:
        raise InputError(str(error).replace(origin_of(entry.path), entry.file)) from None
    custom = program_collective(problem) == CUSTOM
    if (goal is not None) != custom or (custom and not _states_goal(entry, problem)):
        raise InputError(f"{entry.file}: its entry states another goal than what is asked")
    verdict = verify_program(entry.path, goal) if form.converter else verify_file(entry.path, goal, None, target.name)
    program = _right(verdict, entry.file)
    wrong = _mismatch(entry, program, programs) or _other_sizes(entry, text)
    if wrong:
        raise InputError(f"{entry.file}: {wrong}, which is not what its entry says")
    predictor = form.predictor(text, program, problem.topology, problem.ranks)
    within = _within(program, text, entry, programs)
    return File(entry.values, text, predictor.time_us, within=within, predictor=predictor)


def _right(verdict: Verdict, file: str) -> Program:
    if verdict.status != "right" or verdict.program is None:
        why = first_of(verdict.findings) if verdict.findings else "; ".join(verdict.lines)
        raise InputError(f"{file}: {verdict.status}: {why}")
    return verdict.program


def _mismatch(entry: Entry, program: Program, programs: Programs) -> str:
    """What a right program is that the entry's is not; empty where all is as it says."""
    problem, target = programs.problem, TARGETS[entry.target]
    named = program_collective(problem)
    root = program.root if named == CUSTOM or not problem.collective.kind.rooted else problem.collective.root
    for what, value, right in (
        ("it is", program.collective, named),
        ("ranks are", program.nranks, problem.nranks),
        ("its root is", program.root, root),
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


def _states_goal(entry: Entry, problem: Problem) -> bool:
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


def _within(program: Program, text: str, entry: Entry, programs: Programs) -> bool:
    """Whether it keeps the limits that the target has now: threadblocks, scratch, packets, what crosses nodes."""
    target, found = programs.target, Findings()
    form = FORMATS[target.format]
    check_resident(form.threadblocks(program, text), target.limits.sms, found)
    if form.holds_program:
        check_limits(program, target.limits, found)
        check_between_nodes(program, programs.nodes, target, found)
    largest = most_bytes(program, target.limits)
    fits = largest is None or (entry.max_bytes is not None and entry.max_bytes <= largest)
    return fits and not found.reported and program.protocol in target.protocols
