"""The findings and verdicts of a check, with a limit on how many findings of each kind are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from emit.goal import Goal
from emit.program import Program
from topologies.errors import InputError

MAX_OF_A_KIND = 20  # findings that are reported; the others are only counted
_LONG = 90  # characters of a finding in an error of one line


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a check reports.

    Attributes:
        kind: "inconsistent" (numbers that contradict each other), "limit" (more than the target's reader or kernel
            takes), "overrun", "duplicate connection", "dangling id", "dangling dependency", "unpaired", "unequal
            counts", "deadlock", "hang" (the program is right, and its kernels do not end), "race", "calls" (right only
            if the caller keeps to a rule), "read before write" or "wrong result".
        message: One line for the user.
        rank: Rank of the fault; None if it has no single place.
        tb: Threadblock id within the rank, or None.
        step: Position in the threadblock, or None.
        cell: (buffer, index), or None.
        cycle: Steps (rank, tb, step) of a deadlock, each of which waits for the next.
    """

    kind: str
    message: str
    rank: int | None = None
    tb: int | None = None
    step: int | None = None
    cell: tuple[str, int] | None = None
    cycle: tuple[tuple[int, int, int], ...] = ()


@dataclass(slots=True)
class Findings:
    """The findings of a check in the order in which they were added.

    Attributes:
        reported: At most MAX_OF_A_KIND findings of each kind.
        counts: Number of all findings of each kind.
    """

    reported: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def full(self, kind: str) -> bool:
        """Return True if another finding of this kind would only be counted."""
        return self.counts.get(kind, 0) >= MAX_OF_A_KIND

    def add(
        self,
        kind: str,
        message: str,
        rank: int | None = None,
        tb: int | None = None,
        step: int | None = None,
        cell: tuple[str, int] | None = None,
        cycle: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        """Record a finding, and put its place before `message` unless it is a cycle, which names its own places.

        The arguments are the attributes of `Finding`. If its kind is full, the finding is only counted.
        """
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] > MAX_OF_A_KIND:
            return
        places = () if cycle else (("rank", rank), ("tb", tb), ("step", step))
        words = [f"{w} {x}" for w, x in places if x is not None]
        place = " ".join(words) + (": " if words and tb is not None else " " if words else "")
        self.reported.append(Finding(kind, place + message, rank, tb, step, cell, cycle))

    def add_race(
        self,
        access: str,
        second_access: str,
        cell_name: str,
        remedy: str,
        place: tuple[int, int, int],
        cell: tuple[str, int],
    ) -> None:
        """Record a race between two accesses of a cell that nothing orders.

        Args:
            access: Description of the access at `place`.
            second_access: Description of the access that conflicts with it.
            cell_name: Description of the cell.
            remedy: What would order the accesses.
            place: (rank, tb, step) of the first access.
            cell: (buffer, index) that the accesses share.
        """
        self.add("race", f"{access} and {second_access} use {cell_name} in no fixed order; {remedy}", *place, cell=cell)

    def counted(self) -> list[str]:
        """Return one line for each kind that has findings which are not reported, with the number of these."""
        return [f"{n - MAX_OF_A_KIND} more of kind {kind!r}" for kind, n in self.counts.items() if n > MAX_OF_A_KIND]


def first_of(findings: Sequence[Finding], hint: str = "") -> str:
    """Return `kind: message` of the first finding in one line, and how many others there are.

    Args:
        findings: One or more findings.
        hint: Text that follows the number of others, to say where they are.
    """
    more = f" (and {len(findings) - 1} more{hint})" if len(findings) > 1 else ""
    return f"{findings[0].kind}: {findings[0].message}{more}"


def _status_of(findings: tuple[Finding, ...]) -> str:
    """Return "right" for no findings, "deadlock" if all are deadlocks or hangs, else "wrong"."""
    if not findings:
        return "right"
    return "deadlock" if all(f.kind in ("deadlock", "hang") for f in findings) else "wrong"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings of a check of a program, with notes.

    Attributes:
        findings: The faults; empty if the program passed.
        notes: Lines for the user that are not faults.
        judged: True if the result was compared with a goal.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    judged: bool

    @property
    def ok(self) -> bool:
        """Return True if the check reported no finding."""
        return not self.findings

    @property
    def status(self) -> str:
        """Return "right", "deadlock" (if every finding is a deadlock or a hang) or "wrong"."""
        return _status_of(self.findings)

    def raise_if_wrong(self, subject: str = "program") -> None:
        """Raise InputError with the first finding and the number of others; do nothing if there is none.

        The message begins with `subject`, the name of what was checked.
        """
        if self.findings:
            raise InputError(f"{subject} does not pass its check: {first_of(self.findings)}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a file.

    Attributes:
        status: "right", "wrong", "deadlock", "not judged" (nobody says what the result must be) or "not readable".
        lines: Lines for the user that explain the status; the first begins with it.
        findings: The faults.
        program: The program that was read, with the root for which it is right; None if nothing could be read or
            checked, and for formats that hold no Program.
        goal: What the program achieves, if the check found it by trying; None if a collective or a file states it.
    """

    status: str
    lines: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    program: Program | None = None
    goal: Goal | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command: 0 for right, 1 for wrong or deadlock, 2 for the others."""
        return {"right": 0, "wrong": 1, "deadlock": 1}.get(self.status, 2)

    @property
    def reason(self) -> str:
        """Return `kind: message` of the first finding in one line, and the number of others; "" without a finding."""
        return first_of(self.findings, ": synth verify") if self.findings else ""

    def with_findings(self, further: Findings) -> Verdict:
        """Return the verdict with further reported findings, a line for each, and the status that follows from all.

        Without further findings nothing changes, "not readable" included. With some, the status becomes "deadlock" if
        all findings are deadlocks or hangs, else "wrong", and the first line begins with it.
        """
        findings = (*self.findings, *further.reported)
        status = _status_of(findings) if further.reported else self.status
        head, *lines = self.lines
        lines += [f"{f.kind}: {f.message}" for f in further.reported]
        return replace(self, status=status, lines=(status + head.removeprefix(self.status), *lines), findings=findings)

    def refusal(self, origin: str) -> str:
        """Return in one line why the program of a file cannot be used.

        It is `origin`, the status and the first finding (90 characters at most) of a file that is wrong or deadlocks.
        It is the verdict's first line if the status is "not judged", else "not readable: " and all lines.

        Args:
            origin: Name of the file.
        """
        if self.status in ("wrong", "deadlock") and self.findings:
            first = first_of(self.findings[:1])
            first = first if len(first) <= _LONG else f"{first[:_LONG]}…"
            return f"{origin}: {self.status}: {first} (synth verify says all)"
        return self.lines[0] if self.status == "not judged" else f"not readable: {'; '.join(self.lines)}"

    def right_program(self, origin: str) -> Program:
        """Return the program of a file that is right.

        Args:
            origin: Name of the file for the error.

        Raises:
            InputError: If the file is not right or holds no program; the message is that of `refusal`.
        """
        if self.program is None or self.status != "right":
            raise InputError(self.refusal(origin))
        return self.program


def not_judged(what: str, notes: Sequence[str] = (), program: Program | None = None) -> Verdict:
    """Return the verdict "not judged" on a file without faults, if nobody says what its result must be.

    Args:
        what: What does not say it, with which a sentence begins, such as "coll 'custom'".
        notes: Further lines for the user.
        program: The program that was read.
    """
    lack = f"{what} does not say what the result must be; a file NAME.goal.json beside it can"
    return Verdict("not judged", (f"not judged: no fault was found, but {lack}", *notes), program=program)
