"""The back end of torchcomms: every method on four ranks, by a stand-in for torchcomms."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.runtime.torch.ranks import free_port, run_ranks

RANKS = 4


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: make torch runs this")
def test_every_method(tmp_path: Path) -> None:
    """Check every method, waiting and not, uneven sizes, a part of the ranks, and a time-out."""
    launcher_variables = {"RANK", "WORLD_SIZE", "TORCHCOMM_RANK", "TORCHCOMM_SIZE"}
    environment = {name: value for name, value in os.environ.items() if name not in launcher_variables}
    results = [tmp_path / f"{rank}" for rank in range(RANKS)]
    ran = run_ranks(["tests.runtime.torch.comms"], str(free_port()), results, environment)
    assert all(result.exists() for result in results), "\n".join(output for _, output in ran)
