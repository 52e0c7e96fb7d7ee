"""`synth library build`: a library for a whole cluster, from one file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from emit.library.write import standing
from synth.cli.answer import check_writable
from synth.cli.options import cache_option, json_option, print_json
from synth.cli.streams import drawing_stream
from synth.library.build import Built, build
from synth.library.build import Progress as State
from synth.library.cluster import read_cluster
from synth.library.local import Local, Pool
from synth.library.on_dask import OnDask
from synth.library.plan import Plan, make_plan
from synth.library.processes import processors
from synth.model.deadline import now
from synth.present.text import format_count
from synth.storage.cache import open_cache

_LOGGED_S = 15.0  # between two lines of progress where there is no terminal
_SHOWN = 12  # kinds of problems in a plan's table


@click.command("build")
@click.argument("file", metavar="CLUSTER.toml")
@click.option("--out", default="lib", metavar="DIR", help="Folder of the library. Default: lib.")
@click.option("--dry-run", is_flag=True, help="Say what is to be done, and do nothing of it.")
@click.option("--on", metavar="dask|ADDRESS", help="dask: a local Dask cluster; tcp://HOST:PORT: the one there.")
@click.option("--jobs", type=click.IntRange(1, 1024), metavar="N", help="Processes. Default: this machine's cores.")
@cache_option
@json_option
def library_build(
    file: str, out: str, dry_run: bool, on: str | None, jobs: int | None, cache: str | None, as_json: bool
) -> None:
    """Build the library of a cluster: every group, collective and size that the file names, each problem once.

    \b
    synth library build cluster.toml --out lib
    synth library build cluster.toml --dry-run
    """
    begun = now()
    answers = open_cache(cache)
    cluster = read_cluster(file)
    check_writable(Path(out))
    pool = library_pool(on, jobs)
    plan = make_plan(cluster, pool.processes)
    if dry_run:
        _say_plan(plan, {task.key for task in plan.tasks() if answers.has(task.key)}, as_json)
        return
    with library_progress(plan, as_json) as report:
        built = build(plan, out, answers, pool, report)
    _say_built(built, out, now() - begun, as_json)
    if built.interrupted:
        raise SystemExit(130)
    if built.left_out:
        raise SystemExit(3)


def library_pool(on: str | None, jobs: int | None) -> Pool:
    """Who solves problems: processes of this machine, or a Dask cluster."""
    if on is None:
        return Local(jobs or processors())
    return OnDask(on, jobs)


def _say_plan(plan: Plan, done: set[str], as_json: bool) -> None:
    left_s, searches = plan.seconds(done), plan.searches
    known = sum(task.key in done for task in searches)
    if as_json:
        print_json(
            {
                "questions": plan.questions,
                "problems": len(searches),
                "files_for": len(plan.shares),
                "known": known,
                "seconds": round(left_s, 1),
                "memory_bytes": int(plan.memory_bytes()),
                "budget_class_s": searches[0].work_s,
                "processes": plan.cores,
                "impossible": _impossible(plan),
            }
        )
        return
    click.echo(_heading(plan))
    kinds: dict[tuple[str, int], list[int]] = {}
    for share in plan.shares:
        kinds.setdefault((share.first.collective, len(share.first.group)), []).append(len(share.questions))
    rows = [(name, str(ranks), str(sum(each)), str(len(each))) for (name, ranks), each in kinds.items()]
    table = [("collective", "ranks", "questions", "answers"), *rows[:_SHOWN]]
    widths = [max(len(row[i]) for row in table) for i in range(4)]
    click.echo(
        "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table)
    )
    if len(rows) > _SHOWN:
        click.echo(f"… and {len(rows) - _SHOWN} kinds more")
    whom = format_count(plan.cores, "core")
    click.echo(
        f"\nabout {_minutes(left_s)} on {whom}, {plan.memory_bytes() / 2**30:.1f} GiB of memory,"
        f" {searches[0].work_s:g} s of counted work a problem; {known} of {len(searches)} problems are known"
    )
    _say_impossible(plan)


def _impossible(plan: Plan) -> list[dict[str, Any]]:
    return [{"collective": q.collective, "group": list(q.group), "root": q.root, "why": w} for q, w in plan.impossible]


def _say_impossible(plan: Plan) -> None:
    if plan.impossible:
        question, why = plan.impossible[0]
        first = f"the first: {question.collective} of {','.join(map(str, question.group))}: {why}"
        click.echo(f"{format_count(len(plan.impossible), 'question')} without an answer, {first}")


def _heading(plan: Plan) -> str:
    questions, problems = format_count(plan.questions, "question"), format_count(len(plan.searches), "problem")
    lowered = "" if len(plan.shares) == len(plan.searches) else f", {len(plan.shares)} orders of their ranks"
    return f"{plan.cluster.topology.name}: {questions}, {problems}{lowered}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextmanager
def library_progress(plan: Plan, quiet: bool) -> Iterator[Callable[[State], None]]:
    """What shows how far a build is: a bar on a terminal, in a log a line now and then."""
    if not sys.stderr.isatty():
        said = now()

        def log(state: State) -> None:
            nonlocal said
            if now() - said >= _LOGGED_S and not quiet:
                said = now()
                told = (
                    f"{state.done} of {state.total}, about {_minutes(state.left_s)} left, worst gap {state.worst:.3f}"
                )
                print(told, file=sys.stderr, flush=True)

        yield log
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]} left  worst gap {task.fields[worst]:.3f}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=drawing_stream()), transient=True) as bar:
        shown = bar.add_task(_heading(plan), total=len(plan.shares), left="…", worst=1.0)

        def show(state: State) -> None:
            bar.update(shown, completed=state.done, left=_minutes(state.left_s), worst=state.worst)

        yield show


def _say_built(built: Built, out: str, seconds: float, as_json: bool) -> None:
    plan, state = built.plan, built.progress
    files = len(standing(out))
    if as_json:
        print_json(
            {
                "questions": plan.questions,
                "problems": len(plan.searches),
                "answered": state.done - len(built.left_out),
                "of": state.total,
                "kept": state.kept,
                "cached": state.cached,
                "solved": state.solved,
                "worst_gap": state.worst,
                "files": files,
                "left_out": [
                    {
                        "collective": s.first.collective,
                        "groups": len(s.questions),
                        "group": list(s.first.group),
                        "why": w,
                    }
                    for s, w in built.left_out
                ],
                "interrupted": built.interrupted,
                "remarks": built.remarks,
                "seconds": round(seconds, 2),
            }
        )
        return
    parts = [f"{_heading(plan)} → {out} ({format_count(files, 'file')})", f"worst gap {state.worst:.3f}"]
    known = [(state.kept, "in the library already"), (state.cached, "from the cache")]
    parts += [f"{count} {what}" for count, what in known if count]
    if built.interrupted:
        parts.append(f"interrupted: {state.done} of {state.total} are written; the same command goes on")
    click.echo("   ".join([*parts, *built.remarks, f"{seconds:.1f} s"]))
    _say_impossible(plan)
    for share, why in built.left_out:
        ranks = ",".join(map(str, share.first.group))
        more = f" and {len(share.questions) - 1} more" if len(share.questions) > 1 else ""
        click.echo(f"left out: {share.first.collective} of {ranks}{more}: {why}", err=True)
