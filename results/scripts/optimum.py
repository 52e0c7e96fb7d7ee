"""The exact throughput optimum as a fraction, by the worst of all cuts, and how near a schedule comes to it.

    python -m results.scripts.optimum [--collective NAME …] [--every N] [--budget S] [--random N] [--seed N]

makes optimum.md. Of an all-gather, reduce-scatter, broadcast or reduce no cut is worse where it says "exact".
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from results.measuring.measure import grid, page, write
from results.scripts.census import random_network
from synth.app.synthesis import synthesize
from synth.bounds.cuts.worst_cut import WorstCut, worst_cuts
from synth.bounds.search import DEFAULT
from synth.engines.flow.quotients import quotient_question
from synth.model.problem import make_problem
from topologies.load import load
from topologies.topology import Topology

SIZE = 1 << 32
ASKED = 1.005
_MANY = 512  # ranks beyond which a search has six times the budget
NETWORKS = (
    "dgx1", "z52", "dgx-a100:2", "dgx-a100:4", "dgx-a100:8", "dgx-a100:16", "mi250", "mi250:2", "ndv2:2", "dgx-h100:4",
    "torus:4x4", "torus:8x8", "torus:4x4x4", "mesh:4x4", "mesh:8x8", "mesh:3x5", "hypercube:4", "dgx-a100:128",
)  # fmt: skip
COLLECTIVES = ("allgather", "reducescatter", "broadcast", "reduce")


@dataclass(frozen=True)
class Row:
    """One network: the worst cut, whether none is worse, and the best schedule's time over it."""

    topology: Topology
    collective: str
    cut: WorstCut
    exact: bool
    ratio: float
    engine: str
    cut_s: float
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        inside = int(self.cut.inside.sum())
        side = f"out of {inside} ranks" if 2 * inside <= self.topology.nranks else (
            f"into {self.topology.nranks - inside} ranks"
        )  # fmt: skip
        name = f"{self.collective} {self.topology.name}"
        algbw = 1 / self.cut.us_per_byte / 1000
        near = f"{self.ratio:.4f}{'' if self.ratio <= ASKED else ' (not met)'}"
        exact = "exact" if self.exact else "bound only"
        return (name, f"{self.topology.nranks}", f"{self.cut.us_per_byte}", str(algbw), exact, side,
                f"{self.cut_s:.2f} s", near, self.engine, f"{self.seconds:.1f} s")  # fmt: skip


def measured(topology: Topology, collective: str, budget_s: float) -> Row:
    """The optimum, and a schedule for 4 GiB."""
    begun = time.monotonic()
    group = range(topology.nranks)
    problem = quotient_question(topology, collective, group, (), None) or make_problem(topology, collective)
    found = worst_cuts(problem, DEFAULT.max_flow_work)
    cut_s, cut = time.monotonic() - begun, found.found[-1]
    begun = time.monotonic()
    answer = synthesize(collective, topology, size=SIZE, budget=budget_s * (6 if topology.nranks > _MANY else 1))
    (served,) = answer.found.ranges
    least_us = float(cut.us_per_byte) * SIZE
    ratio = served.algorithm.time_us(SIZE) / least_us
    assert ratio >= 1 - 1e-9, f"{collective} {topology.name}: faster than its optimum"
    return Row(topology, collective, cut, found.exact, ratio, served.algorithm.engine, cut_s, time.monotonic() - begun)


def text(rows: Sequence[Row], asked: int, budget_s: float) -> str:
    """The page."""
    ratios = np.array([row.ratio for row in rows])
    met = int((ratios <= ASKED).sum())
    titles = ("question", "ranks", "µs a byte", "algbw GB/s", "", "worst cut", "found in", "time / optimum at 4 GiB",
              "engine", "search")  # fmt: skip
    return page(
        __file__,
        "The throughput optimum as a fraction",
        [
            f"{len(rows)} of {asked} questions, {budget_s:g} s each (over {_MANY} ranks six times that)."
            f" Asked: a schedule within {ASKED} of the optimum;"
            f" met by {met} of {len(rows)}; median {np.median(ratios):.4f}, largest {ratios.max():.4f}."
            f" Exact: {sum(row.exact for row in rows)}. The ratio holds the latency, which the optimum does not.",
            grid(titles, [row.cells for row in rows]),
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask all, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=["allgather"])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th random network only")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds a question")
    parser.add_argument("--random", type=int, default=50, help="networks that are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="write no table")
    given = parser.parse_args(arguments)
    drawn = [random_network(given.seed, number) for number in range(0, given.random, given.every)]
    rows: list[Row] = []
    for collective in given.collective:
        for topology in (*map(load, NETWORKS), *drawn):
            rows.append(row := measured(topology, collective, given.budget))
            print(*row.cells, flush=True)
    page_text = text(rows, (len(NETWORKS) + given.random) * len(given.collective), given.budget)
    if given.dry:
        print(page_text)
    else:
        write(__file__, page_text)


if __name__ == "__main__":
    main()
