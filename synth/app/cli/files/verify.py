"""The command `verify`, which replays any MSCCL XML or execution plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from emit.findings import Findings, Verdict
from emit.formats import check_place, format_of, name_in, verify_file
from emit.library.selection.lookup import entry_beside, goal_beside, namesake_beside, place_beside
from synth.app.cli.files.plan_scripts import PLAN_SOURCE, name_of
from synth.app.cli.options import json_option, print_json
from synth.app.cli.programs import check_depth, place_program
from synth.app.present.layout import say_fitted
from topologies.errors import InputError
from topologies.text.fields import shown


@click.command("verify")
@click.argument("file", type=PLAN_SOURCE)
@click.option("--depth", type=int, metavar="N", help="Use N FIFO slots. Default: the protocol's.")
@click.option("--topo", metavar="T", help="Check for this topology. Default: that of the index beside it.")
@click.option(
    "--group", metavar="RANKS", help="Run the file's ranks on these ranks of --topo. Default: the first ranks in order."
)
@click.option(
    "--target",
    metavar="NAME",
    help="Check for this executor's reader. Default: that of the index beside it, or else any.",
)
@json_option
def verify(
    file: str, depth: int | None, topo: str | None, group: str | None, target: str | None, as_json: bool
) -> None:
    """Replay an MSCCL XML or a plan (JSON): right, wrong, deadlock, not judged or not readable.

    Exit code 0: right; 1: wrong or deadlock; 2: not readable, or not judged, because nobody says what the result must
    be. On the topology, all threadblocks of a rank must fit on the SMs of its device, and the protocol must work
    between nodes; otherwise the file would hang.

    \b
    synth verify out/msccl/FILE.xml
    synth verify a.xml --target rccl
    synth verify "program.py 8"   (in MSCCL++'s language)
    """
    check_depth(file, depth)
    readers = format_of(file).readers
    if target is None and (entry := entry_beside(file)) is not None and entry.target in readers:
        target = entry.target
    if target is not None and target not in readers:
        advice = f"one of {', '.join(readers)}" if readers else "left out"
        raise InputError(f"--target {target}: does not read {format_of(file).what}; it must be {advice}")
    verdict = verify_file(file, goal_beside(file), depth, target)
    if verdict.status != "not readable":
        verdict = _placed(_named(verdict, file), file, topo, group)
    if as_json:
        fields = ("kind", "message", "rank", "tb", "step")
        findings = [{name: getattr(finding, name) for name in fields} for finding in verdict.findings]
        document = {"file": name_of(file), "status": verdict.status, "lines": list(verdict.lines)}
        print_json("verify", document | {"findings": findings})
    elif verdict.exit_code == 2:
        raise InputError(verdict.refusal(file))
    else:
        click.echo(f"{name_of(file)}: {verdict.status}")
        say_fitted(*(f"  {line}" for line in verdict.lines))
    raise SystemExit(verdict.exit_code)


def _named(verdict: Verdict, file: str) -> Verdict:
    """Return the verdict on a file, with a finding if another file of its library has the same name inside."""
    namesake, findings = namesake_beside(file), Findings()
    if namesake is not None:
        advice = "but the executor stores loaded files by this name; give it another name"
        findings.add("inconsistent", f"name {shown(name_in(Path(file)))} is that of {namesake} too, {advice}")
    return verdict.with_findings(findings)


def _placed(verdict: Verdict, file: str, topo: str | None, group: str | None) -> Verdict:
    """Return the verdict with findings about the topology that the file will run on, if it is named or known.

    Args:
        verdict: The verdict.
        file: The file; without `topo`, the index of its library states where it runs.
        topo: The option --topo.
        group: The option --group.

    Raises:
        InputError: The options name another number of ranks than the file has.
    """
    form = format_of(file)
    if form.simulator and verdict.program is None:  # No threadblocks run operations of a simulator.
        return verdict
    blocks = form.threadblocks(verdict.program, Path(file))
    named_place = place_program(len(blocks), topo, group)
    place = named_place or place_beside(file)
    if place is None or len(place[1]) != len(blocks):
        return verdict
    verdict = check_place(verdict, blocks, *place)
    if named_place is None or place[0].sms:
        return verdict
    unknown = (
        f"the SMs of a device of {place[0].name} are unknown: whether {max(blocks)} threadblocks fit is not checked"
    )
    return replace(verdict, lines=(*verdict.lines, unknown))
