"""Compare `verify` with labels made by hand, and with random runs, on execution plans of other makers.

    python -m results.scripts.foreign_plans FOLDER

makes foreign_plans.md. The labels are those of `results/measuring/plan_labels.csv`, by the names of the files.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.mscclpp.format import verify
from results.measuring.measure import grid, page, write
from tests.oracles.plan_results import ends_right

LABELS = Path(__file__).parents[1] / "measuring" / "plan_labels.csv"
RUNS = 12
MOST_S = 20.0  # seconds of a plan's random runs
UNLABELLED = {"verdict": "no label", "why": ""}


@dataclass(frozen=True)
class Row:
    """The result of one plan.

    Attributes:
        name: Name of the file, without its ending.
        status: Our verdict.
        first: First finding; empty if there is none.
        label: Verdict of the label.
        why: Reason of the label.
        runs: Number of random runs.
        right_runs: Number of them in which all launches ended right.
        seconds: Seconds of the verdict.
    """

    name: str
    status: str
    first: str
    label: str
    why: str
    runs: int
    right_runs: int
    seconds: float

    @property
    def contradicts(self) -> bool:
        """Return True if a run of a plan that is said to be right ended wrong."""
        return self.status == "right" and self.right_runs < self.runs


def labels() -> dict[str, dict[str, str]]:
    """Return the rows of the file of labels by the plan's name."""
    with LABELS.open(encoding="utf-8", newline="") as file:
        return {row["plan"]: row for row in csv.DictReader(file)}


def measured(path: Path, label: dict[str, str]) -> Row:
    """Verify a plan. Run it in random orders too, if it can run and its collective says what must come out."""
    start_s = time.perf_counter()
    verdict = verify(path)
    seconds = time.perf_counter() - start_s
    runs = right_runs = 0
    runs_at_all = all(finding.kind in ("race", "calls") for finding in verdict.findings)
    if runs_at_all and verdict.status in ("right", "wrong"):
        plan = json.loads(path.read_text(encoding="utf-8"))
        if plan["collective"] in ("allgather", "allreduce", "alltoall", "reducescatter"):
            start_s = time.perf_counter()
            while runs < RUNS and time.perf_counter() - start_s < MOST_S:
                right_runs += ends_right(plan, runs)
                runs += 1
    return Row(path.stem, verdict.status, verdict.reason, label["verdict"], label["why"], runs, right_runs, seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge every plan, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path)
    options = parser.parse_args(arguments)
    if options.folder is None:
        print("No FOLDER is given, so the table stays as it is.")
        return
    files = sorted(options.folder.glob("*.json"))
    if not files:
        raise SystemExit(f"{options.folder} has no .json files")
    label_of = labels()
    rows = [measured(path, label_of.get(path.stem, UNLABELLED)) for path in files]
    statuses = Counter(row.status for row in rows)
    summary = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    agreeing, run = sum(row.status == row.label for row in rows), [row for row in rows if row.runs]
    slowest = max(rows, key=lambda row: row.seconds)
    parts = [
        f"{len(rows)} plans: {summary}. {agreeing} verdicts are those of the labels. The slowest takes"
        f" {slowest.seconds:.1f} s ({slowest.name}).",
        f"{len(run)} plans were run in random orders, four launches each, by an executor that shares no code with the"
        f" judge, and whose plain stores become visible late. {sum(row.contradicts for row in rows)} plans that are"
        " judged right ended wrong in some run.",
        grid(
            ("plan", "label", "verdict", "right runs", "reason of the label"),
            [
                (row.name, row.label, row.status, f"{row.right_runs} of {row.runs}" if row.runs else "", row.why)
                for row in rows
            ],
        ),
        "## First findings",
        grid(("plan", "finding"), [(row.name, row.first) for row in rows if row.first]),
    ]
    write(__file__, page(__file__, "Execution plans of other makers", parts))


if __name__ == "__main__":
    main()
