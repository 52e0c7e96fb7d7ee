"""What a user sees of a defect of synth: one line with the command to send, and the traceback with `--debug`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable

import click

from synth.model.defects import Defect

_shows_traces = False


def _show_traces(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Show tracebacks in this process from now on if the option is set; a callback of click."""
    global _shows_traces  # The option is on every command, and the error is caught outside of them.
    _shows_traces = _shows_traces or value


debug_option = click.Option(
    ["--debug"],
    is_flag=True,
    expose_value=False,
    callback=_show_traces,
    help="Show the traceback if a part of synth itself fails.",
)


def say_defects(defects: Iterable[Defect], outcome: str) -> None:
    """Print a line on stderr for each defect, with the command that the user should send to the developers.

    With `--debug` the traceback comes before the line.

    Args:
        defects: Parts of synth that failed.
        outcome: What that means for the answer, as a clause.
    """
    for defect in defects:
        if _shows_traces:
            click.echo(defect.trace, err=True)
        command = shlex.join(["synth", *sys.argv[1:]])
        advice = "" if _shows_traces else "; --debug shows the traceback"
        click.echo(f"synth: defect: {defect.line}; {outcome}. Please send this command: {command}{advice}", err=True)
