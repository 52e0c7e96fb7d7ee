"""Problems solved by processes of this machine, which need no server and die alone.

A process that dies (killed, out of memory) costs its problem's time: the problem goes to another one, once. None of
them outlives who started it, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

from synth.library.task import Task, solve
from topologies.errors import InputError

MOST_DEATHS = 2  # of processes, of which a problem is given up
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Done:
    """A task and its packed answer, or why it has none."""

    task: Task
    answer: bytes | None
    why: str = ""


class Pool(Protocol):
    """Who solves problems; used as a context, at whose end all that still run are stopped.

    Attributes:
        processes: How many problems are solved at once.
        is_own: Whether only this user's processes on this machine solve them, so that answers need no check.
    """

    processes: int
    is_own: bool

    def submit(self, task: Task) -> None:
        """Have a task solved after those before it."""

    def results(self) -> Iterator[Done]:
        """What is done, as it comes, until nothing is left; more may be submitted meanwhile."""

    def __enter__(self) -> Pool: ...

    def __exit__(self, *_: object) -> None: ...


class _Worker:
    def __init__(self, work: Callable[[Task], bytes]) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process: SpawnProcess = _CONTEXT.Process(target=_serve, args=(theirs, work), daemon=False)
        self.process.start()
        theirs.close()
        self.task: Task | None = None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Local:
    """So many processes of this machine. work: what they do of a task, found by its name there."""

    is_own = True

    def __init__(self, processes: int, work: Callable[[Task], bytes] = solve) -> None:
        self.processes, self.work = processes, work
        self._waiting: deque[Task] = deque()
        self._workers: list[_Worker] = []
        self._deaths: dict[str, int] = {}

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def submit(self, task: Task) -> None:
        """As `Pool` has it."""
        self._waiting.append(task)

    def results(self) -> Iterator[Done]:
        """As `Pool` has it."""
        while True:
            self._hand_out()
            busy: dict[object, _Worker] = {worker.pipe: worker for worker in self._workers if worker.task is not None}
            if not busy:
                return
            for pipe in wait(list(busy)):  # type: ignore[arg-type]
                done = self._take(busy[pipe])
                if done is not None:
                    yield done

    def _hand_out(self) -> None:
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.task is None), None)
            if idle is None:
                if len(self._workers) == self.processes:
                    return
                self._workers.append(idle := _Worker(self.work))
            idle.task = self._waiting.popleft()
            try:
                idle.pipe.send(idle.task)
            except OSError:  # it died before; said by its pipe's end
                continue

    def _take(self, worker: _Worker) -> Done | None:
        task = worker.task
        assert task is not None
        try:
            answer, why = worker.pipe.recv()
        except (EOFError, OSError):
            worker.end()
            self._workers.remove(worker)
            self._deaths[task.key] = self._deaths.get(task.key, 0) + 1
            if self._deaths[task.key] < MOST_DEATHS:
                self._waiting.appendleft(task)
                return None
            return Done(task, None, f"{MOST_DEATHS} processes died of it (the last: exit {worker.process.exitcode})")
        worker.task = None
        return Done(task, answer, why)


def attempt(work: Callable[[Task], bytes], task: Task) -> tuple[bytes | None, str]:
    """The packed answer, or in one line why there is none."""
    try:
        return work(task), ""
    except InputError as error:
        return None, str(error)
    except MemoryError:
        return None, "not enough memory"
    except Exception as error:  # a defect of ours: said, and all others go on
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _serve(pipe: Connection, work: Callable[[Task], bytes]) -> None:
    """Of a process: tasks in, answers out, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who hands out the tasks
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(attempt(work, task))
        except OSError:
            return


def _leave_with_parent() -> None:
    # one that is busy does not read its pipe
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
