"""Helpers of the tests of bounds: sizes, large problems, limits in units of links, uniform link lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from synth.bounds.check import proved
from synth.bounds.lengths import find_uniform
from synth.bounds.search import BoundSearch
from synth.bounds.witness import Witness
from synth.model.pattern import read_pattern
from synth.model.problem import Problem, make_problem
from topologies.load import load

SEEDS = st.integers(0, 2**32)
SIZES = (1.0, 512.0, 1e4, 3e5, 1e7, 1e9)
ROUND_OFF = 1 + 1e-9


LARGE = {
    spec: make_problem(load(spec), name)
    for spec, name in (("mesh:10x10", "alltoall"), ("torus:10x10", "allreduce"), ("fattree:13x8x4", "reducescatter"))
}  # fmt: skip


def never_beaten(limit: float, time: float) -> None:
    """Check that a limit in µs is at most a schedule's time, apart from rounding."""
    assert limit <= time * ROUND_OFF + 1e-12


def chunk_times(problem: Problem, us_per_byte: float) -> float:
    """Return a limit for large messages in the time that one chunk takes on a link; links and chunks are equal."""
    assert np.ptp(problem.network.bandwidth_gbs) == 0
    assert np.ptp(problem.collective.fraction) == 0
    gbs, fraction = float(problem.network.bandwidth_gbs[0]), float(problem.collective.fraction[0])
    return us_per_byte * gbs * 1e3 / fraction


def uniform(problem: Problem) -> list[Witness]:
    return [proved(problem, claim) for claim in find_uniform(BoundSearch(problem))]


def by_dimension(problem: Problem, sides: tuple[int, ...]) -> np.ndarray:
    """Return µs per byte that every link of a mesh is busy when all-to-all goes along one dimension after the other."""
    net = problem.network
    place = np.stack(np.unravel_index(np.arange(net.nranks), sides))
    axis = np.abs(place[:, net.dst] - place[:, net.src]).argmax(axis=0)
    side = np.array(sides)[axis]
    low = np.minimum(place[axis, net.src], place[axis, net.dst])
    busy = np.zeros(net.nresources)
    busy[net.uses_idx] = (low + 1) * (side - 1 - low) * net.nranks / side
    return busy


def scan(folder: Path) -> Problem:
    """Build a scan on a line of four ranks.

    Links have 1 GB/s without latency; rank i gets the sum of ranks 0..i, of the same data.
    """
    path = folder / "scan.toml"
    entries = "".join(
        f'[[chunk]]\nreduce = true\ndata = "x"\nfrom = "0-3"\nof = "0-{last}"\nto = [{last}]\n' for last in range(1, 4)
    )
    path.write_text('name = "scan"\nranks = 4\n' + entries, encoding="utf-8")
    return make_problem(load("line:4,bw=1,alpha=0"), read_pattern(path))
