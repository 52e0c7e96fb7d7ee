"""Plan all-to-alls of changing sizes, compared with the bound and with straight sending: clusters, DGX-1, MI300X, tori.

    python -m results.scripts.skewed [--only TOPOLOGY …] [--matrices 24] [--mebibytes 64] [--every 1]

makes skewed.md. One core plans; every plan of up to 64 GPUs is replayed, of more GPUs the first one of each kind.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emit.library.selection.skewed_table import HEADER, table_bytes
from results.measuring.measure import grid, page, write
from synth.engines.skewed.plan import SizesPlanner
from synth.engines.skewed.prepare import planner_for, shape_for
from synth.engines.skewed.schedule import algorithm_of, message_bytes
from synth.model.text import format_time
from topologies.load import load
from topologies.topology import Topology

Sizes = NDArray[np.int64]
TOPOLOGIES = ("dgx-h100:4", "dgx-h100:8", "dgx-h100:40", "dgx1", "mi300x", "torus:4x4", "torus:4x4x4")
GOALS_US = {
    "dgx-h100:4": 100.0,
    "dgx-h100:8": 1_000.0,
    "dgx-h100:40": 77_000.0,
}  # of a call; 25 µs and 77 ms: FAST (arXiv 2505.09764)
TOKEN_BYTES = 14_336  # 7,168 numbers of 16 bits
CALLS = 9  # of each plan, of which the least counts, as other work disturbs the others; more of short ones,
CALLS_US = 10_000.0  # up to so much time,
MOST_CALLS = 200  # but at most so many
ALL_REPLAYED = 64  # ranks up to which every plan is replayed
SEED = 1

TIMED_IN_C = r"""
#include "synth_skewed.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static void *read_all(const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  void *read;
  fseek(f, 0, SEEK_END);
  *bytes = (size_t)ftell(f);
  rewind(f);
  read = malloc(*bytes);
  if (fread(read, 1, *bytes, f) != *bytes) exit(3);
  fclose(f);
  return read;
}
int main(int argc, char **argv) {
  struct synth_skewed t;
  struct synth_skewed_plan p;
  size_t bytes, all;
  void *file = read_all(argv[1], &bytes), *work;
  int64_t *sizes = (int64_t *)read_all(argv[2], &all), room, k, i, calls = atoll(argv[3]), call;
  if (argc < 4 || synth_skewed_open(&t, file, bytes)) return 1;
  k = t.head->positions;
  room = synth_skewed_room(&t);
  work = malloc(synth_skewed_work_bytes(&t, room));
  for (i = 0; i < (int64_t)all / 8 / (k * k); i++)
    for (call = 0; call < calls; call++) {
      struct timespec a, b;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
      if (synth_skewed_plan_sizes(&t, sizes + i * k * k, room, work, &p)) return 2;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
      printf("%.9g %.17g\n", (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3, p.time_us);
    }
  return 0;
}
"""


def popular(k: int, mean: int, draw: np.random.Generator, exponent: float) -> Sizes:
    """Return the bytes of tokens that choose among k experts, whose popularity is a Zipf distribution."""
    share = draw.permutation(1 / np.arange(1, k + 1) ** exponent)
    tokens = draw.multinomial(k * mean // TOKEN_BYTES, share / share.sum(), size=k)
    return tokens.astype(np.int64) * TOKEN_BYTES


def blocks(k: int, mean: int, draw: np.random.Generator, exponent: float) -> Sizes:
    """Return sizes whose blocks, in random places, follow a Zipf distribution."""
    share = draw.permutation(1 / np.arange(1, k * k + 1) ** exponent).reshape(k, k)
    return (share / share.sum() * mean * k * k).astype(np.int64)


def hot(k: int, mean: int, draw: np.random.Generator) -> Sizes:
    """Return even sizes of which 5 % to 50 % go to one rank instead."""
    share = float(draw.uniform(0.05, 0.5))
    sizes = np.full((k, k), mean * (1 - share))
    sizes[:, int(draw.integers(k))] += share * mean * k
    return sizes.astype(np.int64)


def empty_rows(k: int, mean: int, draw: np.random.Generator) -> Sizes:
    """Return the sizes of a mild Zipf distribution where half the ranks send nothing."""
    sizes = popular(k, mean, draw, 0.5)
    sizes[draw.permutation(k)[: k // 2]] = 0
    return sizes


KINDS: dict[str, Callable[[int, int, np.random.Generator], Sizes]] = {
    "even": lambda k, mean, _: np.full((k, k), mean, dtype=np.int64),
    "Zipf 0.5 over experts": lambda k, mean, draw: popular(k, mean, draw, 0.5),
    "Zipf 1.0 over experts": lambda k, mean, draw: popular(k, mean, draw, 1.0),
    "Zipf 1.5 over experts": lambda k, mean, draw: popular(k, mean, draw, 1.5),
    "Zipf 0.5 over blocks": lambda k, mean, draw: blocks(k, mean, draw, 0.5),
    "Zipf 1.0 over blocks": lambda k, mean, draw: blocks(k, mean, draw, 1.0),
    "one hot expert": hot,
    "empty rows": empty_rows,
}


@dataclass(frozen=True)
class Measured:
    """What was measured of one matrix of sizes.

    Attributes:
        kind: Key of `KINDS`.
        call_us: Least CPU time of a call that plans, in µs.
        c_us: The same in C; NaN without a compiler.
        time_us: Time of the plan in µs.
        gap: Time / bound.
        straight: Time of straight sending / time.
        sends: Number of sends.
    """

    kind: str
    call_us: float
    c_us: float
    time_us: float
    gap: float
    straight: float
    sends: int


def matrices(k: int, count: int, mean: int) -> Iterator[tuple[str, Sizes]]:
    """Yield `count` matrices of each kind, one of the even kind."""
    draw = np.random.default_rng(SEED)
    for kind, make in KINDS.items():
        for _ in range(1 if kind == "even" else count):
            yield kind, make(k, mean, draw)


def measured(
    topology: Topology, planner: SizesPlanner, table: bytes, questions: list[tuple[str, Sizes]]
) -> list[Measured]:
    """Plan and replay all matrices, also in C by the group's table; return what was measured."""
    rows, replayed = [], set[str]()
    planner.plan(questions[0][1])
    begin_ns = time.thread_time_ns()
    planner.plan(questions[0][1])
    ncalls = min(max(CALLS, int(CALLS_US * 1e3 / (time.thread_time_ns() - begin_ns))), MOST_CALLS)
    in_c = c_calls(table, [sizes for _, sizes in questions], ncalls)
    for (kind, sizes), (c_us, c_time_us) in zip(questions, in_c, strict=True):
        calls = []
        for _ in range(ncalls):
            begin_ns = time.thread_time_ns()
            plan = planner.plan(sizes)
            calls.append((time.thread_time_ns() - begin_ns) / 1e3)
        if topology.nranks <= ALL_REPLAYED or kind not in replayed:
            replayed.add(kind)
            time_us = algorithm_of(topology, None, plan, sizes).time_us(message_bytes(sizes))
            assert abs(time_us - plan.time_us) <= 1e-9 * time_us
        assert np.isnan(c_time_us) or c_time_us == plan.time_us
        straight_us = planner.plan_straight(sizes).time_us
        gap, straight = plan.time_us / plan.bound_us, straight_us / plan.time_us
        rows.append(Measured(kind, min(calls), c_us, plan.time_us, gap, straight, len(plan.chunk)))
    return rows


def c_calls(table: bytes, all_sizes: list[Sizes], ncalls: int) -> list[tuple[float, float]]:
    """Return (least time of so many calls, time of the plan) in µs of each matrix in C; NaN without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return [(np.nan, np.nan)] * len(all_sizes)
    with tempfile.TemporaryDirectory() as folder:
        source, program, file, sizes = (Path(folder) / name for name in ("main.c", "main", "table", "sizes"))
        source.write_text(TIMED_IN_C)
        subprocess.run(
            [compiler, "-O2", "-std=gnu99", "-ffp-contract=off", "-I", HEADER.parent, source, "-o", program], check=True
        )
        file.write_bytes(table)
        sizes.write_bytes(b"".join(struct.pack(f"<{x.size}q", *x.ravel().tolist()) for x in all_sizes))
        ran = subprocess.run([program, file, sizes, str(ncalls)], capture_output=True, text=True, check=True)
    figures = np.array([line.split() for line in ran.stdout.splitlines()], dtype=float).reshape(-1, ncalls, 2)
    return [(float(calls[:, 0].min()), float(calls[0, 1])) for calls in figures]


def table_row(name: str, kind: str, rows: list[Measured]) -> list[str]:
    """Return the cells of a row."""
    call, c_call = np.array([row.call_us for row in rows]), np.array([row.c_us for row in rows])
    gap = np.array([row.gap for row in rows])
    straight = np.array([row.straight for row in rows])
    return [
        name,
        kind,
        str(len(rows)),
        f"{np.median([row.sends for row in rows]):.0f}",
        *(f"{format_time(np.percentile(call, part))}" for part in (50, 95)),
        *(f"{format_time(np.percentile(c_call, part))}" if np.isfinite(c_call).all() else "–" for part in (50, 95)),
        *(f"{value:.4f}" for value in (np.median(gap), np.percentile(gap, 95), gap.max())),
        f"{np.median(straight):.2f} ({straight.min():.2f})",
    ]


def main() -> None:
    """Measure all matrices, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(TOPOLOGIES), help="topologies")
    parser.add_argument("--matrices", type=int, default=24, help="matrices of each kind; a quarter beyond 64 GPUs")
    parser.add_argument("--mebibytes", type=int, default=64, help="mean bytes that a rank sends, in MiB")
    parser.add_argument("--every", type=int, default=1, help="each N-th matrix only")
    options = parser.parse_args()
    rows, figures = [], []
    for name in options.only:
        topology = load(name)
        begin = time.perf_counter()
        shape = shape_for(topology)
        planner = planner_for(shape)
        prepared_s, k = time.perf_counter() - begin, topology.nranks
        count = options.matrices if k <= ALL_REPLAYED else max(1, options.matrices // 4)
        questions = list(matrices(k, count, (options.mebibytes << 20) // k))[:: options.every]
        results = measured(topology, planner, table_bytes(shape), questions)
        for kind in dict.fromkeys(row.kind for row in results):
            rows.append(table_row(name, kind, [row for row in results if row.kind == kind]))
        rows.append(table_row(name, "all", results))
        call, gap = np.array([row.call_us for row in results]), np.array([row.gap for row in results])
        c_call = np.array([row.c_us for row in results])
        goal = GOALS_US.get(name)
        calls = (
            ""
            if goal is None
            else (
                f" a call of at most {format_time(goal)}: met by {(call <= goal).mean():.0%} of the matrices in Python,"
                f" {(c_call <= goal).mean():.0%} in C;"
            )
        )
        figures.append(
            f"- {name} ({k} GPUs, prepared once in {prepared_s:.2f} s):{calls} median ≤ 1.02 of the bound:"
            f" {np.median(gap):.4f}; 95 % ≤ 1.10: {np.percentile(gap, 95):.4f}; slower than straight sending:"
            f" {sum(row.straight < 1 for row in results)} of {len(results)}."
        )
    text = (
        f"A rank sends {options.mebibytes} MiB on average, itself included. *Call* is the CPU time in which one core"
        f" plans one matrix, the least of {CALLS} calls or more: of the compiled planner in Python with the copies that"
        " it returns, and of the header in C; beside it the 95th percentile over the matrices. Time / bound is of the"
        " plan's time in the model (α and bandwidth), against the heaviest rank, the heaviest node, and α. *Straight*"
        " is the time of sending every block whole by the straight path / the plan's time: median (least). Blocks on"
        " different rails have no direct link; straight they leave at the source's rail and are passed on inside the"
        " node of their goal. In one node and on tori, chunks take paths that share the links,"
        " straight blocks take one shortest path, and the bound also counts what all blocks need of all links. Every"
        " plan of up to 64 GPUs was replayed, and of more GPUs one of each kind; the plans in C had equal times."
        + ("" if options.every == 1 else f" It is a sample: one matrix of {options.every}.")
    )
    titles = ("topology", "sizes", "matrices", "sends", "call", "95 %", "call in C", "95 %")
    titles += ("time / bound", "95 %", "most", "straight (least)")
    parts = [text, "\n".join(figures), grid(titles, rows)]
    write(__file__, page(__file__, "All-to-alls whose sizes change at every step", parts))


if __name__ == "__main__":
    main()
