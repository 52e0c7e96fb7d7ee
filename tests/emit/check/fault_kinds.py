"""All ways of planting a fault, and programs with each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.emit.check.faults_by_construction import BUILT
from tests.emit.check.faults_by_running import SEEN
from tests.emit.check.planted_fault import Planted, Planter
from tests.emit.right_programs import Right

PLANTERS: dict[str, dict[str, Planter]] = SEEN | BUILT


def planted(
    kind: str, way: str, rights: Sequence[Right], number: int, seed: int = 0
) -> Iterator[tuple[Right, Planted]]:
    """`number` programs with a fault of `kind`, each from another right one as long as there are any.

    Fewer where three rounds through all programs find no more places to plant it.
    """
    rng = random.Random(f"{kind} {way} {seed}")
    seen: set[str] = set()
    made = 0
    for _ in range(3):
        for right in rng.sample(rights, len(rights)):
            if made == number:
                return
            fault = PLANTERS[kind][way](right, rng)
            if fault is None or repr(fault.program) in seen:
                continue
            seen.add(repr(fault.program))
            made += 1
            yield right, fault
