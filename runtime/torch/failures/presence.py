"""Which processes of a job live: every two that share a group keep a connection open, beside those of the messages.

The kernel closes a process's connections when it ends, however that happens, and keeps those of a stopped one open. So
the end of a process is known within milliseconds, and nobody is taken for dead who only waits, computes or is stopped.
A process says over them why it ends, where it can, and answers what it is doing; a thread of its own reads and answers.
Where no connection can be made (a firewall), nothing is known of the other, and nothing is said of it.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import secrets
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

from runtime.torch.failures.causes import error_end
from runtime.torch.failures.deadlock import Deadlocks, Held, Watch, own_state
from runtime.torch.threads import own_threads

log = logging.getLogger("synth.torch")
Message = dict[str, Any]


@dataclass(frozen=True)
class Tuning:
    """Times in seconds, sizes in bytes."""

    tick: float = 0.25  # between two looks at long waits
    connect: float = 2.0  # for a connection; an address that a firewall hides gives no answer
    line: int = 1 << 16  # the longest message
    unread: int = 1 << 20  # of messages that a stopped process does not read
    idle: int = 5  # until the kernel asks a silent host whether it is there; then twice more, as often


_TUNING = Tuning()
_RING = b"\0"  # no signal's number


class Listener(Watch, Protocol):
    """A `FailureWatch`, as the reading thread sees it."""

    def hear(self, name: str, message: Message) -> None:
        """A message of the process of this name."""

    def look(self) -> None:
        """After messages, and every tick."""

    def state(self, asked: Message) -> Message:
        """Its part of the answer to {"ask": …, "group": …}: {"waits": […], …}."""

    def interrupt(self) -> None:
        """Ctrl-C came, and the main thread may be where Python cannot raise it."""

    def counts(self) -> Message:
        """By group: the calls made so far, and the first of them that is not over."""

    def failed(self) -> str:
        """Why its last call failed, for the others when this process ends; "" where none did."""


@dataclass(frozen=True)
class End:
    """That a process has ended, or is about to: why, in its own words, or "" where it said nothing.

    at: when that became known, by `time.monotonic`. closed: whether its connection is. counts: of the calls it has
    made, as it said.
    """

    why: str
    at: float
    closed: bool
    counts: Message = field(default_factory=dict)


class _Link:
    """A connection to another process."""

    def __init__(self, channel: socket.socket, name: str = "") -> None:
        self.channel, self.name = channel, name
        self.read, self.unsent = bytearray(), bytearray()
        self.lock = threading.Lock()

    def send(self, message: Message, most: int) -> None:
        """Never waits: what does not fit now is sent at the next call, or dropped where `most` bytes wait."""
        data = json.dumps(message).encode() + b"\n"
        with self.lock:
            if len(self.unsent) + len(data) <= most:
                self.unsent += data
            with suppress(OSError):
                while self.unsent:
                    del self.unsent[: self.channel.send(self.unsent, socket.MSG_DONTWAIT)]


def _own_address() -> str:
    """Where others reach this host: as Gloo, the interface of GLOO_SOCKET_IFNAME, the host's name, or loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(","):
            with suppress(OSError):
                asked = struct.pack("256s", name.strip()[:15].encode())
                return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), 0x8915, asked)[20:24])  # SIOCGIFADDR
    with suppress(OSError), socket.socket() as tried:
        found = socket.gethostbyname(socket.gethostname())
        tried.bind((found, 0))
        return found
    return "127.0.0.1"


class Presence:
    """One process among those of its job.

    Attributes:
        name: of the process, as others know it.
        ends: by name, the processes that have ended or are about to.
        of_rank: by job rank, the process that was last seen with it.
    """

    def __init__(self, tuning: Tuning = _TUNING) -> None:
        self.tuning = tuning
        self.name = secrets.token_hex(8)
        self.ends: dict[str, End] = {}
        self.of_rank: dict[int, str] = {}
        self._secret = secrets.token_hex(8)  # only those that share a store with this process may speak to it
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._adding = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._expected: dict[str, tuple[float, str]] = {}  # by name, until when to wait for one, and its address
        self._selector = selectors.DefaultSelector()
        self._server = socket.socket()
        self._server.bind((_own_address(), 0))
        self._server.listen(4096)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._bell, self._rope = socket.socketpair()  # ends a wait for messages
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._rope.setblocking(False)
        self._over = False
        self._deadlocks = Deadlocks(self.name, self._held, self.tell)
        self._thread = threading.Thread(target=self._work, name="synth presence", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What `connect` takes in another process."""
        host, port = self._server.getsockname()
        return f"{self.name} {self._secret} {host} {port}"

    def add(self, listener: Listener) -> None:
        """Tell it what is heard, for as long as it lives."""
        with self._adding:
            self._listeners.add(listener)

    def connect(self, address: str) -> str:
        """Have a connection to the process of this address, and give its name.

        The one of the greater name makes it; the other one tries, too, where that does not come.
        """
        name = address.split()[0]
        if name < self.name:
            self._reach(address)
        elif name > self.name and name not in self._links:
            self._expected.setdefault(name, (time.monotonic() + self.tuning.tick, address))
        return name

    def _reach(self, address: str) -> None:
        name, secret, host, port = address.split()
        if name in self._links or name in self.ends:
            return
        try:
            channel = socket.create_connection((host, int(port)), self.tuning.connect)
        except ConnectionRefusedError:  # nobody listens there any more
            self.ends.setdefault(name, End("", time.monotonic(), True))
        except OSError:
            pass  # a firewall: nothing is known of it
        else:
            link = self._keep(channel, name)
            link.send({"secret": secret, "name": self.name}, self.tuning.unread)
            self._selector.register(channel, selectors.EVENT_READ, link)
            with suppress(OSError):  # full: it rings already
                self._rope.send(_RING)

    def is_open(self, name: str) -> bool:
        """Whether there is an open connection to this process."""
        return name in self._links

    def tell(self, names: Iterable[str], message: Message) -> None:
        """Send a message to those of them that are connected; never waits, never raises."""
        for name in names:
            link = self._links.get(name)
            if link is not None:
                link.send(message, self.tuning.unread)

    def say_end(self, why: str) -> None:
        """Tell all that this process is about to end."""
        counts: Message = {}
        for listener in self._listening():
            counts |= listener.counts()
            why += f" ({listener.failed()})" if listener.failed() and ": " not in why else ""
        self.tell(list(self._links), {"end": why, "counts": counts})

    def _listening(self) -> list[Listener]:
        with self._adding:
            return list(self._listeners)

    def hear_signals(self) -> None:
        """Take notice of Ctrl-C at once, where nothing else does: as the main thread, where it waits outside Python."""
        if threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(self._rope.fileno(), warn_on_full_buffer=False)
            if before != -1:
                signal.set_wakeup_fd(before)

    def close(self) -> None:
        """After what was said, close all connections."""
        self._over = True
        with suppress(OSError):
            self._rope.send(_RING)
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)
        for link in list(self._links.values()):
            with suppress(OSError):  # what was said arrives before the end does
                link.channel.shutdown(socket.SHUT_WR)
        self.drop()

    def drop(self) -> None:
        """Close this process's copies of the connections, as a process that was forked must."""
        with suppress(ValueError):  # not the main thread, or of an earlier time
            before = signal.set_wakeup_fd(-1)
            if before != self._rope.fileno():
                signal.set_wakeup_fd(before)
        for held in (*(link.channel for link in self._links.values()), self._server, self._bell, self._rope):
            held.close()
        self._links.clear()

    def _keep(self, channel: socket.socket, name: str) -> _Link:
        channel.settimeout(None)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", self.tuning.idle),
            ("TCP_KEEPINTVL", self.tuning.idle),
            ("TCP_KEEPCNT", 3),
        ):
            if hasattr(socket, option):
                channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        link = _Link(channel, name)
        if name:
            self._links[name] = link
        return link

    def _work(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(self.tuning.tick):
                if key.fileobj is self._server:
                    with suppress(OSError):
                        channel, _ = self._server.accept()
                        self._selector.register(channel, selectors.EVENT_READ, self._keep(channel, ""))
                elif key.fileobj is self._bell:
                    interrupted = signal.SIGINT in self._bell.recv(1 << 10)
                    if interrupted and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                        for listener in self._listening():
                            listener.interrupt()
                else:
                    self._read(key.data)
            for link in list(self._links.values()):
                if link.unsent:
                    link.send({}, self.tuning.unread)
            self._reach_expected()
            try:
                for listener in self._listening():
                    listener.look()
                self._deadlocks.look(self._listening())
            except Exception:  # or the others would take this process for a stopped one
                log.exception("synth: looking after waits")

    def _held(self) -> tuple[Held | None, float]:
        return own_state(self._listening(), own_threads() | {self._thread.ident})

    def _reach_expected(self) -> None:
        for name, (due, address) in list(self._expected.items()):
            if name in self._links or time.monotonic() > due:
                del self._expected[name]
                self._reach(address)

    def _read(self, link: _Link) -> None:
        try:
            data = link.channel.recv(1 << 16)
        except OSError:  # the host is gone, or the process with messages unread
            data = b""
        link.read += data
        *lines, rest = bytes(link.read).split(b"\n")
        link.read = bytearray(rest)
        known = all(self._hear(link, line) for line in lines)
        if data and known and len(link.read) <= self.tuning.line:
            return
        self._selector.unregister(link.channel)
        link.channel.close()
        if self._links.get(link.name) is link:
            before = self.ends.get(link.name, End("", 0.0, True))
            self.ends[link.name] = replace(before, at=time.monotonic(), closed=True)
            del self._links[link.name]

    def _hear(self, link: _Link, line: bytes) -> bool:
        """Take a message; False where it is of a stranger, who does not know the secret of this job."""
        if not link.name:
            with suppress(ValueError, KeyError, TypeError):
                hello = json.loads(line)
                if hello["secret"] == self._secret:
                    link.name = str(hello["name"])
                    self._links[link.name] = link
            return bool(link.name)
        try:
            self._take(link, json.loads(line))
        except Exception:  # as above
            log.exception("synth: a message that cannot be read")
        return True

    def _take(self, link: _Link, message: Message) -> None:
        if "end" in message:
            end = End(message["end"], time.monotonic(), False, message["counts"])
            self.ends.setdefault(link.name, end)
        elif "ask" in message:
            answer: Message = {"answer": message["ask"], "group": message["group"], "waits": []}
            for listener in self._listening():
                part = listener.state(message)
                answer |= part | {"waits": answer["waits"] + part["waits"]}
            link.send(answer, self.tuning.unread)
        elif "held?" in message or "held" in message:
            self._deadlocks.hear(link.name, message)
        elif "stuck" in message:
            self._deadlocks.give_up(message, self._listening())
        elif message:
            for listener in self._listening():
                listener.hear(link.name, message)


_own: Presence | None = None
_making = threading.Lock()


def presence() -> Presence:
    """This process's, made at the first call; from then on its end is said to the others."""
    global _own
    with _making:
        if _own is None:
            _own = Presence()
            _own.hear_signals()
            sys.excepthook = _say_error(sys.excepthook)
            atexit.register(_say_exit)  # here, to run before what drains threads at the end
        return _own


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _say_error(before: _Hook) -> _Hook:
    """A hook for errors that end the program, which tells the others of it."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _own is not None:
            _own.say_end(error_end(error))
        before(kind, error, trace)

    return hook


def _say_exit() -> None:
    if _own is not None:
        _own.say_end("ended")


@atexit.register
def _close() -> None:  # a thread that lives on while the interpreter ends can take the process down with it
    if _own is not None:
        _own.close()


def _forget() -> None:
    """In a forked process: its copies would hide from the others that its parent ends."""
    global _own, _making
    _making = threading.Lock()
    if _own is not None:
        _own.drop()
        _own = None


os.register_at_fork(after_in_child=_forget)
