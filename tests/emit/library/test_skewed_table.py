"""Tests of the planner in C: its plans are those of Python, byte for byte."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from emit.library.selection.skewed_table import COLUMNS, HEADER, HEADERS, table_bytes
from emit.library.selection.skewed_table import NODES as NODES_TABLE
from emit.library.selection.skewed_table import ROUTED as ROUTED_TABLE
from synth.engines.skewed import planner
from synth.engines.skewed.columns import MOST_BYTES
from synth.engines.skewed.plan import Plan, SizesPlanner
from synth.engines.skewed.routes import routed
from synth.engines.skewed.routes.routed import MOST_RANKS, RoutedShape
from synth.engines.skewed.schedule import algorithm_of, message_bytes
from synth.engines.skewed.shape import GroupShape
from tests.synth.engines.skewed.questions import (
    GROUPS,
    ROUTED,
    Question,
    any_planner_of,
    questions,
    skewed,
    topology_of,
)

MAIN = r"""
#include "synth_skewed.h"
#include <stdio.h>
#include <stdlib.h>
/* plans the sizes in the file SIZES with the table TABLE, and writes the plan to standard output */
static void *read_all(const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  static char read[1 << 22];
  *bytes = fread(read, 1, sizeof read, f);
  fclose(f);
  return memcpy(malloc(*bytes ? *bytes : 1), read, *bytes); /* a block of its size, so that a read beyond it is seen */
}
int main(int argc, char **argv) {
  struct synth_skewed t;
  struct synth_skewed_plan p;
  size_t bytes, unused;
  void *file = read_all(argv[1], &bytes), *sizes = read_all(argv[2], &unused), *work;
  const char *error = synth_skewed_open(&t, file, bytes);
  int64_t room, code;
  uint32_t *from, *to;
  if (error) { printf("%s", error); free(file); free(sizes); return 1; }
  room = argc > 3 ? atoll(argv[3]) : synth_skewed_room(&t);
  work = malloc(synth_skewed_work_bytes(&t, room));
  code = synth_skewed_plan_sizes(&t, (const int64_t *)sizes, room, work, &p);
  if (code) printf("%lld", (long long)code);
  else {
    int64_t counts[3];
    double times[2];
    counts[0] = p.chunks; counts[1] = p.sends; counts[2] = p.is_straight;
    times[0] = p.time_us; times[1] = p.bound_us;
    fwrite(counts, 8, 3, stdout);
    fwrite(times, 8, 2, stdout);
    fwrite(p.chunk_source, 4, (size_t)p.chunks, stdout);
    fwrite(p.chunk_goal, 4, (size_t)p.chunks, stdout);
    fwrite(p.chunk_offset, 8, (size_t)p.chunks, stdout);
    fwrite(p.chunk_bytes, 8, (size_t)p.chunks, stdout);
    fwrite(p.send_chunk, 4, (size_t)p.sends, stdout);
    fwrite(p.send_link, 4, (size_t)p.sends, stdout);
    fwrite(p.send_step, 4, (size_t)p.sends, stdout);
    fwrite(p.send_start, 8, (size_t)p.sends, stdout);
    from = (uint32_t *)malloc(4 * (size_t)t.head->links);
    to = (uint32_t *)malloc(4 * (size_t)t.head->links);
    synth_skewed_link_ends(&t, from, to);
    for (room = 0; room < p.sends; room++) fwrite(from + p.send_link[room], 4, 1, stdout);
    for (room = 0; room < p.sends; room++) fwrite(to + p.send_link[room], 4, 1, stdout);
    free(from); free(to);
  }
  free(file); free(sizes); free(work);
  return 0;
}
"""


DAMAGED = r"""
#include "synth_skewed.h"
#include <stdio.h>
#include <stdlib.h>
/* damages the table TABLE in COUNT manners, and plans random sizes with each that is still a table; prints how many */
static uint64_t state = 88172645463325252u;
static uint64_t draw(uint64_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % below;
}
int main(int argc, char **argv) {
  static const double reals[] = {0.0, 1e-30, 1e-300, 5e-324, 9e29, 1.0, 1e-6};
  static const uint64_t words[] = {0, 1, 2, 5, UINT64_MAX, 1u << 28, 0x100000001u};
  static char good[1 << 22];
  FILE *f = fopen(argv[argc - 2], "rb");
  size_t bytes = fread(good, 1, sizeof good, f), table, planned = 0;
  fclose(f);
  for (table = 0; table < (size_t)atol(argv[argc - 1]); table++) {
    char *file = (char *)memcpy(malloc(bytes), good, bytes);
    struct synth_skewed t;
    uint64_t damages;
    for (damages = 1 + draw(3); damages > 0; damages--) {
      size_t at = 24 + draw(draw(4) ? bytes - 24 : 72), word = at / 8 * 8;
      switch (draw(4)) {
        case 0: file[at] = (char)draw(256); break;
        case 1: memcpy(file + word, &reals[draw(7)], 8); break;
        case 2: memcpy(file + word, &words[draw(7)], draw(2) ? 8 : 4); break;
        default: file[at] = (char)(file[at] ^ (1 << draw(8)));
      }
    }
    if (!synth_skewed_open(&t, file, bytes)) {
      struct synth_skewed_plan p;
      int64_t k = t.head->positions, room = draw(2) ? synth_skewed_room(&t) : k * k + (int64_t)draw(50), i;
      size_t work_bytes = synth_skewed_work_bytes(&t, room);
      int64_t *sizes = (int64_t *)malloc((size_t)(k * k) * 8);
      void *work = work_bytes < 1 << 24 ? malloc(work_bytes) : NULL; /* which is refused */
      for (i = 0; i < k * k; i++) sizes[i] = (int64_t)draw((uint64_t)1 << draw(37));
      if (!synth_skewed_plan_sizes(&t, sizes, room, work, &p)) planned++;
      for (i = 0; i < p.sends; i++)
        if (p.send_chunk[i] >= p.chunks || p.send_link[i] >= t.head->links) return 1;
      free(sizes), free(work);
    }
    free(file);
  }
  printf("%d", (int)planned);
  return 0;
}
"""
COUNT = 2000  # damaged tables
FIVE = (("dgx-h100", (0, 1, 2, 3, 4)), ("ring:5", None))  # A group of five ranks for each planner.


# Without optimization the sanitizers' own code is compiled in a quarter of the time.
WATCHED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover")


def compiled_in(folder: Path, headers: Path, compiler: str, *flags: str, text: str = MAIN) -> Path:
    """Compile a program with the headers of a folder; return it."""
    found = shutil.which(compiler)
    if found is None:
        pytest.skip(f"no compiler {compiler}")
    source, program = folder / ("main.cc" if "++" in compiler else "main.c"), folder / "main"
    source.write_text(text)
    strict = ("-Wall", "-Wextra", "-Werror")
    subprocess.run([found, *strict, *flags, "-I", headers, source, "-o", program], check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_in(tmp_path_factory.mktemp("skewed"), HEADER.parent, "cc", "-std=c99", *WATCHED)


def planned_in_c(program: Path, table: bytes, sizes: NDArray[np.int64], *room: int) -> bytes:
    table_file, sizes_file = program.parent / "skewed.table", program.parent / "sizes"
    table_file.write_bytes(table)
    sizes_file.write_bytes(sizes.astype("<i8").tobytes())
    command = [program, table_file, sizes_file, *map(str, room)]
    ran = subprocess.run(command, capture_output=True, check=False)
    assert ran.stderr == b"", ran.stderr.decode()
    return ran.stdout


def plan_bytes(planner: SizesPlanner, sizes: NDArray[np.int64]) -> bytes:
    """Return what MAIN prints: the plan, and the positions that its sends leave and reach."""
    plan = planner.plan(sizes)
    ends = [ends[plan.link].astype("<u4") for ends in (planner.net.src, planner.net.dst)]
    head = struct.pack("<3q2d", len(plan.chunk_bytes), len(plan.chunk), plan.is_straight, plan.time_us, plan.bound_us)
    return head + b"".join(column.tobytes() for column in (*plan[:8], *ends))


@settings(max_examples=20)
@given(questions((*GROUPS, *ROUTED)))
def test_the_header_makes_the_plans_of_python(program: Path, question: Question) -> None:
    spec, group, sizes = question
    planner = any_planner_of(spec, group)
    assert planned_in_c(program, table_bytes(planner.shape), sizes) == plan_bytes(planner, sizes)


@pytest.mark.parametrize("spec", ["dgx-h100:2", "dgx1"])
@pytest.mark.parametrize("kind", ["even", "popular", "hot", "empty rows", "one block"])
def test_the_header_makes_the_plans_of_python_for_large_messages(program: Path, spec: str, kind: str) -> None:
    planner = any_planner_of(spec, None)
    k = planner.net.nranks
    sizes = skewed(kind, k, 1 << 21)
    table = table_bytes(planner.shape)
    plan = plan_bytes(planner, sizes)
    assert planned_in_c(program, table, sizes) == plan
    assert planned_in_c(program, table, sizes, k * k + 44) in (b"-1", plan)
    sizes[3, 2] = -1
    assert planned_in_c(program, table, sizes) == b"-2"


def test_what_no_plan_can_be_made_of_is_refused_with_a_code(program: Path) -> None:
    for spec, group in FIVE:
        planner, sizes = any_planner_of(spec, group), np.full((5, 5), 1 << 36)
        table = table_bytes(planner.shape)
        assert planned_in_c(program, table, sizes) == plan_bytes(planner, sizes)
        for size in (MOST_BYTES + 1, (1 << 63) - 1, -1, -(1 << 63)):
            sizes[1, 2] = size
            assert planned_in_c(program, table, sizes) == b"-2"
        for room in (-(1 << 63), -1, 0, 24, (1 << 28) + 1, (1 << 63) - 1):
            assert planned_in_c(program, table, sizes, room) == b"-3"


def plan_in(printed: bytes) -> Plan:
    """Return the plan that MAIN printed."""
    chunks, sends, is_straight, time_us, bound_us = struct.unpack_from("<3q2d", printed)
    at, columns = 40, []
    for name, kind in zip(Plan._fields, ["u4", "u4", "i8", "i8", "u4", "u4", "u4", "f8"], strict=False):
        columns.append(np.frombuffer(printed, "<" + kind, chunks if name.startswith("chunk_") else sends, at))
        at += columns[-1].nbytes
    return Plan._make((*columns, time_us, bound_us, bool(is_straight)))


def test_plans_of_contracted_arithmetic_are_right(tmp_path: Path) -> None:
    """Check that plans replay in their time where products and sums are one operation, though cuts may differ."""
    program = compiled_in(tmp_path, HEADER.parent, "cc", "-std=gnu11", "-O1", "-march=native", "-ffp-contract=fast")
    for spec in ("dgx-h100:2", "dgx1"):
        planner = any_planner_of(spec, None)
        k = planner.net.nranks
        for kind in ("popular", "hot", "empty rows"):
            sizes = skewed(kind, k, 1 << 21)
            plan, expected = plan_in(planned_in_c(program, table_bytes(planner.shape), sizes)), planner.plan(sizes)
            time_us = algorithm_of(topology_of(spec), None, plan, sizes).time_us(message_bytes(sizes))
            assert time_us == pytest.approx(plan.time_us, rel=1e-9)
            assert plan.bound_us == pytest.approx(expected.bound_us, rel=1e-9)
            assert plan.bound_us <= plan.time_us * (1 + 1e-9)


def test_both_planners_take_groups_of_the_same_sizes() -> None:
    assert f"SYNTH_SKEWED_MOST_ROUTED {MOST_RANKS} " in "".join(header.read_text() for header in HEADERS)


def test_the_header_is_valid_cpp(tmp_path: Path) -> None:
    program = compiled_in(tmp_path, HEADER.parent, "c++", "-std=c++11")
    for spec, group in FIVE:
        planner, sizes = any_planner_of(spec, group), skewed("hot", 5, 1 << 20)
        assert planned_in_c(program, table_bytes(planner.shape), sizes) == plan_bytes(planner, sizes)


def changed(good: bytes, at: int, value: bytes) -> bytes:
    return good[:at] + value + good[at + len(value) :]


REFUSED = (
    ("dgx-h100:2", (0, 1, 2, 8, 9, 10), 36, b"\xff", b"beyond its end"),  # lanes
    ("dgx-h100:2", (0, 1, 2, 8, 9, 10), 64, struct.pack("<d", -1.0), b"no time"),  # length of a tick
    ("dgx-h100:2", (0, 1, 2, 8, 9, 10), 96, b"\1", b"in no order"),  # first node
    ("ring:5", None, 40, struct.pack("<I", 0), b"beyond its end"),  # links
    ("ring:5", None, 72, struct.pack("<d", np.nan), b"no time"),  # start
    ("ring:5", None, 84, struct.pack("<I", 1 << 31), b"too large"),  # links of a path
    ("ring:5", None, 96, b"\1", b"in no order"),  # resources of the first link
)


@pytest.mark.parametrize(("spec", "group", "at", "value", "words"), REFUSED)
def test_the_header_says_what_is_wrong_with_a_table(
    program: Path, spec: str, group: tuple[int, ...] | None, at: int, value: bytes, words: bytes
) -> None:
    planner = any_planner_of(spec, group)
    good, sizes = table_bytes(planner.shape), np.ones((planner.net.nranks,) * 2, dtype=np.int64)
    for place, other, reason in (
        (0, b"X", b"is no table"), (8, b"\3", b"another version"), (12, b"\1\2\3\4", b"little-endian"),
        (16, b"\0\0", b"cut off"), (24, struct.pack("<I", 1 << 30), b"too large"), (at, value, words),
    ):  # fmt: skip
        assert reason in planned_in_c(program, changed(good, place, other), sizes)
    assert planned_in_c(program, good[:-8], sizes) == b"is cut off"


def column_of(shape: GroupShape | RoutedShape, name: str) -> tuple[int, int]:
    """Return the place of a column's first entry in a table, and the bytes of an entry."""
    is_routed = isinstance(shape, RoutedShape)
    columns = routed.fixed_columns(shape) if is_routed else planner.fixed_columns(shape)
    at = 96
    for kind, names in COLUMNS[ROUTED_TABLE if is_routed else NODES_TABLE].items():
        each = np.dtype(kind).itemsize
        for column in names.split():
            if column == name:
                return at, each
            at += -(-len(columns[column]) * each // 8) * 8
    raise AssertionError(name)


WRONG = (
    ("uses_ptr", 1, 0, b"uses nothing"),
    ("uses", 1, 1 << 20, b"beyond its end"),
    ("uses", 1, 0, b"user that is none"),
    ("users", 3, 4, b"user that is none"),
    ("path_ptr", 2, 0, b"without a path"),
    ("path_hops", 0, 0, b"to another position"),
    ("path_hops", 0, 200, b"beyond its end"),
    ("path_link", 0, 7, b"interrupted"),
    ("path_link", 0, 1, b"another position"),
    ("dst", 0, 5, b"beyond its end"),
    ("part", 0, 1.5, b"part that is none"),
    ("part", 0, 0.1, b"part that is none"),
    ("busy_us", 0, -1.0, b"no time"),
    ("least_us", 1, np.inf, b"no time"),
    ("part_ports", 0, 1 << 40, b"wrong size"),
)


@pytest.mark.parametrize(("name", "entry", "value", "words"), WRONG)
def test_the_header_refuses_wrong_paths_and_resources(
    program: Path, name: str, entry: int, value: float, words: bytes
) -> None:
    shape = any_planner_of("dgx-h100:2" if name == "part_ports" else "ring:5", None).shape
    k = shape.net.nranks
    at, each = column_of(shape, name)
    kind = "<d" if isinstance(value, float) else {4: "<I", 8: "<q"}[each]
    table = changed(table_bytes(shape), at + entry * each, struct.pack(kind, value))
    assert words in planned_in_c(program, table, np.ones((k, k), dtype=np.int64))


def test_the_header_reads_damaged_tables_safely(tmp_path: Path) -> None:
    """Check that a damaged table gives a line or a plan, and that nothing beyond its end is read."""
    casts = "-fsanitize=float-cast-overflow"
    program = compiled_in(tmp_path, HEADER.parent, "cc", "-std=c99", *WATCHED, casts, text=DAMAGED)
    for spec, group in (*GROUPS[3:8], ("ring:5", None), ("l40s-2root", (0, 1, 2, 4)), ("fattree:4", (0, 1, 4, 9))):
        (tmp_path / "table").write_bytes(table_bytes(any_planner_of(spec, group).shape))
        command = [program, tmp_path / "table", str(COUNT)]
        ran = subprocess.run(command, capture_output=True, check=False, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert COUNT // 50 < int(ran.stdout) < COUNT


def faulty(folder: Path, right: str, wrong: str, *flags: str) -> Path:
    """Compile the headers with a fault in them; return the program."""
    headers = folder / "headers"
    headers.mkdir()
    assert any(right in header.read_text() for header in HEADERS)
    for header in HEADERS:
        (headers / header.name).write_text(header.read_text().replace(right, wrong))
    return compiled_in(folder, headers, "cc", "-std=c99", *flags)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("-ahead, (uint32_t)which_event", "ahead, (uint32_t)which_event"),  # The emptiest links come first.
        ("stale == 3)", "sweep == 1)"),  # Chunks choose again only once.
    ],
)
def test_a_header_of_other_steps_would_be_seen(tmp_path: Path, right: str, wrong: str) -> None:
    planner, sizes = any_planner_of("dgx1", None), skewed("popular", 8, 1 << 21)
    program = faulty(tmp_path, right, wrong)
    assert planned_in_c(program, table_bytes(planner.shape), sizes) != plan_bytes(planner, sizes)


def test_a_table_that_is_not_checked_would_be_seen(tmp_path: Path) -> None:
    program = faulty(tmp_path, "synth_skewed_above(t->path_link, (uint64_t)h->paths * width, links)", "0", *WATCHED)
    shape = any_planner_of("ring:5", None).shape
    at, _ = column_of(shape, "path_link")
    with pytest.raises(AssertionError, match="AddressSanitizer"):
        planned_in_c(
            program, changed(table_bytes(shape), at, struct.pack("<I", 1 << 20)), np.ones((5, 5), dtype=np.int64)
        )
