"""Shortest distances by the Bellman-Ford algorithm in its simplest form."""

from __future__ import annotations

import numpy as np


def bellman_ford(count: int, src: np.ndarray, dst: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the least sums of lengths >= 0 between all pairs, shape (count, count); inf where there is no route."""
    distances = np.where(np.eye(count, dtype=bool), 0.0, np.inf)
    previous = np.empty(0)
    while not np.array_equal(previous, distances):
        previous = distances.copy()
        for u, v, link_length in zip(src.tolist(), dst.tolist(), length.tolist(), strict=True):
            np.minimum(distances[:, v], distances[:, u] + link_length, out=distances[:, v])
    return distances
