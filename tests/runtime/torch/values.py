"""What ranks send, what they must get, and how a check says that they did not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed import ReduceOp

OPS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "max": ReduceOp.MAX,
    "min": ReduceOp.MIN,
    "avg": ReduceOp.AVG,
}
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
Check = Callable[[], None]


def values(rank: int, count: int, kind: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """A rank's numbers, small enough that sums and products are exact in every type."""
    made = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(1, 4, (count,), generator=made).to(kind)


def folded(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """What a reduction must give."""
    every = torch.stack(tensors).to(torch.float64)
    made = {
        "sum": every.sum(0),
        "prod": every.prod(0),
        "max": every.amax(0),
        "min": every.amin(0),
        "avg": every.mean(0),
    }[op]
    kind = tensors[0].dtype
    return (made.trunc() if not kind.is_floating_point else made).to(kind)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal, averages within a rounding."""
    assert got.shape == want.shape, (got.shape, want.shape)
    close = torch.allclose(got.to(torch.float64), want.to(torch.float64), rtol=1e-2, atol=0)
    assert close, f"got {got.flatten()[:8].tolist()}, wants {want.flatten()[:8].tolist()}"


def expect(words: list[str], call: Check, kind: type[Exception] = Exception) -> None:
    """A call that must fail and say so."""
    message = ""
    try:
        call()
    except kind as error:
        message = str(error)
    assert message, "did not fail"
    for word in words:
        assert word in message, f"{word!r} is not in {message}"
