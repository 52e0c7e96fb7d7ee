"""Reader of the text form of a topology; every wrong value raises an error of one line that names its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from topologies.arrays import Floats, Ints, row_of_entry
from topologies.clusters import Machine, Nics
from topologies.costs import LINK_KINDS, kind_numbers
from topologies.errors import InputError, did_you_mean, right_name
from topologies.machines import machine_file, machines
from topologies.text.costs import read_costs
from topologies.text.fields import Fields, parse_toml, shown
from topologies.text.vertex_sets import expand_names, parse_set
from topologies.topology import (
    MAX_ALPHA_US,
    MAX_CAPABILITY,
    MAX_GBS,
    MAX_LINKS,
    MAX_RANKS,
    MAX_SMS,
    MIN_CAPABILITY,
    MIN_GBS,
    NAMED,
    Limit,
    SwitchOps,
    Topology,
)

_MOST_GATHERED = 100_000  # Most sets remembered, and most single pairs gathered, of a list of pairs.
_MOST_REMARKS = 100  # Most lines.
_RIGHT = "a topology's tables and arrays, two levels at most"
_TOP = (
    "base", "name", "ranks", "switches", "summary", "source", "alpha_assumed", "sms", "compute_capability", "gcn",
    "platform", "nodes", "links", "limits", "switch_ops", "nic", "costs",
)  # fmt: skip
_LINKS = ("from", "to", "pairs", "matrix", "both", "gbs", "alpha_us", "kind", "assumed", "note")
_LIMITS = ("name", "pairs", "gbs", "note")
_SWITCH_OPS = ("switches", "multicast", "reduce", "note")
_NIC = ("count", "serves", "sends", "receives", "gbs", "alpha_us", "kind", "assumed", "fabric", "note")


def from_toml(text: str, origin: str) -> Topology:
    """Return the topology of a text form; NICs that the text states are checked, but not returned.

    Args:
        text: The text form (TOML).
        origin: Name of the text in errors, such as a file's path.

    Raises:
        InputError: The text describes no topology.
    """
    return read_machine(text, origin).topology


def read_machine(text: str, origin: str) -> Machine:
    """Return the machine that a text form (TOML) describes, its `base` included; `origin` names the text in errors.

    Its remarks are the comments at the head of the text.

    Raises:
        InputError: The text describes no machine; the message is one line.
    """
    top = _completed(parse_toml(text, origin, _RIGHT))
    if "topology" in top.values:
        top.fail(
            "topology", f"is a key of a cluster's file, for synth library build; name the network itself{_named(top)}"
        )
    top.only(_TOP)
    name = top.string("name")
    if not name or not name.isprintable() or len(name) > 200:
        top.fail("name", f"{shown(name)} is no name; it must be 1 to 200 printable characters")
    vertices = _Vertices(top.integer("ranks", 1, MAX_RANKS))
    _read_switches(top, vertices)
    src, dst, alpha, gbs, kind, assumed = _links(top, vertices)
    nic = top.sub("nic")
    return Machine(
        Topology(
            name=name,
            nranks=vertices.nranks,
            switches=tuple(vertices.switches),
            link_src=src,
            link_dst=dst,
            alpha_us=alpha,
            bandwidth_gbs=gbs,
            limits=_limits(top, vertices, src, dst),
            alpha_assumed=top.boolean("alpha_assumed") or assumed,
            nodes=_nodes(top, vertices.nranks),
            sms=top.integer("sms", 1, MAX_SMS, 0),
            compute_capability=top.integer("compute_capability", MIN_CAPABILITY, MAX_CAPABILITY, 0),
            **{key: top.matching(key, pattern, right) for key, pattern, right in NAMED},
            summary=top.string("summary", ""),
            source=top.string("source", ""),
            link_kind=kind,
            costs=read_costs(top),
            switch_ops=tuple(_switch_ops(top, vertices)),
        ),
        _nics(nic, vertices.nranks) if nic is not None else None,
        _remarks(text),
    )


def _completed(top: Fields) -> Fields:
    """Return a topology's table, completed by what the machine that it names as its base states and the table does not.

    A table such as [nic] is completed key by key; any other value replaces the base's. Without a base it is the table
    itself.

    Raises:
        InputError: The base is no machine of the package.
    """
    if "base" not in top.values:
        return top
    name = top.string("base")
    if name not in machines():
        right = right_name(name, machines(), "synth topo list")
        top.fail("base", f"{shown(name)} is no machine of the package; {right}")
    base = _completed(parse_toml(machine_file(name).read_text(encoding="utf-8"), name, _RIGHT))
    return Fields(_merge(base.values, top.values), top.text, top.origin)


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table whose values come from `own` where it has them, else from `base`; tables in it are merged too."""
    merged = {**base, **own}
    for key in base.keys() & own.keys():
        if isinstance(base[key], dict) and isinstance(own[key], dict):
            merged[key] = _merge(base[key], own[key])
    return merged


def _remarks(text: str) -> tuple[str, ...]:
    """Return the comments at the head of a text, which say where an imported machine's figures come from.

    There is one for each of the first lines that begin with "#", at most 100, without the "#" and surrounding spaces.
    """
    lines = takewhile(lambda line: line.startswith("#"), text.split("\n", _MOST_REMARKS)[:_MOST_REMARKS])
    return tuple(line[1:].strip() for line in lines)


@dataclass(frozen=True)
class _Vertices:
    """The ranks 0..nranks-1 and the switches after them.

    Attributes:
        nranks: Number of ranks.
        switches: Vertex of each switch by name.
    """

    nranks: int
    switches: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.nranks + len(self.switches)

    def key(self, src: Ints, dst: Ints) -> Ints:
        """Return a number that identifies each pair of vertices: int64 (pairs,)."""
        return src * len(self) + dst

    def pair(self, key: int) -> str:
        """Return the pair of a key in the form "0>nvswitch"."""
        names = list(self.switches)
        return ">".join(str(v) if v < self.nranks else names[v - self.nranks] for v in divmod(key, len(self)))

    def set(self, table: Fields, key: str, text: str) -> Ints:
        """Return the vertices of a text such as "0-7,nvswitch", in its order: int64.

        Args:
            table: The table that holds the text.
            key: The table's field that holds the text, for errors.
            text: The text.

        Raises:
            InputError: The text names no such vertices, or one twice.
        """
        return _set(table, key, text, self.nranks, self.switches)


def _set(table: Fields, key: str, text: str, nranks: int, switches: Mapping[str, int]) -> Ints:
    """Return the vertices of a text such as "0-7,nvswitch", in its order: int64.

    Args:
        table: The table that holds the text.
        key: The table's field that holds the text, for errors.
        text: The text.
        nranks: Number of ranks.
        switches: Vertex of each switch by name; empty where only ranks are allowed.

    Raises:
        InputError: The text names no such vertices, or one twice.
    """
    try:
        return parse_set(text, nranks, switches)
    except InputError as error:
        table.fail(key, str(error))


def _switch_names(table: Fields, text: str, most: int) -> list[str]:
    """Return the at most `most` names of a text such as "leaf[0-3]".

    Raises:
        InputError: The text is no such name or series; the message names the table's field `switches`.
    """
    try:
        return expand_names(text, most)
    except InputError as error:
        table.fail("switches", str(error))


def _read_switches(top: Fields, vertices: _Vertices) -> None:
    """Add the document's switches to the vertices, or raise InputError for a wrong or repeated name."""
    for item in top.strings("switches", ()):
        for name in _switch_names(top, item, MAX_RANKS - len(vertices.switches)):
            if name in vertices.switches:
                top.fail("switches", f"{name!r} is named twice; names must differ")
            vertices.switches[name] = len(vertices)


def _nodes(top: Fields, nranks: int) -> Ints:
    """Return the chassis of each rank, numbered in the order of `nodes`: int64 (nranks,); all 0 without `nodes`.

    Raises:
        InputError: A rank is in no node or in two, or a set names no ranks.
    """
    if "nodes" not in top.values:
        return np.zeros(nranks, dtype=np.int64)
    nodes = np.full(nranks, -1, dtype=np.int64)
    sets = top.strings("nodes")
    if len(sets) > nranks:
        top.fail("nodes", f"{len(sets)} nodes for {nranks} ranks; it must be at most one a rank")
    for i, item in enumerate(sets):
        ranks = _set(top, "nodes", item, nranks, {}) if item else np.zeros(0, dtype=np.int64)
        if (nodes[ranks] >= 0).any():
            top.fail("nodes", f"{shown(item)} holds a rank of an earlier node; each rank must be in one node")
        nodes[ranks] = i
    if (nodes < 0).any():
        top.fail("nodes", f"rank {int(np.argmax(nodes < 0))} is in no node; each rank must be in one")
    return nodes


def _pairs(table: Fields, vertices: _Vertices, budget: int) -> tuple[Ints, Ints]:
    """Return the sources and destinations of "0>1,2 3>nvswitch", at most `budget` pairs.

    Sets on both sides of the sign mean every pair of different vertices.

    Raises:
        InputError: There is no pair or too many, a text is none, or a pair joins a vertex to itself.
    """
    vertices_of_text: dict[str, Ints] = {}

    def members(text: str) -> Ints:
        """Return the vertices of a set's text, remembering them for the next pair."""
        if text not in vertices_of_text:
            if len(vertices_of_text) >= _MOST_GATHERED:
                vertices_of_text.clear()
            vertices_of_text[text] = vertices.set(table, "pairs", text)
        return vertices_of_text[text]

    parts: list[tuple[Ints, Ints]] = []
    singles: list[tuple[int, int]] = []

    def gather() -> None:
        """Move the single pairs so far to the parts, as columns, and clear their list."""
        columns = np.array(singles, dtype=np.int64).reshape(-1, 2)
        parts.append((columns[:, 0].copy(), columns[:, 1].copy()))
        singles.clear()

    for token in re.finditer(r"\S+", table.string("pairs")):
        sources, arrow, destinations = token[0].partition(">")
        if not arrow:
            table.fail("pairs", f'{shown(token[0])} is no pair; it must be source>destination, such as "0>1"')
        a, b = members(sources), members(destinations)
        budget -= len(a) * len(b)
        if len(a) == len(b) == 1 and budget >= 0 and a[0] != b[0]:  # Arrays of length one would fill the memory.
            singles.append((int(a[0]), int(b[0])))
            if len(singles) == _MOST_GATHERED:
                gather()
            continue
        gather()
        parts.append(_product(table, "pairs", a, b, budget))
    gather()
    src, dst = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    if not len(src):
        table.fail("pairs", 'is empty; it must be at least one pair, such as "0>1"')
    return src, dst


def _product(table: Fields, key: str, a: Ints, b: Ints, budget: int) -> tuple[Ints, Ints]:
    """Return the sources and destinations of all pairs of different vertices, one of `a` and one of `b`.

    Raises:
        InputError: There is no such pair, or `budget` (the links still allowed after these) is below 0; the error names
            the table's field `key`.
    """
    if budget < 0:
        table.fail(key, f"too many links; it must be at most {MAX_LINKS}")
    x, y = np.repeat(a, len(b)), np.tile(b, len(a))
    differs = x != y
    if not differs.any():
        table.fail(key, f"vertex {int(a[0])} to itself is no link; it must be between two different vertices")
    return x[differs], y[differs]


def _matrix(table: Fields, nranks: int, gbs: float) -> tuple[Ints, Ints, Floats]:
    """Return the sources, destinations and GB/s of the links that the table's field `matrix` states: columns (links,).

    Entry (i, j) of the square matrix is the number of links from rank i to rank j, which may be a fraction. A link of
    the result has the sum of their GB/s; a 0 is no link.

    Args:
        table: The table.
        nranks: Number of ranks, and so of rows and columns.
        gbs: GB/s of each of the counted links.

    Raises:
        InputError: The value is no square of ranks, or a number in it is wrong.
    """
    rows = table.values["matrix"]
    right = f"it must be {nranks} rows of {nranks} numbers: links from row to column"
    if not isinstance(rows, list) or len(rows) != nranks:
        table.fail("matrix", f"{shown(rows)} is no square of ranks; {right}")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != nranks:
            table.fail("matrix", f"row {i} is {shown(row)}; {right}")
        for j, value in enumerate(row):
            wrong = ""
            if type(value) not in (int, float) or not 0 <= value <= MAX_GBS / gbs:
                wrong = "it must be a number of links, 0 or more"
            elif value and i == j:
                wrong = "it must be 0, a rank has no link to itself"
            elif value and value * gbs < MIN_GBS:
                wrong = f"it must come to at least {MIN_GBS:g} GB/s"
            if wrong:
                table.fail("matrix", f"row {i} column {j} is {shown(value)}; {wrong}")
    counts = np.array(rows, dtype=np.float64)
    src, dst = np.nonzero(counts)
    return src.astype(np.int64), dst.astype(np.int64), counts[src, dst] * gbs


def _named(cluster: Fields) -> str:
    """Return ": NETWORK" with the network that a cluster's file names; "" if that is no short text."""
    name = cluster.values["topology"]
    return f": {name}" if isinstance(name, str) and name.isprintable() and len(name) <= 40 else ""


def _links(top: Fields, vertices: _Vertices) -> tuple[Ints, Ints, Floats, Floats, Ints, bool]:
    """Return (source, destination, α in µs, GB/s, kind, whether some α is assumed) of all [[links]].

    The first five are columns with an entry for each link, in the order of the document.

    Raises:
        InputError: A table is wrong, there are too many links, or a pair of vertices has two.
    """
    columns: list[tuple[Ints, Ints, Floats, Floats, Ints]] = []
    tables = top.tables("links")
    total, assumed = 0, False
    for table in tables:
        table.only(_LINKS)
        gbs = table.number("gbs", MIN_GBS, MAX_GBS, "GB/s")
        alpha = table.number("alpha_us", 0.0, MAX_ALPHA_US, "µs")
        kind = _kind(table, "other")
        assumed |= table.boolean("assumed")
        table.string("note", "")
        forms = [key for key in ("from", "pairs", "matrix") if key in table.values]
        if len(forms) != 1 or ("to" in table.values) != ("from" in table.values):
            table.fail("", "it must have exactly one of: from and to, pairs, matrix")
        budget = MAX_LINKS - total
        if forms[0] == "matrix":
            src, dst, rates = _matrix(table, vertices.nranks, gbs)
        else:
            if forms[0] == "pairs":
                src, dst = _pairs(table, vertices, budget)
            else:
                a, b = (vertices.set(table, key, table.string(key)) for key in ("from", "to"))
                src, dst = _product(table, "to", a, b, budget - len(a) * len(b))
            rates = np.full(len(src), gbs)
        if table.boolean("both"):
            src, dst, rates = np.concatenate([src, dst]), np.concatenate([dst, src]), np.tile(rates, 2)
        total += len(src)
        columns.append((src, dst, np.full(len(src), alpha), rates, kind_numbers(kind, len(src))))
        if total > MAX_LINKS:
            table.fail("", f"too many links; it must be at most {MAX_LINKS}")
    if not columns:
        no_links = np.zeros(0, dtype=np.int64)
        return no_links, no_links, np.zeros(0), np.zeros(0), no_links, assumed
    all_src, all_dst, all_alpha, all_gbs, all_kind = map(np.concatenate, zip(*columns, strict=True))
    _refuse_repeats(tables, [len(c[0]) for c in columns], vertices.key(all_src, all_dst), vertices)
    return all_src, all_dst, all_alpha, all_gbs, all_kind, assumed


def _kind(table: Fields, default: str) -> str:
    """Return the kind of links that a table states, or the default; raise InputError for an unknown kind."""
    name = table.string("kind", default)
    if name not in LINK_KINDS:
        table.fail("kind", f"{shown(name)} is no kind of link; it must be one of {', '.join(LINK_KINDS)}")
    return name


def _refuse_repeats(tables: Sequence[Fields], lengths: Sequence[int], key: Ints, vertices: _Vertices) -> None:
    """Raise InputError if a pair of vertices has two links.

    Args:
        tables: The tables [[links]].
        lengths: Number of links of each table.
        key: Key of each link's vertices (`_Vertices.key`), table after table.
        vertices: The vertices.
    """
    order = np.argsort(key, kind="stable")
    same = np.flatnonzero(np.diff(key[order]) == 0)
    if not len(same):
        return
    table_of_link = row_of_entry(np.cumsum([0, *lengths]))
    first, second = order[same[0]], order[same[0] + 1]
    tables[table_of_link[second]].fail(
        "",
        f"link {vertices.pair(int(key[first]))} was already given by [[links]] number {int(table_of_link[first]) + 1}; "
        "it must be one link with the sum of both",
    )


def _limits(top: Fields, vertices: _Vertices, src: Ints, dst: Ints) -> tuple[Limit, ...]:
    """Return the limits of all [[limits]]; `src` and `dst` are the links' vertices.

    Raises:
        InputError: A table is wrong, a name is repeated, or a pair is no link.
    """
    limits: list[Limit] = []
    key = vertices.key(src, dst)
    order = np.argsort(key, kind="stable")
    names: set[str] = set()
    remaining = 2 * MAX_LINKS
    for table in top.tables("limits"):
        table.only(_LIMITS)
        table.string("note", "")
        name = table.string("name")
        if not name or not name.isprintable() or name in names:
            table.fail("name", f"{shown(name)} must be printable, not empty and not another limit's name")
        names.add(name)
        gbs = table.number("gbs", MIN_GBS, MAX_GBS, "GB/s")
        limited = vertices.key(*_pairs(table, vertices, MAX_LINKS))
        remaining -= len(limited)
        if remaining < 0:
            table.fail("pairs", f"the limits up to here name more than {2 * MAX_LINKS} links in all; it must be fewer")
        at = np.searchsorted(key, limited, sorter=order)
        is_link = np.zeros(len(limited), dtype=bool)
        inside = at < len(key)
        is_link[inside] = key[order[at[inside]]] == limited[inside]
        if not is_link.all():
            missing_pair = vertices.pair(int(limited[np.argmin(is_link)]))
            table.fail("pairs", f"{missing_pair} is no link of this topology; it must be one that [[links]] gives")
        limits.append(Limit(name, order[at], gbs))
    return tuple(limits)


def _switch_ops(top: Fields, vertices: _Vertices) -> Iterator[SwitchOps]:
    """Yield the operations of the switches in all [[switch_ops]], or raise InputError for a wrong table."""
    named: set[str] = set()
    for table in top.tables("switch_ops"):
        table.only(_SWITCH_OPS)
        table.string("note", "")
        words = ("multicast", "reduce")
        if not any(word in table.values for word in words):
            table.fail("", "must have multicast or reduce, or both: at which part of a port's rate, 0 to 1")
        parts = [table.number(word, 0.0, 1.0, "of a port's rate", 0.0) for word in words]
        if "switches" not in table.values or not table.strings("switches"):
            table.fail("switches", "missing or empty; it must be an array of switches' names")
        for item in table.strings("switches"):
            for name in _switch_names(table, item, MAX_RANKS):
                if name not in vertices.switches:
                    hint = did_you_mean(name, list(vertices.switches)) or "it must be one that `switches` names"
                    table.fail("switches", f"{shown(name)} is no switch of this topology; {hint}")
                if name in named:
                    table.fail("switches", f"{shown(name)} is named twice; it must be once")
                named.add(name)
                yield SwitchOps(name, *parts)


def _nics(table: Fields, nranks: int) -> Nics:
    """Return the NICs of the table [nic], or raise InputError for a wrong value."""
    table.only(_NIC)
    table.string("note", "")
    if "serves" in table.values:
        if "sends" in table.values or "receives" in table.values:
            table.fail("serves", "stands for both sends and receives; it must be either this one or those two")
        sends = receives = _nic_sets(table, "serves", nranks)
    elif "sends" in table.values or "receives" in table.values:
        sends, receives = (_nic_sets(table, key, nranks) for key in ("sends", "receives"))
    else:
        count = table.integer("count", 1, nranks)
        if nranks % count:
            table.fail(
                "count",
                f"{count} NICs do not divide {nranks} ranks evenly; it must be left out, with the ranks of each NIC in"
                " serves",
            )
        sends = receives = tuple(np.split(np.arange(nranks, dtype=np.int64), count))
    if len(sends) != len(receives) or not sends:
        table.fail("receives", "must hold one set of ranks a NIC, as many as sends, and at least one")
    if "count" in table.values and table.integer("count", 1, MAX_RANKS) != len(sends):
        table.fail("count", f"does not agree with the {len(sends)} sets of ranks; it must be one of the two")
    fabric: Any = table.values.get("fabric", "one")
    kinds = {"direct": 0, "one": 1, "rail": len(sends)}
    if type(fabric) is int and 1 <= fabric <= len(sends):
        fabrics = fabric
    elif type(fabric) is str and fabric in kinds:
        fabrics = kinds[fabric]
    else:
        table.fail(
            "fabric",
            f'{shown(fabric)} is not known; it must be "rail", "one", "direct" or a number from 1 to {len(sends)}',
        )
    return Nics(
        sends=sends,
        receives=receives,
        gbs=table.number("gbs", MIN_GBS, MAX_GBS, "GB/s"),
        alpha_us=table.number("alpha_us", 0.0, MAX_ALPHA_US, "µs"),
        assumed=table.boolean("assumed"),
        fabrics=fabrics,
        kind=_kind(table, "network"),
    )


def _nic_sets(table: Fields, key: str, nranks: int) -> tuple[Ints, ...]:
    """Return the ranks of each NIC that the table's field `key` states, in the order of the NICs: int64 arrays.

    Raises:
        InputError: The field is missing or names no ranks, or a rank is on two NICs.
    """
    sets: list[Ints] = []
    is_served = np.zeros(nranks, dtype=bool)
    for item in table.strings(key):
        sets.append(_set(table, key, item, nranks, {}))
        if is_served[sets[-1]].any():
            table.fail(key, "a rank is on two NICs; it must be on one")
        is_served[sets[-1]] = True
    return tuple(sets)
