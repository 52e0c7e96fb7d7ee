"""The command `prove`, which checks a stored schedule and its proof again, from the files only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from synth.app.cli.options import json_option, print_json
from synth.app.present.layout import say_fitted
from synth.app.proving import prove_stored
from synth.model.text import format_count, format_gap, format_listed, format_number, format_size, format_time
from synth.storage.proof import EQUAL, proof_path
from synth.storage.schedule_file import StoredSchedule
from topologies.errors import InputError
from topologies.text.files import origin_of


@click.command("prove")
@click.argument("file")
@click.option("--proof", metavar="FILE", help="Check this proof. Default: NAME.proof.json beside NAME.synth.")
@json_option
def prove(file: str, proof: str | None, as_json: bool) -> None:
    """Check a stored schedule and the proof of its gap again, from the files only.

    The schedule is replayed at its times, and the bound is computed again from the proof.
    Exit code 0: right and proved, or right and without a proof; 1: wrong; 2: not readable.

    \b
    synth prove out/schedules/NAME.synth
    """
    path, document, lines = Path(file), {"file": file, "status": "not readable"}, list[str]()
    try:
        document, stored = prove_stored(path, None if proof is None else Path(proof))
        lines = _lines(path, document, stored)
    except InputError as error:
        if not as_json:
            raise
        document |= {"why": str(error)}
    if as_json:
        print_json("prove", document | {"file": file})
    else:
        click.echo("\n".join(lines[:1]))
        say_fitted(*lines[1:])
    raise SystemExit({"right": 0, "wrong": 1}.get(document["status"], 2))


def _lines(path: Path, document: dict[str, Any], stored: StoredSchedule) -> list[str]:
    """Return the lines for the reader on what `prove_stored` returned for a file."""
    if document["status"] == "wrong":
        return [f"{origin_of(path)}: wrong: {document['why']}"]
    ranks, size = format_count(len(stored.problem.group), "rank"), format_size(math.ceil(stored.schedule.size_bytes))
    figures = f"{format_number(document['sends'])} sends, {ranks}, {format_time(document['time_us'])} at {size}"
    lines = [f"{origin_of(path)}: right", f"{_describe_question(stored)}: {figures}"]
    witness, gap = document["witness"], document["gap"]
    if witness is None:
        return [*lines, f"no proof: there is no {origin_of(proof_path(path))}"]
    text = witness["text"] if witness["kind"] in witness["text"] else f"{witness['kind']}: {witness['text']}"
    optimal = ", optimal" if gap <= 1 + EQUAL else ""
    return [
        *lines,
        f"bound {format_time(document['bound_us'])} proved: {text}",
        f"gap = {format_gap(gap)}{optimal}",
    ]


def _describe_question(stored: StoredSchedule) -> str:
    """Return a line on the question that the file answers.

    A caveat tells that the file states the question, if it is not what the collective's name stands for. Group, relays
    and translated copies are named only if there are any.
    """
    problem = stored.problem
    name = problem.collective.name
    if not stored.as_named:
        caveat = ", which differs from the meaning of the name" if problem.collective.kind.by_name else ""
        name += f" as the file states it{caveat}"
    words = f"{name} on {problem.topology.name}"
    if len(problem.group) < problem.topology.nranks:
        words += f", group {format_listed(problem.group)}"
    if problem.relays:
        words += f", {len(problem.relays)} relaying"
    if stored.orbit > 1:
        words += f"; {format_number(len(stored.schedule))} sends stored, each for {stored.orbit} translated copies"
    return words
