"""Run solver calls in a child process, one after the other (see `workers`)."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from synth.solvers import SOLVERS


def main() -> None:
    """Run one solver's calls until the parent closes the pipe.

    The arguments of the command are the descriptor of the pipe and the solver's name in `SOLVERS`. Tuples of arguments
    come in over the pipe; (True, result) or (False, text of the error) goes out for each.
    """
    with_parent = Connection(int(sys.argv[1]))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    solve = _import_fast(SOLVERS[sys.argv[2]].module).solve
    while True:
        try:
            arguments = with_parent.recv()
        except (EOFError, OSError):
            return
        try:
            reply = (True, solve(*arguments))
        except MemoryError:
            reply = (False, "out of memory")
        except Exception:
            reply = (False, traceback.format_exc())
        with_parent.send(reply)


def _import_fast(module: str) -> ModuleType:
    """Import a solver's module, with a stand-in for pandas if that is enough.

    OR-tools imports pandas for functions that nothing here calls, and that takes longer than all the rest. It only
    names two of its types. This process runs nothing but the solver.
    """
    if "pandas" in sys.modules:
        return importlib.import_module(module)
    stand_in: Any = ModuleType("pandas")
    stand_in.Index, stand_in.Series = type("Index", (), {}), type("Series", (), {})
    sys.modules["pandas"] = stand_in
    try:
        return importlib.import_module(module)
    except (ImportError, AttributeError):  # Another release needs more of pandas.
        del sys.modules["pandas"]
        return importlib.import_module(module)
    finally:
        if sys.modules.get("pandas") is stand_in:
            del sys.modules["pandas"]


def _leave_with_parent() -> None:
    """Wait until standard input ends, which means that the parent is gone, and exit."""
    # A busy solver does not read its pipe; only the end of standard input shows that the parent was killed.
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
