"""The option `--groups` of the commands that search: its text form, and groups that share links at the same time.

    0-7;8-15                     groups; all run the command's collective
    0-7;allgather:8-15           another collective for the groups of one part
    tp=8;allreduce:tp=8,dp=*:dp  parts along axes too
    allgather@64M:8-15           and another size; @64M:8-15 only another size

Axes are over the living ranks; ranks are the topology's own numbers. `synth.app.clusters.groups` describes how groups
are written.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import click

from emit.library.group_programs import GroupPrograms
from emit.library.saving.save_groups import SavedGroups, save_groups
from synth.app.cli.asking.answer import (
    check_target,
    check_writable,
    clear_progress,
    ending,
    progress_line,
    usual_folder,
    with_pattern,
    written_until,
)
from synth.app.cli.defects import say_defects
from synth.app.cli.options import SearchCommand, print_json
from synth.app.clusters.groups import Axes, parse_groups
from synth.app.present.layout import path_lines, say, terminal_width, warn
from synth.app.present.table import concurrent_table
from synth.app.question import block_sizes, healthy_topology, listed_ranks, target_settings
from synth.concurrent.plans import ConcurrentPlan
from synth.concurrent.result import ConcurrentResult, statement
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.model.collective import Collective, named
from synth.model.registry import find_kind, parse_name
from synth.model.sizes import parse_size
from synth.model.text import as_file_name, format_count, format_time
from synth.parallelism.reduction.program_plans import PROGRAMS, program_plans
from synth.search.settings import AUTO, NONE
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks
from topologies.text.fields import shown
from topologies.topology import Topology, without_switch_ops

_SINGLE = {  # options of a single group, and why they do not apply
    "group": "--groups names all groups",
    "root": "a group's first rank is its root",
    "steps": "the k-synchronous model is for one group",
    "rounds": "the k-synchronous model is for one group",
}
_FILES = 8  # files that are listed
_PART = re.compile(r"(?:\s*(?=[A-Za-z@])(?P<name>[A-Za-z][A-Za-z_-]*)?\s*(?:@(?P<size>[^:=,]*))?:)?(?P<ranks>.*)", re.S)


def answer(command: SearchCommand, workers: Workers) -> Callable[[], None]:
    """Plan concurrent groups; return a function that writes the files and prints the report.

    The returned function exits with 130 after an interruption, and with 3 if a named target has no file.

    Args:
        command: The call of the command.
        workers: Solver processes.

    Raises:
        InputError: An option cannot be right, or is for a single group only.
    """
    arguments = with_pattern(command)
    for option, why in _SINGLE.items():
        if getattr(arguments, option) is not None:
            raise InputError(f"--{option}: does not go with --groups; {why}")
    check_target(arguments.target)
    collective, sizes = arguments.collective, block_sizes(arguments)
    if isinstance(collective, str) and sizes is not None:
        collective = named(collective, len(sizes), 1, sizes=sizes)
    topology = healthy_topology(arguments)
    settings = target_settings(arguments)
    programs = GroupPrograms(settings)
    size = None if arguments.size is None else str(arguments.size)
    dead = dead_ranks(topology, arguments.without)
    members = parse_members(str(command.groups), collective, topology, dead=dead, size=size, sizes=command.group_sizes)
    relays = arguments.relay
    if relays not in ("none", "all"):
        relays = listed_ranks(arguments, "relay", topology.nranks)
    executor = None if settings.name == NONE else programs
    groups = [member.ranks for member in members]
    folder = folder_of_groups(topology.name, groups) if command.out is None else Path(command.out)
    check_writable(folder, arguments.target)
    result = plan(
        topology,
        members,
        relays=relays,
        without=arguments.without,
        degrade=arguments.degrade,
        objective="makespan" if command.objective is None else command.objective,
        chunks=arguments.chunks,
        engine=arguments.engine,
        budget=command.budget_s,
        seed=arguments.seed,
        workers=workers,
        progress=progress_line(command.begun),
        executor=executor,
        begun=command.begun,
        first=_programs(topology, members, relays, command, executor),
    )
    return partial(_report, result, programs, command, folder)


def folder_of_groups(topology: str, groups: Sequence[Sequence[int]]) -> Path:
    """Return the folder for the files of concurrent groups if the user names none.

    It is `out`, or a folder in it if `out` is for other ranks (see `usual_folder`). No folder is made.

    Args:
        topology: Name of the network.
        groups: The ranks of each group.

    Raises:
        InputError: There is something else than an index of ours in `out`.
    """
    digest = zlib.crc32(repr([list(map(int, ranks)) for ranks in groups]).encode())
    name = as_file_name(Path(topology).name)
    all_ranks = tuple(dict.fromkeys(rank for ranks in groups for rank in ranks))
    return usual_folder(topology, [*groups, all_ranks], None, f"{name}-{len(groups)}groups-{digest:08x}")


def _programs(
    topology: Topology,
    members: Sequence[Member],
    relays: Sequence[int] | str,
    command: SearchCommand,
    executor: GroupPrograms | None,
) -> list[ConcurrentPlan]:
    """Return plans by reduction programs for the groups; [] if an option asks for what programs do not support.

    These options are costs, chunks, an engine, dead parts, and relays by number.

    Args:
        topology: The topology, without its dead and slow parts.
        members: The groups.
        relays: "none", "all" or ranks.
        command: The call of the command, which states slow parts and the budget.
        executor: What writes the groups' programs; None for schedules only.
    """
    arguments = command.question
    is_pinned = topology.protocol or arguments.chunks is not None or arguments.engine != "auto"
    if is_pinned or not isinstance(relays, str) or arguments.without:
        return []
    network = apply_faults(without_switch_ops(topology), (), arguments.degrade)
    until = command.begun + PROGRAMS * command.budget_s
    return list(program_plans(network, members, relays=relays, until=until, executor=executor))


def parse_members(
    text: str,
    collective: str | Collective,
    topology: Topology,
    *,
    dead: Sequence[int] = (),
    size: str | None = None,
    sizes: str | None = None,
) -> list[Member]:
    """Return the groups of a text in its order, each with its collective and its size.

    The first rank of a group is the root of a rooted collective.

    Args:
        text: The groups, separated by semicolons: `NAME@SIZE:RANKS`, where NAME, @SIZE or both may be missing.
        collective: The collective of groups that name none.
        topology: The machine or cluster.
        dead: Ranks of the topology that are dead.
        size: Message size of groups that have none of their own.
        sizes: Message size of each group, separated by commas; it comes before `size`.

    Raises:
        InputError: A group, a collective or a size cannot be right, or a group has no size or two.
    """
    named_once = cache(named)  # Groups with the same collective share the object.
    own_name = collective.name if isinstance(collective, Collective) else parse_name(collective)
    lists: list[Axes] = []
    stated_groups: list[tuple[tuple[int, ...], Collective, str | None]] = []
    for part in text.split(";"):
        match = _PART.fullmatch(part)
        assert match is not None
        with _of_groups():
            name = own_name if match["name"] is None else parse_name(match["name"])
            group_collective = collective if name == own_name else name
            if isinstance(group_collective, str) and find_kind(name).even:
                raise InputError(f"{name}: only the command's own collective can have sizes of blocks (--sizes)")
        for ranks in parse_groups(match["ranks"], topology, dead, lists):
            with _of_groups():
                resolved = named_once(name, len(ranks), 1) if isinstance(group_collective, str) else group_collective
            stated_groups.append((ranks, resolved, match["size"]))
    sizes_bytes = _sizes(stated_groups, size, sizes)
    return [
        Member(ranks, resolved, size_bytes)
        for (ranks, resolved, _), size_bytes in zip(stated_groups, sizes_bytes, strict=True)
    ]


@contextmanager
def _of_groups() -> Iterator[None]:
    """Raise an InputError of the block with the name of the option --groups."""
    try:
        yield
    except InputError as error:
        raise InputError(f"--groups: {error}") from None


def _sizes(
    stated_groups: Sequence[tuple[tuple[int, ...], Collective, str | None]], size: str | None, sizes: str | None
) -> list[int]:
    """Return the message size of each group in bytes: its own, else that of `sizes`, else `size`.

    Args:
        stated_groups: Ranks, collective and own size (a text or None) of each group.
        size: The option --size, or None.
        sizes: The option --group-sizes with a size for each group, or None.

    Raises:
        InputError: A group has no size, or its own and one of `sizes`; or there is not a size for each group.
    """
    listed_sizes = [None] * len(stated_groups) if sizes is None else sizes.split(",")
    if len(listed_sizes) != len(stated_groups):
        sizes_for_groups = f"{format_count(len(listed_sizes), 'size')} for {format_count(len(stated_groups), 'group')}"
        raise InputError(f"--group-sizes: {shown(sizes)} has {sizes_for_groups}; give one for each group")
    sizes_bytes = []
    for (ranks, _, own_size), listed_size in zip(stated_groups, listed_sizes, strict=True):
        if own_size is not None and listed_size is not None:
            raise InputError(
                f"--group-sizes: the group that begins with rank {ranks[0]} has its own size, @{own_size}; give only"
                " one of them"
            )
        sources = ((own_size, "--groups"), (listed_size, "--group-sizes"), (size, "--size"))
        chosen_size = next(((text, option) for text, option in sources if text is not None), None)
        if chosen_size is None:
            raise InputError(
                "--groups: needs message sizes; give --size 64M, --group-sizes 64M,1M,…, or @64M: before a group"
            )
        sizes_bytes.append(parse_size(*chosen_size))
    return sizes_bytes


def _report(result: ConcurrentResult, programs: GroupPrograms, command: SearchCommand, folder: Path) -> None:
    """Write the files of concurrent groups and print the report, as a table or as JSON.

    Args:
        result: The plan of the groups.
        programs: What writes the groups' programs for the target.
        command: The call of the command.
        folder: Folder of the files.

    Raises:
        SystemExit: With 130 after an interruption, with 3 if a named target has no file.
        InputError: The files cannot be written.
    """
    clear_progress()
    until = written_until(result.stop_reason, command)
    saved = save_groups(result, folder, programs, proof=command.proof, until=until, anew=command.replace)
    document = statement(result)
    say_defects(result.defects, "its plans are missing")
    if command.as_json:
        for path in saved.schedules:
            key = "proof_file" if path.name.endswith(".proof.json") else "schedule"
            document.setdefault(key, str(path))
            document.setdefault("files", []).append(str(path))
        document["programs"] = {
            "files": list(map(str, saved.files)),
            "time_us": saved.time_us,
            "unsaved": saved.refused,
            "kept": saved.existed,
        }
        print_json("concurrent", document)
    else:
        labels = [member.label for member in result.problem.members]
        width = None if command.wide else terminal_width()
        click.echo(concurrent_table(document, labels, result.problem.topology.nranks, width))
        say(["", *_closing(result, saved, command.begun, width)], width)
    if result.stop_reason == "interrupted":
        raise SystemExit(130)
    target = programs.settings.name
    if saved.refused and target != AUTO:
        warn(f"warning: --target {target}: no file: {saved.refused}")
        raise SystemExit(3)


def _closing(result: ConcurrentResult, saved: SavedGroups, begun: float, width: int | None) -> list[str]:
    """Return the last lines of the report: the seconds, then the files, then the programs' time or why there are none.

    Of over 8 files the first 7 and the last are listed.

    Args:
        result: The plan of the groups.
        saved: What was written.
        begun: Time of the command's start, as `time.monotonic` counts.
        width: Most characters of a line of paths; None for any number.
    """
    paths = [*saved.files, *([] if saved.index is None else [saved.index]), *saved.schedules]
    listed = path_lines(paths, width)
    if len(paths) > _FILES:
        omission = f"  … {len(paths) - _FILES} more …"
        listed = [*path_lines(paths[: _FILES - 1], width), omission, *path_lines(paths[-1:], width)]
    lines = ["   ".join(["replayed and right", *ending(result.stop_reason, begun)]), *listed]
    if saved.time_us is not None:
        ratio = saved.time_us / result.makespan_us
        programs = f"the programs ({format_count(len(saved.files), 'file')}) take {format_time(saved.time_us)}"
        lines.append(f"{programs}, {ratio:.3f} × the schedule's time")
        if saved.existed:
            lines.append("the library's files are no slower and stay")
    elif saved.refused:
        lines.append(f"no executor's file: {saved.refused}")
    return lines
