"""Forged answers to a cluster's problems, from a cache or a worker: the digest is right, and the content is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emit.library.checking.check import check_library
from emit.library.index import load_index
from synth.app.clusters.answer_check import checked_answer
from synth.app.clusters.build import build
from synth.app.clusters.plan import BuildPlan
from synth.app.clusters.task import Answer, Task, solve, unpacked
from synth.storage.cache import Cache
from tests.synth.app.clusters.inline import Inline
from tests.synth.app.clusters.test_build import content, planned
from topologies.errors import InputError

QUESTION = """
topology = "ring:4"
groups = ["0,1,2,3"]
collectives = ["allgather"]
targets = ["executor-nccl"]
sizes = "1536K"
budget = "1s"
"""


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[BuildPlan, Answer]:
    plan = planned(tmp_path_factory.mktemp("cluster"), QUESTION)
    return plan, unpacked(solve(plan.shares[0].task))


def change_row(**fields: Any) -> Callable[[Answer], Answer]:
    return lambda answer: replace(answer, rows=[{**row, **fields} for row in answer.rows])


def change_file(suffix: str, change: Callable[[bytes], bytes]) -> Callable[[Answer], Answer]:
    def changed(answer: Answer) -> Answer:
        files = {name: change(data) if name.endswith(suffix) else data for name, data in answer.files.items()}
        return replace(answer, files=files)

    return changed


def raise_bound(data: bytes) -> bytes:
    document = json.loads(data)
    for witness in document["witnesses"]:
        witness["base_us"] = 2 * document["time_us"]
    return json.dumps(document).encode()


FORGERIES = {
    "a faster time": change_row(time_us=1e-3, gap=1.0),
    "a bound above the time": lambda answer: change_row(bound_us=1.01 * answer.rows[0]["time_us"])(answer),
    "a proof that claims more": change_file(".proof.json", raise_bound),
    "a curve that lies": change_row(curve=[[1 << 20, 1e-3, 1e-3]]),
    "a file outside": change_row(file="../outside.xml"),
    "a program that deadlocks": change_file(".xml", lambda data: data.replace(b'type="s"', b'type="nop"', 1)),
    "a program that is none": change_file(".xml", lambda _: b"<algo"),
    "another root": change_row(root=1),
    "another key": lambda answer: replace(answer, key="0" * 40),
    "another instance": lambda answer: replace(answer, instance={"topology": "ring:4"}, rows=[{}]),
    "a range without a schedule that states a gap": lambda answer: replace(
        answer, unfiled=[{"target": "msccl", "refused": "x", "gap": 9e9}]
    ),
    "a row without figures": lambda answer: replace(answer, unfiled=[{"refused": "x", "vs_baseline": 1.0}]),
    "a gap that is a text": lambda answer: replace(answer, unfiled=[{"target": "msccl", "refused": "x", "gap": "z"}]),
    "a file in the place of a folder": lambda answer: replace(answer, files={**answer.files, "AA": b"", "AA/b": b""}),
    "a reason with an escape": lambda answer: replace(answer, unfiled=[{"target": "msccl", "refused": "\x1b[2J"}]),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_answer_is_refused_and_solved_again(
    name: str, solved: tuple[BuildPlan, Answer], tmp_path: Path
) -> None:
    plan, answer = solved
    forged = FORGERIES[name](answer)
    with pytest.raises(InputError):
        checked_answer(plan.shares[0], forged)
    cache, pool = Cache(tmp_path / "cache"), Inline()
    cache.put(plan.shares[0].task.key, forged.packed())
    built = build(plan, tmp_path / "lib", cache, pool)
    assert pool.solved
    assert any("of the cache is not believed" in remark for remark in built.remarks)
    assert built.progress.cached == 0
    assert not check_library(tmp_path / "lib", load_index(tmp_path / "lib")).wrong


def test_an_honest_answer_of_the_cache_gives_the_same_library(solved: tuple[BuildPlan, Answer], tmp_path: Path) -> None:
    plan, answer = solved
    cache = Cache(tmp_path / "cache")
    build(plan, tmp_path / "first", cache, Inline())
    pool = Inline()
    built = build(plan, tmp_path / "second", cache, pool)
    assert (pool.solved, built.progress.cached) == ([], 1)
    assert content(tmp_path / "first") == content(tmp_path / "second")
    assert checked_answer(plan.shares[0], answer).packed() == answer.packed()


def test_a_forged_comparison_is_worked_out_again(solved: tuple[BuildPlan, Answer]) -> None:
    plan, answer = solved
    forged = change_row(vs_baseline=99.0)(answer)
    assert checked_answer(plan.shares[0], forged).rows == answer.rows


class Liar(Inline):
    """A cluster whose workers return forged answers."""

    is_own = False

    def __init__(self) -> None:
        super().__init__(lie)


def lie(task: Task) -> bytes:
    return change_row(time_us=1e-3, gap=1.0)(unpacked(solve(task))).packed()


def test_a_worker_that_lies_is_not_believed(solved: tuple[BuildPlan, Answer], tmp_path: Path) -> None:
    built = build(solved[0], tmp_path / "lib", Cache(tmp_path / "cache"), Liar())
    assert [why for _, why in built.left_out] == ["the answer of a worker did not pass its check"]
    assert not list((tmp_path / "cache").rglob("*.*"))
