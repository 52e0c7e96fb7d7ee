"""What a library answers: `synth library show | pick | diff`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from emit.library.compare import Difference, differences
from emit.library.fault_check import check_fault
from emit.library.index import Entry, vs_library
from emit.library.overlay import folder_without, load_library
from emit.library.pick import pick, why_none
from emit.library.programs import NONE
from emit.targets import target_named
from runtime.dtypes import TYPES, parse_type
from synth.baselines.libraries import LIBRARIES
from synth.cli.options import json_option, print_json
from synth.library.placing import unfiled_schedules
from synth.model.numbers import as_folder
from synth.model.problem import parse_ranks
from synth.model.registry import KINDS, find_kind, parse_name
from synth.model.sizes import parse_size
from synth.present.text import format_count, format_ranks, format_served, format_size, format_table, format_time
from topologies.errors import InputError
from topologies.load import load

_RANKS = 1 << 20  # that a group may name
_MOST_SIZES = 64
_SAME = 1e-6  # of two times


def named(entries: Sequence[Entry], collective: str | None) -> str | None:
    """A collective as the library spells it; InputError for one that it does not have."""
    if collective is None or any(entry.collective == collective for entry in entries):
        return collective
    return parse_name(collective)


def _known(entries: Sequence[Entry], target: str | None, topology: str | None) -> None:
    """Raise InputError for an executor that is none, and for a topology without files."""
    if target is not None:
        target_named(target)
    names = sorted({entry.topology for entry in entries})
    if topology is not None and topology not in names:
        raise InputError(f"--topology {topology}: the library has no file for it; it has files for {', '.join(names)}")


@click.command("show")
@click.argument("folder", metavar="LIB")
@click.option("--collective", metavar="NAME", help="Only its files.")
@click.option("--group", metavar="RANKS", help="Only files for these ranks, as 0,2,4-7.")
@click.option("--target", metavar="NAME", help="Only files for this executor.")
@json_option
def show(folder: str, collective: str | None, group: str | None, target: str | None, as_json: bool) -> None:
    """The files of a library: what each serves, its predicted time, its bound, and how libraries compare.

    \b
    synth library show lib --collective allreduce
    """
    entries = load_library(folder)
    wanted = named(entries, collective)
    _known(entries, target, None)
    ranks = None if group is None else sorted(parse_ranks(group, "--group", _RANKS))
    left = [
        entry
        for entry in entries
        if wanted in (None, entry.collective)
        and target in (None, entry.target)
        and (ranks is None or any(sorted(one) == ranks for one in (entry.group, *entry.isomorphic_groups)))
    ]
    unfiled = [
        row
        for row in unfiled_schedules(folder)
        if wanted in (None, row["collective"])
        and target in (None, row["target"])
        and (ranks is None or any(sorted(one) == ranks for one in row["groups"]))
    ]
    if as_json:
        print_json({"entries": [dict(entry.values) for entry in left], "schedules_without_file": unfiled})
        return
    if not left and not unfiled:
        asked = {"--collective": collective, "--group": group, "--target": target}
        options = ", ".join(f"{option} {value}" for option, value in asked.items() if value is not None)
        raise InputError(f"{options or folder}: {folder} holds no such file; see synth library show {folder}")
    stated = [entry.values for entry in left] + list(unfiled)
    libraries = [name for name in LIBRARIES if any(vs_library(values, name) is not None for values in stated)]
    head: tuple[str, ...] = ("collective", "group", "in place", "size", "algorithm", "target")
    head += ("predicted", "bound", "gap", *(f"vs {name}" for name in libraries))
    rows = [_row(entry) + _vs(entry.values, libraries) for entry in sorted(left, key=_order)]
    rows += [_unfiled_row(row) + _vs(row, libraries) for row in unfiled]
    click.echo("\n".join(format_table([head, *rows], (0, 1, 2, 3, 4, 5))))
    groups = len({(e.topology, one) for e in left for one in (e.group, *e.isomorphic_groups)})
    click.echo(f"\n{format_count(len({e.file for e in left}), 'file')} for {format_count(groups, 'group')}")
    if unfiled:
        names = {row["schedule"] for row in unfiled}
        click.echo(f"{format_count(len(names), 'schedule')} without a file, which no executor runs")


def _order(entry: Entry) -> tuple[object, ...]:
    e = entry
    return e.collective, e.topology, e.nranks, e.group, e.target, e.inplace, e.min_bytes


def _unfiled_row(row: dict[str, Any]) -> tuple[str, ...]:
    """A range of sizes for which there is a schedule and no file, as a line of the table."""
    first, more = row["groups"][0], len(row["groups"]) - 1
    root = "" if row["root"] is None else f" root {first[row['root']]}"
    return (
        row["collective"],
        f"{format_ranks(first, 8)}{root}{f' +{more}' if more else ''}",
        "–",
        format_served(row["min_bytes"], row["max_bytes"]),
        f"{row['engine']} {row['steps']}/{row['rounds']}/{row['chunks']}",
        "–" if row["target"] == NONE else f"{row['target']}: no file",
        f"{format_time(row['time_us'])} @ {format_size(row['shown_bytes'])}",
        format_time(row["bound_us"]),
        f"{row['gap']:.3f}",
    )


def _row(entry: Entry) -> tuple[str, ...]:
    values, size = entry.values, entry.values.get("shown_bytes")
    time_us, bound_us, gap = (_number(values.get(key)) for key in ("time_us", "bound_us", "gap"))
    more = f" +{len(entry.isomorphic_groups)}" if entry.isomorphic_groups else ""
    root = "" if entry.root is None else f" root {entry.root}"
    at = f" @ {format_size(size)}" if isinstance(size, int) else ""
    shape = "/".join("–" if values.get(key) is None else str(values[key]) for key in ("steps", "rounds", "chunks"))
    return (
        entry.collective,
        f"{entry.topology} {format_ranks(entry.communicator, 8)}{root}{more}",
        "yes" if entry.inplace else "no",
        format_served(entry.min_bytes, entry.max_bytes),
        f"{values.get('engine') or '–'} {shape} {entry.protocol}",
        entry.target,
        "–" if time_us is None else f"{format_time(time_us)}{at}",
        "–" if bound_us is None else format_time(bound_us),
        "–" if gap is None else f"{gap:.3f}",
    )


def _vs(values: Mapping[str, Any], libraries: Sequence[str]) -> tuple[str, ...]:
    """A cell for each library: how many times faster than what it would take itself."""
    ratios = (vs_library(values, name) for name in libraries)
    return tuple("–" if ratio is None else f"{ratio:.2f} ×" for ratio in ratios)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@click.command("pick")
@click.argument("folder", metavar="LIB")
@click.argument("collective")
@click.argument("group", metavar="GROUP")
@click.argument("size", metavar="SIZE")
@click.option("--out-of-place", is_flag=True, help="For calls whose output is not their input. Default: in place.")
@click.option("--type", "kind", default="float", metavar="TYPE", help=f"Of the elements: {', '.join(TYPES)}.")
@click.option("--root", type=int, metavar="RANK", help="Of the topology, for collectives that have one.")
@click.option("--target", metavar="NAME", help="Only this executor's. Default: of each that has files.")
@click.option("--topology", metavar="NAME", help="Where the library has files for several.")
@click.option("--without", multiple=True, metavar="PART", help="Under a failure that synth library update planned.")
@json_option
def pick_(
    folder: str, collective: str, group: str, size: str, out_of_place: bool, kind: str, root: int | None,
    target: str | None, topology: str | None, without: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Which file serves a call, and why; or why none does, so that the executor's own algorithm serves it.

    \b
    synth library pick lib allreduce 0-7 64K
    synth library pick lib allreduce 0-7 64K --without link:3-5
    """
    where = folder_without(folder, without) if without else as_folder(folder, "LIB")
    check_fault(where if where.is_dir() else where.parent)
    entries = load_library(where)
    wanted = named(entries, collective) or collective
    ranks, size_bytes = parse_ranks(group, "group", _RANKS), parse_size(size, "size")
    element_bytes = TYPES[parse_type(kind)].itemsize
    _known(entries, target, topology)
    if root is not None and root not in ranks:
        raise InputError(f"--root {root}: must be one of the ranks {format_ranks(ranks)}")
    if root is not None and wanted in KINDS and not find_kind(wanted).rooted:
        raise InputError(f"--root {root}: {wanted} has no root; leave it out")
    ask: dict[str, Any] = {"target": target, "topology": topology, "root": root, "element_bytes": element_bytes}
    found = pick(entries, wanted, ranks, size_bytes, not out_of_place, **ask)
    why = "" if found else why_none(entries, wanted, ranks, size_bytes, not out_of_place, **ask)
    if as_json:
        rows = [
            {"file": e.file, "target": e.target, "topology": e.topology, "communicator": list(e.communicator), "why": w}
            for e, w in found
        ]
        print_json({"found": rows, "why_none": why})
        return
    for entry, words in found:
        click.echo(f"{entry.path}: {entry.target}, {words}")
    if not found:
        click.echo(f"no file, the executor's own algorithm serves it: {why}")


@click.command("diff")
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--sizes", default="1K:1G", metavar="FROM:TO", help="Powers of two, every second. Default: 1K:1G.")
@click.option("--topo", metavar="T", help="The network of files whose topology's name does not say it, a FILE.")
@click.option("--all", "everything", is_flag=True, help="Also where both take as long.")
@json_option
def diff(one: str, other: str, sizes: str, topo: str | None, everything: bool, as_json: bool) -> None:
    """Two libraries by predicted times, size by size: where B is faster or slower than A, and what only one serves.

    \b
    synth library diff lib before
    """
    listed = sizes_of(sizes, "--sizes")
    topology = None if topo is None else load(topo)
    rows = list(differences(load_library(one), load_library(other), listed, topology))
    if as_json:
        print_json({"a": one, "b": other, "rows": [_document(row) for row in rows]})
        return
    lines = [_line(row) for row in rows if everything or not _is_same(row)]
    if lines:
        head = "collective", "group", "target", "in place", "size", "A", "B", "B / A"
        click.echo("\n".join([*format_table([head, *lines], (0, 1, 2, 3)), ""]))
    click.echo(_sum(rows))


def sizes_of(text: str, what: str) -> list[int]:
    """The sizes in bytes of `1K:1G`, every second power of two, or of one size; InputError for anything else."""
    ends = text.split(":")
    if len(ends) > 2:
        raise InputError(f"{what}: {text!r} is no range of sizes; write it as in 1K:1G")
    low, high = parse_size(ends[0], what), parse_size(ends[-1], what)
    if low > high:
        raise InputError(f"{what}: {text} runs backwards; write it as in 1K:1G")
    return [low << e for e in range(0, _MOST_SIZES, 2) if low << e <= high]


def _is_same(row: Difference) -> bool:
    if row.one is None or row.other is None:
        return False
    ratio = row.ratio
    return ratio is None or math.isclose(ratio, 1.0, rel_tol=_SAME)


def _document(row: Difference) -> dict[str, Any]:
    collective, topology, group, relays, root, target, inplace = row.question
    asked: dict[str, Any] = {"collective": collective, "topology": topology, "group": list(group)}
    asked |= {"relays": list(relays), "root": root, "target": target, "inplace": inplace, "bytes": row.size_bytes}
    return asked | {"a": row.one, "b": row.other, "a_us": row.one_us, "b_us": row.other_us, "b_over_a": row.ratio}


def _line(row: Difference) -> tuple[str, ...]:
    collective, topology, group, relays, root, target, inplace = row.question
    at = "" if root is None else f" root {root}"
    times = [
        "no file" if file is None else "not known" if time_us is None else format_time(time_us)
        for file, time_us in ((row.one, row.one_us), (row.other, row.other_us))
    ]
    ratio = "–" if row.ratio is None else f"{row.ratio:.3f}"
    who = f"{topology} {format_ranks((*group, *relays), 8)}{at}"
    return collective, who, target, "yes" if inplace else "no", format_size(row.size_bytes), *times, ratio


def _sum(rows: Sequence[Difference]) -> str:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    faster, slower = sum(r < 1 - _SAME for r in ratios), sum(r > 1 + _SAME for r in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
    parts = [f"B is faster at {faster}, slower at {slower}, as fast at {len(ratios) - faster - slower}"]
    parts += [f"B / A {mean:.3f} in the geometric mean"] if ratios else []
    only = [sum(row.other is None for row in rows), sum(row.one is None for row in rows)]
    parts += [f"only A serves {only[0]}"] if only[0] else []
    parts += [f"only B serves {only[1]}"] if only[1] else []
    unknown = sum(row.ratio is None and None not in (row.one, row.other) for row in rows)
    parts += [f"{unknown} times not known (--topo)"] if unknown else []
    return f"of {format_count(len(rows), 'question and size', 'questions and sizes')}: {'; '.join(parts)}"
