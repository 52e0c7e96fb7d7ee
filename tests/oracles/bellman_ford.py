"""Shortest distances by Bellman and Ford, in the plainest way."""

from __future__ import annotations

import numpy as np


def bellman_ford(count: int, src: np.ndarray, dst: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Least sums of lengths ≥ 0 between all pairs, shape (count, count); inf where there is no route."""
    found = np.where(np.eye(count, dtype=bool), 0.0, np.inf)
    before = np.empty(0)
    while not np.array_equal(before, found):
        before = found.copy()
        for u, v, each in zip(src.tolist(), dst.tolist(), length.tolist(), strict=True):
            np.minimum(found[:, v], found[:, u] + each, out=found[:, v])
    return found
