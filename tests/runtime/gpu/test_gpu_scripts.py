"""The scripts that measure on a GPU, each branch executed once, with CPU threads in place of the GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from results.measuring import measure
from results.scripts import emulated, gpu
from tests.runtime.gpu.cpu_shim.fake_cupy import install_fake_cupy
from tests.runtime.gpu.cpu_shim.shim import built, compiler


class Stream:
    """A stream that captures nothing: queued work runs at once."""

    def __init__(self, non_blocking: bool = False) -> None:
        self.launches = 0
        assert non_blocking

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def begin_capture(self) -> None:
        pass

    def end_capture(self) -> Any:
        return SimpleNamespace(launch=lambda _: None)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, kernels: Path, tmp_path: Path) -> Path:
    """Return the folder of the tables, on a machine with two GPUs of a strange name."""
    if compiler() is None:
        pytest.skip("no C++ compiler here")
    libraries = {paced: built(kernels, "shared", paced=paced) for paced in (False, True)}
    module = install_fake_cupy(monkeypatch, libraries, 2)
    module.cuda.runtime.getDeviceProperties = lambda _: {"name": b"Thread Ripper (TM)"}
    module.cuda.Stream = Stream
    monkeypatch.setattr(measure, "TABLES", tmp_path)
    return tmp_path


def test_gpu(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "CHECKED", 4096)
    monkeypatch.setattr(gpu, "RANKS", 4)
    monkeypatch.setattr(gpu, "SMALL", 2048)
    monkeypatch.setattr(gpu, "TIMES", 1)
    monkeypatch.setattr(gpu, "CASES", (gpu.CASES[0], gpu.CASES[3]))
    monkeypatch.setattr(gpu, "tests", lambda sanitizer: f"with {sanitizer}")
    monkeypatch.setattr(gpu, "copy_rate", lambda cp, _, whole=gpu.copy_rate: whole(cp, 4096))
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--largest", "8192"])
    gpu.main()
    text = (written / "gpu-thread-ripper-tm.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "=1" in line or "=2" in line
    ]
    assert [row[:2] for row in rows[:2]] == [["ring instances=1", "0"], ["allpairs passes=2", "0"]]
    assert [row[:3] for row in rows[2:]] == [["2", *row[:2]] for row in rows[:2]]
    assert "with /bin/compute-sanitizer" in text


def test_emulated(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the GPU's branch, and that a wrong element makes it fail."""
    monkeypatch.setattr(emulated, "NETWORKS", ("ring:4",))
    monkeypatch.setattr(emulated, "COLLECTIVES", ("allgather",))
    monkeypatch.setattr(emulated, "CHUNKS", (1,))
    monkeypatch.setattr(emulated, "GPU", (0.05, 8 << 10))
    monkeypatch.setattr(sys, "argv", ["emulated.py", "--budget", "5s"])
    emulated.main()
    text = (written / "gpu-thread-ripper-tm-emulated.md").read_text()
    assert "The programs ran on a GPU: Thread Ripper" in text
    row = next(line for line in text.splitlines() if line.startswith("| allgather · ring:4"))
    predicted, due, measured = (float(cell) for cell in row.split("|")[7:10])
    assert predicted == pytest.approx(due, rel=0.01)
    assert measured >= due
    measured_row = emulated.Found("q · ring:4", "a", 1, 0, 8, 1.0, 2.0, 2.0, 2.2, 1)
    monkeypatch.setattr(emulated, "programs", lambda *_: [None])
    monkeypatch.setattr(emulated, "executed", lambda *_: [measured_row])
    with pytest.raises(SystemExit, match="wrong elements"):
        emulated.main()


def test_ranking() -> None:
    """Check that pairs with nearly equal predictions are not counted, and that a pair in the other order is wrong."""

    def at(size: int, predicted: float, measured: float) -> emulated.Found:
        return emulated.Found("q", "n", 1, 0, size, 1.0, predicted, predicted, measured, 0)

    assert emulated.ranking([at(1, 1.0, 1.1), at(1, 2.0, 2.2), at(1, 2.001, 2.1)]) == (2, 2, 1, 1)
    assert emulated.ranking([at(1, 1.0, 3.0), at(1, 2.0, 2.2), at(2, 1.0, 1.0)]) == (1, 0, 1, 0)
