"""The step that ends a wait: the kernel waits for a flag that is at least the awaited step's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emit.program import ThreadBlock


def ended_waits(blocks: Sequence[ThreadBlock]) -> list[ThreadBlock]:
    """Return the threadblocks of one rank with each dependency on the step that ends the wait.

    That is the first step from the named one on that reports its completion; if there is none, it is the named one.
    Dependencies on steps that do not exist stay as they are. A threadblock that does not change is the same object.
    """
    reporting: list[list[int]] = []  # per block and position, the first reporting step from there on, or -1
    for block in blocks:
        next_reporting, at = [-1] * len(block.steps), -1
        for position in range(len(block.steps) - 1, -1, -1):
            at = position if block.steps[position].has_dep else at
            next_reporting[position] = at
        reporting.append(next_reporting)
    resolved = []
    for block in blocks:
        steps = list(block.steps)
        for position, step in enumerate(steps):
            if 0 <= step.dep_tb < len(reporting) and 0 <= step.dep_step < len(reporting[step.dep_tb]):
                end = reporting[step.dep_tb][step.dep_step]
                if end > step.dep_step:
                    steps[position] = replace(step, dep_step=end)
        resolved.append(block if tuple(steps) == block.steps else replace(block, steps=steps))
    return resolved
