"""Budgets of whole commands, from start to exit: questions of 2 to 1,000,000 ranks with 1, 5 and 30 seconds.

    python -m results.scripts.budgets [--count N] [--every N] [--seed N]

makes budgets.md. Questions are drawn with a seed: machines, clusters, families, process groups, several groups at once,
engines and targets. Overrun is wall time less the budget; the first answer in a fresh environment is that of the
README's example with an empty cache of bytecode and of compiled loops.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results.measuring.measure import Timed, grid, page, run, seconds_words, synth, write

BUDGETS_S = (1, 5, 30)
MOST_SHARE, MOST_S = 0.1, 1.5  # of overrun: one or the other
SMALL = ("dgx1", "dgx-a100", "dgx-h100", "mi250", "ring:8", "torus:4x4", "mesh:3x3", "full:6", "hypercube:4")
MIDDLE = ("dgx-a100:4", "dgx-h100:4", "dgx-h100:8", "torus:6x7", "torus:4x4x4", "mesh:12x12", "ring:100", "dgx-a100:32")
LARGE = ("dgx-a100:128", "ring:5000", "torus:40x40", "mesh:10x10x10", "ring:100000", "torus:300x300", "ring:1000000")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "scatter", "gather")
TARGETS = ("auto", "executor-nccl", "msccl", "rccl", "mscclpp", "none")
EXAMPLE = ("allreduce", "--topo", "dgx-a100", "--group", "0,2,4,6")
SHOWN = 25  # worst questions in the table


@dataclass(frozen=True)
class Question:
    """A command's words, but for --budget and --out, and its budget in seconds."""

    words: tuple[str, ...]
    budget_s: int


def questions(count: int, seed: int) -> list[Question]:
    """The first so many of an endless list."""
    draw = random.Random(seed)
    return [_question(draw) for _ in range(count)]


def _question(draw: random.Random) -> Question:
    topo = draw.choice(draw.choices((SMALL, MIDDLE, LARGE), weights=(5, 4, 3))[0])
    words = [draw.choice(COLLECTIVES), "--topo", topo]
    kind = draw.random()
    if topo in SMALL and kind < 0.2:
        words += ["--groups", "x=2", "--size", draw.choice(("64K", "16M"))]
    elif topo in SMALL and kind < 0.4:
        words += ["--group", "0-3", *draw.choice(((), ("--relay", "all")))]
    elif kind < 0.6:
        words += ["--size", draw.choice(("4K", "1M", "1G"))]
    elif topo in SMALL and kind < 0.7:
        words += ["--engine", draw.choice(("flow", "route", "cpsat", "smt", "milp"))]
    return Question((*words, "--target", draw.choice(TARGETS)), draw.choice(BUDGETS_S))


def asked(question: Question) -> tuple[Timed, str, float | None]:
    """A command's end, what came of it in a word, and its largest gap."""
    with tempfile.TemporaryDirectory() as folder:
        budget = ("--budget", f"{question.budget_s}s")
        command = synth(*question.words, *budget, "--json", "--out", folder)
        for _ in range(2):
            done = run(command, limit_s=40 * question.budget_s + 100)
            if "compiling loops" not in done.err:  # which stands beside the budget, once on a machine
                break
            command.append("--replace")
    if done.code == 2:
        return done, "refused: " + done.err.strip().splitlines()[-1].removeprefix("synth: ")[:90], None
    try:
        document = json.loads(done.out)
    except ValueError:
        return done, f"code {done.code}", None
    rows = document.get("algorithms")
    if rows is None:
        return done, "groups", document.get("gap")
    if not rows:
        return done, "nothing", None
    files = sum("file" in row for row in rows)
    return done, f"{files} of {len(rows)} have a file", max(row["gap"] for row in rows)


def within(question: Question, seconds: float) -> bool:
    """Whether an overrun is one that may be."""
    return seconds - question.budget_s <= max(MOST_S, MOST_SHARE * question.budget_s)


def cold() -> list[tuple[str, str, str]]:
    """The README's example with nothing kept, and again: seconds, and whether its answer is the same."""
    answers, rows = [], []
    with tempfile.TemporaryDirectory() as kept:
        os.environ |= {"PYTHONPYCACHEPREFIX": f"{kept}/bytecode", "XDG_CACHE_HOME": f"{kept}/cache"}
        for name in ("cold", "warm"):
            out = Path(kept, name)
            done = run(synth(*EXAMPLE, "--out", out))
            answers.append({path.name: path.read_bytes() for path in sorted(out.rglob("*.xml"))})
            same = "–" if len(answers) < 2 else "yes" if answers[0] == answers[1] else "no"
            rows.append((name, seconds_words(done.seconds), same))
        del os.environ["PYTHONPYCACHEPREFIX"], os.environ["XDG_CACHE_HOME"]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=210, help="questions")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th of them only")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    rows = []
    for question in questions(given.count, given.seed)[:: given.every]:
        done, came, gap = asked(question)
        over = done.seconds - question.budget_s
        rows.append((over, within(question, done.seconds), " ".join(question.words), question.budget_s, came, gap))
        print(f"{over:7.1f} s over {question.budget_s} s: {' '.join(question.words)}: {came}", flush=True)
    rows.sort(key=lambda row: -row[0])
    load = os.getloadavg()[1]
    beyond = sum(not kept for _, kept, *_ in rows)
    refused = sum(came.startswith("refused") for *_, came, _ in rows)
    summary = (
        f"{len(rows)} questions (seed {given.seed}, one in {given.every}); the machine's load at the end {load:.1f}. "
        f"Refused at once or late: {refused}. Beyond the budget by more than {MOST_S} s "
        f"and {MOST_SHARE:.0%}: {beyond}. "
        f"Worst: {rows[0][0]:.1f} s over."
    )
    table = grid(
        ("question", "budget s", "overrun s", "kept", "what came", "largest gap"),
        (
            (words, budget, f"{over:.1f}", "yes" if kept else "no", came, "–" if gap is None else f"{gap:.3f}")
            for over, kept, words, budget, came, gap in rows[:SHOWN]
        ),
    )
    first = grid(("the README's example", "s", "same files"), cold())
    write(__file__, page(__file__, "Budgets", [summary, f"The {SHOWN} longest beyond their budget:", table, first]))


if __name__ == "__main__":
    main()
