"""Whether a program's messages must carry the order of what was written before them, beside their own data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from emit.check.cells import cells_of
from emit.check.order import run
from emit.check.races import find_races
from emit.columns import Columns
from emit.findings import Findings
from emit.goal import Goal
from emit.program import Program
from runtime.buffers import goal_of
from topologies.errors import InputError


def messages_carry_order(program: Program, columns: Columns, goal: Goal | None) -> bool:
    """Whether threadblocks of a rank are kept apart only by messages that went round by way of other ranks.

    Waits within the ranks do it in nearly all programs, and then a message need not say more than its data. Where it
    cannot be found out (a program that ends in a standstill, a goal that nobody says), the answer is yes.
    """
    alone = replace(
        columns, sends=np.full_like(columns.sends, -1), receives=np.full_like(columns.receives, -1)
    )
    found = Findings()
    try:
        free = run(columns, None)
        order = list(dict.fromkeys(free.order))  # each step once
        for inplace, serves in ((True, program.inplace), (False, program.outofplace)):
            if serves and free.complete:
                cells = cells_of(program, columns, goal_of(program, goal, inplace), inplace)
                find_races(alone, order, cells, found)
    except InputError:
        return True
    return bool(found.reported) or not free.complete
