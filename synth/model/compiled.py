"""Loops over millions of sends, compiled by Numba and kept on disk after the first call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """A function over arrays and numbers as machine code; it must not be called before it is worth a compiler.

    The import of this module alone takes a third of a second: import it where large problems are handled only.
    A first call's compilation, seconds long, can be interrupted.
    """
    compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    compiled._compile_for_args = _Aside(compiled._compile_for_args)
    kernel: Kernel = compiled
    return kernel


class _Aside:
    """A first call, in a thread of its own while the caller waits.

    Ctrl-C reaches the main thread only. Raised amid the compiler it would be swallowed by one of its callbacks, or
    leave half a kernel; here it ends the wait, and the compiler goes on undisturbed until the process ends.
    """

    def __init__(self, call: Callable[..., object]) -> None:
        self.call = call

    def __call__(self, *args: object, **named: object) -> object:
        if threading.current_thread() is not threading.main_thread():
            return self.call(*args, **named)
        answer: list[object] = []
        fault: list[BaseException] = []

        def work() -> None:
            try:
                answer.append(self.call(*args, **named))
            except BaseException as error:
                fault.append(error)

        aside = threading.Thread(target=work, daemon=True)
        aside.start()
        aside.join()
        if fault:
            raise fault[0]
        return answer[0]
