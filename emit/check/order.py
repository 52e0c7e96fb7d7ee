"""An execution order of a program's transmissions, or the cycle of waits that stops it.

Every threadblock is sequential, every connection has one sender and one receiver, and whether a step may
proceed can only change from no to yes. So all interleavings reach the same end: either every one completes or
every one stops in the same state. One greedy run decides for all of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from emit.columns import Columns
from emit.findings import Findings
from emit.program import OPS
from topologies.errors import InputError

MAX_MOVES = 1 << 20  # chunks moved by all steps: keeps a check of hostile input under 1 GiB
SHOWN = 8  # steps of a cycle that the message spells out


@dataclass(slots=True)
class Run:
    """`order`: the step of each transmission in turn. `at`: where each block stopped (its end if nowhere)."""

    order: list[int]
    at: list[int]
    sent: list[int]
    received: list[int]
    complete: bool


def run(c: Columns, depth: int | None, split: bool = True) -> Run:
    """Execute greedily with `depth` slots a connection (None: no limit).

    `split`: a step of count chunks is as many transmissions, as for large messages; else one.
    Raises InputError where the steps move more than MAX_MOVES chunks in all.
    """
    moves = int(c.count.sum()) + len(c.count)
    if moves > MAX_MOVES:
        raise InputError(f"program moves {moves} chunks: would be at most {MAX_MOVES} to be checked")
    times = c.transmissions().tolist() if split else [1] * len(c.count)
    dep, sends, receives, start = c.dep.tolist(), c.sends.tolist(), c.receives.tolist(), c.start.tolist()
    nblocks = len(start) - 1
    at = start[:-1]
    left = [times[s] if s < len(times) else 0 for s in at]
    done = bytearray(len(dep))
    sent = [0] * len(c.connections)
    received = [0] * len(c.connections)
    slots = depth if depth is not None else 1 << 62
    waits_dep: dict[int, list[int]] = {}
    waits_data = [-1] * len(c.connections)
    waits_slot = [-1] * len(c.connections)
    order: list[int] = []
    ready = deque(range(nblocks))
    while ready:
        block = ready.popleft()
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
                    ready.append(waits_slot[into])
                    waits_slot[into] = -1
            if out >= 0:
                sent[out] += 1
                if waits_data[out] >= 0:
                    ready.append(waits_data[out])
                    waits_data[out] = -1
            order.append(step)
            left[block] -= 1
            if left[block]:
                continue
            done[step] = 1
            if step in waits_dep:
                ready.extend(waits_dep.pop(step))
            step += 1
            at[block] = step
            if step < end:
                left[block] = times[step]
    complete = all(a == e for a, e in zip(at, start[1:], strict=True))
    return Run(order, at, sent, received, complete)


def report_deadlock(c: Columns, stopped: Run, depth: int | None, found: Findings) -> None:
    """Add the cycle of waits in which `stopped` (not complete) ended."""
    first = next(b for b, a in enumerate(stopped.at) if a < int(c.start[b + 1]))
    seen: dict[int, int] = {}
    path: list[int] = []
    reasons: list[str] = []
    block = first
    while block not in seen:
        seen[block] = len(path)
        path.append(block)
        block, reason = _waits_for(c, stopped, block)
        reasons.append(reason)
    cycle = path[seen[block] :]
    why = reasons[seen[block] :]
    # The same deadlock must read the same from wherever it was entered.
    turn = cycle.index(min(cycle))
    cycle, why = cycle[turn:] + cycle[:turn], why[turn:] + why[:turn]
    places = tuple(c.place(stopped.at[b]) for b in cycle)
    words = [
        f"rank {r} tb {t} step {s} ({OPS[c.op[stopped.at[b]]]}) waits for {w}"
        for (r, t, s), b, w in zip(places[:SHOWN], cycle, why, strict=False)
    ]
    if len(places) > SHOWN:
        words.append(f"{len(places) - SHOWN} more")
    slots = "at any FIFO depth" if depth is None else f"at {depth} FIFO slot{'s' if depth > 1 else ''}"
    found.add(
        "deadlock", f"deadlock {slots}: " + "; ".join(words) + "; and so round", *places[0], cycle=places
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
