"""What a library has of an answer already, beside what a command has found: at every size the faster file stays.

Files for another network of the same name answer another question; since an index knows networks by their names, they
give way. So do, at the sizes of the new files, those that are beyond the limits that a command asks for.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emit.formats import restate_program
from emit.library.index import Entry
from emit.library.lowered import Lowered, blocks_of, divides_usual
from emit.library.merge import NO_END, Part, Rival, merge
from emit.library.programs import Programs
from emit.library.standing import File, Wanted, network_digest, read_again, wanted_by
from emit.targets import Target
from synth.model.problem import LARGEST
from synth.present.statement import compare, over_sizes, row
from synth.present.text import format_count, format_served
from synth.search.result import SearchResult
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

FORMS = {True: "-inplace", False: "-outofplace"}  # behind the name of a file that is in the other form than usual
_FIRST, _PLAIN, _LAST = -1, 0, 1  # `Rival.first`: of what is planned with other groups; of what is beyond limits


@dataclass(eq=False)
class Placed:
    """A file of the library as it will be: its entry, and its text where that has to be written."""

    file: File
    entry: dict[str, Any]
    text: str | None = None

    @property
    def kept(self) -> bool:
        """Whether it was there."""
        return self.file.there

    @property
    def algorithm(self) -> Algorithm | None:
        """Whose program it is, where that was found by this command."""
        return None if self.file.served is None else self.file.served.algorithm


@dataclass
class Kept:
    """What became of files that were there.

    ranges: the sizes of those that stay beside or in place of new ones; thrown: why others were not believed; moved:
    how many are for another network; lapsed: how many are beyond the limits asked for and gave way.
    """

    ranges: list[tuple[int, int | None]] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)
    moved: int = 0
    lapsed: int = 0

    def clauses(self) -> Iterator[str]:
        """What a report says of it."""
        if self.ranges:
            ranges = sorted(set(self.ranges), key=lambda ends: ends[0])
            sizes = ", ".join(format_served(low, high) for low, high in ranges)
            yield f"kept {format_count(len(self.ranges), 'file')} of the library, no slower: {sizes}"
        if self.moved:
            yield f"{format_count(self.moved, 'file')} for another network or pattern of this name gave way"
        if self.lapsed:
            yield f"{format_count(self.lapsed, 'file')} beyond the limits asked for gave way"
        yield from (f"thrown out: {why}" for why in self.thrown)


def join(
    standing: Sequence[Entry],
    made: Sequence[File],
    found: SearchResult,
    programs: Programs,
    kept: Kept,
    taken: Sequence[str] = (),
) -> list[Placed]:
    """The files of one question and form as they will be, in order of their sizes.

    Args:
        standing: the library's.
        made: the new ones, no two of which serve one size.
        found, programs: what they answer, and for whom.
        kept: what became of those that were there is added here.
        taken: names of files in the library that are another question's.
    """
    there = believed(standing, network_digest(programs.problem), wanted_by(programs), kept)
    fresh = [_found_again(file, there) for file in made]

    def restated(file: File, low: int, high: int | None) -> Mapping[str, Any]:
        return _restated(file, low, high, found, fresh) if "shown_bytes" in file.entry else {}

    rivals = {_rival(file, programs, fresh): file for file in without(there, fresh) + fresh}
    return settle(rivals, programs.target, kept, taken, restated)


def settle(
    files: Mapping[Rival, File],
    target: Target,
    kept: Kept,
    taken: Sequence[str] = (),
    restated: Callable[[File, int, int | None], Mapping[str, Any]] = lambda *_: {},
) -> list[Placed]:
    """Which of the files, in order of precedence, serves which sizes, and what the library then holds of them.

    restated: what the entry of a file says anew where it is for other sizes than it was. Others: as for `join`.
    """
    parts = [(part, files[part.rival]) for part in merge(list(files))]
    # beyond what answers are compared over, what is left of a new file is where another's offsets end
    parts = [(p, file) for p, file in parts if p.low <= LARGEST or file.there or p.low == file.entry["min_bytes"]]
    names = {*taken, *(file.entry["file"] for _, file in parts if file.there)}
    placed: list[Placed] = []
    for part, file in parts:
        again = any(one.file is file for one in placed)
        one = _place(part, file, again=again, names=names, target=target, restated=restated)
        placed += [] if one is None else [one]
    if any(not file.there for file in files.values()):
        lost = [file for file in files.values() if file.there and all(one is not file for _, one in parts)]
        kept.lapsed += sum(not file.within for file in lost)
        kept.ranges += [(p.entry["min_bytes"], p.entry["max_bytes"]) for p in placed if p.kept]
    return placed


def without(there: Sequence[File], fresh: Sequence[File]) -> list[File]:
    """Those of the library's that are not among the new ones."""
    found_again = {file.text for file in fresh}
    return [file for file in there if file.text not in found_again]


def believed(standing: Sequence[Entry], network: str | None, wanted: Wanted, kept: Kept) -> list[File]:
    """Those of the library's that answer this question and are right, in order of their sizes.

    network: as `network_digest` has it; None where none is known. kept: as for `join`.
    """
    files = []
    for entry in sorted(standing, key=lambda entry: entry.min_bytes):
        if network is not None and entry.values.get("network", network) != network:
            kept.moved += 1
            continue
        try:
            files.append(read_again(entry, wanted))
        except InputError as error:
            kept.thrown.append(str(error))
    return files


def _found_again(file: File, there: Sequence[File]) -> File:
    """A new file; where the same was there, with what its entry has more: a better bound, a schedule and its proof."""
    known = next((one for one in there if one.text == file.text and one.entry["file"] == file.entry["file"]), None)
    if known is None:
        return file
    stated = known.entry.get("bound_us")
    better = isinstance(stated, int | float) and stated >= file.entry["bound_us"]
    stored = {key: known.entry[key] for key in ("schedule", "proof_file")}
    return replace(file, entry=dict(known.entry) if better else {**file.entry, **stored})


def _rival(file: File, programs: Programs, fresh: Sequence[File]) -> Rival:
    low, high = file.entry["min_bytes"], file.entry["max_bytes"]
    divides, padding = file.entry.get("divides", 1), file.entry.get("padding", 0.0)
    target, scaled = programs.target, any(_scale(one) != 1.0 for one in fresh)
    cells = divides // (blocks_of(programs.problem) * (target.cell_bytes or 1))

    def serves(size: int) -> bool:
        return bool(padding) or scaled or divides_usual(divides, cells, target, size)

    first = _PLAIN if file.within else _LAST
    if file.there and "groups" in file.entry:  # what is fast alone is another question
        first = _FIRST
    if file.there and any(one.entry["padding"] != padding for one in fresh):
        first = _FIRST if _never_slower(file, fresh) else _LAST
    return Rival(low, NO_END - 1 if high is None else high, file.time_us, serves, first)


def _never_slower(file: File, fresh: Sequence[File]) -> bool:
    """Whether a file whose buffers are of another length takes no longer than new ones, for what is in them."""
    holds = 1 - file.entry.get("padding", 0.0)
    for one in fresh:
        assert one.served is not None
        size = one.served.shown * _scale(one)
        if file.time_us(size * (1 - one.entry["padding"]) / holds) > one.time_us(size):
            return False
    return True


def _scale(file: File) -> float:
    """The size that an executor takes for that of messages / the problem's message size."""
    by = file.served.contender.execution if file.served is not None else None
    return by.scale if isinstance(by, Lowered) else 1.0


def _place(
    part: Part,
    file: File,
    *,
    again: bool,
    names: set[str],
    target: Target,
    restated: Callable[[File, int, int | None], Mapping[str, Any]],
) -> Placed | None:
    """A file for a part of its sizes; None where it takes no message of these. Its name is added to `names`.

    again: whether another part of it has its name.
    """
    entry, suffix = dict(file.entry), target.suffix
    name, high = entry["file"], None if part.high >= NO_END - 1 else part.high
    if again or (not file.there and name in names):
        name = _free(name.removesuffix(suffix), part.low, file.text, suffix, names)
    whole = (part.low, high) == (entry["min_bytes"], entry["max_bytes"])
    if whole and name == entry["file"]:
        names.add(name)
        return Placed(file, entry, None if file.there else file.text)
    try:
        stem = Path(name).name.removesuffix(suffix)
        text = restate_program(file.text, stem, part.low, high, target)
    except InputError:
        return None
    names.add(name)
    entry |= {"file": name, "min_bytes": part.low, "max_bytes": high}
    if not whole:
        entry |= restated(file, part.low, high)
    return Placed(file, entry, text)


def _restated(file: File, low: int, high: int | None, found: SearchResult, fresh: Sequence[File]) -> dict[str, Any]:
    """What the entry of a file says of its time, now that it is for these sizes."""
    full = next((_scale(one) * (1 - one.entry["padding"]) for one in fresh), 1.0)
    scale = full / (1 - file.entry.get("padding", 0.0))
    least, most = math.ceil(max(1, low) / scale), LARGEST if high is None else int(high / scale)
    size = file.entry["shown_bytes"]
    if type(size) is not int or not least <= size <= max(least, most):
        size = _middle(least, max(least, most))
    end = None if high is None else most
    if file.served is not None:
        told = row(found, replace(file.served, low=low, high=end, shown=size))
        return {key: told[key] for key in (*compare(found, 1.0, size), "worst", "curve")}
    over = over_sizes(found, lambda at: file.time_us(at * scale), low, end, size, file.entry["sends"] or 0)
    return compare(found, file.time_us(size * scale), size) | over


def _middle(low: int, high: int) -> int:
    """A power of two in the middle of a range, in which it is if there is one."""
    exponents = [e for e in range(63) if low <= 1 << e <= high]
    return 1 << exponents[(len(exponents) - 1) // 2] if exponents else low


def _free(stem: str, low: int, text: str, suffix: str, names: set[str]) -> str:
    """A name for a file whose own is taken: with its first size, or else also with a number that follows from it."""
    form = next((one for one in FORMS.values() if stem.endswith(one)), "")
    named = f"{stem.removesuffix(form)}-from{low}"
    tried = [f"{named}{form}{suffix}", f"{named}-{zlib.crc32(text.encode()):08x}{form}{suffix}"]
    return next((name for name in tried if name not in names), tried[-1])


def table_rows(
    found: SearchResult, placed: Sequence[Placed], lacking: Sequence[int], stays: Collection[int] = ()
) -> list[tuple[Placed | int, dict[str, Any]]]:
    """What the files that serve the sizes asked for come to, those that were there too, in order of their sizes.

    Each is a row of `synth.present.statement.row`, with `refused` and `kept`. Ranges of `found` that have no file, by
    their places `lacking`, are rows too, those in `stays` of what was there, unless a file that was there serves all of
    their sizes.
    """
    pinned = {served.low for served in found.ranges if served.low == served.high}
    rows: list[tuple[Placed | int, dict[str, Any]]] = []
    for one in placed:
        if one.kept and pinned and not any(_in_range(one.entry, size, size) for size in pinned):
            continue
        rows.append((one, _table_row(found, one) | {"refused": "", "kept": one.kept}))
    for number in lacking:
        served = found.ranges[number]
        if not any(one.kept and _in_range(one.entry, served.low, served.high) for one in placed):
            rows.append((number, row(found, served) | {"refused": served.contender.refused, "kept": number in stays}))
    return sorted(rows, key=lambda one: one[1]["min_bytes"])


def _table_row(found: SearchResult, one: Placed) -> dict[str, Any]:
    """The row of a file; of one that was there its time and bound are worked out again."""
    entry, served = one.entry, one.file.served
    ends = {key: entry[key] for key in ("min_bytes", "max_bytes")}
    if served is not None:
        same = all(one.file.entry[key] == entry[key] for key in ends)
        anew = {"low": entry["min_bytes"], "high": entry["max_bytes"], "shown": entry["shown_bytes"]}
        return row(found, served) if same else row(found, replace(served, **anew)) | ends
    size = entry.get("shown_bytes")
    if type(size) is not int or not _in_range(entry, size, size):
        size = _middle(max(1, entry["min_bytes"]), entry["max_bytes"] or LARGEST)
    shape = {key: entry.get(key) for key in ("steps", "rounds", "chunks", "sends", "engine")}
    shape["switch_ops"] = bool(entry.get("switch_ops"))  # an entry of a hand-written algorithm says nothing of it
    over = over_sizes(found, one.file.time_us, ends["min_bytes"], ends["max_bytes"], size, shape["sends"] or 0)
    return shape | ends | compare(found, one.file.time_us(size), size) | over


def _in_range(entry: Mapping[str, Any], low: int, high: int | None) -> bool:
    most = NO_END if entry["max_bytes"] is None else entry["max_bytes"]
    return bool(entry["min_bytes"] <= low and (NO_END if high is None else high) <= most)
