"""The command `tune`: measures methods on this machine and writes the table that chooses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from statistics import median

import click

from runtime.backends import BACKENDS
from runtime.measure.tune import (
    CONFIDENCE,
    GAIN,
    LEAST_PAIRS,
    Measurement,
    choose,
    format_choices,
    parse_collectives,
    parse_sizes,
    parse_types,
    select_methods,
)
from runtime.torch.choice import Chooser, Method
from runtime.torch.launch import is_rank_of_job, launch_ranks, ranks_of_job
from synth.cli.programs import write_text
from synth.model.problem import parse_ranks
from synth.storage.columns import check_replaceable
from topologies.errors import InputError

_ranks = click.option(
    "--ranks",
    type=click.IntRange(2, 1024),
    metavar="N",
    help="Start so many processes here. Without it: a rank of a job that torchrun started.",
)


@click.command("tune")
@click.option("--backend", type=click.Choice(["torch"]), default="torch", help="What is measured.")
@click.option("--ops", default="all", metavar="NAMES", help="Collectives, with commas. Default: all.")
@click.option(
    "--sizes", default="4:64M", metavar="FROM:TO", help="Each four times the last; FROM:TO:FACTOR; or a list."
)
@click.option("--types", default="float32", metavar="NAMES", help="torch's, with commas. Default: float32.")
@click.option("--group", "groups", multiple=True, metavar="RANKS", help="A group; again for more. Default: all.")
@click.option("--library", metavar="DIR", help="Measure its algorithms, too. Default: SYNTH_LIBRARY.")
@click.option(
    "--turns",
    type=click.IntRange(LEAST_PAIRS),
    default=15,
    metavar="N",
    help=f"Pairs of runs, ours and the wrapped back end's, {LEAST_PAIRS} or more. Default: 15.",
)
@_ranks
@click.option("-o", "--out", default="table.json", metavar="FILE", help="The table. Default: table.json.")
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
    torchrun --nproc-per-node 8 -m synth.cli tune --library out
    """
    BACKENDS[backend].require()
    if library is not None:
        os.environ["SYNTH_LIBRARY"] = library
    names, wanted, kinds = parse_collectives(ops), parse_sizes(sizes), parse_types(types)
    _start_here(ranks, lambda count: _check_tune(groups, count, out))
    from runtime.measure.over_torch import gather_all, joined  # needs PyTorch

    found: list[Measurement] = []
    with joined() as (me, world):
        try:
            for one in _measure(_check_tune(groups, world, out), names, wanted, kinds, turns, me):
                found.append(one)
            own, found = found, gather_all(found)
        except (KeyboardInterrupt, RuntimeError) as error:
            if me == 0 and found:
                part = f"{out}.part" if Path(out).exists() else out  # a whole table is not replaced by part of one
                _write_table(found, part, "what was measured until then")
            if isinstance(error, RuntimeError):
                raise
            os._exit(130)  # the others stand in the middle of a collective
    if not found:
        raise InputError(f"--sizes {sizes}: hold no element of every block; it must be larger")
    if me == 0:
        for _, same in groupby((m for m in found if m not in own), key=lambda m: (m.group, m.kind, m.size_bytes)):
            _print_measured(list(same))
        _write_table(found, out, "")
    if any(m.wrong for m in found):
        raise SystemExit(1)


def _measure(
    groups: Sequence[tuple[int, ...]],
    names: Sequence[str],
    sizes: Sequence[int],
    kinds: Sequence[str],
    turns: int,
    me: int,
) -> Iterator[Measurement]:
    """Every method of every collective of the groups that this rank is in; rank 0 prints what came out."""
    from runtime.measure.over_torch import Case, make_groups, measure_methods  # needs PyTorch

    chooser = Chooser.of_environment()
    for members, group in make_groups(groups):
        if me not in members:
            continue
        if me == 0:
            _warn_unused(chooser, members)
        for name, kind in product(names, kinds):
            smaller: list[Measurement] = []
            last: Method | None = None  # of ours, what was compared
            for case in (Case(name, size, kind, ranks=members) for size in sizes):
                if not case.block:
                    continue
                methods = chooser.methods(case.call)
                kept = select_methods(methods, smaller)
                new = measure_methods(case, kept, group, turns, last)
                last = next((m.method for m in new if m.gains), last)
                smaller += new
                yield from new
                if me == 0:
                    _print_measured(new, [method.algorithm for method in methods if method not in kept])


def _check_tune(groups: Sequence[str], world: int, out: str) -> list[tuple[int, ...]]:
    """The groups to measure, once nothing else is wrong."""
    # torch numbers the ranks of a group in rising order
    found = [tuple(sorted(parse_ranks(text, "--group", world))) for text in groups] or [tuple(range(world))]
    for members in found:
        if len(members) < 2:
            raise InputError(f"--group {','.join(map(str, members))}: is one rank; it must be two or more")
    check_replaceable(out)
    _ = Chooser.of_environment().basis  # reads all that is named
    return found


def _warn_unused(chooser: Chooser, members: Sequence[int]) -> None:
    if chooser.entries and not any(entry.nranks == len(members) for entry in chooser.entries):
        there = sorted({f"{entry.collective} of {entry.nranks} ranks" for entry in chooser.entries})
        click.echo(f"# the library has nothing for {len(members)} ranks: {', '.join(there)}", err=True)


def _print_measured(new: Sequence[Measurement], left_out: Sequence[str | None] = ()) -> None:
    """What came out at one size, the fastest first."""
    chosen, one = choose(new), new[0]
    click.echo(f"{one.collective} of ranks {','.join(map(str, one.group))}, {one.size_bytes} bytes of {one.kind}")
    for m in sorted(new, key=lambda m: m.time_us):
        note = "" if not m.wrong else f"  {m.wrong} elements wrong"
        if m.gains:
            limit = f"at least {m.sure_gain:.2f} with {CONFIDENCE:.0%}" if m.sure_gain else "not surely more"
            note = f"  gain {median(m.gains):.2f}, {limit}{'' if m is chosen else f'; {GAIN} is asked for'}"
        click.echo(f"  {'*' if m is chosen else ' '} {m.time_us:>12.1f} µs  {m.ran}{note}")
    if left_out:
        click.echo(f"    left out, falling back with every size: {', '.join(map(str, left_out))}")


def _write_table(found: Sequence[Measurement], out: str, note: str) -> None:
    write_text(out, format_choices(found))
    click.echo(f"wrote {out}{f', {note}' if note else ''}: SYNTH_TABLE={out} makes SYNTH_BACKEND=auto follow it")


def _start_here(ranks: int | None, check: Callable[[int], object]) -> None:
    """Returns in a rank; else starts the ranks here, after `check`, and leaves with their exit code."""
    if is_rank_of_job():
        if ranks is not None and (job := ranks_of_job()) not in (None, ranks):
            raise InputError(f"--ranks {ranks}: this is a rank of a job of {job}; it must be left out")
        return
    if ranks is None:
        raise InputError("--ranks: is not given; it must be how many processes to start, or use torchrun")
    check(ranks)
    raise SystemExit(launch_ranks(ranks, sys.argv[1:]))
