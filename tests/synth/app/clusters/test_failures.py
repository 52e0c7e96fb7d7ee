"""A failure redoes only what it affects; failures that are equal under symmetry are solved once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emit.library.entry import IndexEntry
from emit.library.index import index_text, load_index
from emit.library.overlay import folder_without, load_as_one, load_library
from emit.library.selection.call import LibraryCall
from emit.library.selection.export import export_folders
from emit.library.selection.lookup import choose
from emit.library.selection.table import table_bytes
from runtime.torch.choice import Chooser
from runtime.torch.table import TableCall
from synth.app.cli.files.file_choice import chooser
from synth.app.clusters.build import build
from synth.app.clusters.cluster import read_cluster
from synth.app.clusters.failures import costs, fault_folder, single_failures, touched, write_fault
from synth.app.clusters.plan import make_plan
from synth.storage.cache import Cache
from tests.synth.app.clusters.inline import Inline
from topologies.errors import InputError
from topologies.load import load

QUAD = """
topology = "dgx1"
groups = ["0-3", "4-7", "4,5"]
collectives = ["allgather"]
targets = ["executor-nccl"]
sizes = "1M"
budget = "1s"
"""


def served_by(library: Path, group: tuple[int, ...]) -> IndexEntry | None:
    return choose(load_library(library), LibraryCall("allgather", len(group), group, True), 1 << 20)


def test_a_dead_link_touches_the_groups_that_have_it(tmp_path: Path) -> None:
    file, cache = tmp_path / "cluster.toml", Cache(tmp_path / "cache")
    file.write_text(QUAD)
    healthy, lib = make_plan(read_cluster(file), 1), tmp_path / "lib"
    build(healthy, lib, cache, Inline())
    before = {path: path.read_bytes() for path in lib.rglob("*") if path.is_file()}

    (plan, fault), folder = touched(healthy, file, ["link:0-1"]), fault_folder(lib, ["link:0-1"])
    assert [question.group for share in plan.shares for question in share.questions] == [(0, 1, 2, 3)]
    build(plan, folder, cache, pool := Inline())
    assert sorted(pool.solved) == sorted({task.key for task in plan.tasks()})
    assert {entry.group for entry in load_index(folder)} == {(0, 1, 2, 3)}
    assert all(path.read_bytes() == data for path, data in before.items())

    write_fault(folder, fault)
    served = {group: served_by(folder, group) for group in ((0, 1, 2, 3), (4, 5, 6, 7), (4, 5))}
    assert [entry is not None and entry.path.is_file() for entry in served.values()] == [True] * 3
    assert [served_by(lib, group).path.samefile(entry.path) for group, entry in served.items()] == [False, True, True]
    hurt_topology = "dgx1 without link:0-1"
    assert [entry.topology for entry in served.values()] == [hurt_topology, "dgx1", "dgx1"]
    written = export_folders(load_library(folder), "executor-nccl", tmp_path / "exported")
    assert {entry.communicator for entry in written} == set(served)
    table = table_bytes(*load_as_one(folder))
    assert hurt_topology.encode() in table
    assert b"../../msccl/" in table
    assert folder_without(lib, ["link:0-1"]) == folder
    with pytest.raises(InputError, match=r"--without link:0-2: .* has no answers for it.*: link:0-1"):
        folder_without(lib, ["link:0-2"])
    jobs = Chooser("synth", folder)  # As SYNTH_LIBRARY names it.
    for group, entry in served.items():
        assert jobs.choose(TableCall("allgather", 1 << 20, "float32", group)).reason == "in the library"
        benched = chooser(folder, "allgather", ",".join(map(str, group)))[0](1 << 20)
        assert benched is not None
        assert benched.file.parent.samefile(entry.path.parent)
    entries = load_index(lib)  # A file that no build wrote: nothing is known about the failures that affect it.
    (lib / "index.json").write_bytes(index_text({k: v for k, v in e.row.items() if k != "answer"} for e in entries))
    assert {entry.group for entry in load_library(folder)} == {(0, 1, 2, 3)}
    (lib / "index.json").write_bytes(before[lib / "index.json"])

    write_fault(folder := fault_folder(lib, ["rank:3"]), touched(healthy, file, ["rank:3"])[1])
    assert served_by(folder, (0, 1, 2, 3)) is None
    assert served_by(folder, (4, 5)) is not None

    mirrored_plan, fault = touched(healthy, file, ["link:4-5"])  # The same link of the other half.
    assert {question.group for share in mirrored_plan.shares for question in share.questions} == {(4, 5, 6, 7)}
    assert [question.group for question, _ in mirrored_plan.impossible] == [(4, 5)]
    write_fault(folder := fault_folder(lib, ["link:4-5"]), fault)
    assert served_by(folder, (4, 5)) is served_by(folder, (4, 5, 6, 7)) is None  # Nothing is built yet.
    build(mirrored_plan, folder, cache, pool := Inline())
    assert served_by(folder, (4, 5)) is None
    assert served_by(folder, (4, 5, 6, 7)) is not None
    assert [task.key for task in mirrored_plan.searches] == [task.key for task in plan.searches]
    assert not {task.key for task in mirrored_plan.searches} & set(pool.solved)


def shown(entry: IndexEntry) -> tuple[float | None, ...]:
    return entry.shown_bytes, entry.time_us


def test_the_cost_of_a_failure(tmp_path: Path) -> None:
    file, lib = tmp_path / "cluster.toml", tmp_path / "lib"
    file.write_text(QUAD.replace('sizes = "1M"\n', "").replace(', "4-7", "4,5"', ""))
    healthy = make_plan(read_cluster(file), 1)
    build(healthy, lib, Cache(None), Inline())
    hurt = fault_folder(lib, ["link:0-1"])
    build(touched(healthy, file, ["link:0-1"])[0], hurt, Cache(None), Inline())
    (dearest, *_) = costs(lib, hurt)
    assert dearest.question.group == (0, 1, 2, 3)
    assert dearest.factor > 1
    for folder in (lib, hurt):  # Files of some executors have a largest message.
        index = json.loads((folder / "index.json").read_bytes())
        rows = [row | {"max_bytes": row["max_bytes"] or 1 << 32} for row in index["algorithms"]]
        (folder / "index.json").write_text(json.dumps(index | {"algorithms": rows}))
    assert costs(lib, hurt)[0] == dearest
    for folder, column in ((lib, 1), (hurt, 2)):
        entries = [e for e in load_index(folder) if (e.group, e.inplace) == ((0, 1, 2, 3), dearest.inplace)]
        for row in dearest.times:
            stated = [point[1] for entry in entries if entry.in_range(row[0]) for point in (*entry.curve, shown(entry))]
            assert row[column] is None or row[column] in stated
    assert any(None not in row for row in dearest.times)


def test_a_group_that_loses_a_rank_is_compared_with_what_is_left(tmp_path: Path) -> None:
    file, lib = tmp_path / "cluster.toml", tmp_path / "lib"
    file.write_text('topology = "dgx1"\ngroups = ["0-3"]\ncollectives = ["allgather"]\nsizes = "1M"\nbudget = "1s"\n')
    healthy = make_plan(read_cluster(file), 1)
    build(healthy, lib, Cache(None), Inline())
    hurt = fault_folder(lib, ["rank:2"])
    build(touched(healthy, file, ["rank:2"])[0], hurt, Cache(None), Inline())
    assert costs(lib, hurt) == []
    for cost in costs(lib, hurt, ["rank:2"]):
        assert (cost.question.group, cost.group) == ((0, 1, 2, 3), (0, 1, 3))
        assert cost.factor > 0
    assert len(costs(lib, hurt, ["rank:2"])) >= 1


def test_the_same_dead_parts_have_one_folder_and_others_another(tmp_path: Path) -> None:
    def name(*without: str) -> str:
        return fault_folder(tmp_path, without).name

    assert name("link:3-5") == "link-3-5"
    assert name("link:3>5") != name("link:3-5")
    assert name("rank:10,rank:2") == name("rank:2", " rank:10", "rank:2") == "rank-2-rank-10"
    many = [f"rank:{rank}" for rank in range(16)]
    assert name(*many) == name(*reversed(many)) != name(*many[1:])


def test_single_failures_of_each_kind() -> None:
    two = load("dgx-a100:2")
    nodes, nics, links = (single_failures(two, [kind]) for kind in ("nodes", "nics", "links"))
    assert nodes == [",".join(f"rank:{rank}" for rank in range(first, first + 8)) for first in (0, 8)]
    assert len(nics) == len(set(nics))
    assert all("fabric" in text for text in nics)
    assert all("nvswitch" in text for text in links)
    assert single_failures(two, ["nodes", "nics"]) == [*nodes, *nics]
    for kinds, message in ((["node"], "is not known"), (["nodes"], "has no nodes to lose")):
        with pytest.raises(InputError, match=message):
            single_failures(load("dgx1"), kinds)
