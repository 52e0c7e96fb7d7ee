"""Tests of forged libraries: a change of meaning is reported although every digest is right."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emit.library.checking.check import check_library
from emit.library.checking.fault_check import check_fault
from emit.library.checking.report import LibraryReport
from emit.library.entry import INDEX
from emit.library.group_programs import GroupPrograms
from emit.library.index import index_text, load_index
from emit.library.programs import Programs
from emit.library.run_by import run_by
from emit.library.saving.save import save
from emit.library.saving.save_groups import save_groups
from emit.library.selection.export import export_folders
from synth import synthesize
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.model.collective import named
from synth.search.settings import TargetSettings
from synth.storage.columns import write_columns
from topologies.errors import InputError

Row = dict[str, Any]
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two libraries with schedules and proofs: an all-gather on a ring, and a broadcast with executor costs."""
    folder = tmp_path_factory.mktemp("honest")
    result = synthesize("allgather", "ring:4", engine="baseline", size=1 << 20).result
    save(
        run_by(result, Programs(result.problem, size=1 << 20)),
        folder / "plain",
        TargetSettings("executor-nccl"),
        proof=True,
    )
    result = synthesize("broadcast", "dgx-a100:2", (0, 1), engine="baseline", size=1 << 20, costs="machine").result
    save(
        run_by(result, Programs(result.problem, size=1 << 20)),
        folder / "costs",
        TargetSettings("executor-nccl"),
        proof=True,
    )
    return folder


def edit(folder: Path, change: Callable[[list[Row]], object]) -> None:
    """Apply a change to the rows of an index, and update the digests of all files."""
    rows = json.loads((folder / INDEX).read_bytes())["algorithms"]
    change(rows)
    for row in rows:
        if isinstance(row.get("sha256"), dict):
            for key in ("file", "schedule", "proof_file"):
                row["sha256"].pop(key, None)
                if row[key] is not None:
                    row["sha256"][key] = hashlib.sha256((folder / row[key]).read_bytes()).hexdigest()
    (folder / INDEX).write_bytes(index_text(rows))


def checked(folder: Path) -> LibraryReport:
    return check_library(folder, load_index(folder))


def put(**values: Any) -> Change:
    return lambda folder: edit(folder, lambda rows: rows[0].update(values))


def scale(*keys: str, factor: float) -> Change:
    return lambda folder: edit(folder, lambda rows: rows[0].update({key: rows[0][key] * factor for key in keys}))


def without(key: str) -> Change:
    return lambda folder: edit(folder, lambda rows: rows[0].pop(key))


def edit_worst(**values: Any) -> Change:
    return lambda folder: edit(folder, lambda rows: rows[0]["worst"].update(values))


def edit_curve(change: Callable[[int, float, float], list[float]]) -> Change:
    return lambda folder: edit(folder, lambda rows: rows[0].update(curve=[change(*row) for row in rows[0]["curve"]]))


def prove_nothing(folder: Path) -> None:
    """Remove schedules and proofs, and state the times as bounds."""
    shutil.rmtree(folder / "schedules")

    def change(rows: list[Row]) -> None:
        for row in rows:
            row.update(schedule=None, proof_file=None, bound_us=row["time_us"], gap=1.0, optimal=True)
            row.update(worst=None, curve=[])

    edit(folder, change)


def restate_schedules(folder: Path, change: Callable[[Row, dict[str, Any]], object]) -> None:
    """Apply a change to header and columns of every schedule file, and make each proof name the new file."""
    for path in folder.glob("schedules/*.synth"):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            header = json.loads(archive.read("header.json"))
            columns = {name.removesuffix(".npy"): np.load(io.BytesIO(archive.read(name))) for name in names}
        change(header, columns)
        write_columns(path, header, columns)
        proof = path.with_name(f"{path.stem}.proof.json")
        document = json.loads(proof.read_bytes())
        document["schedule"] = hashlib.sha256(path.read_bytes()).hexdigest()
        proof.write_text(json.dumps(document))
    edit(folder, lambda _: None)


def slower_links(folder: Path) -> None:
    """Give the schedule files' networks half the bandwidth under the same name."""

    def change(header: Row, columns: dict[str, Any]) -> None:
        header["topology"] = header["topology"].replace("gbs = 50", "gbs = 25")
        assert "gbs = 25" in header["topology"]
        columns["start_us"] *= 0

    restate_schedules(folder, change)


def unknown_network(folder: Path) -> None:
    restate_schedules(folder, lambda header, _: header.update(topology=header["topology"].replace("ring:4", "mine")))
    for path in folder.glob("schedules/*.proof.json"):
        path.write_text(path.read_text().replace('"ring:4"', '"mine"'))
    edit(folder, lambda rows: [row.update(topology="mine") for row in rows])


PLAIN: dict[str, Change] = {
    "time": scale("time_us", factor=0.5),
    "time and bound": scale("time_us", "bound_us", factor=0.5),
    "gap": scale("gap", factor=1.5),
    "higher bound": scale("bound_us", factor=1.01),
    "bound := time": lambda folder: edit(
        folder, lambda rows: rows[0].update(bound_us=rows[0]["time_us"], gap=1.0, optimal=True, proof="x")
    ),
    "no proof": prove_nothing,
    "not optimal": lambda folder: edit(folder, lambda rows: rows[0].update(optimal=not rows[0]["optimal"])),
    "words of the proof": put(proof="optimal: by decree"),
    "worst": edit_worst(gap=1.0, bytes=1),
    "bound of the worst": edit_worst(bound_us=1e9, gap=1.0),
    "times of the curve": edit_curve(lambda size, time, bound: [size, time / 2, bound / 2]),
    "bounds of the curve": edit_curve(lambda size, time, _: [size, time, time]),
    "sizes of the curve": edit_curve(lambda size, time, bound: [size * 2, time, bound]),
    "vs": put(libraries={"NCCL": {"algorithm": "ring", "protocol": "LL", "channels": 1, "time_us": 9.0, "vs": 9.0}}),
    "threadblocks": put(threadblocks=99),
    "steps": put(steps=99),
    "rounds": put(rounds=99),
    "chunks": put(chunks=99),
    "sends": put(sends=99),
    "engine": put(engine="exact"),
    "switch_ops": put(switch_ops=True),
    "padding": lambda folder: edit(folder, lambda rows: rows[0].update(padding=0.5, time_us=1.0, bound_us=1.0)),
    "costs": put(costs={"protocols": ["LL"], "source": "mine"}, time_us=1.0, bound_us=1.0, gap=1.0),
    "groups": put(groups=[{"ranks": [0, 1, 2, 3], "collective": "allgather", "size_bytes": 1.0, "chunks": [0, 4]}]),
    "divides": put(divides=1 << 30),
    "otherwise": put(otherwise="nothing"),
    "another network": put(topology="ring:4,bw=25"),
    "unknown network": unknown_network,
    "no network": without("network"),
    "groups unlike": put(isomorphic_groups=[[0, 2, 1, 3]]),
    "slower links": slower_links,
    **{f"without {key}": without(key) for key in ("worst", "curve", "gap", "bound_us", "shown_bytes", "time_us")},
}
COSTS: dict[str, Change] = {
    "time": scale("time_us", "bound_us", factor=0.5),
    "gap": scale("gap", factor=1.5),
    "no costs": lambda folder: edit(folder, lambda rows: [row.pop("costs") for row in rows]),
    "source": lambda folder: edit(folder, lambda rows: rows[0]["costs"].update(source="mine")),
    "protocols": lambda folder: edit(folder, lambda rows: rows[0]["costs"].update(protocols=["LL"])),
}
TYPES: list[Row] = [
    {"shown_bytes": 1.5}, {"shown_bytes": -1}, {"shown_bytes": 0}, {"shown_bytes": True}, {"time_us": "1"},
    {"time_us": -1.0}, {"bound_us": [1]}, {"gap": True}, {"optimal": 1}, {"worst": []}, {"worst": {"gap": 1.0}},
    {"curve": {}}, {"curve": [[1.5, 1, 1]]}, {"curve": [["a", 1, 1]]}, {"threadblocks": -1}, {"steps": "1"},
    {"padding": True}, {"padding": 1.0}, {"costs": 1}, {"groups": None}, {"sha256": 5},
    {"libraries": {"NCCL": {"vs": "9"}}}, {"engine": 5}, {"proof": 5},
    {"vs_healthy_range": [1.0]}, {"vs_healthy_range": 2}, {"vs_healthy_range": [-1.0, 2.0]},
]  # fmt: skip


def test_honest_libraries_are_right(honest: Path) -> None:
    plain, costs = checked(honest / "plain"), checked(honest / "costs")
    assert (plain.wrong, costs.wrong) == ([], [])
    assert all(set(names.split(", ")) <= {"vs_baseline", "steps", "rounds", "chunks", "sends", "engine", "switch_ops"}
               for names in (*plain.unproved, *costs.unproved))  # fmt: skip


def test_honest_files_of_several_groups_are_right(tmp_path: Path) -> None:
    members = [Member(ranks, named("allgather", 2, 1), 1e6) for ranks in ((0, 1), (2, 3))]
    result = plan("ring:4", members, budget=1.0)
    save_groups(result, tmp_path, GroupPrograms(TargetSettings("executor-nccl")), proof=True)
    report = checked(tmp_path)
    assert report.wrong == []
    assert report.unproved_files == set()


@pytest.mark.parametrize(("library", "name"), [("plain", name) for name in PLAIN] + [("costs", name) for name in COSTS])
def test_a_forgery_is_reported_as_wrong_or_unproved(honest: Path, tmp_path: Path, library: str, name: str) -> None:
    folder = Path(shutil.copytree(honest / library, tmp_path / "lib"))
    unproved_before = {(field, file) for field, files in checked(folder).unproved.items() for file in files}
    (PLAIN if library == "plain" else COSTS)[name](folder)
    report = checked(folder)
    unproved_after = {(field, file) for field, files in report.unproved.items() for file in files}
    assert report.wrong or unproved_after - unproved_before, name
    assert all(message.isprintable() for _, message in report.wrong)


@pytest.mark.parametrize("values", TYPES, ids=str)
def test_a_field_of_a_wrong_type_is_refused(honest: Path, tmp_path: Path, values: Row) -> None:
    folder = Path(shutil.copytree(honest / "plain", tmp_path / "lib"))
    rows = json.loads((folder / INDEX).read_bytes())["algorithms"]
    rows[0] |= values
    (folder / INDEX).write_bytes(index_text(rows))
    with pytest.raises(InputError, match=f"{next(iter(values))}: "):
        load_index(folder)


def test_a_wrong_program_with_a_right_digest_is_not_exported(honest: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(honest / "plain", tmp_path / "lib"))
    entry = load_index(folder)[0]
    entry.path.write_text(entry.path.read_text().replace('type="s"', 'type="r"', 1))
    edit(folder, lambda _: None)
    with pytest.raises(InputError, match="see synth library check"):
        export_folders(load_index(folder), "executor-nccl", tmp_path / "out")


def test_columns_must_match_a_known_name(honest: Path, tmp_path: Path) -> None:
    """Check that a collective with larger columns under a known name is refused."""
    from synth.storage.schedule_file import load_schedule

    folder = Path(shutil.copytree(honest / "plain", tmp_path / "lib"))
    path = next(folder.glob("schedules/*.synth"))
    own = load_schedule(path).problem.collective
    for factor, right in ((1.0, True), (4 / 3, False), (0.5, False)):

        def change(header: Row, columns: dict[str, Any], factor: float = factor) -> None:
            header["collective"]["columns"] = True
            for name in ("reduces", "fraction", "pre", "post", "in_index", "out_index"):
                columns[f"collective/{name}"] = getattr(own, name)
            columns["collective/fraction"] = own.fraction * factor

        restate_schedules(folder, change)
        assert any("its columns are not allgather" in message for _, message in checked(folder).wrong) != right, factor


@pytest.mark.parametrize("touched", [[], [{"collective": "allgather", "root": None, "groups": [[0, 1]]}]])
def test_a_failure_leaves_nothing_that_it_changes(honest: Path, tmp_path: Path, touched: list[Row]) -> None:
    folder = Path(shutil.copytree(honest / "plain", tmp_path / "lib"))
    edit(folder, lambda rows: [row.update(answer="a") for row in rows])
    fault_folder = folder / "faults" / "link-0-1"
    fault_folder.mkdir(parents=True)
    about = {"format": "synth-fault-1", "without": ["link:0-1"], "topology": "ring:4", "kept": ["a"]}
    right = [{"collective": "allgather", "root": None, "groups": [[0, 1, 2, 3]]}]
    (fault_folder / "fault.json").write_text(json.dumps({**about, "touched": right}))
    assert check_fault(fault_folder) is not None
    (fault_folder / "fault.json").write_text(json.dumps({**about, "touched": touched}))
    with pytest.raises(InputError, match="touched: leaves out allgather of 0,1,2,3"):
        check_fault(fault_folder)
