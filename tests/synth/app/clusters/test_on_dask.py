"""A build on Dask's workers: the same bytes, and a worker that dies costs only its problem. Skipped without Dask."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from synth.app.clusters import on_dask
from synth.app.clusters.build import build
from synth.app.clusters.local import Done, WorkerPool
from synth.app.clusters.on_dask import OnDask
from synth.app.clusters.plan import BuildPlan
from synth.app.clusters.task import Task, solve
from synth.storage.cache import Cache, engines_version
from tests.synth.app.clusters.inline import Inline
from tests.synth.app.clusters.test_build import content, kills, planned
from topologies.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Warnings of Dask are not ours.


@pytest.fixture
def plan(tmp_path: Path) -> BuildPlan:
    pytest.importorskip("distributed")
    return planned(tmp_path)


@pytest.fixture
def marked(tmp_path: Path, plan: BuildPlan, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return the keys of two tasks that kill processes: the first always, the second once."""
    first, second = [task.key for task in plan.tasks()][:2]
    (tmp_path / "mark").write_text(first)
    monkeypatch.setenv("SYNTH_TEST_MARK", str(tmp_path / "mark"))
    return first, second


def dies(task: Task) -> bytes:
    """Stop the worker as `kills` does, after some work."""
    time.sleep(0.2)
    return kills(task)


def dies_or_solves(task: Task) -> bytes:
    """Stop the worker as `dies` does, or return the answer."""
    dies(task)
    return solve(task)


def done_by(pool: WorkerPool, plan: BuildPlan) -> dict[str, Done]:
    with pool:
        for task in list(plan.tasks())[:2]:
            pool.submit(task)
        return {result.task.key: result for result in pool.results()}


def test_a_problem_that_kills_its_worker_twice_is_given_up_and_no_other(
    plan: BuildPlan, marked: tuple[str, str]
) -> None:
    result_of_key = done_by(OnDask("dask", 1, dies), plan)
    assert result_of_key[marked[0]].answer is None
    assert "2 workers died while they solved it" in result_of_key[marked[0]].why
    assert result_of_key[marked[1]].answer == marked[1].encode()


def test_a_running_cluster_is_joined_and_left_running(plan: BuildPlan, marked: tuple[str, str]) -> None:
    import distributed  # Dask is optional.

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        scheduler = cluster.scheduler
        assert scheduler.allowed_failures == 3
        for _ in range(2):  # Its workers stay for the next build.
            result_of_key = done_by(OnDask(cluster.scheduler_address, None, dies), plan)
            assert "2 workers died while they solved it" in result_of_key[marked[0]].why
            assert result_of_key[marked[1]].answer == marked[1].encode()
            assert scheduler.allowed_failures == 3
            assert not [name for name in scheduler.plugins if name.startswith("synth-")]


@pytest.mark.usefixtures("plan")
def test_tasks_of_other_users_keep_the_rules_of_the_cluster() -> None:
    """Check that tasks of other users survive the death of a worker, during a build and after it."""
    import distributed  # Dask is optional.

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        pool = OnDask(cluster.scheduler_address, None, dies)
        assert cluster.scheduler.allowed_failures == 3
        assert [name for name in cluster.scheduler.plugins if name.startswith("synth-")]
        pool._client.close()  # A client that was killed does this: it takes nothing back.
        end = time.monotonic() + 20
        while [name for name in cluster.scheduler.plugins if name.startswith("synth-")]:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.usefixtures("plan")
def test_a_task_of_another_client_with_a_key_like_ours_may_lose_its_worker() -> None:
    import distributed  # Dask is optional.

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        address, tasks = cluster.scheduler_address, cluster.scheduler.tasks
        with OnDask(address, None, dies), distributed.Client(address) as other:
            _future = other.submit(time.sleep, 5, key="synth-other")  # Without a reference, Dask would forget it.
            end = time.monotonic() + 20
            while "synth-other" not in tasks or tasks["synth-other"].state != "processing":
                assert time.monotonic() < end
                time.sleep(0.05)
            assert tasks["synth-other"].suspicious == 0


def of_another_version() -> str:
    """Return what `engines_version` returns on a worker with other sources."""
    return "0" * 16


def test_a_worker_of_another_version_is_refused(plan: BuildPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the answers of a worker of another version are not stored as those of this version."""
    import distributed  # Dask is optional.

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        monkeypatch.setattr(on_dask, "engines_version", of_another_version)
        wrong = r"--on tcp://\S+: worker tcp://\S+ has another version of synth"
        with monkeypatch.context() as patched:
            # This stands for a worker that joins later.
            patched.setattr(on_dask.OnDask, "_check_versions", lambda *_: None)
            result_of_key = done_by(OnDask(cluster.scheduler_address, None, dies), plan)
        assert [result.answer for result in result_of_key.values()] == [None, None]
        assert "a worker that came later has another version of synth" in next(iter(result_of_key.values())).why
        monkeypatch.setattr(on_dask, "engines_version", engines_version)
        monkeypatch.setattr(distributed.Client, "run", lambda *_, **__: {cluster.workers[0].worker_address: "0" * 16})
        with pytest.raises(InputError, match=wrong):
            OnDask(cluster.scheduler_address)


def test_a_cluster_behind_certificates(
    plan: BuildPlan, marked: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a cluster with certificates in Dask's configuration; without them, or with others, there is one line."""
    import dask  # Dask is optional.
    import distributed

    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    for name in ("own", "other"):
        key, cert = tmp_path / f"{name}.key", tmp_path / f"{name}.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=synth", "-days", "2",
             "-keyout", key, "-out", cert], check=True, capture_output=True,
        )  # fmt: skip

    def configured(name: str) -> Any:
        files = {"cert": str(tmp_path / f"{name}.pem"), "key": str(tmp_path / f"{name}.key")}
        tls = "distributed.comm.tls"
        roles = {
            f"{tls}.{role}.{field}": file for role in ("client", "scheduler", "worker") for field, file in files.items()
        }
        return dask.config.set({f"{tls}.ca-file": files["cert"], **roles})

    monkeypatch.setattr(on_dask, "_CONNECT_S", 3)
    with configured("own"):
        cluster = distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, protocol="tls", security=distributed.Security()
        )
    with cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with configured("own"):
            result_of_key = done_by(OnDask(address, None, dies), plan)
        assert result_of_key[marked[1]].answer == marked[1].encode()
        with pytest.raises(InputError, match=r"cannot be joined .*distributed\.comm\.tls in Dask's configuration must"):
            OnDask(address)
        with configured("other"), pytest.raises(InputError, match=r"no scheduler answers there|cannot be joined"):
            OnDask(address)


@pytest.mark.usefixtures("marked")
def test_the_bytes_are_those_of_any_other_build(tmp_path: Path, plan: BuildPlan) -> None:
    built = build(plan, tmp_path / "lib", Cache(None), OnDask("dask", 2, dies_or_solves))
    assert {why for _, why in built.left_out} == {"2 workers died while they solved it"}
    again = build(plan, tmp_path / "lib", Cache(None), OnDask("dask", 2))
    assert not again.left_out
    build(plan, tmp_path / "calm", Cache(None), Inline())
    assert content(tmp_path / "lib") == content(tmp_path / "calm")


def test_an_address_without_a_scheduler_is_one_line() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match=r"--on tcp://127\.0\.0\.1:9: no scheduler answers there"):
        OnDask("tcp://127.0.0.1:9")
