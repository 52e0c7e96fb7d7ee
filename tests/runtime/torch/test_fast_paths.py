"""Calls that Gloo serves run little code of ours: the Python functions that a call enters are counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch
from torch.distributed import distributed_c10d as c10d

import runtime.torch
from runtime.torch import rank_choices
from runtime.torch.c10d import dispatch
from runtime.torch.c10d.dispatch import Dispatcher
from runtime.torch.c10d.short_cuts import ShortCuts

FOLDER = str(Path(runtime.torch.__file__).parent)
TIMEOUT = timedelta(seconds=60)
# The most functions of ours that a call enters, with the wait for it: if the caller waits at once, and if it does not.
MOST = {
    "allreduce": (3, 5), "broadcast": (3, 5), "reduce": (3, 5), "allgather": (3, 5), "all_gather_single": (3, 5),
    "all_to_all_single": (3, 5), "reduce_scatter": (3, 6), "reduce_scatter_single": (3, 6), "gather": (3, 5),
    "scatter": (4, 7), "barrier": (6, 7), "send": (3, 3), "recv": (3, 3),
}  # fmt: skip


class Over:
    """A Work of Gloo's that is over."""

    def wait(self, *_: Any) -> bool:
        return True


class Gloo:
    """A back end whose calls are over at once."""

    options = SimpleNamespace(_timeout=TIMEOUT)

    def name(self) -> str:
        return "gloo"

    def __getattr__(self, _: str) -> Callable[..., Over]:
        return lambda *_: Over()


def call_fully(*_: Any, **__: Any) -> Any:
    """Stand for the full method."""
    raise LookupError("the full method")


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    """Return the dispatcher of the first of two ranks, whose wrapped back end does nothing."""
    monkeypatch.setattr(dispatch, "_make_gloo", lambda store, *_: (Gloo(), store))
    monkeypatch.setattr(rank_choices, "check_same_choices", lambda *_: None)
    group_end = Dispatcher(None, 0, 2, TIMEOUT, ())
    yield group_end
    group_end.core.lane.stop()


def calls_of(dispatcher: Dispatcher, is_async: bool) -> dict[str, Callable[[], Any]]:
    """Return by name a function that makes a call of rank 0, which is the root, by its short cut."""
    own, part, wide, parts = torch.ones(4), torch.ones(2), torch.ones(8), [torch.ones(4) for _ in range(2)]

    def options(kind: Any) -> Any:
        opts = kind()
        opts.asyncOp = is_async
        return opts

    arguments: dict[str, tuple[Any, ...]] = {
        "allreduce": ([own], options(c10d.AllreduceOptions)),
        "broadcast": ([own], options(c10d.BroadcastOptions)),
        "reduce": ([own], options(c10d.ReduceOptions)),
        "all_gather_single": (wide, own, options(c10d.AllgatherOptions)),
        "reduce_scatter_single": (part, own, options(c10d.ReduceScatterOptions)),
        "all_to_all_single": (own, torch.ones(4), [], [], options(c10d.AllToAllOptions)),
        "allgather": ([parts], [own], options(c10d.AllgatherOptions)),
        "reduce_scatter": ([own], [parts], options(c10d.ReduceScatterOptions)),
        "gather": ([parts], [own], options(c10d.GatherOptions)),
        "scatter": ([own], [parts], options(c10d.ScatterOptions)),
        "barrier": (options(c10d.BarrierOptions),),
        "send": ([own], 1, 0),
        "recv": ([own], 1, 0),
    }
    builds = ShortCuts(dispatcher, 0, 2).builds
    return {name: partial(builds[name](call_fully), *given) for name, given in arguments.items()}


def entered(call: Callable[[], Any]) -> list[str]:
    """Make a call, wait for it, and return the names of the functions of ours that it enters, as far as it comes."""
    names: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call().wait()
    except LookupError:
        names.append("full method")
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_gloo_serves_enters_few_functions(dispatcher: Dispatcher, is_async: bool) -> None:
    calls = calls_of(dispatcher, is_async)
    assert set(calls) == set(MOST)
    for name, call in calls.items():
        call().wait()  # The first call finds out what serves it.
        names = entered(call)
        assert "full method" not in names, name
        assert len(names) <= MOST[name][is_async], (name, names)


def test_a_call_that_must_be_examined_is_left_to_the_full_method(dispatcher: Dispatcher) -> None:
    calls = calls_of(dispatcher, False)
    dispatcher.core.watch.is_alert = True
    for name, call in calls.items():
        assert entered(call)[-1] == "full method", name
