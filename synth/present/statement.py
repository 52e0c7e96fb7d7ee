"""What a search found, as one documented object of plain values (`--json`, the index, the table)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from synth.baselines.libraries import LIBRARIES
from synth.baselines.nccl.model import Choice
from synth.bounds.prove import OPTIMAL
from synth.engines.request import StepClaim
from synth.model.pairs import ordinary
from synth.model.problem import LARGEST, SMALLEST, describe_alpha, question
from synth.present.text import format_count
from synth.search.frontier import Range
from synth.search.pool import WORTH_SAYING
from synth.search.result import SearchResult

_LONG = 1_000_000  # sends whose time at a further size takes a second
_MANY = 20_000  # and with which the sizes of a curve take a moment; with more they are _SPREAD powers of two apart
_SPREAD = 5


TimeAt = Callable[[int], float]
OverSizes = dict[str, Any]
Row = dict[str, Any]


def row(found: SearchResult, served: Range) -> dict[str, Any]:
    """One algorithm and its sizes.

    Times in µs at `shown_bytes`, of the program if there is one, else of the schedule; min_bytes..max_bytes inclusive,
    max_bytes None where there is no end; gap is time / bound; vs_baseline is the best baseline's time / this time, None
    where there is no baseline; libraries is by name what a library would take itself (algorithm, protocol, channels:
    None where they are not known, time_us, and vs: its time / this time), without those that say nothing; vs_healthy is
    this time / the healthy network's, None where no part is dead or slow.
    sends counts all translated copies. switch_ops: whether switches multicast or reduce in it. worst: the size of the
    range with the largest gap (bytes, time_us, bound_us, gap), of those in `curve` and the range's ends. curve: rows
    (bytes, time_us, bound_us) at powers of two over all sizes, beyond the range too; empty of very many sends.
    """
    algorithm = served.algorithm
    return {
        "steps": algorithm.steps,
        "rounds": algorithm.rounds,
        "chunks": algorithm.chunks,
        "sends": len(algorithm.schedule) * (1 if found.problem.quotient is None else found.problem.quotient.order),
        "engine": algorithm.engine,
        "switch_ops": not ordinary(algorithm.problem.network, algorithm.schedule.link),
        "min_bytes": served.low,
        "max_bytes": served.high,
        **compare(found, served.time_us(served.shown), served.shown, lambda: _regime(found, served)),
        **over_sizes(found, served.taken_us, served.low, served.high, served.shown, len(algorithm.schedule)),
    }


def over_sizes(found: SearchResult, time_us: TimeAt, low: int, high: int | None, shown: int, sends: int) -> OverSizes:
    """`worst` and `curve` of a row whose time in µs at a size `time_us` says.

    low, high: of the range in bytes, high None where there is no end. sends: with many, fewer sizes are looked at.
    Sizes of which time_us says inf (no file takes them) are left out.
    """
    sizes: set[int] = {shown}
    powers = range(SMALLEST.bit_length() - 1, LARGEST.bit_length(), 1 if sends <= _MANY else _SPREAD)
    last = LARGEST if high is None else high
    if sends <= _LONG:
        sizes |= {1 << e for e in powers}
    if sends <= _MANY:
        sizes |= {size for size in (low, last) if SMALLEST <= size <= LARGEST}
    taken = {size: time_us(size) for size in sorted(sizes)}
    at = {size: (us, found.bound.at(size)[0]) for size, us in taken.items() if us < np.inf}
    inside = [size for size in at if low <= size <= last or size == shown]
    size = max(inside, key=lambda size: at[size][0] / at[size][1])
    taken_us, bound_us = at[size]
    return {
        "worst": {"bytes": size, "time_us": taken_us, "bound_us": bound_us, "gap": max(1.0, taken_us / bound_us)},
        "curve": [[size, *figures] for size, figures in at.items() if sends <= _LONG and size & size - 1 == 0],
    }


def compare(found: SearchResult, time_us: float, size: int, regime: Callable[[], str] = str) -> dict[str, Any]:
    """What a row says of a time in µs for messages of `size` bytes; regime: what to say of one that is not optimal."""
    bound_us, witness = found.bound.at(size)
    others = [a.time_us(size) for a in found.baselines]
    optimal = time_us / bound_us <= OPTIMAL
    healthy = found.healthy.fastest(size).time_us(size) if found.healthy and found.healthy.ranges else None
    return {
        "shown_bytes": size,
        "time_us": time_us,
        "bound_us": bound_us,
        "gap": max(1.0, time_us / bound_us),
        "optimal": optimal,
        "proof": ("optimal: " if optimal else regime()) + witness.text,
        "vs_baseline": min(others) / time_us if others else None,
        "libraries": {
            name: _beside(choice, time_us)
            for name in LIBRARIES
            if isinstance(choice := found.library(name, size), Choice)
        },
        "vs_healthy": None if healthy is None else time_us / healthy,
    }


def _beside(choice: Choice, time_us: float) -> dict[str, Any]:
    return {
        "algorithm": choice.algorithm,
        "protocol": choice.protocol,
        "channels": choice.channels or None,
        "time_us": choice.time_us,
        "vs": choice.time_us / time_us,
    }


def _regime(found: SearchResult, served: Range) -> str:
    """Whether what runs meets the bound as messages grow, or as they shrink."""
    if len(served.algorithm.schedule) > _LONG:
        return ""
    huge, tiny = 1 << 60, 1e-6
    if served.time_us(huge) <= found.bound.at(huge)[0] * (1 + 1e-7):
        return "bandwidth-optimal: "
    if served.time_us(tiny) <= found.bound.at(tiny)[0] * (1 + 1e-7):
        return "latency-optimal: "
    return ""


def statement(found: SearchResult) -> dict[str, Any]:
    """Everything a search found.

    Keys: those of `question`; summary, alpha; algorithms (see `row`; refused: why the executor
    can hold no program of it, "" where it can or none was asked for); baselines (their names); libraries (by
    name: version; own_clock: whether its times are by its own cost model; costs: whether the times here count an
    executor's costs; not_modelled: why it says nothing of this question, "" where it does); bounds (each witness: kind,
    text, base_us, us_per_byte, cap_us); k_synchronous (what is proved for each number of steps);
    time_slots (what dual bounds prove for a number of chunks: bytes, chunks, bound_us, solver); out_of_reach (faster
    schedules of which the executor can hold no program: bytes, chunks, time_us, gap, refused); engine (that was named;
    auto), other_engines (that found some of the algorithms though another was named); impossible, switch_ops (the
    switches that may multicast or reduce among the ranks), unsaid (why none may though some can), next_minute (see
    there), defects (parts of synth that failed, whose answers are missing), ended, seconds.
    """
    problem = found.problem
    rows = [row(found, s) | {"refused": s.contender.refused} for s in found.ranges]
    return {
        **question(problem),
        "summary": problem.topology.summary,
        "alpha": describe_alpha(problem),
        "algorithms": rows,
        "baselines": sorted({a.engine for a in found.baselines}),
        "libraries": {
            one.name: {
                "version": one.version,
                "own_clock": one.own_clock,
                "costs": bool(problem.topology.protocol),
                "not_modelled": _not_modelled(found, one.name),
            }
            for one in LIBRARIES.values()
        },
        "bounds": found.bound.documents(),
        "k_synchronous": _claims(found),
        "time_slots": [
            {"bytes": c.size, "chunks": c.chunks, "bound_us": c.bound_us, "solver": c.solver} for c in found.slots
        ],
        "out_of_reach": _out_of_reach(found),
        "engine": found.engine,
        "other_engines": list(found.other_engines),
        "impossible": found.impossible,
        "switch_ops": _switches(found),
        "unsaid": found.unsaid,
        "next_minute": next_minute(found, rows),
        "defects": [defect.line for defect in found.defects],
        "ended": found.ended,
        "seconds": round(found.seconds, 3),
    }


def next_minute(found: SearchResult, rows: Sequence[Row]) -> dict[str, Any]:
    """What a minute more would be spent on, and where the largest gap of these rows is.

    Keys: engines (those that have not ended, the first to go on first), window_bytes (the size for which bounds by
    windows of time would be looked for, None: for none), bytes and gap (of the worst size; None without rows), time_s
    and bound_s (when its algorithm and its bound were found, in seconds since the search began; None: not known),
    moved (which of "algorithm" and "bound" was found last, "" where that is not known), one_size (whether engines were
    asked about that size alone).
    """
    one_size = any(row["min_bytes"] == row["max_bytes"] for row in rows)
    told: dict[str, Any] = {"engines": list(found.queue), "window_bytes": found.refutable, "one_size": one_size}
    told |= {"bytes": None, "gap": None, "time_s": None, "bound_s": None, "moved": ""}
    if rows:
        worst = max((row["worst"] for row in rows), key=lambda worst: worst["gap"])
        told |= {
            "bytes": worst["bytes"],
            "gap": worst["gap"],
            "one_size": one_size or worst["bytes"] in found.asked_sizes,
        }
    if found.ranges and rows:
        served, (_, witness) = found.fastest(told["bytes"]), found.bound.at(told["bytes"])
        if np.isclose(served.time_us(told["bytes"]), worst["time_us"]):  # else it was found before
            time_s, bound_s = served.contender.found_s, found.bound_s.get(witness)
            told |= {"time_s": time_s, "bound_s": bound_s}
            if time_s is not None and bound_s is not None:
                told["moved"] = "algorithm" if time_s > bound_s else "bound"
    return told


def _not_modelled(found: SearchResult, name: str) -> str:
    told = found.library(name, LARGEST)
    return "" if isinstance(told, Choice) else str(told)


def _switches(found: SearchResult) -> list[str]:
    h, topology = found.problem.network.hyperlinks, found.problem.topology
    return [] if h is None else [topology.switch_ops[i].switch for i in np.unique(h.group).tolist()]


def _out_of_reach(found: SearchResult) -> list[dict[str, Any]]:
    """Per range of sizes the best schedule that is worth a word, as it is clearly faster than what can be held."""
    rows = []
    for served in found.ranges:
        size = served.shown
        best = min(found.refused, key=lambda one: (one.time_us(size), *one.order), default=None)
        if best is None or served.contender.refused or best.time_us(size) > WORTH_SAYING * served.time_us(size):
            continue
        rows.append(
            {
                "bytes": size,
                "chunks": best.algorithm.chunks,
                "time_us": best.time_us(size),
                "gap": best.time_us(size) / found.bound.at(size)[0],
                "refused": best.refused,
            }
        )
    return rows


def _claims(found: SearchResult) -> list[dict[str, Any]]:
    claims = []
    for claim in found.claims:
        shape = claim.best.shape if claim.best is not None else None
        claims.append(
            {
                "part": claim.part,
                "steps": claim.steps,
                "rounds": shape.rounds if shape else None,
                "chunks": shape.chunks if shape else None,
                "least_rounds_a_chunk": None
                if np.isinf(claim.at_least)
                else str(Fraction(claim.at_least).limit_denominator(1000)),
                "proved": claim.complete,
                "by": claim.by,
                "up_to_chunks": claim.chunks if claim.complete and not claim.exactly else None,
                "for_chunks": claim.chunks if claim.complete and claim.exactly else None,
                "proof": _format_proof(claim) if claim.complete else "",
                "refuted": [[r.steps, r.rounds, r.chunks] for r in claim.refuted],
            }
        )
    return claims


_MEANS = {
    "rounds ≥ steps": "each step taking a round",
    "cut": "a cut",
    "relaxation": "the linear relaxation",
    "solvers": "CP-SAT and Z3",
}


def _format_proof(claim: StepClaim) -> str:
    """For which numbers of chunks a claim holds, and by what."""
    if claim.chunks is None:
        whom = "any number of chunks"
    else:
        whom = ("" if claim.exactly else "up to ") + format_count(claim.chunks, "chunk")
    return f"for {whom}, by {_MEANS.get(claim.by, claim.by)}"
