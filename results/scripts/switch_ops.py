"""What switches that multicast and reduce are worth: answers and proved bounds with them, beside those without.

    python -m results.scripts.switch_ops [--budget 20] [--only TOPOLOGY …] [--collective NAME …] [--every 1]

makes switch_ops.md: schedules in α and bandwidth alone, each replayed, with the gap to the bound of its own question;
then MSCCL++'s plans, also of a part of a node and with the machine's costs on.
"""

from __future__ import annotations

import argparse

import synth
from results.measuring.measure import grid, page, write
from synth.app.synthesis import Synthesis
from synth.baselines.nccl.model import Choice
from synth.model.pairs import ordinary
from synth.model.text import format_size, format_time

TOPOLOGIES = ("dgx-h100", "gb200-nvl72", "dgx-h100:4")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast")
SIZES = tuple(1 << e for e in (10, 14, 18, 22, 26, 28, 30))
LARGE, REACH = 1 << 28, 1.02
GROUPS = (("dgx-h100", None), ("dgx-h100", (0, 2, 4, 6)), ("gb200-nvl72", None))
FILE_SIZES, COSTS_REACH = (1 << 22, 1 << 26, 1 << 28, 1 << 30), 1.10


def row(topology: str, collective: str, size: int, one: Synthesis, other: Synthesis) -> tuple[list[str], float]:
    """A line of the table, and the gap with switch operations."""
    cells, best = [], one.algorithm(size)
    for answer in (one, other):
        time_us, bound_us = answer.algorithm(size).time_us(size), answer.found.bound.at(size)[0]
        cells += [format_time(time_us), f"{max(1.0, time_us / bound_us):.3f}"]
    gap = best.time_us(size) / one.found.bound.at(size)[0]
    told = one.found.library("NCCL", size)
    nccl = f"{told.algorithm} {told.time_us / best.time_us(size):.2f} ×" if isinstance(told, Choice) else str(told)
    used = "yes" if not ordinary(best.problem.network, best.schedule.link) else "no"
    gain = other.algorithm(size).time_us(size) / best.time_us(size)
    witness = one.found.bound.at(size)[1].kind
    return [topology, collective, format_size(size), *cells, f"{gain:.2f} ×", used, witness, nccl], gap


def file_row(
    topology: str, group: tuple[int, ...] | None, collective: str, costs: str, budget_s: float
) -> tuple[list[str], list[float]]:
    """A line of the second table, and the gaps for large messages."""
    found = synth.synthesize(collective, topology, group, budget=budget_s, target="mscclpp", costs=costs).found
    gaps, shown = {}, []
    for size in FILE_SIZES:
        served = found.fastest(size)
        gaps[size] = served.time_us(size) / found.bound.at(size)[0]
        shown.append(f"{max(1.0, gaps[size]):.3f} {'no file' if served.contender.refused else served.algorithm.engine}")
    who = "all" if group is None else " ".join(map(str, group))
    return [topology, who, collective, costs, *shown], [gap for size, gap in gaps.items() if size >= LARGE]


def files(asked: argparse.Namespace) -> list[str]:
    """What the second table is about, and the table."""
    questions = [(t, g, c, k) for t, g in GROUPS for c in COLLECTIVES[:3] for k in ("none", "machine")]
    questions = [one for one in questions if one[0] in asked.only and one[2] in asked.collective][:: asked.every]
    rows, met, of = [], 0, 0
    for topology, group, collective, costs in questions:
        cells, gaps = file_row(topology, group, collective, costs, asked.budget)
        rows.append(cells)
        of += len(gaps)
        met += sum(gap <= (REACH if costs == "none" else COSTS_REACH) for gap in gaps)
    text = (
        f"Time of MSCCL++'s plan / proved bound, and the engine; {len(questions)} questions. Large messages at most"
        f" {REACH:g}, with the machine's costs {COSTS_REACH:g}: {met} of {of}."
    )
    return [text, grid(("topology", "ranks", "collective", "costs", *map(format_size, FILE_SIZES)), rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds a search")
    parser.add_argument("--only", nargs="*", default=list(TOPOLOGIES), help="topologies")
    parser.add_argument("--every", type=int, default=1, help="of so many questions only the first")
    parser.add_argument("--collective", nargs="*", default=list(COLLECTIVES))
    asked = parser.parse_args()
    questions = [(t, c) for t in asked.only for c in asked.collective][:: asked.every]
    rows, met, of = [], 0, 0
    synth.synthesize("allgather", "dgx-h100:2", budget=asked.budget, size="1M")  # loads what is compiled
    for topology, collective in questions:
        one, other = (
            synth.synthesize(collective, topology, budget=asked.budget, switch_ops=able) for able in (True, False)
        )
        for size in SIZES:
            cells, gap = row(topology, collective, size, one, other)
            rows.append(cells)
            if size >= LARGE and collective in COLLECTIVES[:3]:
                of += 1
                met += gap <= REACH
    text = (
        f"{len(questions)} of {len(TOPOLOGIES) * len(COLLECTIVES)} questions, {asked.budget:g} s a search. A gap is"
        " time / proved bound of the same question, with or without what switches multicast and reduce; `used`: the"
        " answer does so; `gain`: time without / time with; `proved by`: the bound's witness. *vs NCCL* is what NCCL"
        " would take by its own cost model / our time, which counts α and bandwidth alone: theirs counts an executor's"
        " costs too, so that the ratio says little for small messages."
    )
    figure = f"Figure: gap ≤ {REACH:g} for large messages ({format_size(LARGE)} and more; all-reduce, all-gather,"
    figure += f" reduce-scatter), proved: {met} of {of} rows."
    titles = (
        "topology", "collective", "size", "with", "gap", "without", "gap", "gain", "used", "proved by", "vs NCCL",
    )  # fmt: skip
    parts = [text, figure, grid(titles, rows), *files(asked)]
    write(__file__, page(__file__, "Switches that multicast and reduce", parts))


if __name__ == "__main__":
    main()
