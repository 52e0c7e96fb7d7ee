"""Tests of the scripts about large problems, each on a tiny case; no elapsed time is asserted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.measuring import scale_runs
from results.measuring.scale_runs import Answer, Ended, Processes
from results.scripts import process_groups, published, scale
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.model.collective import named
from synth.model.loop_cache import loops_folder
from synth.solvers.workers import Workers
from tests import ROOT
from topologies.load import load

TINY = ("alltoall", "--topo", "full:4", "--size", "1M", "--engine", "route")  # It is optimal at once.


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes() as own:
        own.cache = loops_folder() or own.cache  # Compiling anew would take longer than all tests here.
        yield own


@pytest.fixture(scope="module")
def tiny(processes: Processes) -> Answer:
    return processes.asked(*TINY, times=1)


def _answer(gap: float = 1.003, seconds: float = 2.0, **row: Any) -> Answer:
    figures = {
        "gap": gap, "sends": 12, "chunks": 1, "time_us": gap * 100, "bound_us": 100.0, "shown_bytes": 1 << 30,
        "proof": "cut {0}, 100 GB/s", "vs_baseline": 1.5, **row,
    }  # fmt: skip
    output = {"algorithms": [figures], "group": [0, 1, 2, 3], "seconds": seconds / 2}
    return Answer("alltoall --topo ring:4", seconds, 50.0, 0.0, output, "right, 1.0 s")


def _cells(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, titles first, and check that every line has as many."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len({len(line) for line in lines}) == 1
    return [lines[0], *lines[2:]]


def test_a_command_is_measured_and_its_proof_checked(tiny: Answer) -> None:
    assert not tiny.wrong
    assert tiny.checked.startswith("right")
    assert 1 <= tiny.gap < 2
    assert tiny.peak_mb > 10
    assert tiny.question == "alltoall --topo full:4 --size 1M --engine route"


def test_refused_and_slow_commands_are_reported(processes: Processes) -> None:
    refused = processes.asked("alltoall", "--topo", "no-such", "--size", "1M", times=1)
    assert "no-such" in refused.wrong
    assert math.isinf(refused.gap)
    assert "failed" in scale.table([(scale.Row("alltoall", "no-such", (), 1.0, 1.01), refused)])
    assert scale_runs.faults([refused])[0].startswith("- `alltoall --topo no-such")
    assert scale_runs.run_watched(["sleep", "30"], 0.1).code is None


def test_peak_memory_is_measured() -> None:
    large = "x = b'1' * 150_000_000; print(len(x))"
    watch = (
        "import sys; from results.measuring.scale_runs import run_watched; "
        f"ended = run_watched([sys.executable, '-c', {large!r}], 60); "
        "print(ended.code, ended.out.strip(), ended.peak_mb)"
    )
    # A child's peak may include the most memory that its parent ever had, so the parent is a small process.
    said = subprocess.run([sys.executable, "-c", watch], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    code, length, peak_mb = said.split()
    assert (code, length) == ("0", "150000000")
    assert 150 < float(peak_mb) < 400


def test_a_run_that_compiles_is_repeated(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 1.0, 3.0, 2.0])

    def go(_command: object, _limit_s: float = 0.0) -> Ended:
        duration_s = next(seconds)
        if duration_s > 5:
            (processes.cache / "f.nbc").write_bytes(b"")
        return Ended(duration_s, 0, json.dumps({"algorithms": [{"gap": 1.5}]}), "", 20.0)

    monkeypatch.setattr(processes, "run", go)
    monkeypatch.setattr(processes, "proved", lambda *_: ("right", ""))
    answer = processes.asked("alltoall")
    assert (answer.first_s, answer.seconds, answer.gap) == (9.0, 2.0, 1.5)
    assert scale.first_table([answer]).endswith("| 9.0 | 2.0 |")


def test_an_answer_that_contradicts_its_files_is_wrong(processes: Processes, tmp_path: Path) -> None:
    ended = processes.run([*scale_runs.synth(*TINY), "--proof", "--json", "--out", str(tmp_path)], limit_s=60)
    row = json.loads(ended.out)["algorithms"][0]
    assert processes.proved(row)[1] == ""
    assert "time / bound" in processes.proved({**row, "file": None, "gap": row["gap"] * 1.01})[1]
    assert "bound (µs)" in processes.proved({**row, "file": "a.xml", "bound_us": row["bound_us"] * 1.01})[1]
    assert "no schedule" in processes.proved({"gap": 1.0})[1]
    Path(row["proof_file"]).write_text("{}", encoding="utf-8")
    assert "synth prove" in processes.proved(row)[1]


@pytest.mark.parametrize("reading", ["nic", "uplink"])
def test_two_level_networks(reading: str, tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(scale.two_level(reading, 3, 2), encoding="utf-8")
    topology = load(str(path))
    assert (topology.nranks, len(topology.switches), topology.nodes.tolist()) == (6, 4, [0, 0, 1, 1, 2, 2])
    between = topology.bandwidth_gbs == scale.BETWEEN_GBS
    assert between.sum() == 2 * (6 if reading == "nic" else 3)
    scale.write_networks(tmp_path)
    assert load(str(tmp_path / f"two-level-{reading}.toml")).nranks == 256


def test_times_as_published() -> None:
    assert [scale_runs.seconds_of(words) for words in ("18.1 s", "11.68 min", "2.52 h")] == [
        18.1,
        pytest.approx(700.8),
        pytest.approx(9072),
    ]
    assert [scale_runs.ratio_words(value) for value in (1.234, 12.34, 1234.0)] == ["1.23", "12.3", "1 234"]
    assert [scale_runs.gap_words(gap) for gap in (1.0, 1 + 1e-12, 1.00001, 1.01)] == [
        "1, optimal",
        "1, optimal",
        "1.0001",
        "1.0100",
    ]


def test_missed_goals_are_reported() -> None:
    row = scale.Row("alltoall", "ring:4", scale.PAIR, 5, 1.01, "2.01 h")
    assert scale.missed([(row, _answer())]) == []
    assert len(scale.missed([(row, _answer(gap=1.02)), (row, _answer(seconds=6.0))])) == 2
    assert "no right answer" in scale.missed([(row, replace(_answer(), wrong="refused"))])[0]
    # With 4 ranks and 1 GiB, a chunk occupies a link of 50 GB/s for 5368.7 µs.
    counted = replace(row, goal_s=None, goal_gap=None, hops=3)
    chunk_us = 2**28 / 50e3
    assert scale.missed([(counted, _answer(time_us=3 * chunk_us))]) == []
    assert "3.01 hops" in scale.missed([(counted, _answer(time_us=3.01 * chunk_us))])[0]


def test_the_page_of_large_problems(tiny: Answer) -> None:
    row = scale.Row("alltoall", "ring:4", scale.PAIR, 5, 1.01, "2.01 h", 3)
    answers = [(row, tiny), (replace(row, published="", hops=None), _answer(gap=1.02))]
    text = scale.text([tiny], answers, answers, answers, answers)
    assert "## Compiling" in text
    assert "3 618 ×" in scale.table([(row, _answer())], "PCCL")
    titles, *lines = _cells(scale.table(answers, "PCCL", library=True))
    assert dict(zip(titles, lines[1], strict=True))["time / bound"] == "1.0200"
    assert dict(zip(titles, lines[1], strict=True))["PCCL, published"] == "–"
    titles, *lines = _cells(scale.hops_table(answers[:1]))
    assert dict(zip(titles, lines[0], strict=True))["TACOS, hops"] == "3"


def test_questions_of_large_problems_are_complete() -> None:
    rows = [*scale.ALLTOALL, *scale.ALLGATHER, *scale.REDUCING, *scale.TWO_LEVEL]
    assert len({(row.collective, row.topo, row.options) for row in rows}) == len(rows)
    assert sum(row.hops is not None for row in rows) == 9
    for row in rows:
        if not row.topo.endswith(".toml"):
            load(row.topo)


def test_published_bandwidths_beside_ours() -> None:
    row = published.Row("alltoall", "ndv2:2", published.GB, (published.Theirs("TE-CCL", 3.52, 337),))
    # The limit of 3.125 GB/s is reached.
    full = _answer(gap=1.0, time_us=320_000.0, bound_us=320_000.0)
    assert published.gbs_of(row, full) == (3.125, 3.125)
    titles, *lines = _cells(published.table([(row, full)]))
    cells = dict(zip(titles, lines[0], strict=True))
    assert (cells["TE-CCL GB/s (s)"], cells["ours / TE-CCL"], cells["limit GB/s"]) == (
        "3.52 (337) †",
        "0.89 ×",
        "3.12",
    )
    assert "1.13 × the proved limit of 3.125 GB/s" in published.above([(row, full)])[0]
    assert published.slower([(row, full)]) == []
    # The result is below the published one, and the limit leaves room.
    slow = _answer(gap=1.25, time_us=320_000.0, bound_us=256_000.0)
    assert published.above([(row, slow)]) == []
    assert "ours 3.12" in published.slower([(row, slow)])[0]
    assert "goal 30 s" in published.slower([(row, replace(full, seconds=31.0))])[0]
    text = published.text([], [(row, full), (row, replace(slow, wrong="refused"))])
    assert "†" in text
    assert "refused" in text


def test_published_bandwidths_are_complete() -> None:
    rows = [*published.MESHES, *published.CHASSIS]
    assert len(rows) == 14
    assert sum(len(row.theirs) for row in rows) == 30
    assert {load(row.topo).nranks for row in rows} == {16, 32, 36}


def test_groups_of_every_shape_are_disjoint() -> None:
    for shape in process_groups.SHAPES:
        for ranks in process_groups.SIZES:
            groups = process_groups.groups_of(shape, ranks, 64 // ranks, 64)
            assert sorted(rank for group in groups for rank in group) == list(range(64))
            assert groups[:2] == process_groups.groups_of(shape, ranks, 2, 64)
    assert process_groups.groups_of("strided", 8, 2, 64)[1] == tuple(range(1, 64, 8))


def test_a_plan_of_two_groups_is_proved_again() -> None:
    question = process_groups.Question("alltoall", "contiguous", 2, 2, 1 << 20, "line:4")
    with Workers(()) as workers:
        answer = process_groups.planned(question, 5.0, workers)
        failed = process_groups.planned(replace(question, topo="line:3"), 5.0, workers)
    assert answer.wrong == ""
    assert answer.gap == pytest.approx(1)
    assert answer.turns == pytest.approx(2)
    assert failed.wrong == "ValueError: 3 ranks cannot form 2 disjoint groups of 2"
    assert "failed" in process_groups.table([failed])


def test_groups_that_contradict_their_files_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member((g, g + 1), named("alltoall", 2, 1), 1 << 20) for g in (0, 2)]
    with Workers(()) as workers:
        result = plan("line:4", members, relays="all", budget=5.0, workers=workers)
    assert process_groups.refused(result) == ""
    other = {"status": "right", "why": "", "time_us": result.makespan_us, "bound_us": result.bound_us / 2}
    monkeypatch.setattr(process_groups, "checked", lambda _: other)
    assert "synth prove computes" in process_groups.refused(result)
    monkeypatch.undo()
    result.times_us[:] *= 2
    assert process_groups.refused(result).startswith("synth prove")


def test_summary_of_groups() -> None:
    question = process_groups.Question("alltoall", "random", 4, 1, process_groups.LARGE)
    single_group = process_groups.Planned(question, 10.0, 10.0, 40.0, 10.0, 1.0)
    two_groups = process_groups.Planned(replace(question, groups=2), 20.0, 16.0, 19.0, 18.0, 1.0, "budget")
    goal_lines = process_groups.goals([single_group, two_groups])
    assert [line.split(": ")[1].split()[0] for line in goal_lines] == ["Direct", "time", "slower", "slower"]
    assert process_groups.goals([single_group]) == []
    assert "1.250, 0.95, 0.90; 1.00 s!" in process_groups.table([single_group, two_groups])
    titles, *lines = _cells(process_groups.summary([single_group, two_groups]))
    assert dict(zip(titles, lines[-1], strict=True))["Direct / time"] == "2.48 × (geometric 1.95, least 0.95)"
    assert "1 MiB" not in process_groups.text([single_group, two_groups], 10.0)
    all_questions = process_groups.questions()
    assert len(all_questions) == len(set(all_questions)) == 2 * 3 * 13 + 2 * 3 * 4 * 2
    assert all(q.ranks * q.groups <= 64 for q in all_questions)
