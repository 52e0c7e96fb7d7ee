"""The torch.distributed back end in separate processes: every collective, every mode, errors that name the rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

from tests.hang import HANG_S
from tests.runtime.torch.checks import SESSIONS, SIZES
from tests.runtime.torch.faults import Losses
from tests.runtime.torch.ranks import ALONE, free_port, run_ranks


@pytest.fixture(scope="module")
def ran() -> dict[str, list[dict[str, str | None]]]:
    """Return the results by session: for each rank, check → None or what went wrong."""
    return {}


def address(name: str, folder: Path) -> str:
    """Return the address at which ranks meet: a file, or the port of a store that rank 0 keeps."""
    return f"tcp://127.0.0.1:{free_port()}" if name == "losses" else f"file://{folder / 'store'}"


def session(name: str, folder: Path) -> list[dict[str, str | None]]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    results = [folder / f"{rank}" for rank in range(SIZES[name])]
    ran = run_ranks(["tests.runtime.torch.checks", name], address(name, folder), results, plain)
    for code, output in ran:
        assert name == "losses" or (not code and "Traceback" not in output), "\n".join(text for _, text in ran)
    return [json.loads(path.read_text()) if path.exists() else {} for path in results]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=() if name == "main" else pytest.mark.slow)
        for name in SESSIONS
        for check in SESSIONS[name]
    ],
)
def test_every_rank_passes(
    name: str,
    check: str,
    ran: dict[str, list[dict[str, str | None]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if name not in ran:
        ran[name] = session(name, tmp_path_factory.mktemp(name))
    before = SESSIONS[name][: SESSIONS[name].index(check)]
    lost = {Losses.DIES[earlier] for earlier in before if earlier in Losses.DIES}
    passed = 0
    for rank, results in enumerate(ran[name]):
        if rank in lost or (rank == Losses.DIES.get(check) and check not in results):
            continue
        assert check in results, f"rank {rank} ended before it"
        assert results[check] is None, f"rank {rank}: {results[check]}"
        passed += 1
    assert passed


@pytest.mark.parametrize("when", ["at-once", "later"])
def test_ctrl_c_lets_every_rank_leave(when: str, tmp_path: Path) -> None:
    where = f"file://{tmp_path / 'store'}"
    command = [sys.executable, "-m", "tests.runtime.torch.interrupted"]
    ranks = [
        subprocess.Popen([*command, str(rank), where, when], env=os.environ | ALONE, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    seconds_to_leave = [rank.communicate(timeout=HANG_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert all(float(seconds) < 20 for seconds in seconds_to_leave)  # Less than the group's time-out.
