"""A rank's part of a program, executed on torch tensors over another back end's point-to-point messages."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import torch

from emit.goal import goal_for
from emit.program import RECEIVES
from runtime.buffers import Layout
from runtime.torch.lost import plain
from runtime.torch.rank_program import AHEAD, Act, Part, lengths_of
from topologies.errors import InputError, MessageLost

Tensor: TypeAlias = Any  # torch's; there need be no torch where types are checked
Fold = Callable[[Tensor, Tensor, Tensor], Any]  # (a, b, out)
FIRST_TAG = 1 << 30  # tags from here on are schedules'; those of callers lie below
MAX_CHANNELS = 1 << 15
_THREADS_FROM = 32 << 10  # bytes of a chunk: below, threads that wake one another take longer than they save


def _plus(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.add(a, b, out=out)


def _times(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mul(a, b, out=out)


def _larger(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.maximum(a, b, out=out)


def _smaller(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.minimum(a, b, out=out)


FOLDS: dict[str, Fold] = {"sum": _plus, "avg": _plus, "prod": _times, "max": _larger, "min": _smaller}


@dataclass
class Wire:
    """Point-to-point messages of the wrapped back end.

    inner: it. ranks: each peer's rank in the whole job, for messages. tag: of this call, from FIRST_TAG on, its lower
    15 bits free for the channel. waited: by peer, seconds spent waiting for it. timeout: None as the inner has it.
    """

    inner: Any
    ranks: Sequence[int]
    rank: int
    tag: int
    what: str
    waited: MutableMapping[int, float] = field(default_factory=dict)
    timeout: timedelta | None = None

    def send(self, values: Tensor, peer: int, channel: int) -> tuple[Any, Tensor, int]:
        """Begin to send; what `finish` wants."""
        return self._begun(self.inner.send, values, peer, channel)

    def receive(self, values: Tensor, peer: int, channel: int) -> tuple[Any, Tensor, int]:
        """Begin to receive into `values`."""
        return self._begun(self.inner.recv, values, peer, channel)

    def _begun(
        self, call: Callable[..., Any], values: Tensor, peer: int, channel: int
    ) -> tuple[Any, Tensor, int]:
        try:
            return call([values], peer, self.tag + channel), values, peer
        except RuntimeError as error:
            raise self._lost(peer, "reaches", error) from error

    def finish(self, begun: tuple[Any, Tensor, int], word: str = "waits for") -> Tensor:
        """Wait for what was begun. Raises RuntimeError that names both ranks where it fails or takes too long."""
        work, values, peer = begun
        start = time.perf_counter()
        try:
            if self.timeout is None:
                work.wait()
            else:
                work.wait(self.timeout)
        except RuntimeError as error:
            raise self._lost(peer, word, error) from error
        finally:
            self.waited[peer] = self.waited.get(peer, 0.0) + time.perf_counter() - start
        return values

    def _lost(self, peer: int, word: str, error: RuntimeError) -> MessageLost:
        both = f"rank {self.ranks[self.rank]} {word} rank {self.ranks[peer]}"
        return MessageLost(f"{self.what}: {both} in vain: {plain(error)}", peer)


def exchange(wire: Wire, out: Sequence[Tensor | None], into: Sequence[Tensor | None]) -> None:
    """Send out[r] to each rank r and receive into[r] from it, of any sizes; None: nothing."""
    received = [
        wire.receive(values, peer, 0)
        for peer, values in enumerate(into)
        if values is not None and peer != wire.rank and values.numel()
    ]
    sent = [
        wire.send(values, peer, 0)
        for peer, values in enumerate(out)
        if values is not None and peer != wire.rank and values.numel()
    ]
    for begun in received:
        wire.finish(begun)
    for begun in sent:
        wire.finish(begun, "sends to")


def run(part: Part, given: Tensor | None, made: Tensor | None, elements: int, op: str, wire: Wire) -> None:
    """Execute a rank's part.

    Args:
        given, made: the input and the output, one-dimensional and contiguous, or None where the rank has none; they
            may be one tensor for collectives whose input and output are equally long. The input stays as it is
            otherwise.
        elements: of a block, as in `Layout`.
        op: sum, prod, max, min; avg leaves sums.

    Raises:
        InputError: the program cannot be run on so many elements.
        RuntimeError: a message that did not come.
    """
    layout = Layout.of(part.program, elements)
    if not part.fits(elements):
        raise InputError(
            f"{part.program.name}: chunks of unequal length trade places; it must be a multiple of {layout.chunks}"
            f" elements, not {elements}"
        )
    like = given if given is not None else made
    assert like is not None
    sizes = layout.sizes(part.rank)
    after: tuple[Tensor, Tensor] | None = None
    if part.inplace:
        given, made, after = _in_one(part, given, made, sizes, layout)
    elif given is made:  # what is read is kept apart from what is written
        given = like.new_empty(sizes[0]) if _only_hears(part) else like.clone()
    buffers = [t if t is not None else like.new_empty(n) for t, n in zip((given, made), sizes, strict=True)]
    buffers.append(like.new_empty(part.program.gpus[part.rank].s_chunks * layout.longest))
    _Run(part, buffers, layout, FOLDS[op], wire).go()
    if after is not None:
        after[0].copy_(after[1])


def _only_hears(part: Part) -> bool:
    return part.program.collective == "broadcast" and part.rank != part.program.root


def _in_one(
    part: Part, given: Tensor | None, made: Tensor | None, sizes: tuple[int, int], layout: Layout
) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None]:
    """Input and output as one memory, and what is to be copied where afterwards."""
    p = part.program
    goal = goal_for(p.collective, p.nranks, p.nchunks_per_loop, True, p.root)
    shift = None if goal is None else goal.o_in_i[part.rank]
    if shift is None or given is None or given is made:
        return given, made, None
    first = abs(shift) // layout.chunks * layout.elements
    if shift <= 0 and made is not None and sizes[1] >= sizes[0]:
        place = made[first : first + sizes[0]]
        place.copy_(given)
        return place, made, None
    whole = given.clone()
    place = whole[first : first + sizes[1]]
    return whole, place, None if made is None else (made, place)


class _Pace:
    """How far each threadblock is."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._done: dict[int, int] = {}
        self._stopped = False

    def over(self, at: tuple[int, int]) -> None:
        with self._change:
            self._done[at[0]] = at[1]
            self._change.notify_all()

    def wait(self, at: tuple[int, int]) -> bool:
        """Until the step is over; False when all is to stop."""
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._done.get(at[0], -1) >= at[1])
            return not self._stopped

    def is_over(self, at: tuple[int, int]) -> bool:
        with self._change:
            return self._done.get(at[0], -1) >= at[1]

    def stop(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify_all()


@dataclass
class _Block:
    """What is left of a threadblock: acts, receives that are posted, acts whose receives are not."""

    acts: deque[Act]
    posted: deque[tuple[Any, Tensor, int] | None] = field(default_factory=deque)
    coming: deque[Act] = field(default_factory=deque)


class _Run:
    """One execution."""

    def __init__(self, part: Part, buffers: list[Tensor], layout: Layout, fold: Fold, wire: Wire) -> None:
        self.part, self.buffers, self.fold, self.wire = part, buffers, fold, wire
        self.length, self.longest = lengths_of(layout), layout.longest
        gpu = part.program.gpus[part.rank]
        cells = max((*layout.cells(part.rank), gpu.i_chunks, gpu.o_chunks))
        self.spans = layout.spans(cells).tolist()
        self.like = max(buffers, key=lambda buffer: buffer.numel())
        self.sent: list[tuple[Any, Tensor, int]] = []

    def go(self) -> None:
        acts = self.part.acts
        blocks: dict[int, _Block] = {}
        for act in acts:
            blocks.setdefault(act.at[0], _Block(deque())).acts.append(act)
        if self.longest * self.like.element_size() < _THREADS_FROM or len(blocks) < 2:
            self._walk(self._ready(_Block(deque(acts))), None)
        else:
            self._side_by_side(blocks)
        for begun in self.sent:
            self.wire.finish(begun, "sends to")

    def _side_by_side(self, blocks: dict[int, _Block]) -> None:
        """A thread a threadblock: none waits for a slow link but those that the program says must.

        What need not wait is done before, in the order of all acts, or the first messages would leave in the order in
        which threads happen to start.
        """
        faults: list[BaseException] = []
        pace = _Pace()
        ready = {tb: self._ready(block) for tb, block in blocks.items()}
        waits: set[int] = set()
        for act in self.part.acts:
            tb = act.at[0]
            if tb in waits or act.op in RECEIVES or not (act.after is None or pace.is_over(act.after)):
                waits.add(tb)
                continue
            self._act(ready[tb], pace)

        def walk(block: _Block) -> None:
            try:
                self._walk(block, pace)
            except BaseException as error:
                faults.append(error)
                pace.stop()

        first, *others = (ready[tb] for tb in waits) if waits else (_Block(deque()),)
        threads = [threading.Thread(target=walk, args=(block,), daemon=True) for block in others]
        for thread in threads:
            thread.start()
        walk(first)
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def _ready(self, block: _Block) -> _Block:
        """Post its first receives."""
        block.coming = deque(act for act in block.acts if act.op in RECEIVES)
        while block.coming and len(block.posted) < AHEAD:
            block.posted.append(self._post(block.coming.popleft()))
        return block

    def _walk(self, block: _Block, pace: _Pace | None) -> None:
        """Do acts in their order; `pace`: and tell when each is over, and wait for others' where they must be."""
        while block.acts:
            after = block.acts[0].after
            if pace is not None and after is not None and not pace.wait(after):
                return
            self._act(block, pace)

    def _act(self, block: _Block, pace: _Pace | None) -> None:
        act = block.acts.popleft()
        came: Tensor | None = None
        if act.op in RECEIVES:
            begun = block.posted.popleft()
            came = self.wire.finish(begun) if begun is not None else self.like.new_empty(0)
        if act.op != "nop":
            self._do(act, came)
        if pace is not None:
            pace.over(act.at)
        if act.op in RECEIVES and block.coming:
            block.posted.append(self._post(block.coming.popleft()))

    def _post(self, act: Act) -> tuple[Any, Tensor, int] | None:
        """Receive early, where possible to where it belongs; None where there is nothing to come."""
        size = sum(self.length[chunk] for chunk in act.lengths)
        if not size:
            return None
        assert act.source is not None
        places = self._places(act.dst, act) if act.direct else []
        room = places[0] if len(places) == 1 else self.like.new_empty(size)
        return self.wire.receive(room, *act.source)

    def _places(self, at: tuple[int, int] | None, act: Act, apart: bool = False) -> list[Tensor]:
        """The cells of a step, as one tensor where they lie side by side; `apart`: a tensor each."""
        if at is None:
            return []
        buffer, first = at
        lengths = [self.length[chunk] for chunk in act.lengths]
        if buffer < 2:
            begin = self.spans[first : first + act.count]
            if not apart:
                return [self.buffers[buffer][begin[0] : begin[0] + sum(lengths)]]
        else:
            begin = [(first + k) * self.longest for k in range(act.count)]
            if not apart and all(length == self.longest for length in lengths):
                return [self.buffers[2][begin[0] : begin[0] + sum(lengths)]]
        return [self.buffers[buffer][b : b + n] for b, n in zip(begin, lengths, strict=True)]

    def _do(self, act: Act, came: Tensor | None) -> None:
        src, dst = self._places(act.src, act), self._places(act.dst, act)
        if max(len(src), len(dst)) > 1:
            src, dst = self._places(act.src, act, True), self._places(act.dst, act, True)
        comes = src
        if came is not None:
            split = [self.length[chunk] for chunk in act.lengths]
            comes = list(came.split(split)) if max(len(src), len(dst)) > 1 else [came]
        op = act.op
        if op in ("r", "rcs", "cpy"):
            for to, values in zip(dst, comes, strict=True):
                if to.data_ptr() != values.data_ptr():
                    to.copy_(values)
        elif op == "re":
            for to, values in zip(dst, comes, strict=True):
                self.fold(values, to, to)
        elif op != "s":  # rrc, rrs, rrcs
            for own, values, to in zip(src, comes, comes if op == "rrs" else dst, strict=True):
                self.fold(own, values, to)
        if act.to is None:
            return
        values = dst if op in ("rcs", "rrcs") else comes
        whole = values[0] if len(values) == 1 else torch.cat(values)
        if not whole.numel():
            return
        if act.keep and len(values) == 1:
            whole = whole.clone()
        self.sent.append(self.wire.send(whole, *act.to))
