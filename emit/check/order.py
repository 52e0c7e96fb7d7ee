"""A program's transmissions in an order of execution, or the cycle of waits that stops it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from emit.check.capacity import CAPACITY
from emit.check.executor import execute, report_deadlock
from emit.columns import Columns
from emit.findings import Findings
from emit.program import OPS
from topologies.errors import InputError


@dataclass(slots=True)
class Run:
    """What an execution did.

    order: the step of each transmission in turn. at: where each block stopped (its end if nowhere). sent, received:
    transmissions of each connection.
    """

    order: list[int]
    at: list[int]
    sent: list[int]
    received: list[int]
    complete: bool


# over 60 lines: the inner loop of the compiler, whose state is too much to hand on
def run(c: Columns, depth: int | None, split: bool = True) -> Run:
    """Execute greedily with `depth` slots a connection (None: no limit), in O(chunks moved).

    split: a step of count chunks is as many transmissions, as for large messages; else one. Raises InputError where
    the steps move more than CAPACITY.moves chunks in all.
    """
    moves = int(c.count.sum()) + len(c.count)
    if moves > CAPACITY.moves:
        raise InputError(f"program moves {moves} chunks; it must be at most {CAPACITY.moves} to be checked")
    times = c.transmissions().tolist() if split else [1] * len(c.count)
    dep, sends, receives, start = c.dep.tolist(), c.sends.tolist(), c.receives.tolist(), c.start.tolist()
    at = start[:-1]
    left = [times[s] if s < len(times) else 0 for s in at]
    done = bytearray(len(dep))
    sent, received = [0] * len(c.connections), [0] * len(c.connections)
    slots = depth if depth is not None else 1 << 62
    waits_dep: dict[int, list[int]] = {}
    waits_data, waits_slot = [-1] * len(c.connections), [-1] * len(c.connections)
    order: list[int] = []

    # one function: what it changes for each transmission are local lists
    def advance(block: int) -> Iterable[int]:
        freed: list[int] = []
        end = start[block + 1]
        step = at[block]
        while step < end:
            need, out, into = dep[step], sends[step], receives[step]
            if need >= 0 and not done[need]:
                waits_dep.setdefault(need, []).append(block)
                break
            if into >= 0 and sent[into] <= received[into]:
                waits_data[into] = block
                break
            if out >= 0 and sent[out] - received[out] >= slots:
                waits_slot[out] = block
                break
            if into >= 0:
                received[into] += 1
                if waits_slot[into] >= 0:
                    freed.append(waits_slot[into])
                    waits_slot[into] = -1
            if out >= 0:
                sent[out] += 1
                if waits_data[out] >= 0:
                    freed.append(waits_data[out])
                    waits_data[out] = -1
            order.append(step)
            left[block] -= 1
            if left[block]:
                continue
            done[step] = 1
            if step in waits_dep:
                freed += waits_dep.pop(step)
            step += 1
            at[block] = step
            if step < end:
                left[block] = times[step]
        return freed

    execute(len(at), advance)
    complete = all(a == e for a, e in zip(at, start[1:], strict=True))
    return Run(order, at, sent, received, complete)


def report_stopped(c: Columns, stopped: Run, depth: int | None, found: Findings) -> None:
    """Add the cycle of waits in which `stopped` (not complete) ended with `depth` slots a connection."""
    slots = "at any FIFO depth" if depth is None else f"at {depth} FIFO slot{'s' if depth > 1 else ''}"
    report_deadlock(
        next(b for b, a in enumerate(stopped.at) if a < int(c.start[b + 1])),
        lambda block: _waits_for(c, stopped, block),
        lambda block: c.place(stopped.at[block]),
        lambda block: OPS[c.op[stopped.at[block]]],
        found,
        slots,
    )


def _waits_for(c: Columns, stopped: Run, block: int) -> tuple[int, str]:
    """The stopped block that `block` waits for, and what for."""
    step = stopped.at[block]
    need, out, into = int(c.dep[step]), int(c.sends[step]), int(c.receives[step])
    if need >= 0 and stopped.at[int(c.block[need])] <= need:
        _, tb, position = c.place(need)
        return int(c.block[need]), f"tb {tb} step {position}"
    if into >= 0 and stopped.sent[into] <= stopped.received[into]:
        source, _, channel = c.connections[into]
        return c.sender[into], f"data of rank {source} on channel {channel}"
    _, target, channel = c.connections[out]
    return c.receiver[out], f"a free slot to rank {target} on channel {channel}"
