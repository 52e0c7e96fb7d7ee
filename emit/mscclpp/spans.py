"""Where a plan keeps what the steps of a program read, write and receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

Step = int


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

    unstarted: sends whose sender must hear, before it ends, that the receiver's call has started. unconfirmed: sends
    on port channels of whose arrival their sender never hears. scratch: plain chunks of each rank; packets: of packets.
    keys: of a rank's span, numbers of its cells: equal where memory is.
    """

    steps: list[StepPlacement]
    match: dict[Step, Step]
    copies: list[tuple[int, Span, Span]]
    unstarted: set[Step]
    unconfirmed: set[Step]
    scratch: list[int]
    packets: list[int]
    keys: Callable[[int, Span], Iterable[int]]


def split_spans(*lists: list[Span]) -> list[tuple[int, list[Span]]]:
    """(count, one span of each list) for pieces in which all of them are contiguous."""
    if all(len(spans) == 1 for spans in lists):
        return [(lists[0][0].size, [spans[0] for spans in lists])]
    cuts = sorted({x for spans in lists for span in spans for x in (span.offset, span.offset + span.size)})
    pieces = []
    for low, high in pairwise(cuts):
        piece = []
        for spans in lists:
            span = next(s for s in spans if s.offset <= low < s.offset + s.size)
            piece.append(Span(0, span.kind, span.first + low - span.offset, high - low))
        pieces.append((high - low, piece))
    return pieces
