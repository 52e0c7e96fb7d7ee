"""Tests of the table for C: an independent reader and the C header find the answers of `Selector` in it."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emit.library.index import index_text, parse_index
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector
from emit.library.selection.table import HEADER, table_bytes
from tests.emit.library.made_indices import Row, entry_row
from tests.emit.library.table_reader import TableReader
from tests.emit.library.test_selector import libraries, parsed
from topologies.errors import InputError

MAIN = r"""
#include "synth_table.h"
#include <stdio.h>
#include <stdlib.h>
/* asks FILE what stands on stdin, a call a line: collective target inplace root bytes element_bytes n m ranks */
int main(int argc, char **argv) {
  static uint64_t read[1 << 18];
  FILE *f = fopen(argv[1], "rb");
  size_t bytes = fread(read, 1, sizeof read, f), i;
  void *file = memcpy(malloc(bytes), read, bytes); /* a block of its size, so that a read beyond it is seen */
  const struct synth_table *t = (const struct synth_table *)file;
  const char *error = synth_table_error(file, bytes);
  char what[256], whom[256];
  int inplace;
  long long root;
  unsigned long long size;
  uint32_t element, n, m, order[64], sorted[64];
  (void)argc;
  if (error) { printf("%s\n", error); free(file); return 1; }
  while (scanf("%255s %255s %d %lld %llu %u %u %u", what, whom, &inplace, &root, &size, &element, &n, &m) == 8) {
    for (i = 0; i < n + m; i++) {
      size_t j = i;
      if (scanf("%u", &order[i]) != 1) return 2;
      for (; j > (i < n ? 0 : n) && sorted[j - 1] > order[i]; j--) sorted[j] = sorted[j - 1];
      sorted[j] = order[i];
    }
    const struct synth_record *r = synth_choose(t, synth_find_group(t, sorted, n, sorted + n, m),
        synth_find_name(t, what), synth_find_name(t, whom), inplace, root, size, element, order);
    printf("%s", r ? synth_text(t, r->file) : "-");
    for (i = 0; r && i < n + m; i++) printf(" %u", synth_ranks(t, r->communicator)[i]);
    printf("%s\n", r && !synth_orders_group(t, r) ? " of no order" : "");
  }
  free(file);
  return 0;
}
"""


def made(rows: list[Row]) -> bytes:
    data = index_text(rows)
    return table_bytes(parse_index(data, "index.json", Path("library")), data, rows[0]["topology"])


def calls(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """Return a call for the group and the further groups of every entry."""
    for row in rows:
        for group in (row["group"], *row.get("isomorphic_groups", ())):
            root = None if row["root"] is None else group[row["group"].index(row["root"])]
            yield {key: row[key] for key in ("collective", "target", "inplace", "relays")} | {
                "group": group,
                "root": root,
            }


def chosen(selector: Selector, call: dict[str, Any], size: int, element_bytes: int) -> tuple[str, list[int]] | None:
    further_arguments = {key: call[key] for key in ("target", "root", "relays")}
    call_arguments = call["collective"], len(call["group"]), tuple(call["group"]), call["inplace"]
    library_call = LibraryCall(*call_arguments, **further_arguments, element_bytes=element_bytes, any_order=True)
    entry = selector.choose(library_call, size)
    return None if entry is None else (entry.file, list(entry.communicator))


def of_one_topology(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["topology"] == rows[0]["topology"]]


@settings(max_examples=30)
@given(libraries(), st.sampled_from([1, 2, 4]))
def test_an_independent_reader_finds_the_answers_of_the_selector(
    library: tuple[list[Row], list[Row]], element_bytes: int
) -> None:
    assume(library[0])
    rows = of_one_topology(library[0])
    selector, table = Selector(parsed(rows)), TableReader(made(rows))
    assert table.topology == rows[0]["topology"]
    assert table.index == hashlib.sha256(index_text(rows)).digest()
    for call in calls(rows):
        for size in range(62):
            serving = table.serving(call, size, element_bytes)
            exact = [r for r in serving if table.communicator(r) == [*call["group"], *call["relays"]]]
            first = next(iter([*exact, *serving]), None)
            right = None if first is None else (table.text(first.file), table.communicator(first))
            assert chosen(selector, call, size, element_bytes) == right


@settings(max_examples=30)
@given(libraries())
def test_ranges_of_a_question_are_sorted_and_meet(
    library: tuple[list[Row], list[Row]],
) -> None:
    assume(library[0])
    table = TableReader(made(of_one_topology(library[0])))

    def question(r: Any) -> tuple[Any, ...]:
        return r.group, r.collective, r.target, r.flags & 1, r.root

    for earlier, later in pairwise(table.records):
        assert question(earlier) <= question(later)
        if question(earlier) == question(later) and table.communicator(earlier) == table.communicator(later):
            assert earlier.max_bytes < later.min_bytes
    assert table.names == sorted(table.names)
    assert sorted(set(table.groups)) == sorted(table.groups)


def compiled(source: Path, program: Path) -> Path:
    """Build a C program from its source with the header and the sanitizers."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    strict = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-I", str(HEADER.parent))
    subprocess.run([compiler, *strict, str(source), "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the C reader."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "main.c").write_text(MAIN)
    return compiled(folder / "main.c", folder / "main")


def asked_in_c(reader: Path, data: bytes, lines: list[str]) -> list[str]:
    file = reader.parent / "library.table"
    file.write_bytes(data)
    ran = subprocess.run([reader, file], input="\n".join(lines), capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@settings(max_examples=20)
@given(library=libraries(), element_bytes=st.sampled_from([1, 2, 4]))
def test_the_header_finds_the_answers_of_the_selector(
    reader: Path, library: tuple[list[Row], list[Row]], element_bytes: int
) -> None:
    assume(library[0])
    rows = [row | {"topology": "t"} for row in of_one_topology(library[0])]
    selector = Selector(parsed(rows))
    lines, right = [], []
    for call in [*calls(rows), *({**call, "group": call["group"][::-1]} for call in calls(rows))]:
        for size in (0, 1, 2, 7, 12, 24, 39, 40, 60, 61, 1 << 40):
            root = -1 if call["root"] is None else call["root"]
            ranks = *call["group"], *call["relays"]
            counts = len(call["group"]), len(call["relays"])
            words = call["collective"], call["target"], int(call["inplace"]), root, size, element_bytes, *counts, *ranks
            lines.append(" ".join(map(str, words)))
            answer = chosen(selector, call, size, element_bytes)
            right.append("-" if answer is None else " ".join(map(str, (answer[0], *answer[1]))))
    assert asked_in_c(reader, made(rows), lines) == right


def test_the_header_reads_damaged_tables_safely(reader: Path) -> None:
    """Check that a changed or cut table gives a line or an answer, and that nothing beyond its end is read."""
    good = made([entry_row(max_bytes=9), entry_row(min_bytes=10, file="msccl/b.xml", isomorphic_groups=[[4, 5, 6, 7]])])
    call = ["allreduce executor-nccl 1 -1 12 4 4 0 0 2 4 6"]
    assert asked_in_c(reader, good, call) == ["msccl/b.xml 0 2 4 6"]
    for at, value, words in (
        (0, b"X", "is no table"), (8, struct.pack("<I", 2), "another version"), (12, b"\1\2\3\4", "little-endian"),
        (20, struct.pack("<I", 80), "wrong size"), (24, struct.pack("<Q", 1), "is cut off"),
        (32, struct.pack("<I", 99), "section beyond"), (48, struct.pack("<Q", 1 << 63), "section beyond"),
        (88, struct.pack("<I", 1 << 31), "section beyond"), (128, struct.pack("<I", 9), "record beyond"),
        (128 + 64, struct.pack("<I", 1 << 20), "record beyond"), (128 + 48, bytes(8), "record beyond"),
        (128 + 64, struct.pack("<I", 3), "not as large as its group"),
        (128 + 20, struct.pack("<I", 1), "not as large as its group"),
        (good.index(b"msccl/a.xml"), b"../cl/a.xml", "outside its folder"),
        (good.index(b"msccl/a.xml"), b"/msccl/.xml", "outside its folder"),
        (good.index(b"msccl/a.xml"), b"msccl/../xm", "outside its folder"),
        (good.index(b"msccl/a.xml"), b"msccl/a\nxml", "outside its folder"),
    ):  # fmt: skip
        assert words in asked_in_c(reader, good[:at] + value + good[at + len(value) :], call)[0]
    assert asked_in_c(reader, good[:-8], call) == ["is cut off"]
    assert asked_in_c(reader, good[:100], call) == ["is no table"]


def test_a_longer_record_reads_nothing_beyond_the_callers_order(reader: Path) -> None:
    """Check that the length of the caller's group bounds the comparison with its `order`."""
    good = made([entry_row(max_bytes=9), entry_row(group=[0, 1], communicator=[0, 1], nranks=2, file="msccl/b.xml")])
    record = next(128 + 88 * i for i, r in enumerate(TableReader(good).records) if r.nranks == 2)
    forged = good[: record + 64] + struct.pack("<I", 4) + good[record + 68 :]
    call = ["allreduce executor-nccl 1 -1 12 4 2 0 0 1"]
    assert asked_in_c(reader, good, call) == ["msccl/b.xml 0 1"]
    assert asked_in_c(reader, forged, call) == ["has a record whose communicator is not as large as its group"]


def test_a_communicator_with_wrong_ranks_is_refused(reader: Path) -> None:
    good = made([entry_row(relays=[1, 3], communicator=[0, 2, 4, 6, 1, 3])])
    at = good.index(struct.pack("<6I", 0, 2, 4, 6, 1, 3))
    call = ["allreduce executor-nccl 1 -1 12 4 4 2 0 2 4 6 1 3"]
    assert asked_in_c(reader, good, call) == ["msccl/a.xml 0 2 4 6 1 3"]
    # The communicator is appended, so that the group's own ranks do not change with it.
    for ranks in ((0, 2, 4, 4, 1, 3), (0, 2, 4, 7, 1, 3), (0, 2, 4, 6, 1, 1), (0, 2, 4, 6, 1, 0), (0, 2, 4, 1, 6, 3)):
        changed = bytearray(good[:at] + good[at : at + 24] + struct.pack("<6I", *ranks) + good[at + 24 :])
        struct.pack_into("<Q", changed, 24, len(changed))
        struct.pack_into("<I", changed, 44, 12)
        struct.pack_into("<Q", changed, 80, struct.unpack_from("<Q", changed, 80)[0] + 24)
        struct.pack_into("<I", changed, 128 + 60, 6)
        assert asked_in_c(reader, bytes(changed), call) == [f"msccl/a.xml {' '.join(map(str, ranks))} of no order"]


def test_no_mutated_table_or_call_reads_beyond_its_end(tmp_path: Path) -> None:
    """Run a share of the 200,000 mutations of `python -m tests.emit.library.test_table`."""
    assert fuzzed(tmp_path, 20_000) > 1000


def fuzzed(folder: Path, count: int) -> int:
    """Run so many mutations of one table, of which the sanitizers may report nothing; return how many were served."""
    program = compiled(Path(__file__).parent / "table_fuzz.c", folder / "fuzz")
    (folder / "library.table").write_bytes(
        made(
            [
                entry_row(max_bytes=9),
                entry_row(min_bytes=10, file="msccl/b.xml", isomorphic_groups=[[4, 5, 6, 7]]),
                entry_row(group=[6, 2, 4, 0], communicator=[6, 2, 4, 0], file="msccl/c.xml"),
                entry_row(group=[0, 1], communicator=[0, 1], nranks=2, file="msccl/d.xml"),
                entry_row(group=[0, 1], relays=[5, 3], communicator=[0, 1, 5, 3], nranks=2, file="msccl/e.xml"),
                entry_row(collective="broadcast", root=2, inplace=False, file="msccl/f.xml"),
            ]
        )
    )
    ran = subprocess.run(
        [program, folder / "library.table", str(count), "1"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr[:2000]
    return int(ran.stdout.split()[2])


def test_indices_that_no_table_holds() -> None:
    rows = [entry_row(), entry_row(topology="u", file="msccl/b.xml")]
    data = index_text(rows)
    with pytest.raises(InputError, match="topologies dgx1, u; give --topology"):
        table_bytes(parsed(rows), data)
    with pytest.raises(InputError, match="--topology v: the library has no file for it; it has files for dgx1, u"):
        table_bytes(parsed(rows), data, "v")
    with pytest.raises(InputError, match="it must have some"):
        table_bytes([], data)
    far = entry_row(group=[0, 1 << 32], communicator=[0, 1 << 32], nranks=2)
    with pytest.raises(InputError, match="rank 4294967296: is beyond"):
        table_bytes(parsed([far]), data)
    shared = [[8, 9, 10, 11]]
    two_rows = [
        entry_row(isomorphic_groups=shared),
        entry_row(group=[4, 5, 6, 7], communicator=[4, 5, 6, 7], file="msccl/b.xml", isomorphic_groups=shared),
    ]
    with pytest.raises(InputError, match=r"msccl/a\.xml and msccl/b\.xml both serve 0 bytes"):
        table_bytes(parsed(two_rows), data)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(f"200,000 mutations, {fuzzed(Path(scratch), 200_000)} calls served, nothing reported")
