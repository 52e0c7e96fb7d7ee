"""The command `place`, which ranks the placements of parallelism axes on a topology."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from emit.library.group_programs import GroupPrograms
from emit.library.saving.save_groups import save_groups
from synth.app.cli.asking.answer import check_target, check_writable, clear_progress, progress_line
from synth.app.cli.options import json_option, print_json, target_option, topo_option, wide_option
from synth.app.cli.programs import write_text
from synth.app.present.layout import say_fitted, terminal_width
from synth.app.present.placement import placement_statement, placement_table
from synth.concurrent.result import ConcurrentResult
from synth.model.numbers import parse_seconds
from synth.model.text import format_count, format_time
from synth.parallelism.axes import parse_axes
from synth.parallelism.launch import host_order, rankfile, torch_module
from synth.parallelism.placement import Ranking, rank_placements
from synth.parallelism.workload import read_workload
from synth.search.settings import AUTO, TargetSettings
from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels, parse_levels
from topologies.load import load

levels_option = click.option(
    "--levels",
    metavar="L",
    help="Use these levels, outermost first, as rack:2,node:4,gpu:8. Default: those of the topology.",
)
axes_option = click.option("--axes", required=True, metavar="A", help="Place axes of these sizes, as pp=2,dp=2,tp=8.")


@click.command("place")
@topo_option
@levels_option
@axes_option
@click.option(
    "--workload",
    required=True,
    metavar="W",
    help="Time this workload: a FILE.toml of [[call]] tables, or dense, dlrm, fsdp or moe.",
)
@click.option(
    "--budget", default="20s", metavar="TIME", help="Limit the time of the searches for schedules. Default: 20s."
)
@click.option(
    "--top",
    type=click.IntRange(0, 1000),
    default=8,
    metavar="N",
    help="Search schedules for the N best placements. Default: 8; 0 searches none.",
)
@click.option(
    "--exhaustive", is_flag=True, help="Also rank all other orders of the ranks, on machines with at most 9 ranks."
)
@click.option(
    "-o", "--out", metavar="DIR", help="Write the best placement: placement.json, mesh.py (torch), rankfile, hosts."
)
@click.option(
    "--library", metavar="DIR", help="Write an executor's files for each group of the best placement to this library."
)
@target_option("that of the machine, or else the first that can hold the groups' programs")
@wide_option
@json_option
def place(
    topo: str,
    levels: str | None,
    axes: str,
    workload: str,
    budget: str,
    top: int,
    exhaustive: bool,
    out: str | None,
    library: str | None,
    target: str,
    wide: bool,
    as_json: bool,
) -> None:
    """Rank the placements of parallelism axes on a topology by the time of a training step.

    Each possible split of the levels (racks, nodes, GPUs) among the axes is a placement. The default order is that of
    torch's init_device_mesh: ascending ranks, the last axis fastest.

    \b
    synth place --topo dgx-h100:4 --axes pp=2,dp=2,tp=8 --workload dense
    """
    for option, folder in (("--out", out), ("--library", library)):
        if folder is not None:
            check_writable(Path(folder), option=option)
    check_target(target)
    if library is None and target != AUTO:
        raise InputError("--target: chooses the files of --library, which is not given; leave it out")
    if library is not None and top == 0:
        raise InputError("--library: needs schedules, but --top 0 searches none; give --top 1 or more")
    show = progress_line(time.monotonic())
    try:
        topology = load(topo)
        hierarchy = find_levels(topology) if levels is None else parse_levels(levels, topology)
        parsed_axes = parse_axes(axes, hierarchy)
        ranking = rank_placements(
            topology,
            hierarchy,
            parsed_axes,
            read_workload(workload, parsed_axes),
            budget=parse_seconds(budget, "--budget"),
            top=top,
            exhaustive=exhaustive,
            progress=lambda text: show(text, None),
        )
    finally:
        clear_progress()
    document = placement_statement(ranking)
    plans = [] if library is None else _plans_of_best(ranking)
    if out is not None:
        _write(Path(out), ranking, document, f"synth place --topo {topo} --axes {axes} --workload {workload}")
    saved_calls = {} if library is None else _save_library(ranking, plans, library, target)
    if as_json:
        print_json("placement", document if library is None else {**document, "library": saved_calls})
    else:
        click.echo(placement_table(document, None if wide else terminal_width()))
        if out is not None:
            say_fitted(f"{out}: placement.json, mesh.py (torch), rankfile (Open MPI), hosts (Slurm, MPICH)")
        for name, saved in saved_calls.items():
            say_fitted(f"{library}: {name}: {_outcome(saved)}")
    if ranking.stop_reason:
        raise SystemExit(130)


def _outcome(saved: dict[str, Any]) -> str:
    """Return the number of files that were written for a call and their time, or why there are none, as text."""
    if saved["unsaved"]:
        return f"no executor's file: {saved['unsaved']}"
    return f"{format_count(len(saved['files']), 'file')}, {format_time(saved['time_us'])}"


def _plans_of_best(ranking: Ranking) -> list[ConcurrentResult]:
    """Return the plan of each call of the best placement, in the workload's order.

    Raises:
        InputError: No schedule was searched for a call before the budget ended.
    """
    plans = []
    for i, call in enumerate(ranking.workload.calls):
        plan = ranking.plans.get((i, ranking.best.mesh.tobytes()))
        if plan is None:
            raise InputError(
                f"--library: the budget ended before a schedule for {call.name!r} was found; try a longer --budget"
            )
        plans.append(plan)
    return plans


def _save_library(
    ranking: Ranking, plans: Sequence[ConcurrentResult], folder: str, target: str
) -> dict[str, dict[str, Any]]:
    """Write files for the groups of each call of the best placement to a library.

    Args:
        ranking: The ranking.
        plans: The plan of each call.
        folder: The library.
        target: The executor of the files.

    Returns:
        By the call's name: files (paths as text), time_us (of the programs in µs; None without files) and unsaved (why
        there are none, or "").
    """
    step, saved_calls = ranking.workload, {}
    for i, (call, plan) in enumerate(zip(step.calls, plans, strict=True)):
        # An MSCCL++ plan counts packets by process, so it cannot use them if a rank is in two calls at a time.
        at_once = target == "mscclpp" and any(i in phase and len(phase) > 1 for phase in step.phases)
        saved = save_groups(plan, folder, GroupPrograms(TargetSettings(target, groups_overlap=at_once)))
        files = list(map(str, saved.files))
        saved_calls[call.name] = {"files": files, "time_us": saved.time_us, "unsaved": saved.refused}
    return saved_calls


def _write(folder: Path, ranking: Ranking, document: dict[str, object], source: str) -> None:
    """Write the best placement into a folder, which is created, in the forms that launchers read.

    The files are placement.json (the whole ranking), mesh.py (torch), rankfile (Open MPI) and hosts (Slurm, MPICH).

    Args:
        folder: The folder.
        ranking: The ranking.
        document: Its statement.
        source: The command, for a comment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    best = ranking.best
    write_text(folder / "placement.json", json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    write_text(folder / "mesh.py", torch_module(best.mesh, ranking.axes, source))
    write_text(folder / "rankfile", rankfile(ranking.topology, best.order))
    write_text(folder / "hosts", host_order(ranking.topology, best.order))
