"""Tests of the files of concurrent groups: one for each group or one for all, right, timed together and runnable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emit.formats import verify_program
from emit.library.group_programs import GroupPrograms
from emit.library.index import load_index
from emit.library.saving.save import save
from emit.library.saving.save_groups import SavedGroups, save_groups
from emit.msccl.read import read_msccl
from emit.mscclpp.read import read_plan
from emit.mscclpp.timing import PlanPredictor
from emit.timing.predict import Predictor
from runtime.bench import Settings, measure
from runtime.host.executor import HostExecutor
from synth import synthesize
from synth.app.cli.asking.concurrent import parse_members
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.model.collective import Ints
from synth.search.settings import TargetSettings
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.load import load

MIB = 1 << 20


def planned(
    groups: str,
    folder: Path,
    topo: str = "dgx-a100",
    target: str = "auto",
    relays: str = "none",
    budget: float = 0.8,
) -> tuple[ConcurrentResult, SavedGroups]:
    """Return the plan of groups whose first collective is an all-reduce of 1 MiB, and the saved files."""
    members = parse_members(groups, "allreduce", load(topo), size="1M")
    programs = GroupPrograms(TargetSettings(target))
    with Workers(()) as no_workers:
        result = plan(topo, members, budget=budget, relays=relays, workers=no_workers, executor=programs)
    return result, save_groups(result, folder, programs)


def run_all(folder: Path) -> None:
    """Check that every file of a library is right and leaves only right elements over several launches."""
    for entry in load_index(folder):
        goal = entry.goal()
        program = verify_program(entry.path, goal).right_program(str(entry.path))
        row = measure(program, goal, 1 << 16, HostExecutor(program, goal), Settings(iterations=3, warmup=0))
        assert row.wrong == 0


def test_disjoint_groups_get_a_file_each(tmp_path: Path) -> None:
    result, saved = planned("0-3;allgather@4M:4-7", tmp_path)
    entries = load_index(tmp_path)
    assert [(e.collective, e.group, e.target) for e in entries] == [
        ("allreduce", (0, 1, 2, 3), "mscclpp"),
        ("allgather", (4, 5, 6, 7), "mscclpp"),
    ]
    assert [e.max_bytes for e in entries] == [MIB, 4 * MIB]
    assert {e.schedule for e in entries} == {f"schedules/{saved.schedules[0].name}"}
    assert saved.time_us is not None
    assert result.bound_us * (1 - 1e-9) <= saved.time_us
    run_all(tmp_path)


def test_groups_that_share_ranks_get_one_file(tmp_path: Path) -> None:
    _, saved = planned("tp=4;allgather@512K:tp=4,dp=*:dp", tmp_path)
    (entry,) = load_index(tmp_path)
    assert (entry.target, entry.group) == ("mscclpp", tuple(range(8)))
    stated = entry.row["groups"]
    assert [g["ranks"] for g in stated] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 4], [1, 5], [2, 6], [3, 7]]
    ends = [at for g in stated for at in g["chunks"]]
    assert ends[0] == 0
    assert ends[1:-1:2] == ends[2::2]
    assert saved.refused == ""
    run_all(tmp_path)


def test_other_groups_of_the_same_ranks_are_another_question(tmp_path: Path) -> None:
    for groups in ("0-3;2-5", "0-3;1,3-5"):
        planned(groups, tmp_path)
    assert len(load_index(tmp_path)) == 2


def test_relays_of_another_group_make_one_program(tmp_path: Path) -> None:
    result, saved = planned("0,1;2,3", tmp_path, "ring:4", relays="all")
    assert saved.refused == ""
    shared = any(set(e.communicator) == {0, 1, 2, 3} for e in load_index(tmp_path))
    assert shared == (len(saved.files) == 1)
    assert result.gap < 2
    run_all(tmp_path)


def test_targets_that_cannot_hold_groups_are_reported(tmp_path: Path) -> None:
    _, saved = planned("0-3;2-5", tmp_path, target="executor-nccl")
    assert "use --target mscclpp or msccl" in saved.refused
    assert not saved.files
    assert saved.index is None
    assert saved.schedules[0].exists()


@pytest.mark.parametrize("groups", ["0-2;broadcast@64K:4-6", "0-2;2-4"])
def test_separate_plans_take_their_own_time(groups: str, tmp_path: Path) -> None:
    """Check that stated times are those of `simulate`, where no group delays another."""
    _, saved = planned(groups, tmp_path, target="mscclpp", budget=2)
    times_alone = [
        PlanPredictor(read_plan(entry.path), load("dgx-a100"), entry.communicator).time_us(entry.max_bytes or 0)
        for entry in load_index(tmp_path)
    ]
    # If one plan has packets and the other has not, both are timed with the latencies of packets.
    assert saved.time_us == pytest.approx(max(times_alone), rel=0.01)


def test_plans_that_share_a_link_wait(tmp_path: Path) -> None:
    _, saved = planned("0,1", tmp_path, "fattree:2x2x1", target="mscclpp")
    predictor = PlanPredictor(read_plan(saved.files[0]), load("fattree:2x2x1"), [0, 1])
    pairs, sizes = [np.array([0, 1]), np.array([2, 3])], [predictor.chunk_bytes(MIB)] * 2

    def together(ranks: list[int], sizes: list[float]) -> float:
        return PlanPredictor.concurrent_us([predictor, predictor], pairs, sizes, predictor.topology, ranks)

    assert together([0, 1, 2, 3], sizes) == pytest.approx(predictor.time_us(MIB))
    assert together([0, 2, 1, 3], sizes) > 1.5 * PlanPredictor(predictor.plan, predictor.topology, [0, 2]).time_us(MIB)
    assert together([0, 1, 2, 3], [sizes[0] / 64, sizes[0]]) == pytest.approx(predictor.time_us(MIB))


def test_programs_that_share_a_link_wait(tmp_path: Path) -> None:
    """Check programs that share a link, and that programs on links of their own take their own time."""
    _, saved = planned("0,1", tmp_path, "fattree:2x2x1")
    program = read_msccl(saved.files[0])
    size = MIB / program.nchunks_per_loop
    topology, pairs = load("fattree:2x2x1"), [np.array([0, 1]), np.array([2, 3])]

    def together(positions: list[Ints], sizes: list[float], ranks: list[int]) -> float:
        timed = [Predictor(program, topology, [0, 1])] * len(positions)
        return Predictor.concurrent_us(timed, positions, sizes, topology, ranks)

    separate_us = together(pairs[:1], [size], [0, 2])
    apart = together(pairs, [size, size], [0, 1, 2, 3])
    assert apart == pytest.approx(together(pairs[:1], [size], [0, 1]))
    # The messages of both go over one link to the spine.
    assert together(pairs, [size, size], [0, 2, 1, 3]) > 1.5 * separate_us
    # One program has small messages and the other has large ones.
    assert together(pairs, [size, size / 64], [0, 1, 2, 3]) == pytest.approx(apart)


def test_a_plan_keeps_the_files_of_a_group_and_stays_unless_beaten(tmp_path: Path) -> None:
    """Check that an equal plan changes no byte, and that a group's files for other sizes are cut but not lost."""
    save(synthesize("allgather", "ring:4", (0, 1), target="executor-nccl", engine="route").result, tmp_path)
    topology = load("ring:4")
    members = parse_members("0-1;2-3", "allgather", topology, size="1M")
    with Workers(()) as no_workers:
        result = plan(topology, members, relays="none", budget=1, workers=no_workers)
    assert not save_groups(result, tmp_path, GroupPrograms(TargetSettings("executor-nccl"))).existed
    entries = [entry for entry in load_index(tmp_path) if entry.group == (0, 1) and entry.inplace]
    entries.sort(key=lambda entry: entry.min_bytes)
    assert ["groups" in entry.row for entry in entries if entry.in_range(1 << 20)] == [True]
    assert [entry_before.max_bytes for entry_before in entries[:-1]] == [
        entry_after.min_bytes - 1 for entry_after in entries[1:]
    ]
    assert (entries[0].min_bytes, entries[-1].max_bytes) == (0, None)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert save_groups(result, tmp_path, GroupPrograms(TargetSettings("executor-nccl"))).existed
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_plan_without_files_stays_unless_beaten(tmp_path: Path) -> None:
    topology, no_files = load("ring:6"), GroupPrograms(TargetSettings("none"))
    with Workers(()) as no_workers:
        members = parse_members("0-2;3-5", "alltoall", topology, size="1M")
        result = plan(topology, members, relays="none", budget=1, workers=no_workers)
    schedule, size = result.algorithm.schedule, result.size_bytes
    mixed = np.lexsort((np.random.default_rng(2).random(len(schedule)), schedule.step))
    late = Algorithm(result.algorithm.problem, schedule.take(mixed), "route", size_bytes=size)
    assert late.time_us(size) > result.algorithm.time_us(size)
    (path,) = save_groups(result, tmp_path, no_files).schedules
    data = path.read_bytes()
    assert save_groups(replace(result, algorithm=late), tmp_path, no_files).existed
    assert path.read_bytes() == data
    assert not save_groups(replace(result, algorithm=late), tmp_path, no_files, anew=True).existed
    assert path.read_bytes() != data
    assert not save_groups(result, tmp_path, no_files).existed
    assert path.read_bytes() == data
