"""Connect two processes: each sends messages without waiting for the other, and reads them line by line."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from runtime.torch.failures.address import Address
from runtime.torch.failures.wire import Message


@dataclass(frozen=True)
class PresenceTuning:
    """Limits of a presence, with times in seconds and sizes in bytes.

    Attributes:
        tick: Interval between two checks of long waits.
        connect: Limit for a connection; an address that a firewall hides gives no answer.
        unread: Bytes of messages that a stopped process does not read; so also the longest message.
        stranger: Time in which a connection must say who it is, and for which it takes a place.
        strangers: Places for connections that have not said who they are.
        tries: Number of attempts to connect, if the other process closes before it has sent anything.
        idle: Time until the kernel probes a silent host, and the interval of its two further probes.
    """

    tick: float = 0.25
    connect: float = 2.0
    unread: int = 1 << 20
    stranger: float = 2.0
    strangers: int = 128
    tries: int = 6
    idle: int = 5


class Link:
    """A connection to another process.

    Attributes:
        channel: The socket.
        most_bytes: Limit for bytes that are not sent yet, and for a line.
        name: Name of the process; "" if it has not sent it.
        address: Address to which this process connected; None if the other process connected.
        has_spoken: Whether anything came from the other process.
        unsent: Bytes that are not sent yet.
    """

    def __init__(self, channel: socket.socket, most_bytes: int, name: str = "", address: Address | None = None) -> None:
        self.channel, self.most_bytes, self.name, self.address = channel, most_bytes, name, address
        self.has_spoken = False
        self.unsent = bytearray()
        self._lock = threading.Lock()  # Guards `unsent`.
        self._line_start = bytearray()  # Bytes that came and are not a complete line yet.
        self._skips = False  # Whether bytes are dropped up to the next line, since this one was too long.

    def send(self, message: Message) -> None:
        """Send a message without waiting; what does not fit now is sent by the next call.

        The message is dropped if more than `most_bytes` would be unsent. Errors of the connection are not raised.
        """
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that are not a message, as `send` does; none (b"") to send only what is unsent."""
        with self._lock:
            if len(self.unsent) + len(data) <= self.most_bytes:
                self.unsent += data
            with suppress(OSError):
                while self.unsent:
                    del self.unsent[: self.channel.send(self.unsent, socket.MSG_DONTWAIT)]

    def receive(self) -> bytes:
        """Return up to 64 KiB that have come; b"" if the connection is closed or broken.

        If nothing has come, it waits unless the socket does not block.
        """
        try:
            return self.channel.recv(1 << 16)
        except OSError:  # The host is gone, or the process ended with unread messages.
            return b""

    def split(self, data: bytes) -> tuple[list[bytes], bool]:
        """Return the lines that these bytes complete, and True if the line after them has just become too long.

        Lines are without their ends. The rest of the bytes is kept for the next call; a line that is too long is
        dropped as a whole. From now on `has_spoken` is True.
        """
        self.has_spoken = True
        *lines, remainder = bytes(self._line_start + data).split(b"\n")
        if lines and self._skips:
            del lines[0]
            self._skips = False
        is_too_long = len(remainder) > self.most_bytes
        self._line_start = bytearray() if is_too_long else bytearray(remainder)
        has_become_too_long = is_too_long and not self._skips
        self._skips = self._skips or is_too_long
        return lines, has_become_too_long
