"""Convert the values that users give, on the command line and in Python, to numbers, texts, flags and folders.

Every function raises InputError for a value of another kind; the message begins with the value's `label`. The decorator
`taking` does so for calls with missing or unknown arguments.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence, Set
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from topologies.errors import InputError, UnknownKeyword, WrongArguments, right_name
from topologies.text.fields import shown

MOST_SECONDS = 1e7
_MANY_SECONDS = 300
_OPTION = re.compile(r"--([a-z][a-z-]*)")
_UNITS = (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0))


Function = TypeVar("Function", bound=Callable[..., Any])


def taking(example: str) -> Callable[[Function], Function]:
    """Return a decorator for a public function, after which calls with wrong arguments raise errors that help.

    An unknown keyword raises UnknownKeyword, with the most similar right ones. A missing argument, or one too many,
    raises WrongArguments with the example. An InputError that names options of the command line, as `--scratch-limit`,
    names the function's keywords instead. Otherwise the function stays as it is.

    Args:
        example: A right call, such as `load("ring.synth")`.
    """

    def decorate(function: Function) -> Function:
        """Return the function such that a wrong keyword or argument raises an InputError of one line.

        In the text of other InputErrors, options of the command line become the function's keywords.
        """
        signature = inspect.signature(function)
        name = function.__qualname__.removesuffix(".__init__").removesuffix(".__new__")
        keywords = [keyword for keyword in signature.parameters if keyword not in ("self", "cls")]

        def as_keyword(option: re.Match[str]) -> str:
            """Return the keyword that an option of the command line stands for; the option if there is none."""
            keyword = option[1].replace("-", "_")
            return keyword if keyword in keywords else option[0]

        @wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            """Call the function; if that fails, check which arguments the call has."""
            try:
                return function(*arguments, **options)
            except InputError as error:
                error.args = (_OPTION.sub(as_keyword, str(error)),)
                raise
            except TypeError:  # Most calls are right, and some take microseconds, so that the check comes second.
                for option in options:
                    if option not in keywords:
                        reason = f"has no keyword {option[:40]!r}; {right_name(option, keywords)}"
                        raise UnknownKeyword(f"{name}: {reason}") from None
                try:
                    signature.bind(*arguments, **options)
                except TypeError as error:
                    raise WrongArguments(f"{name}: {error}; it must be as in {example}") from None
                raise

        return checked  # type: ignore[return-value]

    return decorate


def parse_seconds(text: str, label: str) -> float:
    """Return the seconds of a text such as `30s`, `500ms`, `5m`, `1h` or `30`; m is minutes, no unit is seconds.

    Raises:
        InputError: The text is no time, or not more than 0 and less than 10⁷ seconds; the message begins with `label`.
    """
    for unit, factor in _UNITS:
        if text.endswith(unit):
            number = text[: len(text) - len(unit)]
            try:
                value = float(number) * factor
            except ValueError:
                break
            if not 0 < value < MOST_SECONDS:
                raise InputError(
                    f"{label} {text[:64]}: must be more than 0 seconds and less than {MOST_SECONDS:g}, as in 30s or 5m"
                )
            return value
    raise InputError(f"{label} {shown(text)}: is not a time; write it as in 30s, 500ms or 5m")


def format_seconds(seconds: float) -> str:
    """Return seconds rounded up to whole seconds, such as `30s`, or above 300 s to whole minutes, such as `6m`.

    Less than a second is rounded up to milliseconds, such as `300ms`.
    """
    if seconds < 1 and math.ceil(1000 * seconds) < 1000:
        return f"{math.ceil(1000 * seconds)}ms"
    return f"{math.ceil(seconds / 60)}m" if seconds > _MANY_SECONDS else f"{math.ceil(seconds)}s"


def whole(value: Any, label: str) -> int:
    """Return a whole number, Python's or NumPy's, as an int.

    Raises:
        InputError: The value is anything else, such as 4.0, "4" or a bool; the message begins with `label`.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise InputError(f"{label}: {_shown_value(value)} is no whole number; it must be a number such as 4")


def whole_numbers(values: Any, label: str) -> tuple[int, ...]:
    """Return a list, or any other ordered iterable, of whole numbers (see `whole`) as a tuple; it may be empty.

    Raises:
        InputError: The value is no list of whole numbers, or a set; the message begins with `label`.
    """
    if isinstance(values, Set):
        raise InputError(f"{label}: a set has no order, which counts; it must be a list such as [0, 2]")
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InputError(
            f"{label}: {_shown_value(values)} is no list; it must be a list of whole numbers, such as [0, 2]"
        )
    return tuple(whole(value, label) for value in values)


def as_seconds(value: Any, label: str) -> float:
    """Return the seconds of a number, or of a text such as `30s`.

    Raises:
        InputError: The value is neither, or is a text that `parse_seconds` refuses; the message begins with `label`.
            A number may have any value: callers check its range.
    """
    if isinstance(value, str):
        return parse_seconds(value, label)
    try:
        if not isinstance(value, bool | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{label}: {_shown_value(value)} is no number; it must be seconds, such as 30 or '30s'")


def as_text(value: Any, label: str) -> str:
    """Return the value if it is a text.

    Raises:
        InputError: The value is no text; the message begins with `label`.
    """
    if not isinstance(value, str):
        raise InputError(f"{label}: {_shown_value(value)} is no text; it must be a name")
    return value


def as_texts(values: Any, label: str) -> tuple[str, ...]:
    """Return a list of texts, or a single text, as a tuple.

    Raises:
        InputError: The value is no text and no iterable of texts; the message begins with `label`.
    """
    values = [values] if isinstance(values, str) else values
    if not isinstance(values, Iterable):
        raise InputError(
            f"{label}: {_shown_value(values)} is no list; it must be a list of names, such as ['link:0-1']"
        )
    return tuple(as_text(value, label) for value in values)


def as_flag(value: Any, label: str) -> bool:
    """Return the value as a bool if it is True or False, Python's or NumPy's.

    Raises:
        InputError: The value is anything else; the message begins with `label`.
    """
    if type(value).__name__ not in ("bool", "bool_"):  # The second is NumPy's, which commands load only later.
        raise InputError(f"{label}: {_shown_value(value)} is no flag; it must be True or False")
    return bool(value)


def as_folder(value: Any, label: str) -> Path:
    """Return the name of a file or folder, a text or a Path, as a Path; it need not exist.

    Raises:
        InputError: The value is no text or Path, is empty, or holds a zero byte; the message begins with `label`.
    """
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise InputError(f"{label}: {_shown_value(value)} is no name of a file or folder; it must be text or a Path")
    return Path(value)


def _shown_value(value: object) -> str:
    """Return a user's value as one short line for a message: a bool as Python writes it, others as `shown` does."""
    return str(value) if isinstance(value, bool) else shown(value)


def without_common_divisor(numbers: Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers divided by their greatest common divisor; if all are 0 they stay."""
    divisor = max(1, math.gcd(*numbers))
    return tuple(number // divisor for number in numbers)
