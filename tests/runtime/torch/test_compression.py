"""Sums in fewer bits: within their stated limit, the same on all ranks, and fit for training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from runtime.torch.c10d.compression import BLOCK, ROUNDING, packed, unpacked  # noqa: E402 - it needs PyTorch
from tests.runtime.torch.ranks import run_ranks  # noqa: E402


@pytest.mark.parametrize("kind", ROUNDING)
def test_a_message_has_fewer_bits_and_rounds_to_the_nearest(kind: str) -> None:
    torch.manual_seed(1)
    values = torch.randn(8 * BLOCK)
    message = packed(values, kind)
    assert message.nbytes <= values.nbytes * (0.26 if kind == "int8" else 0.5)
    largest = values.abs().view(-1, BLOCK).amax(1).repeat_interleave(BLOCK) if kind == "int8" else values.abs()
    assert bool(((unpacked(message, kind) - values).abs() <= largest * ROUNDING[kind] * 1.0001).all())
    assert torch.equal(unpacked(packed(torch.zeros(BLOCK), kind), kind), torch.zeros(BLOCK))


@pytest.mark.slow
def test_sums_stay_within_their_limit_and_training_ends_where_it_does_without(tmp_path: Path) -> None:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    results = [tmp_path / str(rank) for rank in range(2)]
    ran = run_ranks(["tests.runtime.torch.compressed"], f"file://{tmp_path / 'store'}", results, plain)
    assert [code for code, _ in ran] == [0, 0], "\n".join(text for _, text in ran)
    for path in results:
        answer = json.loads(path.read_text())
        assert max(answer["over limit"].values()) <= 1.0
        assert min(answer["over limit"].values()) > 0.1  # The limit is no idle one.
        exact = answer["losses"]["exact"]
        assert all(loss < 1.2 * exact + 1e-4 for loss in answer["losses"].values()), answer["losses"]
        assert answer["refused"] == 2
