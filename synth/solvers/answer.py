"""What a solver says of a StepModel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from synth.model.collective import Ints


@dataclass(frozen=True)
class Answer:
    """`sat` comes with the variables that are true, `unsat` is a proof, `unknown` is neither."""

    status: Literal["sat", "unsat", "unknown"]
    chosen: Ints | None
    solver: str
    seconds: float
