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

from emit.library.selection.skewed_table import HEADER, table_bytes
from synth.engines.skewed.plan import Plan
from tests.synth.engines.skewed.questions import Question, planner_of, questions, skewed

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
  }
  free(file); free(sizes); free(work);
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skewed")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "main.c").write_text(MAIN)
    strict = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined")
    include = ("-I", str(HEADER.parent))
    subprocess.run([compiler, *strict, *include, str(folder / "main.c"), "-o", str(folder / "main")], check=True)
    return folder / "main"


def planned_in_c(program: Path, table: bytes, sizes: NDArray[np.int64], *room: int) -> bytes:
    table_file, sizes_file = program.parent / "skewed.table", program.parent / "sizes"
    table_file.write_bytes(table)
    sizes_file.write_bytes(sizes.astype("<i8").tobytes())
    command = [program, table_file, sizes_file, *map(str, room)]
    ran = subprocess.run(command, capture_output=True, check=False)
    assert ran.stderr == b""
    return ran.stdout


def plan_bytes(plan: Plan) -> bytes:
    head = struct.pack("<3q2d", len(plan.chunk_bytes), len(plan.chunk), plan.is_straight, plan.time_us, plan.bound_us)
    return head + b"".join(column.tobytes() for column in plan[:8])


@settings(max_examples=40)
@given(questions())
def test_the_header_makes_the_plans_of_python(program: Path, question: Question) -> None:
    spec, group, sizes = question
    planner = planner_of(spec, group)
    assert planned_in_c(program, table_bytes(planner.shape), sizes) == plan_bytes(planner.plan(sizes))


@pytest.mark.parametrize("kind", ["even", "popular", "hot", "empty rows", "one block"])
def test_the_header_makes_the_plans_of_python_for_large_messages(program: Path, kind: str) -> None:
    planner, sizes = planner_of("dgx-h100:2", None), skewed(kind, 16, 1 << 21)
    table = table_bytes(planner.shape)
    assert planned_in_c(program, table, sizes) == plan_bytes(planner.plan(sizes))
    assert planned_in_c(program, table, sizes, 300) in (b"-1", plan_bytes(planner.plan(sizes)))
    sizes[3, 2] = -1
    assert planned_in_c(program, table, sizes) == b"-2"


def test_the_header_reads_damaged_tables_safely(program: Path) -> None:
    """Check that a changed or cut table gives a line or a plan, and that nothing beyond its end is read."""
    planner, sizes = planner_of("dgx-h100:2", (0, 1, 2, 8, 9, 10)), skewed("even", 6, 1000)
    good = table_bytes(planner.shape)
    for at, value, words in (
        (0, b"X", b"is no table"), (8, b"\2", b"another version"), (12, b"\1\2\3\4", b"little-endian"),
        (16, b"\0\0", b"cut off"), (24, struct.pack("<I", 1 << 30), b"too large"), (36, b"\xff", b"beyond its end"),
        (64, struct.pack("<d", -1.0), b"no time"), (96, b"\1", b"in no order"),
    ):  # fmt: skip
        assert words in planned_in_c(program, good[:at] + value + good[at + len(value) :], sizes)
    assert planned_in_c(program, good[:-8], sizes) == b"is cut off"
    draw = np.random.default_rng(5)
    for at in draw.integers(24, len(good), 60).tolist():
        changed = bytearray(good)
        changed[at] ^= int(draw.integers(1, 256))
        planned_in_c(program, bytes(changed), sizes)
