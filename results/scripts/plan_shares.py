"""Count the questions on today's machines for which a command writes an MSCCL++ plan, and name why others have none.

    python -m results.scripts.plan_shares [--budget S] [--only TOPOLOGY …]

makes plan_shares.md. Each machine and collective is one command in a fresh process, with default options but for the
target; a question is one message size of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass

from results.measuring.measure import grid, page, run, write
from synth.model.text import format_size

MACHINES = ("dgx-a100", "dgx-h100", "mi300x", "gb200-nvl72", "dgx-h100:2", "dgx-h100:4")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
SIZES = tuple(1 << e for e in range(10, 31, 2))
PLAN, LEFT = "plan", "left to MSCCL++ or NCCL"


@dataclass(frozen=True)
class Row:
    """The result of one command.

    Attributes:
        machine: The topology.
        collective: The collective.
        seconds: Duration of the command.
        states: For each size PLAN, LEFT, or why there is no plan.
    """

    machine: str
    collective: str
    seconds: float
    states: tuple[str, ...]

    def count(self, state: str) -> int:
        """Return the number of sizes of a state."""
        return self.states.count(state)

    def holes(self) -> str:
        """Return the sizes without a plan with the reasons."""
        sizes: dict[str, list[str]] = {}
        for size, state in zip(SIZES, self.states, strict=True):
            if state not in (PLAN, LEFT):
                sizes.setdefault(state, []).append(format_size(size))
        return "; ".join(f"{', '.join(of_state)}: {state}" for state, of_state in sizes.items())


def state_at(document: dict[str, object], size: int) -> str:
    """Return PLAN, LEFT or the reason for a size, from the JSON of an answer; the better of the two forms counts."""
    other = document.get("other_form")
    reasons = []
    for form in (document, other if isinstance(other, dict) else {}):
        rows = form.get("algorithms")
        for row in rows if isinstance(rows, list) else ():
            if row["min_bytes"] <= size and (not row["max_bytes"] or size <= row["max_bytes"]):
                if row["file"] is not None:
                    return PLAN
                reasons.append(LEFT if row["steps"] is None else row["refused"] or "no file was written")
    return min(reasons, key=lambda reason: reason != LEFT, default="no algorithm serves it")


def measured(machine: str, collective: str, budget: str) -> Row:
    """Ask one question in a fresh process, and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "synth", collective, "--topo", machine, "--target", "mscclpp"]
        timed = run([*command, "--budget", budget, "--out", folder, "--json"])
    if timed.code not in (0, 3):
        why = (timed.err.strip().splitlines() or ["no answer"])[-1]
        return Row(machine, collective, timed.seconds, (why,) * len(SIZES))
    document = json.loads(timed.out)
    return Row(machine, collective, timed.seconds, tuple(state_at(document, size) for size in SIZES))


def main() -> None:
    """Ask all questions, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="15s", help="of each command")
    parser.add_argument("--only", nargs="*", default=list(MACHINES), help="topologies")
    options = parser.parse_args()
    rows = []
    for machine in options.only:
        for collective in COLLECTIVES:
            rows.append(measured(machine, collective, options.budget))
            print(machine, collective, f"{rows[-1].seconds:.0f} s", Counter(rows[-1].states), flush=True)
    states = Counter(state for row in rows for state in row.states)
    total = sum(states.values())
    served = states[PLAN] + states[LEFT]
    parts = [
        f"{total} questions: {states[PLAN]} have a plan, and {states[LEFT]} are left to an algorithm of MSCCL++'s or"
        f" NCCL's own, which is faster: {served / total:.1%} are served. Each command has {options.budget}.",
        grid(
            ("machine", "collective", "sizes with a plan", "left to a library", "without a plan"),
            [(row.machine, row.collective, row.count(PLAN), row.count(LEFT), row.holes()) for row in rows],
        ),
    ]
    write(__file__, page(__file__, "Questions that have an MSCCL++ plan", parts))


if __name__ == "__main__":
    main()
