"""The command `sweep`, which compares variants of a network."""

from __future__ import annotations

from collections.abc import Sequence

import click

from synth.app.cli.library.build import pool_of, pool_options
from synth.app.cli.options import cache_option, costs_option, json_option, print_json
from synth.app.cli.progress import counting
from synth.app.cli.size_ranges import parse_sweep
from synth.app.figures import check_figure, save_figure
from synth.app.present.layout import say_fitted, terminal_width
from synth.app.variants import (
    VariantTime,
    describe_values,
    draw_variants,
    make_sweep,
    make_variants,
    parse_parameter,
    unbeaten,
)
from synth.model.numbers import parse_seconds
from synth.model.registry import find_kind, parse_name
from synth.model.text import format_gap, format_size, format_table, format_time
from synth.storage.cache import open_cache
from topologies.errors import InputError

_MOST_QUESTIONS = 10_000


@click.command("sweep")
@click.argument("collectives", metavar="COLLECTIVES")
@click.option(
    "--topo",
    required=True,
    metavar="T",
    help="Network with parameters in braces, as dgx-h100:{nodes}, or a file in whose text they stand.",
)
@click.option(
    "--vary",
    multiple=True,
    required=True,
    metavar="NAME=LIST",
    help="Values of a parameter, as nodes=2,4,8; repeat for more, and get every combination.",
)
@click.option("--size", default="64M", metavar="SIZES", help="Message sizes, as 1M,64M or 1M:1G:4x. Default: 64M.")
@click.option("--cost", metavar="FORMULA", help="What a variant costs, as 'nodes*300000': + - * / ( ) ceil min max.")
@click.option(
    "--budget",
    default="10s",
    metavar="TIME",
    help="Time for the search of each problem, counted as work. Default: 10s.",
)
@click.option("--plot", metavar="FILE", help="Draw the times of all variants, as out.svg or out.png (extra: plots).")
@costs_option
@pool_options
@cache_option
@json_option
def sweep(
    collectives: str,
    topo: str,
    vary: tuple[str, ...],
    size: str,
    cost: str | None,
    budget: str,
    plot: str | None,
    costs: str,
    on: str | None,
    jobs: int | None,
    cache: str | None,
    as_json: bool,
) -> None:
    """Compare variants of a network: time, proved bound and cost of collectives on each.

    \b
    synth sweep allgather --topo 'torus:{x}x2' --vary x=2,3
    synth sweep alltoall --topo 'ring:4,bw={bw}' --vary bw=25,50 --cost 'bw*4'
    """
    if plot is not None:
        check_figure(plot)
    answer_cache, budget_s = open_cache(cache), parse_seconds(budget, "--budget")
    names = list(dict.fromkeys(parse_name(name.strip()) for name in collectives.split(",")))
    if unequal := next((name for name in names if find_kind(name).even), None):
        raise InputError(f"{unequal}: has a size of its own for each block; sweep takes collectives of equal blocks")
    sizes = list(dict.fromkeys(parse_sweep(size, "--size")))
    parameters: dict[str, list[str]] = {}
    for name, values in map(parse_parameter, vary):
        if name in parameters:
            raise InputError(f"--vary: {name} is given more than once; list all its values in one --vary")
        parameters[name] = values
    variants = make_variants(topo, parameters, cost, costs)
    if len(variants) * len(names) * len(sizes) > _MOST_QUESTIONS:
        raise InputError(f"--vary, --size: more than {_MOST_QUESTIONS} questions; give fewer values")
    pool = pool_of(on, jobs)
    questions = make_sweep(variants, names, sizes, budget_s)
    with counting("sweep") as count:
        questions.run(answer_cache, pool, count)
    results = questions.results()
    best = unbeaten(results)
    if as_json:
        print_json("sweep", {"topology": topo, "interrupted": questions.interrupted, "rows": _rows(results, best)})
    else:
        _say(results, best)
        if questions.interrupted:
            say_fitted(f"interrupted: {len(results)} of {len(questions.questions)} answers; the same command continues")
    if plot is not None:
        save_figure(draw_variants(results), plot)
        if not as_json:
            say_fitted(f"wrote {plot}")
    if questions.interrupted:
        raise SystemExit(130)
    if any(result.refused for result in results):
        raise SystemExit(3)


def _rows(results: Sequence[VariantTime], best: set[int]) -> list[dict[str, object]]:
    """Return the rows of the JSON document; `best` has the numbers of the unbeaten ones."""
    return [
        {
            "values": dict(result.variant.values),
            "topology": result.variant.topology.name,
            "ranks": result.variant.topology.nranks,
            "collective": result.collective,
            "size_bytes": result.size_bytes,
            "time_us": result.time_us,
            "bound_us": result.bound_us,
            "gap": result.gap,
            "engine": result.engine or None,
            "proof": result.proof or None,
            "cost": result.variant.cost,
            "unbeaten": number in best,
            "refused": result.refused or None,
        }
        for number, result in enumerate(results)
    ]


def _say(results: Sequence[VariantTime], best: set[int]) -> None:
    """Print the table, and why variants have no answer; `best` has the numbers of the unbeaten results."""
    if not results:
        say_fitted("interrupted before the first answer")
        return
    has_cost = results[0].variant.cost is not None
    names = list(results[0].variant.values)
    rows = [(*names, "ranks", "collective", "size", "time", "bound", "gap", *(("cost", "best") if has_cost else ()))]
    for number, result in enumerate(results):
        figures = ("–", "–", "–")
        if result.time_us is not None and result.bound_us is not None and result.gap is not None:
            figures = (format_time(result.time_us), format_time(result.bound_us), format_gap(result.gap))
        rows.append((
            *result.variant.values.values(), str(result.variant.topology.nranks), result.collective,
            format_size(result.size_bytes), *figures,
            *((_format_cost(result.variant.cost or 0.0), "yes" if number in best else "no") if has_cost else ()),
        ))  # fmt: skip
    lines = format_table(rows, [len(names) + 1])
    if max(map(len, lines)) > terminal_width():
        lines = format_table([row[: len(names)] + row[len(names) + 1 :] for row in rows], [len(names)])
    click.echo("\n".join(lines))
    if has_cost:
        say_fitted("best: no other variant is better in time or cost and as good in the other")
    reasons = {result.refused: result for result in results if result.refused}
    for reason, result in reasons.items():
        say_fitted(f"–: {describe_values(result.variant.values)}: {reason}")


def _format_cost(cost: float) -> str:
    """Return a cost as text: whole from 1000 on, else with up to four digits."""
    return f"{cost:,.0f}" if cost >= 1000 or cost == int(cost) else f"{cost:.4g}"
