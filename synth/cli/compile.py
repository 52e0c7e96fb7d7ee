"""Commands that make executors' files of algorithms written by hand, programs and stored schedules."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from emit.compiler.assembly import describe_size
from emit.compiler.compile import Compiled, Timer, compile_instructions
from emit.compiler.compile import optimize as optimize_program
from emit.compiler.passes.registry import PASSES
from emit.formats import write_program
from emit.goal import Goal
from emit.language import load_script
from emit.program import Program
from emit.targets import RESERVED_SMS, Target, choose_protocol, choose_target, on_devices, target_for
from synth.cli.options import declare, sms_option, target_option
from synth.cli.programs import Place, check_not_source, nodes_at, place_program, read_program, sms_at, write_text
from topologies.errors import InputError, ScheduleError, ScheduleRefused


def _listed(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        for row in PASSES.values():
            click.echo(f"{row.name:10} {row.summary}")
        context.exit()


_compiling = declare(
    click.option("-o", "--out", metavar="FILE", help="Where to write. Default: the name with .xml, here."),
    target_option("the first that can"),
    sms_option(f"the SMs of a device of --topo, less {RESERVED_SMS}; any number without"),
    click.option("--without-pass", "off", multiple=True, metavar="PASS", help="Leave out a pass; see --passes."),
    click.option("--explain", is_flag=True, help="Say what every pass did."),
    click.option(
        "--passes", is_flag=True, is_eager=True, expose_value=False, callback=_listed, help="List the passes and exit."
    ),
)  # fmt: skip


def _timer(place: Place | None, program: Program) -> Timer | None:
    """What decides between programs: the time on a topology, where one is given."""
    if place is None:
        return None
    from emit.compiler.lower import timer_for  # brings schedules, their replay and their clock

    return timer_for(*place, program.min_bytes, program.max_bytes)


def _write(
    made: Compiled, goal: Goal | None, target: Target, source: str, out: str | None, explain: bool, place: Place | None
) -> None:
    path = Path(out) if out else Path(Path(source).with_suffix(target.suffix).name)
    check_not_source(path, source)
    text = write_program(made.program, goal, target, nodes=nodes_at(place))
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    for line in made.log if explain else ():
        click.echo(f"  {line}")
    p = made.program
    click.echo(f"{path}: {p.collective} on {p.nranks} ranks for {target.name}, checked: {describe_size(p)}")


@click.command("compile")
@click.argument("file")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of its function; repeat.")
@click.option("--topo", metavar="T", help="Choose between programs by their time there.")
@click.option("--group", metavar="RANKS", help="The topology's rank of each of the program's.")
@_compiling
def compile_(
    file: str,
    settings: tuple[str, ...],
    topo: str | None,
    group: str | None,
    out: str | None,
    target: str,
    sms: int | None,
    off: tuple[str, ...],
    explain: bool,
) -> None:
    """Compile an algorithm written by hand into an executor's file.

    FILE is Python (it is executed) with a function algorithm() that returns a Script; see examples/.

    \b
    synth compile examples/ring.py -o ring.xml --set ranks=4
    """
    script = load_script(file, settings)
    ir = script.instructions()
    place = place_program(script.header.nranks, topo, group)
    chosen = on_devices(choose_target(script.header.collective, target), sms_at(place), sms)
    made = compile_instructions(ir, chosen.name, limits=chosen.limits, timer=_timer(place, script.header), without=off)
    _write(made, ir.goal, chosen, file, out, explain, place)


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
    off: tuple[str, ...],
    explain: bool,
) -> None:
    """Compile anyone's MSCCL XML anew: never slower in the model, never longer, still right.

    \b
    synth optimize a.xml -o b.xml --topo dgx-a100
    """
    _, goal, verdict = read_program(file)
    program = verdict.right_program(file)
    place = place_program(program.nranks, topo or f"full:{max(2, program.nranks)}", group)
    chosen = on_devices(choose_target(program.collective, target), sms_at(place), sms)
    made = optimize_program(program, goal, chosen.name, limits=chosen.limits, timer=_timer(place, program), without=off)
    if out is None:
        out = f"{Path(file).stem}-optimized{chosen.suffix}"
    _write(made, goal, chosen, file, out, explain, place if topo else None)


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
    file: str, protocol: str, out: str | None, target: str, sms: int | None, off: tuple[str, ...], explain: bool
) -> None:
    """Lower a stored schedule (.synth) to an executor's file.

    \b
    synth lower out/schedules/NAME.synth -o NAME.xml --explain
    """
    # these bring schedules, their replay and their clock, which the commands for programs do without
    from emit.compiler.lower import lower_to_instructions, timer_for
    from synth.storage.schedule_file import load_schedule
    from synth.verify.algorithm import Algorithm

    stored = load_schedule(file)
    problem, schedule = stored.expanded()
    size = int(stored.schedule.size_bytes)
    try:
        algorithm = Algorithm(problem, schedule, str(stored.header["engine"]), size_bytes=size)
    except (ScheduleRefused, ScheduleError) as error:
        raise InputError(f"{file}: the schedule is refused: {error}") from None
    chosen = on_devices(target_for(problem, target), problem.topology.sms, sms)
    place = (problem.topology, list(problem.ranks))
    named = "custom" if problem.relays else problem.collective.name
    used = choose_protocol(size, chosen, named, nodes_at(place) or ()) if protocol == "auto" else protocol
    ir = lower_to_instructions(algorithm, Path(file).stem[:63], used)
    timer = timer_for(problem.topology, problem.ranks, size, size)
    made = compile_instructions(ir, chosen.name, limits=chosen.limits, timer=timer, without=off)
    _write(made, ir.goal, chosen, file, out, explain, place)
