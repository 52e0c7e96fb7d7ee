"""An executor's costs: our files against the bound with them, protocols by size beside NCCL's, messages per NIC.

    python -m results.scripts.costs [--budget S] [--every N] [--only TOPOLOGY …]

makes costs.md. Every question is asked once with `--costs machine`; what serves each size is a program, timed under its
protocol, and the bound is the least over all protocols that the machine's links allow.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from emit.library.lowered import Lowered
from results.measuring.measure import grid, page, write
from synth.app.synthesis import synthesize
from synth.baselines import baseline_named
from synth.baselines.nccl.model import nccl_model
from synth.bounds.prove import Bound, refute
from synth.model.deadline import now
from synth.model.problem import LARGEST, SMALLEST, Problem, make_problem
from synth.model.text import format_size, format_time
from synth.search.result import SearchResult
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.costed import protocols_of, under, with_costs
from topologies.costs import Costs
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

MACHINES = ("dgx-a100", "dgx-h100", "dgx1")
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "scatter", "gather")
SIZES = tuple(1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length(), 2))
LARGE, MOST_LARGE, MOST_MIDDLE = 64 << 20, 1.10, 1.30  # bytes; time / bound to reach from there, and below
RINGED = ("allreduce", "allgather", "reducescatter")
WINDOW_S = 6.0  # for the bound of a protocol at a size that is missed
WITHIN = 2.0  # times NCCL's switch point, or its part
ACROSS_OF, NODES = "dgx-a100", (2, 4, 8)
ACROSS = tuple(1 << e for e in range(14, 29, 2))


@dataclass(frozen=True)
class Row:
    """One question: by size time / bound and the protocol; or why there is none."""

    spec: str
    collective: str
    gaps: tuple[float, ...] = ()
    protocols: tuple[str, ...] = ()
    ended: str = ""
    refused: str = ""
    missed: tuple[
        tuple[int, float, float, float], ...
    ] = ()  # size; file, fastest schedule / bound; bound / that of no size

    def cells(self) -> tuple[object, ...]:
        """Of the table."""
        shown = [f"{gap:.3f} {name}" for gap, name in zip(self.gaps, self.protocols, strict=True)]
        return self.spec, self.collective, *(shown or ["–"] * len(SIZES)), self.refused or self.ended


def answered(spec: str, collective: str, budget_s: float, workers: Workers) -> Row:
    """One question with costs on; where it is far from the bound, that is looked for at this very size once more."""
    try:
        found = synthesize(collective, spec, costs="machine", budget=budget_s, target="auto", workers=workers).found
    except InputError as error:
        return Row(spec, collective, refused=str(error))
    gaps, names, missed = [], [], []
    for size in SIZES:
        served = found.fastest(size)
        made, time_us, bound_us = served.contender.execution, served.time_us(size), found.bound.at(size)[0]
        if time_us > bound_us * allowed(size):
            better_us = max(bound_us, refuted(found.problem, found.bound, size, time_us, workers))
            if time_us > better_us * allowed(size):
                schedule_us = fastest_schedule_us(found, size)
                missed.append((size, time_us / better_us, schedule_us / better_us, better_us / bound_us))
            bound_us = better_us
        gaps.append(max(1.0, time_us / bound_us))
        names.append(
            made.program.protocol if isinstance(made, Lowered) else f"schedule, {served.contender.refused[:60]}"
        )
    return Row(spec, collective, tuple(gaps), tuple(names), found.ended, missed=tuple(missed))


def fastest_schedule_us(found: SearchResult, size: int) -> float:
    """Of all schedules that were found, whether they became programs or not, in µs."""
    contenders = [*(served.contender for served in found.ranges), *found.others, *found.refused]
    return min(one.algorithm.time_us(size) for one in contenders)


def allowed(size: int) -> float:
    """What time / bound is to be at most."""
    return MOST_LARGE if size >= LARGE else MOST_MIDDLE


def refuted(problem: Problem, bound: Bound, size: int, reached_us: float, workers: Workers) -> float:
    """The bound at one size by windows of time too, the least over all protocols, in µs."""
    until = now() + WINDOW_S * max(1, len(problem.protocols))
    for better in refute(problem, bound, size, reached_us, workers, until):
        bound = better
    return bound.at(size)[0]


def switch_points(times_us: Callable[[float], dict[str, float]]) -> Iterator[tuple[str, str, float]]:
    """(protocol before, after, bytes) wherever another takes the least time, to a hundredth."""
    grid_bytes = [SMALLEST * 2 ** (step / 64) for step in range(64 * 20 + 1)]
    before = ""
    for size in grid_bytes:
        times = times_us(size)
        best = min(times, key=times.__getitem__)
        if before and best != before:
            yield before, best, size
        before = best


def ring_points(collective: str) -> list[tuple[object, ...]]:
    """Where the ring changes its protocol on 8 A100: in our model, and where NCCL's own cost model does."""
    topology = with_costs(load("dgx-a100"))
    rings = {name: ring_of(under(topology, name), collective) for name in protocols_of(topology)}
    nccl = nccl_model(load("dgx-a100"), range(8))

    def theirs(size: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for one in nccl.candidates(collective, size):
            if one.algorithm == "ring":
                found[one.protocol] = one.time_us
        return found

    own = {(a, b): size for a, b, size in switch_points(lambda s: {n: one.time_us(s) for n, one in rings.items()})}
    their = {(a, b): size for a, b, size in switch_points(theirs)}
    rows = []
    for pair in sorted({*own, *their}):
        here, there = own.get(pair), their.get(pair)
        ratio = here / there if here and there else None
        said = "–" if ratio is None else f"{ratio:.2f} ×"
        shown = [format_size(int(size)) if size else "never" for size in (here, there)]
        rows.append((collective, " → ".join(pair), *shown, said, ratio is not None and 1 / WITHIN <= ratio <= WITHIN))
    return rows


def ring_of(topology: Topology, collective: str) -> Algorithm:
    """The ring of a library."""
    return baseline_named(make_problem(topology, collective), "ring", LARGEST)[0]


def own_points(row: Row) -> str:
    """Which protocols our files have, by size."""
    changes = [(SIZES[0], row.protocols[0])] if row.protocols else []
    for size, before, name in zip(SIZES[1:], row.protocols, row.protocols[1:], strict=False):
        if name != before:
            changes.append((size, name))
    return ", ".join(f"{name} from {format_size(size)}" for size, name in changes)


def across(nodes: int) -> Iterator[tuple[object, ...]]:
    """Direct and two-step all-to-all between nodes, with the costs that are stated and without gaps."""
    topology = with_costs(load(f"{ACROSS_OF}:{nodes}"))
    assert topology.costs is not None
    without = {name: replace(one, gap_us={}) for name, one in topology.costs.protocols.items()}
    plain = with_costs(topology, Costs(without, "without gaps"))
    times = {
        (label, name): fastest_of(on, name)
        for label, on in (("gaps", topology), ("none", plain))
        for name in ("direct", "two-level")
    }
    for size in ACROSS:
        direct, two, direct_free, two_free = (
            times[key](size)
            for key in (("gaps", "direct"), ("gaps", "two-level"), ("none", "direct"), ("none", "two-level"))
        )
        yield (
            f"{nodes} × 8", format_size(size), format_time(direct), format_time(two), f"{direct / two:.2f} ×",
            f"{direct_free / two_free:.2f} ×",
        )  # fmt: skip


def fastest_of(topology: Topology, name: str) -> Callable[[float], float]:
    """The least time over protocols of a library's algorithm."""
    made = [
        algorithm
        for protocol in protocols_of(topology)
        for one in ((name, f"{name} in turns") if name == "direct" else (name,))
        for algorithm in baseline_named(make_problem(under(topology, protocol), "alltoall"), one, 1 << 20)
    ]
    return lambda size: min(one.time_us(size) for one in made)


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds a search")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th question only")
    parser.add_argument("--only", nargs="+", metavar="TOPOLOGY")
    given = parser.parse_args(arguments)
    asked = [(m, c) for m in MACHINES for c in COLLECTIVES if not given.only or m in given.only][:: given.every]
    rows = []
    with Workers() as workers, suppress(KeyboardInterrupt):  # what is there is written
        for spec, collective in asked:
            rows.append(answered(spec, collective, given.budget, workers))
            print(rows[-1], flush=True)
    points = [row for collective in RINGED for row in ring_points(collective)]
    trips = [row for nodes in NODES for row in across(nodes)]
    write(__file__, page(__file__, "What an executor costs", _parts(rows, points, trips, given.budget)))


def _parts(
    rows: Sequence[Row], points: Sequence[tuple[object, ...]], trips: Sequence[tuple[object, ...]], budget_s: float
) -> Iterator[str]:
    whole = len(MACHINES) * len(COLLECTIVES)
    if len(rows) < whole:
        yield f"A sample: {len(rows)} of {whole} questions."
    titles = ["network", "collective", *(format_size(size) for size in SIZES), "ended"]
    held = [(size, gap) for row in rows for size, gap in zip(SIZES, row.gaps, strict=False)]
    for what, most, gaps in (
        (f"from {format_size(LARGE)}", MOST_LARGE, [gap for size, gap in held if size >= LARGE]),
        (f"below {format_size(LARGE)}", MOST_MIDDLE, [gap for size, gap in held if size < LARGE]),
    ):
        good = sum(gap <= most for gap in gaps)
        yield f"Time / bound {what}: {good} of {len(gaps)} at most {most:.2f}, the worst {max(gaps, default=1.0):.3f}."
    missed = [
        (
            row.spec, row.collective, format_size(size), f"{file:.3f}", f"{schedule:.3f}", f"{raised:.3f}",
            "program" if schedule <= allowed(size) else "schedule or bound",
        )
        for row in rows
        for size, file, schedule, raised in row.missed
    ]  # fmt: skip
    if missed:
        yield (
            f"Where it is not reached, in {budget_s:g} s a question on a machine that others used too. The bound was"
            " then looked for at this very size by windows of time, which raised it by the part in the last column but"
            " one. At fault is the program where the fastest schedule that was found is near enough, without an"
            " executor's threadblocks and slots."
        )
        heads = ("network", "collective", "size", "file / bound", "schedule / bound", "raised by", "at fault")
        yield grid(heads, missed)
    yield f"Time of our file / bound, both with the machine's costs, by message size; {budget_s:g} s a question."
    yield grid(titles, [row.cells() for row in rows])
    yield "Which protocol serves which sizes: " + "; ".join(
        f"{row.spec} {row.collective}: {own_points(row)}" for row in rows if row.protocols
    )
    yield (
        "Where a ring on 8 A100 changes its protocol, in our model and in NCCL's own cost model; to reach: within a"
        f" factor of {WITHIN:g}."
    )
    yield grid(("collective", "change", "ours", "NCCL's", "ours / NCCL's", "reached"), points)
    yield (
        f"All-to-all between nodes of {ACROSS_OF}, a library's direct and two-step algorithms, each by its fastest"
        " protocol:"
        " direct sends a NIC as many messages as there are GPUs elsewhere, in two steps one for each other node. The"
        " last column is the same without gaps between messages: what is left of the advantage without its reason."
    )
    yield grid(("GPUs", "message", "direct", "two-step", "direct / two-step", "without gaps"), trips)


if __name__ == "__main__":
    main()
