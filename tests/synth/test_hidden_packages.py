"""A user's own `runtime.py` (or emit, topologies) beside a script: one line names the file that hides our package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.hang import HANG_S


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder in which it looks for modules first, as beside a script."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


# A checkout that is installed in place has a finder that knows our modules, even if a folder hides them.
_AS_INSTALLED = "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in repr(f)]\n"


def _hide(folder: Path, name: str, as_folder: bool) -> Path:
    file = folder / name / "__init__.py" if as_folder else folder / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine = 1\n")
    return file


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("runtime", "import synth.torch"),
        ("runtime", "import runtime\nimport synth.torch"),
        ("emit", "import synth\nsynth.synthesize"),
        ("emit", "import synth.torch"),
        ("topologies", "import synth"),
        ("topologies", "import emit.language"),
    ],
)
def test_the_file_that_hides_a_package_is_named(tmp_path: Path, name: str, script: str, as_folder: bool) -> None:
    file = _hide(tmp_path, name, as_folder)
    (tmp_path / "train.py").write_text(_AS_INSTALLED + script)
    answer = _run(tmp_path, "train.py")
    assert answer.returncode == 1
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {file}: hides the package {name} of synth-collectives, in {ROOT}; it must")


def test_a_program_that_needs_no_hidden_package_runs(tmp_path: Path) -> None:
    """Check that a user who only synthesizes may have a runtime.py, and that `import runtime` imports that file."""
    _hide(tmp_path, "runtime", as_folder=False)
    (tmp_path / "script.py").write_text("import synth, runtime\nprint(synth.synthesize.__name__, runtime.mine)")
    assert _run(tmp_path, "script.py").stdout == "synthesize 1\n"


def test_a_folder_without_modules_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "script.py").write_text("import runtime.bench, emit, synth\nprint('there')")
    assert _run(tmp_path, "script.py").stdout == "there\n"


def test_the_command_line_names_it_in_one_line(tmp_path: Path) -> None:
    file = _hide(tmp_path, "runtime", as_folder=False)
    answer = _run(tmp_path, "-m", "synth", "tune", "--ranks", "2")
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"synth: {file}: hides the package runtime of synth-collectives")
    assert answer.stderr.count("\n") == 1
