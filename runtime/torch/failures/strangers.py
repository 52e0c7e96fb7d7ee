"""Let connections into a process's port, and learn which of them come from members of the job."""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections import deque
from contextlib import suppress

from runtime.torch.failures.address import ANYWHERE, SECRET_DIGITS, Address, own_ip, this_host
from runtime.torch.failures.link import Link, PresenceTuning
from runtime.torch.failures.wire import HELLO_BYTES, name_in_hello


class Strangers:
    """The connections to this process's port that have not said who they are.

    Attributes:
        server: Socket of the port.
    """

    def __init__(self, tuning: PresenceTuning, selector: selectors.BaseSelector) -> None:
        """Open the port.

        Args:
            tuning: Limits.
            selector: Watches the port and the strangers.
        """
        self._tuning, self._selector = tuning, selector
        # Only processes that share a store with this one may connect to it.
        self._secret = secrets.token_hex(SECRET_DIGITS // 2)
        self._deadlines: dict[Link, float] = {}  # The time until which each stranger may stay.
        self._places: deque[float] = deque()  # When each taken place becomes free, in rising order.
        self._accepts = True  # Whether the selector watches the server.
        self.server = socket.socket()
        self.server.bind((own_ip(), 0))
        self.server.listen(4096)
        self.server.setblocking(False)
        selector.register(self.server, selectors.EVENT_READ)

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, link: object) -> bool:
        return link in self._deadlines

    def address(self, name: str) -> Address:
        """Return the address at which the process of this name listens."""
        ip, port = self.server.getsockname()
        host = this_host() if ip.startswith("127.") else ""
        return Address(name, self._secret, ip, port, host or ANYWHERE)

    def accept(self) -> None:
        """Accept a stranger's connection, unless the stranger has left; stop accepting when all places are taken.

        A place stays taken for its full time even if the stranger leaves earlier, so that the number of strangers per
        second is limited. A stranger that turns out to be a member frees its place. If the system refuses a connection,
        for example because no file descriptor is free, all places count as taken for that time.
        """
        try:
            channel, _ = self.server.accept()
        except BlockingIOError:  # The stranger is gone again.
            return
        except OSError:  # No file descriptor is left, or the connection was aborted.
            self._places.extend([time.monotonic() + self._tuning.stranger] * self._tuning.strangers)
        else:
            deadline = time.monotonic() + self._tuning.stranger
            self._places.append(deadline)
            link = Link(channel, self._tuning.unread)
            channel.setblocking(False)
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HELLO_BYTES)  # Wake only for a whole frame.
            self._deadlines[link] = deadline
            self._selector.register(channel, selectors.EVENT_READ, link)
        if len(self._places) >= self._tuning.strangers:
            self._selector.unregister(self.server)
            self._accepts = False

    def identify(self, stranger: Link) -> str | None:
        """Read a stranger's first frame; return the name in it, or None if it does not come from a member of the job.

        The connection is no stranger's any more, and is not watched; the caller closes it or watches it.
        """
        try:
            frame = stranger.channel.recv(HELLO_BYTES)
        except OSError:
            frame = b""
        name = name_in_hello(frame, self._secret)
        deadline = self._deadlines.pop(stranger)
        self._selector.unregister(stranger.channel)
        if name is not None:
            with suppress(ValueError):
                self._places.remove(deadline)
            stranger.channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return name

    def dismiss(self) -> None:
        """Close the connections of strangers whose time is over, and accept again if places are free."""
        now = time.monotonic()
        for link in [link for link, deadline in self._deadlines.items() if now >= deadline]:
            del self._deadlines[link]
            self._selector.unregister(link.channel)
            link.channel.close()
        while self._places and now >= self._places[0]:
            self._places.popleft()
        if not self._accepts and len(self._places) < self._tuning.strangers:
            self._selector.register(self.server, selectors.EVENT_READ)
            self._accepts = True

    def close(self) -> None:
        """Close the port, and the connections of all strangers."""
        for link in list(self._deadlines):  # The thread may still run.
            link.channel.close()
        self._deadlines.clear()
        self.server.close()
