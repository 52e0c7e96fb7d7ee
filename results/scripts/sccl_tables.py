"""Compute the Pareto sets in (C, S, R) of all collectives on the machines of SCCL's paper, with proofs of the points.

    python -m results.scripts.sccl_tables

makes sccl_tables.md. Each command runs once.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from results.measuring.measure import Timed, grid, page, run, seconds_words, synth, write
from results.measuring.points import Shape, mark, points, words

COLLECTIVES = (
    "allgather",
    "reducescatter",
    "allreduce",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
)
TOPOLOGIES = ("dgx1", "z52")

# Published figures: SCCL's Pareto set, and satisfiable rows of msccl-tools (the z52 is SCCL's ring
# of 8). An all-reduce's C counts the whole buffer, an all-to-all's a pair.
SETS: dict[tuple[str, str], list[Shape]] = {
    ("allgather", "dgx1"): [(2, 2, 3), (6, 3, 7)],
    ("reducescatter", "dgx1"): [(2, 2, 3), (6, 3, 7)],
}
ROWS: dict[tuple[str, str], list[Shape]] = {
    ("alltoall", "dgx1"): [(1, 2, 3), (1, 3, 3)],
    ("broadcast", "dgx1"): [(2, 2, 2), (6, 3, 3), (6, 3, 5), (12, 4, 4), (18, 5, 5)],
    ("gather", "dgx1"): [(2, 2, 3), (6, 3, 7), (6, 7, 7)],
    ("allreduce", "dgx1"): [(1, 4, 4)],
    ("allgather", "z52"): [(1, 4, 4), (2, 4, 7), (2, 7, 7)],
    ("alltoall", "z52"): [(1, 4, 8)],
}


def measured(collective: str, topo: str, *options: str) -> tuple[Timed, dict[str, Any]]:
    """Run a whole command; return it and its parsed output.

    Raises:
        SystemExit: If the command fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        timed = run(synth(collective, "--topo", topo, "--costs", "none", "--json", "--out", folder, *options))
    if timed.code != 0:
        raise SystemExit(
            f"synth {collective} --topo {topo} failed with exit code {timed.code}: {timed.err.strip()[-300:]}"
        )
    return timed, json.loads(timed.out)


def lines(collective: str, topo: str, seconds: float, answer: dict[str, Any]) -> list[list[str]]:
    """Return one row for each point; the first has the collective, the seconds and the published points."""
    pareto_set = points(answer)
    marks = [f"set: {words(shape)} {mark(shape, pareto_set)}" for shape in SETS.get((collective, topo), [])]
    marks += [f"row: {words(shape)} {mark(shape, pareto_set)}" for shape in ROWS.get((collective, topo), [])]
    ended = f"{seconds_words(seconds)}{' (budget ended)' if answer['ended'] else ''}"
    table = []
    for i, point in enumerate(pareto_set):
        head = [collective, ended, "<br>".join(marks) or "–"] if i == 0 else ["", "", ""]
        table.append([head[0], words(point.shape), str(point.ratio), point.proof, *head[1:]])
    return table


def main() -> None:
    """Measure all collectives, and write the table."""
    parts = [
        "Rounds a chunk are R / C. A set has the points that no other point beats in steps and rounds a chunk, with"
        " proved points first. C is counted as in SCCL: chunks of a rank's share (allgather, reducescatter, gather,"
        " scatter), of the buffer (broadcast, reduce, allreduce), or of a pair's block (alltoall). Published points"
        " are those of SCCL's sets, and single rows of msccl-tools: `same` if our set has the point, `better` if it"
        " has a point that beats it, otherwise `not reached`."
    ]
    for topo in TOPOLOGIES:
        table: list[list[str]] = []
        for collective in COLLECTIVES:
            timed, answer = measured(collective, topo)
            table += lines(collective, topo, timed.seconds, answer)
            print(f"{collective} {topo}: {timed.seconds:.2f} s", file=sys.stderr, flush=True)
        titles = ["collective", "(C,S,R)", "rounds a chunk", "what is proved", "command s", "published points"]
        parts += [f"## {topo}", grid(titles, table)]
    write(__file__, page(__file__, "Pareto sets on SCCL's machines", parts))


if __name__ == "__main__":
    main()
