"""Fixtures of all tests: no cache is shared, and no failure inside the package passes unnoticed."""

from __future__ import annotations

import os

os.environ["SYNTH_CACHE"] = "none"  # Processes that tests start inherit this.

from collections.abc import Iterator

import pytest

from synth.model import defects


@pytest.fixture
def planted_defects() -> None:
    """Mark a test that plants defects of our own code, so that it does not fail for them."""


@pytest.fixture(autouse=True)
def no_defects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no part of synth failed in the test's process, even if the search had an answer without it."""
    met: list[defects.Defect] = []
    describe = defects.describe_defect

    def describe_and_note(part: str, error: BaseException) -> defects.Defect:
        met.append(describe(part, error))
        return met[-1]

    monkeypatch.setattr(defects, "describe_defect", describe_and_note)
    yield
    if "planted_defects" not in request.fixturenames:
        assert not met, "\n".join(defect.trace for defect in met)
