"""The formats of files, a row each: what a file is, and how it is checked and written.

`synth verify`, `simulate`, `report`, `bench`, `optimize` and `convert` take what a row says they can; a target's row
(`emit.targets`) names the format that its files are written in.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from emit.findings import Findings, Verdict
from emit.goal import Goal
from emit.program import Program
from emit.targets import TARGETS, Target, check_between_nodes, check_resident, choose_target
from emit.timing.predict import Predictor, Timed
from topologies.errors import InputError
from topologies.text.files import opened, origin_of
from topologies.topology import Topology

if TYPE_CHECKING:  # commands about files load neither
    from synth.model.common_chunk import CommonChunk
    from synth.verify.algorithm import Algorithm

LONGEST_NAME = 63  # characters of a program's name in any file
_DIGEST = 8  # hexadecimal digits


@dataclass(frozen=True)
class Format:
    """One format of files.

    what: in words, with its article.  suffix: of its files.  start: how a file of another suffix begins; empty: nothing
    tells.
    module: loaded when it is needed, with verify(path, goal, FIFO slots or None), which never raises for bad input and
    takes a target too where several have this format, and for programs write(program, goal, target, node of each rank,
    in place or not, linked pairs of ranks), describe(program, target, text), threadblocks(program, text),
    largest_message(text) and restate(text, name, bytes of the least and the largest message or None, target).
    Empty: no program is read or written so.
    holds_program: what is read is a Program, which executors here, predictions and the compiler take.
    converter: where what is read can be made one, a module with verify_program(path, goal), whose verdict holds it, and
    predictor(text or path, topology, group), since the files take another time than that Program.
    in_switch: where it can say what switches sum and multicast, a module with write_program(algorithm, cells of its
    chunks, in place or not, threadblocks that a rank may have), which yields a file's text and its Program's header.
    simulator: what loads it, where no executor does: a trace of one message size, which `write(program, bytes)` of the
    module yields as (end of the name, content) of each of its files. No library or report holds such files.
    kept_by_name: an executor takes two files of one name for one.
    has_fifo: `verify` takes FIFO slots.  placed: its text depends on which ranks share a node, and on the calls served.
    """

    name: str
    what: str
    suffix: str
    start: bytes
    module: str = ""
    holds_program: bool = False
    converter: str = ""
    in_switch: str = ""
    simulator: str = ""
    kept_by_name: bool = False
    has_fifo: bool = False
    placed: bool = False

    @property
    def has_program(self) -> bool:
        """Whether a Program can be had of its files."""
        return self.holds_program or bool(self.converter)

    def verify(self, path: Path, goal: Goal | None, fifo_depth: int | None, target: str | None = None) -> Verdict:
        """Read and check a file, for the executor `target` where several read this format."""
        if not self.module:
            return Verdict("not readable", (f"{origin_of(path)}: is a schedule; synth prove checks it",))
        asked = () if target is None or len(self.readers) < 2 else (target,)
        verdict: Verdict = import_module(self.module).verify(path, goal, fifo_depth, *asked)
        return verdict

    def threadblocks(self, program: Program | None, text: str | Path) -> list[int]:
        """Of each rank, of a program in the text or file that holds it."""
        return list(import_module(self.module).threadblocks(program, text))

    def largest_message(self, text: str) -> int | None:
        """The most bytes of a message for which the program in a text can be run; None: there is no end."""
        largest: int | None = import_module(self.module).largest_message(text)
        return largest

    def write_in_switch(
        self, algorithm: Algorithm, common: CommonChunk, inplace: bool, sms: int
    ) -> tuple[str, Program]:
        """The text of an algorithm whose sends go through switches, and its Program without threadblocks.

        Raises InputError where files of this format cannot say it, or hold it.
        """
        if not self.in_switch:
            raise InputError(f"{self.what} cannot say what switches sum and multicast")
        made: tuple[str, Program] = import_module(self.in_switch).write_program(algorithm, common, inplace, sms)
        return made

    def predictor(
        self, file: str | Path, program: Program, topology: Topology, group: Sequence[int] | None = None
    ) -> Timed:
        """What times a file, given its text or its path, or else the program in it; see `Predictor`."""
        if not self.converter:
            return Predictor(program, topology, group)
        timed: Timed = import_module(self.converter).predictor(file, topology, group)
        return timed

    @property
    def readers(self) -> list[str]:
        """The targets whose files are of this format."""
        return [target.name for target in TARGETS.values() if target.format == self.name]

    def describe(self, program: Program, target: Target, text: str) -> str:
        """What was written, in a line."""
        return str(import_module(self.module).describe(program, target, text))


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format("msccl", "an MSCCL XML file", ".xml", b"<", "emit.msccl.format", holds_program=True, has_fifo=True),
        Format(
            "mscclpp", "an execution plan (JSON)", ".json", b"{", "emit.mscclpp.format",
            kept_by_name=True, placed=True, converter="emit.mscclpp.as_program",
            in_switch="emit.mscclpp.in_switch",
        ),
        Format(
            "chakra", "a Chakra trace (NAME.RANK.et)", ".et", b"", "emit.chakra.format",
            holds_program=True, simulator="ASTRA-sim",
        ),
        Format(
            "goal", "a GOAL file", ".goal", b"num_ranks", "emit.loggopsim.format",
            holds_program=True, simulator="LogGOPSim",
        ),
        Format("schedule", "a schedule (.synth)", ".synth", b"PK"),
    )
}  # fmt: skip


def format_of(path: str | Path) -> Format:
    """The format of a file: by its suffix, else by how it begins; MSCCL XML where neither says."""
    suffix = Path(path).suffix.lower()
    for one in FORMATS.values():
        if one.suffix == suffix:
            return one
    start = b""
    with suppress(InputError, OSError), opened(path, "a file") as file:
        start = file.read(64).lstrip()
    told = (one for one in FORMATS.values() if one.start and start.startswith(one.start))
    return next(told, FORMATS["msccl"])


def verify_file(
    path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None, target: str | None = None
) -> Verdict:
    """Read and check a file of any format; never raises for bad input.

    goal: what it must achieve; None: what its own words say.  fifo_depth: slots; None: its protocol's.  target: whose
    reader must take it, one of its format's `readers`; None: it is enough if one does.
    """
    return format_of(Path(path)).verify(Path(path), goal, fifo_depth, target)


def verify_program(path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None) -> Verdict:
    """The same where a Program is wanted: "not readable" for formats that hold none."""
    found = format_of(Path(path))
    if found.converter:
        verdict: Verdict = import_module(found.converter).verify_program(Path(path), goal)
        return verdict
    if not found.holds_program:
        wanted = " or ".join(one.what for one in FORMATS.values() if one.has_program)
        return Verdict("not readable", (f"{origin_of(Path(path))}: is {found.what}; it must be {wanted}",))
    return found.verify(Path(path), goal, fifo_depth)


def check_place(verdict: Verdict, threadblocks: Sequence[int], topology: Topology, ranks: Sequence[int]) -> Verdict:
    """The verdict on a file that can be read, with the threadblocks of each rank, on these ranks of a topology.

    All threadblocks of a rank must run at once, and what is sent between nodes be of a protocol that works there.
    """
    found = Findings()
    check_resident(threadblocks, topology.sms, found)
    if verdict.program is not None:
        nodes = topology.nodes[list(ranks)].tolist()
        check_between_nodes(verdict.program, nodes, choose_target(verdict.program.collective), found)
    return verdict.with_findings(found)


def write_program(
    program: Program,
    goal: Goal | None,
    target: Target,
    *,
    nodes: Sequence[int] | None = None,
    inplace: bool | None = None,
    linked: Sequence[tuple[int, int]] = (),
) -> str:
    """The text of a program for a target, checked before and after.

    Its name there is the program's, cut to size, and a digest of the text: executors keep what they loaded by name.

    Args:
        goal: what it must achieve; None: that of its collective.
        nodes: the node of each rank; None: all in one. Only formats that are `placed` look at it and at the next two.
        inplace: the calls to serve; None: those that the program serves.
        linked: pairs of ranks between which the network has links, for signals beside those of the program.

    Raises InputError: a check finds anything, or the target cannot say it.
    """
    form = FORMATS[target.format]
    if not form.module:
        raise InputError(f"{target.name}: no program is written as {form.what}; it must be a format of programs")
    base = plain_name(program.name)
    text = str(import_module(form.module).write(replace(program, name=base), goal, target, nodes, inplace, linked))
    return _stamped(text, base)


def write_trace(program: Program, form: Format, size_bytes: int) -> list[tuple[str, bytes]]:
    """(end of the name, content) of each file of a trace for a simulator, for a message of `size_bytes`.

    The program must have passed its check. Raises InputError for a size that is no whole number of bytes a chunk.
    """
    named = replace(program, name=plain_name(program.name))
    return list(import_module(form.module).write(named, size_bytes))


def restate_program(text: str, name: str, least: int, most: int | None, target: Target) -> str:
    """A program that was written for a target, under another name and for other sizes (most None: there is no end).

    Raises InputError where no message that it takes has such a size.
    """
    base = plain_name(name)
    return _stamped(str(import_module(FORMATS[target.format].module).restate(text, base, least, most, target)), base)


def _stamped(text: str, base: str) -> str:
    """The text of a program of this name with its digest in the name."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
    return re.sub(rf'(\bname(?:="|": ")){re.escape(base)}"', rf'\g<1>{base}-{digest}"', text, count=1)


def name_in(path: Path) -> str:
    """The name of the program in a file, empty where its head has none."""
    with suppress(InputError, OSError), opened(path, "a file") as file:
        found = re.search(r'\bname"?(?:=|: )"([^"]*)"', file.read(1 << 12).decode(errors="replace"))
        return found[1] if found is not None else ""
    return ""


def plain_name(name: str) -> str:
    """A name that leaves room for the digest of a text, in letters that every format takes; without an old digest."""
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-") or "program"
    return re.sub(rf"-[0-9a-f]{{{_DIGEST}}}$", "", plain)[: LONGEST_NAME - 1 - _DIGEST].rstrip("-")
