"""The torch.distributed back end, in processes of its own: every collective, every mode, errors that say who."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install 'synth-collectives[torch]'", allow_module_level=True)

from torch_checks import SESSIONS

CHECKS = Path(__file__).with_name("torch_checks.py")
SIZES = {"main": 4, "errors": 3}
ALONE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def ran() -> dict[str, list[dict[str, str | None]]]:
    """By session, what each rank found: check → None, or what went wrong."""
    return {}


def session(name: str, folder: Path) -> list[dict[str, str | None]]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    processes = []
    for rank in range(SIZES[name]):
        files = [str(folder / "store"), str(folder / f"{rank}")]
        processes.append(
            subprocess.Popen(
                [sys.executable, str(CHECKS), name, str(rank), str(SIZES[name]), *files],
                env=plain | ALONE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=CHECKS.parents[2],
            )
        )
    try:
        said = [process.communicate(timeout=240)[0].decode() for process in processes]
        assert not any(process.returncode for process in processes), "\n".join(said)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    results = [folder / f"{rank}" for rank in range(SIZES[name])]
    assert all(path.exists() for path in results), "\n".join(said)
    return [json.loads(path.read_text()) for path in results]


@pytest.mark.parametrize(("name", "check"), [(name, check) for name in SESSIONS for check in SESSIONS[name]])
def test_every_rank_passes(
    name: str,
    check: str,
    ran: dict[str, list[dict[str, str | None]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if name not in ran:
        ran[name] = session(name, tmp_path_factory.mktemp(name))
    for rank, found in enumerate(ran[name]):
        assert check in found, f"rank {rank} ended before it"
        assert found[check] is None, f"rank {rank}: {found[check]}"
