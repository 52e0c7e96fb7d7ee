"""What good calls print and write: JSON objects, equal files for equal input, other spellings, help."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path

import click
import click.shell_completion
import pytest

from emit.library import load_index
from synth import synthesize
from synth.app.cli import all_commands, cli
from synth.app.cli.asking.help import HelpfulCommand
from synth.engines.registry import ENGINES
from synth.model import deadline
from synth.model.registry import COLLECTIVE_KINDS
from tests import EXAMPLES
from tests.synth.app.cli.calling import Call
from tests.topologies.importers.dumps import mesh, smi
from topologies.errors import InputError

ASKED = ("allreduce", "--topo", "dgx-a100", "--group", "0,2,4,6")
EXAMPLE = (*ASKED, "--budget", "0.4s", "--target", "executor-nccl", "--costs", "none")
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


def test_a_search_goes_on_where_there_can_be_no_first_program(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise InputError("no first program")

    monkeypatch.setattr("synth.app.cli.asking.answer.first_result", refuse)
    answer = synth("allgather", "--topo", "ring:4", "--size", "64K", "--budget", "3s", "--engine", "route")
    assert (answer.code, answer.err) == (0, "")
    assert (working_folder / "out" / "index.json").is_file()


def test_json_and_index_of_a_search(synth: Call, working_folder: Path) -> None:
    answer = synth(*EXAMPLE, "--json")
    assert (answer.code, answer.err) == (0, "")
    report = json.loads(answer.out)
    index = json.loads((working_folder / "out" / "index.json").read_text())
    assert set(report) >= TOP
    assert (report["collective"], report["group"], report["root"]) == ("allreduce", [0, 2, 4, 6], None)
    rows = report["algorithms"]
    assert rows
    for row in rows:
        assert set(row) >= ROW | {"file"}
        assert (working_folder / row["file"]).is_file()
        assert row["bound_us"] <= row["time_us"] * (1 + 1e-9)
        assert row["gap"] >= 1
        assert row["proof"].startswith("optimal: ") == row["optimal"]
        worst, last = row["worst"], row["max_bytes"] or 1 << 30
        assert row["min_bytes"] <= worst["bytes"] <= last
        assert {size for size, _, _ in row["curve"]} >= {1 << e for e in range(10, 31)}
        assert all(bound_us <= time_us * (1 + 1e-9) for _, time_us, bound_us in row["curve"])
        inside = [time_us / bound for size, time_us, bound in row["curve"] if row["min_bytes"] <= size <= last]
        assert worst["gap"] >= max(row["gap"], *inside) * (1 - 1e-9)
        assert worst["gap"] == pytest.approx(max(1.0, worst["time_us"] / worst["bound_us"]))
    assert rows[0]["min_bytes"] == 0
    assert rows[-1]["max_bytes"] is None
    for row, after in pairwise(rows):
        assert after["min_bytes"] == row["max_bytes"] + 1
    for bound in report["bounds"]:
        assert set(bound) >= {"kind", "text", "base_us", "us_per_byte", "cap_us"}
    assert index["format"] == "synth-index-2"
    usual = [entry for entry in index["algorithms"] if entry["inplace"]]
    inplace_entries = [entry for entry in index["algorithms"] if not entry["inplace"]]
    assert usual + inplace_entries == index["algorithms"]
    rows = [row for row in (*report["algorithms"], *report["other_form"]) if row["file"]]  # Others had no time.
    for entry, row in zip([*usual, *inplace_entries], rows, strict=True):
        assert set(entry) >= ENTRY
        assert {k: entry[k] for k in ROW} == {k: row[k] for k in ROW}
        assert str(Path("out") / entry["file"]) == row["file"]
        text = (working_folder / "out" / entry["file"]).read_text()
        assert f'proto="{entry["protocol"]}"' in text
        assert f'minBytes="{entry["min_bytes"]}"' in text


def test_a_shown_machine_is_a_file_that_can_be_joined(synth: Call, tmp_path: Path) -> None:
    saved = tmp_path / "my.toml"
    saved.write_text(synth("topo", "show", "dgx-h100").out)
    facts, again = (json.loads(synth("topo", "check", spec, "--json").out) for spec in ("dgx-h100:2", f"{saved}:2"))
    assert facts | {"topology": ""} == again | {"topology": ""}


def test_json_of_topo_commands(synth: Call) -> None:
    report = json.loads(synth("topo", "list", "--json").out)
    assert set(report) >= {"machines", "families"}
    assert "dgx-a100" in report["machines"]
    keys = {
        "topology", "summary", "ranks", "switches", "links", "limits", "out_gbs", "alpha_us", "alpha_assumed",
        "connected", "source", "sms", "compute_capability", "gcn", "platform",
    }  # fmt: skip
    for command in ("show", "check"):
        report = json.loads(synth("topo", command, "dgx-a100:2", "--json").out)
        assert set(report) >= keys
        assert (report["ranks"], report["connected"], report["sms"]) == (16, True, 108)


def test_an_impossible_shape_is_no_error(synth: Call, working_folder: Path) -> None:
    answer = synth("allgather", "--topo", "ring:8", "--steps", "2")
    assert (answer.code, answer.err) == (1, "")
    assert "no schedule" in answer.out
    answer = synth("allgather", "--topo", "ring:8", "--steps", "2", "--json")
    report = json.loads(answer.out)
    assert (answer.code, report["algorithms"]) == (1, [])
    assert report["impossible"]
    assert list(working_folder.iterdir()) == []


def test_more_rounds_than_needed_are_not_called_impossible(synth: Call) -> None:
    """Check that extra rounds are never called impossible, since nothing can prove that."""
    answer = synth("allgather", "--topo", "ring:4", "--rounds", "100", "--budget", "5s")
    assert "no schedule" not in answer.out


def test_pattern_of_copies_and_sums(synth: Call, working_folder: Path) -> None:
    """Check a pattern with a chunk that is copied and a chunk that is summed."""
    text = 'name = "mixed"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = "1-3"\n'
    (working_folder / "mixed.toml").write_text(text + '[[chunk]]\nreduce = true\nfrom = "all"\nto = [0]\n')
    answer = synth("pattern", "mixed.toml", "--topo", "mesh:2x2", "--target", "msccl", "--budget", "0.5s")
    assert (answer.code, answer.err) == (0, "")
    files = list((working_folder / "out" / "msccl-original").glob("*.xml"))
    assert files
    for file in files:
        assert synth("verify", file).code == 0


def test_table_and_files(synth: Call, working_folder: Path) -> None:
    answer = synth(*EXAMPLE)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith("allreduce · dgx-a100 · group 0 2 4 6 (4 of 8 ")
    assert sum(line.startswith("message size  ") for line in lines) == 1
    files = [line.strip() for line in lines if re.fullmatch(r"  out/\S+\.xml", line)]
    assert sorted(files) == sorted(
        str(p.relative_to(working_folder)) for p in (working_folder / "out" / "msccl").iterdir()
    )
    for file in files:
        assert synth("verify", file).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("allreduce", "--topo", "dgx1", "--group", "0-3", "--sms", "4", "--budget", "0.3s"),
        ("reducescatter", "--topo", "torus:3x3", "--size", "1M", "--without", "link:0-1", "--budget", "0.3s"),
        ("broadcast", "--topo", "dgx-h100", "--size", "64K", "--target", "none", "--engine", "ksync", "--budget=0.3s"),
        ("alltoall", "--topo", "ring:4", "--groups", "0,1;2,3", "--size", "1M", "--budget", "0.3s"),
        ("allgather", "--topo", "ring:8", "--steps", "2"),
    ],
    ids=" ".join,
)
def test_lines_fit_the_terminal(
    synth: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Check that only names of files are longer than a line; the wide table is that of a known answer."""
    monkeypatch.setenv("SYNTH_CACHE", str(tmp_path / "cache"))
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        answer = synth(*arguments, "--details")
        assert answer.code in (0, 1)
        lines = [line for line in answer.out.splitlines() if len(line.split()) > 2]
        assert max(map(len, lines)) <= width, max(lines, key=len)


def test_lines_of_other_commands_fit_the_terminal(
    synth: Call, monkeypatch: pytest.MonkeyPatch, working_folder: Path
) -> None:
    """Check commands that read what a search wrote, and those about networks: only names of files are longer."""
    assert (
        synth("allgather", "--topo", "ring:4", "--size", "64K", "--engine", "route", "--proof", "--out", "o").code == 0
    )
    program, proved = (next((working_folder / "o").rglob(ending)) for ending in ("*.xml", "*.synth"))
    commands: tuple[tuple[object, ...], ...] = (
        ("simulate", program, "--topo", "ring:4"),
        ("verify", program),
        ("prove", proved),
        ("convert", program, "a.json"),
        ("topo", "check", "dgx-h100:4"),
        ("topo", "show", "dgx-h100:4", "--levels"),
        ("engines",),
        ("library", "show", "o"),
        ("library", "check", "o"),
        ("library", "pick", "o", "allgather", "0-3", "64K"),
        ("library", "env", "o"),
    )
    for arguments, width in product(commands, (80, 120)):
        monkeypatch.setenv("COLUMNS", str(width))
        answer = synth(*arguments)
        assert answer.code == 0
        lines = [line for line in answer.out.splitlines() if len(line.split()) > 2 and "export " not in line]
        assert max(map(len, lines), default=0) <= width, max(lines, key=len)


@pytest.mark.parametrize(
    "arguments",
    [
        # These searches end by themselves.
        ("allreduce", "--topo", "dgx-a100", "--group", "0,2,4", "--seed", "7", "--size", "64K"),
        ("allgather", "--topo", "dgx1", "--group", "0-3", "--size", "1M", "--costs", "none"),
        ("alltoall", "--topo", "ring:3", "--engine", "route", "--size", "1M"),
    ],
)
@pytest.mark.usefixtures("windows")
def test_same_input_same_bytes(synth: Call, process: Call, working_folder: Path, arguments: tuple[str, ...]) -> None:
    """Check that this process and another one, with different hash seeds, write the same bytes."""
    assert synth(*arguments, "--out", "a").code == process(*arguments, "--out", "b").code == 0
    first, second = (
        {
            str(p.relative_to(working_folder / folder)): p.read_bytes()
            for p in (working_folder / folder).rglob("*")
            if p.is_file()
        }
        for folder in ("a", "b")
    )
    assert first == second
    assert len(first) >= 2


def test_library_of_two_questions(synth: Call, working_folder: Path) -> None:
    """Check that a second question joins the index, and that the same question replaces only its own entries."""
    allgather = ("allgather", "--topo", "ring:4", "--engine", "route")
    two = ("alltoall", "--topo", "ring:4", "--engine", "route")
    assert synth(*allgather).code == synth(*two).code == synth(*allgather).code == 0
    entries = json.loads((working_folder / "out" / "index.json").read_text())["algorithms"]
    assert {e["collective"] for e in entries} == {"allgather", "alltoall"}
    assert sorted(e["file"] for e in entries) == sorted(
        f"msccl/{p.name}" for p in (working_folder / "out" / "msccl").iterdir()
    )


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
    answer = synth(spelling, "--topo", "full:3", "--engine", "route", "--size", "1K", "--target", "none", "--json")
    assert (answer.code, json.loads(answer.out)["collective"]) == (0, name)


def test_no_command_shows_the_help(synth: Call) -> None:
    answer = synth()
    assert (answer.code, answer.err) == (0, "")
    assert "synth allreduce --topo dgx-a100 --group 0,2,4,6" in answer.out


def _commands(group: click.Group, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    leaf_commands: list[tuple[str, ...]] = [before]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        leaf_commands += _commands(command, (*before, name)) if isinstance(command, click.Group) else [(*before, name)]
    return leaf_commands


@pytest.mark.parametrize("command", _commands(cli), ids=" ".join)
def test_help_has_an_example(synth: Call, command: tuple[str, ...]) -> None:
    """Check that each help text has an example on a line of its own, whose options the command has."""
    answer = synth(*command, "--help")
    assert (answer.code, answer.err) == (0, "")
    begin = " ".join(("synth", *command))
    examples = [line.strip() for line in answer.out.splitlines() if line.strip().startswith(begin)]
    assert examples, answer.out
    if command in ((), ("topo",)):
        return
    for example in examples:
        for option in re.findall(r"--[a-z]+", example):
            assert option in answer.out.replace(example, "")


@pytest.fixture(scope="module")
def small_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a library with the answer to one question."""
    library = tmp_path_factory.mktemp("small") / "lib"
    answer = synthesize("allreduce", "ring:4", size=1 << 16, engine="route", target="executor-nccl", budget=1)
    answer.save(library)
    return library


# The examples of tune, calibrate and torch-setup are run as the guide's; that of warm-up takes a minute (its own test);
# those of install write to the user's home (test_install.py).
@pytest.mark.parametrize(
    "command",
    [
        command
        for command in _commands(cli)
        if command
        not in ((), ("topo",), ("tune",), ("calibrate",), ("torch-setup",), ("warm-up",), ("library", "install"))
    ],
    ids=" ".join,
)
def test_example_of_the_help_can_be_run(
    synth: Call,
    small_library: Path,
    working_folder: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that each example runs, with a short budget and with files of the names that the examples use."""
    (working_folder / "sizes.csv").write_text(
        "\n".join(",".join("4K" if i != j else "0" for j in range(8)) for i in range(8))
    )
    (working_folder / "halo.toml").write_text('name = "halo"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = "1-3"\n')
    (working_folder / "counts.csv").write_text(",".join(map(str, range(1, 41))))
    heads = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    row = "1048576 262144 float sum -1 27.76 37.78 66.11 0 27.49 38.15 66.76 0"
    (working_folder / "run.txt").write_text(f"./all_reduce_perf -g 8\n{heads}\n{row}\n")
    text = synth(*command, "--help").out
    searches = "--budget" in text
    if not searches and command[0] not in ("topo", "library", "cache"):
        question = ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "1M", "--proof")
        assert synth(*question).code == 0
        file, schedules = next((working_folder / "out" / "msccl").glob("*c.xml")), working_folder / "out" / "schedules"
        for copy in (working_folder / "a.xml", file.with_name("FILE.xml")):
            shutil.copy(file, copy)
        for ending in (".synth", ".proof.json"):
            shutil.copy(next(schedules.glob(f"*{ending}")), schedules / f"NAME{ending}")
        shutil.copytree(EXAMPLES, working_folder / "examples")
    if command[0] == "cache":
        monkeypatch.setenv("SYNTH_CACHE", str(working_folder / "cache"))
    if command[0] == "library":
        (working_folder / "cluster.toml").write_text(
            'topology = "full:6"\ngroups = ["2-5"]\ncollectives = ["allgather"]\nsizes = "1M:1M"\nbudget = "1s"\n'
        )
        for name in ("lib", "before", "out"):
            shutil.copytree(small_library, working_folder / name)
        if command[1:] == ("update",):  # Only the library of the cluster can be updated.
            shutil.rmtree(working_folder / "lib")
            assert synth("library", "build", "cluster.toml", "--out", "lib").code == 0
    if command[0] == "topo":
        (working_folder / "my.toml").write_text(synth("topo", "show", "dgx1").out)
        (working_folder / "smi.txt").write_text(smi(mesh(8, "NV12")))
        (working_folder / "nvidia-smi").write_text("#!/bin/sh\n[ $1 = topo ] && cat smi.txt\n")
        (working_folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{working_folder}{os.pathsep}{os.environ['PATH']}")
    begin = " ".join(("synth", *command))
    example = next(line.strip() for line in text.splitlines() if line.strip().startswith(begin))
    arguments = shlex.split(example.split(">")[0])[1:]
    answer = synth(*arguments, *(("--budget", "0.2s") if searches else ()))
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize(
    ("written", "word", "completed"),
    [
        ("synth all", 1, "plain,allreduce"),
        ("synth allreduce --engine st", 3, "plain,steiner"),
        ("synth allreduce --topo dgx-h", 3, "plain,dgx-h100"),
        ("synth broadcast --topo tor", 3, "plain,torus:"),
        ("synth allgather --topo ./m", 3, "file,./m"),
        ("synth alltoall --target ms", 3, "plain,mscclpp"),
        ("synth verify out/m", 2, "file,out/m"),
        ("synth library show o", 3, "dir,o"),
        ("synth topo che", 2, "plain,check"),
    ],
)
def test_the_shell_completes_values_and_files(written: str, word: int, completed: str) -> None:
    words = written.split()
    shell = click.shell_completion.BashComplete(cli, {}, "synth", "_SYNTH_COMPLETE")
    items = shell.get_completions(words[1:word], words[word])
    assert completed in map(shell.format_completion, items)


def test_a_process_completes_for_the_shell() -> None:
    environment = os.environ | {"_SYNTH_COMPLETE": "bash_complete", "COMP_WORDS": "synth all", "COMP_CWORD": "1"}
    code = "import sys; from synth.app.cli import main; sys.argv[0] = 'synth'; main()"
    shell = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (shell.returncode, shell.stderr) == (0, "")
    assert "plain,allreduce" in shell.stdout.splitlines()


def test_no_text_of_the_help_is_cut_off(synth: Call) -> None:
    for command in _commands(cli):
        text = synth(*command, "--help").out
        for line in (text + (synth(*command, "--help-all").out if "--help-all" in text else "")).splitlines()[1:]:
            assert not re.search(r"\w(\.\.\.|…)$", line), line
            assert len(line) <= 80, line


@pytest.mark.parametrize("name", [*COLLECTIVE_KINDS, "pattern"])
def test_help_of_a_search_fits_a_screen_and_names_every_option(synth: Call, name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, HelpfulCommand)
    short, full = (synth(name, option).out for option in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 40
    assert full.startswith(short.split("Question:")[0])
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            for text in (short, full):
                assert re.search(rf"(^|[ /]){option.opts[0]}\b", text, re.MULTILINE), option.opts


def test_engines_are_listed(synth: Call) -> None:
    rows = json.loads(synth("engines", "--json").out)["engines"]
    assert {row["name"] for row in rows} == set(ENGINES)
    listed = synth("engines").out.splitlines()[1:]
    assert [line.split()[0] for line in listed if not line.startswith(" ")] == list(ENGINES)


def test_summaries_are_the_commands_own() -> None:
    context = click.Context(cli)
    for name, row in all_commands().items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(1000) == row.summary


def test_help_imports_no_command() -> None:
    code = "import sys; from click.testing import CliRunner; from synth.app.cli import cli; "
    code += "r = CliRunner().invoke(cli, ['--help']); "
    code += "print(r.exit_code, *sorted(m for m in sys.modules if m.startswith('synth.app.cli.')))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = [f"synth.app.cli.{name}" for name in ("defects", "interrupts", "streams", "values")]
    assert completed.stdout.split() == ["0", *light]


def test_import_is_light() -> None:
    """Check that neither `import synth` nor the command line's --help loads a solver or NumPy."""
    heavy = "{'numpy', 'z3', 'ortools', 'highspy', 'scipy', 'numba', 'pandas'}"
    for module in ("synth", "synth.app.cli"):
        code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
        completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert completed.stdout.strip() == "[]", module


def test_a_collective_that_the_library_does_not_have(synth: Call) -> None:
    """Check that the command and the help say so where a library has no function for a collective."""
    for target, message in (("executor-nccl", "has no function that calls gather"), ("rccl", "")):
        answer = synth("gather", "--topo", "ring:4", "--engine", "route", "--target", target)
        assert (answer.code, answer.err) == (0, "")
        assert ("has no function" in answer.out) == bool(message)
        assert message in answer.out
    assert "no function for gather and scatter" in " ".join(synth("gather", "--help-all").out.split())


def test_an_existing_file_stays_where_it_is_no_slower(synth: Call, working_folder: Path) -> None:
    arguments = ("reducescatter", "--topo", "ring:4", "--budget", "20s")
    synth(*arguments, "--engine", "route")
    before = (working_folder / "out" / "index.json").read_bytes()
    worse = synth(*arguments, "--engine", "baseline", "--size", "256K")
    assert "of the library, no slower: " in worse.flat
    assert synth(*arguments, "--engine", "baseline", "--size", "256K", "--wide").out.count(" · kept\n") == 1
    assert (working_folder / "out" / "index.json").read_bytes() == before
    report = json.loads(synth(*arguments, "--engine", "baseline", "--size", "256K", "--json").out)
    assert [row["kept"] for row in report["algorithms"]] == [True]
    report = json.loads(synth(*arguments, "--engine", "baseline", "--size", "256K", "--replace", "--json").out)
    assert [row["kept"] for row in report["algorithms"]] == [False]
    assert (working_folder / "out" / "index.json").read_bytes() != before


def test_earlier_compilation_is_not_shown(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a search does not report seconds in which another command of this process compiled."""
    monkeypatch.setattr(deadline._Uncounted, "seconds", 100.0)
    answer = synth("allgather", "--topo", "ring:4", "--engine", "route", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["seconds"] < 100


def test_without_out_files_of_other_ranks_have_a_folder_of_their_own(synth: Call) -> None:
    """Check that the usual folder never mixes networks or groups, because executors load all files of a folder."""
    options = ("--size", "1M", "--engine", "route", "--target", "executor-nccl")
    for arguments in (("ring:4",), ("ring:4", "--group", "0-2"), ("ring:5",), ("ring:4", "--group", "0-2")):
        for collective in ("allgather", "alltoall"):
            assert synth(collective, "--topo", *arguments, *options).code == 0
    indexes = sorted(Path().rglob("index.json"))
    assert [str(index.parent) for index in indexes] == ["out", "out/ring-4-0.1.2", "out/ring-5-all5"]
    for index in indexes:
        entries = load_index(index)
        assert len({(entry.topology, entry.group) for entry in entries}) == 1
        assert {entry.collective for entry in entries} == {"allgather", "alltoall"}


def test_libraries_can_be_compared_by_their_sources(synth: Call, working_folder: Path) -> None:
    """Check that --libraries source shows NCCL's own cost model, and that the files stay the same."""
    question = ("allgather", "--topo", "dgx-a100", "--engine", "route", "--size", "64K", "--budget", "2s", "--json")
    fitted, source = (
        json.loads(synth(*question, "--libraries", name, "--out", name).out) for name in ("fitted", "source")
    )
    (before,), (after,) = ([row["libraries"]["NCCL"] for row in d["algorithms"]] for d in (fitted, source))
    assert after["time_us"] == before["source_us"] != before["time_us"]
    assert after["vs"] == pytest.approx(after["time_us"] / source["algorithms"][0]["time_us"])
    assert (after["vs_low"], after["vs_high"]) == (None, None)
    texts = [(working_folder / name / "index.json").read_text() for name in ("fitted", "source")]
    assert texts[0] == texts[1]


def test_a_machine_of_gpus_says_why_it_is_not_compared_with_nccl(synth: Call, working_folder: Path) -> None:
    """Check NVLinks without a compute capability, with one, and links of another kind."""
    links = '[[links]]\npairs = "0>1"\nboth = true\ngbs = 50\nalpha_us = 0.7\nkind = "KIND"\n'
    for kind, field, is_missing in (
        ("nvlink", "", True), ("nvlink", "compute_capability = 80\n", False), ("other", "", False)
    ):  # fmt: skip
        (working_folder / "own.toml").write_text(f'name = "own"\nranks = 2\n{field}{links.replace("KIND", kind)}')
        answer = synth("topo", "check", "own.toml")
        assert answer.code == 0
        assert ("not compared with NCCL: compute capability unknown (set" in answer.flat) == is_missing
