"""Libraries of clusters: every question answered, each problem solved once, whatever ends the build."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from emit.formats import verify_file
from emit.library.checking.check import check_library
from emit.library.entry import IndexEntry
from emit.library.index import index_text, load_index
from emit.library.selection.call import LibraryCall
from emit.library.selection.lookup import choose
from synth.app.cli.library.questions import pick_, show
from synth.app.clusters.build import HURRIED, build
from synth.app.clusters.cluster import read_cluster
from synth.app.clusters.local import Local
from synth.app.clusters.placing import at_asked_sizes, recorded_shares, unfiled_schedules, why_no_file
from synth.app.clusters.plan import BuildPlan, estimated_s, make_plan
from synth.app.clusters.task import Task, rank_sends, solve, unpacked
from synth.baselines.vendors import LIBRARIES
from synth.storage.cache import Cache
from tests.emit.library.made_indices import entry_row
from tests.emit.library.test_kept import times, worse
from tests.emit.library.test_write import held
from tests.synth.app.clusters.inline import Inline
from topologies.costed import protocols_of, with_costs
from topologies.load import load

# In a ring, three consecutive ranks are one problem, whichever of them is in the middle.
RING = """
topology = "ring:4"
groups = ["0,1,2", "0,1,3", "0,1", "1,2,3"]
collectives = ["allgather"]
targets = ["executor-nccl"]
sizes = "1536K"
budget = "1s"
"""


def planned(folder: Path, text: str = RING) -> BuildPlan:
    path = folder / "cluster.toml"
    path.write_text(text)
    return make_plan(read_cluster(path), 1)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildPlan, Inline]:
    """Build a library of four groups, of which all but the third are one problem."""
    folder = tmp_path_factory.mktemp("cluster")
    plan, pool = planned(folder), Inline()
    build(plan, folder / "lib", Cache(folder / "cache"), pool)
    return folder, plan, pool


def test_symmetric_questions_are_solved_once(built_library: tuple[Path, BuildPlan, Inline]) -> None:
    folder, plan, pool = built_library
    assert plan.questions == 4
    assert (len(plan.searches), len(plan.shares)) == (2, 3)
    assert len(pool.solved) == len({task.key for task in plan.tasks()})
    entries = load_index(folder / "lib")
    for group in ((0, 1, 2), (0, 1, 3), (0, 1), (1, 2, 3)):
        for inplace in (True, False):
            entry = choose(entries, LibraryCall("allgather", len(group), group, inplace), 1536 << 10)
            assert entry is not None
            assert entry.communicator == group
            assert verify_file(entry.path, entry.goal()).status == "right"


def test_costs_and_relays_are_of_the_question(tmp_path: Path) -> None:
    text = RING.replace("1536K", "4K").replace("ring:4", "dgx1").replace('"0,1,2", "0,1,3", "0,1", "1,2,3"', '"0,1"')
    lines = ('costs = "none"', 'costs = "machine"', 'relays = "2-3"', 'relays = "2"', "", 'costs = "auto"')
    plans = [planned(tmp_path, text + more) for more in lines]
    keys = [plan.searches[0].key for plan in plans]
    assert len(set(keys)) == 4
    assert keys[0] != keys[1] == keys[4] == keys[5]  # The machine states costs, which count if nothing is said.
    costly = plans[1]
    build(costly, tmp_path / "costly", Cache(None), Inline())
    assert {bool(entry.row.get("costs")) for entry in load_index(tmp_path / "costly")} == {True}


@pytest.mark.parametrize(
    ("target", "protocols"), [("mscclpp", ["LL", "Simple"]), ("executor-nccl", ["LL", "LL128", "Simple"])]
)
def test_bounds_count_the_protocols_of_the_target_only(tmp_path: Path, target: str, protocols: list[str]) -> None:
    text = (
        RING.replace("1536K", "4M").replace("ring:4", "dgx-a100").replace('"0,1,2", "0,1,3", "0,1", "1,2,3"', '"0,1"')
    )
    build(planned(tmp_path, text.replace("executor-nccl", target)), tmp_path / "lib", Cache(None), Inline())
    entries = load_index(tmp_path / "lib")
    assert {tuple(entry.row["costs"]["protocols"]) for entry in entries} == {tuple(protocols)}
    assert not check_library(tmp_path / "lib", entries).wrong


def test_groups_with_relays_share_the_search_and_not_the_files(tmp_path: Path) -> None:
    text = RING.replace('["allgather"]', '["broadcast"]').replace('"0,1,2", "0,1,3", "0,1", "1,2,3"', '"0,1", "2,3"')
    plan = planned(tmp_path, text.replace("executor-nccl", "mscclpp").replace("1536K", "1K") + 'relays = "all"')
    assert (len(plan.searches), len(plan.shares)) == (1, 2)
    build(plan, tmp_path / "lib", Cache(None), Inline())
    entries = load_index(tmp_path / "lib")
    assert {(e.group, e.relays, e.root) for e in entries} == {((0, 1), (2, 3), 0), ((2, 3), (0, 1), 2)}
    assert not check_library(tmp_path / "lib", entries).wrong


def test_an_existing_answer_is_neither_solved_nor_written_again(built_library: tuple[Path, BuildPlan, Inline]) -> None:
    folder, plan, _ = built_library
    before = {path: path.stat().st_mtime_ns for path in (folder / "lib").rglob("*")}
    built = build(plan, folder / "lib", Cache(None), pool := Inline())
    assert (built.progress.kept, pool.solved) == (len(plan.shares), [])
    assert {path: path.stat().st_mtime_ns for path in (folder / "lib").rglob("*")} == before


def test_another_library_from_the_cache_has_the_same_bytes(
    built_library: tuple[Path, BuildPlan, Inline], tmp_path: Path
) -> None:
    folder, plan, _ = built_library
    built = build(plan, tmp_path, Cache(folder / "cache"), pool := Inline())
    assert (built.progress.cached, pool.solved) == (len(plan.shares), [])
    assert content(tmp_path) == content(folder / "lib")


def test_a_file_with_a_flipped_byte_is_written_again(
    built_library: tuple[Path, BuildPlan, Inline], tmp_path: Path
) -> None:
    folder, plan, _ = built_library
    cache = Cache(tmp_path / "cache")
    for path in Cache(folder / "cache").files():
        cache.put(path.name, Cache(folder / "cache").get(path.name) or b"")
    hurt = next(cache.files())
    data = bytearray(hurt.read_bytes())
    data[len(data) // 2] ^= 1
    hurt.write_bytes(bytes(data))
    build(plan, tmp_path / "lib", cache, pool := Inline())
    assert pool.solved == [hurt.name]
    assert content(tmp_path / "lib") == content(folder / "lib")
    spoiled = next((tmp_path / "lib" / "msccl").iterdir())
    spoiled.write_bytes(spoiled.read_bytes().replace(b"step", b"stop", 1))
    build(plan, tmp_path / "lib", cache, pool := Inline())
    assert pool.solved == []
    assert content(tmp_path / "lib") == content(folder / "lib")


def test_an_interrupted_build_leaves_a_library_and_goes_on(
    built_library: tuple[Path, BuildPlan, Inline], tmp_path: Path
) -> None:
    folder, plan, _ = built_library
    calls = []

    def impatient(task: Task) -> bytes:
        calls.append(task)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return solve(task)

    cache = Cache(tmp_path / "cache")
    assert build(plan, tmp_path / "lib", cache, Inline(impatient)).interrupted
    load_index(tmp_path / "lib") if (tmp_path / "lib" / "index.json").exists() else None
    build(plan, tmp_path / "lib", cache, pool := Inline())
    assert calls[0].key not in pool.solved
    assert content(tmp_path / "lib") == content(folder / "lib")


def test_an_interrupted_wait_for_another_process_loses_no_answer(
    built_library: tuple[Path, BuildPlan, Inline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plan, _ = built_library

    def interrupt(_seconds: float) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with held(tmp_path / "lib"):
        # Only the writer's own sleep is interrupted, not the sleep of another thread.
        monkeypatch.setattr(
            "emit.library.saving.write.time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic)
        )
        built = build(plan, tmp_path / "lib", Cache(folder / "cache"), Inline())
    assert built.interrupted
    assert built.remarks == [f"another process holds the library: the last answers are in {tmp_path / 'lib-2'}"]
    assert content(tmp_path / "lib-2") == content(folder / "lib")


def test_a_question_without_an_answer_is_left_out_and_the_rest_built(
    built_library: tuple[Path, BuildPlan, Inline], tmp_path: Path
) -> None:
    _, plan, _ = built_library
    lost = plan.searches[0].key

    def refuses(task: Task) -> bytes:
        if task.key == lost:
            raise RuntimeError("planted")
        return solve(task)

    built = build(plan, tmp_path, Cache(None), Inline(refuses))
    assert built.left_out
    assert all("RuntimeError: planted" in why for _, why in built.left_out)
    record = json.loads(next((tmp_path / "builds").iterdir()).read_text())
    assert record["left_out"][0]["why"] == "RuntimeError: planted"
    assert load_index(tmp_path)


def kills(task: Task) -> bytes:
    """Stop this process abruptly: for one task always, for another one the first time."""
    mark = Path(os.environ["SYNTH_TEST_MARK"])
    if task.key == mark.read_text():
        os._exit(9)
    if not (once := mark.with_name(task.key)).exists():
        once.write_text("")
        os._exit(9)
    return task.key.encode()


def test_a_process_that_dies_costs_its_problem_once(
    built_library: tuple[Path, BuildPlan, Inline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = list(built_library[1].tasks())[:2]
    (tmp_path / "mark").write_text(tasks[0].key)
    monkeypatch.setenv("SYNTH_TEST_MARK", str(tmp_path / "mark"))
    with Local(1, kills) as pool:
        for task in tasks:
            pool.submit(task)
        result_of_key = {result.task.key: result for result in pool.results()}
    assert result_of_key[tasks[0].key].answer is None
    assert "2 processes died while they solved it" in result_of_key[tasks[0].key].why
    assert result_of_key[tasks[1].key].answer == tasks[1].key.encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RING.replace('["executor-nccl"]', '"none"'), ""),
        (
            'topology = "dgx1"\ngroups = ["0,4"]\ncollectives = ["allgather"]\nsizes = "64K"\nbudget = "1s"',
            "NCCL's own",
        ),
    ],
    ids=["no target", "left to NCCL"],
)
def test_an_answer_of_the_cache_without_a_file_is_believed(tmp_path: Path, text: str, why: str) -> None:
    plan = planned(tmp_path, text)
    build(plan, tmp_path / "lib", Cache(tmp_path / "cache"), Inline())
    packed = Cache(tmp_path / "cache").get(plan.searches[0].key)
    assert packed is not None
    assert any(row["refused"].startswith(why) for row in unpacked(packed).unfiled)
    again = build(plan, tmp_path / "again", Cache(tmp_path / "cache"), pool := Inline())
    assert (again.remarks, pool.solved) == ([], [])
    assert content(tmp_path / "again") == content(tmp_path / "lib")


def test_a_short_budget_limits_chunks_under_costs_too(tmp_path: Path) -> None:
    """Check that no schedule has more sends than a class of small budgets has time to lower."""
    text = 'topology = "dgx1"\ngroups = ["0,2,4,6"]\ncollectives = ["allgather"]\ntargets = "executor-nccl"'
    [task] = planned(tmp_path, f'{text}\nsizes = "64M:64M"\nbudget = "1s"').searches
    rows = unpacked(solve(task)).rows
    assert rows
    assert max(row["sends"] for row in rows) <= (rank_sends(task.work_s, task.problem()) or 0) * len(task.group)


def test_an_answer_survives_packing(built_library: tuple[Path, BuildPlan, Inline]) -> None:
    folder, plan, _ = built_library
    packed = Cache(folder / "cache").get(plan.searches[0].key)
    assert packed is not None
    assert unpacked(packed).packed() == packed
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpacked(packed[:-20])


def test_a_library_of_unfiled_schedules_is_one(tmp_path: Path) -> None:
    text = RING.replace('["executor-nccl"]', '"none"').replace('"0,1,2", "0,1,3", "0,1", "1,2,3"', '"0,1", "3,2"')
    build(planned(tmp_path, text), tmp_path / "lib", Cache(None), Inline())
    assert load_index(tmp_path / "lib") == []
    [row] = unfiled_schedules(tmp_path / "lib")
    assert (row["collective"], row["groups"], row["gap"]) == ("allgather", [[0, 1], [3, 2]], 1.0)
    report = check_library(tmp_path / "lib", [], unfiled=[row])
    assert (report.wrong, report.schedules, report.proofs) == ([], 1, 1)
    [(_, why)] = check_library(tmp_path / "lib", [], unfiled=[{**row, "steps": "x"}]).wrong
    assert why.count("unfiled row of") == 1
    shown = CliRunner().invoke(show, [str(tmp_path / "lib"), "--group", "2,3"])
    assert "1 schedule without a file" in shown.output


def test_a_task_without_time_has_a_right_file_and_says_so(tmp_path: Path) -> None:
    """Check that the clock hurries a task to a first file, under each protocol and for both forms of calls."""
    text = RING.replace("ring:4", "dgx1").replace('["allgather"]', '["allgather", "reduce"]').replace("1536K", "1K:1G")
    plan = planned(tmp_path, text.replace('"0,1,2", "0,1,3", "0,1", "1,2,3"', '"all"'))
    for task in plan.searches:
        hurried = unpacked(solve(replace(task, limit_s=1e-6)))
        assert hurried.cut
        assert hurried.rows
    built = build(plan, tmp_path / "lib", Cache(None), Inline(lambda task: solve(replace(task, limit_s=1e-6))))
    assert built.remarks == [HURRIED]
    assert not check_library(tmp_path / "lib", load_index(tmp_path / "lib")).wrong


def test_a_build_goes_on_with_the_answers_that_the_clock_cut_short(tmp_path: Path) -> None:
    plan, cache, answers = planned(tmp_path), Cache(tmp_path / "cache"), dict[str, bytes]()

    def hurry(task: Task) -> bytes:
        return answers.setdefault(task.key, solve(replace(task, limit_s=1e-6)))

    build(plan, tmp_path / "lib", cache, Inline(hurry))
    assert not list(cache.files())
    hurried = {path: path.read_bytes() for path in (tmp_path / "lib").rglob("*") if path.is_file()}

    def larger_gap(task: Task) -> bytes:
        answer = unpacked(answers[task.key])
        return replace(answer, gap=answer.gap + 1.0).packed()

    again = build(plan, tmp_path / "lib", Cache(None), Inline(larger_gap))
    assert again.progress.solved == len(list(plan.tasks()))
    assert {path: path.read_bytes() for path in (tmp_path / "lib").rglob("*") if path.is_file()} == hurried
    whole = build(plan, tmp_path / "lib", cache, Inline())
    assert (whole.progress.kept, whole.remarks) == (0, [])
    assert build(plan, tmp_path / "lib", Cache(None), Inline()).progress.kept == len(plan.shares)


def test_a_build_loses_no_file_and_becomes_slower_at_no_size(tmp_path: Path) -> None:
    """Check it with an answer that lacks a form of calls and is slower, before and after a whole one."""
    text = RING.replace('"0,1,2", "0,1,3", "0,1", "1,2,3"', '"0-3"').replace("1536K", "1K:64M")
    plan, lib, answers = planned(tmp_path, text), tmp_path / "lib", dict[str, bytes]()

    def whole(task: Task) -> bytes:
        return replace(unpacked(solve(task)), cut=True).packed()

    def lacking(task: Task) -> bytes:
        answer = unpacked(answers.setdefault(task.key, solve(replace(task, limit_s=1e-6))))
        files = {name: data for name, data in answer.files.items() if "outofplace" not in name}
        rows = [row for row in answer.rows if row["inplace"]]
        return replace(answer, rows=rows, files=files, gap=1.0).packed()

    build(plan, lib, Cache(None), Inline(lacking))
    hurried = times(lib)
    build(plan, lib, Cache(None), Inline(whole))
    best = times(lib)
    assert best.keys() > hurried.keys()
    assert worse(hurried, best) == []
    assert worse(best, hurried) != []
    again = build(plan, lib, Cache(None), Inline(lacking))
    assert again.progress.kept == 0
    assert times(lib) == best
    report = check_library(lib, load_index(lib))
    assert report.wrong == []
    assert not report.unproved_files


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_each_problem_gets_its_share_of_the_seconds(tmp_path: Path, seconds: float) -> None:
    """Check that the time limits of all problems fit, and that each has time for a file even if none is left."""
    plan, limits = planned(tmp_path), list[float]()

    def note(task: Task) -> bytes:
        limits.append(task.limit_s)
        raise RuntimeError("planted")

    build(plan, tmp_path / "lib", Cache(None), Inline(note), seconds=seconds)
    assert len(limits) == len(plan.searches)
    assert all(2.0 <= limit_s <= max(2.0, seconds) for limit_s in limits)
    shares = [estimated_s(task) for task in sorted(plan.searches, key=estimated_s, reverse=True)]
    assert limits[0] <= max(2.0, seconds * shares[0] / sum(shares))


def test_libraries_at_the_sizes_that_are_asked_for_have_the_costs_of_the_entry(tmp_path: Path) -> None:
    """Check an entry that is shown at 1 KiB, below the sizes of its build's record."""
    topology = with_costs(load("dgx-a100"))
    costs = {"protocols": protocols_of(topology), "source": topology.costs.source if topology.costs else ""}
    row = entry_row(
        collective="allgather", topology="dgx-a100", group=[0, 1], communicator=[0, 1], nranks=2, target="mscclpp",
        file="mscclpp/a.json", costs=costs, shown_bytes=1024, time_us=5.0, bound_us=4.0, gap=1.25, divides=16,
        curve=[[1024, 5.0, 4.0], [65536, 10.0, 8.0]], libraries={"MSCCL++": {"time_us": 9.0, "vs": 1.8}},
        answer="a" * 40,
    )  # fmt: skip
    (tmp_path / "builds").mkdir()
    share = {"collective": "allgather", "root": None, "groups": [[0, 1]], "key": "a" * 40, "gap": 1.25, "cut": False}
    record = {"format": "synth-build-1", "sizes": [65536, 65536], "shares": [share], "left_out": []}
    (tmp_path / "builds" / "r.json").write_text(json.dumps(record))
    [entry] = at_asked_sizes([IndexEntry.of(row, tmp_path)])
    assert (entry.shown_bytes, entry.time_us) == (65536, 10.0)
    choice = LIBRARIES["MSCCL++"].model(topology, (0, 1)).choose("allgather", 65536)
    assert entry.row["libraries"]["MSCCL++"]["time_us"] == choice.time_us
    assert choice.time_us > LIBRARIES["MSCCL++"].model(load("dgx-a100"), (0, 1)).choose("allgather", 65536).time_us


@pytest.mark.parametrize(("cut", "low", "why"), [
    (True, 1024, "NCCL's own algorithm is faster"), (True, 1 << 20, "the time of the build ran out"),
    (False, 1 << 20, ""),
])  # fmt: skip
def test_a_record_says_why_there_is_no_file(tmp_path: Path, cut: bool, low: int, why: str) -> None:
    (tmp_path / "builds").mkdir()
    left = {"target": "mscclpp", "refused": "NCCL's own algorithm is faster", "min_bytes": 0, "max_bytes": 2048}
    share = {"collective": "allgather", "root": None, "groups": [[0, 1]], "key": "a" * 40, "gap": 1.25, "cut": cut}
    record = {"format": "synth-build-1", "shares": [share | {"unfiled": [left]}], "left_out": []}
    (tmp_path / "builds" / "r.json").write_text(json.dumps(record))
    row = entry_row(collective="allgather", group=[0, 1], communicator=[0, 1], nranks=2, target="mscclpp")
    row |= {"file": "mscclpp/a.json", "min_bytes": 4096, "max_bytes": 8192}
    (tmp_path / "index.json").write_bytes(index_text([row]))
    (tmp_path / "mscclpp").mkdir()
    reason = why_no_file(recorded_shares(tmp_path), load_index(tmp_path)[0], low, low)
    assert reason.startswith(why)
    assert bool(reason) == bool(why)
    printed = " ".join(CliRunner().invoke(show, [str(tmp_path)]).output.split())
    assert "no file (allgather of 0,1, below 4 KiB): NCCL's own algorithm is faster" in printed
    picked = " ".join(CliRunner().invoke(pick_, [str(tmp_path), "allgather", "0,1", str(low)]).output.split())
    assert why in picked
