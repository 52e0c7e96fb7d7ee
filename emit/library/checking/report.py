"""The result of checking a library."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from emit.library.checking.figures import SHAPE, UNPROVABLE


@dataclass
class LibraryReport:
    """The result of checking a library.

    Attributes:
        wrong: (path in the library, reason) of each fault, in the order in which they were found.
        remarks: Sentences on what could not be checked, counted.
        unproved: What no file proves (fields or a reason), with the files that state it.
        files: Number of files checked.
        schedules: Number of schedules checked.
        proofs: Number of proofs checked.
    """

    wrong: list[tuple[str, str]] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)
    unproved: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    files: int = 0
    schedules: int = 0
    proofs: int = 0

    @property
    def unproved_files(self) -> set[str]:
        """Return the files that state something unproved, besides a schedule's shape and what only a search knows.

        The text of a witness does not count either.
        """
        return {name for fields, names in self.unproved.items() if not is_harmless(fields) for name in names}

    def add(self, report: LibraryReport, prefix: str) -> None:
        """Add the result of another folder to this one in place, with `prefix` before its paths."""
        self.wrong += [(f"{prefix}{name}", fault) for name, fault in report.wrong]
        self.remarks += report.remarks
        for reason, names in report.unproved.items():
            self.unproved[reason] |= {f"{prefix}{name}" for name in names}
        self.files, self.schedules = self.files + report.files, self.schedules + report.schedules
        self.proofs += report.proofs


def is_harmless(fields: str) -> bool:
    """Return whether fields, as `LibraryReport.unproved` names them, leave every time and bound of a file proved.

    So do a schedule's shape, what only a search knows, and the text of a witness, whose figures are proved.
    """
    return {*UNPROVABLE, *SHAPE, "proof"}.issuperset(fields.split(", "))
