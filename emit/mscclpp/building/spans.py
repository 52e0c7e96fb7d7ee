"""Define where a plan keeps the data of a program's steps, and which of it stays in packets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from emit.check.cells import Cells
from emit.columns import Columns
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST
from synth.model.deadline import checking_deadline

Step = int
Origin = tuple[Step, int]  # a receive, and which of its chunks
_READS_PACKETS = frozenset({"re", "cpy", "s"})  # steps that can take their source from packets


class Span(NamedTuple):
    """A span of `size` chunks, from chunk `first` of a buffer.

    Attributes:
        offset: Chunk of the step at which the span begins.
        kind: Buffer: i, o, s, or p for packets in scratch.
        first: First chunk in the buffer.
        size: Number of chunks.
        rank: Rank whose memory it is, −1 for the rank of the step.
    """

    offset: int
    kind: str
    first: int
    size: int
    rank: int = -1


@dataclass(slots=True)
class StepPlacement:
    """The places of one step's data.

    Attributes:
        src: Spans of the source.
        old: Spans that a reduction reads of its destination.
        dst: Spans of the destination.
        slot: For a receive, the scratch where it arrives; None: straight at `dst`.
        copy: For a send, the scratch into which the source is copied first; None: it is not copied.
        temp: Scratch for the sum of a reduction that only sends it on; None: not needed.
        awaits_start: Whether the step must wait until the receiver's call has started.
        idle: Whether the step moves nothing.
        deps: Steps of the rank that it waits for.
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
class SpanPlacement:
    """The places of a program's data in a plan.

    Attributes:
        steps: Places of every step.
        match: Receive of every send.
        copies: Initial copies (rank, from, to).
        needs_meeting: Whether some rank ends without having heard that all other ranks have started.
        unconfirmed: Sends on port channels whose sender never hears of their arrival.
        scratch: Plain scratch chunks of each rank.
        packets: Scratch packets of each rank.
        keys: Returns the numbers of the cells of a rank's span; equal numbers are the same memory.
    """

    steps: list[StepPlacement]
    match: dict[Step, Step]
    copies: list[tuple[int, Span, Span]]
    needs_meeting: bool
    unconfirmed: set[Step]
    scratch: list[int]
    packets: list[int]
    keys: Callable[[int, Span], Iterable[int]]


def follows(span: Span, after: Span) -> bool:
    """Return True if `after` begins where `span` ends, in a buffer of the same kind; ranks are not compared."""
    return after.kind == span.kind and after.first == span.first + span.size


def add_span(spans: list[Span], span: Span) -> None:
    """Add a span to the list `spans`, which is changed, merged with the last span if it follows that."""
    if spans and follows(spans[-1], span):
        spans[-1] = spans[-1]._replace(size=spans[-1].size + span.size)
    else:
        spans.append(span)


def split_spans(*lists: list[Span]) -> list[list[Span]]:
    """Split spans into pieces in which every list is contiguous; return one span of each list for every piece.

    All lists must cover the same chunks of a step. The pieces are in order of chunks. Their spans have offset 0 and
    rank −1, unless every list has just one span, which is returned as it is.
    """
    if max(map(len, lists)) == 1:
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
    """Find the messages that a plan of packets need not unpack, because all their users can read the packets.

    Returns:
        For each step that takes its whole source from packets, where each chunk came from. The receives named there
        store nothing, because everything that they receive into scratch is used in this form.
    """
    scratch = BUFFERS.index("s")
    names = [OPS[op] for op in c.op.tolist()]
    origin: dict[int, Origin] = {}
    users: dict[Step, list[Origin]] = {}
    packed_receives: set[Step] = set()  # receives that may stay in packets
    used: set[Origin] = set()
    for step in checking_deadline(order, every=256):
        count = int(c.count[step])
        source, target = cells.src[step], cells.dst[step]
        if names[step] in READS_SRC:
            chunk_origins = [origin.get(source + n) for n in range(count)]
            known_origins = [origin_of_chunk for origin_of_chunk in chunk_origins if origin_of_chunk is not None]
            if names[step] in _READS_PACKETS and len(known_origins) == count:
                users[step] = known_origins
                used.update(known_origins)
            else:
                packed_receives.difference_update(receive for receive, _ in known_origins)
        if names[step] in READS_DST:
            packed_receives.difference_update(origin[target + n][0] for n in range(count) if target + n in origin)
        if names[step] in WRITES_DST:
            stays = names[step] == "r" and c.dst[step] == scratch
            if stays:
                packed_receives.add(step)
            for n in range(count):
                if stays:
                    origin[target + n] = (step, n)
                else:
                    origin.pop(target + n, None)
    packed_receives -= {
        step for step in packed_receives if any((step, n) not in used for n in range(int(c.count[step])))
    }
    while True:
        unpacked = {
            origin_of_chunk[0]
            for chunk_origins in users.values()
            if any(r not in packed_receives for r, _ in chunk_origins)
            for origin_of_chunk in chunk_origins
        }
        if packed_receives.isdisjoint(unpacked):
            break
        packed_receives -= unpacked
    return {
        step: chunk_origins
        for step, chunk_origins in users.items()
        if all(receive in packed_receives for receive, _ in chunk_origins)
    }


def plain_scratch_ranks(c: Columns, users: dict[Step, list[Origin]]) -> set[int]:
    """Return the ranks that use scratch of the program apart from data that `packet_readers` leaves in packets.

    `users` is the result of `packet_readers`; empty if there are no packets.
    """
    scratch = BUFFERS.index("s")
    src = c.is_op(READS_SRC) & (c.src == scratch)
    dst = c.is_op(WRITES_DST | READS_DST) & (c.dst == scratch)
    src[list(users)] = False
    dst[[receive for origins in users.values() for receive, _ in origins]] = False
    return set(c.rank[c.block[src | dst]].tolist())
