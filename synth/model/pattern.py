"""Read a user's own pattern from a TOML file.

name = "halo"
ranks = 4
[[chunk]]            # a value; several positions in `from` hold copies of it
from = [0]
to = "1-3"
weight = 2           # relative size, 1 when left out
count = 4            # that many chunks like this
[[chunk]]
reduce = true        # each holder has a contribution; each `to` must hold each of them once
from = "all"
to = [0]
of = [0, 1]          # only these contributions
data = "x"           # entries that name the same data read the same place of a rank's input buffer
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from synth.model.collective import Collective, Floats, Ints, make_collective
from synth.model.numbers import as_folder, taking
from synth.model.registry import parse_name
from synth.model.sizes import MAX_CELLS, MAX_FILE_BYTES, MAX_POSITIONS
from topologies.errors import InputError
from topologies.text.fields import Fields, parse_toml, shown
from topologies.text.files import origin_of, read_text

MAX_COUNT = 100_000
# Beyond these a chunk is negligible next to another, and its share of the message loses its digits.
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e9
_TOP = ("name", "ranks", "chunk")
_CHUNK = ("name", "from", "to", "reduce", "of", "data", "weight", "count")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, eq=False)
class _PatternEntry:
    """A [[chunk]] table of the file: `count` equal chunks with the same holders and goals.

    Attributes:
        table: The table as read, for error messages.
        holders: Positions that hold the chunks before, ascending.
        goals: Positions that want the chunks after, ascending.
        reduces: Whether the chunks are sums.
        data: Name of the data that the chunks read; empty if they share it with no other entry.
        weight: Relative size of one chunk.
        count: Number of chunks.
    """

    table: Fields
    holders: Ints
    goals: Ints
    reduces: bool
    data: str
    weight: float
    count: int


@taking('synth.read_pattern("halo.toml")')
def read_pattern(path: str | Path) -> Collective:
    """Return the collective of a pattern file, with one chunk a block and its root at position 0.

    The message size is the larger of the fullest send buffer and the fullest receive buffer: the largest sum of weights
    that a position holds before (the same data once) or wants after. A chunk's fraction is its weight over that.
    Chunks are numbered in file order, and so are a position's places. Its input buffer has one place for each chunk
    that it holds, or one for all chunks of the same `data`; its output buffer has one for each chunk that it wants. A
    position outside `of` does not hold the chunk.

    Chunks are routed separately even where they name the same data: a schedule does not build one chunk's sum from
    another's, and a bound holds for such schedules only.

    Raises:
        InputError: The file cannot be read, is not TOML, or does not state a pattern with something to move.
    """
    path = path if isinstance(path, str | Path) else as_folder(path, "path")
    text, origin = read_text(path, "a pattern's .toml file", MAX_FILE_BYTES), origin_of(path)
    top = parse_toml(text, origin, "a pattern's two keys and [[chunk]] tables")
    top.only(_TOP)
    name = _read_name(top)
    nranks = top.integer("ranks", 2, MAX_POSITIONS)
    tables = top.tables("chunk")
    if not tables:
        top.fail("chunk", "missing; it must be at least one chunk under a line [[chunk]]")
    entries: list[_PatternEntry] = []
    cells = 0
    for table in tables:
        entry = _read_entry(table, nranks)
        cells += entry.count * (len(entry.holders) + len(entry.goals))
        if cells > MAX_CELLS:
            table.fail("count", f"up to here {cells} entries (rank, chunk); it must be at most {MAX_CELLS}")
        entries.append(entry)
    _check_data(entries)
    if not any(_moves(entry) for entry in entries):
        top.fail("chunk", "every chunk is already where it is wanted; it must be wanted at another position")
    return _assemble(name, nranks, entries)


def _read_name(top: Fields) -> str:
    """Read the pattern's name: 1 to 40 ASCII letters, digits, `_` and `-`.

    Raises:
        InputError: The name is missing, has another form, or is a spelling of a known collective.
    """
    name = top.string("name")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
        top.fail("name", f"{shown(name)} is no short plain word; it must be 1 to 40 letters, digits, _ or -")
    collective = ""
    with suppress(InputError):
        collective = parse_name(name)
    if collective:  # Other rooms go by the name, and would take a pattern called allreduce for the all-reduce.
        top.fail("name", f"{shown(name)} is the collective {collective}; it must be a name of its own")
    return name


def _read_entry(table: Fields, nranks: int) -> _PatternEntry:
    """Read one [[chunk]] table of a pattern over `nranks` positions; a `name` in it is read and ignored.

    `of` replaces the holders. Left out, `reduce` is false, `weight` and `count` are 1.

    Raises:
        InputError: A field is missing, unknown or not right.
    """
    table.only(_CHUNK)
    table.string("name", "")
    holders, goals = _read_positions(table, "from", nranks), _read_positions(table, "to", nranks)
    reduces = table.boolean("reduce")
    if "of" in table.values:
        if not reduces:
            table.fail("of", "contributions belong to a sum; it must be left out, or reduce = true")
        chosen = _read_positions(table, "of", nranks)
        outside = np.setdiff1d(chosen, holders)
        if len(outside):
            table.fail("of", f"position {outside[0]} is not in `from`; it must be positions that hold the chunk")
        holders = chosen
    data = table.string("data", "")
    if "data" in table.values and not (data.isprintable() and 1 <= len(data) <= 40):
        table.fail("data", f"{shown(data)} is no name; it must be 1 to 40 printable characters")
    weight = table.number("weight", MIN_WEIGHT, MAX_WEIGHT, "(relative size)") if "weight" in table.values else 1.0
    count = table.integer("count", 1, MAX_COUNT) if "count" in table.values else 1
    return _PatternEntry(table, holders, goals, reduces, data, weight, count)


def _read_positions(table: Fields, key: str, nranks: int) -> Ints:
    """Read the positions that a field states as "all", "0-3,6" or [0, 1], ascending.

    Raises:
        InputError: The field is missing or empty, has another form, or names a position outside 0..nranks-1 or twice.
    """
    form = 'it must be a range such as "0-3,6", a list such as [0, 1] or "all"'
    if key not in table.values:
        table.fail(key, f"missing; {form}")
    value = table.values[key]
    if value in ("", []):
        table.fail(key, f"is empty; {form}")
    if value == "all":
        return np.arange(nranks, dtype=np.int64)
    spans: list[tuple[int, int]] = []
    nentries = value.count(",") + 1 if type(value) is str else len(value) if isinstance(value, list) else 0
    if nentries > nranks:
        table.fail(key, f"names {nentries} of {nranks} positions; it must be each once")
    if type(value) is str:
        for item in value.split(","):
            span = _RANGE.fullmatch(item.strip())
            if span is None:
                table.fail(key, f"{shown(item.strip())} is no position and no range; {form}")
            spans.append((int(span[1]), int(span[2] or span[1])))
    elif isinstance(value, list):
        for item in value:
            if type(item) is not int:
                table.fail(key, f"holds {shown(item)}, which is no position; {form}")
            spans.append((item, item))
    else:
        table.fail(key, f"{shown(value)} is no set of positions; {form}")
    is_listed = np.zeros(nranks, dtype=bool)
    for low, high in spans:
        if low > high:
            table.fail(key, f"range {low}-{high} runs backwards; it must be {high}-{low}")
        for end in (low, high):
            if not 0 <= end < nranks:
                table.fail(key, f"position {shown(end)} does not exist; it must be 0 to {nranks - 1}")
        if is_listed[low : high + 1].any():
            twice = low + int(np.argmax(is_listed[low : high + 1]))
            table.fail(key, f"position {twice} is given twice; it must be once")
        is_listed[low : high + 1] = True
    return np.flatnonzero(is_listed)


def _check_data(entries: list[_PatternEntry]) -> None:
    """Check the entries that name the same data.

    Raises:
        InputError: They differ in weight or count, two sums have the same holders, or two plain values a common holder.
    """
    first: dict[str, _PatternEntry] = {}
    values: set[tuple[str, int]] = set()
    sums: set[tuple[str, bytes]] = set()
    for entry in entries:
        if not entry.data:
            continue
        earlier = first.setdefault(entry.data, entry)
        for key, value, earlier_value in (
            ("weight", entry.weight, earlier.weight),
            ("count", entry.count, earlier.count),
        ):
            if value != earlier_value:
                text = f"{value:g}, but {earlier_value:g} in an earlier chunk of data {shown(entry.data)}"
                entry.table.fail(key, f"{text}; it must be the same for the same data")
        # Two chunks for one value would be sent, and counted in bounds, twice.
        if entry.reduces:
            repeated = (entry.data, entry.holders.tobytes()) in sums
            sums.add((entry.data, entry.holders.tobytes()))
        else:
            repeated = any((entry.data, holder) in values for holder in entry.holders.tolist())
            values.update((entry.data, holder) for holder in entry.holders.tolist())
        if repeated:
            text = f"an earlier chunk has this {'sum' if entry.reduces else 'value'} of {shown(entry.data)}"
            entry.table.fail("data", f"{text}; it must be one chunk to all positions")


def _moves(entry: _PatternEntry) -> bool:
    """Return whether an entry's chunks must be sent at all.

    A sum must be unless one position holds and wants all of it; a plain value must be if a goal does not hold it.
    """
    if entry.reduces:
        return len(np.union1d(entry.holders, entry.goals)) > 1
    return len(np.setdiff1d(entry.goals, entry.holders)) > 0


def _assemble(name: str, nranks: int, entries: list[_PatternEntry]) -> Collective:
    """Build the collective of all entries, which have been checked; see `read_pattern` for its order and places."""
    used_in, used_out = np.zeros(nranks, dtype=np.int64), np.zeros(nranks, dtype=np.int64)
    sent, received = np.zeros(nranks), np.zeros(nranks)
    place_of_data: dict[tuple[str, int], int] = {}
    pre: list[Ints] = []  # rows (rank, chunk, place)
    post: list[Ints] = []
    first = 0
    for entry in entries:
        fresh = entry.holders
        if entry.data:
            fresh = np.array([r for r in fresh.tolist() if (entry.data, r) not in place_of_data], dtype=np.int64)
            place_of_data.update({(entry.data, r): int(used_in[r]) for r in fresh.tolist()})
            begin = np.array([place_of_data[entry.data, r] for r in entry.holders.tolist()], dtype=np.int64)
        else:
            begin = used_in[entry.holders]
        part = np.arange(entry.count)
        for rows, positions, places in ((pre, entry.holders, begin), (post, entry.goals, used_out[entry.goals])):
            rank, chunk = np.repeat(positions, entry.count), np.tile(first + part, len(positions))
            rows.append(np.column_stack([rank, chunk, (places[:, None] + part).ravel()]))
        used_in[fresh] += entry.count
        used_out[entry.goals] += entry.count
        sent[fresh] += entry.weight * entry.count
        received[entry.goals] += entry.weight * entry.count
        first += entry.count
    pre_rows, post_rows = np.concatenate(pre), np.concatenate(post)
    counts = [entry.count for entry in entries]
    weight: Floats = np.repeat(np.array([entry.weight for entry in entries]), counts)
    reduces, share = (
        np.repeat(np.array([entry.reduces for entry in entries]), counts),
        weight / max(sent.max(), received.max()),
    )
    cells = (pre_rows[:, :2], post_rows[:, :2], pre_rows[:, 2], post_rows[:, 2])
    return make_collective(name, nranks, share, *cells, nchunks=first, reduces=reduces)
