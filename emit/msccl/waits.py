"""Which step ends a wait: the kernel waits for a flag that is at least the step's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emit.program import ThreadBlock


def ended_waits(blocks: Sequence[ThreadBlock]) -> list[ThreadBlock]:
    """The threadblocks of one rank, each dependency on the step that ends the wait.

    That is the first from the named one on that says that it completed; where there is none, the one named.
    """
    says: list[list[int]] = []  # of each position the first such from there on, or −1
    for block in blocks:
        found, at = [-1] * len(block.steps), -1
        for position in range(len(block.steps) - 1, -1, -1):
            at = position if block.steps[position].has_dep else at
            found[position] = at
        says.append(found)
    made = []
    for block in blocks:
        steps = list(block.steps)
        for position, step in enumerate(steps):
            if 0 <= step.dep_tb < len(says) and 0 <= step.dep_step < len(says[step.dep_tb]):
                end = says[step.dep_tb][step.dep_step]
                if end > step.dep_step:
                    steps[position] = replace(step, dep_step=end)
        made.append(block if tuple(steps) == block.steps else replace(block, steps=steps))
    return made
