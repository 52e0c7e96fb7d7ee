"""The ways to plant each kind of fault, and programs with such a fault."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.emit.check.faults_by_construction import BUILT
from tests.emit.check.faults_by_running import SEEN
from tests.emit.check.planted_fault import Planted, Planter
from tests.emit.right_programs import Right

PLANTERS: dict[str, dict[str, Planter]] = SEEN | BUILT


def planted(
    kind: str, variant: str, rights: Sequence[Right], number: int, seed: int = 0
) -> Iterator[tuple[Right, Planted]]:
    """Yield `number` programs with a fault of `kind`, each from another right program as long as there are any.

    There are fewer where three rounds through all programs find no more places for the fault.
    """
    rng = random.Random(f"{kind} {variant} {seed}")
    planted_programs: set[str] = set()
    count = 0
    for _ in range(3):
        for right in rng.sample(rights, len(rights)):
            if count == number:
                return
            fault = PLANTERS[kind][variant](right, rng)
            if fault is None or repr(fault.program) in planted_programs:
                continue
            planted_programs.add(repr(fault.program))
            count += 1
            yield right, fault
