"""Tests of hostile files: each is read or refused in one line, with little memory and time; links are not followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from emit.language import load_scripts
from emit.library.index import index_text, load_index
from emit.library.overlay import LibraryFault, folder_without, read_fault
from emit.library.saving.write import writing
from emit.library.selection.nccl_tuner import measured_lines
from synth.app.cli import cli
from synth.app.clusters.placing import unfiled_schedules
from synth.parallelism.axes import Axis
from synth.parallelism.workload import read_workload
from synth.storage.schedule_file import load_schedule, write_schedule
from tests.emit.library.test_write import put, row_of
from tests.fuzz.formats import FORMATS
from tests.hang import HANG_S
from tests.topologies.importers.dumps import smi
from topologies.errors import InputError
from topologies.importers.fabric import expand
from topologies.importers.nvidia_smi import read_nvidia_smi
from topologies.load import load
from topologies.text.files import MOST_DEPTH, MOST_LINES, open_regular_file, parse_json, read_bytes

MIB = 1 << 20
CALL = '[[call]]\ncollective = "allreduce"\nover = "dp"\nbytes = "x"\n'
GRAPH = '{{"directed": false, "graph": {{{graph}}}, "nodes": [{{"id": 0{node}}}, {{"id": 1}}], "links": [{{{link}}}]}}'
ENDS = '"source": 0, "target": 1'
HUGE = "1" + "0" * 400


def refused(read: Callable[[], object]) -> str:
    """Return the message of a reader that refuses, which must be one line."""
    with pytest.raises(InputError) as caught:
        read()
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 2000
    return message


def workload(path: Path) -> object:
    return read_workload(str(path), [Axis("dp", 2)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a." * 50_000 + "a = 1", "a key of more than"),
        (f"[values]\nx = {HUGE}\n{CALL}", "must be a number"),
        (f"[values]\nx = {'9' * 5000}\n{CALL}", "digits"),
        ('base = "/dev/zero"', "in another folder"),
        ('base = "../other.toml"', "in another folder"),
        ('base = "input.toml"', "must be another"),
    ],
)
def test_wrong_workloads(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "input.toml"
    path.write_text(text)
    assert expected in refused(lambda: workload(path))


def test_a_chain_of_3000_bases(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number}.toml").write_text(f'base = "{number + 1}.toml"\n')
    assert "a chain of more than" in refused(lambda: workload(tmp_path / "0.toml"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3,7],m", ["n1", "n2", "n3", "n7", "m"]),
        ("a,,b,", ["a", "b"]),
        ("x[08-10]y,z", ["x08y", "x09y", "x10y", "z"]),
    ],
)
def test_lists_of_names_are_expanded(text: str, names: list[str]) -> None:
    assert expand(text, "f") == names


@pytest.mark.parametrize("piece", [",[", "[", "]", "a[", "[1]", "a[1,", "a[1],["])
def test_lists_of_brackets_are_read_once(piece: str) -> None:
    assert refused(lambda: expand(piece * 300_000, "f:1")).startswith("f:1: ")


@pytest.mark.parametrize("text", ["a" * 10_000 + "[1-200000]", "a," * 300_000, "a" * 300])
def test_lists_of_too_many_or_too_long_names(text: str) -> None:
    refused(lambda: expand(text, "f:1"))


@pytest.mark.parametrize(
    "text",
    [
        GRAPH.format(graph=f'"sms": {HUGE}', node="", link=ENDS),
        GRAPH.format(graph='"sms": 1' + "0" * 100, node="", link=ENDS),
        GRAPH.format(graph="", node="", link=f'{ENDS}, "gbs": {HUGE}'),
        GRAPH.format(graph="", node="", link=f'{ENDS}, "alpha_us": {HUGE}'),
        GRAPH.format(graph=f'"limits": {{"a": {HUGE}}}', node="", link=f'{ENDS}, "limit": "a"'),
        GRAPH.format(graph="", node="", link=f'{ENDS}, "gbs": 1e999'),
        GRAPH.format(graph='"a": 1, "a": 2', node="", link=ENDS),
        '{"nodes": [' + "{}," * 5_000_000 + '{}], "links": []}',
        '{"nodes": [], "links": ' + "[" * 100_000 + "]" * 100_000 + "}",
        'topology: "\\UFFFFFFFF"\n',
        "switches:\n" + "".join(f"  k{i}: {{}}\n" for i in range(80_000)),
        'name = "m"\nranks = 2\n[[links]]\nmatrix = [[1e999]]\ngbs = 1\nalpha_us = 1\n',
        "\n" * 15_000_000,
        "#\n" * 4_000_000,
        "Creator a\n" * 100_000,
        "<graphml>" + "<a>" * 2_000_000,
        "SwitchName=s Nodes=" + ",[" * 100_000 + "\n",
    ],
)
def test_wrong_topologies(text: str, tmp_path: Path) -> None:
    """Check that memory, without that of regular expressions, stays below 50 times the file and 300 MB."""
    path = tmp_path / "input.yaml"
    path.write_text(text)
    tracemalloc.start()
    refused(lambda: load(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * len(text) + 300 * MIB


def test_a_chassis_number_beyond_all_numbers_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.graphml"
    path.write_text(GRAPH.format(graph="", node=f', "chassis": {HUGE}', link=ENDS))
    assert load(path).nranks == 2


def test_lines_of_errors_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("\n" * (MOST_LINES + 1))
    assert f"more than {MOST_LINES} lines" in refused(lambda: load(path))


@pytest.mark.parametrize(
    "body",
    [
        "    pass", "    return [1, None]", "    return []", "    raise E", "    raise StopIteration", "    raise F",
        "    return Script.__new__(Script)", "    return type('a\\x1b\\n', (), {})()", "    return algorithm()",
        "    raise BaseExceptionGroup('x', [GeneratorExit()])", "    return L()",
    ],
)  # fmt: skip
def test_scripts_that_return_no_script_or_raise(body: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "from emit.language import Script\n"
        "class E(BaseException): pass\n"
        "class F(Exception):\n    def __str__(self): raise SystemExit(9)\n"
        "class L(list):\n    def __iter__(self): raise ValueError\n"
        f"def algorithm():\n{body}\n"
    )
    assert "a.py" in refused(lambda: load_scripts(path)[0])


@pytest.mark.parametrize("source", ["x = " + "(" * 3000, "x = " + "-" * 100_000 + "1", "x = 1" + "+1" * 200_000])
def test_scripts_nested_too_deeply(source: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(source)
    refused(lambda: load_scripts(path)[0])


HEAD = "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD.replace("\n", "\r"), HEAD + "allreduce,1,ring,ll,4,1,4,1\r2\n", HEAD + "a," + "1" * 200_000 + "\n",
        HEAD + f"allreduce,{'9' * 5000},ring,ll,4,1,4,1\n", HEAD + "allreduce,1,ring,ll,4,1,4,1e999\n",
    ],
)  # fmt: skip
def test_wrong_measured_times(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    refused(lambda: measured_lines(path))


def test_deeply_nested_json_is_refused() -> None:
    right = "[" * MOST_DEPTH + '"[[[[\\"[[[", "\\\\"' + "]" * MOST_DEPTH
    assert parse_json(right + " " * 3, "f", "a list")
    for text in (f"[{right}]", '{"a": 1, "a": 2}', "[NaN]", "[" * MIB, '["' + "[" * 200 + '", ' + "[" * 65 + "]" * 66):
        assert refused(lambda text=text: parse_json(text, "f", "a list")).startswith("f: ")


@pytest.mark.parametrize(
    "change",
    [
        {"shown_bytes": -1}, {"shown_bytes": 1.5}, {"time_us": 10**400}, {"groups": 3}, {"threadblocks": "x"},
        {"padding": None}, {"padding": []}, {"bound_us": "\x1b"}, {"curve": [[1, 1, 1]] * 20_000}, {"gap": 10**400},
        {"isomorphic_groups": [[rank, rank + 1] for rank in range(200_000)]},
    ],
)  # fmt: skip
def test_wrong_entries_of_an_index(change: dict[str, object], tmp_path: Path) -> None:
    put(tmp_path, row_of(0, "a"))
    document = json.loads((tmp_path / "index.json").read_text())
    document["algorithms"][0] |= change
    (tmp_path / "index.json").write_text(json.dumps(document))
    refused(lambda: load_index(tmp_path))


@pytest.mark.parametrize(
    "share",
    [None, 1, [], {}, {"collective": "a"}, {"collective": "a", "key": "b", "groups": [], "root": 0, "unfiled": [{}]},
     {"collective": "a", "key": "b", "groups": [[0, 1]], "root": 2, "unfiled": [{"schedule": "x"}]}],
)  # fmt: skip
def test_records_without_their_fields_are_ignored(share: object, tmp_path: Path) -> None:
    (tmp_path / "builds").mkdir()
    text = json.dumps({"format": "synth-build-1", "shares": [share], "left_out": []})
    (tmp_path / "builds" / "a.json").write_text(text)
    os.mkfifo(tmp_path / "builds" / "b.json")
    (tmp_path / "builds" / "c.json").symlink_to("/dev/zero")
    assert unfiled_schedules(tmp_path) == []


def test_schedules_with_foreign_bytes(tmp_path: Path) -> None:
    right, path = FORMATS["schedule"].seeds()[0], tmp_path / "a.synth"
    with zipfile.ZipFile(BytesIO(right)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    gap = BytesIO()
    with zipfile.ZipFile(gap, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
            assert archive.fp is not None
            archive.fp.write(b"#!/bin/sh\n" * 20)
            archive.start_dir = archive.fp.tell()
    path.write_bytes(right)
    load_schedule(path)
    for data in (b"#!/bin/sh\n" + right, right + right, gap.getvalue()):
        path.write_bytes(data)
        assert "unknown bytes" in refused(lambda: load_schedule(path))


def test_paths_that_are_no_regular_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "plain").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    for name in ("pipe", "zero", "", "nothing"):
        assert "it must be a file" in refused(lambda name=name: open_regular_file(tmp_path / name, "a file"))
    assert read_bytes(tmp_path / "link", "a file", 9) == b"x"
    assert "symbolic link" in refused(lambda: read_bytes(tmp_path / "link", "a file", 9, inside=tmp_path))
    (tmp_path / "up").symlink_to(tmp_path)
    assert "symbolic link" in refused(lambda: read_bytes(tmp_path / "up" / "plain", "a file", 9, inside=tmp_path))
    assert "elsewhere" in refused(lambda: read_bytes(tmp_path / "a/../../b", "a file", 9, inside=tmp_path))


@pytest.mark.parametrize("name", ["../a.xml", "/tmp/a.xml", "msccl/../../a.xml", "a/b/c.xml", "msccl/", "a\0b", ".."])
def test_names_that_lead_out_of_a_library_are_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leads elsewhere"), writing(tmp_path / "library") as library:
        library.write(name, b"x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == []


def test_links_inside_a_library_are_not_followed(tmp_path: Path) -> None:
    victim, library = tmp_path / "victim", tmp_path / "library"
    victim.mkdir()
    put(library, row_of(0, "a"))
    (library / "msccl").rename(victim / "msccl")
    (library / "msccl").symlink_to(victim / "msccl")
    before = {path: path.read_bytes() for path in victim.rglob("*.xml")}
    with pytest.raises(InputError, match="symbolic link"):
        put(library, row_of(0, "b"))
    assert "symbolic link" in refused(lambda: load_index(library)[0].path)
    assert {path: path.read_bytes() for path in victim.rglob("*.xml")} == before
    (library / "index.json").rename(victim / "index.json")
    (library / "index.json").symlink_to(victim / "index.json")
    assert "symbolic link" in refused(lambda: load_index(library))


def test_remains_of_killed_writers_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".synth-dead" / "msccl").mkdir(parents=True)
    (tmp_path / ".synth-file").write_bytes(b"half")
    (tmp_path / ".synth-link").symlink_to(tmp_path)
    with writing(tmp_path) as library:
        assert library.staging.is_dir()
        assert {path.name for path in tmp_path.iterdir()} == {library.staging.name, ".synth-link"}
        write_schedule_beside(tmp_path)
        assert library.staging.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {".synth-link", "x.synth"}


def write_schedule_beside(folder: Path) -> None:
    """Write a schedule as another writer in the same folder, which removes remains, too."""
    (folder / "old.synth").write_bytes(FORMATS["schedule"].seeds()[0])
    stored = load_schedule(folder / "old.synth")
    (folder / "old.synth").unlink()
    write_schedule(folder / "x.synth", stored.problem, stored.schedule, "route")


def run(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", command.replace("synth", f"'{sys.executable}' -m synth")],
        capture_output=True, timeout=HANG_S, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_closed_streams_and_small_encodings() -> None:
    for command, code in (("synth topo list >&-", 0), ("synth topo show nope 2>&-", 2), ("synth topo list <&-", 0)):
        completed = run(command)
        assert (completed.returncode, completed.stderr) == (code, b""), command
    completed = run("synth topo check ring:4", PYTHONIOENCODING="latin-1")
    assert completed.returncode == 0
    assert b"Traceback" not in completed.stderr


def test_control_characters_of_files_are_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    text = 'name = "x"\nsummary = "\\u001b]0;owned\\u0007\\u009b2J\\u202e"\nranks = 2\n'
    path.write_text(text + '[[links]]\nfrom = "0"\nto = "1"\nboth = true\ngbs = 1\nalpha_us = 1\n')
    for command in (f"synth topo check {path}", f"synth topo show {path}"):
        completed = run(command)
        printed = (completed.stdout + completed.stderr).decode()
        assert all(letter.isprintable() or letter in "\n\t" for letter in printed), printed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", 'gpu\nx"link_type":\n'),
        ("a.graphml", '{"directed": true, "graph": true, "nodes": [{"id": 0}, {"id": 1}], "links": []}'),
        ("a.yaml", "[" + "{}," * 100_000 + "{}]"),
    ],
)
def test_wrong_topologies_found_by_mutation(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    refused(lambda: load(tmp_path / name))


def test_a_refusal_is_never_long() -> None:
    completed = run(f"synth topo check ring:{'9' * 50_000}")
    assert completed.returncode == 2
    assert len(completed.stderr) < 3000


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a folder"])
def test_a_failure_record_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    """Check that such a folder is not taken for one of a healthy network, nor left out of a check."""
    failure = tmp_path / "faults" / "link-0-1"
    failure.mkdir(parents=True)
    (tmp_path / "index.json").write_bytes(index_text([]))
    {
        "a pipe": os.mkfifo,
        "a link": lambda path: path.symlink_to("nothing"),
        "a folder": Path.mkdir,
    }[kind](failure / "fault.json")
    refused(lambda: read_fault(failure))
    answer = CliRunner().invoke(cli, ["library", "check", str(tmp_path)])
    assert answer.exit_code == 1
    assert "link-0-1/fault.json: wrong: " in " ".join(answer.output.split())


def test_long_names_of_failures_are_shortened(tmp_path: Path) -> None:
    fault = LibraryFault((f"link:0-{'9' * 5000}",), "ring:4", frozenset(), frozenset())
    (tmp_path / "faults" / "a").mkdir(parents=True)
    (tmp_path / "faults" / "a" / "fault.json").write_bytes(fault.text())
    assert len(refused(lambda: folder_without(tmp_path, ["link:1-2"]))) < 1000


def test_long_names_of_devices_are_shortened() -> None:
    text = smi([["X", "NV1"], ["NV1", "X"]], ["GPU0", f"GPU{'9' * 5000}"])
    assert len(refused(lambda: read_nvidia_smi(text, "a.txt"))) < 1000
