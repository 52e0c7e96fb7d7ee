"""What a check can find, and how many of each kind it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from emit.program import Program
from topologies.errors import InputError

MAX_OF_A_KIND = 20  # findings that are reported; the others are only counted


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: its kind, a line in words, and where (None: not at one place).

    Kinds: "inconsistent" (numbers that contradict each other), "limit" (more than the target's reader or kernel
    takes), "overrun", "duplicate connection", "dangling id", "dangling dependency", "unpaired", "unequal counts",
    "deadlock", "hang" (it is right, and its kernels do not end), "race", "read before write", "wrong result".
    `cell` is (buffer, index); `cycle` the steps (rank, tb, step) of a deadlock, each waiting for the next.
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
    """Findings in the order they were made, MAX_OF_A_KIND of a kind; `counts` has them all."""

    reported: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def full(self, kind: str) -> bool:
        """Whether another finding of this kind would only be counted."""
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
        """Record one; the place is put before `message`, but not before a cycle, which names its own."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] > MAX_OF_A_KIND:
            return
        places = () if cycle else (("rank", rank), ("tb", tb), ("step", step))
        words = [f"{w} {x}" for w, x in places if x is not None]
        place = " ".join(words) + (": " if words and tb is not None else " " if words else "")
        self.reported.append(Finding(kind, place + message, rank, tb, step, cell, cycle))

    def add_race(
        self, access: str, other: str, where: str, remedy: str, place: tuple[int, int, int], cell: tuple[str, int]
    ) -> None:
        """Record two accesses of a cell, the one at `place`, that nothing orders."""
        self.add("race", f"{access} and {other} use {where} in no fixed order; {remedy}", *place, cell=cell)

    def counted(self) -> list[str]:
        """A line for each kind of which some were only counted."""
        return [f"{n - MAX_OF_A_KIND} more of kind {kind!r}" for kind, n in self.counts.items() if n > MAX_OF_A_KIND]


def first_of(findings: Sequence[Finding], hint: str = "") -> str:
    """The first finding in one line, with the number of the others; `hint`: where these are to be seen."""
    more = f" (and {len(findings) - 1} more{hint})" if len(findings) > 1 else ""
    return f"{findings[0].kind}: {findings[0].message}{more}"


def _status_of(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return "right"
    return "deadlock" if all(f.kind in ("deadlock", "hang") for f in findings) else "wrong"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a check found: nothing (`ok`), or findings, each with its place.

    `notes` are lines that are not faults. `judged`: whether the result was compared with a goal.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    judged: bool

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def status(self) -> str:
        """ "right", "deadlock" (and nothing else wrong), or "wrong"."""
        return _status_of(self.findings)

    def raise_if_wrong(self, what: str = "program") -> None:
        """Raise InputError with the first finding and the number of the others."""
        if self.findings:
            raise InputError(f"{what} does not pass its check: {first_of(self.findings)}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about a file: status "right", "wrong", "deadlock" or "not readable", and lines that explain it.

    program: what was read, with the root for which it is right; None where nothing could be read or checked, and for
    formats that hold no Program.
    """

    status: str
    lines: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    program: Program | None = None

    @property
    def exit_code(self) -> int:
        """0 right, 1 wrong or deadlock, 2 not readable."""
        return {"right": 0, "wrong": 1, "deadlock": 1}.get(self.status, 2)

    @property
    def reason(self) -> str:
        """The first finding in one line, with the number of the others; empty where there is none."""
        return first_of(self.findings, ": synth verify") if self.findings else ""

    def with_findings(self, found: Findings) -> Verdict:
        """The verdict where this was found too."""
        findings = (*self.findings, *found.reported)
        status = _status_of(findings) if found.reported else self.status
        head, *lines = self.lines
        lines += [f"{f.kind}: {f.message}" for f in found.reported]
        return replace(self, status=status, lines=(status + head.removeprefix(self.status), *lines), findings=findings)

    def right_program(self, origin: str) -> Program:
        """The program, of a file that is right. Raises InputError, beginning with `origin`, for any other."""
        if self.status in ("wrong", "deadlock") and self.findings:
            raise InputError(f"{origin}: {self.status}: {self.reason}")
        if self.program is None or self.status != "right":
            raise InputError(f"not readable: {'; '.join(self.lines)}")
        return self.program
