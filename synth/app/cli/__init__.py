"""The command line, which nothing else imports. Bad input gives one line on stderr and exit code 2.

A command's module is imported when the command is called, so `synth --help` imports none of them. The function of a
command has one parameter for each argument and option, however many these are: click passes them by name.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from synth import check_packages
from synth.app.cli import interrupts, streams
from synth.app.cli.defects import say_defects
from synth.app.cli.interrupts import Unanswered
from synth.app.cli.values import StrictGroup
from synth.app.present.layout import warn
from synth.model.deadline import restart
from synth.model.defects import DefectError, describe_defect
from synth.model.registry import COLLECTIVE_KINDS, parse_name
from topologies.errors import InputError, did_you_mean, in_one_line, right_name
from topologies.text.files import origin_of

_LONGEST = 2000  # characters of a message
# New objects from one search of Python for unreachable cycles to the next. Plans and programs are many objects that
# live on, and with the usual 700 these searches take a seventh of a command's processor time.
_NEW_OBJECTS = 50_000


class CommandRow(NamedTuple):
    """A command of the help page.

    Attributes:
        where: `module:attribute` of its click.Command, or of a function that builds one from its collective's row.
        summary: Its sentence on the help page.
        section: The section of the help page that lists it.
    """

    where: str
    summary: str
    section: str = "Collectives"


def all_commands() -> dict[str, CommandRow]:
    """Return all commands by name, in the order of the help page: first the collectives registered so far."""
    return {
        kind.name: CommandRow("asking.search:collective_command", kind.summary) for kind in COLLECTIVE_KINDS.values()
    } | COMMANDS


# The commands that belong to no collective, by name, in the order of the help page.
COMMANDS = {
    "pattern": CommandRow(
        "asking.search:pattern", "Find algorithms for your own pattern: who holds which chunk before and after."
    ),
    "reduce-program": CommandRow(
        "asking.reduce_program:reduce_program",
        "Find sequences of collectives for a reduction over axes of parallelism.",
    ),
    "reconfigure": CommandRow(
        "asking.reconfigure:reconfigure",
        "Find when a network of changing links should change during a collective, with a bound over all sequences.",
    ),
    "engines": CommandRow("engines:engines", "List the engines, the values of --engine, and what each of them does."),
    "topo": CommandRow("topologies:topo", "List, show, check and import topologies.", "Networks"),
    "sweep": CommandRow(
        "sweep:sweep",
        "Compare variants of a network: time, proved bound and cost of collectives on each.",
        "Networks",
    ),
    "place": CommandRow(
        "place:place",
        "Rank the placements of parallelism axes on a topology by the time of a training step.",
        "Networks",
    ),
    "place-experts": CommandRow(
        "place_experts:place_experts_command",
        "Place the experts of a mixture of experts on ranks for the least time of dispatch and combine.",
        "Networks",
    ),
    "library": CommandRow(
        "library:library", "Build, show, check and export libraries, and make executors load them.", "Libraries"
    ),
    "warm-up": CommandRow(
        "warm_up:warm_up",
        "Compile and keep the loops for large problems, so that later commands hardly ever wait for them.",
        "Libraries",
    ),
    "cache": CommandRow("cache:cache", "Show or clear the cache of answers.", "Libraries"),
    "verify": CommandRow(
        "files.verify:verify",
        "Replay an MSCCL XML or a plan (JSON): right, wrong, deadlock, not judged or not readable.",
        "Files",
    ),
    "prove": CommandRow(
        "files.prove:prove", "Check a stored schedule and the proof of its gap again, from the files only.", "Files"
    ),
    "simulate": CommandRow(
        "files.simulate:simulate",
        "Predict the time of an MSCCL XML or an execution plan (JSON) on a topology.",
        "Files",
    ),
    "convert": CommandRow(
        "files.convert:convert",
        "Convert any MSCCL XML or plan (JSON) for another executor; check it before and after.",
        "Files",
    ),
    "compile": CommandRow(
        "files.compile:compile_", "Compile an algorithm written by hand into an executor's file.", "Files"
    ),
    "lower": CommandRow("files.compile:lower", "Lower a stored schedule (.synth) to an executor's file.", "Files"),
    "optimize": CommandRow(
        "files.compile:optimize",
        "Compile any MSCCL XML or plan (JSON) again: never slower in the model, never longer, still right.",
        "Files",
    ),
    "report": CommandRow(
        "files.report:report",
        "Draw the network, the timeline, the frontier and the proof on one self-contained page.",
        "Files",
    ),
    "bench": CommandRow(
        "measuring.bench:bench",
        "Run and measure an MSCCL XML, a plan (JSON), a stored schedule, or a library's file for each size.",
        "Measurements",
    ),
    "judge": CommandRow(
        "measuring.judge:judge_command",
        "Judge what nccl-tests or rccl-tests printed: is the machine as fast as its kind usually is?",
        "Measurements",
    ),
    "tune": CommandRow(
        "measuring.tune:tune",
        "Measure torch's own back end and our algorithms, and write the table that SYNTH_BACKEND=auto reads.",
        "Measurements",
    ),
    "torch-setup": CommandRow(
        "measuring.torch_setup:torch_setup",
        "Measure this machine, search algorithms for it, and tune which of them torch's calls use.",
        "Measurements",
    ),
    "calibrate": CommandRow(
        "measuring.calibrate:calibrate",
        "Measure every link, and what calls, protocols and threadblocks cost; write the topology.",
        "Measurements",
    ),
}


class LazyGroup(StrictGroup):
    """A group that imports a command when it is called, and that takes torch's spellings of collectives too."""

    inner_groups = ("library", "topo")

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands in the order of the help page."""
        return list(all_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command of a name, or of torch's spelling of a collective; None if there is none.

        Its module is imported if necessary, and the command is kept.
        """
        name, commands = cmd_name, all_commands()
        if name not in commands:
            with suppress(InputError):
                name = parse_name(name)
        if name not in commands:
            return None
        if name not in self.commands:
            module, _, attribute = commands[name].where.partition(":")
            loaded: Any = getattr(import_module(f"{__name__}.{module}"), attribute)
            self.commands[name] = loaded if isinstance(loaded, click.Command) else loaded(COLLECTIVE_KINDS[name])
        return self.commands[name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the names and summaries of the commands to the help page by section, without importing them."""
        commands = all_commands()
        for section in dict.fromkeys(row.section for row in commands.values()):
            with formatter.section(section):
                formatter.write_dl([(name, row.summary) for name, row in commands.items() if row.section == section])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="synth-collectives", prog_name="synth")
def cli() -> None:
    """Find, prove and write algorithms for collectives on a given network.

    \b
    synth allreduce --topo dgx-a100 --group 0,2,4,6
    synth topo list
    synth verify out/msccl/FILE.xml
    """


_DEFECT = 4  # exit code if a part of synth itself fails; 1 is a verdict


def _refuse(why: str, code: int) -> NoReturn:
    """Print a reason on stderr in one line, after the progress line is removed, and exit with a code.

    A reason of over 2000 characters is shortened in its middle.
    """
    if sys.stderr.isatty():
        streams.clear_line()
    line = in_one_line(why)
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 600]} … {line[-500:]}"
    warn(f"synth: {line}")
    raise SystemExit(code) from None


def _in_our_words(error: click.ClickException) -> str:
    """Return a line on what is wrong with the arguments of a command, and what would be right.

    Errors that need no other words are returned in click's words.
    """
    message = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.BadOptionUsage) and message.endswith("requires an argument."):  # It has no context.
        return f"{error.option_name}: has no value; it must follow the option, and --help of the command shows its form"
    if context is None:
        return message
    command, usage = context.command, " ".join(context.command.collect_usage_pieces(context))
    if isinstance(error, click.NoSuchOption):
        name = error.option_name[:60]
        options = [option for param in command.params for option in param.opts if option.startswith("--")]
        near = did_you_mean(name, options)
        if not near and context.parent is None and isinstance(command, click.Group) and _is_of_a_search(name):
            return f"{name}: must stand after the command that it belongs to, as in synth COMMAND {name}"
        return f"{name}: no such option; {near or f'{context.command_path} --help lists all'}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        if error.param.name == "topo":
            return "which network? Add --topo, as in --topo dgx-a100 (all networks: synth topo list)"
        is_option = isinstance(error.param, click.Option)
        name = max(error.param.opts, key=len) if is_option else error.param.make_metavar(context)
        if not is_option:
            return f"{name} is missing: {context.command_path} {usage}"
        help_text = (error.param.help or "").rstrip(".")
        return f"{name} is missing; add {name} {error.param.metavar or ''} ({help_text[:1].lower()}{help_text[1:]})"
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice):
        name, value = max(error.param.opts, key=len), error.message.partition(" is not one of ")[0]
        return f"{name}: {value[:60]} is not known; {right_name(value[1:-1], list(error.param.type.choices))}"
    if message.startswith("Got unexpected extra argument"):
        return f"{message[0].lower()}{message[1:160]}; it must be {context.command_path} {usage}"
    return message


def _in_the_options_spelling(message: str, arguments: Sequence[str]) -> str:
    """Return a refusal with --NAME instead of NAME at its beginning, if the arguments of the command have this option.

    The Python face shares these messages, and spells the argument without hyphens.

    Args:
        message: The refusal; it begins with `NAME: ` or `NAME VALUE: ` where it is about an argument.
        arguments: The words of the command line.
    """
    start = re.match(r"[a-z_]+(?=( '.*?'| [^ :]*)?: )", message)
    option = "" if start is None else "--" + start[0].replace("_", "-")
    is_given = any(argument.partition("=")[0] == option for argument in arguments)
    return option + message[len(start[0]) :] if start is not None and is_given else message


def _is_of_a_search(option: str) -> bool:
    """Return whether the commands of collectives have an option of this name."""
    command = LazyGroup().get_command(click.Context(cli), next(iter(COLLECTIVE_KINDS)))
    return command is not None and any(option in param.opts for param in command.params)


def _refuse_hidden_packages() -> None:
    """Exit with code 2 and one line if a file of the user's hides one of our packages; otherwise do nothing."""
    try:
        check_packages("emit", "runtime")
    except ImportError as error:
        _refuse(str(error), 2)


def main() -> None:
    """Run the command `synth` with the arguments of the process; this is its entry point.

    Raises:
        SystemExit: With 2 for wrong input, 130 after an interruption, 4 if a part of synth fails, 1 for a closed pipe,
            or with the command's own code. Reasons are printed on stderr.
    """
    gc.set_threshold(_NEW_OBJECTS)
    streams.prepare()
    interrupts.install()
    restart()
    streams.show_logs("synth.loops", "synth.library")
    try:
        try:
            cli.main(standalone_mode=False)
        finally:
            sys.stdout.flush()
    except InputError as error:
        _refuse(_in_the_options_spelling(str(error), sys.argv), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        raise SystemExit(0) from None
    except click.ClickException as error:
        _refuse(_in_our_words(error), 2)
    except MemoryError as error:
        _refuse(f"not enough memory: {error or 'ask for a smaller size'}", 2)
    except (KeyboardInterrupt, click.Abort):
        if interrupts.came() > 1:
            click.echo("synth: interrupted again: answers that were not written yet are lost", err=True)
            interrupts.leave()  # The interpreter may need longer to end.
        _refuse("interrupted", 130)
    except Unanswered:
        _refuse("interrupted before there was an answer", 130)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None
    except DefectError as error:
        say_defects([error.defect], "there is no answer")
        raise SystemExit(_DEFECT) from None
    except OSError as error:  # A file that no earlier check covers, or stdout, cannot be used.
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Printing the rest would fail a second time.
        where = "standard output" if error.filename is None else origin_of(str(error.filename))
        _refuse(
            f"{where}: cannot be used ({error.strerror or error}); it must be a file that can be written or read", 2
        )
    except Exception as error:
        if isinstance(error, ImportError):
            _refuse_hidden_packages()
        say_defects([describe_defect("the command", error)], "there is no answer")
        raise SystemExit(_DEFECT) from None
    finally:
        interrupts.end_command()
