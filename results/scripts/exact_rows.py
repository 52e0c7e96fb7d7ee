"""Single questions of the k-synchronous model, beside msccl-tools and beside a peer that runs here.

    python -m results.scripts.exact_rows

makes exact_rows.md. Wall time of whole commands in fresh processes, median of 3 (one run over 60 s). The peer is
SCCL's encoding in Z3 (sccl_like.py), stopped after 60 s.
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
LONG_S = 2.0  # rows whose published time is above this count in the mean


@dataclass(frozen=True)
class Row:
    """A question, and what is published of it: seconds (or that there was no answer in so many) and verdict."""

    collective: str
    topo: str
    chunks: int
    steps: int
    rounds: int
    published_s: float
    published: str = "sat"  # sat, unsat, none

    @property
    def shape(self) -> str:
        return f"({self.chunks},{self.steps},{self.rounds})"


def _rows(collective: str, topo: str, shapes: str, seconds: str, verdict: str = "sat") -> list[Row]:
    rows = []
    for shape, published_s in zip(shapes.split(), seconds.split(), strict=True):
        chunks, steps, rounds = map(int, shape.split(","))
        rows.append(Row(collective, topo, chunks, steps, rounds, float(published_s), verdict))
    return rows


# msccl-tools on a machine of the same kind: the published figures, "Measured here", the first table (±50 %)
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
    """A row with our verdict (sat, unsat, none, or what is wrong) and seconds, and the peer's where it runs."""

    row: Row
    verdict: str
    words: str
    seconds: float
    peer: str = ""
    peer_s: float = 0.0

    @property
    def ratio(self) -> float:
        return self.row.published_s / self.seconds


def verdict(row: Row, timed: Timed) -> tuple[str, str]:
    """What a command with --json came to: one word, and how the table says it."""
    try:
        said: dict[str, Any] = json.loads(timed.out)
    except ValueError:
        return "failed", f"failed: {timed.err.strip()[-200:] or timed.code}"
    if said["impossible"]:
        return "unsat", "proved impossible: " + said["impossible"].partition(": ")[2]
    if not said["algorithms"]:
        return "none", "no answer in the budget"
    found = said["algorithms"][0]
    if found["chunks"] != row.chunks or found["steps"] > row.steps or found["rounds"] > row.rounds:
        return "wrong", f"wrong shape ({found['chunks']},{found['steps']},{found['rounds']})"
    checked = run(synth("verify", found["file"]))
    return ("sat", "found, verified") if checked.code == 0 else ("wrong", f"synth verify: {checked.out.strip()[:120]}")


def ours(row: Row, times: int) -> tuple[str, str, float]:
    """Verdict, its words and seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        shape = ("--chunks", row.chunks, "--steps", row.steps, "--rounds", row.rounds)
        timed = median_run(synth(row.collective, "--topo", row.topo, *shape, "--json", "--out", folder), times)
        word, words = verdict(row, timed)
    return word, words, timed.seconds


def peer(row: Row, times: int, limit_s: float) -> tuple[str, float]:
    """The peer's verdict (sat, unsat, none; empty where it does not know the collective) and seconds."""
    if row.collective not in COLLECTIVES:
        return "", 0.0
    shape = ("--chunks", row.chunks, "--steps", row.steps, "--rounds", row.rounds, "--limit", limit_s)
    asked = [row.collective, PEER_MACHINES[row.topo], *map(str, shape)]
    timed = median_run([sys.executable, "-m", "results.measuring.sccl_like", *asked], times, limit_s + 10)
    word = timed.out.strip() or "failed"
    return ("none" if timed.code is None or word == "unknown" else word), min(timed.seconds, limit_s)


def measured(rows: Sequence[Row], times: int = 3, peer_limit_s: float = PEER_LIMIT_S) -> list[Measured]:
    """All of ours, then all of the peer's, which are long."""
    mine = []
    for row in rows:
        mine.append(Measured(row, *ours(row, times)))
        print(mine[-1], file=sys.stderr, flush=True)
    both = []
    for m in mine:
        word, seconds = peer(m.row, times, peer_limit_s)
        both.append(replace(m, peer=word, peer_s=seconds))
        print(both[-1], file=sys.stderr, flush=True)
    return both


def table(all_rows: list[Measured]) -> str:
    """One line a row."""
    titles = [
        "collective",
        "topology",
        "(C,S,R)",
        "synth",
        "s",
        "msccl-tools s",
        "ratio",
        "peer",
        "peer s",
        "ratio",
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
    """The goals and what came of them."""
    long = [m for m in all_rows if m.row.published_s > LONG_S]
    answered = [m for m in long if m.row.published != "none"]
    slowest = min(all_rows, key=lambda m: m.ratio)
    slower = [f"{m.row.collective} {m.row.topo} {m.row.shape}" for m in all_rows if m.ratio < 1]
    asked = [m for m in all_rows if m.peer]
    beside = [m for m in asked if m.peer_s > LONG_S]
    worst = min(asked, key=lambda m: m.peer_s / m.seconds)
    pairs = [m for m in all_rows if m.row.collective == "alltoall" and m.row.chunks == 3]
    against = [
        f"{m.row.collective} {m.row.topo} {m.row.shape}: synth {m.verdict}, {who} {said}"
        for m in all_rows
        for who, said in (("msccl-tools", m.row.published), ("peer", m.peer))
        if m.verdict not in ("sat", "unsat") or (said in ("sat", "unsat") and said != m.verdict)
    ]
    return "\n".join(
        [
            f"- against msccl-tools, {len(long)} rows above {LONG_S:g} s (no answer counted as its limit):"
            f" **{geometric_mean(m.ratio for m in long):.1f} ×** in geometric mean, goal 15 ×;"
            f" {geometric_mean(m.ratio for m in answered):.1f} × over the {len(answered)} that it answered",
            f"- smallest ratio over all {len(all_rows)} rows: **{slowest.ratio:.2f}** ({slowest.row.collective}"
            f" {slowest.row.topo} {slowest.row.shape}), goal none below 1; below 1: {'; '.join(slower) or 'none'}",
            "- alltoall with 3 chunks a pair, goal under 10 s each: "
            + ", ".join(f"{m.row.shape} {seconds_words(m.seconds)} s" for m in pairs),
            f"- against the peer: {geometric_mean(m.peer_s / m.seconds for m in beside):.1f} × in geometric mean over"
            f" the {len(beside)} rows where it takes more than {LONG_S:g} s; smallest ratio"
            f" {worst.peer_s / worst.seconds:.2f} ({worst.row.collective} {worst.row.topo} {worst.row.shape})",
            f"- verdicts that differ, or rows without one: {'; '.join(dict.fromkeys(against)) or 'none'}",
        ]
    )


def main() -> None:
    done = measured(ROWS)
    notes = (
        "Whole commands in fresh processes, median of 3; `synth COLLECTIVE --topo T --chunks C --steps S --rounds R`."
        " msccl-tools: times taken elsewhere on a machine of the same kind (the project's published figures, ±50 %)."
        " Peer: SCCL's encoding written again in Z3 (`results/measuring/sccl_like.py`), the same machine and Z3,"
        f" stopped at {PEER_LIMIT_S:g} s, one run where it takes over 60 s; the ratios are theirs / ours."
    )
    write(
        __file__,
        page(__file__, "Exact questions, (chunks, steps, rounds)", [notes, summary(done), table(done)]),
    )


if __name__ == "__main__":
    main()
