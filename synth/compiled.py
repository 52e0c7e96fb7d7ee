"""Loops over millions of sends, compiled by Numba and kept on disk after the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """A function over arrays and numbers as machine code; it must not be called before it is worth a compiler.

    The import of this module alone takes a third of a second: import it where large problems are handled only.
    """
    compiled: Kernel = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled
