"""The check of the figures that an index states of an algorithm against what the files prove.

A row (`synth.search.statement.row`) states times, bounds, gaps and comparisons. Each of them follows from the program,
the witnesses and the named topology, except for what only a search knows (`UNPROVABLE`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from synth.bounds.prove import OPTIMAL, Bound
from synth.bounds.witness import Witness
from synth.model.pairs import ordinary
from synth.model.problem import Problem
from synth.model.text import format_apart, format_size, format_time
from synth.search.result import SearchResult
from synth.search.statement import compare
from synth.storage.proof import EQUAL
from synth.storage.schedule_file import StoredSchedule
from synth.verify.algorithm import Algorithm

FIGURES = (
    "steps", "rounds", "chunks", "sends", "engine", "switch_ops", "shown_bytes", "time_us", "bound_us", "gap",
    "optimal", "proof", "vs_baseline", "libraries", "vs_healthy", "vs_healthy_range", "worst", "curve",
)  # fmt: skip
SHAPE = "steps", "rounds", "chunks", "sends", "engine", "switch_ops"
UNPROVABLE = ("vs_baseline", "vs_healthy", "vs_healthy_range")  # They compare with algorithms that no file holds.
_OF_BOUND = ("bound_us", "gap", "optimal", "proof", "worst", "curve")
_ALWAYS = "gap", "optimal", "proof", "worst", "curve"  # stated wherever a bound is stated
_OF_FILE = "threadblocks", "otherwise", "network", "padding"  # stated beside the figures
_LONG = 1_000_000  # largest number of sends for which there is a curve
_CLOSE = 1e-6  # relative rounding of a time
_HUGE, _TINY, _LIMIT = 1 << 60, 1e-6, 1e-7  # bytes; bytes; relative rounding within which a regime is met


@dataclass(frozen=True)
class Evidence:
    """The facts that the files of one row prove.

    Attributes:
        time_us: Returns the time in µs at a message size in bytes; None if it cannot be computed.
        serves: Returns True if the row is for a message size in bytes.
        witnesses: Checked witnesses of its proof; empty without a proof.
        problem: Question on the named topology; None if that is not known.
        stored: The row's own schedule; None without one.
        has_proof: True if the row names a proof, which must reach the row's bounds. Without one, the witnesses are of
            other files' proofs or of a search of this check, and the row may state a better bound.
        has_file: True if the row describes a file; False if it describes a schedule without a file.
    """

    time_us: Callable[[float], float] | None
    serves: Callable[[int], bool]
    witnesses: tuple[Witness, ...] = ()
    problem: Problem | None = None
    stored: StoredSchedule | None = None
    has_proof: bool = True
    has_file: bool = True


@dataclass
class FigureFindings:
    """The result of checking one row.

    Attributes:
        wrong: A sentence for each field that states something wrong.
        unproved: Fields that may be right and that no file proves.
    """

    wrong: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)


def check_figures(values: Mapping[str, Any], evidence: Evidence) -> FigureFindings:
    """Check every figure of a row against what the files prove.

    Args:
        values: The row, whose fields have the types that `emit.library.entry.check_types` demands.
        evidence: What the files prove.
    """
    findings = FigureFindings()
    if any(values.get(key) is not None for key in _OF_BOUND):  # An entry of a hand-written algorithm claims none.
        findings.unproved += [key for key in FIGURES if key not in values]
        findings.unproved += [key for key in _OF_FILE if evidence.has_file and values.get(key) is None]
        short = (values.get("sends") or 0) <= _LONG
        findings.unproved += [key for key in _ALWAYS if values.get(key) is None or (short and values[key] == [])]
    findings.unproved += [key for key in UNPROVABLE if values.get(key) is not None]
    for check in (_shape, _times, _bounds, _libraries):
        findings.wrong += check(values, evidence, findings)
    findings.unproved = list(dict.fromkeys(findings.unproved))
    return findings


def _shape(values: Mapping[str, Any], evidence: Evidence, findings: FigureFindings) -> Iterator[str]:
    """Yield the faults of the fields that describe the schedule.

    Without a schedule, add those that the row states to `findings.unproved`.
    """
    shape = _shape_of(evidence.stored)
    if shape is None:
        findings.unproved += [key for key in SHAPE if values.get(key) is not None]
        return
    for key, expected in shape.items():
        if key in values and values[key] != expected:
            yield f"{key}: is {values[key]!r}; it must be {expected!r}, as in its schedule"


def _shape_of(stored: StoredSchedule | None) -> dict[str, Any] | None:
    """Return the fields of a row that a stored schedule determines, with their values; None without a schedule."""
    if stored is None:
        return None
    schedule, problem = stored.schedule, stored.problem
    algorithm = Algorithm(problem, schedule, str(stored.header["engine"]), size_bytes=schedule.size_bytes)
    return {
        "steps": algorithm.steps,
        "rounds": algorithm.rounds,
        "chunks": problem.collective.chunks,
        "sends": len(schedule) * stored.orbit,
        "engine": algorithm.engine,
        "switch_ops": not ordinary(problem.network, schedule.link),
    }


def _times(values: Mapping[str, Any], evidence: Evidence, findings: FigureFindings) -> Iterator[str]:
    """Yield the first fault of the times that a row states.

    If they cannot be computed, add the fields that depend on them to `findings.unproved` instead; so is a time without
    a size.
    """
    stated = [row for row in _rows(values) if row[1] is not None]
    if evidence.time_us is None:
        findings.unproved += [key for key in ("time_us", *_OF_BOUND, "libraries") if values.get(key) is not None]
        return
    if values.get("shown_bytes") is None and values.get("time_us") is not None:
        findings.unproved.append("time_us")
    for place, size, claimed, _ in stated:
        time_us = evidence.time_us(size)
        if not math.isclose(time_us, claimed, rel_tol=_CLOSE):
            yield f"{place}: takes {format_time(time_us)} at {format_size(size)}, its entry says {format_time(claimed)}"
            return


def _rows(values: Mapping[str, Any]) -> Iterator[tuple[str, int, Any, Any]]:
    """Yield (field, size in bytes, time in µs, bound in µs) of every place that states a time; a bound may be None."""
    size, worst = values.get("shown_bytes"), values.get("worst")
    if size is not None and values.get("time_us") is not None:
        yield "time_us", size, values["time_us"], values.get("bound_us")
    if isinstance(worst, Mapping):
        yield "worst", worst["bytes"], worst["time_us"], worst["bound_us"]
    for row in values.get("curve") or ():
        yield "curve", *row


def _bounds(values: Mapping[str, Any], evidence: Evidence, findings: FigureFindings) -> Iterator[str]:
    """Yield the faults of the bounds, and of the figures that follow from them: gaps and the text of the proof.

    Fields that no witness proves are added to `findings.unproved`. After a wrong bound nothing else is checked.
    """
    bound = Bound(evidence.witnesses) if evidence.witnesses else None
    if bound is None:
        findings.unproved += [key for key in _OF_BOUND if values.get(key) is not None]
    for field_name, size, time_us, bound_us in _rows(values):
        if bound_us is None:
            continue
        proved = math.inf if bound is None else bound.at(size)[0]
        if bound_us > time_us * (1 + _CLOSE):
            at = f"{format_time(bound_us)} at {format_size(size)}"
            yield f"{field_name}: states a bound of {at} and takes {format_time(time_us)}"
            return
        if bound_us > proved * (1 + EQUAL) and not evidence.has_proof:
            findings.unproved += [key for key in _OF_BOUND if values.get(key) is not None]
            continue
        if bound_us > proved * (1 + EQUAL):
            stated_text, proved_text = format_apart(bound_us, proved)
            yield f"{field_name}: states a bound of {stated_text} at {format_size(size)}, the proof {proved_text}"
            return
    yield from _gaps(values, evidence)
    if bound is not None and evidence.time_us is not None and "proof" not in findings.unproved:
        wrong = list(_proof_texts(values, evidence.time_us, bound))
        # A search may word the proof differently.
        if wrong and not evidence.has_proof and _has_met_regime(values, evidence.time_us, bound):
            findings.unproved.append("proof")
        else:
            yield from wrong


def _gaps(values: Mapping[str, Any], evidence: Evidence) -> Iterator[str]:
    """Yield the faults of the gaps, of `optimal` and of `worst`, by the times and bounds that the row states.

    A gap is a time divided by its bound, and at least 1. `worst` must be at a size that the row is for, with a gap no
    smaller than any on the curve at such sizes.
    """
    time_us, bound_us, gap, size = (values.get(key) for key in ("time_us", "bound_us", "gap", "shown_bytes"))
    least = 1.0
    if time_us is not None and bound_us:
        least = max(1.0, time_us / bound_us)
        if gap is not None and not math.isclose(gap, least, rel_tol=_CLOSE):
            yield f"states a gap of {gap:.4f}, its time and bound say {least:.4f}"
        optimal = time_us / bound_us <= OPTIMAL
        if values.get("optimal") is not None and values["optimal"] != optimal:
            yield f"optimal: is {values['optimal']}; it must be {optimal}, as its time and bound say"
    elif gap is not None or values.get("optimal"):
        yield "states a gap and neither time nor bound; it must state both"
    worst = values.get("worst")
    if not isinstance(worst, Mapping):
        return
    stated = max(1.0, worst["time_us"] / worst["bound_us"])
    if not math.isclose(worst["gap"], stated, rel_tol=_CLOSE):
        yield f"worst: states a gap of {worst['gap']:.4f}, its time and bound say {stated:.4f}"
    if worst["bytes"] != size and not evidence.serves(worst["bytes"]):
        yield f"worst: is at {format_size(worst['bytes'])}, which the file does not serve"
    inside = [time / bound for at, time, bound in values.get("curve") or () if bound and evidence.serves(at)]
    if max([least, *inside]) > worst["gap"] * (1 + _CLOSE):
        yield f"worst: states a gap of {worst['gap']:.4f}; it must be {max([least, *inside]):.4f}, as the curve says"


def _proof_texts(values: Mapping[str, Any], time_us: Callable[[float], float], bound: Bound) -> Iterator[str]:
    """Yield the fault of the text `proof`, which must be the text of a witness that gives the bound at the size shown.

    A regime that is met may precede it, such as "optimal: ". A row without the text, its size or its bound has no
    fault.

    Args:
        values: The row.
        time_us: Returns the time in µs at a message size in bytes.
        bound: The proved bound.
    """
    claim, size = values.get("proof"), values.get("shown_bytes")
    if claim is None or size is None or values.get("bound_us") is None:
        return
    proved = bound.at(size)[0]
    texts = [witness.text for witness in bound.witnesses if math.isclose(witness.at(size), proved, rel_tol=EQUAL)]
    if not any(claim == regime + text for text in texts for regime in _met_regimes(size, time_us, bound)):
        yield f"proof: is {claim[:80]!r}; it must be {texts[0][:80]!r}, as in its proof, after a regime that is met"


def _has_met_regime(values: Mapping[str, Any], time_us: Callable[[float], float], bound: Bound) -> bool:
    """Return True if the text `proof` of a row claims no regime, such as "optimal: ", that is not met at its size."""
    proof_text, met = str(values["proof"]), _met_regimes(values["shown_bytes"], time_us, bound)
    return any("optimal" not in proof_text.removeprefix(regime) for regime in met)


def _met_regimes(size: int, time_us: Callable[[float], float], bound: Bound) -> list[str]:
    """Return how a proof's text may begin: "", and the regimes that are met.

    They are "optimal: " at the size, "bandwidth-optimal: " at huge sizes and "latency-optimal: " at tiny ones.

    Args:
        size: Message size in bytes.
        time_us: Returns the time in µs at a message size in bytes.
        bound: The proved bound.
    """
    regimes = {"": True, "optimal: ": time_us(size) / bound.at(size)[0] <= OPTIMAL}
    regimes["bandwidth-optimal: "] = time_us(_HUGE) <= bound.at(_HUGE)[0] * (1 + _LIMIT)
    regimes["latency-optimal: "] = time_us(_TINY) <= bound.at(_TINY)[0] * (1 + _LIMIT)
    return [regime for regime, is_met in regimes.items() if is_met]


def _libraries(values: Mapping[str, Any], evidence: Evidence, findings: FigureFindings) -> Iterator[str]:
    """Yield a fault for each library whose stated figures are not those of its model.

    If they cannot be computed, or a library's time is not stated, "libraries" is added to `findings.unproved`.
    """
    stated, size = values.get("libraries"), values.get("shown_bytes")
    if not stated:
        return
    if evidence.problem is None or evidence.time_us is None or size is None or not evidence.witnesses:
        findings.unproved.append("libraries")
        return
    result = SearchResult(evidence.problem, [], bound=Bound(evidence.witnesses))
    expected = compare(result, evidence.time_us(size), size)["libraries"]
    for name, row in stated.items():
        expected_row = expected.get(name)
        if "time_us" not in row:
            findings.unproved.append("libraries")
        elif (
            expected_row is None
            or row.keys() != expected_row.keys()
            or not all(_same(row[key], expected_row[key]) for key in expected_row)
        ):
            yield f"libraries: states of {name!r} {row!r:.120}; its model says {expected_row!r:.120}"


def _same(value: Any, expected: Any) -> bool:
    """Return True if two values are equal; a float may differ from a number by rounding."""
    if isinstance(value, float) and isinstance(expected, int | float):
        return math.isclose(value, expected, rel_tol=_CLOSE)
    return bool(value == expected)
