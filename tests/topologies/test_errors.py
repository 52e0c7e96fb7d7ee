"""Tests that all errors that a user can meet are in one hierarchy."""

from __future__ import annotations

import pytest

from topologies import errors
from topologies.errors import InputError, SynthError, did_you_mean


@pytest.mark.parametrize(
    "error", [x for x in vars(errors).values() if isinstance(x, type) and x.__module__ == errors.__name__]
)
def test_all_errors_are_synth_errors(error: type) -> None:
    assert issubclass(error, SynthError)
    assert error.__doc__
    assert error is SynthError or issubclass(error, (ValueError, RuntimeError))


def test_near_names() -> None:
    assert did_you_mean("rinng", ["ring", "torus"]) == "did you mean ring?"
    assert did_you_mean("x", ["ring", "torus"]) == ""
    assert issubclass(InputError, ValueError)
