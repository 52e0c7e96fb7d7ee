"""The help of a command that searches: the usual options on one page, all of them with `--help-all`."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import click

# What `--help` says of the usual options, by section and by the name of the option's parameter.
_USUAL = {
    "Question": {
        "topo": "Network: a name (synth topo list), as dgx-a100:2, or a file.",
        "group": "Ranks that take part, in this order. Default: all.",
        "root": "Root. Default: the group's first rank.",
        "sizes": "Bytes of each block: a list, or a CSV or JSON file.",
        "trace": "In place of --sizes: a file with a matrix for each call.",
        "files": "Capacities that are chosen for a trace. Default: 4.",
        "relay": "Others that may forward, or all. Default: none.",
        "size": "Size of one message, as 64K or 1M. Default: all sizes.",
        "without": "Part that is broken, as link:0-1 or rank:17; repeat.",
        "costs": "Costs of an executor, or none. Default: the machine's.",
    },
    "Search": {
        "engine": "Only this engine (synth engines). Default: auto, all.",
        "compare": "A row for each of these engines and libraries.",
        "budget": "Time of the command. Default: 30s.",
        "cache": "Folder of known answers, or none. Default: the user's.",
    },
    "Files": {
        "target": "Executor, as mscclpp. Default: auto, the machine's.",
        "out": "Folder of the files. Default: out.",
        "proof": "Also write the schedule and the proof of its bound.",
    },
    "Output": {
        "wide": "All columns. Default: those that fit the terminal.",
        "details": "All figures, the proof and the files of each row.",
        "as_json": "One JSON object in place of the table.",
    },
}


class HelpfulCommand(click.Command):
    """A command with many options, whose `--help` fits a screen and names the options that only `--help-all` explains.

    `format_options` writes all options, as a page of reference needs it.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's parameters, with a new `--help-all` before the last one, `--help`."""
        *params, help_option = super().get_params(ctx)
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=self._print_all,
            help="Show this page with all options and exit.",
        )
        return [*params, help_all, help_option]

    def _print_all(self, ctx: click.Context, _: click.Parameter, value: bool) -> None:
        """Print the help with all options and exit if `--help-all` is given."""
        if value and not ctx.resilient_parsing:
            formatter = ctx.make_formatter()
            super().format_help(ctx, formatter)
            click.echo(formatter.getvalue().rstrip("\n"), color=ctx.color)
            ctx.exit()

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page with the usual options by section, and a line with the names of the others."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        options: dict[str | None, Any] = {
            param.name: param for param in self.get_params(ctx) if isinstance(param, click.Option) and not param.hidden
        }
        for section, texts in _USUAL.items():
            rows = [(_spelled(options.pop(name)), text) for name, text in texts.items() if name in options]
            with formatter.section(section):
                formatter.write_dl(rows)
        unlisted = [option.opts[0] for option in options.values() if not option.is_eager]
        formatter.write_paragraph()
        text = f"--help-all also explains {', '.join(unlisted)}."
        formatter.write(f"{fill(text, formatter.width, break_on_hyphens=False)}\n")


def _spelled(option: click.Option) -> str:
    """Return an option as a short help page spells it, as `--group RANKS`; of `A|B|C` only the last is named."""
    return option.opts[0] if option.metavar is None else f"{option.opts[0]} {option.metavar.split('|')[-1]}"
