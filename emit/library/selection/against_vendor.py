"""How many sizes of messages a library's files serve faster than a vendor library would by its own choice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from emit.library.entry import IndexEntry, vs_library
from emit.library.networks import Networks
from synth.baselines.nccl.model import LibraryChoice
from synth.baselines.vendors import LIBRARIES
from synth.model.text import format_size
from synth.search.frontier import POWERS
from topologies.errors import InputError, NotModelled

_ABOUT = 1.02  # ratio of times up to which they count as about equal where no interval of measured times is known


@dataclass
class SizeCounts:
    """Numbers of pairs of a question and a message size, by how the library's file compares with a vendor's choice.

    Attributes:
        faster: Pairs that the file serves faster.
        equal: Pairs that it serves in about the same time.
        slower: Pairs that it serves slower.
        without_file: Pairs that no file serves.
        sizes: The message sizes in bytes.
    """

    faster: int = 0
    equal: int = 0
    slower: int = 0
    without_file: int = 0
    sizes: set[int] = field(default_factory=set)

    def sentence(self, name: str) -> str:
        """Return the counts as shares, in a sentence that names the vendor's library; "" if nothing is counted."""
        parts = {"faster": self.faster, "about equal": self.equal, "slower": self.slower, "no file": self.without_file}
        total = sum(parts.values())
        if not total:
            return ""
        shares = ", ".join(f"{word} at {100 * count / total:.0f} %" for word, count in parts.items() if count)
        low, high = format_size(min(self.sizes)), format_size(max(self.sizes))
        at = f"at {low}" if low == high else f"at the powers of two from {low} to {high}"
        return f"against {name}, {at}: {shares}; all times are predicted, none was measured"


def count_sizes(entries: Sequence[IndexEntry], name: str) -> SizeCounts:
    """Return how the files of a library compare with a vendor library that has a cost model of its own.

    The sizes are the powers of two from 1 KiB to 1 GiB for which a file states a time, or which no file serves; where
    each entry of a question serves a single size, only these, and where entries are limited to sizes (`asked`), only
    those within. Entries that are not compared with the vendor's library
    are left out, and so are networks that are not known, and what the vendor's model does
    not cover.

    Args:
        entries: Entries of one index.
        name: Name of the vendor's library.
    """
    counts, networks = SizeCounts(), Networks()
    compared = [entry for entry in entries if vs_library(entry.row, name) is not None]
    for _, same in groupby(sorted(compared, key=_question), key=_question):
        same_entries = list(same)
        first, network = same_entries[0], networks.of(same_entries[0])
        if network is None or not LIBRARIES[name].own_clock:
            continue
        single = all(entry.min_bytes == entry.max_bytes for entry in same_entries)
        with suppress(InputError, NotModelled):
            model = LIBRARIES[name].model(network, first.communicator)
            low, high = first.asked or (POWERS[0], POWERS[-1])
            for size in (power for power in POWERS if low <= power <= high):
                serving = next((entry for entry in same_entries if entry.in_range(size)), None)
                time_us = None if serving is None else dict(point[:2] for point in serving.curve).get(size)
                if time_us is not None or (serving is None and not single):
                    counts.sizes.add(size)
                    _count(counts, model.choose(first.collective, size), time_us)
    return counts


def _question(entry: IndexEntry) -> str:
    """Return a text that is equal for the entries of one question and form of calls."""
    return repr(entry.question_and_form)


def _count(counts: SizeCounts, choice: LibraryChoice, time_us: float | None) -> None:
    """Add one size to the counts.

    Args:
        counts: The counts.
        choice: What the vendor's library would run.
        time_us: Time of the library's file in µs; None without a file.
    """
    low_us, high_us = choice.low_us or choice.time_us / _ABOUT, choice.high_us or choice.time_us * _ABOUT
    if time_us is None:
        counts.without_file += 1
    elif low_us <= time_us <= high_us:
        counts.equal += 1
    elif time_us < low_us:
        counts.faster += 1
    else:
        counts.slower += 1
