"""Beside published algorithm bandwidths: allreduce on small meshes, allgather and all-to-all on two chassis.

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

BUDGET = "20s"  # of the search; the whole command is to end in `GOAL_S`
GOAL_S = 30.0
MB, GB = 10**6, 10**9
ABOVE = 1.005  # published / proved limit from which on it is more than rounding


@dataclass(frozen=True)
class Theirs:
    """A system's published figure: GB/s, and seconds of its solver where they are published."""

    system: str
    gbs: float
    seconds: float | None = None


@dataclass(frozen=True)
class Row:
    """A question at one size in bytes, and what others published of it."""

    collective: str
    topo: str
    size: int
    theirs: tuple[Theirs, ...]


def _mesh(topo: str, size: int, taccl: float, teccl: float, pipe: float, seconds: float | None = None) -> Row:
    theirs = (Theirs("Pipe-Sol", pipe, seconds), Theirs("TE-CCL", teccl), Theirs("TACCL", taccl))
    return Row("allreduce", f"{topo},bw=50,alpha=0.2", size, theirs)


# PipeComm's tables: links of 50 GB/s and 0.2 µs; Pipe-Sol is its own. 1 GB and 1 MB are taken as 10⁹ and 10⁶ bytes
MESHES = (
    _mesh("mesh:4x4", GB, 34.6, 50.4, 73.4, 0.30),
    _mesh("mesh:4x4", MB, 26.3, 43.0, 41.1),
    _mesh("mesh:6x6", GB, 29.0, 44.4, 73.0, 3.4),
    _mesh("mesh:6x6", MB, 21.9, 36.5, 35.8),
)


def _chassis(collective: str, topo: str, size: int, *theirs: Theirs) -> Row:
    return Row(collective, topo, size, theirs)


def _te(gbs: float, seconds: float | None = None) -> Theirs:
    return Theirs("TE-CCL", gbs, seconds)


def _ta(gbs: float, seconds: float | None = None) -> Theirs:
    return Theirs("TACCL", gbs, seconds)


# TE-CCL's tables: two chassis, its own figures and those it gives for TACCL
CHASSIS = (
    _chassis("allgather", "ndv2:2", GB, _te(22.9, 7201), _ta(18.6, 7)),
    _chassis("allgather", "ndv2:2", MB, _te(20.5, 160), _ta(16.1, 63)),
    # from the times of TE-CCL's published schedules: 0.70 ms and 1.04 ms
    _chassis("allgather", "ndv2:2", 16 * MB, _te(22.9)),
    _chassis("allgather", "ndv2:4", 16 * MB, _te(15.4)),
    _chassis("alltoall", "ndv2:2", GB, _te(3.52, 337), _ta(3.12, 1215)),
    _chassis("alltoall", "ndv2:2", MB, _te(3.45, 189), _ta(2.79, 1214)),
    _chassis("allgather", "dgx2:2", GB, _te(129, 7204), _ta(107.9)),
    _chassis("allgather", "dgx2:2", MB, _te(93), _ta(31.9)),
    _chassis("alltoall", "dgx2:2", GB, _te(12.46, 1656), _ta(11.13)),
    _chassis("alltoall", "dgx2:2", MB, _te(11.80, 902), _ta(4.54)),
)


BETWEEN = ("1K", "16K", "256K", "4M", "64M")  # sizes of which nothing is published, beside those above


def between(sizes: Iterable[int]) -> list[Row]:
    """The questions of all published figures, at sizes of which none is published."""
    asked = dict.fromkeys((row.collective, row.topo) for row in (*MESHES, *CHASSIS))
    return [Row(collective, topo, size, ()) for collective, topo in asked for size in sizes]


def measured(rows: Sequence[Row], processes: Processes, budget: str = BUDGET) -> list[tuple[Row, Answer]]:
    """Every row's answer."""
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
    """Algorithm bandwidth, size / time, and the most that is possible, size / bound; GB/s, 0 without an answer."""
    if not answer.row:
        return 0.0, 0.0
    return row.size / (answer.row["time_us"] * 1e3), row.size / (answer.row["bound_us"] * 1e3)


def size_words(size: int) -> str:
    """`1 MB`, `1 GB`; `16 KiB` of a power of two."""
    if size % MB:
        return format_size(size)
    return f"{size // GB} GB" if size >= GB else f"{size // MB} MB"


def three(value: float) -> str:
    """Three digits: `3.13`, `73.4`, `129`."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(done: Iterable[tuple[Row, Answer]]) -> str:
    """One line a question, the systems beside each other."""
    done = list(done)
    systems = list(dict.fromkeys(theirs.system for row, _ in done for theirs in row.theirs))
    titles = ["collective", "topology", "size", "ours GB/s", "limit GB/s", "time / bound", "s"]
    for system in systems:
        titles += [f"{system} GB/s (s)", f"ours / {system}"]
    lines = []
    for row, answer in done:
        ours, limit = gbs_of(row, answer)
        known = {theirs.system: theirs for theirs in row.theirs}
        figures = [three(ours), three(limit)] if answer.row else ["**failed**", "–"]
        gap, took = gap_words(answer.gap), seconds_words(answer.seconds)
        line = [row.collective, row.topo, size_words(row.size), *figures, gap, took]
        for system in systems:
            theirs = known.get(system)
            if theirs is None:
                line += ["–", "–"]
                continue
            solver = "" if theirs.seconds is None else f" ({theirs.seconds:g})"
            mark = " †" if limit and theirs.gbs > limit * ABOVE else ""
            line += [f"{theirs.gbs:g}{solver}{mark}", f"{ratio_words(ours / theirs.gbs)} ×"]
        lines.append([*line, answer.checked or "–"])
    return grid([*titles, "`synth prove`"], lines)


def above(done: Iterable[tuple[Row, Answer]]) -> list[str]:
    """One line a published figure that no schedule in our model of the machine reaches."""
    found = []
    for row, answer in done:
        limit = gbs_of(row, answer)[1]
        for theirs in row.theirs:
            if limit and theirs.gbs > limit * ABOVE:
                found.append(
                    f"- † {row.collective} {row.topo} {size_words(row.size)}: {theirs.system} {theirs.gbs:g} GB/s is"
                    f" {theirs.gbs / limit:.2f} × the proved limit of {limit:.4g} GB/s ({answer.row['proof']})"
                )
    return found


def slower(done: Iterable[tuple[Row, Answer]]) -> list[str]:
    """One line a published figure above ours, though not above the limit; and a command over its goal."""
    found = []
    for row, answer in done:
        ours, limit = gbs_of(row, answer)
        if answer.seconds > GOAL_S:
            words = f"{row.collective} {row.topo} {size_words(row.size)}"
            found.append(f"- {words}: {seconds_words(answer.seconds)} s, goal {GOAL_S:g} s")
        found += [
            f"- {row.collective} {row.topo} {size_words(row.size)}: {theirs.system} {theirs.gbs:g} GB/s, ours"
            f" {three(ours)}"
            for theirs in row.theirs
            if ours < theirs.gbs <= limit * ABOVE
        ]
    return found


BESIDE = (
    "For these sizes no figure is published. No schedule has more than the limit, so that another's lead over ours is"
    " at most our time / bound."
)


def text(
    meshes: Sequence[tuple[Row, Answer]],
    chassis: Sequence[tuple[Row, Answer]],
    others: Sequence[tuple[Row, Answer]] = (),
    budget: str = BUDGET,
) -> str:
    """The page."""
    done = [*meshes, *chassis, *others]
    late, wrong = slower(done), faults(answer for _, answer in done)
    notes = above(chassis) + above(meshes)
    dagger = (
        "† A published figure above the proved limit for the machine as we model it counts something else, or another"
        " machine: the size may be that of another buffer, or the links faster than their names say.\n\n"
        + "\n".join(notes)
    )
    parts = [
        f"Whole commands in fresh processes, `synth COLLECTIVE --topo T --size BYTES --budget {budget} --target none`,"
        " once, compiled code found on disk. GB/s are size / time of the replayed schedule (as nccl-tests has it: the"
        " output of an allgather, a rank's buffer of an all-to-all or allreduce; MB and GB are powers of ten). The"
        " limit is size / bound: no schedule on this network has more. Others' figures are as published, in their own"
        " models and by their own solvers, whose seconds are in brackets where they are published.",
        "Ours is below a published figure, or later than its goal, at:\n\n" + "\n".join(late)
        if late
        else f"No published figure within the limit is above ours; no command took over {GOAL_S:g} s.",
        *(["Failed:\n\n" + "\n".join(wrong)] if wrong else []),
        "## Allreduce on meshes: PipeComm",
        "Links of 50 GB/s and 0.2 µs. Pipe-Sol is PipeComm's own; TE-CCL and TACCL as PipeComm measured them.",
        table(meshes),
        "## Two chassis: TE-CCL and TACCL",
        "2 × NDv2: DGX-1 meshes, NVLink pairs of 50 or 25 GB/s at 0.7 µs, one NIC of 12.5 GB/s a node at 1.3 µs."
        " 2 × DGX-2: 125 GB/s a GPU into the switch, 0.35 µs a hop, 8 NICs of 12.5 GB/s a node at 2.6 µs.",
        table(chassis),
        *([dagger] if notes else []),
        *(["## Sizes of which nothing is published", BESIDE, table(others)] if others else []),
    ]
    return page(__file__, "Beside published bandwidths", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Beside published bandwidths")
    parser.add_argument("--budget", default=BUDGET, help="of a search, as synth takes it")
    parser.add_argument("--every", type=int, default=1, help="of so many questions of a table only the first")
    parser.add_argument("--between", nargs="*", default=list(BETWEEN), help="sizes of which nothing is published")
    asked = parser.parse_args()
    budget: str = asked.budget
    tables = MESHES, CHASSIS, between(parse_size(size, "--between") for size in asked.between)
    with Processes() as processes:
        for collective in ("allreduce", "allgather", "alltoall"):  # brings in the compiled code
            processes.asked(collective, "--topo", "mesh:3x3", "--size", "1M", "--budget", "5s", times=1)
        meshes, chassis, others = (measured(rows[:: asked.every], processes, budget) for rows in tables)
    write(__file__, text(meshes, chassis, others, budget))
    if faults(answer for _, answer in [*meshes, *chassis, *others]):
        raise SystemExit("published: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
