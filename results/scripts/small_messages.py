"""Small and middle all-reduce on tori: our answer beside Swing, Trivance, Bine, PAT and others, with the bound.

    python -m results.scripts.small_messages [--budget 20] [--only TOPOLOGY …] [--size BYTES …] [--every 1]

makes small_messages.md: schedules in α and bandwidth alone, each replayed.
"""

from __future__ import annotations

import argparse
from contextlib import suppress

import synth
from results.measuring.measure import grid, page, write
from synth.baselines import CLOSED_FORMS, baseline_named
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.algorithms.swing import swing_line
from synth.model.problem import make_problem
from synth.model.sizes import parse_size
from synth.model.text import format_size, format_time
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.errors import TooManySends
from topologies.load import load

TOPOLOGIES = ("torus:8x8", "torus:16x16", "torus:8x8x8")
SIZES = ("1K", "64K", "1M")
FORMS = (*CLOSED_FORMS, "recursive doubling")
_ROUNDING = 1e-9  # of a time: what two sums of the same terms may differ by


def form_times_us(topology: str, size: int) -> dict[str, float]:
    """The best time of each form that is for all ranks of a topology, its sends in the order for that size."""
    problem = make_problem(load(topology), "allreduce")
    times: dict[str, float] = {}
    for form in FORMS:
        with suppress(TooManySends):
            made = [one.time_us(size) for one in baseline_named(problem, form, size)]
            times |= {form: min(made)} if made else {}
    return times


def whole_swing_us(topology: str, size: int) -> float:
    """What Swing's exchange of whole sums would take if no two messages met: hops of all steps, 2·D parts at once."""
    problem = make_problem(load(topology), "allreduce")
    net, extents = problem.network, grid_extents(problem)
    part = size / (2 * len(extents)) * US_PER_BYTE_AT_1_GBS / float(net.bandwidth_gbs.max())
    apart = [(int(goals[0]), extent) for extent in extents for (goals,) in swing_line(extent)]
    return sum(min(goal, extent - goal) for goal, extent in apart) * (float(net.alpha_us.min()) + part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds a search")
    parser.add_argument("--only", nargs="*", default=list(TOPOLOGIES), help="topologies")
    parser.add_argument("--size", nargs="*", default=list(SIZES), help="message sizes")
    parser.add_argument("--every", type=int, default=1, help="of so many questions only the first")
    asked = parser.parse_args()
    questions = [(t, parse_size(s, "--size")) for t in asked.only for s in asked.size][:: asked.every]
    rows, first, ahead = [], 0, 0
    for topology, size in questions:
        answer = synth.synthesize("allreduce", topology, size=size, budget=asked.budget).found
        best = answer.ranges[0]
        ours_us, (bound_us, witness) = best.time_us(size), answer.bound.at(size)
        times = form_times_us(topology, size)
        whole_us = whole_swing_us(topology, size)
        ahead += whole_us < ours_us
        rival = min(times, key=lambda form: times[form])
        first += ours_us <= times[rival] * (1 + _ROUNDING)
        others = (
            f"{format_time(times[form])} ({times[form] / bound_us:.2f})" if form in times else "–" for form in FORMS
        )
        gap = f"{max(1.0, ours_us / bound_us):.3f}"
        row = (topology, format_size(size), format_time(ours_us), best.algorithm.engine, format_time(bound_us), gap)
        nearest = f"{rival} {times[rival] / ours_us:.2f} ×"
        rows.append([*row, witness.kind, nearest, *others, format_time(whole_us)])
    text = (
        f"{len(questions)} questions, {asked.budget:g} s a search. Beside each form's time stands its time / bound;"
        " *nearest* is the fastest form and its time / ours. All are timed in one model (store and forward, α a hop),"
        " so that a step between partners far apart costs as many α as it has hops. Swing takes both directions of"
        " every dimension, Trivance and bucket begin with every dimension once, Bine and PAT take one port at a time;"
        " whole sums are exchanged only where partners are neighbours: a schedule names a sum by its rank,"
        " so that one cannot pass ranks which add their own and stay apart. *Swing, whole sums* is what that would take"
        " at the least if it could; Trivance's exchange of whole sums is for extents that are powers of three."
    )
    figure = f"Figure: never slower than the best of the others: {first} of {len(questions)} rows, of those"
    figure += f" that our schedules can state. Unmet: in {ahead} rows Swing's whole sums might be faster than ours."
    titles = ("topology", "size", "ours", "by", "bound", "gap", "proved by", "nearest", *FORMS, "Swing, whole sums")
    write(__file__, page(__file__, "All-reduce of small messages on tori", [text, figure, grid(titles, rows)]))


if __name__ == "__main__":
    main()
