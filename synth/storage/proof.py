"""Read, write and check a proved bound on the time in its own file, NAME.proof.json.

The file states the bound of a schedule file and the witnesses that prove it:

    format      "synth-proof-1"
    question    collective, topology, group, relays, root and size_bytes that the bound is for; fold: null, or the
                translations of the quotient problem (`synth.symmetry.quotient`) that the witnesses are about instead
                of the whole
                costs, where an executor's are on: the protocols over which the bound holds, and the source of their
                figures, which the schedule file states
    schedule    SHA-256 of the schedule file that it belongs to
    time_us, bound_us, gap      the schedule's time, the bound, and time / bound
    witnesses   the witnesses of the bound, the decisive one first: the fields of all kinds, empty where a kind has
                none, and the names of the resources in them (cap_us is null where there is no cap); protocol only
                where costs are on

Nothing in it is believed. A witness names ranks, resources and prices; the bound that they prove is recomputed from the
problem, and compared with every number claimed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin

import numpy as np

from synth.bounds.check import WITNESSES, recompute
from synth.bounds.witness import Witness, decisive
from synth.model.problem import Problem, question
from synth.storage.columns import json_object, replaced
from synth.storage.problem import state_fold
from topologies.errors import ProofRefused
from topologies.text.fields import Fields, shown
from topologies.text.files import open_regular_file, origin_of, read_bytes

FORMAT = "synth-proof-1"
MAX_FILE_BYTES = 128 << 20
EQUAL = 1e-9  # relative error that another order of additions may cause
_KEYS = ("format", "question", "schedule", "time_us", "bound_us", "gap", "witnesses")
_NAMES = "resource_names"
_FORM: dict[str, Any] = {  # the fields of a witness in their order, with their types
    "kind": str,
    "ranks": tuple[int, ...],
    "parts": tuple[tuple[int, ...], ...],
    "resources": tuple[int, ...],
    "base_us": float,
    "per_byte_us": float,
    "cap_us": float,
    "text": str,
    "prices": tuple[tuple[int, float], ...],
    "protocol": str,
    "at_bytes": float,
    "times": tuple[float, ...],
    "windows": tuple[tuple[int, int, float], ...],
    "shares": tuple[tuple[int, int, int, int, int, float], ...],
}
_MOST_US = 1e18
_MOST = 1 << 53  # Beyond it floats do not distinguish integers.


@dataclass(frozen=True)
class Proof:
    """A proof as its file states it; see the head of this module.

    Attributes:
        question: The question that the bound is for.
        schedule: SHA-256 of the schedule file.
        time_us: Time of the schedule in µs.
        bound_us: Bound in µs.
        gap: Time / bound; 0 where the bound is 0.
        witnesses: The witnesses of the bound.
        names: For each witness, the name of every resource in it.
    """

    question: Mapping[str, Any]
    schedule: str
    time_us: float
    bound_us: float
    gap: float
    witnesses: tuple[Witness, ...]
    names: tuple[dict[int, str], ...]


def proof_path(schedule: str | Path) -> Path:
    """Return the path of a schedule file's proof: NAME.proof.json next to NAME.synth, or next to any other NAME."""
    path = Path(schedule)
    return path.with_name(path.name.removesuffix(".synth") + ".proof.json")


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        InputError: The file cannot be read.
    """
    with open_regular_file(path, "a schedule's .synth file") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_proof(
    schedule: str | Path,
    problem: Problem,
    witnesses: Sequence[Witness],
    size_bytes: float,
    time_us: float,
    path: str | Path | None = None,
) -> Path:
    """Write a proof of the bound at a message size for an existing schedule file; an existing proof is replaced.

    Args:
        schedule: The schedule file.
        problem: The problem of the witnesses: the schedule's own, or the whole where that is a quotient.
        witnesses: At least one witness; the one that decides at this size is written first, then the others in order.
        size_bytes: The message size.
        time_us: The schedule's time, as its file claims it.
        path: Where to write; `proof_path(schedule)` when None.

    Returns:
        The path of the proof.

    Raises:
        InputError: The schedule file cannot be read or the proof not written.
        ProofRefused: A witness claims more than it proves, there is none or none for one of the problem's protocols, or
            none proves anything at this size.
    """
    if not witnesses:
        raise ProofRefused("witnesses: there is none")
    best = decisive(witnesses, size_bytes)
    bound_us = best.at(size_bytes)
    ordered = (best, *(w for w in witnesses if w is not best))
    question_stated, gap = (
        MappingProxyType(state_question(problem, size_bytes)),
        time_us / bound_us if bound_us > 0 else 0.0,
    )
    names = tuple(_names(problem, w) for w in ordered)
    proof = Proof(question_stated, digest(schedule), time_us, bound_us, gap, ordered, names)
    check_proof(problem, proof, size_bytes)
    target = proof_path(schedule) if path is None else Path(path)
    with replaced(target) as file:
        file.write(_text(proof).encode())
    return target


def check_beside(proof: Proof, schedule_digest: str, time_us: float) -> None:
    """Check that a proof belongs to a schedule file.

    Args:
        proof: The proof.
        schedule_digest: SHA-256 of the schedule file, as `digest` returns it.
        time_us: The schedule's time in µs.

    Raises:
        ProofRefused: The proof was made for another file, or for another time.
    """
    if proof.schedule != schedule_digest:
        raise ProofRefused(
            f"schedule: is for a file of SHA-256 {shown(proof.schedule[:16])}…; this file has {schedule_digest[:16]}…"
        )
    if not math.isclose(proof.time_us, time_us, rel_tol=EQUAL):
        raise ProofRefused(f"time_us: claims {proof.time_us!r}, the schedule takes {time_us!r}")


def check_proof(problem: Problem, proof: Proof, size_bytes: float) -> tuple[float, Witness]:
    """Check every number of a proof against its witnesses, recomputed from the problem.

    Args:
        problem: The problem, with any number of chunks; a quotient where the proof's question is one. A quotient
            problem is believed here; `quotient_check.check_quotient` checks it.
        proof: The proof.
        size_bytes: The message size.

    Returns:
        The bound in µs that is proved at this size (at least the claimed one), and the witness that proves it.

    Raises:
        ProofRefused: The question differs, a resource has another name, or a number is not proved.
    """
    expected = state_question(problem, size_bytes)
    for key in sorted(expected.keys() | proof.question.keys()):
        if key not in expected or proof.question.get(key) != expected[key]:
            raise ProofRefused(
                f"question: {shown(key)} is {shown(proof.question.get(key))},"
                f" but the schedule is for {shown(expected.get(key))}"
            )
    if not proof.witnesses:
        raise ProofRefused("witnesses: there is none")
    for number, (witness, names) in enumerate(zip(proof.witnesses, proof.names, strict=True), start=1):
        _check_witness(problem, witness, names, f"witness {number}, {shown(witness.kind)}")
    unproved = [name for name in problem.protocols if all(w.protocol != name for w in proof.witnesses)]
    if unproved:
        raise ProofRefused(f"witnesses: there is none for protocol {unproved[0]}; there must be one for each")
    deciding = decisive(proof.witnesses, size_bytes)
    best = float(deciding.at(size_bytes))
    if proof.bound_us > best * (1 + EQUAL):
        raise ProofRefused(f"bound_us: claims {proof.bound_us!r}, the witnesses prove {best!r}")
    if proof.bound_us <= 0:
        raise ProofRefused(f"bound_us: {proof.bound_us!r} proves nothing; it must be more than 0")
    gap = proof.time_us / proof.bound_us
    if not math.isclose(proof.gap, gap, rel_tol=EQUAL):
        raise ProofRefused(f"gap: claims {proof.gap!r}, but time_us / bound_us is {gap!r}")
    return best, deciding


def _check_witness(problem: Problem, witness: Witness, names: dict[int, str], label: str) -> None:
    """Check that a witness proves all that it claims.

    Args:
        problem: The problem.
        witness: The witness.
        names: Stated name of every resource in the witness.
        label: The witness in messages.

    Raises:
        ProofRefused: It does not, or a resource does not exist or has another name.
    """
    try:
        expected_names = _names(problem, witness)
        wrong_resource = next(
            (r for r in sorted(expected_names.keys() | names.keys()) if expected_names.get(r) != names.get(r)), None
        )
        if wrong_resource is not None:
            raise ProofRefused(
                f"{label}: resource {wrong_resource} is {shown(expected_names.get(wrong_resource, 'none of its own'))},"
                f" not {shown(names.get(wrong_resource, 'without a name'))}"
            )
        limit = recompute(problem, witness)
    except ProofRefused:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        message = " ".join(str(error).split())[:200]
        raise ProofRefused(f"{label}: {message if message.isprintable() else repr(message)}") from None
    for name, claimed, proved in zip(("base_us", "per_byte_us", "cap_us"), witness.claims, limit, strict=True):
        if not claimed <= proved * (1 + EQUAL):
            raise ProofRefused(f"{label}: {name}: claims {claimed!r}, proves {float(proved)!r}")


def state_question(problem: Problem, size_bytes: float) -> dict[str, Any]:
    """Return the question of a problem and a size in bytes as files state it.

    Returns:
        `collective` and `topology` (their names), `group` and `relays` (topology ranks), `root` (a topology rank; None
        where there is none), `size_bytes` (a float), `fold` (a quotient's [stride, extent] pairs; None for a whole
        problem), and `costs` where an executor's are on (see `state_costs`).
    """
    return {
        **question(problem),
        "size_bytes": float(size_bytes),
        "fold": state_fold(problem),
        **state_costs(problem),
    }


def state_costs(problem: Problem) -> dict[str, Any]:
    """Return the executor's costs in the bound's model, as files state them.

    Returns:
        {"costs": {"protocols": names over which the bound holds, "source": of their figures}}; empty where no costs are
        on.
    """
    topology = problem.topology
    if not topology.protocol or topology.costs is None:
        return {}
    names = problem.protocols or [topology.protocol]
    return {"costs": {"protocols": names, "source": topology.costs.source}}


def _names(problem: Problem, witness: Witness) -> dict[int, str]:
    """Return the name of every resource in a witness, by the resource's number, ascending.

    It is the network's name of the resource, or `link 0→1` for a link's own bandwidth.

    Raises:
        IndexError: There is no such resource.
    """
    net = problem.network
    names = {}
    for resource in sorted(witness.resource_numbers()):
        link = resource - net.nresources
        if not 0 <= resource < net.nresources + net.nlinks:
            raise IndexError(f"there is no resource {resource}")
        names[resource] = net.resource_names[resource] if link < 0 else f"link {problem.link_name(link)}"
    return names


def _text(proof: Proof) -> str:
    """Return a proof as JSON with one field a line; floats come back to the last bit.

    Raises:
        ValueError: A number is not finite, apart from a cap of inf, which is written as null.
    """

    def compact(value: object) -> str:
        """Return a value as JSON on one line."""
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=np.generic.item)

    blocks = []
    for witness, names in zip(proof.witnesses, proof.names, strict=True):
        values = {key: getattr(witness, key, 0.0 if type_ is float else ()) for key, type_ in _FORM.items()}
        if math.isinf(witness.cap_us):
            values["cap_us"] = None
        if not witness.protocol:
            del values["protocol"]
        values[_NAMES] = {str(resource): name for resource, name in names.items()}
        rows = ",\n".join(f"   {compact(key)}: {compact(value)}" for key, value in values.items())
        blocks.append(f"  {{\n{rows}\n  }}")
    head = {"format": FORMAT, "question": dict(proof.question)} | {key: getattr(proof, key) for key in _KEYS[2:-1]}
    rows = "".join(f" {compact(key)}: {compact(value)},\n" for key, value in head.items())
    return "{\n" + rows + ' "witnesses": [\n' + ",\n".join(blocks) + "\n ]\n}\n"


def load_proof(path: str | Path) -> Proof:
    """Read a proof file and check only its form.

    Raises:
        InputError: The file cannot be read, or a field is missing or has a wrong form; the line names both.
    """
    origin = origin_of(path)
    data = read_bytes(path, "a .proof.json file", MAX_FILE_BYTES)
    top = Fields(json_object(data, origin), "", origin)
    if top.string("format") != FORMAT:
        top.fail("format", f"{shown(top.values['format'])} is not known; it must be {FORMAT}")
    top.only(_KEYS)
    question_stated, witness_objects = top.values.get("question"), top.values.get("witnesses")
    if not isinstance(question_stated, dict):
        top.fail("question", "missing; it must be an object")
    if not isinstance(witness_objects, list) or not all(isinstance(witness, dict) for witness in witness_objects):
        top.fail("witnesses", "missing; it must be an array of objects")
    tables = [Fields(witness, "", f"{origin}: witness {i}") for i, witness in enumerate(witness_objects, start=1)]
    return Proof(
        MappingProxyType(question_stated),
        top.string("schedule"),
        top.number("time_us", 0.0, _MOST_US, "µs"),
        top.number("bound_us", 0.0, _MOST_US, "µs"),
        top.number("gap", 0.0, _MOST_US, "times the bound"),
        tuple(_read_witness(table) for table in tables),
        tuple(_read_names(table) for table in tables),
    )


def _read_witness(table: Fields) -> Witness:
    """Read one witness as an object of its kind's class.

    Raises:
        InputError: A field is missing, unknown or of a wrong type, a text is long or not printable, the kind is not
            known, or a field that its kind does not have is not empty.
    """
    table.only((*_FORM, _NAMES))
    values = {}
    for name, hint in _FORM.items():
        if name not in table.values:
            if name == "protocol":
                continue
            table.fail(name, "missing")
        values[name] = value = _typed(table, name, hint, table.values[name])
        if isinstance(value, str) and not (value.isprintable() and len(value) <= 1000):
            table.fail(name, "it must be at most 1000 printable characters")
    kind = values.pop("kind")
    if kind not in WITNESSES:
        table.fail("kind", f"{shown(kind)} is not known; it must be one of {', '.join(WITNESSES)}")
    own = {field.name for field in fields(WITNESSES[kind])}
    for name in values.keys() - own:
        if values.pop(name):
            table.fail(name, f"a witness of kind {kind} has none; it must be empty")
    return WITNESSES[kind](**values)


def _typed(table: Fields, name: str, hint: Any, value: Any) -> Any:
    """Return a JSON value as the type that `_FORM` states for a field; raise InputError if it has another type.

    Args:
        table: The witness, for the message.
        name: Name of the field.
        hint: The type: str, int ≥ 0, float, or a tuple of these.
        value: The value; null stands for inf in the field cap_us.
    """
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if isinstance(value, list) and inner[1:] == (Ellipsis,):
            return tuple(_typed(table, name, inner[0], item) for item in value)
        if isinstance(value, list) and len(value) == len(inner):
            return tuple(_typed(table, name, kind, item) for kind, item in zip(inner, value, strict=True))
    elif hint is float:
        if value is None and name == "cap_us":
            return math.inf
        if type(value) in (int, float) and -_MOST <= value <= _MOST:
            return float(value)
    elif hint is int:
        # A negative index would mean another rank to Python and none to a reader.
        if type(value) is int and 0 <= value <= _MOST:
            return value
    elif hint is str and type(value) is str:
        return value
    return table.fail(name, f"holds {shown(value)}, which has the wrong type for this field of a witness")


def _read_names(table: Fields) -> dict[int, str]:
    """Read the names of a witness's resources, by number; raise InputError if they are no object of such names."""
    value = table.values.get(_NAMES)
    if not isinstance(value, dict) or not all(
        k.isascii() and k.isdigit() and len(k) < 16 and isinstance(name, str) for k, name in value.items()
    ):
        table.fail(_NAMES, "it must be an object from each resource's number to its name")
    return {int(k): name for k, name in value.items()}
