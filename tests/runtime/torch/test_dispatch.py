"""Tests of what the face for c10d does to torch's options of a call."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch
import torch.distributed as dist

from runtime.torch.c10d.dispatch import Dispatcher, _sums_for_averages, reduction_of
from runtime.torch.c10d.operations import OPERATIONS


def test_a_sum_for_an_average_leaves_the_callers_options_as_they_were() -> None:
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    with _sums_for_averages(opts, True):
        assert reduction_of(opts.reduceOp) == "sum"
    assert reduction_of(opts.reduceOp) == "avg"
    with _sums_for_averages(opts, False):
        assert reduction_of(opts.reduceOp) == "avg"


def test_calls_whose_blocks_may_differ_between_ranks_have_one_text() -> None:
    """Check the text that ranks compare when they wait for long: with other sizes it would seem another call."""
    dispatcher: Any = SimpleNamespace(_root=lambda *_: "")
    for name, differ in (("all_to_all_single", False), ("all_gather_into_tensor", True)):
        texts = {Dispatcher._describe(dispatcher, OPERATIONS[name], size, torch.uint8, None) for size in (8, 16)}
        assert (len(texts) == 2) == differ
