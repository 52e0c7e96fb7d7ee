"""The kernel is built once for all tests of this folder, also where several processes share them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `tests.runtime.gpu.cpu_shim.shim.built` puts what it makes."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder
