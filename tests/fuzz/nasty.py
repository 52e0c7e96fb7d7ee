"""Hostile inputs made by hand: small files that need much memory or time, and large ones with little content."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable

from tests.fuzz.formats import FORMATS

Made = Callable[[], bytes]
MIB = 1 << 20


def _xml(body: str, ngpus: int = 1, chunks: int = 1, coll: str = "allreduce") -> bytes:
    return (
        f'<algo name="x" proto="LL" nchannels="1" nchunksperloop="{chunks}" ngpus="{ngpus}" coll="{coll}" '
        f'inplace="1" outofplace="0" minBytes="0" maxBytes="0">{body}</algo>'
    ).encode()


def _gpu(rank: int, body: str, i: int = 1, o: int = 0, s: int = 0) -> str:
    return f'<gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">{body}</gpu>'


def _tb(tb: int, steps: list[str], send: int = -1, recv: int = -1) -> str:
    inside = "".join(f'<step s="{x}" {words} depid="-1" deps="-1" hasdep="0"/>' for x, words in enumerate(steps))
    return f'<tb id="{tb}" send="{send}" recv="{recv}" chan="0">{inside}</tb>'


COPY = 'type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1"'
WIDE = 'type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="71"'
SUM = 'type="re" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"'


def _many_steps(mib: int, words: str = COPY) -> bytes:
    count = mib * MIB // 110
    return _xml(_gpu(0, _tb(0, [words] * count), i=71, s=71), chunks=71)


def _exchange(rank: int, steps: int, n: int) -> str:
    """Return a rank of a ring that passes a chunk on in every step."""
    words = 'type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"'
    return _gpu(rank, _tb(0, [words] * steps, (rank + 1) % n, (rank - 1) % n))


def _waits(blocks: int) -> bytes:
    """Return a program whose threadblocks each wait for the one before and write the same cell."""
    out = []
    for t in range(blocks):
        dep = f'depid="{min(t - 1, 1023)}" deps="0"' if t else 'depid="-1" deps="-1"'
        out.append(f'<tb id="{t}" send="-1" recv="-1" chan="0"><step s="0" {COPY} {dep} hasdep="1"/></tb>')
    return _xml(_gpu(0, "".join(out), s=1))


XML: dict[str, Made] = {
    "nothing": lambda: b"",
    "billion laughs": lambda: (
        b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "lol">'
        + b"".join(b'<!ENTITY %c "%s">' % (98 + x, b"&%c;" % (97 + x) * 10) for x in range(9))
        + b"]><algo>&j;</algo>"
    ),
    "external entity": lambda: b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><algo name="&x;"/>',
    "deep": lambda: b"<gpu>" * 500_000,
    "a comment of 60 MiB": lambda: b"<!--" + b"-" * (60 * MIB),
    "a tag of 60 MiB": lambda: b"<algo " + b'a="1" ' * (10 * MIB),
    "a name of 60 MiB": lambda: b"<" + b"a" * (60 * MIB),
    "blanks": lambda: b" " * (63 * MIB),
    "open tags of 60 MiB": lambda: b"<" * (60 * MIB),
    "comments of 60 MiB": lambda: b"<!---->" * (8 * MIB),
    "comments of dashes of 60 MiB": lambda: b"<!----->" * (7 * MIB),
    "as large as may be": lambda: b"x" * (65 * MIB),
    "steps of 6 MiB": lambda: _many_steps(6),
    "steps of 63 MiB": lambda: _many_steps(63),
    "wide steps of 60 MiB": lambda: _many_steps(60, WIDE),
    "sums of 20 MiB": lambda: _many_steps(20, SUM),
    "a million chunks on 4096 ranks": lambda: _xml(
        "".join(_gpu(r, "", i=1 << 20, o=1 << 20, s=1 << 20) for r in range(4096)), 4096, 1 << 20
    ),
    "a gather of a million chunks": lambda: _xml(
        "".join(_gpu(r, "", i=1 << 20, o=1 << 20) for r in range(64)), 64, 1 << 20, "gather"
    ),
    "an all-to-all as large as a goal may be": lambda: _xml(
        "".join(_gpu(r, "", i=512, o=512) for r in range(1024)), 1024, 1024, "allreduce"
    ),
    "sums that grow for ever": lambda: _xml("".join(_exchange(r, 20_000, 8) for r in range(8)), 8),
    "a root to be sought among 4096": lambda: _xml(
        "".join(_gpu(r, "", i=8, o=8) for r in range(4096)), 4096, 8, "broadcast"
    ),
    "1024 waits": lambda: _waits(1024),
    "100000 threadblocks": lambda: _xml(
        _gpu(0, "".join(_tb(t, [COPY]) for t in range(100_000)), s=1)
    ),
    "the largest numbers": lambda: _xml("").replace(b'"1"', b'"9223372036854775807"'),
}  # fmt: skip


def _toml(ranks: int, more: str = "") -> bytes:
    return f'name = "x"\nranks = {ranks}\n{more}'.encode()


TOML: dict[str, Made] = {
    "nothing": lambda: b"",
    "a million ranks": lambda: _toml(1_000_000),
    "a million ranks in a star": lambda: _toml(
        1_000_000, 'switches = ["s"]\n[[links]]\nfrom = "0-999999"\nto = "s"\nboth = true\ngbs = 1\nalpha_us = 1\n'
    ),
    "every pair of 3000": lambda: _toml(3000, '[[links]]\nfrom = "0-2999"\nto = "0-2999"\ngbs = 1\nalpha_us = 1\n'),
    "every pair of a million": lambda: _toml(
        1_000_000, '[[links]]\nfrom = "0-999999"\nto = "0-999999"\ngbs = 1\nalpha_us = 1\n'
    ),
    "every pair, again and again": lambda: _toml(
        3000, '[[links]]\nfrom = "0-2999"\nto = "0-2999"\ngbs = 1\nalpha_us = 1\n' * 1000
    ),
    "limits over every pair": lambda: _toml(
        2000,
        '[[links]]\nfrom = "0-1999"\nto = "0-1999"\ngbs = 1\nalpha_us = 1\n'
        + "".join(f'[[limits]]\nname = "l{x}"\npairs = "0-1999>0-1999"\ngbs = 1\n' for x in range(200)),
    ),
    "a million NICs": lambda: _toml(1000, "[nic]\ncount = 1000000\ngbs = 1\nalpha_us = 1\n"),
    "two million switches": lambda: _toml(2, 'switches = ["a[0-999998]", "b[0-999999]"]\n'),
    "a key of 40000 dots": lambda: b"a." * 40_000 + b"a = 0",
    "keys of 1000 dots": lambda: b"".join(b"k%d." % x + b"a." * 1000 + b"a = 0\n" for x in range(5000)),
    "tables of 15 MiB": lambda: b"".join(b"[%x]\n" % x for x in range(15 * MIB // 9)),
    "tables in tables of 15 MiB": lambda: b"[[a]]\n" + b"".join(b"[[a.%x]]\n" % x for x in range(15 * MIB // 12)),
    "links without anything of 15 MiB": lambda: _toml(2) + b"[[links]]\n" * (15 * MIB // 10),
    "inline tables of 15 MiB": lambda: b"a = [" + b"{}," * (5 * MIB) + b"]",
    "values of 15 MiB": lambda: b"a = [" + b"{a.b=0}," * (15 * MIB // 8) + b"]",
    "numbers of 15 MiB": lambda: _toml(2) + b"[[links]]\nmatrix = [[" + b"1," * (7 * MIB) + b"]]\n",
    "one string of 15 MiB": lambda: b'name = "' + b"x" * (15 * MIB) + b'"',
    "pairs of 15 MiB": lambda: _toml(
        4, '[[links]]\npairs = "' + "0>1 " * (15 * MIB // 4) + '"\ngbs = 1\nalpha_us = 1\n'
    ),
    "one range many times": lambda: _toml(
        1_000_000, '[[links]]\nfrom = "' + "0-999999," * 100_000 + '0"\nto = "0"\ngbs = 1\nalpha_us = 1\n'
    ),
    "one NIC's ranks many times": lambda: _toml(
        1_000_000, "[nic]\nserves = [" + '"0-999999",' * 100_000 + "]\ngbs = 1\nalpha_us = 1\n"
    ),
    "dots and blanks of 15 MiB": lambda: b"a " * (7 * MIB) + b"." * MIB,
    "quotes of 15 MiB": lambda: b'"' * (15 * MIB),
    "brackets of 1 MiB": lambda: b"a = " + b"[" * MIB,
    "a number of a million digits": lambda: _toml(2).replace(b"2", b"9" * MIB),
    "a million lines of [ and a fault": lambda: _toml(2, "[[links]]\n" * 100_000 + "gbs = 0\n"),
}  # fmt: skip

PATTERN: dict[str, Made] = {
    "nothing": lambda: b"",
    "as many entries as may be": lambda: _toml(4096, '[[chunk]]\nfrom = [0]\nto = "1-4095"\ncount = 9000\n'),
    "more entries than may be": lambda: _toml(4096, '[[chunk]]\nfrom = "all"\nto = "all"\ncount = 100000\n'),
    "many chunks": lambda: _toml(4096, '[[chunk]]\nfrom = [0]\nto = "1-4095"\n' * 4000),
    "one data many times": lambda: _toml(
        4096, "".join(f'[[chunk]]\nfrom = [{x}]\nto = "all"\ndata = "a"\n' for x in range(4096))
    ),
    "a key of 40000 dots": TOML["a key of 40000 dots"],
    "chunks without anything of 15 MiB": lambda: _toml(2) + b"[[chunk]]\n" * (15 * MIB // 10),
    "a list of 15 MiB": lambda: _toml(4096, "[[chunk]]\nfrom = [" + "0," * (7 * MIB) + "]\nto = [1]\n"),
    "a range of 15 MiB": lambda: _toml(4096, '[[chunk]]\nfrom = "' + "0," * (7 * MIB) + '1"\nto = [1]\n'),
}  # fmt: skip

SIZES: dict[str, Made] = {
    "nothing": lambda: b"",
    "JSON of 15 MiB": lambda: b"[" + b"[]," * (5 * MIB) + b"[]]",
    "objects of 15 MiB": lambda: b"[" + b"{}," * (5 * MIB) + b"{}]",
    "brackets of 1 MiB": lambda: b"[" * MIB,
    "one row of 15 MiB": lambda: b"0," * (7 * MIB) + b"0\n",
    "one column of 15 MiB": lambda: b"0\n" * (7 * MIB),
    "numbers of 15 MiB": lambda: b"[[" + b"1," * (7 * MIB) + b"1]]",
    "as large as may be": lambda: b"\n".join([b" ".join([b"1"] * 2000)] * 2000),
    "a number of a million digits": lambda: b"0 " + b"9" * MIB + b"\n1 0\n",
    "negative": lambda: b"[[0, -1], [1, 0]]",
    "not finite": lambda: b"[[0, NaN], [Infinity, 1e999]]",
}  # fmt: skip


def _zipped(header: object, **columns: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        archive.writestr(zipfile.ZipInfo("header.json"), text)
        for name, data in columns.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data)
    return buffer.getvalue()


def _stated(**changes: object) -> dict[str, object]:
    """Return the header of a schedule file of four ranks, with changes."""
    with zipfile.ZipFile(io.BytesIO(FORMATS["schedule"].seeds()[0])) as archive:
        header: dict[str, object] = json.loads(archive.read("header.json"))
    return header | changes


def _named(name: str, ranks: int, chunks: int, fold: object = None) -> bytes:
    topology = _toml(
        ranks,
        f'switches = ["s"]\n[[links]]\nfrom = "0-{ranks - 1}"\nto = "s"\nboth = true\ngbs = 1\nalpha_us = 1\n',
    )
    about = {
        "name": name,
        "ranks": ranks,
        "chunks": chunks,
        "nchunks": ranks * chunks,
        "root": 0,
        "columns": False,
    }
    return _zipped(
        _stated(topology=topology.decode(), collective=about, group=list(range(ranks)), relays=[], fold=fold)
    )


STORED: dict[str, Made] = {
    "nothing": lambda: b"",
    "an empty zip": lambda: _zipped({}),
    "a header of objects of 60 MiB": lambda: _zipped(b"[" + b"{}," * (20 * MIB) + b"{}]"),
    "a header of lists of 60 MiB": lambda: _zipped(b'{"a": [' + b"[]," * (20 * MIB) + b"[]]}"),
    "a header of one string of 60 MiB": lambda: _zipped(b'{"format": "' + b"x" * (60 * MIB) + b'"}'),
    "a header of brackets": lambda: _zipped(b"[" * MIB),
    "an all-to-all of 6000 ranks": lambda: _named("alltoall", 6000, 1),
    "an all-reduce in 9 million chunks": lambda: _named("allreduce", 4, 9_000_000),
    "a broadcast to a million": lambda: _named("broadcast", 500_000, 40),
    "a folded all-to-all": lambda: _named("alltoall", 4096, 1, [[1, 4096]]),
    "as many ranks behind a switch as may be": lambda: _named("broadcast", 1500, 1),
    "an all-to-all behind a switch as large as may be": lambda: _named("alltoall", 1250, 1),
    "an all-gather in as many chunks as may be": lambda: _named("allgather", 4, 300_000),
    "a topology of a million ranks": lambda: _zipped(_stated(topology=_toml(1_000_000).decode())),
    "a million sends that are not there": lambda: _zipped(_stated(sends=1 << 39)),
    "a zip that unpacks to more": lambda: FORMATS["schedule"].seeds()[0].replace(b"\0\0", b"\xff\xff"),
}  # fmt: skip

PROOF: dict[str, Made] = {
    "nothing": lambda: b"",
    "objects of 200 MiB": lambda: b'{"witnesses": [' + b"{}," * (66 * MIB) + b"{}]}",
    "lists of 100 MiB": lambda: b'{"witnesses": [' + b"[]," * (33 * MIB) + b"[]]}",
    "numbers of 200 MiB": lambda: b'{"witnesses": [' + b"1000," * (40 * MIB) + b"1]}",
    "a string of 200 MiB": lambda: b'{"schedule": "' + b"x" * (200 * MIB) + b'"}',
    "brackets": lambda: b"[" * MIB,
    "a number of a million digits": lambda: b'{"gap": ' + b"9" * MIB + b"}",
    "too large": lambda: b" " * (257 * MIB),
}  # fmt: skip

INDEX: dict[str, Made] = {
    "nothing": lambda: b"",
    "objects of 23 MiB": lambda: b'{"format": "synth-index-2", "algorithms": [' + b"{}," * (23 * MIB // 3) + b"{}]}",
    "keys of 23 MiB": lambda: b'{"a": [' + b'{"":0},' * (23 * MIB // 7) + b"{}]}",
    "brackets": lambda: b"[" * MIB,
    "a string of 23 MiB": lambda: b'{"format": "' + b"x" * (23 * MIB) + b'"}',
    "too large": lambda: b" " * (25 * MIB),
}  # fmt: skip


def _plan(**changes: object) -> bytes:
    """Return a plan of four ranks with changed fields."""
    document = json.loads(FORMATS["MSCCL++ plan"].seeds()[0])
    return json.dumps(document | changes).encode()


def _gpus(count: int, **changes: object) -> bytes:
    """Return a plan of `count` ranks, all equal to the first rank of a small plan except for their number."""
    document = json.loads(FORMATS["MSCCL++ plan"].seeds()[0])
    gpus = [document["gpus"][0] | {"id": x} | changes for x in range(count)]
    return json.dumps(document | {"gpus": gpus}).encode()


PLAN: dict[str, Made] = {
    "nothing": lambda: b"",
    "objects of 23 MiB": lambda: b'{"gpus": [' + b"{}," * (23 * MIB // 3) + b"{}]}",
    "lists of 23 MiB": lambda: b'{"gpus": [' + b"[]," * (23 * MIB // 3) + b"[]]}",
    "keys of 23 MiB": lambda: b'{"gpus": [' + b'{"":0},' * (23 * MIB // 7) + b"{}]}",
    "brackets": lambda: b'{"a":' + b"[" * MIB,
    "a string of 23 MiB": lambda: b'{"name": "' + b"x" * (23 * MIB) + b'"}',
    "a number of a million digits": lambda: b'{"gpus": ' + b"9" * MIB + b"}",
    "too large": lambda: b"{" + b" " * (25 * MIB),
    "no ranks": lambda: _plan(gpus=[]),
    "5000 ranks": lambda: _gpus(5000),
    "chunks without end": lambda: _gpus(4, input_chunks=1 << 30, output_chunks=1 << 30, scratch_chunks=1 << 30),
    "a million chunks": lambda: _gpus(4, input_chunks=1 << 20, output_chunks=1 << 20, scratch_chunks=1 << 20),
}  # fmt: skip

NASTY: dict[str, dict[str, Made]] = {
    "MSCCL XML": XML,
    "MSCCL++ plan": PLAN,
    "topology TOML": TOML,
    "pattern TOML": PATTERN,
    "size matrix": SIZES,
    "schedule": STORED,
    "proof JSON": PROOF,
    "index JSON": INDEX,
}
