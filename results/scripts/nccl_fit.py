"""Fit NCCL's times to measured times: write the figures of `synth/baselines/nccl/fitted.toml`, and a table.

    python -m results.scripts.nccl_fit FOLDER

FOLDER has measured times of nccl-tests as nccl-MACHINE.csv (columns nccl, collective, type, gpus, bytes, us). Ours are
those that NVIDIA's aiconfigurator (https://github.com/ai-dynamo/aiconfigurator, state of 2026-08-21) publishes for one
node of A100 and of H200 and for four GPUs of GB200. Times between nodes are fitted to the published runs of
results/measuring/nccl_tests.toml. The script makes nccl_fit.md.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from results.measuring.measure import grid, page, write
from results.scripts.nccl_baseline import PUBLISHED, cluster, library_of, published_times
from synth.baselines.mscclpp import ONE_SHOT, TWO_SHOT, MscclppModel
from synth.baselines.nccl import figures as f
from synth.baselines.nccl import fitted as fit
from synth.baselines.nccl.model import LibraryChoice, NcclModel, nccl_model
from synth.model.text import format_size
from topologies.costed import with_costs
from topologies.load import load

MACHINES = {"a100": "dgx-a100", "h200": "dgx-h200", "gb200": "gb200-nvl72"}
COLLECTIVES = {
    "all_gather": "allgather", "all_reduce": "allreduce", "reduce_scatter": "reducescatter", "alltoall": "alltoall",
}  # fmt: skip
CLASSES = (("to 64 KiB", 1 << 16), ("to 1 MiB", 1 << 20), ("to 64 MiB", 1 << 26), ("above", 1 << 62))
PAIRS_LL, PAIRS_SIMPLE = f"{fit.PAIRS} {f.LL}", f"{fit.PAIRS} {f.SIMPLE}"
START = {
    f.LL: fit.Fit(6.6, 0.6, 1.0, 8.0),
    f.LL128: fit.Fit(14.0, 1.9, 1.0, 20.0),
    f.SIMPLE: fit.Fit(8.4, 3.4, 1.0, math.inf, 500.0),
    f.NVLS: fit.Fit(25.0, 0.0, 1.0, math.inf, 700.0),
    PAIRS_LL: fit.Fit(8.0, 0.3, 1.0, 8.0),
    PAIRS_SIMPLE: fit.Fit(12.0, 1.0, 1.0, math.inf, 500.0),
}
NETWORK_START = {protocol: fit.Fit(1.0, 1.0, 1.0) for protocol in f.PROTOCOLS}
SOFT, PULL = 0.05, 0.2  # Errors above SOFT count less; a figure that no row needs stays where it starts.
FOLDS, LOW, HIGH = 6, 0.1, 0.9
STATED = 0.3  # Where the fit of the part of a stated latency begins.
MARGIN = 0.05  # The least distance of an interval's ends from the modelled time.
SPREADS = (*START, fit.NETWORK, fit.NETWORK_LARGE)
KERNEL_BYTES = 512 << 10


@dataclass(frozen=True)
class Row:
    """A measured time.

    Attributes:
        group: Machine or number of the run, collective and GPUs.
        model: The source's model of the group.
        collective: Name of the collective.
        switch_sums: Whether switches can add the elements.
        size_bytes: Message size.
        us: Measured time.
        choice: What NCCL chooses by its source; None for an all-to-all.
    """

    group: tuple[str, str, int]
    model: NcclModel
    collective: str
    switch_sums: bool
    size_bytes: int
    us: float
    choice: LibraryChoice | None

    def timed(self, figures: fit.Fitted) -> LibraryChoice:
        """Return the choice with its time by figures."""
        model = fit.FittedModel(self.model, figures)
        if self.choice is None:
            return model.choose(self.collective, self.size_bytes)
        return model.timed(self.collective, self.size_bytes, self.choice)

    @property
    def size_class(self) -> str:
        """Return the name of the class of its size."""
        return next(name for name, end in CLASSES if self.size_bytes <= end)


def measured(folder: Path) -> list[Row]:
    """Read all measured times of a folder."""
    rows, models = [], {}
    for name, machine in MACHINES.items():
        with (folder / f"nccl-{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                gpus, collective = int(row["gpus"]), COLLECTIVES[row["collective"]]
                model = models.setdefault((machine, gpus), nccl_model(load(machine), range(gpus)))
                size, sums = int(row["bytes"]), row["type"] != "int8"
                choice = None if collective == "alltoall" else model.choose(collective, size, sums)
                group = (machine, collective, gpus)
                rows.append(Row(group, model, collective, sums, size, float(row["us"]), choice))
    return rows


def published() -> list[Row]:
    """Return the published times of NCCL, those of several nodes and of one."""
    runs = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["run"]
    rows = []
    for number, run in enumerate(runs, 1):
        if library_of(run) != "NCCL":
            continue
        topology = cluster(run)
        collective, nranks = run["collective"], run.get("ranks", topology.nranks)
        model = nccl_model(topology, range(nranks))
        for size, us in published_times(run, nranks):
            group = (f"{number:02}", collective, nranks)
            rows.append(Row(group, model, collective, True, size, us, model.choose(collective, size)))
    return rows


def solve(start: Sequence[fit.Fit], errors: Callable[[list[fit.Fit]], list[float]]) -> list[fit.Fit]:
    """Return figures that make errors small: robust least squares over the logarithms of all finite figures.

    Args:
        start: Figures to begin with; a figure of 0 or infinity stays.
        errors: Function that returns logarithms of modelled over measured times.
    """
    free = [(i, name) for i, item in enumerate(start) for name, value in item._asdict().items() if 0 < value < math.inf]
    first = np.log([getattr(start[i], name) for i, name in free])

    def figures(logarithms: Iterable[float]) -> list[fit.Fit]:
        """Return the figures of a point of the search."""
        items = list(start)
        for (i, name), logarithm in zip(free, logarithms, strict=True):
            items[i] = items[i]._replace(**{name: float(np.exp(logarithm))})
        return items

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        """Return all errors, and how far the figures are from their start."""
        return np.concatenate([errors(figures(logarithms)), PULL * (logarithms - first)])

    return figures(least_squares(residuals, first, loss="soft_l1", f_scale=SOFT).x)


def fit_nodes(rows: Sequence[Row], network: fit.Fitted) -> fit.Fitted:
    """Return the figures with those of each generation that has rows fitted to them."""
    fits = dict(network.fits)
    for generation in fits:
        own = [row for row in rows if fit.generation_of(row.model.communicator.capability) == generation]
        kinds = list(START)

        def errors(items: list[fit.Fit], own: list[Row] = own, generation: str = generation) -> list[float]:
            """Return the error of each row of the generation."""
            trial = replace(network, fits={**fits, generation: dict(zip(START, items, strict=True))})
            return [math.log(row.timed(trial).time_us / row.us) for row in own]

        fits[generation] = dict(zip(kinds, solve(list(START.values()), errors), strict=True))
    nvls = fits[fit.HOPPER][f.NVLS]  # Only Hopper's rows have any.
    return replace(network, fits={**fits, **{g: {**fits[g], f.NVLS: nvls} for g in (fit.AMPERE, fit.BLACKWELL)}})


def fit_network(rows: Sequence[Row], nodes: fit.Fitted) -> fit.Fitted:
    """Return the figures with those between nodes fitted to rows of several nodes."""
    own = [row for row in rows if row.model.communicator.nnodes > 1]

    def of(items: list[fit.Fit]) -> fit.Fitted:
        """Return all figures with those between nodes replaced."""
        return replace(nodes, network=dict(zip(f.PROTOCOLS, items[:3], strict=True)), stated=items[3].share)

    start = [*NETWORK_START.values(), fit.Fit(0.0, 0.0, STATED)]
    return of(solve(start, lambda items: [math.log(row.timed(of(items)).time_us / row.us) for row in own]))


def kind_of(row: Row, figures: fit.Fitted) -> str:
    """Return the kind of figures that a row's time is computed by."""
    choice = row.timed(figures)
    if choice.algorithm == fit.PAIRS:
        return f"{fit.PAIRS} {choice.protocol}"
    return f.NVLS if choice.algorithm in (f.NVLS, f.NVLS_TREE) else choice.protocol


def left_out(rows: Sequence[Row], network: fit.Fitted) -> list[list[tuple[str, float]]]:
    """Return kind and measured over modelled time of each row, by figures fitted without its fold of the rows."""
    groups = sorted({row.group for row in rows})
    folds = []
    for fold in range(FOLDS):
        held = set(groups[fold::FOLDS])
        figures = fit_nodes([row for row in rows if row.group not in held], network)
        own = [row for row in rows if row.group in held]
        folds.append([(kind_of(row, figures), row.us / row.timed(figures).time_us) for row in own])
    return folds


def spread(ends: np.ndarray) -> fit.ErrorInterval:
    """Return an interval with two ends, which is widened so that it has a margin on both sides of the modelled time."""
    return fit.ErrorInterval(min(float(ends[0]), 1 - MARGIN), max(float(ends[1]), 1 + MARGIN))


def spreads_of(ratios: Iterable[tuple[str, float]]) -> dict[str, fit.ErrorInterval]:
    """Return, by kind that has any, the interval that holds four fifths of ratios of measured over modelled time."""
    by_kind = defaultdict(list)
    for kind, ratio in ratios:
        by_kind[kind].append(ratio)
    return {kind: spread(np.quantile(by_kind[kind], [LOW, HIGH])) for kind in START if by_kind[kind]}


def spreads_between(rows: Sequence[Row], figures: fit.Fitted) -> dict[str, fit.ErrorInterval]:
    """Return the intervals between nodes, which hold four fifths of the rows, where each run has the same weight."""
    ratios: dict[str, dict[str, list[float]]] = {fit.NETWORK: defaultdict(list), fit.NETWORK_LARGE: defaultdict(list)}
    for row in rows:
        if row.model.communicator.nnodes > 1:
            kind = fit.NETWORK if row.size_bytes < fit.LARGE_BYTES else fit.NETWORK_LARGE
            ratios[kind][row.group[0]].append(row.us / row.timed(figures).time_us)
    spreads = {}
    for kind, runs in ratios.items():
        values = [ratio for of_run in runs.values() for ratio in of_run]
        weights = [1 / len(of_run) for of_run in runs.values() for _ in of_run]
        spreads[kind] = spread(np.quantile(values, [LOW, HIGH], weights=weights, method="inverted_cdf"))
    return spreads


def coverage(folds: Sequence[Sequence[tuple[str, float]]]) -> float:
    """Return the part of the rows that lie in intervals which were made without their fold."""
    inside = []
    for number, own in enumerate(folds):
        spreads = spreads_of(pair for other, fold in enumerate(folds) if other != number for pair in fold)
        inside += [spreads[kind].low <= ratio <= spreads[kind].high for kind, ratio in own if kind in spreads]
    return sum(inside) / len(inside)


def kernels(folder: Path) -> list[tuple[object, ...]]:
    """Return a row for each machine: our LL all-reduce beside the kernels of vLLM, SGLang and TensorRT-LLM.

    Kernels run in a CUDA graph, which launches sooner than a stream does. By how much is fitted for each machine.
    """
    lines = []
    for name, machine in MACHINES.items():
        times = []
        with (folder / f"custom-allreduce-{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                size, gpus = 2 * int(row["elements_bf16"]), int(row["gpus"])
                if size <= KERNEL_BYTES and not row["kernel"].endswith("eager"):
                    times.append((all_pairs_us(machine, gpus, size), float(row["us"])))
        ours, theirs = np.array(times).T
        saved_us = min(np.arange(0.0, 10.0, 0.05), key=lambda us: float(np.median(np.abs((ours - us) / theirs - 1))))
        errors = np.abs((ours - saved_us) / theirs - 1)
        lines.append((machine, len(times), f"{saved_us:.2f}", *(f"{x:.0%}" for x in np.quantile(errors, [0.5, 0.9]))))
    return lines


@cache
def all_pairs_us(machine: str, gpus: int, size_bytes: int) -> float:
    """Return the time in µs of an LL all-reduce in which all ranks send directly to all, in one step or in two."""
    model = MscclppModel(with_costs(load(machine)), tuple(range(gpus)))
    return min(model.priced(algorithm, True, size_bytes).time_us for algorithm in (ONE_SHOT, TWO_SHOT))


def text_of(figures: fit.Fitted, errors: str) -> str:
    """Return the file of fitted figures; `errors` says in a few words what errors are left."""
    lines = [
        "# Figures of NCCL's times, made by `python -m results.scripts.nccl_fit FOLDER`. They are fitted to measured",
        "# times of nccl-tests of NCCL 2.23 to 2.29: those of one node that NVIDIA's aiconfigurator publishes (A100,",
        "# H200, GB200), and the runs of several nodes in results/measuring/nccl_tests.toml. The fields are explained",
        "# in fitted.py, and results/tables/nccl_fit.md shows all errors that are left. Of one node's rows they are:",
        f"# {errors}.",
        "",
        f"stated = {figures.stated:.3g}",
        "",
        "# Measured over modelled time: one of ten rows is below the first number, and one above the second.",
        "[spreads]",
        *(f'"{kind}" = [{ends.low:.3f}, {ends.high:.3f}]' for kind, ends in figures.spreads.items()),
    ]
    for group, fits in (*figures.fits.items(), (fit.NETWORK, figures.network)):
        lines += ["", f"[{group}]"]
        for kind, item in fits.items():
            fields = ", ".join(f"{name} = {value:.3g}" for name, value in item._asdict().items() if value < math.inf)
            lines.append(f'"{kind}" = {{{fields}}}')
    return "\n".join(lines) + "\n"


def errors_table(rows: Sequence[Row], figures: fit.Fitted) -> list[tuple[object, ...]]:
    """Return a line for each group of rows: the median of measured over modelled time less 1, by class of sizes."""
    by_class = defaultdict(list)
    for row in rows:
        by_class[row.group, row.size_class].append(row.us / row.timed(figures).time_us - 1)

    def cell(errors: Sequence[float]) -> str:
        """Return the median of some errors as text."""
        return f"{statistics.median(errors):+.0%}" if errors else "–"

    groups = sorted({group for group, _ in by_class})
    return [(*group, *(cell(by_class[group, name]) for name, _ in CLASSES)) for group in groups]


def figures_table(figures: fit.Fitted) -> list[tuple[object, ...]]:
    """Return a line for each kind of figures of each generation."""
    return [
        (group, kind, *("–" if value in (0, math.inf) else f"{value:.3g}" for value in item))
        for group, fits in (*figures.fits.items(), (fit.NETWORK, figures.network))
        for kind, item in fits.items()
    ]


def main() -> None:
    """Fit, write the file of figures, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows, elsewhere = measured(folder), published()
    generations = {name: dict(START) for name in (fit.AMPERE, fit.HOPPER, fit.BLACKWELL)}
    figures = fit.Fitted(generations, NETWORK_START, STATED, dict.fromkeys(SPREADS, fit.ErrorInterval(1.0, 1.0)))
    figures = fit_network(elsewhere, fit_nodes(rows, figures))
    folds = left_out(rows, figures)
    spreads = spreads_of(pair for fold in folds for pair in fold)
    figures = replace(figures, spreads={**spreads, **spreads_between(elsewhere, figures)})
    errors = np.abs([row.us / row.timed(figures).time_us - 1 for row in rows])
    held = np.abs([ratio - 1 for fold in folds for _, ratio in fold])
    left = f"median {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}"
    left_of_held = f"median {np.median(held):.1%}, p90 {np.quantile(held, 0.9):.1%}"
    about = f"{left}; of rows that were left out of the fit {left_of_held}"
    fit.FILE.write_text(text_of(figures, about), encoding="utf-8")
    names = [name for name, _ in CLASSES]
    parts = [
        "The choice of algorithm, protocol and channels is that of NCCL 2.30's source. Its time is computed by the"
        " figures below, which are fitted to times of nccl-tests in one node (NVIDIA's aiconfigurator, state of"
        f" 2026-08-21: {len(rows)} rows of A100, H200 and GB200, NCCL 2.23 to 2.29) and to {len(elsewhere)} published"
        " times, most of them between nodes.",
        f"Size of the error, measured over modelled time less 1: {left}. On rows whose machine, collective and number"
        f" of GPUs were left out of the fit: {left_of_held}; {coverage(folds):.0%} of these rows lie in the interval"
        " for four of five, made without them.",
        "## Figures",
        "Between nodes, a step is a factor of the source's, and the start is added to that in a node. `copy` is the"
        " rate at which a rank copies its own part, or at which NVLS fills its buffers.",
        grid(
            ("GPUs", "kind", "start, µs", "step, µs", "share", "a channel, GB/s", "copy, GB/s"), figures_table(figures)
        ),
        "## Medians in one node",
        grid(("machine", "collective", "GPUs", *names), errors_table(rows, figures)),
        "## Medians of published runs",
        "Numbers are those of nccl_baseline.md.",
        grid(("run", "collective", "GPUs", *names), errors_table(elsewhere, figures)),
        "## An LL all-reduce of ours beside hand-written kernels",
        f"Up to {format_size(KERNEL_BYTES)}, in CUDA graphs: the kernels that vLLM, SGLang and TensorRT-LLM run, from"
        " the same collection. What a graph saves of a start is fitted.",
        grid(("machine", "rows", "a graph saves, µs", "median error", "p90"), kernels(folder)),
    ]
    write(__file__, page(__file__, "NCCL's times, fitted to measurements", parts))


if __name__ == "__main__":
    main()
