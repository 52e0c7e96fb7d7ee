"""The blocks of the README and its guides, and how to make its shown output anew: `python -m tests.readme.blocks`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.synth.app.cli.calling import without_progress

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = (README, *sorted(ROOT.glob("examples/guides/*.md")))
EXAMPLE = "synth allreduce --topo dgx-a100 --group 0,2,4,6"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    document: Path
    line: int

    @property
    def place(self) -> str:
        """As a test's name has it."""
        return f"{self.document.stem}-line{self.line}"

    @property
    def name(self) -> str:
        """Of the file that it is; "" where its first line does not say one."""
        named = re.fullmatch(r"# ([\w.-]+\.(?:toml|csv|py|txt))", self.text.splitlines()[0])
        return named[1] if named else ""


def blocks(*kinds: str) -> list[Block]:
    found = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        of_kind = (m for m in _BLOCK.finditer(text) if m[1] in kinds)
        found += [Block(m[1], m[2], document, text.count("\n", 0, m.start()) + 1) for m in of_kind]
    return found


def all_text() -> str:
    """Of the README and its guides."""
    return "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)


def files() -> list[Block]:
    """Blocks that are files: their first line says their name."""
    return [block for block in blocks("toml", "csv", "python", "text") if block.name]


def write_files(folder: Path) -> None:
    """The files that they show, each under the name in its first line."""
    for block in files():
        (folder / block.name).write_text(block.text, encoding="utf-8")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script by bash, which stops at the first command that fails; `synth` and `python` are ours."""
    path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=dict(os.environ, PATH=path, OMP_NUM_THREADS="1"),  # torchrun says so where it is not set
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    done.stderr = without_progress(done.stderr)
    return done


_PROVED = ("bound", "gap", "worst in range", "proof")


def without_seconds(text: str) -> str:
    """The output but for what a machine's speed decides: the seconds, what is proved by then, and what comes next."""
    text = re.sub(r" +[0-9.]+ s(?=$|\nnext minute: )", "", text.rstrip())
    text = re.sub(r"\nnext minute: .*$", "\nnext minute: ", text)
    lines, head = [], list[str]()
    for line in text.splitlines():
        cells = re.split(r"  +", line)
        if "predicted" in cells:
            head = cells
        if len(head) == len(cells):
            cells = [cell for cell, name in zip(cells, head, strict=True) if name not in _PROVED]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _renewed(match: re.Match[str]) -> str:
    if match[1] != "console":
        return match[0]
    command = match[2].splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        done = run(command.removeprefix("$ "), Path(folder))
    return f"```console\n{command}\n{done.stdout.rstrip()}\n```"


if __name__ == "__main__":
    for each in DOCUMENTS:
        each.write_text(_BLOCK.sub(_renewed, each.read_text(encoding="utf-8")), encoding="utf-8")
