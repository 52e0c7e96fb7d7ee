"""A rank's part of a program, executed on torch tensors over another back end's point-to-point messages."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch

from emit.program import RECEIVES
from runtime.buffers import Layout, part_in_place
from runtime.torch.failures.apart import PARTS_FROM_BYTES, wait_apart
from runtime.torch.messages import Messages, error_text
from runtime.torch.pieces import PieceMap, Sizes
from runtime.torch.rank_program import AHEAD, RankProgram, RankStep
from runtime.torch.threads import helping
from topologies.errors import MessageLost

Tensor: TypeAlias = Any  # torch's; there need be no torch where types are checked
Reducer = Callable[..., Tensor]  # (a, b, out=)
FIRST_TAG = 1 << 30  # tags from here on are schedules'; those of callers lie below
MAX_CHANNELS = 1 << 15


REDUCERS: dict[str, Reducer] = {"sum": torch.add, "avg": torch.add, "prod": torch.mul, "max": torch.maximum,
                                "min": torch.minimum}  # fmt: skip


@dataclass
class Transport:
    """The messages of one call."""

    messages: Messages
    ranks: Sequence[int]  # each peer's rank in the whole job, for error texts
    rank: int  # this one's place among them
    tag: int  # of this call, from FIRST_TAG on, its lower 15 bits free for the channel
    call: str  # for error texts
    waited: MutableMapping[int, float] = field(default_factory=dict)  # by peer, seconds spent waiting for it
    timeout: timedelta | None = None  # None: that of the messages
    in_vain: Callable[[], bool] = bool  # whether waits that have not ended never will

    def wait_for(self, work: Callable[[], None], longest_bytes: int) -> None:
        """Do what waits for messages of so many bytes at most, from PARTS_FROM_BYTES on so that it can be left."""
        if longest_bytes < PARTS_FROM_BYTES:
            work()
        else:
            wait_apart(work, self.in_vain)

    def send(self, values: Tensor, peer: int, channel: int) -> tuple[Any, Tensor, int]:
        """Begin to send; what `finish` takes."""
        return self._begin(self.messages.send, values, peer, channel)

    def receive(self, values: Tensor, peer: int, channel: int) -> tuple[Any, Tensor, int]:
        """Begin to receive into `values`."""
        return self._begin(self.messages.recv, values, peer, channel)

    def _begin(self, call: Callable[..., Any], values: Tensor, peer: int, channel: int) -> tuple[Any, Tensor, int]:
        try:
            return call([values], peer, self.tag + channel), values, peer
        except RuntimeError as error:
            raise self._lost(peer, "reaches", error) from error

    def finish(self, begun: tuple[Any, Tensor, int], word: str = "waits for") -> Tensor:
        """Wait for what was begun. Raises RuntimeError that names both ranks where it fails or takes too long."""
        work, values, peer = begun
        start = time.perf_counter()
        try:
            work.wait() if self.timeout is None else work.wait(self.timeout)
        except RuntimeError as error:
            raise self._lost(peer, word, error) from error
        finally:
            self.waited[peer] = self.waited.get(peer, 0.0) + time.perf_counter() - start
        return values

    def _lost(self, peer: int, word: str, error: RuntimeError) -> MessageLost:
        both = f"rank {self.ranks[self.rank]} {word} rank {self.ranks[peer]}"
        return MessageLost(f"{self.call}: {both} in vain: {error_text(error)}", peer)


def exchange(transport: Transport, out: Sequence[Tensor | None], into: Sequence[Tensor | None]) -> None:
    """Send out[r] to each rank r and receive into[r] from it, of any sizes; None: nothing.

    A block that two ranks take for one of different sizes never arrives: what is longer than its room ends the process.
    """

    def each(begin: Callable[[Tensor, int, int], Any], tensors: Sequence[Tensor | None]) -> list[Any]:
        here = [(values, peer) for peer, values in enumerate(tensors) if values is not None and peer != transport.rank]
        return [begin(values, peer, values.nbytes % MAX_CHANNELS) for values, peer in here if values.numel()]

    received, sent = each(transport.receive, into), each(transport.send, out)

    def wait() -> None:
        for begun in received:
            transport.finish(begun)
        for begun in sent:
            transport.finish(begun, "sends to")

    transport.wait_for(wait, max((values.nbytes for _, values, _ in (*received, *sent)), default=0))


def run(
    part: RankProgram,
    given: Tensor | None,
    made: Tensor | None,
    elements: int,
    op: str,
    transport: Transport,
    threads_from: int = PARTS_FROM_BYTES,
) -> None:
    """Execute a rank's part of a program on blocks of so many elements; avg leaves sums.

    given, made: the input and the output, one-dimensional and contiguous, or None where the rank has none; they may be
    one tensor where both are equally long. The input stays as it is otherwise. threads_from: bytes of a chunk from
    which on each threadblock has a thread. Raises InputError where it cannot be run on so many elements, RuntimeError
    for a message that did not come.
    """
    layout = Layout.of(part.program, elements)
    part.check_fits(elements)
    like = given if given is not None else made
    assert like is not None
    sizes = layout.sizes(part.rank)
    after: tuple[Tensor, Tensor] | None = None
    if part.inplace:
        given, made, after = _in_one_memory(part, given, made, sizes, layout)
    elif given is made:  # what is read is kept apart from what is written
        only_receives = part.program.collective == "broadcast" and part.rank != part.program.root
        given = like.new_empty(sizes[0]) if only_receives else like.clone()
    buffers = [t if t is not None else like.new_empty(n) for t, n in zip((given, made), sizes, strict=True)]
    scratch_cells = part.program.gpus[part.rank].s_chunks
    buffers.append(like.new_empty(scratch_cells * layout.longest))
    gpu = part.program.gpus[part.rank]
    spans = layout.spans(max((*layout.cells(part.rank), gpu.i_chunks, gpu.o_chunks))).tolist()
    length_of_chunk = np.diff(layout.spans(layout.chunks)).tolist()
    execution = _Run(
        part,
        buffers,
        (spans, spans, [cell * layout.longest for cell in range(scratch_cells + 1)]),
        layout.longest,
        lambda step: [length_of_chunk[chunk] for chunk in step.lengths],
        REDUCERS[op],
        transport,
    )
    transport.wait_for(lambda: execution.go(threads_from), part.most_chunks * layout.longest * like.element_size())
    if after is not None:
        after[0].copy_(after[1])


def run_uneven(
    part: RankProgram,
    pieces: PieceMap,
    given: Tensor,
    made: Tensor,
    sizes: Sizes,
    transport: Transport,
    threads_from: int = PARTS_FROM_BYTES,
) -> None:
    """Execute a rank's part of a program on blocks of unequal sizes, each message as long as what it carries.

    given, made: the blocks that this rank gives and takes, one after the other in the order of the program's ranks, as
    contiguous tensors in one dimension, which share no memory. sizes: the elements of all blocks, by the program's
    ranks. pieces: `map_pieces` of the part. threads_from: as in `run`. Raises RuntimeError for a message that did not
    come.
    """
    spans = pieces.spans(sizes)
    lengths = {at: [pieces.length(piece, sizes) for piece in moved] for at, moved in pieces.moved.items()}
    longest_piece = max((length for of_step in lengths.values() for length in of_step), default=0)
    longest_message = max((sum(of_step) for of_step in lengths.values()), default=0)
    buffers = [given, made, given.new_empty(spans[2][-1])]
    execution = _Run(
        part, buffers, spans, longest_piece, lambda step: lengths[step.at], REDUCERS["sum"], transport, signals=True
    )
    transport.wait_for(lambda: execution.go(threads_from), longest_message * given.element_size())


def _in_one_memory(
    part: RankProgram, given: Tensor | None, made: Tensor | None, sizes: tuple[int, int], layout: Layout
) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None]:
    """Input and output as one memory, and what is to be copied where afterwards."""
    if part.shift is None or given is None or given is made:
        return given, made, None
    inside, where = part_in_place(layout, part.shift, *sizes)
    if inside and made is not None:
        made[where].copy_(given)
        return made[where], made, None
    whole = given.clone()
    return whole, whole[where], None if made is None else (made, whole[where])


class _Progress:
    """Which of the steps that others wait for are over."""

    def __init__(self, steps: Sequence[RankStep]) -> None:
        self._over = {step.after: threading.Event() for step in steps if step.after is not None}
        self._stopped = False

    def finish(self, at: tuple[int, int]) -> None:
        if at in self._over:
            self._over[at].set()

    def wait(self, at: tuple[int, int]) -> bool:
        """Until the step is over; False when all is to stop."""
        self._over[at].wait()
        return not self._stopped

    def is_over(self, at: tuple[int, int]) -> bool:
        return self._over[at].is_set()

    def stop(self) -> None:
        self._stopped = True
        for over in self._over.values():
            over.set()


@dataclass
class _Block:
    """What is left of a threadblock: steps, receives that are posted, steps whose receives are not."""

    steps: deque[RankStep]
    posted: deque[tuple[Any, Tensor, int] | None] = field(default_factory=deque)
    coming: deque[RankStep] = field(default_factory=deque)


class _Run:
    """One execution.

    Attributes:
        part: What is executed.
        buffers: Input, output and scratch.
        spans: Of each of them, the first element of every cell, and the end of the last one.
        longest: Elements of the longest chunk.
        lengths_of: Gives the elements of each cell that a step receives, or reads where it receives nothing.
        reduce: Reduces two tensors.
        transport: Messages.
        signals: Whether one element is sent in place of nothing. Where only some messages are empty, what is not kept
            or is received early (`RankStep`) relies on the order that these messages bring about.
    """

    def __init__(
        self,
        part: RankProgram,
        buffers: list[Tensor],
        spans: tuple[list[int], list[int], list[int]],
        longest: int,
        lengths_of: Callable[[RankStep], list[int]],
        reduce: Reducer,
        transport: Transport,
        signals: bool = False,
    ) -> None:
        self.signals = signals
        self.part, self.buffers, self.reduce, self.transport = part, buffers, reduce, transport
        self.spans, self.longest, self.lengths_of = spans, longest, lengths_of
        self.like = max(buffers, key=lambda buffer: buffer.numel())
        self.sent: list[tuple[Any, Tensor, int]] = []

    def go(self, threads_from: int) -> None:
        steps = self.part.steps
        blocks: dict[int, _Block] = {}
        for step in steps:
            blocks.setdefault(step.at[0], _Block(deque())).steps.append(step)
        if self.longest * self.like.element_size() < threads_from or len(blocks) < 2:
            self._walk(self._post_first(_Block(deque(steps))), None)
        else:
            self._walk_in_threads(blocks)
        for begun in self.sent:
            self.transport.finish(begun, "sends to")

    def _walk_in_threads(self, blocks: dict[int, _Block]) -> None:
        """A thread a threadblock: none waits for a slow link but those that the program says must.

        What need not wait is done before, in the order of all steps, or the first messages would leave in the order in
        which threads happen to start.
        """
        faults: list[BaseException] = []
        progress = _Progress(self.part.steps)
        ready = {tb: self._post_first(block) for tb, block in blocks.items()}
        waits: set[int] = set()
        for step in self.part.steps:
            tb = step.at[0]
            if tb in waits or step.op in RECEIVES or not (step.after is None or progress.is_over(step.after)):
                waits.add(tb)
                continue
            self._advance(ready[tb], progress)

        def walk(block: _Block) -> None:
            try:
                self._walk(block, progress)
            except BaseException as error:
                faults.append(error)
                progress.stop()

        first, *others = (ready[tb] for tb in waits) if waits else (_Block(deque()),)

        def help_walk(block: _Block) -> None:
            with helping():
                walk(block)

        threads = [threading.Thread(target=help_walk, args=(block,), daemon=True) for block in others]
        for thread in threads:
            thread.start()
        walk(first)
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def _post_first(self, block: _Block) -> _Block:
        """Post its first receives."""
        block.coming = deque(step for step in block.steps if step.op in RECEIVES)
        while block.coming and len(block.posted) < AHEAD:
            block.posted.append(self._post(block.coming.popleft()))
        return block

    def _walk(self, block: _Block, progress: _Progress | None) -> None:
        """Do steps in their order; with `progress` also wait for the others' steps that they depend on."""
        while block.steps:
            after = block.steps[0].after
            if progress is not None and after is not None and not progress.wait(after):
                return
            self._advance(block, progress)

    def _advance(self, block: _Block, progress: _Progress | None) -> None:
        step = block.steps.popleft()
        received: Tensor | None = None
        if step.op in RECEIVES:
            begun = block.posted.popleft()
            received = self.like.new_empty(0) if begun is None else self.transport.finish(begun)
            if self.signals and not sum(self.lengths_of(step)):
                received = received[:0]
        if step.op != "nop":
            self._do(step, received)
        if progress is not None:
            progress.finish(step.at)
        if step.op in RECEIVES and block.coming:
            block.posted.append(self._post(block.coming.popleft()))

    def _post(self, step: RankStep) -> tuple[Any, Tensor, int] | None:
        """Receive early, where possible to where it belongs; None where there is nothing to come."""
        size = sum(self.lengths_of(step))
        assert step.source is not None
        if not size:
            return self.transport.receive(self.like.new_empty(1), *step.source) if self.signals else None
        places = self._places(step.dst, step) if step.direct else []
        room = places[0] if len(places) == 1 else self.like.new_empty(size)
        return self.transport.receive(room, *step.source)

    def _places(self, at: tuple[int, int] | None, step: RankStep, apart: bool = False) -> list[Tensor]:
        """The cells of a step, as one tensor where they lie side by side; `apart`: a tensor each."""
        if at is None:
            return []
        buffer, first = at
        lengths, span = self.lengths_of(step), self.spans[buffer][first : first + step.count + 1]
        begin = span[:-1]
        # a cell of scratch may have more room than what it holds
        if not apart and (buffer < 2 or lengths == [end - start for start, end in pairwise(span)]):
            return [self.buffers[buffer][begin[0] : begin[0] + sum(lengths)]]
        return [self.buffers[buffer][b : b + n] for b, n in zip(begin, lengths, strict=True)]

    def _do(self, step: RankStep, received: Tensor | None) -> None:
        src, dst = self._places(step.src, step), self._places(step.dst, step)
        if max(len(src), len(dst)) > 1:
            src, dst = self._places(step.src, step, True), self._places(step.dst, step, True)
        values_in = src
        if received is not None:
            values_in = list(received.split(self.lengths_of(step))) if max(len(src), len(dst)) > 1 else [received]
        op = step.op
        if op in ("r", "rcs", "cpy"):
            for to, values in zip(dst, values_in, strict=True):
                if to.data_ptr() != values.data_ptr():
                    to.copy_(values)
        elif op == "re":
            for to, values in zip(dst, values_in, strict=True):
                self.reduce(values, to, out=to)
        elif op != "s":  # rrc, rrs, rrcs
            for own, values, to in zip(src, values_in, values_in if op == "rrs" else dst, strict=True):
                self.reduce(own, values, out=to)
        if step.to is None:
            return
        values = dst if op in ("rcs", "rrcs") else values_in
        whole = values[0] if len(values) == 1 else torch.cat(values)
        if not whole.numel():
            if not self.signals:
                return
            whole = whole.new_zeros(1)
        if step.keep and len(values) == 1:
            whole = whole.clone()
        self.sent.append(self.transport.send(whole, *step.to))
