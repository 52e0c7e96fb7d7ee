"""Bad input: one line on stderr, exit code 2, no traceback, and no file written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.synth.app.cli.calling import Call

ALLREDUCE = ("allreduce", "--topo", "dgx1")
PAIR = (*ALLREDUCE, "--group", "0,1")

# Arguments, and fragments that the line must contain.
ASKED: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    # Names.
    (("allreduce", "--topo", "dgx-a10"), ("'dgx-a10'", "did you mean dgx-a100")),
    (("allreduce", "--topo", "nosuchthing"), ("not known", "synth topo list")),
    (("allreduce", "--topo", ""), ("--topo", "is empty")),
    (("allreduce", "--topo", "dgx1\nx"), ("not known",)),
    (("allreduc", "--topo", "dgx1"), ("'allreduc'", "did you mean allreduce")),
    (("all_redcue", "--topo", "dgx1"), ("'all_redcue'", "did you mean allreduce")),
    (("--nonsense",), ("--nonsense",)),
    ((*ALLREDUCE, "--nonsense"), ("--nonsense",)),
    ((*ALLREDUCE, "extra"), ("extra",)),
    (("allreduce",), ("which network", "--topo", "synth topo list")),
    (("allreduce", "dgx1"), ("which network", "synth allreduce --topo dgx1 ")),
    (("reduce", "my net.toml", "--root", "1"), ("synth reduce --topo 'my net.toml' ",)),
    ((*ALLREDUCE, "--root", "1"), ("allreduce has no root", "broadcast, reduce")),
    (("topo", "lst"), ("lst",)),
    (("topo", "show", "nosuchthing"), ("not known",)),
    (("topo", "check", "none.toml"), ("none.toml", "no such file")),
    (("verify",), ("FILE",)),
    (("pattern", "none.toml", "--topo", "dgx1"), ("none.toml", "no such file")),
    (("alltoallv", "--topo", "dgx1"), ("--sizes",)),
    (("alltoallv", "--topo", "dgx1", "--sizes", "none.csv"), ("none.csv", "no such file")),
    # Formulas and topologies of more than one node.
    (("allreduce", "--topo", "ring:0"), ("'ring:0'", "ring:8")),
    (("allreduce", "--topo", "torus:4xx4"), ("'torus:4xx4'", "torus:8x8x8")),
    (("allreduce", "--topo", "torus:99999x99999"), ("too large",)),
    (("allreduce", "--topo", "ring:8,bw=0"), ("bw='0'", "GB/s")),
    (("allreduce", "--topo", "ring:8,bw=-1"), ("bw='-1'", "GB/s")),
    (("allreduce", "--topo", "ring:8,bw=nan"), ("bw='nan'", "GB/s")),
    (("allreduce", "--topo", "ring:8,color=red"), ("color",)),
    (("allreduce", "--topo", "dgx1:2"), ("[nic]",)),
    (("allreduce", "--topo", "dgx-a100:0"), ("'0'", "dgx-a100:2")),
    # Groups, relays and roots.
    ((*ALLREDUCE, "--group", "0,9"), ("--group", "rank 9", "0 to 7")),
    ((*ALLREDUCE, "--group", "0,1,0"), ("--group", "rank 0", "twice")),
    ((*ALLREDUCE, "--group", "0-3,2"), ("--group", "rank 2", "twice")),
    ((*ALLREDUCE, "--group", "3"), ("synth: --group: has 1 rank", "at least 2")),
    ((*ALLREDUCE, "--group", ""), ("--group",)),
    ((*ALLREDUCE, "--group", "a,b"), ("--group", "'a'", "0,2,4-7")),
    ((*ALLREDUCE, "--group", "3-0"), ("--group", "0-3")),
    ((*ALLREDUCE, "--group", "-1,2"), ("--group",)),
    ((*ALLREDUCE, "--group", "0,7"), ("rank 7", "rank 0", "--relay 3")),
    (("allgather", "--topo", "line:4", "--group", "0,3"), ("rank 0", "rank 3", "--relay 1,2")),
    ((*PAIR, "--relay", "1"), ("synth: --relay: ", "rank 1", "in the group")),
    ((*PAIR, "--relay", "99"), ("--relay", "rank 99", "0 to 7")),
    ((*PAIR, "--relay", "some"), ("--relay", "'some'")),
    (("broadcast", "--topo", "dgx1", "--group", "0,1", "--root", "5"), ("synth: --root: ", "rank 5", "0,1")),
    ((*PAIR, "--engine=flw"), ("synth: --engine: 'flw' is not known", "did you mean flow")),
    ((*PAIR, "--sms", "0"), ("synth: --sms 0: is not possible",)),
    ((*PAIR, "--chunks", "0"), ("synth: --chunks: 0 is not possible",)),
    (
        ("reconfigure", "alltoall", "--states", ""),
        ("synth: --states: is empty; it must be as in 'ring:8 + axes:2x2x2'",),
    ),
    (("reconfigure", "alltoall", "--states", "ring:4 +"), ("synth: --states 'ring:4 +': ", "'ring:8 + axes:2x2x2'")),
    (("broadcast", "--topo", "dgx1", "--root", "-1"), ("root", "rank -1")),
    (("broadcast", "--topo", "dgx1", "--root", "x"), ("--root", "'x'")),
    # Options that contradict each other.
    ((*PAIR, "--compare", "route,flow", "--out", "o"), ("--out", "--compare", "writes no files")),
    ((*PAIR, "--compare", "route,flow", "--target", "msccl"), ("--target", "--compare")),
    (("bench", "lib", "-f", "2", "-i", "1M"), ("-i", "-f", "use one of them")),
    (("report", "x.synth", "--topo", "dgx1", "-o", "x.html"), ("--topo", "names its own network")),
    ((*ALLREDUCE, "--size"), ("synth: --size: has no value", "must follow", "--help")),
    (("bench", "nosuch"), ("nosuch: no such file", "a library's folder", ".xml", ".json", ".synth")),
    (("verify", "nosuch"), ("nosuch: no such file", "an MSCCL XML (.xml) or a plan (.json)")),
    (("topo", "show", "dgx1", "--format", "dot"), ("--format", "'dot' is not known", "toml, graphml, gml, json")),
    (("topo", "show", "dgx1", "--format", "grapml"), ("--format", "did you mean graphml")),
    # Budgets that cannot hold the networks of so many ranks behind switches.
    (("allreduce", "--topo", "dgx-h100:128", "--budget", "3s"), ("3s is too short for 1024 ranks", "--budget 1")),
    # Numbers.
    ((*PAIR, "--size", "many"), ("--size", "'many'", "64K")),
    ((*PAIR, "--size", "0"), ("--size", "1 byte or more")),
    ((*PAIR, "--size", "-5"), ("--size", "negative")),
    ((*PAIR, "--size", "1e300"), ("--size",)),
    ((*PAIR, "--size", "9" * 25), ("--size", "too large")),
    ((*PAIR, "--chunks", "0"), ("chunks", "1 or more")),
    ((*PAIR, "--chunks", "-3"), ("chunks", "1 or more")),
    ((*PAIR, "--chunks", "x"), ("--chunks", "'x'")),
    ((*PAIR, "--steps", "0"), ("steps", "1 or more")),
    ((*PAIR, "--rounds", "0"), ("rounds", "1 or more")),
    ((*PAIR, "--seed", "x"), ("--seed", "'x'")),
    *(((*PAIR, "--budget", text), ("--budget",)) for text in ("0", "-1", "abc", "nan", "inf", "", "1e309")),
    ((*PAIR, "--engine", "magic"), ("engine", "'magic'", "route")),
    ((*PAIR, "--target", "magic"), ("--target", "'magic'", "executor-nccl", "rccl", "msccl")),
    (("verify", "x.xml", "--depth", "0"), ("--depth",)),
    # Folders. Permissions do not stop root; these cases do.
    ((*PAIR, "--out", "/etc/passwd/below"), ("--out", "/etc/passwd")),
    ((*PAIR, "--out", "/dev/full"), ("--out", "must be a folder")),
    ((*PAIR, "--out", "/proc/synth-out"), ("--out", "/proc/synth-out")),
]


@pytest.mark.parametrize(("arguments", "fragments"), ASKED, ids=lambda x: " ".join(x)[-50:])
def test_refused(synth: Call, working_folder: Path, arguments: tuple[str, ...], fragments: tuple[str, ...]) -> None:
    line = synth(*arguments).refusal
    for word in fragments:
        assert word in line
    assert list(working_folder.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("allreduc", "--topo", "dgx1"),
        (*PAIR, "--out", "/etc/passwd/below"),
    ],
)
def test_refused_by_a_real_process(process: Call, working_folder: Path, arguments: tuple[str, ...]) -> None:
    assert process(*arguments).refusal
    assert list(working_folder.iterdir()) == []


@pytest.mark.parametrize("pin", ["--chunks", "--steps"])
def test_huge_pins_end_soon(process: Call, working_folder: Path, pin: str) -> None:
    """Check that huge values are refused, called impossible or left without an answer, with no hang and no crash."""
    answer = process("allgather", "--topo", "ring:4", pin, 10**9, "--budget", "2s")
    assert "Traceback" not in answer.err
    assert answer.code in (1, 2)
    assert list(working_folder.iterdir()) == []


LINK = '[[links]]\nfrom = "0"\nto = "1"\nboth = true\nalpha_us = 0.7\ngbs = '
TOPOLOGIES = {
    "zero bandwidth": (f'name = "t"\nranks = 2\n{LINK}0\n', (":8:", "gbs", "0")),
    "negative bandwidth": (f'name = "t"\nranks = 2\n{LINK}-25\n', (":8:", "gbs", "-25")),
    "bandwidth not a number": (f'name = "t"\nranks = 2\n{LINK}nan\n', (":8:", "gbs", "nan")),
    "infinite bandwidth": (f'name = "t"\nranks = 2\n{LINK}inf\n', (":8:", "gbs", "inf")),
    "text for bandwidth": (f'name = "t"\nranks = 2\n{LINK}"fast"\n', (":8:", "gbs", "fast")),
    "not TOML": ('name = "t"\nranks = = 2\n', (":2:", "not TOML")),
    "cut short": ('name = "t"\nranks = 2\n[[links]]\nfrom = "0', (":4", "not TOML")),
    "unknown key": (f'name = "t"\nrank = 2\n{LINK}5\n', (":2:", "rank", "did you mean ranks")),
    "no such rank": (f'name = "t"\nranks = 2\n{LINK}5\n'.replace('to = "1"', 'to = "2"'), (":5:", "rank 2")),
    "one rank": ('name = "t"\nranks = 1\n', ("group", "1 rank")),
    "no links": ('name = "t"\nranks = 2\n', ("disconnected",)),
    "nested too deeply": ("a = " + "[" * 5000, ()),
    "empty": ("", ("name",)),
}


@pytest.mark.parametrize("case", TOPOLOGIES)
def test_topology_file(synth: Call, working_folder: Path, case: str) -> None:
    text, fragments = TOPOLOGIES[case]
    (working_folder / "t.toml").write_text(text)
    line = synth("allreduce", "--topo", "t.toml").refusal
    for word in fragments:
        assert word in line
    assert [p.name for p in working_folder.iterdir()] == ["t.toml"]


CONNECTED = {
    # Number of ranks, pairs of linked ranks, exit code, message and connected parts.
    "a ring one way": (3, "0>1 1>2 2>0", 0, "every rank reaches every other", ["0-2"]),
    "two parts": (5, "0>1 1>0 2>3 3>4 4>2", 1, "--group 0-1\n    --group 2-4\n", ["0-1", "2-4"]),
    "a rank alone": (3, "0>1 1>0", 1, "--group 0-1\n    none with 2: links", ["0-1", "2"]),
    "a rank that only receives": (3, "0>1 1>0 1>2", 1, "none with 2: links", ["0-1", "2"]),
    "one way": (3, "0>1 1>2", 1, "no two ranks reach each other both ways", ["0", "1", "2"]),
    "one rank": (1, "", 1, "one rank, but at least 2 are needed", ["0"]),
    "many parts": (24, " ".join(f"{2 * i}>{2 * i + 1} {2 * i + 1}>{2 * i}" for i in range(12)), 1, "4 more", None),
    "by a switch, and one that leads nowhere": (2, "0>a a>0 1>a a>1 0>b", 0, "every rank reaches every other", ["0-1"]),
}


@pytest.mark.parametrize("case", CONNECTED)
def test_check_of_a_topology_reports_reachability(synth: Call, working_folder: Path, case: str) -> None:
    ranks, pairs, code, message, parts = CONNECTED[case]
    links = f'[[links]]\npairs = "{pairs}"\ngbs = 25\nalpha_us = 1\n' if pairs else ""
    (working_folder / "t.toml").write_text(f'name = "t"\nranks = {ranks}\nswitches = ["a", "b"]\n{links}')
    answer = synth("topo", "check", "t.toml")
    assert (answer.code, answer.err) == (code, "")
    assert message in answer.out
    listed = synth("topo", "check", "t.toml", "--json")
    assert listed.code == code
    report = json.loads(listed.out)
    assert report["connected"] == (len(report["parts"]) == 1)
    assert parts is None or report["parts"] == parts


def test_topology_file_is_binary(synth: Call, working_folder: Path) -> None:
    (working_folder / "t.toml").write_bytes(b"name = 't'\n\xff\xfe\x00")
    assert "t.toml: is a binary file" in synth("topo", "check", "t.toml").refusal
    (working_folder / "t.toml").write_bytes("name = 'é'\nsummary = 'é'\n".encode("latin-1"))
    assert "t.toml:1: byte 0xe9 is not UTF-8" in synth("topo", "check", "t.toml").refusal


def test_topology_file_is_a_pipe(synth: Call, working_folder: Path) -> None:
    os.mkfifo(working_folder / "t.toml")
    assert "not a plain file" in synth("topo", "check", "t.toml").refusal


CHUNK = 'name = "p"\nranks = 4\n[[chunk]]\n'
PATTERNS = {
    "not TOML": ('name = "p"\nranks =\n', (":2:", "not TOML")),
    "no name": ("ranks = 4\n[[chunk]]\nfrom = [0]\nto = [1]\n", ("name", "missing")),
    "a collective's name": (CHUNK.replace('"p"', '"all_reduce"') + "from = [0]\nto = [1]\n", ("allreduce",)),
    "no chunks": ('name = "p"\nranks = 4\n', ("chunk", "missing")),
    "no from": (CHUNK + "to = [1]\n", ("from", "missing")),
    "position out of range": (CHUNK + "from = [4]\nto = [1]\n", (":4:", "from", "position 4")),
    "position twice": (CHUNK + "from = [0]\nto = [1, 1]\n", (":5:", "to", "position 1", "twice")),
    "unknown key": (CHUNK + "from = [0]\nto = [1]\nwieght = 2\n", (":6:", "wieght", "did you mean weight")),
    "zero weight": (CHUNK + "from = [0]\nto = [1]\nweight = 0\n", (":6:", "weight")),
    "weight not a number": (CHUNK + "from = [0]\nto = [1]\nweight = nan\n", (":6:", "weight")),
    "huge count": (CHUNK + "from = [0]\nto = [1]\ncount = 1000000000\n", (":6:", "count")),
    "nothing to move": (CHUNK + "from = [0]\nto = [0]\n", ("already where it is wanted",)),
    "other ranks": (CHUNK + "from = [0]\nto = [1]\n", ("8 ranks", "4")),
}


@pytest.mark.parametrize("case", PATTERNS)
def test_pattern_file(synth: Call, working_folder: Path, case: str) -> None:
    text, fragments = PATTERNS[case]
    (working_folder / "p.toml").write_text(text)
    line = synth("pattern", "p.toml", "--topo", "dgx1").refusal
    for word in fragments:
        assert word in line
    assert [p.name for p in working_folder.iterdir()] == ["p.toml"]


SIZES = {
    "not square": ("0,1\n1,0\n1,1\n", ("3 rows of 2",)),
    "unequal rows": ("0,1,1\n1,0\n", (":2",)),
    "one rank": ("0\n", ("k from 2",)),
    "empty": ("", ("0 rows",)),
    "no size": ("0,many\n1,0\n", (":1", "column 2", "'many'")),
    "negative": ("0,-1\n1,0\n", (":1", "column 2", "negative")),
    "not a number": ("0,nan\n1,0\n", (":1", "column 2")),
    "nothing to send": ("5,0\n0,5\n", ("0",)),
    "other ranks": ("0,1\n1,0\n", ("8 ranks", "2")),
    "broken JSON": ("[[0, 1],\n [1, 0]", (":2", "JSON")),
    "JSON of texts": ('[[0, "x"], [1, 0]]', ("row 1, column 2", "'x'")),
}


@pytest.mark.parametrize("case", SIZES)
def test_size_matrix(synth: Call, working_folder: Path, case: str) -> None:
    text, fragments = SIZES[case]
    (working_folder / "sizes.csv").write_text(text)
    line = synth("alltoallv", "--topo", "dgx1", "--sizes", "sizes.csv").refusal
    for word in fragments:
        assert word in line
    assert [p.name for p in working_folder.iterdir()] == ["sizes.csv"]


QUICK = ("allgather", "--topo", "ring:4", "--engine", "route", "--out", "library")


def test_folder_below_a_file(synth: Call, working_folder: Path) -> None:
    (working_folder / "library").write_text("mine")
    assert "must be a folder" in synth(*QUICK).refusal
    assert (working_folder / "library").read_text() == "mine"


def test_foreign_index_stays(synth: Call, working_folder: Path) -> None:
    (working_folder / "library").mkdir()
    (working_folder / "library" / "index.json").write_text('{"mine": 1}')
    for arguments in (QUICK, (*QUICK[:3], *QUICK[5:], "--groups", "0-1;2-3", "--size", "1K", "--engine", "flow")):
        line = synth(*arguments).refusal
        assert "index.json" in line
        assert "another folder" in line
    assert [p.name for p in (working_folder / "library").iterdir()] == ["index.json"]
    assert (working_folder / "library" / "index.json").read_text() == '{"mine": 1}'


def test_a_library_of_an_earlier_version_stays(synth: Call, working_folder: Path) -> None:
    (working_folder / "library").mkdir()
    for name, text in (("index.json", '{"format": "synth-index-1", "algorithms": []}'), ("a.xml", "<algo/>")):
        (working_folder / "library" / name).write_text(text)
    line = synth(*QUICK).refusal
    for message in ("index.json", "synth-index-1", "earlier version", "another folder"):
        assert message in line
    assert len(line) <= 160
    assert sorted(p.name for p in (working_folder / "library").iterdir()) == ["a.xml", "index.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_no_room_on_the_disk(synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    assert "No space left" in synth(*QUICK).err
    assert not (working_folder / "library").exists()


def test_no_room_for_a_second_library(synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the files of a library are untouched when the next write fails."""
    assert synth(*QUICK).code == 0

    def files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in (working_folder / "library").rglob("*") if p.is_file()}

    before = files()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    answer = synth(*QUICK[:2], "ring:6", *QUICK[3:])
    assert (answer.code, "No space left" in answer.err) == (2, True)
    assert files() == before


def never(*_: object, **_named: object) -> None:
    pytest.fail("it was searched")


@pytest.mark.parametrize("kind", ["a file", "a link"])
@pytest.mark.parametrize("name", ["msccl", "schedules"])
def test_an_obstacle_for_the_files_is_refused_before_the_search(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    """Check that the budget is not spent on an answer whose files cannot be moved into the library."""
    (working_folder / "library").mkdir()
    if kind == "a file":
        (working_folder / "library" / name).write_text("mine")
    else:
        (working_folder / "library" / name).symlink_to(working_folder)
    monkeypatch.setattr("synth.app.cli.asking.answer.find_answer", never)
    assert f"library/{name}: " in synth(*QUICK).refusal


@pytest.mark.parametrize("name", ["library", "library/msccl"])
def test_a_folder_that_cannot_be_listed_is_refused_before_the_search(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Check both folders that a writer opens: the library to lock it, and the folders in it to move files there."""
    (working_folder / "library" / "msccl").mkdir(parents=True)
    monkeypatch.setattr("synth.app.cli.asking.answer.find_answer", never)
    opened = os.open

    def forbidden(path: object, *flags: int, **named: int) -> int:
        if str(path) == name and not flags[0] & os.O_TMPFILE & ~os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *flags, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", forbidden)
    assert f"{name}: cannot be written (Permission denied)" in synth(*QUICK).refusal


def test_a_folder_of_another_target_is_no_obstacle(synth: Call, working_folder: Path) -> None:
    (working_folder / "library").mkdir()
    (working_folder / "library" / "mscclpp").write_text("mine")
    assert synth(*QUICK, "--target", "executor-nccl").code == 0


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        ("allreduce --topo dgxh100", "did you mean dgx-h100"),
        ("allreduce --topo zzzzzz", "synth topo list"),
        ("allreduce --topo ring:4 --engine stiener", "did you mean steiner"),
        ("allreduce --topo ring:4 --engine zzz", "synth engines"),
        ("allreduce --topo ring:4 --bugdet 3s", "did you mean --budget"),
        ("allreduce --topo base.toml", "synth topo list"),
        ("allreduce --topo twice.toml", "one link with the sum of both"),
        ("alltoallv --topo ring:2 --sizes text.csv", "such as 4096, 64K or 2G"),
        ("alltoall --topo ring:6 --engine swing", "--engine closed"),
        ("topo import text.csv", "synth topo import --help"),
        ("topo show", "synth topo show [OPTIONS] TOPOLOGY"),
        ("verify a.xml b.xml", "synth verify [OPTIONS] FILE"),
        ("verify index.json", "synth library check LIB"),
        ("simulate a.xml", "--topo dgx-a100"),
        ("pattern text.csv", "--topo dgx-a100"),
        ("prove index.json", "schedule file (.synth)"),
        ("report empty", "schedule (.synth), MSCCL XML or execution plan"),
        ("report index.json -o page.pdf", "end in .html"),
        ("library diff text.csv text.csv", "line 1, column 1"),
    ],
)
def test_refusals_are_short_and_say_what_is_right(synth: Call, working_folder: Path, command: str, cure: str) -> None:
    """Check that a line names the cure in at most 160 characters."""
    (working_folder / "empty").mkdir()
    link = '[[links]]\nfrom = "0"\nto = "1"\ngbs = 5\nalpha_us = 1\n'
    (working_folder / "base.toml").write_text('base = "base.toml"\n')
    (working_folder / "twice.toml").write_text('name = "x"\nranks = 2\n' + 2 * link)
    (working_folder / "text.csv").write_text("a;b\n1;2\n")
    (working_folder / "index.json").write_text('{"algorithms": []}')
    refusal = synth(*command.split()).refusal
    assert cure in refusal
    assert len(refusal) <= 160, refusal


def test_an_ending_of_another_format_is_refused(synth: Call, working_folder: Path) -> None:
    """Check that no file is written whose name says that it is something else."""
    assert synth(*QUICK, "--target", "executor-nccl").code == 0
    program = next((working_folder / "library").rglob("*.xml"))
    for arguments in (
        ("convert", program, "a.json", "--target", "msccl"),
        ("convert", program, "a.yaml"),
        ("optimize", program, "-o", "a.json", "--target", "msccl"),
    ):
        assert "must end in .xml" in synth(*arguments).refusal
        assert not list(working_folder.glob("a.*"))


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        ("show", "did you mean library show or topo show?"),
        ("allreduce --topo ring:4 --group 3-0", "it must be 0-3, or 3,2,1,0 for this order"),
        ("allreduce --topo ring:4 --costs free", "--costs: 'free' is not known; it must be auto, machine, none"),
        ("allreduce --topo ring:4 --size 1Mb", "in bits; it must be in bytes"),
    ],
)
def test_refusals_name_the_cure(synth: Call, command: str, cure: str) -> None:
    assert cure in synth(*command.split()).refusal
