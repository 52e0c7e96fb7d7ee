"""Who may hold which chunks, where that is less than everybody."""

from __future__ import annotations

from dataclasses import dataclass

from synth.model.collective import Bools, Ints


@dataclass(frozen=True, eq=False)
class Allowed:
    """A family for every chunk, shape (chunks,), and who may hold a family's chunks, shape (families, local ranks)."""

    family: Ints
    ranks: Bools
