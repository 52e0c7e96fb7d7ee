"""Wrong inputs that strangers made: each is one line of at most 160 characters, and no file is lost or left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from emit.library.saving import left_ranges
from emit.msccl.format import write_msccl
from tests.emit.small_programs import ring_allreduce
from tests.synth.app.cli.calling import Call

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
WORKLOAD = '[[call]]\nname = "a"\ncollective = "allreduce"\nover = ["tp"]\nbytes = "{bytes}"\ntimes = {times}\n{more}\n'
CLUSTER = 'topology = "full:4"\ngroups = ["all"]\ncollectives = ["allreduce"]\n'
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(40))
PLACE = ("place", "--topo", "dgx-a100:2", "--axes", "dp=2,tp=8", "--top", "0", "--workload")
BUILD = ("library", "build", "c.toml", "--out", "lib")


@pytest.fixture
def files(working_folder: Path) -> Path:
    texts = {
        "v.xml": write_msccl(ring_allreduce(4)), "smi.txt": MATRIX, "notes.txt": "mine", "c.toml": CLUSTER,
        "self.toml": WORKLOAD.format(bytes="1M", times=1, more='overlaps = ["a"]'),
        "size.toml": WORKLOAD.format(bytes="64M/(tp-8)", times=1, more=""),
        "times.toml": WORKLOAD.format(bytes="1M", times=-3, more=""),
        "budget.toml": f"{CLUSTER}budget = 6\n", "roots.toml": f"{CLUSTER}roots = 5\n",
        "groups.toml": CLUSTER.replace('"all"', '"all 2-8 in a node"'),
        "names.toml": CLUSTER.replace('["allreduce"]', '["allredcue"]'),
    }  # fmt: skip
    for name, text in texts.items():
        (working_folder / name).write_text(text)
    (working_folder / "pic.png").write_bytes(PNG)
    return working_folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "v.xml", "--topo", "ring:4", "--sizes", "1M", "--trace", "v.xml"), "a trace is written, whose"),
        (("simulate", "v.xml", "--topo", "ring:4", "--sizes", "1M", "--trace", "notes.txt"), "must end in .json"),
        (("bench", "v.xml", "-b", "1K", "--trace", "v.xml"), "must end in .json"),
        (("bench", "v.xml", "-b", "3"), "less than one element a block"),
        (("topo", "import", "smi.txt", "-o", "smi.txt"), "must end in .toml"),
        (("topo", "import", "smi.txt", "smi.txt"), "smi.txt: is given twice"),
        (("topo", "show", "dgx1", "--format", "gml", "--json"), "--json: does not go with --format gml"),
        (("topo", "show", "ring:8,bw=50,bw=60"), "bw is given twice"),
        (("topo", "check", "ring:6,bandwidth=25"), "did you mean bw?"),
        (("topo", "check", "ring:1000000000"), "is too large; it must have at most"),
        (("topo", "check", "dgx1:2:3"), "'2:3' is no number of nodes"),
        (("topo", "import", "pic.png"), "pic.png: is a binary file"),
        (("verify", "pic.png"), "pic.png: is a binary file"),
        (("allgather", "--topo", "full:4", "--target", "none", "--sms", "4"), "there are no files, which --sms"),
        (("allgather", "--topo", "full:4", "--scratch-limit", "0"), "'0' is no size"),
        (("broadcast", "--topo", "full:4", "--root", "first"), "is no rank; it must be one rank of the group"),
        (("allreduce", "--topo", "full:4", "--engine", "tacos"), "(synth engines)"),
        (("engines", "--engine", "route"), "synth engines --help lists all"),
        (("--topo", "dgx1", "allreduce"), "must stand after the command that it belongs to"),
        (("-x",), "-x: no such option; synth --help lists all"),
        (("allreduce", "--topo", "dgx1", "--json", "--wide"), "--json and --wide: do not go together"),
        (("allreduce", "--topo", "dgx1", "--json", "--details"), "--json and --details: do not go together"),
        (("alltoallv", "--topo", "ring:4", "--sizes", "1,2,3"), "is one row; alltoallv needs k rows of k sizes"),
        (("allgather", "--topo", "ring:4", "--group", ""), "--group: is empty; it must be as in 0-3"),
        (("allgather", "--topo", "nosuch"), "a file's name must have an ending, as "),
        (("alltoallv", "--topo", "dgx1"), "--sizes, --trace: neither is there"),
        (("cache", "info", "--cache", "gone"), "--cache gone: is not a folder"),
        ((*PLACE, "dense", "--target", "mscclpp"), "--target: chooses the files of --library"),
        ((*PLACE, "dense", "--library", "notes.txt"), "--library notes.txt: is a file"),
        ((*PLACE, "self.toml"), "overlaps: 'a' is the call itself"),
        ((*PLACE, "size.toml"), "64M cannot stand in a formula"),
        ((*PLACE, "times.toml"), "-3 is out of range"),
        ((*BUILD[:2], "budget.toml", *BUILD[3:]), "budget.toml:4: budget: 6 is no text"),
        ((*BUILD[:2], "roots.toml", *BUILD[3:]), '5 is no text; it must be "first" or "all"'),
        ((*BUILD[:2], "groups.toml", *BUILD[3:]), "'all 2-8 in a node' is not known"),
        ((*BUILD[:2], "names.toml", *BUILD[3:]), "collectives: 'allredcue' is not known; did you mean allreduce"),
        (("bench", "v.xml", "-b", "1K", "--slower", "10"), "give --emulate too"),
        (("convert", "v.xml", "out.json", "--inplace", "--outofplace"), "are given together; give one of them"),
    ],
)
def test_one_short_line_and_no_file_lost(synth: Call, files: Path, arguments: tuple[str, ...], message: str) -> None:
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    refusal = synth(*arguments).refusal
    assert message in refusal
    assert len(refusal) <= len("synth: ") + 160, len(refusal)
    assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before


def test_no_folder_is_left_where_nothing_is_written(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_ranges, "_FASTER", 1000.0)  # Libraries count as faster everywhere.
    answer = synth("allgather", "--topo", "dgx-a100", "--group", "0-3", "--size", "1M", "--engine", "auto",
                   "--target", "mscclpp", "--out", "a/tm")  # fmt: skip
    assert (answer.code, "own algorithm is faster than ours" in answer.err) == (3, True)
    assert list(working_folder.iterdir()) == []
