"""Whether all ranks of a group will make the same choices."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from runtime.torch.failures.compare import check_same_choices  # noqa: E402 - it needs PyTorch
from topologies.errors import InputError  # noqa: E402


class OtherRank:
    """The messages of rank 0 in a group of two, whose other rank has sent what is known before."""

    def __init__(self) -> None:
        self.sent: Any = None

    def allgather(self, outputs: Any, inputs: Any) -> OtherRank:
        outputs[0][0].copy_(inputs[0])
        outputs[0][1].copy_(inputs[0] if self.sent is None else self.sent)
        self.sent = inputs[0].clone()
        return self

    def wait(self) -> None:
        """Return at once."""


def test_choices_that_share_a_checksum_are_seen_to_differ() -> None:
    """Check two texts whose CRC-32 is equal, as that of crafted files could be."""
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    messages = OtherRank()
    check_same_choices(messages, "plumless", None, (3, 7))
    check_same_choices(messages, "plumless", None, (3, 7))
    with pytest.raises(InputError, match="rank 7 has another SYNTH_BACKEND"):
        check_same_choices(messages, "buckeroo", None, (3, 7))


def test_a_rank_that_cannot_choose_is_named() -> None:
    messages = OtherRank()
    with pytest.raises(InputError, match="the table is wrong"):
        check_same_choices(messages, "same", "the table is wrong", (3, 7))
    with pytest.raises(InputError, match="rank 7 cannot use"):
        check_same_choices(messages, "same", None, (3, 7))
