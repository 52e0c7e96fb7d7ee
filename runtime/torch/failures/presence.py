"""Detect which processes of a job live, over a connection between every two processes that share a group.

These connections are separate from those of the messages. The kernel closes a process's connections when it ends,
however that happens, and keeps those of a stopped process open. So the end of a process is known within milliseconds,
and a process that only waits, computes or is stopped is never taken for dead. Over the connections a process reports
why it ends, if it can, and answers what it is doing; a separate thread reads and answers. If a connection cannot be
made (a firewall), nothing is known and nothing is reported of the other process.

Anybody who reaches the host can connect. A stranger costs little: the kernel wakes the thread only when the first frame
is complete (`runtime.torch.failures.wire`), only few strangers are let in at a time, none stays longer than a short
time, and nothing that a stranger sends ends the thread. If all ranks are on one host, the port is on loopback.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from runtime.torch.failures.address import NAME_DIGITS, Address
from runtime.torch.failures.deadlock import Deadlocks, DeadlockWatch, Held, own_state
from runtime.torch.failures.link import Link, PresenceTuning
from runtime.torch.failures.strangers import Strangers
from runtime.torch.failures.wire import Message, hello, read_message
from runtime.torch.threads import own_threads

log = logging.getLogger("synth.torch")
_TUNING = PresenceTuning()
_RING = b"\0"  # It is not the number of a signal.
_WAITS = 8  # Texts of waits in an answer: the first names the ranks that are waited for.
_BROKEN = "sent a message that is not of this version of synth; all ranks must run the same version"


class Listener(DeadlockWatch, Protocol):
    """The methods of a `FailureWatch` that the reading thread calls."""

    def hear(self, name: str, message: Message) -> None:
        """Read a message of the process of this name."""

    def look(self) -> None:
        """Check the waits, after messages and in every tick."""

    def state(self, question: Message) -> Message:
        """Return the answer to a question {"ask": …, "group": …, "number": …}: {"waits": [at most one text], …}."""

    def interrupt(self) -> None:
        """Handle Ctrl-C, since the main thread may be where Python cannot raise it."""

    def counts(self) -> Message:
        """Return by group a list: the number of calls made so far, and the number of the first that is not over."""

    def failed(self) -> str:
        """Return why its last call failed, for the other ranks when this process ends; "" if none failed."""


@dataclass(frozen=True)
class End:
    """The end of a process that has ended or is about to end.

    Attributes:
        reason: Reason in its own words, "" if it sent none.
        known_at: Time when the end became known, by `time.monotonic`, in seconds.
        is_closed: Whether its connection is closed.
        counts: By group, the calls that it said it has made, and the first that was not over.
    """

    reason: str
    known_at: float
    is_closed: bool
    counts: Message = field(default_factory=dict)


class Presence:
    """The presence of this process among the processes of its job.

    Attributes:
        tuning: Limits.
        name: Name of this process, as other processes know it.
        ends: By name, the processes that have ended or are about to.
        failed_meeting: Why the last group could not be made, in the form of `Listener.failed`; "" if it could.
        of_rank: By job rank, the process that last had this rank.
    """

    def __init__(self, tuning: PresenceTuning = _TUNING) -> None:
        self.tuning = tuning
        self.name = secrets.token_hex(NAME_DIGITS // 2)
        self.ends: dict[str, End] = {}
        self.of_rank: dict[int, str] = {}
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._adding = threading.Lock()
        self._links: dict[str, Link] = {}
        self._expected: dict[str, tuple[float, Address]] = {}  # By name, the end of the wait for it, and its address.
        self._tries: dict[str, int] = {}  # By name, how often a connection closed before anything came.
        self._selector = selectors.DefaultSelector()
        self._strangers = Strangers(self.tuning, self._selector)
        self._bell, self._rope = socket.socketpair()  # They end a wait for messages.
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._rope.setblocking(False)
        self.failed_meeting = ""
        self._over = False
        self._deadlocks = Deadlocks(self.name, self._held, self.tell)
        self._thread = threading.Thread(target=self._work, name="synth presence", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Return the text that `connect` takes in another process; it holds a secret for members of the job only."""
        return str(self._strangers.address(self.name))

    def add(self, listener: Listener) -> None:
        """Add a listener, which gets all messages for as long as it lives."""
        with self._adding:
            self._listeners.add(listener)

    def connect(self, address: str) -> str:
        """Connect this process and that of an address, and return the name of the latter.

        The process with the greater name opens the connection; the other opens one later, if none comes. A failure to
        connect is no error: a process whose port is closed is recorded in `ends`, and one that a firewall hides stays
        unknown. The address of this process itself is allowed.

        Raises:
            ValueError: The text is not an address.
        """
        to = Address.parse(address)
        if to.name < self.name:
            self._reach(to)
        elif to.name > self.name and to.name not in self._links:
            self._expected.setdefault(to.name, (time.monotonic() + self.tuning.tick, to))
        return to.name

    def _reach(self, to: Address) -> None:
        """Open a connection to a process, or record in `ends` that it has ended, within `tuning.connect` seconds.

        It does nothing if the process is connected, has ended, or listens only on another host. A process that was
        never reached stays unknown after any error but a refusal, since a firewall may hide it.
        """
        name = to.name
        if name in self._links or name in self.ends or not to.is_reachable:
            return
        try:
            channel = socket.create_connection((to.ip, to.port), self.tuning.connect)
        except ConnectionRefusedError:  # No process listens there any more.
            self.ends.setdefault(name, End("", time.monotonic(), True))
        except OSError:
            if name in self._tries:  # The process was reached before.
                self.ends.setdefault(name, End("", time.monotonic(), True))
            # Otherwise a firewall may hide it, and nothing is known of it.
        else:
            link = self._keep(channel, name, to)
            link.send_bytes(hello(to.secret, self.name))
            self._selector.register(channel, selectors.EVENT_READ, link)
            with suppress(OSError):  # If the buffer is full, the bell rings already.
                self._rope.send(_RING)

    def is_open(self, name: str) -> bool:
        """Return True if there is an open connection to this process."""
        return name in self._links

    def tell(self, names: Iterable[str], message: Message) -> None:
        """Send a message to those of these processes that are connected, without waiting and without errors."""
        for name in names:
            link = self._links.get(name)
            if link is not None:
                link.send(message)

    def say_end(self, why: str) -> None:
        """Send all connected processes the reason why this process is about to end.

        They read `why` after "rank N", with the cause of a failed call if it has none. They also get, for each group,
        the number of calls made and that of the first one still open. The connections stay open.
        """
        counts: Message = {}
        for listener in self._listening():
            counts |= listener.counts()
            why += f" ({listener.failed()})" if listener.failed() and ": " not in why else ""
        why += f" ({self.failed_meeting})" if self.failed_meeting and ": " not in why else ""
        self.tell(list(self._links), {"end": why, "counts": counts})

    def _listening(self) -> list[Listener]:
        """Return the listeners that live."""
        with self._adding:
            return list(self._listeners)

    def hear_signals(self) -> None:
        """Register for Ctrl-C unless other code has done so, or this is not the main thread.

        The presence's thread then notices it at once, even if the main thread waits outside Python.
        """
        if threading.current_thread() is threading.main_thread():
            earlier_fd = signal.set_wakeup_fd(self._rope.fileno(), warn_on_full_buffer=False)
            if earlier_fd != -1:
                signal.set_wakeup_fd(earlier_fd)

    def close(self) -> None:
        """Close all connections and the port, and stop the thread; other processes read what was sent before.

        What the sockets have not taken yet is lost.
        """
        self._over = True
        with suppress(OSError):
            self._rope.send(_RING)
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)
        for link in list(self._links.values()):
            with suppress(OSError):  # Messages arrive before the end of the connection does.
                link.channel.shutdown(socket.SHUT_WR)
        self.drop()

    def drop(self) -> None:
        """Close this process's copies of the connections and the port without a message, as a forked process must.

        It also stops to hear signals, unless other code hears them now.
        """
        with suppress(ValueError):  # Not the main thread, or the earlier descriptor is closed.
            wakeup_fd = signal.set_wakeup_fd(-1)
            if wakeup_fd != self._rope.fileno():
                signal.set_wakeup_fd(wakeup_fd)
        links = list(self._links.values())
        with suppress(RuntimeError):  # If the thread still runs, it may have changed the map meanwhile.
            links += [key.data for key in self._selector.get_map().values() if key.data is not None]
        for channel in (*(link.channel for link in links), self._bell, self._rope):
            channel.close()
        self._links.clear()
        self._strangers.close()

    def _keep(self, channel: socket.socket, name: str, address: Address | None = None) -> Link:
        """Set the options of a connection to a member, store it by the member's name, and return it.

        `address` is None if the member opened the connection.
        """
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
        link = self._links[name] = Link(channel, self.tuning.unread, name, address)
        return link

    def _work(self) -> None:
        """Read messages and check waits until the presence is closed."""
        last_look = 0.0
        while not self._over:
            try:
                has_heard = self._serve(max(0.0, last_look + self.tuning.tick - time.monotonic()))
                if has_heard or time.monotonic() >= last_look + self.tuning.tick:
                    last_look = time.monotonic()
                    self._look()
            except Exception:  # The thread must not end, or other processes would take this one for a stopped one.
                if not self._over:
                    log.exception("synth: the check of the waits failed; it is repeated")
                    time.sleep(self.tuning.tick)

    def _serve(self, seconds: float) -> bool:
        """Wait up to some seconds for data and handle it; return True if any came from a member or from this process.

        It also lets strangers in, closes those whose time is over, and reports Ctrl-C to the listeners unless the
        program has its own handler.
        """
        has_heard = False
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._strangers.server:
                self._strangers.accept()
            elif key.fileobj is self._bell:
                has_heard = True
                interrupted = signal.SIGINT in self._bell.recv(1 << 10)
                if interrupted and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    for listener in self._listening():
                        listener.interrupt()
            elif key.data in self._strangers:
                has_heard |= self._admit(key.data)
            else:
                has_heard = True
                self._read(key.data)
        self._strangers.dismiss()
        return has_heard

    def _look(self) -> None:
        """Send what is unsent, open connections that did not come, and check all waits."""
        for link in list(self._links.values()):
            if link.unsent:
                link.send_bytes(b"")
        self._reach_expected()
        for listener in self._listening():
            listener.look()
        self._deadlocks.look(self._listening())

    def _held(self) -> tuple[Held | None, float]:
        """Return the state in which this process is held, None if it is not, and since when by `time.monotonic`."""
        return own_state(self._listening(), own_threads() | {self._thread.ident})

    def _reach_expected(self) -> None:
        """Open connections to processes whose own connections did not come in time."""
        for name, (due, address) in list(self._expected.items()):
            if name in self._links or time.monotonic() > due:
                del self._expected[name]
                self._reach(address)

    # ---- members of the job

    def _admit(self, stranger: Link) -> bool:
        """Read a stranger's frame; return True if it is a member of the job, which is then connected.

        Otherwise its connection is closed, and so is one from this process itself.
        """
        name = self._strangers.identify(stranger)
        if name is None or name == self.name:
            stranger.channel.close()
            return False
        member = self._keep(stranger.channel, name)
        self._selector.register(stranger.channel, selectors.EVENT_READ, member)
        member.send({})  # It tells the member that it was accepted.
        return True

    def _read(self, link: Link) -> None:
        """Read from a member and handle complete lines; if the connection is closed, forget it and record the end.

        A connection that this process opened is opened anew instead, at most `tuning.tries` times in all, if nothing
        ever came over it. A line that is too long is invalid data.
        """
        data = link.receive()
        if data:
            self._tries.pop(link.name, None)
            lines, is_too_long = link.split(data)
            for line in lines:
                self._hear(link, line)
            if is_too_long:
                self._distrust(link, f"a line of more than {link.most_bytes} bytes")
            return
        self._selector.unregister(link.channel)
        link.channel.close()
        if self._links.get(link.name) is not link:
            return
        del self._links[link.name]
        tries = self._tries[link.name] = self._tries.get(link.name, 0) + 1
        if link.address is not None and not link.has_spoken and tries < self.tuning.tries:
            # Either it lives and took this process for a stranger that was too slow, or it refuses the next connection.
            self._expected[link.name] = time.monotonic() + self.tuning.tick * (tries - 1), link.address
            return
        earlier_end = self.ends.get(link.name, End("", 0.0, True))
        self.ends[link.name] = replace(earlier_end, known_at=time.monotonic(), is_closed=True)

    def _hear(self, link: Link, line: bytes) -> None:
        """Read a message of a member and handle it; distrust the member for an invalid one, and log other errors."""
        try:
            message = read_message(line)
        except ValueError as error:
            self._distrust(link, f"a message that {error}")
            return
        try:
            self._take(link, message)
        except Exception:  # A listener failed, but the thread must not end.
            log.exception("synth: a message could not be handled")

    def _distrust(self, link: Link, description: str) -> None:
        """Record a member that sends invalid data as the cause of later failures, and log it; its process lives.

        It does nothing if the member's end is known already.
        """
        if link.name not in self.ends:
            self.ends[link.name] = End(_BROKEN, time.monotonic(), is_closed=False)
            log.error("synth: process %s sent %s; all ranks must run the same version of synth", link.name, description)

    def _take(self, link: Link, message: Message) -> None:
        """Handle a message of a member: record its end, answer its question, or give it to the listeners.

        Messages about deadlocks go to their search. An empty message has no effect.
        """
        if "end" in message:
            end = End(message["end"], time.monotonic(), False, message["counts"])
            self.ends.setdefault(link.name, end)
        elif "ask" in message:
            answer: Message = {"answer": message["ask"], "group": message["group"], "waits": []}
            for listener in self._listening():
                part = listener.state(message)
                answer |= part | {"waits": (answer["waits"] + part["waits"])[:_WAITS]}
            link.send(answer)
        elif "held?" in message or "held" in message:
            self._deadlocks.hear(link.name, message)
        elif "stuck" in message:
            self._deadlocks.give_up(message, self._listening())
        elif message:
            for listener in self._listening():
                listener.hear(link.name, message)
