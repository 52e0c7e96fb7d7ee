"""Rank placements: the best and worst all-reduce on P²'s machines, whole training steps, and the time of a ranking.

    python -m results.scripts.placement [--budget 2] [--every 1]

makes placement.md. --budget is the seconds of a search; --every N takes each N-th question only.
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

PUBLISHED = 448.0  # P²'s abstract: the largest ratio of an all-reduce's times under two placements.
FLOATS = 1 << 29  # Floats of each node in its all-reduces.
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
    """Rank all placements of an axis of `size` ranks that an all-reduce runs over.

    All other ranks are in a second axis.
    """
    levels = find_levels(topology)
    axes = parse_axes(f"other={topology.nranks // size},reduced={size}", levels)
    nodes = len(set(topology.nodes.tolist()))
    step = Workload((Call("all-reduce", "allreduce", (1,), 4 * FLOATS * nodes),))
    return rank_placements(topology, levels, axes, step, budget=budget, top=100)


def machines() -> Iterator[tuple[Topology, str]]:
    """Yield P²'s machines with their names in the table."""
    for nodes in (2, 4):
        yield a100(nodes), f"{nodes} × 16 A100, NIC {NIC_GBS:g} GB/s"
        yield v100(nodes), f"{nodes} × 8 V100, NIC {NIC_GBS:g} GB/s"
    # The rate that a NIC of 12.5 GB/s delivers in practice, and the rate that gives the published ratio.
    for gbs in (0.8 * NIC_GBS, 16 * 300 / PUBLISHED):
        yield a100(4, gbs), f"4 × 16 A100, NIC {gbs:.3g} GB/s"


def span_rows(budget: float, every: int) -> tuple[list[Sequence[str]], float]:
    """Return a row for every machine and group size, and the largest ratio on machines with published rates."""
    rows: list[Sequence[str]] = []
    largest_ratio = 0.0
    cases = [(t, name, k) for t, name in machines() for k in (2, 4, 8, 16, 32, 64) if k <= t.nranks // 2]
    for topology, name, size in cases[::every]:
        ranking = all_reduce(topology, size, budget)
        best, worst = (pick(ranking.placements, key=lambda p: p.step.time_us) for pick in (min, max))
        ratio = worst.step.time_us / best.step.time_us
        if f"NIC {NIC_GBS:g} " in name:
            largest_ratio = max(largest_ratio, ratio)
        rows.append((
            name, str(size), str(len(ranking.placements)), _parts(best), _time(best),
            _parts(worst), _time(worst), f"{ratio:.1f} ×", f"{worst.step.bottleneck}",
        ))  # fmt: skip
    return rows, largest_ratio


def _parts(placement: Placement) -> str:
    """Format a placement's parts of the reduced axis, by level."""
    return "–" if placement.matrix is None else "×".join(map(str, placement.matrix[1]))


def step_rows(budget: float, every: int) -> list[Sequence[str]]:
    """Return a row for each training step: the best, default and worst placement."""
    rows: list[Sequence[str]] = []
    for spec, axes, workload in STEPS[::every]:
        start_s = time.process_time()
        topology = load(spec)
        levels = find_levels(topology)
        parsed_axes = parse_axes(axes, levels)
        ranking = rank_placements(
            topology, levels, parsed_axes, read_workload(workload, parsed_axes), budget=10 * budget
        )
        seconds = time.process_time() - start_s
        best, default, worst = (ranking.placements[i] for i in (0, ranking.default, -1))
        rows.append((
            spec, str(levels), axes, Path(workload).stem, str(len(ranking.placements)), _time(best),
            best.step.bottleneck, f"{_time(default)} ({ranking.default + 1}.)", _time(worst),
            f"{worst.step.time_us / best.step.time_us:.2f} ×",
            f"{best.step.time_us / ranking.bound_us:.2f}" if ranking.bound_us else "–", seconds_words(seconds),
        ))  # fmt: skip
    return rows


def _time(placement: Placement) -> str:
    """Format the time of a placement's step; ~ marks an estimate."""
    return ("" if placement.step.searched else "~") + format_time(placement.step.time_us)


def large_rows(every: int) -> list[Sequence[str]]:
    """Return a row for each large topology and its axes: the number of placements and the seconds of the ranking."""
    rows: list[Sequence[str]] = []
    for spec, axes in [(spec, axes) for spec in LARGE for axes in LARGE_AXES][::every]:
        wall, cpu = time.monotonic(), time.process_time()
        topology = load(spec)
        levels = find_levels(topology)
        parsed_axes: tuple[Axis, ...] = parse_axes(axes, levels)
        ranking = rank_placements(topology, levels, parsed_axes, read_workload("dense", parsed_axes), top=0)
        rows.append((
            spec, str(levels), axes, str(len(ranking.placements)), seconds_words(time.process_time() - cpu),
            seconds_words(time.monotonic() - wall),
        ))  # fmt: skip
    return rows


def main() -> None:
    """Rank the placements, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for the searches of one question")
    parser.add_argument("--every", type=int, default=1, help="only every N-th question")
    options = parser.parse_args()
    spans, largest_ratio = span_rows(options.budget, options.every)
    sample = "all questions" if options.every == 1 else f"every {options.every}th question"
    gib_per_node = FLOATS * 4 >> 30
    write(__file__, page(__file__, "Placements", (
        f"The table has {sample}. An all-reduce is searched for {options.budget:g} s, a training step for"
        f" {10 * options.budget:g} s. Times are those of replayed schedules of all groups concurrently; ~ marks"
        " estimates.",
        "## Best against worst placement of an all-reduce",
        f"P² reports ratios up to {PUBLISHED:g} ×. These are its machines with published rates"
        f" (`results/measuring/p2_machines.py`), {gib_per_node} GiB a node, and all groups of the reduced axis"
        f" concurrently. Parts of an axis are by level (nodes × GPUs). The goal is {PUBLISHED:g} ×; the largest"
        f" measured ratio is {largest_ratio:.0f} ×"
        f" ({'reached' if largest_ratio >= PUBLISHED else 'not reached with these bandwidths'}). The reason is this:"
        " inside a node every group has its GPUs' own NVLinks. With one member a node, all 16 groups share the node's"
        f" NIC, so the ratio is 16 × (NVLink / NIC) = 16 × 300 / {NIC_GBS:g} = {16 * 300 / NIC_GBS:.0f}. It is"
        f" {PUBLISHED:g} if the NIC delivers {16 * 300 / PUBLISHED:.3g} GB/s ({16 * 300 / PUBLISHED / NIC_GBS:.0%} of"
        " 100 Gbit/s).",
        grid(("machine", "ranks of a group", "placements", "best", "its time", "worst", "its time", "worst / best",
             "worst's bottleneck"), spans),
        "## Training steps",
        "Times of the best placement, of the default order (with its place in the ranking) and of the worst. CPU"
        " seconds are those of this process with its searches. The bound holds for all placements.",
        grid(("topology", "levels", "axes", "workload", "placements", "best", "bottleneck", "default", "worst",
              "worst / best", "best / bound", "CPU s"), step_rows(options.budget, options.every)),
        "## 512 devices, three axes",
        "All placements are ranked by estimates (`--top 0`) for the workload dense. Seconds include loading the"
        " topology.",
        grid(("topology", "levels", "axes", "placements", "CPU s", "wall s"), large_rows(options.every)),
    )))  # fmt: skip


if __name__ == "__main__":
    main()
