"""Two libraries by their predicted times, question by question and size by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from emit.formats import FORMATS, verify_program
from emit.library.index import Entry
from emit.library.networks import Networks
from emit.library.selector import Selector
from emit.library.standing import MOST_BYTES
from emit.targets import TARGETS
from emit.timing.predict import Timed
from topologies.text.files import read_text
from topologies.topology import Topology

Question = tuple[str, str, tuple[int, ...], tuple[int, ...], int | None, str, bool]


@dataclass(frozen=True)
class Difference:
    """What two libraries say of one call.

    question: collective, topology, group, relays, root, target, in place.  one, other: the files that serve it, None
    where the executor's own algorithm does.  one_us, other_us: their predicted times, None also where the network is
    not known.
    """

    question: Question
    size_bytes: int
    one: str | None
    other: str | None
    one_us: float | None
    other_us: float | None

    @property
    def ratio(self) -> float | None:
        """The other's time over the first's."""
        return None if not self.one_us or self.other_us is None else self.other_us / self.one_us


@dataclass
class Times:
    """Predicted times of files, each read once."""

    networks: Networks
    known: dict[tuple[str, tuple[int, ...]], Timed | None] = field(default_factory=dict)

    def at(self, entry: Entry, size_bytes: int) -> float | None:
        """In µs; what the entry states where that is of this size, else worked out. None: the network is not known."""
        stated = entry.values.get("time_us")
        if entry.values.get("shown_bytes") == size_bytes and isinstance(stated, int | float):
            return float(stated)
        of_size = next((time_us for size, time_us, _ in entry.curve if size == size_bytes), None)
        if of_size is not None:
            return of_size
        key = str(entry.path), entry.communicator
        if key not in self.known:
            self.known[key] = self._predictor(entry)
        timed = self.known[key]
        return None if timed is None else timed.time_us(size_bytes)

    def _predictor(self, entry: Entry) -> Timed | None:
        topology = self.networks.of(entry)
        if topology is None:
            return None
        form = FORMATS[TARGETS[entry.target].format]
        text = read_text(entry.path, "a file of the library", MOST_BYTES, entry.folder, None)
        program = verify_program(entry.path, entry.goal()).right_program(str(entry.path))
        return form.predictor(text, program, topology, entry.communicator)


def differences(
    one: Sequence[Entry], other: Sequence[Entry], sizes: Sequence[int], topology: Topology | None = None
) -> Iterator[Difference]:
    """What two libraries say of every question that either has, at each size in bytes.

    topology: of the entries of its name. Raises InputError for a file that cannot be read or is wrong.
    """
    times, every = Times(Networks(topology)), [Selector(one).expanded(), Selector(other).expanded()]
    of = [_by_question(entries) for entries in every]
    for question in dict.fromkeys(q for entries in of for q in entries):
        for size in sizes:
            a, b = (next((e for e in its.get(question, ()) if e.in_range(size)), None) for its in of)
            if a is None and b is None:
                continue
            taken = [None if entry is None else times.at(entry, size) for entry in (a, b)]
            files = [None if entry is None else entry.file for entry in (a, b)]
            yield Difference(question, size, files[0], files[1], taken[0], taken[1])


def _by_question(entries: Sequence[Entry]) -> dict[Question, list[Entry]]:
    found: dict[Question, list[Entry]] = {}
    for e in entries:
        found.setdefault((e.collective, e.topology, e.group, e.relays, e.root, e.target, e.inplace), []).append(e)
    return found
