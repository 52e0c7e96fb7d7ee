"""Options that several commands declare, and the common form of `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from emit.targets import SCRATCH_LIMIT, TARGETS, Target
from synth.app import documents

if TYPE_CHECKING:  # Most commands have no question.
    from synth.app.arguments import QuestionArguments

Command = Callable[..., None]
Option = Callable[[Command], Command]

json_option: Option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
topo_option: Option = click.option(
    "--topo",
    required=True,
    metavar="T",
    help="Use this topology: machine, machine:N, family (torus:4x4) or FILE (see synth topo).",
)


def target_option(auto: str) -> Option:
    """Return the option `--target`, whose help lists all targets, how their executors load files, and their state.

    Args:
        auto: Help text on the target without this option.
    """
    targets = ", ".join(f"{target.name} ({'; '.join(_about(target))})" for target in TARGETS.values())
    return click.option(
        "--target",
        default="auto",
        metavar="NAME",
        help=f"Write files for this executor: {targets}; auto: {auto}. Default: auto.",
    )


def _about(target: Target) -> list[str]:
    """Return texts for the help on a target: how its executor loads files, its state, and functions that it lacks."""
    uncallable = [f"no function for {' and '.join(target.uncallable)}"] if target.uncallable else []
    return [target.load, target.state, *uncallable]


scratch_option: Option = click.option(
    "--scratch-limit",
    metavar="BYTES",
    help="Limit the scratch memory of a rank, which msccl allocates at the start; larger needs are not served. "
    f"Default: {SCRATCH_LIMIT >> 30}G.",
)


def sms_option(default: str) -> Option:
    """Return the option `--sms`.

    Args:
        default: Help text on the number without this option.
    """
    return click.option(
        "--sms", type=int, metavar="N", help=f"Let a rank have at most N threadblocks. Default: {default}."
    )


wide_option: Option = click.option(
    "--wide", is_flag=True, help="Show all columns of the table. Default: those that fit the terminal."
)
costs_option: Option = click.option(
    "--costs",
    default="auto",
    metavar="auto|machine|none|FILE",
    help="Count an executor's costs besides α and bandwidth: auto (the default: the machine's, if it states any),"
    " machine, none, or those of a FILE with [costs].",
)
overlap_option: Option = click.option(
    "--groups-overlap",
    is_flag=True,
    help="State that ranks are in several groups at a time: plans (mscclpp) then use no packets.",
)


cache_option: Option = click.option(
    "--cache",
    metavar="DIR",
    help="Keep answers in this folder; none turns this off. Default: $SYNTH_CACHE, or the user's cache folder.",
)
replace_option: Option = click.option(
    "--replace", is_flag=True, help="Replace existing files of the library, even faster ones."
)


def declare(*options: Option) -> Option:
    """Return a decorator that adds options or arguments to a command, in this order on the help page."""

    def declared(command: Command) -> Command:
        """Add the options to a command."""
        for option in reversed(options):
            command = option(command)
        return command

    return declared


@dataclass(frozen=True)
class TraceOptions:
    """What a command states about the calls of a trace.

    Attributes:
        file: File of the matrices.
        files: Most capacities, each with files of its own.
        holdout: Share of the calls, the last ones, that no file is chosen for.
        headroom: Factor on the capacities up to which a call still fits, as buffers have so much room.
    """

    file: str
    files: int = 4
    holdout: float = 0.0
    headroom: float = 1.25


@dataclass(frozen=True, eq=False)
class SearchCommand:
    """A call of a command that searches: its question, and what it does with the answer.

    Attributes:
        question: The arguments of the question, with the collective's name.
        file: File of the pattern; None for a collective with a name.
        begun: Time of `synth.model.deadline.now` at the command's start.
        budget_s: Seconds for the search.
        groups: Concurrent groups as text; None for one group.
        group_sizes: Message sizes of the groups as text.
        objective: What a plan of groups minimises.
        compare: Engines that are compared, as text; None for one search.
        out: Folder of the files; None for the usual one.
        proof: Whether to write schedules and proofs.
        replace: Whether to replace existing files, even faster ones.
        cache: Folder of kept answers; None for the usual one.
        as_json: Whether to print JSON instead of a table.
        wide: Whether the table has all columns, however wide they are.
        details: Whether all figures of each algorithm follow the table.
        libraries: Which times of vendor libraries the answer is compared with: "fitted" or "source".
        trace: The trace of calls for which files are sought; None for one matrix, or another collective.
    """

    question: QuestionArguments
    file: str | None
    begun: float
    budget_s: float
    groups: str | None
    group_sizes: str | None
    objective: str | None
    compare: str | None
    out: str | None
    proof: bool
    replace: bool
    cache: str | None
    as_json: bool
    wide: bool
    details: bool
    libraries: str
    trace: TraceOptions | None = None


def print_json(kind: str, document: Mapping[str, Any]) -> None:
    """Print an object on stdout, in the form of every `--json`.

    Args:
        kind: Name of the document's schema (see `synth.app.documents`).
        document: The content.
    """
    click.echo(json.dumps(documents.stamp(kind, document), ensure_ascii=False, indent=1))
