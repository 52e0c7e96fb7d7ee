"""The command `convert`: anyone's MSCCL XML or execution plan for another executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from emit.formats import FORMATS, write_program
from emit.targets import check_overlap, choose_target, on_devices, only_target_of, target_named, without_packets
from synth.cli.options import overlap_option, scratch_option, sms_option, target_option
from synth.cli.programs import (
    check_not_source,
    nodes_at,
    place_program,
    read_program,
    scratch_bytes,
    sms_at,
    write_text,
)
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import opened, origin_of


@click.command("convert")
@click.argument("source")
@click.argument("out")
@sms_option("all SMs of a device of --topo; any number without")
@scratch_option
@target_option("whose files end as OUT does, else the first that can")
@click.option("--protocol", type=click.Choice(["Simple", "LL", "LL128"]), help="Default: the file's.")
@click.option("--topo", metavar="T", help="Where it will run: a plan uses port channels between nodes.")
@click.option("--group", metavar="RANKS", help="The topology's rank of each of the file's. Default: 0, 1, …")
@click.option("--nodes", metavar="N,N,…", help="The node of each rank, instead of --topo. Default: all in one.")
@click.option(
    "--inplace/--outofplace", "inplace", default=None, help="Of the plan's calls. Default: as the file has it."
)
@overlap_option
def convert(
    source: str,
    out: str,
    sms: int | None,
    scratch_limit: str | None,
    target: str,
    protocol: str | None,
    topo: str | None,
    group: str | None,
    nodes: str | None,
    inplace: bool | None,
    groups_overlap: bool,
) -> None:
    """Convert anyone's MSCCL XML or plan (JSON) for another executor; it is checked before and after.

    \b
    synth convert a.xml b.json --nodes 0,0,1,1
    synth convert a.xml b.xml --target msccl
    """
    chosen = only_target_of(Path(out).suffix) if target == "auto" else target_named(target)
    placed = chosen is not None and FORMATS[chosen.format].placed
    if not placed and (topo, group, nodes, inplace) != (None, None, None, None):
        raise InputError("--topo, --group, --nodes, --inplace and --outofplace are about plans; give OUT.json")
    opened(source, "an MSCCL XML file").close()
    check_not_source(out, source)
    _, goal, verdict = read_program(source)
    program = verdict.right_program(source)
    if protocol is not None:
        program = replace(program, protocol=protocol)
    chosen = chosen or choose_target(program.collective)
    if groups_overlap:
        check_overlap(chosen.name)
        if protocol == "LL":
            raise InputError("--protocol LL: does not go with --groups-overlap; it must be Simple")
        program, chosen = replace(program, protocol="Simple"), without_packets(chosen)
    where = _nodes(program.nranks, nodes, topo, group)
    place = place_program(program.nranks, topo, group)
    chosen = on_devices(
        chosen, sms_at(place), sms_at(place) or None if sms is None else sms, scratch_bytes(scratch_limit)
    )
    try:
        text = write_program(program, goal, chosen, nodes=where or nodes_at(place), inplace=inplace)
    except InputError as error:
        if placed or "limit: " not in str(error):
            raise
        raise InputError(f"{error}; synth optimize {source} --target {chosen.name} compiles it anew") from None
    write_text(out, text)
    click.echo(f"{origin_of(out)}: {FORMATS[chosen.format].describe(program, chosen, text)}")


def _nodes(nranks: int, nodes: str | None, topo: str | None, group: str | None) -> list[int] | None:
    """The node of each rank, from the option that says it."""
    if nodes is None:
        return None
    if topo is not None or group is not None:
        raise InputError("--nodes: says what --topo and --group would; give one of them")
    numbers = nodes.split(",")
    if not all(n.isascii() and n.isdecimal() and len(n) < 7 for n in numbers) or len(numbers) != nranks:
        raise InputError(f"--nodes {shown(nodes)}: must be {nranks} numbers, one a rank, as in 0,0,1,1")
    return [int(n) for n in numbers]
