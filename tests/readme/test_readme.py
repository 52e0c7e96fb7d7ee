"""Tests that commands and files in the README and its guides work, and that their output is what the program prints."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import click
import pytest

from synth.app.cli import cli
from synth.bounds.check import WITNESSES
from tests.readme.blocks import (
    DOCUMENTS,
    EXAMPLE,
    README,
    Block,
    all_text,
    blocks,
    files,
    frame,
    run,
    times_us,
    write_files,
)
from tests.synth.app.cli.calling import Call, caller, without_progress


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess[str]]:
    """Return a folder with the shown files in which the README's first example has run, and the run."""
    folder = tmp_path_factory.mktemp("readme")
    write_files(folder)
    for cluster in folder.glob("*.toml"):  # A library for one size has all that the commands need.
        text = cluster.read_text(encoding="utf-8")
        cluster.write_text(re.sub(r'^sizes = "[^"]*"', 'sizes = "1M:1M"', text, flags=re.M), encoding="utf-8")
    return folder, run(EXAMPLE, folder, is_shown=True)


@pytest.fixture(scope="module")
def example(first: tuple[Path, CompletedProcess[str]]) -> Path:
    """Return the folder of the first example."""
    folder, completed = first
    assert completed.returncode == 0
    return folder


@pytest.fixture
def synth(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call `synth` in this process, in the folder of the first example and with its cache."""
    monkeypatch.chdir(example)
    monkeypatch.setenv("SYNTH_CACHE", str(example / ".cache"))
    return caller(monkeypatch, capsys)


def _at(block: Block) -> str:
    return block.place


def test_opening() -> None:
    """Check that the README begins with two sentences, the two commands and the table."""
    text = README.read_text(encoding="utf-8")
    assert text.index("    make demo ") < text.index("    make test ") < text.index("```console")
    assert len(text.split("    make demo")[0].splitlines()) < 8
    assert blocks("console")[0].text.startswith(f"$ {EXAMPLE}\n")


@pytest.mark.parametrize("block", blocks("console"), ids=_at)
def test_shown_output(first: tuple[Path, CompletedProcess[str]], block: Block) -> None:
    """Check the shown output, which `python -m tests.readme.blocks` renews, and its times within a tenth."""
    (example, completed), (command, _, shown) = first, block.text.partition("\n")
    if command != f"$ {EXAMPLE}":
        completed = run(command.removeprefix("$ "), example, is_shown=True)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert frame(completed.stdout) == frame(shown)
    shown_us, printed_us = times_us(shown), times_us(completed.stdout)
    common = shown_us.keys() & printed_us.keys()
    assert len(common) >= len(shown_us) / 2
    assert {size: printed_us[size] for size in common} == pytest.approx(
        {size: shown_us[size] for size in common}, rel=0.1
    )


def _commands() -> list[tuple[str, str]]:
    commands = []
    for block in blocks("sh"):
        commands += [
            (f"{block.document.stem}-line{block.line + i}", c) for i, c in enumerate(block.text.splitlines(), 1)
        ]
    return commands


BRIEFLY_S = 0.3  # The budget of what gives an answer that nothing looks at; a first answer may take a second longer.


def _quickly(arguments: list[str]) -> list[str]:
    """Return the words of a command with a short budget where it states one.

    A command that states a folder keeps its budget: later commands read its files, which a vendor library may make
    needless if the search is short.
    """
    if "--budget" not in arguments or "--out" in arguments:
        return arguments
    place = arguments.index("--budget") + 1
    return [*arguments[:place], f"{BRIEFLY_S}s", *arguments[place + 1 :]]


_OF_TORCH = ("torchrun", "torch-setup", "--backend torch", "synth calibrate", "synth tune", "here.toml")


@pytest.mark.parametrize("command", [c for _, c in _commands()], ids=[i for i, _ in _commands()])
def test_command(example: Path, synth: Call, command: str) -> None:
    """Check that a command works: in this process and with a short budget, unless it uses more of a shell."""
    if find_spec("torch") is None and any(word in command for word in _OF_TORCH):
        pytest.skip("PyTorch is not installed: make torch runs this")
    if command.startswith("cc ") and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    loop = re.fullmatch(r'for (\w+) in (\S+); do (synth [^$]*)"\$\1"([^$|]*); done', command)
    if loop is not None:  # As many processes as files would take most of the time.
        files = sorted(example.glob(loop[2]))
        assert files
        commands = [f"{loop[3]}{shlex.quote(str(file.relative_to(example)))}{loop[4]}" for file in files]
    else:
        commands = [command]
    if (command.startswith("synth ") and not re.search(r"[$*<>|]", command)) or loop is not None:
        for line in commands:
            answer = synth(*_quickly(shlex.split(line, comments=True)[1:]))
            assert (answer.code, answer.err) == (0, ""), answer.out
        return
    completed = run(
        command if "--out" in command else re.sub(r"--budget \d+s", f"--budget {BRIEFLY_S}s", command), example
    )
    assert (completed.returncode, completed.stderr) == (0, ""), completed.stdout


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # A short example leaves its file to be closed at the end.
@pytest.mark.parametrize("block", [block for block in blocks("python") if not block.name], ids=_at)
def test_python(
    example: Path, block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec("torch") is None and "synth.torch" in block.text:
        pytest.skip("PyTorch is not installed: make torch runs this")
    text = re.sub(r"\bbudget=\d+", f"budget={BRIEFLY_S}", block.text)
    (example / "block.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(example)
    monkeypatch.setenv("SYNTH_CACHE", str(example / ".cache"))
    runpy.run_path("block.py")
    output = capsys.readouterr()
    assert without_progress(output.err) == ""
    assert "did you mean dgx-a100" in output.out or block.document != README


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Check that the notebook's cells run one after another, and that it stores no outputs."""
    cells = json.loads((README.parent / "examples" / "research.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in code)
    text = "\n".join("".join(cell["source"]) for cell in code)
    (tmp_path / "cells.py").write_text(re.sub(r"\bbudget=\d+", f"budget={BRIEFLY_S}", text), encoding="utf-8")
    completed = run(f"MPLBACKEND=agg {sys.executable} cells.py", tmp_path)
    assert (completed.returncode, completed.stderr) == (0, "")


def test_every_shown_file_is_used() -> None:
    commands = " ".join(c for _, c in _commands())
    assert {block.kind for block in files()} == {"toml", "csv", "python", "text", "c"}
    assert all(block.name for block in blocks("toml", "csv", "text", "c"))
    for block in files():
        assert block.name in commands


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_link_targets_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), target
    for anchor in re.findall(r"\]\(#([^)]*)\)", text):
        assert anchor in {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)}


def test_the_site_lists_every_page() -> None:
    pages = README.parent / "docs" / "pages"
    listed = re.findall(r": (\S+\.md)$", (README.parent / "docs" / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(str(page.relative_to(pages)) for page in pages.glob("**/*.md"))


def test_kinds_of_blocks() -> None:
    """Check that there is no block of a kind that no test runs."""
    shown = re.findall(r"^```(\w*)$", all_text(), re.M)
    assert {kind for kind in shown if kind} <= {"console", "sh", "python", "toml", "csv", "text", "c"}
    assert len([kind for kind in shown if kind]) * 2 == len(shown)


def test_all_commands_options_and_fields_are_named(example: Path, synth: Call) -> None:
    text = all_text()
    context = click.Context(cli)
    for name in cli.list_commands(context):
        assert name in text
        command = cli.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("-")]
            assert not options or any(f"`{o}" in text or f"{o} " in text for o in options), (name, options)
    index = json.loads((example / "out" / "index.json").read_text(encoding="utf-8"))
    for field in index["algorithms"][0]:
        assert f"`{field}`" in text, field
    question = (*EXAMPLE.split()[1:], "--budget", "1s", "--out", "elsewhere")
    for field in json.loads(synth(*question, "--json").out):
        assert f"`{field}`" in text, field
    all_columns = synth(*question, "--wide").out
    titles = next(line for line in all_columns.splitlines() if line.startswith("message size"))
    for title in re.split(r" {2,}", titles.strip()):
        assert f"| {title} |" in text, title


def test_every_word_for_a_proof_is_explained() -> None:
    text = (README.parent / "docs" / "pages" / "guides" / "reading.md").read_text(encoding="utf-8")
    explained = text.partition("## What proves a bound")[2]
    for name in WITNESSES:
        assert f"*{name}*" in explained, name


def test_families_are_named() -> None:
    from topologies.families import FAMILIES

    text = all_text()
    for name in FAMILIES:
        assert f"`{name}:" in text
