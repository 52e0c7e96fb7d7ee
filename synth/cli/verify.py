"""The command `verify`: anyone's MSCCL XML or execution plan, replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from emit.findings import Findings, Verdict
from emit.formats import check_place, format_of, name_in, verify_file
from emit.library.lookup import entry_beside, goal_beside, namesake_beside, place_beside
from synth.cli.options import json_option, print_json
from synth.cli.programs import check_depth, place_program
from topologies.errors import InputError
from topologies.text.fields import shown


@click.command("verify")
@click.argument("file")
@click.option("--depth", type=int, metavar="N", help="FIFO slots. Default: the protocol's.")
@click.option("--topo", metavar="T", help="Where it will run. Default: what the index beside it says.")
@click.option("--group", metavar="RANKS", help="The topology's rank of each of the file's. Default: 0, 1, …")
@click.option(
    "--target", metavar="NAME", help="Whose reader must take it. Default: the index beside it says; else any may."
)
@json_option
def verify(
    file: str, depth: int | None, topo: str | None, group: str | None, target: str | None, as_json: bool
) -> None:
    """Replay an MSCCL XML or an execution plan (JSON), ours or another's: right, wrong, deadlock or not readable.

    Exit code 0 right, 1 wrong or deadlock, 2 not readable. Where it will run, all threadblocks of a rank must fit on
    the SMs of its device, and messages be of a protocol that works between nodes, or it hangs.

    \b
    synth verify out/msccl/FILE.xml
    synth verify a.xml --target rccl
    """
    check_depth(file, depth)
    readers = format_of(file).readers
    if target is None and (entry := entry_beside(file)) is not None and entry.target in readers:
        target = entry.target
    if target is not None and target not in readers:
        right = f"one of {', '.join(readers)}" if readers else "left out"
        raise InputError(f"--target {target}: does not read {format_of(file).what}; it must be {right}")
    verdict = verify_file(file, goal_beside(file), depth, target)
    if verdict.status != "not readable":
        verdict = _placed(_named(verdict, file), file, topo, group)
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


def _named(verdict: Verdict, file: str) -> Verdict:
    """The verdict with what is wrong beside the other files of a library."""
    other, found = namesake_beside(file), Findings()
    if other is not None:
        right = "by which its executor keeps what it has loaded; it must be a name of its own"
        found.add("inconsistent", f"name {shown(name_in(Path(file)))} is that of {other} too, {right}")
    return verdict.with_findings(found)


def _placed(verdict: Verdict, file: str, topo: str | None, group: str | None) -> Verdict:
    """The verdict with what is wrong where the file will run, if that is said or known."""
    blocks = format_of(file).threadblocks(verdict.program, Path(file))
    asked = place_program(len(blocks), topo, group)
    place = asked or place_beside(file)
    if place is None or len(place[1]) != len(blocks):
        return verdict
    verdict = check_place(verdict, blocks, *place)
    if asked is None or place[0].sms:
        return verdict
    unknown = (
        f"the SMs of a device of {place[0].name} are not known: whether {max(blocks)} threadblocks fit is not checked"
    )
    return replace(verdict, lines=(*verdict.lines, unknown))
