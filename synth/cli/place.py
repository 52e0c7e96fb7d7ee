"""The command `place`: which ranks form which groups."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from synth.cli.answer import check_writable, clear_progress, progress_line
from synth.cli.options import json_option, print_json, topo_option
from synth.cli.programs import write_text
from synth.model.numbers import parse_seconds
from synth.parallelism.axes import parse_axes
from synth.parallelism.hierarchy import find_levels, parse_levels
from synth.parallelism.launch import host_order, rankfile, torch_module
from synth.parallelism.placement import Ranking, rank_placements
from synth.parallelism.workload import read_workload
from synth.present.placement import placement_statement, placement_table
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
    as_json: bool,
) -> None:
    """Rank the placements of parallelism axes on a topology by the time of a training step.

    Every way to split the levels (racks, nodes, GPUs) among the axes is one placement. The default order is that of
    torch's init_device_mesh: the ranks in their own order, the last axis fastest.

    \b
    synth place --topo dgx-h100:4 --axes pp=2,dp=2,tp=8 --workload dense
    """
    if out is not None:
        check_writable(Path(out))
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
    if out is not None:
        _write(Path(out), found, document, f"synth place --topo {topo} --axes {axes} --workload {workload}")
    if as_json:
        print_json(document)
        return
    click.echo(placement_table(document))
    if out is not None:
        click.echo(f"{out}: placement.json, mesh.py (torch), rankfile (Open MPI), hosts (Slurm, MPICH)")


def _write(folder: Path, found: Ranking, document: dict[str, object], source: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    best = found.best
    write_text(folder / "placement.json", json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    write_text(folder / "mesh.py", torch_module(best.mesh, found.axes, source))
    write_text(folder / "rankfile", rankfile(found.topology, best.order))
    write_text(folder / "hosts", host_order(found.topology, best.order))
