"""Compute the exact throughput optimum as a fraction, by the worst of all cuts, and how near a schedule comes to it.

    python -m results.scripts.optimum [--collective NAME …] [--every N] [--budget S] [--random N] [--seed N]

makes optimum.md. Where the table says "exact", it is proved that no cut is worse for this all-gather, reduce-scatter,
broadcast or reduce.
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
GOAL = 1.005  # Largest time / optimum that reaches the goal.
_MANY = 512  # Searches for more ranks have six times the budget.
NETWORKS = (
    "dgx1", "z52", "dgx-a100:2", "dgx-a100:4", "dgx-a100:8", "dgx-a100:16", "mi250", "mi250:2", "ndv2:2", "dgx-h100:4",
    "torus:4x4", "torus:8x8", "torus:4x4x4", "mesh:4x4", "mesh:8x8", "mesh:3x5", "hypercube:4", "dgx-a100:128",
)  # fmt: skip
COLLECTIVES = ("allgather", "reducescatter", "broadcast", "reduce")


@dataclass(frozen=True)
class Row:
    """The result on one network.

    Attributes:
        topology: The network.
        collective: Name of the collective.
        cut: The worst cut.
        exact: True if no cut is worse.
        ratio: Time of the best schedule / the optimum, at SIZE.
        engine: Engine of the best schedule.
        cut_s: Seconds of the search for the cut.
        seconds: Seconds of the search for the schedule.
    """

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
        """Return the cells of the table."""
        inside = int(self.cut.inside.sum())
        side = f"out of {inside} ranks" if 2 * inside <= self.topology.nranks else (
            f"into {self.topology.nranks - inside} ranks"
        )  # fmt: skip
        name = f"{self.collective} {self.topology.name}"
        algbw = 1 / self.cut.us_per_byte / 1000
        near = f"{self.ratio:.4f}{'' if self.ratio <= GOAL else ' (not met)'}"
        exact = "exact" if self.exact else "bound only"
        return (name, f"{self.topology.nranks}", f"{self.cut.us_per_byte}", str(algbw), exact, side,
                f"{self.cut_s:.2f} s", near, self.engine, f"{self.seconds:.1f} s")  # fmt: skip


def measured(topology: Topology, collective: str, budget_s: float) -> Row:
    """Return the optimum of a collective, and the time of a schedule for 4 GiB."""
    start_s = time.monotonic()
    group = range(topology.nranks)
    problem = quotient_question(topology, collective, group, (), None) or make_problem(topology, collective)
    result = worst_cuts(problem, DEFAULT.max_flow_work)
    cut_s, cut = time.monotonic() - start_s, result.cuts[-1]
    start_s = time.monotonic()
    budget_s *= 6 if topology.nranks > _MANY else 1
    answer = synthesize(collective, topology, size=SIZE, budget=budget_s, costs="none")
    (offer,) = answer.result.ranges
    least_us = float(cut.us_per_byte) * SIZE
    ratio = offer.algorithm.time_us(SIZE) / least_us
    assert ratio >= 1 - 1e-9, f"{collective} {topology.name}: faster than its optimum"
    return Row(
        topology, collective, cut, result.exact, ratio, offer.algorithm.engine, cut_s, time.monotonic() - start_s
    )


def text(rows: Sequence[Row], nquestions: int, budget_s: float) -> str:
    """Return the page."""
    ratios = np.array([row.ratio for row in rows])
    met = int((ratios <= GOAL).sum())
    titles = ("question", "ranks", "optimum, µs a byte", "algbw GB/s", "proof", "worst cut", "time for the cut",
              "time / optimum at 4 GiB", "engine", "time of the search")  # fmt: skip
    return page(
        __file__,
        "The throughput optimum as a fraction",
        [
            f"{len(rows)} of {nquestions} questions, with a budget of {budget_s:g} s each (six times that for more"
            f" than {_MANY} ranks). The goal is a schedule within {GOAL} of the optimum; it is met by {met} of"
            f" {len(rows)}. The median ratio is {np.median(ratios):.4f}, the largest {ratios.max():.4f}. Exact"
            f" optima: {sum(row.exact for row in rows)}. A schedule's time includes latency, the optimum does not.",
            grid(titles, [row.cells for row in rows]),
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all networks, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=["allgather"])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th random network only")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each question")
    parser.add_argument("--random", type=int, default=50, help="number of random networks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="write no table")
    options = parser.parse_args(arguments)
    drawn = [random_network(options.seed, number) for number in range(0, options.random, options.every)]
    rows: list[Row] = []
    for collective in options.collective:
        for topology in (*map(load, NETWORKS), *drawn):
            rows.append(row := measured(topology, collective, options.budget))
            print(*row.cells, flush=True)
    page_text = text(rows, (len(NETWORKS) + options.random) * len(options.collective), options.budget)
    if options.dry:
        print(page_text)
    else:
        write(__file__, page_text)


if __name__ == "__main__":
    main()
