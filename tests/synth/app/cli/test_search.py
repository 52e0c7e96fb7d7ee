"""What good calls print and write: JSON objects, equal files for equal input, other spellings, help."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import click
import pytest

from synth.app.cli import cli, commands
from synth.model import deadline
from tests import EXAMPLES
from tests.synth.app.cli.calling import Call
from tests.topologies.importers.dumps import mesh, smi

ASKED = ("allreduce", "--topo", "dgx-a100", "--group", "0,2,4,6")
EXAMPLE = (*ASKED, "--budget", "2s")
TOP = {
    "collective", "topology", "group", "relays", "root", "summary", "alpha", "algorithms", "baselines", "bounds",
    "k_synchronous", "impossible", "ended", "seconds", "unsaved",
}  # fmt: skip
ROW = {
    "steps", "rounds", "chunks", "sends", "engine", "min_bytes", "max_bytes", "shown_bytes", "time_us",
    "bound_us", "gap", "optimal", "proof", "vs_baseline", "worst", "curve",
}  # fmt: skip
ENTRY = ROW | {
    "collective", "topology", "group", "relays", "root", "file", "target", "protocol", "inplace", "communicator",
    "goal", "nranks", "schedule", "proof_file",
}  # fmt: skip


def test_json_of_a_search(synth: Call, here: Path) -> None:
    answer = synth(*EXAMPLE, "--json")
    assert (answer.code, answer.err) == (0, "")
    said = json.loads(answer.out)
    assert set(said) >= TOP
    assert (said["collective"], said["group"], said["root"]) == ("allreduce", [0, 2, 4, 6], None)
    rows = said["algorithms"]
    assert rows
    for row in rows:
        assert set(row) >= ROW | {"file"}
        assert (here / row["file"]).is_file()
        assert row["bound_us"] <= row["time_us"] * (1 + 1e-9)
        assert row["gap"] >= 1
        assert row["proof"].startswith("optimal: ") == row["optimal"]
        worst, last = row["worst"], row["max_bytes"] or 1 << 30
        assert row["min_bytes"] <= worst["bytes"] <= last
        assert [size for size, _, _ in row["curve"]] == [1 << e for e in range(10, 31)]
        assert all(bound_us <= time_us * (1 + 1e-9) for _, time_us, bound_us in row["curve"])
        inside = [taken / bound for size, taken, bound in row["curve"] if row["min_bytes"] <= size <= last]
        assert worst["gap"] >= max(row["gap"], *inside) * (1 - 1e-9)
        assert worst["gap"] == pytest.approx(max(1.0, worst["time_us"] / worst["bound_us"]))
    assert rows[0]["min_bytes"] == 0
    assert rows[-1]["max_bytes"] is None
    for row, after in pairwise(rows):
        assert after["min_bytes"] == row["max_bytes"] + 1
    for bound in said["bounds"]:
        assert set(bound) >= {"kind", "text", "base_us", "us_per_byte", "cap_us"}


def test_index(synth: Call, here: Path) -> None:
    said = json.loads(synth(*EXAMPLE, "--json").out)
    index = json.loads((here / "out" / "index.json").read_text())
    assert index["format"] == "synth-index-2"
    usual = [entry for entry in index["algorithms"] if entry["inplace"]]
    other = [entry for entry in index["algorithms"] if not entry["inplace"]]
    assert usual + other == index["algorithms"]
    for entry, row in zip([*usual, *other], [*said["algorithms"], *said["other_form"]], strict=True):
        assert set(entry) >= ENTRY
        assert {k: entry[k] for k in ROW} == {k: row[k] for k in ROW}
        assert str(Path("out") / entry["file"]) == row["file"]
        text = (here / "out" / entry["file"]).read_text()
        assert f'proto="{entry["protocol"]}"' in text
        assert f'minBytes="{entry["min_bytes"]}"' in text


def test_a_shown_machine_is_a_file_that_can_be_joined(synth: Call, tmp_path: Path) -> None:
    saved = tmp_path / "my.toml"
    saved.write_text(synth("topo", "show", "dgx-h100").out)
    facts, again = (json.loads(synth("topo", "check", spec, "--json").out) for spec in ("dgx-h100:2", f"{saved}:2"))
    assert facts | {"topology": ""} == again | {"topology": ""}


def test_json_of_topo_commands(synth: Call) -> None:
    said = json.loads(synth("topo", "list", "--json").out)
    assert set(said) >= {"machines", "families"}
    assert "dgx-a100" in said["machines"]
    keys = {
        "topology", "summary", "ranks", "switches", "links", "limits", "out_gbs", "alpha_us", "alpha_assumed",
        "connected", "source", "sms", "compute_capability", "gcn", "platform",
    }  # fmt: skip
    for command in ("show", "check"):
        said = json.loads(synth("topo", command, "dgx-a100:2", "--json").out)
        assert set(said) >= keys
        assert (said["ranks"], said["connected"], said["sms"]) == (16, True, 108)


def test_an_impossible_shape_is_no_error(synth: Call, here: Path) -> None:
    answer = synth("allgather", "--topo", "ring:8", "--steps", "2")
    assert (answer.code, answer.err) == (1, "")
    assert "no schedule" in answer.out
    answer = synth("allgather", "--topo", "ring:8", "--steps", "2", "--json")
    said = json.loads(answer.out)
    assert (answer.code, said["algorithms"]) == (1, [])
    assert said["impossible"]
    assert list(here.iterdir()) == []


def test_more_rounds_than_needed_are_not_called_impossible(synth: Call) -> None:
    """A round more is never an obstacle: nothing can prove that there is no such schedule."""
    answer = synth("allgather", "--topo", "ring:4", "--rounds", "100", "--budget", "5s")
    assert "no schedule" not in answer.out


def test_pattern_of_copies_and_sums(synth: Call, here: Path) -> None:
    """A chunk that is copied and one that is summed in one pattern."""
    text = 'name = "mixed"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = "1-3"\n'
    (here / "mixed.toml").write_text(text + '[[chunk]]\nreduce = true\nfrom = "all"\nto = [0]\n')
    answer = synth("pattern", "mixed.toml", "--topo", "mesh:2x2", "--target", "msccl", "--budget", "3s")
    assert (answer.code, answer.err) == (0, "")
    files = list((here / "out" / "msccl-original").glob("*.xml"))
    assert files
    for file in files:
        assert synth("verify", file).code == 0


def test_table_and_files(synth: Call, here: Path) -> None:
    answer = synth(*EXAMPLE)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith("allreduce · dgx-a100 · group 0 2 4 6 (4 of 8 ")
    assert lines[2].split("  ")[0] == "message size"
    files = re.findall(r"out/\S+\.xml", lines[-2])
    assert sorted(files) == sorted(str(p.relative_to(here)) for p in (here / "out" / "msccl").iterdir())
    for file in files:
        assert synth("verify", file).code == 0


@pytest.mark.parametrize(
    "asked",
    [
        (*ASKED, "--seed", "7", "--size", "64K"),  # which end because they are done
        ("allgather", "--topo", "dgx1", "--group", "0-3", "--size", "1M"),
        ("alltoall", "--topo", "ring:4", "--engine", "route"),
    ],
)
def test_same_input_same_bytes(process: Call, here: Path, asked: tuple[str, ...]) -> None:
    """In two processes with different hash seeds, as Python gives them."""
    for folder in ("a", "b"):
        assert process(*asked, "--out", folder).code == 0
    first, second = (
        {str(p.relative_to(here / folder)): p.read_bytes() for p in (here / folder).rglob("*") if p.is_file()}
        for folder in ("a", "b")
    )
    assert first == second
    assert len(first) >= 2


def test_library_of_two_questions(synth: Call, here: Path) -> None:
    """A second question joins the index; the same question again replaces its own entries only."""
    one = ("allgather", "--topo", "ring:4", "--engine", "route")
    two = ("alltoall", "--topo", "ring:4", "--engine", "route")
    assert synth(*one).code == synth(*two).code == synth(*one).code == 0
    entries = json.loads((here / "out" / "index.json").read_text())["algorithms"]
    assert {e["collective"] for e in entries} == {"allgather", "alltoall"}
    assert sorted(e["file"] for e in entries) == sorted(f"msccl/{p.name}" for p in (here / "out" / "msccl").iterdir())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("all_reduce", "allreduce"),
        ("all-gather", "allgather"),
        ("all_gather_into_tensor", "allgather"),
        ("reduce_scatter_tensor", "reducescatter"),
        ("all_to_all_single", "alltoall"),
        ("AllReduce", "allreduce"),
        ("bcast", "broadcast"),
    ],
)
def test_torch_spellings(synth: Call, spelling: str, name: str) -> None:
    answer = synth(spelling, "--topo", "full:3", "--engine", "route", "--json")
    assert (answer.code, json.loads(answer.out)["collective"]) == (0, name)


def test_no_command_shows_the_help(synth: Call) -> None:
    answer = synth()
    assert (answer.code, answer.err) == (0, "")
    assert "synth allreduce --topo dgx-a100 --group 0,2,4,6" in answer.out


def _commands(group: click.Group, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [before]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found += _commands(command, (*before, name)) if isinstance(command, click.Group) else [(*before, name)]
    return found


@pytest.mark.parametrize("command", _commands(cli), ids=" ".join)
def test_help_has_an_example(synth: Call, command: tuple[str, ...]) -> None:
    """An example on a line of its own, whose options the command has."""
    answer = synth(*command, "--help")
    assert (answer.code, answer.err) == (0, "")
    begin = " ".join(("synth", *command))
    examples = [line.strip() for line in answer.out.splitlines() if line.strip().startswith(begin)]
    assert examples, answer.out
    if command in ((), ("topo",)):
        return
    for option in re.findall(r"--[a-z]+", examples[0]):
        assert option in answer.out.replace(examples[0], "")


# those of tune and calibrate are the README's, run there
@pytest.mark.parametrize(
    "command",
    [c for c in _commands(cli) if c not in ((), ("topo",), ("tune",), ("calibrate",))],
    ids=" ".join,
)
def test_example_of_the_help_can_be_run(
    synth: Call, here: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short budget, and files of the names that the examples use."""
    (here / "sizes.csv").write_text("\n".join(",".join("4K" if i != j else "0" for j in range(8)) for i in range(8)))
    (here / "halo.toml").write_text('name = "halo"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = "1-3"\n')
    text = synth(*command, "--help").out
    searches = "--budget" in text
    if not searches and command[0] not in ("topo", "library", "cache"):
        asked = ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "1M", "--proof")
        assert synth(*asked).code == 0
        file, schedules = next((here / "out" / "msccl").glob("*c.xml")), here / "out" / "schedules"
        for copy in (here / "a.xml", file.with_name("FILE.xml")):
            shutil.copy(file, copy)
        for ending in (".synth", ".proof.json"):
            shutil.copy(next(schedules.glob(f"*{ending}")), schedules / f"NAME{ending}")
        shutil.copytree(EXAMPLES, here / "examples")
    if command[0] == "cache":
        monkeypatch.setenv("SYNTH_CACHE", str(here / "cache"))
    if command[0] == "library":
        (here / "cluster.toml").write_text(
            'topology = "full:6"\ngroups = ["2-5"]\ncollectives = ["allgather"]\nsizes = "1M:1M"\nbudget = "1s"\n'
        )
        for name in ("lib", "before", "out"):
            asked = ("allreduce", "--topo", "dgx1", "--size", "64K", "--engine", "route", "--budget", "1s")
            assert synth(*asked, "--out", name).code == 0
    if command[0] == "topo":
        (here / "my.toml").write_text(synth("topo", "show", "dgx1").out)
        (here / "smi.txt").write_text(smi(mesh(8, "NV12")))
        (here / "nvidia-smi").write_text("#!/bin/sh\n[ $1 = topo ] && cat smi.txt\n")
        (here / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")
    begin = " ".join(("synth", *command))
    example = next(line.strip() for line in text.splitlines() if line.strip().startswith(begin))
    words = shlex.split(example.split(">")[0])[1:]
    answer = synth(*words, *(("--budget", "1s") if searches else ()))
    assert (answer.code, answer.err) == (0, "")


def test_summaries_are_the_commands_own() -> None:
    context = click.Context(cli)
    for name, row in commands().items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(1000) == row.summary


def test_help_imports_no_command() -> None:
    code = "import sys; from click.testing import CliRunner; from synth.app.cli import cli; "
    code += "r = CliRunner().invoke(cli, ['--help']); "
    code += "print(r.exit_code, *sorted(m for m in sys.modules if m.startswith('synth.app.cli.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = [f"synth.app.cli.{name}" for name in ("defects", "interrupts", "streams", "values")]
    assert done.stdout.split() == ["0", *light]


def test_import_is_light() -> None:
    """`import synth` loads no solver and not even NumPy; the command line's --help neither."""
    heavy = "{'numpy', 'z3', 'ortools', 'highspy', 'pulp', 'scipy', 'numba', 'pandas'}"
    for module in ("synth", "synth.app.cli"):
        code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]", module


def test_a_collective_that_the_library_does_not_have(synth: Call) -> None:
    """Its file is right, and nobody calls it: the command and the help say so."""
    for target, words in (("executor-nccl", "has no function that calls gather"), ("rccl", "")):
        answer = synth("gather", "--topo", "ring:4", "--engine", "route", "--target", target)
        assert (answer.code, answer.err) == (0, "")
        assert ("has no function" in answer.out) == bool(words)
        assert words in answer.out
    assert "no function for gather and scatter" in " ".join(synth("gather", "--help").out.split())


def test_what_the_library_has_stays_where_it_is_no_slower(synth: Call, here: Path) -> None:
    asked = ("reducescatter", "--topo", "ring:4", "--budget", "20s")
    synth(*asked, "--engine", "route")
    before = (here / "out" / "index.json").read_bytes()
    worse = synth(*asked, "--engine", "baseline", "--size", "256K")
    assert worse.out.splitlines()[3].endswith(" · kept")
    assert "of the library, no slower: " in worse.out
    assert (here / "out" / "index.json").read_bytes() == before
    said = json.loads(synth(*asked, "--engine", "baseline", "--size", "256K", "--json").out)
    assert [row["kept"] for row in said["algorithms"]] == [True]
    said = json.loads(synth(*asked, "--engine", "baseline", "--size", "256K", "--replace", "--json").out)
    assert [row["kept"] for row in said["algorithms"]] == [False]
    assert (here / "out" / "index.json").read_bytes() != before


def test_what_did_not_count_before_is_not_shown(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in which another command of this process compiled are none of this one's, whose log stays empty."""
    monkeypatch.setattr(deadline._Uncounted, "seconds", 100.0)
    answer = synth("allgather", "--topo", "ring:4", "--engine", "route", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["seconds"] < 100
