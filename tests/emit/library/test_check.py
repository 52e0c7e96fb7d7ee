"""Tests of `check_library`: it reports every fault planted in a library, and none in a right library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emit.library.checking.check import check_library
from emit.library.checking.report import LibraryReport, is_harmless
from emit.library.entry import INDEX
from emit.library.index import index_text, load_index
from emit.library.programs import Programs
from emit.library.run_by import run_by
from emit.library.saving.save import save
from synth import synthesize
from synth.model.pattern import read_pattern
from synth.search.settings import TargetSettings
from topologies.load import load

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library of two questions with schedules, proofs and files for both forms, each for three groups."""
    folder = tmp_path_factory.mktemp("library")
    for collective in ("allgather", "allreduce"):
        result = synthesize(collective, "full:3", engine="baseline").result
        save(run_by(result, Programs(result.problem)), folder, TargetSettings("executor-nccl"), proof=True)
    edit(folder, lambda rows: [row.update(isomorphic_groups=[[1, 2, 0], [2, 1, 0]]) for row in rows])
    return folder


def edit(folder: Path, change: Callable[[Rows], object]) -> None:
    rows = json.loads((folder / INDEX).read_bytes())["algorithms"]
    change(rows)
    (folder / INDEX).write_bytes(index_text(rows))


def checked(folder: Path) -> LibraryReport:
    return check_library(folder, load_index(folder))


@pytest.fixture
def library(built_library: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built_library, tmp_path / "lib"))


def without_digests(folder: Path) -> None:
    """Remove the digests from an index, so that the check must find every fault itself."""
    edit(folder, lambda rows: [row.pop("sha256") for row in rows])


def paths(folder: Path, pattern: str) -> list[Path]:
    matches = sorted(folder.glob(pattern))
    assert matches
    return matches


def test_the_root_of_a_group_is_a_rank_of_the_topology(tmp_path: Path) -> None:
    result = synthesize("broadcast", "full:4", (1, 3), root=3, engine="baseline").result
    save(run_by(result, Programs(result.problem)), tmp_path, TargetSettings("executor-nccl"), proof=True)
    assert not checked(tmp_path).wrong
    edit(tmp_path, lambda rows: [row.update(root=1) for row in rows])
    assert checked(tmp_path).wrong


def test_a_right_library_has_no_faults(library: Path) -> None:
    report = checked(library)
    assert (report.wrong, dict(report.remarks)) == ([], {})
    assert report.files == len(load_index(library)) >= 4
    assert report.schedules == report.proofs >= 2
    without_digests(library)
    assert checked(library).wrong == []


@pytest.mark.parametrize("pattern", ["msccl/*.xml", "schedules/*.synth", "schedules/*.proof.json"])
def test_a_flipped_byte_is_reported(library: Path, pattern: str) -> None:
    """Check that a flipped byte anywhere in a file is reported."""
    path = paths(library, pattern)[0]
    good = path.read_bytes()
    for at in range(0, len(good), max(1, len(good) // 5)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert any(path.stem.split(".")[0] in f"{name} {message}" for name, message in checked(library).wrong), (
            path,
            at,
        )


def swap(first_path: Path, second_path: Path) -> None:
    data = first_path.read_bytes(), second_path.read_bytes()
    assert data[0] != data[1]
    first_path.write_bytes(data[1])
    second_path.write_bytes(data[0])


def swap_forms(folder: Path) -> None:
    swap(*paths(folder, "msccl/allgather*.xml")[:2])


def swap_questions(folder: Path) -> None:
    swap(paths(folder, "msccl/allgather*.xml")[0], paths(folder, "msccl/allreduce*.xml")[0])


def swap_schedules(folder: Path) -> None:
    swap(*(paths(folder, f"schedules/{name}*.synth")[0] for name in ("allgather", "allreduce")))


def swap_schedules_and_proofs(folder: Path) -> None:
    swap_schedules(folder)
    swap(*(paths(folder, f"schedules/{name}*.proof.json")[0] for name in ("allgather", "allreduce")))


def stale_proof(folder: Path) -> None:
    """Replace a proof by the proof of another question, which is right for that."""
    proof, other_proof = (paths(folder, f"schedules/{name}*.proof.json")[0] for name in ("allgather", "allreduce"))
    proof.write_bytes(other_proof.read_bytes())


def change(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda rows: rows[0].update(changes))


def scale(key: str, factor: float) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda rows: rows[0].update({key: rows[0][key] * factor}))


def remove(pattern: str) -> Callable[[Path], None]:
    return lambda folder: paths(folder, pattern)[0].unlink()


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (swap_forms, "in place is"),
    (swap_questions, "it is all"),
    (swap_schedules, "is refused"),
    (swap_schedules_and_proofs, "is for collective"),
    (stale_proof, "is refused"),
    (change(min_bytes=7), "bytes"),
    (change(max_bytes=1 << 40), "bytes"),
    (change(protocol="LL128"), "protocol"),
    (change(network="0123456789abcdef"), "another network"),
    (change(group=[1, 0, 2], communicator=[1, 0, 2], isomorphic_groups=[]), "is for group 0,1,2,"),
    (scale("time_us", 0.9), "its entry says"),
    (scale("bound_us", 0.9), "gap"),
    (scale("bound_us", 1.5), "bound"),
    (scale("gap", 1.5), "gap"),
    (remove("msccl/allgather*.xml"), "is not there"),
    (remove("schedules/allgather*.synth"), "no such file"),
    (remove("schedules/allgather*.proof.json"), "no such file"),
    (lambda folder: shutil.copy(paths(folder, "msccl/*.xml")[0], folder / "msccl" / "more.xml"), "no entry names it"),
]


@pytest.mark.parametrize(("plant", "expected"), FAULTS, ids=range(len(FAULTS)))
def test_a_planted_fault_is_reported(library: Path, plant: Callable[[Path], object], expected: str) -> None:
    without_digests(library)
    plant(library)
    wrong = checked(library).wrong
    assert wrong
    assert any(expected in message for _, message in wrong), wrong
    assert all(message.isprintable() for _, message in wrong)


@pytest.mark.parametrize("proof", [False, True])
def test_a_pattern_whose_buffers_exceed_its_message_has_no_faults(proof: bool, tmp_path: Path) -> None:
    """Check that its time is proved with its schedule, and that nothing is called wrong without one."""
    (tmp_path / "exchange.toml").write_text(
        'name = "exchange"\nranks = 3\n'
        + "".join(
            f"[[chunk]]\nfrom = [{a}]\nto = [{b}]\nweight = {w}\n" for a, b, w in ((1, 0, 2), (2, 0, 1), (0, 2, 1))
        )
    )
    collective = read_pattern(str(tmp_path / "exchange.toml"))
    answer = synthesize(collective, "ring:3", size="1M", engine="route", target="msccl", budget=3)
    answer.save(tmp_path / "lib", target="msccl", proof=proof)
    report = check_library(tmp_path / "lib", load_index(tmp_path / "lib"))
    assert not report.wrong
    assert any("time_us" in figures for figures in report.unproved) != proof


def test_an_unknown_network(library: Path) -> None:
    """Check that an unknown network is reported but is no fault, and is checked if it is given."""
    edit(library, lambda rows: [row.update(topology="mine", schedule=None, proof_file=None) for row in rows])
    report = checked(library)
    assert report.wrong == []
    assert [remark.split(" is not known")[0] for remark in report.remarks] == ["the network mine"]
    slower = load("full:3,bw=5")
    object.__setattr__(slower, "name", "mine")
    second_report = check_library(library, load_index(library), slower)
    assert second_report.wrong
    assert all("another network" in message for _, message in second_report.wrong)


def test_a_group_on_slower_links_is_not_isomorphic(tmp_path: Path) -> None:
    result = synthesize("broadcast", "dgx-a100:2", (0, 1), engine="baseline", size=1 << 20, costs="machine").result
    save(run_by(result, Programs(result.problem, size=1 << 20)), tmp_path, TargetSettings("executor-nccl"), proof=True)
    edit(tmp_path, lambda rows: [row.update(isomorphic_groups=[[9, 8]]) for row in rows])
    assert not checked(tmp_path).wrong
    edit(tmp_path, lambda rows: [row.update(isomorphic_groups=[[0, 8]]) for row in rows])
    assert any("for group 0,8" in message for _, message in checked(tmp_path).wrong)


def test_what_is_only_stated_beside_proved_figures_is_harmless() -> None:
    assert is_harmless("steps, rounds, chunks, sends, engine")
    assert is_harmless("vs_baseline")
    assert not is_harmless("bound_us, gap")
    assert not is_harmless("vs_baseline, time_us")
