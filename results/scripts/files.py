"""What the table says is what the file does: the files of many questions, read back and timed beside their table.

    python -m results.scripts.files [--budget S] [--again S] [--every N] [--only TOPOLOGY …]

makes files.md. Every question is asked twice, for programs and for schedules alone; each file that was written is read
again and timed by its own steps at the ends of its range and where the table shows it. What then misses a figure is
asked once more with the time that a command has by default, and both rows stand.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import synth
from emit.compiler.lower import forms
from emit.library.index import Entry, load_index
from emit.msccl.read import read_msccl
from emit.timing.predict import Predictor
from results.measuring.measure import grid, page, write
from synth.model.problem import LARGEST, SMALLEST
from synth.search.result import SearchResult
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

MACHINES = (
    "dgx1", "dgx-a100", "dgx-h100", "dgx-h100:2", "dgx-h100:4", "mi250", "mi300x", "ndv2:2", "gb200-nvl72",
    "torus:4x4", "mesh:3x3", "ring:8", "hypercube:3", "fattree:4x4x2", "dragonfly:2x2x2",
)  # fmt: skip
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
MOST_RANKS = 8  # of groups of 2 and more
TRUE, NEAR, EXACT = 1.005, 1.02, 1.01  # file / table; a file's gap where its schedule's is EXACT


@dataclass(frozen=True)
class Row:
    """One question: gaps at LARGEST of the schedule and of the file, and how far the files are from the table."""

    question: str
    files: int
    schedule_gap: float
    file_gap: float
    off: float  # worst file / table, either way
    beaten: float  # worst time of the file that serves a size / that of the library's fastest for it
    refused: str = ""
    budget_s: float = 0.0

    @property
    def misses(self) -> bool:
        """Whether it is short of a figure that was asked for."""
        slow = self.schedule_gap <= EXACT and self.file_gap > NEAR
        return not self.files or self.off > TRUE or self.beaten > TRUE or slow

    def cells(self) -> tuple[object, ...]:
        """Of the table."""
        numbers = f"{self.schedule_gap:.3f}", f"{self.file_gap:.3f}", f"{self.off:.4f}", f"{self.beaten:.4f}"
        return self.question, f"{self.budget_s:g}", self.files, *numbers, self.refused


def questions() -> list[tuple[str, str, tuple[int, ...] | None]]:
    """Topology, collective and group (None: all) of everything asked, groups of 2..8 beside the whole."""
    asked: list[tuple[str, str, tuple[int, ...] | None]] = []
    for spec in MACHINES:
        ranks = load(spec).nranks
        for collective in COLLECTIVES:
            asked.append((spec, collective, None))
            asked += [(spec, collective, tuple(range(k))) for k in range(2, min(ranks, MOST_RANKS + 1))]
    return asked


def measured(spec: str, collective: str, group: Sequence[int] | None, budget_s: float) -> Row | None:
    """One question; None where its group is not connected."""
    topology = load(spec)
    name = f"{collective} {spec}" + ("" if group is None else f" 0-{len(group) - 1}")
    try:
        answer = synth.synthesize(collective, topology, group, budget=budget_s, target="auto")
        schedules = synth.synthesize(collective, topology, group, budget=budget_s, switch_ops=False)
    except InputError:
        return None
    bound = answer.found.bound.merged(list(schedules.found.bound.witnesses)).at(LARGEST)[0]
    schedule_gap = schedules.found.fastest(LARGEST).time_us(LARGEST) / bound
    with tempfile.TemporaryDirectory() as folder:
        answer.save(folder)
        path = Path(folder, "index.json")
        entries = load_index(folder) if path.exists() else []
        times = {entry.file: _predictor(entry, topology) for entry in entries}
    if not entries:
        return Row(name, 0, schedule_gap, float("nan"), 1.0, 1.0, answer.algorithms[0]["refused"])
    off = [ratio for entry in entries for ratio in _off(entry, times[entry.file], answer.found)]
    beaten = []
    for size in (1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())):
        for form in (True, False):
            # a file of another protocol is not for messages of this size
            of_form = [entry for entry in entries if entry.inplace == form]
            own = next((entry for entry in of_form if entry.serves(size)), None)
            if own is None:  # nothing divides it: the executor's own algorithm serves
                continue
            able = [e for e in of_form if e.protocol == own.protocol and size % e.divides == 0]
            beaten.append(times[own.file].time_us(size) / min(times[entry.file].time_us(size) for entry in able))
    largest = [e for e in entries if e.max_bytes is None or e.max_bytes >= LARGEST]
    large_us = max((times[entry.file].time_us(LARGEST) for entry in largest), default=float("nan"))
    return Row(name, len(entries), schedule_gap, large_us / bound, max(off), max(beaten, default=1.0))


def _off(entry: Entry, predictor: Predictor, found: SearchResult) -> Iterator[float]:
    """Of a file's times those over the table's, either way; calls of the other form have the index as their table."""
    shown = entry.values["shown_bytes"]
    table_us = {shown: entry.values["time_us"]}
    if entry.inplace == forms(found.problem)[0]:
        served = found.fastest(entry.min_bytes)
        table_us = {
            size: served.time_us(size) for size in (max(entry.min_bytes, SMALLEST), shown, entry.max_bytes or LARGEST)
        }
    for size, time_us in table_us.items():
        ratio = predictor.time_us(size) / time_us
        yield max(ratio, 1 / ratio)


def _reached(values: Sequence[float], most: float) -> tuple[int, int, str]:
    """How many are small enough, of how many, and the worst."""
    return sum(value <= most for value in values), len(values), f"{max(values, default=float('nan')):.4f}"


def _predictor(entry: Entry, topology: Topology) -> Predictor:
    return Predictor(read_msccl(entry.path), topology, entry.communicator)


def _asked(question: tuple[str, str, tuple[int, ...] | None], *budgets_s: float) -> Iterator[Row]:
    """Its rows, one a budget until none of the figures is missed; none where the group is not connected."""
    for budget_s in budgets_s:
        row = measured(*question, budget_s)
        if row is None:
            return
        yield replace(row, budget_s=budget_s)
        if not row.misses:
            return


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--budget", type=float, default=10.0, help="seconds a search")
    parser.add_argument("--again", type=float, default=30.0, help="seconds a search of what misses a figure")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th question only")
    parser.add_argument("--only", nargs="+", metavar="TOPOLOGY")
    given = parser.parse_args(arguments)
    asked = [one for one in questions() if not given.only or one[0] in given.only][:: given.every]
    every: list[Row] = []
    rows: list[Row] = []  # the last of each question
    for one in asked:
        mine = []
        for row in _asked(one, given.budget, given.again):
            mine.append(row)
            print(row, flush=True)
        every += mine
        rows += mine[-1:]
    held = [row for row in rows if row.files]
    good = [row.file_gap for row in held if row.schedule_gap <= EXACT]
    off, beaten = [row.off for row in held], [row.beaten for row in held]
    summary = grid(
        ("what", "reached", "of", "worst"),
        (
            ("questions with a file", len(held), len(rows), ""),
            (f"file / table ≤ {TRUE}", *_reached(off, TRUE)),
            (f"serving file / library's fastest ≤ {TRUE}", *_reached(beaten, TRUE)),
            (f"gap of the file at 1 GiB ≤ {NEAR} where the schedule's is ≤ {EXACT}", *_reached(good, NEAR)),
        ),
    )
    titles = (
        "question",
        "budget, s",
        "files",
        "schedule's gap at 1 GiB",
        "file's gap",
        "file / table",
        "serving / fastest",
        "no file",
    )
    table = grid(titles, [row.cells() for row in every])
    about = (
        f"Budget {given.budget:g} s a search, {given.again:g} s where a figure was missed: the summary counts the last."
    )
    if given.every > 1:
        about += f" Every {given.every}. question."
    write(__file__, page(__file__, "What the table says is what the file does", [about, summary, table]))


if __name__ == "__main__":
    main()
