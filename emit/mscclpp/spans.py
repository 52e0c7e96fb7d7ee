"""Where a plan keeps what the steps of a program read, write and receive; which of it stays in packets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from emit.check.cells import Cells
from emit.columns import Columns
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST

Step = int
Origin = tuple[Step, int]  # a receive, and which of its chunks
_READS_PACKETS = frozenset({"re", "cpy", "s"})  # have a form that takes its source from packets


class Span(NamedTuple):
    """`size` chunks from `first` of buffer `kind` (i, o, s, or p: a packet in scratch); `offset` within a step."""

    offset: int
    kind: str
    first: int
    size: int


@dataclass(slots=True)
class StepPlacement:
    """Where one step's data is. `old`: what a reduction reads of its destination.

    slot: of a receive, scratch where it arrives (None: straight at `dst`). copy: of a send, scratch into which the
    source is copied first. temp: scratch for the sum of a reduction that only sends it on. awaits_start: it must wait
    until the receiver's call has started. idle: it moves nothing. deps: steps of the rank that it waits for.
    """

    src: list[Span] = field(default_factory=list)
    old: list[Span] = field(default_factory=list)
    dst: list[Span] = field(default_factory=list)
    slot: Span | None = None
    copy: Span | None = None
    temp: Span | None = None
    awaits_start: bool = False
    idle: bool = False
    deps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Placement:
    """`steps`: of every step. match: of every send its receive. copies: (rank, from, to) to begin with.

    apart: some rank ends without having heard that all others have started. unconfirmed: sends on port channels of
    whose arrival their sender never hears. scratch: plain chunks of each rank; packets: of packets. keys: of a rank's
    span, numbers of its cells: equal where memory is.
    """

    steps: list[StepPlacement]
    match: dict[Step, Step]
    copies: list[tuple[int, Span, Span]]
    apart: bool
    unconfirmed: set[Step]
    scratch: list[int]
    packets: list[int]
    keys: Callable[[int, Span], Iterable[int]]


def split_spans(*lists: list[Span]) -> list[list[Span]]:
    """One span of each list for every piece in which all of them are contiguous."""
    if all(len(spans) == 1 for spans in lists):
        return [[spans[0] for spans in lists]]
    cuts = sorted({x for spans in lists for span in spans for x in (span.offset, span.offset + span.size)})
    pieces = []
    for low, high in pairwise(cuts):
        piece = []
        for spans in lists:
            span = next(s for s in spans if s.offset <= low < s.offset + s.size)
            piece.append(Span(0, span.kind, span.first + low - span.offset, high - low))
        pieces.append(piece)
    return pieces


def packet_readers(c: Columns, order: list[Step], cells: Cells) -> dict[Step, list[Origin]]:
    """Messages that a plan of packets need not unpack: whoever uses what was received reads it from the packets.

    Returns, of each step that takes its whole source from packets, where each chunk came from. The receives that are
    named there put nothing anywhere: all that they receive into scratch is used so.
    """
    scratch = BUFFERS.index("s")
    names = [OPS[op] for op in c.op.tolist()]
    origin: dict[int, Origin] = {}
    users: dict[Step, list[Origin]] = {}
    left: set[Step] = set()  # receives that may stay as they came
    used: set[Origin] = set()
    for step in order:
        count = int(c.count[step])
        source, target = cells.src[step], cells.dst[step]
        if names[step] in READS_SRC:
            found = [origin.get(source + n) for n in range(count)]
            known = [at for at in found if at is not None]
            if names[step] in _READS_PACKETS and len(known) == count:
                users[step] = known
                used.update(known)
            else:
                left.difference_update(receive for receive, _ in known)
        if names[step] in READS_DST:
            left.difference_update(origin[target + n][0] for n in range(count) if target + n in origin)
        if names[step] in WRITES_DST:
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


def plain_scratch_ranks(c: Columns, users: dict[Step, list[Origin]]) -> set[int]:
    """The ranks that use scratch of the program other than what `packet_readers` leaves in packets."""
    scratch = BUFFERS.index("s")
    src = c.is_op(READS_SRC) & (c.src == scratch)
    dst = c.is_op(WRITES_DST | READS_DST) & (c.dst == scratch)
    src[list(users)] = False
    dst[[receive for found in users.values() for receive, _ in found]] = False
    return set(c.rank[c.block[src | dst]].tolist())
