"""Loops over arrays: one source, interpreted as it stands where there is little to do, compiled by Numba where much.

A loop is a plain function over numbers and flat sequences. Python runs it over lists at once; `compiled` makes it
machine code over NumPy arrays, which pays from some ten thousand steps on: to import Numba takes a third of a second
and to load a loop from disk some hundredths, so that small problems are answered before a compiler were loaded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from synth.model.deadline import uncounted
from synth.model.loop_cache import Guarded, folder_of, loops_folder

Table = TypeVar("Table", bound=tuple[Any, ...])
Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """The loop, and each function of ours that it calls, as machine code, kept on disk after the first call.

    A first call's compilation, seconds long, can be interrupted; it counts against no budget, and is said once. Every
    argument type is compiled for itself, so that arrays must always have the same types: see `Runner`.
    """
    made: Loop = _compiled(loop)
    return made


def is_loaded() -> bool:
    """Whether Numba is imported, so that only a loop is to be loaded."""
    return "numba" in sys.modules


@cache
def _compiled(loop: FunctionType) -> Any:
    import numba  # a third of a second

    names, mine = loop.__globals__, _called(loop)
    machine = {name: _compiled(names[name]) for name in mine}
    copy = FunctionType(loop.__code__, {**names, **machine}, loop.__name__, loop.__defaults__)
    copy.__qualname__ = loop.__qualname__
    folder = folder_of(loop, _all_called(loop))
    if folder is not None:
        numba.config.CACHE_DIR = str(folder)  # read by the next line
    made: Any = numba.njit(cache=folder is not None, nogil=True, error_model="numpy")(copy)
    made._cache = Guarded(made._cache)
    made._compile_for_args = _InThread(made._compile_for_args, partial(_compilations, made))
    return made


def _called(loop: FunctionType) -> dict[str, FunctionType]:
    """The functions of ours that a loop calls, by the names that it has for them."""
    names = loop.__globals__
    return {n: names[n] for n in loop.__code__.co_names if isinstance(names.get(n), FunctionType)}


def _all_called(loop: FunctionType) -> dict[str, FunctionType]:
    """The same with what these call, by their full names."""
    found: dict[str, FunctionType] = {}
    waiting = [*_called(loop).values()]
    while waiting:
        one = waiting.pop()
        name = f"{one.__module__}.{one.__qualname__}"
        if name not in found:
            found[name] = one
            waiting += _called(one).values()
    return found


def _compilations(made: Any) -> int:
    """How often a loop was not found on disk."""
    return sum(made.stats.cache_misses.values())


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


_LOOK_S = 0.1  # between two looks at whether a loop is compiled, or comes from disk


@cache
def _say_once() -> None:
    """That time goes into compiling."""
    folder = loops_folder()
    kept = "nowhere, as no folder for it can be written" if folder is None else f"in {folder}"
    print(f"compiling loops for large problems, beside the budget; kept {kept}", file=sys.stderr, flush=True)


class _InThread:
    """A first call, in a thread of its own while the caller waits.

    Ctrl-C reaches the main thread only. Raised amid the compiler it would be swallowed by one of its callbacks, or
    leave half a loop; here it ends the wait, and the compiler goes on undisturbed until the process ends.
    compilations: how many there were.
    """

    def __init__(self, call: Callable[..., object], compilations: Callable[[], int]) -> None:
        self.call, self.compilations = call, compilations

    def __call__(self, *args: object, **named: object) -> object:
        before = self.compilations()

        def counts() -> bool:
            return self.compilations() == before

        return uncounted(partial(self._waited_for, *args, **named), counts)

    def _waited_for(self, *args: object, **named: object) -> object:
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
        before = self.compilations()
        worker.start()
        while worker.is_alive():
            worker.join(_LOOK_S)
            if self.compilations() > before:
                _say_once()
                worker.join()
        if fault:
            raise fault[0]
        return answer[0]
