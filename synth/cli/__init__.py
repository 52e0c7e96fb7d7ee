"""The command line: the one room that sees all others. Bad input is one line on stderr and exit code 2.

A command's module is imported when the command is called, so `synth --help` imports none of them.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from synth.cli import interrupts, streams
from synth.cli.defects import say_defects
from synth.cli.interrupts import Unanswered
from synth.cli.values import StrictGroup
from synth.model.deadline import restart
from synth.model.defects import DefectError, describe_defect
from synth.model.registry import KINDS, parse_name
from topologies.errors import InputError, in_one_line
from topologies.text.files import origin_of

_LONGEST = 2000  # letters of a refusal


class Row(NamedTuple):
    """A command: `module:attribute` of its click.Command, or of what makes one from its collective's row."""

    where: str
    summary: str


COMMANDS = {
    "pattern": Row("search:pattern", "A pattern of your own: who holds which chunk before and after."),
    "topo": Row("topologies:topo", "Topologies: list, show, check, import, here."),
    "place": Row(
        "place:place", "Rank the placements of parallelism axes on a topology by the time of a training step."
    ),
    "reduce-program": Row(
        "reduce_program:reduce_program", "Sequences of collectives for a reduction over axes of parallelism."
    ),
    "library": Row(
        "library:library", "Libraries: what they answer, whether they are right, and what makes an executor load one."
    ),
    "cache": Row("cache:cache", "Answers that are kept: where, how many, and away with them."),
    "prove": Row("prove:prove", "Check a stored schedule and the proof of its gap again, from the files alone."),
    "simulate": Row(
        "simulate:simulate",
        "Predict the time of an MSCCL XML or an execution plan (JSON), ours or another's, on a topology.",
    ),
    "compile": Row("compile:compile_", "Compile an algorithm written by hand into an executor's file."),
    "lower": Row("compile:lower", "Lower a stored schedule (.synth) to an executor's file."),
    "optimize": Row(
        "compile:optimize",
        "Compile anyone's MSCCL XML or plan (JSON) anew: never slower in the model, never longer, still right.",
    ),
    "bench": Row(
        "bench:bench",
        "Run an MSCCL XML, a plan (JSON), a stored schedule, or a library's file for each size, and measure it.",
    ),
    "tune": Row(
        "tune:tune",
        "Measure torch's own back end and our algorithms, and write the table that SYNTH_BACKEND=auto reads.",
    ),
    "calibrate": Row(
        "calibrate:calibrate",
        "Measure every link, and what calls, protocols and threadblocks cost; write the topology.",
    ),
    "report": Row(
        "report:report", "Draw the network, the timeline, the frontier and the proof on one self-contained page."
    ),
    "convert": Row(
        "convert:convert",
        "Convert anyone's MSCCL XML or plan (JSON) for another executor; it is checked before and after.",
    ),
    "verify": Row(
        "verify:verify",
        "Replay an MSCCL XML or an execution plan (JSON), ours or another's: right, wrong, deadlock or not readable.",
    ),
}


def commands() -> dict[str, Row]:
    """All commands by name, in the order of the help page: the registered collectives, then the rest."""
    searches = {kind.name: Row("search:collective_command", kind.summary) for kind in KINDS.values()}
    return searches | COMMANDS


class LazyGroup(StrictGroup):
    """Imports a command when it is called, and takes torch's spellings of collectives too."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - in the order of the table
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        known, name = commands(), cmd_name
        if name not in known:
            with suppress(InputError):
                name = parse_name(name)
        if name not in known:
            return None
        if name not in self.commands:
            module, _, attribute = known[name].where.partition(":")
            found: Any = getattr(import_module(f"{__name__}.{module}"), attribute)
            self.commands[name] = found if isinstance(found, click.Command) else found(KINDS[name])
        return self.commands[name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        limit = formatter.width - 6 - max(map(len, commands()))
        rows = [
            (name, click.Command(name, help=row.summary).get_short_help_str(limit)) for name, row in commands().items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="synth-collectives", prog_name="synth")
def cli() -> None:
    """Find, prove and write algorithms for collectives on a given network.

    \b
    synth allreduce --topo dgx-a100 --group 0,2,4,6
    synth topo list
    synth verify out/msccl/FILE.xml
    """


def _refuse(why: str, code: int) -> NoReturn:
    line = in_one_line(why)
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 600]} … {line[-500:]}"
    click.echo(f"synth: {line}", err=True)
    raise SystemExit(code) from None


def main() -> None:
    """Entry point of the command `synth`."""
    streams.prepare()
    interrupts.install()
    restart()
    try:
        try:
            cli.main(standalone_mode=False)
        finally:
            sys.stdout.flush()
    except InputError as error:
        _refuse(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        raise SystemExit(0) from None
    except click.ClickException as error:
        _refuse(" ".join(error.format_message().split()), 2)
    except MemoryError as error:
        _refuse(f"not enough memory: {error or 'it must be a smaller size'}", 2)
    except (KeyboardInterrupt, click.Abort):
        if interrupts.came() > 1:
            click.echo("synth: interrupted again: what was not written yet is lost", err=True)
            interrupts.leave()  # the interpreter may take longer to end
        _refuse("interrupted", 130)
    except Unanswered:
        _refuse("interrupted before there was an answer", 130)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None
    except DefectError as error:
        say_defects([error.defect], "there is no answer")
        raise SystemExit(1) from None
    except OSError as error:  # of a file whose name nothing could look at before, or of stdout
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to print would be a second error
        where = "standard output" if error.filename is None else origin_of(str(error.filename))
        _refuse(
            f"{where}: cannot be used ({error.strerror or error}); it must be a file that can be written or read", 2
        )
    except Exception as error:
        say_defects([describe_defect("the command", error)], "there is no answer")
        raise SystemExit(1) from None
