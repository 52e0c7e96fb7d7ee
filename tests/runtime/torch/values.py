"""The data that ranks send, the results that they must get, and the report of a failed check."""

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
    """Return a rank's numbers, small enough that sums and products are exact in every type."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(1, 4, (count,), generator=generator).to(kind)


def folded(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """Return the result of a reduction."""
    every = torch.stack(tensors).to(torch.float64)
    results = {
        "sum": every.sum(0),
        "prod": every.prod(0),
        "max": every.amax(0),
        "min": every.amin(0),
        "avg": every.mean(0),
    }[op]
    kind = tensors[0].dtype
    return (results.trunc() if not kind.is_floating_point else results).to(kind)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Check that tensors are equal, averages within rounding."""
    assert got.shape == want.shape, (got.shape, want.shape)
    close = torch.allclose(got.to(torch.float64), want.to(torch.float64), rtol=1e-2, atol=0)
    assert close, f"got {got.flatten()[:8].tolist()}, wants {want.flatten()[:8].tolist()}"


def expect(fragments: list[str], call: Check, kind: type[Exception] = Exception) -> None:
    """Check that a call fails with a message that contains all fragments."""
    message = ""
    try:
        call()
    except kind as error:
        message = str(error)
    assert message, "did not fail"
    for word in fragments:
        assert word in message, f"{word!r} is not in {message}"
