"""Measure collectives on fabrics of 512 to 4,096 GPUs, as the simulator SimAI's generator describes them.

    python -m results.scripts.fabrics [--all]

makes fabrics.md. Each collective is asked at each number of GPUs and each size, on one of the fabrics in turn; with
--all on each fabric, which takes three times as long. The fabrics are files that SimAI reads, built from its published
defaults.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from results.measuring.measure import grid, page, seconds_words, write
from results.measuring.scale_runs import Answer, Processes, faults, gap_words
from tests.topologies.importers.simulators import racks, rails

SERVER = 8  # GPUs
FABRICS: dict[str, Callable[[int], str]] = {
    "HPN": lambda gpus: rails(gpus // SERVER, planes=2, segment=128, spines=60),
    "Spectrum-X": lambda gpus: rails(gpus // SERVER, planes=1, segment=64, spines=64, port="400Gbps"),
    "DCN+": lambda gpus: racks(gpus // SERVER, segment=8, spines=64, port="400Gbps", server="2880Gbps"),
}
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall")
GPUS, SIZES = (512, 1024, 4096), ("1M", "64M", "1G")
BUDGET_S, LIMIT_S, LIMIT_MB = 60, 60.0, 8000.0
GOALS = {"1M": 1.2, "64M": 1.02, "1G": 1.02}
GROWTH = {"allreduce": 1.3, "allgather": 1.3, "reducescatter": 1.3, "alltoall": 2.0}
FAULTY = 1024  # GPUs of the fabric with faults, an HPN
_LEAF = f"switch{FAULTY + FAULTY // SERVER + 1}.x2"  # Both planes' leaves of rail 1.
FAULTS: dict[str, list[str]] = {
    "none": [],
    "a server is missing": ["--group", f"0-7,16-{FAULTY - 1}"],
    "the ports of a rail have half of their rate": [
        word for gpu in range(1, FAULTY, SERVER) for word in ("--degrade", f"link:{gpu}-{_LEAF}=50%")
    ],
    "a port has half of its rate": ["--degrade", f"link:9-{_LEAF}=50%"],
}


@dataclass(frozen=True)
class Row:
    """A question and its answer.

    Attributes:
        fabric: Name of the fabric.
        gpus: Number of GPUs.
        collective: Name of the collective.
        size: Message size, as for --size.
        answer: The answer.
    """

    fabric: str
    gpus: int
    collective: str
    size: str
    answer: Answer

    @property
    def misses(self) -> list[str]:
        """Return which of the goals for gap, seconds and memory the answer misses."""
        reached = {
            "gap": self.answer.gap <= GOALS[self.size],
            "seconds": self.answer.seconds <= LIMIT_S,
            "memory": self.answer.peak_mb <= LIMIT_MB,
        }
        return [name for name, is_reached in reached.items() if not is_reached]


def questions(every: bool) -> list[tuple[str, int, str, str]]:
    """Return (fabric, GPUs, collective, size) of each question; of all fabrics, or of one in turn."""
    names, asked = list(FABRICS), []
    for turn, (gpus, collective, size) in enumerate(product(GPUS, COLLECTIVES, SIZES)):
        chosen = names if every else [names[(turn + turn // len(SIZES)) % len(names)]]
        asked += [(fabric, gpus, collective, size) for fabric in chosen]
    return asked


def measured(every: bool) -> tuple[list[Row], dict[str, Answer]]:
    """Ask all questions, each in a fresh process, and check the answers again from their files.

    Returns:
        The rows of the fabrics, and the answers by fault.
    """
    rows, faulty = [], {}
    with Processes() as processes, tempfile.TemporaryDirectory() as folder:
        for collective in COLLECTIVES:  # Compiles what the questions need.
            processes.asked(collective, "--topo", "dgx-h100:64", "--size", "64M", "--budget", "20s", times=1)
        for fabric, gpus, collective, size in questions(every):
            path = Path(folder, f"{fabric}-{gpus}")
            path.write_text(FABRICS[fabric](gpus))
            arguments = (collective, "--topo", path, "--size", size, "--target", "none", "--budget", f"{BUDGET_S}s")
            answer = processes.asked(*arguments, times=1, name=f"{collective} {fabric} {gpus} {size}")
            rows.append(Row(fabric, gpus, collective, size, answer))
        path = Path(folder, "faulty")
        path.write_text(FABRICS["HPN"](FAULTY))
        for fault, arguments in FAULTS.items():
            question = ("allreduce", "--topo", path, "--size", "64M", "--target", "none", "--budget", f"{BUDGET_S}s")
            faulty[fault] = processes.asked(*question, *arguments, times=1, name=f"allreduce HPN {FAULTY} 64M: {fault}")
    return rows, faulty


def growth(rows: Sequence[Row]) -> str:
    """Return a table of the exponents by which seconds grow from the fewest to the most GPUs, by collective."""
    few, most = min(GPUS), max(GPUS)
    lines = []
    for collective in COLLECTIVES:
        seconds = {
            gpus: [r.answer.seconds for r in rows if (r.gpus, r.collective) == (gpus, collective)]
            for gpus in (few, most)
        }
        if all(seconds.values()):
            mean = {gpus: math.exp(sum(map(math.log, of)) / len(of)) for gpus, of in seconds.items()}
            exponent = math.log(mean[most] / mean[few]) / math.log(most / few)
            lines.append([collective, seconds_words(mean[few]), seconds_words(mean[most]), f"{exponent:.2f}",
                          f"{GROWTH[collective]:g}"])  # fmt: skip
    return grid(["collective", f"{few} GPUs, s", f"{most} GPUs, s", "exponent", "goal"], lines)


def faulty_table(faulty: Mapping[str, Answer]) -> str:
    """Return the table of answers with faults beside the healthy one."""
    healthy_s = faulty["none"].seconds
    return grid(
        ["fault", "time / bound", "s", "× the healthy s"],
        [[fault, gap_words(a.gap), seconds_words(a.seconds), f"{a.seconds / healthy_s:.2f}"]
         for fault, a in faulty.items()],
    )  # fmt: skip


def text(rows: Sequence[Row], faulty: Mapping[str, Answer], every: bool) -> str:
    """Return the whole page."""
    lines = [
        [
            row.fabric, row.gpus, row.collective, row.size, gap_words(row.answer.gap),
            seconds_words(row.answer.seconds), f"{row.answer.peak_mb:.0f}", str(row.answer.row.get("proof", "–")),
            row.answer.checked or "–", ", ".join(row.misses) or "–",
        ]
        for row in rows
    ]  # fmt: skip
    missed = sum(bool(row.misses) for row in rows)
    wrong = faults([*(row.answer for row in rows), *faulty.values()])
    parts = [
        "Whole commands in fresh processes, `synth QUESTION --target none --costs none --budget 60s --proof --json`,"
        " from start to exit with all files written, once each. `synth prove` computes time and bound again from the"
        " files. The fabrics are those that SimAI's public generator makes by default: HPN 7.0 with two planes,"
        " Spectrum-X, and DCN+ with one switch a rack. Equal paths are one path of wider links.",
        f"Goals: gap ≤ {GOALS['64M']:g} from 64 MiB on and ≤ {GOALS['1M']:g} at 1 MiB, {LIMIT_S:g} s,"
        f" {LIMIT_MB / 1000:g} GB. Reached: {len(rows) - missed} of {len(rows)}."
        + ("" if every else " This is a sample: one fabric in turn for each question; `--all` asks all."),
        grid(
            [
                "fabric",
                "GPUs",
                "collective",
                "size",
                "time / bound",
                "s",
                "peak MB",
                "bound",
                "`synth prove`",
                "missed",
            ],
            lines,
        ),
        "## Growth",
        "Geometric means over the sizes, with the start of a process (about 1 s).",
        growth(rows),
        "## Faults",
        f"All-reduce of 64 MiB on an HPN of {FAULTY} GPUs. Goal: gap ≤ 1.05, at most twice the healthy time.",
        faulty_table(faulty),
        *(["## Failed", "\n".join(wrong)] if wrong else []),
    ]
    return page(__file__, "Fabrics of 512 to 4,096 GPUs", parts)


def main() -> None:
    """Measure, and write the table; exit with an error if an answer is wrong."""
    parser = argparse.ArgumentParser(description="Fabrics of 512 to 4,096 GPUs")
    parser.add_argument("--all", action="store_true", help="each question on each fabric")
    every = parser.parse_args().all
    rows, faulty = measured(every)
    write(__file__, text(rows, faulty, every))
    if faults([*(row.answer for row in rows), *faulty.values()]):
        raise SystemExit("fabrics: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
