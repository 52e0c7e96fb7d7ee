"""Measure large problems as whole commands: all-to-all and PCCL, allgather and TACOS, two-level switch networks.

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
GBS = 50.0  # GB/s of a link, if the question does not state another rate.
PAIR = ("--chunks", 1, "--size", "1G")
# These questions compile most of the code; they take almost no time themselves.
FIRST = (
    ("alltoall", "--topo", "mesh:6x6x6", *PAIR),
    ("allgather", "--topo", "mesh:8x8", *PAIR),
    ("allreduce", "--topo", "torus:16x16x16", "--size", "1G"),
)


@dataclass(frozen=True)
class Row:
    """A question, its goals, and what others published.

    Attributes:
        collective: Name of the collective.
        topo: Topology as for --topo; for the two-level networks the name of a file that this script writes.
        options: Further arguments.
        goal_s: Goal for the wall time in seconds; None for no goal.
        goal_gap: Goal for time / bound; None for no goal.
        published: Published time, such as `2.01 h`; empty if there is none.
        hops: Time of a published schedule in units of one chunk on one link; None if there is none.
    """

    collective: str
    topo: str
    options: tuple[object, ...] = PAIR
    goal_s: float | None = None
    goal_gap: float | None = None
    published: str = ""
    hops: int | None = None


# PCCL's figures for 512 and 1000 devices name no network; 1.83 min is for a mesh 8x8, 128 MiB in chunks of 128 KiB.
ALLTOALL = (
    Row("alltoall", "mesh:8x8x8", PAIR, 5, 1.01, "11.68 min"),
    Row("alltoall", "torus:8x8x8", PAIR, 5, 1.01, "11.68 min"),
    Row("alltoall", "mesh:10x10x10", PAIR, 25, 1.01, "2.01 h"),
    Row("alltoall", "mesh:8x8", ("--chunks", 16, "--size", "128M"), 2, 1.01, "1.83 min"),
    Row("alltoall", "mesh:24x24", PAIR, 10, 1.01),
    Row("alltoall", "torus:16x16x16", PAIR, 60, 1.01),
)


def _tacos(topo: str, published: str, hops: int, goal_s: float | None = None, chunks: int = 1) -> Row:
    """Return a question that TACOS answers."""
    return Row("allgather", f"{topo},alpha=0", ("--chunks", chunks, "--size", "1G"), goal_s, None, published, hops)


# TACOS 1.3 on a machine of the same kind, with one core; hops are the lengths of its schedules.
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


def two_level(reading: str, nodes: int = NODES, node_ranks: int = EACH) -> str:
    """Return a topology file of nodes whose ranks share a switch, with a core switch between the nodes.

    Args:
        reading: "nic" if every rank has its own link to the core, "uplink" if every node's switch has one.
        nodes: Number of nodes.
        node_ranks: Number of ranks of a node.
    """
    switches = [*(f"node{i}" for i in range(nodes)), "core"]
    inside = " ".join(f"{i * node_ranks}-{i * node_ranks + node_ranks - 1}>node{i}" for i in range(nodes))
    between = (
        " ".join(f"node{i}>core" for i in range(nodes)) if reading == "uplink" else f"0-{nodes * node_ranks - 1}>core"
    )
    links = [(inside, INSIDE_GBS, 0.35), (between, BETWEEN_GBS, 1.0)]
    tables = [
        f'[[links]]\npairs = "{pairs}"\nboth = true\ngbs = {gbs}\nalpha_us = {alpha}\nassumed = true\n'
        for pairs, gbs, alpha in links
    ]
    names = ", ".join(f'"{name}"' for name in switches)
    whose = "a rank" if reading == "nic" else "a node"
    words = f"{nodes} nodes of {node_ranks}, {INSIDE_GBS} GB/s a rank inside, {BETWEEN_GBS} GB/s {whose} between"
    members = ", ".join(f'"{i * node_ranks}-{i * node_ranks + node_ranks - 1}"' for i in range(nodes))
    head = [
        f'name = "two-level-{reading}"',
        f"ranks = {nodes * node_ranks}",
        f"switches = [{names}]",
        f'summary = "{words}"',
        f"nodes = [{members}]\n",
    ]
    return "\n".join([*head, *tables])


def write_networks(folder: Path) -> None:
    """Write the files that the rows of `TWO_LEVEL` name."""
    folder.mkdir(parents=True, exist_ok=True)
    for reading in ("nic", "uplink"):
        (folder / f"two-level-{reading}.toml").write_text(two_level(reading), encoding="utf-8")


def measured(rows: Sequence[Row], processes: Processes, folder: Path) -> list[tuple[Row, Answer]]:
    """Return every row with its answer; the folder has the files of networks."""
    answered_rows = []
    for row in rows:
        topo = folder / row.topo if row.topo.endswith(".toml") else row.topo
        name = " ".join(map(str, (row.collective, "--topo", row.topo, *row.options)))
        answered_rows.append((row, processes.asked(row.collective, "--topo", topo, *row.options, name=name)))
    return answered_rows


def hops(answer: Answer, gbs: float = GBS) -> tuple[float, float]:
    """Return the time and bound of an allgather in units of one chunk on one link."""
    row, output = answer.row, answer.said
    if not row or output is None:
        return float("inf"), float("inf")
    chunk_us = row["shown_bytes"] / (len(output["group"]) * row["chunks"]) / (gbs * 1e3)
    return row["time_us"] / chunk_us, row["bound_us"] / chunk_us


def _beside(row: Row, answer: Answer) -> list[str]:
    """Return the published time, and its ratio to ours."""
    if not row.published:
        return ["–", "–"]
    return [row.published, f"{ratio_words(seconds_of(row.published) / answer.seconds)} ×"]


def _whole(answer: Answer) -> list[str]:
    """Return the first cells of a row, which all tables have."""
    if answer.wrong:
        return [f"`{answer.question}`", "–", f"**failed** after {seconds_words(answer.seconds)}"]
    sends = many_words(answer.row["sends"])
    return [f"`{answer.question}`", sends, seconds_words(answer.seconds)]


def table(answered_rows: Iterable[tuple[Row, Answer]], system: str = "", library: bool = False) -> str:
    """Return a table with one line for each question.

    Args:
        answered_rows: Rows with their answers.
        system: System whose published times have two columns; no such columns if empty.
        library: If True, add a column with the best of a vendor library's algorithms.
    """
    titles = ["question", "sends", "command s", "goal s", "peak MB", "time / bound", "goal", "proof of the bound"]
    titles += [f"{system}, published", f"{system} / ours"] if system else []
    titles += ["best library algorithm / ours"] if library else []
    lines = []
    for row, answer in answered_rows:
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
        line += _beside(row, answer) if system else []
        line += ["–" if versus is None else f"{versus:.2f} ×"] if library else []
        lines.append([*line, answer.checked or "–"])
    return grid([*titles, "`synth prove`"], lines)


def hops_table(answered_rows: Iterable[tuple[Row, Answer]]) -> str:
    """Return the table of allgather with α = 0 and TACOS, with times in hops."""
    titles = ["question", "sends", "command s", "goal s", "peak MB", "hops", "bound, hops", "TACOS, hops", "TACOS, s"]
    lines = []
    for row, answer in answered_rows:
        ours, bound = hops(answer)
        goal = "–" if row.goal_s is None else f"{row.goal_s:g}"
        hop_cells = [f"{ours:.2f}", f"{bound:.2f}", str(row.hops)]
        lines.append(
            [
                *_whole(answer),
                goal,
                f"{answer.peak_mb:.0f}",
                *hop_cells,
                *_beside(row, answer),
                answer.checked or "–",
            ]
        )
    return grid([*titles, "TACOS / ours", "`synth prove`"], lines)


def missed(answered_rows: Iterable[tuple[Row, Answer]]) -> list[str]:
    """Return one line for each goal that is not reached."""
    lines = []
    for row, answer in answered_rows:
        if answer.wrong:
            lines.append(f"- `{answer.question}`: no right answer")
            continue
        if row.goal_s is not None and answer.seconds > row.goal_s:
            lines.append(f"- `{answer.question}`: {seconds_words(answer.seconds)} s, goal {row.goal_s:g} s")
        if row.goal_gap is not None and answer.gap > row.goal_gap:
            lines.append(f"- `{answer.question}`: time / bound {answer.gap:.4f}, goal {row.goal_gap:g}")
        if row.hops is not None and hops(answer)[0] > row.hops * (1 + 1e-9):
            lines.append(f"- `{answer.question}`: {hops(answer)[0]:.2f} hops, goal {row.hops}")
    return lines


def first_table(firsts: Sequence[Answer]) -> str:
    """Return the table of the first questions, with and without compiling."""
    lines = [
        [f"`{a.question}`", seconds_words(a.first_s) if a.first_s else "–", seconds_words(a.seconds)] for a in firsts
    ]
    return grid(["question, in this order", "first call, s", "second call, s"], lines)


def text(
    firsts: Sequence[Answer],
    alltoall: Sequence[tuple[Row, Answer]],
    allgather: Sequence[tuple[Row, Answer]],
    reducing: Sequence[tuple[Row, Answer]],
    switches: Sequence[tuple[Row, Answer]],
) -> str:
    """Return the whole page."""
    answered_rows = [*alltoall, *allgather, *reducing, *switches]
    hop_rows = [pair for pair in allgather if pair[0].hops is not None]
    published_rows = [pair for pair in allgather if pair[0].hops is None]
    late, failures = missed(answered_rows), faults([*firsts, *(answer for _, answer in answered_rows)])
    goals = sum(
        (row.goal_s is not None) + (row.goal_gap is not None) + (row.hops is not None) for row, _ in answered_rows
    )
    parts = [
        "Times are of whole commands in fresh processes, `synth QUESTION --proof --json --out DIR`, from start to"
        " exit with all files written and compiled code on disk: the median of 3 runs, or one run if it takes over 5"
        " s. Peak memory is that of the largest process. Links have 50 GB/s each way and α 0.7 µs unless the question"
        " states otherwise. time / bound is the replayed schedule's time over a proved lower limit for any schedule."
        " `synth prove` computes both again from the files (the table has its verdict and its seconds). Other"
        " systems' figures are as published; ratios of times on different machines are only rough.",
        f"Goals reached: {goals - len(late)} of {goals}." + ("\n\n" + "\n".join(late) if late else ""),
        *(["Failed:\n\n" + "\n".join(failures)] if failures else []),
        "## All-to-all, one chunk a pair",
        "PCCL published all-to-all synthesis times (June 2026) for 512 devices, for 1000 devices, and for an 8×8 mesh"
        " with 128 MiB a rank in chunks of 128 KiB, without bounds. The answer for `torus:16x16x16` is"
        " compressed: the torus's translations are a symmetry, so one rank's sends are stored for all 4096; the number"
        " of sends is that of all ranks.",
        table(alltoall, "PCCL"),
        "## Allgather: TACOS",
        "TACOS 1.3 (C++, one core) was timed on a machine of the same kind. Hops are the schedule's time in units of"
        " one chunk on one link, with α = 0. No schedule has fewer hops than the bound, and none in lock step fewer"
        " than the bound rounded up.",
        hops_table(hop_rows),
        "TACOS published 40 000 devices (MICRO'24); the figure names no network. Our answer is compressed.",
        table(published_rows, "TACOS"),
        "## Reduce-scatter and allreduce on the same networks",
        table(reducing),
        f"## Two-level switch networks, {NODES} nodes of {EACH}",
        f"A rank has {INSIDE_GBS} GB/s inside a node. Between nodes, every rank has {BETWEEN_GBS} GB/s into a core"
        f" switch (`nic`), or every node has {BETWEEN_GBS} GB/s (`uplink`). α is 0.35 µs a hop inside a node and 1 µs"
        " between nodes, both assumed. `python -m results.scripts.scale --networks DIR` writes the files. A library's"
        " algorithms are rings, recursive doubling, two levels and direct; the table has the best of them in the same"
        " model of time. (PCCL reports 1.33 × the bandwidth on a heterogeneous two-level switch network.)",
        table(switches, library=True),
        "## Compiling",
        "Loops are compiled when they are first called, and kept on disk. Each question is asked with the compiled"
        " code of the questions before it only, and then again.",
        first_table(firsts),
    ]
    return page(__file__, "Large problems", parts)


def main() -> None:
    """Measure all questions, and write the table; exit with an error if an answer is wrong."""
    parser = argparse.ArgumentParser(description="Large problems, whole commands")
    parser.add_argument("--networks", type=Path, metavar="FOLDER", help="only write the two-level networks' files")
    folder: Path | None = parser.parse_args().networks
    if folder is not None:
        write_networks(folder)
        return
    with Processes() as processes, tempfile.TemporaryDirectory() as folder_name:
        write_networks(Path(folder_name))
        firsts = [processes.asked(*question, times=1) for question in FIRST]
        sections = [measured(rows, processes, Path(folder_name)) for rows in (ALLTOALL, ALLGATHER, REDUCING, TWO_LEVEL)]
    write(__file__, text(firsts, *sections))
    if faults([*firsts, *(answer for section in sections for _, answer in section)]):
        raise SystemExit("scale: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
