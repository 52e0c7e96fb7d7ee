"""The back end that serves a call: by the table, by the library, by the environment; equal for equal calls."""

from __future__ import annotations

import json
import logging
import platform
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emit.library.index import index_text
from emit.msccl.format import write_msccl
from runtime.algorithms.built_in import built_in, names
from runtime.torch.choice import NO_TABLE, SPLITS, CallChoice, Chooser, Method
from runtime.torch.table import TableCall, load_table
from topologies.errors import InputError

CALL = TableCall("allreduce", 4096, "float32", (0, 1, 2, 3))


def table(folder: Path, *rows: dict[str, Any], machine: str | None = None) -> Path:
    path = folder / "table.json"
    plain = {"collective": "allreduce", "ranks": 4, "type": None, "min_bytes": 0, "max_bytes": None,
             "backend": "synth", "algorithm": None}  # fmt: skip
    path.write_text(
        json.dumps(
            {
                "format": "synth-choice-1",
                "machine": machine or platform.node(),
                "rows": [plain | row for row in rows],
            }
        )
    )
    return path


def library(folder: Path, group: tuple[int, ...] = (0, 1, 2, 3), low: int = 0, high: int | None = 8192) -> Path:
    program = built_in("allreduce", "allpairs", len(group))
    (folder / "msccl").mkdir()
    (folder / "msccl" / "mine.xml").write_text(write_msccl(program))
    row = {"collective": "allreduce", "topology": "t", "nranks": len(group), "group": list(group), "relays": [],
           "root": None, "communicator": list(group), "file": "msccl/mine.xml", "target": "executor-nccl",
           "protocol": "Simple", "inplace": True, "min_bytes": low, "max_bytes": high, "schedule": None,
           "proof_file": None, "goal": None}  # fmt: skip
    (folder / "index.json").write_bytes(index_text([row]))
    return folder


def test_rows_of_a_table_in_their_order(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        {"max_bytes": 100, "backend": "gloo"},
        {"type": "int64", "backend": "gloo"},
        {"max_bytes": 5000, "algorithm": "ring"},
        {"algorithm": "halving_doubling"},
    )
    chooser = Chooser(table=path)
    name = {size: chooser.choose(CALL._replace(size_bytes=size)).program for size in (100, 101, 5000, 5001)}
    assert name[100] is None
    assert [name[size].name for size in (101, 5000, 5001) if name[size]] == [
        "ring",
        "ring",
        "halving_doubling",
    ]
    assert chooser.choose(CALL._replace(kind="int64")).program is None
    assert chooser.choose(CALL._replace(ranks=(0, 1))).program is None
    assert chooser.choose(CALL, Method("gloo")).reason == "asked for"


def test_splits_stay_with_the_wrapped_back_end_unless_all_sizes_have_one_answer(tmp_path: Path) -> None:
    """Check calls with splits: ranks do not know the size, so the choice must be the same for every size."""
    call = TableCall("alltoall", 4096, "float32", (0, 1, 2, 3))
    split_call = call._replace(has_splits=True)
    row = {"collective": "alltoall", "algorithm": "direct"}
    by_size = Chooser(table=table(tmp_path, row | {"min_bytes": 1024, "max_bytes": 8192}))
    assert by_size.paths(call) == {"wrapped", "direct"}
    assert by_size.choose(call).program is not None
    for size in (0, 4096, 1 << 30):
        assert by_size.choose(split_call._replace(size_bytes=size)) == CallChoice(None, SPLITS)
    assert by_size.paths(split_call) == {"wrapped"}
    assert by_size.wrapped_ranges(split_call) == [(0, SPLITS)]
    assert by_size.choose(split_call, Method("synth")).program is not None
    for_all = Chooser(table=table(tmp_path, row))
    assert for_all.paths(split_call) == for_all.paths(call) == {"direct"}
    assert Chooser().choose(split_call) == Chooser().choose(call)


def test_rows_for_splits_decide_about_calls_with_splits_only(tmp_path: Path) -> None:
    call = TableCall("alltoall", 4096, "float32", (0, 1, 2, 3))
    split_call = call._replace(has_splits=True)
    rows = table(
        tmp_path,
        {"collective": "alltoall", "backend": "gloo"},
        {"collective": "alltoallv", "max_bytes": 1000, "backend": "gloo"},
        {"collective": "alltoallv", "min_bytes": 1001, "max_bytes": 4096, "algorithm": "planned"},
        {"collective": "alltoallv", "min_bytes": 4097, "max_bytes": 9000, "algorithm": "direct"},
    )
    chooser = Chooser(table=rows, topology="ring:4")
    assert chooser.measures_splits(call)
    assert not chooser.measures_splits(call._replace(ranks=(0, 1)))
    assert [chooser.plans(split_call), chooser.plans(call)] == [True, False]
    chosen = {size: chooser.choose(split_call._replace(size_bytes=size)) for size in (1000, 1001, 4096, 4097, 9001)}
    assert [size for size, choice in chosen.items() if choice.planned] == [1001, 4096]
    assert [size for size, choice in chosen.items() if choice.program is not None] == [4097]
    assert chooser.choose(call) == CallChoice(None, "by the table")
    assert chooser.choose(split_call._replace(kind="int64"), Method("synth", "planned")).planned
    without_network = Chooser(table=rows)
    assert not without_network.plans(split_call)
    assert not without_network.choose(split_call).planned


def test_without_rows_all_to_alls_are_planned_where_a_network_is_named() -> None:
    call = TableCall("alltoall", 4096, "float32", (0, 1, 2, 3))
    chooser = Chooser(topology="ring:4")
    for method, planned in ((None, True), (Method("synth"), True), (Method("gloo"), False)):
        assert chooser.plans(call, method) == chooser.choose(call, method).planned == planned
    assert not chooser.plans(call, Method("synth", "direct"))
    assert not chooser.plans(call._replace(ranks=(0,)))
    assert not chooser.plans(CALL)
    assert Method("synth", "planned") in chooser.methods(call)


def test_a_library_serves_its_ranks_and_sizes(tmp_path: Path) -> None:
    chooser = Chooser("synth", library(tmp_path, group=(4, 5, 6, 7)))
    served = chooser.choose(CALL._replace(ranks=(4, 5, 6, 7)))
    assert served.reason == "in the library"
    assert served.program is not None
    assert served.program.name == "allpairs"
    assert chooser.choose(CALL._replace(size_bytes=8193)).reason == "built in"
    assert chooser.choose(CALL._replace(collective="allgather")).reason == "built in"


def test_a_library_without_a_table_is_not_trusted_and_that_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chooser = Chooser("auto", library(tmp_path))
    assert chooser.choose(CALL._replace(collective="allgather")) == CallChoice(None, NO_TABLE)
    assert caplog.text == ""  # The library has nothing for the call.
    for size in (64, 4096, 1 << 20):
        assert chooser.choose(CALL._replace(size_bytes=size)) == CallChoice(None, NO_TABLE)
    (log_line,) = (record.getMessage() for record in caplog.records)
    assert f"synth tune --library {tmp_path}" in log_line
    tuned = Chooser("auto", chooser.library, table(tmp_path, {"algorithm": "mine", "min_bytes": 64, "max_bytes": 4096}))
    ran = {size: tuned.choose(CALL._replace(size_bytes=size)).program for size in (63, 64, 4096, 4097)}
    assert [size for size, program in ran.items() if program is not None] == [64, 4096]


@pytest.mark.parametrize("backend", ["auto", "gloo", "synth"])
def test_ranges_of_sizes_state_what_a_choice_would(tmp_path: Path, backend: str) -> None:
    rows = ({"max_bytes": 99, "backend": "gloo"}, {"min_bytes": 50, "max_bytes": 4096, "algorithm": "ring"},
            {"type": "int64"}, {"min_bytes": 5000, "max_bytes": 6000, "algorithm": "nowhere"},
            {"ranks": 2, "algorithm": "ring"})  # fmt: skip
    chooser = Chooser(backend, table=table(tmp_path, *rows))
    for call in (CALL, CALL._replace(kind="int64"), CALL._replace(ranks=(0, 1)), CALL._replace(ranks=(0,))):
        ranges = chooser.wrapped_ranges(call)
        assert ranges[0][0] == 0
        assert [low for low, _ in ranges] == sorted({low for low, _ in ranges})
        for size in (0, 49, 50, 99, 100, 4096, 4097, 4999, 5000, 6000, 6001, 1 << 40):
            choice = chooser.choose(call._replace(size_bytes=size))
            reason = next(reason for low, reason in reversed(ranges) if low <= size)
            assert reason is None if choice.program is not None else reason in (choice.reason, None)
            if backend != "synth":
                assert (reason is None) == (choice.program is not None)


def test_ranges_of_sizes_end_where_entries_of_the_library_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = Chooser("auto", library(tmp_path, low=1000, high=8192), table(tmp_path, {}))
    monkeypatch.setattr("runtime.torch.choice.usual", lambda *_: None)  # as for very many ranks
    ranges = chooser.wrapped_ranges(CALL)
    assert [low for low, _ in ranges] == [0, 1000, 8193]
    for size in (0, 999, 1000, 8192, 8193):
        reason = next(reason for low, reason in reversed(ranges) if low <= size)
        assert (reason is None) == (chooser.choose(CALL._replace(size_bytes=size)).program is not None)


def test_a_faulty_file_of_a_library_is_refused_before_it_is_used(tmp_path: Path) -> None:
    folder = library(tmp_path)
    path = folder / "msccl" / "mine.xml"
    path.write_text(path.read_text().replace('type="s"', 'type="nop"', 1))
    chooser = Chooser(library=folder)
    chooser.check(3, True)  # It cannot serve a group of three.
    with pytest.raises(InputError, match=r"library .*mine\.xml"):
        chooser.check(4, True)
    with pytest.raises(InputError, match=r"mine\.xml"):
        chooser.choose(CALL, Method("synth"))


def test_our_own_algorithm_for_every_call() -> None:
    chooser = Chooser("synth")
    for collective in (
        "allreduce",
        "allgather",
        "reducescatter",
        "alltoall",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
    ):
        for ranks in (2, 3, 8):
            for size in (8, 1 << 20):
                program = chooser.choose(TableCall(collective, size, "float32", tuple(range(ranks)), ranks - 1)).program
                assert program is not None
                assert (program.collective, program.nranks) == (collective, ranks)
    assert chooser.choose(TableCall("allreduce", 8, "float32", (0,))).program is None
    assert names("allreduce", 3) == ("ring", "allpairs")


def test_a_table_of_another_machine_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_table(table(tmp_path, machine="elsewhere"))
    assert "measured on elsewhere" in caplog.text
    assert platform.node() in caplog.text


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"backend": "nccl"}, "backend"),
        ({"min_bytes": 9, "max_bytes": 8}, "max_bytes"),
        ({"ranks": 0}, "ranks"),
        ({"colour": 1}, "colour"),
    ],
)
def test_bad_rows(tmp_path: Path, row: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=rf"row 2.*{word}"):
        load_table(table(tmp_path, {}, row))


def test_files_that_the_environment_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="SYNTH_BACKEND=fast; it must be"):
        Chooser.of_environment({"SYNTH_BACKEND": "fast"})
    with pytest.raises(InputError, match=r"nowhere\.json"):
        Chooser.of_environment({"SYNTH_TABLE": str(tmp_path / "nowhere.json")})
    chooser = Chooser.of_environment({"SYNTH_TABLE": str(table(tmp_path, {}))})
    (tmp_path / "b").mkdir()
    other_chooser = Chooser.of_environment({"SYNTH_TABLE": str(table(tmp_path / "b", {"max_bytes": 4}))})
    assert chooser.basis != other_chooser.basis


def test_a_named_algorithm(tmp_path: Path) -> None:
    chooser = Chooser("gloo", library=library(tmp_path, group=(0, 1, 2, 3)))
    methods = chooser.methods(CALL)
    assert methods[0] == Method("gloo")
    for method in methods[1:]:
        program = chooser.choose(CALL._replace(size_bytes=1 << 40), method).program
        assert program is not None
        assert (program.collective, program.nranks) == ("allreduce", 4)
    assert len(methods) == 2 + len(names("allreduce", 4))
    with pytest.raises(
        InputError, match="'none' for allreduce of 4 ranks does not exist; it must be one of: mine, ring"
    ):
        chooser.choose(CALL, Method("synth", "none"))
    assert chooser.methods(CALL._replace(ranks=(0, 1, 2)))[1:] == [Method("synth", n) for n in names("allreduce", 3)]


def test_one_file_is_a_library(tmp_path: Path) -> None:
    (tmp_path / "mine.xml").write_text(write_msccl(built_in("allgather", "ring", 3)))
    chooser = Chooser("synth", library=tmp_path / "mine.xml")
    call = TableCall("allgather", 1 << 20, "float32", (0, 1, 2))
    assert chooser.choose(call).reason == "in the library"
    assert Method("synth", "mine") in chooser.methods(call)
    assert chooser.choose(call._replace(ranks=(0, 1))).reason == "built in"
    chooser.check(3, True)
    for ranks in (2, 4):
        with pytest.raises(InputError, match=rf"mine\.xml: is for 3 ranks, this job has {ranks}; it must be"):
            chooser.check(ranks, True)
        chooser.check(ranks, False)  # A group within a job of three.
    with pytest.raises(InputError, match=r"there\.xml"):
        Chooser(library=tmp_path / "there.xml")


def test_a_row_for_one_group_only(tmp_path: Path) -> None:
    chooser = Chooser(table=table(tmp_path, {"group": [0, 2, 4, 6], "algorithm": "ring"}))
    assert chooser.choose(CALL._replace(ranks=(0, 2, 4, 6))).reason == "by the table"
    assert chooser.choose(CALL).program is None
    for wrong in ([0, 1], [0, 1, 2, "3"], 5):
        with pytest.raises(InputError, match="group"):
            load_table(table(tmp_path, {"group": wrong}))


def test_a_group_in_another_order_has_its_row_and_its_program(tmp_path: Path) -> None:
    folder = library(tmp_path, (4, 5, 6, 7))
    row = {"group": [4, 5, 6, 7], "algorithm": "mine"}
    chooser = Chooser(library=folder, table=table(tmp_path, row))
    choice = chooser.choose(CALL._replace(ranks=(6, 4, 7, 5)))
    assert choice.reason == "by the table"
    assert choice.order == (1, 3, 0, 2)  # The program's rank 0 is the job's rank 4, which is in place 1.
    assert chooser.choose(CALL._replace(ranks=(4, 5, 6, 7))).order is None
    assert chooser.choose(CALL).program is None  # Other ranks.
    other_choice = chooser.choose(CALL, Method("synth"))
    # It was made for other ranks: the order is place by place.
    assert (other_choice.reason, other_choice.order) == ("in the library", None)


def test_a_further_group_of_a_file(tmp_path: Path) -> None:
    """Check that a further group is served as the file's own, in its order; a file for these ranks comes first."""
    folder = library(tmp_path, (0, 1, 2, 3), high=None)
    rows = json.loads((folder / "index.json").read_bytes())["algorithms"]
    rows[0]["isomorphic_groups"] = [[9, 8, 7, 6]]
    (folder / "index.json").write_bytes(index_text(rows))
    chooser = Chooser("synth", folder)
    assert chooser.choose(CALL._replace(ranks=(9, 8, 7, 6))).order is None
    choice = chooser.choose(CALL._replace(ranks=(6, 7, 8, 9)))
    assert (choice.reason, choice.order) == ("in the library", (3, 2, 1, 0))


def test_the_root_of_a_program_is_a_rank_of_the_job(tmp_path: Path) -> None:
    path = tmp_path / "from1.xml"
    path.write_text(write_msccl(built_in("broadcast", "tree", 3, 1)))
    chooser = Chooser("synth", path)
    for ranks, root in (((0, 1, 2), 1), ((2, 0, 1), 2), ((1, 2, 0), 0)):
        reasons = [chooser.choose(TableCall("broadcast", 64, "float32", ranks, at)).reason for at in range(3)]
        assert reasons == ["in the library" if at == root else "built in" for at in range(3)]


@pytest.mark.parametrize(
    "row",
    [
        {"collective": "all_reduce"},
        {"collective": "allredcue"},
        {"type": "float"},
        {"group": [3, 2, 1, 0]},
        {"group": [0, 1, 1, 2]},
        {"group": [-1, 0, 1, 2]},
        {"backend": "gloo", "algorithm": "ring"},
    ],
)
def test_rows_that_would_never_fit_are_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    field = "algorithm" if "algorithm" in row else next(iter(row))
    with pytest.raises(InputError, match=f"row 1.*{field}"):
        load_table(table(tmp_path, row))


def test_an_algorithm_that_does_not_exist_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Chooser(table=table(tmp_path, {"algorithm": "rnig"}, {"algorithm": "ring"}))
    assert [record.getMessage() for record in caplog.records] == [
        f"synth: {tmp_path / 'table.json'}: algorithm rnig for allreduce of 4 ranks does not exist"
    ]


def test_other_files_of_the_same_name_are_another_choice(tmp_path: Path) -> None:
    bases = []
    for place, name in (("a", "ring"), ("b", "allpairs"), ("c", "ring")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "one.xml").write_text(write_msccl(built_in("allreduce", name, 3)))
        bases.append(Chooser(library=tmp_path / place / "one.xml").basis)
    assert bases[0] == bases[2] != bases[1]
    broken = library(tmp_path)
    (broken / "msccl" / "mine.xml").unlink()
    with pytest.raises(InputError, match=r"mine\.xml: no such file"):
        _ = Chooser(library=broken).basis


def test_one_file_serves_its_own_sizes(tmp_path: Path) -> None:
    path = tmp_path / "mine.xml"
    path.write_text(write_msccl(replace(built_in("allreduce", "allpairs", 4), min_bytes=2048, max_bytes=4096)))
    chooser = Chooser("synth", path)
    reasons = {size: chooser.choose(CALL._replace(size_bytes=size)).reason for size in (2047, 2048, 4096, 4097)}
    assert [size for size, reason in reasons.items() if reason == "in the library"] == [2048, 4096]


def test_any_number_of_sizes_takes_no_more_memory(tmp_path: Path) -> None:
    chooser = Chooser("synth", library(tmp_path))

    def call_with(sizes: range) -> int:
        for size in sizes:
            chooser.choose(CALL._replace(size_bytes=size))
            chooser.paths(CALL._replace(size_bytes=size))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = call_with(range(1, 1500))
        assert call_with(range(1500, 5000)) < before + (64 << 10)
    finally:
        tracemalloc.stop()


def test_a_network_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InputError, match=r"SYNTH_TOPOLOGY: .*no-such\.toml"):
        Chooser(topology="no-such.toml")


def test_a_network_of_another_number_of_ranks_is_refused_for_the_whole_job_only() -> None:
    chooser = Chooser(topology="dgx-h100:2")
    chooser.check(4, is_whole_job=False)
    with pytest.raises(InputError, match="has 16 ranks, this job has 4"):
        chooser.check(4, is_whole_job=True)


def test_all_to_alls_are_planned_where_a_network_is_named_and_nothing_else_is_asked_for(tmp_path: Path) -> None:
    chooser = Chooser(topology="dgx-h100:2")
    call = TableCall("alltoall", 0, "float32", (0, 1, 8, 9))
    assert chooser.plans(call)
    assert chooser.plans(call, Method("synth"))
    assert not chooser.plans(call, Method("synth", "direct"))
    assert not chooser.plans(call, Method("gloo"))
    assert not chooser.plans(call._replace(collective="allgather"))
    assert not chooser.plans(call._replace(ranks=(0,)))
    assert not Chooser().plans(call)
    with_row = replace(chooser, table=table(tmp_path, {"collective": "alltoall", "backend": "gloo"}))
    assert not with_row.plans(call)
    assert with_row.plans(call, Method("synth"))
    assert Chooser().basis != chooser.basis != Chooser(topology="dgx-a100:2").basis
