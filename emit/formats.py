"""The registry of file formats: what each file is, and how it is checked and written.

`synth verify`, `simulate`, `report`, `bench`, `optimize` and `convert` accept what a row says they can. The row of a
target (`emit.targets`) names the format of its files. A new format is a module with the functions of a protocol here, a
function here that imports it, by which mypy checks it, and its row. A row imports its modules only when they are used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from emit.findings import Findings, Verdict
from emit.goal import Goal
from emit.program import Program, Unit
from emit.targets import TARGETS, Target, check_between_nodes, check_resident, choose_target
from emit.timing.predict import Predictor
from emit.timing.timed import TimedProgram
from topologies.errors import InputError
from topologies.text.files import open_regular_file, origin_of
from topologies.topology import Topology

if TYPE_CHECKING:  # Commands about files load neither.
    from synth.model.common_chunk import CommonChunk
    from synth.verify.algorithm import Algorithm

LONGEST_NAME = 63  # characters of a program's name in any file
_DIGEST = 8  # hexadecimal digits


class Reader(Protocol):
    """The functions of a module that reads the files of a format."""

    def verify(self, path: Path, goal: Goal | None, fifo_depth: int | None, target: str | None, /) -> Verdict:
        """Read and check a file; never raise for bad input.

        Args:
            path: File to check.
            goal: What the program must achieve; None for the goal that the file itself names.
            fifo_depth: Slots of a FIFO; None for those of the file's protocol.
            target: Executor whose reader must accept the file; None if one of those that read the format is enough.
        """


class Writer(Reader, Protocol):
    """The functions of a module that writes the files of executors."""

    def write(
        self, program: Program, goal: Goal | None, target: Target, nodes: Sequence[int] | None, inplace: bool | None,
        linked: Sequence[tuple[int, int]], /,
    ) -> str:  # fmt: skip
        """Return the text of a program's file, after checking the program and the file.

        Args:
            program: Program to write.
            goal: What it must achieve; None for the goal of its collective.
            target: Executor to write for.
            nodes: Node of each rank; None if all share one.
            inplace: True or False for the calls to serve; None for those that the program serves.
            linked: Pairs of ranks between which the network has links.

        Raises:
            InputError: If a check has a finding, or the target cannot express the program.
        """

    def restate(self, text: str, name: str, least: int, most: int | None, target: Target, /) -> str:
        """Return the text of a written program with another name and other message sizes.

        Args:
            text: Text of the program's file.
            name: New name, as it is to stand in the text.
            least: Smallest message in bytes.
            most: Largest message in bytes; None for no limit.
            target: Executor for which the text was written.

        Raises:
            InputError: If the program takes no message of such a size, or the text cannot be read.
        """

    def describe(self, program: Program, target: Target, text: str, /) -> str:
        """Return one line for users that describes the file of a program, given also the file's text."""

    def threadblocks(self, program: Program | None, text: str | Path, /) -> list[int]:
        """Return the number of threadblocks of each rank, from a program and the file that holds it.

        Args:
            program: The program; None if it is not known.
            text: Text of the file (str), or its path.
        """

    def largest_message(self, text: str, /) -> int | None:
        """Return the largest message in bytes for which the program in a text can be run; None if there is no limit."""


class TraceWriter(Reader, Protocol):
    """The functions of a module that writes a simulator's traces of one message size."""

    def write(self, program: Program, size_bytes: int, /) -> Iterable[tuple[str, bytes]]:
        """Return (end of the file's name, content) of each file of a trace.

        Args:
            program: A program that has passed its check.
            size_bytes: Size of the message in bytes, as nccl-tests counts it.

        Raises:
            InputError: If a chunk would not be a whole number of bytes, or there would be too many operations.
        """


class Draft(Protocol):
    """A compiled program as a file of a format says it; it can be timed, and is written and checked if it is chosen."""

    @property
    def largest_message(self) -> int | None:
        """Return the largest message in bytes for which the program can be run; None if there is no limit."""

    def predictor(self, topology: Topology, group: Sequence[int], /) -> TimedProgram:
        """Return the predictor of the file's time on ranks of a topology; raise InputError if it cannot be timed."""

    def in_best_units(
        self, predictor: TimedProgram, size_bytes: float, score: Callable[[TimedProgram], float], unit: float, /
    ) -> tuple[Draft, TimedProgram, Unit]:
        """Return the draft with the `Program.unit_bytes` of least score; only for a program that has some.

        Args:
            predictor: Predictor of the draft.
            size_bytes: Message size in bytes for which iterations are whole chunks, or whole parts of one.
            score: Returns what is to be least.
            unit: Chunks that a step moves at a time, if that is known; 0 if it is to be found.

        Returns:
            The draft, its predictor, and what a step moves at a time.
        """

    def text(self) -> str:
        """Return the text of the file; raise InputError if its check has a finding."""


class Drafter(Protocol):
    """The functions of a module whose files say programs in a form of their own, with times of their own."""

    def draft(
        self, program: Program, goal: Goal | None, target: Target, nodes: Sequence[int] | None,
        linked: Sequence[tuple[int, int]], /,
    ) -> Draft:  # fmt: skip
        """Return a compiled program in the form of its file, not yet written or checked.

        Args:
            program: The program.
            goal: What it must achieve; None for the goal of its collective.
            target: Executor that the file is for.
            nodes: Node of each rank; None if all share one.
            linked: Pairs of ranks between which the network has links.

        Raises:
            InputError: If the target cannot express the program.
        """


class Converter(Protocol):
    """The functions of a module that converts files that hold no Program to one."""

    def verify_program(self, path: Path, goal: Goal | None, /) -> Verdict:
        """Read and check a file, and return a verdict that holds it as a Program; never raise for bad input.

        `goal` is what the program must achieve; None for the goal that the file itself names.
        """

    def verify_header(self, path: Path, goal: Goal | None, /) -> Verdict:
        """Read and check a file; a verdict "right" holds its Program without threadblocks, which is ready sooner.

        `goal` is what the program must achieve; None for the goal that the file itself names. Bad input raises nothing.
        """

    def predictor(self, file: str | Path, topology: Topology, group: Sequence[int] | None, /) -> TimedProgram:
        """Return the predictor of the file's time, which is not that of its Program.

        Args:
            file: Text (str) or path of the file.
            topology: Topology to run on.
            group: The topology's rank of each rank of the program; None for 0, 1, ….

        Raises:
            InputError: If the file does not fit the topology, or cannot be timed.
        """


class SwitchWriter(Protocol):
    """The functions of a module that writes multicasts and sums of switches."""

    def draft_program(
        self, algorithm: Algorithm, common: CommonChunk, inplace: bool, sms: int
    ) -> tuple[Draft, Program]:
        """Return an algorithm whose sends go through switches in the form of its file, and as a Program.

        The Program has no threadblocks.

        Args:
            algorithm: The algorithm.
            common: Cells of its chunks.
            inplace: True for calls in place.
            sms: Threadblocks that a rank may have; 0 for any number.

        Raises:
            InputError: If files of this format cannot express the algorithm.
        """

    def refusal(self, algorithm: Algorithm) -> str:
        """Return why no file can express an algorithm, as far as that is seen before it is written; else ""."""


def _msccl() -> Writer:
    """Import the module that reads and writes MSCCL XML files, and return it."""
    from emit.msccl import format as msccl

    return msccl


def _mscclpp() -> Writer:
    """Import the module that reads and writes MSCCL++'s execution plans, and return it."""
    from emit.mscclpp import format as mscclpp

    return mscclpp


def _mscclpp_drafter() -> Drafter:
    """Import the module that gives programs the form of MSCCL++'s execution plans, and return it."""
    from emit.mscclpp import format as mscclpp

    return mscclpp


def _mscclpp_converter() -> Converter:
    """Import the module that converts MSCCL++'s execution plans to Programs, and return it."""
    from emit.mscclpp import as_program

    return as_program


def _mscclpp_in_switch() -> SwitchWriter:
    """Import the module that writes plans with multicasts and sums of switches, and return it."""
    from emit.mscclpp import in_switch

    return in_switch


def _chakra() -> TraceWriter:
    """Import the module that reads and writes Chakra traces, and return it."""
    from emit.chakra import format as chakra

    return chakra


def _goal() -> TraceWriter:
    """Import the module that reads and writes GOAL files, and return it."""
    from emit.loggopsim import format as loggopsim

    return loggopsim


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        name: Key of PROGRAM_FORMATS.
        title: Name for people.
        what: Description of a file, with its article.
        suffix: Suffix of the file names.
        start: Bytes with which a file of another suffix begins; empty if its beginning does not tell.
        load: Imports the module that handles the files of executors; None if no executor loads such files.
        load_trace: Imports the module that handles a simulator's traces; None for other formats. No library or report
            holds such files.
        load_drafter: Imports the module that drafts files; None if files hold the program itself.
        load_converter: Imports the module that converts a file to a Program; None if no such module is needed.
        load_in_switch: Imports the module that writes multicasts and sums of switches; None if there is none.
        holds_program: True if a file is read as a Program, which executors here, predictions and the compiler take.
        simulator: Name of the simulator that loads the files, or empty if an executor does.
        kept_by_name: True if an executor takes two files of one name for the same file.
        has_fifo: True if `verify` takes FIFO slots.
        placed: True if the text depends on which ranks share a node, and on the calls served.
    """

    name: str
    title: str
    what: str
    suffix: str
    start: bytes
    load: Callable[[], Writer] | None = None
    load_trace: Callable[[], TraceWriter] | None = None
    load_drafter: Callable[[], Drafter] | None = None
    load_converter: Callable[[], Converter] | None = None
    load_in_switch: Callable[[], SwitchWriter] | None = None
    holds_program: bool = False
    simulator: str = ""
    kept_by_name: bool = False
    has_fifo: bool = False
    placed: bool = False

    @property
    def has_program(self) -> bool:
        """Return True if files of this format can be read as a Program or converted to one."""
        return self.holds_program or self.load_converter is not None

    @property
    def writer(self) -> Writer:
        """Return the module that reads and writes files of this format; raise InputError if no executor loads them."""
        if self.load is None:
            raise InputError(f"no executor loads {self.what}; it must be a format of executors' programs")
        return self.load()

    def verify(self, path: Path, goal: Goal | None, fifo_depth: int | None, target: str | None = None) -> Verdict:
        """Read and check a file of this format; never raise for bad input. A schedule (.synth) is "not readable" here.

        Args:
            path: File to check.
            goal: What the program must achieve; None for the goal that the file itself names.
            fifo_depth: Slots of a FIFO; None for those of the file's protocol.
            target: Executor whose reader must accept the file; None if one of those that read the format is enough.
        """
        load: Callable[[], Reader] | None = self.load or self.load_trace
        if load is None:
            return Verdict("not readable", (f"{origin_of(path)}: is a schedule; synth prove checks it",))
        return load().verify(path, goal, fifo_depth, target)

    def threadblocks(self, program: Program | None, text: str | Path) -> list[int]:
        """Return the number of threadblocks of each rank, from a program and the text or the file that holds it.

        Which of the two counts depends on the format: execution plans have their own threadblocks, other files those of
        `program`. The list is empty if that is None.
        """
        if self.load is not None:
            return self.load().threadblocks(program, text)
        return [] if program is None else [len(gpu.threadblocks) for gpu in program.gpus]

    def draft_in_switch(
        self, algorithm: Algorithm, common: CommonChunk, inplace: bool, sms: int
    ) -> tuple[Draft, Program]:
        """Return an algorithm whose sends go through switches in the form of its file, and as a Program.

        Arguments and errors are those of `SwitchWriter.draft_program`.
        """
        if refusal := self.refusal_in_switch(algorithm):
            raise InputError(refusal)
        assert self.load_in_switch is not None
        return self.load_in_switch().draft_program(algorithm, common, inplace, sms)

    def refusal_in_switch(self, algorithm: Algorithm) -> str:
        """Return why files cannot express an algorithm through switches, as far as a quick look shows; else ""."""
        if self.load_in_switch is None:
            return f"{self.what} cannot express sums and multicasts of switches"
        return self.load_in_switch().refusal(algorithm)

    def predictor(
        self, file: str | Path, program: Program, topology: Topology, group: Sequence[int] | None = None
    ) -> TimedProgram:
        """Return the predictor of the time of a file (see `Predictor`).

        Formats with a converter time the file, given as its text or its path; others time the program that it holds.

        Args:
            file: Text or path of the file.
            program: The program of the file.
            topology: Topology to run on.
            group: The topology's rank of each rank of the program; None for 0, 1, ….

        Raises:
            InputError: If the program does not fit the topology, or cannot be timed.
        """
        if self.load_converter is None:
            return Predictor(program, topology, group)
        return self.load_converter().predictor(file, topology, group)

    @property
    def readers(self) -> list[str]:
        """Return the names of the targets whose files have this format."""
        return [target.name for target in TARGETS.values() if target.format == self.name]


PROGRAM_FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("msccl", "MSCCL", "an MSCCL XML file", ".xml", b"<", _msccl, holds_program=True, has_fifo=True),
        Format(
            "mscclpp", "MSCCL++", "an execution plan (JSON)", ".json", b"{", _mscclpp, load_drafter=_mscclpp_drafter,
            load_converter=_mscclpp_converter, load_in_switch=_mscclpp_in_switch, kept_by_name=True, placed=True,
        ),
        Format(
            "chakra", "Chakra", "a Chakra trace (NAME.RANK.et)", ".et", b"", load_trace=_chakra, holds_program=True,
            simulator="ASTRA-sim",
        ),
        Format(
            "goal", "GOAL", "a GOAL file", ".goal", b"num_ranks", load_trace=_goal, holds_program=True,
            simulator="LogGOPSim",
        ),
        Format("schedule", "synth", "a schedule (.synth)", ".synth", b"PK"),
    )
}  # fmt: skip


def format_of(path: str | Path) -> Format:
    """Return the format of a file by its suffix (in any case), else by how it begins; MSCCL XML if neither tells.

    A file that does not exist or cannot be read raises nothing here.
    """
    suffix = Path(path).suffix.lower()
    for form in PROGRAM_FORMATS.values():
        if form.suffix == suffix:
            return form
    start = b""
    with suppress(InputError, OSError), open_regular_file(path, "a file") as file:
        start = file.read(64).lstrip()
    matching = (form for form in PROGRAM_FORMATS.values() if form.start and start.startswith(form.start))
    return next(matching, PROGRAM_FORMATS["msccl"])


def verify_file(
    path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None, target: str | None = None
) -> Verdict:
    """Read and check a file of any format; never raise for bad input.

    Args:
        path: File to check.
        goal: What the program must achieve; None for the goal that the file itself names.
        fifo_depth: Slots of a FIFO; None for those of the file's protocol.
        target: Executor whose reader must accept the file, one of its format's `readers`; None if one of them is
            enough.
    """
    return format_of(Path(path)).verify(Path(path), goal, fifo_depth, target)


def verify_program(path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None) -> Verdict:
    """Read and check a file as a Program; never raise for bad input.

    The verdict is "not readable" for formats that give no Program.

    Args:
        path: File to check.
        goal: What the program must achieve; None for the goal that the file itself names.
        fifo_depth: Slots of a FIFO; None for those of the file's protocol. Execution plans (MSCCL++) ignore it.
    """
    file_format = format_of(Path(path))
    if file_format.load_converter is not None:
        return file_format.load_converter().verify_program(Path(path), goal)
    if not file_format.holds_program:
        descriptions = " or ".join(form.what for form in PROGRAM_FORMATS.values() if form.has_program)
        advice = (
            "synth lower makes an executor's file of it"
            if Path(path).suffix == ".synth"
            else f"it must be {descriptions}"
        )
        return Verdict("not readable", (f"{origin_of(Path(path))}: is {file_format.what}; {advice}",))
    return file_format.verify(Path(path), goal, fifo_depth)


def verify_header(path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None) -> Verdict:
    """Read and check a file as `verify_program` does, but give a plan that is not wrong a program without threadblocks.

    That says what a plan is for, and a plan is timed itself. Some plans are too large to become programs with steps.
    The arguments are those of `verify_program`.
    """
    if load_converter := format_of(Path(path)).load_converter:
        verdict = load_converter().verify_header(Path(path), goal)
        if verdict.program is not None:
            return verdict
    return verify_program(path, goal, fifo_depth)


def check_place(verdict: Verdict, threadblocks: Sequence[int], topology: Topology, ranks: Sequence[int]) -> Verdict:
    """Return the verdict on a file with the findings that depend on the ranks of a topology on which it is to run.

    All threadblocks of a rank must run at once, as far as the topology states the SMs of a device. Messages between
    nodes must use a protocol that works there with the first target that has the collective. Without such findings, the
    verdict is unchanged.

    Args:
        verdict: Verdict on the file by itself.
        threadblocks: Number of threadblocks of each rank; empty if the file gave no program.
        topology: Topology to run on.
        ranks: The topology's rank of each rank of the program.
    """
    findings = Findings()
    check_resident(threadblocks, topology.sms, findings)
    if verdict.program is not None:
        nodes = topology.nodes[list(ranks)].tolist()
        check_between_nodes(verdict.program, nodes, choose_target(verdict.program.collective), findings)
    return verdict.with_findings(findings)


def write_program(
    program: Program,
    goal: Goal | None,
    target: Target,
    *,
    nodes: Sequence[int] | None = None,
    inplace: bool | None = None,
    linked: Sequence[tuple[int, int]] = (),
) -> str:
    """Write a program as a target's file and return the text; the program and the file are checked.

    The name in the file is the program's, shortened, and a digest of the text, because executors cache what they load
    by name.

    Args:
        program: Program to write.
        goal: What it must achieve; None for the goal of its collective.
        target: Executor to write for.
        nodes: Node of each rank; None if all share one. Only formats that are `placed` use this and the next two.
        inplace: True or False for the calls to serve; None for those that the program serves.
        linked: Pairs of ranks between which the network has links, for signals beyond those of the program.

    Raises:
        InputError: If a check has a finding, or the target cannot express the program.
    """
    base, writer = plain_name(program.name), PROGRAM_FORMATS[target.format].writer
    return _stamped(writer.write(replace(program, name=base), goal, target, nodes, inplace, linked), base)


def draft_program(
    program: Program, goal: Goal | None, target: Target, nodes: Sequence[int], linked: Sequence[tuple[int, int]]
) -> Draft | None:
    """Return a compiled program in the form of a target's file, not yet written; None if files hold the program itself.

    The name in it is the program's without an earlier digest, shortened.

    Args:
        program: A program that has passed its check. If it serves calls in place and out of place, the file is for
            those in place.
        goal: What it must achieve; None for the goal of its collective.
        target: Executor that the file is for.
        nodes: Node of each rank.
        linked: Pairs of ranks between which the network has links, for signals beyond those of the program.

    Raises:
        InputError: If the target cannot express the program.
    """
    load = PROGRAM_FORMATS[target.format].load_drafter
    if load is None:
        return None
    return load().draft(replace(program, name=plain_name(program.name)), goal, target, nodes, linked)


def write_draft(draft: Draft, program: Program) -> str:
    """Return the checked text of a program's file, with a digest appended to the program's name.

    Args:
        draft: The program as `draft_program` returned it.
        program: The program.

    Raises:
        InputError: If the check has a finding.
    """
    return _stamped(draft.text(), plain_name(program.name))


def write_trace(program: Program, form: Format, size_bytes: int) -> list[tuple[str, bytes]]:
    """Return (end of the file's name, content) of each file of a simulator's trace of one message.

    Args:
        program: A program that has passed its check.
        form: Format of the trace.
        size_bytes: Size of the message in bytes, as nccl-tests counts it.

    Raises:
        InputError: If no simulator loads the format, a chunk would not be a whole number of bytes, or there would be
            too many operations.
    """
    if form.load_trace is None:
        raise InputError(f"no simulator loads {form.what}; it must be a format of traces")
    return list(form.load_trace().write(replace(program, name=plain_name(program.name)), size_bytes))


def restate_program(text: str, name: str, least: int, most: int | None, target: Target) -> str:
    """Return the text of a written program with another name and other message sizes.

    Args:
        text: Text of the program's file.
        name: New name; it is shortened, and a digest of the text is added.
        least: Smallest message in bytes.
        most: Largest message in bytes; None for no limit.
        target: Executor for which the text was written.

    Raises:
        InputError: If the program takes no message of such a size, or the text cannot be read.
    """
    base = plain_name(name)
    return _stamped(PROGRAM_FORMATS[target.format].writer.restate(text, base, least, most, target), base)


def _stamped(text: str, base: str) -> str:
    """Return a file's text with `-` and eight hexadecimal digits of its SHA-256 appended to the program's name.

    `base` is the name that stands in the text; only its first occurrence as a name changes.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
    return re.sub(rf'(\bname(?:="|": ")){re.escape(base)}"', rf'\g<1>{base}-{digest}"', text, count=1)


def name_in(path: Path) -> str:
    """Return the name of the program in a file; empty if the first 4 KiB hold none or the file cannot be read."""
    with suppress(InputError, OSError), open_regular_file(path, "a file") as file:
        match = re.search(r'\bname"?(?:=|: )"([^"]*)"', file.read(1 << 12).decode(errors="replace"))
        return match[1] if match is not None else ""
    return ""


def plain_name(name: str) -> str:
    """Return a name without an earlier digest, in letters that every format takes, with room for a new digest.

    Each run of characters other than ASCII letters, digits, `_` and `.` becomes one `-`, and none at the ends. The name
    has at most 54 characters, and is "program" if no letter is left.
    """
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-") or "program"
    return re.sub(rf"-[0-9a-f]{{{_DIGEST}}}$", "", plain)[: LONGEST_NAME - 1 - _DIGEST].rstrip("-")
