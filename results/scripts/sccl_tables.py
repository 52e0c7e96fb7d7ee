"""The Pareto sets in (C,S,R) of all collectives on the machines of SCCL's paper, with what is proved of each point.

    python -m results.scripts.sccl_tables

makes sccl_tables.md. One run of the whole command each.
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

# The published figures: SCCL's Pareto set, and the satisfiable rows of "Measured here" (the z52 is SCCL's ring
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
    """The whole command, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        timed = run(synth(collective, "--topo", topo, "--json", "--out", folder, *options))
    if timed.code != 0:
        raise SystemExit(f"synth {collective} --topo {topo}: exit {timed.code}: {timed.err.strip()[-300:]}")
    return timed, json.loads(timed.out)


def lines(collective: str, topo: str, seconds: float, said: dict[str, Any]) -> list[list[str]]:
    """One line for each point; the first says the collective, the seconds and the published points."""
    found = points(said)
    beside = [f"set: {words(shape)} {mark(shape, found)}" for shape in SETS.get((collective, topo), [])]
    beside += [f"row: {words(shape)} {mark(shape, found)}" for shape in ROWS.get((collective, topo), [])]
    ended = f"{seconds_words(seconds)}{' (budget ended)' if said['ended'] else ''}"
    table = []
    for i, point in enumerate(found):
        head = [collective, ended, "<br>".join(beside) or "–"] if i == 0 else ["", "", ""]
        table.append([head[0], words(point.shape), str(point.ratio), point.proof, *head[1:]])
    return table


def main() -> None:
    parts = [
        "Rounds a chunk: R / C. The sets hold what no other point beats in steps and rounds a chunk, proved points"
        " first. C counts as SCCL does: of a rank's share (allgather, reducescatter, gather, scatter), of the buffer"
        " (broadcast, reduce, allreduce), of a pair's block (alltoall). Published beside it, from"
        " the published figures: points of SCCL's sets, and single rows; `same` if the set has it, `better` if"
        " it has one that beats it, `not reached` if neither."
    ]
    for topo in TOPOLOGIES:
        table: list[list[str]] = []
        for collective in COLLECTIVES:
            timed, said = measured(collective, topo)
            table += lines(collective, topo, timed.seconds, said)
            print(f"{collective} {topo}: {timed.seconds:.2f} s", file=sys.stderr, flush=True)
        titles = ["collective", "(C,S,R)", "rounds a chunk", "what is proved", "s", "published"]
        parts += [f"## {topo}", grid(titles, table)]
    write(__file__, page(__file__, "Pareto sets on SCCL's machines", parts))


if __name__ == "__main__":
    main()
