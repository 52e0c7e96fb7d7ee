"""`synth compile`, `lower`, `optimize`: files that verify, and one line for what is impossible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emit.compiler.passes.registry import FORMER_NAMES
from emit.library.index import load_index
from tests import EXAMPLES
from tests.synth.app.cli.calling import Call

RING = EXAMPLES / "ring.py"


def test_compile_verifies(synth: Call, working_folder: Path) -> None:
    answer = synth("compile", RING, "-o", "ring.xml", "--set", "ranks=4", "--explain")
    assert (answer.code, answer.err) == (0, "")
    assert "fuse: " in answer.out
    assert "ring.xml: allreduce on 4 ranks" in answer.out
    assert synth("verify", working_folder / "ring.xml").code == 0
    assert sorted(working_folder.iterdir()) == [working_folder / "ring.xml"]


def test_the_name_is_the_scripts_and_bytes_are_the_same(synth: Call, working_folder: Path) -> None:
    texts = []
    for _ in range(2):
        assert synth("compile", RING).code == 0
        texts.append((working_folder / "ring.xml").read_bytes())
    assert texts[0] == texts[1]


def test_a_plan_is_a_target_too(synth: Call, working_folder: Path) -> None:
    assert synth("compile", RING, "--target", "mscclpp", "--set", "ranks=4").code == 0
    assert synth("verify", working_folder / "ring.json").code == 0
    assert synth("compile", RING, "-o", "far.json", "--target", "mscclpp", "--topo", "dgx2:2", "--group", "0,1,16,17",
                 "--set", "ranks=4").code == 0  # fmt: skip
    assert "port" in (working_folder / "far.json").read_text()
    assert "port" not in (working_folder / "ring.json").read_text()


def test_a_pass_left_out(synth: Call) -> None:
    assert "8 nops" in synth("compile", EXAMPLES / "halving_doubling.py", "--without-pass", "alternate").out
    passes = [line.split()[0] for line in synth("compile", "--passes").out.splitlines()]
    assert "fuse" in passes
    for name in passes:
        assert synth("compile", RING, "--without-pass", name).code == 0
    for former, name in FORMER_NAMES.items():
        assert former not in passes
        outs = [synth("compile", RING, "--explain", "--without-pass", spelling).out for spelling in (former, name)]
        assert outs[0] == outs[1]


def test_no_more_threadblocks_than_sms(synth: Call, working_folder: Path) -> None:
    """Check that every command that writes a program keeps --sms, or says that it cannot."""
    (working_folder / "ring.toml").write_text(
        synth("topo", "show", "ring:4").out.replace("ranks = 4", "ranks = 4\nsms = 3")
    )
    arguments = ("compile", RING, "--set", "ranks=4", "--set", "instances=4", "-o", "ring.xml")
    assert synth(*arguments, "--sms", "4").code == 0
    for sms, message in (("0", "--sms 0: is not possible; it must be 1 or more"), ("1", "on 1 SMs")):
        answer = synth(*arguments, "--sms", sms)
        assert (answer.code, message in answer.err, answer.err.count("\n")) == (2, True, 1), answer.err
    answer = synth("optimize", "ring.xml", "--topo", "ring.toml", "--sms", "4")
    assert (answer.code, "it must be 1 to 3, the SMs of a device" in answer.err) == (2, True)
    for out in ("plan.json", "same.xml"):
        assert synth("convert", "ring.xml", out, "--sms", "30").code == 0
        answer = synth("convert", "ring.xml", out, "--sms", "3")
        assert (answer.code, "on 3 SMs" in answer.err) == (2, True)


def test_lower_a_stored_schedule(synth: Call, working_folder: Path) -> None:
    arguments = ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "1M", "--proof")
    assert synth(*arguments).code == 0
    stored = next((working_folder / "out" / "schedules").glob("*.synth"))
    answer = synth("lower", stored, "-o", "lowered.xml", "--explain")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[0].startswith("  instruction IR: ")
    assert synth("verify", working_folder / "lowered.xml").code == 0
    for target in ("rccl", "msccl"):
        assert synth("lower", stored, "-o", f"{target}.xml", "--target", target, "--protocol", "LL").code == 0
        assert synth("verify", working_folder / f"{target}.xml").code == 0


def test_optimize(synth: Call, working_folder: Path) -> None:
    plain = [word for name in ("fuse", "pair") for word in ("--without-pass", name)]
    assert synth("compile", RING, "-o", "plain.xml", *plain).code == 0
    answer = synth("optimize", "plain.xml", "--topo", "dgx-a100", "--explain")
    assert (answer.code, answer.err) == (0, "")
    assert synth("verify", working_folder / "plain-optimized.xml").code == 0
    plainest, best = ((working_folder / f"plain{end}.xml").read_text() for end in ("", "-optimized"))
    assert best.count("<step ") < plainest.count("<step ")


SEVERAL = """from emit.language import Script

def algorithm(high: int = 4096):
    found = []
    for name, protocol, low, most in (("small", "LL", 0, high), ("large", "Simple", high + 1, 0)):
        pair = Script(name, "allreduce", 2, protocol=protocol, min_bytes=low, max_bytes=most)
        pair.chunk(1, "i", 0).reduce(pair.chunk(0, "i", 0)).copy(0, "i", 0)
        found.append(pair)
    return found
"""


def test_a_list_of_scripts_in_a_library(synth: Call, working_folder: Path) -> None:
    (working_folder / "several.py").write_text(SEVERAL)
    answer = synth("compile", "several.py", "--library", "mine", "--topo", "dgx1", "--group", "2,0")
    assert (answer.code, answer.err, answer.out.count("checked: ")) == (0, "", 2)
    for size, name in ((4096, "small"), (8192, "large")):
        answer = synth("bench", "mine", "--backend", "host", "-b", str(size), "--wide")
        assert (answer.code, answer.out.splitlines()[3].split()[-1]) == (0, f"allreduce-dgx1-2ranks-{name}")
    (working_folder / "foreign").mkdir()
    (working_folder / "foreign" / "index.json").write_text("[]")
    for message, arguments in (
        ("give another folder", ("--library", "foreign")),
        ("several.py: cannot be written", ("--library", "several.py")),
        ("2 scripts; give --library too", ()),
        ("give --library too", ("--replace", "-o", "x.xml")),
        ("name two places", ("--library", "mine", "-o", "x.xml")),
        ("each with its own range", ("--library", "mine", "--min-bytes", "1K")),
        ("small and large both serve", ("--library", "mine", "--set", "high=-1")),
    ):
        before = sorted(working_folder.rglob("*"))
        answer = synth("compile", "several.py", *arguments)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert message in answer.err or "serves 0..-1" in answer.err, answer.err
        assert sorted(working_folder.rglob("*")) == before


def test_a_script_takes_its_range_in_a_library(synth: Call, working_folder: Path) -> None:
    assert synth("allreduce", "--topo", "ring:4", "--engine", "baseline", "--out", "mine").code == 0
    before = len(load_index(working_folder / "mine"))
    arguments = ("compile", RING, "--set", "ranks=4", "--library", "mine", "--topo", "ring:4")
    before_index = (working_folder / "mine" / "index.json").read_bytes()
    answer = synth(*arguments, "--min-bytes", "1K", "--max-bytes", "2K")
    assert (answer.code, answer.out.count("no slower")) == (0, 2)
    assert (working_folder / "mine" / "index.json").read_bytes() == before_index
    assert synth(*arguments, "--min-bytes", "1K", "--max-bytes", "2K", "--replace").code == 0
    entries = load_index(working_folder / "mine")
    assert len(entries) > before
    ours = [entry for entry in entries if entry.file.endswith("-ring.xml")]
    assert [(entry.min_bytes, entry.max_bytes) for entry in ours] == [(1024, 2048)]
    for entry in entries:
        assert synth("verify", entry.path).code == 0
    answer = synth(*arguments, "--min-bytes", "2K", "--max-bytes", "1K")
    assert (answer.code, "--max-bytes 1K: is less than --min-bytes" in answer.err) == (2, True)


def test_a_custom_goal_is_written_beside_a_single_file(synth: Call, working_folder: Path) -> None:
    arguments = ("--set", "nodes=2", "--set", "gpus=2")
    assert synth("compile", EXAMPLES / "alltonext.py", *arguments, "-o", "next.xml").code == 0
    assert sorted(path.name for path in working_folder.iterdir()) == ["next.goal.json", "next.xml"]
    answer = synth("verify", "next.xml")
    assert (answer.code, "not judged" in answer.out) == (0, False)
    assert "every element right" in synth("bench", "next.xml", "--backend", "host").out
    assert synth("simulate", "next.xml", "--topo", "full:4").code == 0
    goal = working_folder / "next.goal.json"
    goal.write_text(goal.read_text().replace('"o", "o"', '"o", "i"', 1))
    assert synth("verify", "next.xml").code == 1
    goal.write_text("{}")
    assert "next.goal.json: format: must be synth-goal-1" in synth("verify", "next.xml").refusal


@pytest.mark.usefixtures("working_folder")
def test_bench_runs_a_file_for_its_sizes_only(synth: Call) -> None:
    assert synth("compile", RING, "--set", "ranks=4", "-o", "r.xml", "--min-bytes", "1K", "--max-bytes", "4K").code == 0
    assert synth("bench", "r.xml", "--backend", "host").out.splitlines()[3].split()[0] == "4096"
    answer = synth("bench", "r.xml", "--backend", "host", "-b", "2K", "-e", "8K")
    assert (answer.code, "no algorithm of r.xml serves 8192 bytes" in answer.err) == (0, True)
    assert "no file serves any of these sizes" in synth("bench", "r.xml", "--backend", "host", "-b", "8K").refusal


FAULTS = {
    "no file": ("", "no-such.py: no such file"),
    "no python": ("def (", "bad.py, line 1: no Python"),
    "no function": ("x = 1", "bad.py: has no function algorithm()"),
    "raises": ("def algorithm():\n    return 1 / 0", "bad.py, line 2: ZeroDivisionError"),
    "exits": ("import sys\nsys.exit(3)", "bad.py, line 2: SystemExit: 3"),
    "no script": ("def algorithm():\n    return 3", "algorithm() returned int; it must be a Script"),
    "no scripts": ("def algorithm():\n    return []", "algorithm() returned nothing; it must be a Script"),
    "settings": ("def algorithm(n):\n    return n", "missing a required argument: 'n'; it takes n"),
    "mistake": (
        "from emit.language import Script\ndef algorithm():\n    Script('x', 'allreduce', 2).chunk(2, 'i', 0)",
        "bad.py, line 3: rank 2; it must be in 0..1",
    ),
    "wrong": (
        "from emit.language import Script\ndef algorithm():\n    s = Script('x', 'allreduce', 2)\n"
        "    s.chunk(0, 'i', 0).copy(1, 'i', 0)\n    return s",
        "wrong result",
    ),
}


def test_a_file_that_is_no_script_is_not_executed(synth: Call, working_folder: Path) -> None:
    (working_folder / "links.toml").write_text("open('executed', 'w')\n")
    refusal = synth("compile", "links.toml", "-o", "out.xml").refusal
    assert refusal == "synth: links.toml: is no Python script; its name must end in .py, not in .toml"
    assert not (working_folder / "executed").exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_scripts_are_one_line(synth: Call, working_folder: Path, fault: str) -> None:
    text, message = FAULTS[fault]
    if text:
        (working_folder / "bad.py").write_text(text)
    answer = synth("compile", "bad.py" if text else "no-such.py", "-o", "x.xml")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err
    assert not (working_folder / "x.xml").exists()


REFUSED = [
    (("compile", RING, "--set", "ranks"), "--set ranks; it must be name=value"),
    (("compile", RING, "--set", "ranks=0"), "must be 1 or more each"),
    (("compile", RING, "--without-pass", "fuze"), "pass 'fuze' is not known"),
    (("compile", RING, "--group", "0-7"), "--group: names ranks of --topo"),
    (("compile", RING, "--topo", "ring:4"), "has 4 ranks, but the program has 8"),
    (
        ("compile", EXAMPLES / "alltonext.py", "--target", "rccl"),
        "--target rccl: has no name for custom; use --target msccl",
    ),
    (("lower", RING), "ring.py"),
    (("optimize", RING), "not readable"),
    (("optimize", "none.xml"), "none.xml"),
    (("compile", RING, "-o", "/proc/none/x.xml"), "cannot be written"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: str(value)[-40:])
def test_refusals_are_one_line(synth: Call, working_folder: Path, arguments: tuple[object, ...], message: str) -> None:
    answer = synth(*arguments)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err
    assert not list(working_folder.iterdir())


def test_a_wrong_file_is_not_optimized_nor_overwritten(synth: Call, working_folder: Path) -> None:
    assert synth("compile", RING, "-o", "ring.xml").code == 0
    text = (working_folder / "ring.xml").read_text()
    answer = synth("optimize", "ring.xml", "-o", "ring.xml")
    assert (answer.code, "give another name" in answer.err) == (2, True)
    (working_folder / "wrong.xml").write_text(text.replace('srcoff="0"', 'srcoff="1"'))
    answer = synth("optimize", "wrong.xml")
    assert (answer.code, "wrong.xml: wrong: " in answer.err) == (2, True)
    assert (working_folder / "ring.xml").read_text() == text


@pytest.mark.parametrize("command", ["compile", "convert"])
def test_a_symbolic_link_stays_and_a_target_that_is_no_file_is_refused(
    synth: Call, working_folder: Path, command: str
) -> None:
    assert synth("compile", RING, "-o", "given.xml").code == 0
    source = RING if command == "compile" else "given.xml"
    out = ("-o", "link.xml") if command == "compile" else ("link.xml", "--target", "msccl")
    (working_folder / "real.xml").write_text("old")
    (working_folder / "link.xml").symlink_to("real.xml")
    assert synth(command, source, *out).code == 0
    assert (working_folder / "link.xml").is_symlink()
    assert synth("verify", working_folder / "real.xml").code == 0
    (working_folder / "real.xml").unlink()
    os.mkfifo(working_folder / "real.xml")
    answer = synth(command, source, *out)
    assert (answer.code, "not a plain file" in answer.err) == (2, True)
    assert (working_folder / "real.xml").is_fifo()
