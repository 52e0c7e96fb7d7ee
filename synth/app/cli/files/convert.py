"""The command `convert`, which converts any MSCCL XML or execution plan for another executor, or for a simulator."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from emit.compiler.unlimited import lower_any
from emit.formats import PROGRAM_FORMATS, Format, format_of, write_program, write_trace
from emit.library.selection.lookup import goal_beside
from emit.mscclpp.format import read_and_check
from emit.mscclpp.images import whole_plan
from emit.mscclpp.in_switch import draft_in_switch, is_in_switch
from emit.mscclpp.plan import ExecutionPlan
from emit.mscclpp.read import read_plan
from emit.mscclpp.script import script_of
from emit.operations import whole_size
from emit.program import Program
from emit.targets import Target, check_overlap, choose_target, on_devices, only_target_of, target_named
from synth.app.cli.files.plan_scripts import PLAN_SOURCE
from synth.app.cli.files.schedules import load_algorithm
from synth.app.cli.options import overlap_option, scratch_option, sms_option, target_option
from synth.app.cli.programs import (
    check_ending,
    check_not_source,
    nodes_at,
    place_program,
    read_program,
    scratch_bytes,
    sms_at,
    write_text,
)
from synth.app.present.layout import say_fitted
from synth.model.sizes import parse_size
from synth.search.settings import TargetSettings
from synth.storage.columns import replace_all
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import open_regular_file, origin_of

_USUAL = 1 << 20  # bytes of a message
_LONGEST_NAME = 63  # characters of a plan's name


@click.command("convert")
@click.argument("source", type=PLAN_SOURCE)
@click.argument("out")
@sms_option("all SMs of a device of --topo; any number without --topo")
@scratch_option
@target_option(
    "the one whose files have OUT's ending, or else the first that can run the collective;"
    " chakra (.et) and goal (.goal) are traces for simulators"
)
@click.option(
    "--size", metavar="SIZE", help="Set the message size of a simulator's trace. Default: 1M, in whole chunks."
)
@click.option(
    "--protocol", type=click.Choice(["Simple", "LL", "LL128"]), help="Use this protocol. Default: the file's."
)
@click.option("--topo", metavar="T", help="Convert for this topology: a plan uses port channels between nodes.")
@click.option(
    "--group", metavar="RANKS", help="Run the file's ranks on these ranks of --topo. Default: the first ranks in order."
)
@click.option("--nodes", metavar="N,N,…", help="Set the node of each rank, instead of --topo. Default: one node.")
@click.option(
    "--inplace/--outofplace",
    "inplace",
    default=None,
    help="Write a plan for calls in place or out of place. Default: as in the file.",
)
@overlap_option
def convert(
    source: str,
    out: str,
    target: str,
    size: str | None,
    inplace: bool | None,
    groups_overlap: bool,
    **pinned: Any,
) -> None:
    """Convert any MSCCL XML or plan (JSON) for another executor; check it before and after.

    OUT.py is a plan as a program in MSCCL++'s language, which prints it. OUT.et is a Chakra trace for ASTRA-sim
    (OUT.0.et, OUT.1.et, …) and OUT.goal is for LogGOPSim; stored schedules (.synth) can be converted to these too. A
    stored schedule in which a switch reduces and copies (NVLS) can also be converted to a plan.

    \b
    synth convert a.xml b.json --nodes 0,0,1,1
    synth convert a.xml b.xml --target msccl
    synth convert plan.json plan.py
    synth convert a.xml b.et --size 1M
    """
    simulated = _simulated(out, target)
    if simulated is not None:
        forms = {"--inplace, --outofplace": inplace, "--groups-overlap": groups_overlap or None}
        for option, value in ({f"--{name.replace('_', '-')}": value for name, value in pinned.items()} | forms).items():
            if value is not None:
                raise InputError(f"{option}: applies to files for executors; leave it out for {simulated.what}")
        _convert_to_trace(source, out, simulated, size)
        return
    if size is not None:
        raise InputError(f"--size {size}: applies to traces for simulators; give OUT.et or OUT.goal")
    suffix = ".json" if _is_script(out) else Path(out).suffix
    chosen = only_target_of(suffix) if target == "auto" else target_named(target)
    is_plan = chosen is not None and PROGRAM_FORMATS[chosen.format].placed
    if not is_plan and (*map(pinned.get, ("topo", "group", "nodes")), inplace) != (None, None, None, None):
        raise InputError("--topo, --group, --nodes, --inplace and --outofplace apply to plans; give OUT.json")
    open_regular_file(source, "an MSCCL XML file").close()
    check_not_source(out, source)
    if chosen is not None and not (is_plan and _is_script(out)):
        check_ending(out, chosen.suffix, PROGRAM_FORMATS[chosen.format].what)
    if format_of(source) is PROGRAM_FORMATS["schedule"] and chosen is not None and chosen.format == "mscclpp":
        algorithm = load_algorithm(source)
        if is_in_switch(algorithm):
            if any(value is not None for value in pinned.values()):
                raise InputError("a schedule through a switch states its ranks; leave out all options but --inplace")
            _write_in_switch(algorithm, source, out, inplace is not False)
            return
    _convert_for_executor(source, out, chosen, inplace, groups_overlap, pinned)


def _convert_for_executor(
    source: str,
    out: str,
    target: Target | None,
    inplace: bool | None,
    groups_overlap: bool,
    pinned: Mapping[str, Any],
) -> None:
    """Check a program, write it as a file of an executor (or as a program that prints a plan), and print what it is.

    Args:
        source: The program's file.
        out: The file to write.
        target: The executor; None for the first that can run the program's collective.
        inplace: Whether a plan is for calls in place; None as in the file.
        groups_overlap: Whether ranks are in more than one group at a time; the protocol is then Simple.
        pinned: The options sms, scratch_limit, protocol, topo, group and nodes.

    Raises:
        InputError: The program is not right, the executor cannot hold it, or an option does not fit.
    """
    is_as_it_is = inplace is None and not groups_overlap and all(value is None for value in pinned.values())
    if _is_script(out) and is_as_it_is and format_of(source) is PROGRAM_FORMATS["mscclpp"]:
        _write_script(_right_plan(source), out)
        return
    _, goal, verdict = read_program(source)
    program, protocol = verdict.right_program(source), pinned["protocol"]
    if protocol is not None:
        program = replace(program, protocol=protocol)
    if target is None:
        target = choose_target(program.collective)
        check_ending(out, target.suffix, PROGRAM_FORMATS[target.format].what)
    if groups_overlap:
        check_overlap(target.name)
        if protocol not in (None, "Simple"):
            raise InputError(f"--protocol {protocol}: cannot be used with --groups-overlap; it must be Simple")
        program = replace(program, protocol="Simple")
    topo, group, sms = pinned["topo"], pinned["group"], pinned["sms"]
    node_of_rank = _nodes(program.nranks, pinned["nodes"], topo, group)
    place = place_program(program.nranks, topo, group)
    sms_limit = sms_at(place) or None if sms is None else sms
    settings = TargetSettings(target.name, sms_limit, groups_overlap, scratch_bytes(pinned["scratch_limit"]))
    target = on_devices(target, sms_at(place), settings)
    try:
        text = write_program(program, goal, target, nodes=node_of_rank or nodes_at(place), inplace=inplace)
    except InputError as error:
        if PROGRAM_FORMATS[target.format].placed or "limit: " not in str(error):
            raise
        raise InputError(f"{error}; synth optimize {source} --target {target.name} compiles it again") from None
    if _is_script(out):
        _write_script(read_plan(text), out)
        return
    write_text(out, text)
    say_fitted(f"{origin_of(out)}: {PROGRAM_FORMATS[target.format].writer.describe(program, target, text)}")


def _right_plan(source: str) -> ExecutionPlan:
    """Return the plan of a file after a check, with the threadblocks of all ranks.

    Raises:
        InputError: The plan is not right.
    """
    verdict, plan, _ = read_and_check(Path(source), goal_beside(source))
    if plan is None or verdict.status != "right":
        raise InputError(verdict.refusal(source))
    return whole_plan(plan)


def _write_script(plan: ExecutionPlan, out: str) -> None:
    """Write a plan as a program in MSCCL++'s language, and print what it is.

    Raises:
        InputError: The file exists with other content, or cannot be written.
    """
    text, existing = script_of(plan), Path(out)
    if existing.exists() and not (existing.is_file() and existing.read_bytes() == text.encode()):
        raise InputError(f"{shown(out)}: exists, and may have been changed by hand; it must be another name")
    write_text(out, text)
    call = shlex.quote(out)
    say_fitted(
        f"{origin_of(out)}: {plan.collective} on {len(plan.gpus)} ranks, {plan.nops} operations, a program in MSCCL++'s"
        f" language; python {call} prints the plan, and synth verify {call} judges it"
    )


def _write_in_switch(algorithm: Algorithm, source: str, out: str, inplace: bool) -> None:
    """Write a schedule through a switch as a plan with switch channels, or as a program that prints the plan.

    What was written is printed.

    Args:
        algorithm: The schedule.
        source: Its file, after which the plan is named.
        out: The file to write.
        inplace: Whether the plan is for calls in place.
    """
    text = draft_in_switch(algorithm, Path(source).stem[:_LONGEST_NAME], inplace=inplace).text()
    if _is_script(out):
        _write_script(read_plan(text), out)
        return
    write_text(out, text)
    plan = read_plan(text)
    blocks = max(len(gpu.blocks) for gpu in plan.gpus)
    form = "in place" if inplace else "out of place"
    summary = f"{plan.collective} on {len(plan.gpus)} ranks {form}, execution plan of protocol Simple, checked"
    say_fitted(f"{origin_of(out)}: {summary}: {plan.nops} operations, at most {blocks} threadblocks, switch channels")


def _is_script(out: str) -> bool:
    """Return True if OUT is to be a program in MSCCL++'s language."""
    return Path(out).suffix.lower() == ".py"


def _simulated(out: str, target: str) -> Format | None:
    """Return the format of a simulator's trace if `target` names one, or if it is "auto" and OUT has such an ending.

    Otherwise the result is None.
    """
    rows = {form.name: form for form in PROGRAM_FORMATS.values() if form.simulator}
    if target in rows:
        return rows[target]
    return next((form for form in rows.values() if target == "auto" and out.lower().endswith(form.suffix)), None)


def _convert_to_trace(source: str, out: str, form: Format, size: str | None) -> None:
    """Write a program, or a schedule's program, as a trace: all of its files or none. Print what they are.

    Args:
        source: The file.
        out: Name of the trace; its files have this name, without the format's ending, and the endings of the trace.
        form: Format of the trace.
        size: The option `--size`; None for 1 MiB, in whole chunks.

    Raises:
        InputError: The program is not right, the size does not suit it, or a file of a trace of more ranks is in place.
    """
    if format_of(source) is PROGRAM_FORMATS["schedule"]:
        program: Program = lower_any(load_algorithm(source), Path(source).stem)[0]
    else:
        program = read_program(source)[2].right_program(source)
    size_bytes = whole_size(program, _USUAL) if size is None else parse_size(size, "--size")
    base = out[: -len(form.suffix)] if out.lower().endswith(form.suffix) else out
    if not Path(base).name:
        raise InputError(f"{origin_of(out)}: is no name; it must be as in a{form.suffix}")
    try:
        files = [(base + ending, content) for ending, content in write_trace(program, form, size_bytes)]
    except InputError as error:
        raise InputError(f"--size {size}: {error}" if size is not None else str(error)) from None
    stale = f"{base}.{len(files)}{form.suffix}"
    if len(files) > 1 and Path(stale).exists():
        raise InputError(f"{origin_of(stale)}: belongs to a trace of more ranks; remove it, or give OUT another name")
    for name, _ in files:
        check_not_source(name, source)
    replace_all(files)
    names = files[0][0] if len(files) == 1 else f"{files[0][0]} to {files[-1][0]}"
    summary = f"{program.collective} on {program.nranks} ranks, {size_bytes} bytes, checked"
    say_fitted(f"{origin_of(names)}: {summary}, for {form.simulator}")


def _nodes(nranks: int, nodes: str | None, topo: str | None, group: str | None) -> list[int] | None:
    """Return the node of each rank from the option --nodes; None without it.

    Args:
        nranks: Number of ranks.
        nodes: The option, such as `0,0,1,1`, or None.
        topo: The option --topo.
        group: The option --group.

    Raises:
        InputError: The text is not one number for each rank, or --topo or --group is given too.
    """
    if nodes is None:
        return None
    if topo is not None or group is not None:
        raise InputError("--nodes: states the same as --topo and --group; give only one of them")
    numbers = nodes.split(",")
    if (
        not all(number.isascii() and number.isdecimal() and len(number) < 7 for number in numbers)
        or len(numbers) != nranks
    ):
        raise InputError(f"--nodes {shown(nodes)}: must be {nranks} numbers, one for each rank, as in 0,0,1,1")
    return [int(number) for number in numbers]
