"""Commands that make executors' files of algorithms written by hand, programs and stored schedules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace as with_values
from pathlib import Path

import click

from emit.compiler.assembly import describe_size
from emit.compiler.compile import Compiled, compile_instructions
from emit.compiler.compile import optimize as optimize_program
from emit.compiler.passes.registry import PASSES
from emit.compiler.search import Timer
from emit.formats import FORMATS, format_of, write_program
from emit.goal import Goal
from emit.language import load_scripts
from emit.library.lookup import goal_path, goal_text
from emit.library.standing import MOST_BYTES
from emit.program import Program
from emit.targets import RESERVED_SMS, Target, choose_protocol, choose_target, on_devices, target_for
from synth.cli.options import declare, replace_option, scratch_option, sms_option, target_option
from synth.cli.programs import (
    Place,
    check_not_source,
    nodes_at,
    place_program,
    read_program,
    scratch_bytes,
    sms_at,
    write_text,
)
from synth.model.sizes import parse_size
from topologies.errors import InputError
from topologies.text.files import read_text


def _listed(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        for row in PASSES.values():
            click.echo(f"{row.name:10} {row.summary}")
        context.exit()


_compiling = declare(
    click.option("-o", "--out", metavar="FILE", help="Where to write. Default: the name with .xml, here."),
    target_option("the first that can"),
    scratch_option,
    sms_option(f"the SMs of a device of --topo, less {RESERVED_SMS}; any number without"),
    click.option("--without-pass", "off", multiple=True, metavar="PASS", help="Leave out a pass; see --passes."),
    click.option("--explain", is_flag=True, help="Say what every pass did."),
    click.option(
        "--passes", is_flag=True, is_eager=True, expose_value=False, callback=_listed, help="List the passes and exit."
    ),
)  # fmt: skip


_SIZES = [float(1 << e) for e in range(10, 31)]  # bytes at which plans are compared


def _timer(place: Place | None, program: Program) -> Timer | None:
    """What decides between programs: the time on a topology, where one is given."""
    if place is None:
        return None
    from emit.compiler.lower import timer_for  # brings schedules, their replay and their clock

    return timer_for(*place, program.min_bytes, program.max_bytes)


def _write(
    made: Compiled,
    goal: Goal | None,
    target: Target,
    source: str,
    out: str | None,
    explain: bool,
    place: Place | None,
    text: str | None = None,
) -> None:
    path = Path(out) if out else Path(Path(source).with_suffix(target.suffix).name)
    check_not_source(path, source)
    text = write_program(made.program, goal, target, nodes=nodes_at(place)) if text is None else text
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    if goal is not None:
        write_text(goal_path(path), goal_text(goal))
    for line in made.log if explain else ():
        click.echo(f"  {line}")
    click.echo(_described(path, made.program, target))
    if goal is not None:
        click.echo(f"{goal_path(path)}: what it must achieve, for synth's commands; executors must not find it")


def _described(path: Path, program: Program, target: Target) -> str:
    what = f"{program.collective} on {program.nranks} ranks for {target.name}"
    return f"{path}: {what}, checked: {describe_size(program)}"


@click.command("compile")
@click.argument("file")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of its function; repeat.")
@click.option("--topo", metavar="T", help="Choose between programs by their time there.")
@click.option("--group", metavar="RANKS", help="The topology's rank of each of the program's.")
@click.option(
    "--library", metavar="DIR", help="Add it to a library, made if need be; what is there and no slower stays."
)
@replace_option
@click.option("--min-bytes", metavar="SIZE", help="The least message that it is for. Default: the script's.")
@click.option("--max-bytes", metavar="SIZE", help="The largest. Default: the script's, or no end.")
@_compiling
def compile_(
    file: str,
    settings: tuple[str, ...],
    topo: str | None,
    group: str | None,
    library: str | None,
    replace: bool,
    min_bytes: str | None,
    max_bytes: str | None,
    out: str | None,
    target: str,
    sms: int | None,
    scratch_limit: str | None,
    off: tuple[str, ...],
    explain: bool,
) -> None:
    """Compile an algorithm written by hand into an executor's file.

    FILE is Python (it is executed) with a function algorithm() that returns a Script, or for --library several in a
    list, each for its range of sizes; see examples/.

    \b
    synth compile examples/ring.py -o ring.xml --set ranks=4
    synth compile examples/ring.py --library out --max-bytes 64K
    """
    from emit.library.add import Addition, add  # brings what prices a library's files: schedules, their replay, bounds

    scripts = load_scripts(file, settings)
    for wrong, words in (
        (library is not None and out is not None, "-o, --library: say two places; it must be one of them"),
        (library is None and replace, "--replace: says what becomes of a library's files; it must be with --library"),
        (library is None and len(scripts) > 1, f"{file}: returned {len(scripts)} scripts; it must be with --library"),
        (len(scripts) > 1 and (min_bytes or max_bytes), f"{file}: returned {len(scripts)} scripts, each with its own"
         " range; it must be without --min-bytes and --max-bytes"),
    ):  # fmt: skip
        if wrong:
            raise InputError(words)
    added, log = [], []
    for script in scripts:
        ir = script.instructions()
        if min_bytes is not None:
            ir.header = with_values(ir.header, min_bytes=parse_size(min_bytes, "--min-bytes"))
        if max_bytes is not None:
            ir.header = with_values(ir.header, max_bytes=parse_size(max_bytes, "--max-bytes"))
        place = place_program(ir.header.nranks, topo, group)
        chosen = on_devices(
            choose_target(ir.header.collective, target), sms_at(place), sms, scratch_bytes(scratch_limit)
        )
        made = compile_instructions(ir, chosen.name, limits=chosen.limits, timer=_timer(place, ir.header), without=off)
        if library is None:
            return _write(made, ir.goal, chosen, file, out, explain, place)
        added.append(Addition(made.program, ir.goal, chosen, *(place or ())))
        log += [f"  {line}" for line in made.log if explain]
    assert library is not None
    written = add(added, library, anew=replace)
    for paths, one in zip(written.files, added, strict=True):
        log += [_described(path, one.program, one.target) for path in paths]
        log += (
            [] if paths else [f"{one.program.name}: not written: what {library} has is no slower at any of its sizes"]
        )
    log += written.remarks
    click.echo("\n".join(log))
    return None


@click.command("optimize")
@click.argument("file")
@click.option("--topo", metavar="T", help="Never slower there. Default: all ranks joined by equal links.")
@click.option("--group", metavar="RANKS", help="The topology's rank of each of the program's.")
@_compiling
def optimize(
    file: str,
    topo: str | None,
    group: str | None,
    out: str | None,
    target: str,
    sms: int | None,
    scratch_limit: str | None,
    off: tuple[str, ...],
    explain: bool,
) -> None:
    """Compile anyone's MSCCL XML or plan (JSON) anew: never slower in the model, never longer, still right.

    \b
    synth optimize a.xml -o b.xml --topo dgx-a100
    """
    _, goal, verdict = read_program(file)
    program = verdict.right_program(file)
    place = place_program(program.nranks, topo or f"full:{max(2, program.nranks)}", group)
    chosen = on_devices(choose_target(program.collective, target), sms_at(place), sms, scratch_bytes(scratch_limit))
    made = optimize_program(program, goal, chosen.name, limits=chosen.limits, timer=_timer(place, program), without=off)
    if out is None:
        out = f"{Path(file).stem}-optimized{chosen.suffix}"
    text: str | None = None
    if place is not None and (form := FORMATS[chosen.format]).converter and format_of(file) is form:
        text = write_program(made.program, goal, chosen, nodes=nodes_at(place if topo else None))
        # a plan takes another time than its program
        before, after = (form.predictor(one, program, *place).times_us(_SIZES) for one in (file, text))
        if (after > before * (1 + 1e-9)).any():
            text = read_text(file, "an MSCCL XML or a plan", MOST_BYTES, most_lines=None)
            made = Compiled(program, [*made.log, "kept as it was: the plan would be slower"])
    _write(made, goal, chosen, file, out, explain, place if topo else None, text)


@click.command("lower")
@click.argument("file")
@click.option(
    "--protocol",
    type=click.Choice(["auto", "Simple", "LL", "LL128"]),
    default="auto",
    help="Default: auto, by the size of the schedule.",
)
@_compiling
def lower(
    file: str,
    protocol: str,
    out: str | None,
    target: str,
    sms: int | None,
    scratch_limit: str | None,
    off: tuple[str, ...],
    explain: bool,
) -> None:
    """Lower a stored schedule (.synth) to an executor's file.

    \b
    synth lower out/schedules/NAME.synth -o NAME.xml --explain
    """
    # these bring schedules, their replay and their clock, which the commands for programs do without
    from emit.compiler.lower import lower_to_instructions, program_collective, timer_for
    from synth.cli.schedules import load_algorithm

    algorithm = load_algorithm(file)
    problem, size = algorithm.problem, int(algorithm.size_bytes)
    chosen = on_devices(target_for(problem, target), problem.topology.sms, sms, scratch_bytes(scratch_limit))
    place = (problem.topology, list(problem.ranks))
    named, nodes = program_collective(problem), nodes_at(place) or ()
    used = choose_protocol(size, chosen, named, nodes) if protocol == "auto" else protocol
    ir = lower_to_instructions(algorithm, Path(file).stem[:63], used)
    timer = timer_for(problem.topology, problem.ranks, size, size)
    made = compile_instructions(ir, chosen.name, limits=chosen.limits, timer=timer, without=off)
    _write(made, ir.goal, chosen, file, out, explain, place)
