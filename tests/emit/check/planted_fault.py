"""Faults planted in right programs, each certain: by construction, or by what `delayed_runs` shows.

A planter takes a right program and a random generator, and returns a Planted or None where it finds no place for its
fault. The check has no part in deciding whether the change is a fault.
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
    """A program with a planted fault, and what the check's finding must name.

    Attributes:
        kind: Kind of the fault.
        program: The faulty program.
        goal: The program's goal; None: its collective says it.
        places: (rank, tb, step) of which one must be named; None where nothing is to be named.
        cells: (rank, buffer, index) of which one must be named; empty where no cell is at fault.
        depth: Number of FIFO slots; None: as many as the protocol has.
        target: Target whose limits are checked; None: none.
        circle: Whether the fault is a deadlock, whose cycle must lie in `places`.
    """

    kind: str
    program: Program
    goal: Goal | None
    places: frozenset[Where]
    cells: frozenset[tuple[int, str, int]] = frozenset()
    depth: int | None = None
    target: str | None = None
    circle: bool = False

    def named_by(self, finding: Finding) -> bool:
        """Return whether a finding is of this fault's kind and names its place."""
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
    """Return up to TRIES random steps of the given operations, with their places."""
    steps = [((r, t, x), s) for r, t, x, s in program.steps() if s.op in ops]
    return rng.sample(steps, min(TRIES, len(steps)))


def sizes_of(program: Program, rank: int) -> dict[str, int]:
    gpu = program.gpus[rank]
    return {"i": gpu.i_chunks, "o": gpu.o_chunks, "s": gpu.s_chunks}


def ends_of(program: Program) -> dict[tuple[int, int, int], tuple[list[Place], list[Place]]]:
    """Return the sends and the receives in order, by (source, destination, channel)."""
    ends: dict[tuple[int, int, int], tuple[list[Place], list[Place]]] = {}
    for r, t, x, s in program.steps():
        tb = program.gpus[r].threadblocks[t]
        if s.op in SENDS:
            ends.setdefault((r, tb.send, tb.channel), ([], []))[0].append((r, t, x))
        if s.op in RECEIVES:
            ends.setdefault((tb.recv, r, tb.channel), ([], []))[1].append((r, t, x))
    return ends
