"""Say when networks that change should change: time, changes, bound and the best single state by the time of a change.

    python -m results.scripts.changing [--budget 12] [--only NETWORK …]

makes changing.md. --budget is the seconds of each question; a question has a row for each time of a change.
"""

from __future__ import annotations

import argparse
import time

from results.measuring.measure import geometric_mean, grid, page, seconds_words, write
from synth.model.text import format_size, format_time
from synth.reconfiguration.search import Choice, search_changes
from synth.reconfiguration.states import read_states
from synth.reconfiguration.witness import check_bound

NETWORKS = (
    "ring:8,bw=50 + axes:2x2x2,bw=100",
    "ring:16,bw=50 + axes:2x2x2x2,bw=100",
    "strides:8,bw=50",
    "axes:4x4,bw=100",
    "ring:16,bw=100 + torus:4x4,bw=50",
)
QUESTIONS = (("alltoall", 64 << 20), ("allreduce", 64 << 20), ("allreduce", 64 << 10))
DELTAS_US = (0.0, 1.0, 10.0, 100.0, 1000.0)
TITLES = ("collective", "size", "change", "changes", "time", "bound", "time / bound", "best state", "states")


def row_of(collective: str, size_bytes: int, delta_us: float, choice: Choice) -> tuple[str, ...]:
    """Return the row of a choice."""
    names = [choice.network.states[state].name.partition(",")[0] for state in choice.schedule.states]
    single = "–" if choice.single_us is None else format_time(choice.single_us)
    return (
        collective, format_size(size_bytes), format_time(delta_us), str(choice.changes), format_time(choice.time_us),
        format_time(choice.bound_us), f"{choice.gap:.3f}", single, " → ".join(names),
    )  # fmt: skip


def main() -> None:
    """Answer all questions and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=12.0, help="seconds of each question")
    parser.add_argument("--only", nargs="*", metavar="NETWORK", help="only networks with this in their text")
    arguments = parser.parse_args()
    begun, parts, gaps, gains, worse = time.monotonic(), list[str](), list[float](), list[float](), 0
    for spec in NETWORKS:
        if arguments.only and not any(text in spec for text in arguments.only):
            continue
        network, rows = read_states(spec), list[tuple[str, ...]]()
        for collective, size_bytes in QUESTIONS:
            search = search_changes(network, collective, size_bytes, 0, arguments.budget, DELTAS_US)
            assert search.bound is not None
            check_bound(network, search.bound)
            for delta_us in DELTAS_US:
                choice = search.choose(delta_us)
                rows.append(row_of(collective, size_bytes, delta_us, choice))
                print(spec, *rows[-1], flush=True)
                gaps.append(choice.gap)
                if choice.single_us is not None:
                    gains.append(choice.single_us / choice.time_us)
                    worse += choice.time_us > choice.single_us
        parts.append(f"## {spec}\n\n{grid(TITLES, rows)}")
    seconds = time.monotonic() - begun
    summary = (
        "Each question has one message size; each row is one time of a change. While a network changes, nothing moves."
        " *Best state* is the time of the best state without a change (–: no state joins all ranks). Every bound was"
        " checked again, apart from its search.\n\n"
        f"{len(gaps)} rows: time / bound {geometric_mean(gaps):.3f} in the geometric mean, at most {max(gaps):.3f}; "
        f"the best state takes up to {max(gains, default=1.0):.2f} × as long; {worse} rows are slower than the best"
        f" state. All took {seconds_words(seconds)} s, with a budget of {arguments.budget:g} s for each question."
    )
    write("changing", page("changing", "Networks that change", [summary, *parts]))


if __name__ == "__main__":
    main()
