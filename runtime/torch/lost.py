"""Which rank was lost when a call fails: found out by those that are left, with words in the group's store.

A rank whose call fails writes down what it called and whose connection it found closed, and reads what the others
write. Ranks that still wait for one that gave up are woken: a thread looks in the store while a wait is long, and ends
it. So all that live have their say soon, and who has none is the one that ended or hangs; a rank that merely gave up
because of it is not taken for it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from topologies.errors import MessageLost

_LONG_S = 0.5  # a wait of which the store is asked whether it is in vain
_EVERY_S = 0.25
_PATIENCE_S = 3.0  # for the others' words: several times as long as they need to be woken
_SURE_S = 1.0  # for the word of a rank whose connection is closed: it can have given up a moment ago
_LATE_S = 1.0  # for a store that gives no answer
OWN_TAG = (1 << 30) - 1  # above callers', below schedules': nobody waits for what is sent with it
_FLAG = "failed"
_BY_US = "Application timeout caused pair closure"  # what Gloo says of waits that `look` has ended


def plain(error: BaseException) -> str:
    """What an error of the wrapped back end says, without the place in its source and its advice."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^\[[^]]*:\d+\] ", "", text.splitlines()[0]).split(". This is typically")[0]


class _Wait:
    """Something within `Lookout.over`."""


class Lookout:
    """One rank's eye on the others of a group.

    Args:
        store: of the group. me: this rank's place in the group. ranks: the members, as the whole job numbers them.

    Attributes:
        inner: the wrapped back end whose messages are waited for, once there is one.
    """

    def __init__(self, store: Any, me: int, ranks: Sequence[int]) -> None:
        self.store, self._me, self._ranks = store, me, tuple(ranks)
        self.inner: Any = None
        self._waits: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._change = threading.Lock()
        self._asking = threading.Lock()
        self._verdict: str | None = None
        self._woken = False
        _groups.add(self)

    def begin(self, key: Any) -> None:
        """A wait begins; it is forgotten with its key."""
        with self._change:
            self._waits[key] = time.monotonic()
        _watch.start()

    def end(self, key: Any) -> None:
        """It is over."""
        with self._change:
            self._waits.pop(key, None)

    @contextmanager
    def over(
        self, told: str, number: int | None = None, peers: Collection[int] | None = None
    ) -> Iterator[None]:
        """What is done within needs the others. Raises RuntimeError, naming who was lost, where it fails.

        told: what is called. number: which call of the group it is, None where ranks do not count it. peers: places in
        the group of those that it needs; None: all.
        """
        wait = _Wait()
        self.begin(wait)
        try:
            yield
        except RuntimeError as error:
            gone = [] if self._woken else [peer for peer in range(len(self._ranks)) if self._closed(peer)]
            if not gone and not self._woken:  # all can be reached: what failed is the call itself
                raise
            # when it was too late for one message, Gloo has closed all connections
            late = re.search("timed out|timeout", str(error), re.IGNORECASE)
            missed = [error.peer] if isinstance(error, MessageLost) and not self._woken else []
            said = plain(error).replace(_BY_US, "others had given up") if self._woken else plain(error)
            said = said if said.startswith(told) else f"{told}: {said}"
            word = {"told": told, "number": number, "gone": [] if late else gone, "missed": missed}
            raise RuntimeError(f"{said}{self._verdict_of(word, peers)}") from None
        finally:
            self.end(wait)

    def _verdict_of(self, word: dict[str, Any], peers: Collection[int] | None) -> str:
        with self._asking:
            if self._verdict is None:
                words = _Words(self, word, peers)
                asking = threading.Thread(target=words.ask, daemon=True)
                asking.start()
                asking.join(_PATIENCE_S + _LATE_S)  # a store whose keeper hangs gives no answer
                self._verdict = words.verdict()
            return self._verdict

    def _closed(self, peer: int) -> bool:
        if peer == self._me:
            return False
        try:
            self.inner.send([torch.zeros(1)], peer, OWN_TAG)
        except RuntimeError:
            return True
        return False

    def look(self) -> None:
        """Where a wait is long and another rank has given up, end all waits of this group."""
        with self._change:
            for key in [key for key in self._waits if getattr(key, "is_completed", bool)()]:
                del self._waits[key]
            since = min(self._waits.values(), default=time.monotonic())
        if self._woken or time.monotonic() - since < _LONG_S:
            return
        try:
            if not self.store.check([_FLAG]):
                return
        except Exception:  # gone, and with it the rank that kept it
            if keeper_of(self.store) not in self._ranks:
                return  # that need not stop this group
        self._woken = True
        for peer in range(len(self._ranks)):
            if peer != self._me:
                with suppress(
                    RuntimeError
                ):  # Gloo closes all of a group's connections when a wait takes too long
                    self.inner.recv([torch.zeros(1)], peer, OWN_TAG).wait(timedelta(milliseconds=1))


class _Words:
    """What ranks say of a failure, and what follows from it."""

    def __init__(self, lookout: Lookout, mine: dict[str, Any], peers: Collection[int] | None) -> None:
        self._store, self._ranks, self._me = lookout.store, lookout._ranks, lookout._me
        others = range(len(self._ranks)) if peers is None else peers
        self._needed = {peer for peer in others if peer != self._me}
        self._said: dict[int, dict[str, Any]] = {self._me: mine}
        self._store_gone = True  # until it has answered

    def ask(self) -> None:
        """Say ours and listen; never raises."""
        with suppress(Exception):
            self._store.set(f"{_FLAG}/{self._me}", json.dumps(self._said[self._me]))
            self._store.set(_FLAG, "1")
            start = time.monotonic()
            while (
                time.monotonic() < start + (_SURE_S if self._known() else _PATIENCE_S) and not self._clear()
            ):
                for other in set(range(len(self._ranks))) - set(self._said):
                    if self._store.check([f"{_FLAG}/{other}"]):
                        self._said[other] = json.loads(self._store.get(f"{_FLAG}/{other}"))
                self._store_gone = False
                time.sleep(0.05)
            return
        self._store_gone = True
        time.sleep(_SURE_S)  # whoever ends now would be taken for lost by those that notice a little later

    def _told(self, what: str) -> set[int]:
        return {other for said in list(self._said.values()) for other in said[what]}

    def _silent(self) -> list[int]:
        return sorted((self._needed | self._told("gone") | self._told("missed")) - set(self._said))

    def _clear(self) -> bool:
        """Whether all have spoken who can be to blame."""
        return not self._silent() and bool(self._told("gone") | self._told("missed"))

    def _known(self) -> bool:
        """Whether nobody can be to blame but those whose connections are closed."""
        return bool(self._silent()) and self._told("gone").issuperset(self._silent())

    def verdict(self) -> str:
        """To be put after the error: who was lost, or who calls something else; or ""."""
        said = {self._ranks[place]: word for place, word in self._said.items()}
        differs = _difference(said)
        if differs:
            return f"; {differs}"
        silent, why = self._silent(), "no word of it"
        gone = sorted(self._told("gone").intersection(silent))
        keeper = keeper_of(self._store)
        if self._store_gone and keeper in self._ranks and keeper not in said:
            lost, why = sorted({*gone, self._ranks.index(keeper)}), f"the store of rank {keeper} is gone"
        elif gone:
            lost, why = gone, "its connection is closed" if len(gone) == 1 else "their connections are closed"
        else:
            lost = sorted(self._told("missed").intersection(silent)) or silent
        if lost:
            return f"; lost: rank {', '.join(str(self._ranks[place]) for place in lost)} ({why})"
        if self._me in self._told("gone") | self._told("missed"):
            return "; the others gave up waiting for this rank"
        return ""


def _difference(said: dict[int, dict[str, Any]]) -> str:
    """Two ranks whose calls of one number differ; "" where all are alike."""
    first: dict[int, tuple[int, str]] = {}
    for rank in sorted(said):
        number, told = said[rank]["number"], said[rank]["told"]
        if number is None:
            continue
        other, call = first.setdefault(number, (rank, told))
        if call != told:
            return f"rank {rank} calls {told}, rank {other} calls {call}; it must be the same on all ranks"
    return ""


def keeper_of(store: Any) -> int | None:
    """The rank whose end takes the store along; None where there is none such, or it cannot be known."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    launched = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return 0 if isinstance(store, dist.TCPStore) and not launched else None


class _Watch:
    """The thread that looks; there is one from the first wait on."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._over = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._look, name="synth lookout", daemon=True)
                    self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LATE_S)

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            for lookout in list(_groups):
                lookout.look()


_groups: weakref.WeakSet[Lookout] = weakref.WeakSet()
_watch = _Watch()
atexit.register(_watch.stop)
