"""Run loops over arrays: interpreted as they stand for little work, compiled by Numba for much work.

A loop is a plain function over numbers and flat sequences. Python runs it over lists at once. `compiled` makes it
machine code over NumPy arrays, which pays from about ten thousand steps on: importing Numba takes a third of a second
and loading a loop from disk some hundredths. A small problem is answered before a compiler could be loaded.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from time import monotonic
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from synth.model.deadline import check_deadline, uncounted
from synth.model.loop_cache import folder_of, loops_folder, store_of

log = logging.getLogger("synth.loops")

Table = TypeVar("Table", bound=tuple[Any, ...])
Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Return a loop as machine code, with each function of this project that it calls; it is kept on disk.

    The first call compiles for seconds. That can be interrupted, counts against no budget, and is logged, once in a
    process. Every argument type is compiled separately, so arrays must always have the same types: see `Runner`.
    """
    machine_code: Loop = _compiled(loop)
    return machine_code


def is_loaded() -> bool:
    """Return whether Numba is already imported, so that only the loop itself must be loaded."""
    return "numba" in sys.modules


@cache
def _compiled(loop: FunctionType, is_called: bool = False) -> Any:
    """Build the machine code of a loop and of the functions that it calls, with Numba; it is cached in the process.

    It imports Numba; the code itself is compiled, or loaded from disk, at the first call with each set of argument
    types. Code is stored on disk if there is a folder for it.

    Args:
        loop: The loop.
        is_called: Only compiled code calls this function. Then it needs no entry from Python and no file, as its
            callers contain its code. That saves a twelfth of the time of compiling.
    """
    # Otherwise numba's colours, which only its errors have, are reset on standard output when the process ends.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    import numba  # This import takes a third of a second, so that only large problems pay for it.

    names, callees = loop.__globals__, _called(loop)
    machine = {name: _compiled(names[name], is_called=True) for name in callees}
    copy = FunctionType(loop.__code__, {**names, **machine}, loop.__name__, loop.__defaults__)
    copy.__qualname__ = loop.__qualname__
    folder = None if is_called else folder_of(loop, _all_called(loop))
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "no_cpython_wrapper": is_called}
    dispatcher: Any = numba.njit(**options)(copy)
    if folder is not None:
        dispatcher._cache = store_of(copy, folder)
    dispatcher.get_call_template = _WithoutLiterals(dispatcher.get_call_template, numba.types.unliteral)
    dispatcher._compile_for_args = _CallInThread(dispatcher._compile_for_args, partial(_compilations, dispatcher))
    return dispatcher


def _called(loop: FunctionType) -> dict[str, FunctionType]:
    """Return the plain functions among the globals that a loop names, by these names.

    Built-in functions, methods and classes are left out.
    """
    names = loop.__globals__
    return {n: names[n] for n in loop.__code__.co_names if isinstance(names.get(n), FunctionType)}


def _all_called(loop: FunctionType) -> dict[str, FunctionType]:
    """Return the plain functions that a loop calls directly or through others, by MODULE.QUALNAME.

    The loop itself is only among them if it is called.
    """
    functions: dict[str, FunctionType] = {}
    waiting = [*_called(loop).values()]
    while waiting:
        function = waiting.pop()
        name = f"{function.__module__}.{function.__qualname__}"
        if name not in functions:
            functions[name] = function
            waiting += _called(function).values()
    return functions


def _compilations(dispatcher: Any) -> int:
    """Return how many of a loop's signatures were compiled because the disk had no code for them."""
    return sum(dispatcher.stats.cache_misses.values())


@dataclass(frozen=True)
class Runner:
    """A choice between the interpreter and compiled code for running loops.

    Attributes:
        interpreted: True where Python runs the loops over lists; False where they are compiled and run over arrays.
    """

    interpreted: bool

    def columns(self, *arrays: NDArray[Any]) -> list[Any]:
        """Return arrays of any shape as loops take them: (nested) lists, or contiguous writable arrays.

        Read what a loop writes from the result. A list is always a copy; an array is copied only where it must be, so
        that the loop may write into the caller's own array.
        """
        if self.interpreted:
            return [array.tolist() for array in arrays]
        plain = [np.ascontiguousarray(array) for array in arrays]
        return [array if array.flags.writeable else array.copy() for array in plain]

    def table(self, values: Table) -> Table:
        """Return a NamedTuple of arrays and numbers with its arrays as loops take them; see `columns`."""
        return type(values)(*(self.columns(value)[0] if isinstance(value, np.ndarray) else value for value in values))

    def __call__(self, loop: Callable[..., Any], *arguments: Any) -> Any:
        """Run a loop and return its result.

        Args:
            loop: A plain function of a module (see `compiled`), always the same object for the same loop.
            *arguments: Numbers, and arrays or tables as `columns` or `table` of this runner returned them.

        Raises:
            TimeUp: The time of the work around was over before the loop started.
        """
        check_deadline()
        return loop(*arguments) if self.interpreted else compiled(loop)(*arguments)


_COMPILING = 12  # Compiling the loops of a question takes about so many times as long as loading them, or longer.


_has_compiled = False  # Whether this process had to compile a loop that it needed.
_compiles_all = False  # Whether loops are compiled for any work.


@contextmanager
def compiling_all() -> Iterator[None]:
    """Compile every loop that runs meanwhile, however little its work is, so that later processes load it."""
    global _compiles_all
    before, _compiles_all = _compiles_all, True
    try:
        yield
    finally:
        _compiles_all = before


@cache
def are_some_on_disk() -> bool:
    """Return whether there are compiled loops on disk; the answer is kept for the process."""
    folder = loops_folder()
    return folder is not None and any(folder.iterdir())


def patience() -> int:
    """Return how many times longer this process interprets loops than it would if compiled ones were on disk.

    It is 1 where some are, until the process needs one that is not, as then others are likely to be missing too. It is
    12 from then on, and where none are, as in a fresh home: a small question is answered before its loops could be
    compiled.
    """
    return 1 if are_some_on_disk() and not _has_compiled else _COMPILING


def is_first_run() -> bool:
    """Return whether this process is slow because loops were not on disk: it compiled some or interprets for long.

    Later processes load these loops and get further in the same time.
    """
    return patience() > 1


def is_little(work: int, threshold: int) -> bool:
    """Return whether work is below a threshold from which on loaded loops pay, or `patience` times that.

    Args:
        work: Sends or other steps of a loop.
        threshold: The same number from which on loading the compiled loop pays.
    """
    return not _compiles_all and (work < threshold or work < threshold * patience())


def is_at_hand() -> bool:
    """Return whether Numba is imported and loops are likely to be on disk, so that loading one takes some 0.02 s."""
    return is_loaded() and patience() == 1


_LOADING_S = 0.5  # Importing Numba and loading an engine's loops from disk takes about so long.
_interpreted_s = 0.0  # About what this process has spent in the interpreter by `choose_runner`.


def choose_runner(seconds: float) -> Runner:
    """Return a runner that interprets while this process has interpreted for at most 0.5 s, with this work.

    Importing Numba and loading loops takes about so long. Beyond it the runner compiles, and at once where compiled
    loops are at hand. Where none are on disk, it is `patience` times as long.

    Args:
        seconds: About what the interpreter would take for this work; it is added to the process's total if the
            interpreter is chosen.
    """
    global _interpreted_s
    total_s = _interpreted_s + seconds
    if _compiles_all or is_at_hand() or (total_s > _LOADING_S and total_s > _LOADING_S * patience()):
        return Runner(interpreted=False)
    _interpreted_s += seconds
    return Runner(interpreted=True)


@dataclass(frozen=True)
class _WithoutLiterals:
    """A compiled function's answer to a call in another compiled function, whose constants count as their types.

    Numba would compile the function again for every number that a caller writes out or gives a variable at first, and
    for True and False. LLVM sees the constants anyway where it inlines the function.

    Attributes:
        call_template: The function's own answer, for types of arguments in their order and by name.
        unliteral: Returns the type of a constant's type, and each other type as it is.
    """

    call_template: Callable[..., Any]
    unliteral: Callable[[Any], Any]

    def __call__(self, types: Sequence[Any], named_types: Mapping[str, Any]) -> Any:
        """Return what Numba needs to know of a call with these types."""
        by_name = {name: self.unliteral(argument) for name, argument in named_types.items()}
        return self.call_template(tuple(self.unliteral(argument) for argument in types), by_name)


_LOOK_S = 0.1  # between two checks whether a loop is compiled or comes from disk
_LONG_S = 2.0  # of compiling in a process, after which users are told what takes so long
_compiled_s = 0.0  # What this process has spent in calls that compiled something.


@cache
def _report_once() -> None:
    """Log that time goes into compiling, and whether code is kept; later calls do nothing."""
    kept = "kept for later runs" if loops_folder() else "not kept: no folder for them can be written"
    log.info("compiling loops for large problems, %s; up to two minutes, not of the budget", kept)


class _CallInThread:
    """A compiled function whose first call runs in a separate thread while the main thread waits.

    Ctrl-C reaches the main thread only. Raised amid the compiler it would be swallowed by one of the compiler's
    callbacks, or leave a loop half compiled. Here Ctrl-C ends the wait, and the compiler goes on undisturbed until the
    process ends.

    Attributes:
        call: The function to call.
        compilations: Returns the number of compilations so far.
    """

    def __init__(self, call: Callable[..., object], compilations: Callable[[], int]) -> None:
        self.call, self.compilations = call, compilations

    def __call__(self, *args: object, **keywords: object) -> object:
        global _has_compiled
        before = self.compilations()

        def counts() -> bool:
            """Return whether the call's time counts against a budget: only if it compiled nothing."""
            return self.compilations() == before

        try:
            if threading.current_thread() is not threading.main_thread():
                return self.call(*args, **keywords)  # The main thread works meanwhile, and its time counts.
            return uncounted(partial(self._waited_for, *args, **keywords), counts)
        finally:
            _has_compiled = _has_compiled or not counts()

    def _waited_for(self, *args: object, **keywords: object) -> object:
        """Make the call in a thread, wait for it, and return its result or raise its error.

        Once the call has compiled something, and such calls have taken more than 2 s of this process, that is reported
        (`_report_once`). Ctrl-C ends the wait, and the thread goes on.
        """
        global _compiled_s
        answer: list[object] = []
        fault: list[BaseException] = []

        def work() -> None:
            """Make the call, and keep its result or its error."""
            try:
                answer.append(self.call(*args, **keywords))
            except BaseException as error:
                fault.append(error)

        worker = threading.Thread(target=work, daemon=True)
        before, begun = self.compilations(), monotonic()
        worker.start()
        while worker.is_alive():
            worker.join(_LOOK_S)
            if self.compilations() > before and _compiled_s + monotonic() - begun > _LONG_S:
                _report_once()
                worker.join()
        if self.compilations() > before:
            _compiled_s += monotonic() - begun
        if fault:
            raise fault[0]
        return answer[0]
