"""The commands about libraries: what they answer, whether they are right, and what makes an executor load one."""

from __future__ import annotations

import click

from emit.library.environment import environments
from emit.library.overlay import load_library
from synth.cli.library_build import library_build
from synth.cli.library_files import check, export
from synth.cli.library_questions import diff, pick_, show
from synth.cli.library_update import library_update
from synth.cli.options import json_option, print_json
from synth.cli.values import StrictGroup
from synth.model.registry import parse_name
from topologies.errors import InputError


@click.group("library", cls=StrictGroup)
def library() -> None:
    """Libraries: what they answer, whether they are right, and what makes an executor load one.

    \b
    synth library show out
    synth library check out
    synth library env out
    """


@library.command("env")
@click.argument("folder", metavar="DIR")
@click.option("--target", metavar="NAME", help="Only of this executor. Default: of each that has files there.")
@click.option("--collective", metavar="NAME", help="Only its files, where the executor takes a list of them.")
@json_option
def _library_env(folder: str, target: str | None, collective: str | None, as_json: bool) -> None:
    """The variables that make an executor load a library, for a POSIX shell (eval "$(…)"); the rest as comments.

    \b
    synth library env out --target executor-nccl
    """
    entries = load_library(folder)
    if collective is not None:
        wanted = collective if any(e.collective == collective for e in entries) else parse_name(collective)
        entries = [entry for entry in entries if entry.collective == wanted]
    if not entries:
        what = "no file" if collective is None else f"no file for {collective}"
        raise InputError(f"{folder}: holds {what}; it must be a library with some")
    found = environments(entries, target)
    if as_json:
        rows = [
            {"target": one.target.name, "state": one.target.state, "variables": one.variables, "remarks": one.remarks}
            for one in found
        ]
        print_json({"environments": rows})
        return
    click.echo("\n".join(line for one in found for line in one.lines()))


for _command in (library_build, library_update, show, pick_, diff, check, export):
    library.add_command(_command)
