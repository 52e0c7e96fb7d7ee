"""The commands `synth library build` and `synth library update`: a cluster's library, and what a failure changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from emit.library.entry import INDEX
from emit.library.saving.write import existing_entries
from synth.app.cli.asking.answer import check_writable
from synth.app.cli.library.missing import say_missing_forms
from synth.app.cli.options import cache_option, declare, json_option, print_json
from synth.app.cli.progress import showing
from synth.app.clusters.build import LEAST_S, Built, build
from synth.app.clusters.build import BuildProgress as State
from synth.app.clusters.cluster import Cluster, read_cluster
from synth.app.clusters.failures import FailureCost, costs, fault_folder, single_failures, touched, write_fault
from synth.app.clusters.local import Local, WorkerPool
from synth.app.clusters.on_dask import OnDask
from synth.app.clusters.plan import COMPILING_S, BuildPlan, make_plan
from synth.app.clusters.processes import load, processors
from synth.app.present.layout import say_fitted, warn
from synth.model.compiled import are_some_on_disk
from synth.model.deadline import now
from synth.model.numbers import format_seconds
from synth.model.text import (
    format_count,
    format_gap,
    format_short_size,
    format_size,
    format_spans,
    format_table,
    format_time,
)
from synth.storage.cache import Cache, open_cache
from topologies.errors import InputError
from topologies.text.files import origin_of

_SHOWN = 12  # kinds of problems in a plan's table
_MUCH_LONGER = 1.5  # multiple of the budget from which a warning says what the problems need
_BUSY = 1.2  # multiple of the time on idle cores from which the time beside the present load is stated
_COSTS = 4  # questions in a table of what a failure costs
_SOON_S = 3.0  # seconds of a build of which nobody is warned

pool_options = declare(
    click.option("--on", metavar="dask|ADDRESS", help="Use a local Dask cluster (dask), or that of tcp://HOST:PORT."),
    click.option(
        "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Use N processes. Default: this machine's cores."
    ),
)
_building = declare(pool_options, cache_option, json_option)


@click.command("build")
@click.argument("file", metavar="CLUSTER.toml")
@click.option("--out", default="lib", metavar="DIR", help="Write the library to this folder. Default: lib.")
@click.option("--dry-run", is_flag=True, help="Show the plan (problems, time, memory) and exit.")
@_building
def library_build(
    file: str, out: str, dry_run: bool, on: str | None, jobs: int | None, cache: str | None, as_json: bool
) -> None:
    """Build the library of a cluster: each group, collective and size of the file, each problem once.

    The file's budget is for the whole command: searches, checks and files. A problem for which it is short gets what is
    found in its share, 2 s at least; the same command searches it again, and keeps files that are no slower.

    \b
    synth library build cluster.toml --out lib
    synth library build cluster.toml --dry-run
    """
    begun = now()
    answer_cache = open_cache(cache)
    cluster = read_cluster(file)
    check_writable(Path(out))
    pool = pool_of(on, jobs)
    plan = make_plan(cluster, pool.processes)
    if dry_run:
        known_keys = {task.key for task in plan.tasks() if answer_cache.has(task.key)}
        _say_plan(plan, known_keys, load() if on is None else 0.0, as_json)
        return
    _warn_of_budget(plan, answer_cache)
    with _progress(plan, as_json) as report:
        built = build(plan, out, answer_cache, pool, report, _seconds(plan, begun))
    _say_built(built, out, now() - begun, as_json)
    if built.interrupted:
        raise SystemExit(130)
    if built.left_out:
        raise SystemExit(3)


def _warn_of_budget(plan: BuildPlan, answer_cache: Cache) -> None:
    """Print how the build's time differs from the budget: what compiling loops adds, and a budget that is short.

    It is short if the problems that the cache lacks need over 1.5 times the budget, by the plan's estimate. The build
    keeps it all the same, so that its answers are worse.
    """
    known_keys = {task.key for task in plan.tasks() if answer_cache.has(task.key)}
    left_s, budget_s = plan.seconds(known_keys), plan.cluster.budget_s
    if compiling_s := _compiling_s(left_s):
        warn(f"budget {format_seconds(budget_s)}: {_compiling(compiling_s)}; synth warm-up compiles them beforehand")
    if left_s > max(_SOON_S, _MUCH_LONGER * budget_s):
        open_count = sum(task.key not in known_keys for task in plan.searches)
        problems, cores = format_count(open_count, "problem"), format_count(plan.cores, "core")
        needs, get = ("needs", "gets what it finds") if open_count == 1 else ("need", "get what they find")
        needed = f"{problems} {needs} about {_minutes(left_s)} on {cores}, and {get} in time"
        warn(f"budget {format_seconds(budget_s)}: is short: {needed}; give more, or name fewer groups or collectives")


def _seconds(plan: BuildPlan, begun: float) -> float:
    """Return the seconds of the budget that are left, with the time for compiling loops where none are on disk.

    Args:
        plan: The plan of the build.
        begun: When the budget began to count, a reading of `now`.
    """
    return plan.cluster.budget_s - (now() - begun) + _compiling_s(plan.seconds())


def pool_of(on: str | None, jobs: int | None) -> WorkerPool:
    """Return the processes that solve problems: of this machine, or of a Dask cluster.

    Args:
        on: "dask" or the address of a Dask cluster; None for this machine.
        jobs: Number of processes; None for this machine's cores, or as many as the Dask cluster has.
    """
    if on is None:
        return Local(jobs or processors())
    return OnDask(on, jobs)


def _say_plan(plan: BuildPlan, known_keys: set[str], present_load: float, as_json: bool) -> None:
    """Print the plan of a build: its problems, its time and its memory, as text or as JSON.

    Args:
        plan: The plan.
        known_keys: Keys of the tasks that the cache has, whose time does not count.
        present_load: Number of other processes that want a core of this machine.
        as_json: Whether to print JSON.
    """
    searches, needed_s = plan.searches, plan.seconds(known_keys)
    known_count = sum(task.key in known_keys for task in searches)
    most_s = max(plan.cluster.budget_s, LEAST_S * (len(searches) - known_count) / plan.cores)
    left_s, loaded_s = min(needed_s, most_s), min(plan.loaded_seconds(present_load, known_keys), most_s)
    compiling_s = _compiling_s(left_s)
    if as_json:
        print_json(
            "library-plan",
            {
                "questions": plan.questions,
                "problems": len(searches),
                "files_for": len(plan.shares),
                "known": known_count,
                "seconds": round(left_s, 1),
                "loaded_s": round(loaded_s, 1),
                "compiling_s": compiling_s,
                "memory_bytes": int(plan.memory_bytes()),
                "budget_class_s": searches[0].work_s,
                "processes": plan.cores,
                "impossible": _impossible(plan),
            },
        )
        return
    say_fitted(_heading(plan))
    kinds: dict[tuple[str, int], list[int]] = {}
    for share in plan.shares:
        kinds.setdefault((share.first.collective, len(share.first.group)), []).append(len(share.questions))
    rows = [
        (name, str(ranks), str(sum(question_counts)), str(len(question_counts)))
        for (name, ranks), question_counts in kinds.items()
    ]
    click.echo("\n".join(format_table([("collective", "ranks", "questions", "answers"), *rows[:_SHOWN]], range(4))))
    if len(rows) > _SHOWN:
        click.echo(f"… and {len(rows) - _SHOWN} more kinds")
    cores = format_count(plan.cores, "idle core")
    compiling = f" ({_compiling(compiling_s)})" if compiling_s else ""
    click.echo()
    say_fitted(
        f"about {_minutes(left_s)} on {cores}, within the budget of {format_seconds(plan.cluster.budget_s)}"
        f"{compiling}; {plan.memory_bytes() / 2**30:.1f} GiB of memory; at most {searches[0].work_s:g} s of counted"
        f" work a problem; {known_count} of {len(searches)} problems are known"
    )
    if loaded_s > _BUSY * left_s:
        say_fitted(f"this machine is busy now (load {present_load:.1f}): about {_minutes(loaded_s)} beside that")
    if needed_s > left_s:
        say_fitted(f"the searches need about {_minutes(needed_s)}: time runs out for some, whose answers are worse")
    _say_impossible(plan)


def _compiling(seconds: float) -> str:
    """Return a clause on how much longer than its budget a build takes while it compiles loops."""
    return f"compiling loops adds up to {_minutes(seconds)} in this first run, once"


def _compiling_s(left_s: float) -> float:
    """Return about how many seconds compiling adds at most to a build of `left_s` estimated seconds; 0 if it does not.

    It does not where compiled loops are on disk, or nothing is to be solved.
    """
    return 0.0 if are_some_on_disk() or not left_s else COMPILING_S


def _impossible(plan: BuildPlan) -> list[dict[str, Any]]:
    """Return the questions without an answer as JSON objects: collective, group, root (None without one) and why."""
    return [
        {"collective": question.collective, "group": list(question.group), "root": question.root, "why": why}
        for question, why in plan.impossible
    ]


def _say_impossible(plan: BuildPlan) -> None:
    """Print how many questions have no answer, and the first of them; print nothing if there are none."""
    if plan.impossible:
        say_fitted(f"{format_count(len(plan.impossible), 'question')} without an answer, {_first_impossible(plan)}")


def _first_impossible(plan: BuildPlan) -> str:
    """Return which of the questions without an answer is the first, and why it has none; there must be one."""
    question, why = plan.impossible[0]
    return f"the first: {question.collective} of {format_spans(question.group)}: {why}"


def _heading(plan: BuildPlan) -> str:
    """Return the topology's name and the numbers of questions, problems and, if it differs, of orders of ranks."""
    questions, problems = format_count(plan.questions, "question"), format_count(len(plan.searches), "problem")
    orders = "" if len(plan.shares) == len(plan.searches) else f", {len(plan.shares)} orders of their ranks"
    return f"{plan.cluster.topology.name}: {questions}, {problems}{orders}"


def _minutes(seconds: float) -> str:
    """Return a duration as text: in whole seconds below 120 s, otherwise in whole minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@contextmanager
def _progress(plan: BuildPlan, quiet: bool) -> Iterator[Callable[[State], None]]:
    """Yield a function that shows the progress of a build on stderr: a bar on a terminal, otherwise lines now and then.

    Args:
        plan: The plan of the build.
        quiet: Whether no lines are printed; it does not hide the bar.
    """
    latest, reported = State(len(plan.shares), left_s=plan.seconds()), now()

    def keep(progress: State) -> None:
        """Keep the latest progress."""
        nonlocal latest, reported
        latest, reported = progress, now()

    def state() -> tuple[int, int, str]:
        """Return how many answers there are, of how many, and a remark on the rest."""
        left = f"about {_minutes(max(0.0, latest.left_s - (now() - reported)))} left"
        worst = f"worst gap {format_gap(latest.worst)}" if latest.done else ""
        further = f" and {len(latest.running) - 1} more" if len(latest.running) > 1 else ""
        running = f"now {latest.running[0]}{further}" if latest.running else ""
        return latest.done, latest.total, ", ".join(filter(None, (left, worst, running)))

    with showing("building", state, quiet=quiet):
        yield keep


def _say_built(built: Built, out: str, seconds: float, as_json: bool) -> None:
    """Print the outcome of a build, and the questions without an answer, as text or as JSON.

    Args:
        built: The outcome.
        out: The library, whose files are counted.
        seconds: Duration of the command.
        as_json: Whether to print JSON; otherwise shares that were left out are warned of on stderr.
    """
    plan, state = built.plan, built.progress
    entries = existing_entries(out)
    files = len(entries)
    if as_json:
        print_json(
            "library-build",
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
                        "collective": lost_share.first.collective,
                        "groups": len(lost_share.questions),
                        "group": list(lost_share.first.group),
                        "why": reason,
                    }
                    for lost_share, reason in built.left_out
                ],
                "interrupted": built.interrupted,
                "remarks": built.remarks,
                "seconds": round(seconds, 2),
            },
        )
        return
    say_fitted(f"{_heading(plan)} → {out} ({format_count(files, 'file')})")
    parts = [f"  worst gap {format_gap(state.worst)}"]
    known_counts = [(state.kept, "in the library already"), (state.cached, "from the cache")]
    parts += [f"{count} {source}" for count, source in known_counts if count]
    if built.interrupted:
        parts.append(f"interrupted: {state.done} of {state.total} are written; the same command continues")
    say_fitted("   ".join([*parts, *built.remarks, f"{seconds:.1f} s"]))
    say_missing_forms(entries)
    _say_impossible(plan)
    for share, why in built.left_out:
        ranks = ",".join(map(str, share.first.group))
        further = f" and {len(share.questions) - 1} more" if len(share.questions) > 1 else ""
        warn(f"left out: {share.first.collective} of {ranks}{further}: {why}")


@click.command("update")
@click.argument("file", metavar="CLUSTER.toml")
@click.option("--out", default="lib", metavar="DIR", help="Update the library in this folder. Default: lib.")
@click.option(
    "--without", multiple=True, metavar="PART", help="Plan without these parts: link:3-5, rank:17, switch:NAME; repeat."
)
@click.option("--faults", metavar="KINDS", help="Plan for each single failure of nodes, links or nics, as nodes,nics.")
@_building
def library_update(
    file: str,
    out: str,
    without: tuple[str, ...],
    faults: str | None,
    on: str | None,
    jobs: int | None,
    cache: str | None,
    as_json: bool,
) -> None:
    """Answer the questions that a failure touches, in DIR/faults/NAME, and show what the failure costs.

    Each failure gets the budget of the cluster's file.

    \b
    synth library update cluster.toml --out lib --without link:3-5
    synth library update cluster.toml --out lib --faults nodes,nics
    """
    begun = now()
    if bool(without) == (faults is not None):
        raise InputError("--without, --faults: give one of the two, as in --without link:3-5 or --faults nodes")
    answer_cache, cluster = open_cache(cache), read_cluster(file)
    failures = (
        [without]
        if faults is None
        else [(failure,) for failure in single_failures(cluster.topology, faults.split(","))]
    )
    if not (Path(out) / INDEX).is_file():
        raise InputError(
            f"--out {origin_of(out)}: no library is there; first run synth library build {origin_of(file)} --out DIR"
        )
    check_writable(Path(out))
    _check_topology(out, cluster)
    healthy = make_plan(cluster, pool_of(on, jobs).processes)
    rows = []
    for parts in failures:
        failure_begun = now()
        (plan, fault), folder = touched(healthy, file, parts), fault_folder(out, parts)
        write_fault(folder, fault)  # Otherwise answers of the healthy library would be loaded.
        built = None
        if plan.shares:
            _warn_of_budget(plan, answer_cache)
            with _progress(plan, as_json) as report:
                built = build(plan, folder, answer_cache, pool_of(on, jobs), report, _seconds(plan, failure_begun))
        rows.append(_row(parts, plan, healthy, built, out, folder))
        if not as_json:
            say_fitted(rows[-1]["text"])
            if len(failures) == 1 and rows[-1]["table"]:
                click.echo(rows[-1]["table"])
        if built is not None and built.interrupted:
            raise SystemExit(130)
    if as_json:
        print_json(
            "library-failures",
            {
                "failures": [
                    {k: value for k, value in failure.items() if k not in ("text", "table")} for failure in rows
                ]
            },
        )
    elif len(failures) > 1:
        click.echo(f"{format_count(len(failures), 'failure')}   {now() - begun:.1f} s")


def _check_topology(out: str, cluster: Cluster) -> None:
    """Raise InputError if all entries of a library are for other topologies than a cluster's.

    Args:
        out: Folder of the library.
        cluster: The cluster.
    """
    names = sorted({entry.topology for entry in existing_entries(out)})
    own_name = cluster.topology.name
    if names and own_name not in names:
        further = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise InputError(
            f"--out {origin_of(out)}: is a library of {names[0]}{further}; it must be that of {own_name}, which"
            " the cluster's file names"
        )


def _row(
    parts: tuple[str, ...], plan: BuildPlan, healthy: BuildPlan, built: Built | None, out: str, folder: Path
) -> dict[str, Any]:
    """Return what a failure touches, what was solved for it, and what it costs, as a JSON object with a text.

    Args:
        parts: The dead parts.
        plan: The plan of the questions that the failure touches.
        healthy: The plan of the cluster without the failure.
        built: The outcome of the build for the failure; None if no touched question has an answer.
        out: The library.
        folder: The folder of the failure's answers.

    Returns:
        A dictionary: without, touched, questions, impossible, problems and solved (numbers), folder, seconds (only with
        `built`), slower (the largest cost of a question at its largest message; None if unknown), costs (the times of
        each question before and after by size), text, a line of all that, and table, lines of what it costs ("" for
        none).
    """
    name = ",".join(parts)
    touches = f"{name}: touches {plan.questions} of {format_count(healthy.questions, 'question')}"
    about: dict[str, Any] = {"without": list(parts), "touched": plan.questions, "questions": healthy.questions}
    about |= {"impossible": len(plan.impossible), "problems": len(plan.searches), "solved": 0, "folder": str(folder)}
    if built is None:
        unanswered = f", {len(plan.impossible)} of them have no answer now" if plan.impossible else ""
        return about | {"slower": None, "costs": [], "text": touches + unanswered, "table": ""}
    question_costs = costs(out, folder, parts)
    solved = built.progress.solved
    text = (
        f"{touches}: {format_count(len(plan.searches), 'problem')}, {solved} solved, {built.seconds:.1f} s → {folder}"
    )
    if plan.impossible:
        text += f"   {len(plan.impossible)} without an answer, {_first_impossible(plan)}"
    slower = (question_costs[0].factor or None) if question_costs else None
    if slower is not None:
        worst = question_costs[0]
        ranks = format_spans(worst.question.group)
        size = format_size(worst.largest[0])
        text += f"   messages of {size} take up to {slower:.2f} × as long ({worst.question.collective} of {ranks})"
    table = "\n".join(_cost_lines(question_costs))
    documents = [
        {
            "collective": cost.question.collective,
            "group": list(cost.question.group),
            "group_after": list(cost.group),
            "root": cost.question.root,
            "target": cost.target,
            "inplace": cost.inplace,
            "times": [list(row) for row in cost.times],
        }
        for cost in question_costs
    ]
    outcome = {"solved": solved, "seconds": round(built.seconds, 2), "slower": slower, "costs": documents}
    return about | outcome | {"text": text, "table": table}


def _cost_lines(question_costs: Sequence[FailureCost]) -> list[str]:
    """Return a table of what a failure costs at its dearest questions: time before and after by message size.

    Of each question it has the smallest, the middle and the largest size that files serve before and after, or else
    that any file serves; [] if there are no times.
    """
    rows = []
    # Calls in place and out of place cost about the same.
    dearest = {(cost.question, cost.target): cost for cost in reversed(question_costs) if cost.times}
    for cost in [*reversed(dearest.values())][:_COSTS]:
        times = [row for row in cost.times if None not in row] or cost.times
        last = len(times) - 1
        ranks = dict.fromkeys([format_spans(cost.question.group), format_spans(cost.group)])
        for size, before_us, after_us in (times[i] for i in sorted({0, last // 2, last})):
            cells = ["no file" if time_us is None else format_time(time_us) for time_us in (before_us, after_us)]
            factor = f"{after_us / before_us:.2f} ×" if before_us and after_us else "–"
            rows.append((cost.question.collective, " → ".join(ranks), format_short_size(size), *cells, factor))
    if not rows:
        return []
    lines = ["", *format_table([("collective", "ranks", "size", "before", "after", "cost"), *rows], (0, 1))]
    others = len(dearest) - _COSTS
    return [*lines, *([f"… and {format_count(others, 'more question')}; --json has all"] if others > 0 else [])]
