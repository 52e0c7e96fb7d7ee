"""Describe a problem in a schedule file's header, and rebuild the problem that a header states.

A named collective is stored by its name; any other is stored in full, as columns collective/…. A quotient problem
(`synth.symmetry.quotient`) is stored with its translations.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import MAX_ENTRIES, Collective, Floats, Ints, chunks_by_ends, in_shape, named, one_shot
from synth.model.problem import Problem, check_ranks, make_problem
from synth.model.registry import COLLECTIVE_KINDS, find_kind
from synth.storage.columns import ColumnFile
from synth.symmetry.quotient import quotient_by, representative_chunks
from synth.symmetry.quotient_check import check_translations
from topologies.arrays import components, flags_of
from topologies.costed import with_costs, with_protocol, without_costs
from topologies.costs import ANY
from topologies.errors import InputError, QuotientRefused
from topologies.paths import MOST_PATHS, Paths
from topologies.paths.listed import count_partial_paths
from topologies.symmetry.translations import Translations, representatives
from topologies.text.fields import Fields, shown
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import MAX_RANKS, Topology

KEYS = ("topology", "protocol", "collective", "group", "relays", "fold", "links")
MAX_CHUNKS = 1 << 40
# Measured memory of a problem: of an entry (rank, chunk) of its collective, of a path from a port to a rank, of a limit
# that a path crosses, and of a row of a switch's table.
_ENTRY_BYTES, _PATH_BYTES, _CROSSED_BYTES, _ROW_BYTES = 160, 350, 160, 100
# The memory that a file's problem may take: so many bytes, and so many more for each byte of the file.
_SMALL_BYTES, _BYTES_A_BYTE = 1100 << 20, 40
_COLLECTIVE = ("name", "ranks", "chunks", "nchunks", "root", "columns", "one_shot", "sizes")
_OWN = ("reduces", "fraction", "pre", "post", "in_index", "out_index")


def describe_problem(problem: Problem) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return a problem's part of the header (`KEYS`), and the columns that state its collective.

    Columns are by name, such as collective/pre; there are none where the collective's name defines it.

    Raises:
        InputError: The topology cannot be written as text, or this is a quotient problem whose collective has no name.
    """
    collective = problem.collective
    in_columns = not _is_defined_by_name(problem)
    if problem.quotient is not None and in_columns:
        raise InputError(
            f"{collective.name}: this problem is not the quotient of the named collective; it cannot be stored"
        )
    header: dict[str, Any] = {
        "topology": _text(problem.topology),
        # An executor's costs are on under this protocol; the topology states them.
        **({"protocol": problem.topology.protocol} if problem.topology.protocol else {}),
        "collective": {
            "name": collective.name,
            "ranks": collective.nranks,
            "chunks": collective.chunks,
            "nchunks": collective.nchunks,
            "root": collective.root,
            "columns": in_columns,
            **({"one_shot": True} if collective.is_one_shot and not in_columns else {}),
            **({"sizes": list(collective.sizes)} if collective.sizes else {}),
        },
        "group": list(problem.group),
        "relays": list(problem.relays),
        "fold": state_fold(problem),
        # Which paths of a large network are links is a rule that may change, and rows name links by their numbers.
        **({"links": problem.network.nlinks} if problem.network.switch_graph is not None else {}),
    }
    return header, {f"collective/{name}": getattr(collective, name) for name in _OWN if in_columns}


def state_fold(problem: Problem) -> list[list[int]] | None:
    """Return a quotient problem's translations as files state them, [stride, extent] each; None for a whole problem."""
    return None if problem.quotient is None else [list(digit) for digit in problem.quotient.translations]


def _text(topology: Topology) -> str:
    """Return the topology's text form, a TOML document that was read again to see that it gives the same topology.

    Its costs are included only where they are on.

    Raises:
        InputError: The topology is another one when its text form is read.
    """
    topology = topology if topology.protocol else without_costs(topology)
    text = to_toml(topology)
    reread_topology = from_toml(text, f"topology {shown(topology.name)}")
    original, reread = (
        (t.nranks, t.switches, t.switch_ops, [(limit.name, limit.bandwidth_gbs) for limit in t.limits])
        for t in (topology, reread_topology)
    )
    columns, reread_columns = (
        [t.link_src, t.link_dst, t.alpha_us, t.bandwidth_gbs, t.nodes, *(limit.links for limit in t.limits)]
        for t in (topology, reread_topology)
    )
    if original != reread or not all(map(np.array_equal, columns, reread_columns)):
        raise InputError(f"topology {shown(topology.name)}: is not the same when written as text and read")
    return text


def _is_defined_by_name(problem: Problem) -> bool:
    """Return whether a file can state this collective by its name, chunks, root and translations, without columns."""
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
    """Return the chunks as a quotient counts them: those of a block, or for an allreduce those of a rank's share."""
    return chunks // k if find_kind(name).in_shares else chunks


def rebuild_problem(file: ColumnFile) -> Problem:
    """Build the problem that a file states; a quotient problem is checked in full.

    Raises:
        InputError: A field or column is missing or cannot be part of a problem, or the problem would need far more
            memory than a file of its size may, or the stated translations are no symmetries of the network; the line
            names the file and the field.
    """
    top = Fields(file.header, "", f"{file.origin}: header.json")
    inner = file.header.get("collective")
    if not isinstance(inner, dict):
        top.fail("collective", "missing; it must be an object")
    table = Fields(inner, "", f"{file.origin}: header.json: collective")
    table.only(_COLLECTIVE)
    group, relays = _read_ranks(top, "group"), _read_ranks(top, "relays")
    translations = _read_translations(top)
    if "columns" not in table.values:
        table.fail("columns", "missing; it must be true or false")
    if table.boolean("columns") and translations is not None:
        table.fail("columns", "it must be false where fold is not null")
    topology = _rebuild_topology(top, f"{file.origin}: header.json: topology")
    _check_weight(file, topology, (*group, *relays), table, translations)
    try:
        if translations is not None:
            problem = _rebuild_quotient(topology, table, group, relays, translations)
        else:
            problem = make_problem(topology, _rebuild_collective(file, table, len(group)), group, relays)
    except InputError as error:
        message = str(error)
        raise InputError(message if message.startswith(file.origin) else f"{file.origin}: {message}") from None
    collective = problem.collective
    for key, value in (("ranks", collective.nranks), ("nchunks", collective.nchunks), ("root", collective.root)):
        if table.integer(key, 0, MAX_CHUNKS) != value:
            table.fail(key, f"{inner[key]} does not fit this problem; it must be {value}")
    nlinks = problem.network.nlinks
    if "links" in top.values or problem.network.switch_graph is not None:
        stated = top.integer("links", 0, MAX_CHUNKS, 0)
        if stated != nlinks:
            top.fail("links", f"{stated} links were listed when it was written; this version lists {nlinks}")
    return problem


def _rebuild_topology(top: Fields, origin: str) -> Topology:
    """Build the stated topology, under the stated protocol with its costs on; without one, costs are off.

    Raises:
        InputError: The topology is not right, or its costs do not allow the protocol.
    """
    topology = from_toml(top.string("topology"), origin)
    protocol = top.string("protocol", "")
    if not protocol:
        return topology
    try:
        with_all_costs = with_costs(topology)
        return with_all_costs if protocol == ANY else with_protocol(with_all_costs, protocol)
    except InputError as error:
        top.fail("protocol", str(error))


def _check_weight(
    file: ColumnFile, topology: Topology, members: tuple[int, ...], table: Fields, translations: Translations | None
) -> None:
    """Raise InputError if the stated problem would need far more memory than a file of this size may ask for.

    An honest schedule for a problem of that size is a large file itself.

    Args:
        file: The file.
        topology: The topology that it states.
        members: Ranks of its group and its relays.
        table: The header's part about the collective.
        translations: Translations of a quotient problem; None for a whole problem.
    """
    name, chunks, k = table.string("name"), table.integer("chunks", 1, MAX_CHUNKS), len(members)
    entries = 0
    if not table.boolean("columns"):
        entries = chunks * find_kind(name).entries(k) * (k if table.boolean("one_shot") else 1)
        if translations is not None:
            entries = max(1, k // math.prod(extent for _, extent in translations)) * k * max(1, _share(name, k, chunks))
    elif "sizes" in table.values:  # They are compared with those of the whole collective.
        entries = find_kind(find_kind(name).even).entries(k)
    allowed = _SMALL_BYTES + _BYTES_A_BYTE * file.size
    needed = entries * _ENTRY_BYTES + _estimate_network(topology, members, find_kind(name).paths, allowed)
    if needed > allowed:
        raise InputError(
            f"{file.origin}: states a problem of about {needed >> 20} MiB; it must be at most {allowed >> 20} MiB"
            f" in a file of {file.size} bytes"
        )


def _estimate_network(topology: Topology, members: tuple[int, ...], listed: Paths, allowed: int) -> int:
    """Return about the bytes of memory of the network among the members: links, paths through switches, and tables.

    Members that are no ranks of the topology have no links, and only their tables count.

    Args:
        topology: The topology.
        members: Ranks of a group and its relays.
        listed: The paths that are links if there are many.
        allowed: Bytes that may be taken to find out how many these are.
    """
    n, switches = topology.nranks, len(topology.switches)
    src, dst = topology.link_src, topology.link_dst
    is_member = flags_of(topology.nvertices, [rank for rank in members if rank < n])
    direct = int(np.count_nonzero(is_member[src] & is_member[dst]))
    paths = direct
    between = (src >= n) & (dst >= n)
    if switches:
        part = components(switches, src[between] - n, dst[between] - n)
        count = int(part.max()) + 1
        into, out = is_member[src] & (dst >= n), (src >= n) & is_member[dst]
        ports = np.bincount(part[dst[into] - n], minlength=count)
        reached = np.unique(part[src[out] - n] * n + dst[out])
        paths += int(ports @ np.bincount(reached // n, minlength=count))
    limits = 0
    if topology.limits:
        limits = int(np.bincount(np.concatenate([limit.links for limit in topology.limits])).max(initial=0))
    rows = len(members) * (switches + int(np.count_nonzero(between)))
    if paths > MOST_PATHS and rows * _ROW_BYTES + 4 * len(members) ** 2 + len(members) * len(src) <= allowed:
        with suppress(InputError):  # The members are no group, or are joined in too many pairs.
            partial = count_partial_paths(topology, members, listed)
            paths = paths if partial is None else direct + partial
    return paths * (_PATH_BYTES + _CROSSED_BYTES * limits) + rows * _ROW_BYTES


def _rebuild_quotient(
    topology: Topology, table: Fields, group: tuple[int, ...], relays: tuple[int, ...], translations: Translations
) -> Problem:
    """Build the stated quotient problem, checked in full.

    Raises:
        InputError: The collective has no quotient with these ranks, chunks and relays, or the translations are no
            symmetries.
    """
    name, chunks, k = table.string("name"), table.integer("chunks", 1, MAX_ENTRIES), len(group)
    if not find_kind(name).translatable or relays:
        quotient_names = [kind.name for kind in COLLECTIVE_KINDS.values() if kind.translatable]
        table.fail(
            "name", f"{shown(name)} has no quotient; it must be one of {', '.join(quotient_names)}, without relays"
        )
    check_ranks(group, "group", topology.nranks)
    share = _share(name, k, chunks)
    entries = k // math.prod(extent for _, extent in translations) * k * share
    if k < 2 or not 0 < entries <= MAX_ENTRIES or (find_kind(name).in_shares and share * k != chunks):
        table.fail("chunks", f"{chunks} chunks over {k} ranks have no quotient")
    try:
        return quotient_by(topology, name, share, group, translations)
    except InputError:
        raise
    except (ValueError, LookupError, ArithmeticError) as error:
        raise InputError(f"header.json: fold: {' '.join(str(error).split())[:200]}") from None


def _read_ranks(top: Fields, key: str) -> tuple[int, ...]:
    """Read an array of ranks; raise InputError for another value. Whether the ranks exist is not checked here."""
    value = top.values.get(key)
    if not isinstance(value, list) or len(value) > MAX_RANKS or any(type(rank) is not int for rank in value):
        top.fail(key, f"it must be an array of at most {MAX_RANKS} ranks")
    if any(not 0 <= rank < MAX_RANKS for rank in value):
        top.fail(key, f"holds a number that is no rank; it must be 0 to {MAX_RANKS - 1}")
    return tuple(value)


def _read_translations(top: Fields) -> Translations | None:
    """Read the translations of a quotient problem; None for a whole problem.

    The group, whose size they must fit, must have been checked before.

    Raises:
        InputError: The field is missing, or its value is neither null nor digits of the group's ranks.
    """
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


def _rebuild_collective(file: ColumnFile, table: Fields, nranks: int) -> Collective:
    """Build the stated collective over `nranks` ranks, from its name or from its columns.

    Raises:
        InputError: A field or column is missing or wrong, or the collective does not fit in memory.
    """
    name, chunks = table.string("name"), table.integer("chunks", 1, MAX_CHUNKS)
    root = table.integer("root", 0, MAX_RANKS)
    nchunks = table.integer("nchunks", 1, MAX_CHUNKS)
    if table.integer("ranks", 2, MAX_RANKS) != nranks:
        table.fail("ranks", f"{table.values['ranks']} ranks; it must be {nranks} as in the group")
    if not table.boolean("columns"):
        if not find_kind(name).by_name:
            defined_names = [kind.name for kind in COLLECTIVE_KINDS.values() if kind.by_name]
            table.fail(
                "name", f"{shown(name)} needs columns that state it; else it must be one of {', '.join(defined_names)}"
            )
        plain = named(name, nranks, chunks, root)
        if not table.boolean("one_shot"):
            return plain
        if not plain.kind.in_shares:
            table.fail("one_shot", f"it must be false for {name}; only an allreduce can be one-shot")
        return one_shot(plain)
    if not name.isprintable() or not 1 <= len(name) <= 40:
        table.fail("name", f"{shown(name)} is no name; it must be 1 to 40 printable characters")
    if root >= nranks:
        table.fail("root", f"position {root} is not in the group; it must be 0 to {nranks - 1}")
    pre, in_index = _read_cells(file, "pre", "in_index", nranks, nchunks)
    post, out_index = _read_cells(file, "post", "out_index", nranks, nchunks)
    fraction: Floats = file.column("collective/fraction", "float", (nchunks,))
    file.within("collective/fraction", fraction, 1e-18, 1e18)
    is_held = flags_of(nchunks, pre[:, 1])
    if not is_held.all():
        raise InputError(f"{file.origin}: collective/pre.npy: no rank holds chunk {int(np.argmin(is_held))} before")
    reduces = file.column("collective/reduces", "bool", (nchunks,))
    stated = Collective(name, nranks, chunks, nchunks, reduces, fraction, pre, post, in_index, out_index, root)
    return stated if "sizes" not in table.values else _with_sizes(stated, table)


def _with_sizes(stated: Collective, table: Fields) -> Collective:
    """Return a collective with the sizes of blocks that a file states besides its chunks.

    Raises:
        InputError: They are not the sizes of the chunks, or the collective has blocks of one size.
    """
    sizes, k = table.values["sizes"], stated.nranks
    if isinstance(sizes, list) and all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        with suppress(InputError):
            plain = named(stated.name, k, 1, stated.root, in_shape(sizes, k))
            if plain.name == stated.name and list(plain.sizes) == sizes and _moves_as(stated, plain):
                return replace(stated, sizes=plain.sizes)
    return table.fail("sizes", f"{shown(sizes)}; it must be the proportions of the blocks, as the chunks have them")


def means_its_name(stated: Collective) -> bool:
    """Return whether a collective moves the data that its name promises between the same ranks.

    Its chunks may have any number, order and size: of each set of holders and goals only the sum of the sizes counts,
    to 10⁻⁶. The name of a pattern promises nothing and is always right; a name whose blocks have sizes of their own
    never is without these.
    """
    if not find_kind(stated.name).by_name and not stated.sizes:
        return not find_kind(stated.name).even
    sizes = in_shape(stated.sizes, stated.nranks)
    return _moves_as(stated, named(stated.name, stated.nranks, 1, stated.root, sizes))


def _moves_as(stated: Collective, plain: Collective) -> bool:
    """Return whether two collectives move as much, to 10⁻⁶, from each set of holders to each set of goals."""
    amounts, named_amounts = _amounts(stated), _amounts(plain)
    return amounts.keys() == named_amounts.keys() and all(
        math.isclose(amounts[key], named_amounts[key], rel_tol=1e-6) for key in named_amounts
    )


def _amounts(collective: Collective) -> dict[tuple[bool, bytes, bytes], float]:
    """Return the share of the message for each (reduced, ranks before, ranks after).

    The ranks are ascending positions, as the bytes of an int64 array.
    """
    amounts: dict[tuple[bool, bytes, bytes], float] = {}
    for chunks, holders, goals in chunks_by_ends(collective, np.arange(collective.nchunks)):
        key = bool(collective.reduces[chunks[0]]), holders.tobytes(), goals.tobytes()
        amounts[key] = float(collective.fraction[chunks].sum())
    return amounts


def _read_cells(file: ColumnFile, cells: str, places: str, nranks: int, nchunks: int) -> tuple[Ints, Ints]:
    """Read rows (rank, chunk), sorted and each once, and the place of each in its rank's buffer, both as int64.

    Args:
        file: The file.
        cells: Name of the column of rows, without collective/: pre or post.
        places: Name of the column of places: in_index or out_index.
        nranks: Number of ranks.
        nchunks: Number of chunks.

    Returns:
        The rows, shape (n, 2), and the places in chunks, shape (n,).

    Raises:
        InputError: A column is missing or damaged, a number is out of range, or the rows are not so.
    """
    member = f"collective/{cells}"
    rows = file.rows(member)
    table: Ints = file.column(member, "int", (rows, 2)).astype(np.int64)
    file.within(member, table[:, 0], 0, nranks - 1)
    file.within(member, table[:, 1], 0, nchunks - 1)
    unsorted = np.diff(table[:, 0] * nchunks + table[:, 1]) <= 0
    if unsorted.any():
        row = int(np.argmax(unsorted)) + 1
        raise InputError(
            f"{file.origin}: {member}.npy: row {row} does not come after the row before it; rows must be sorted"
        )
    place: Ints = file.column(f"collective/{places}", "int", (rows,)).astype(np.int64)
    file.within(f"collective/{places}", place, 0, MAX_CHUNKS)
    return table, place
