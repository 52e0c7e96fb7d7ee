"""Check that files do what the table states: read the files of many questions back, and time them.

    python -m results.scripts.files [--budget S] [--again S] [--every N] [--only TOPOLOGY …]

makes files.md. Every question is asked twice, for programs and for schedules only. Each file that was written is read
again and timed by its own steps, at the ends of its range and at the size that the table shows. A question that misses
a figure is asked once more with the time that a command has by default; the table has both rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import synth
from emit.compiler.lower import forms
from emit.library.entry import IndexEntry
from emit.library.index import load_index
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
MOST_RANKS = 8  # Largest group besides all ranks.
# Goals: file / table at most TRUE; a file's gap at most NEAR where its schedule's gap is at most EXACT.
TRUE, NEAR, EXACT = 1.005, 1.02, 1.01


@dataclass(frozen=True)
class Row:
    """The result of a question.

    Attributes:
        question: Collective, topology and group.
        files: Number of files.
        schedule_gap: Time / bound of the fastest schedule at LARGEST.
        file_gap: Time / bound of the fastest file at LARGEST.
        off: Largest ratio of the file's and the table's time, either way.
        beaten: Largest ratio of the time of the file that serves a size and of the library's fastest file for it.
        refused: Why no file was written, or "".
        budget_s: Budget in seconds.
    """

    question: str
    files: int
    schedule_gap: float
    file_gap: float
    off: float
    beaten: float
    refused: str = ""
    budget_s: float = 0.0

    @property
    def misses(self) -> bool:
        """Return True if the row does not reach one of the figures."""
        slow = self.schedule_gap <= EXACT and self.file_gap > NEAR
        return not self.files or self.off > TRUE or self.beaten > TRUE or slow

    def cells(self) -> tuple[object, ...]:
        """Return the cells of the table."""
        numbers = f"{self.schedule_gap:.3f}", f"{self.file_gap:.3f}", f"{self.off:.4f}", f"{self.beaten:.4f}"
        return self.question, f"{self.budget_s:g}", self.files, *numbers, self.refused


def questions() -> list[tuple[str, str, tuple[int, ...] | None]]:
    """Return topology, collective and group of all questions; a group is None for all ranks, or has 2 to 8 ranks."""
    questions: list[tuple[str, str, tuple[int, ...] | None]] = []
    for spec in MACHINES:
        ranks = load(spec).nranks
        for collective in COLLECTIVES:
            questions.append((spec, collective, None))
            questions += [(spec, collective, tuple(range(k))) for k in range(2, min(ranks, MOST_RANKS + 1))]
    return questions


def measured(spec: str, collective: str, group: Sequence[int] | None, budget_s: float) -> Row | None:
    """Return the row of one question; None if its group is not connected."""
    topology = load(spec)
    name = f"{collective} {spec}" + ("" if group is None else f" 0-{len(group) - 1}")
    try:
        answer = synth.synthesize(collective, topology, group, budget=budget_s, target="auto")
        schedules = synth.synthesize(collective, topology, group, budget=budget_s, switch_ops=False)
    except InputError:
        return None
    bound = answer.result.bound.merged(list(schedules.result.bound.witnesses)).at(LARGEST)[0]
    schedule_gap = schedules.result.fastest(LARGEST).time_us(LARGEST) / bound
    with tempfile.TemporaryDirectory() as folder:
        answer.save(folder)
        path = Path(folder, "index.json")
        entries = load_index(folder) if path.exists() else []
        times = {entry.file: _predictor(entry, topology) for entry in entries}
    if not entries:
        return Row(name, 0, schedule_gap, float("nan"), 1.0, 1.0, answer.algorithms[0]["refused"])
    off = [ratio for entry in entries for ratio in _off(entry, times[entry.file], answer.result)]
    beaten = []
    for size in (1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())):
        for form in (True, False):
            # A file of another protocol is not for messages of this size.
            of_form = [entry for entry in entries if entry.inplace == form]
            own = next((entry for entry in of_form if entry.serves(size)), None)
            if own is None:  # No file's chunks divide this size, so the executor's own algorithm serves it.
                continue
            able = [e for e in of_form if e.protocol == own.protocol and size % e.divides == 0]
            beaten.append(times[own.file].time_us(size) / min(times[entry.file].time_us(size) for entry in able))
    largest = [e for e in entries if e.max_bytes is None or e.max_bytes >= LARGEST]
    large_us = max((times[entry.file].time_us(LARGEST) for entry in largest), default=float("nan"))
    return Row(name, len(entries), schedule_gap, large_us / bound, max(off), max(beaten, default=1.0))


def _off(entry: IndexEntry, predictor: Predictor, result: SearchResult) -> Iterator[float]:
    """Yield the ratios of a file's times and the table's, each as a number of at least 1.

    For calls of the other form (in place or not) the index takes the place of the table.
    """
    shown = entry.row["shown_bytes"]
    table_us = {shown: entry.row["time_us"]}
    if entry.inplace == forms(result.problem)[0]:
        served = result.fastest(entry.min_bytes)
        table_us = {
            size: served.time_us(size) for size in (max(entry.min_bytes, SMALLEST), shown, entry.max_bytes or LARGEST)
        }
    for size, time_us in table_us.items():
        ratio = predictor.time_us(size) / time_us
        yield max(ratio, 1 / ratio)


def _reached(values: Sequence[float], most: float) -> tuple[int, int, str]:
    """Return how many values are at most `most`, the number of values, and the largest value."""
    return sum(value <= most for value in values), len(values), f"{max(values, default=float('nan')):.4f}"


def _predictor(entry: IndexEntry, topology: Topology) -> Predictor:
    return Predictor(read_msccl(entry.path), topology, entry.communicator)


def _measure_with_budgets(question: tuple[str, str, tuple[int, ...] | None], *budgets_s: float) -> Iterator[Row]:
    """Yield the rows of a question, one for each budget until no figure is missed; none for an unconnected group."""
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
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a search")
    parser.add_argument(
        "--again", type=float, default=30.0, help="seconds of the second search of a question that misses a goal"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th question only")
    parser.add_argument("--only", nargs="+", metavar="TOPOLOGY")
    options = parser.parse_args(arguments)
    chosen = [question for question in questions() if not options.only or question[0] in options.only][:: options.every]
    every: list[Row] = []
    rows: list[Row] = []  # The last row of each question.
    for question in chosen:
        rows_of_question = []
        for row in _measure_with_budgets(question, options.budget, options.again):
            rows_of_question.append(row)
            print(row, flush=True)
        every += rows_of_question
        rows += rows_of_question[-1:]
    rows_with_files = [row for row in rows if row.files]
    good = [row.file_gap for row in rows_with_files if row.schedule_gap <= EXACT]
    off, beaten = [row.off for row in rows_with_files], [row.beaten for row in rows_with_files]
    summary = grid(
        ("goal", "reached", "of", "worst"),
        (
            ("questions with a file", len(rows_with_files), len(rows), ""),
            (f"file / table ≤ {TRUE}", *_reached(off, TRUE)),
            (f"serving file / library's fastest ≤ {TRUE}", *_reached(beaten, TRUE)),
            (f"file's gap at 1 GiB ≤ {NEAR} where the schedule's gap is ≤ {EXACT}", *_reached(good, NEAR)),
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
        "why no file",
    )
    table = grid(titles, [row.cells() for row in every])
    about = (
        f"A search has {options.budget:g} s. A question that misses a goal is asked again with {options.again:g} s;"
        " the summary counts the last row."
    )
    if options.every > 1:
        about += f" This is a sample: each {options.every}. question."
    write(__file__, page(__file__, "Files against the table: their times, and gaps", [about, summary, table]))


if __name__ == "__main__":
    main()
