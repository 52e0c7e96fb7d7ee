"""The unequal all-to-alls of `synth tune`: what arrives, and sizes that are new in each run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch

from runtime.measure import split_case
from runtime.measure.split_case import SplitCase
from runtime.torch.table import SPLIT_ALLTOALL


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_sizes_are_unequal_and_have_the_stated_mean(ranks: int) -> None:
    case = SplitCase("alltoall", 1 << 16, ranks=tuple(range(ranks)))
    assert case.name == SPLIT_ALLTOALL
    assert case.call.has_splits
    for sizes in case.matrices:
        mean = sum(map(sum, sizes)) / ranks
        assert len({size for row in sizes for size in row}) > 1
        assert abs(mean * 4 - case.call.size_bytes) < 0.3 * case.call.size_bytes
        busiest = max(map(sum, zip(*sizes, strict=True)))
        assert busiest > mean


def test_calls_deliver_what_is_expected_and_no_run_has_the_sizes_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, runs = 4, 5
    case = SplitCase("alltoall", 4096, ranks=tuple(range(ranks)))
    calls: list[list[tuple[Any, Any, list[int], list[int]]]] = [[] for _ in range(ranks)]
    prepared = []
    for me in range(ranks):
        monkeypatch.setattr(split_case.dist, "all_to_all_single", lambda *call, me=me, **_: calls[me].append(call))
        work, _, output = case.prepare(me, None)
        for _ in range(runs):
            work()
        prepared.append(output)
    matrices = []
    for of_ranks in zip(*calls, strict=True):
        matrices.append(tuple(tuple(given_sizes) for *_, given_sizes in of_ranks))
        for me, (output, _, received, _) in enumerate(of_ranks):
            blocks = [given.split(sizes)[me] for _, given, _, sizes in of_ranks]
            assert [len(block) for block in blocks] == received
            output.copy_(torch.cat(blocks))
    assert len(set(matrices)) == runs * len(case.matrices)
    for me, output in enumerate(prepared):
        assert torch.equal(output, case.expected_output(me))
