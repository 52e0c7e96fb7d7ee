"""Compare single questions of the k-synchronous model with msccl-tools and with a reference solver that runs here.

    python -m results.scripts.exact_rows

makes exact_rows.md. Times are wall times of whole commands in fresh processes, the median of 3 runs (one run over
60 s). The reference is SCCL's encoding in Z3 (sccl_like.py); it is stopped after 60 s.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from results.measuring.measure import (
    Timed,
    geometric_mean,
    grid,
    median_run,
    page,
    run,
    seconds_words,
    synth,
    write,
)
from results.measuring.sccl_like import COLLECTIVES

PEER_LIMIT_S = 60.0
PEER_MACHINES = {
    "dgx1": "dgx1",
    "ring:8": "ring:8",
    "ring:16": "ring:16",
    "dgx2": "hub:16",
    "ring:4": "ring:4",
}
LONG_S = 2.0  # Only rows whose published time is above this count in the mean.


@dataclass(frozen=True)
class Row:
    """A question and its published result.

    Attributes:
        collective: Name of the collective.
        topo: Name of the topology.
        chunks, steps, rounds: The point (C, S, R).
        published_s: Published seconds of the answer; the time limit if the published verdict is "none".
        published: Published verdict: sat, unsat or none.
    """

    collective: str
    topo: str
    chunks: int
    steps: int
    rounds: int
    published_s: float
    published: str = "sat"

    @property
    def shape(self) -> str:
        """Format the point as `(C,S,R)`."""
        return f"({self.chunks},{self.steps},{self.rounds})"


def _rows(collective: str, topo: str, shapes: str, seconds: str, verdict: str = "sat") -> list[Row]:
    """Return rows of one collective and topology from lists of points and of seconds."""
    rows = []
    for shape, published_s in zip(shapes.split(), seconds.split(), strict=True):
        chunks, steps, rounds = map(int, shape.split(","))
        rows.append(Row(collective, topo, chunks, steps, rounds, float(published_s), verdict))
    return rows


# Published figures of msccl-tools on a machine of the same kind (±50 %).
ROWS = [
    *_rows(
        "allgather",
        "dgx1",
        "1,2,2 2,2,3 2,3,3 3,3,4 3,4,4 4,3,5 5,3,6 6,3,7 6,7,7",
        "0.8 1.6 1.8 7.3 1.9 7.9 19.3 34.5 54.5",
    ),
    *_rows("allgather", "dgx1", "3,2,4 6,2,7", "2.6 7.6", "unsat"),
    *_rows("alltoall", "dgx1", "1,2,2", "3.6", "unsat"),
    *_rows("alltoall", "dgx1", "1,2,3 1,3,3", "10.4 24.7"),
    *_rows("alltoall", "dgx1", "3,2,8 3,3,8 3,8,8", "150 150 150", "none"),
    *_rows("broadcast", "dgx1", "2,2,2 6,3,3 6,3,5 12,4,4 18,5,5", "0.3 0.4 0.7 1.9 29.1"),
    *_rows("gather", "dgx1", "2,2,3 6,3,7 6,7,7", "1.6 12.9 12.3"),
    *_rows("reducescatter", "dgx1", "2,2,3", "0.9"),
    *_rows("allreduce", "dgx1", "1,4,4", "1.2"),
    *_rows("allgather", "ring:8", "1,4,4 2,7,7 2,4,7", "0.5 0.8 0.7"),
    *_rows("alltoall", "ring:8", "1,4,8", "6.7"),
    *_rows("alltoall", "ring:8", "1,8,8", "150", "none"),
    *_rows("allgather", "ring:16", "1,8,8", "2.5"),
    *_rows("allgather", "dgx2", "1,15,15", "60", "none"),
]


@dataclass(frozen=True)
class Measured:
    """A row with our verdict and the reference's.

    Attributes:
        row: The question.
        verdict: Our verdict: sat, unsat, none, failed or wrong.
        words: Our verdict as the table states it.
        seconds: Wall time of our command in seconds.
        peer: The reference's verdict; empty if it does not know the collective.
        peer_s: Wall time of the reference in seconds.
    """

    row: Row
    verdict: str
    words: str
    seconds: float
    peer: str = ""
    peer_s: float = 0.0

    @property
    def ratio(self) -> float:
        """Return the published seconds divided by ours."""
        return self.row.published_s / self.seconds


def verdict(row: Row, timed: Timed) -> tuple[str, str]:
    """Return the verdict of a command with --json in one word, and as the table states it."""
    try:
        output: dict[str, Any] = json.loads(timed.out)
    except ValueError:
        return "failed", f"failed: {timed.err.strip()[-200:] or timed.code}"
    if output["impossible"]:
        return "unsat", "proved impossible: " + output["impossible"].partition(": ")[2]
    if not output["algorithms"]:
        return "none", "no answer within the budget"
    algorithm = output["algorithms"][0]
    if algorithm["chunks"] != row.chunks or algorithm["steps"] > row.steps or algorithm["rounds"] > row.rounds:
        return "wrong", f"wrong shape ({algorithm['chunks']},{algorithm['steps']},{algorithm['rounds']})"
    checked = run(synth("verify", algorithm["file"]))
    return ("sat", "found, verified") if checked.code == 0 else ("wrong", f"synth verify: {checked.out.strip()[:120]}")


def ours(row: Row, times: int) -> tuple[str, str, float]:
    """Run our command; return its verdict, the verdict in words, and the seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        shape = ("--chunks", row.chunks, "--steps", row.steps, "--rounds", row.rounds)
        timed = median_run(
            synth(row.collective, "--topo", row.topo, *shape, "--costs", "none", "--json", "--out", folder), times
        )
        word, words = verdict(row, timed)
    return word, words, timed.seconds


def peer(row: Row, times: int, limit_s: float) -> tuple[str, float]:
    """Run the reference; return its verdict (sat, unsat, none; empty for an unknown collective) and seconds."""
    if row.collective not in COLLECTIVES:
        return "", 0.0
    shape = ("--chunks", row.chunks, "--steps", row.steps, "--rounds", row.rounds, "--limit", limit_s)
    arguments = [row.collective, PEER_MACHINES[row.topo], *map(str, shape)]
    timed = median_run([sys.executable, "-m", "results.measuring.sccl_like", *arguments], times, limit_s + 10)
    word = timed.out.strip() or "failed"
    return ("none" if timed.code is None or word == "unknown" else word), min(timed.seconds, limit_s)


def measured(rows: Sequence[Row], times: int = 3, peer_limit_s: float = PEER_LIMIT_S) -> list[Measured]:
    """Measure all rows with our command, then all rows with the reference, whose runs are long."""
    our_rows = []
    for row in rows:
        our_rows.append(Measured(row, *ours(row, times)))
        print(our_rows[-1], file=sys.stderr, flush=True)
    rows_with_reference = []
    for m in our_rows:
        word, seconds = peer(m.row, times, peer_limit_s)
        rows_with_reference.append(replace(m, peer=word, peer_s=seconds))
        print(rows_with_reference[-1], file=sys.stderr, flush=True)
    return rows_with_reference


def table(all_rows: list[Measured]) -> str:
    """Return the table, one line for each row."""
    titles = [
        "collective",
        "topology",
        "(C,S,R)",
        "synth",
        "s",
        "msccl-tools s",
        "msccl-tools / synth",
        "reference",
        "reference s",
        "reference / synth",
    ]
    lines = []
    for m in all_rows:
        published = f"{m.row.published_s:g}" if m.row.published != "none" else f"none in {m.row.published_s:g}"
        theirs = f"{m.peer_s / m.seconds:.1f}" if m.peer else "–"
        lines.append(
            [
                m.row.collective,
                m.row.topo,
                m.row.shape,
                m.words,
                seconds_words(m.seconds),
                published + (" (UNSAT)" if m.row.published == "unsat" else ""),
                f"{'> ' * (m.row.published == 'none')}{m.ratio:.1f}",
                m.peer or "–",
                seconds_words(m.peer_s) if m.peer else "–",
                ("> " if m.peer == "none" else "") + theirs,
            ]
        )
    return grid(titles, lines)


def summary(all_rows: list[Measured]) -> str:
    """Return the goals and the results as a list."""
    long = [m for m in all_rows if m.row.published_s > LONG_S]
    answered = [m for m in long if m.row.published != "none"]
    slowest = min(all_rows, key=lambda m: m.ratio)
    slower = [f"{m.row.collective} {m.row.topo} {m.row.shape}" for m in all_rows if m.ratio < 1]
    compared = [m for m in all_rows if m.peer]
    long_compared = [m for m in compared if m.peer_s > LONG_S]
    worst = min(compared, key=lambda m: m.peer_s / m.seconds)
    pairs = [m for m in all_rows if m.row.collective == "alltoall" and m.row.chunks == 3]
    disagreements = [
        f"{m.row.collective} {m.row.topo} {m.row.shape}: synth {m.verdict}, {solver} {their_verdict}"
        for m in all_rows
        for solver, their_verdict in (("msccl-tools", m.row.published), ("reference", m.peer))
        if m.verdict not in ("sat", "unsat") or (their_verdict in ("sat", "unsat") and their_verdict != m.verdict)
    ]
    return "\n".join(
        [
            f"- against msccl-tools, on {len(long)} rows above {LONG_S:g} s (a missing answer counts as its time"
            f" limit): **{geometric_mean(m.ratio for m in long):.1f} ×** in geometric mean, goal 15 ×;"
            f" {geometric_mean(m.ratio for m in answered):.1f} × over the {len(answered)} rows that it answered",
            f"- smallest ratio over all {len(all_rows)} rows: **{slowest.ratio:.2f}** ({slowest.row.collective}"
            f" {slowest.row.topo} {slowest.row.shape}), goal: none below 1; below 1: {'; '.join(slower) or 'none'}",
            "- alltoall with 3 chunks a pair, goal under 10 s each: "
            + ", ".join(f"{m.row.shape} {seconds_words(m.seconds)} s" for m in pairs),
            f"- against the reference: {geometric_mean(m.peer_s / m.seconds for m in long_compared):.1f} × in"
            f" geometric mean over the {len(long_compared)} rows where it takes more than {LONG_S:g} s; the smallest"
            f" ratio is {worst.peer_s / worst.seconds:.2f} ({worst.row.collective} {worst.row.topo} {worst.row.shape})",
            f"- verdicts that differ, or rows without one: {'; '.join(dict.fromkeys(disagreements)) or 'none'}",
        ]
    )


def main() -> None:
    """Measure all rows, and write the table."""
    rows = measured(ROWS)
    notes = (
        "Wall times of whole commands in fresh processes, median of 3: `synth COLLECTIVE --topo T --chunks C --steps S"
        " --rounds R`. msccl-tools: published times, measured on a machine of the same kind (±50 %). Reference: SCCL's"
        " encoding written again in Z3 (`results/measuring/sccl_like.py`), on this machine with the same Z3, stopped"
        f" after {PEER_LIMIT_S:g} s, and run once if it takes over 60 s. Ratios are their time / ours."
    )
    write(
        __file__,
        page(__file__, "Exact questions, (chunks, steps, rounds)", [notes, summary(rows), table(rows)]),
    )


if __name__ == "__main__":
    main()
