"""A Python file that writes an algorithm: its function `algorithm` and the arguments given to it."""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emit.language import Script
from topologies.errors import InputError

FUNCTION = "algorithm"


def load_script(path: str | Path, settings: Sequence[str] = ()) -> Script:
    """Run a file and call its function `algorithm`, with settings such as "ranks=4" as arguments.

    The file is the user's own program: it is executed.

    Raises:
        InputError: the file, its function, a setting or the algorithm is at fault; with the file's line.
    """
    where = Path(path)
    try:
        text = where.read_bytes()
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error})") from None
    names: dict[str, Any] = {"__name__": where.stem, "__file__": str(where)}
    try:
        code = compile(text, str(where), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{where}{line}: no Python: {getattr(error, 'msg', error)}") from None
    _told(where, lambda: exec(code, names))
    function = names.get(FUNCTION)
    if not callable(function):
        raise InputError(f"{where}: has no function {FUNCTION}(); it would return a Script")
    asked = _settings(settings)
    signature = inspect.signature(function)
    try:
        signature.bind(**asked)
    except TypeError as error:
        told = ", ".join(str(p) for p in signature.parameters.values()) or "none"
        raise InputError(f"{where}: {FUNCTION}() with these settings: {error}; it takes {told}") from None
    script = _told(where, lambda: function(**asked))
    if not isinstance(script, Script):
        raise InputError(f"{where}: {FUNCTION}() returned {type(script).__name__}; would be a Script")
    return script


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--set {text}: would be name=value")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = value
    return found


def _told(where: Path, call: Any) -> Any:
    """What a call returns; an error in the user's file is one line that names its line."""
    try:
        return call()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(where)]
        line = f", line {lines[-1]}" if lines else ""
        said = str(error).strip().splitlines()
        raise InputError(f"{where}{line}: {type(error).__name__}{': ' + said[0] if said else ''}") from None
