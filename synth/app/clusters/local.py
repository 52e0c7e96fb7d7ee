"""Problems solved by processes of this machine, which need no server and die separately.

A process that dies (killed, out of memory) costs its problem's time: another process solves the problem, once. No
process outlives the one that started it, however that ends.
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

from synth.app.clusters.task import Task, solve
from topologies.errors import InputError

MOST_DEATHS = 2  # processes that may die of a problem; then it is given up
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Done:
    """The outcome of a task.

    Attributes:
        task: The task.
        answer: The packed answer; None if there is none.
        why: Why there is no answer.
    """

    task: Task
    answer: bytes | None
    why: str = ""


class WorkerPool(Protocol):
    """Processes that solve problems; a context manager, which stops all running processes at its end.

    Attributes:
        processes: Number of problems that are solved at the same time.
        is_own: Whether only this user's processes on this machine solve problems, so that answers need no check.
    """

    processes: int
    is_own: bool

    def submit(self, task: Task) -> None:
        """Add a task after the tasks that were submitted before."""

    def results(self) -> Iterator[Done]:
        """Yield each outcome as it comes, in any order, until no task is left; new tasks may be submitted meanwhile."""

    def __enter__(self) -> WorkerPool: ...

    def __exit__(self, *_: object) -> None: ...


class _Worker:
    """A process that solves one task at a time."""

    def __init__(self, work: Callable[[Task], bytes]) -> None:
        self.pipe, child_end = _CONTEXT.Pipe()
        self.process: SpawnProcess = _CONTEXT.Process(target=_serve, args=(child_end, work), daemon=False)
        self.process.start()
        child_end.close()
        self.task: Task | None = None

    def end(self) -> None:
        """Kill the process, wait for its end, and close its pipe."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Local:
    """A pool of processes of this machine.

    Attributes:
        processes: Number of processes at most.
        work: Function that solves a task; processes import it by its name.
    """

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
        """Add a task after the tasks that were submitted before; it starts when `results` is iterated."""
        self._waiting.append(task)

    def results(self) -> Iterator[Done]:
        """Yield each outcome as it comes, in any order, until no task is left; more tasks may be submitted meanwhile.

        A task whose process dies is tried again; after two deaths it has no answer.
        """
        while True:
            self._hand_out()
            busy: dict[object, _Worker] = {worker.pipe: worker for worker in self._workers if worker.task is not None}
            if not busy:
                return
            for pipe in wait(list(busy)):  # type: ignore[arg-type]
                outcome = self._receive(busy[pipe])
                if outcome is not None:
                    yield outcome

    def _hand_out(self) -> None:
        """Send waiting tasks to idle workers, and start workers up to `processes` as long as tasks wait."""
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.task is None), None)
            if idle is None:
                if len(self._workers) == self.processes:
                    return
                self._workers.append(idle := _Worker(self.work))
            idle.task = self._waiting.popleft()
            try:
                idle.pipe.send(idle.task)
            except OSError:  # The worker died before; the end of its pipe reports it.
                continue

    def _receive(self, worker: _Worker) -> Done | None:
        """Return the outcome that a worker sent; None if it died and its task waits for another worker.

        A dead worker is removed. After too many deaths of one task, the outcome states this as the reason for no
        answer.
        """
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
            return Done(
                task,
                None,
                f"{MOST_DEATHS} processes died while they solved it (exit code of the last: {worker.process.exitcode})",
            )
        worker.task = None
        return Done(task, answer, why)


def attempt(work: Callable[[Task], bytes], task: Task) -> tuple[bytes | None, str]:
    """Return the packed answer and "", or None and a line on why there is none; no Exception is raised.

    Args:
        work: Function that solves a task.
        task: The task.
    """
    try:
        return work(task), ""
    except InputError as error:
        return None, str(error)
    except MemoryError:
        return None, "not enough memory"
    except Exception as error:  # A defect of ours is reported, and all other tasks go on.
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _serve(pipe: Connection, work: Callable[[Task], bytes]) -> None:
    """Run a worker process: receive tasks and send answers until the other end is closed.

    Ctrl-C is ignored, numeric libraries get one thread, and the process ends with its parent.

    Args:
        pipe: The worker's end of the pipe.
        work: Function that solves a task.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out tasks.
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
    """Wait for the end of the parent process, then exit this process with code 1 at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
