"""Measure collectives on fabrics of 1,024 GPUs in which a port is slow or dead, or a GPU is lost.

    python -m results.scripts.fabric_faults [--fabrics NAME …] [--collectives NAME …] [--size SIZE]

makes fabric_faults.md. The fabrics are those of `results.scripts.fabrics`. By default it is a sample, which takes some
minutes: two collectives on one fabric.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from results.measuring.measure import grid, page, seconds_words, write
from results.measuring.scale_runs import Answer, Processes, faults, gap_words
from results.scripts.fabrics import BUDGET_S, COLLECTIVES, FABRICS, FAULTY, SERVER

GOAL_GAP, GOAL_TIMES = 1.05, 2.0
GPU = 9  # The second GPU of the second server, whose port is at fault or which is lost.
_LEAVES = FAULTY + FAULTY // SERVER
_LEAF = {"HPN": f"switch{_LEAVES + 1}.x2", "Spectrum-X": f"switch{_LEAVES + 1}", "DCN+": f"switch{_LEAVES}"}
HEALTHY = "none"
_SAMPLE = ("allreduce", "allgather")


def options_of(fabric: str) -> dict[str, list[str]]:
    """Return the options of `synth` for each fault of a fabric."""
    port = f"link:{GPU}-{_LEAF[fabric]}"
    return {
        HEALTHY: [],
        "a port has half of its rate": ["--degrade", f"{port}=50%"],
        "a port is dead": ["--without", port],
        "a GPU is lost": ["--group", f"0-{GPU - 1},{GPU + 1}-{FAULTY - 1}"],
    }


def text(answers: dict[tuple[str, str, str], Answer], size: str) -> str:
    """Return the whole page, from the answers by (fabric, collective, fault)."""
    rows = []
    for (fabric, collective, fault), answer in answers.items():
        times = answer.seconds / answers[fabric, collective, HEALTHY].seconds
        missed = [name for name, is_missed in (("gap", answer.gap > GOAL_GAP), ("seconds", times > GOAL_TIMES))
                  if is_missed]  # fmt: skip
        rows.append([
            fabric, collective, fault, gap_words(answer.gap), seconds_words(answer.seconds), f"{times:.2f}",
            f"{answer.peak_mb:.0f}", str(answer.row.get("engine", "–")), answer.checked or "–",
            ", ".join(missed) or "–",
        ])  # fmt: skip
    wrong = faults(list(answers.values()))
    parts = [
        f"Collectives of {size} on fabrics of {FAULTY} GPUs, whole commands in fresh processes, once each, as in"
        f" fabrics.md, with `--budget {BUDGET_S}s`. The fault is at GPU {GPU}. A command ends early only where its"
        " answer is near the bound, so that seconds count the whole budget where it is not.",
        f"Goals: gap ≤ {GOAL_GAP:g}, at most {GOAL_TIMES:g} × the seconds without a fault.",
        grid(
            ["fabric", "collective", "fault", "time / bound", "s", "× healthy s", "peak MB", "engine", "`synth prove`",
             "missed"],
            rows,
        ),
        *(["## Failed", "\n".join(wrong)] if wrong else []),
    ]  # fmt: skip
    return page(__file__, f"Faults in fabrics of {FAULTY} GPUs", parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the table; exit with an error if an answer is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--fabrics", nargs="+", default=["HPN"], choices=list(_LEAF), metavar="NAME")
    parser.add_argument("--collectives", nargs="+", default=list(_SAMPLE), choices=COLLECTIVES, metavar="NAME")
    parser.add_argument("--size", default="64M")
    options = parser.parse_args(arguments)
    answers: dict[tuple[str, str, str], Answer] = {}
    with Processes() as processes, tempfile.TemporaryDirectory() as folder:
        for fabric in options.fabrics:
            path = Path(folder, fabric)
            path.write_text(FABRICS[fabric](FAULTY))
            for collective, (fault, words) in product(options.collectives, options_of(fabric).items()):
                question = (collective, "--topo", path, "--size", options.size, "--target", "none")
                answers[fabric, collective, fault] = processes.asked(
                    *question, "--budget", f"{BUDGET_S}s", *words, times=1, name=f"{collective} {fabric}: {fault}"
                )
    write(__file__, text(answers, options.size))
    if faults(list(answers.values())):
        raise SystemExit("fabric_faults: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
