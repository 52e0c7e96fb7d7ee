"""The commands `compile`, `optimize` and `lower`, which write executors' files of scripts, programs and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as with_values
from pathlib import Path
from typing import Any

import click

from emit.compiler.assembly import describe_size
from emit.compiler.compile import Compiled, compile_instructions, current_names
from emit.compiler.compile import optimize as optimize_program
from emit.compiler.ir import Instructions
from emit.compiler.passes.registry import PASSES
from emit.compiler.search import Timer
from emit.formats import PROGRAM_FORMATS, format_of, write_program
from emit.goal import Goal
from emit.language import load_scripts
from emit.library.library_file import MOST_BYTES
from emit.library.selection.lookup import goal_path, goal_text
from emit.program import Program
from emit.targets import RESERVED_SMS, Target, choose_protocol, choose_target, on_devices, target_for
from synth.app.cli.options import declare, replace_option, scratch_option, sms_option, target_option
from synth.app.cli.programs import (
    Place,
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
from topologies.errors import InputError
from topologies.text.files import read_text


def _list_passes(context: click.Context, _parameter: click.Parameter, is_set: bool) -> None:
    """Print the name and summary of each pass and exit if the option is set; a callback of click."""
    if is_set:
        for row in PASSES.values():
            click.echo(f"{row.name:14} {row.summary}")
        context.exit()


_compiling = declare(
    click.option(
        "-o", "--out", metavar="FILE", help="Write to this file. Default: the source's name with another ending, here."
    ),
    target_option("by OUT's ending, else that of the machine, else the first that can run the collective"),
    scratch_option,
    sms_option(f"the SMs of a device of --topo, except {RESERVED_SMS}; any number without --topo"),
    click.option(
        "--without-pass", "off", multiple=True, metavar="PASS", help="Leave out a pass that --passes lists; repeat."
    ),
    click.option("--explain", is_flag=True, help="Print what each pass did."),
    click.option(
        "--passes", is_flag=True, is_eager=True, expose_value=False, callback=_list_passes,
        help="List the passes and exit.",
    ),
)  # fmt: skip


_SIZES = [float(1 << e) for e in range(10, 31)]  # message sizes in bytes at which plans are compared


@dataclass(frozen=True)
class CompileOptions:
    """The options that `compile`, `optimize` and `lower` share.

    Attributes:
        out: The file to write; None for the source's name with the target's ending, in the current folder.
        target: Name of the target, or auto.
        scratch_limit: The option `--scratch-limit`.
        sms: The option `--sms`.
        off: Names of the passes to leave out.
        explain: Whether to print what each pass did.
    """

    out: str | None
    target: str
    scratch_limit: str | None
    sms: int | None
    off: tuple[str, ...]
    explain: bool

    def limited(self, target: Target, device_sms: int) -> Target:
        """Return a target limited by the options and by the SMs of a device.

        Args:
            target: The target.
            device_sms: SMs of a device; 0 if unknown.

        Raises:
            InputError: An option is wrong, or the target cannot take it.
        """
        return on_devices(
            target, device_sms, TargetSettings(target.name, self.sms, scratch_limit=scratch_bytes(self.scratch_limit))
        )

    def chosen(self, collective: str, place: Place | None, source: str = "") -> Target:
        """Return the target for a program's collective, limited by the options and by the devices.

        Args:
            collective: The program's collective.
            place: The topology and the program's ranks there; None if unknown.
            source: A file whose suffix the written file is to have if `out` is not given; empty for any suffix.

        Raises:
            InputError: The target is not known, or no target can run the collective.
        """
        topology, suffix = None if place is None else place[0], Path(self.out or source).suffix
        return self.limited(choose_target(collective, self.target, topology, suffix), sms_at(place))

    def compiled(self, ir: Instructions, target: Target, timer: Timer | None) -> Compiled:
        """Return the program of instructions for a target, compiled without the passes in `off`.

        Args:
            ir: The instructions.
            target: The target, whose limits hold.
            timer: Function that compares programs by their time; None for no comparison.
        """
        return compile_instructions(ir, target.limits, timer=timer, without=self.off)

    def write(
        self,
        compiled: Compiled,
        goal: Goal | None,
        target: Target,
        source: str,
        place: Place | None,
        text: str | None = None,
    ) -> None:
        """Write a compiled program and, if its goal is known, a file next to it with that goal; print what was done.

        Args:
            compiled: The compiled program.
            goal: What the program must achieve; None if unknown.
            target: The executor.
            source: The file that it was compiled from.
            place: The topology and the program's ranks there; None if unknown.
            text: The content of the file; None to write it from the program.

        Raises:
            InputError: The file would replace its source, has another ending than the target's, or cannot be written.
        """
        path = Path(self.out) if self.out else Path(Path(source).with_suffix(target.suffix).name)
        check_not_source(path, source)
        check_ending(path, target.suffix, PROGRAM_FORMATS[target.format].what)
        text = write_program(compiled.program, goal, target, nodes=nodes_at(place)) if text is None else text
        write_text(path, text)
        lines = [f"  {line}" for line in compiled.log if self.explain] + [_described(path, compiled.program, target)]
        if goal is not None:
            write_text(goal_path(path), goal_text(goal))
            lines.append(f"{goal_path(path)}: its goal, for synth's commands only; keep it out of executors' folders")
        say_fitted(*lines)


def _timer(place: Place | None, program: Program) -> Timer | None:
    """Return the function that compares programs by their time on a topology; None without a topology.

    Args:
        place: The topology and the program's ranks there, or None.
        program: The program, whose range of message sizes counts.
    """
    if place is None:
        return None
    from emit.compiler.lower import timer_for  # It imports the schedules' rooms.

    return timer_for(*place, program.min_bytes, program.max_bytes)


def _described(path: Path, program: Program, target: Target) -> str:
    """Return a line on a written file: what it computes, and its size."""
    summary = f"{program.collective} on {program.nranks} ranks for {target.name}"
    return f"{path}: {summary}, checked: {describe_size(program)}"


@click.command("compile")
@click.argument("file")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set an argument of the function; repeat.")
@click.option("--topo", metavar="T", help="Choose between programs by their time on this topology.")
@click.option("--group", metavar="RANKS", help="Run the program's ranks on these ranks of --topo.")
@click.option(
    "--library",
    metavar="DIR",
    help="Add the program to a library, created if necessary; existing files that are no slower stay.",
)
@replace_option
@click.option("--min-bytes", metavar="SIZE", help="Serve messages from this size. Default: the script's.")
@click.option("--max-bytes", metavar="SIZE", help="Serve messages up to this size. Default: the script's, or no limit.")
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
    **shared_options: Any,
) -> None:
    """Compile an algorithm written by hand into an executor's file.

    FILE is Python code, which is executed. Its function algorithm() returns a Script, or for --library a list of
    them, each for its range of sizes; see examples/.

    \b
    synth compile examples/ring.py -o ring.xml --set ranks=4
    synth compile examples/ring.py --library out --max-bytes 64K
    """
    from emit.library.saving.add import Addition, add  # It imports the schedules' and bounds' rooms.

    if (ending := Path(file).suffix) not in ("", ".py"):  # Its text would be executed.
        raise InputError(f"{file}: is no Python script; its name must end in .py, not in {ending}")
    options, scripts = CompileOptions(**shared_options), load_scripts(file, settings)
    current_names(options.off)  # A wrong one is no error of the script.
    for is_wrong, message in (
        (library is not None and options.out is not None, "-o, --library: name two places; give one of them"),
        (library is None and replace, "--replace: replaces a library's files; give --library too"),
        (library is None and len(scripts) > 1, f"{file}: returned {len(scripts)} scripts; give --library too"),
        (len(scripts) > 1 and (min_bytes or max_bytes), f"{file}: returned {len(scripts)} scripts, each with its own"
         " range; leave --min-bytes and --max-bytes out"),
    ):  # fmt: skip
        if is_wrong:
            raise InputError(message)
    additions, log = [], []
    for script in scripts:
        ir = script.instructions()
        if min_bytes is not None:
            ir.header = with_values(ir.header, min_bytes=parse_size(min_bytes, "--min-bytes"))
            if max_bytes is not None and parse_size(max_bytes, "--max-bytes") < ir.header.min_bytes:
                raise InputError(f"--max-bytes {max_bytes}: is less than --min-bytes; it must be {min_bytes} or more")
        if max_bytes is not None:
            ir.header = with_values(ir.header, max_bytes=parse_size(max_bytes, "--max-bytes"))
        place = place_program(ir.header.nranks, topo, group)
        target = options.chosen(ir.header.collective, place)
        try:
            compiled = options.compiled(ir, target, _timer(place, ir.header))
        except InputError as error:
            raise InputError(f"{script.line}: {error}") from None
        if library is None:
            return options.write(compiled, ir.goal, target, file, place)
        additions.append(Addition(compiled.program, ir.goal, target, *(place or ())))
        log += [f"  {line}" for line in compiled.log if options.explain]
    assert library is not None
    written = add(additions, library, anew=replace)
    for paths, addition in zip(written.files, additions, strict=True):
        log += [_described(path, addition.program, addition.target) for path in paths]
        if not paths:
            name = addition.program.name
            log.append(f"{name}: not written: the files of {library} are no slower at any of its sizes")
    say_fitted(*log, *written.remarks)
    return None


@click.command("optimize")
@click.argument("file")
@click.option("--topo", metavar="T", help="Never be slower on this topology. Default: all ranks joined by equal links.")
@click.option("--group", metavar="RANKS", help="Run the program's ranks on these ranks of --topo.")
@_compiling
def optimize(file: str, topo: str | None, group: str | None, **shared_options: Any) -> None:
    """Compile any MSCCL XML or plan (JSON) again: never slower in the model, never longer, still right.

    \b
    synth optimize a.xml -o b.xml --topo dgx-a100
    """
    options = CompileOptions(**shared_options)
    _, goal, verdict = read_program(file)
    program = verdict.right_program(file)
    place = place_program(program.nranks, topo or f"full:{max(2, program.nranks)}", group)
    target = options.chosen(program.collective, place, file)
    compiled = optimize_program(program, goal, target.limits, timer=_timer(place, program), without=options.off)
    if options.out is None:
        options = with_values(options, out=f"{Path(file).stem}-optimized{target.suffix}")
    text: str | None = None
    if place is not None and (form := PROGRAM_FORMATS[target.format]).load_converter and format_of(file) is form:
        text = write_program(compiled.program, goal, target, nodes=nodes_at(place if topo else None))
        # A plan's time differs from its program's.
        before, after = (form.predictor(version, program, *place).times_us(_SIZES) for version in (file, text))
        if (after > before * (1 + 1e-9)).any():
            text = read_text(file, "an MSCCL XML or a plan", MOST_BYTES, most_lines=None)
            compiled = Compiled(program, [*compiled.log, "the file is unchanged: the compiled plan would be slower"])
    options.write(compiled, goal, target, file, place if topo else None, text)


@click.command("lower")
@click.argument("file")
@click.option(
    "--protocol",
    type=click.Choice(["auto", "Simple", "LL", "LL128"]),
    default="auto",
    help="Use this protocol. Default: auto, by the message size of the schedule.",
)
@_compiling
def lower(file: str, protocol: str, **shared_options: Any) -> None:
    """Lower a stored schedule (.synth) to an executor's file.

    \b
    synth lower out/schedules/NAME.synth -o NAME.xml --explain
    """
    # These import the schedules' rooms, which the commands for programs do not need.
    from emit.compiler.lower import lower_to_instructions, program_collective, timer_for
    from synth.app.cli.files.schedules import load_algorithm

    options, algorithm = CompileOptions(**shared_options), load_algorithm(file)
    problem, size = algorithm.problem, int(algorithm.size_bytes)
    target = options.limited(target_for(problem, options.target, Path(options.out or "").suffix), problem.topology.sms)
    place = (problem.topology, list(problem.ranks))
    collective, nodes = program_collective(problem), nodes_at(place) or ()
    chosen_protocol = choose_protocol(size, target, collective, nodes) if protocol == "auto" else protocol
    ir = lower_to_instructions(algorithm, Path(file).stem[:63], chosen_protocol)
    compiled = options.compiled(ir, target, timer_for(problem.topology, problem.ranks, size, size))
    options.write(compiled, ir.goal, target, file, place)
