"""Messages that a plan of packets need not unpack: whoever uses what was received reads it from the packets."""

from __future__ import annotations

from emit.check.cells import Cells
from emit.columns import Columns
from emit.mscclpp.spans import Step
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST

Origin = tuple[Step, int]  # a receive, and which of its chunks
_ABLE = frozenset({"re", "cpy", "s"})  # have a form that takes its source from packets


def unread(c: Columns, order: list[Step], cells: Cells) -> dict[Step, list[Origin]]:
    """Of each step that takes its whole source from packets, where each chunk came from.

    The receives that are named there put nothing anywhere: all that they receive into scratch is used so.
    """
    scratch = BUFFERS.index("s")
    reads, writes, both = (c.is_op(x).tolist() for x in (READS_SRC, WRITES_DST, READS_DST))
    names = [OPS[op] for op in c.op.tolist()]
    origin: dict[int, Origin] = {}
    users: dict[Step, list[Origin]] = {}
    left: set[Step] = set()  # receives that may stay as they came
    used: set[Origin] = set()
    for step in order:
        count = int(c.count[step])
        source, target = cells.src[step], cells.dst[step]
        if reads[step]:
            found = [origin.get(source + n) for n in range(count)]
            known = [at for at in found if at is not None]
            if names[step] in _ABLE and len(known) == count:
                users[step] = known
                used.update(known)
            else:
                left.difference_update(receive for receive, _ in known)
        if both[step]:
            left.difference_update(origin[target + n][0] for n in range(count) if target + n in origin)
        if writes[step]:
            stays = names[step] == "r" and c.dst[step] == scratch
            if stays:
                left.add(step)
            for n in range(count):
                if stays:
                    origin[target + n] = (step, n)
                else:
                    origin.pop(target + n, None)
    left -= {step for step in left if any((step, n) not in used for n in range(int(c.count[step])))}
    while True:
        mixed = {at[0] for found in users.values() if any(r not in left for r, _ in found) for at in found}
        if left.isdisjoint(mixed):
            break
        left -= mixed
    return {step: found for step, found in users.items() if all(receive in left for receive, _ in found)}


def plain_scratch(c: Columns, users: dict[Step, list[Origin]]) -> set[int]:
    """The ranks that use scratch of the program other than what `unread` leaves in packets."""
    scratch = BUFFERS.index("s")
    src = c.is_op(READS_SRC) & (c.src == scratch)
    dst = c.is_op(WRITES_DST | READS_DST) & (c.dst == scratch)
    src[list(users)] = False
    dst[[receive for found in users.values() for receive, _ in found]] = False
    return set(c.rank[c.block[src | dst]].tolist())
