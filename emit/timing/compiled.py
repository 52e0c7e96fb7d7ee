"""The event loop of `emit.timing.predict` as machine code; importing this brings Numba."""

from __future__ import annotations

from collections.abc import Callable

from emit.timing.loop import execute as _execute
from synth.model.compiled import compiled

execute: Callable[..., tuple[float, int]] = compiled(_execute)
