"""A proved bound on the time as a file of its own, NAME.proof.json: what is claimed of a schedule file, and why.

    format      "synth-proof-1"
    question    collective, topology, group, relays, root and size_bytes that the bound is for; fold: null, or the
                translations of the quotient problem (`synth.symmetry.quotient`) that the witnesses speak of instead
                            of the whole
                costs, where an executor's are on: the protocols over which the bound holds, and the source of their
                figures, which the schedule file states
    schedule    SHA-256 of the schedule file that it stands beside
    time_us, bound_us, gap      the schedule's time, the bound, and time / bound
    witnesses   what proves the bound, the decisive one first: the fields of `witness.Witness`, and the names of
                the resources that it speaks of (cap_us is null where there is no cap); protocol only where costs are on

Nothing in it is believed. A witness names what to look at (ranks, resources, prices); what that proves is worked out
again from the problem, and every number claimed is held against it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from synth.bounds.registry import recompute
from synth.bounds.witness import Witness, decisive
from synth.model.problem import Problem, question
from synth.storage.columns import json_object, replaced
from synth.storage.problem import state_fold
from topologies.errors import ProofRefused
from topologies.text.fields import Fields, shown
from topologies.text.files import opened, origin_of, read_bytes

FORMAT = "synth-proof-1"
MAX_FILE_BYTES = 128 << 20
EQUAL = 1e-9  # relative: what another order of additions may lose
_KEYS = ("format", "question", "schedule", "time_us", "bound_us", "gap", "witnesses")
_NAMES = "resource_names"
_MOST_US = 1e18
_MOST = 1 << 53  # beyond it floats do not tell integers apart


@dataclass(frozen=True)
class Proof:
    """A proof as its file states it; see the head of this module.

    names: for each witness, the name of every resource that it speaks of.
    """

    question: Mapping[str, Any]
    schedule: str
    time_us: float
    bound_us: float
    gap: float
    witnesses: tuple[Witness, ...]
    names: tuple[dict[int, str], ...]


def proof_path(schedule: str | Path) -> Path:
    """Where the proof of a schedule file stands: NAME.proof.json beside NAME.synth."""
    path = Path(schedule)
    return path.with_name(path.name.removesuffix(".synth") + ".proof.json")


def digest(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal. InputError where it cannot be read."""
    with opened(path, "a schedule's .synth file") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_proof(
    schedule: str | Path,
    problem: Problem,
    witnesses: Sequence[Witness],
    size_bytes: float,
    time_us: float,
    path: str | Path | None = None,
) -> Path:
    """Write what proves the bound at a size beside a schedule file that is already there.

    Args:
        schedule: the schedule file.
        problem: what the witnesses speak of: the schedule's own, or the whole where that is a quotient.
        witnesses: at least one.
        time_us: the schedule's time, as its file claims it.
        path: where to write; `proof_path(schedule)` when None.

    Raises:
        InputError: the schedule file cannot be read or the proof not written.
        ProofRefused: a witness claims more than it proves, or none proves anything at this size.
    """
    if not witnesses:
        raise ProofRefused("witnesses: there is none")
    best = decisive(witnesses, size_bytes)
    bound_us = best.at(size_bytes)
    ordered = (best, *(w for w in witnesses if w is not best))
    asked, gap = MappingProxyType(state_question(problem, size_bytes)), time_us / bound_us if bound_us > 0 else 0.0
    names = tuple(_names(problem, w) for w in ordered)
    proof = Proof(asked, digest(schedule), time_us, bound_us, gap, ordered, names)
    check_proof(problem, proof, size_bytes)
    where = proof_path(schedule) if path is None else Path(path)
    with replaced(where) as file:
        file.write(_text(proof).encode())
    return where


def check_beside(proof: Proof, schedule_digest: str, time_us: float) -> None:
    """Whether a proof speaks of this schedule file.

    Raises ProofRefused: it was made for another file, or for another time.
    """
    if proof.schedule != schedule_digest:
        raise ProofRefused(
            f"schedule: is for a file of SHA-256 {shown(proof.schedule[:16])}…; this one has {schedule_digest[:16]}…"
        )
    if not math.isclose(proof.time_us, time_us, rel_tol=EQUAL):
        raise ProofRefused(f"time_us: claims {proof.time_us!r}, the schedule takes {time_us!r}")


def check_proof(problem: Problem, proof: Proof, size_bytes: float) -> tuple[float, Witness]:
    """Work out every witness again from the problem and hold every number of the proof against it.

    Args:
        problem: of any number of chunks; a quotient where the proof's question is (a quotient problem is believed here,
            `quotient_check.check_quotient` checks it).

    Returns:
        The bound in µs that is proved at this size (at least the claimed one), and the witness that proves it.

    Raises ProofRefused: another question, a resource that is not the one named, or a number that is not proved.
    """
    asked = state_question(problem, size_bytes)
    for key in sorted(asked.keys() | proof.question.keys()):
        if key not in asked or proof.question.get(key) != asked[key]:
            raise ProofRefused(
                f"question: {shown(key)} is {shown(proof.question.get(key))} and is not what the schedule is for,"
                f" {shown(asked.get(key))}"
            )
    if not proof.witnesses:
        raise ProofRefused("witnesses: there is none")
    for number, (witness, names) in enumerate(zip(proof.witnesses, proof.names, strict=True), start=1):
        _check_witness(problem, witness, names, f"witness {number}, {shown(witness.kind)}")
    lacking = [name for name in problem.protocols if all(w.protocol != name for w in proof.witnesses)]
    if lacking:
        raise ProofRefused(f"witnesses: there is none for protocol {lacking[0]}; there must be one for each")
    deciding = decisive(proof.witnesses, size_bytes)
    best = float(deciding.at(size_bytes))
    if proof.bound_us > best * (1 + EQUAL):
        raise ProofRefused(f"bound_us: claims {proof.bound_us!r}, the witnesses prove {best!r}")
    if proof.bound_us <= 0:
        raise ProofRefused(f"bound_us: {proof.bound_us!r} says nothing; it must be more than 0")
    gap = proof.time_us / proof.bound_us
    if not math.isclose(proof.gap, gap, rel_tol=EQUAL):
        raise ProofRefused(f"gap: claims {proof.gap!r}, but time_us / bound_us is {gap!r}")
    return best, deciding


def _check_witness(problem: Problem, witness: Witness, names: dict[int, str], where: str) -> None:
    """Whether all that a witness claims is proved."""
    try:
        right = _names(problem, witness)
        wrong = next((r for r in sorted(right.keys() | names.keys()) if right.get(r) != names.get(r)), None)
        if wrong is not None:
            raise ProofRefused(
                f"{where}: resource {wrong} is {shown(right.get(wrong, 'none of its own'))},"
                f" not {shown(names.get(wrong, 'without a name'))}"
            )
        limit = recompute(problem, witness)
    except ProofRefused:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        words = " ".join(str(error).split())[:200]
        raise ProofRefused(f"{where}: {words if words.isprintable() else repr(words)}") from None
    for name, proved in zip(("base_us", "per_byte_us", "cap_us"), limit, strict=True):
        claimed = getattr(witness, name)
        if not claimed <= proved * (1 + EQUAL):
            raise ProofRefused(f"{where}: {name}: claims {claimed!r}, proves {float(proved)!r}")


def state_question(problem: Problem, size_bytes: float) -> dict[str, Any]:
    """What is asked, as files state it: ranks are the topology's, root is None where there is none."""
    return {
        **question(problem),
        "size_bytes": float(size_bytes),
        "fold": state_fold(problem),
        **state_costs(problem),
    }


def state_costs(problem: Problem) -> dict[str, Any]:
    """What the bound's model is beside α and bandwidth; nothing where no executor's costs are on."""
    topology = problem.topology
    if not topology.protocol or topology.costs is None:
        return {}
    names = problem.protocols or [topology.protocol]
    return {"costs": {"protocols": names, "source": topology.costs.source}}


def _names(problem: Problem, witness: Witness) -> dict[int, str]:
    """The name of every resource that a witness speaks of; IndexError where there is no such resource."""
    net = problem.network
    found = {}
    priced = {row[0] for row in witness.prices} | {row[0] for row in witness.windows}
    for resource in sorted({*witness.resources, *priced}):
        own = resource - net.nresources
        if not 0 <= resource < net.nresources + net.nlinks:
            raise IndexError(f"there is no resource {resource}")
        found[resource] = net.resource_names[resource] if own < 0 else f"link {problem.link_name(own)}"
    return found


def _text(proof: Proof) -> str:
    """JSON with a field a line, floats so that they come back to the last bit."""

    def compact(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=np.generic.item)

    blocks = []
    for witness, names in zip(proof.witnesses, proof.names, strict=True):
        known = {f.name: getattr(witness, f.name) for f in fields(witness) if f.name != "protocol" or witness.protocol}
        if math.isinf(witness.cap_us):
            known["cap_us"] = None
        known[_NAMES] = {str(resource): name for resource, name in names.items()}
        rows = ",\n".join(f"   {compact(key)}: {compact(value)}" for key, value in known.items())
        blocks.append(f"  {{\n{rows}\n  }}")
    head = {"format": FORMAT, "question": dict(proof.question)} | {key: getattr(proof, key) for key in _KEYS[2:-1]}
    rows = "".join(f" {compact(key)}: {compact(value)},\n" for key, value in head.items())
    return "{\n" + rows + ' "witnesses": [\n' + ",\n".join(blocks) + "\n ]\n}\n"


def load_proof(path: str | Path) -> Proof:
    """Read a proof file; nothing of it is checked but its form.

    Raises InputError: it cannot be read, or a field is missing or is not what it must be; the line names both.
    """
    origin = origin_of(path)
    data = read_bytes(path, "a .proof.json file", MAX_FILE_BYTES)
    top = Fields(json_object(data, origin), "", origin)
    if top.string("format") != FORMAT:
        top.fail("format", f"{shown(top.values['format'])} is not known; it must be {FORMAT}")
    top.only(_KEYS)
    asked, given = top.values.get("question"), top.values.get("witnesses")
    if not isinstance(asked, dict):
        top.fail("question", "missing; it must be an object")
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        top.fail("witnesses", "missing; it must be an array of objects")
    tables = [Fields(one, "", f"{origin}: witness {i}") for i, one in enumerate(given, start=1)]
    return Proof(
        MappingProxyType(asked),
        top.string("schedule"),
        top.number("time_us", 0.0, _MOST_US, "µs"),
        top.number("bound_us", 0.0, _MOST_US, "µs"),
        top.number("gap", 0.0, _MOST_US, "times the bound"),
        tuple(_witness(table) for table in tables),
        tuple(_read_names(table) for table in tables),
    )


def _witness(table: Fields) -> Witness:
    hints = get_type_hints(Witness)
    known = {f.name: hints[f.name] for f in fields(Witness)}
    table.only((*known, _NAMES))
    values = {}
    for name, hint in known.items():
        if name not in table.values:
            if name == "protocol":
                continue
            table.fail(name, "missing")
        values[name] = _typed(table, name, hint, table.values[name])
    for name, value in values.items():
        if isinstance(value, str) and not (value.isprintable() and len(value) <= 1000):
            table.fail(name, "it must be at most 1000 printable characters")
    return Witness(**values)


def _typed(table: Fields, name: str, hint: Any, value: Any) -> Any:
    """A JSON value as the type that a field of Witness is declared with."""
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
        # a negative index would mean another rank to Python and none to a reader
        if type(value) is int and 0 <= value <= _MOST:
            return value
    elif hint in (str, bool) and type(value) is hint:
        return value
    return table.fail(name, f"holds {shown(value)}, which is not what a witness has there")


def _read_names(table: Fields) -> dict[int, str]:
    value = table.values.get(_NAMES)
    if not isinstance(value, dict) or not all(
        k.isascii() and k.isdigit() and len(k) < 16 and isinstance(name, str) for k, name in value.items()
    ):
        table.fail(_NAMES, "it must be an object that gives each resource's number its name")
    return {int(k): name for k, name in value.items()}
