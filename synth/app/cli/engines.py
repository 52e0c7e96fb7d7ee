"""The command `synth engines`."""

from __future__ import annotations

import click

from synth.app.cli.options import json_option, print_json
from synth.app.present.layout import Column, fitted, say, terminal_width, wrapped
from synth.engines.registry import AUTO, ENGINES


@click.command("engines")
@json_option
def engines(as_json: bool) -> None:
    """List the engines, the values of --engine, and what each of them does.

    Without --engine, all engines that `auto` includes and that accept the question take part.

    \b
    synth engines
    """
    rows = [{"name": row.name, "summary": row.summary, "in_auto": row.in_auto} for row in ENGINES.values()]
    if as_json:
        print_json("engines", {"engines": rows})
        return
    columns = [
        Column("engine", [row.name for row in ENGINES.values()], left=True),
        Column(f"in {AUTO}", ["yes" if row.in_auto else "no" for row in ENGINES.values()], left=True),
        Column("what it does", [row.summary for row in ENGINES.values()], left=True),
    ]
    lines, _ = fitted(columns, None)
    say(wrapped(lines, terminal_width(), " " * lines[0].index("what it does")), None)
