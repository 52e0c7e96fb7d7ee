"""The knowledge that a search gives to engines, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from synth.engines.request import Candidate


@dataclass
class BestTimes:
    """The best times by message size, and nothing else.

    Attributes:
        best: Best time in µs of each size in bytes.
    """

    best: dict[float, float] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        return bool(self.best)

    def best_us(self, size_bytes: float) -> float:
        return self.best.get(size_bytes, np.inf)

    def time_us(self, _candidate: Candidate) -> float:
        return np.inf

    def fewest_steps(self) -> int | None:
        return None

    def shown_bytes(self) -> list[int]:
        return []
