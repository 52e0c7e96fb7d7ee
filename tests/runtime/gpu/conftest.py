"""The kernel on CPU threads under the thread sanitizer, for tests that need what it sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.bench import Settings, measure
from tests.runtime.example_runs import PROGRAMS
from tests.runtime.gpu.cpu_shim.shim import SanitizerReport, ShimExecutor, built, compiler
from topologies.errors import InputError


@pytest.fixture(scope="session")
def sanitized(kernels: Path) -> Path | str:
    """Return the kernel under the thread sanitizer, or the reason why there is none."""
    if compiler() is None:
        return "no C++ compiler here"
    try:
        kernel = built(kernels, "thread")
        measure(*PROGRAMS[0], 32, ShimExecutor(*PROGRAMS[0], kernel), Settings("float", "sum", iterations=1, warmup=0))
    except SanitizerReport as error:
        if "FATAL" in str(error) or "unexpected memory mapping" in str(error):
            return f"the thread sanitizer does not run here: {error}"
        raise
    except InputError as error:
        return f"the thread sanitizer cannot be built here: {error}"
    return kernel
