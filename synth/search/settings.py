"""The settings of the executor that programs are for; every command reads them, so this module imports little."""

from __future__ import annotations

import math
from dataclasses import dataclass

AUTO = "auto"  # stands for the first target that can express the problem
NONE = "none"  # stands for no target: schedules count, and are saved without programs


@dataclass(frozen=True)
class TargetSettings:
    """The target that programs are for, and what the user limits of its devices.

    Attributes:
        name: Name of the target (a key of `emit.targets.TARGETS`), AUTO or NONE.
        sms: Threadblocks that a rank's program may have; None for the SMs of its device without
            `emit.targets.RESERVED_SMS`, if the topology states them.
        groups_overlap: Whether ranks are in several groups at a time, so that no packets (LL) are used.
        scratch_limit: Bytes of scratch memory per rank that the executor may allocate before it serves a call; None for
            `emit.targets.SCRATCH_LIMIT`.
        patience_s: Estimated seconds of lowering up to which more instances of a program are tried where no clock ends
            that, as in a library's build.
    """

    name: str = AUTO
    sms: int | None = None
    groups_overlap: bool = False
    scratch_limit: int | None = None
    patience_s: float = math.inf


ANY_TARGET = TargetSettings()
