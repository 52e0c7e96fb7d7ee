"""Find an order of execution of a program's transmissions, or the cycle of waits that stops it."""

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
class OrderedRun:
    """The result of one execution.

    Attributes:
        order: Step of each transmission, in the order of execution.
        at: Number (of all ranks' steps) of the step at which each threadblock stopped; one past its last step if it
            completed.
        sent: Number of transmissions that were sent, by connection.
        received: Number of transmissions that were received, by connection.
        complete: Whether all threadblocks completed.
    """

    order: list[int]
    at: list[int]
    sent: list[int]
    received: list[int]
    complete: bool


# Longer than 60 lines because it is the inner loop of the compiler, with too much state to pass to other functions.
def run(c: Columns, depth: int | None, split: bool = True) -> OrderedRun:
    """Run the program greedily with `depth` slots a connection (None: no limit), in O(chunks moved).

    Args:
        c: Steps of the program.
        depth: FIFO slots of a connection, in transmissions; None for no limit.
        split: If True, a step of `count` chunks is `count` transmissions, as for large messages; if False, it is one.

    Returns:
        The execution, which may have stopped before its end: then `complete` is False.

    Raises:
        InputError: The chunks of all steps and the steps are more than CAPACITY.moves in all.
    """
    moves = int(c.count.sum()) + len(c.count)
    if moves > CAPACITY.moves:
        raise InputError(f"program moves {moves} chunks; it must be at most {CAPACITY.moves} to be checked")
    times = c.transmissions().tolist() if split else [1] * len(c.count)
    dep, sends, receives, start = c.dep.tolist(), c.sends.tolist(), c.receives.tolist(), c.start.tolist()
    at = start[:-1]
    remaining = [times[s] if s < len(times) else 0 for s in at]
    is_complete = bytearray(len(dep))
    sent, received = [0] * len(c.connections), [0] * len(c.connections)
    slots = depth if depth is not None else 1 << 62
    waits_dep: dict[int, list[int]] = {}
    waits_data, waits_slot = [-1] * len(c.connections), [-1] * len(c.connections)
    order: list[int] = []

    # This is a nested function because it changes local lists at each transmission.
    def advance(block: int) -> Iterable[int]:
        """Run one threadblock until it ends or must wait; return the threadblocks that may proceed because of that."""
        released: list[int] = []
        end = start[block + 1]
        step = at[block]
        while step < end:
            awaited, out, into = dep[step], sends[step], receives[step]
            if awaited >= 0 and not is_complete[awaited]:
                waits_dep.setdefault(awaited, []).append(block)
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
                    released.append(waits_slot[into])
                    waits_slot[into] = -1
            if out >= 0:
                sent[out] += 1
                if waits_data[out] >= 0:
                    released.append(waits_data[out])
                    waits_data[out] = -1
            order.append(step)
            remaining[block] -= 1
            if remaining[block]:
                continue
            is_complete[step] = 1
            if step in waits_dep:
                released += waits_dep.pop(step)
            step += 1
            at[block] = step
            if step < end:
                remaining[block] = times[step]
        return released

    execute(len(at), advance)
    complete = all(a == e for a, e in zip(at, start[1:], strict=True))
    return OrderedRun(order, at, sent, received, complete)


def report_stopped(c: Columns, stopped: OrderedRun, depth: int | None, findings: Findings) -> None:
    """Add the cycle of waits in which an incomplete run stopped with `depth` slots a connection (None: no limit).

    The finding has kind "deadlock". The run must be one of the steps `c` that is not complete.
    """
    slots = "at any FIFO depth" if depth is None else f"at {depth} FIFO slot{'s' if depth > 1 else ''}"
    report_deadlock(
        next(b for b, a in enumerate(stopped.at) if a < int(c.start[b + 1])),
        lambda block: _waits_for(c, stopped, block),
        lambda block: c.place(stopped.at[block]),
        lambda block: OPS[c.op[stopped.at[block]]],
        findings,
        slots,
    )


def _waits_for(c: Columns, stopped: OrderedRun, block: int) -> tuple[int, str]:
    """Return the threadblock that the stopped threadblock `block` waits for, and the event in words.

    A wait for a step comes before one for data, and that before one for a free slot.
    """
    step = stopped.at[block]
    awaited, out, into = int(c.dep[step]), int(c.sends[step]), int(c.receives[step])
    if awaited >= 0 and stopped.at[int(c.block[awaited])] <= awaited:
        _, tb, position = c.place(awaited)
        return int(c.block[awaited]), f"tb {tb} step {position}"
    if into >= 0 and stopped.sent[into] <= stopped.received[into]:
        source, _, channel = c.connections[into]
        return c.sender[into], f"data of rank {source} on channel {channel}"
    _, target, channel = c.connections[out]
    return c.receiver[out], f"a free slot to rank {target} on channel {channel}"
