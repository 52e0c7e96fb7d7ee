"""`synth verify`: exit code 0 for right, 1 for wrong or deadlock, 2 for what cannot be read."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from synth import synthesize
from tests.emit.mscclpp.test_foreign_plans import packets
from tests.synth.app.cli.calling import Call


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    synthesize("allgather", "ring:4", engine="route").save(folder)
    return folder


@pytest.fixture
def right(library: Path, working_folder: Path) -> Path:
    """Return a file that `synth` wrote, in a copy of the library."""
    shutil.copytree(library, working_folder / "out")
    return sorted((working_folder / "out" / "msccl").glob("*c.xml"))[0]


def test_right(synth: Call, right: Path) -> None:
    answer = synth("verify", right)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[0] == f"{right}: right"


def test_a_document_of_ours_is_named(synth: Call, right: Path) -> None:
    Path("answer.json").write_text(synth("allgather", "--topo", "ring:4", "--engine", "route", "--json").out)
    assert (
        "this is a document synth-search-1 of synth, no file for an executor" in synth("verify", "answer.json").refusal
    )
    assert "this is a library's index" in synth("verify", right.parent.parent / "index.json").refusal


def test_where_it_runs(synth: Call, right: Path, working_folder: Path) -> None:
    """Check that a rank's threadblocks fit on the SMs of its device, with --topo or with the topology in the index."""
    unknown = synth("verify", right, "--topo", "ring:4")
    assert (unknown.code, "the SMs of a device of ring:4 are unknown" in unknown.out) == (0, True)
    small = working_folder / "small.toml"
    small.write_text(synth("topo", "show", "ring:4").out.replace("ranks = 4", "ranks = 4\nsms = 1"))
    answer = synth("verify", right, "--topo", small)
    assert (answer.code, answer.out.splitlines()[0]) == (1, f"{right}: deadlock")
    assert "threadblocks on 1 SMs; all must run at once" in answer.out
    index = working_folder / "out" / "index.json"
    index.write_text(index.read_text().replace('"ring:4"', '"small.toml"'))
    assert synth("verify", right).out == answer.out
    assert synth("verify", right, "--topo", "no").code == 2


def test_between_nodes(synth: Call, working_folder: Path) -> None:
    """Check that a broadcast between nodes is LL at every size, and that a file of protocol Simple is refused."""
    (working_folder / "two.toml").write_text(
        synth("topo", "show", "ring:4").out.replace("ranks = 4", 'ranks = 4\nnodes = ["0-1", "2-3"]')
    )
    assert synth("broadcast", "--topo", "two.toml", "--engine", "route").code == 0
    index = working_folder / "out" / "index.json"
    index.write_text(index.read_text().replace('"topology": "ring:4"', '"topology": "two.toml"'))
    refused_files = 0
    for file in sorted((working_folder / "out" / "msccl").glob("*.xml")):
        assert synth("verify", file).code == 0
        refused_files += 'maxBytes="0"' in file.read_text()
        file.write_text(file.read_text().replace('proto="LL"', 'proto="Simple"'))
        answer = synth("verify", file)
        assert (answer.code, "over a network" in answer.out) == (1, True), answer.out
        assert "the protocol must be LL" in synth("verify", file, "--topo", "two.toml", "--group", "0,2,1,3").out
        assert "over a network" not in synth("verify", file, "--topo", "ring:4").out
    assert refused_files == 2  # One of each form.


def test_three_exit_codes_of_real_processes(process: Call, right: Path, working_folder: Path) -> None:
    assert process("verify", right).code == 0
    wrong = working_folder / "wrong.xml"
    wrong.write_text(right.read_text().replace('srcoff="0"', 'srcoff="1"'))
    assert process("verify", wrong).code == 1
    (working_folder / "no.xml").write_text("no")
    answer = process("verify", working_folder / "no.xml")
    assert (answer.code, "Traceback" in answer.err) == (2, False)


UNREADABLE = {
    "empty": b"",
    "text": b"hello\n",
    "binary": bytes(range(256)) * 40,
    "null bytes": b"<algo\x00>",
    "utf-16": "<algo/>".encode("utf-16"),
    "doctype": b'<!DOCTYPE algo [<!ENTITY x "y">]><algo name="&x;"/>',
    "external entity": b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><algo name="&x;"/>',
    "billion laughs": b"<!DOCTYPE lolz [\n<!ENTITY lol0 'lol'>\n"
    + b"".join(b"<!ENTITY lol%d '%s'>\n" % (i, b"&lol%d;" % (i - 1) * 10) for i in range(1, 10))
    + b"]><algo name='&lol9;'/>",
    "processing instruction": b"<?xml-stylesheet href='http://127.0.0.1/'?><algo/>",
    "cdata": b"<algo><![CDATA[x]]></algo>",
    "deep": b"<gpu>" * 200_000,
    "deep and closed": b"<algo>" * 50_000 + b"</algo>" * 50_000,
    "70 MB": b"<algo>" + b" " * (70 << 20),
    "one long tag": b"<algo " + b"a" * (1 << 20),
    "many attributes": b"<algo " + b" ".join(b'a%d="1"' % i for i in range(10_000)) + b">",
    "another document": b'<?xml version="1.0"?><html><body/></html>',
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_hostile_file(synth: Call, working_folder: Path, case: str) -> None:
    path = working_folder / "file.xml"
    path.write_bytes(UNREADABLE[case])
    answer = synth("verify", path)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert len(answer.out + answer.err) < 2000
    assert "root:" not in answer.out


@pytest.mark.parametrize("path", ["none.xml", ".", "/dev/null", "a\nb", "/proc/self/mem"])
def test_no_file(synth: Call, path: str) -> None:
    answer = synth("verify", path)
    assert answer.code == 2
    assert "Traceback" not in answer.err


ATTRIBUTES = (
    "coll", "ngpus", "nchunksperloop", "nchannels", "proto", "i_chunks", "o_chunks", "send", "recv",
    "chan", "type", "srcbuf", "srcoff", "dstbuf", "dstoff",
)  # fmt: skip
OTHER = {
    "coll": "alltoall", "proto": "LL256", "nchannels": "0", "type": "re", "srcbuf": "s", "dstbuf": "s", "send": "2",
    "recv": "2",
}  # fmt: skip


def _changed(text: str, attribute: str, which: int) -> str | None:
    """Return the text with the `which`-th occurrence (from 0) of the attribute changed, or None if there is none."""
    # A step that only sends writes nothing, and a step that only receives reads nothing.
    step = {"src": 'type="s" [^>]*', "dst": 'type="r" [^>]*'}.get(attribute[:3], "")
    matches = list(re.finditer(rf'{step}\b{attribute}="([^"]*)"', text))
    if which >= len(matches):
        return None
    at = matches[which]
    value = OTHER.get(attribute) or str(int(at[1]) + 1)
    if value == at[1]:
        value = "3"
    return text[: at.start(1)] + value + text[at.end(1) :]


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_tampered_file(synth: Call, right: Path, attribute: str) -> None:
    text = right.read_text()
    path = right.with_name("tampered.xml")
    tried = 0
    for which in (0, 5, 11):
        changed = _changed(text, attribute, which)
        if changed is None:
            continue
        path.write_text(changed)
        answer = synth("verify", path)
        assert answer.code in (1, 2), (attribute, which, answer.out)
        if answer.code == 1:
            assert answer.out.splitlines()[0].endswith((": wrong", ": deadlock"))
        else:
            assert answer.err.startswith("synth: not readable: ")
            assert len(answer.err.splitlines()) == 1
        tried += 1
    assert tried


def test_every_step_is_needed(synth: Call, right: Path) -> None:
    """Check that a file never passes without a step, or without the last threadblock of a rank."""
    text = right.read_text()
    steps = [m for m in re.finditer(r"\n *<step [^>]*/>", text) if 'type="nop"' not in m[0]]
    path = right.with_name("tampered.xml")
    for step in steps[:: max(1, len(steps) // 8)]:
        path.write_text(text[: step.start()] + text[step.end() :])
        assert synth("verify", path).code in (1, 2)
    path.write_text(re.sub(r"<tb id=(?:(?!<tb id).)*?</tb>\s*</gpu>", "</gpu>", text, count=1, flags=re.S))
    assert synth("verify", path).code in (1, 2)


def test_index_is_no_excuse(synth: Call, right: Path) -> None:
    """Check that a broken or foreign index changes nothing for a file that states its own goal."""
    for text in (
        "",
        "[]",
        '{"algorithms": 3}',
        "[" * 100_000,
        json.dumps({"algorithms": [{"file": right.name}]}),
    ):
        for folder in (right.parent, right.parent.parent):
            (folder / "index.json").write_text(text)
            assert synth("verify", right).code == 0


def test_goal_of_a_custom_file_comes_from_the_index(synth: Call, working_folder: Path) -> None:
    arguments = (
        "allgather",
        "--topo",
        "line:4",
        "--group",
        "0,2",
        "--relay",
        "1",
        "--target",
        "msccl",
        "--scratch-limit",
        "2G",
    )
    assert synth(*arguments, "--engine", "route").code == 0
    path = sorted((working_folder / "out" / "msccl-original").glob("*.xml"))[0]
    assert 'coll="custom"' in path.read_text()
    assert synth("verify", path).code == 0
    (working_folder / "out" / "index.json").unlink()
    assert synth("verify", path).code == 2


def test_json(synth: Call, right: Path) -> None:
    report = json.loads(synth("verify", right, "--json").out)
    assert report["file"] == str(right)
    assert report["status"] == "right"
    assert report["findings"] == []
    assert set(report) == {"format", "software", "file", "status", "lines", "findings"}
    right.write_text(right.read_text().replace('srcoff="0"', 'srcoff="1"'))
    answer = synth("verify", right, "--json")
    report = json.loads(answer.out)
    assert (answer.code, report["status"]) == (1, "wrong")
    assert all(set(f) == {"kind", "message", "rank", "tb", "step"} for f in report["findings"])
    assert report["findings"]


def test_plain_text_is_named(synth: Call, working_folder: Path) -> None:
    """Check that a file of prose is called what it is, instead of a fault in its first tag."""
    (working_folder / "README.md").write_text("# synth\n\n`synth` finds algorithms.\n")
    assert "README.md: is not MSCCL XML (line 1 is plain text)" in synth("verify", "README.md").refusal


def test_a_program_that_prints_a_plan(synth: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a script with arguments is run in place of a file, and that nothing of it is left."""
    monkeypatch.chdir(tmp_path)
    text = json.dumps(packets() | {"name": "NAME"})
    Path("made.py").write_text(f"import sys\nprint('made')\nprint({text!r}.replace('NAME', sys.argv[1]))\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    answer = synth("verify", "made.py 'a name'")
    assert answer.code == 0
    assert answer.flat.startswith("made.py 'a name': right right: allreduce on 2 ranks in place")
    assert json.loads(synth("verify", "made.py x", "--json").out)["file"] == "made.py x"
    assert "made.py x: right" in synth("simulate", "made.py x", "--topo", "full:2", "--sizes", "1K").out
    assert synth("bench", "made.py x", "-b", "1K", "-e", "1K").code == 0
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("call", "script", "reason"),
    [
        ("none.py", None, "'none.py': is no plain file; it must be a program"),
        ("fails.py", "raise SystemExit('so')", "fails.py: ended with exit code 1: so"),
        ("fails.py x", "1 / 0", "fails.py: ended with exit code 1: ZeroDivisionError: division by zero"),
        (
            "silent.py",
            "print(1)",
            "silent.py: printed no plan; a program in MSCCL++'s language ends with",
        ),
        ("torn.py", "print('{')", "torn.py: printed a plan that is not readable: not JSON"),
        ("bytes.py", "import sys; sys.stdout.buffer.write(b'\\xff')", "bytes.py: printed no plan"),
        ("asks.py", "import argparse, sys; sys.exit(3)", "its arguments stand in the same quotes"),
        ("needs.py", "raise ModuleNotFoundError(\"No module named 'mscclpp'\")", "needs.py: needs the package mscclpp"),
        ("quoted.py 'x", "", "no closing quotation; it must be quoted as in a shell"),
    ],
)
def test_programs_that_print_no_plan(
    synth: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, script: str | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if script is not None:
        Path(call.split()[0]).write_text(script)
    assert reason in synth("verify", call).refusal
