"""Problems solved by the workers of a Dask cluster: one of this machine, or one that is there.

A worker that dies costs its problem's time; a problem that two workers died of is given up. Dask blames a worker's
death on all that it was given: what is blamed is tried again when nothing else runs, and its deaths are counted then.
The extra `dask` brings it.

A cluster is trusted as this process is: its scheduler and workers send pickled answers, and whoever reaches a tcp://
scheduler runs what they like on the workers. A tls:// scheduler knows its clients by Dask's own configuration
(`distributed.comm.tls`). A scheduler that is there is left as it was: how many workers may die of a problem is said of
our problems alone. An answer of another version of the engines is refused, since it would be kept as one of this one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from synth.library.local import MOST_DEATHS, Done, attempt
from synth.library.processes import processors
from synth.library.task import Task, solve
from synth.storage.cache import engines_version
from topologies.errors import InputError

LOCAL = "dask"
_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://[^\s/:]+(:\d{1,5})?")
_CONNECT_S = 15
_OURS = "synth-"  # with what the keys of our problems begin
_LOST = "distributed.deploy.lost-worker-timeout"  # after which a local worker that is being started anew is given up


class OnDask:
    """A Dask cluster as a pool. on: "dask", or a scheduler's address; jobs: workers of a local one."""

    is_own = False

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
        self._settings = ExitStack()  # Dask's, of this process, as long as its own cluster is there
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
        except (TypeError, ValueError, RuntimeError) as error:  # of certificates
            self._close_cluster()
            why = " ".join(str(error).split())[:200]
            right = "distributed.comm.tls in Dask's configuration must name the certificates"
            raise InputError(f"--on {on}: cannot be joined ({why}); {right}") from None
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
        with suppress(Exception):  # a scheduler that is gone has none
            self._client.unregister_scheduler_plugin(self._plugin)
        self._client.close()
        self._close_cluster()

    def _close_cluster(self) -> None:
        """End a cluster of ours, and what Dask was told for it."""
        if self._cluster is not None:
            self._cluster.close()
        self._settings.close()

    def _check_versions(self, on: str) -> None:
        """Raise InputError where a worker has other engines: its answers would not be those of this version."""
        mine = engines_version()
        theirs = self._client.run(engines_version, on_error="return")
        for worker, version in sorted(theirs.items()):
            if isinstance(version, BaseException):
                why = f"cannot load synth ({' '.join(str(version).split())[:200]})"
            elif version != mine:
                why = f"has another version of synth, NumPy, SciPy or HiGHS (engines {str(version)[:16]}, here {mine})"
            else:
                continue
            raise InputError(f"--on {on}: worker {worker} {why}; it must be the same on all workers")

    def submit(self, task: Task) -> None:
        """As `Pool` has it."""
        future = self._submit(task, f"{_OURS}{task.key}")
        self._task_of[future.key] = task
        self._futures.append(future)
        if self._running is not None:
            self._running.add(future)

    def _submit(self, task: Task, key: str) -> Any:
        return self._client.submit(_attempt_here, engines_version(), self.work, task, key=key, retries=0)

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
            future = self._submit(task, f"{_OURS}{task.key}-{death}")
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


def _attempt_here(version: str, work: Callable[[Task], bytes], task: Task) -> tuple[bytes | None, str]:
    """Return, of a worker, the packed answer, or why there is none: also where its engines are of another version."""
    if engines_version() != version:
        return None, "a worker that came later has another version of synth; it must be the same on all workers"
    return attempt(work, task)


def _deaths_of_ours(name: str, client: str) -> Any:
    """Make a scheduler's plugin, by which a problem of ours is given up with the first worker that dies of it.

    A scheduler's own `allowed_failures` is for all its clients, so it is not touched: our problems begin as if that
    many workers had died of them. The plugin goes with its client, however that ends.

    Args:
        name: The plugin's.
        client: Dask's name of the client.
    """
    from distributed.diagnostics.plugin import SchedulerPlugin  # optional

    class DeathsOfOurs(SchedulerPlugin):  # type: ignore[misc]
        def __init__(self) -> None:
            self.scheduler: Any = None

        async def start(self, scheduler: Any) -> None:
            self.scheduler = scheduler

        def transition(self, key: Any, _: str, finish: str, *__: Any, **___: Any) -> None:
            task = self.scheduler.tasks.get(key) if finish == "processing" else None
            if task is not None and str(key).startswith(_OURS):
                task.suspicious = max(task.suspicious, self.scheduler.allowed_failures)

        def remove_client(self, scheduler: Any, client: str) -> None:
            if client == of_client:
                scheduler.plugins.pop(name, None)

    of_client = client
    return DeathsOfOurs()
