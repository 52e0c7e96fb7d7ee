"""The blocks of the README and its guides; `python -m tests.readme.blocks` renews their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.hang import HANG_S
from tests.synth.app.cli.calling import without_progress

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = (README, *sorted(ROOT.glob("docs/pages/**/*.md")))
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
        """Return the block's place for the name of a test."""
        return f"{self.document.stem}-line{self.line}"

    @property
    def name(self) -> str:
        """Return the name of the file that the block shows; "": its first line has no name."""
        named = re.fullmatch(r"(?:#|//) ([\w.-]+\.(?:toml|csv|py|txt|c))", self.text.splitlines()[0])
        return named[1] if named else ""


def blocks(*kinds: str) -> list[Block]:
    matching_blocks = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        of_kind = (m for m in _BLOCK.finditer(text) if m[1] in kinds)
        matching_blocks += [Block(m[1], m[2], document, text.count("\n", 0, m.start()) + 1) for m in of_kind]
    return matching_blocks


def all_text() -> str:
    """Return the text of the README and its guides."""
    return "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)


def files() -> list[Block]:
    """Return the blocks that show a file, whose first line has its name."""
    return [block for block in blocks("toml", "csv", "python", "text", "c") if block.name]


def write_files(folder: Path) -> None:
    """Write the files that the blocks show, each under the name in its first line."""
    for block in files():
        (folder / block.name).write_text(block.text, encoding="utf-8")


def run(script: str, folder: Path, is_shown: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a script by bash, which stops at the first failing command, with our `synth` and `python`.

    A script whose output is shown has precedence over other processes where that is allowed, since its answer depends
    on what its budget allows.
    """
    if is_shown:
        script = f"renice -n -10 -p $$ > /dev/null 2>&1 || true\n{script}"
    path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    completed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=dict(
            os.environ,
            PATH=path,
            SYNTH_SOURCES=str(ROOT),
            SYNTH_CACHE=str(folder / ".cache"),  # Many pages ask what others asked before.
            OMP_NUM_THREADS="1",  # Otherwise torchrun prints a warning.
        ),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    completed.stderr = without_progress(completed.stderr)
    return completed


_PREDICTED = re.compile(r"  ([0-9.]+) (µs|ms|s) @ ([0-9.]+[KMG]?)  ")
_OF_A_MACHINE = (
    "  ",
    "k-sync",
    "a schedule of ",
    "in place:",
    "in place and out of place:",
    "out of place:",
    "out of place, ",
    "--wide",
    "no file (",
    "no file for ",
    "a file serves ",
)
_ALWAYS = ("predicted", "bound", "gap", "vs NCCL", "proof")
_IN_US = {"µs": 1.0, "ms": 1e3, "s": 1e6}


def times_us(text: str) -> dict[str, float]:
    """Return the predicted time in µs of each row of a table, by the size that the row shows."""
    return {size: float(figure) * _IN_US[unit] for figure, unit, size in _PREDICTED.findall(text)}


def frame(text: str) -> list[list[str]]:
    """Return the words of a search's output that are the same on every machine: what lines begin with, and columns.

    Which algorithms are found in time, and so which columns fit besides those that are always shown, depends on the
    machine's speed.
    """
    lines = [line for line in text.rstrip().splitlines() if not _PREDICTED.search(line)]
    kept = [line.split(": ")[0] for line in lines if not line.startswith(_OF_A_MACHINE)]
    cells = [re.split(r"  +", re.sub(r"\d+ algorithms?", "", line)) for line in kept]
    return [[cell for i, cell in enumerate(row) if not i or cell in _ALWAYS] for row in cells]


def _renewed(match: re.Match[str]) -> str:
    if match[1] != "console":
        return match[0]
    command = match[2].splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        completed = run(command.removeprefix("$ "), Path(folder))
    return f"```console\n{command}\n{completed.stdout.rstrip()}\n```"


if __name__ == "__main__":
    for document_path in DOCUMENTS:
        document_path.write_text(_BLOCK.sub(_renewed, document_path.read_text(encoding="utf-8")), encoding="utf-8")
