"""The check of a stored schedule and its proof from the files alone, as `synth prove` and Python users call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emit.targets import TARGETS
from synth.app import documents
from synth.model.numbers import as_folder, taking
from synth.storage.check import check_stored
from synth.storage.proof import proof_path, state_question
from synth.storage.schedule_file import StoredSchedule, load_schedule
from topologies.errors import InputError
from topologies.text.files import origin_of


@taking('synth.prove("NAME.synth")')
def prove(path: str | Path, proof: str | Path | None = None) -> dict[str, Any]:
    """Check a stored schedule and the proof of its gap again, from the files only.

    The schedule is replayed at its times, and the bound is computed again from the witness; nothing that the search
    said is trusted.

    Args:
        path: The schedule's file, `NAME.synth`, as `save` writes it with `proof=True`.
        proof: The proof's file; None for NAME.proof.json beside it, if there is one.

    Returns:
        A document of `json_schema("prove")`, as `synth prove --json` prints it: `status` is "right" or "wrong", and
        `why` says what is wrong; `gap`, `bound_us` and `witness` are None without a proof.

    Raises:
        InputError: A file cannot be read.
    """
    document, _ = prove_stored(as_folder(path, "path"), None if proof is None else as_folder(proof, "proof"))
    return documents.stamp("prove", document)


def prove_stored(path: Path, proof: Path | None) -> tuple[dict[str, Any], StoredSchedule]:
    """Return what `prove` returns, without its stamp, and the schedule of the file.

    Args:
        path: The schedule's file.
        proof: The proof's file; None for the one next to the schedule's file, if there is one.

    Raises:
        InputError: A file cannot be read.
    """
    if path.suffix in {target.suffix for target in TARGETS.values()}:
        raise InputError(
            f"{origin_of(path)}: it must be a schedule file (.synth); synth verify checks executors' files"
        )
    stored = load_schedule(path)
    proof_file = proof_path(path) if proof is None else proof
    checked = check_stored(path, stored, proof, origin_of(proof_file))
    document: dict[str, Any] = {
        "file": str(path),
        "status": "wrong" if checked.wrong else "right",
        "why": checked.wrong,
        **state_question(stored.problem, stored.schedule.size_bytes),
        "as_named": stored.as_named,
        "sends": len(stored.schedule) * stored.orbit,
        "copies": stored.orbit,
        "time_us": stored.claimed_us,
        "proof": None if checked.proof is None else str(proof_file),
        "bound_us": None,
        "gap": None,
        "witness": None,
    }
    if checked.proof is not None and checked.witness is not None:
        document |= {"bound_us": checked.proof.bound_us, "gap": checked.proof.gap}
        document["witness"] = {"kind": checked.witness.kind, "text": checked.witness.text}
    return document, stored
