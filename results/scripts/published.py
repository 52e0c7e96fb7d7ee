"""Compare our answers with published algorithm bandwidths: all-reduce on small meshes, and collectives on two chassis.

    python -m results.scripts.published [--budget 20s] [--every N] [--between BYTES …]

makes published.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.measuring.measure import grid, page, seconds_words, write
from results.measuring.scale_runs import Answer, Processes, faults, gap_words, ratio_words
from synth.model.sizes import parse_size
from synth.model.text import format_size

BUDGET = "20s"  # Budget of the search. The goal of the whole command is GOAL_S.
GOAL_S = 30.0
MB, GB = 10**6, 10**9
ABOVE = 1.005  # A larger published / proved limit is more than rounding.


@dataclass(frozen=True)
class Theirs:
    """A published figure of a system.

    Attributes:
        system: Name of the system.
        gbs: Algorithm bandwidth in GB/s.
        seconds: Seconds of its solver; None if they are not published.
    """

    system: str
    gbs: float
    seconds: float | None = None


@dataclass(frozen=True)
class Row:
    """A question at one size.

    Attributes:
        collective: Name of the collective.
        topo: Name of the topology.
        size: Message size in bytes.
        theirs: Published figures.
    """

    collective: str
    topo: str
    size: int
    theirs: tuple[Theirs, ...]


def _mesh(topo: str, size: int, taccl: float, teccl: float, pipe: float, seconds: float | None = None) -> Row:
    """Return a question of PipeComm's tables."""
    theirs = (Theirs("Pipe-Sol", pipe, seconds), Theirs("TE-CCL", teccl), Theirs("TACCL", taccl))
    return Row("allreduce", f"{topo},bw=50,alpha=0.2", size, theirs)


# PipeComm's tables: links of 50 GB/s and 0.2 µs; Pipe-Sol is its own. We take 1 GB and 1 MB as 10⁹ and 10⁶ bytes.
MESHES = (
    _mesh("mesh:4x4", GB, 34.6, 50.4, 73.4, 0.30),
    _mesh("mesh:4x4", MB, 26.3, 43.0, 41.1),
    _mesh("mesh:6x6", GB, 29.0, 44.4, 73.0, 3.4),
    _mesh("mesh:6x6", MB, 21.9, 36.5, 35.8),
)


def _chassis(collective: str, topo: str, size: int, *theirs: Theirs) -> Row:
    """Return a question of TE-CCL's tables."""
    return Row(collective, topo, size, theirs)


def _te(gbs: float, seconds: float | None = None) -> Theirs:
    """Return a figure of TE-CCL."""
    return Theirs("TE-CCL", gbs, seconds)


def _ta(gbs: float, seconds: float | None = None) -> Theirs:
    """Return a figure of TACCL."""
    return Theirs("TACCL", gbs, seconds)


# TE-CCL's tables: two chassis, its own figures and those that it states for TACCL.
CHASSIS = (
    _chassis("allgather", "ndv2:2", GB, _te(22.9, 7201), _ta(18.6, 7)),
    _chassis("allgather", "ndv2:2", MB, _te(20.5, 160), _ta(16.1, 63)),
    # These follow from the times of TE-CCL's published schedules: 0.70 ms and 1.04 ms.
    _chassis("allgather", "ndv2:2", 16 * MB, _te(22.9)),
    _chassis("allgather", "ndv2:4", 16 * MB, _te(15.4)),
    _chassis("alltoall", "ndv2:2", GB, _te(3.52, 337), _ta(3.12, 1215)),
    _chassis("alltoall", "ndv2:2", MB, _te(3.45, 189), _ta(2.79, 1214)),
    _chassis("allgather", "dgx2:2", GB, _te(129, 7204), _ta(107.9)),
    _chassis("allgather", "dgx2:2", MB, _te(93), _ta(31.9)),
    _chassis("alltoall", "dgx2:2", GB, _te(12.46, 1656), _ta(11.13)),
    _chassis("alltoall", "dgx2:2", MB, _te(11.80, 902), _ta(4.54)),
)


BETWEEN = ("1K", "16K", "256K", "4M", "64M")  # Further sizes, for which nothing is published.


def between(sizes: Iterable[int]) -> list[Row]:
    """Return the questions of all published figures at further sizes, for which nothing is published."""
    questions = dict.fromkeys((row.collective, row.topo) for row in (*MESHES, *CHASSIS))
    return [Row(collective, topo, size, ()) for collective, topo in questions for size in sizes]


def measured(rows: Sequence[Row], processes: Processes, budget: str = BUDGET) -> list[tuple[Row, Answer]]:
    """Return every row with its answer."""
    return [
        (
            row,
            processes.asked(
                row.collective, "--topo", row.topo, "--size", row.size, "--budget", budget, "--target", "none", times=1
            ),
        )
        for row in rows
    ]


def gbs_of(row: Row, answer: Answer) -> tuple[float, float]:
    """Return the algorithm bandwidth, size / time, and its limit, size / bound, in GB/s; 0 without an answer."""
    if not answer.row:
        return 0.0, 0.0
    return row.size / (answer.row["time_us"] * 1e3), row.size / (answer.row["bound_us"] * 1e3)


def size_words(size: int) -> str:
    """Format a size: `1 MB`, `1 GB`, or `16 KiB` for a power of two."""
    if size % MB:
        return format_size(size)
    return f"{size // GB} GB" if size >= GB else f"{size // MB} MB"


def three(value: float) -> str:
    """Format a number with three digits: `3.13`, `73.4`, `129`."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(answered_rows: Iterable[tuple[Row, Answer]]) -> str:
    """Return the table with one line for each question and columns for each system."""
    answered_rows = list(answered_rows)
    systems = list(dict.fromkeys(theirs.system for row, _ in answered_rows for theirs in row.theirs))
    titles = ["collective", "topology", "size", "ours GB/s", "limit GB/s", "time / bound", "command s"]
    for system in systems:
        titles += [f"{system} GB/s (s)", f"ours / {system}"]
    lines = []
    for row, answer in answered_rows:
        our_gbs, limit_gbs = gbs_of(row, answer)
        figure_of_system = {theirs.system: theirs for theirs in row.theirs}
        figures = [three(our_gbs), three(limit_gbs)] if answer.row else ["**failed**", "–"]
        gap, seconds = gap_words(answer.gap), seconds_words(answer.seconds)
        line = [row.collective, row.topo, size_words(row.size), *figures, gap, seconds]
        for system in systems:
            theirs = figure_of_system.get(system)
            if theirs is None:
                line += ["–", "–"]
                continue
            solver = "" if theirs.seconds is None else f" ({theirs.seconds:g})"
            mark = " †" if limit_gbs and theirs.gbs > limit_gbs * ABOVE else ""
            line += [f"{theirs.gbs:g}{solver}{mark}", f"{ratio_words(our_gbs / theirs.gbs)} ×"]
        lines.append([*line, answer.checked or "–"])
    return grid([*titles, "`synth prove`"], lines)


def above(answered_rows: Iterable[tuple[Row, Answer]]) -> list[str]:
    """Return one line for each published figure that no schedule in our model of the machine reaches."""
    lines = []
    for row, answer in answered_rows:
        limit = gbs_of(row, answer)[1]
        for theirs in row.theirs:
            if limit and theirs.gbs > limit * ABOVE:
                lines.append(
                    f"- † {row.collective} {row.topo} {size_words(row.size)}: {theirs.system} {theirs.gbs:g} GB/s is"
                    f" {theirs.gbs / limit:.2f} × the proved limit of {limit:.4g} GB/s ({answer.row['proof']})"
                )
    return lines


def slower(answered_rows: Iterable[tuple[Row, Answer]]) -> list[str]:
    """Return one line for each published figure between ours and the limit, and for each command that is too slow."""
    lines = []
    for row, answer in answered_rows:
        ours, limit = gbs_of(row, answer)
        if answer.seconds > GOAL_S:
            words = f"{row.collective} {row.topo} {size_words(row.size)}"
            lines.append(f"- {words}: {seconds_words(answer.seconds)} s, goal {GOAL_S:g} s")
        lines += [
            f"- {row.collective} {row.topo} {size_words(row.size)}: {theirs.system} {theirs.gbs:g} GB/s, ours"
            f" {three(ours)}"
            for theirs in row.theirs
            if ours < theirs.gbs <= limit * ABOVE
        ]
    return lines


LIMIT_NOTE = (
    "For these sizes no figure is published. No schedule exceeds the limit, so another system is faster than ours by"
    " at most our time / bound."
)


def text(
    meshes: Sequence[tuple[Row, Answer]],
    chassis: Sequence[tuple[Row, Answer]],
    between_rows: Sequence[tuple[Row, Answer]] = (),
    budget: str = BUDGET,
) -> str:
    """Return the page."""
    answered_rows = [*meshes, *chassis, *between_rows]
    late, failures = slower(answered_rows), faults(answer for _, answer in answered_rows)
    notes = above(chassis) + above(meshes)
    dagger = (
        "† A published figure above the proved limit of our model must count other bytes, or be of another"
        " machine: the size may be that of another buffer, or the links faster than stated.\n\n" + "\n".join(notes)
    )
    parts = [
        f"Times are of whole commands in fresh processes, `synth COLLECTIVE --topo T --size BYTES --budget {budget}"
        " --target none`, run once with their compiled code on disk. GB/s are size / time of the replayed schedule"
        " (as nccl-tests defines it: the output of an allgather, a rank's buffer of an all-to-all or allreduce; MB"
        " and GB are powers of ten). The limit is size / bound: no schedule on this network exceeds it. Other"
        " systems' figures are as published, in their own models and by their own solvers; seconds of these solvers"
        " are in brackets if they are published.",
        "Ours is below a published figure, or the command misses its goal, at:\n\n" + "\n".join(late)
        if late
        else f"No published figure within the limit is above ours; no command took over {GOAL_S:g} s.",
        *(["Failed:\n\n" + "\n".join(failures)] if failures else []),
        "## Allreduce on meshes: PipeComm",
        "Links have 50 GB/s and 0.2 µs. Pipe-Sol is PipeComm's own system; PipeComm measured TE-CCL and TACCL.",
        table(meshes),
        "## Two chassis: TE-CCL and TACCL",
        "2 × NDv2: DGX-1 meshes with pairs of NVLinks of 50 or 25 GB/s at 0.7 µs, and one NIC of 12.5 GB/s a node at"
        " 1.3 µs. 2 × DGX-2: 125 GB/s from a GPU into the switch, 0.35 µs a hop, and 8 NICs of 12.5 GB/s a node at"
        " 2.6 µs.",
        table(chassis),
        *([dagger] if notes else []),
        *(["## Sizes without published figures", LIMIT_NOTE, table(between_rows)] if between_rows else []),
    ]
    return page(__file__, "Our answers and published bandwidths", parts)


def main() -> None:
    """Measure all questions, and write the table; exit with an error if an answer is wrong."""
    parser = argparse.ArgumentParser(description="Compare answers with published bandwidths")
    parser.add_argument("--budget", default=BUDGET, help="budget of a search, as for synth")
    parser.add_argument("--every", type=int, default=1, help="each N-th question of a table only")
    parser.add_argument(
        "--between", nargs="*", default=list(BETWEEN), help="further sizes, for which nothing is published"
    )
    options = parser.parse_args()
    budget: str = options.budget
    tables = MESHES, CHASSIS, between(parse_size(size, "--between") for size in options.between)
    with Processes() as processes:
        for collective in ("allreduce", "allgather", "alltoall"):  # The first commands compile the code.
            processes.asked(collective, "--topo", "mesh:3x3", "--size", "1M", "--budget", "5s", times=1)
        meshes, chassis, between_rows = (measured(rows[:: options.every], processes, budget) for rows in tables)
    write(__file__, text(meshes, chassis, between_rows, budget))
    if faults(answer for _, answer in [*meshes, *chassis, *between_rows]):
        raise SystemExit("published: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
