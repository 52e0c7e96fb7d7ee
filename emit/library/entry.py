"""One entry of a library's index, typed; the head of `emit.library.index` describes the fields of its row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeGuard

from emit.goal import Goal
from emit.library.goals import goal_stated
from emit.targets import TARGETS
from synth.model.text import format_served, format_spans
from topologies.text.fields import Fields, shown
from topologies.text.files import check_below, origin_of

INDEX = "index.json"
SCHEDULES = "schedules"  # folder of the schedules
ISOMORPHIC = "isomorphic_groups"
FORMS = {True: "-inplace", False: "-outofplace"}  # ending of a file's name if its form is not the usual one
FILE_KINDS = "file", "schedule", "proof_file"  # fields that name a file
_MOST_FIGURE, _MOST_POINTS = 1e200, 10_000  # largest number, most rows of a curve
_MOST_ISOMORPHIC = 100_000  # groups of an entry; a cluster file may name as many
_MOST = (1 << 63) - 1  # the largest size that executors' readers take
_MOST_US = 1e18
NO_END = 1 << 63  # exceeds all sizes
_RANGE = "vs_healthy_range"
_RATIOS = "vs", "vs_low", "vs_high"
_WORST = "bytes", "time_us", "bound_us", "gap"
_MEMBER = {"ranks", "collective", "size_bytes", "chunks"}  # fields of each of the `groups`
_DEFAULTS: dict[str, Any] = {"costs": {}, "groups": [dict.fromkeys(_MEMBER)], "sha256": {}}  # values of missing fields
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}"


@dataclass(frozen=True)
class IndexEntry:
    """An entry of a library's index: one file and what it serves.

    Sizes are in bytes and times in µs. `row` has the fields of the index that have no attribute.

    Attributes:
        collective: Name of the collective, or of a pattern.
        topology: Name of the topology; `any` for a program that was compiled for no topology.
        group: Ranks of the topology that take part, in order.
        relays: Ranks of the topology outside the group that forward.
        root: Rank of the topology that is the root; None for a collective without a root.
        file: The executor's file, as a path from the index; the property `path` is its place.
        target: Name of the executor.
        protocol: Protocol that the file is to run with, as its executor spells it.
        inplace: True for calls in place, False for calls out of place.
        min_bytes: Smallest message that the file serves: the larger of a rank's send and receive buffer.
        max_bytes: Largest message that it serves; None where there is no limit.
        folder: Folder of the index.
        row: The entry as it stands in the index, with all its fields in order.
        divides: Bytes, or elements if `counts_elements`, of which messages must be multiples.
        padding: Share of the fullest buffer that is padding.
        sizes: Proportions of the blocks, where they have sizes of their own; empty where blocks have one size.
        network: Digest of the network between the ranks and of a pattern; None if the index has none.
        answer: Name of the answer of a cluster's build; None elsewhere.
        schedule: The stored schedule, as a path from the index; None where none was written.
        proof_file: Its proof, as a path from the index; None where none was written.
        stated_goal: The row's field `goal`, unchecked; the method `goal` checks it.
        groups: The groups of a plan for concurrent groups: ranks, collective, size_bytes, chunks; else empty.
        isomorphic_groups: Further groups, each with its ranks in order, that the file serves as it serves `group`.
        shown_bytes: Message size of the next three figures; None where they are not known.
        time_us: Predicted time; None where it is not known.
        bound_us: Proved bound: nothing is faster; None where it is not known.
        gap: time / bound, at least 1; None where it is not known.
        asked: The least and the most bytes to which `at_sizes` limited the entry; None for all sizes.
    """

    collective: str
    topology: str
    group: tuple[int, ...]
    relays: tuple[int, ...]
    root: int | None
    file: str
    target: str
    protocol: str
    inplace: bool
    min_bytes: int
    max_bytes: int | None
    folder: Path
    row: Mapping[str, Any] = field(repr=False, compare=False)
    divides: int = 1
    padding: float = 0.0
    sizes: tuple[int, ...] = ()
    network: str | None = None
    answer: str | None = None
    schedule: str | None = None
    proof_file: str | None = None
    stated_goal: Mapping[str, Any] | None = field(default=None, compare=False)
    groups: Sequence[Mapping[str, Any]] = field(default=(), compare=False)
    isomorphic_groups: tuple[tuple[int, ...], ...] = ()
    shown_bytes: int | None = None
    time_us: float | None = None
    bound_us: float | None = None
    gap: float | None = None
    asked: tuple[int, int] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """Return the question, the form of calls, the sizes and the file in one line."""
        question = f"{self.collective} on {self.topology}, ranks {format_spans(self.group)}"
        form = "in place" if self.inplace else "out of place"
        return f"<{question}, {form}, {format_served(self.min_bytes, self.max_bytes)}: {self.file}>"

    @classmethod
    def of(cls, row: Mapping[str, Any], folder: Path, origin: str = "") -> IndexEntry:
        """Return the entry of a row.

        Args:
            row: Fields of the entry as they stand in the index.
            folder: Folder of the index.
            origin: Where the row stands, for messages; empty for one that is about to be written.

        Raises:
            InputError: If a field is missing or wrong.
        """
        return _entry(Fields(dict(row), "", origin or origin_of(folder / INDEX)), folder)

    def restated(self, **changes: object) -> IndexEntry:
        """Return a copy with other values of some fields of its row; raise InputError if a field is then wrong."""
        return IndexEntry.of({**self.row, **changes}, self.folder)

    @property
    def nranks(self) -> int:
        """Return the size of the group."""
        return len(self.group)

    @property
    def is_of_plan(self) -> bool:
        """Return True if the file is of a plan for concurrent groups, which `groups` lists."""
        return "groups" in self.row

    @property
    def path(self) -> Path:
        """Return the path of the executor's file, which need not exist.

        Raises:
            InputError: If a link leads to it; none is followed inside a library.
        """
        return self.inside(self.file)

    def inside(self, name: str) -> Path:
        """Return the path of a file of the library; raise InputError if a link leads to it."""
        return path_inside(self.folder, name)

    @property
    def files(self) -> dict[str, str]:
        """Return the names of the entry's files by the field that states each: file, schedule, proof_file."""
        return {kind: name for kind in FILE_KINDS if (name := getattr(self, kind)) is not None}

    @property
    def communicator(self) -> tuple[int, ...]:
        """Return the topology's rank of each rank of the file: the group, then the relays."""
        return self.group + self.relays

    @property
    def question(self) -> tuple[object, ...]:
        """Return what the file answers, and for which executor.

        It is collective, topology, group, relays, root, sizes and target.
        """
        return self.collective, self.topology, self.group, self.relays, self.root, self.sizes, self.target

    def answers(self, stated_question: Mapping[str, Any]) -> bool:
        """Return True if the file answers a question, stated as `synth.model.problem.question` does, on any target.

        Neither the network nor the sizes of messages are compared.
        """
        return all(self.row.get(key) == value for key, value in stated_question.items())

    @property
    def question_and_form(self) -> tuple[object, ...]:
        """Return the fields of `question`, then `inplace`; no two entries of an index with the same serve one size."""
        return *self.question, self.inplace

    def for_group(self, group: tuple[int, ...]) -> IndexEntry:
        """Return a copy for one of the `isomorphic_groups`: its ranks replace those of `group`, also as the root.

        Ranks correspond by their places in the two groups. The copy has no isomorphic groups of its own, and names the
        same file.
        """
        root = None if self.root is None else group[self.group.index(self.root)]
        stated = {"group": list(group), "communicator": list(group), "root": root}
        row = {key: value for key, value in self.row.items() if key != ISOMORPHIC} | stated
        return replace(self, group=group, root=root, row=row, isomorphic_groups=())

    def at_sizes(self, low: int, high: int) -> IndexEntry | None:
        """Return a copy that states only what the file does for messages of `low` to `high` bytes; None if it has none.

        The range, the curve and the largest gap are limited. If the size that is shown is outside, the curve's nearest
        size inside is shown, without a comparison with other libraries, which is known at the former size only.

        Args:
            low: Smallest size in bytes.
            high: Largest size in bytes, inclusive.
        """
        first, last = max(low, self.min_bytes), min(high, self.last_bytes)
        if first > last:
            return None
        points = [point for point in self.row.get("curve") or () if first <= point[0] <= last]
        worst = self.row.get("worst")
        changes: dict[str, Any] = {"min_bytes": first, "max_bytes": last, "curve": points}
        figures = [dict(zip(_WORST, (*point, max(1.0, point[1] / point[2])), strict=True)) for point in points]
        if worst and not first <= worst["bytes"] <= last:
            changes["worst"] = max(figures, key=itemgetter("gap"), default=None)
        if self.shown_bytes is not None and figures and not first <= self.shown_bytes <= last:
            shown = min(figures, key=lambda figure: abs(figure["bytes"] - self.shown_bytes))
            changes |= {"shown_bytes": shown["bytes"], "vs_baseline": None, "libraries": None}
            changes |= {"vs_healthy": None, _RANGE: None}
            changes |= {"optimal": None, "proof": None}  # Another witness may prove the bound there.
            changes |= {name: shown[name] for name in _WORST[1:]}
        return replace(self.restated(**changes), asked=(low, high))

    def stated_digest(self, kind: str) -> str | None:
        """Return the stated SHA-256 in hexadecimal digits of the file of one of FILE_KINDS; None if there is none."""
        digest: str | None = self.row.get("sha256", {}).get(kind)
        return digest

    @property
    def curve(self) -> list[tuple[float, float, float]]:
        """Return (bytes, time in µs, bound in µs) of each point of the entry's curve, bytes ascending; maybe none."""
        return sorted((float(a), float(b), float(c)) for a, b, c in self.row.get("curve") or ())

    @property
    def counts_elements(self) -> bool:
        """Return True if the executor divides messages into whole elements of the call's type, False if into bytes.

        `divides` is then a number of elements.
        """
        return not TARGETS[self.target].cell_bytes

    @property
    def last_bytes(self) -> int:
        """Return the largest message in bytes; a size beyond all messages if there is no limit."""
        return NO_END - 1 if self.max_bytes is None else self.max_bytes

    def in_range(self, size_bytes: int) -> bool:
        """Return True if a size is in the entry's range.

        Executors of this package run the file at any such size, other executors only where `serves` is true.
        """
        return self.min_bytes <= size_bytes and (self.max_bytes is None or size_bytes <= self.max_bytes)

    def unit(self, element_bytes: int = 1) -> int:
        """Return of how many bytes messages must be multiples, with elements of `element_bytes` bytes."""
        return self.divides * (element_bytes if self.counts_elements else 1)

    def serves(self, size_bytes: int, element_bytes: int = 1) -> bool:
        """Return True if the executor takes the file for messages of a size, with elements of `element_bytes` bytes."""
        return self.in_range(size_bytes) and size_bytes % self.unit(element_bytes) == 0

    def goal(self) -> Goal | None:
        """Return the goal that the entry states; None if the file itself says it.

        Raises:
            InputError: If the stated goal is malformed.
        """
        goal = self.stated_goal
        return None if goal is None else goal_stated(goal, f"{origin_of(self.folder / INDEX)}: {self.file}")


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file of the library in a folder; raise InputError if a link leads to it."""
    check_below(folder, folder / name)
    return folder / name


def vs_library(row: Mapping[str, Any], name: str, key: str = "vs") -> float | None:
    """Return a vendor library's time divided by ours, as an entry's row states it; None if it states no number above 0.

    Args:
        row: The entry's row.
        name: Name of the vendor library.
        key: Which ratio: "vs", or "vs_low" or "vs_high" for an end of its interval.
    """
    libraries = row.get("libraries")
    choice = libraries.get(name) if isinstance(libraries, Mapping) else None
    ratio = choice.get(key) if isinstance(choice, Mapping) else None
    return float(ratio) if is_figure(ratio) else None


def _is_comparison(row: Mapping[str, Any]) -> bool:
    """Return whether a library's row states the ratio `vs`, and nothing wrong as its interval `vs_low` to `vs_high`.

    Each of them must be a positive number; an end of the interval may be missing or null.
    """
    ends = [row.get(name) for name in _RATIOS[1:]]
    return is_figure(row.get(_RATIOS[0])) and all(end is None or is_figure(end) for end in ends)


def is_figure(value: object) -> TypeGuard[float]:
    """Return True if a value is a number above 0 and at most 1e200, and no bool, as times and sizes must be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MOST_FIGURE


def _entry(table: Fields, folder: Path) -> IndexEntry:
    """Return the entry of a row after checking its fields.

    Args:
        table: The row.
        folder: Folder of the index.

    Raises:
        InputError: If a field is missing or wrong, fields contradict each other, or JSON cannot express a value.
    """
    collective, topology, target_name, protocol = (
        _word(table, key) for key in ("collective", "topology", "target", "protocol")
    )
    if target_name not in TARGETS:
        table.fail("target", f"{shown(target_name)} is not known; it must be one of {', '.join(TARGETS)}")
    group, relays = _ranks(table, "group"), _ranks(table, "relays")
    if not group or set(group) & set(relays):
        table.fail("relays" if group else "group", "must be ranks, none of them in both group and relays")
    if table.integer("nranks", 1, _MOST) != len(group):
        table.fail("nranks", f"is {shown(table.values['nranks'])}; the group has {len(group)}")
    if _ranks(table, "communicator") != group + relays:
        table.fail("communicator", "must be the group's ranks, then the relays")
    root = None if _absent(table, "root") else table.integer("root", 0, _MOST)
    if root is not None and root not in group:
        table.fail("root", f"{root} is not in the group; it must be one of its ranks, or null")
    sizes = _sizes(table, len(group))
    low = table.integer("min_bytes", 0, _MOST)
    high = None if _absent(table, "max_bytes") else table.integer("max_bytes", low, _MOST)
    if "inplace" not in table.values:
        table.fail("inplace", "missing; it must be true or false")
    if not (_absent(table, "goal") or isinstance(table.values["goal"], dict)):
        table.fail("goal", "must be an object or null")
    try:  # The fields are copied to the next index, so they must be writable.
        as_json(table.values)
    except (ValueError, RecursionError):
        table.fail("", "holds a number beyond all floats, or is nested too deeply")
    check_types(table)
    target, row = TARGETS[target_name], table.values
    return IndexEntry(
        collective=collective,
        topology=topology,
        target=target_name,
        protocol=protocol,
        group=group,
        relays=relays,
        root=root,
        file=_file(table, "file", target.folder, target.suffix),
        inplace=table.boolean("inplace"),
        min_bytes=low,
        max_bytes=high,
        divides=table.integer("divides", 1, _MOST) if "divides" in row else 1,
        padding=row.get("padding", 0.0),
        sizes=sizes,
        network=row.get("network"),
        answer=row.get("answer"),
        schedule=_optional_file(table, "schedule", ".synth"),
        proof_file=_optional_file(table, "proof_file", ".proof.json"),
        stated_goal=row["goal"],
        groups=row.get("groups", ()),
        isomorphic_groups=_groups(table, group, relays),
        shown_bytes=row.get("shown_bytes"),
        time_us=row.get("time_us"),
        bound_us=row.get("bound_us"),
        gap=row.get("gap"),
        folder=folder,
        row=row,
    )


def check_types(table: Fields) -> None:
    """Raise InputError if a stated figure of an entry has the wrong type or is out of range.

    A figure that is null or missing states nothing, except that `padding`, `costs`, `groups` and `sha256` must be
    missing if they do not apply.

    Args:
        table: The entry's row.
    """
    stated_keys = {key for key, value in table.values.items() if value is not None}
    for key in stated_keys & {"shown_bytes"}:
        table.integer(key, 1, _MOST)
    for key in stated_keys & {"steps", "rounds", "chunks", "sends", "threadblocks"}:
        table.integer(key, 0, _MOST)
    for key in stated_keys & {"optimal", "switch_ops"}:
        table.boolean(key)
    for key in stated_keys & {"proof", "engine", "otherwise", "network", "answer", "script"}:
        text = table.values[key]
        if not (isinstance(text, str) and len(text) <= 4000 and text.isprintable()):
            table.fail(key, "must be a text of at most 4000 printable characters")
    for key in stated_keys & {"time_us", "bound_us", "gap", "vs_baseline", "vs_healthy"}:
        table.number(key, 0.0, _MOST_US, "µs or as a ratio")
    ends = [1.0, 1.0] if table.values.get(_RANGE) is None else table.values[_RANGE]
    if not (isinstance(ends, list) and len(ends) == 2 and all(map(is_figure, ends))):
        table.fail(_RANGE, f"is {shown(ends)}; it must be two positive numbers or null")
    padding = table.values.get("padding", 0.0)
    if type(padding) not in (int, float) or not 0 <= padding < 1:
        table.fail("padding", f"is {shown(padding)}; it must be a number from 0 to below 1")
    if not _is_curve(table.values.get("curve")):
        table.fail(
            "curve",
            f"must be an array of at most {_MOST_POINTS} rows [bytes, time in µs, bound in µs], of different bytes",
        )
    worst = table.values.get("worst")
    if worst is not None and not (isinstance(worst, dict) and _is_point([worst.get(key) for key in _WORST])):
        table.fail("worst", f"must be an object of figures {', '.join(_WORST)}, or null")
    libraries = table.values.get("libraries")
    if libraries is not None and not (
        isinstance(libraries, dict) and all(isinstance(row, dict) and _is_comparison(row) for row in libraries.values())
    ):
        table.fail("libraries", f"must be an object of objects, each with numbers {', '.join(_RATIOS)} above 0")
    _check_models(table)


def _check_models(table: Fields) -> None:
    """Raise InputError if `costs`, `groups` or `sha256` is present and not of the form that an index has.

    `costs` must be an object of protocols (texts) and source (a text), `groups` an array of objects of ranks,
    collective, size_bytes and chunks, and `sha256` an object of texts. An empty `costs` passes.
    """
    costs, groups, digests = (table.values.get(key, default) for key, default in _DEFAULTS.items())
    names = costs.get("protocols", []) if isinstance(costs, dict) else None
    is_named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if (
        not is_named
        or (costs and costs.keys() != {"protocols", "source"})
        or not isinstance(costs.get("source", ""), str)
    ):
        table.fail("costs", "must be an object with protocols and source; it must be missing if costs are off")
    members = groups if isinstance(groups, list) else [None]
    if not all(isinstance(row, dict) and row.keys() == _MEMBER for row in members):
        table.fail("groups", f"must be an array of objects with {', '.join(sorted(_MEMBER))}")
    if not isinstance(digests, dict) or not all(isinstance(value, str) for value in digests.values()):
        table.fail("sha256", "must be an object of texts")


def _is_curve(value: object) -> bool:
    """Return True if a value is null or a list of at most 10,000 rows [bytes, time, bound].

    Bytes must be a whole number, different in each row, and all three must be positive.
    """
    rows = [] if value is None else value
    return (
        isinstance(rows, list)
        and len(rows) <= _MOST_POINTS
        and all(isinstance(row, list) and len(row) == 3 and _is_point(row) for row in rows)
        and len({row[0] for row in rows}) == len(rows)
    )


def _is_point(values: Sequence[object]) -> bool:
    """Return True if the first value is a whole number of bytes, and all values are positive numbers."""
    return type(values[0]) is int and values[0] <= _MOST and all(map(is_figure, values))


def as_json(value: object) -> str:
    """Return a value as JSON on one line, in Unicode; raise ValueError for a number that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ": "))


def _word(table: Fields, key: str) -> str:
    """Return a field that is a text of 1 to 4000 printable characters; else raise InputError."""
    value = table.string(key)
    if not (0 < len(value) <= 4000 and value.isprintable()):
        table.fail(key, "must be 1 to 4000 printable characters")
    return value


def _absent(table: Fields, key: str) -> bool:
    """Return True if a field is null; raise InputError if it is missing."""
    if key not in table.values:
        table.fail(key, "missing; it must be null if there is none")
    return table.values[key] is None


def _ranks(table: Fields, key: str) -> tuple[int, ...]:
    """Return a field that is an array of different ranks, maybe of none; else raise InputError."""
    value = table.values.get(key)
    if not isinstance(value, list) or not all(type(rank) is int and 0 <= rank <= _MOST for rank in value):
        table.fail(key, "must be an array of ranks, such as [0, 2, 4]")
    if len(set(value)) < len(value):
        table.fail(key, "names a rank twice; it must be once")
    return tuple(value)


def _sizes(table: Fields, nranks: int) -> tuple[int, ...]:
    """Return the sizes of blocks in an entry, as many as ranks or as pairs of ranks; none if the field is missing."""
    sizes = table.values.get("sizes", [])
    is_list = isinstance(sizes, list) and all(type(size) is int and 0 <= size <= _MOST for size in sizes)
    if not is_list or len(sizes) not in (0, nranks, nranks * nranks) or (sizes and gcd(*sizes) != 1):
        form = "an array of whole numbers without a common divisor"
        table.fail("sizes", f"must be {form}, one for each rank, or for each pair of ranks")
    return tuple(sizes)


def _groups(table: Fields, group: tuple[int, ...], relays: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the isomorphic groups of an entry; none if the field is missing.

    Raises:
        InputError: Unless they are at most 100,000 groups, different from `group` and each other, of as many ranks as
            `group`, and the entry has no relays.
    """
    rows = table.values.get(ISOMORPHIC, [])
    if not isinstance(rows, list) or (rows and relays) or len(rows) > _MOST_ISOMORPHIC:
        table.fail(
            ISOMORPHIC, f"must be an array of at most {_MOST_ISOMORPHIC} groups, and none where there are relays"
        )
    groups = tuple(_ranks(Fields({ISOMORPHIC: row}, "", table.origin), ISOMORPHIC) for row in rows)
    if any(len(other_group) != len(group) for other_group in groups) or len({group, *groups}) <= len(groups):
        table.fail(ISOMORPHIC, f"must each be {len(group)} ranks as the group is, and no group twice")
    return groups


def _file(table: Fields, key: str, folder: str, suffix: str) -> str:
    """Return a field that names a file FOLDER/NAME and its suffix, below the index.

    NAME has up to 250 letters, digits, `_`, `.` and `-`, and begins with no `.` or `-`.

    Raises:
        InputError: If the field is missing or is any other text.
    """
    value = table.string(key)
    if not re.fullmatch(f"{folder}/{_NAME}{re.escape(suffix)}", value):
        table.fail(key, f"{shown(value)} is elsewhere; it must be {folder}/NAME{suffix}")
    return value


def _optional_file(table: Fields, key: str, suffix: str) -> str | None:
    """Return the path of a schedule or a proof in the library, or None if the field is null.

    Raises:
        InputError: If the field is missing, or names no file in the folder of schedules with the suffix.
    """
    return None if _absent(table, key) else _file(table, key, SCHEDULES, suffix)
