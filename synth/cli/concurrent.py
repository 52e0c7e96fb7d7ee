"""`--groups` of the commands that search: how it is written, and concurrent groups on the links that they share.

0-7;8-15                     groups, see below; all do what the command says
0-7;allgather:8-15           another collective for the groups of one part
tp=8;allreduce:tp=8,dp=*:dp  parts along axes too
allgather@64M:8-15           and another size; @64M:8-15 another size only

Axes are over the ranks that live; ranks are the topology's own numbers. How groups are written is said in
`synth.library.groups`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import click

from emit.library.group_programs import GroupPrograms
from emit.library.programs import NONE
from emit.library.save_groups import SavedGroups, save_groups
from emit.targets import AUTO
from synth.cli.answer import check_target, check_writable, clear_progress, ending, progress_line, written_until
from synth.cli.defects import say_defects
from synth.cli.options import Asked, print_json
from synth.cli.programs import scratch_bytes
from synth.concurrent.plans import ConcurrentPlan
from synth.concurrent.protocols import plan_protocols
from synth.concurrent.result import ConcurrentResult, statement
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.library.groups import Axes, parse_groups
from synth.model.collective import Collective, named
from synth.model.pattern import collective_of
from synth.model.problem import parse_ranks
from synth.model.registry import parse_name
from synth.model.sizes import parse_size
from synth.parallelism.program_plans import PROGRAMS, program_plans
from synth.present.table import concurrent_table
from synth.present.text import format_count, format_time
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.faults.apply import degraded
from topologies.faults.notation import dead_ranks
from topologies.load import load, put_costs
from topologies.text.fields import shown
from topologies.topology import Topology, without_switch_ops

_SINGLE = {  # options of a single group, and what there is instead
    "group": "the groups are all named in --groups",
    "root": "a group's first rank is its root",
    "steps": "the k-synchronous model is for one group",
    "rounds": "the k-synchronous model is for one group",
}
_FILES = 8  # that are listed one by one
_PART = re.compile(r"(?:\s*(?=[A-Za-z@])(?P<name>[A-Za-z][A-Za-z_-]*)?\s*(?:@(?P<size>[^:=,]*))?:)?(?P<ranks>.*)", re.S)


def answer(name: str, file: str | None, asked: Asked, workers: Workers) -> Callable[[], None]:
    """Plan concurrent groups; as `synth.cli.answer.answer`. InputError for options that go with one group only."""
    check_writable(Path(asked.out))
    collective = collective_of(name, file)
    for option, why in _SINGLE.items():
        if getattr(asked, option) is not None:
            raise InputError(f"--{option}: does not go with --groups; {why}")
    check_target(asked.target)
    topology = put_costs(load(asked.topo), asked.costs)
    programs = GroupPrograms(asked.target, asked.sms, asked.groups_overlap, scratch_bytes(asked.scratch_limit))
    members = parse_members(
        str(asked.groups),
        collective,
        topology,
        dead=dead_ranks(topology, asked.without),
        size=asked.size,
        sizes=asked.group_sizes,
    )
    relays = asked.relay if asked.relay in ("none", "all") else parse_ranks(asked.relay, "--relay", topology.nranks)
    found = (plan_protocols if topology.protocol else plan)(
        topology,
        members,
        relays=relays,
        without=asked.without,
        degrade=asked.degrade,
        objective="makespan" if asked.objective is None else asked.objective,
        chunks=asked.chunks,
        engine=asked.engine,
        budget=asked.budget,
        seed=asked.seed,
        workers=workers,
        progress=progress_line(asked.begun),
        executor=None if asked.target == NONE else programs,
        begun=asked.begun,
        first=_programs(topology, members, relays, asked, programs),
    )
    return partial(_report, found, programs, asked)


def _programs(
    topology: Topology,
    members: Sequence[Member],
    relays: Sequence[int] | str,
    asked: Asked,
    programs: GroupPrograms,
) -> list[ConcurrentPlan]:
    """Reduction programs for the groups, where nothing is asked that they do not know of."""
    if (
        topology.protocol
        or asked.chunks is not None
        or asked.engine != "auto"
        or not isinstance(relays, str)
        or asked.without
    ):
        return []
    network = degraded(without_switch_ops(topology), (), asked.degrade)
    until, executor = asked.begun + PROGRAMS * asked.budget, None if asked.target == NONE else programs
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
    """The groups of `text`, each with its collective (the first rank is the root of a rooted one) and size.

    Args:
        text: as the head of this module says.
        collective: what groups do that do not say otherwise.
        topology: the machine or cluster. dead: its ranks that do not live.
        size: of groups that do not say otherwise.
        sizes: one a group, with commas.

    Raises:
        InputError: groups, a collective or a size that cannot be, no size, or two for one group.
    """
    named_once = cache(named)  # groups that do the same share the object
    lists: list[Axes] = []
    found: list[tuple[tuple[int, ...], Collective, str | None]] = []
    for part in text.split(";"):
        match = _PART.fullmatch(part)
        assert match is not None
        with _of_groups():
            what = collective if match["name"] is None else parse_name(match["name"])
        for ranks in parse_groups(match["ranks"], topology, dead, lists):
            with _of_groups():
                stated = named_once(parse_name(what), len(ranks), 1) if isinstance(what, str) else what
            found.append((ranks, stated, match["size"]))
    each = _sizes(found, size, sizes)
    return [Member(ranks, stated, size_bytes) for (ranks, stated, _), size_bytes in zip(found, each, strict=True)]


@contextmanager
def _of_groups() -> Iterator[None]:
    """What a collective's name is refused for, said of --groups."""
    try:
        yield
    except InputError as error:
        raise InputError(f"--groups: {error}") from None


def _sizes(
    found: Sequence[tuple[tuple[int, ...], Collective, str | None]], size: str | None, sizes: str | None
) -> list[int]:
    """Bytes of every group."""
    given = [None] * len(found) if sizes is None else sizes.split(",")
    if len(given) != len(found):
        raise InputError(
            f"--group-sizes: {shown(sizes)} has {len(given)} sizes for {len(found)} groups; give one a group"
        )
    each = []
    for (ranks, _, own), listed in zip(found, given, strict=True):
        if own is not None and listed is not None:
            raise InputError(
                f"--group-sizes: the group that begins with rank {ranks[0]} has a size of its own, @{own}; give one"
                " or the other"
            )
        sources = ((own, "--groups"), (listed, "--group-sizes"), (size, "--size"))
        given_size = next(((text, option) for text, option in sources if text is not None), None)
        if given_size is None:
            raise InputError(
                "--groups: needs message sizes; give --size 64M, --group-sizes one a group, or @64M: before a group"
            )
        each.append(parse_size(*given_size))
    return each


def _report(found: ConcurrentResult, programs: GroupPrograms, asked: Asked) -> None:
    clear_progress()
    until = written_until(found.ended, asked)
    saved = save_groups(found, asked.out, programs, proof=asked.proof, until=until, anew=asked.replace)
    document = statement(found)
    say_defects(found.defects, "its plans are missing")
    if asked.as_json:
        for path in saved.schedules:
            key = "proof_file" if path.name.endswith(".proof.json") else "schedule"
            document.setdefault(key, str(path))
            document.setdefault("files", []).append(str(path))
        document["programs"] = {
            "files": list(map(str, saved.files)),
            "time_us": saved.time_us,
            "unsaved": saved.refused,
            "kept": saved.kept,
        }
        print_json(document)
    else:
        labels = [member.label for member in found.problem.members]
        click.echo(concurrent_table(document, labels, found.problem.topology.nranks) + "\n")
        click.echo(_closing(found, saved, asked.begun))
    if found.ended == "interrupted":
        raise SystemExit(130)
    if saved.refused and asked.target != AUTO:
        click.echo(f"warning: --target {asked.target}: no file: {saved.refused}", err=True)
        raise SystemExit(3)


def _closing(found: ConcurrentResult, saved: SavedGroups, begun: float) -> str:
    paths = [*saved.files, *([] if saved.index is None else [saved.index]), *saved.schedules]
    listed = [str(path) for path in paths]
    if len(listed) > _FILES:
        listed = [*listed[: _FILES - 1], f"… {len(listed) - _FILES} more …", listed[-1]]
    closing = [f"replayed and right → {', '.join(listed)}", *ending(found.ended, begun)]
    if saved.time_us is not None:
        beside = saved.time_us / found.makespan_us
        whom = format_count(len(saved.files), "file")
        closing.insert(
            0, f"the programs ({whom}) take {format_time(saved.time_us)}, {beside:.3f} × the schedule's time"
        )
        if saved.kept:
            closing.insert(1, "kept: what the library had is no slower")
    elif saved.refused:
        closing.insert(0, f"no executor's file: {saved.refused}")
    return "   ".join(closing)
