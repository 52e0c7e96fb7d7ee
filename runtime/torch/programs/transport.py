"""Send and receive the messages of one call, with errors that name both ranks."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from runtime.torch.failures.apart import PARTS_FROM_BYTES, wait_apart
from runtime.torch.messages import Messages, error_text
from topologies.errors import MessageLost

Tensor: TypeAlias = Any  # torch.Tensor; types are also checked without torch.
Started = tuple[Any, Tensor, int]  # A message that has started: what waits for it, its values, and the peer.
FIRST_TAG = 1 << 30  # Schedules use the tags from here on, callers those below.
MAX_CHANNELS = 1 << 15


def call_tag(number: int | None, text: str) -> int:
    """Return the tag of the messages of a call of all ranks, from its number and its text; see `Transport.tag`."""
    return FIRST_TAG | (zlib.crc32(f"{number} {text}".encode()) & 0x7FFF) << 15


@dataclass
class Transport:
    """The messages of one call.

    Attributes:
        messages: Moves the bytes.
        ranks: Rank in the whole job of each peer, for error texts.
        rank: Place of this rank among them.
        tag: Tag of this call, FIRST_TAG or more, whose lower 15 bits are free for the channel.
        call: Text of the call for errors.
        wait_seconds: Seconds spent on waits for each peer, by its place; `finish` adds to them.
        timeout: Time-out of a wait; None for that of the messages.
        in_vain: Returns True if waits that have not ended will never end.
    """

    messages: Messages
    ranks: Sequence[int]
    rank: int
    tag: int
    call: str
    wait_seconds: MutableMapping[int, float] = field(default_factory=dict)
    timeout: timedelta | None = None
    in_vain: Callable[[], bool] = bool

    def wait_for(self, work: Callable[[], None], longest_bytes: int) -> None:
        """Run `work`, which waits for messages of at most `longest_bytes` bytes, until its end; raise what it raises.

        From PARTS_FROM_BYTES on it runs on another thread, so that its caller can leave it.

        Raises:
            RuntimeError: The wait is `in_vain`; `work` may go on on its thread.
        """
        if longest_bytes < PARTS_FROM_BYTES:
            work()
        else:
            wait_apart(work, self.in_vain)

    def send(self, values: Tensor, peer: int, channel: int) -> Started:
        """Start to send values to a peer; return what `finish` takes.

        Args:
            values: Contiguous tensor, which must not change before the message is finished.
            peer: Place of the other rank among `ranks`.
            channel: 0 to MAX_CHANNELS - 1; messages of one peer and channel arrive in the order of sending.

        Raises:
            MessageLost: The peer cannot be reached.
        """
        return self._begin(self.messages.send, values, peer, channel)

    def receive(self, values: Tensor, peer: int, channel: int) -> Started:
        """Start to receive into `values`, a contiguous tensor of the message's size; return what `finish` takes.

        Args:
            values: Tensor that is written by the time when the message is finished.
            peer: Place of the other rank among `ranks`.
            channel: 0 to MAX_CHANNELS - 1, as the sender gives it.

        Raises:
            MessageLost: The peer cannot be reached.
        """
        return self._begin(self.messages.recv, values, peer, channel)

    def _begin(self, call: Callable[..., Any], values: Tensor, peer: int, channel: int) -> Started:
        """Start a message by `call`, a method of `messages`, and return what `finish` takes.

        Raises:
            MessageLost: The peer cannot be reached.
        """
        try:
            return call([values], peer, self.tag + channel), values, peer
        except RuntimeError as error:
            raise self._lost(peer, "reaches", error) from error

    def finish(self, message: Started, word: str = "waits for") -> Tensor:
        """Wait for a message that was started, and return its tensor; add the seconds to `wait_seconds`.

        Args:
            message: Result of `send` or `receive`.
            word: Verb for the error text.

        Raises:
            MessageLost: The message failed or took too long; the text names both ranks.
        """
        work, values, peer = message
        start = time.perf_counter()
        try:
            work.wait() if self.timeout is None else work.wait(self.timeout)
        except RuntimeError as error:
            raise self._lost(peer, word, error) from error
        finally:
            self.wait_seconds[peer] = self.wait_seconds.get(peer, 0.0) + time.perf_counter() - start
        return values

    def _lost(self, peer: int, word: str, error: RuntimeError) -> MessageLost:
        """Return the error of a message that did not come, with the verb `word` between the names of both ranks."""
        ranks_text = f"rank {self.ranks[self.rank]} {word} rank {self.ranks[peer]}"
        return MessageLost(f"{self.call}: {ranks_text} in vain: {error_text(error)}", peer)


def exchange(transport: Transport, out: Sequence[Tensor | None], into: Sequence[Tensor | None]) -> None:
    """Send out[r] to each rank r and receive into[r] from it, of any sizes; None stands for no block.

    The tag depends on the size in bytes, modulo MAX_CHANNELS. So a block of which two ranks expect different sizes does
    not arrive, unless these sizes have the same tag; then Gloo ends a process whose buffer is too short.

    Args:
        transport: Messages of the call.
        out: Contiguous block for each rank; this rank's own is ignored, and so are blocks without elements.
        into: Contiguous room for the block of each rank, likewise.

    Raises:
        RuntimeError: A message did not come.
    """

    def begin_all(begin: Callable[[Tensor, int, int], Any], tensors: Sequence[Tensor | None]) -> list[Any]:
        """Start the messages of all blocks to or from other ranks."""
        blocks_of_peers = [
            (values, peer) for peer, values in enumerate(tensors) if values is not None and peer != transport.rank
        ]
        return [begin(values, peer, values.nbytes % MAX_CHANNELS) for values, peer in blocks_of_peers if values.numel()]

    received, sent = begin_all(transport.receive, into), begin_all(transport.send, out)

    def wait() -> None:
        """Wait for all messages."""
        for message in received:
            transport.finish(message)
        for message in sent:
            transport.finish(message, "sends to")

    transport.wait_for(wait, max((values.nbytes for _, values, _ in (*received, *sent)), default=0))
