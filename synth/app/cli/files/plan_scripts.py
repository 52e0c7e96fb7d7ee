"""Files given to a command, or programs in MSCCL++'s language, which are run to get the plan that they print."""

from __future__ import annotations

import atexit
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from synth.app.cli.values import TextType
from topologies.errors import InputError
from topologies.text.fields import shown

_LIMIT_S = 300
_INSTALL = "install MSCCL++'s Python package, from github.com/microsoft/mscclpp"


class FileOrScript(TextType):
    """A file, or `SCRIPT.py ARGUMENTS`: a program whose printed plan is put into a file until the command ends."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of the file; raise InputError for a script that prints no plan."""
        value = super().convert(value, param, ctx)
        if ctx is None or not (value.endswith(".py") or ".py " in value) or Path(value).is_dir():
            return value
        try:
            script, *arguments = shlex.split(value)
        except ValueError as error:
            raise InputError(f"{shown(value)}: {str(error).lower()}; it must be quoted as in a shell") from None
        text = _printed_plan(script, arguments)
        folder = tempfile.mkdtemp(prefix="synth-")
        remove = partial(shutil.rmtree, folder, ignore_errors=True)
        ctx.call_on_close(remove)
        atexit.register(remove)  # A context is not closed if another argument is refused.
        plan = Path(folder) / f"{Path(script).stem}.json"
        plan.write_text(text, encoding="utf-8")
        _source_of[str(plan)] = value
        return str(plan)


def _printed_plan(script: str, arguments: list[str]) -> str:
    """Run a script, and return the plan that it prints.

    Raises:
        InputError: There is no such file, it fails, takes too long or prints no JSON object.
    """
    if not Path(script).is_file():
        raise InputError(f"{shown(script)}: no such file")
    try:
        ended = subprocess.run(
            [sys.executable, script, *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{script}: did not end in {_LIMIT_S} s; it must print a plan and end") from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        if last.startswith("ModuleNotFoundError") and "'mscclpp" in last:
            raise InputError(f"{script}: needs the package mscclpp; {_INSTALL}")
        hint = "" if arguments else '; its arguments stand in the same quotes: "FILE.py --name x"'
        raise InputError(f"{script}: ended with exit code {ended.returncode}: {last[:80]}{hint}")
    _, brace, text = ended.stdout.partition("{")
    if not brace:
        raise InputError(f"{script}: printed no plan; a program in MSCCL++'s language ends with print(JSON())")
    return brace + text


def name_of(file: str) -> str:
    """Return what the user called a file: the script that printed it, or the file itself."""
    return _source_of.get(file, file)


PLAN_SOURCE = FileOrScript()
_source_of: dict[str, str] = {}  # By the path of a printed plan; there is one for each command that runs.
