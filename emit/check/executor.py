"""Run threadblocks until each has ended or waits; the checks of all formats share this executor.

A threadblock executes its instructions one after another. Every connection (MSCCL), channel end and semaphore (MSCCL++)
hands out its contents in a fixed order, so an instruction that may proceed stays allowed to proceed. Hence all
interleavings reach the same end: either every threadblock completes in each of them, or the same threadblocks stop at
the same instructions. One greedy run decides for all of them.

A front end says how one threadblock advances (`advance`) and what a stopped one waits for (`waits_for`):
`emit.check.order` for programs, `emit.check.acts` for execution plans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from emit.findings import Findings
from synth.model.deadline import check_deadline

Place = tuple[int, int, int]  # rank, threadblock, step
_LOOK_EVERY = 64  # advances of threadblocks from one look at the clock to the next
_SPELT_OUT = 8  # waits of a cycle that a message names; the others are counted


def execute(nblocks: int, advance: Callable[[int], Iterable[int]]) -> None:
    """Run threadblocks 0..nblocks−1 until none of them can proceed.

    Args:
        nblocks: Number of threadblocks.
        advance: Executes one threadblock until it ends or must wait; returns the threadblocks that may proceed because
            of what it did.
    """
    ready = deque(range(nblocks))
    advanced = 0
    while ready:
        if advanced % _LOOK_EVERY == 0:
            check_deadline()
        advanced += 1
        ready.extend(advance(ready.popleft()))


def report_deadlock(
    first: int,
    waits_for: Callable[[int], tuple[int | None, str]],
    place: Callable[[int], Place],
    op: Callable[[int], str],
    findings: Findings,
    conditions: str = "",
) -> None:
    """Add the cycle of waits in which a run stopped, or the wait for something that no threadblock provides.

    It is one finding of kind "deadlock". Of a cycle, it names up to eight waits, from the smallest threadblock on.

    Args:
        first: A threadblock that stopped before its end; the cycle that its waits lead to is reported.
        waits_for: Returns, for a stopped threadblock, the threadblock that it waits for (None: no threadblock) and the
            event that it waits for, in words.
        place: Returns (rank, threadblock, step) where a threadblock stopped.
        op: Returns the name of the operation at which a threadblock stopped.
        findings: Where the deadlock is added.
        conditions: Conditions of the deadlock ("at 2 FIFO slots"), which are stated with a cycle only; empty if it
            needs none.
    """
    reasons: dict[int, str] = {}
    block: int | None = first
    while block is not None and block not in reasons:
        last = block
        block, reasons[last] = waits_for(last)
    if block is None:
        findings.add("deadlock", f"{op(last)} waits for {reasons[last]}, which nothing provides", *place(last))
        return
    path = list(reasons)
    cycle = path[path.index(block) :]
    # The cycle begins at its smallest threadblock, so that a deadlock has one text, wherever it was entered.
    first_in_cycle = cycle.index(min(cycle))
    cycle = cycle[first_in_cycle:] + cycle[:first_in_cycle]
    places = tuple(place(b) for b in cycle)
    waits = [
        f"rank {r} tb {t} step {s} ({op(b)}) waits for {reasons[b]}"
        for b, (r, t, s) in zip(cycle[:_SPELT_OUT], places, strict=False)
    ]
    if len(cycle) > _SPELT_OUT:
        waits.append(f"{len(cycle) - _SPELT_OUT} more")
    head = f"deadlock {conditions}".rstrip()
    findings.add("deadlock", f"{head}: {'; '.join(waits)}; and the cycle repeats", *places[0], cycle=places)
