"""A user's own pattern from a TOML file, the size matrix of an alltoallv, and sizes such as 64K.

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

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synth.model.collective import Collective, Floats, Ints
from synth.model.registry import parse_name
from topologies.errors import InputError
from topologies.text.fields import Fields, shown
from topologies.text.files import origin_of, read_text
from topologies.text.toml import parsed_toml

__all__ = ["MAX_FILE_BYTES", "parse_size", "read_pattern", "read_sizes"]

MAX_FILE_BYTES = 16 * 2**20
MAX_POSITIONS = 4096
MAX_COUNT = 100_000
MAX_CELLS = 5_000_000  # entries (rank, chunk); a file of a few lines can ask for any number of them
MAX_SIZE = 2**60  # bytes
# Beyond these a chunk is nothing beside another, and its share of the message loses its digits.
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e9
_TOP = ("name", "ranks", "chunk")
_CHUNK = ("name", "from", "to", "reduce", "of", "data", "weight", "count")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SIZE = re.compile(r"([0-9]{1,30})\s*([KMG]?)(?:(?<=[KMG])I)?B?")
_POWER = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE_FORM = "write whole bytes, or K, M or G for powers of 1024, such as 4096, 64K, 1M or 2GiB"


@dataclass(frozen=True, eq=False)
class _Entry:
    """One [[chunk]]: `count` chunks of `weight` with these holders (positions, ascending) and goals."""

    table: Fields
    holders: Ints
    goals: Ints
    reduces: bool
    data: str
    weight: float
    count: int


def read_pattern(path: str | Path) -> Collective:
    """The collective that a pattern file states, with one chunk a block and its root at position 0.

    The message size is the largest sum of weights that a position holds before (its fullest send buffer, the
    same data once); a chunk's fraction is its weight over that. Chunks are numbered in file order, and so are
    a position's places: in its input buffer one a chunk that it holds, or one for all chunks of the same
    `data`; in its output buffer one a chunk that it wants. A position outside `of` does not hold the chunk.

    Chunks travel apart even where they name the same data: a schedule does not build one chunk's sum out of
    another's, and a bound speaks of such schedules only.

    Raises:
        InputError: the file cannot be read, is not TOML, or does not state a pattern with something to move.
    """
    text, origin = read_text(path, "a pattern's .toml file", MAX_FILE_BYTES), origin_of(path)
    document = parsed_toml(text, origin, "a pattern is two keys and [[chunk]] tables")
    top = Fields(document, text, origin)
    top.only(_TOP)
    name = _name(top)
    nranks = top.integer("ranks", 2, MAX_POSITIONS)
    tables = top.tables("chunk")
    if not tables:
        top.fail("chunk", "missing; state at least one chunk under a line [[chunk]]")
    entries: list[_Entry] = []
    cells = 0
    for table in tables:
        entry = _entry(table, nranks)
        cells += entry.count * (len(entry.holders) + len(entry.goals))
        if cells > MAX_CELLS:
            table.fail(
                "count",
                f"up to here {cells} entries (rank, chunk); at most {MAX_CELLS}, use fewer and heavier chunks",
            )
        entries.append(entry)
    _check_data(entries)
    if not any(_moves(entry) for entry in entries):
        top.fail("chunk", "every chunk is already where it is wanted; name another position in some `to`")
    return _assembled(name, nranks, entries)


def _name(top: Fields) -> str:
    name = top.string("name")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
        top.fail("name", f"{shown(name)} is no short plain word; write 1 to 40 letters, digits, _ or -")
    known = ""
    with suppress(InputError):
        known = parse_name(name)
    if known:  # others go by the name: a pattern called allreduce would be taken for it
        top.fail("name", f"{shown(name)} is the collective {known}; give the pattern a name of its own")
    return name


def _entry(table: Fields, nranks: int) -> _Entry:
    table.only(_CHUNK)
    table.string("name", "")
    holders, goals = _positions(table, "from", nranks), _positions(table, "to", nranks)
    reduces = table.boolean("reduce", False)
    if "of" in table.values:
        if not reduces:
            table.fail("of", "contributions belong to a sum; write reduce = true, or leave `of` out")
        chosen = _positions(table, "of", nranks)
        outside = np.setdiff1d(chosen, holders)
        if len(outside):
            table.fail(
                "of", f"position {outside[0]} is not in `from`; name only positions that hold the chunk"
            )
        holders = chosen
    data = table.string("data", "")
    if "data" in table.values and not (data.isprintable() and 1 <= len(data) <= 40):
        table.fail("data", f"{shown(data)} is no name; write 1 to 40 printable characters")
    weight = 1.0
    if "weight" in table.values:
        weight = table.number("weight", MIN_WEIGHT, MAX_WEIGHT, "(relative size)")
    count = table.integer("count", 1, MAX_COUNT) if "count" in table.values else 1
    return _Entry(table, holders, goals, reduces, data, weight, count)


def _positions(table: Fields, key: str, nranks: int) -> Ints:
    """Positions of "all", "0-3,6" or [0, 1], ascending."""
    form = 'write a range such as "0-3,6", a list such as [0, 1] or "all"'
    if key not in table.values:
        table.fail(key, f"missing; {form}")
    value = table.values[key]
    if value in ("", []):
        table.fail(key, f"is empty; {form}")
    if value == "all":
        return np.arange(nranks, dtype=np.int64)
    spans: list[tuple[int, int]] = []
    named = value.count(",") + 1 if type(value) is str else len(value) if isinstance(value, list) else 0
    if named > nranks:
        table.fail(key, f"names {named} of {nranks} positions; name each once")
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
    seen = np.zeros(nranks, dtype=bool)
    for low, high in spans:
        if low > high:
            table.fail(key, f"range {low}-{high} runs backwards; write {high}-{low}")
        for end in (low, high):
            if not 0 <= end < nranks:
                table.fail(key, f"position {shown(end)} does not exist; positions are 0 to {nranks - 1}")
        if seen[low : high + 1].any():
            twice = low + int(np.argmax(seen[low : high + 1]))
            table.fail(key, f"position {twice} is given twice; name each once")
        seen[low : high + 1] = True
    return np.flatnonzero(seen)


def _check_data(entries: list[_Entry]) -> None:
    """Entries of the same data must agree, and no two may state one value apart from itself."""
    first: dict[str, _Entry] = {}
    values: set[tuple[str, int]] = set()
    sums: set[tuple[str, bytes]] = set()
    for entry in entries:
        if not entry.data:
            continue
        known = first.setdefault(entry.data, entry)
        for key, mine, other in (("weight", entry.weight, known.weight), ("count", entry.count, known.count)):
            if mine != other:
                entry.table.fail(
                    key,
                    f"{mine:g}, but {other:g} in an earlier chunk of data {shown(entry.data)};"
                    " the same data has one weight and one count",
                )
        # Two chunks for one value would be sent, and counted in bounds, twice over.
        if entry.reduces:
            again = (entry.data, entry.holders.tobytes()) in sums
            sums.add((entry.data, entry.holders.tobytes()))
        else:
            again = any((entry.data, holder) in values for holder in entry.holders.tolist())
            values.update((entry.data, holder) for holder in entry.holders.tolist())
        if again:
            what = "sum" if entry.reduces else "value"
            entry.table.fail(
                "data",
                f"an earlier chunk has this {what} of {shown(entry.data)}; state it once, all positions in `to`",
            )


def _moves(entry: _Entry) -> bool:
    if entry.reduces:
        return len(np.union1d(entry.holders, entry.goals)) > 1
    return len(np.setdiff1d(entry.goals, entry.holders)) > 0


def _assembled(name: str, nranks: int, entries: list[_Entry]) -> Collective:
    used_in, used_out = np.zeros(nranks, dtype=np.int64), np.zeros(nranks, dtype=np.int64)
    load = np.zeros(nranks)
    shared: dict[tuple[str, int], int] = {}
    columns: list[tuple[Ints, Ints, Ints, Ints, Ints, Ints]] = []
    first = 0
    for entry in entries:
        part = np.arange(entry.count)
        fresh = entry.holders
        if entry.data:
            fresh = np.array([r for r in fresh.tolist() if (entry.data, r) not in shared], dtype=np.int64)
            shared.update({(entry.data, r): int(used_in[r]) for r in fresh.tolist()})
            begin = np.array([shared[entry.data, r] for r in entry.holders.tolist()], dtype=np.int64)
        else:
            begin = used_in[entry.holders]
        columns.append(
            (
                np.repeat(entry.holders, entry.count),
                np.tile(first + part, len(entry.holders)),
                (begin[:, None] + part).ravel(),
                np.repeat(entry.goals, entry.count),
                np.tile(first + part, len(entry.goals)),
                (used_out[entry.goals][:, None] + part).ravel(),
            )
        )
        used_in[fresh] += entry.count
        used_out[entry.goals] += entry.count
        load[fresh] += entry.weight * entry.count
        first += entry.count
    holder, held, in_index, goal, wanted, out_index = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    before, after = np.lexsort((held, holder)), np.lexsort((wanted, goal))
    counts = [entry.count for entry in entries]
    weight: Floats = np.repeat(np.array([entry.weight for entry in entries]), counts)
    return Collective(
        name=name,
        nranks=nranks,
        chunks=1,
        nchunks=first,
        reduces=np.repeat(np.array([entry.reduces for entry in entries]), counts),
        fraction=weight / load.max(),
        pre=np.column_stack([holder, held])[before],
        post=np.column_stack([goal, wanted])[after],
        in_index=in_index[before],
        out_index=out_index[after],
    )


def parse_size(text: str, what: str) -> int:
    """Bytes of `4096`, `64K`, `1M`, `2GiB`, …: K, M and G are powers of 1024, as in nccl-tests.

    Raises:
        InputError: not such a size, 0, negative or over 2**60 bytes; the line begins with `what`.
    """
    size = _bytes(text, what)
    if size < 1:
        raise InputError(
            f"{what}: {shown(text)} is no message; it must be 1 byte or more, such as 4096 or 64K"
        )
    return size


def _bytes(text: str, what: str) -> int:
    plain = text.strip()
    size = _SIZE.fullmatch(plain.upper()) if plain.isascii() else None
    if size is None:
        kind = "negative" if re.fullmatch(r"-\s*[0-9].*", plain) else "no size"
        raise InputError(f"{what}: {shown(text)} is {kind}; {_SIZE_FORM}")
    value = int(size[1]) << _POWER[size[2]]
    if value > MAX_SIZE:
        raise InputError(f"{what}: {shown(text)} is too large; at most {MAX_SIZE} bytes (2^60, {2**30}G)")
    return value


def read_sizes(path: str | Path) -> Ints:
    """Bytes that position i sends to position j, int64 of shape (k, k), 2 ≤ k ≤ 4096.

    The file is text, k rows of k sizes with commas or blanks between them and `#` before comments, or JSON,
    an array of k arrays. Sizes as `parse_size` takes them, 0 included.

    Raises:
        InputError: the file cannot be read, an entry is no size, or the rows do not make a square.
    """
    text, origin = read_text(path, "a file with the size matrix", MAX_FILE_BYTES), origin_of(path)
    rows = _json_rows(text, origin) if text.lstrip().startswith(("[", "{")) else _plain_rows(text, origin)
    width = len(rows[0][1]) if rows else 0
    for place, row in rows:
        if len(row) != width:
            raise InputError(
                f"{place}: has {len(row)} sizes, the first row has {width}; rows must be equally long"
            )
    if len(rows) != width or not 2 <= width <= MAX_POSITIONS:
        raise InputError(
            f"{origin}: has {len(rows)} rows of {width} sizes;"
            f" it must be k rows of k sizes, k from 2 to {MAX_POSITIONS}"
        )
    sizes = np.array([row for _, row in rows], dtype=np.int64)
    if np.count_nonzero(sizes) > MAX_CELLS:
        raise InputError(f"{origin}: {np.count_nonzero(sizes)} sizes above 0; at most {MAX_CELLS}")
    return sizes


def _few(count: int, what: str, place: str) -> None:
    if count > MAX_POSITIONS:
        raise InputError(f"{place}: has {count} {what} or more; at most {MAX_POSITIONS}")


def _plain_rows(text: str, origin: str) -> list[tuple[str, list[int]]]:
    rows: list[tuple[str, list[int]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        items = [i.strip() for i in content.split(",")] if "," in content else content.split()
        _few(len(items), "sizes in a row", f"{origin}:{number}")
        _few(len(rows) + 1, "rows", f"{origin}:{number}")
        row = [_bytes(item, f"{origin}:{number}: column {j}") for j, item in enumerate(items, start=1)]
        rows.append((f"{origin}:{number}", row))
    return rows


def _json_rows(text: str, origin: str) -> list[tuple[str, list[int]]]:
    form = "write an array of k arrays of k sizes in bytes"
    try:
        table = json.loads(text)
    except RecursionError:
        raise InputError(f"{origin}: nested too deeply; {form}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{origin}:{error.lineno}: not JSON: {error.msg}, column {error.colno}") from None
    except ValueError:
        raise InputError(f"{origin}: holds a number of more than 4300 digits; {form}") from None
    if not isinstance(table, list):
        raise InputError(f"{origin}: holds {shown(table)}; {form}")
    _few(len(table), "rows", origin)
    rows: list[tuple[str, list[int]]] = []
    for i, row in enumerate(table, start=1):
        if not isinstance(row, list):
            raise InputError(f"{origin}: row {i} is {shown(row)}; {form}")
        _few(len(row), "sizes in a row", f"{origin}: row {i}")
        cells = [_json_size(x, f"{origin}: row {i}, column {j}") for j, x in enumerate(row, start=1)]
        rows.append((f"{origin}: row {i}", cells))
    return rows


def _json_size(value: Any, what: str) -> int:
    if type(value) is float and value.is_integer() and abs(value) <= MAX_SIZE:
        value = int(value)
    if type(value) is int and abs(value) <= MAX_SIZE:
        value = str(value)
    if type(value) is not str:
        raise InputError(f"{what}: {shown(value)} is no size; {_SIZE_FORM}")
    return _bytes(value, what)
