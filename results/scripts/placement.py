"""Placements: best against worst of an all-reduce on P²'s machines, whole training steps, and how long ranking takes.

    python -m results.scripts.placement [--budget 2] [--every 1]

makes placement.md. A budget a search; with --every N only every N-th question.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from results.measuring.measure import grid, page, seconds_words, write
from results.measuring.p2_machines import NIC_GBS, a100, v100
from synth.model.text import format_time
from synth.parallelism.axes import Axis, parse_axes
from synth.parallelism.placement import Placement, Ranking, rank_placements
from synth.parallelism.workload import Call, Workload, read_workload
from topologies.levels.hierarchy import find_levels
from topologies.load import load
from topologies.topology import Topology

PUBLISHED = 448.0  # P²'s abstract: what the placement changes an all-reduce's time by, at most
FLOATS = 1 << 29  # a node, in its all-reduces
EXAMPLES = Path(__file__).parents[2] / "examples" / "workloads"
STEPS = (
    ("dgx-h100:8", "pp=2,dp=4,tp=8", "dense"),
    ("dgx-h100:8", "pp=4,ep=8,tp=2", str(EXAMPLES / "mixtral-8x7b.toml")),
    ("dgx-a100:4", "dp=8,tp=4", "fsdp"),
    ("dgx-a100:4", "dp=4,tp=8", "dlrm"),
    ("ndv2:4", "pp=2,dp=4,tp=4", "dense"),
    ("mi250:4", "pp=2,dp=4,tp=8", "dense"),
    ("gb200-nvl72", "pp=3,dp=3,tp=8", "dense"),
    ("torus:4x4x4", "pp=4,dp=4,tp=4", "dense"),
    ("fattree:4x8x2", "dp=8,tp=4", "dense"),
    ("dragonfly:4x4x2", "dp=4,tp=8", "dense"),
    ("mesh:8x8", "pp=2,dp=4,tp=8", "dense"),
    ("hypercube:5", "dp=8,tp=4", "fsdp"),
    ("dgx-h100:64", "pp=16,dp=4,tp=8", str(EXAMPLES / "llama-3-405b.toml")),
)  # fmt: skip
LARGE = ("dgx-h100:64", "torus:8x8x8", "dragonfly:8x8x8", "fattree:32x16x8", "hypercube:9", "star:512")
LARGE_AXES = ("pp=8,dp=8,tp=8", "pp=2,dp=32,tp=8", "pp=16,dp=4,tp=8")


def all_reduce(topology: Topology, size: int, budget: float) -> Ranking:
    """All placements of an axis of `size` ranks that is reduced over, all others in another axis."""
    levels = find_levels(topology)
    axes = parse_axes(f"other={topology.nranks // size},reduced={size}", levels)
    nodes = len(set(topology.nodes.tolist()))
    step = Workload((Call("all-reduce", "allreduce", (1,), 4 * FLOATS * nodes),))
    return rank_placements(topology, levels, axes, step, budget=budget, top=100)


def machines() -> Iterator[tuple[Topology, str]]:
    for nodes in (2, 4):
        yield a100(nodes), f"{nodes} × 16 A100, NIC {NIC_GBS:g} GB/s"
        yield v100(nodes), f"{nodes} × 8 V100, NIC {NIC_GBS:g} GB/s"
    # A rate that a NIC of 12.5 GB/s is seen to deliver, and the one at which the figure is the published one
    for gbs in (0.8 * NIC_GBS, 16 * 300 / PUBLISHED):
        yield a100(4, gbs), f"4 × 16 A100, NIC {gbs:.3g} GB/s"


def span_rows(budget: float, every: int) -> tuple[list[Sequence[str]], float]:
    """A line for every machine and group size, and the largest ratio of the machines as they are published."""
    rows: list[Sequence[str]] = []
    most = 0.0
    cases = [(t, name, k) for t, name in machines() for k in (2, 4, 8, 16, 32, 64) if k <= t.nranks // 2]
    for topology, name, size in cases[::every]:
        found = all_reduce(topology, size, budget)
        best, worst = (pick(found.placements, key=lambda p: p.step.time_us) for pick in (min, max))
        ratio = worst.step.time_us / best.step.time_us
        if f"NIC {NIC_GBS:g} " in name:
            most = max(most, ratio)
        rows.append((
            name, str(size), str(len(found.placements)), _parts(best), _time(best),
            _parts(worst), _time(worst), f"{ratio:.1f} ×", f"{worst.step.bottleneck}",
        ))  # fmt: skip
    return rows, most


def _parts(placement: Placement) -> str:
    return "–" if placement.matrix is None else "×".join(map(str, placement.matrix[1]))


def step_rows(budget: float, every: int) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for spec, axes, workload in STEPS[::every]:
        begun = time.process_time()
        topology = load(spec)
        levels = find_levels(topology)
        known = parse_axes(axes, levels)
        found = rank_placements(topology, levels, known, read_workload(workload, known), budget=10 * budget)
        seconds = time.process_time() - begun
        best, default, worst = (found.placements[i] for i in (0, found.default, -1))
        rows.append((
            spec, str(levels), axes, Path(workload).stem, str(len(found.placements)), _time(best), best.step.bottleneck,
            f"{_time(default)} ({found.default + 1}.)", _time(worst),
            f"{worst.step.time_us / best.step.time_us:.2f} ×",
            f"{best.step.time_us / found.bound_us:.2f}" if found.bound_us else "–", seconds_words(seconds),
        ))  # fmt: skip
    return rows


def _time(placement: Placement) -> str:
    return ("" if placement.step.searched else "~") + format_time(placement.step.time_us)


def large_rows(every: int) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for spec, axes in [(spec, axes) for spec in LARGE for axes in LARGE_AXES][::every]:
        wall, cpu = time.monotonic(), time.process_time()
        topology = load(spec)
        levels = find_levels(topology)
        known: tuple[Axis, ...] = parse_axes(axes, levels)
        found = rank_placements(topology, levels, known, read_workload("dense", known), top=0)
        rows.append((
            spec, str(levels), axes, str(len(found.placements)), seconds_words(time.process_time() - cpu),
            seconds_words(time.monotonic() - wall),
        ))  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for the searches of one question")
    parser.add_argument("--every", type=int, default=1, help="only every N-th question")
    asked = parser.parse_args()
    spans, most = span_rows(asked.budget, asked.every)
    sample = "all questions" if asked.every == 1 else f"every {asked.every}th question"
    a_node = FLOATS * 4 >> 30
    write(__file__, page(__file__, "Placements", (
        f"Sample: {sample}; {asked.budget:g} s of search for an all-reduce, {10 * asked.budget:g} s for a step. Times"
        " are those of replayed schedules, all groups at once; ~ marks estimates.",
        "## Best against worst placement of an all-reduce",
        f"P² reports up to {PUBLISHED:g} ×. Its machines with published rates (`results/measuring/p2_machines.py`),"
        f" {a_node} GiB a node, all groups of the reduced axis at once; an axis's parts are by level (nodes × GPUs)."
        f" Asked: {PUBLISHED:g} ×; measured, largest ratio: {most:.0f} ×"
        f" ({'reached' if most >= PUBLISHED else 'not reached with these bandwidths'}). The reason: inside a node every"
        " group has its GPUs' own NVLinks; across nodes with one member a node all 16 groups of a node share one NIC,"
        f" so that the ratio is 16 × (NVLink / NIC) = 16 × 300 / {NIC_GBS:g} = {16 * 300 / NIC_GBS:.0f}, and"
        f" {PUBLISHED:g} where the NIC delivers {16 * 300 / PUBLISHED:.3g} GB/s"
        f" ({16 * 300 / PUBLISHED / NIC_GBS:.0%} of 100 Gbit/s).",
        grid(("machine", "group", "placements", "best", "time", "worst", "time", "worst / best", "worst's bottleneck"),
             spans),
        "## Training steps",
        "The best placement, the default order (its place in the ranking) and the worst; seconds are of this process's"
        " CPU, searches included. bound: best / what no placement is faster than.",
        grid(("topology", "levels", "axes", "workload", "placements", "best", "bottleneck", "default", "worst",
              "worst / best", "bound", "CPU s"), step_rows(asked.budget, asked.every)),
        "## 512 devices, three axes",
        "All matrices made and ranked by the estimate (`--top 0`), workload dense; seconds with loading the topology.",
        grid(("topology", "levels", "axes", "placements", "CPU s", "wall s"), large_rows(asked.every)),
    )))  # fmt: skip


if __name__ == "__main__":
    main()
