"""Defects of our own code: a part that fails costs its own answers only, and the answer says which part failed.

Whoever answers a question opens `collected`. Inside, each part that others can do without (an engine, a bound, a
lowering) runs in `contained`.
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
_MOST_WORDS = 200  # characters of an error's own text in a line


@dataclass(frozen=True)
class Defect:
    """A part that failed.

    Attributes:
        line: The part, the error and its place, in one line.
        trace: The traceback.
    """

    line: str
    trace: str


_collected: ContextVar[dict[str, Defect] | None] = ContextVar("defects", default=None)


@contextmanager
def collected() -> Iterator[dict[str, Defect]]:
    """Collect the defects that are contained inside, each line once; whoever collects outside gets them too."""
    outside, defects = _collected.get(), dict[str, Defect]()
    token = _collected.set(defects)
    try:
        yield defects
    finally:
        _collected.reset(token)
        if outside is not None:
            outside.update(defects)


def contained(part: str, work: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return what `work` returns, or `otherwise` where it fails by a defect, which is collected.

    InputError, interrupts and the end of a pipe are raised. Where nobody collects, as in the test of one engine, every
    error is raised.

    Args:
        part: What fails, in words that begin a line ("engine flow").
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
    """Raise the first defect that was collected, where an answer is missing because of it.

    Raises:
        DefectError: There is one.
    """
    defects = list((_collected.get() or {}).values())
    if defects:
        raise DefectError(defects[0])


class DefectError(RuntimeError):
    """Nothing could be answered, since parts of our own code failed."""

    def __init__(self, defect: Defect) -> None:
        super().__init__(defect.line)
        self.defect = defect


def describe_defect(part: str, error: BaseException) -> Defect:
    """Return an error that was raised in a part as a defect."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    words = str(error)[:_MOST_WORDS]
    line = in_one_line(f"{part} failed ({type(error).__name__}{place}{': ' if words else ''}{words})")
    return Defect(line, "".join(traceback.format_exception(error)))
