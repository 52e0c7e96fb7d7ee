"""The command `prove`, which checks a stored schedule and its proof again, from the files only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from emit.targets import TARGETS
from synth.app.cli.options import json_option, print_json
from synth.app.present.layout import say_fitted
from synth.model.text import format_count, format_gap, format_listed, format_number, format_size, format_time
from synth.storage.check import check_stored
from synth.storage.proof import EQUAL, proof_path, state_question
from synth.storage.schedule_file import StoredSchedule, load_schedule
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
    document: dict[str, Any] = {"file": file, "status": "right", "why": ""}
    try:
        lines = _check(file, proof, document)
        code = 0 if document["status"] == "right" else 1
    except InputError as error:
        if not as_json:
            raise
        document |= {"status": "not readable", "why": str(error)}
        lines, code = [], 2
    if as_json:
        print_json("prove", document)
    else:
        click.echo("\n".join(lines[:1]))
        say_fitted(*lines[1:])
    raise SystemExit(code)


def _check(file: str, proof: str | None, document: dict[str, Any]) -> list[str]:
    """Return the lines for the reader, and add the same as plain values to `document`.

    Args:
        file: The schedule's file.
        proof: The proof's file; None for the one next to the schedule's file, if there is one.
        document: The statement, whose status and why are changed if the schedule or the proof is wrong.

    Raises:
        InputError: A file cannot be read.
    """
    if Path(file).suffix in {target.suffix for target in TARGETS.values()}:
        raise InputError(
            f"{origin_of(file)}: it must be a schedule file (.synth); synth verify checks executors' files"
        )
    stored = load_schedule(file)
    proof_file = proof_path(file) if proof is None else Path(proof)
    problem, size, time_us = stored.problem, stored.schedule.size_bytes, stored.claimed_us
    checked = check_stored(file, stored, proof, origin_of(proof_file))
    proof_content, witness = checked.proof, checked.witness
    sends = len(stored.schedule) * stored.orbit
    document |= {
        **state_question(problem, size),
        "as_named": stored.as_named,
        "sends": sends,
        "copies": stored.orbit,
        "time_us": time_us,
        "proof": None if proof_content is None else str(proof_file),
        "bound_us": None,
        "gap": None,
        "witness": None,
    }
    if checked.wrong:
        document |= {"status": "wrong", "why": checked.wrong}
        return [f"{origin_of(file)}: wrong: {checked.wrong}"]
    ranks = format_count(len(problem.group), "rank")
    figures = f"{format_number(sends)} sends, {ranks}, {format_time(time_us)} at {format_size(math.ceil(size))}"
    lines = [f"{origin_of(file)}: right", f"{_describe_question(stored)}: {figures}"]
    if proof_content is None or witness is None:
        return [*lines, f"no proof: there is no {origin_of(proof_file)}"]
    document |= {"bound_us": proof_content.bound_us, "gap": proof_content.gap}
    document["witness"] = {"kind": witness.kind, "text": witness.text}
    text = witness.text if witness.kind in witness.text else f"{witness.kind}: {witness.text}"
    optimal = ", optimal" if proof_content.gap <= 1 + EQUAL else ""
    return [
        *lines,
        f"bound {format_time(proof_content.bound_us)} proved: {text}",
        f"gap = {format_gap(proof_content.gap)}{optimal}",
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
