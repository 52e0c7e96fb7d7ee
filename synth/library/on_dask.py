"""Problems solved by the workers of a Dask cluster: one of this machine, or one that is there.

A worker that dies costs its problem's time; a problem that two workers died of is given up. Dask blames a worker's
death on all that it was given: what is blamed is tried again when nothing else runs, and its deaths are counted then.
The extra `dask` brings it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from synth.library.local import MOST_DEATHS, Done, attempt
from synth.library.processes import processors
from synth.library.task import Task, solve
from topologies.errors import InputError

LOCAL = "dask"
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://[^\s/:]+(:\d{1,5})?")
_CONNECT_S = 15
_FAILURES = "distributed.scheduler.allowed-failures"
_LOST = "distributed.deploy.lost-worker-timeout"  # after which a local worker that is being started anew is given up


class OnDask:
    """A Dask cluster as a pool. on: "dask", or a scheduler's address; jobs: workers of a local one."""

    def __init__(self, on: str, jobs: int | None = None, work: Callable[[Task], bytes] = solve) -> None:
        if on != LOCAL and not _ADDRESS.fullmatch(on):
            raise InputError(f"--on {on[:60]!r}: is not known; it must be dask, or a scheduler's tcp://HOST:PORT")
        try:
            import dask  # optional, and takes a second
            import distributed
        except ImportError:
            right = "it comes with pip install 'synth-collectives[dask]'"
            raise InputError(f"--on {on}: needs Dask, which is not installed; {right}") from None
        self._distributed, self.work, self._cluster = distributed, work, None
        dask.config.set({_FAILURES: 0, _LOST: "1 day"})
        try:
            if on == LOCAL:
                self._cluster = distributed.LocalCluster(
                    n_workers=jobs or processors(), threads_per_worker=1, processes=True, dashboard_address=None
                )
                self._client = distributed.Client(self._cluster)
            else:
                self._client = distributed.Client(on, timeout=_CONNECT_S)
                self._allowed = self._client.run_on_scheduler(_allow_failures, count=0)
        except (OSError, TimeoutError) as error:
            raise InputError(f"--on {on}: no scheduler answers there ({error}); it must be that of a cluster") from None
        self.processes = max(1, sum(self._client.nthreads().values()))
        self._allowed = 0
        self._futures: list[Any] = []
        self._running: Any = None
        self._task_of: dict[str, Task] = {}

    def __enter__(self) -> OnDask:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.cancel(self._futures, force=True)
        if self._cluster is None:  # others' problems go by what was there
            self._client.run_on_scheduler(_allow_failures, count=self._allowed)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def submit(self, task: Task) -> None:
        """As `Pool` has it."""
        future = self._client.submit(attempt, self.work, task, key=f"synth-{task.key}", retries=0)
        self._task_of[future.key] = task
        self._futures.append(future)
        if self._running is not None:
            self._running.add(future)

    def results(self) -> Iterator[Done]:
        """As `Pool` has it."""
        self._running = self._distributed.as_completed(list(self._futures))
        blamed = deque[Task]()
        while True:
            for future in self._running:
                task = self._task_of[future.key]
                done = self._done(task, future)
                if done is None:
                    blamed.append(task)
                else:
                    yield done
            if not blamed:
                return
            yield self._isolated(blamed.popleft())

    def _isolated(self, task: Task) -> Done:
        """What a task comes to while nothing else runs, so that whoever dies dies of it."""
        for death in range(MOST_DEATHS):
            future = self._client.submit(attempt, self.work, task, key=f"synth-{task.key}-{death}", retries=0)
            self._futures.append(future)
            done = self._done(task, future)
            if done is not None:
                return done
        return Done(task, None, f"{MOST_DEATHS} workers died of it")

    def _done(self, task: Task, future: Any) -> Done | None:
        """What a task came to, waited for; None where its worker died."""
        error = future.exception()
        done = Done(task, *future.result()) if error is None else Done(task, None, f"{error}"[:300])
        future.release()
        return None if isinstance(error, self._distributed.scheduler.KilledWorker) else done


def _allow_failures(count: int, dask_scheduler: Any = None) -> int:
    """Of a scheduler that is there: how many workers may die of a problem before it is given up; and how many did."""
    before: int = dask_scheduler.allowed_failures
    dask_scheduler.allowed_failures = count
    return before
