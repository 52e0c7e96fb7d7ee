"""Problems solved by the workers of a Dask cluster: a cluster of this machine, or a running one.

A worker that dies costs its problem's time; a problem that two workers died of is given up. Dask blames a worker's
death on all tasks that the worker had. A blamed task is tried again when nothing else runs, and its deaths are counted
then. The extra `dask` installs Dask.

A cluster is trusted as this process is: its scheduler and workers send pickled answers, and whoever reaches a tcp://
scheduler runs any code on the workers. A tls:// scheduler knows its clients by Dask's own configuration
(`distributed.comm.tls`). A running scheduler keeps its settings: how many workers may die of a problem is set for our
problems only. An answer of another version of the engines is refused, since it would be kept as one of this version.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from synth.app.clusters.local import MOST_DEATHS, Done, attempt
from synth.app.clusters.processes import processors
from synth.app.clusters.task import Task, solve
from synth.storage.cache import engines_version
from topologies.errors import InputError

LOCAL = "dask"
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://[^\s/:]+(:\d{1,5})?")
_CONNECT_S = 15
_OURS = "synth-"  # beginning of the keys of our problems and of our plugins' names
_LOST = "distributed.deploy.lost-worker-timeout"  # time after which Dask gives up a local worker that restarts


class OnDask:
    """A Dask cluster as a pool.

    Attributes:
        processes: Number of problems that are solved at the same time.
        work: Function that solves a task.
    """

    is_own = False

    def __init__(self, on: str, jobs: int | None = None, work: Callable[[Task], bytes] = solve) -> None:
        if on != LOCAL and not _ADDRESS.fullmatch(on):
            raise InputError(f"--on {on[:60]!r}: is not known; it must be dask, or a scheduler's tcp://HOST:PORT")
        try:
            import dask  # This optional package takes a second to load.
            import distributed
        except ImportError:
            advice = "it comes with pip install '.[dask]' in a copy of synth's sources"
            raise InputError(f"--on {on}: needs Dask, which is not installed; {advice}") from None
        self._distributed, self.work, self._cluster = distributed, work, None
        self._settings = ExitStack()  # Dask's settings, for as long as our own cluster runs
        try:
            if on == LOCAL:
                self._settings.enter_context(dask.config.set({_LOST: "1 day"}))
                self._cluster = distributed.LocalCluster(
                    n_workers=jobs or processors(), threads_per_worker=1, processes=True, dashboard_address=None
                )
                self._client = distributed.Client(self._cluster)
            else:
                self._client = distributed.Client(on, timeout=_CONNECT_S)
        except (OSError, TimeoutError) as error:
            self._close_cluster()
            raise InputError(f"--on {on}: no scheduler answers there ({error}); it must be that of a cluster") from None
        except (TypeError, ValueError, RuntimeError) as error:  # The certificates are wrong.
            self._close_cluster()
            why = " ".join(str(error).split())[:200]
            advice = "distributed.comm.tls in Dask's configuration must name the certificates"
            raise InputError(f"--on {on}: cannot be joined ({why}); {advice}") from None
        self._futures: list[Any] = []
        self._running: Any = None
        self._task_of: dict[str, Task] = {}
        self._plugin = f"{_OURS}{self._client.id}"
        try:
            self._client.register_plugin(_deaths_of_ours(self._plugin, self._client.id), name=self._plugin)
            self._check_versions(on)
        except BaseException:
            self.__exit__()
            raise
        self.processes = max(1, sum(self._client.nthreads().values()))

    def __enter__(self) -> OnDask:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.cancel(self._futures, force=True)
        with suppress(Exception):  # The scheduler may be gone.
            self._client.unregister_scheduler_plugin(self._plugin)
        self._client.close()
        self._close_cluster()

    def _close_cluster(self) -> None:
        """Close our own cluster, if there is one, and restore Dask's settings."""
        if self._cluster is not None:
            self._cluster.close()
        self._settings.close()

    def _check_versions(self, on: str) -> None:
        """Raise InputError if a worker has another version of the engines, or cannot load synth.

        Answers of such a worker would not be those of this version.

        Args:
            on: The option `--on`, for the message.
        """
        engines = engines_version()
        worker_versions = self._client.run(engines_version, on_error="return")
        for worker, version in sorted(worker_versions.items()):
            if isinstance(version, BaseException):
                why = f"cannot load synth ({' '.join(str(version).split())[:200]})"
            elif version != engines:
                why = (
                    f"has another version of synth, NumPy, SciPy or HiGHS (engines {str(version)[:16]}, here {engines})"
                )
            else:
                continue
            raise InputError(f"--on {on}: worker {worker} {why}; it must be the same on all workers")

    def submit(self, task: Task) -> None:
        """Send a task to the cluster, after the tasks that were submitted before."""
        future = self._submit(task, f"{_OURS}{task.key}")
        self._task_of[future.key] = task
        self._futures.append(future)
        if self._running is not None:
            self._running.add(future)

    def _submit(self, task: Task, key: str) -> Any:
        """Send a task to the cluster under a key of Dask, and return its future; Dask does not try it again."""
        return self._client.submit(_attempt_on_worker, engines_version(), self.work, task, key=key, retries=0)

    def results(self) -> Iterator[Done]:
        """Yield each outcome as it comes, in any order, until no task is left; more tasks may be submitted meanwhile.

        Tasks whose worker died are solved again at the end, one at a time.
        """
        self._running = self._distributed.as_completed(list(self._futures))
        blamed = deque[Task]()
        while True:
            for future in self._running:
                task = self._task_of[future.key]
                outcome = self._outcome_of(task, future)
                if outcome is None:
                    blamed.append(task)
                else:
                    yield outcome
            if not blamed:
                return
            yield self._solve_isolated(blamed.popleft())

    def _solve_isolated(self, task: Task) -> Done:
        """Return the outcome of a task that is solved while nothing else runs, so that a worker's death is its own.

        It is tried twice; if a worker dies each time, the outcome has no answer.
        """
        for death in range(MOST_DEATHS):
            future = self._submit(task, f"{_OURS}{task.key}-{death}")
            self._futures.append(future)
            outcome = self._outcome_of(task, future)
            if outcome is not None:
                return outcome
        return Done(task, None, f"{MOST_DEATHS} workers died while they solved it")

    def _outcome_of(self, task: Task, future: Any) -> Done | None:
        """Wait for a task, release its future, and return its outcome; None if its worker died."""
        error = future.exception()
        outcome = Done(task, *future.result()) if error is None else Done(task, None, f"{error}"[:300])
        future.release()
        return None if isinstance(error, self._distributed.scheduler.KilledWorker) else outcome


def _attempt_on_worker(version: str, work: Callable[[Task], bytes], task: Task) -> tuple[bytes | None, str]:
    """Return a worker's packed answer and "", or None and a reason, as `attempt` does.

    Args:
        version: Version of the engines that the worker must have; with another, there is no answer.
        work: Function that solves a task.
        task: The task.
    """
    if engines_version() != version:
        return None, "a worker that came later has another version of synth; it must be the same on all workers"
    return attempt(work, task)


def _deaths_of_ours(name: str, client: str) -> Any:
    """Build a scheduler plugin that gives up a problem of ours with the first worker that dies of it.

    A scheduler's own `allowed_failures` holds for all its clients, so it is not touched: our problems begin as if that
    many workers had died of them. The plugin goes with its client, however the client ends.

    Args:
        name: Name of the plugin.
        client: Dask's name of the client.
    """
    from distributed.diagnostics.plugin import SchedulerPlugin  # This package is optional.

    class DeathsOfOurs(SchedulerPlugin):  # type: ignore[misc]
        """A scheduler plugin that counts workers' deaths for the problems of one client."""

        def __init__(self) -> None:
            self.scheduler: Any = None

        async def start(self, scheduler: Any) -> None:
            """Set the scheduler."""
            self.scheduler = scheduler

        def transition(self, key: Any, _: str, finish: str, *__: Any, **___: Any) -> None:
            """Set the count of deaths of a problem of ours to the scheduler's limit when it starts to be processed."""
            task = self.scheduler.tasks.get(key) if finish == "processing" else None
            if task is not None and any(asking.client_key == own_client for asking in task.who_wants or ()):
                task.suspicious = max(task.suspicious, self.scheduler.allowed_failures)

        def remove_client(self, scheduler: Any, client: str) -> None:
            """Remove the plugin from the scheduler if the client that leaves is its own."""
            if client == own_client:
                scheduler.plugins.pop(name, None)

    own_client = client
    return DeathsOfOurs()
