"""A problem in a schedule file: what its header says of it, and the problem that a header states.

Of a named collective the name is kept; any other is kept in full, as columns collective/…; of a quotient problem
(`synth.symmetry.quotient`) the translations are kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import MAX_ENTRIES, Collective, Floats, Ints, named, one_shot
from synth.model.problem import Problem, check_ranks, make_problem
from synth.model.registry import KINDS, find_kind
from synth.storage.columns import ColumnFile
from synth.symmetry.quotient import quotient_by, representative_chunks
from synth.symmetry.quotient_check import check_translations
from topologies.arrays import components, marked
from topologies.costed import under, with_costs, without_costs
from topologies.costs import ANY
from topologies.errors import InputError, QuotientRefused
from topologies.symmetry.translations import Translations, representatives
from topologies.text.fields import Fields, shown
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import MAX_RANKS, Topology

KEYS = ("topology", "protocol", "collective", "group", "relays", "fold")
MAX_CHUNKS = 1 << 40
# What a problem takes in memory, as measured: an entry (rank, chunk) of its collective, a path from a port to a rank,
# a limit that this crosses, a row of a switch's table; and what a file may state: so much, and so much a byte of it.
_ENTRY_BYTES, _PATH_BYTES, _CROSSED_BYTES, _ROW_BYTES = 160, 350, 160, 100
_SMALL_BYTES, _BYTES_A_BYTE = 800 << 20, 40
_COLLECTIVE = ("name", "ranks", "chunks", "nchunks", "root", "columns", "one_shot")
_OWN = ("reduces", "fraction", "pre", "post", "in_index", "out_index")


def describe_problem(problem: Problem) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What a header says of a problem (`KEYS`), and the columns that state its collective where its name does not.

    Raises:
        InputError: a topology that its text form does not hold, or a quotient that its translations do not give back.
    """
    collective = problem.collective
    whole = not _by_name(problem)
    if problem.quotient is not None and whole:
        raise InputError(f"{collective.name}: is not the quotient of what its name means; it cannot be stored")
    header: dict[str, Any] = {
        "topology": _text(problem.topology),
        # under which an executor's costs are on, which the topology states
        **({"protocol": problem.topology.protocol} if problem.topology.protocol else {}),
        "collective": {
            "name": collective.name,
            "ranks": collective.nranks,
            "chunks": collective.chunks,
            "nchunks": collective.nchunks,
            "root": collective.root,
            "columns": whole,
            **({"one_shot": True} if collective.is_one_shot and not whole else {}),
        },
        "group": list(problem.group),
        "relays": list(problem.relays),
        "fold": state_fold(problem),
    }
    return header, {f"collective/{name}": getattr(collective, name) for name in _OWN if whole}


def state_fold(problem: Problem) -> list[list[int]] | None:
    """The translations of a quotient problem, (stride, extent) each, as files state them; None where it is whole."""
    return None if problem.quotient is None else [list(digit) for digit in problem.quotient.translations]


def _text(topology: Topology) -> str:
    """The topology's text form, which gives the same topology back; its costs only where they are on."""
    topology = topology if topology.protocol else without_costs(topology)
    text = to_toml(topology)
    again = from_toml(text, f"topology {shown(topology.name)}")
    plain, found = (
        (t.nranks, t.switches, t.switch_ops, [(limit.name, limit.bandwidth_gbs) for limit in t.limits])
        for t in (topology, again)
    )
    columns, read = (
        [t.link_src, t.link_dst, t.alpha_us, t.bandwidth_gbs, t.nodes, *(limit.links for limit in t.limits)]
        for t in (topology, again)
    )
    if plain != found or not all(map(np.array_equal, columns, read)):
        raise InputError(f"topology {shown(topology.name)}: is not the same when written as text and read")
    return text


def _by_name(problem: Problem) -> bool:
    """Whether the name, the chunks, the root and the translations alone give this collective back."""
    collective = problem.collective
    name, k, chunks = collective.name, collective.nranks, collective.chunks
    if not collective.kind.by_name:
        return False
    if problem.quotient is not None:
        owners = representatives(problem.quotient.translations, k)
        return collective.equals(representative_chunks(name, k, _share(name, k, chunks), owners))
    try:
        plain = named(name, k, chunks, collective.root)
        return collective.equals(one_shot(plain) if collective.is_one_shot else plain)
    except InputError:
        return False


def _share(name: str, k: int, chunks: int) -> int:
    """Chunks as a quotient counts them, of chunks a block: an allreduce's block is cut into a share a rank."""
    return chunks // k if find_kind(name).in_shares else chunks


def rebuild_problem(file: ColumnFile) -> Problem:
    """The problem that a file states.

    Raises InputError: a field or column is missing or cannot be part of a problem; the line names file and field.
    """
    top = Fields(file.header, "", f"{file.origin}: header.json")
    inner = file.header.get("collective")
    if not isinstance(inner, dict):
        top.fail("collective", "missing; it must be an object")
    about = Fields(inner, "", f"{file.origin}: header.json: collective")
    about.only(_COLLECTIVE)
    group, relays = _ranks(top, "group"), _ranks(top, "relays")
    translations = _read_translations(top)
    if "columns" not in about.values:
        about.fail("columns", "missing; it must be true or false")
    if about.boolean("columns", False) and translations is not None:
        about.fail("columns", "it must be false where fold is not null")
    topology = _rebuild_topology(top, f"{file.origin}: header.json: topology")
    _check_weight(file, topology, (*group, *relays), about, translations)
    try:
        if translations is not None:
            problem = _rebuild_quotient(topology, about, group, relays, translations)
        else:
            problem = make_problem(topology, _rebuild_collective(file, about, len(group)), group, relays)
    except InputError as error:
        words = str(error)
        raise InputError(words if words.startswith(file.origin) else f"{file.origin}: {words}") from None
    found = problem.collective
    for key, value in (("ranks", found.nranks), ("nchunks", found.nchunks), ("root", found.root)):
        if about.integer(key, 0, MAX_CHUNKS) != value:
            about.fail(key, f"{inner[key]} is not what this problem has; it must be {value}")
    return problem


def _rebuild_topology(top: Fields, origin: str) -> Topology:
    """The topology, with the costs that it states on where there is a protocol."""
    topology = from_toml(top.string("topology"), origin)
    protocol = top.string("protocol", "")
    if not protocol:
        return topology
    try:
        on = with_costs(topology)
        return on if protocol == ANY else under(on, protocol)
    except InputError as error:
        top.fail("protocol", str(error))


def _check_weight(
    file: ColumnFile, topology: Topology, members: tuple[int, ...], about: Fields, translations: Translations | None
) -> None:
    """Refuse a few lines that state what would fill the memory; a schedule for so much is a large file itself."""
    name, chunks, k = about.string("name"), about.integer("chunks", 1, MAX_CHUNKS), len(members)
    entries = 0
    if not about.boolean("columns", False):
        entries = chunks * find_kind(name).entries(k) * (k if about.boolean("one_shot", False) else 1)
        if translations is not None:
            entries = max(1, k // math.prod(extent for _, extent in translations)) * k * max(1, _share(name, k, chunks))
    needed = entries * _ENTRY_BYTES + _estimate_network(topology, members)
    allowed = _SMALL_BYTES + _BYTES_A_BYTE * file.size
    if needed > allowed:
        raise InputError(
            f"{file.origin}: states a problem of about {needed >> 20} MiB; it must be at most {allowed >> 20} MiB"
            f" in a file of {file.size} bytes"
        )


def _estimate_network(topology: Topology, members: tuple[int, ...]) -> int:
    """What the links among the members take, paths through switches and these switches' tables included."""
    n, switches = topology.nranks, len(topology.switches)
    src, dst = topology.link_src, topology.link_dst
    mine = marked(topology.nvertices, [rank for rank in members if rank < n])
    paths = int(np.count_nonzero(mine[src] & mine[dst]))
    between = (src >= n) & (dst >= n)
    if switches:
        part = components(switches, src[between] - n, dst[between] - n)
        count = int(part.max()) + 1
        into, out = mine[src] & (dst >= n), (src >= n) & mine[dst]
        ports = np.bincount(part[dst[into] - n], minlength=count)
        reached = np.unique(part[src[out] - n] * n + dst[out])
        paths += int(ports @ np.bincount(reached // n, minlength=count))
    limits = 0
    if topology.limits:
        limits = int(np.bincount(np.concatenate([limit.links for limit in topology.limits])).max(initial=0))
    rows = len(members) * (switches + int(np.count_nonzero(between)))
    return paths * (_PATH_BYTES + _CROSSED_BYTES * limits) + rows * _ROW_BYTES


def _rebuild_quotient(
    topology: Topology, about: Fields, group: tuple[int, ...], relays: tuple[int, ...], translations: Translations
) -> Problem:
    name, chunks, k = about.string("name"), about.integer("chunks", 1, MAX_ENTRIES), len(group)
    if not find_kind(name).translatable or relays:
        able = [kind.name for kind in KINDS.values() if kind.translatable]
        about.fail("name", f"{shown(name)} has no quotient; it must be one of {', '.join(able)}, without relays")
    check_ranks(group, "group", topology.nranks)
    share = _share(name, k, chunks)
    held = k // math.prod(extent for _, extent in translations) * k * share
    if k < 2 or not 0 < held <= MAX_ENTRIES or (find_kind(name).in_shares and share * k != chunks):
        about.fail("chunks", f"{chunks} chunks over {k} ranks have no quotient")
    try:
        return quotient_by(topology, name, share, group, translations)
    except InputError:
        raise
    except (ValueError, LookupError, ArithmeticError) as error:
        raise InputError(f"header.json: fold: {' '.join(str(error).split())[:200]}") from None


def _ranks(top: Fields, key: str) -> tuple[int, ...]:
    value = top.values.get(key)
    if not isinstance(value, list) or len(value) > MAX_RANKS or any(type(rank) is not int for rank in value):
        top.fail(key, f"it must be an array of at most {MAX_RANKS} ranks")
    if any(not 0 <= rank < MAX_RANKS for rank in value):
        top.fail(key, f"holds a number that is no rank; it must be 0 to {MAX_RANKS - 1}")
    return tuple(value)


def _read_translations(top: Fields) -> Translations | None:
    value = top.values.get("fold", 0)
    if value is None:
        return None
    pairs = value if isinstance(value, list) else []
    nranks = len(top.values["group"])
    try:
        if not pairs or not all(
            isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair) for pair in pairs
        ):
            raise QuotientRefused("no pairs")
        check_translations(pairs, nranks)
    except QuotientRefused:
        top.fail("fold", f"{shown(value)}; it must be null or [stride, extent] pairs, digits of the {nranks} ranks")
    return tuple((stride, extent) for stride, extent in pairs)


def _rebuild_collective(file: ColumnFile, about: Fields, nranks: int) -> Collective:
    name, chunks = about.string("name"), about.integer("chunks", 1, MAX_CHUNKS)
    root = about.integer("root", 0, MAX_RANKS)
    nchunks = about.integer("nchunks", 1, MAX_CHUNKS)
    if about.integer("ranks", 2, MAX_RANKS) != nranks:
        about.fail("ranks", f"{about.values['ranks']} ranks; it must be {nranks} as in the group")
    if not about.boolean("columns", False):
        if not find_kind(name).by_name:
            able = [kind.name for kind in KINDS.values() if kind.by_name]
            about.fail("name", f"{shown(name)} has no columns that state it; it must be one of {', '.join(able)}")
        plain = named(name, nranks, chunks, root)
        if not about.boolean("one_shot", False):
            return plain
        if not plain.kind.in_shares:
            about.fail("one_shot", f"it must be false of {name}, or the collective an allreduce")
        return one_shot(plain)
    if not name.isprintable() or not 1 <= len(name) <= 40:
        about.fail("name", f"{shown(name)} is no name; it must be 1 to 40 printable characters")
    if root >= nranks:
        about.fail("root", f"position {root} is not in the group; it must be 0 to {nranks - 1}")
    pre, in_index = _cells(file, "pre", "in_index", nranks, nchunks)
    post, out_index = _cells(file, "post", "out_index", nranks, nchunks)
    fraction: Floats = file.column("collective/fraction", "float", (nchunks,))
    file.within("collective/fraction", fraction, 1e-18, 1e18)
    held = marked(nchunks, pre[:, 1])
    if not held.all():
        raise InputError(f"{file.origin}: collective/pre.npy: no rank holds chunk {int(np.argmin(held))} before")
    reduces = file.column("collective/reduces", "bool", (nchunks,))
    return Collective(name, nranks, chunks, nchunks, reduces, fraction, pre, post, in_index, out_index, root)


def means_its_name(stated: Collective) -> bool:
    """Return whether chunks of any sizes make up, between the same ranks, the data that the collective's name says."""
    if stated.name not in KINDS or not find_kind(stated.name).by_name:
        return True
    plain = named(stated.name, stated.nranks, 1, stated.root)
    own, right = _amounts(stated), _amounts(plain)
    return own.keys() == right.keys() and all(math.isclose(own[key], right[key], rel_tol=1e-6) for key in right)


def _amounts(collective: Collective) -> dict[tuple[bool, bytes, bytes], float]:
    """Return how much of the message is at the same ranks before and after, and reduced or not."""
    sides = []
    for rows in (collective.pre, collective.post):
        order = np.lexsort((rows[:, 0], rows[:, 1]))
        ends = np.searchsorted(rows[order, 1], np.arange(collective.nchunks + 1))
        ranks = rows[order, 0].astype(np.int64)
        sides.append([ranks[low:high].tobytes() for low, high in pairwise(ends.tolist())])
    amounts: dict[tuple[bool, bytes, bytes], float] = defaultdict(float)
    columns = collective.reduces.tolist(), *sides, collective.fraction.tolist()
    for reduces, before, after, fraction in zip(*columns, strict=True):
        amounts[reduces, before, after] += fraction
    return amounts


def _cells(file: ColumnFile, cells: str, places: str, nranks: int, nchunks: int) -> tuple[Ints, Ints]:
    """Rows (rank, chunk), sorted and each once, and the place of each in its rank's buffer."""
    member = f"collective/{cells}"
    rows = file.rows(member)
    table: Ints = file.column(member, "int", (rows, 2)).astype(np.int64)
    file.within(member, table[:, 0], 0, nranks - 1)
    file.within(member, table[:, 1], 0, nchunks - 1)
    unsorted = np.diff(table[:, 0] * nchunks + table[:, 1]) <= 0
    if unsorted.any():
        row = int(np.argmax(unsorted)) + 1
        raise InputError(f"{file.origin}: {member}.npy: row {row} is not behind the row before; it must be sorted")
    place: Ints = file.column(f"collective/{places}", "int", (rows,)).astype(np.int64)
    file.within(f"collective/{places}", place, 0, MAX_CHUNKS)
    return table, place
