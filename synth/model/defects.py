"""Contain defects of this project's own code: a part that fails costs only its own results.

The code that answers a question opens `collected`. Inside, each part that others can do without (an engine, a bound, a
lowering) runs in `contained`. The answer says which parts failed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from synth.model.deadline import interrupt_behind
from topologies.errors import InputError, in_one_line

Answer = TypeVar("Answer")
_MOST_CHARACTERS = 200  # of an error's own text in a line


@dataclass(frozen=True)
class Defect:
    """A failure of a part of this project's own code.

    Attributes:
        line: The part, the error and its place, in one line.
        trace: The traceback.
    """

    line: str
    trace: str


_collected: ContextVar[dict[str, Defect] | None] = ContextVar("defects", default=None)


@contextmanager
def collected() -> Iterator[dict[str, Defect]]:
    """Collect the defects that are contained inside, each line once; an enclosing collector gets them at the end too.

    The enclosing collector also gets them if the context is left by an error.

    Yields:
        The defects by their lines: an empty dictionary that fills while the context is open.
    """
    enclosing, defects = _collected.get(), dict[str, Defect]()
    token = _collected.set(defects)
    try:
        yield defects
    finally:
        _collected.reset(token)
        if enclosing is not None:
            enclosing.update(defects)


def contained(part: str, work: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return the result of `work`, or `otherwise` where it fails by a defect, which is collected.

    InputError, TimeUp, interrupts and the end of a pipe are raised. Where no collector is open, as in the test of one
    engine, every error is raised.

    Args:
        part: The part that may fail, in words that begin a line ("engine flow").
        work: What to run.
        otherwise: The result in place of a failed one.
    """
    defects = _collected.get()
    if defects is None:
        return work()
    try:
        return work()
    except (InputError, BrokenPipeError):
        raise
    except Exception as error:
        # Compiled code reports an interrupt as a SystemError, and NumPy's comparisons as a TypeError.
        interrupt = interrupt_behind(error) if isinstance(error, SystemError | TypeError) else None
        if interrupt is not None:
            raise type(interrupt) from error
        defect = describe_defect(part, error)
        defects.setdefault(defect.line, defect)
        return otherwise


def raise_first_defect() -> None:
    """Raise the first defect of the innermost open collector; do nothing if it has none or no collector is open.

    Call it where an answer is missing, which a defect would explain.

    Raises:
        DefectError: A defect was collected.
    """
    defects = list((_collected.get() or {}).values())
    if defects:
        raise DefectError(defects[0])


class DefectError(RuntimeError):
    """The error that no answer is possible because parts of this project's own code failed.

    Attributes:
        defect: The first defect, whose line is the message.
    """

    def __init__(self, defect: Defect) -> None:
        super().__init__(defect.line)
        self.defect = defect


def describe_defect(part: str, error: BaseException) -> Defect:
    """Return an error that was raised in a part as a defect, with its traceback.

    Its line is `PART failed (TYPE in FILE:LINE: MESSAGE)`, with the place where the error was raised and at most 200
    characters of its message.

    Args:
        part: The part that failed, in words that begin a line ("engine flow").
        error: The error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = str(error)[:_MOST_CHARACTERS]
    line = in_one_line(f"{part} failed ({type(error).__name__}{place}{': ' if message else ''}{message})")
    return Defect(line, "".join(traceback.format_exception(error)))
