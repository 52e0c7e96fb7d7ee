"""The comparison of a method with the wrapped back end in pairs of runs."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

from runtime.measure.over_torch import MethodTimes, _compare
from runtime.measure.tune import LEAST_PAIRS, lower_limit
from runtime.torch.choice import Method


def gains_of(slow_pairs: set[int], pairs: int) -> list[float]:
    """Return the gains of a method that takes half as long as the wrapped back end except in some pairs, all long."""
    wrapped, ours = (MethodTimes(Method(name), name, 0) for name in ("gloo", "synth"))

    def measure_once(methods: list[Method]) -> None:
        for times in (wrapped, ours):
            if times.method in methods:
                slow = times is wrapped or len(ours.seconds) in slow_pairs
                times.seconds.append(100.0 if slow else 50.0)

    bench: Any = SimpleNamespace(measure_once=measure_once, runs={wrapped.method: 1, ours.method: 1})
    return list(_compare(bench, wrapped, ours, pairs))


@pytest.mark.parametrize("disturbed", [0, 4, 6])
def test_a_single_disturbed_pair_of_long_runs_does_not_decide(disturbed: int) -> None:
    gains = gains_of({disturbed}, 15)
    assert LEAST_PAIRS < len(gains) < 15
    assert lower_limit(gains) == 2.0


def test_long_runs_end_as_soon_as_the_gain_is_sure_or_cannot_be() -> None:
    assert len(gains_of(set(), 15)) == LEAST_PAIRS
    assert len(gains_of({0}, LEAST_PAIRS)) == 1
    assert len(gains_of(set(range(15)), 15)) < 7
