"""Gather and scatter blocks that may differ in size on Gloo, whose own calls take blocks of one size only.

A rank other than the root knows its own block only, so it must make the same call whether blocks differ or not. Gloo
takes messages that are shorter than expected. So a gather expects blocks as long as the longest one, and a scatter of
blocks that differ sends empty ones, and then each block as a message of its own. A receiver sees that its block was
empty from a mark that it has written at the block's end. The root sees which equal blocks end with the mark by chance,
and sends those again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import memmove, string_at
from datetime import timedelta
from typing import Any, TypeAlias

from runtime.torch.failures.calls import Calls
from runtime.torch.programs.transport import MAX_CHANNELS, call_tag
from runtime.torch.threads import helping

Tensor: TypeAlias = Any
_MARK = bytes.fromhex("8bf15ae97c26d34f")  # Any bytes are right; blocks seldom end with these.
_LENGTH = len(_MARK)
_NO_LIMIT = timedelta(days=365)


def start_gather(
    gloo: Any, tensor: Tensor, sizes: Sequence[int], is_root: bool, opts: Any
) -> tuple[Any, Sequence[Tensor]]:
    """Start a gather of Gloo of blocks that may differ in size; return Gloo's Work and the tensors that it writes.

    Each block comes to the beginning of its tensor.

    Args:
        gloo: Gloo's back end.
        tensor: This rank's block, of one dimension.
        sizes: Elements of the block of each rank; ignored on other ranks than the root.
        is_root: Whether this rank is the root.
        opts: torch's options of the call.
    """
    if not is_root:
        return gloo.gather([], [tensor], opts), []
    longest = max(sizes)
    padded = tensor
    if tensor.numel() < longest:
        padded = tensor.new_zeros(longest)
        padded[: tensor.numel()] = tensor
    received = tensor.new_empty(len(sizes), longest).unbind()
    return gloo.gather([list(received)], [padded], opts), received


class _Received:
    """The wait of another rank for a scatter, and for the message that follows it if the block has not come.

    It is built without arguments.

    Attributes:
        begun: Gloo's Work; address and number of the bytes that hold the mark; what receives the message, and its
            arguments.
    """

    __slots__ = ("begun",)

    begun: tuple[Any, int, int, Callable[..., None], Sequence[Any]]

    def wait(self) -> None:
        """Wait until the block has come."""
        work, place, length, receive, arguments = self.begun
        work.wait()
        if length and _MARK.startswith(string_at(place, length)):
            receive(*arguments)


class Scatter:
    """The scatters of a group, on Gloo."""

    def __init__(self, gloo: Any, place: int, calls: Calls, limit: Callable[[Any], timedelta | None]) -> None:
        """Take what all calls share.

        Args:
            gloo: Gloo's back end.
            place: Place of this rank in the group.
            calls: The calls of the group.
            limit: Returns the time-out of a call with torch's options; None for that of the back end.
        """
        self._gloo, self._scatter, self._me, self._calls, self._limit = gloo, gloo.scatter, place, calls, limit
        self._senders: list[threading.Thread] = []  # They wait for messages that are not received yet.

    def start(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any, number: int | None = None
    ) -> Any:
        """Start a scatter, and return an object whose `wait()` ends when it is over.

        Tensors must be contiguous, on the CPU and of one type; the root's own block must be as long as its output.

        Args:
            outputs: List of the tensor that is written.
            inputs: List of the list of the blocks on the root; ignored elsewhere.
            opts: torch's options of the call.
            number: Number of the call; None if it is the next call.

        Raises:
            RuntimeError: The call cannot be started.
        """
        root, output = opts.rootRank, outputs[0]
        number, size = number or self._calls.last_number + 1, output.nbytes
        length = size if size < _LENGTH else _LENGTH
        if root != self._me:
            place = output.data_ptr() + size - length
            memmove(place, _MARK, length)
            received = _Received()
            received.begun = self._scatter(outputs, [], opts), place, length, self._receive, (outputs, opts, number)
            return received
        blocks, shape = inputs[0], output.shape
        for block in blocks:
            if block.shape != shape:
                nothing = output.data.view(-1)[:0]
                work = self._scatter([nothing], [[nothing] * len(blocks)], opts)
                memmove(output.data_ptr(), blocks[root].data_ptr(), size)
                self._send(blocks, range(len(blocks)), number)
                return work
        work, places = self._scatter(outputs, inputs, opts), []
        for peer, block in enumerate(blocks):
            if _MARK.startswith(string_at(block.data_ptr() + size - length, length)):
                places.append(peer)
        if places:
            self._send(blocks, places, number)
        return work

    def _send(self, blocks: Sequence[Tensor], places: Sequence[int], number: int) -> None:
        """Send the blocks of some places as messages, except this rank's and empty ones, in the call of a number.

        Copies are sent, and another thread waits for them. A receiver may ask for its message only after later calls,
        which need this rank.
        """
        messages = [
            self._gloo.send([blocks[place].data.clone()], place, _tag(number, blocks[place]))
            for place in places
            if place != self._me and blocks[place].nbytes
        ]
        sender = threading.Thread(target=_finish, args=(messages,), name="synth scatter", daemon=True)
        sender.start()
        self._senders = [earlier for earlier in self._senders if earlier.is_alive()] + [sender]

    def drain(self, limit_s: float) -> None:
        """Wait until all messages have been received or are lost, up to a limit in seconds."""
        deadline = time.monotonic() + limit_s
        for sender in self._senders:
            sender.join(max(0.0, deadline - time.monotonic()))

    def _receive(self, outputs: Sequence[Tensor], opts: Any, number: int) -> None:
        """Receive this rank's block as a message, in the call of a number, with torch's options."""
        message, limit = self._gloo.recv(outputs, opts.rootRank, _tag(number, outputs[0])), self._limit(opts)
        message.wait() if limit is None else message.wait(limit)


def _finish(messages: Sequence[Any]) -> None:
    """Wait for messages without a limit; a receiver that is lost is reported by the next call."""
    with helping():
        for message in messages:
            with suppress(RuntimeError):
                message.wait(_NO_LIMIT)


def _tag(number: int, block: Tensor) -> int:
    """Return the tag of the message of a block; as in `exchange`, a block of another size does not arrive."""
    return call_tag(number, "scatter") + int(block.nbytes) % MAX_CHANNELS
