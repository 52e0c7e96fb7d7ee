"""Solver processes: started ahead, asked over a pipe, killed when they are no longer wanted.

Solvers ignore their own time-outs at times, crash, and two of them (HiGHS and OR-tools) cannot share a process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any


@dataclass(eq=False)
class Ticket:
    """A question asked of an engine, and the reply once `Workers.first` has handed it out."""

    engine: str
    reply: Any = None
    failure: str = ""
    done: bool = False


class _Child:
    def __init__(self, engine: str) -> None:
        ours, theirs = socket.socketpair()
        self.engine = engine
        self.pipe = Connection(ours.detach())
        self.ticket: Ticket | None = None
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "synth.solvers.worker", str(theirs.fileno()), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for the parent, which keeps the best so far
            env=environment,
        )
        theirs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()
        if self.process.stdin:
            self.process.stdin.close()


class Workers:
    """A pool of at most one idle child an engine; use as a context manager."""

    def __init__(self, warm: Sequence[str] = ()) -> None:
        self._idle: dict[str, _Child] = {engine: _Child(engine) for engine in warm}
        self._busy: dict[Ticket, _Child] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self._idle.values(), *self._busy.values()]:
            child.kill()
        self._idle, self._busy = {}, {}

    def ask(self, engine: str, function: str, *arguments: Any) -> Ticket:
        """Start `function(*arguments)` of module `synth.solvers.<engine>` in a child process."""
        child = self._idle.pop(engine, None) or _Child(engine)
        ticket = Ticket(engine)
        child.ticket = ticket
        self._busy[ticket] = child
        try:
            child.pipe.send((function, arguments))
        except OSError as error:
            self._fail(ticket, str(error))
        return ticket

    def first(self, tickets: Sequence[Ticket], until: float) -> Ticket | None:
        """The first of the tickets that is done, or None when `time.monotonic()` passes `until`."""
        while True:
            for ticket in tickets:
                if ticket.done:
                    return ticket
            pipes = {self._busy[t].pipe: t for t in tickets if t in self._busy}
            left = until - time.monotonic()
            if not pipes or left <= 0:
                return None
            for pipe in wait(list(pipes), timeout=left):
                self._take(pipes[pipe])  # type: ignore[index]

    def answer(self, until: float, engine: str, function: str, *arguments: Any) -> Any | None:
        """Ask, wait, and hand out the reply; None when the time passed or the child failed."""
        ticket = self.ask(engine, function, *arguments)
        done = self.first([ticket], until)
        if done is None or done.failure:
            self.drop(ticket)
            return None
        return done.reply

    def drop(self, ticket: Ticket) -> None:
        """Stop working on a ticket; its child is killed if it is still at it."""
        child = self._busy.pop(ticket, None)
        if child is not None:
            child.kill()

    def _take(self, ticket: Ticket) -> None:
        child = self._busy[ticket]
        try:
            ok, reply = child.pipe.recv()
        except (EOFError, OSError):
            self._fail(ticket, "the solver process died")
            return
        del self._busy[ticket]
        ticket.done = True
        if ok:
            ticket.reply = reply
        else:
            ticket.failure = reply
        if child.engine in self._idle:
            child.kill()
        else:
            self._idle[child.engine] = child

    def _fail(self, ticket: Ticket, why: str) -> None:
        ticket.done, ticket.failure = True, why
        child = self._busy.pop(ticket, None)
        if child is not None:
            child.kill()
