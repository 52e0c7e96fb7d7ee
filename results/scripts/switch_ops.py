"""Measure what switches that multicast and reduce gain: answers and proved bounds with them and without them.

    python -m results.scripts.switch_ops [--budget 20] [--only TOPOLOGY …] [--collective NAME …] [--every 1]

makes switch_ops.md. Schedules are timed with α and bandwidth only; each is replayed and has the gap to the bound of its
own question. A second table has MSCCL++'s plans, also of a part of a node and with the machine's costs on.
"""

from __future__ import annotations

import argparse

import synth
from results.measuring.measure import grid, page, write
from synth.app.synthesis import Synthesis
from synth.model.pairs import ordinary
from synth.model.text import format_size, format_time

TOPOLOGIES = ("dgx-h100", "gb200-nvl72", "dgx-h100:4")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast")
SIZES = tuple(1 << e for e in (10, 14, 18, 22, 26, 28, 30))
LARGE, REACH = 1 << 28, 1.02
GROUPS = (("dgx-h100", None), ("dgx-h100", (0, 2, 4, 6)), ("gb200-nvl72", None))
FILE_SIZES, COSTS_REACH = (1 << 22, 1 << 26, 1 << 28, 1 << 30), 1.10


def row(
    topology: str, collective: str, size: int, with_ops: Synthesis, without_ops: Synthesis
) -> tuple[list[str], float]:
    """Return a row of the table, and the gap with switch operations."""
    cells, best = [], with_ops.algorithm(size)
    for answer in (with_ops, without_ops):
        time_us, bound_us = answer.algorithm(size).time_us(size), answer.result.bound.at(size)[0]
        cells += [format_time(time_us), f"{max(1.0, time_us / bound_us):.3f}"]
    gap = best.time_us(size) / with_ops.result.bound.at(size)[0]
    used = "yes" if not ordinary(best.problem.network, best.schedule.link) else "no"
    gain = without_ops.algorithm(size).time_us(size) / best.time_us(size)
    witness = with_ops.result.bound.at(size)[1].kind
    return [topology, collective, format_size(size), *cells, f"{gain:.2f} ×", used, witness], gap


def file_row(
    topology: str, group: tuple[int, ...] | None, collective: str, costs: str, budget_s: float
) -> tuple[list[str], list[float]]:
    """Return a row of the second table, and the gaps for large messages."""
    result = synth.synthesize(collective, topology, group, budget=budget_s, target="mscclpp", costs=costs).result
    gaps, shown = {}, []
    for size in FILE_SIZES:
        offer = result.fastest(size)
        gaps[size] = offer.time_us(size) / result.bound.at(size)[0]
        shown.append(f"{max(1.0, gaps[size]):.3f} {'no file' if offer.refused else offer.algorithm.engine}")
    ranks = "all" if group is None else " ".join(map(str, group))
    return [topology, ranks, collective, costs, *shown], [gap for size, gap in gaps.items() if size >= LARGE]


def files(options: argparse.Namespace) -> list[str]:
    """Return the text of the second table, and the table."""
    questions = [(t, g, c, k) for t, g in GROUPS for c in COLLECTIVES[:3] for k in ("none", "machine")]
    questions = [
        question for question in questions if question[0] in options.only and question[2] in options.collective
    ][:: options.every]
    rows, met, total = [], 0, 0
    for topology, group, collective, costs in questions:
        cells, gaps = file_row(topology, group, collective, costs, options.budget)
        rows.append(cells)
        total += len(gaps)
        met += sum(gap <= (REACH if costs == "none" else COSTS_REACH) for gap in gaps)
    text = (
        f"MSCCL++'s plans: time / proved bound, and the engine, for {len(questions)} questions. The goal for large"
        f" messages is at most {REACH:g}, and {COSTS_REACH:g} with the machine's costs: met in {met} of {total} cases."
    )
    return [text, grid(("topology", "ranks", "collective", "costs", *map(format_size, FILE_SIZES)), rows)]


def main() -> None:
    """Measure all questions, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a search")
    parser.add_argument("--only", nargs="*", default=list(TOPOLOGIES), help="topologies")
    parser.add_argument("--every", type=int, default=1, help="each N-th question only")
    parser.add_argument("--collective", nargs="*", default=list(COLLECTIVES))
    options = parser.parse_args()
    questions = [(t, c) for t in options.only for c in options.collective][:: options.every]
    rows, met, total = [], 0, 0
    # This loads the compiled code.
    synth.synthesize("allgather", "dgx-h100:2", budget=options.budget, size="1M", costs="none")
    for topology, collective in questions:
        with_ops, without_ops = (
            synth.synthesize(collective, topology, budget=options.budget, switch_ops=allowed, costs="none")
            for allowed in (True, False)
        )
        for size in SIZES:
            cells, gap = row(topology, collective, size, with_ops, without_ops)
            rows.append(cells)
            if size >= LARGE and collective in COLLECTIVES[:3]:
                total += 1
                met += gap <= REACH
    text = (
        f"{len(questions)} of {len(TOPOLOGIES) * len(COLLECTIVES)} questions, with {options.budget:g} s a search. A"
        " gap is time / proved bound of the same question, with or without operations of switches. `used`: the answer"
        " uses them. `gain`: time without / time with them. `proved by`: the bound's witness. Times count α and"
        " bandwidth only."
    )
    figure = (
        f"The goal is a gap of at most {REACH:g} for large messages ({format_size(LARGE)} and more; all-reduce,"
        f" all-gather, reduce-scatter): met in {met} of {total} rows."
    )
    titles = (
        "topology", "collective", "size", "with", "gap with", "without", "gap without", "gain", "used", "proved by",
    )  # fmt: skip
    parts = [text, figure, grid(titles, rows), *files(options)]
    write(__file__, page(__file__, "Switches that multicast and reduce", parts))


if __name__ == "__main__":
    main()
