"""The choice of the protocols and sizes that are searched with an executor's costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synth.search.plans import ProtocolPlan


@dataclass
class Line:
    """A bound that is linear in the message size."""

    us: float
    us_per_byte: float

    def at(self, size_bytes: float) -> tuple[float, None]:
        return self.us + self.us_per_byte * size_bytes, None


def test_the_protocol_with_the_largest_size_comes_first() -> None:
    """Check the order where another protocol, for small messages, is searched at more sizes."""
    bounds: dict[str, Any] = {"LL": Line(1.0, 2e-3), "Simple": Line(10.0, 1e-3)}
    sizes = ProtocolPlan().sizes_of(bounds, ("LL", "Simple"), (1 << 20, 4096, 1024, 256, 64))
    assert list(sizes) == ["Simple", "LL"]
    assert sizes["Simple"] == (1 << 20,)
    assert sizes["LL"] == (4096, 1024, 256, 64)


def test_of_protocols_with_the_same_largest_size_the_least_bound_comes_first() -> None:
    bounds: dict[str, Any] = {"slow": Line(1.0, 1.1e-3), "fast": Line(1.0, 1e-3)}
    assert list(ProtocolPlan().sizes_of(bounds, ("slow", "fast"), (1 << 20, 1024))) == ["fast", "slow"]
