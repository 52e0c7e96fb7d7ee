"""The command `tune`, which measures methods on this machine and writes the table that chooses between them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path

import click

from runtime.backends import BACKENDS
from runtime.measure.tune import (
    LEAST_PAIRS,
    Measurement,
    choose,
    describe_choice,
    format_choices,
    parse_collectives,
    parse_sizes,
    parse_types,
    select_methods,
)
from runtime.torch.choice import Chooser, Method
from runtime.torch.launch import is_rank_of_job, launch_ranks, ranks_of_job
from runtime.torch.table import SPLIT_ALLTOALL
from synth.app.cli.programs import write_text
from synth.app.present.layout import say_fitted, warn
from synth.model.problem import parse_ranks
from synth.storage.columns import check_replaceable
from topologies.errors import InputError

_ranks = click.option(
    "--ranks",
    type=click.IntRange(2, 1024),
    metavar="N",
    help="Start N processes here. Without this option, torchrun must have started this process.",
)


@click.command("tune")
@click.option("--backend", type=click.Choice(["torch"]), default="torch", help="Measure this back end.")
@click.option(
    "--ops", default="all", metavar="NAMES", help="Measure these collectives, separated by commas. Default: all."
)
@click.option(
    "--sizes",
    default="4:64M",
    metavar="FROM:TO",
    help="Measure sizes FROM to TO, each four times the last, or FROM:TO:FACTOR, or a list.",
)
@click.option(
    "--types",
    default="float32",
    metavar="NAMES",
    help="Measure these torch types, separated by commas. Default: float32.",
)
@click.option(
    "--group", "groups", multiple=True, metavar="RANKS", help="Measure this group; repeat. Default: all ranks."
)
@click.option("--library", metavar="DIR", help="Also measure this library's algorithms. Default: SYNTH_LIBRARY.")
@click.option(
    "--turns",
    type=click.IntRange(LEAST_PAIRS),
    default=15,
    metavar="N",
    help=f"Run N pairs, ours and the wrapped back end's, {LEAST_PAIRS} or more. Default: 15.",
)
@_ranks
@click.option(
    "-o", "--out", default="table.json", metavar="FILE", help="Write the table to this file. Default: table.json."
)
def tune(
    backend: str,
    ops: str,
    sizes: str,
    types: str,
    groups: tuple[str, ...],
    library: str | None,
    turns: int,
    ranks: int | None,
    out: str,
) -> None:
    """Measure torch's own back end and our algorithms, and write the table that SYNTH_BACKEND=auto reads.

    \b
    synth tune --ranks 2 --ops allreduce --sizes 1K:64K
    torchrun --nproc-per-node 8 -m synth tune --library out
    """
    if library is not None:
        os.environ["SYNTH_LIBRARY"] = library
    names, sizes_bytes, kinds = parse_collectives(ops), parse_sizes(sizes), parse_types(types)
    if ranks is not None:
        _check_tune(groups, ranks, out)
    BACKENDS[backend].require()
    _start_here(ranks)
    from runtime.measure.over_torch import gather_all, joined  # This module needs PyTorch.

    measurements: list[Measurement] = []
    with joined() as (rank, world):
        try:
            for measurement in _measure(_check_tune(groups, world, out), names, sizes_bytes, kinds, turns, rank):
                measurements.append(measurement)
            own_measurements, measurements = measurements, gather_all(measurements)
        except (KeyboardInterrupt, RuntimeError) as error:
            if rank == 0 and measurements:
                path = f"{out}.part" if Path(out).exists() else out  # Do not replace a complete table by a part.
                _write_table(measurements, path, "with the measurements so far")
            if isinstance(error, RuntimeError):
                raise
            os._exit(130)  # Other ranks still wait inside a collective.
    if not measurements:
        raise InputError(f"--sizes {sizes}: are too small for one element in each block; give larger sizes")
    if rank == 0:
        for _, same_case in groupby(
            (measurement for measurement in measurements if measurement not in own_measurements),
            key=lambda measurement: (measurement.group, measurement.kind, measurement.size_bytes),
        ):
            _print_measured(list(same_case))
        _write_table(measurements, out, "")
    if any(measurement.wrong for measurement in measurements):
        raise SystemExit(1)


def _measure(
    groups: Sequence[tuple[int, ...]],
    names: Sequence[str],
    sizes: Sequence[int],
    kinds: Sequence[str],
    turns: int,
    rank: int,
) -> Iterator[Measurement]:
    """Yield a measurement for each method, size, type, collective and group of this rank; rank 0 prints them.

    Sizes too small for one element in each block are left out. Every rank of a group must iterate it.

    Args:
        groups: The groups to measure.
        names: Names of the collectives.
        sizes: Message sizes in bytes, ascending.
        kinds: Names of the torch types.
        turns: Number of pairs of runs, ours and the wrapped back end's.
        rank: This process's rank.
    """
    from runtime.measure.over_torch import Case, make_groups, measure_methods  # These modules need PyTorch.
    from runtime.measure.split_case import SplitCase

    chooser = Chooser.of_environment()
    for members, group in make_groups(groups):
        if rank not in members:
            continue
        if rank == 0:
            _warn_unused(chooser, members)
        for name, kind in product(names, kinds):
            smaller: list[Measurement] = []
            last_method: Method | None = None  # our method that was compared last
            kind_of_case, plain_name = (SplitCase, "alltoall") if name == SPLIT_ALLTOALL else (Case, name)
            for case in (kind_of_case(plain_name, size, kind, ranks=members) for size in sizes):
                if not case.block:
                    continue
                methods = chooser.methods(case.call)
                selected = select_methods(methods, smaller)
                measured = measure_methods(case, selected, group, turns, last_method)
                last_method = next((measurement.method for measurement in measured if measurement.gains), last_method)
                smaller += measured
                yield from measured
                if rank == 0:
                    _print_measured(measured, [method.algorithm for method in methods if method not in selected])


def _check_tune(groups: Sequence[str], world: int, out: str) -> list[tuple[int, ...]]:
    """Return the groups to measure, each ascending, after all other checks; all ranks without a group.

    Args:
        groups: Texts of the option `--group`.
        world: Number of ranks.
        out: The file that is to be written.

    Raises:
        InputError: A group is wrong or has one rank, the file cannot be written, or a library or table is wrong.
    """
    # Torch numbers the ranks of a group in ascending order.
    groups_of_ranks = [tuple(sorted(parse_ranks(text, "--group", world))) for text in groups] or [tuple(range(world))]
    for members in groups_of_ranks:
        if len(members) < 2:
            raise InputError(f"--group {','.join(map(str, members))}: has one rank; it must have two or more")
    check_replaceable(out)
    _ = Chooser.of_environment().basis  # Read all named files, to raise for a wrong one.
    return groups_of_ranks


def _warn_unused(chooser: Chooser, members: Sequence[int]) -> None:
    """Print a warning if there is a library, but it has no file for groups of this size."""
    if chooser.entries and not any(entry.nranks == len(members) for entry in chooser.entries):
        served = sorted({f"{entry.collective} of {entry.nranks} ranks" for entry in chooser.entries})
        warn(f"# the library has nothing for {len(members)} ranks: {', '.join(served)}")


def _print_measured(measurements: Sequence[Measurement], left_out: Sequence[str | None] = ()) -> None:
    """Print the measurements at one size, the fastest first, with the reasons why faster ones are not chosen.

    Args:
        measurements: The measurements of one case; at least one. `*` marks the chosen one.
        left_out: Names of the algorithms that were not measured.
    """
    chosen, first = choose(measurements), measurements[0]
    click.echo(
        f"{first.collective} of ranks {','.join(map(str, first.group))}, {first.size_bytes} bytes of {first.kind}"
    )
    for m in sorted(measurements, key=lambda m: m.time_us):
        note = describe_choice(m, measurements)
        say_fitted(f"  {'*' if m is chosen else ' '} {m.time_us:>12.1f} µs  {m.ran}{f'  {note}' if note else ''}")
    if left_out:
        say_fitted(f"    left out, as they fall back at each size: {', '.join(map(str, left_out))}")


def _write_table(measurements: Sequence[Measurement], out: str, note: str) -> None:
    """Write the table of the chosen methods, and print how to use it.

    Args:
        measurements: All measurements.
        out: The file.
        note: A clause for the printed line; "" for none.
    """
    write_text(out, format_choices(measurements))
    say_fitted(f"wrote {out}{f', {note}' if note else ''}: SYNTH_TABLE={out} makes SYNTH_BACKEND=auto follow it")


def _start_here(ranks: int | None) -> None:
    """Return if this process is a rank of a job; otherwise start the ranks here and exit with their exit code.

    Args:
        ranks: Number of processes to start; None in a rank of a job.

    Raises:
        InputError: There is neither a job nor a number, or the job has another number of ranks.
        SystemExit: The started ranks have ended.
    """
    if is_rank_of_job():
        if ranks is not None and (job := ranks_of_job()) not in (None, ranks):
            raise InputError(f"--ranks {ranks}: this is a rank of a job of {job}; leave the option out")
        return
    if ranks is None:
        raise InputError("--ranks: is missing; give the number of processes to start, or use torchrun")
    raise SystemExit(launch_ranks(ranks, sys.argv[1:]))
