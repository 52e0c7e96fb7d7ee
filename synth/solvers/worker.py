"""A child process that answers solver questions one after the other (see `workers`)."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection


def main() -> None:
    """Serve: messages (function, arguments) come in over the given descriptor, (ok, result) go out."""
    with_parent = Connection(int(sys.argv[1]))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    name = sys.argv[2]
    module = importlib.import_module(
        "synth.engines.time_slots.milp" if name == "milp" else f"synth.solvers.{name}"
    )
    if hasattr(module, "warm"):
        module.warm()
    while True:
        try:
            function, arguments = with_parent.recv()
        except (EOFError, OSError):
            return
        try:
            reply = (True, getattr(module, function)(*arguments))
        except MemoryError:
            reply = (False, "out of memory")
        except Exception:
            reply = (False, traceback.format_exc())
        with_parent.send(reply)


def _leave_with_parent() -> None:
    # a solver that is busy does not read: the pipe's end of file is how a killed parent is noticed
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
