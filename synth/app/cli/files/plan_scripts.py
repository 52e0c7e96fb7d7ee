"""Files given to a command, or programs in MSCCL++'s language, which are run to get the plan that they print."""

from __future__ import annotations

import atexit
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from emit.library.selection.lookup import goal_path
from emit.mscclpp.read import read_plan
from synth.app.cli.values import TextType
from topologies.errors import InputError
from topologies.text.fields import shown

_LIMIT_S = 300
_MOST_ERROR = 80  # characters of a program's last line of stderr
_INSTALL = "install MSCCL++'s Python package, from github.com/microsoft/mscclpp"


class FileOrScript(TextType):
    """A file, or `SCRIPT.py ARGUMENTS`: a program whose printed plan is put into a file until the command ends."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of a file; for a script, which is run first, of a new file with the plan that it prints.

        A text is a script if its path ends in .py, with or without arguments after it, which are quoted as in a shell.
        Any other text is returned unchanged, whether there is such a file or not; so is every text if `ctx` is None.
        The new file is removed at the end of the command, `name_of` returns what the user called it, and the script's
        goal is copied next to it if there is one.

        Raises:
            InputError: The text is empty; or the script does not exist, has arguments that are wrongly quoted, fails,
                takes over 300 s, or prints no plan that can be read.
        """
        value = super().convert(value, param, ctx)
        if ctx is None or not re.search(r"\.py(\s|$)", value) or Path(value).is_dir():
            return value
        is_path = Path(value).is_file()  # Its name may have spaces.
        if is_path and not value.endswith(".py"):
            return value
        try:
            script, *arguments = [value] if is_path else shlex.split(value)
        except ValueError as error:
            raise InputError(f"{shown(value)}: {str(error).lower()}; it must be quoted as in a shell") from None
        text = _printed_plan(script, arguments)
        try:
            read_plan(text)
        except InputError as error:
            raise InputError(
                f"{script}: printed a plan that is not readable: {str(error).removeprefix('text: ')}"
            ) from None
        folder = Path(tempfile.mkdtemp(prefix="synth-"))
        remove = partial(shutil.rmtree, folder, ignore_errors=True)
        ctx.call_on_close(remove)
        atexit.register(remove)  # A context is not closed if another argument is refused.
        plan = folder / f"{Path(script).stem}.json"
        plan.write_text(text, encoding="utf-8")
        if goal_path(script).is_file():
            shutil.copyfile(goal_path(script), goal_path(plan))
        _source_of[str(plan)] = value
        return str(plan)


def _printed_plan(script: str, arguments: list[str]) -> str:
    """Run a script in a process of its own, and return the plan that it prints.

    The plan is what follows on stdout from the first line that begins with a brace.

    Raises:
        InputError: There is no such file, it fails, takes over 300 s or prints no JSON object.
    """
    if not Path(script).is_file():
        raise InputError(f"{shown(script)}: is no plain file; it must be a program in MSCCL++'s language")
    command = [sys.executable, script, *arguments]
    try:
        ended = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{script}: did not end in {_LIMIT_S} s; it must print a plan and end") from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        if last.startswith("ModuleNotFoundError") and "'mscclpp" in last:
            raise InputError(f"{script}: needs the package mscclpp; {_INSTALL}")
        wants_arguments = not arguments and "argparse" in Path(script).read_text(encoding="utf-8", errors="replace")
        hint = '; its arguments stand in the same quotes: "FILE.py --name x"' if wants_arguments else ""
        raise InputError(f"{script}: ended with exit code {ended.returncode}: {last[:_MOST_ERROR]}{hint}")
    first = re.search(r"^\s*\{", ended.stdout, re.M)
    if first is None:
        raise InputError(f"{script}: printed no plan; a program in MSCCL++'s language ends with print(JSON())")
    return ended.stdout[first.start() :]


def name_of(file: str) -> str:
    """Return what the user called a file: the script (with its arguments) that printed it, or the file itself."""
    return _source_of.get(file, file)


PLAN_SOURCE = FileOrScript()
_source_of: dict[str, str] = {}  # By the path of a printed plan; there is one for each command that runs.
