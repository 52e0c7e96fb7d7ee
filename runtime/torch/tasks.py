"""What a group's calls become: functions on one thread, one after the other, and what waits for them."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from runtime.torch.threads import lanes, waiting_threads

Record = Callable[[float], None]  # takes the seconds that a call took


class Task:
    """A function that runs once, on a thread or at once; what waits for it sees its error.

    written: the tensors that it writes.
    """

    def __init__(self, function: Callable[[], None], written: Sequence[Any], record: Record) -> None:
        super().__init__()
        self._function: Callable[[], None] | None = function
        self._written, self._record = list(written), record
        self._futures: tuple[Any, Any] | None = None  # what ends it, and what callers see
        self._once = threading.Lock()  # for these
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._context = copy_context()  # what is asked for by `using`: callbacks call the same on all ranks
        self.before: Task | None = None  # which must be over before this one begins
        self.thread: TaskThread | None = None

    def run(self) -> None:
        """Do it; raises KeyboardInterrupt and its like only."""
        assert self._function is not None
        start = time.perf_counter()
        try:
            if self.before is not None:
                self.before._over.wait()
            with torch.inference_mode():  # which may write any tensor, and leaves nothing for autograd
                self._function()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                self._interrupt()
                raise
        finally:
            self._function = self.before = None
            self._record(time.perf_counter() - start)
            with self._once:
                self._over.set()
                futures = self._futures
            if futures is not None and self.thread is not None:
                self.thread.callbacks.put(partial(self._context.run, futures[0].set_result, None))

    def _interrupt(self) -> None:
        if self.thread is not None:
            self.thread.interrupted = True

    def _outcome(self, _: Any) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._written

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is over. Raises what it raised, or RuntimeError when the time is up first."""
        limit = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        me = threading.get_ident()
        try:
            if limit is None:
                waiting_threads.add(me)
            over = self._over.wait(limit)
        except BaseException:  # Ctrl-C
            self._interrupt()
            raise
        finally:
            waiting_threads.discard(me)
        if not over:
            raise RuntimeError(f"not over within {limit} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Any]:
        return self._written

    def get_future(self) -> Any:
        with self._once:
            if self._futures is None:
                end: Any = torch.futures.Future()
                # set_exception would do for Python only: torch's own code (DDP) takes it for a result, and crashes
                self._futures = end, end.then(self._outcome)
                if self._over.is_set():
                    end.set_result(None)
        return self._futures[1]

    def synchronize(self) -> None:
        self.wait()


_PATIENCE_S = 2.0  # for a thread that is to end
_LETTING_GO_S = 0.05  # Gloo's threads drop a call's tensors after it is over, and need the interpreter for it


@atexit.register
def _stop_all() -> None:
    """A thread that lives on while the interpreter ends can take the process down with it."""
    for thread in list(lanes):
        thread.stop()
    if lanes:
        time.sleep(_LETTING_GO_S)


class _Callbacks:
    """Ends futures, whose callbacks run there, one after the other on a thread of their own.

    A callback may call collectives and wait for them: from its first call on another thread ends the futures that
    follow. So callbacks begin, and make their first calls, in the order of their tasks. What they call has no order
    that ranks share beside what other threads call meanwhile; as with Gloo, that is the caller's to see to.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._order = threading.Lock()
        self._ended: deque[Callable[[], Any]] = deque()
        self._thread: threading.Thread | None = None  # that ends futures now

    def put(self, end: Callable[[], Any]) -> None:
        """End one after those before it."""
        with self._order:
            self._ended.append(end)
            self._start()

    def let_go(self) -> None:
        """What follows goes on elsewhere, where this is asked for in a callback."""
        with self._order:
            if self._thread is threading.current_thread():
                self._thread = None
                self._start()

    def _start(self) -> None:
        if self._thread is None and self._ended:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._order:
                if self._thread is not threading.current_thread():
                    return
                if not self._ended:
                    self._thread = None
                    return
                end = self._ended.popleft()
            end()


class TaskThread:
    """One thread for the tasks of a group, in the order they were given: the same on all ranks.

    Attributes:
        callbacks: of their futures.
        interrupted: whether Ctrl-C ended one of them, or what waited for it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.callbacks = _Callbacks(f"callbacks of a {name}")
        self.interrupted = False
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._last: Task | None = None
        self._thread: threading.Thread | None = None
        self._order = threading.Lock()
        lanes.add(self)

    def put(self, task: Task, wait: bool) -> None:
        """Run it after those before it. wait: the caller waits anyway, so do it here where none is under way."""
        task.thread = self
        with self._order:
            last, self._last = self._last, task
            here = wait and (last is None or last.is_completed())
            if not here:
                task.before = last  # which may run on its caller's thread
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                    self._thread.start()
                self._tasks.put(task)
        self.callbacks.let_go()
        if here:
            task.run()

    def drain(self, limit_s: float | None = None) -> bool:
        """Wait for all that was put, whose errors stay with it; return False where that takes longer than a limit."""
        with self._order:
            last = self._last
        return last is None or last._over.wait(limit_s)

    def stop(self) -> None:
        """After what was put, the thread ends."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(_PATIENCE_S)
            self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()
