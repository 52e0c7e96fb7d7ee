"""The command `verify`: anyone's MSCCL XML or execution plan, replayed."""

from __future__ import annotations

import click

from emit.formats import check_place, format_of, verify_file
from emit.library.lookup import goal_beside, topology_beside
from synth.cli.options import json_option, print_json
from topologies.errors import InputError
from topologies.load import load


@click.command("verify")
@click.argument("file")
@click.option("--depth", type=int, metavar="N", help="FIFO slots. Default: the protocol's.")
@click.option("--topo", metavar="T", help="Where it will run. Default: the topology in the index beside it.")
@json_option
def verify(file: str, depth: int | None, topo: str | None, as_json: bool) -> None:
    """Replay an MSCCL XML or an execution plan (JSON), ours or another's: right, wrong, deadlock or not readable.

    Exit code 0 right, 1 wrong or deadlock, 2 not readable. Where it will run, all threadblocks of a rank must fit on
    the SMs of its device, or it hangs.

    \b
    synth verify out/msccl/FILE.xml
    """
    if depth is not None and depth < 1:
        raise InputError(f"--depth {depth}: must be 1 or more")
    if depth is not None and not format_of(file).has_fifo:
        raise InputError(f"--depth: {format_of(file).what} has no FIFO; leave it out")
    topology = None if topo is None else load(topo)
    verdict = verify_file(file, goal_beside(file), depth)
    if verdict.status != "not readable":
        place = topology_beside(file) if topology is None else topology
        if place is not None and (place.sms or topology is not None):  # who names none is not told what it lacks
            verdict = check_place(verdict, file, place)
    if as_json:
        findings = [
            {"kind": f.kind, "message": f.message, "rank": f.rank, "tb": f.tb, "step": f.step} for f in verdict.findings
        ]
        lines = list(verdict.lines)
        print_json({"file": file, "status": verdict.status, "lines": lines, "findings": findings})
    elif verdict.status == "not readable":
        raise InputError(f"not readable: {'; '.join(verdict.lines)}")
    else:
        click.echo(f"{file}: {verdict.status}")
        for line in verdict.lines:
            click.echo(f"  {line}")
    raise SystemExit(verdict.exit_code)
