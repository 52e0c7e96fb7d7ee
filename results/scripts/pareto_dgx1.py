"""The whole Pareto set of allgather on a DGX-1, beside msccl-tools.

    python -m results.scripts.pareto_dgx1

makes pareto_dgx1.md. Wall time of the whole command in a fresh process, median of 3.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

from results.measuring.measure import grid, median_run, page, seconds_words, synth, write
from results.measuring.points import proof_words, words

# the published figures: "whole Allgather Pareto run" of msccl-tools, and SCCL's published set
PUBLISHED_S = 57.9
PUBLISHED = {(2, 2, 3), (6, 3, 7)}
GOAL_S = 4.0


def measured(topo: str = "dgx1", times: int = 3) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole command, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        timed = median_run(synth("allgather", "--topo", topo, "--json", "--out", folder), times)
    if timed.code != 0:
        raise SystemExit(f"synth allgather --topo {topo}: exit {timed.code}: {timed.err.strip()[-300:]}")
    return timed.seconds, json.loads(timed.out)


def text(seconds: float, said: dict[str, Any]) -> str:
    claims = [c for c in said["k_synchronous"] if c["rounds"]]
    found = {(c["chunks"], c["steps"], c["rounds"]) for c in claims}
    rows = [[words((c["chunks"], c["steps"], c["rounds"])), proof_words(c)] for c in claims]
    lines = [
        f"`synth allgather --topo dgx1`: **{seconds_words(seconds)} s** (goal under {GOAL_S:g} s);"
        f" msccl-tools {PUBLISHED_S} s; ratio {PUBLISHED_S / seconds:.0f} ×.",
        f"The set is {'the same as' if found == PUBLISHED else 'not the same as'} SCCL's published one,"
        f" {', '.join(map(words, sorted(PUBLISHED)))}.",
        grid(["(C,S,R)", "what is proved"], rows),
        grid(
            ["steps", "rounds", "chunks", "from bytes", "shown at bytes", "gap", "proof"],
            [
                [
                    *(a[name] for name in ("steps", "rounds", "chunks", "min_bytes", "shown_bytes")),
                    f"{a['gap']:.4f}",
                    a["proof"],
                ]
                for a in said["algorithms"]
            ],
        ),
    ]
    return page(__file__, "Pareto set of allgather on a DGX-1", lines)


def main() -> None:
    write(__file__, text(*measured()))


if __name__ == "__main__":
    main()
