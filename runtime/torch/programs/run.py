"""Run a rank's part of a program on torch tensors, over another back end's point-to-point messages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch

from emit.program import RECEIVES
from runtime.buffers import Layout, part_in_place
from runtime.torch.failures.apart import PARTS_FROM_BYTES
from runtime.torch.programs.one_step import run_one_step
from runtime.torch.programs.pieces import Sizes, map_pieces
from runtime.torch.programs.rank_program import AHEAD, RankProgram, RankStep
from runtime.torch.programs.transport import Started, Transport
from runtime.torch.threads import helping

Tensor: TypeAlias = Any  # torch.Tensor; types are also checked without torch.
Reducer = Callable[..., Tensor]  # (a, b, out=)
REDUCERS: dict[str, Reducer] = {"sum": torch.add, "avg": torch.add, "prod": torch.mul, "max": torch.maximum,
                                "min": torch.minimum}  # fmt: skip


def run(
    part: RankProgram,
    input_tensor: Tensor | None,
    output_tensor: Tensor | None,
    elements: int,
    op: str,
    transport: Transport,
    threads_from: int = PARTS_FROM_BYTES,
) -> None:
    """Run a rank's part of a program until its messages are sent and received; avg leaves sums.

    Args:
        part: The rank's part.
        input_tensor: Contiguous input in one dimension; None if the rank has none. It stays unchanged unless it is the
            output, too.
        output_tensor: Output likewise, which is written; it may be the input if they are equally long. One of the two
            must be given.
        elements: Elements of a block.
        op: A key of REDUCERS.
        transport: Messages of the call.
        threads_from: Bytes of a chunk from which on each threadblock has a thread.

    Raises:
        InputError: The part cannot run on blocks of this many elements.
        RuntimeError: A message did not come.
    """
    layout = Layout.of(part.program, elements)
    part.check_fits(elements)
    sample = input_tensor if input_tensor is not None else output_tensor
    assert sample is not None
    sizes = layout.sizes(part.rank)
    late_copy: tuple[Tensor, Tensor] | None = None
    if part.inplace:
        input_tensor, output_tensor, late_copy = _in_one_memory(part, input_tensor, output_tensor, sizes, layout)
    elif input_tensor is output_tensor:  # A program out of place must read what it has not overwritten.
        only_receives = part.program.collective == "broadcast" and part.rank != part.program.root
        input_tensor = sample.new_empty(sizes[0]) if only_receives else sample.clone()
    buffers = [
        t if t is not None else sample.new_empty(n) for t, n in zip((input_tensor, output_tensor), sizes, strict=True)
    ]
    if part.is_one_step:
        spans = layout.spans(layout.chunks).tolist()
        one_step = partial(run_one_step, part, buffers[0], buffers[1], spans, REDUCERS[op], transport)
        transport.wait_for(one_step, part.most_chunks * layout.longest * sample.element_size())
        if late_copy is not None:
            late_copy[0].copy_(late_copy[1])
        return
    scratch_cells = part.program.gpus[part.rank].s_chunks
    buffers.append(sample.new_empty(scratch_cells * layout.longest))
    gpu = part.program.gpus[part.rank]
    spans = layout.spans(max((*layout.cells(part.rank), gpu.i_chunks, gpu.o_chunks))).tolist()
    length_of_chunk = np.diff(layout.spans(layout.chunks)).tolist()
    execution = _RankRun(
        part,
        buffers,
        (spans, spans, [cell * layout.longest for cell in range(scratch_cells + 1)]),
        layout.longest,
        lambda step: [length_of_chunk[chunk] for chunk in step.lengths],
        REDUCERS[op],
        transport,
    )
    transport.wait_for(lambda: execution.go(threads_from), part.most_chunks * layout.longest * sample.element_size())
    if late_copy is not None:
        late_copy[0].copy_(late_copy[1])


def run_uneven(
    part: RankProgram,
    input_tensor: Tensor,
    output_tensor: Tensor,
    sizes: Sizes,
    transport: Transport,
) -> None:
    """Run a rank's part of a program on blocks of unequal sizes, with each message as long as its contents.

    Args:
        part: The rank's part, which has a piece map.
        input_tensor: Blocks that this rank gives, in the order of the program's ranks, contiguous and in one dimension.
        output_tensor: Blocks that this rank takes, likewise, which are written; it shares no memory with the input.
        sizes: Elements of all blocks, as [source][target] by the program's ranks.
        transport: Messages of the call.

    Raises:
        RuntimeError: A message did not come.
    """
    pieces = map_pieces(part)
    assert pieces is not None
    spans = pieces.spans(sizes)
    lengths = {
        place: [pieces.length(piece, sizes) for piece in moved_pieces]
        for place, moved_pieces in pieces.step_pieces.items()
    }
    longest_piece = max((length for of_step in lengths.values() for length in of_step), default=0)
    longest_message = max((sum(of_step) for of_step in lengths.values()), default=0)
    buffers = [input_tensor, output_tensor, input_tensor.new_empty(spans[2][-1])]
    execution = _RankRun(
        part, buffers, spans, longest_piece, lambda step: lengths[step.place], REDUCERS["sum"], transport, signals=True
    )
    transport.wait_for(lambda: execution.go(PARTS_FROM_BYTES), longest_message * input_tensor.element_size())


def _in_one_memory(
    part: RankProgram, input_tensor: Tensor | None, output_tensor: Tensor | None, sizes: tuple[int, int], layout: Layout
) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None]:
    """Return the input and output of a part in place in one memory, and the pair (target, source) to copy afterwards.

    They stay as they are, with None for the pair, without a shift, without an input, or if they are one tensor. If the
    input belongs into the output, it is copied there, and the pair is None. Otherwise the input is copied into a new
    tensor, the output is a view of that, and the pair copies from there; the pair is None if there is no output.

    Args:
        part: The rank's part.
        input_tensor: Contiguous input in one dimension, or None.
        output_tensor: Output likewise, or None.
        sizes: Elements of the input and of the output.
        layout: The program's layout.
    """
    if part.shift is None or input_tensor is None or input_tensor is output_tensor:
        return input_tensor, output_tensor, None
    inside, output_span = part_in_place(layout, part.shift, *sizes)
    if inside and output_tensor is not None:
        output_tensor[output_span].copy_(input_tensor)
        return output_tensor[output_span], output_tensor, None
    copy = input_tensor.clone()
    return copy, copy[output_span], None if output_tensor is None else (output_tensor, copy[output_span])


class _RunProgress:
    """The steps that other steps wait for, and whether they are over."""

    def __init__(self, steps: Sequence[RankStep]) -> None:
        self._end_events = {step.predecessor: threading.Event() for step in steps if step.predecessor is not None}
        self._stopped = False

    def finish(self, place: tuple[int, int]) -> None:
        """Record that a step is over, if another step waits for it; `place` is its threadblock and position."""
        if place in self._end_events:
            self._end_events[place].set()

    def wait(self, place: tuple[int, int]) -> bool:
        """Wait until a step that another one depends on is over; return False if `stop` was called."""
        self._end_events[place].wait()
        return not self._stopped

    def is_over(self, place: tuple[int, int]) -> bool:
        """Return True if a step that another one depends on is over, or if `stop` was called."""
        return self._end_events[place].is_set()

    def stop(self) -> None:
        """End all waits, now and later, with the result False, after an error."""
        self._stopped = True
        for end_event in self._end_events.values():
            end_event.set()


@dataclass
class _RankBlock:
    """The remaining work of a threadblock.

    Attributes:
        steps: Steps that are not done.
        open_receives: Receives that have started, in order; None where nothing comes.
        later_receives: Steps whose receives have not started.
    """

    steps: deque[RankStep]
    open_receives: deque[Started | None] = field(default_factory=deque)
    later_receives: deque[RankStep] = field(default_factory=deque)


@dataclass(eq=False)
class _RankRun:
    """An execution of a rank's part of a program.

    Attributes:
        part: The rank's part.
        buffers: Input, output and scratch.
        spans: For each buffer the first element of every cell, and the end of the last cell.
        longest: Elements of the longest chunk.
        lengths_of: Returns the elements of each cell that a step receives, or reads if it receives nothing.
        reduce: Reduces two tensors.
        transport: Messages of the call.
        signals: Whether one element is sent in place of an empty message. If only some messages are empty, steps that
            send no copy or receive early (`RankStep`) rely on the order that these messages enforce.
        sent: Messages that were sent.
    """

    part: RankProgram
    buffers: list[Tensor]
    spans: tuple[list[int], list[int], list[int]]
    longest: int
    lengths_of: Callable[[RankStep], list[int]]
    reduce: Reducer
    transport: Transport
    signals: bool = False
    sent: list[Started] = field(default_factory=list)

    @cached_property
    def like(self) -> Tensor:
        """Return the largest buffer; messages that need a tensor of their own are like it."""
        return max(self.buffers, key=lambda tensor: tensor.numel())

    def go(self, threads_from: int) -> None:
        """Run all steps, and wait for all sends.

        Each threadblock runs on a thread of its own if there are at least two, and if the longest chunk has at least
        `threads_from` bytes.
        """
        steps = self.part.steps
        blocks: dict[int, _RankBlock] = {}
        for step in steps:
            blocks.setdefault(step.place[0], _RankBlock(deque())).steps.append(step)
        if self.longest * self.like.element_size() < threads_from or len(blocks) < 2:
            self._walk(self._post_first(_RankBlock(deque(steps))), None)
        else:
            self._walk_in_threads(blocks)
        for message in self.sent:
            self.transport.finish(message, "sends to")

    def _walk_in_threads(self, blocks: dict[int, _RankBlock]) -> None:
        """Run each threadblock on a thread, so that only steps that depend on a slow link wait for it.

        Steps that need not wait are done before, in the order of all steps. Otherwise the first messages would leave in
        the order in which the threads happen to start. It returns when all threads have ended, and raises their first
        error.

        Args:
            blocks: By threadblock, all its steps; they are used up.
        """
        faults: list[BaseException] = []
        progress = _RunProgress(self.part.steps)
        started_blocks = {tb: self._post_first(block) for tb, block in blocks.items()}
        blocked: set[int] = set()
        for step in self.part.steps:
            tb = step.place[0]
            if (
                tb in blocked
                or step.op in RECEIVES
                or not (step.predecessor is None or progress.is_over(step.predecessor))
            ):
                blocked.add(tb)
                continue
            self._advance(started_blocks[tb], progress)

        def walk(block: _RankBlock) -> None:
            """Run a threadblock; an error stops all of them."""
            try:
                self._walk(block, progress)
            except BaseException as error:
                faults.append(error)
                progress.stop()

        first_block, *other_blocks = (started_blocks[tb] for tb in blocked) if blocked else (_RankBlock(deque()),)

        def help_walk(block: _RankBlock) -> None:
            """Run a threadblock on a helping thread."""
            with helping():
                walk(block)

        threads = [threading.Thread(target=help_walk, args=(block,), daemon=True) for block in other_blocks]
        for thread in threads:
            thread.start()
        walk(first_block)
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def _post_first(self, block: _RankBlock) -> _RankBlock:
        """Start up to AHEAD receives of a threadblock, and return it; the steps of later receives are kept in it."""
        block.later_receives = deque(step for step in block.steps if step.op in RECEIVES)
        while block.later_receives and len(block.open_receives) < AHEAD:
            block.open_receives.append(self._post(block.later_receives.popleft()))
        return block

    def _walk(self, block: _RankBlock, progress: _RunProgress | None) -> None:
        """Run and remove a threadblock's steps in their order; with `progress` also wait for the steps they depend on.

        It returns early if `progress` is stopped.
        """
        while block.steps:
            after = block.steps[0].predecessor
            if progress is not None and after is not None and not progress.wait(after):
                return
            self._advance(block, progress)

    def _advance(self, block: _RankBlock, progress: _RunProgress | None) -> None:
        """Wait for what the next step of a threadblock receives, run and remove the step, and start its next receive.

        With `progress` the step is recorded as over.
        """
        step = block.steps.popleft()
        received: Tensor | None = None
        if step.op in RECEIVES:
            message = block.open_receives.popleft()
            received = self.like.new_empty(0) if message is None else self.transport.finish(message)
            if self.signals and not sum(self.lengths_of(step)):
                received = received[:0]
        if step.op != "nop":
            self._do(step, received)
        if progress is not None:
            progress.finish(step.place)
        if step.op in RECEIVES and block.later_receives:
            block.open_receives.append(self._post(block.later_receives.popleft()))

    def _post(self, step: RankStep) -> Started | None:
        """Start a step's receive early, if possible into its destination; return None if nothing comes."""
        size = sum(self.lengths_of(step))
        assert step.source is not None
        if not size:
            return self.transport.receive(self.like.new_empty(1), *step.source) if self.signals else None
        places = self._places(step.dst, step) if step.may_post_early else []
        room = places[0] if len(places) == 1 else self.like.new_empty(size)
        return self.transport.receive(room, *step.source)

    def _places(self, at: tuple[int, int] | None, step: RankStep, apart: bool = False) -> list[Tensor]:
        """Return the cells of a step, as one tensor if they are contiguous; with `apart` always a tensor per cell.

        `at` is the buffer and the first cell; None, for no cells, gives an empty list. All tensors are views.
        """
        if at is None:
            return []
        buffer, first = at
        lengths, span = self.lengths_of(step), self.spans[buffer][first : first + step.count + 1]
        begin = span[:-1]
        # A cell of scratch may have more room than its contents need.
        if not apart and (buffer < 2 or lengths == [end - start for start, end in pairwise(span)]):
            return [self.buffers[buffer][begin[0] : begin[0] + sum(lengths)]]
        return [self.buffers[buffer][b : b + n] for b, n in zip(begin, lengths, strict=True)]

    def _do(self, step: RankStep, received: Tensor | None) -> None:
        """Run the local part of a step, and start its send.

        `received` has the values that the step received; it may be overwritten. None stands for a step that receives
        nothing.
        """
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
        if step.target is None:
            return
        values = dst if op in ("rcs", "rrcs") else values_in
        whole = values[0] if len(values) == 1 else torch.cat(values)
        if not whole.numel():
            if not self.signals:
                return
            whole = whole.new_zeros(1)
        if step.must_copy and len(values) == 1:
            whole = whole.clone()
        self.sent.append(self.transport.send(whole, *step.target))
