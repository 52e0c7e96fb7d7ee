"""Sums in fewer bits: within their stated limit, the same on all ranks, and fit for training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from runtime.torch.c10d.compression import (  # noqa: E402 - it needs PyTorch
    BLOCK,
    ROUNDING,
    CompressionState,
    all_reduce_compressed,
    compress_hook,
    packed,
    unpacked,
)
from tests.runtime.torch.ranks import run_ranks  # noqa: E402
from topologies.errors import InputError  # noqa: E402


@pytest.mark.parametrize("kind", ROUNDING)
def test_a_message_has_fewer_bits_and_rounds_to_the_nearest(kind: str) -> None:
    torch.manual_seed(1)
    values = torch.randn(8 * BLOCK)
    message = packed(values, kind)
    assert message.nbytes <= values.nbytes * (0.26 if kind == "int8" else 0.5)
    largest = values.abs().view(-1, BLOCK).amax(1).repeat_interleave(BLOCK) if kind == "int8" else values.abs()
    assert bool(((unpacked(message, kind) - values).abs() <= largest * ROUNDING[kind] * 1.0001).all())
    assert torch.equal(unpacked(packed(torch.zeros(BLOCK), kind), kind), torch.zeros(BLOCK))


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_block_of_int8_with_a_value_that_is_not_finite_is_no_number(value: str) -> None:
    values = torch.ones(2 * BLOCK)
    values[3] = float(value)
    rounded = unpacked(packed(values, "int8"), "int8")
    assert bool(rounded[:BLOCK].isnan().all())
    assert torch.equal(rounded[BLOCK:], values[BLOCK:])


@pytest.mark.parametrize("kind", ROUNDING)
def test_of_an_empty_tensor_nothing_is_sent(kind: str) -> None:
    all_reduce_compressed(torch.empty(0, 3), kind)  # There is no group here that could send.


def test_what_is_no_tensor_or_no_state_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^compression of a list: it must be a tensor"):
        all_reduce_compressed([1.0, 2.0], "int8")
    for state, name in ((None, "a NoneType"), ("int8", "a str"), (CompressionState, "the class CompressionState")):
        with pytest.raises(InputError, match=rf"^compress_hook with {name} as its state: it must be one"):
            compress_hook(state, None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_sums_stay_within_their_limit_and_training_ends_where_it_does_without(tmp_path: Path) -> None:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    results = [tmp_path / str(rank) for rank in range(2)]
    ran = run_ranks(["tests.runtime.torch.compressed"], f"file://{tmp_path / 'store'}", results, plain)
    assert [code for code, _ in ran] == [0, 0], "\n".join(text for _, text in ran)
    assert not any("deprecated" in text for _, text in ran)
    for path in results:
        answer = json.loads(path.read_text())
        assert max(answer["over limit"].values()) <= 1.0
        assert min(answer["over limit"].values()) > 0.1  # The limit is no idle one.
        exact = answer["losses"]["exact"]
        assert all(loss < 1.2 * exact + 1e-4 for loss in answer["losses"].values()), answer["losses"]
        assert answer["refused"] == 2
