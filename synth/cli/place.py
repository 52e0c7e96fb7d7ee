"""The command `place`: which ranks form which groups."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from emit.library.group_programs import GroupPrograms
from emit.library.save_groups import save_groups
from synth.cli.answer import check_target, check_writable, clear_progress, progress_line
from synth.cli.options import json_option, print_json, target_option, topo_option
from synth.cli.programs import write_text
from synth.concurrent.result import ConcurrentResult
from synth.model.numbers import parse_seconds
from synth.parallelism.axes import parse_axes
from synth.parallelism.launch import host_order, rankfile, torch_module
from synth.parallelism.placement import Ranking, rank_placements
from synth.parallelism.workload import read_workload
from synth.present.placement import placement_statement, placement_table
from synth.present.text import format_count, format_time
from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels, parse_levels
from topologies.load import load

levels_option = click.option(
    "--levels", metavar="L", help="Of the topology, outermost first, as rack:2,node:4,gpu:8. Default: found in it."
)
axes_option = click.option("--axes", required=True, metavar="A", help="Axes and their sizes, as pp=2,dp=2,tp=8.")


@click.command("place")
@topo_option
@levels_option
@axes_option
@click.option(
    "--workload", required=True, metavar="W", help="FILE.toml of [[call]] tables, or one of dense, dlrm, fsdp, moe."
)
@click.option("--budget", default="20s", metavar="TIME", help="For the searches of schedules. Default: 20s.")
@click.option(
    "--top",
    type=click.IntRange(0, 1000),
    default=8,
    metavar="N",
    help="Placements that get searched schedules. Default: 8; 0: none.",
)
@click.option("--exhaustive", is_flag=True, help="Also all other orders of the ranks, of small machines (to 9 ranks).")
@click.option("-o", "--out", metavar="DIR", help="Write the best: placement.json, mesh.py (torch), rankfile, hosts.")
@click.option(
    "--library", metavar="DIR", help="Write an executor's files for every group of the best placement, call by call."
)
@target_option("the first that can hold the groups' programs")
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
    as_json: bool,
) -> None:
    """Rank the placements of parallelism axes on a topology by the time of a training step.

    Every way to split the levels (racks, nodes, GPUs) among the axes is one placement. The default order is that of
    torch's init_device_mesh: the ranks in their own order, the last axis fastest.

    \b
    synth place --topo dgx-h100:4 --axes pp=2,dp=2,tp=8 --workload dense
    """
    for folder in (out, library):
        if folder is not None:
            check_writable(Path(folder))
    check_target(target)
    if library is not None and top == 0:
        raise InputError("--library: needs schedules, and --top 0 searches none; it must be --top 1 or more")
    show = progress_line(time.monotonic())
    try:
        topology = load(topo)
        hierarchy = find_levels(topology) if levels is None else parse_levels(levels, topology)
        known = parse_axes(axes, hierarchy)
        found = rank_placements(
            topology,
            hierarchy,
            known,
            read_workload(workload, known),
            budget=parse_seconds(budget, "--budget"),
            top=top,
            exhaustive=exhaustive,
            progress=lambda text: show(text, None),
        )
    finally:
        clear_progress()
    document = placement_statement(found)
    plans = [] if library is None else _plans_of_best(found)
    if out is not None:
        _write(Path(out), found, document, f"synth place --topo {topo} --axes {axes} --workload {workload}")
    made = {} if library is None else _save_library(found, plans, library, target)
    if as_json:
        print_json(document if library is None else {**document, "library": made})
    else:
        click.echo(placement_table(document))
        _say_files(out, library, made)
    if found.ended:
        raise SystemExit(130)


def _say_files(out: str | None, library: str | None, made: dict[str, dict[str, Any]]) -> None:
    if out is not None:
        click.echo(f"{out}: placement.json, mesh.py (torch), rankfile (Open MPI), hosts (Slurm, MPICH)")
    for name, saved in made.items():
        files = saved["files"]
        what = (
            f"no executor's file: {saved['unsaved']}"
            if saved["unsaved"]
            else f"{format_count(len(files), 'file')}, {format_time(saved['time_us'])}"
        )
        click.echo(f"{library}: {name}: {what}")


def _plans_of_best(found: Ranking) -> list[ConcurrentResult]:
    """The plan of every call of the best placement. Raises InputError where none was searched."""
    plans = []
    for i, call in enumerate(found.workload.calls):
        plan = found.plans.get((i, found.best.mesh.tobytes()))
        if plan is None:
            raise InputError(f"--library: no time was left to search schedules for {call.name!r}; give more --budget")
        plans.append(plan)
    return plans


def _save_library(
    found: Ranking, plans: Sequence[ConcurrentResult], folder: str, target: str
) -> dict[str, dict[str, Any]]:
    """Files for the groups of every call of the best placement; by call files, time_us and why there are none."""
    step, made = found.workload, {}
    for i, (call, plan) in enumerate(zip(step.calls, plans, strict=True)):
        # The packets of an MSCCL++ plan are counted by process: not where a rank is in two calls at a time.
        at_once = target == "mscclpp" and any(i in phase and len(phase) > 1 for phase in step.phases)
        saved = save_groups(plan, folder, GroupPrograms(target, groups_overlap=at_once))
        made[call.name] = {"files": list(map(str, saved.files)), "time_us": saved.time_us, "unsaved": saved.refused}
    return made


def _write(folder: Path, found: Ranking, document: dict[str, object], source: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    best = found.best
    write_text(folder / "placement.json", json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    write_text(folder / "mesh.py", torch_module(best.mesh, found.axes, source))
    write_text(folder / "rankfile", rankfile(found.topology, best.order))
    write_text(folder / "hosts", host_order(found.topology, best.order))
