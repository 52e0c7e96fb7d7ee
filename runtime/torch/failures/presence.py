"""Which processes of a job live: every two that share a group keep a connection open, beside those of the messages.

The kernel closes a process's connections when it ends, however that happens, and keeps those of a stopped one open. So
the end of a process is known within milliseconds, and nobody is taken for dead who only waits, computes or is stopped.
A process says over them why it ends, where it can, and answers what it is doing; a thread of its own reads and answers.
Where no connection can be made (a firewall), nothing is known of the other, and nothing is said of it.

Anybody who reaches the host can connect. A stranger costs little: the kernel wakes the thread only when the first
frame is complete (`runtime.torch.failures.wire`), few strangers are let in at a time, none stays longer than a short
time, and nothing that is sent ends the thread. Where all ranks are on one host the port is on loopback.
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
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

from runtime.torch.failures.causes import error_end
from runtime.torch.failures.deadlock import Deadlocks, Held, Watch, own_state
from runtime.torch.failures.wire import (
    ANYWHERE,
    HELLO_BYTES,
    NAME_DIGITS,
    SECRET_DIGITS,
    Address,
    Message,
    all_on_this_host,
    hello,
    name_in_hello,
    read_message,
    this_host,
)
from runtime.torch.threads import own_threads

log = logging.getLogger("synth.torch")


@dataclass(frozen=True)
class Tuning:
    """Times in seconds, sizes in bytes."""

    tick: float = 0.25  # between two looks at long waits
    connect: float = 2.0  # for a connection; an address that a firewall hides gives no answer
    unread: int = 1 << 20  # of messages that a stopped process does not read; so also the longest message
    stranger: float = 2.0  # until a connection must have said who it is, and for which it takes one of the places
    strangers: int = 128  # places for connections that have not said it
    tries: int = 6  # to connect, where the other process closes before it has said anything
    idle: int = 5  # until the kernel asks a silent host whether it is there; then twice more, as often


_TUNING = Tuning()
_RING = b"\0"  # no signal's number
_LOOPBACK = "127.0.0.1"
_WAITS = 8  # texts of waits in an answer: one names who is waited for
_BROKEN = "sent what is no message of this version of synth; all ranks must run the same version"


class Listener(Watch, Protocol):
    """A `FailureWatch`, as the reading thread sees it."""

    def hear(self, name: str, message: Message) -> None:
        """A message of the process of this name."""

    def look(self) -> None:
        """After messages, and every tick."""

    def state(self, asked: Message) -> Message:
        """Its part of the answer to {"ask": …, "group": …}: {"waits": [the first], …}."""

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
    """A connection to another process.

    Attributes:
        name: Of the process; "" where it has not said it.
        address: What this process connected to; None where the other one did.
        has_spoken: Whether anything came from the other process.
        skips: Whether bytes are dropped up to the next line's begin, since a line was too long.
    """

    def __init__(self, channel: socket.socket, name: str = "", address: Address | None = None) -> None:
        self.channel, self.name, self.address = channel, name, address
        self.has_spoken = self.skips = False
        self.read, self.unsent = bytearray(), bytearray()
        self.lock = threading.Lock()

    def send(self, message: Message, most: int) -> None:
        """Never waits: what does not fit now is sent at the next call, or dropped where `most` bytes wait."""
        self.send_bytes(json.dumps(message).encode() + b"\n", most)

    def send_bytes(self, data: bytes, most: int) -> None:
        """As `send`, of what is no message."""
        with self.lock:
            if len(self.unsent) + len(data) <= most:
                self.unsent += data
            with suppress(OSError):
                while self.unsent:
                    del self.unsent[: self.channel.send(self.unsent, socket.MSG_DONTWAIT)]


def _own_address() -> str:
    """Where others reach this host: as Gloo, the interface of GLOO_SOCKET_IFNAME, the host's name, or loopback.

    Loopback, too, where the environment says that all ranks are on this host.
    """
    if all_on_this_host():
        return _LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(","):
            with suppress(OSError):
                asked = struct.pack("256s", name.strip()[:15].encode())
                return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), 0x8915, asked)[20:24])  # SIOCGIFADDR
    with suppress(OSError), socket.socket() as tried:
        found = socket.gethostbyname(socket.gethostname())
        tried.bind((found, 0))
        return found
    return _LOOPBACK


class Presence:
    """One process among those of its job.

    Attributes:
        name: of the process, as others know it.
        ends: by name, the processes that have ended or are about to.
        of_rank: by job rank, the process that was last seen with it.
    """

    def __init__(self, tuning: Tuning = _TUNING) -> None:
        self.tuning = tuning
        self.name = secrets.token_hex(NAME_DIGITS // 2)
        self.ends: dict[str, End] = {}
        self.of_rank: dict[int, str] = {}
        self._secret = secrets.token_hex(
            SECRET_DIGITS // 2
        )  # only those that share a store with this process may speak to it
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._adding = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._expected: dict[str, tuple[float, Address]] = {}  # by name, until when to wait for one, and its address
        self._tries: dict[str, int] = {}  # by name, how often a connection closed before anything came
        self._strangers: dict[_Link, float] = {}  # until when each may stay
        self._places: deque[float] = deque()  # when each place for strangers that was taken is free again; rising
        self._accepts = True  # whether the selector looks at the server
        self._selector = selectors.DefaultSelector()
        self._server = socket.socket()
        self._server.bind((_own_address(), 0))
        self._server.listen(4096)
        self._server.setblocking(False)
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
        ip, port = self._server.getsockname()
        host = this_host() if ip.startswith("127.") else ""
        return str(Address(self.name, self._secret, ip, port, host or ANYWHERE))

    def add(self, listener: Listener) -> None:
        """Tell it what is heard, for as long as it lives."""
        with self._adding:
            self._listeners.add(listener)

    def connect(self, address: str) -> str:
        """Have a connection to the process of this address, and give its name.

        The one of the greater name makes it; the other one tries, too, where that does not come. Raises ValueError for
        what is no address.
        """
        to = Address.parse(address)
        if to.name < self.name:
            self._reach(to)
        elif to.name > self.name and to.name not in self._links:
            self._expected.setdefault(to.name, (time.monotonic() + self.tuning.tick, to))
        return to.name

    def _reach(self, to: Address) -> None:
        name = to.name
        if name in self._links or name in self.ends or not to.is_reachable:
            return
        try:
            channel = socket.create_connection((to.ip, to.port), self.tuning.connect)
        except ConnectionRefusedError:  # nobody listens there any more
            self.ends.setdefault(name, End("", time.monotonic(), True))
        except OSError:
            if name in self._tries:  # it has been reached before
                self.ends.setdefault(name, End("", time.monotonic(), True))
            # else a firewall: nothing is known of it
        else:
            link = self._keep(channel, name, to)
            link.send_bytes(hello(to.secret, self.name), self.tuning.unread)
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
        links = (*self._links.values(), *self._strangers)
        with suppress(RuntimeError):  # the thread, where it lives on, has changed it meanwhile
            links += tuple(key.data for key in self._selector.get_map().values() if key.data is not None)
        for held in (*(link.channel for link in links), self._server, self._bell, self._rope):
            held.close()
        self._links.clear()
        self._strangers.clear()

    def _keep(self, channel: socket.socket, name: str, address: Address | None = None) -> _Link:
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
        link = _Link(channel, name, address)
        self._links[name] = link
        return link

    def _work(self) -> None:
        looked = 0.0
        while not self._over:
            try:
                heard = self._serve(max(0.0, looked + self.tuning.tick - time.monotonic()))
                if heard or time.monotonic() >= looked + self.tuning.tick:
                    looked = time.monotonic()
                    self._look()
            except Exception:  # the thread must not end, or the others would take this process for a stopped one
                if not self._over:
                    log.exception("synth: looking after waits")
                    time.sleep(self.tuning.tick)

    def _serve(self, seconds: float) -> bool:
        """Wait for what comes, and take it; return whether any of it was of a member of the job."""
        heard = False
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._server:
                self._accept()
            elif key.fileobj is self._bell:
                heard = True
                interrupted = signal.SIGINT in self._bell.recv(1 << 10)
                if interrupted and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    for listener in self._listening():
                        listener.interrupt()
            elif key.data in self._strangers:
                heard |= self._admit(key.data)
            else:
                heard = True
                self._read(key.data)
        self._dismiss()
        return heard

    def _look(self) -> None:
        for link in list(self._links.values()):
            if link.unsent:
                link.send_bytes(b"", self.tuning.unread)
        self._reach_expected()
        for listener in self._listening():
            listener.look()
        self._deadlocks.look(self._listening())

    def _held(self) -> tuple[Held | None, float]:
        return own_state(self._listening(), own_threads() | {self._thread.ident})

    def _reach_expected(self) -> None:
        for name, (due, address) in list(self._expected.items()):
            if name in self._links or time.monotonic() > due:
                del self._expected[name]
                self._reach(address)

    # ---- strangers

    def _accept(self) -> None:
        """Let a stranger in, as long as there is a place.

        A place stays taken for its time also where the stranger goes earlier, so that the number of strangers in a
        second is limited; one that turns out to be a member gives it back.
        """
        try:
            channel, _ = self._server.accept()
        except BlockingIOError:  # it is gone again
            return
        except OSError:  # no file descriptor is left, or the connection was broken off
            self._places.extend([time.monotonic() + self.tuning.stranger] * self.tuning.strangers)
        else:
            until = time.monotonic() + self.tuning.stranger
            self._places.append(until)
            link = _Link(channel)
            channel.setblocking(False)
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HELLO_BYTES)  # wakes for a complete frame
            self._strangers[link] = until
            self._selector.register(channel, selectors.EVENT_READ, link)
        if len(self._places) >= self.tuning.strangers:
            self._selector.unregister(self._server)
            self._accepts = False

    def _admit(self, link: _Link) -> bool:
        """Read a stranger's frame; return whether it is a member of the job, and close its connection if not."""
        try:
            frame = link.channel.recv(HELLO_BYTES)
        except OSError:
            frame = b""
        name = name_in_hello(frame, self._secret)
        until = self._strangers.pop(link)
        self._selector.unregister(link.channel)
        if name is None or name == self.name:
            link.channel.close()
            return False
        with suppress(ValueError):
            self._places.remove(until)
        link.channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        kept = self._keep(link.channel, name)
        self._selector.register(link.channel, selectors.EVENT_READ, kept)
        kept.send({}, self.tuning.unread)  # so that it knows that it was let in
        return True

    def _dismiss(self) -> None:
        """Close the connections of strangers whose time is over, and accept again where places are free."""
        now = time.monotonic()
        for link in [link for link, until in self._strangers.items() if now >= until]:
            del self._strangers[link]
            self._selector.unregister(link.channel)
            link.channel.close()
        while self._places and now >= self._places[0]:
            self._places.popleft()
        if not self._accepts and len(self._places) < self.tuning.strangers:
            self._selector.register(self._server, selectors.EVENT_READ)
            self._accepts = True

    # ---- members of the job

    def _read(self, link: _Link) -> None:
        try:
            data = link.channel.recv(1 << 16)
        except OSError:  # the host is gone, or the process with messages unread
            data = b""
        if data:
            link.has_spoken = True
            self._tries.pop(link.name, None)
            link.read += data
            *lines, rest = bytes(link.read).split(b"\n")
            link.read = bytearray(rest)
            if lines and link.skips:
                del lines[0]
                link.skips = False
            for line in lines:
                self._hear(link, line)
            if len(link.read) > self.tuning.unread:
                link.read.clear()
                if not link.skips:
                    link.skips = True
                    self._distrust(link, f"a line of more than {self.tuning.unread} bytes")
            return
        self._selector.unregister(link.channel)
        link.channel.close()
        if self._links.get(link.name) is not link:
            return
        del self._links[link.name]
        tries = self._tries[link.name] = self._tries.get(link.name, 0) + 1
        if link.address is not None and not link.has_spoken and tries < self.tuning.tries:
            # it lives, and took this process for a stranger that was too slow; or refuses the next connection
            self._expected[link.name] = time.monotonic() + self.tuning.tick * (tries - 1), link.address
            return
        before = self.ends.get(link.name, End("", 0.0, True))
        self.ends[link.name] = replace(before, at=time.monotonic(), closed=True)

    def _hear(self, link: _Link, line: bytes) -> None:
        """Take a message of a member."""
        try:
            message = read_message(line)
        except ValueError as error:
            self._distrust(link, f"a message that {error}")
            return
        try:
            self._take(link, message)
        except Exception:  # of a listener; the thread must not end
            log.exception("synth: a message that cannot be read")

    def _distrust(self, link: _Link, what: str) -> None:
        """Name a member that sends what is no message as the cause of what fails from now on; its process lives."""
        if link.name not in self.ends:
            self.ends[link.name] = End(_BROKEN, time.monotonic(), closed=False)
            log.error("synth: process %s sent %s; all ranks must run the same version of synth", link.name, what)

    def _take(self, link: _Link, message: Message) -> None:
        if "end" in message:
            end = End(message["end"], time.monotonic(), False, message["counts"])
            self.ends.setdefault(link.name, end)
        elif "ask" in message:
            answer: Message = {"answer": message["ask"], "group": message["group"], "waits": []}
            for listener in self._listening():
                part = listener.state(message)
                answer |= part | {"waits": (answer["waits"] + part["waits"])[:_WAITS]}
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
