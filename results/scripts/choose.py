"""Choosing a file for a call in a library of thousands: what an answer takes, in Python and in C, and is it right.

    python -m results.scripts.choose [--entries 5000] [--calls 20000] [--every N] [--seed N]

makes choose.md. The library is of 32 GPUs in nodes of eight: groups of 2 to 8 in a node, axes across nodes, five
collectives, both forms, three targets, sizes cut at random; some files serve further groups. Every answer is held
against a look at all entries (of every N-th call). Times are CPU seconds, so that other processes do not count.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from emit.library.index import Entry, index_text, parse_index
from emit.library.selector import Selector
from emit.library.table import HEADER, table_bytes
from emit.targets import TARGETS
from results.measuring.measure import grid, page, write

REACH_US = 5.0
BATCH = 500  # calls that are timed together
NODE, NODES = 8, 4
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")
OF = ("executor-nccl", "msccl", "mscclpp")
MAIN = r"""
#include "synth_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
struct call { int64_t group, what, whom; int inplace; int64_t root; uint64_t bytes; uint32_t element; };
int main(int argc, char **argv) {
  (void)argc;
  FILE *f = fopen(argv[1], "rb");
  fseek(f, 0, SEEK_END);
  size_t bytes = (size_t)ftell(f), n = (size_t)atol(argv[2]), i, j, found = 0;
  void *file = malloc(bytes);
  struct call *calls = malloc(n * sizeof *calls);
  const struct synth_table *t = file;
  struct timespec a, b;
  rewind(f);
  if (fread(file, 1, bytes, f) != bytes || synth_table_error(file, bytes)) return 1;
  for (i = 0; i < n; i++) {
    char what[64], whom[64];
    uint32_t ranks[64], nranks;
    long long root;
    unsigned long long size;
    struct call *c = &calls[i];
    if (scanf("%63s %63s %d %lld %llu %u %u", what, whom, &c->inplace, &root, &size, &c->element, &nranks) != 7)
      return 2;
    for (j = 0; j < nranks; j++) if (scanf("%u", &ranks[j]) != 1) return 3;
    c->root = root; c->bytes = size;
    c->group = synth_find_group(t, ranks, nranks, NULL, 0);
    c->what = synth_find_name(t, what); c->whom = synth_find_name(t, whom);
  }
  for (i = 0; i < n; i++) {
    const struct call *c = &calls[i];
    const struct synth_record *r =
        synth_choose(t, c->group, c->what, c->whom, c->inplace, c->root, c->bytes, c->element, NULL);
    printf("%s\n", r ? synth_text(t, r->file) : "-");
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
  for (j = 0; j < 20; j++)
    for (i = 0; i < n; i++) {
      const struct call *c = &calls[i];
      found += synth_choose(t, c->group, c->what, c->whom, c->inplace, c->root, c->bytes, c->element, NULL) != NULL;
    }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
  fprintf(stderr, "%.1f %zu\n", ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / 20.0 / n, found);
  return 0;
}
"""

Call = dict[str, Any]


def made(entries: int, draw: random.Random) -> list[Entry]:
    """The entries of a library; their files are not there, since choosing reads none."""
    rows: list[dict[str, Any]] = []
    for collective, group, inplace, target in questions(draw):
        if len(rows) >= entries:
            break
        cuts = sorted(draw.sample(range(10, 31), draw.randint(1, 3)))
        ends = [0, *(1 << cut for cut in cuts)]
        further = [[rank + NODE * node for rank in group] for node in range(1, NODES)] if max(group) < NODE else []
        for low, high in zip(ends, [*(end - 1 for end in ends[1:]), None], strict=True):
            name = f"{TARGETS[target].folder}/f{len(rows)}{TARGETS[target].suffix}"
            rows.append({
                "collective": collective, "topology": "dgx-h100:4", "nranks": len(group), "group": list(group),
                "relays": [], "root": group[0] if collective == "broadcast" else None, "communicator": list(group),
                "file": name, "target": target, "protocol": "Simple", "inplace": inplace, "min_bytes": low,
                "max_bytes": high, "divides": draw.choice([1, 4, 32]), "schedule": None, "proof_file": None,
                "goal": None, **({"isomorphic_groups": further} if further else {}),
            })  # fmt: skip
    return parse_index(index_text(rows), "index.json", Path("lib"))


def questions(draw: random.Random) -> list[tuple[str, tuple[int, ...], bool, str]]:
    """Every collective, group, form and target, in an order of their own."""
    groups = {tuple(sorted(draw.sample(range(NODE), size))) for size in range(2, NODE + 1) for _ in range(60)}
    groups |= {tuple(range(at, NODE * NODES, NODE)) for at in range(NODE)} | {tuple(range(NODE * NODES))}
    every = [(c, g, f, t) for c in COLLECTIVES for g in sorted(groups) for f in (True, False) for t in OF]
    draw.shuffle(every)
    return every


def call_of(entry: Entry, draw: random.Random) -> Call:
    """A call that an entry's question covers, for one of its groups, of any size."""
    entry = entry.for_group(draw.choice([entry.group, *entry.isomorphic_groups]))
    return {
        "collective": entry.collective, "nranks": entry.nranks, "ranks": entry.group, "inplace": entry.inplace,
        "size_bytes": draw.choice([1 << draw.randint(4, 32), draw.randint(1, 1 << 32)]), "target": entry.target,
        "root": entry.root, "element_bytes": draw.choice([2, 4]),
    }  # fmt: skip


def looked_up(entries: Sequence[Entry], call: Call) -> str | None:
    """The same by looking at every entry."""
    for entry in entries:
        same = entry.collective == call["collective"] and entry.inplace == call["inplace"]
        if not same or entry.target != call["target"] or call["ranks"] not in (entry.group, *entry.isomorphic_groups):
            continue
        if entry.serves(call["size_bytes"], call["element_bytes"]):
            return entry.file
    return None


def batches_us(ask: Callable[[Call], object], calls: Sequence[Call]) -> list[float]:
    """CPU time in µs of one call, of each batch of calls."""
    found = []
    for at in range(0, len(calls), BATCH):
        some = calls[at : at + BATCH]
        begun = time.process_time_ns()
        for call in some:
            ask(call)
        found.append((time.process_time_ns() - begun) / 1000 / len(some))
    return found


def in_c(entries: Sequence[Entry], calls: Sequence[Call]) -> tuple[float, list[str]] | None:
    """Nanoseconds of a call by the header, and the files that it says; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "main.c").write_text(MAIN)
        (where / "library.table").write_bytes(table_bytes(entries, b""))
        main = str(where / "main")
        subprocess.run([compiler, "-O2", "-I", str(HEADER.parent), str(where / "main.c"), "-o", main], check=True)
        lines = [
            f"{c['collective']} {c['target']} {int(c['inplace'])} {-1 if c['root'] is None else c['root']} "
            f"{c['size_bytes']} {c['element_bytes']} {c['nranks']} {' '.join(map(str, c['ranks']))}"
            for c in calls
        ]
        ran = subprocess.run(
            [main, str(where / "library.table"), str(len(calls))],
            input="\n".join(lines), capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(ran.stderr.split()[0]), ran.stdout.splitlines()


def row(what: str, found: Sequence[float], beside: float, reach: float | None = None) -> list[str]:
    middle = statistics.median(found)
    most = sorted(found)[-max(1, len(found) // 100)]
    verdict = "–" if reach is None else f"under {reach:g}: {'reached' if most < reach else 'not reached'}"
    return [what, f"{middle:.3g}", f"{most:.3g}", f"{beside / middle:,.0f} ×", verdict]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=10, help="check every N-th answer by looking at all entries")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    entries = made(asked.entries, draw)
    calls = [call_of(draw.choice(entries), draw) for _ in range(asked.calls)]
    begun = time.process_time_ns()
    selector = Selector(entries)
    made_ms = (time.process_time_ns() - begun) / 1e6

    def ask(call: Call) -> Entry | None:
        return selector.choose(**call)

    first = batches_us(ask, calls)
    again = batches_us(ask, calls)
    one = batches_us(ask, [calls[0] | {"size_bytes": call["size_bytes"]} for call in calls])
    linear = statistics.median(batches_us(lambda call: looked_up(entries, call), calls[:BATCH]))
    sample = calls[:: asked.every]
    answers = [found.file if (found := ask(call)) else None for call in sample]
    wrong = sum(file != looked_up(entries, call) for file, call in zip(answers, sample, strict=True))
    c = in_c(entries, calls)
    lines = [
        row("one question, sizes that differ", one, linear, REACH_US),
        row("questions drawn anew, asked before", again, linear, REACH_US),
        row("the same, most of them for the first time", first, linear),
    ]
    wrong_c = 0
    if c is not None:
        lines.append(row("in C, questions drawn anew", [c[0] / 1000], linear))
        files = [found.file if (found := ask(call)) else "-" for call in calls]
        wrong_c = sum(mine != its for mine, its in zip(files, c[1], strict=True))
    groups = len({group for e in entries for group in (e.group, *e.isomorphic_groups)})
    different = (
        "" if c is None else f" Answers of the C reader held against Python's: {len(calls):,}, {wrong_c} differ."
    )
    parts = [
        f"A library of {len(entries):,} entries for {groups:,} groups, {asked.calls:,} calls (seed {asked.seed}); its"
        f" index is sorted once, in {made_ms:.0f} ms. CPU time of a call, by batches of {BATCH}; a look at every entry"
        f" takes {linear:.0f} µs.",
        grid(["asked", "median µs", "99 % of batches, µs", "looking at all / this", "to reach, µs"], lines),
        f"Answers held against a look at every entry: {len(sample):,}, {wrong} wrong.{different}",
    ]
    write(__file__, page(__file__, "Which file of a library serves a call", parts))


if __name__ == "__main__":
    main()
