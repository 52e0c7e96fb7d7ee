"""A build on Dask's workers: the same bytes, and a worker that dies costs its problem alone. Skipped without Dask."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from synth.library.build import build
from synth.library.local import Done, Pool
from synth.library.on_dask import OnDask
from synth.library.plan import Plan
from synth.library.task import Task, solve
from synth.storage.cache import Cache
from tests.synth.library.inline import Inline
from tests.synth.library.test_build import content, kills, planned
from topologies.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # what Dask warns of is not ours


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    pytest.importorskip("distributed")
    return planned(tmp_path)


@pytest.fixture
def marked(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Keys of two tasks of which processes die: of the first always, of the other one once."""
    first, other = [task.key for task in plan.tasks()][:2]
    (tmp_path / "mark").write_text(first)
    monkeypatch.setenv("SYNTH_TEST_MARK", str(tmp_path / "mark"))
    return first, other


def dies(task: Task) -> bytes:
    """Of a worker: as `kills`, after some work."""
    time.sleep(0.2)
    return kills(task)


def dies_or_solves(task: Task) -> bytes:
    """The same, and else the answer."""
    dies(task)
    return solve(task)


def done_by(pool: Pool, plan: Plan) -> dict[str, Done]:
    with pool:
        for task in list(plan.tasks())[:2]:
            pool.submit(task)
        return {one.task.key: one for one in pool.results()}


def test_a_problem_that_kills_its_worker_twice_is_given_up_and_no_other(plan: Plan, marked: tuple[str, str]) -> None:
    done = done_by(OnDask("dask", 1, dies), plan)
    assert done[marked[0]].answer is None
    assert "2 workers died of it" in done[marked[0]].why
    assert done[marked[1]].answer == marked[1].encode()


def test_a_cluster_that_is_there_is_joined_and_left_running(plan: Plan, marked: tuple[str, str]) -> None:
    import distributed  # optional

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        for _ in range(2):  # its workers are there for the next one
            done = done_by(OnDask(cluster.scheduler_address, None, dies), plan)
            assert "2 workers died of it" in done[marked[0]].why
            assert done[marked[1]].answer == marked[1].encode()


@pytest.mark.usefixtures("marked")
def test_the_bytes_are_those_of_any_other_build(tmp_path: Path, plan: Plan) -> None:
    built = build(plan, tmp_path / "lib", Cache(None), OnDask("dask", 2, dies_or_solves))
    assert {why for _, why in built.left_out} == {"2 workers died of it"}
    again = build(plan, tmp_path / "lib", Cache(None), OnDask("dask", 2))
    assert not again.left_out
    build(plan, tmp_path / "calm", Cache(None), Inline())
    assert content(tmp_path / "lib") == content(tmp_path / "calm")


def test_an_address_where_nobody_is_is_one_line() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match=r"--on tcp://127\.0\.0\.1:9: no scheduler answers there"):
        OnDask("tcp://127.0.0.1:9")
