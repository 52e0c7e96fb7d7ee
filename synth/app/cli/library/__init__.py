"""The commands `synth library`: build, show, check and export libraries, and make executors load them."""

from __future__ import annotations

import click

from emit.library.overlay import load_library
from emit.library.selection.environment import environments
from emit.library.selection.selector import spelled_name
from synth.app.cli.library.build import library_build, library_update
from synth.app.cli.library.files import check, export
from synth.app.cli.library.install import install
from synth.app.cli.library.questions import diff, pick_, show
from synth.app.cli.options import json_option, print_json
from synth.app.cli.values import StrictGroup
from synth.app.present.layout import say, terminal_width, wrapped
from topologies.errors import InputError


@click.group("library", cls=StrictGroup)
def library() -> None:
    """Build, show, check and export libraries, and make executors load them.

    \b
    synth library show out
    synth library check out
    synth library env out
    """


@library.command("env")
@click.argument("folder", metavar="DIR")
@click.option("--target", metavar="NAME", help="Only for this executor. Default: each that has files in the library.")
@click.option("--collective", metavar="NAME", help="Load only this collective's files, if the executor takes a list.")
@json_option
def _library_env(folder: str, target: str | None, collective: str | None, as_json: bool) -> None:
    """Print the variables that make executors load a library, for a POSIX shell: eval "$(synth library env DIR)".

    All other text is in comments.

    \b
    synth library env out --target executor-nccl
    """
    entries = load_library(folder)
    if collective is not None:
        spelled = spelled_name(entries, collective)
        entries = [entry for entry in entries if entry.collective == spelled]
    if not entries:
        missing = "no file" if collective is None else f"no file for {collective}"
        raise InputError(f"{folder}: holds {missing}; it must be a library with such a file")
    loads = environments(entries, target)
    if as_json:
        rows = [
            {
                "target": load.target.name,
                "state": load.target.state,
                "variables": load.variables,
                "remarks": load.remarks,
            }
            for load in loads
        ]
        print_json("library-env", {"environments": rows})
        return
    width = terminal_width()
    for line in (line for environment in loads for line in environment.lines()):
        say(wrapped([line], width if line.startswith("#") else None, "#   "), None)


for _command in (library_build, library_update, show, pick_, diff, check, export, install):
    library.add_command(_command)
