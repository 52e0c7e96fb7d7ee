"""Start solver processes ahead, send calls to them over a pipe, and kill them when they are not needed any more.

Solvers ignore their own time-outs at times, crash, and two of them (HiGHS and OR-tools) cannot share a process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import Any

from synth.model.deadline import check_deadline, now, remaining_s
from synth.solvers import SOLVERS, is_available
from synth.solvers.result import Result

_MOST_IDLE = 2  # children of a solver


@dataclass(eq=False)
class Ticket:
    """A call of a solver, and its reply once `Workers.first` has handed it out.

    Attributes:
        reply: The solver's result; None before it, or after a failure.
        failure: Why the call failed; empty if it did not.
        has_ended: Whether the call has ended.
    """

    reply: Result | None = None
    failure: str = ""
    has_ended: bool = False


class _Child:
    """A child process of one solver, with a pipe to it.

    Attributes:
        solver: The solver's name in `SOLVERS`.
        pipe: This end of the pipe: tuples of arguments go out, (ok, result or text of the error) come in.
        process: The process.
    """

    def __init__(self, solver: str) -> None:
        parent_end, child_end = socket.socketpair()
        self.solver = solver
        self.pipe = Connection(parent_end.detach())
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "synth.solvers.worker", str(child_end.fileno()), solver],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(child_end.fileno(),),
            start_new_session=True,  # Ctrl-C must reach only the parent, which keeps the best answer so far.
            env=environment,
        )
        child_end.close()

    def kill(self) -> None:
        """Stop the process and close its pipes."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()
        if self.process.stdin:
            self.process.stdin.close()


class Workers:
    """A pool of child processes, with at most two idle ones a solver; use it as a context manager.

    Two are enough because bounds run next to engines. Leaving the context kills all children. The constructor starts
    one child for each of the solvers `warm` ahead (names of `SOLVERS`).
    """

    def __init__(self, warm: Sequence[str] = ()) -> None:
        self._idle: dict[str, list[_Child]] = {solver: [_Child(solver)] for solver in warm}
        self._busy: dict[Ticket, _Child] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*chain.from_iterable(self._idle.values()), *self._busy.values()]:
            child.kill()
        self._idle, self._busy = {}, {}

    def ask(self, solver: str, *arguments: Any) -> Ticket:
        """Start `solve(*arguments)` of a row of `SOLVERS` in a child process, and return its ticket at once.

        Where the solver's library is not installed, or the child cannot be reached, the ticket has ended with a
        failure.
        """
        ticket = Ticket()
        if not is_available(solver):
            self._fail(ticket, f"{SOLVERS[solver].library} is not installed")
            return ticket
        idle = self._idle.get(solver)
        child = idle.pop() if idle else _Child(solver)
        self._busy[ticket] = child
        try:
            child.pipe.send(arguments)
        except OSError as error:
            self._fail(ticket, str(error))
        return ticket

    def first(self, tickets: Sequence[Ticket], until: float) -> Ticket | None:
        """Wait for the first of the tickets that has ended, with a reply or a failure, and return it.

        Args:
            tickets: Tickets of `ask`; those that ended before count too, the earliest in this order first.
            until: A reading of `now` at which the wait ends.

        Returns:
            The ticket; None when `until` has passed, or when no ticket is left that could end (all were dropped).

        Raises:
            TimeUp: The time of the work around ends before.
        """
        while True:
            check_deadline()
            for ticket in tickets:
                if ticket.has_ended:
                    return ticket
            pipes = {self._busy[t].pipe: t for t in tickets if t in self._busy}
            left_s = until - now()
            if not pipes or left_s <= 0:
                return None
            for pipe in wait(list(pipes), timeout=min(left_s, remaining_s())):
                self._take(pipes[pipe])  # type: ignore[index]

    def answer(self, until: float, solver: str, *arguments: Any) -> Result | None:
        """Run a call of `ask` and return its result; None when `now` passed `until` or the call failed.

        The child is killed if it is still busy at `until`.

        Raises:
            TimeUp: The time of the work around ends before; the child then works on.
        """
        ticket = self.ask(solver, *arguments)
        finished = self.first([ticket], until)
        if finished is None or finished.failure:
            self.drop(ticket)
            return None
        return finished.reply

    def drop(self, ticket: Ticket) -> None:
        """Stop the work on a ticket: kill its child if it is still busy with it, and the ticket then never ends.

        A ticket that has ended stays as it is.
        """
        child = self._busy.pop(ticket, None)
        if child is not None:
            child.kill()

    def _take(self, ticket: Ticket) -> None:
        """Read the reply of a busy ticket's child, which ends the ticket, and keep the child as idle or kill it."""
        child = self._busy[ticket]
        try:
            ok, reply = child.pipe.recv()
        except (EOFError, OSError):
            self._fail(ticket, "the solver process died")
            return
        del self._busy[ticket]
        ticket.has_ended, ticket.reply, ticket.failure = True, reply if ok else None, "" if ok else reply
        idle = self._idle.setdefault(child.solver, [])
        if len(idle) < _MOST_IDLE:
            idle.append(child)
        else:
            child.kill()

    def _fail(self, ticket: Ticket, reason: str) -> None:
        """Mark a ticket as failed and stop the work on it."""
        ticket.has_ended, ticket.failure = True, reason
        self.drop(ticket)
