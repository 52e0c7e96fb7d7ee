"""`synth bench` on a GPU that CPU threads imitate: its own clock, more than one GPU, and the time of a network."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synth.app.cli import main
from tests import EXAMPLES
from tests.runtime.gpu.cpu_shim.fake_cupy import install_fake_cupy
from tests.runtime.gpu.cpu_shim.shim import built, compiler

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def synth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Return a function that calls the command in this process, in an empty folder: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["synth", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        read = capsys.readouterr()
        return code, read.out, read.err

    return call


@pytest.fixture
def ring(synth: Call, tmp_path: Path) -> Path:
    assert synth("compile", EXAMPLES / "ring.py", "--set", "ranks=4", "-o", "ring.xml")[0] == 0
    return tmp_path / "ring.xml"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, kernels: Path) -> Any:
    if compiler() is None:
        pytest.skip("no C++ compiler here")
    libraries = {paced: built(kernels, "shared", paced=paced) for paced in (False, True)}
    return install_fake_cupy(monkeypatch, libraries, 2)


@pytest.mark.usefixtures("gpus")
def test_a_gpu_is_the_default_and_has_its_own_clock(synth: Call, ring: Path) -> None:
    code, out, err = synth("bench", ring, "-b", "1K", "-e", "4K", "-n", "2", "--json")
    assert (code, err) == (0, "")
    for row in json.loads(out)["rows"]:
        assert row["backend"] == "gpu"
        assert row["in_place"]["time_us"] == 1000.0  # CuPy's events state this time here.
        assert row["in_place"]["wrong"] == 0
    code, out, _ = synth("bench", ring, "-b", "1K", "-n", "1", "--backend", "host", "--json")
    assert (code, json.loads(out)["rows"][0]["backend"]) == (0, "host")


@pytest.mark.usefixtures("gpus")
def test_more_than_one_gpu(synth: Call, ring: Path) -> None:
    for op, kind in (("sum", "bfloat16"), ("avg", "float")):
        code, out, err = synth("bench", ring, "--devices", "1,0", "-b", "3K", "-n", "2", "-d", kind, "-o", op)
        assert (code, err) == (0, "")
        assert "# gpu: every element right" in out.splitlines()


@pytest.mark.usefixtures("gpus")
def test_the_time_of_a_network(synth: Call, ring: Path) -> None:
    arguments = (
        "bench",
        ring,
        "--emulate",
        "ring:4,bw=25,alpha=0.7",
        "--slower",
        "3000",
        "-b",
        "1K",
        "-e",
        "64K",
        "-f",
        "64",
    )
    code, out, _ = synth(*arguments, "-n", "1", "-w", "0", "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert len(rows) == 2
    for row in rows:
        assert row["slower"] == 3000
        assert row["network"].startswith("ring:4")
        assert row["due_us"] == pytest.approx(row["predicted_us"], rel=1e-6)
        assert row["out_of_place"]["time_us"] >= row["due_us"] * (1 - 1e-9)
        assert 0 < row["bound_us"] <= row["predicted_us"] * (1 + 1e-9)
        assert row["in_place"]["wrong"] == row["out_of_place"]["wrong"] == 0
    code, out, _ = synth(*arguments, "-n", "1", "-w", "0")
    assert code == 0
    assert "# gpu, ring:4,bw=25,alpha=0.7's time: every element right" in out


@pytest.mark.usefixtures("gpus")
def test_a_gpu_that_does_not_keep_up_is_reported(synth: Call, ring: Path) -> None:
    """Check that the command reports a network that is too fast for any machine, as the times are not the network's."""
    code, _, err = synth("bench", ring, "--emulate", "ring:4,bw=9000,alpha=0", "-b", "64K", "-n", "1")
    assert code == 0
    assert "own time: give a larger --slower" in err


REFUSED = [
    (
        ("--backend", "host", "--emulate", "dgx1"),
        "--emulate: not with --backend host; it must be with --backend gpu",
    ),
    (("--backend", "host", "--devices", "0,1"), "--devices: not with --backend host"),
    (("--slower", "4"), "--slower: is for emulated networks only"),
    (("--emulate", "dgx1", "--slower", "0"), "slower 0; it must be a number above 0"),
    (("--emulate", "nowhere"), "topology 'nowhere': not known"),
    (("--emulate", "line:4"), "to which line:4 has no link"),
    (("--emulate", "dgx1", "--devices", "0,1"), "a network is emulated on one GPU; it must be one"),
    (("--devices", "0,2"), "--devices"),
]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("arguments", "message"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_refusals(synth: Call, ring: Path, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = synth("bench", ring, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_without_cupy(synth: Call, ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that one line says how to install CuPy, and that the host is the default without it."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    code, _, err = synth("bench", ring, "--backend", "gpu")
    assert (code, err.count("\n"), ".[cuda13]" in err) == (2, 1, True)
    code, out, _ = synth("bench", ring, "-b", "1K", "-n", "1")
    assert code == 0
    assert "# host: every element right" in out.splitlines()


def test_cupy_without_a_gpu(synth: Call, ring: Path, gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.cuda.runtime, "getDeviceCount", lambda: 0)
    assert "no GPU can be used" in synth("bench", ring, "--backend", "gpu")[2]
    code, out, _ = synth("bench", ring, "-b", "1K", "-n", "1")
    assert code == 0
    assert "# host: every element right" in out.splitlines()
