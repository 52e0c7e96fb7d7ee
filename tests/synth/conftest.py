"""One pool of solver processes for all tests of this folder, since starting one takes longer than most questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from synth.solvers.workers import Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    with Workers(("cpsat", "linear")) as pool:
        yield pool
