"""Compare small and middle all-reduces on tori with Swing, Trivance, Bine, PAT and others, and with the bound.

    python -m results.scripts.small_messages [--budget 20] [--only TOPOLOGY …] [--size BYTES …] [--every 1]

makes small_messages.md. Schedules are timed with α and bandwidth only, and each is replayed.
"""

from __future__ import annotations

import argparse
from contextlib import suppress

import synth
from results.measuring.measure import grid, page, write
from synth.baselines import CLOSED_FORMS, baseline_named
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.algorithms.patterns import swing_line
from synth.model.problem import make_problem
from synth.model.sizes import parse_size
from synth.model.text import format_size, format_time
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.errors import TooManySends
from topologies.load import load

TOPOLOGIES = ("torus:8x8", "torus:16x16", "torus:8x8x8")
SIZES = ("1K", "64K", "1M")
FORMS = (*CLOSED_FORMS, "recursive doubling")
_ROUNDING = 1e-9  # Relative difference that two sums of the same terms may have.


def form_times_us(topology: str, size: int) -> dict[str, float]:
    """Return the best time in µs of each closed form for all ranks of a topology, with sends ordered for that size."""
    problem = make_problem(load(topology), "allreduce")
    times: dict[str, float] = {}
    for form in FORMS:
        with suppress(TooManySends):
            times_of_form = [algorithm.time_us(size) for algorithm in baseline_named(problem, form, size)]
            times |= {form: min(times_of_form)} if times_of_form else {}
    return times


def whole_swing_us(topology: str, size: int) -> float:
    """Return the time in µs of Swing's exchange of whole sums if no two messages met.

    It is the sum of all steps' hops, with 2·D parts in flight, where D is the number of dimensions.
    """
    problem = make_problem(load(topology), "allreduce")
    net, extents = problem.network, grid_extents(problem)
    part = size / (2 * len(extents)) * US_PER_BYTE_AT_1_GBS / float(net.bandwidth_gbs.max())
    distances = [(int(goals[0]), extent) for extent in extents for (goals,) in swing_line(extent)]
    return sum(min(goal, extent - goal) for goal, extent in distances) * (float(net.alpha_us.min()) + part)


def main() -> None:
    """Measure all questions, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a search")
    parser.add_argument("--only", nargs="*", default=list(TOPOLOGIES), help="topologies")
    parser.add_argument("--size", nargs="*", default=list(SIZES), help="message sizes")
    parser.add_argument("--every", type=int, default=1, help="each N-th question only")
    options = parser.parse_args()
    questions = [(t, parse_size(s, "--size")) for t in options.only for s in options.size][:: options.every]
    rows, nfastest, nwhole_faster = [], 0, 0
    for topology, size in questions:
        answer = synth.synthesize("allreduce", topology, size=size, budget=options.budget).result
        best = answer.ranges[0]
        ours_us, (bound_us, witness) = best.time_us(size), answer.bound.at(size)
        times = form_times_us(topology, size)
        whole_us = whole_swing_us(topology, size)
        nwhole_faster += whole_us < ours_us
        rival = min(times, key=lambda form: times[form])
        nfastest += ours_us <= times[rival] * (1 + _ROUNDING)
        form_cells = (
            f"{format_time(times[form])} ({times[form] / bound_us:.2f})" if form in times else "–" for form in FORMS
        )
        gap = f"{max(1.0, ours_us / bound_us):.3f}"
        row = (topology, format_size(size), format_time(ours_us), best.algorithm.engine, format_time(bound_us), gap)
        nearest = f"{rival} {times[rival] / ours_us:.2f} ×"
        rows.append([*row, witness.kind, nearest, *form_cells, format_time(whole_us)])
    text = (
        f"{len(questions)} questions, with {options.budget:g} s a search. Each form's time is followed by its time /"
        " bound; *fastest form* is followed by its time / ours. All are timed in one model (store and forward, α a"
        " hop), so a step between distant partners costs as many α as it has hops. Swing uses both directions of every"
        " dimension, Trivance and bucket begin with every dimension once, and Bine and PAT use one port at a time."
        " Whole sums are exchanged only between neighbours: a schedule names a sum by its rank, so a sum cannot be"
        " forwarded by ranks that add their own. *Swing, whole sums* is a lower limit of Swing's time with whole sums;"
        " Trivance's exchange of whole sums is for extents that are powers of three."
    )
    figure = (
        f"The goal is to be at least as fast as every other form that our schedules can state: met in {nfastest} of"
    )
    figure += f" {len(questions)} rows. In {nwhole_faster} rows Swing's whole sums might be faster than ours."
    titles = (
        "topology",
        "size",
        "ours",
        "engine",
        "bound",
        "gap",
        "proved by",
        "fastest form",
        *FORMS,
        "Swing, whole sums",
    )
    write(__file__, page(__file__, "All-reduce of small messages on tori", [text, figure, grid(titles, rows)]))


if __name__ == "__main__":
    main()
