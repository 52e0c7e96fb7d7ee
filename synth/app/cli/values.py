"""Checks of the arguments of every command: no empty text, numbers in digits, each option at most once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from synth.app.cli.defects import debug_option
from topologies.errors import InputError, did_you_mean
from topologies.text.fields import shown

_MOST = 2**31 - 1  # largest whole number that solvers and formats take
_WHOLE = re.compile(r"[+-]?[0-9]+")


def _topologies() -> list[str]:
    """Return what `--topo` may begin with, besides names of files."""
    from topologies.families import FAMILIES
    from topologies.machines import machines

    return [*machines(), *(f"{name}:" for name in FAMILIES)]


def _engines() -> list[str]:
    """Return the values of `--engine`."""
    from synth.engines.registry import names

    return list(names())


def _targets() -> list[str]:
    """Return the values of `--target`."""
    from emit.targets import TARGETS
    from synth.search.settings import AUTO, NONE

    return [AUTO, NONE, *TARGETS]


# The values that a shell completes, by the parameter's name; of other parameters it completes files and folders. They
# are imported only when a shell asks, because every command starts with this module.
_VALUES: dict[str | None, Callable[[], list[str]]] = {"topo": _topologies, "engine": _engines, "target": _targets}


# Of options that many commands have, or whose values are hard to guess.
_EXAMPLES = {
    "group": "0-3", "topo": "dgx-a100", "size": "1M", "budget": "30s", "states": "'ring:8 + axes:2x2x2'",
}  # fmt: skip


class TextType(click.ParamType):  # type: ignore[type-arg]  # Older versions are not generic.
    """A text that is not empty."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text; raise InputError if it is empty."""
        if value == "":
            path = "synth" if ctx is None else ctx.command_path
            name = "" if param is None else str(param.name)
            example = f"as in {_EXAMPLES[name]}" if name in _EXAMPLES else f"as {path} --help says"
            raise InputError(f"{_called(param)}: is empty; it must be {example}")
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Return the values that begin with what is written; the shell completes files and folders by itself."""
        values = _VALUES[param.name]() if param.name in _VALUES else []
        if items := [CompletionItem(value) for value in values if value.startswith(incomplete)]:
            return items
        metavar = param.metavar or (param.name or "").upper()
        if any(word in metavar for word in ("DIR", "LIB")):
            return [CompletionItem(incomplete, type="dir")]
        is_file = param.name == "topo" or any(word in metavar for word in ("FILE", ".toml", ".json", "TOPOLOGY"))
        return [CompletionItem(incomplete, type="file")] if is_file else []


class _Whole(click.ParamType):  # type: ignore[type-arg]  # Older versions are not generic.
    """A whole number within limits.

    Attributes:
        least: Smallest allowed number; -inf for no limit.
        most: Largest allowed number.
    """

    name = "integer"

    def __init__(self, least: float | None, most: float | None) -> None:
        self.least = -math.inf if least is None else least
        self.most = _MOST if most is None else most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """Return the number; raise InputError if the text is no whole number or is out of range."""
        if isinstance(value, int):  # The value is a default.
            return value
        if not _WHOLE.fullmatch(value):
            if param is not None and param.name == "root":
                _refuse(param, value, "is no rank", "one rank of the group, such as 0")
            _refuse(param, value, "is no whole number", f"one{self._range(', such as 4')}")
        number = int(value) if len(value) < 20 else math.copysign(math.inf, 1 if value[0] != "-" else -1)
        if not self.least <= number <= self.most:
            _refuse(param, value, "is out of range", self._range("").strip() or f"at most {self.most}")
        return int(number)

    def _range(self, example: str) -> str:
        """Return the allowed range as text, or an example if there is no lower limit."""
        return example if math.isinf(self.least) else f" from {self.least} to {self.most}"


class _Figure(click.ParamType):  # type: ignore[type-arg]  # Older versions are not generic.
    """A finite number."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """Return the number; raise InputError if the text is no finite number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            _refuse(param, value, "is no number", "one, such as 2 or 1.5")
        return number


def check_arguments(command: click.Command, args: list[str], ctx: click.Context) -> None:
    """Make a command convert its arguments by the strict types of this module, and refuse repeated options.

    Args:
        command: The command; the types of its parameters are replaced.
        args: The arguments that the user wrote after the command's name.
        ctx: Context of the group that the command belongs to.

    Raises:
        InputError: An option is given twice that may be given once only, or with one dash in place of two, or `--json`
            with an option on the table.
    """
    for param in command.params:
        if type(param.type) is type(click.STRING):
            param.type = TextType()
        elif type(param.type) is type(click.INT):
            param.type = _Whole(None, None)
        elif isinstance(param.type, click.IntRange):
            param.type = _Whole(param.type.min, param.type.max)
        elif type(param.type) is type(click.FLOAT):
            param.type = _Figure()
    if ctx.resilient_parsing:  # The arguments are not complete: the shell asks what may follow.
        return
    long_options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for written in args:
        name = written.partition("=")[0]
        if len(name) > 2 and name[0] == "-" != name[1] and f"-{name}" in long_options:
            raise InputError(f"{name}: no such option; did you mean -{name}?")
    given_names: set[str | None] = set()
    inner = click.Context(command, parent=ctx, info_name=command.name)  # This context allows options after arguments.
    for param in command.make_parser(inner).parse_args(list(args))[2]:
        if not isinstance(param, click.Option) or param.multiple:
            continue
        if param.name in given_names:
            alternatives = [*param.opts, *param.secondary_opts] if param.is_flag else []
            what = "are given together" if len(alternatives) > 1 else "is given twice"
            raise InputError(f"{_called(param)}: {what}; give {'one of them ' if alternatives[1:] else 'it '}once")
        given_names.add(param.name)
    for name in ("wide", "details"):
        if {"as_json", name} <= given_names:
            raise InputError(f"--json and --{name}: do not go together; JSON has all figures, so leave out --{name}")


class StrictGroup(click.Group):
    """A group whose commands check their arguments, and that suggests similar names for an unknown command.

    Attributes:
        inner_groups: Names of its commands that are groups themselves, of which a command may be meant.
    """

    inner_groups: tuple[str, ...] = ()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of all commands with the whole first sentence of their help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(_MOST)) for name, command in commands.items() if command]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the arguments after their check; raise InputError for an unknown command."""
        name = args[0] if args else ""
        is_known = not name or name.startswith("-") or self.get_command(ctx, name) is not None
        if not is_known and not ctx.resilient_parsing:
            inner = [(group, self.get_command(ctx, group)) for group in self.inner_groups]
            own = [f"{group} {name}" for group, row in inner if isinstance(row, click.Group) and name in row.commands]
            near = (
                did_you_mean(name.lower(), self.list_commands(ctx)) if not own else f"did you mean {' or '.join(own)}?"
            )
            hint = f"; {near}" if near else "."
            raise InputError(f"command {name[:60]!r} is not known{hint} See {ctx.command_path} --help")
        resolved_name, command, remaining = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            if debug_option not in command.params:
                command.params.append(debug_option)
            check_arguments(command, remaining, ctx)
        return resolved_name, command, remaining


def _called(param: click.Parameter | None) -> str:
    """Return a parameter's name as the user writes it."""
    if param is None:
        return "an argument"
    if isinstance(param, click.Option):
        return ", ".join([*param.opts, *param.secondary_opts])
    return param.metavar or (param.name or "").upper()


def _refuse(param: click.Parameter | None, value: str, defect: str, advice: str) -> NoReturn:
    """Raise InputError for a value of a parameter."""
    raise InputError(f"{_called(param)}: {shown(value)} {defect}; it must be {advice}")
