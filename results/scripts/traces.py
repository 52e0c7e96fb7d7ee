"""Choose few files for all-to-alls whose sizes change at every call, compared with other ways to serve the calls.

    python -m results.scripts.traces [--budget 30] [--only TOPOLOGY …] [--calls 80]

makes traces.md in about four minutes. Calls are dispatches of a mixture of experts: every rank draws the experts of its
tokens by the popularity of the experts in the call's layer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from results.measuring.measure import grid, page, run, synth, write
from synth.model.collective import Ints
from topologies.load import load

TOPOLOGIES = ("dgx1", "dgx-h100:2")
EXPERTS_OF_RANK = 8
COPIES = 4096  # copies of tokens that a rank sends in a call
TOKEN_BYTES = 14_336  # 7,168 numbers of 16 bits
HOLDOUT = 0.2
SEED = 1


@dataclass(frozen=True)
class Drawn:
    """How the calls of a trace are drawn, and how many files they get.

    Attributes:
        layers: Number of layers, each with popular experts of its own; the calls take turns. 0: every call has its own.
        exponent: Exponent of Zipf's distribution of the popularity.
        files: Most capacities.
    """

    layers: int
    exponent: float
    files: int

    @property
    def words(self) -> str:
        """Return the description of the trace."""
        of = f"{self.layers} layers" if self.layers else "popular experts change at every call"
        return f"{of}, Zipf {self.exponent:g}"


TRACES = (Drawn(4, 1.0, 1), Drawn(4, 1.0, 4), Drawn(16, 1.0, 4), Drawn(0, 1.0, 4))


def trace_of(drawn: Drawn, nranks: int, calls: int, seed: int = SEED) -> Ints:
    """Return the bytes from rank to rank in each call, shape (calls, ranks, ranks)."""
    draw = np.random.default_rng(seed)
    experts = nranks * EXPERTS_OF_RANK
    popularity = [
        draw.permutation(1 / np.arange(1, experts + 1) ** drawn.exponent) for _ in range(drawn.layers or calls)
    ]
    copies = np.stack(
        [draw.multinomial(COPIES, share / share.sum(), size=nranks) for share in _cycled(popularity, calls)]
    )
    trace: Ints = copies.reshape(calls, nranks, nranks, EXPERTS_OF_RANK).sum(axis=3) * TOKEN_BYTES
    return trace


def _cycled(popularity: list[Any], calls: int) -> list[Any]:
    """Return the popularity of each call's layer."""
    return [popularity[call % len(popularity)] for call in range(calls)]


def asked(topology: str, drawn: Drawn, calls: int, budget_s: float, folder: Path) -> dict[str, Any]:
    """Return the document of the command for a trace.

    Raises:
        RuntimeError: The command failed.
    """
    path = folder / "calls.npy"
    np.save(path, trace_of(drawn, load(topology).nranks, calls))
    command = synth(
        *("alltoallv", "--topo", topology, "--costs", "none", "--trace", path, "--files", drawn.files),
        *("--holdout", HOLDOUT, "--budget", f"{budget_s:g}s", "--out", folder / "files", "--json"),
    )
    ran = run(command, 10 * budget_s + 60)
    if ran.code:
        raise RuntimeError(f"{topology}, {drawn.words}: {ran.err[-500:]}")
    document: dict[str, Any] = json.loads(ran.out)
    return document


def table_row(topology: str, drawn: Drawn, document: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    chosen, held = document["chosen"], document["held"]
    used = sum(file["served"] > 0 for file in document["files"])
    count = document["calls"] - document["held_out"]
    return [
        topology,
        drawn.words,
        f"{used} of {drawn.files}",
        f"{chosen['files']['served'] / count:.0%}",
        f"{chosen['files']['padding']:.3f}",
        *(_words(chosen[name]) for name in ("files", "even", "straight", "planned")),
        f"{held['files']['served'] / document['held_out']:.0%}",
        *(_words(held[name]) for name in ("files", "even")),
    ]


def _words(figures: dict[str, Any] | None) -> str:
    """Return `1.123 (1.234)`: mean time / mean bound, and the largest time / bound of a call."""
    return "–" if figures is None or figures["gap"] is None else f"{figures['gap']:.3f} ({figures['worst_gap']:.3f})"


def main() -> None:
    """Ask for all traces on all topologies, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(TOPOLOGIES), help="topologies")
    parser.add_argument("--calls", type=int, default=80, help="calls of a trace")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for a trace")
    options = parser.parse_args()
    rows = []
    for topology in options.only:
        for drawn in TRACES:
            with tempfile.TemporaryDirectory() as folder:
                document = asked(topology, drawn, options.calls, options.budget, Path(folder))
            rows.append(table_row(topology, drawn, document))
    text = (
        f"A trace has {options.calls} calls, of which the last {HOLDOUT:.0%} are held out: no file is chosen for them."
        f" A rank sends {COPIES} copies of tokens of {TOKEN_BYTES:,} bytes, each to an expert that it draws by the"
        f" popularity of the {EXPERTS_OF_RANK} experts of every rank in the call's layer."
        f" `synth alltoallv --trace --costs none --budget {options.budget:g}s` searches a file for each capacity, and"
        " one for equal blocks; *files* says how many of them some call takes. A cell is the mean time / the mean"
        " bound, and in brackets the largest time / bound of a call; the bound is that of the call's own sizes."
        " *Padding* is the part of it that no file of these proportions avoids; the rest is the search's, which a"
        " longer budget makes smaller. *Even padding* makes each block as large as the call's largest. *Straight* and"
        " *planned* are sends that a program makes for the sizes of each call, which no file can"
        " be."
    )
    titles = ("network", "trace", "files", "fit", "padding", "time / bound", "even padding", "straight", "planned")
    titles += ("held out: fit", "time / bound", "even padding")
    write(
        __file__,
        page(__file__, "Few files for all-to-alls whose sizes change at every call", [text, grid(titles, rows)]),
    )


if __name__ == "__main__":
    main()
