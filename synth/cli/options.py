"""Options that several commands declare, and how all of them print JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from emit.targets import SCRATCH_LIMIT, TARGETS, Target

Command = Callable[..., None]
Option = Callable[[Command], Command]

json_option: Option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
topo_option: Option = click.option(
    "--topo", required=True, metavar="T", help="Machine, machine:N, family (torus:4x4) or FILE (see synth topo)."
)


def target_option(auto: str) -> Option:
    """`--target` with all targets there are, how their executors load the files and how these fare.

    auto: what it is without.
    """
    known = ", ".join(f"{target.name} ({'; '.join(_about(target))})" for target in TARGETS.values())
    return click.option("--target", default="auto", metavar="NAME", help=f"{known}; auto: {auto}.")


def _about(target: Target) -> list[str]:
    lacking = [f"no function for {' and '.join(target.uncallable)}"] if target.uncallable else []
    return [target.load, target.state, *lacking]


scratch_option: Option = click.option(
    "--scratch-limit",
    metavar="BYTES",
    help="Scratch a rank that msccl may allocate at the communicator's start: files serve no message that takes more. "
    f"Default: {SCRATCH_LIMIT >> 30}G.",
)


def sms_option(default: str) -> Option:
    """`--sms`; default: what holds without it."""
    return click.option("--sms", type=int, metavar="N", help=f"Threadblocks that a rank may have. Default: {default}.")


costs_option: Option = click.option(
    "--costs",
    default="none",
    metavar="none|machine|FILE",
    help="What an executor costs beyond α and bandwidth: nothing, what the machine states, or a FILE with [costs].",
)
overlap_option: Option = click.option(
    "--groups-overlap",
    is_flag=True,
    help="Ranks are in several groups at a time: plans (mscclpp) without packets, whose flags are counted by process.",
)


cache_option: Option = click.option(
    "--cache",
    metavar="DIR",
    help="Folder of known answers; none: no cache. Default: $SYNTH_CACHE, the user's.",
)
replace_option: Option = click.option(
    "--replace", is_flag=True, help="What is new takes the place of files that are there, slower or not."
)


def declare(*options: Option) -> Option:
    """All of these options, in this order on the help page."""

    def declared(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return declared


@dataclass(frozen=True)
class Asked:
    """The options of a command that searches, as the user wrote them; budget in seconds, begun: of `now`."""

    topo: str
    group: str | None
    relay: str
    groups: str | None
    group_sizes: str | None
    objective: str | None
    without: tuple[str, ...]
    degrade: tuple[str, ...]
    switch_ops: bool
    size: str | None
    chunks: int | None
    steps: int | None
    rounds: int | None
    engine: str
    budget: float
    seed: int
    out: str
    target: str
    sms: int | None
    groups_overlap: bool
    scratch_limit: str | None
    proof: bool
    replace: bool
    as_json: bool
    begun: float
    costs: str = "none"
    root: int | None = None
    cache: str | None = None


def print_json(document: Mapping[str, Any]) -> None:
    """One object on stdout, as every `--json` prints it."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=1))
