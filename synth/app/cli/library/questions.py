"""The commands about a library's answers: `synth library show`, `synth library pick` and `synth library diff`."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import click

from emit.library.checking.fault_check import check_fault
from emit.library.entry import IndexEntry, vs_library
from emit.library.networks import Networks
from emit.library.overlay import dead_parts, folder_without, load_library
from emit.library.selection.against_vendor import count_sizes
from emit.library.selection.call import LibraryCall
from emit.library.selection.compare import Difference, differences
from emit.library.selection.selector import Selector, entries_of, spelled_name
from emit.targets import NO_ALGORITHM, TARGETS, target_named
from runtime.dtypes import TYPES, parse_type
from synth.app.cli.library.missing import (
    NO_FILE,
    say_failures,
    say_missing_forms,
    say_why_no_file,
    unserved_ranges,
)
from synth.app.cli.options import json_option, print_json, wide_option
from synth.app.cli.progress import showing
from synth.app.cli.size_ranges import parse_sweep
from synth.app.clusters.placing import at_asked_sizes, recorded_shares, unfiled_schedules, why_no_file
from synth.app.present.layout import Column, fitted, say, say_fitted, terminal_width, wrapped
from synth.app.present.table import split_by_form
from synth.baselines.vendors import LIBRARIES
from synth.model.numbers import as_folder
from synth.model.problem import parse_ranks
from synth.model.registry import COLLECTIVE_KINDS, find_kind
from synth.model.sizes import parse_size, parse_size_list
from synth.model.text import (
    BRACKETS,
    FITTED,
    format_comparison,
    format_count,
    format_gap,
    format_listed,
    format_ranks,
    format_served,
    format_short_size,
    format_size,
    format_spans,
    format_time,
)
from synth.search.settings import NONE
from topologies.errors import InputError, right_name
from topologies.load import load
from topologies.text.files import origin_of

_RANKS = 1 << 20  # ranks that a group may name
_UNSERVED = "not served"  # The predicted time of sizes without a file that the executor does not serve either.
_SAME = 1e-6  # relative difference up to which two times are equal


def _check_names(entries: Sequence[IndexEntry], target: str | None, topology: str | None) -> None:
    """Raise InputError for an unknown executor, and for a topology without files; None is always right."""
    if target is not None:
        target_named(target)
    names = sorted({entry.topology for entry in entries})
    if topology is not None and topology not in names:
        raise InputError(f"--topology {topology[:40]}: the library has no file for it; {right_name(topology, names)}")


@dataclass(frozen=True)
class _Filter:
    """What rows of a library `show` prints.

    Attributes:
        collective: Collective, as the library spells it; None for all.
        target: Executor; None for all.
        ranks: Ranks of a process group, ascending; None for all groups.
    """

    collective: str | None
    target: str | None
    ranks: Sequence[int] | None

    def admits(self, collective: str, target: str, groups: Iterable[Sequence[int]]) -> bool:
        """Return whether a row is printed that serves a collective of some groups by an executor."""
        return (
            self.collective in (None, collective)
            and self.target in (None, target)
            and (self.ranks is None or any(sorted(group) == self.ranks for group in groups))
        )


@click.command("show")
@click.argument("folder", metavar="LIB")
@click.option("--collective", metavar="NAME", help="Show only files for this collective.")
@click.option("--group", metavar="RANKS", help="Show only files for these ranks, as 0,2,4-7.")
@click.option("--target", metavar="NAME", help="Show only files for this executor.")
@wide_option
@click.option("--details", is_flag=True, help="Also show the shape, the engine, the proof and the names of each file.")
@json_option
def show(
    folder: str, collective: str | None, group: str | None, target: str | None, wide: bool, details: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the files of a library: what each serves, its predicted time, its bound, and comparisons.

    \b
    synth library show lib --collective allreduce
    """
    with showing("reading the library", lambda: (0, 0, "")):
        entries = load_library(folder)
    spelled = None if collective is None else spelled_name(entries, collective)
    _check_names(entries, target, None)
    ranks = None if group is None else sorted(parse_ranks(group, "--group", _RANKS))
    row_filter = _Filter(spelled, target, ranks)
    entries_left = [
        entry
        for entry in entries
        if row_filter.admits(entry.collective, entry.target, (entry.group, *entry.isomorphic_groups))
    ]
    unfiled = [
        row for row in unfiled_schedules(folder) if row_filter.admits(row["collective"], row["target"], row["groups"])
    ]
    if as_json:
        print_json(
            "library", {"entries": [dict(entry.row) for entry in entries_left], "schedules_without_file": unfiled}
        )
        return
    if not entries_left and not unfiled:
        filters = {"--collective": collective, "--group": group, "--target": target}
        options = ", ".join(f"{option} {value}" for option, value in filters.items() if value is not None)
        raise InputError(f"{options or folder}: {folder} holds no such file; synth library show {folder} lists all")
    index_rows = [*(entry.row for entry in entries_left), *unfiled]
    libraries = [name for name in LIBRARIES if any(vs_library(row, name) is not None for row in index_rows)]
    with showing("comparing with vendor libraries", lambda: (0, 0, "")):
        entries_left = at_asked_sizes(entries_left) or entries_left  # A record may name other sizes than the files.
    entries_left.sort(key=_by_question)
    names = {entry.topology for entry in entries_left}
    if len(names) == 1:
        say_fitted(*names)
    _say_blocks(_blocks(entries_left, unfiled, ranks, libraries), libraries, wide, details)
    say_why_no_file(entries_left)
    say_missing_forms(entries_left)
    if details:
        for entry in entries_left:
            form = "in place" if entry.inplace else "out of place"
            title = f"{_title(entry, _matching_group(entry, ranks), len(names) > 1)}, {form}"
            lines = [f"{title}, {format_served(entry.min_bytes, entry.max_bytes)}", *_details(entry)]
            say(["", lines[0], *wrapped([f"  {line}" for line in lines[1:]], terminal_width(), "    ")], None)
    groups = len({(e.topology, group_ranks) for e in entries_left for group_ranks in (e.group, *e.isomorphic_groups)})
    click.echo(f"\n{format_count(len({e.file for e in entries_left}), 'file')} for {format_count(groups, 'group')}")
    if unfiled:
        names = {row["schedule"] for row in unfiled}
        click.echo(f"{format_count(len(names), 'schedule')} without a file, which no executor can run")
    if any(entry.asked for entry in entries_left):
        say_fitted(f"sizes: those of the cluster's file; a file may serve others, as synth library pick {folder} says")
    say_failures(folder)
    for name in libraries:
        if sentence := count_sizes(entries_left, name).sentence(name):
            say_fitted(sentence)


def _by_question(entry: IndexEntry) -> tuple[Any, ...]:
    """Return a key that sorts entries by their questions, calls in place first, and then by message sizes."""
    root = -1 if entry.root is None else entry.root
    return (
        entry.collective, entry.topology, entry.nranks, entry.group, entry.relays, root, entry.sizes, entry.target,
        not entry.inplace, entry.min_bytes,
    )  # fmt: skip


_Cells = tuple[str, ...]  # size, algorithm, target, predicted, bound and gap, then a cell for each library


def _blocks(
    entries: Sequence[IndexEntry],
    unfiled: Sequence[dict[str, Any]],
    ranks: Sequence[int] | None,
    libraries: Sequence[str],
) -> dict[str, list[_Cells]]:
    """Return the rows of a library by the title of their block: a collective and a group.

    Where rows for calls in place and out of place differ, each form has a block of its own, and so have the rows that
    are equal in both. Schedules without a file have blocks of their own.

    Args:
        entries: The entries, sorted.
        unfiled: Ranges of sizes that have a schedule but no file, as `unfiled_schedules` returns them.
        ranks: Ranks of the group that is asked for, ascending; None for all groups.
        libraries: Names of the libraries that rows are compared with.
    """
    names_topology = len({entry.topology for entry in entries}) > 1
    rows_of: dict[tuple[str, bool], list[_Cells]] = {}
    for _, same in groupby(entries, lambda entry: entry.question_and_form):
        same_entries = list(same)
        first = same_entries[0]
        ranges_left = unserved_ranges(same_entries, *(first.asked or (0, None)))
        numbered = [(entry.min_bytes, _cells(entry) + _vs(entry.row, libraries)) for entry in same_entries]
        numbered += [(low, _left_cells(low, high, first, len(libraries))) for low, high in ranges_left]
        title = _title(first, _matching_group(first, ranks), names_topology)
        rows_of.setdefault((title, first.inplace), []).extend(cells for _, cells in sorted(numbered, key=itemgetter(0)))
    blocks: dict[str, list[_Cells]] = {}
    for title in dict.fromkeys(title for title, _ in rows_of):
        in_place, out_of_place = (rows_of.get((title, inplace), []) for inplace in (True, False))
        by_form = split_by_form({"in place": in_place, "out of place": out_of_place}, operator.eq)
        is_one = list(by_form) == ["in place and out of place"]
        blocks |= {f"{title}:" if is_one else f"{title}, {form}:": rows for form, rows in by_form.items()}
    for row in unfiled:
        first, further = row["groups"][0], len(row["groups"]) - 1
        root = None if row["root"] is None else first[row["root"]]
        title = f"{_question(row['collective'], first, root, further)}, without a file:"
        blocks.setdefault(title, []).append(_unfiled_cells(row) + _vs(row, libraries))
    return blocks


def _question(collective: str, group: Sequence[int], root: int | None, further: int) -> str:
    """Return a question as text, such as `allreduce, ranks 0-7 and 3 more groups`.

    Args:
        collective: Name of the collective.
        group: Ranks of the group.
        root: Rank of the root; None without one.
        further: Number of other groups that the same files serve.
    """
    of_root = "" if root is None else f", root {root}"
    further_groups = f" and {further} more {'group' if further == 1 else 'groups'}" if further else ""
    return f"{collective}, ranks {format_spans(group)}{of_root}{further_groups}"


def _say_blocks(blocks: Mapping[str, Sequence[_Cells]], libraries: Sequence[str], wide: bool, details: bool) -> None:
    """Print the rows of a library, block by block, with the columns that fit the terminal; name those that do not.

    Args:
        blocks: Rows by the title of their block; at least one.
        libraries: Names of the libraries that rows are compared with.
        wide: Whether to print all columns, however wide they are.
        details: Whether all figures of each file follow.
    """
    rows = [row for block in blocks.values() for row in block]
    targets = {row[2] for row in rows}
    head = ("  size", "algorithm", "target", "predicted", "bound", "gap", *(f"vs {name}" for name in libraries))
    importance = 0, 5, int(len(targets) == 1) * 4, 0, 1, 0, *(6 if i else 2 for i in range(len(libraries)))
    lines, left_out = _fitted_cells(head, importance, [(f"  {row[0]}", *row[1:]) for row in rows], 3, wide)
    click.echo(f"\n{lines[0]}")
    numbered = iter(lines[1:])
    for title, block in blocks.items():
        say_fitted(title)
        for _ in block:
            click.echo(next(numbered))
    if any(row[3] == _UNSERVED for row in rows):
        click.echo()
        say_fitted(f"{_UNSERVED}: no file is for these sizes, and no executor has an algorithm of its own for them")
    if any(row[3] == NO_FILE for row in rows):
        own = dict.fromkeys(TARGETS[row[2]].otherwise for row in rows if row[3] == NO_FILE)
        click.echo()
        say_fitted(f"{NO_FILE}: {' or '.join(own)} serves these sizes")
    if "algorithm" not in left_out:
        click.echo()
        say_fitted("algorithm: its engine, its steps/rounds/chunks, and the protocol of its file")
    compared = [f"vs {name}" for name in libraries if f"vs {name}" not in left_out]
    if compared:
        click.echo()
        fitted_times = f"; with brackets it is by {FITTED}{BRACKETS}" if any("× (" in line for line in lines) else ""
        say_fitted(f"{', '.join(compared)}: the library's time for what it would run / ours{fitted_times}")
    _say_left_out(left_out, "" if details else "; --details shows all of each file")


def _fitted_cells(
    head: Sequence[str], importance: Sequence[int], rows: Sequence[Sequence[str]], nleft: int, wide: bool
) -> tuple[list[str], list[str]]:
    """Return the lines of a table that fit the terminal, titles first, and the titles of the columns that do not.

    Args:
        head: Titles of the columns.
        importance: Importance of each column (see `Column`).
        rows: Cells of each row; at least one row.
        nleft: Number of columns, from the first, that are flush left.
        wide: Whether to take all columns, however wide they are.
    """
    cells = zip(*rows, strict=True)
    columns = [Column(*column, left=i < nleft) for i, column in enumerate(zip(head, cells, importance, strict=True))]
    return fitted(columns, None if wide else terminal_width())


def _say_left_out(titles: Sequence[str], more: str = "") -> None:
    """Print how to see the columns that did not fit the terminal; nothing if there are none.

    Args:
        titles: Titles of the columns.
        more: A clause on what shows even more; "" for none.
    """
    if titles:
        say(["", *wrapped([f"--wide also shows {', '.join(titles)}{more}"], terminal_width())], None)


def _left_cells(low: int, high: int | None, entry: IndexEntry, nlibraries: int) -> _Cells:
    """Return the cells of a range of sizes that no file is for, with those of the libraries.

    They say whether the executor's own algorithms serve them.

    Args:
        low: Smallest size in bytes.
        high: Largest size in bytes; None where there is no end.
        entry: An entry of the same question and executor.
        nlibraries: Number of libraries that rows are compared with.
    """
    is_served = TARGETS[entry.target].own_algorithm(entry.collective) != NO_ALGORITHM
    served = NO_FILE if is_served else _UNSERVED
    return format_served(low, high), "–", entry.target, served, "–", "–", *["–"] * nlibraries


def _unfiled_cells(row: dict[str, Any]) -> _Cells:
    """Return the first cells of a range of sizes that has a schedule but no file, as `_cells` has them.

    Args:
        row: The range, as `unfiled_schedules` returns it.
    """
    return (
        format_served(row["min_bytes"], row["max_bytes"]),
        f"{row['engine']} {row['steps']}/{row['rounds']}/{row['chunks']}",
        "–" if row["target"] == NONE else f"{row['target']}: no file",
        f"{format_time(row['time_us'])} @ {format_short_size(row['shown_bytes'])}",
        format_time(row["bound_us"]),
        format_gap(row["gap"]),
    )


def _matching_group(entry: IndexEntry, ranks: Sequence[int] | None) -> Sequence[int] | None:
    """Return which of an entry's isomorphic groups has the given ranks in any order.

    None is returned if its own group has them, if none has, and if `ranks` is None.

    Args:
        entry: The entry.
        ranks: The ranks, ascending.
    """
    other_groups = () if sorted(entry.group) == ranks else entry.isomorphic_groups
    return next((group for group in other_groups if sorted(group) == ranks), None)


def _title(entry: IndexEntry, group: Sequence[int] | None, names_topology: bool) -> str:
    """Return the question that an entry answers, as `_question` states it.

    Args:
        entry: The entry.
        group: The group, of those that it serves, that is asked for; None for the first and the number of others.
        names_topology: Whether the text ends with the topology.
    """
    further = 0 if group is not None else len(entry.isomorphic_groups)
    question = _question(entry.collective, group or entry.communicator, entry.root, further)
    return question + f", on {entry.topology}" * names_topology


def _cells(entry: IndexEntry) -> _Cells:
    """Return the first cells of an entry: size, algorithm, target, predicted, bound and gap; unknown ones are "–"."""
    time_us, bound_us, gap = entry.time_us, entry.bound_us, entry.gap
    at = f" @ {format_short_size(entry.shown_bytes)}" if entry.shown_bytes is not None else ""
    shape = "/".join(
        "–" if entry.row.get(key) is None else str(entry.row[key]) for key in ("steps", "rounds", "chunks")
    )
    return (
        format_served(entry.min_bytes, entry.max_bytes),
        f"{entry.row.get('engine') or '–'} {shape} {entry.protocol}",
        entry.target,
        "–" if time_us is None else f"{format_time(time_us)}{at}",
        "–" if bound_us is None else format_time(bound_us),
        "–" if gap is None else format_gap(gap),
    )


def _details(entry: IndexEntry) -> list[str]:
    """Return the lines on an entry: its shape, time, bound with its proof, worst size, comparisons and files.

    What the index does not state is left out; an unknown engine is "–".
    """
    row, shown = entry.row, entry.shown_bytes
    names = ("steps", "rounds", "chunks", "sends", "threadblocks")
    shape = [format_count(row[name], name[:-1]) for name in names if row.get(name)]
    lines = [", ".join([f"engine {row.get('engine') or '–'}", *shape, f"protocol {entry.protocol}"])]
    if entry.time_us is not None and shown is not None:
        gap = "" if entry.gap is None else f", gap {format_gap(entry.gap)}"
        lines.append(f"{format_time(entry.time_us)} for {format_size(shown)}{gap}")
    if entry.bound_us is not None:
        proof = "see the file of its proof, below" if entry.proof_file else "the index states no proof"
        lines.append(f"bound {format_time(entry.bound_us)}: {row.get('proof') or proof}")
    if (worst := row.get("worst")) and worst["bytes"] != shown:
        figures = f"{format_time(worst['time_us'])}, bound {format_time(worst['bound_us'])}"
        lines.append(f"worst in range: {format_gap(worst['gap'])} @ {format_short_size(worst['bytes'])}: {figures}")
    compared = [f"vs {name} {cell}" for name, cell in zip(LIBRARIES, _vs(row, list(LIBRARIES)), strict=True)]
    compared = [text for text in compared if not text.endswith("–")]
    lines += [", ".join(compared)] if compared else []
    if entry.divides > 1:
        lines.append(f"takes multiples of {entry.divides} {'elements' if entry.counts_elements else 'bytes'}")
    return [*lines, *(f"{kind.removesuffix('_file')}: {name}" for kind, name in entry.files.items())]


def _vs(values: Mapping[str, Any], libraries: Sequence[str]) -> tuple[str, ...]:
    """Return a cell for each library: how many times as long its own choice takes as the entry's file; "–" if unknown.

    Args:
        values: The entry's row in the index.
        libraries: Names of the libraries.
    """
    choices = ((name, values["libraries"][name] if vs_library(values, name) else None) for name in libraries)
    return tuple(format_comparison(choice, name) for name, choice in choices)


@click.command("pick")
@click.argument("folder", metavar="LIB")
@click.argument("collective")
@click.argument("group", metavar="GROUP")
@click.argument("size", metavar="SIZE")
@click.option(
    "--out-of-place",
    is_flag=True,
    help="Pick for calls out of place. Default: in place, if a file is for such calls.",
)
@click.option("--type", "kind", default="float", metavar="TYPE", help=f"Use elements of this type: {', '.join(TYPES)}.")
@click.option(
    "--root", type=int, metavar="RANK", help="Use this rank of the topology as the root. Default: the group's first."
)
@click.option(
    "--sizes",
    metavar="LIST",
    help="Pick for blocks of these proportions, as 3,0,1 (alltoallv: row by row). Default: equal blocks.",
)
@click.option("--target", metavar="NAME", help="Pick only this executor's file. Default: each executor's.")
@click.option("--topology", metavar="NAME", help="Use this topology, if the library has files for several.")
@click.option(
    "--without", multiple=True, metavar="PART", help="Pick under a failure that synth library update planned for."
)
@json_option
def pick_(
    folder: str, collective: str, group: str, size: str, out_of_place: bool, kind: str, root: int | None,
    sizes: str | None, target: str | None, topology: str | None, without: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Show which file serves a call and why, or why none does, so that the executor's own algorithm runs (code 1).

    \b
    synth library pick lib allreduce 0-3 64K
    synth library pick lib allreduce 0-7 64K --without link:3-5
    """
    library_folder = folder_without(folder, without) if without else as_folder(folder, "LIB")
    check_fault(library_folder)
    entries = load_library(library_folder)
    if collective[:1].isdigit():
        raise InputError(f"{collective[:60]!r}: is no collective; the order is LIB COLLECTIVE GROUP SIZE")
    spelled = spelled_name(entries, collective)
    _check_names(entries, target, topology)
    ranks, size_bytes = _ranks_of_call(entries, group, topology), parse_size(size, "size")
    if group == "all":
        ranks = tuple(rank for rank in ranks if f"rank:{rank}" not in dead_parts(without))
    element_bytes = TYPES[parse_type(kind)].itemsize
    served_forms = {
        entry.inplace
        for entry in entries_of(entries, ranks)
        if entry.collective == spelled and target in (None, entry.target)
    }
    if root is not None and root not in ranks:
        raise InputError(f"--root {root}: must be one of the ranks {format_ranks(ranks)}")
    if root is not None and spelled in COLLECTIVE_KINDS and not find_kind(spelled).rooted:
        raise InputError(f"--root {root}: {spelled} has no root; leave it out")
    if root is None and spelled in COLLECTIVE_KINDS and find_kind(spelled).rooted:
        root = ranks[0]
    call = LibraryCall(
        spelled,
        len(ranks),
        ranks,
        not out_of_place and served_forms != {False},
        target,
        topology,
        root,
        element_bytes=element_bytes,
        any_order=True,
        sizes=_sizes_of_call(spelled, sizes, len(ranks)),
    )
    selector, picked = Selector(entries), list[tuple[IndexEntry, str]]()
    for name in [name for name in TARGETS if target in (None, name)]:
        of_target = call._replace(target=name)
        if (entry := selector.choose(of_target, size_bytes)) is not None:
            picked.append((entry, selector.why(of_target, size_bytes)))
            if not entry.path.is_file():
                raise InputError(f"{origin_of(entry.path)}: is missing; copy the whole library again, or build it anew")
    why = "" if picked else selector.why(call, size_bytes)
    asked = [e for e in entries if not picked and (e.collective, e.group, e.inplace) == (spelled, ranks, call.inplace)]
    shares = recorded_shares(asked[0].folder) if asked else []
    reasons = (why_no_file(shares, entry, size_bytes, size_bytes) for entry in asked if target in (None, entry.target))
    why += next((f"; {reason}" for reason in reasons if reason), "")
    if dead := [rank for rank in ranks if f"rank:{rank}" in dead_parts(without)]:
        left = format_spans([rank for rank in ranks if rank not in dead])
        why = f"rank {format_listed(dead)} is dead in this failure; ask for the ranks that are left: {left}"
    if as_json:
        fields = ("file", "target", "topology", "communicator")
        rows = [{name: getattr(entry, name) for name in fields} | {"why": reason} for entry, reason in picked]
        print_json("library-pick", {"found": rows, "why_none": why})
        raise SystemExit(0 if picked else 1)
    for entry, words in picked:
        click.echo(entry.path)
        say([f"  {entry.target}, {words}"], terminal_width())
    if not picked:
        names = [target] if target is not None else dict.fromkeys(entry.target for entry in entries)
        own = [name for name in names if TARGETS[name].own_algorithm(spelled) != NO_ALGORITHM]
        outcome = "so the executor's own algorithm runs" if own or not names else "and no executor has one of its own"
        say_fitted(f"no file, {outcome}: {why}")
        raise SystemExit(1)


def _ranks_of_call(entries: Sequence[IndexEntry], group: str, topology: str | None) -> tuple[int, ...]:
    """Return the ranks of a call; "all" stands for all ranks of the library's topology.

    Under a failure that is the topology without the failed parts, also if files of the whole one still hold. If the
    topology's name does not state its network, "all" is the largest group of the library.

    Args:
        entries: The library's entries.
        group: The ranks as written.
        topology: Name of a topology that has entries; None for that of all entries.

    Raises:
        InputError: The text is no list of ranks, or files are for several topologies and none is named.
    """
    names = sorted({entry.topology for entry in entries} if topology is None else {topology})
    if group != "all" or not entries:
        networks = [Networks().named(name, entries[0].folder) for name in names] if entries else []
        limits = [_RANKS if network is None else network.nranks for network in networks]
        return parse_ranks(group, "group", max(limits, default=_RANKS))
    names = [name for name in names if not any(other_name.startswith(f"{name} without ") for other_name in names)]
    if len(names) > 1:
        raise InputError(f"all: the library has files for several topologies; give --topology {names[0]}, for example")
    network = Networks().named(names[0], entries[0].folder)
    if network is not None:
        return tuple(range(network.nranks))
    groups = (group for e in entries if e.topology == names[0] for group in (e.group, *e.isomorphic_groups))
    return max(groups, key=len)


def _sizes_of_call(collective: str, sizes: str | None, nranks: int) -> tuple[int, ...]:
    """Return the sizes of a call's blocks; () for blocks of one size.

    Args:
        collective: The collective, as the library spells it.
        sizes: The sizes as written; None if there are none.
        nranks: Number of ranks of the group.

    Raises:
        InputError: The sizes cannot be read, their number is wrong, or the collective has blocks of one size.
    """
    if sizes is None:
        return ()
    numbers = tuple(parse_size_list(sizes, "--sizes").tolist())
    if collective in COLLECTIVE_KINDS:
        kind = find_kind(collective)
        if not kind.even:
            raise InputError(f"--sizes: {collective} has blocks of one size; leave it out")
        needed = nranks**2 if kind.by_pair else nranks
        if len(numbers) != needed:
            unit = "pair of ranks, row by row" if kind.by_pair else "rank"
            raise InputError(f"--sizes: has {format_count(len(numbers), 'size')}; it must be {needed}, one a {unit}")
    return numbers


@click.command("diff")
@click.argument("library_a", metavar="A")
@click.argument("library_b", metavar="B")
@click.option(
    "--sizes", default="1K:1G", metavar="FROM:TO", help="Compare at every second power of two. Default: 1K:1G."
)
@click.option("--topo", metavar="T", help="The network of files whose topology's name does not say it, a FILE.")
@click.option("--all", "shows_all", is_flag=True, help="Also show sizes at which both take equally long.")
@wide_option
@json_option
def diff(
    library_a: str, library_b: str, sizes: str, topo: str | None, shows_all: bool, wide: bool, as_json: bool
) -> None:
    """Compare two libraries by predicted times: where B is faster or slower, and what only one serves.

    \b
    synth library diff lib before
    """
    listed = parse_sweep(sizes, factor=4)
    topology = None if topo is None else load(topo)
    rows = list(differences(load_library(library_a), load_library(library_b), listed, topology))
    if as_json:
        print_json("library-diff", {"a": library_a, "b": library_b, "rows": [_document(row) for row in rows]})
        return
    lines = [_line(row) for row in rows if shows_all or not _is_same(row)]
    if lines:
        head = "collective", "group", "target", "place", "size", "A", "B", "B / A"
        rows_shown, left_out = _fitted_cells(head, (0, 0, 2, 0, 0, 0, 0, 0), lines, 4, wide)
        say(rows_shown, None)
        _say_left_out(left_out)
        click.echo()
    say_fitted(_summary(rows))


def _is_same(row: Difference) -> bool:
    """Return whether two libraries serve a question at a size equally fast, up to a part of 1e-6.

    It is False if only one serves it, or if a time is unknown.
    """
    return row.ratio is not None and math.isclose(row.ratio, 1.0, rel_tol=_SAME)


def _document(row: Difference) -> dict[str, Any]:
    """Return a difference as a JSON object with its question, bytes, and of both libraries (a, b) file and time in µs.

    b_over_a is the second time / the first. What is unknown or missing is None.
    """
    collective, topology, group, relays, root, sizes, target, inplace = row.question
    fields: dict[str, Any] = {"collective": collective, "topology": topology, "group": list(group)}
    fields |= {"sizes": list(sizes)} if sizes else {}
    fields |= {"relays": list(relays), "root": root, "target": target, "inplace": inplace, "bytes": row.size_bytes}
    return fields | {"a": row.one, "b": row.other, "a_us": row.one_us, "b_us": row.other_us, "b_over_a": row.ratio}


def _line(row: Difference) -> tuple[str, ...]:
    """Return the eight cells of a difference: collective, group, target, place, size, A's and B's time, and B / A."""
    collective, topology, group, relays, root, sizes, target, inplace = row.question
    root_text = "" if root is None else f" root {root}"
    root_text += f" sizes {format_ranks(sizes, 9)}" if sizes else ""
    times = [
        "no file" if file is None else "not known" if time_us is None else format_time(time_us)
        for file, time_us in ((row.one, row.one_us), (row.other, row.other_us))
    ]
    ratio = "–" if row.ratio is None else f"{row.ratio:.3f}"
    ranks = f"{topology} {format_spans((*group, *relays))}{root_text}"
    return collective, ranks, target, "in" if inplace else "out", format_size(row.size_bytes), *times, ratio


def _summary(rows: Sequence[Difference]) -> str:
    """Return a line that counts where B is faster, slower and as fast, and the questions that only one library serves.

    It has the geometric mean of B / A over all known ratios, and the number of unknown times.
    """
    ratios = [row.ratio for row in rows if row.ratio is not None]
    faster, slower = sum(ratio < 1 - _SAME for ratio in ratios), sum(ratio > 1 + _SAME for ratio in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
    parts = [f"B is faster at {faster}, slower at {slower}, as fast at {len(ratios) - faster - slower}"]
    parts += [f"B / A {mean:.3f} in the geometric mean"] if ratios else []
    only = [sum(row.other is None for row in rows), sum(row.one is None for row in rows)]
    parts += [f"only A serves {only[0]}"] if only[0] else []
    parts += [f"only B serves {only[1]}"] if only[1] else []
    unknown = sum(row.ratio is None and None not in (row.one, row.other) for row in rows)
    parts += [f"{unknown} times not known (--topo)"] if unknown else []
    return f"of {format_count(len(rows), 'question and size', 'questions and sizes')}: {'; '.join(parts)}"
