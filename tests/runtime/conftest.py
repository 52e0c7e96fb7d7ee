"""The kernel is built once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `tests.runtime.gpu.cpu_shim.shim.built` puts what it makes."""
    return tmp_path_factory.mktemp("kernels")
