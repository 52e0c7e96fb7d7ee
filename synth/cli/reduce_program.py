"""`synth reduce-program`: sequences of collectives for a reduction over axes of parallelism, beside their rivals.

Axes are written as pp=2,dp=2,tp=8, the last one fastest; levels as rack:2,node:4,gpu:8, the outermost first; a
parallelism matrix as dp=2x1,tp=1x8: into how many parts each axis splits every level.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from emit.library.group_programs import GroupPrograms
from emit.library.programs import NONE
from emit.library.save_groups import SavedGroups, save_groups
from emit.targets import AUTO, RESERVED_SMS
from synth.cli.answer import check_target, check_writable, clear_progress, ending, progress_line
from synth.cli.options import (
    declare,
    json_option,
    overlap_option,
    print_json,
    replace_option,
    scratch_option,
    sms_option,
    target_option,
    topo_option,
)
from synth.cli.programs import scratch_bytes
from synth.model.deadline import now
from synth.model.numbers import parse_seconds
from synth.model.sizes import parse_size
from synth.parallelism.axes import Axis, Matrix, matrices, parse_axes, parse_over
from synth.parallelism.reduce_programs import ReductionPrograms, reduce_programs, reduction, statement
from synth.parallelism.requests import REDUCTION, SYNTHESIS, reduction_groups, synthesis_hierarchy, translated
from synth.parallelism.sequences import MOST_STEPS, sequences
from synth.present.text import format_count, format_ranks, format_size, format_table, format_time
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, find_levels, parse_levels
from topologies.load import load

_KEPT = 3  # programs that become files, beside the best answer
_SHOWN = 4  # groups that are listed
_INTERRUPTED_S = 0.6  # for files after Ctrl-C
_ROW = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,30})=([1-9][0-9]{0,6}(?:[x×][1-9][0-9]{0,6})*)")


@click.command("reduce-program")
@declare(
    topo_option,
    click.option("--levels", metavar="LIST", help="Levels, as rack:2,node:4,gpu:8. Default: those of the topology."),
    click.option("--axes", required=True, metavar="LIST", help="Axes, as pp=2,dp=2,tp=8; the last one is the fastest."),
    click.option("--over", required=True, metavar="AXES", help="Axes that are reduced over, as dp or dp,ep."),
    click.option(
        "--matrix", metavar="LIST", help="Parts of every level an axis has, as dp=2x1,tp=1x8. Default: in order."
    ),
    click.option("--size", default="1G", metavar="BYTES", help="Message size of each group. Default: 1G."),
    click.option(
        "--relay",
        type=click.Choice(("none", "all")),
        default="none",
        help="Who may forward beside a group's own ranks. Default: none, where these are joined to each other.",
    ),
    click.option(
        "--hierarchy",
        default=REDUCTION,
        metavar="NAME",
        help=f"Over which programs are synthesised: {', '.join(SYNTHESIS)}. Default: {REDUCTION}.",
    ),
    click.option("--length", type=click.IntRange(1, MOST_STEPS), default=MOST_STEPS, metavar="N", help="Most steps."),
    click.option("--budget", default="30s", metavar="TIME", help="Time for the search: 30s, 500ms, 5m."),
    click.option("--out", default="out", metavar="DIR", help="Folder for the files. Default: out."),
    target_option("the first that can"),
    sms_option(f"the SMs of a device, less {RESERVED_SMS} left to compute"),
    overlap_option,
    scratch_option,
    replace_option,
    json_option,
)
def reduce_program(**asked: Any) -> None:
    """Sequences of collectives for a reduction over axes of parallelism.

    \b
    synth reduce-program --topo dgx-a100:2 --axes dp=4,tp=4 --over dp
    """
    begun = now()
    budget = parse_seconds(asked["budget"], "--budget")
    check_writable(Path(asked["out"]))
    check_target(asked["target"])
    programs = GroupPrograms(
        asked["target"], asked["sms"], asked["groups_overlap"], scratch_bytes(asked["scratch_limit"])
    )
    topology = load(asked["topo"])
    hierarchy = find_levels(topology) if asked["levels"] is None else parse_levels(asked["levels"], topology)
    axes = parse_axes(asked["axes"], hierarchy)
    over = parse_over(asked["over"], axes)
    matrix = _default(axes, hierarchy) if asked["matrix"] is None else parse_matrix(asked["matrix"], axes, hierarchy)
    own = synthesis_hierarchy(REDUCTION, hierarchy, axes, matrix, over)
    wide = synthesis_hierarchy(asked["hierarchy"], hierarchy, axes, matrix, over)
    sequenced = sequences(wide, asked["length"])
    groups = reduction_groups(hierarchy, matrix, over).tolist()
    request = reduction(topology, groups, parse_size(asked["size"], "--size"), asked["relay"])
    show = progress_line(begun)
    found = reduce_programs(
        request,
        own,
        sequenced if wide == own else translated(sequenced, wide, own),
        budget=budget,
        begun=begun,
        progress=lambda text: show(text, None),
        executor=None if asked["target"] == NONE else programs,
    )
    until = now() + _INTERRUPTED_S if found.ended == "interrupted" else begun + budget
    saved = _save(found, programs, Path(asked["out"]), until, asked["replace"])
    clear_progress()
    document = statement(found, saved)
    document |= {"axes": {axis.name: axis.size for axis in axes}, "over": [axes[axis].name for axis in over]}
    document |= {"length": asked["length"], "levels": {level.name: level.size for level in hierarchy.levels}}
    document |= {"matrix": {axis.name: list(row) for axis, row in zip(axes, matrix, strict=True)}}
    if asked["as_json"]:
        print_json(document)
    else:
        click.echo(_table(found, document))
        click.echo("\n" + "   ".join([_written(saved), *ending(found.ended, begun)]))
    if found.ended == "interrupted":
        raise SystemExit(130)
    refused = next((one.refused for one in saved if one is not None and one.refused), "")
    if refused and asked["target"] != AUTO:
        click.echo(f"warning: --target {asked['target']}: no file: {refused}", err=True)
        raise SystemExit(3)


def parse_matrix(text: str, axes: Sequence[Axis], hierarchy: Hierarchy) -> Matrix:
    """A matrix as "dp=2x1,tp=1x8". Raises InputError: another form, unknown or missing axes, or wrong products."""
    form = "it must be as in " + ",".join(
        f"{axis.name}={'x'.join(map(str, row))}" for axis, row in zip(axes, _default(axes, hierarchy), strict=True)
    )
    rows: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        row = _ROW.fullmatch(part.strip())
        if row is None or row[1] in rows:
            raise InputError(f"--matrix: {part.strip()[:60]!r} is no row, or a second one of its axis; {form}")
        rows[row[1]] = tuple(map(int, row[2].replace("×", "x").split("x")))
    matrix = tuple(rows.get(axis.name, ()) for axis in axes)
    if len(rows) != len(axes) or matrix not in set(matrices(axes, hierarchy)):
        sizes = ", ".join(f"{level.name} {level.size}" for level in hierarchy.levels)
        raise InputError(
            f"--matrix: {text[:60]!r} does not split the levels ({sizes}) among the axes"
            f" ({', '.join(f'{axis.name} {axis.size}' for axis in axes)}); {form}"
        )
    return matrix


def _default(axes: Sequence[Axis], hierarchy: Hierarchy) -> Matrix:
    """The matrix of the default order of ranks, or else the nearest to it: the last axes in the innermost levels.

    Raises InputError where the axes split the levels in no way.
    """
    found = max(matrices(axes, hierarchy), key=lambda matrix: [row[::-1] for row in reversed(matrix)], default=None)
    if found is None:
        raise InputError(
            f"--axes: no level of {hierarchy} can hold them; each must be a product of parts of the levels"
        )
    return found


def _save(
    found: ReductionPrograms, programs: GroupPrograms, out: Path, until: float, anew: bool
) -> list[SavedGroups | None]:
    """What was written of the searched schedule and of every program, None for those that were not.

    The best of all is what the library at `out` takes; other programs have folders of their own in it.
    """
    saved: list[SavedGroups | None] = [None] * (1 + len(found.programs))
    first = found.programs[0] if found.programs else None
    best = 1 if first is not None and first.time_us < found.searched_us else 0
    plans = [found.searched, *map(found.written_as, found.programs)]
    # the answer and the best program have files, however long the search was
    always = until if found.ended == "interrupted" else math.inf
    saved[best] = save_groups(plans[best], out, programs, until=always, anew=anew)
    for place in range(1, 1 + min(_KEPT, len(found.programs))):
        if place != best and found.ended != "interrupted":
            by = always if place == 1 else until
            saved[place] = save_groups(plans[place], out / f"program-{place}", programs, until=by, anew=anew)
    return saved


def _table(found: ReductionPrograms, document: dict[str, Any]) -> str:
    asked = found.asked
    groups = [format_ranks(group) for group in asked.groups[:_SHOWN]] + ["…"] * (len(asked.groups) > _SHOWN)
    parts = ", ".join(f"{name} {factor}" for name, factor in document["hierarchy"].items())
    head = [
        f"reduction over {','.join(document['over'])} on {asked.topology.name}: "
        f"{format_count(len(asked.groups), 'group')} of {asked.pieces} at once ({parts}),"
        f" {format_size(int(asked.size_bytes))} each",
        f"groups {' ; '.join(groups)}" + ("; other ranks relay" if asked.relays != "none" else ""),
        f"{format_count(found.count, 'program')} of at most {document['length']} steps;"
        f" bound {format_time(found.bound_us)} ({document['proof']})",
        "",
    ]
    single_us = None if found.single is None else found.single.time_us

    def row(time_us: float, what: str) -> list[str]:
        beside = "" if single_us is None else f"{single_us / time_us:.3f} ×"
        return [format_time(time_us), beside, f"{time_us / found.bound_us:.3f}", what]

    rows = [["time", "vs single", "/ bound", "what"]]
    for program in document["programs"]:
        rows.append(row(program["time_us"], " – ".join(_step(step) for step in program["steps"])))
    if found.single is not None:
        rows.append(row(found.single.time_us, f"single all-reduce as a library runs it ({found.single.engine})"))
    rows.append(row(found.searched_us, f"searched schedule ({found.searched.method})"))
    return "\n".join([*head, *format_table(rows, [-1])])


def _step(step: dict[str, str]) -> str:
    return f"{step['collective']} {step['slice']} {step['form']}"


def _written(saved: Sequence[SavedGroups | None]) -> str:
    made = [one for one in saved if one is not None]
    files = [path for one in made for path in (one.files or one.schedules)]
    refused = next((f"; no executor's file: {one.refused}" for one in made if one.refused), "")
    return f"replayed and right → {format_count(len(files), 'file')}, the first {files[0]}{refused}"
