"""The commands that search: one for each collective, and `pattern` for the user's own.

`synth.app.cli.asking.answer` reads the question and answers it. This module loads fast, so that the solvers' processes
start before the other modules are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from shlex import quote
from typing import Any

import click

from emit.targets import RESERVED_SMS
from synth.app.arguments import QuestionArguments
from synth.app.cli import interrupts
from synth.app.cli.asking.help import HelpfulCommand
from synth.app.cli.options import (
    SearchCommand,
    TraceOptions,
    cache_option,
    costs_option,
    declare,
    json_option,
    overlap_option,
    replace_option,
    scratch_option,
    sms_option,
    target_option,
    topo_option,
    wide_option,
)
from synth.engines.registry import processes
from synth.model.deadline import now
from synth.model.numbers import parse_seconds
from synth.model.registry import COLLECTIVE_KINDS, CollectiveKind
from synth.solvers.workers import Workers
from topologies.errors import InputError

MOST_FILES = 64  # capacities of a trace; each of them is a search

_question = declare(
    topo_option,
    click.option(
        "--group", metavar="RANKS", help="Let these ranks take part, in this order, as 0,2,4-7. Default: all."
    ),
    click.option(
        "--relay",
        default="none",
        metavar="none|all|RANKS",
        help="Let ranks outside the group forward data and reduce it. Default: none.",
    ),
    click.option(
        "--groups",
        metavar="LIST",
        help="Plan several concurrent groups: 0-7;8-15, tp=8, or allgather@64M:8-15 for one of them.",
    ),
    click.option("--group-sizes", metavar="LIST", help="With --groups: set the message size of each group, as 1M,64M."),
    click.option(
        "--objective",
        metavar="NAME",
        help="With --groups: minimise the total time (makespan, the default) or the largest slowdown (fair).",
    ),
    click.option(
        "--without",
        multiple=True,
        metavar="PART",
        help="Plan without these parts: link:0-1, link:0>1, rank:17, switch:NAME; repeat.",
    ),
    click.option(
        "--degrade",
        multiple=True,
        metavar="PART=RATE",
        help="Plan with slow parts: link:0-1=50%, link:0-1=12.5GB/s, rank:3=25%, limit:NAME=50%; repeat.",
    ),
    click.option(
        "--switch-ops/--no-switch-ops",
        default=True,
        help="Let switches multicast and reduce, if the topology's can and the target can express it. Default: yes.",
    ),
    click.option("--size", metavar="BYTES", help="Optimise for one message size (64K, 1M) instead of all."),
    click.option("--chunks", type=int, metavar="C", help="Divide each block into C chunks."),
    click.option("--steps", type=int, metavar="S", help="Use S steps (k-synchronous model)."),
    click.option("--rounds", type=int, metavar="R", help="Use R rounds in all steps (k-synchronous model)."),
    click.option(
        "--engine",
        default="auto",
        metavar="E",
        help="Search with this engine only (list: synth engines). Default: auto, every engine that can.",
    ),
    click.option(
        "--compare",
        metavar="LIST",
        help="Compare these engines and vendor libraries, as flow,lns,nccl: one row each, equal shares of the budget,"
        " no files.",
    ),
    click.option(
        "--budget", default="30s", metavar="TIME", help="Limit the time of the command: 500ms, 5m. Default: 30s."
    ),
    click.option("--seed", type=int, default=0, metavar="N", help="Set the seed of the solvers. Default: 0."),
    click.option(
        "--out",
        metavar="DIR",
        help="Write the files to this folder. Default: out, or a folder in it if out is for other ranks.",
    ),
    target_option("that of the machine, or else the first that can express the question"),
    sms_option(f"the SMs of a device, except {RESERVED_SMS} for computation"),
    overlap_option,
    scratch_option,
    costs_option,
    click.option("--proof", is_flag=True, help="Also write the schedule and the proof of its bound, for synth prove."),
    replace_option,
    cache_option,
    wide_option,
    click.option(
        "--libraries",
        type=click.Choice(["fitted", "source"]),
        default="fitted",
        help="Compare with NCCL's times as they are fitted to measurements (fitted, the default), or as the cost model"
        " in its source has them (source).",
    ),
    click.option("--details", is_flag=True, help="Also show all figures, the proof and the files of each algorithm."),
    json_option,
)


class _QuestionCommand(HelpfulCommand):
    """A command that asks about a network; without one it says how to name it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments as click does.

        Raises:
            InputError: There is no option `--topo`; the message repeats a network that is written without it.
        """
        word = args[0] if args and not args[0].startswith("-") else "dgx-a100"
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if error.param is None or error.param.name != "topo":
                raise
            try_this = f"synth {self.name} --topo {quote(word[:60])}"
            raise InputError(f"which network? Try: {try_this} (all networks: synth topo list)") from None


def _refused(option: str, message: str) -> click.Option:
    """Return a hidden option whose use raises InputError with a message that begins with the option's name."""

    def refuse(_: click.Context, __: click.Parameter, value: str | None) -> None:
        """Raise InputError if the option is given."""
        if value is not None:
            raise InputError(f"{option}: {message}")

    return click.Option([option], hidden=True, expose_value=False, callback=refuse)


def _names(is_meant: Callable[[CollectiveKind], bool]) -> str:
    """Return the names of some of the collectives as text, separated by ", "."""
    return ", ".join(kind.name for kind in COLLECTIVE_KINDS.values() if is_meant(kind))


def _trace_options() -> list[click.Option]:
    """Return the options of a collective with a size for every pair of ranks, whose calls may change their sizes."""
    usual = TraceOptions("")
    return [
        click.Option(
            ["--trace"],
            metavar="FILE",
            help="Find few files for calls whose sizes change: read a matrix of bytes for each call from this text,"
            " JSON or .npy file.",
        ),
        click.Option(
            ["--files"],
            type=click.IntRange(1, MOST_FILES),
            metavar="N",
            help=f"With --trace: choose at most N capacities, each with its own file. Default: {usual.files}.",
        ),
        click.Option(
            ["--holdout"],
            type=float,
            metavar="X",
            help="With --trace: choose them without this last share of the calls, and show how these fit."
            f" Default: {usual.holdout:g}.",
        ),
        click.Option(
            ["--headroom"],
            type=float,
            metavar="X",
            help="With --trace: let buffers have room for X times the capacity, so that larger calls fit too."
            f" Default: {usual.headroom:g}.",
        ),
    ]


def _trace(name: str, options: dict[str, Any]) -> TraceOptions | None:
    """Take the options of a trace out of a command's options and return them; None if there is no trace.

    Args:
        name: Name of the collective.
        options: Value of each option by the name of its parameter; those of a trace are removed.

    Raises:
        InputError: The collective needs sizes or a trace and has none or both, an option is for a trace and there is
            none, or a value is out of range.
    """
    stated = {option: options.pop(option) for option in ("files", "holdout", "headroom") if option in options}
    stated = {option: value for option, value in stated.items() if value is not None}
    if "trace" not in options:
        return None
    file = options.pop("trace")
    if (file is None) == (options["sizes"] is None):
        has = "neither is there" if file is None else "both are there"
        raise InputError(f"--sizes, --trace: {has}; {name} needs the sizes of one call (--sizes) or of many (--trace)")
    if file is None:
        for option in stated:
            raise InputError(f"--{option}: is for calls whose sizes change; name their file with --trace")
        return None
    trace = TraceOptions(file, **stated)
    if not 0 <= trace.holdout <= 0.9:
        raise InputError(f"--holdout: {trace.holdout:g} is out of range; it must be from 0 to 0.9, such as 0.2")
    if not 1 <= trace.headroom <= 1e3:
        raise InputError(f"--headroom: {trace.headroom:g} is out of range; it must be from 1 to 1000, such as 1.25")
    return trace


def collective_command(kind: CollectiveKind) -> click.Command:
    """Return the click command of a collective.

    It has `--root` if the collective is rooted, and `--sizes`, which is required, if its blocks have sizes of their
    own; otherwise hidden ones that are refused with what would be right. With a size for every pair of ranks it has
    `--trace` too, in place of `--sizes`.
    """
    example, own_options = f"synth {kind.name} --topo dgx-a100 --group 0,2,4,6", []
    if kind.rooted:
        example += " --root 2"
        root = click.Option(
            ["--root"], type=int, metavar="RANK", help="Use this rank as the root. Default: the group's first."
        )
        own_options.append(root)
    else:
        rooted = _names(lambda kind: kind.rooted)
        own_options.append(_refused("--root", f"{kind.name} has no root; leave it out (with a root: {rooted})"))
    second_example = f"synth {kind.name} --topo torus:4x4 --size 1M --budget 5s\n"
    if kind.even:
        example = f"synth {kind.name} --topo dgx1 --sizes sizes.csv"
        second_example, metavar = "", "FILE"
        text = "Read the matrix of bytes from this CSV or JSON file."
        if not kind.by_pair:
            example = f"synth {kind.name} --topo dgx-a100 --group 0-3 --sizes 1M,0,3M,2M"
            second_example = f"synth {kind.name} --topo ring:4 --sizes 4K,4K,0,64K --budget 5s\n"
            text, metavar = "Set the bytes of each rank's block, as 1M,0,3M, or name a file of them.", "LIST|FILE"
        own_options.append(click.Option(["--sizes"], required=not kind.by_pair, metavar=metavar, help=text))
        if kind.by_pair:
            own_options += _trace_options()
            second_example = f"synth {kind.name} --topo dgx1 --trace calls.npy --files 4 --holdout 0.2\n"
    else:
        sized = _names(lambda kind: bool(kind.even))
        own_options.append(
            _refused("--sizes", f"{kind.name} has blocks of one size; leave it out (with sizes: {sized})")
        )
    if not kind.by_pair:
        traced = _names(lambda kind: kind.by_pair)
        own_options.append(_refused("--trace", f"{kind.name} has none; leave it out (with a trace: {traced})"))
    text = f"{kind.summary}\n\n\b\n{example}\n{second_example}"
    return click.command(kind.name, cls=_QuestionCommand, help=text, params=own_options)(
        _question(partial(_answer, kind.name))
    )


@click.command("pattern", cls=HelpfulCommand)
@click.argument("file")
@_question
def pattern(**options: Any) -> None:
    """Find algorithms for your own pattern: who holds which chunk before and after.

    \b
    synth pattern halo.toml --topo mesh:2x2
    synth pattern halo.toml --topo dgx1 --group 0-3 --size 1M --budget 5s
    """
    _answer("pattern", **options)


_NOT_OF_QUESTION = (
    "groups",
    "group_sizes",
    "objective",
    "compare",
    "out",
    "proof",
    "replace",
    "cache",
    "as_json",
    "wide",
    "details",
    "libraries",
)


def _answer(name: str, /, **options: Any) -> None:
    """Run a search in solver processes, write its files and print its report; handle Ctrl-C.

    The options `--trace`, `--compare` and `--groups` choose another kind of answer.

    Args:
        name: Name of the collective, or "pattern".
        **options: Value of each option by the name of its parameter.

    Raises:
        InputError: An option is wrong.
        Unanswered: Ctrl-C came before there was an answer; a second Ctrl-C raises KeyboardInterrupt.
        SystemExit: With 130 if Ctrl-C came and there is an answer, or with the code of the report.
    """
    begun, budget_s = now(), parse_seconds(options.pop("budget"), "--budget")
    trace = _trace(name, options)
    file, other_options = options.pop("file", None), {option: options.pop(option) for option in _NOT_OF_QUESTION}
    question = QuestionArguments(name, **options, budget=budget_s, begun=begun, are_options=True)
    command = SearchCommand(question, file, begun, budget_s, **other_options, trace=trace)
    try:
        with Workers(processes(question.engine) if command.groups is None else ()) as workers:
            # These modules load while the solvers' processes load.
            if command.trace is not None:
                from synth.app.cli.asking.trace import answer
            elif command.compare is not None:
                from synth.app.cli.asking.compare import compare as answer
            elif command.groups is not None:
                from synth.app.cli.asking.concurrent import answer
            else:
                from synth.app.cli.asking.answer import answer

            report = answer(command, workers)
            interrupts.let_finish()
    except KeyboardInterrupt:
        if interrupts.came() > 1:
            raise
        raise interrupts.Unanswered from None
    report()
    if interrupts.came():
        raise SystemExit(130)
