"""Large problems, whole commands: all-to-all beside PCCL, allgather beside TACOS, two-level switch networks.

    python -m results.scripts.scale [--networks FOLDER]

makes scale.md. With --networks it only writes the two-level networks' files into a folder.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.measuring.measure import grid, page, seconds_words, write
from results.measuring.scale_runs import (
    Answer,
    Processes,
    faults,
    gap_words,
    many_words,
    ratio_words,
    seconds_of,
)

NODES, EACH = 32, 8
INSIDE_GBS, BETWEEN_GBS = 400, 50
GBS = 50.0  # of a family's link, where the question does not say otherwise
PAIR = ("--chunks", 1, "--size", "1G")
# what brings in most of the compiled code, in questions that take no time themselves
FIRST = (
    ("alltoall", "--topo", "mesh:6x6x6", *PAIR),
    ("allgather", "--topo", "mesh:8x8", *PAIR),
    ("allreduce", "--topo", "torus:16x16x16", "--size", "1G"),
)


@dataclass(frozen=True)
class Row:
    """A question, the goals for it, and what others published of it.

    Attributes:
        topo: as --topo takes it; for the two-level networks the name of a file that this script writes.
        options: further arguments.
        goal_s, goal_gap: wall seconds and time / bound to reach; None where there is no goal.
        published: time as published, such as `2.01 h`; empty where there is none.
        hops: a published schedule's time in units of one chunk on one link; None where there is none.
    """

    collective: str
    topo: str
    options: tuple[object, ...] = PAIR
    goal_s: float | None = None
    goal_gap: float | None = None
    published: str = ""
    hops: int | None = None


# PCCL's figures for 512 and 1000 devices name no network; 1.83 min is for a mesh 8x8, 128 MiB in chunks of 128 KiB
ALLTOALL = (
    Row("alltoall", "mesh:8x8x8", PAIR, 5, 1.01, "11.68 min"),
    Row("alltoall", "torus:8x8x8", PAIR, 5, 1.01, "11.68 min"),
    Row("alltoall", "mesh:10x10x10", PAIR, 25, 1.01, "2.01 h"),
    Row("alltoall", "mesh:8x8", ("--chunks", 16, "--size", "128M"), 2, 1.01, "1.83 min"),
    Row("alltoall", "mesh:24x24", PAIR, 10, 1.01),
    Row("alltoall", "torus:16x16x16", PAIR, 60, 1.01),
)


def _tacos(topo: str, published: str, hops: int, goal_s: float | None = None, chunks: int = 1) -> Row:
    return Row("allgather", f"{topo},alpha=0", ("--chunks", chunks, "--size", "1G"), goal_s, None, published, hops)


# TACOS 1.3 on a machine of the same kind, one core; hops are its schedules' lengths
ALLGATHER = (
    _tacos("torus:32x32", "108 s", 258, 3),
    _tacos("mesh:32x32", "151 s", 512, 3),
    _tacos("torus:16x16", "18.1 s", 256, 1, chunks=4),
    _tacos("mesh:16x16", "27.5 s", 510, 1, chunks=4),
    _tacos("mesh:8x8x8", "8.9 s", 171),
    _tacos("torus:8x8x8", "6.9 s", 86),
    _tacos("torus:16x8x8", "80 s", 171),
    _tacos("mesh:23x23", "14.0 s", 264),
    _tacos("torus:23x23", "12.1 s", 134),
    Row("allgather", "torus:16x16x16", PAIR, 30, 1.01),
    Row("allgather", "torus:200x200", PAIR, 60, 1.01, "2.52 h"),
)
REDUCING = (
    Row("reducescatter", "torus:32x32"),
    Row("reducescatter", "mesh:32x32"),
    Row("reducescatter", "torus:16x16x16"),
    Row("allreduce", "mesh:16x16", ("--size", "1G")),
    Row("allreduce", "torus:32x32", ("--size", "1G")),
    Row("allreduce", "torus:16x16x16", ("--size", "1G")),
)
TWO_LEVEL = tuple(
    Row(collective, f"two-level-{reading}.toml", ("--size", "1G"), None, 1.05)
    for reading in ("nic", "uplink")
    for collective in ("allgather", "allreduce", "alltoall")
)


def two_level(reading: str, nodes: int = NODES, each: int = EACH) -> str:
    """A topology file: nodes of some ranks on a switch, and a core switch between the nodes.

    Args:
        reading: nic: every rank has a link of its own to the core; uplink: every node's switch has one.
    """
    switches = [*(f"node{i}" for i in range(nodes)), "core"]
    inside = " ".join(f"{i * each}-{i * each + each - 1}>node{i}" for i in range(nodes))
    between = " ".join(f"node{i}>core" for i in range(nodes)) if reading == "uplink" else f"0-{nodes * each - 1}>core"
    links = [(inside, INSIDE_GBS, 0.35), (between, BETWEEN_GBS, 1.0)]
    tables = [
        f'[[links]]\npairs = "{pairs}"\nboth = true\ngbs = {gbs}\nalpha_us = {alpha}\nassumed = true\n'
        for pairs, gbs, alpha in links
    ]
    names = ", ".join(f'"{name}"' for name in switches)
    whose = "a rank" if reading == "nic" else "a node"
    words = f"{nodes} nodes of {each}, {INSIDE_GBS} GB/s a rank inside, {BETWEEN_GBS} GB/s {whose} between"
    members = ", ".join(f'"{i * each}-{i * each + each - 1}"' for i in range(nodes))
    head = [
        f'name = "two-level-{reading}"',
        f"ranks = {nodes * each}",
        f"switches = [{names}]",
        f'summary = "{words}"',
        f"nodes = [{members}]\n",
    ]
    return "\n".join([*head, *tables])


def write_networks(folder: Path) -> None:
    """The files that the rows of `TWO_LEVEL` name."""
    folder.mkdir(parents=True, exist_ok=True)
    for reading in ("nic", "uplink"):
        (folder / f"two-level-{reading}.toml").write_text(two_level(reading), encoding="utf-8")


def measured(rows: Sequence[Row], processes: Processes, folder: Path) -> list[tuple[Row, Answer]]:
    """Every row's answer; files of networks lie in the folder."""
    done = []
    for row in rows:
        topo = folder / row.topo if row.topo.endswith(".toml") else row.topo
        name = " ".join(map(str, (row.collective, "--topo", row.topo, *row.options)))
        done.append((row, processes.asked(row.collective, "--topo", topo, *row.options, name=name)))
    return done


def hops(answer: Answer, gbs: float = GBS) -> tuple[float, float]:
    """Time and bound of an allgather in units of one chunk on one link."""
    row, said = answer.row, answer.said
    if not row or said is None:
        return float("inf"), float("inf")
    chunk_us = row["shown_bytes"] / (len(said["group"]) * row["chunks"]) / (gbs * 1e3)
    return row["time_us"] / chunk_us, row["bound_us"] / chunk_us


def _beside(row: Row, answer: Answer) -> list[str]:
    """Published time and theirs / ours."""
    if not row.published:
        return ["–", "–"]
    return [row.published, f"{ratio_words(seconds_of(row.published) / answer.seconds)} ×"]


def _whole(answer: Answer) -> list[str]:
    """What all tables begin with."""
    if answer.wrong:
        return [f"`{answer.question}`", "–", f"**failed** after {seconds_words(answer.seconds)}"]
    sends = many_words(answer.row["sends"])
    return [f"`{answer.question}`", sends, seconds_words(answer.seconds)]


def table(done: Iterable[tuple[Row, Answer]], who: str = "", library: bool = False) -> str:
    """One line a question.

    Args:
        who: the system with whose published times there are two columns; none when empty.
        library: whether there is a column with the best of a vendor library's algorithms.
    """
    titles = ["question", "sends", "s", "goal s", "peak MB", "time / bound", "goal", "the bound is proved by"]
    titles += [f"{who}, published", f"{who} / ours"] if who else []
    titles += ["best library algorithm / ours"] if library else []
    lines = []
    for row, answer in done:
        goals = ["–" if goal is None else f"{goal:g}" for goal in (row.goal_s, row.goal_gap)]
        proof = answer.row.get("proof", "–").removeprefix("optimal: ")
        line = [
            *_whole(answer),
            goals[0],
            f"{answer.peak_mb:.0f}",
            gap_words(answer.gap),
            goals[1],
            proof,
        ]
        versus = answer.row.get("vs_baseline")
        line += _beside(row, answer) if who else []
        line += ["–" if versus is None else f"{versus:.2f} ×"] if library else []
        lines.append([*line, answer.checked or "–"])
    return grid([*titles, "`synth prove`"], lines)


def hops_table(done: Iterable[tuple[Row, Answer]]) -> str:
    """Allgather with α = 0 beside TACOS, times in hops."""
    titles = ["question", "sends", "s", "goal s", "peak MB", "hops", "bound", "TACOS, hops", "TACOS, s"]
    lines = []
    for row, answer in done:
        ours, bound = hops(answer)
        goal = "–" if row.goal_s is None else f"{row.goal_s:g}"
        there = [f"{ours:.2f}", f"{bound:.2f}", str(row.hops)]
        lines.append(
            [
                *_whole(answer),
                goal,
                f"{answer.peak_mb:.0f}",
                *there,
                *_beside(row, answer),
                answer.checked or "–",
            ]
        )
    return grid([*titles, "TACOS / ours", "`synth prove`"], lines)


def missed(done: Iterable[tuple[Row, Answer]]) -> list[str]:
    """One line a goal that is not reached."""
    found = []
    for row, answer in done:
        if answer.wrong:
            found.append(f"- `{answer.question}`: no right answer")
            continue
        if row.goal_s is not None and answer.seconds > row.goal_s:
            found.append(f"- `{answer.question}`: {seconds_words(answer.seconds)} s, goal {row.goal_s:g} s")
        if row.goal_gap is not None and answer.gap > row.goal_gap:
            found.append(f"- `{answer.question}`: time / bound {answer.gap:.4f}, goal {row.goal_gap:g}")
        if row.hops is not None and hops(answer)[0] > row.hops * (1 + 1e-9):
            found.append(f"- `{answer.question}`: {hops(answer)[0]:.2f} hops, goal {row.hops}")
    return found


def first_table(firsts: Sequence[Answer]) -> str:
    """The questions that were asked first, with and without compiling."""
    lines = [
        [f"`{a.question}`", seconds_words(a.first_s) if a.first_s else "–", seconds_words(a.seconds)] for a in firsts
    ]
    return grid(["question, in this order", "first call, s", "after that, s"], lines)


def text(
    firsts: Sequence[Answer],
    alltoall: Sequence[tuple[Row, Answer]],
    allgather: Sequence[tuple[Row, Answer]],
    reducing: Sequence[tuple[Row, Answer]],
    switches: Sequence[tuple[Row, Answer]],
) -> str:
    """The whole page."""
    done = [*alltoall, *allgather, *reducing, *switches]
    counted = [pair for pair in allgather if pair[0].hops is not None]
    others = [pair for pair in allgather if pair[0].hops is None]
    late, wrong = missed(done), faults([*firsts, *(answer for _, answer in done)])
    goals = sum((row.goal_s is not None) + (row.goal_gap is not None) + (row.hops is not None) for row, _ in done)
    parts = [
        "Whole commands in fresh processes, `synth QUESTION --proof --json --out DIR`, from start to exit with all"
        " files written; compiled code found on disk; median of 3, one run where it takes over 5 s. Peak memory is that"
        " of the largest process. Links have 50 GB/s each way and α 0.7 µs where the question does not say otherwise."
        " time / bound is the replayed schedule's time over a proved lower limit for any schedule; `synth prove` works"
        " both out again from the files (right, and the seconds it takes). Others' figures are as published, and ratios"
        " of times on different machines say no more than their size.",
        f"Goals reached: {goals - len(late)} of {goals}." + ("\n\n" + "\n".join(late) if late else ""),
        *(["Failed:\n\n" + "\n".join(wrong)] if wrong else []),
        "## All-to-all, one chunk a pair",
        "PCCL: published all-to-all synthesis times (June 2026) for 512 devices, for 1000 devices, and for an 8×8 mesh"
        " with 128 MiB a rank in chunks of 128 KiB; no bound is reported with them. `torus:16x16x16` is answered"
        " compressed: the torus's translations are a symmetry, one rank's sends are stored for all 4096, and the count"
        " is of all.",
        table(alltoall, "PCCL"),
        "## Allgather beside TACOS",
        "TACOS 1.3 (C++, one core) timed on a machine of the same kind. Hops: the schedule's time in units of one chunk"
        " on one link, α = 0; no schedule has fewer than the bound, and none in lock step fewer than the bound rounded"
        " up.",
        hops_table(counted),
        "TACOS: 40 000 devices as published (MICRO'24), the figure names no network; ours is compressed.",
        table(others, "TACOS"),
        "## Reduce-scatter and allreduce on the same networks",
        table(reducing),
        f"## Two-level switch networks, {NODES} nodes of {EACH}",
        f"{INSIDE_GBS} GB/s a rank inside a node; between nodes {BETWEEN_GBS} GB/s for every rank into a core switch"
        f" (`nic`), or {BETWEEN_GBS} GB/s for every node (`uplink`). α 0.35 µs a hop inside and 1 µs a hop between,"
        " assumed. `python -m results.scripts.scale --networks DIR` writes the files. A library's algorithms: rings,"
        " recursive doubling, two levels, direct; the best of them in the same model of time. (PCCL reports 1.33 × the"
        " bandwidth on a heterogeneous two-level switch network.)",
        table(switches, library=True),
        "## Compiling",
        "Loops are compiled when they are first called and kept on disk. Each question once with nothing there but what"
        " those before it left, then again.",
        first_table(firsts),
    ]
    return page(__file__, "Large problems", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Large problems, whole commands")
    parser.add_argument("--networks", type=Path, metavar="FOLDER", help="only write the two-level networks' files")
    folder: Path | None = parser.parse_args().networks
    if folder is not None:
        write_networks(folder)
        return
    with Processes() as processes, tempfile.TemporaryDirectory() as made:
        write_networks(Path(made))
        firsts = [processes.asked(*question, times=1) for question in FIRST]
        sections = [measured(rows, processes, Path(made)) for rows in (ALLTOALL, ALLGATHER, REDUCING, TWO_LEVEL)]
    write(__file__, text(firsts, *sections))
    if faults([*firsts, *(answer for section in sections for _, answer in section)]):
        raise SystemExit("scale: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
