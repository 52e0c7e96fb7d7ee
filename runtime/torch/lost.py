"""Which rank was lost when a call fails: the ranks that are left find it out by reports in the group's store.

A rank whose call fails reports what it called and whose connection it found closed, and reads the others' reports.
Ranks that still wait for one that gave up are woken: a thread looks in the store while a wait is long, and ends it. So
all that live have reported soon, and who has not is the one that ended or hangs; a rank that merely gave up because of
it is not taken for it.
"""

from __future__ import annotations

import atexit
import json
import re
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from runtime.torch.compare import different_calls
from runtime.torch.messages import Messages
from topologies.errors import MessageLost


@dataclass(frozen=True)
class Tuning:
    """Times in seconds."""

    long: float = 0.5  # a wait after which the store is asked whether it is in vain
    every: float = 0.25  # between two looks at all waits
    reports: float = 3.0  # for the others' reports, several times as long as they need to be woken
    closed: float = 1.0  # for the report of a rank whose connection is closed: it can have given up a moment ago
    store: float = 1.0  # for a store that gives no answer


_TUNING = Tuning()
OWN_TAG = (1 << 30) - 1  # above callers', below schedules': nobody waits for what is sent with it
_FLAG = "failed"
_BY_US = "Application timeout caused pair closure"  # what Gloo says of waits that `look` has ended


def error_text(error: BaseException) -> str:
    """The message of the wrapped back end's error, without the place in its source and its advice."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^\[[^]]*:\d+\] ", "", text.splitlines()[0]).split(". This is typically")[0]


class _Wait:
    """Key of a wait within `FailureWatch.guard`."""


class FailureWatch:
    """One rank's watch over its waits for the others of a group; me: its place there, ranks: the whole job's numbers.

    messages: what is waited for. server: the rank whose end ends the store; None where there is none such, or it cannot
    be known.
    """

    def __init__(
        self,
        store: Any,
        me: int,
        ranks: Sequence[int],
        messages: Messages,
        server: int | None = None,
        tuning: Tuning = _TUNING,
    ) -> None:
        self.store, self.me, self.ranks, self.tuning = store, me, tuple(ranks), tuning
        self.messages, self.server = messages, server
        self._waits: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._change = threading.Lock()
        self._asking = threading.Lock()
        self._cause: str | None = None
        self._woken = False
        _groups.add(self)

    def begin(self, key: Any) -> None:
        """A wait begins; it is forgotten with its key."""
        with self._change:
            self._waits[key] = time.monotonic()
        _watcher.start()

    def end(self, key: Any) -> None:
        """It is over."""
        with self._change:
            self._waits.pop(key, None)

    @contextmanager
    def guard(self, call: str, number: int | None = None, peers: Collection[int] | None = None) -> Iterator[None]:
        """A context for what needs the other ranks. Raises RuntimeError, naming who was lost, where it fails.

        call: what is called. number: which call of the group it is, None where ranks do not count it. peers: places in
        the group of those that it needs; None: all.
        """
        wait = _Wait()
        self.begin(wait)
        try:
            yield
        except RuntimeError as error:
            gone = [] if self._woken else [peer for peer in range(len(self.ranks)) if self._closed(peer)]
            if not gone and not self._woken:  # all can be reached: what failed is the call itself
                raise
            # when it was too late for one message, Gloo has closed all connections
            late = re.search("timed out|timeout", str(error), re.IGNORECASE)
            missed = [error.peer] if isinstance(error, MessageLost) and not self._woken else []
            text = error_text(error)
            text = text.replace(_BY_US, "others had given up") if self._woken else text
            text = text if text.startswith(call) else f"{call}: {text}"
            report = {"call": call, "number": number, "gone": [] if late else gone, "missed": missed}
            raise RuntimeError(f"{text}{self._find_cause(report, peers)}") from None
        finally:
            self.end(wait)

    def _find_cause(self, report: dict[str, Any], peers: Collection[int] | None) -> str:
        with self._asking:
            if self._cause is None:
                reports = _Reports(self, report, peers)
                asking = threading.Thread(target=reports.collect, daemon=True)
                asking.start()
                # a store whose rank hangs gives no answer
                asking.join(self.tuning.reports + self.tuning.store)
                self._cause = reports.cause()
            return self._cause

    def _closed(self, peer: int) -> bool:
        if peer == self.me:
            return False
        try:
            self.messages.send([torch.zeros(1)], peer, OWN_TAG)
        except RuntimeError:
            return True
        return False

    def look(self) -> None:
        """Where a wait is long and another rank has given up, end all waits of this group."""
        with self._change:
            for key in [key for key in self._waits if getattr(key, "is_completed", bool)()]:
                del self._waits[key]
            since = min(self._waits.values(), default=time.monotonic())
        if self._woken or time.monotonic() - since < self.tuning.long:
            return
        try:
            if not self.store.check([_FLAG]):
                return
        except Exception:  # gone, and with it the rank that served it
            if self.server not in self.ranks:
                return  # that need not stop this group
        self._woken = True
        for peer in range(len(self.ranks)):
            if peer != self.me:
                with suppress(RuntimeError):  # Gloo closes all of a group's connections when a wait takes too long
                    self.messages.recv([torch.zeros(1)], peer, OWN_TAG).wait(timedelta(milliseconds=1))


class _Reports:
    """What ranks report of a failure, and what follows from it."""

    def __init__(self, watch: FailureWatch, mine: dict[str, Any], peers: Collection[int] | None) -> None:
        self._store, self.ranks, self.me, self._tuning = watch.store, watch.ranks, watch.me, watch.tuning
        self._server = watch.server
        others = range(len(self.ranks)) if peers is None else peers
        self._needed = {peer for peer in others if peer != self.me}
        self._reports: dict[int, dict[str, Any]] = {self.me: mine}
        self._store_gone = True  # until it has answered

    def collect(self) -> None:
        """Store ours and read the others'; never raises."""
        with suppress(Exception):
            self._store.set(f"{_FLAG}/{self.me}", json.dumps(self._reports[self.me]))
            self._store.set(_FLAG, "1")
            start = time.monotonic()
            while not self._clear():
                patience = self._tuning.closed if self._known() else self._tuning.reports
                if time.monotonic() >= start + patience:
                    break
                for other in set(range(len(self.ranks))) - set(self._reports):
                    if self._store.check([f"{_FLAG}/{other}"]):
                        self._reports[other] = json.loads(self._store.get(f"{_FLAG}/{other}"))
                self._store_gone = False
                time.sleep(0.05)
            return
        self._store_gone = True
        time.sleep(self._tuning.closed)  # whoever ends now would be taken for lost by those that notice a little later

    def _named(self, key: str) -> set[int]:
        return {other for report in list(self._reports.values()) for other in report[key]}

    def _silent(self) -> list[int]:
        return sorted((self._needed | self._named("gone") | self._named("missed")) - set(self._reports))

    def _clear(self) -> bool:
        """Whether all that can be to blame have reported."""
        return not self._silent() and bool(self._named("gone") | self._named("missed"))

    def _known(self) -> bool:
        """Whether nobody can be to blame but those whose connections are closed."""
        return bool(self._silent()) and self._named("gone").issuperset(self._silent())

    def cause(self) -> str:
        """To be put after the error: who was lost, or who calls something else; or ""."""
        reports = {self.ranks[place]: report for place, report in self._reports.items()}
        differs = _difference(reports)
        if differs:
            return f"; {differs}"
        silent, why = self._silent(), "no word of it"
        gone = sorted(self._named("gone").intersection(silent))
        server = self._server
        if self._store_gone and server in self.ranks and server not in reports:
            lost, why = sorted({*gone, self.ranks.index(server)}), f"the store of rank {server} is gone"
        elif gone:
            lost, why = gone, "its connection is closed" if len(gone) == 1 else "their connections are closed"
        else:
            lost = sorted(self._named("missed").intersection(silent)) or silent
        if lost:
            return f"; lost: rank {', '.join(str(self.ranks[place]) for place in lost)} ({why})"
        if self.me in self._named("gone") | self._named("missed"):
            return "; the others gave up waiting for this rank"
        return ""


def _difference(reports: dict[int, dict[str, Any]]) -> str:
    """Two ranks whose calls of one number differ; "" where there are none."""
    first: dict[int, tuple[int, str]] = {}
    for rank in sorted(reports):
        number, call = reports[rank]["number"], reports[rank]["call"]
        if number is None:
            continue
        other, others = first.setdefault(number, (rank, call))
        if call != others:
            return different_calls(rank, call, other, others)
    return ""


class _Watcher:
    """The thread that looks at all waits; there is one from the first wait on."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._over = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._look, name="synth failure watch", daemon=True)
                    self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_TUNING.store)

    def _look(self) -> None:
        while not self._over.wait(_TUNING.every):
            for watch in list(_groups):
                watch.look()


_groups: weakref.WeakSet[FailureWatch] = weakref.WeakSet()
_watcher = _Watcher()
atexit.register(_watcher.stop)
