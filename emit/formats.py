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
from emit.program import Program
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
        """Return the text of a file, checked; the arguments and errors are those of `write_program`."""

    def restate(self, text: str, name: str, least: int, most: int | None, target: Target, /) -> str:
        """Return a text with another name and message sizes; arguments and errors are those of `restate_program`."""

    def describe(self, program: Program, target: Target, text: str, /) -> str:
        """Return one line that describes a written file."""

    def threadblocks(self, program: Program | None, text: str | Path, /) -> list[int]:
        """Return the number of threadblocks of each rank, from a program and the text or the file that holds it."""

    def largest_message(self, text: str, /) -> int | None:
        """Return the largest message in bytes for which the program in a text can be run; None if there is no limit."""


class TraceWriter(Reader, Protocol):
    """The functions of a module that writes a simulator's traces of one message size."""

    def write(self, program: Program, size_bytes: int, /) -> Iterable[tuple[str, bytes]]:
        """Return (end of the name, content) of each file of a trace, as `write_trace` does."""


class Draft(Protocol):
    """A compiled program as a file of a format says it; it can be timed, and is written and checked if it is chosen."""

    @property
    def largest_message(self) -> int | None:
        """Return the largest message in bytes for which the program can be run; None if there is no limit."""

    def predictor(self, topology: Topology, group: Sequence[int], /) -> TimedProgram:
        """Return the predictor of the file's time on ranks of a topology; raise InputError if it cannot be timed."""

    def text(self) -> str:
        """Return the text of the file; raise InputError if its check has a finding."""


class Drafter(Protocol):
    """The functions of a module whose files say programs in a form of their own, with times of their own."""

    def draft(
        self, program: Program, goal: Goal | None, target: Target, nodes: Sequence[int] | None,
        linked: Sequence[tuple[int, int]], /,
    ) -> Draft:  # fmt: skip
        """Return the draft of a compiled program in its own form; arguments and errors as those of `write_program`."""


class Converter(Protocol):
    """The functions of a module that converts files that hold no Program to one."""

    def verify_program(self, path: Path, goal: Goal | None, /) -> Verdict:
        """Return a verdict that holds the Program."""

    def verify_header(self, path: Path, goal: Goal | None, /) -> Verdict:
        """Return a verdict that, of a right file, holds the Program without threadblocks, which is ready sooner."""

    def predictor(self, file: str | Path, topology: Topology, group: Sequence[int] | None, /) -> TimedProgram:
        """Return the predictor of the file's time, which is not that of its Program, from its text or its path."""


class SwitchWriter(Protocol):
    """The functions of a module that writes multicasts and sums of switches."""

    def write_program(self, algorithm: Algorithm, common: CommonChunk, inplace: bool, sms: int) -> tuple[str, Program]:
        """Return a text and its Program, as `Format.write_in_switch` does."""

    def refusal(self, algorithm: Algorithm) -> str:
        """Return why no file can express an algorithm, as far as that is seen before it is written; else ""."""


def _msccl() -> Writer:
    from emit.msccl import format as msccl

    return msccl


def _mscclpp() -> Writer:
    from emit.mscclpp import format as mscclpp

    return mscclpp


def _mscclpp_drafter() -> Drafter:
    from emit.mscclpp import format as mscclpp

    return mscclpp


def _mscclpp_converter() -> Converter:
    from emit.mscclpp import as_program

    return as_program


def _mscclpp_in_switch() -> SwitchWriter:
    from emit.mscclpp import in_switch

    return in_switch


def _chakra() -> TraceWriter:
    from emit.chakra import format as chakra

    return chakra


def _goal() -> TraceWriter:
    from emit.loggopsim import format as loggopsim

    return loggopsim


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        name: Key of FORMATS.
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
        """Return the module that handles the files of executors; raise InputError if no executor loads such files."""
        if self.load is None:
            raise InputError(f"no executor loads {self.what}; it must be a format of executors' programs")
        return self.load()

    def verify(self, path: Path, goal: Goal | None, fifo_depth: int | None, target: str | None = None) -> Verdict:
        """Read and check a file as `Reader.verify` does; a schedule (.synth) is "not readable" here."""
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

    def write_in_switch(
        self, algorithm: Algorithm, common: CommonChunk, inplace: bool, sms: int
    ) -> tuple[str, Program]:
        """Return the text of an algorithm whose sends go through switches, and its Program without threadblocks.

        Args:
            algorithm: The algorithm.
            common: Cells of its chunks.
            inplace: True for calls in place.
            sms: Threadblocks that a rank may have; 0 for any number.

        Raises:
            InputError: If files of this format cannot express the algorithm.
        """
        if refusal := self.refusal_in_switch(algorithm):
            raise InputError(refusal)
        assert self.load_in_switch is not None
        return self.load_in_switch().write_program(algorithm, common, inplace, sms)

    def refusal_in_switch(self, algorithm: Algorithm) -> str:
        """Return why files cannot express an algorithm through switches, as far as that is seen at once; else ""."""
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


FORMATS: dict[str, Format] = {
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
    """Return the format of a file by its suffix, else by how it begins; MSCCL XML if neither tells.

    A file that does not exist or cannot be read raises nothing here.
    """
    suffix = Path(path).suffix.lower()
    for form in FORMATS.values():
        if form.suffix == suffix:
            return form
    start = b""
    with suppress(InputError, OSError), open_regular_file(path, "a file") as file:
        start = file.read(64).lstrip()
    matching = (form for form in FORMATS.values() if form.start and start.startswith(form.start))
    return next(matching, FORMATS["msccl"])


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
    """Read and check a file as a Program; the verdict is "not readable" for formats that give no Program.

    Arguments are those of `verify_file`; this too never raises for bad input.
    """
    file_format = format_of(Path(path))
    if file_format.load_converter is not None:
        return file_format.load_converter().verify_program(Path(path), goal)
    if not file_format.holds_program:
        descriptions = " or ".join(form.what for form in FORMATS.values() if form.has_program)
        advice = (
            "synth lower makes an executor's file of it"
            if Path(path).suffix == ".synth"
            else f"it must be {descriptions}"
        )
        return Verdict("not readable", (f"{origin_of(Path(path))}: is {file_format.what}; {advice}",))
    return file_format.verify(Path(path), goal, fifo_depth)


def check_place(verdict: Verdict, threadblocks: Sequence[int], topology: Topology, ranks: Sequence[int]) -> Verdict:
    """Return the verdict on a file with the findings that depend on the ranks of a topology on which it is to run.

    All threadblocks of a rank must run at once, and messages between nodes must use a protocol that works there with
    the first target that has the collective.

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
    base, writer = plain_name(program.name), FORMATS[target.format].writer
    return _stamped(writer.write(replace(program, name=base), goal, target, nodes, inplace, linked), base)


def draft_program(
    program: Program, goal: Goal | None, target: Target, nodes: Sequence[int], linked: Sequence[tuple[int, int]]
) -> Draft | None:
    """Return a program that was compiled here as a draft of a target's file; None if files hold the program itself.

    The arguments and errors are those of `write_program`.
    """
    load = FORMATS[target.format].load_drafter
    if load is None:
        return None
    return load().draft(replace(program, name=plain_name(program.name)), goal, target, nodes, linked)


def write_draft(draft: Draft, program: Program) -> str:
    """Return the text of the file that `draft_program` drafted of a program, checked, as `write_program` returns it.

    Raises:
        InputError: The check has a finding.
    """
    return _stamped(draft.text(), plain_name(program.name))


def write_trace(program: Program, form: Format, size_bytes: int) -> list[tuple[str, bytes]]:
    """Return (end of the name, content) of each file of a simulator's trace of a message of `size_bytes`.

    The program must have passed its check. The size is that of nccl-tests.

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
        name: New name; a digest is added.
        least: Smallest message in bytes.
        most: Largest message in bytes; None for no limit.
        target: Executor for which the text was written.

    Raises:
        InputError: If the program takes no message of such a size, or the text cannot be read.
    """
    base = plain_name(name)
    return _stamped(FORMATS[target.format].writer.restate(text, base, least, most, target), base)


def _stamped(text: str, base: str) -> str:
    """Return the text with a digest of itself appended to the program's name."""
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

    It is "program" if no letter is left.
    """
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-") or "program"
    return re.sub(rf"-[0-9a-f]{{{_DIGEST}}}$", "", plain)[: LONGEST_NAME - 1 - _DIGEST].rstrip("-")
