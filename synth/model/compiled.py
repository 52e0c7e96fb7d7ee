"""Loops over arrays: one source, interpreted as it stands where there is little to do, compiled by Numba where much.

A loop is a plain function over numbers and flat sequences. Python runs it over lists at once; `compiled` makes it
machine code over NumPy arrays, which pays from some ten thousand steps on: to import Numba takes a third of a second
and to load a loop from disk some hundredths, so that small problems are answered before a compiler were loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Table = TypeVar("Table", bound=tuple[Any, ...])
Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """The loop, and each function of ours that it calls, as machine code, kept on disk after the first call.

    A first call's compilation, seconds long, can be interrupted. Every argument type is compiled for itself, so that
    arrays must always have the same types: see `Runner`.
    Numba compiles a loop again when its own file changes, not when another does: who changes a function that loops of
    other files call removes their `__pycache__`.
    """
    made: Loop = _compiled(loop)
    return made


@cache
def _compiled(loop: FunctionType) -> Any:
    import numba  # a third of a second

    names = loop.__globals__
    called = {n: _compiled(names[n]) for n in loop.__code__.co_names if isinstance(names.get(n), FunctionType)}
    copy = FunctionType(loop.__code__, {**names, **called}, loop.__name__, loop.__defaults__)
    copy.__qualname__ = loop.__qualname__
    made: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(copy)
    made._compile_for_args = _InThread(made._compile_for_args)
    return made


@dataclass(frozen=True)
class Runner:
    """Runs loops, all interpreted or all compiled.

    Attributes:
        interpreted: by Python, over lists; else compiled, over arrays.
    """

    interpreted: bool

    def columns(self, *arrays: NDArray[Any]) -> list[Any]:
        """Arrays of any shape as loops take them: lists, or contiguous and writable; copied only where they must be."""
        if self.interpreted:
            return [array.tolist() for array in arrays]
        plain = [np.ascontiguousarray(array) for array in arrays]
        return [array if array.flags.writeable else array.copy() for array in plain]

    def table(self, given: Table) -> Table:
        """A NamedTuple of arrays, and of numbers, with its arrays as loops take them."""
        return type(given)(*(self.columns(x)[0] if isinstance(x, np.ndarray) else x for x in given))

    def __call__(self, loop: Callable[..., Any], *arguments: Any) -> Any:
        """What the loop returns."""
        return loop(*arguments) if self.interpreted else compiled(loop)(*arguments)


_LOADING_S = 0.5  # what it takes to import Numba and load an engine's loops from disk
_interpreted_s = 0.0  # what this process has spent, about, where it could choose


def choose_runner(seconds: float) -> Runner:
    """Interpreted, as long as all that was chosen so takes the process less time than to load compiled loops.

    Args:
        seconds: about what the interpreter would take.
    """
    global _interpreted_s
    if _interpreted_s + seconds > _LOADING_S:
        return Runner(interpreted=False)
    _interpreted_s += seconds
    return Runner(interpreted=True)


class _InThread:
    """A first call, in a thread of its own while the caller waits.

    Ctrl-C reaches the main thread only. Raised amid the compiler it would be swallowed by one of its callbacks, or
    leave half a loop; here it ends the wait, and the compiler goes on undisturbed until the process ends.
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

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join()
        if fault:
            raise fault[0]
        return answer[0]
