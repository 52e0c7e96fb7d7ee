"""`--groups`: how groups are written, the report, the files, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.app.cli.asking.concurrent import parse_members
from synth.model.collective import uneven
from synth.storage.schedule_file import load_schedule
from synth.verify.replay import replay
from tests.synth.app.cli.calling import Call
from topologies.errors import InputError
from topologies.load import load

RING = ("alltoall", "--topo", "ring:8", "--relay", "all", "--engine", "flow", "--budget", "400ms")


def with_option(arguments: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    """Return the same arguments with another value of an option."""
    place = arguments.index(option) + 1
    return (*arguments[:place], value, *arguments[place + 1 :])


PAIR = (*RING, "--groups", "0-3;allgather@64K:4-7", "--size", "1M")


def test_the_report_and_the_files(synth: Call, working_folder: Path) -> None:
    answer = synth(*PAIR, "--proof")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].startswith("2 groups · ring:8 · 8 of 8 ranks")
    table = [line.split() for line in lines if line.startswith(("0-3", "4-7"))]
    assert [row[0] for row in table] == ["0-3", "4-7"]
    assert [row[1] for row in table] == ["alltoall", "allgather"]
    for message in ("all groups", "alone, in sum", "direct", "gap", "largest slowdown", "× as long"):
        assert message in answer.flat
    (schedule,) = (working_folder / "out" / "schedules").glob("*.synth")
    assert schedule.name in answer.out
    stored = load_schedule(schedule)
    replay(stored.problem, stored.schedule)
    assert stored.problem.group == tuple(range(8))
    proved = synth("prove", schedule)
    assert proved.code == 0, proved.out
    assert "gap = " in proved.out


def test_json_is_one_object(synth: Call, working_folder: Path) -> None:
    answer = synth(*PAIR, "--json", "--proof", "--objective", "fair", "--out", "there")
    report = json.loads(answer.out)
    assert report["objective"] == "fair"
    assert [(g["ranks"], g["collective"], g["size_bytes"]) for g in report["groups"]] == [
        ([0, 1, 2, 3], "alltoall", 1 << 20),
        ([4, 5, 6, 7], "allgather", 1 << 16),
    ]
    assert report["slowdown"] == max(g["slowdown"] for g in report["groups"]) >= 1
    assert report["time_us"] <= report["sum_us"] * (1 + 1e-9)
    assert all((working_folder / path).exists() for path in report["files"])
    assert report["schedule"].startswith("there/schedules/")
    proof = json.loads((working_folder / report["proof_file"]).read_text())
    assert proof["time_us"] == pytest.approx(report["time_us"])
    assert proof["gap"] >= report["gap"] * (1 - 1e-9)


def test_a_group_whose_own_bound_decides_has_a_proof_of_its_own(synth: Call) -> None:
    """Check that a group has its own proof where its own bound is the best.

    Without relays, the bounds of the union do not know that chunks cannot leave their group.
    """
    arguments = ("alltoall", "--topo", "mesh:2x4", "--groups", "0-3;@1K:4-7", "--size", "1M", "--budget", "1s")
    report = json.loads(synth(*arguments, "--proof", "--json").out)
    assert report["relay"] == "none"
    assert report["proved_by"] == 0
    assert [Path(p).name.rsplit("-", 1)[-1] for p in report["files"][2:]] == [
        "group0.synth",
        "group0.proof.json",
    ]
    own = json.loads(Path(report["files"][3]).read_text())
    assert own["bound_us"] == pytest.approx(report["bound_us"])
    assert own["time_us"] == pytest.approx(report["groups"][0]["time_us"])
    for path in report["files"][::2]:
        checked = synth("prove", path)
        assert checked.code == 0, checked.out + checked.err
        assert "proved" in checked.out


def test_broken_parts(synth: Call) -> None:
    """Check that axes span the live ranks, and that no schedule uses a broken part."""
    arguments = ("allgather", "--topo", "mesh:3x3", "--groups", "tp=4", "--group-sizes", "64K,1M")
    faults = ("--without", "rank:4,link:0-1", "--degrade", "link:5-8=50%", "--relay", "all")
    report = json.loads(synth(*arguments, *faults, "--engine", "flow", "--budget", "400ms", "--json").out)
    assert [g["ranks"] for g in report["groups"]] == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert [g["size_bytes"] for g in report["groups"]] == [1 << 16, 1 << 20]
    stored = load_schedule(report["schedule"])
    net, ranks = stored.problem.network, stored.problem.ranks
    used = {(ranks[net.src[i]], ranks[net.dst[i]]) for i in stored.schedule.link.tolist()}
    assert not used & {(0, 1), (1, 0)}
    assert 4 not in {r for pair in used for r in pair}


REFUSED = [
    ((*RING, "--groups", "0-3;4-7"), ("--groups", "--size 64M", "--group-sizes")),
    ((*RING, "--groups", "0-3;4-9", "--size", "1M"), ("--groups", "rank 9", "0 to 7")),
    ((*RING, "--groups", "0-3;;4-7", "--size", "1M"), ("--groups", "empty group")),
    ((*RING, "--groups", "tp=3", "--size", "1M"), ("--groups", "do not divide the 8")),
    ((*RING, "--groups", "0-3;3", "--size", "1M"), ("--groups", "must be at least 2")),
    ((*RING, "--groups", "alltoal:0-3", "--size", "1M"), ("'alltoal'", "did you mean alltoall")),
    ((*RING, "--groups", "alltoallv:0-3", "--size", "1M"), ("alltoallv", "--sizes")),
    ((*RING, "--groups", "0-3@1M;4-7", "--size", "1M"), ("--groups", "'0-3@1M'")),
    ((*RING, "--groups", "allgather@x:0-3", "--size", "1M"), ("--groups", "'x'", "64K")),
    ((*RING, "--groups", "0-3;4-7", "--group-sizes", "1M"), ("--group-sizes", "1 size for 2 groups")),
    ((*RING, "--groups", "@1M:0-3;4-7", "--group-sizes", "1M,1M"), ("--group-sizes", "rank 0", "@1M")),
    ((*RING, "--groups", "0-3;4-7", "--size", "0"), ("--size", "1 byte or more")),
    ((*PAIR, "--group", "0-3"), ("--group:", "--groups")),
    ((*PAIR, "--steps", "3"), ("--steps", "--groups")),
    ((*PAIR, "--rounds", "3"), ("--rounds", "--groups")),
    ((*PAIR, "--objective", "quick"), ("objective", "'quick'", "makespan or fair")),
    (with_option(PAIR, "--engine", "smt"), ("engine", "'smt'", "auto or flow")),
    ((*PAIR, "--target", "nccl"), ("--target 'nccl'", "executor-nccl", "mscclpp")),
    ((*PAIR, "--chunks", "0"), ("chunks", "1 or more")),
    (with_option(PAIR, "--budget", "0"), ("--budget",)),
    ((*PAIR, "--without", "rank:5"), ("--groups", "rank 5", "taken out")),
    ((*PAIR, "--out", "/dev/full"), ("--out", "must be a folder")),
    (with_option(PAIR, "--relay", "9"), ("--relay", "rank 9", "0 to 7")),
    ((*RING, "--group-sizes", "1M"), ("--group-sizes", "--groups")),
    ((*RING, "--objective", "fair"), ("--objective", "--groups")),
    (
        ("broadcast", "--topo", "ring:4", "--groups", "0-1;2-3", "--size", "1K", "--root", "1"),
        ("--root", "first rank"),
    ),
    (
        ("alltoall", "--topo", "ring:8", "--groups", "0,2,4,6;1,3,5,7", "--size", "1K"),
        ("group 0,2,4,6", "rank 2 cannot reach rank 0", "--relay"),
    ),
]


@pytest.mark.parametrize(("arguments", "fragments"), REFUSED)
def test_refused_in_one_line(
    arguments: tuple[str, ...], fragments: tuple[str, ...], synth: Call, working_folder: Path
) -> None:
    line = synth(*arguments).refusal
    for word in fragments:
        assert word in line, line
    assert not list(working_folder.iterdir())


def test_the_option_is_in_the_help(synth: Call) -> None:
    assert "--groups" in synth("allgather", "--help").out


def ranks_of_groups(text: str, nranks: int) -> list[tuple[int, ...]]:
    return [member.ranks for member in parse_members(text, "alltonext", load(f"ring:{nranks}"), size="1K")]


GROUPS = [
    ("0-3;4-7", 8, [(0, 1, 2, 3), (4, 5, 6, 7)]),
    (" 0,2 ; 1,3 ", 4, [(0, 2), (1, 3)]),
    ("3,0", 4, [(3, 0)]),
    ("tp=2", 4, [(0, 1), (2, 3)]),
    ("tp=2,dp=2", 4, [(0, 1), (2, 3)]),
    ("tp=2,dp=2:dp", 4, [(0, 2), (1, 3)]),
    ("tp=2,dp=*:dp", 6, [(0, 2, 4), (1, 3, 5)]),
    ("tp=2,dp=2,pp=2:pp", 8, [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ("tp=2,dp=2:dp", 8, [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ("tp=2,cp=2,dp=2:tp+dp", 8, [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ("tp=2,cp=2,dp=2:dp+tp", 8, [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ("tp=1,dp=4:dp", 4, [(0, 1, 2, 3)]),
    ("x=*", 3, [(0, 1, 2)]),
    ("tp=2;0,3", 4, [(0, 1), (2, 3), (0, 3)]),
    ("tp=2,cp=2;tp=2;tp=2,cp=2,dp=*:dp", 8, [(0, 1), (2, 3), (4, 5), (6, 7)] * 2 + [(0, 4), (1, 5), (2, 6), (3, 7)]),
]


@pytest.mark.parametrize(("text", "nranks", "groups"), GROUPS)
def test_groups_as_written(text: str, nranks: int, groups: list[tuple[int, ...]]) -> None:
    assert ranks_of_groups(text, nranks) == groups


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_groups_along_axes(extents: list[int], data: st.DataObject) -> None:
    """Check that ranks of a group agree in all digits except those of the chosen axes, and that groups are complete."""
    names = "abcd"[: len(extents)]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    nranks = int(np.prod(extents)) * data.draw(st.integers(1, 3))
    size = int(np.prod([e for n, e in zip(names, extents, strict=True) if n in chosen]))
    assume(size > 1)
    text = ",".join(f"{n}={e}" for n, e in zip(names, extents, strict=True)) + ":" + "+".join(chosen)
    groups = ranks_of_groups(text, nranks)
    assert sorted(r for g in groups for r in g) == list(range(nranks))
    assert [g[0] for g in groups] == sorted(g[0] for g in groups)
    for group in groups:
        assert len(group) == size
        assert list(group) == sorted(group)
        fixed_digits = set()
        for rank in group:
            digits = {}
            for name, extent in zip(names, extents, strict=True):
                rank, digits[name] = divmod(rank, extent)
            fixed_digits.add((rank, *(d for n, d in digits.items() if n not in chosen)))
        assert len(fixed_digits) == 1


WRONG = [
    ("", "empty group"),
    ("0-3;", "empty group"),
    ("0;1-3", "group 0 has one rank"),
    ("0,0,1", "rank 0 is given twice"),
    ("0-8", "rank 8 is not in this topology"),
    ("a-b", "not a rank"),
    ("tp=3", "'tp=3' has 3 ranks, which do not divide the 8"),
    ("tp=16", "do not divide"),
    ("tp=2,dp=3,pp=*", "has 6 ranks, which do not divide the 8"),
    ("tp=1", "groups of one rank"),
    ("tp=8,dp=*:dp", "groups of one rank"),
    ("tp=0", "'tp=0' is no axis"),
    ("=4", "no axis"),
    ("tp=2,", "'' is no axis"),
    ("tp=2,tp=2", "tp is given twice"),
    ("tp=*,dp=*", r"several \*"),
    ("tp=2:dp", "'dp' in 'tp=2:dp' is no axis of it; it must be one of tp"),
    ("tp=2:", "'' in"),
    # The user means every second rank, not blocks of four.
    ("tp=2;dp=4:dp", r"'dp=4:dp' is not of the mesh of 'tp=2' .* 0 1 2 3 …\); it must be 'tp=2,dp=4:dp'"),
    ("tp=2;allreduce:dp=2", r"it must be 'tp=2,dp=2:dp'"),
    ("tp=2;dp=*:dp", r"as in tp=8;tp=8,dp=\*:dp"),
    ("tp=2,dp=4;dp=4,tp=2:dp", r"it must be 'tp=2,dp=4:dp'"),
    ("tp=2;tp=4", "not of the mesh of 'tp=2'"),
    ("tp=2,dp=4:dp;tp=2,pp=4:pp", "not of the mesh of"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_groups_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        ranks_of_groups(text, 8)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).startswith("--groups: ")


PARSED = [
    ("0-3;4-7", [((0, 1, 2, 3), "alltoall", 1024), ((4, 5, 6, 7), "alltoall", 1024)]),
    ("0,2;allgather:1,3", [((0, 2), "alltoall", 1024), ((1, 3), "allgather", 1024)]),
    ("all_gather@64K:0-1; @2K:2-3", [((0, 1), "allgather", 65536), ((2, 3), "alltoall", 2048)]),
    ("tp=4", [((0, 1, 2, 3), "alltoall", 1024), ((4, 5, 6, 7), "alltoall", 1024)]),
    (
        "allreduce@1M:tp=2,dp=*:dp",
        [((0, 2, 4, 6), "allreduce", 1 << 20), ((1, 3, 5, 7), "allreduce", 1 << 20)],
    ),
]


@pytest.mark.parametrize(("text", "right"), PARSED)
def test_groups_with_collectives_and_sizes(text: str, right: list[tuple[tuple[int, ...], str, int]]) -> None:
    members = parse_members(text, "alltoall", load("ring:8"), size="1K")
    assert [(m.ranks, m.collective.name, m.size_bytes) for m in members] == right
    assert all(m.collective.nranks == len(m.ranks) for m in members)


def test_axes_are_over_the_ranks_that_live() -> None:
    ring = load("ring:9")
    members = parse_members("tp=4", "alltoall", ring, dead=(2,), size="1K")
    assert [m.ranks for m in members] == [(0, 1, 3, 4), (5, 6, 7, 8)]
    with pytest.raises(InputError, match="rank 2 is taken out"):
        parse_members("0-3;5-8", "alltoall", ring, dead=(2,), size="1K")
    sized = parse_members("0-1;3-4", "alltoall", ring, sizes="1K,2K")
    assert [m.size_bytes for m in sized] == [1024, 2048]
    own = uneven("alltoallv", [[0, 1], [2, 0]])
    assert [m.collective for m in parse_members("0-1;3-4", own, ring, size="1K")] == [own, own]


@pytest.mark.usefixtures("working_folder")
def test_a_library_takes_a_reduction_program_where_it_is_faster(synth: Call) -> None:
    question = ("allreduce", "--topo", "dgx-a100:2", "--groups", "0-1,8-9", "--size", "64M", "--costs", "none")
    arguments = (*question, "--budget", "60s")
    report = json.loads(synth(*arguments, "--target", "none", "--json", "--out", "there").out)
    programs = [plan["time_us"] for name, plan in report["plans"].items() if name.startswith("reduction program: ")]
    assert len(programs) >= 2
    assert report["time_us"] <= min(programs) * (1 + 1e-9)
    without = json.loads(synth(*arguments, "--target", "none", "--json", "--out", "there", "--chunks", "1").out)
    assert not any(name.startswith("reduction program") for name in without["plans"])


def test_a_library_of_groups_with_its_proof_is_checked(synth: Call, working_folder: Path) -> None:
    arguments = ("--topo", "ring:4", "--groups", "0-1;2-3", "--size", "1M", "--engine", "flow", "--budget", "1s")
    assert synth("allreduce", *arguments, "--proof").code == 0
    assert "1 schedule, 1 proof: all right" in synth("library", "check", "out").out
    index = json.loads((working_folder / "out" / "index.json").read_text())
    for wrong, message in (
        ({"groups": []}, "which its entry's groups do not name"),
        ({"topology": "ring:5"}, "is for topology ring:4, its entry says ring:5"),
    ):
        rows = [index["algorithms"][0] | wrong, *index["algorithms"][1:]]
        (working_folder / "out" / "index.json").write_text(json.dumps(index | {"algorithms": rows}))
        checked = synth("library", "check", "out")
        assert checked.code == 1
        assert message in checked.flat
