"""The command `synth reduce-program`: sequences of collectives for a reduction over axes of parallelism.

The command compares these programs with a single all-reduce and with a searched schedule. Axes are written as
pp=2,dp=2,tp=8, the last one fastest, and levels as rack:2,node:4,gpu:8, the outermost first. A parallelism matrix such
as dp=2x1,tp=1x8 says into how many parts each axis splits every level.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from emit.library.group_programs import GroupPrograms
from emit.library.saving.save_groups import SavedGroups, save_groups
from emit.targets import RESERVED_SMS
from synth.app.cli.asking.answer import check_target, check_writable, clear_progress, ending, progress_line
from synth.app.cli.asking.concurrent import folder_of_groups
from synth.app.cli.options import (
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
from synth.app.cli.programs import scratch_bytes
from synth.app.present.layout import say, terminal_width, warn, wrapped
from synth.model.deadline import now
from synth.model.numbers import parse_seconds
from synth.model.sizes import parse_size
from synth.model.text import format_count, format_ranks, format_size, format_table, format_time
from synth.parallelism.axes import Axis, Matrix, matrices, parse_axes, parse_over
from synth.parallelism.reduction.reduce_programs import ReductionPrograms, reduce_programs, reduction, statement
from synth.parallelism.reduction.requests import REDUCTION, SYNTHESIS, reduction_groups, synthesis_hierarchy, translated
from synth.parallelism.reduction.sequences import MOST_STEPS, sequences
from synth.search.settings import AUTO, NONE, TargetSettings
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, find_levels, parse_levels
from topologies.load import load

_KEPT = 3  # programs that become files besides the best answer
_SHOWN = 4  # groups that are listed
_INTERRUPTED_S = 0.6  # time for writing files after Ctrl-C
_ROW = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,30})=([1-9][0-9]{0,6}(?:[x×][1-9][0-9]{0,6})*)")


@click.command("reduce-program")
@declare(
    topo_option,
    click.option(
        "--levels", metavar="LIST", help="Use these levels, as rack:2,node:4,gpu:8. Default: those of the topology."
    ),
    click.option(
        "--axes", required=True, metavar="LIST", help="Use these axes, as pp=2,dp=2,tp=8; the last one is the fastest."
    ),
    click.option("--over", required=True, metavar="AXES", help="Reduce over these axes, as dp or dp,ep."),
    click.option(
        "--matrix", metavar="LIST", help="Split each level among the axes, as dp=2x1,tp=1x8. Default: in order."
    ),
    click.option("--size", default="1G", metavar="BYTES", help="Set the message size of each group. Default: 1G."),
    click.option(
        "--relay",
        type=click.Choice(("none", "all")),
        default="none",
        help="Let ranks outside a group forward data. Default: none, if a group's ranks can reach each other.",
    ),
    click.option(
        "--hierarchy",
        default=REDUCTION,
        metavar="NAME",
        help=f"Synthesise programs over this hierarchy: {', '.join(SYNTHESIS)}. Default: {REDUCTION}.",
    ),
    click.option(
        "--length",
        type=click.IntRange(1, MOST_STEPS),
        default=MOST_STEPS,
        metavar="N",
        help=f"Use at most N steps. Default: {MOST_STEPS}.",
    ),
    click.option("--budget", default="30s", metavar="TIME", help="Limit the time of the search: 30s, 500ms, 5m."),
    click.option(
        "--out", metavar="DIR", help="Write the files to this folder. Default: out, or a folder in it for other groups."
    ),
    target_option("that of the machine, or else the first that can hold the groups' programs"),
    sms_option(f"the SMs of a device, except {RESERVED_SMS} for computation"),
    overlap_option,
    scratch_option,
    replace_option,
    json_option,
)
def reduce_program(**options: Any) -> None:
    """Find sequences of collectives for a reduction over axes of parallelism.

    \b
    synth reduce-program --topo dgx-a100:2 --axes dp=4,tp=4 --over dp
    """
    begun = now()
    budget = parse_seconds(options["budget"], "--budget")
    check_target(options["target"])
    scratch_limit = scratch_bytes(options["scratch_limit"])
    programs = GroupPrograms(
        TargetSettings(options["target"], options["sms"], options["groups_overlap"], scratch_limit)
    )
    topology = load(options["topo"])
    hierarchy = find_levels(topology) if options["levels"] is None else parse_levels(options["levels"], topology)
    axes = parse_axes(options["axes"], hierarchy)
    over = parse_over(options["over"], axes)
    matrix = (
        _default_matrix(axes, hierarchy)
        if options["matrix"] is None
        else parse_matrix(options["matrix"], axes, hierarchy)
    )
    reduction_hierarchy = synthesis_hierarchy(REDUCTION, hierarchy, axes, matrix, over)
    wider_hierarchy = synthesis_hierarchy(options["hierarchy"], hierarchy, axes, matrix, over)
    sequenced = sequences(wider_hierarchy, options["length"])
    groups = reduction_groups(hierarchy, matrix, over).tolist()
    folder = folder_of_groups(topology.name, groups) if options["out"] is None else Path(options["out"])
    check_writable(folder)
    request = reduction(topology, groups, parse_size(options["size"], "--size"), options["relay"])
    show = progress_line(begun)
    result = reduce_programs(
        request,
        reduction_hierarchy,
        sequenced
        if wider_hierarchy == reduction_hierarchy
        else translated(sequenced, wider_hierarchy, reduction_hierarchy),
        budget=budget,
        begun=begun,
        progress=lambda text: show(text, None),
        executor=None if options["target"] == NONE else programs,
    )
    until = now() + _INTERRUPTED_S if result.stop_reason == "interrupted" else begun + budget
    saved = _save(result, programs, folder, until, options["replace"])
    clear_progress()
    document = statement(result, saved)
    document |= {"axes": {axis.name: axis.size for axis in axes}, "over": [axes[axis].name for axis in over]}
    document |= {"length": options["length"], "levels": {level.name: level.size for level in hierarchy.levels}}
    document |= {"matrix": {axis.name: list(row) for axis, row in zip(axes, matrix, strict=True)}}
    if options["as_json"]:
        print_json("reduce-program", document)
    else:
        click.echo(_table(result, document))
        head = "   ".join(["replayed and right", *ending(result.stop_reason, begun)])
        say(["", head, *_written(saved)], terminal_width())
    if result.stop_reason == "interrupted":
        raise SystemExit(130)
    if (refused := _refused(saved)) and options["target"] != AUTO:
        warn(f"warning: --target {options['target']}: no file: {refused}")
        raise SystemExit(3)


def parse_matrix(text: str, axes: Sequence[Axis], hierarchy: Hierarchy) -> Matrix:
    """Return the matrix of a text such as "dp=2x1,tp=1x8".

    Args:
        text: The matrix: the factors of each axis by level.
        axes: The axes, which may have any order in the text.
        hierarchy: The levels.

    Returns:
        A row for each axis, in the order of `axes`, with its factor in each level.

    Raises:
        InputError: The text has another form, unknown or missing axes, or wrong products.
    """
    advice = "it must be as in " + ",".join(
        f"{axis.name}={'x'.join(map(str, row))}"
        for axis, row in zip(axes, _default_matrix(axes, hierarchy), strict=True)
    )
    rows: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        row = _ROW.fullmatch(part.strip())
        if row is None or row[1] in rows:
            raise InputError(f"--matrix: {part.strip()[:60]!r} is no row, or a second row of its axis; {advice}")
        rows[row[1]] = tuple(map(int, row[2].replace("×", "x").split("x")))
    matrix = tuple(rows.get(axis.name, ()) for axis in axes)
    if len(rows) != len(axes) or matrix not in set(matrices(axes, hierarchy)):
        sizes = ", ".join(f"{level.name} {level.size}" for level in hierarchy.levels)
        raise InputError(
            f"--matrix: {text[:60]!r} does not split the levels ({sizes}) among the axes"
            f" ({', '.join(f'{axis.name} {axis.size}' for axis in axes)}); {advice}"
        )
    return matrix


def _default_matrix(axes: Sequence[Axis], hierarchy: Hierarchy) -> Matrix:
    """Return the matrix of the default order of ranks, or else the nearest one: the last axes in the innermost levels.

    Raises:
        InputError: The axes cannot split the levels.
    """
    default = max(matrices(axes, hierarchy), key=lambda matrix: [row[::-1] for row in reversed(matrix)], default=None)
    if default is None:
        raise InputError(
            f"--axes: the levels {hierarchy} cannot hold them; each axis must be a product of parts of the levels"
        )
    return default


def _save(
    result: ReductionPrograms, programs: GroupPrograms, out: Path, until: float, anew: bool
) -> list[SavedGroups | None]:
    """Write files of the searched schedule and of the best programs.

    The best of all is the answer of the library at `out`; up to three programs have folders of their own in it. After
    an interruption only the best is written.

    Args:
        result: The schedule and the programs, fastest first.
        programs: What writes programs for the target.
        out: Folder of the library.
        until: The time of `synth.model.deadline.now` until which other files than those of the best may be made.
        anew: Whether to replace files that the library has, even faster ones.

    Returns:
        What was saved for the searched schedule, then for each program; None for one without files.
    """
    saved: list[SavedGroups | None] = [None] * (1 + len(result.programs))
    first = result.programs[0] if result.programs else None
    best = 1 if first is not None and first.time_us < result.searched_us else 0
    plans = [result.searched, *map(result.written_as, result.programs)]
    # The answer and the best program always get files, however long the search took.
    answer_until = until if result.stop_reason == "interrupted" else math.inf
    saved[best] = save_groups(plans[best], out, programs, until=answer_until, anew=anew)
    for number in range(1, 1 + min(_KEPT, len(result.programs))):
        if number != best and result.stop_reason != "interrupted":
            deadline = answer_until if number == 1 else until
            saved[number] = save_groups(plans[number], out / f"program-{number}", programs, until=deadline, anew=anew)
    return saved


def _table(result: ReductionPrograms, document: dict[str, Any]) -> str:
    """Return the table of a reduction as text: a heading, then the fastest first of all candidates.

    The candidates are the programs, a library's single all-reduce and the searched schedule.

    Args:
        result: The result.
        document: Its statement, with the axes, levels and length of the command.
    """
    request = result.request
    groups = [*map(format_ranks, request.groups[:_SHOWN]), *["…"] * (len(request.groups) > _SHOWN)]
    parts = ", ".join(f"{name} {factor}" for name, factor in document["hierarchy"].items())
    head = [
        f"reduction over {','.join(document['over'])} on {request.topology.name}: "
        f"{format_count(len(request.groups), 'group')} of {request.pieces} at once ({parts}),"
        f" {format_size(int(request.size_bytes))} each",
        f"groups {' ; '.join(groups)}" + ("; other ranks relay" if request.relays != "none" else ""),
        f"{format_count(result.count, 'program')} of at most {document['length']} steps;"
        f" bound {format_time(result.bound_us)} ({document['proof']})",
        "",
    ]
    single_us = None if result.single is None else result.single.time_us

    def row(time_us: float, description: str) -> list[str]:
        """Return the cells of a candidate: time, speedup over a library's single all-reduce, gap and description.

        The speedup is "" if there is no such all-reduce.
        """
        speedup = "" if single_us is None else f"{single_us / time_us:.3f} ×"
        return [format_time(time_us), speedup, f"{time_us / result.bound_us:.3f}", description]

    candidates = [(result.searched_us, f"searched schedule ({result.searched.method})")]
    for number, program in enumerate(document["programs"], start=1):
        steps = (f"{step['collective']} {step['slice']} {step['form']}" for step in program["steps"])
        candidates.append((program["time_us"], f"program {number}: {', '.join(steps)}"))
    if result.single is not None:
        candidates.append((result.single.time_us, f"one all-reduce as a library runs it ({result.single.engine})"))
    rows = [["time", "vs library", "gap", "what"]]
    rows += [row(*candidate) for candidate in sorted(candidates, key=lambda candidate: candidate[0])]
    width = terminal_width()
    lines = format_table(rows, [-1])
    return "\n".join([*wrapped(head, width), *wrapped(lines, width, " " * lines[0].index("what"))])


def _written(saved: Sequence[SavedGroups | None]) -> list[str]:
    """Return lines on the written files: the first of each plan with the number of others, and why executors have none.

    Args:
        saved: What was saved for the searched schedule, then for each program; None for one without files.
    """
    lines = []
    for number, group_files in enumerate(saved):
        if group_files is None:
            continue
        plan = f"program {number}" if number else "the searched schedule"
        files = group_files.files or group_files.schedules
        lines.append(f"  {files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}: {plan}")
        if group_files.refused:
            lines.append(f"  no executor's file for {plan}: {group_files.refused}")
    return lines


def _refused(saved: Sequence[SavedGroups | None]) -> str:
    """Return the first reason why groups have no executor's file; "" if all that were saved have one."""
    return next((group_files.refused for group_files in saved if group_files is not None and group_files.refused), "")
