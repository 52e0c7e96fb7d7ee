"""The event loop of `emit.predict` as machine code; importing this brings Numba."""

from __future__ import annotations

from collections.abc import Callable

from emit.predict_loop import execute as _execute
from synth.compiled import kernel

execute: Callable[..., tuple[float, int]] = kernel(_execute)
