"""`synth library show | pick | diff | check | export` on libraries whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emit.library.index import index_text
from emit.library.overlay import LibraryFault
from emit.msccl.format import write_msccl
from emit.timing.predict import Predictor
from runtime.algorithms.built_in import built_in
from tests.emit.library.made_indices import entry_row
from tests.synth.app.cli.calling import Call
from topologies.load import load

RANKS = [0, 1, 2, 3]


def library(folder: Path, algorithm: str, **changes: Any) -> Path:
    """Write a library with an all-reduce on full:4 and its time, which also serves the ranks rotated by one."""
    (folder / "msccl").mkdir(parents=True)
    program = built_in("allreduce", algorithm, 4)
    time_us = Predictor(program, load("full:4"), RANKS).time_us(1 << 20)
    row = entry_row(topology="full:4", group=RANKS, communicator=RANKS, protocol=program.protocol, divides=4,
                    time_us=time_us, bound_us=time_us, shown_bytes=1 << 20, gap=1.0, libraries={"NCCL": {"vs": 1.5}},
                    isomorphic_groups=[[1, 2, 3, 0]])  # fmt: skip
    (folder / "msccl" / "a.xml").write_text(write_msccl(program))
    (folder / "index.json").write_bytes(index_text([row | changes]))
    return folder


def test_show(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring")
    shown = synth("library", "show", lib, "--wide")
    assert (shown.code, shown.err) == (0, "")
    topology, _, head, title, row, *_, end = shown.out.splitlines()
    assert topology == "full:4"
    assert [word in head for word in ("size", "algorithm", "predicted", "bound", "gap", "vs NCCL")] == [True] * 6
    assert title == "allreduce, ranks 0-3 and 1 more group, in place:"
    assert [word in row for word in ("all sizes", "1.000", "1.50 ×")] == [True] * 3
    assert end == "1 file for 2 groups"
    one_group = synth("library", "show", lib, "--group", "3,0-2", "--collective", "all_reduce", "--wide")
    assert one_group.out == shown.out
    report = json.loads(synth("library", "show", lib, "--json").out)
    assert report["entries"] == json.loads((lib / "index.json").read_bytes())["algorithms"]


def test_show_says_which_form_of_calls_has_no_file_and_which_failures_have_answers(
    synth: Call, working_folder: Path
) -> None:
    lib = library(working_folder / "lib", "ring", engine="ring")
    assert "no file for calls out of place (allreduce of 0-3)" in synth("library", "show", lib).flat
    (row,) = json.loads((lib / "index.json").read_bytes())["algorithms"]
    rows = [row, row | {"file": "msccl/b.xml", "inplace": False}]
    (lib / "index.json").write_bytes(index_text(rows))
    assert "no file for calls" not in synth("library", "show", lib).flat
    fault = LibraryFault(("link:0-1",), "full:4", frozenset(), frozenset())
    (lib / "faults" / "link-0-1").mkdir(parents=True)
    (lib / "faults" / "link-0-1" / "fault.json").write_bytes(fault.text())
    assert "answers for failures: link:0-1 in faults/link-0-1" in synth("library", "show", lib).flat


def test_all_ranks_under_a_failure_are_those_that_are_left(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring")
    (lib / "msccl" / "b.xml").write_text(write_msccl(built_in("allreduce", "ring", 3)))
    rows = json.loads((lib / "index.json").read_bytes())["algorithms"]
    left = {"topology": "full:4 without rank:3", "nranks": 3, "group": [0, 1, 2], "communicator": [0, 1, 2]}
    rows.append(entry_row(**left, file="msccl/b.xml", protocol="Simple", divides=3))
    (lib / "index.json").write_bytes(index_text(rows))
    picked = synth("library", "pick", lib, "allreduce", "all", "3M")
    assert (picked.code, picked.err) == (0, "")
    assert "b.xml" in picked.out


def test_details_state_what_the_index_knows_of_each_entry(synth: Call, working_folder: Path) -> None:
    worst = {"bytes": 4096, "time_us": 3.0, "bound_us": 2.0, "gap": 1.5}
    shape = {"engine": "flow", "steps": 6, "rounds": 7, "chunks": 2, "schedule": "schedules/a.synth"}
    lib = library(working_folder / "lib", "ring", **shape, proof="cut {0}", worst=worst)
    brief, shown = synth("library", "show", lib), synth("library", "show", lib, "--details")
    assert (shown.code, shown.err) == (0, "")
    assert max(map(len, shown.out.splitlines())) <= 80
    flat = " ".join(shown.out.split())
    for words in ("engine flow, 6 steps, 7 rounds, 2 chunks", "cut {0}", "worst in range: 1.500 @ 4K", "vs NCCL 1.50 ×",
                  "multiples of 4 elements", "file: msccl/a.xml", "schedule: schedules/a.synth"):  # fmt: skip
        assert (words in flat, words in brief.out) == (True, False)
    assert "--details" in synth("library", "show", "--help").out


def test_a_narrow_terminal_shows_bounds_and_nccl_once_for_both_forms(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring")
    (row,) = json.loads((lib / "index.json").read_bytes())["algorithms"]
    for slower_by, titles in (
        (1.0, ["allreduce, ranks 0-3 and 1 more group:"]),
        (2.0, [f"allreduce, ranks 0-3 and 1 more group, {form}:" for form in ("in place", "out of place")]),
    ):
        other = row | {"file": "msccl/b.xml", "inplace": False, "time_us": row["time_us"] * slower_by, "gap": slower_by}
        (lib / "index.json").write_bytes(index_text([row, other]))
        lines = synth("library", "show", lib).out.splitlines()
        assert max(map(len, lines)) <= 80
        assert {"predicted", "bound", "gap", "NCCL"} <= set(lines[2].split())
        assert [line for line in lines if line.endswith(":")] == titles
        assert "--wide also shows algorithm; --details shows all of each file" in lines


def test_a_row_that_is_the_same_for_both_forms_of_calls_is_shown_once(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring", max_bytes=1 << 20)
    (row,) = json.loads((lib / "index.json").read_bytes())["algorithms"]
    larger = row | {"file": "msccl/b.xml", "min_bytes": (1 << 20) + 1, "max_bytes": 1 << 30, "shown_bytes": 1 << 21}
    others = [row | {"file": "msccl/c.xml"}, larger | {"file": "msccl/d.xml", "time_us": 2 * row["time_us"]}]
    rows = [row, larger, *(other | {"inplace": False} for other in others)]
    (lib / "index.json").write_bytes(index_text(rows))
    lines = synth("library", "show", lib, "--wide").out.splitlines()
    question = "allreduce, ranks 0-3 and 1 more group"
    forms = "in place and out of place", "in place", "out of place"
    assert [line for line in lines if line.endswith(":")] == [f"{question}, {form}:" for form in forms]
    assert [sum(words in line for line in lines) for words in (" up to 1 MiB ", " >1 MiB to 1 GiB ")] == [1, 2]


def test_pick(synth: Call, working_folder: Path) -> None:
    """Check that pick names the file and its order of ranks, or the first reason why there is none."""
    lib = library(working_folder / "lib", "ring", min_bytes=64, max_bytes=1 << 20)

    def picked(*arguments: object, code: int = 0) -> str:
        answer = synth("library", "pick", lib, *arguments)
        assert (answer.code, answer.err) == (code, "")
        return answer.out

    assert picked("all_reduce", "0-3", "64K").startswith(
        f"{lib}/msccl/a.xml\n  executor-nccl, serves 64 B to 1 MiB in place"
    )
    assert "in the order 1,2,3,0" not in picked("allreduce", "1,2,3,0", "64K")
    ordered = " ".join(picked("allreduce", "3,2,1,0", "64K").split())
    assert ordered.endswith("the communicator's ranks must be in the order 0,1,2,3")
    for arguments, why in (
        (("allgather", "0-3", "64K"), "no file for allgather; there are allreduce"),
        (("allreduce", "0-2", "64K"), "none of allreduce for ranks 0,1,2; there are files for 0-3 or 1-3,0"),
        (("allreduce", "0-3", "64K", "--target", "rccl"), "none for executor rccl; there are executor-nccl"),
        (("allreduce", "0-3", "64K", "--out-of-place"), "none for calls out of place"),
        (("allreduce", "0-3", "2M"), "files are for 64 B to 1 MiB, not for 2 MiB"),
        (("allreduce", "all", "2049K"), "files are for 64 B to 1 MiB, not for 2098176 bytes"),
        (("allreduce", "0-3", "72"), "msccl/a.xml serves multiples of 16 bytes; 72 B is not one of them"),
    ):
        assert " ".join(picked(*arguments, code=1).split()) == f"no file, so the executor's own algorithm runs: {why}"
    assert "serves" in picked("allreduce", "0-3", "72", "--type", "half")
    report = json.loads(picked("allreduce", "3,2,1,0", "64K", "--json"))
    assert report["found"][0]["communicator"] == RANKS


def test_a_pattern_is_served_by_files_only(synth: Call, working_folder: Path) -> None:
    """Check that no text and no field names a library's own algorithm for it, and that a collective's do."""
    (working_folder / "halo.toml").write_text('name = "halo"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = "1-3"\n')
    for command, name, is_named in ((("pattern", "halo.toml"), "halo", False), (("broadcast",), "broadcast", True)):
        asked = ("--topo", "dgx-a100", "--group", "0-3", "--size", "1M", "--budget", "2s", "--out", name)
        answer = synth(*command, *asked)
        assert ("fallback" in answer.flat, "own serves" in answer.flat) == (not is_named, is_named)
        entries = json.loads((working_folder / name / "index.json").read_text())["algorithms"]
        assert {row["otherwise"] != "nothing" for row in entries} == {is_named}
        shown, picked = synth("library", "show", name).flat, synth("library", "pick", name, name, "0-3", "3M").flat
        assert ("NCCL" in shown + picked or "the executor's own algorithm runs" in picked) == is_named
        assert "no executor has one of its own" in picked or is_named
        assert synth("library", "check", name).code == 0


def test_pick_names_no_file_that_is_missing(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring")
    (lib / "msccl" / "a.xml").unlink()
    refusal = synth("library", "pick", lib, "allreduce", "0-3", "64K").refusal
    assert ("msccl/a.xml: is missing" in refusal, "build it anew" in refusal) == (True, True)


def test_an_update_of_a_library_of_another_topology_is_refused(synth: Call, working_folder: Path) -> None:
    """Check that nothing is searched or written for a cluster whose library is in another folder."""
    lib = library(working_folder / "lib", "ring")
    cluster = working_folder / "cluster.toml"
    cluster.write_text('topology = "ring:4"\ngroups = ["0-3"]\ncollectives = ["allgather"]\n')
    refusal = synth("library", "update", cluster, "--out", lib, "--without", "rank:3").refusal
    assert "is a library of full:4; it must be that of ring:4" in refusal
    assert not (lib / "faults").exists()


def test_a_failure_of_a_rank_states_its_cost_by_size_and_which_ranks_are_left(
    synth: Call, working_folder: Path
) -> None:
    """Check the table and the JSON of an update, and what pick says before it, for the dead rank and without it."""
    cluster, lib = "cluster.toml", "lib"
    (working_folder / cluster).write_text(
        'topology = "dgx1"\ngroups = ["0-3"]\ncollectives = ["allgather"]\nbudget = "1s"\n'
    )
    assert synth("library", "build", cluster, "--out", lib, "--jobs", "1").code == 0
    picked = ("library", "pick", lib, "allgather")
    early = synth(*picked, "0-3", "1M", "--without", "rank:2").refusal
    assert f"has no answers for it yet; make them with synth library update CLUSTER.toml --out {lib}" in early
    update = ("library", "update", cluster, "--out", lib, "--without", "rank:2", "--jobs", "1")
    text = synth(*update).out
    assert [line.split()[0] for line in text.splitlines() if " → 0,1,3 " in line] == ["allgather"] * 3
    assert max(map(len, text.splitlines())) <= 80
    (failure,) = json.loads(synth(*update, "--json").out)["failures"]
    assert {(*cost["group"], *cost["group_after"]) for cost in failure["costs"]} == {(0, 1, 2, 3, 0, 1, 3)}
    assert failure["slower"] == pytest.approx(
        max(
            next(after / before for _, before, after in cost["times"][::-1] if before and after)
            for cost in failure["costs"]
        )
    )
    dead = synth(*picked, "0-3", "1M", "--without", "rank:2").flat
    assert dead.endswith("rank 2 is dead in this failure; ask for the ranks that are left: 0,1,3")
    other = synth(*picked, "0-3", "1M", "--without", "rank:1").refusal
    assert "it must be one that synth library update wrote: rank:2" in other


def test_pick_knows_all_ranks_and_refuses_sizes_that_the_call_cannot_have(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring")
    assert (
        synth("library", "pick", lib, "allreduce", "all", "64K").out
        == synth("library", "pick", lib, "allreduce", "0-3", "64K").out
    )
    refused = synth("library", "pick", lib, "allreduce", "0-99", "64K")
    assert (refused.code, refused.out, "rank 99 is not in this topology" in refused.err) == (2, "", True)
    for collective, sizes, why in (
        ("allreduce", "1,2", "--sizes: allreduce has blocks of one size"),
        ("allgatherv", "1,2", "--sizes: has 2 sizes; it must be 4, one a rank"),
        ("alltoallv", "1,2,3,4", "--sizes: has 4 sizes; it must be 16, one a pair of ranks, row by row"),
    ):
        refused = synth("library", "pick", lib, collective, "all", "64K", "--sizes", sizes)
        assert (refused.code, refused.out) == (2, "")
        assert why in refused.err
    for name in ("nowhere", 99 * "nowhere"):
        refused = synth("library", "pick", lib, "allreduce", "all", "64K", "--topology", name)
        assert (refused.code, "the library has no file for it; it must be one of full:4" in refused.err) == (2, True)
        assert len(refused.err) <= 161  # with the end of the line


def test_show_has_the_ranges_that_no_file_serves(synth: Call, working_folder: Path) -> None:
    """Check that they stand between those of the files, and only up to the largest size of a question."""
    lib = library(working_folder / "lib", "ring", min_bytes=4096, max_bytes=1 << 20)
    (row,) = json.loads((lib / "index.json").read_bytes())["algorithms"]
    (lib / "index.json").write_bytes(
        index_text([row, row | {"file": "msccl/b.xml", "min_bytes": 1 << 22, "max_bytes": None}])
    )
    lines = synth("library", "show", lib).out.splitlines()
    title = next(number for number, line in enumerate(lines) if line.endswith(":"))
    shown = [(" ".join(line.split("  ")[1:2]), "no file" in line) for line in lines[title + 1 : title + 5]]
    ranges = ("below 4 KiB", True), ("4 KiB to 1 MiB", False), (">1 MiB to <4 MiB", True), ("from 4 MiB", False)
    assert shown == list(ranges)
    assert "no file: NCCL's own algorithm serves these sizes" in lines
    (lib / "index.json").write_bytes(index_text([row | {"max_bytes": 4096}]))  # The answer for one size.
    assert "no file" not in synth("library", "show", lib).out


def test_show_keeps_the_ranges_of_each_root_together(synth: Call, working_folder: Path) -> None:
    """Check that two roots whose ranges begin at the same sizes have no sizes without a file."""
    lib = library(working_folder / "lib", "ring")
    (row,) = json.loads((lib / "index.json").read_bytes())["algorithms"]
    row |= {"collective": "broadcast", "isomorphic_groups": []}
    ranges = {"min_bytes": 0, "max_bytes": 4095}, {"min_bytes": 4096, "max_bytes": None}
    rows = [
        row | {"root": root, "file": f"msccl/{root}{n}.xml"} | ends for root in (0, 1) for n, ends in enumerate(ranges)
    ]
    (lib / "index.json").write_bytes(index_text(rows))
    shown = synth("library", "show", lib).out
    assert shown.count("from 4 KiB") == 2
    assert "no file" not in shown


def test_pick_takes_the_only_form_of_calls_that_the_library_has(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring", inplace=False)
    assert " out of place" in synth("library", "pick", lib, "allreduce", "0-3", "64K").flat


def test_diff(synth: Call, working_folder: Path) -> None:
    """Check the times of the programs at each size, of both groups; a library is as fast as itself everywhere."""
    ring_library, allpairs_library = (
        library(working_folder / "a", "ring"),
        library(working_folder / "b", "allpairs", max_bytes=1 << 20),
    )
    same = synth("library", "diff", ring_library, ring_library)
    assert same.flat == (
        "of 22 questions and sizes: B is faster at 0, slower at 0, as fast at 22; B / A 1.000 in the geometric mean"
    )
    rows = json.loads(synth("library", "diff", ring_library, allpairs_library, "--sizes", "1K:4M", "--json").out)[
        "rows"
    ]
    assert [row["bytes"] for row in rows] == [1 << e for e in range(10, 23, 2)] * 2
    for row in rows:
        times = [
            Predictor(built_in("allreduce", name, 4), load("full:4"), row["group"]).time_us(row["bytes"])
            for name in ("ring", "allpairs")
        ]
        served = row["bytes"] <= 1 << 20
        assert [row["a_us"], row["b_us"]] == [times[0], times[1] if served else None]
        assert row["b_over_a"] == (times[1] / times[0] if served else None)
    output = synth("library", "diff", ring_library, allpairs_library, "--sizes", "1K:4M").out
    assert "only A serves 2" in output
    assert "no file" in output
    wide = synth("library", "diff", ring_library, allpairs_library, "--wide").out.splitlines()[0]
    assert wide.split() == ["collective", "group", "target", "place", "size", "A", "B", "B", "/", "A"]


def test_diff_shows_times_that_are_not_known(synth: Call, working_folder: Path) -> None:
    libs = [library(working_folder / name, "ring", topology="unknown", isomorphic_groups=[]) for name in "ab"]
    output = synth("library", "diff", *libs, "--sizes", "256K:4M").out
    assert [line.count("not known") for line in output.splitlines() if "allreduce" in line] == [2, 2]
    assert "as fast at 1" in output  # The index states the time at 1 MiB.


def test_check_and_export(synth: Call, working_folder: Path) -> None:
    lib = library(working_folder / "lib", "ring")
    right = synth("library", "check", lib)
    assert right.code == 0
    assert right.flat.endswith(f"{lib}: 1 file, 0 schedules, 0 proofs: nothing wrong, 1 file not proved")
    assert "bound_us, gap" in right.flat  # The index states them, and there is no proof.
    for form, name in (
        ("table", "library.table"),
        ("table", "synth_table.h"),
        ("executor-nccl", "full-4-1.2.3.0/env.sh"),
    ):
        assert synth("library", "export", lib, "--for", form, "-o", "out").code == 0
        assert (working_folder / "out" / name).is_file()
    (working_folder / "m.csv").write_text(
        "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us\nallreduce,1024,ring,ll,2,1,4,3.5\n"
    )
    assert synth("library", "export", lib, "--for", "nccl-tuner", "--measured", "m.csv", "-o", "out").code == 0
    lines = (working_folder / "out" / "nccl_tuner.conf").read_text().splitlines()
    assert lines[-1] == "allreduce,0,18446744073709551615,ring,ll,2,1,4,-1,-1"
    path = lib / "msccl" / "a.xml"
    path.write_text(path.read_text().replace('type="s"', 'type="r"', 1))
    wrong = synth("library", "check", lib)
    assert (wrong.code, wrong.err) == (1, "")
    assert wrong.flat.startswith(f"{path}: wrong: wrong: ")
    assert json.loads(synth("library", "check", lib, "--json").out)["wrong"][0]["file"] == "msccl/a.xml"


def test_check_refuses_groups_that_are_not_isomorphic(synth: Call, working_folder: Path) -> None:
    """Check that a group is refused where it uses a missing link, or where it names a rank that does not exist."""
    for number, (group, words) in enumerate((([0, 2, 1, 3], "no link"), ([0, 1, 2, 9], "names rank 9, ring:4 has 4"))):
        lib = library(working_folder / str(number), "ring", topology="ring:4", isomorphic_groups=[group])
        answer = synth("library", "check", lib)
        assert (answer.code, words in answer.out) == (1, True)
    right = library(working_folder / "right", "ring", topology="ring:4", isomorphic_groups=[[1, 2, 3, 0]])
    rows = json.loads((right / "index.json").read_bytes())["algorithms"]
    program = built_in("allreduce", "ring", 4)
    rows[0]["time_us"] = rows[0]["bound_us"] = Predictor(program, load("ring:4"), RANKS).time_us(1 << 20)
    (right / "index.json").write_bytes(index_text(rows))
    assert synth("library", "check", right).code == 0
