"""Run random programs on the host executor and in the GPU's kernel on CPU threads, under the thread sanitizer.

    python -m results.scripts.kernel_on_cpu [--programs 10000] [--seed 1]

makes kernel_on_cpu.md. Needs a C++ compiler; no GPU takes part.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from emit.check.program import check
from emit.program import FIFO_DEPTH, Program
from results.measuring.measure import grid, page, write
from runtime.bench import BenchExecutor, Settings, measure
from runtime.dtypes import REDUCTIONS, TYPES
from runtime.host.executor import HostExecutor
from tests.emit.random_programs import changed
from tests.emit.right_programs import Right, right_programs
from tests.runtime.gpu.cpu_shim.shim import SanitizerReport, ShimExecutor, built
from topologies.errors import InputError

PROTOCOLS = ("Simple", "LL")


def outcome(executor: BenchExecutor, right: Right, program: Program, size_bytes: int, kind: str, op: str) -> str:
    """Return "right", "wrong", "report" (of the sanitizer), or "crash: …" or "refused: …" with the reason."""
    try:
        row = measure(program, right.goal, size_bytes, executor, Settings(kind, op, iterations=1, warmup=0))
    except SanitizerReport as error:
        return "report" if "data race" in str(error) else f"crash: {error}"
    except InputError as error:
        return f"refused: {str(error).split(': ', 1)[-1]}"
    return "wrong" if row.wrong else "right"


def drawn(rights: list[Right], rng: random.Random) -> tuple[Right, Program, str]:
    """Return a right program or a changed one, and the verdict of the check: "right", "race" or "else"."""
    right = rng.choice(rights)
    program = right.program if rng.random() < 0.5 else changed(right, rng, 1)
    report = check(program, right.goal, target=None)
    kinds = {finding.kind for finding in report.findings}
    return right, program, "right" if report.ok else "race" if "race" in kinds else "else"


def main() -> None:
    """Run the programs, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rights = right_programs()
    counts: dict[str, Counter[str]] = {protocol: Counter() for protocol in PROTOCOLS}
    surprises: list[str] = []
    reasons: Counter[str] = Counter()
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        binary = built(Path(folder), "thread")
        while number < options.programs:
            right, program, verdict = drawn(rights, rng)
            if verdict == "else":
                continue
            protocol = rng.choice(PROTOCOLS)
            kind, op = rng.choice(list(TYPES)), rng.choice(REDUCTIONS)
            size_bytes = rng.randrange(1, rng.choice([64, 512, 4096]) * TYPES[kind].itemsize)
            settings = {
                "threads": rng.randint(1, 2),
                "launches": rng.randint(1, 2),
                "slot_bytes": rng.choice([128, 400, 4096]),
                "depth": FIFO_DEPTH[program.protocol],
                "devices": rng.randint(1, min(3, program.nranks)),
            }
            number += 1
            tally = counts[protocol]
            case = f"{right.name} {kind} {op} {size_bytes} B {protocol} {settings}"
            try:
                executor = ShimExecutor(replace(program, protocol=protocol), right.goal, binary, **settings)
            except InputError as error:
                tally["not encoded"] += 1
                surprises.append(f"{case}: {error}")
                continue
            kernel = outcome(executor, right, program, size_bytes, kind, op)
            if verdict == "race":
                tally["racing"] += 1
                tally["racing, reported"] += kernel == "report"
                continue
            host = outcome(HostExecutor(program, right.goal), right, program, size_bytes, kind, op)
            tally["executed"] += 1
            tally[kernel.split(":")[0]] += 1
            tally["unlike the host"] += kernel.split(":")[0] != host.split(":")[0]
            if kernel == host and kernel.startswith("refused: "):
                reasons[kernel.removeprefix("refused: ")] += 1
            elif kernel != "right" or host != "right":
                surprises.append(f"{case}: kernel {kernel}; host {host}")
    titles = ("executed", "right", "wrong", "report", "refused", "crash", "unlike the host", "not encoded",
              "racing", "racing, reported")  # fmt: skip
    rows = [[protocol, *(counts[protocol][title] for title in titles)] for protocol in PROTOCOLS]
    text = (
        f"{number} programs (seed {options.seed}) are drawn from {len(rights)} right ones, and half of them are"
        " changed in one place. Each has a random type, reduction, size, slot size, one or two threads a block, one or"
        " two launches on the same slots, and its ranks in one to three concurrent launches (as on so many GPUs), out"
        " of place and in place where the program allows it. A program that passes the check must be right on the host"
        " and in the kernel, without a report of the sanitizer. *racing*: programs in which the check finds a race."
        " *racing, reported*: how many of them the sanitizer reports at the drawn size (empty chunks cannot race). No"
        " GPU took part."
    )
    parts = [text, grid(["protocol", *titles], rows)]
    if reasons:
        reason_lines = "\n".join(f"- {count} times: {reason}" for reason, count in sorted(reasons.items()))
        parts.append(f"Refused by the host and the kernel, with the same reason:\n\n{reason_lines}")
    if surprises:
        parts.append("Not right on the host or in the kernel:\n\n" + "\n".join(f"- {line}" for line in surprises[:40]))
    write("kernel_on_cpu.py", page("kernel_on_cpu.py", "The GPU's kernel on CPU threads", parts))


if __name__ == "__main__":
    main()
