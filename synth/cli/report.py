"""The command `report`: one page about a schedule, a program, a library or a folder of them."""

from __future__ import annotations

import time

import click

from emit.report.page import report as made
from emit.report.placement import find_placement, placement_page
from synth.cli.programs import write_text
from synth.model.problem import parse_ranks
from synth.model.sizes import parse_size
from synth.present.text import format_count
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import origin_of

_LONG = 300  # what is wrong stands in full on the page


@click.command("report")
@click.argument("path", metavar="FILE|DIR")
@click.option("-o", "--out", default="report.html", metavar="FILE", help="The page. Default: report.html.")
@click.option("--topo", metavar="T", help="Where programs run: shows predicted times instead of steps.")
@click.option("--group", metavar="RANKS", help="With --topo: the rank of each of a program's ranks, as 0,2,4-7.")
@click.option("--size", metavar="BYTES", help="With --topo: message size of the timeline. Default: 1M.")
def report(path: str, out: str, topo: str | None, group: str | None, size: str | None) -> None:
    """Draw the network, the timeline, the frontier and the proof on one self-contained page.

    From a schedule (.synth), an MSCCL XML, an execution plan (JSON), a library's index.json, or a folder of these; or
    from what synth place -o DIR wrote: the hierarchy with every axis's groups, the load of levels and the ranking.
    Schedules are replayed, proofs worked out again, programs checked. Exit code 0 all right, 1 something in it is
    wrong, 2 not readable.

    \b
    synth report out -o report.html
    """
    begun = time.monotonic()
    if not out:
        raise InputError("--out: is empty; give the name of a file")
    for option, value in (("group", group), ("size", size)):
        if value is not None and topo is None:
            raise InputError(f"--{option}: goes with --topo, which says where programs run")
    ranking = find_placement(path)
    if ranking is not None:
        if topo is not None:
            raise InputError("--topo: does not go with a ranking of placements, which has its own; leave it out")
        html = placement_page(ranking, path)
        write_text(out, html)
        many = format_count(len(ranking["placements"]), "placement")
        click.echo(f"{origin_of(out)}: {many}, {len(html.encode()) / 1e6:.2f} MB   {time.monotonic() - begun:.1f} s")
        return
    topology = None if topo is None else load(topo)
    ranks = None if group is None or topology is None else parse_ranks(group, "--group", topology.nranks)
    page = made(path, topology, ranks, None if size is None else float(parse_size(size, "--size")))
    write_text(out, page.html)
    what = f"{format_count(page.algorithms, 'algorithm')}, {len(page.html.encode()) / 1e6:.2f} MB"
    click.echo(f"{origin_of(out)}: {what}   {time.monotonic() - begun:.1f} s")
    for name, why in page.wrong.items():
        click.echo(f"{origin_of(name)}: wrong: {why if len(why) <= _LONG else why[:_LONG] + '…'}")
    if page.wrong:
        raise SystemExit(1)
