"""The command `prove`: a stored schedule and its proof, checked again from the files alone."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click

from synth.bounds.witness import Witness
from synth.cli.options import json_option, print_json
from synth.present.text import format_count, format_size, format_time
from synth.storage.proof import (
    Proof,
    check_beside,
    check_proof,
    digest,
    load_proof,
    proof_path,
    question,
)
from synth.storage.schedule_file import Stored, load_schedule
from synth.symmetry.quotient_check import check_quotient
from synth.timing.simulate import time_us
from synth.verify.replay import replay
from topologies.errors import InputError, ProofRefused, QuotientRefused, ScheduleRefused
from topologies.text.files import origin_of

EQUAL = 1e-9  # relative: what another order of additions may lose


class Wrong(ValueError):
    """The schedule or its proof is refused; the message says which and why in one line."""


@click.command("prove")
@click.argument("file")
@click.option("--proof", metavar="FILE", help="Default: NAME.proof.json beside NAME.synth.")
@json_option
def prove(file: str, proof: str | None, as_json: bool) -> None:
    """Check a stored schedule and the proof of its gap again, from the files alone.

    The schedule is replayed at its times, and the bound is worked out again from what the proof names.
    Exit code 0 right and proved (or right and without a proof), 1 wrong, 2 not readable.

    \b
    synth prove out/schedules/NAME.synth
    """
    said: dict[str, Any] = {"file": file, "status": "right", "why": ""}
    try:
        lines = _check(file, proof, said)
        code = 0
    except Wrong as wrong:
        said |= {"status": "wrong", "why": str(wrong)}
        lines, code = [f"{_shown(file)}: wrong: {wrong}"], 1
    except InputError as error:
        if not as_json:
            raise
        said |= {"status": "not readable", "why": str(error)}
        lines, code = [], 2
    if as_json:
        print_json(said)
    else:
        click.echo("\n".join(lines))
    raise SystemExit(code)


def _check(file: str, proof: str | None, said: dict[str, Any]) -> list[str]:
    """Lines for the reader; `said` gets the same as plain values."""

    stored = load_schedule(file)
    beside = proof_path(file) if proof is None else Path(proof)
    stated = load_proof(beside) if proof is not None or os.path.exists(beside) else None
    problem, size, taken = stored.problem, stored.schedule.size_bytes, stored.claimed_us
    sends = len(stored.schedule) * stored.copies
    said |= {
        **question(problem, size),
        "as_named": stored.as_named,
        "sends": sends,
        "copies": stored.copies,
        "time_us": taken,
        "proof": None if stated is None else str(beside),
        "bound_us": None,
        "gap": None,
        "witness": None,
    }
    _replay(stored)
    ranks = format_count(len(problem.group), "rank")
    figures = f"{_spaced(sends)} sends, {ranks}, {format_time(taken)} at {format_size(math.ceil(size))}"
    lines = [f"{_shown(file)}: right ({figures})", _asked_words(stored)]
    if stated is None:
        return [*lines, f"no proof: there is no {_shown(beside)}"]
    witness = _check_stated(stored, stated, beside, file)
    said |= {"bound_us": stated.bound_us, "gap": stated.gap}
    said["witness"] = {"kind": witness.kind, "text": witness.text}
    text = witness.text if witness.kind in witness.text else f"{witness.kind}: {witness.text}"
    optimal = ", optimal" if stated.gap <= 1 + EQUAL else ""
    return [
        *lines,
        f"bound {format_time(stated.bound_us)} proved: {text}",
        f"time / bound = {stated.gap:.3f}{optimal}",
    ]


def _shown(path: str | Path) -> str:

    return origin_of(path)


def _spaced(number: int) -> str:
    """`2 064 384`."""
    return f"{number:,}".replace(",", " ")


def _asked_words(stored: Stored) -> str:
    """What the file answers: its own words are the question, so they belong beside the answer."""
    problem = stored.problem
    name = problem.collective.name
    if not stored.as_named:
        not_so = ", which is not what the name means" if problem.collective.kind.by_name else ""
        name += f" as the file states it{not_so}"
    words = f"{name} on {problem.topology.name}"
    if len(problem.group) < problem.topology.nranks:
        names = ",".join(map(str, problem.group[:16])) + ("…" if len(problem.group) > 16 else "")
        words += f", group {names}"
    if problem.relays:
        words += f", {len(problem.relays)} relaying"
    if stored.copies > 1:
        words += f"; {_spaced(len(stored.schedule))} sends stored, each for {stored.copies} translated copies"
    return words


def _replay(stored: Stored) -> None:

    try:
        if stored.problem.quotient is not None:
            check_quotient(stored.problem)
        replay(stored.problem, stored.schedule)
    except (QuotientRefused, ScheduleRefused) as error:
        raise Wrong(f"the schedule is refused: {error}") from None
    taken = time_us(stored.problem, stored.schedule)
    if not math.isclose(taken, stored.claimed_us, rel_tol=EQUAL):
        raise Wrong(f"the schedule is refused: claims {stored.claimed_us!r} µs, it takes {taken!r}")


def _check_stated(stored: Stored, stated: Proof, beside: Path, file: str) -> Witness:

    try:
        check_beside(stated, digest(file), stored.claimed_us)
        # of a quotient problem a proof may speak of the whole; the quotient itself is checked with the schedule
        problem = stored.asked if stated.question.get("fold") is None else stored.problem
        bound_us, witness = check_proof(problem, stated, stored.schedule.size_bytes)
        if bound_us > stored.claimed_us * (1 + EQUAL):
            raise ProofRefused(f"proves {bound_us!r} µs for a schedule that takes {stored.claimed_us!r}")
    except ProofRefused as error:
        raise Wrong(f"the proof {_shown(beside)} is refused: {error}") from None
    return witness
