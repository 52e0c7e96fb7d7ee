"""The command `lower`: a stored schedule as an executor's file."""

from __future__ import annotations

from pathlib import Path

import click

from emit.compiler.compile import compile_instructions
from emit.compiler.lower import lower_to_instructions, timer_for
from emit.targets import choose_protocol, target_for
from synth.cli.compile import compiling, write_compiled
from synth.storage.schedule_file import load_schedule
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, ScheduleError, ScheduleRefused


@click.command("lower")
@click.argument("file")
@click.option(
    "--protocol",
    type=click.Choice(["auto", "Simple", "LL", "LL128"]),
    default="auto",
    help="Default: auto, by the size of the schedule.",
)
@compiling
def lower_(file: str, protocol: str, out: str | None, target: str, off: tuple[str, ...], explain: bool) -> None:
    """Lower a stored schedule (.synth) to an executor's file.

    \b
    synth lower out/schedules/NAME.synth -o NAME.xml --explain
    """
    stored = load_schedule(file)
    problem, schedule = stored.expanded()
    size = int(stored.schedule.size_bytes)
    try:
        algorithm = Algorithm(problem, schedule, str(stored.header["engine"]), size_bytes=size)
    except (ScheduleRefused, ScheduleError) as error:
        raise InputError(f"{file}: the schedule is refused: {error}") from None
    chosen = target_for(problem, target)
    used = choose_protocol(size) if protocol == "auto" else protocol
    ir = lower_to_instructions(algorithm, Path(file).stem[:63], used)
    timer = timer_for(problem.topology, problem.ranks, size, size)
    made = compile_instructions(ir, chosen.name, timer=timer, without=off)
    write_compiled(made, ir.goal, chosen, file, out, explain, (problem.topology, list(problem.ranks)))
