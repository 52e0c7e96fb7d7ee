"""Check the budgets of whole commands, from start to exit: questions of 2 to 1,000,000 ranks with 1, 5 and 30 seconds.

    python -m results.scripts.budgets [--count N] [--every N] [--seed N]

makes budgets.md. Questions are drawn with a seed: machines, clusters, families, process groups, concurrent groups,
engines and targets. Overrun is wall time less the budget. A second table has the README's example in a fresh
environment, with empty caches of bytecode and of compiled loops.
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
MOST_SHARE, MOST_S = 0.1, 1.5  # Allowed overrun: a share of the budget or so many seconds, whichever is more.
SMALL = ("dgx1", "dgx-a100", "dgx-h100", "mi250", "ring:8", "torus:4x4", "mesh:3x3", "full:6", "hypercube:4")
MIDDLE = ("dgx-a100:4", "dgx-h100:4", "dgx-h100:8", "torus:6x7", "torus:4x4x4", "mesh:12x12", "ring:100", "dgx-a100:32")
LARGE = ("dgx-a100:128", "ring:5000", "torus:40x40", "mesh:10x10x10", "ring:100000", "torus:300x300", "ring:1000000")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "scatter", "gather")
TARGETS = ("auto", "executor-nccl", "msccl", "rccl", "mscclpp", "none")
EXAMPLE = ("allreduce", "--topo", "dgx-a100", "--group", "0,2,4,6")
SHOWN = 25  # Number of questions in the table, those with the largest overrun.


@dataclass(frozen=True)
class Question:
    """A command and its budget.

    Attributes:
        words: Arguments of `synth` without --budget and --out.
        budget_s: Budget in seconds.
    """

    words: tuple[str, ...]
    budget_s: int


def questions(count: int, seed: int) -> list[Question]:
    """Return the first `count` questions of an endless random list."""
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


def ask(question: Question) -> tuple[Timed, str, float | None]:
    """Run a question; return the ended command, its result in words, and its largest gap."""
    with tempfile.TemporaryDirectory() as folder:
        budget = ("--budget", f"{question.budget_s}s")
        command = synth(*question.words, *budget, "--json", "--out", folder)
        for _ in range(2):
            timed = run(command, limit_s=40 * question.budget_s + 100)
            if "compiling loops" not in timed.err:  # Loops are compiled once on a machine, and outside the budget.
                break
            command.append("--replace")
    if timed.code == 2:
        return timed, "refused: " + timed.err.strip().splitlines()[-1].removeprefix("synth: ")[:90], None
    try:
        document = json.loads(timed.out)
    except ValueError:
        return timed, f"code {timed.code}", None
    rows = document.get("algorithms")
    if rows is None:
        return timed, "groups", document.get("gap")
    if not rows:
        return timed, "nothing", None
    files = sum(row.get("file") is not None for row in rows)
    return timed, f"{files} of {len(rows)} have a file", max(row["gap"] for row in rows)


def within(question: Question, seconds: float) -> bool:
    """Return True if a command of so many seconds stays within the allowed overrun."""
    return seconds - question.budget_s <= max(MOST_S, MOST_SHARE * question.budget_s)


def cold() -> list[tuple[str, str, str]]:
    """Run the README's example with empty caches and again; return its seconds and whether the files are the same."""
    answers, rows = [], []
    with tempfile.TemporaryDirectory() as cache_folder:
        os.environ |= {"PYTHONPYCACHEPREFIX": f"{cache_folder}/bytecode", "XDG_CACHE_HOME": f"{cache_folder}/cache"}
        for name in ("cold", "warm"):
            out = Path(cache_folder, name)
            timed = run(synth(*EXAMPLE, "--out", out))
            answers.append({path.name: path.read_bytes() for path in sorted(out.rglob("*.xml"))})
            same = "–" if len(answers) < 2 else "yes" if answers[0] == answers[1] else "no"
            rows.append((name, seconds_words(timed.seconds), same))
        del os.environ["PYTHONPYCACHEPREFIX"], os.environ["XDG_CACHE_HOME"]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the questions, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=210, help="number of random questions")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th question only")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rows = []
    for question in questions(options.count, options.seed)[:: options.every]:
        timed, outcome, gap = ask(question)
        over = timed.seconds - question.budget_s
        rows.append((over, within(question, timed.seconds), " ".join(question.words), question.budget_s, outcome, gap))
        print(
            f"{over:7.1f} s over the budget of {question.budget_s} s: {' '.join(question.words)}: {outcome}", flush=True
        )
    rows.sort(key=lambda row: -row[0])
    load = os.getloadavg()[1]
    beyond = sum(not in_limit for _, in_limit, *_ in rows)
    refused = sum(outcome.startswith("refused") for *_, outcome, _ in rows)
    summary = (
        f"{len(rows)} questions (seed {options.seed}, --every {options.every}). "
        f"The machine's load at the end was {load:.1f}. "
        f"Refused: {refused}. Beyond the budget by more than {MOST_S} s "
        f"and {MOST_SHARE:.0%}: {beyond}. "
        f"The largest overrun is {rows[0][0]:.1f} s."
    )
    table = grid(
        ("question", "budget s", "overrun s", "within limit", "result", "largest gap"),
        (
            (words, budget, f"{over:.1f}", "yes" if in_limit else "no", outcome, "–" if gap is None else f"{gap:.3f}")
            for over, in_limit, words, budget, outcome, gap in rows[:SHOWN]
        ),
    )
    first = grid(("the README's example", "s", "same files as cold"), cold())
    write(
        __file__, page(__file__, "Budgets", [summary, f"The {SHOWN} questions with the largest overrun:", table, first])
    )


if __name__ == "__main__":
    main()
