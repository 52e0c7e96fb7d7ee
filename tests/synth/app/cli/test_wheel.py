"""The wheel, installed outside of the repository: `pip install .` as a user has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import ROOT
from tests.hang import HANG_S
from tests.synth.app.cli.calling import without_progress

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "synth", "topologies", "emit", "runtime")


def _run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    clean["NUMBA_CACHE_DIR"] = str(cwd)  # A small question compiles no loops where none are on disk.
    return subprocess.run(
        list(map(str, arguments)), cwd=cwd, env=clean, capture_output=True, text=True, timeout=HANG_S, check=False
    )


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of the sources, install it into a fresh environment, and return its site-packages."""
    copy, environment = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("environment")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    venv.create(environment, with_pip=False, symlinks=True)
    place = next(environment.glob("lib/python*/site-packages"))
    # The dependencies are borrowed; a plain path does not bring along the editable install of this repository.
    (place / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # With the environment's own setuptools (make test installs it) no network is needed.
    own = [] if int(version("setuptools").split(".")[0]) < 77 else ["--no-build-isolation"]
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
    completed = _run(*pip, "install", "--no-deps", *own, "--ignore-installed", "--no-compile", ".", cwd=copy)
    assert completed.returncode == 0, completed.stderr
    return place


def test_contents(packages: Path) -> None:
    """Check that the wheel contains every module, machine and type marker, the licence, and nothing else."""
    (record,) = packages.glob("synth*.dist-info/RECORD")
    names = {line.split(",")[0] for line in record.read_text(encoding="utf-8").splitlines()}
    expected = {
        str(path.relative_to(ROOT))
        for package in ("synth", "topologies", "emit", "runtime")
        for path in (ROOT / package).rglob("*")
        if path.name == "py.typed"
        or path.suffix in (".py", ".toml", ".txt", ".cu", ".cpp", ".h", ".html", ".css", ".js", ".json")
    }
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == expected | {"../../../bin/synth"}
    assert any(name.endswith("/LICENSE") for name in names)


def test_installed_apart(packages: Path, tmp_path: Path) -> None:
    """Check that a fresh environment lists machines, searches with its solver processes, writes and verifies."""
    python = packages.parents[2] / "bin" / "python"
    where = _run(python, "-c", "import synth, topologies; print(synth.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(packages)), where.stdout + where.stderr
    command = python.with_name("synth")
    listed = _run(command, "topo", "list", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    for machine in (ROOT / "topologies" / "machines").glob("*.toml"):
        assert machine.stem in listed.stdout
    question = ("allreduce", "--topo", "ring:4", "--size", "1M", "--engine", "ksync", "--budget", "6s", "--wide")
    answer = _run(command, *question, cwd=tmp_path)
    assert (answer.returncode, without_progress(answer.stderr)) == (0, "")
    assert "CP-SAT" in answer.stdout  # The solver processes import the package too.
    file = next((tmp_path / "out" / "msccl").glob("*.xml"))
    assert _run(command, "verify", file, cwd=tmp_path).returncode == 0
