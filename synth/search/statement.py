"""The statement of a search result: one documented dictionary of plain values (`--json`, the index, the table)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from synth.baselines.nccl.model import LibraryChoice
from synth.baselines.vendors import LIBRARIES
from synth.bounds.prove import OPTIMAL
from synth.engines.request import StepClaim
from synth.model.pairs import count_pairs, ordinary
from synth.model.problem import LARGEST, SMALLEST, Problem, describe_alpha, question
from synth.model.text import format_count
from synth.search.frontier import POWERS
from synth.search.offer import Offer, changes_to_the_byte, partition
from synth.search.pool import WORTH_SAYING
from synth.search.result import SearchResult

_LONG = 1_000_000  # sends; timing so many at one size takes a second
_LONG_PROGRAM = 5_000  # sends; timing a program of so many at all sizes of a curve takes a second
# With more sends than this, the sizes of a curve are _SPREAD powers of two apart, to save time.
_MANY = 20_000
_SPREAD = 5
_ROUNDING = 1 - 1e-6  # time / bound below which a time is not only rounded below the bound


TimeAt = Callable[[int], float]
OverSizes = dict[str, Any]
Row = dict[str, Any]


def row(result: SearchResult, served: Offer) -> dict[str, Any]:
    """Return the row of an algorithm and the range of message sizes that it serves.

    Times are in µs, at the size `shown_bytes`: of the program if there is one, otherwise of the schedule.

    Args:
        result: The search result, for the bound and what the row is compared with.
        served: The algorithm with its range.

    Returns:
        A dictionary with the keys of `compare` and of `over_sizes`, and with:

        - steps, rounds, chunks: The shape in the k-synchronous model; None where the algorithm has none.
        - sends: Number of sends, with all translated copies; None for a library's own algorithm.
        - engine: Name of the engine, or of the vendor library to which the range is left.
        - switch_ops: Whether switches multicast or reduce in it.
        - min_bytes, max_bytes: The range of sizes, both inclusive; max_bytes is None where there is no end.
    """
    algorithm = served.algorithm
    figures = {
        "steps": algorithm.steps,
        "rounds": algorithm.rounds,
        "chunks": algorithm.chunks,
        "sends": len(algorithm.schedule) * (1 if result.problem.quotient is None else result.problem.quotient.order),
        "engine": algorithm.engine,
        "switch_ops": not ordinary(algorithm.problem.network, algorithm.schedule.link),
        "min_bytes": served.low,
        "max_bytes": served.high,
        **compare(result, served.time_us(served.shown), served.shown, lambda: _regime(result, served)),
        **over_sizes(
            result, served.taken_us, served.low, served.high, served.shown, _spacing(served), served.unit_bytes
        ),
    }
    if served.library:  # A library's own model may count less than our bounds do.
        proof = result.bound.at(served.shown)[1].text
        figures |= dict.fromkeys(("steps", "rounds", "chunks", "sends"))
        figures |= {"engine": served.library, "switch_ops": False, "optimal": False, "proof": proof}
    return figures


def over_sizes(
    result: SearchResult,
    time_us: TimeAt,
    low: int,
    high: int | None,
    shown: int,
    spacing: int,
    unit_bytes: Callable[[int], int] = lambda _: 1,
) -> OverSizes:
    """Return `worst` and `curve` of a row.

    Sizes for which `time_us` returns infinity (no file takes them) are left out.

    Args:
        result: The search result, whose bound counts.
        time_us: Function from a size in bytes to a time in µs.
        low: Smallest size of the range in bytes.
        high: Largest size of the range in bytes; None where there is no end.
        shown: The size in bytes for which the row is shown.
        spacing: Which powers of two are timed: 1 for all, and the sizes of `_between_powers` too; n for every n-th one;
            0 for none, so that only the shown size is.
        unit_bytes: Function from a size in bytes to the number of bytes of which served sizes near it are multiples.

    Returns:
        A dictionary with two keys:

        - worst: The size with the largest gap (bytes, time_us, bound_us, gap), among the shown size and the sizes of
          `curve` in the range.
        - curve: Lists [bytes, time_us, bound_us], ascending: at powers of two over all sizes, outside the range too,
          and in the range at its ends and where another witness begins to prove the bound; empty without spacing.
          With spacing 1, between two of these sizes that are in the range one witness counts, whose limit is a line up
          to its cap, so that the bound is at least what interpolation says.
    """
    sizes: set[int] = set()
    if spacing:
        sizes |= {1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length(), spacing)}
    if spacing == 1:
        sizes |= _between_powers(result, low, high, unit_bytes)
    time_at_size = {size: time_us(size) for size in sorted({*sizes, shown})}
    figures_at_size = {size: (us, result.bound.at(size)[0]) for size, us in time_at_size.items() if us < np.inf}
    last = LARGEST if high is None else high
    sizes_in_range = [size for size in figures_at_size if low <= size <= last or size == shown]
    size = max(sizes_in_range, key=lambda size: figures_at_size[size][0] / figures_at_size[size][1])
    worst_us, bound_us = figures_at_size[size]
    return {
        "worst": {"bytes": size, "time_us": worst_us, "bound_us": bound_us, "gap": max(1.0, worst_us / bound_us)},
        "curve": [[size, *figures] for size, figures in figures_at_size.items() if size in sizes],
    }


def _between_powers(result: SearchResult, low: int, high: int | None, unit_bytes: Callable[[int], int]) -> set[int]:
    """Return the sizes of a range, no powers of two, at which a gap can be largest; each is one that a file can serve.

    They are the ends of the range, and the last and the first size of neighbouring witnesses: before such a change the
    bound mostly rises more slowly than after it. Where files serve only multiples of a unit, each is replaced by the
    nearest such size on its side.

    Args:
        result: The search result, whose bound counts.
        low: Smallest size of the range in bytes.
        high: Largest size of the range in bytes; None where there is no end.
        unit_bytes: As for `over_sizes`.
    """
    first, last = max(low, SMALLEST), LARGEST if high is None else min(high, LARGEST)
    if first > last:
        return set()
    inside = [size for power in POWERS for size in (power, power + power // 2) if first < size < last]
    samples = [(size, result.bound.at(size)[1]) for size in sorted({first, *inside, last})]
    changes = changes_to_the_byte(lambda size: result.bound.at(size)[1])
    starts = [start for _, start, _ in partition(first, last, samples, changes)]
    ends = [*(start - 1 for start in starts[1:]), last]
    sizes = {-(-size // unit_bytes(size)) * unit_bytes(size) for size in starts}
    sizes |= {size // unit_bytes(size) * unit_bytes(size) for size in ends}
    return {size for size in sizes if first <= size <= last}


def _spacing(served: Offer) -> int:
    """Return the spacing of the sizes at which an offer is timed, as `over_sizes` takes it."""
    sends = count_pairs(served.algorithm.problem.network, served.algorithm.schedule.link)
    return spacing_for(sends, served.execution is not None, served.low == served.high)


def spacing_for(sends: int, is_program: bool, is_one_size: bool) -> int:
    """Return the spacing of the sizes at which a schedule or a program is timed, as `over_sizes` takes it.

    It is the wider, the more sends there are. A long program that serves one size is timed at that size only.
    """
    if sends > _LONG or (is_program and is_one_size and sends > _LONG_PROGRAM):
        return 0
    return 1 if sends <= _MANY else _SPREAD


def compare(result: SearchResult, time_us: float, size: int, regime: Callable[[], str] = str) -> dict[str, Any]:
    """Return the keys of a row that compare its time with bounds, baselines, libraries and the healthy network.

    Args:
        result: The search result.
        time_us: The row's time in µs.
        size: The message size in bytes.
        regime: Function that returns the beginning of `proof` for a time that is not optimal.

    Returns:
        A dictionary with these keys:

        - shown_bytes, time_us: The arguments.
        - bound_us: The bound in µs.
        - gap: time / bound, at least 1.
        - optimal: Whether the time is proved optimal.
        - proof: What proves the bound, in words, after "optimal: " or what `regime` returns.
        - vs_baseline: Time of the best baseline / this time; None where there is no baseline.
        - libraries: By name, what a library would run by its own choice: algorithm, protocol, channels (None where they
          are not known), time_us, vs (its time / this time), vs_low and vs_high (the interval that holds four of five
          measured times), and source_us (its time by its own cost model); the last three are None where they are not
          known. Libraries without a model of the question are missing.
        - vs_healthy, vs_healthy_range: See `_against_healthy`; None where no part is dead or slow.
    """
    bound_us, witness = result.bound.at(size)
    baselines_us = [a.time_us(size) for a in result.baselines]
    optimal = time_us / bound_us <= OPTIMAL
    return {
        "shown_bytes": size,
        "time_us": time_us,
        "bound_us": bound_us,
        "gap": max(1.0, time_us / bound_us),
        "optimal": optimal,
        "proof": ("optimal: " if optimal else regime()) + witness.text,
        "vs_baseline": min(baselines_us) / time_us if baselines_us else None,
        "libraries": {
            name: beside(choice, time_us)
            for name in LIBRARIES
            if isinstance(choice := result.library(name, size), LibraryChoice)
        },
        **_against_healthy(result, time_us, size, bound_us),
    }


def _against_healthy(result: SearchResult, time_us: float, size: int, bound_us: float) -> dict[str, Any]:
    """Return the keys of a row that compare its time with the healthy network, where two short searches may mislead.

    Where both have the same group, an algorithm for the damaged network is one for the healthy network too, so that the
    faster of both counts there. If a rank is dead, the healthy network's group may have more ranks.

    Args:
        result: The search result.
        time_us: The row's time in µs.
        size: The message size in bytes.
        bound_us: The bound on the damaged network in µs.

    Returns:
        A dictionary with these keys, both None without an answer for the healthy network:

        - vs_healthy: This time / the least time on the healthy network that is known.
        - vs_healthy_range: The least and the greatest ratio that the optimal times of both networks can have, by the
          times and bounds that are known: this bound / that time, and this time / that bound.
    """
    healthy = result.healthy
    if healthy is None or not healthy.ranges:
        return {"vs_healthy": None, "vs_healthy_range": None}
    known_us = [known_time_us(size) for known_time_us in result.healthy_times]
    healthy_us, least = min([healthy.fastest(size).time_us(size), *known_us]), 0.0
    if healthy.problem.group == result.problem.group:
        healthy_us, least = min(healthy_us, time_us), 1.0
    ratio = time_us / healthy_us
    # Times of vendor libraries can be below our bounds.
    low, high = min(ratio, bound_us / healthy_us), max(ratio, time_us / healthy.bound.at(size)[0])
    return {"vs_healthy": ratio, "vs_healthy_range": [max(least, low), high]}


def beside(choice: LibraryChoice, time_us: float) -> dict[str, Any]:
    """Return the choice of a library as the dictionary that `compare` describes, relative to the row's time in µs."""
    return {
        "algorithm": choice.algorithm,
        "protocol": choice.protocol,
        "channels": choice.channels or None,
        "time_us": choice.time_us,
        "vs": choice.time_us / time_us,
        "vs_low": choice.low_us / time_us if choice.low_us else None,
        "vs_high": choice.high_us / time_us if choice.high_us else None,
        "source_us": choice.source_us or None,
    }


def with_ranges(result: SearchResult, rows: Iterable[Row]) -> list[Row]:
    """Return rows whose libraries also state `vs_range`: the least and the greatest `vs` at the sizes of the row.

    The sizes are that which is shown and those of the row's `curve` in its range. Rows that are left to a library have
    none, nor is there one where the interval of four of five measured times holds our time at all of these sizes.

    Args:
        result: The search result.
        rows: The rows, with `curve` and `libraries`.
    """
    ranged = []
    for own in rows:
        last = LARGEST if own["max_bytes"] is None else own["max_bytes"]
        times_us = {size: us for size, us, _ in own["curve"] if own["min_bytes"] <= size <= last}
        choices = {}
        for name, choice in own["libraries"].items() if own["sends"] is not None else ():
            at_sizes = {size: result.library(name, size) for size in times_us if size != own["shown_bytes"]}
            others = [beside(at, times_us[size]) for size, at in at_sizes.items() if isinstance(at, LibraryChoice)]
            ratios = [other["vs"] for other in (choice, *others)]
            if not all(other["vs_low"] and other["vs_low"] <= 1 <= other["vs_high"] for other in (choice, *others)):
                choices[name] = choice | {"vs_range": [min(ratios), max(ratios)]}
        ranged.append(own | {"libraries": own["libraries"] | choices})
    return ranged


def with_source_times(document: dict[str, Any]) -> dict[str, Any]:
    """Return a statement whose rows are compared with libraries' times by their own cost models, without intervals.

    It is a copy, with new rows under "algorithms" and, if present, "other_form".
    """

    def by_source(row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with the times of the libraries' sources where these are known."""
        choices = dict(row["libraries"])
        for name, choice in choices.items():
            if us := choice["source_us"]:
                times = {"time_us": us, "vs": us / row["time_us"], "vs_low": None, "vs_high": None}
                choices[name] = {key: value for key, value in choice.items() if key != "vs_range"} | times
        return row | {"libraries": choices}

    forms = [key for key in ("algorithms", "other_form") if key in document]
    return document | {key: [by_source(row) for row in document[key]] for key in forms}


def _regime(result: SearchResult, served: Offer) -> str:
    """Return whether an algorithm meets the bound as messages grow or as they shrink, as text; "" if neither is so.

    The text is "bandwidth-optimal: " or else "latency-optimal: ". It is "" too for so many sends that timing them at
    further sizes takes too long.
    """
    if not _spacing(served):
        return ""
    huge, tiny = 1 << 60, 1e-6
    if served.time_us(huge) <= result.bound.at(huge)[0] * (1 + 1e-7):
        return "bandwidth-optimal: "
    if served.time_us(tiny) <= result.bound.at(tiny)[0] * (1 + 1e-7):
        return "latency-optimal: "
    return ""


def described_question(problem: Problem) -> dict[str, Any]:
    """Return the keys of `question`, with summary and alpha: texts on the topology and on its latencies."""
    return {**question(problem), "summary": problem.topology.summary, "alpha": describe_alpha(problem)}


def statement(result: SearchResult) -> dict[str, Any]:  # It is long because every key of the document is described.
    """Return the statement of a search result.

    Returns:
        A dictionary with the keys of `described_question`, and with:

        - algorithms: Rows (see `row`), each also with refused: why the executor can hold no program of the algorithm;
          "" if it can or if no executor was named.
        - baselines: Names of the baselines.
        - libraries: By name: version; own_clock: whether its times are by its own cost model; not_modelled: why
          nothing of it stands beside this question's times, "" if something does.
        - bounds: Each witness: kind, text, base_us, us_per_byte, cap_us.
        - k_synchronous: What is proved for each phase and number of steps, as `StepClaim` says: part, steps; rounds and
          chunks of the best shape (None without one); least_rounds_a_chunk as a fraction in text (None without a
          limit); proved, by; up_to_chunks or for_chunks, if it is proved for up to or exactly so many only; proof in
          words; refuted as lists [steps, rounds, chunks].
        - time_slots: What dual bounds prove for a number of chunks: bytes, chunks, bound_us, solver.
        - out_of_reach: Faster schedules for which the executor can hold no program: bytes, chunks, time_us, gap,
          refused.
        - healthy: The search on the healthy network with which rows are compared: its group, and ended, as below; None
          without one.
        - engine: The engine that was named, or auto.
        - other_engines: Engines that found some of the algorithms although another was named.
        - impossible: Why no schedule of the pinned shape exists, where that is proved.
        - switch_ops: Names of the switches that may multicast or reduce among the ranks.
        - unsaid: Why no switch may do so although some can.
        - next_minute: See `next_minute`.
        - defects: Parts of synth that failed, whose answers are missing; one line each.
        - ended: "", or why the search stopped early ("budget" or "interrupted").
        - seconds: Duration of the search.
    """
    problem = result.problem
    rows = [row(result, served) | {"refused": served.refused} for served in result.ranges]
    return {
        **described_question(problem),
        "algorithms": with_ranges(result, rows),
        "baselines": sorted({baseline.engine for baseline in result.baselines}),
        "libraries": {
            library.name: {
                "version": library.version,
                "own_clock": library.own_clock,
                "not_modelled": _not_modelled(result, library.name),
            }
            for library in LIBRARIES.values()
        },
        "bounds": result.bound.documents(),
        "k_synchronous": _claims(result),
        "time_slots": [
            {"bytes": claim.size, "chunks": claim.chunks, "bound_us": claim.bound_us, "solver": claim.solver}
            for claim in result.slots
        ],
        "out_of_reach": _out_of_reach(result),
        "healthy": result.healthy
        and {"group": list(result.healthy.problem.group), "ended": result.healthy.stop_reason},
        "engine": result.engine,
        "other_engines": list(result.other_engines),
        "impossible": result.impossible,
        "switch_ops": _switches(result),
        "unsaid": result.why_switches_forward,
        "next_minute": next_minute(result, rows),
        "defects": [defect.line for defect in result.defects],
        "ended": result.stop_reason,
        "seconds": round(result.seconds, 3),
    }


def is_below_bound(row: Row, figures: Mapping[str, Any]) -> bool:
    """Return whether a row's time is below the bound, as that of a vendor library can be, whose model counts less.

    Args:
        row: The row.
        figures: The row itself, for the size that is shown, or its `worst`.
    """
    return row["engine"] in LIBRARIES and bool(figures["time_us"] < figures["bound_us"] * _ROUNDING)


def next_minute(result: SearchResult, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the search would do with one minute more, and where the largest gap of the rows is.

    Args:
        result: The search result.
        rows: Rows of its ranges (see `row`).

    Returns:
        A dictionary with these keys:

        - engines: Engines that have not ended, in the order in which they would go on.
        - window_bytes: The size in bytes for which bounds by windows of time would be computed; None for no size.
        - bytes, gap: The size with the largest gap, and that gap; None without rows. Rows that are left to vendor
          libraries count only where all are, and not where their times are below the bound, because their models count
          less.
        - time_s, bound_s: When its algorithm and its bound were found, in seconds since the search began; None if
          unknown.
        - moved: Which of "algorithm" and "bound" was found last; "" if unknown.
        - one_size: Whether engines were asked for that size separately.
    """
    one_size = any(offer.low == offer.high for offer in result.ranges)
    outlook: dict[str, Any] = {
        "engines": list(result.remaining_engines),
        "window_bytes": result.next_window_size,
        "one_size": one_size,
    }
    outlook |= {"bytes": None, "gap": None, "time_s": None, "bound_s": None, "moved": ""}
    own_rows = [row for row in rows if row["engine"] not in LIBRARIES]
    counted_rows = [row for row in own_rows or rows if not is_below_bound(row, row["worst"])]
    if counted_rows:
        worst = max((row["worst"] for row in counted_rows), key=lambda worst: worst["gap"])
        outlook |= {
            "bytes": worst["bytes"],
            "gap": worst["gap"],
            "one_size": one_size or worst["bytes"] in result.retried_sizes,
        }
    if result.ranges and counted_rows:
        served, (_, witness) = result.fastest(outlook["bytes"]), result.bound.at(outlook["bytes"])
        if np.isclose(served.time_us(outlook["bytes"]), worst["time_us"]):  # Otherwise another algorithm has this time.
            time_s, bound_s = served.elapsed_s, result.bound_s.get(witness)
            outlook |= {"time_s": time_s, "bound_s": bound_s}
            if time_s is not None and bound_s is not None:
                outlook["moved"] = "algorithm" if time_s > bound_s else "bound"
    return outlook


def _not_modelled(result: SearchResult, name: str) -> str:
    """Return why a library's model does not cover the question; "" if it does."""
    choice = result.library(name, LARGEST)
    return "" if isinstance(choice, LibraryChoice) else str(choice)


def _switches(result: SearchResult) -> list[str]:
    """Return the names of the switches that may multicast or reduce among the ranks."""
    hyperlinks, topology = result.problem.network.hyperlinks, result.problem.topology
    return [] if hyperlinks is None else [topology.switch_ops[i].switch for i in np.unique(hyperlinks.group).tolist()]


def _out_of_reach(result: SearchResult) -> list[dict[str, Any]]:
    """Return a row for each range in which a schedule without a file is clearly faster than the served algorithm.

    It must be faster by 2 % at the size that is shown. Ranges whose own algorithm has no file are left out. The keys
    are those that `statement` names for `out_of_reach`.
    """
    rows = []
    for served in result.ranges:
        size = served.shown
        fastest = min(result.refused, key=lambda offer: offer.rank_at(size), default=None)
        if fastest is None or served.refused or fastest.time_us(size) > WORTH_SAYING * served.time_us(size):
            continue
        rows.append(
            {
                "bytes": size,
                "chunks": fastest.algorithm.chunks,
                "time_us": fastest.time_us(size),
                "gap": fastest.time_us(size) / result.bound.at(size)[0],
                "refused": fastest.refused,
            }
        )
    return rows


def _claims(result: SearchResult) -> list[dict[str, Any]]:
    """Return the claims of the k-synchronous model as dictionaries with the keys that `statement` names."""
    claims = []
    for claim in result.claims:
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
                "refuted": [
                    [refuted_shape.steps, refuted_shape.rounds, refuted_shape.chunks] for refuted_shape in claim.refuted
                ],
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
    """Return for which numbers of chunks a claim holds, and what proves it, such as `for up to 8 chunks, by a cut`."""
    if claim.chunks is None:
        scope = "any number of chunks"
    else:
        scope = ("" if claim.exactly else "up to ") + format_count(claim.chunks, "chunk")
    return f"for {scope}, by {_MEANS.get(claim.by, claim.by)}"
