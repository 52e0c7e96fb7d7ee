"""The executor that the checks of all formats share: threadblocks that go on until each has ended or waits.

A threadblock executes its instructions one after another. Every connection (MSCCL), channel end and semaphore
(MSCCL++) hands out what it holds in a fixed order, so whether an instruction may proceed only ever changes from no to
yes. Hence all interleavings reach the same end: either every threadblock completes in each of them, or the same ones
stop at the same instructions. One greedy run decides for all of them.

A front end says how one threadblock goes on (`advance`) and what a stopped one waits for (`waits_for`):
`emit.check.order` for programs, `emit.mscclpp.execution` for execution plans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from emit.findings import Findings

Place = tuple[int, int, int]  # rank, threadblock, step
_SPELT_OUT = 8  # waits of a cycle that a message names; the others are counted


def execute(nblocks: int, advance: Callable[[int], Iterable[int]]) -> None:
    """Let threadblocks 0..nblocks−1 go on until none can.

    Args:
        advance: executes a threadblock until it ends or must wait; returns those that may go on by what it did.
    """
    ready = deque(range(nblocks))
    while ready:
        ready.extend(advance(ready.popleft()))


def report_deadlock(
    first: int,
    waits_for: Callable[[int], tuple[int | None, str]],
    place: Callable[[int], Place],
    op: Callable[[int], str],
    found: Findings,
    conditions: str = "",
) -> None:
    """Add the cycle of waits in which a run ended, or the wait for what nothing gives.

    Args:
        first: a threadblock that stopped before its end; the cycle that it leads to is reported.
        waits_for: of a stopped threadblock that which it waits for (None: there is none), and for what, in words.
        place, op: where a threadblock stopped, and at which operation.
        conditions: under which it stops ("at 2 FIFO slots"), empty where there are none.
    """
    reasons: dict[int, str] = {}
    block: int | None = first
    while block is not None and block not in reasons:
        last = block
        block, reasons[last] = waits_for(last)
    if block is None:
        found.add("deadlock", f"{op(last)} waits for {reasons[last]}, which nothing gives", *place(last))
        return
    path = list(reasons)
    cycle = path[path.index(block) :]
    # the same deadlock reads the same from wherever it was entered
    turn = cycle.index(min(cycle))
    cycle = cycle[turn:] + cycle[:turn]
    places = tuple(place(b) for b in cycle)
    waits = [
        f"rank {r} tb {t} step {s} ({op(b)}) waits for {reasons[b]}"
        for b, (r, t, s) in zip(cycle[:_SPELT_OUT], places, strict=False)
    ]
    if len(cycle) > _SPELT_OUT:
        waits.append(f"{len(cycle) - _SPELT_OUT} more")
    head = f"deadlock {conditions}".rstrip()
    found.add("deadlock", f"{head}: {'; '.join(waits)}; and so round", *places[0], cycle=places)
