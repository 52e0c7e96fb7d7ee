"""Faults planted in right programs, each certain: by how it was made, or by what `delayed_runs` sees happen.

A way of planting takes a right program and a random generator, and gives a Planted or None where it found no fault to
plant. Whether what it did is a fault is never asked of the check.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from emit.findings import Finding
from emit.goal import Goal
from emit.program import RECEIVES, SENDS, Program, Step
from tests.emit.right_programs import Right
from tests.oracles.delayed_runs import Place

Where = tuple[int | None, int | None, int | None]
TRIES = 12


@dataclass(frozen=True)
class Planted:
    """A program with a fault of `kind`, and what its finding must name.

    places: (rank, tb, step) of which one must be named, None where there is nothing to name.
    cells: (rank, buffer, index) of which one must be named; empty where no cell is at fault.
    """

    kind: str
    program: Program
    goal: Goal | None
    places: frozenset[Where]
    cells: frozenset[tuple[int, str, int]] = frozenset()
    depth: int | None = None
    target: str | None = None
    circle: bool = False  # a deadlock: every place of its cycle must be among `places`

    def named_by(self, finding: Finding) -> bool:
        """Whether a finding is of this fault and names its place."""
        if finding.kind != self.kind:
            return False
        if self.circle:
            return bool(finding.cycle) and all(place in self.places for place in finding.cycle)
        if (finding.rank, finding.tb, finding.step) not in self.places:
            return False
        if not self.cells:
            return True
        return finding.cell is not None and finding.rank is not None and (finding.rank, *finding.cell) in self.cells


Planter = Callable[[Right, random.Random], Planted | None]


def steps_of(program: Program, rng: random.Random, ops: frozenset[str]) -> list[tuple[Place, Step]]:
    found = [((r, t, x), s) for r, t, x, s in program.steps() if s.op in ops]
    return rng.sample(found, min(TRIES, len(found)))


def sizes_of(program: Program, rank: int) -> dict[str, int]:
    gpu = program.gpus[rank]
    return {"i": gpu.i_chunks, "o": gpu.o_chunks, "s": gpu.s_chunks}


def ends_of(program: Program) -> dict[tuple[int, int, int], tuple[list[Place], list[Place]]]:
    """Of each (source, destination, channel) the sends and the receives in order."""
    found: dict[tuple[int, int, int], tuple[list[Place], list[Place]]] = {}
    for r, t, x, s in program.steps():
        tb = program.gpus[r].threadblocks[t]
        if s.op in SENDS:
            found.setdefault((r, tb.send, tb.channel), ([], []))[0].append((r, t, x))
        if s.op in RECEIVES:
            found.setdefault((tb.recv, r, tb.channel), ([], []))[1].append((r, t, x))
    return found
