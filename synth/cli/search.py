"""The commands that search: one a collective, and `pattern` for the user's own.

What reads the question and answers it is `synth.cli.answer`; this module is light, so that the solvers' processes
start before the rest is imported.
"""

from __future__ import annotations

from typing import Any

import click

from emit.targets import RESERVED_SMS
from synth.cli import interrupts
from synth.cli.options import (
    Asked,
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
)
from synth.engines.registry import processes, summaries
from synth.model.deadline import now
from synth.model.numbers import parse_seconds
from synth.model.registry import Kind
from synth.solvers.workers import Workers
from topologies.errors import InputError

_question = declare(
    topo_option,
    click.option("--group", metavar="RANKS", help="Ordered ranks that take part, as 0,2,4-7. Default: all."),
    click.option(
        "--relay",
        default="none",
        metavar="none|all|RANKS",
        help="Outsiders that may forward, and add what they forward.",
    ),
    click.option(
        "--groups",
        metavar="LIST",
        help="Several groups planned together: 0-7;8-15, tp=8, or allgather@64M:8-15 for one of them.",
    ),
    click.option("--group-sizes", metavar="LIST", help="With --groups: message sizes, one a group."),
    click.option("--objective", metavar="NAME", help="With --groups: makespan (default) or fair."),
    click.option(
        "--without", multiple=True, metavar="PART", help="Dead parts: link:0-1, link:0>1, rank:17, switch:NAME."
    ),
    click.option(
        "--degrade", multiple=True, metavar="PART=%", help="Slow parts: link:0-1=50%, rank:3=25%, limit:NAME=50%."
    ),
    click.option(
        "--switch-ops/--no-switch-ops",
        default=True,
        help="Whether switches multicast and reduce, where the topology says that they can and the target can say it.",
    ),
    click.option("--size", metavar="BYTES", help="One message size (64K, 1M) instead of all."),
    click.option("--chunks", type=int, metavar="C", help="Chunks a block."),
    click.option("--steps", type=int, metavar="S", help="Steps (k-synchronous model)."),
    click.option("--rounds", type=int, metavar="R", help="Rounds of all steps together."),
    click.option("--engine", default="auto", metavar="E", help=f"{summaries()}."),
    click.option("--budget", default="30s", metavar="TIME", help="Time for the search: 30s, 500ms, 5m."),
    click.option("--seed", type=int, default=0, metavar="N", help="Seed of the solvers."),
    click.option("--out", default="out", metavar="DIR", help="Folder for the files. Default: out."),
    target_option("the first that can"),
    sms_option(f"the SMs of a device, less {RESERVED_SMS} left to compute"),
    overlap_option,
    scratch_option,
    costs_option,
    click.option("--proof", is_flag=True, help="Also write the schedule and what proves its bound, for synth prove."),
    replace_option,
    cache_option,
    json_option,
)


def collective_command(kind: Kind) -> click.Command:
    """The command of one collective."""
    example = f"synth {kind.name} --topo dgx-a100 --group 0,2,4,6"
    own = []
    if kind.rooted:
        example += " --root 2"
        own.append(click.option("--root", type=int, metavar="RANK", help="Default: the group's first."))
    if kind.by_size:
        example = f"synth {kind.name} --topo dgx1 --sizes sizes.csv"
        own.append(click.option("--sizes", required=True, metavar="FILE", help="Matrix of bytes, CSV or JSON."))

    @click.command(kind.name, help=f"{kind.summary}\n\n\b\n{example}\n")
    @declare(*own, _question)
    def command(sizes: str | None = None, **asked: Any) -> None:
        _answer(kind.name, sizes, **asked)

    return command


@click.command("pattern")
@click.argument("file")
@_question
def pattern(file: str, **asked: Any) -> None:
    """A pattern of your own: who holds which chunk before and after.

    \b
    synth pattern halo.toml --topo mesh:2x2
    """
    _answer("pattern", file, **asked)


def _answer(name: str, file: str | None, *, budget: str, out: str, engine: str, **others: Any) -> None:
    begun = now()
    asked = Asked(budget=parse_seconds(budget, "--budget"), out=out, engine=engine, begun=begun, **others)
    if not out:
        raise InputError("--out: is empty; give the name of a folder")
    try:
        with Workers(processes(engine) if asked.groups is None else ()) as workers:
            if asked.groups is None:
                from synth.cli.answer import answer  # loads while the solvers' processes do
            else:
                from synth.cli.concurrent import answer  # likewise

            report = answer(name, file, asked, workers)
            interrupts.let_finish()
    except KeyboardInterrupt:
        if interrupts.came() > 1:
            raise
        raise interrupts.Unanswered from None
    report()
    if interrupts.came():
        raise SystemExit(130)
