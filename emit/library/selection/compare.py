"""Comparison of two libraries by predicted times, question by question and size by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from emit.formats import PROGRAM_FORMATS, verify_header
from emit.library.entry import IndexEntry
from emit.library.library_file import MOST_BYTES
from emit.library.networks import Networks
from emit.library.selection.selector import Selector
from emit.targets import TARGETS
from emit.timing.timed import TimedProgram
from topologies.text.files import read_text
from topologies.topology import Topology


@dataclass(frozen=True)
class Difference:
    """The predicted times of two libraries for one call.

    Attributes:
        question: `IndexEntry.question_and_form`: collective, topology, group, relays, root, sizes, target, in place.
        size_bytes: Message size.
        one: File of the first library that serves the call; None if the executor's own algorithm does.
        other: File of the second library; None as for `one`.
        one_us: Predicted time of the first file in µs; None also if the network is not known.
        other_us: Predicted time of the second file in µs.
    """

    question: tuple[Any, ...]
    size_bytes: int
    one: str | None
    other: str | None
    one_us: float | None
    other_us: float | None

    @property
    def ratio(self) -> float | None:
        """Return the second library's time over the first's; None if a time is not known."""
        return None if not self.one_us or self.other_us is None else self.other_us / self.one_us


@dataclass
class Times:
    """The predicted times of a library's files; each file is read once.

    Attributes:
        networks: Topologies of the entries.
        predictors: Predictor of each file for a communicator; None if the network is not known.
    """

    networks: Networks
    predictors: dict[tuple[str, tuple[int, ...]], TimedProgram | None] = field(default_factory=dict)

    def at(self, entry: IndexEntry, size_bytes: int) -> float | None:
        """Return the time in µs of an entry's file at a message size in bytes; None if the network is not known.

        It is the time that the entry states for this size, or else a prediction, whose predictor is kept in
        `predictors`.

        Raises:
            InputError: If the file cannot be read or is wrong; a stated time needs no file.
        """
        if entry.shown_bytes == size_bytes and entry.time_us is not None:
            return float(entry.time_us)
        of_size = next((time_us for size, time_us, _ in entry.curve if size == size_bytes), None)
        if of_size is not None:
            return of_size
        key = str(entry.path), entry.communicator
        if key not in self.predictors:
            self.predictors[key] = self._predictor(entry)
        timed = self.predictors[key]
        return None if timed is None else timed.time_us(size_bytes)

    def _predictor(self, entry: IndexEntry) -> TimedProgram | None:
        """Return the predictor of an entry's checked file; None if its network is not known.

        Raises:
            InputError: If the file cannot be read or is wrong.
        """
        topology = self.networks.of(entry)
        if topology is None:
            return None
        form = PROGRAM_FORMATS[TARGETS[entry.target].format]
        text = read_text(entry.path, "a file of the library", MOST_BYTES, entry.folder, None)
        program = verify_header(entry.path, entry.goal()).right_program(str(entry.path))
        return form.predictor(text, program, topology, entry.communicator)


def differences(
    first: Sequence[IndexEntry], second: Sequence[IndexEntry], sizes: Sequence[int], topology: Topology | None = None
) -> Iterator[Difference]:
    """Yield the predicted times of two libraries for every question and each size for which either has a file.

    Isomorphic groups are questions of their own. Of a question's files the first in whose range the size is counts.

    Args:
        first: Entries of the first library.
        second: Entries of the second library.
        sizes: Message sizes in bytes.
        topology: Topology of the entries of its name; others are looked up by their names.

    Raises:
        InputError: If a file cannot be read or is wrong.
    """
    times = Times(Networks(topology))
    by_question: list[dict[tuple[object, ...], list[IndexEntry]]] = [{}, {}]
    for entries_of, entries in zip(by_question, (first, second), strict=True):
        for entry in Selector(entries).expanded():
            entries_of.setdefault(entry.question_and_form, []).append(entry)
    for question in dict.fromkeys(question for entries_of in by_question for question in entries_of):
        for size in sizes:
            a, b = (
                next((e for e in entries_of.get(question, ()) if e.in_range(size)), None) for entries_of in by_question
            )
            if a is not None or b is not None:
                times_us = [None if entry is None else times.at(entry, size) for entry in (a, b)]
                files = [None if entry is None else entry.file for entry in (a, b)]
                yield Difference(question, size, files[0], files[1], times_us[0], times_us[1])
