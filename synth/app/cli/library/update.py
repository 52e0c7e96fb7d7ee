"""The command `synth library update`, which answers anew what a failure changes in a cluster's library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from synth.app.cli.answer import check_writable
from synth.app.cli.library.build import library_pool, library_progress
from synth.app.cli.options import cache_option, json_option, print_json
from synth.app.clusters.build import Built, build
from synth.app.clusters.cluster import read_cluster
from synth.app.clusters.failures import costs, fault_folder, single_failures, touched, write_fault
from synth.app.clusters.plan import BuildPlan, make_plan
from synth.model.deadline import now
from synth.model.text import format_count
from synth.storage.cache import open_cache
from topologies.errors import InputError


@click.command("update")
@click.argument("file", metavar="CLUSTER.toml")
@click.option("--out", default="lib", metavar="DIR", help="Update the library in this folder. Default: lib.")
@click.option(
    "--without", multiple=True, metavar="PART", help="Plan without these parts: link:3-5, rank:17, switch:NAME; repeat."
)
@click.option("--faults", metavar="KINDS", help="Plan for each single failure of nodes, links or nics, as nodes,nics.")
@click.option("--on", metavar="dask|ADDRESS", help="Use a local Dask cluster (dask), or that of tcp://HOST:PORT.")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Use N processes. Default: this machine's cores."
)
@cache_option
@json_option
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
    check_writable(Path(out))
    healthy = make_plan(cluster, library_pool(on, jobs).processes)
    rows = []
    for parts in failures:
        (plan, fault), folder = touched(healthy, file, parts), fault_folder(out, parts)
        write_fault(folder, fault)  # Otherwise answers of the healthy library would be loaded.
        built = None
        if plan.shares:
            with library_progress(plan, as_json) as report:
                built = build(plan, folder, answer_cache, library_pool(on, jobs), report)
        rows.append(_row(parts, plan, healthy, built, out, folder))
        if not as_json:
            click.echo(rows[-1]["text"])
        if built is not None and built.interrupted:
            raise SystemExit(130)
    if as_json:
        print_json({"failures": [{key: value for key, value in failure.items() if key != "text"} for failure in rows]})
    elif len(failures) > 1:
        click.echo(f"{format_count(len(failures), 'failure')}   {now() - begun:.1f} s")


def _row(
    parts: tuple[str, ...], plan: BuildPlan, healthy: BuildPlan, built: Built | None, out: str, folder: Path
) -> dict[str, Any]:
    """Return what a failure touches, what was solved for it, and what it costs, as a JSON object with a text."""
    name = ",".join(parts)
    touches = f"{name}: touches {plan.questions} of {format_count(healthy.questions, 'question')}"
    about: dict[str, Any] = {"without": list(parts), "touched": plan.questions, "questions": healthy.questions}
    about |= {"impossible": len(plan.impossible), "problems": len(plan.searches), "solved": 0, "folder": str(folder)}
    if built is None:
        unanswered = f", {len(plan.impossible)} of them have no answer now" if plan.impossible else ""
        return about | {"slower": None, "text": touches + unanswered}
    question_costs = costs(out, folder)
    solved = built.progress.solved
    text = (
        f"{touches}: {format_count(len(plan.searches), 'problem')}, {solved} solved, {built.seconds:.1f} s → {folder}"
    )
    if plan.impossible:
        text += f"   {len(plan.impossible)} without an answer"
    if question_costs:
        worst = question_costs[0]
        ranks = ",".join(map(str, worst.question.group))
        text += f"   large messages take up to {worst.factor:.2f} × as long ({worst.question.collective} of {ranks})"
    slower = question_costs[0].factor if question_costs else None
    return about | {"solved": solved, "seconds": round(built.seconds, 2), "slower": slower, "text": text}
