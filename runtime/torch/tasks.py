"""Run a group's calls as tasks on one thread, one after the other, and wait for them."""

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

from runtime.torch.threads import add_lane, all_lanes, waiting_threads

Record = Callable[[float], None]  # Takes the seconds that a call took.


class GroupTask:
    """A function that runs once, on a thread or at once; whoever waits for it gets its error.

    Attributes:
        predecessor: Task that must be over before this task begins.
        thread: Thread of tasks to which it belongs.
    """

    def __init__(self, function: Callable[[], None], outputs: Sequence[Any], record: Record) -> None:
        """Build a task, which runs when `run` is called.

        Args:
            function: The function.
            outputs: Tensors that it writes.
            record: Takes the seconds from the start of `run` to its end, the wait for the predecessor included, also if
                the function fails.
        """
        super().__init__()
        self._function: Callable[[], None] | None = function
        self._outputs, self._record = list(outputs), record
        self._futures: tuple[Any, Any] | None = None  # The future that ends, and the one that callers see.
        self._once = threading.Lock()  # Guards the futures.
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._context = copy_context()  # It holds the method of `using`, so callbacks choose the same on all ranks.
        self.predecessor: GroupTask | None = None
        self.thread: TaskThread | None = None

    def run(self) -> None:
        """Run the function once its predecessor is over, record its seconds, and end its future, if somebody has it.

        The function's error is kept for those who wait; only an interrupt such as KeyboardInterrupt is raised here,
        too.
        """
        assert self._function is not None
        start = time.perf_counter()
        try:
            if self.predecessor is not None:
                self.predecessor._over.wait()
            with torch.inference_mode():  # This mode may write any tensor, and leaves nothing for autograd.
                self._function()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                self._interrupt()
                raise
        finally:
            self._function = self.predecessor = None
            self._record(time.perf_counter() - start)
            with self._once:
                self._over.set()
                futures = self._futures
            if futures is not None and self.thread is not None:
                self.thread.callbacks.put(partial(self._context.run, futures[0].set_result, None))

    def _interrupt(self) -> None:
        """Record in the task's thread, if it has one, that Ctrl-C ended a task or a wait."""
        if self.thread is not None:
            self.thread.interrupted = True

    def _outcome(self, _: Any) -> list[Any]:
        """Return the written tensors, or raise the function's error."""
        if self._error is not None:
            raise self._error
        return self._outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the task is over, and return True; None or a time-out of 0 or less waits without a limit.

        Raises:
            RuntimeError: The time is up first; the task goes on. An error of the function is raised as it is.
        """
        limit = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        me = threading.get_ident()
        try:
            if limit is None:
                waiting_threads.add(me)
            over = self._over.wait(limit)
        except BaseException:  # Ctrl-C.
            self._interrupt()
            raise
        finally:
            waiting_threads.discard(me)
        if not over:
            raise RuntimeError(f"the call was not over within {limit} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return True if the task is over."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Return True if the task is over without an error."""
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the function's error, or None if there was none or the function has not failed yet."""
        return self._error

    def result(self) -> list[Any]:
        """Return the tensors that the function writes, without a wait for it."""
        return self._outputs

    def get_future(self) -> Any:
        """Return a future of the written tensors, always the same one; its wait raises the function's error."""
        with self._once:
            if self._futures is None:
                end: Any = torch.futures.Future()
                # set_exception suits Python only: torch's C++ code (DDP) takes the exception for a result, and crashes.
                self._futures = end, end.then(self._outcome)
                if self._over.is_set():
                    end.set_result(None)
        return self._futures[1]

    def synchronize(self) -> None:
        """Wait until the task is over, without a limit, and raise the function's error."""
        self.wait()


_PATIENCE_S = 2.0  # For a thread that must stop.
_LETTING_GO_S = 0.05  # Gloo's threads drop a call's tensors after it is over, and need the interpreter for that.


@atexit.register
def _stop_all() -> None:
    """Stop all threads of tasks at exit: a thread that runs while the interpreter ends can crash the process."""
    lanes = all_lanes()
    for thread in lanes:
        thread.stop()
    if lanes:
        time.sleep(_LETTING_GO_S)


class _Callbacks:
    """A thread that ends futures, and so runs their callbacks, one after the other.

    A callback may call collectives and wait for them. From its first call on, another thread ends the futures that
    follow. So callbacks begin, and make their first calls, in the order of their tasks. Ranks share no order between
    these calls and the calls of other threads; as with Gloo, that is the caller's responsibility.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._order = threading.Lock()
        self._ended: deque[Callable[[], Any]] = deque()
        self._thread: threading.Thread | None = None  # The thread that ends futures now.

    def put(self, end: Callable[[], Any]) -> None:
        """Add a function that ends a future, to be called after those before it."""
        with self._order:
            self._ended.append(end)
            self._start()

    def let_go(self) -> None:
        """Let another thread call the functions that follow, if this thread is the one that calls them now."""
        with self._order:
            if self._thread is threading.current_thread():
                self._thread = None
                self._start()

    def _start(self) -> None:
        """Start a thread if there are functions and no thread calls them; its caller holds the lock."""
        if self._thread is None and self._ended:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        """Call the functions, first in first out, until another thread takes over or none is left."""
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
    """A thread that runs the tasks of a group in the order in which they were given, which is the same on all ranks.

    Attributes:
        name: Name of the thread.
        callbacks: Ends the futures of the tasks.
        interrupted: Whether Ctrl-C ended a task, or a wait for a task.
        last: The latest task; None before the first one.
        held: By their numbers, functions that add calls which must come before the next task, in the order of the
            calls; a call that is over is taken out.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.callbacks = _Callbacks(f"callbacks of a {name}")
        self.interrupted = False
        self._tasks: queue.SimpleQueue[GroupTask | None] = queue.SimpleQueue()
        self.last: GroupTask | None = None
        self.held: dict[int, Callable[[], object]] = {}
        self._thread: threading.Thread | None = None
        self._order = threading.Lock()
        add_lane(self)

    def put(self, task: GroupTask, wait: bool) -> None:
        """Add a task; with `wait`, and if the task before it is over or adds it, run it at once on the caller's thread.

        It does not wait otherwise, and raises no error of the task, except an interrupt such as KeyboardInterrupt. The
        first task that does not run at once starts the thread.
        """
        self._add_held()
        task.thread = self
        with self._order:
            last, self.last = self.last, task
            runs_here = wait and (last is None or last.is_completed() or self._thread is threading.current_thread())
            if not runs_here:
                task.predecessor = last  # The last task may run on its caller's thread.
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                    self._thread.start()
                self._tasks.put(task)
        self.callbacks.let_go()
        if runs_here:
            task.run()

    def _add_held(self) -> None:
        """Add the calls that are held."""
        for add in [self.held.pop(number, None) for number in sorted(self.held)] if self.held else ():
            if add is not None:  # Its caller has not ended it meanwhile.
                add()

    def drain(self, limit_s: float | None = None) -> bool:
        """Wait for all tasks so far, without raising their errors; return False if that takes longer than the limit.

        `limit_s` is in seconds; None waits without a limit.
        """
        self._add_held()
        with self._order:
            last = self.last
        return last is None or last._over.wait(limit_s)

    def stop(self) -> None:
        """Stop the thread once it has run all its tasks; after 2 s it is left to itself instead."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(_PATIENCE_S)
            self._thread = None

    def _work(self) -> None:
        """Run tasks until the thread is stopped."""
        while (task := self._tasks.get()) is not None:
            task.run()
