"""Tests of what the face for c10d does to torch's options of a call."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install 'synth-collectives[torch]'", allow_module_level=True)

import torch.distributed as dist

from runtime.torch.c10d.dispatch import _sums_for_averages, reduction_of


def test_a_sum_for_an_average_leaves_the_callers_options_as_they_were() -> None:
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    with _sums_for_averages(opts, True):
        assert reduction_of(opts.reduceOp) == "sum"
    assert reduction_of(opts.reduceOp) == "avg"
    with _sums_for_averages(opts, False):
        assert reduction_of(opts.reduceOp) == "avg"
