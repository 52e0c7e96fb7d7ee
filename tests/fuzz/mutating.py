"""Hostile inputs made from valid ones: damage to a text, a JSON document or a zip of columns."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

MOST_BYTES = 400_000  # Size of a mutated input; larger ones are made by hand (`nasty`).
NUMBERS = (
    b"0", b"-0", b"-1", b"1", b"2", b"7", b"64", b"255", b"4095", b"4096", b"65536", b"1000000", b"16777216",
    b"2147483647", b"2147483648", b"-2147483649", b"4294967296", b"1099511627776", b"9007199254740993",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1e9", b"1e308", b"1e309", b"-1e309",
    b"1e-320", b"0.1", b"-0.0", b"nan", b"inf", b"-inf", b"NaN", b"Infinity", b"-Infinity", b"0x10", b"0o7", b"1_0",
    b"01", b"+1", b".5", b"5.", b"1e", b"--1", b"9" * 400, b"9" * 5000, b"0." + b"3" * 4000, "²".encode(), "٣".encode(),
)  # fmt: skip
PIECES = (
    b"\0", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", "\u202e".encode(),
    "\u2028".encode(), b"\r", b"\r\n", b"\n", b"\t", b"\x1b[31m", b'"', b"'", b"'''", b'"""', b"\\", b"\\u0000",
    b"\\ud800", b"\\uDFFF", b"<", b">", b"/>", b"</tb>", b"<gpu>", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"&a;",
    b"&#0;", b"&#x10FFFF;", b"<?xml version='1.0'?>", b"<!DOCTYPE a [", b"[", b"]", b"{", b"}", b"[[", b"]]", b",",
    b":", b"=", b"#", b".", b"..", b"true", b"false", b"null", b"%s", b"%n", b"../../etc/passwd", b"/dev/zero",
    b"A" * 300, b"A" * 70_000, b" " * 5000,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 63, 1 << 20, 1 << 31, 1 << 40, 1 << 53, 1 << 63, -(1 << 63), 10**400, 0.5, -0.0,
    1e300, -1e300, 1e-300, "", "a", "0", "\0", "\ud800", "\u202e", "x" * 5000, "../x", "i", [], {}, [[]], [{}], [0],
    [None], [1, 1], list(range(300)), [[0, 0]] * 50, {"a": 1}, {"": {}},
)  # fmt: skip
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
Seeds = Sequence[bytes]


def damaged_text(seeds: Seeds, rng: random.Random) -> bytes:
    """Apply one to six kinds of damage to a text."""
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
        data = rng.choice(_TEXT)(data, seeds, rng)[:MOST_BYTES]
    return data


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    low = rng.randrange(len(data) + 1)
    return low, min(len(data), low + rng.choice((0, 1, 2, 8, 40, 400)))


def _flip(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if new:
            new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    return bytes(new)


def _cut(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    low, high = _span(data, rng)
    return data[:low] + data[high:]


def _repeat(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    low, high = _span(data, rng)
    times = rng.choice((1, 2, 3, 50, 1000))
    return data[:low] + data[low:high] * times + data[low:]


def _splice(data: bytes, seeds: Seeds, rng: random.Random) -> bytes:
    donor = rng.choice(seeds)
    low, high = _span(donor, rng)
    position = rng.randrange(len(data) + 1)
    return data[:position] + (donor[low:high] if rng.random() < 0.6 else donor[low:])


def _insert(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    low, high = _span(data, rng)
    return data[:low] + rng.choice(PIECES) + data[rng.choice((low, high)) :]


def _noise(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    low, high = _span(data, rng)
    return data[:low] + rng.randbytes(rng.choice((1, 4, 64))) + data[high:]


def _number(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    number = rng.choice(numbers)
    digits = number[0].lstrip(b"-")[:15]
    neighbour = str(int(digits) + rng.choice((-1, 1))).encode() if digits.isdigit() else b"7"
    new = rng.choice(NUMBERS) if rng.random() < 0.7 else neighbour
    return data[: number.start()] + new + data[number.end() :]


def _word(data: bytes, seeds: Seeds, rng: random.Random) -> bytes:
    """Replace a word by a word of a file of the same format."""
    pattern = re.compile(rb'"[^"\n]{0,40}"|[A-Za-z_]{1,30}')
    words, replacements = list(pattern.finditer(data)), pattern.findall(rng.choice(seeds))
    if not words or not replacements:
        return data
    word = rng.choice(words)
    return data[: word.start()] + rng.choice(replacements) + data[word.end() :]


def _line(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    x, y = rng.randrange(len(lines)), rng.randrange(len(lines))
    change_kind = rng.randrange(4)
    if change_kind == 0:
        lines[x], lines[y] = lines[y], lines[x]
    elif change_kind == 1:
        lines.insert(y, lines[x])
    elif change_kind == 2:
        del lines[x]
    else:
        lines[x:x] = [lines[y]] * rng.choice((2, 30, 500))
    return b"\n".join(lines)


def _nested(data: bytes, _: Seeds, rng: random.Random) -> bytes:
    deep = rng.choice((3, 100, 1200, 40_000))
    opening, closing = rng.choice(
        (
            (b"[", b"]"),
            (b'{"a":', b"}"),
            (b"{a=", b"}"),
            (b"a.", b""),
            (b"<gpu>", b"</gpu>"),
            (b"(", b")"),
            (b"[[", b"]]"),
        )
    )
    low, high = _span(data, rng)
    return data[:low] + opening * deep + data[low:high] + closing * (deep if rng.random() < 0.7 else 0) + data[high:]


_TEXT: tuple[Callable[[bytes, Seeds, random.Random], bytes], ...] = (
    _flip, _flip, _cut, _drop, _repeat, _splice, _insert, _insert, _noise, _number, _number, _number, _word, _word,
    _line, _nested,
)  # fmt: skip


def damaged_xml(seeds: Seeds, rng: random.Random) -> bytes:
    """Return a program with other steps and plausible numbers, or with a damaged text."""
    if rng.random() < 0.4:
        return damaged_text(seeds, rng)
    lines = rng.choice(seeds).decode().split("\n")
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        x = rng.randrange(len(lines))
        names = re.findall(r' ([a-zA-Z_]+)="', lines[x])
        if rng.random() < 0.15 and "<step" in lines[x]:
            y = rng.randrange(len(lines))
            rng.choice((lambda x, y: lines.insert(y, lines[x]), lambda x, _: lines.pop(x)))(x, y)
        elif names:
            name = rng.choice(names)
            small = str(rng.choice((-1, 0, 1, 2, 3, 4, 5, 7, 8, 31, 32, 63, 71, 100, 1023, 32767, 1 << 20)))
            word = rng.choice(
                (*"ios", "s", "r", "cpy", "re", "rcs", "rrc", "rrs", "rrcs", "nop", "Simple", "LL", "custom")
            )
            value = small if rng.random() < 0.8 else word
            lines[x] = re.sub(f' {name}="[^"]*"', f' {name}="{value}"', lines[x], count=1)
    if rng.random() < 0.7:  # Right positions, so that readers reach the other damage.
        position = 0
        for x, line in enumerate(lines):
            position = 0 if "<tb" in line else position
            if "<step" in line:
                lines[x] = re.sub(r' s="[^"]*"', f' s="{position}"', line, count=1)
                position += 1
    return "\n".join(lines).encode()[:MOST_BYTES]


def damaged_json(seeds: Seeds, rng: random.Random) -> bytes:
    """Return a JSON document with a few other values, or with a damaged text."""
    if rng.random() < 0.35:
        return damaged_text(seeds, rng)
    document = json.loads(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 5))):
        document = _changed(document, rng)
    text = json.dumps(document, indent=rng.choice((None, 1)))
    return _twice(text, rng).encode("utf-8", "surrogatepass")[:MOST_BYTES]


def _twice(text: str, rng: random.Random) -> str:
    """Return the text with a repeated key in one of ten cases."""
    keys = list(re.finditer(r'"[a-z_]+": ', text))
    if not keys or rng.random() < 0.9:
        return text
    key = rng.choice(keys)
    return text[: key.start()] + key[0] + rng.choice(("1, ", "null, ", '"a", ')) + text[key.start() :]


def _changed(document: Any, rng: random.Random) -> Any:
    """Replace, remove, repeat or wrap one value anywhere in the document."""
    holders: list[Any] = []
    unvisited = [document]
    while unvisited:
        value = unvisited.pop()
        if isinstance(value, (dict, list)) and value:
            holders.append(value)
            # A few numbers of a long row suffice.
            unvisited += list(value.values())[:50] if isinstance(value, dict) else value[:20]
    if not holders:
        return deepcopy(rng.choice(VALUES))
    holder = rng.choice(holders)
    key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    change_kind = rng.randrange(8)
    old = holder[key]
    if change_kind == 0:
        del holder[key]
    elif change_kind == 1:
        holder[key] = [old]
    elif change_kind == 2 and isinstance(holder, list):
        holder.insert(key, old)
    elif change_kind == 3 and isinstance(holder, list) and len(holder) < 2000:
        holder *= rng.choice((2, 20))
    elif change_kind == 4 and isinstance(holder, dict):
        holder[rng.choice(("x", "", "a" * 200, *map(str, list(holder)[:3])))] = old
    elif change_kind == 5 and type(old) in (int, float) and abs(old) < 1 << 60:
        holder[key] = old + rng.choice((-1, 1, 0.5))
    elif change_kind == 6:
        holder[key] = rng.choice(list(holder.values()) if isinstance(holder, dict) else holder)
    else:
        holder[key] = deepcopy(rng.choice(VALUES))
    return document


def damaged_zip(seeds: Seeds, rng: random.Random) -> bytes:
    """Return a zip with another header or column, or with damaged bytes."""
    if rng.random() < 0.3:
        return damaged_text(seeds, rng)
    with zipfile.ZipFile(io.BytesIO(rng.choice(seeds))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice([*members, "header.json", "header.json"])
        if name not in members:
            continue
        change_kind = rng.randrange(12)
        if change_kind == 0:
            del members[name]
        elif change_kind == 1:
            members[rng.choice(("x.npy", "a/b.npy", "../../x.npy", "HEADER.JSON", "chunk.npy"))] = members[name]
        elif change_kind == 2:
            members[name] = damaged_text([members[name]], rng)
        elif name == "header.json":
            members[name] = _header(members[name], rng)
        else:
            members[name] = _column(members[name], rng)
    buffer = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if rng.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    data = buffer.getvalue()
    return damaged_text([data], rng) if rng.random() < 0.1 else data


def _header(data: bytes, rng: random.Random) -> bytes:
    """Return the header with another field, or with a damaged text of its topology."""
    try:
        header = json.loads(data)
        if isinstance(header, dict) and isinstance(header.get("topology"), str) and rng.random() < 0.3:
            text = damaged_text([header["topology"].encode()], rng)
            return json.dumps(header | {"topology": text.decode("utf-8", "replace")}).encode()
        return damaged_json([data], rng)
    except (ValueError, RecursionError):
        return damaged_text([data], rng)


def _column(data: bytes, rng: random.Random) -> bytes:
    """Return a .npy column with another value, shape or type."""
    change_kind = rng.randrange(4)
    if change_kind == 0:
        shapes = (b"(0,)", b"(1,)", b"(999999999999,)", b"(-1,)", b"(3, 3)", b"()", b"(2, 999)", b"(1e9,)")
        return re.sub(rb"\([0-9]+,[ 0-9]*\)", rng.choice(shapes), data, count=1)
    if change_kind == 1:
        return re.sub(rb"[<|][bif][1248]", rng.choice((b"<f4", b"|O8", b"<i8", b"|b1", b"<f8", b"|i1")), data, count=1)
    position = rng.randrange(128, len(data)) if len(data) > 128 else len(data) // 2
    value = rng.choice((-1, 0, 1, 127, 255, 1 << 31, (1 << 63) - 1))
    width = rng.choice((1, 2, 4, 8))
    value_bytes = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    if rng.random() < 0.3:
        value_bytes = struct.pack("<d", rng.choice((float("nan"), float("inf"), -1.0, 1e300, 5e-324)))
    return data[:position] + value_bytes + data[position + len(value_bytes) :]
