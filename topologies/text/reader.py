"""Reads the text form of a topology; every wrong value is one line that names its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.text.fields import Fields, shown
from topologies.text.toml import parsed_toml
from topologies.text.vertex_sets import VertexError, expand_names, parse_set
from topologies.topology import (
    MAX_ALPHA_US,
    MAX_GBS,
    MAX_LINKS,
    MAX_RANKS,
    MIN_GBS,
    Limit,
    Topology,
)

__all__ = ["Machine", "Nics", "read_text"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_KNOWN = 100_000  # of a list of pairs: sets remembered, pairs gathered
_TOP = (
    "name", "ranks", "switches", "summary", "source", "alpha_assumed", "nodes", "links", "limits", "nic",
)  # fmt: skip
_LINKS = ("from", "to", "pairs", "matrix", "both", "gbs", "alpha_us", "assumed", "note")
_LIMITS = ("name", "pairs", "gbs", "note")
_NIC = ("count", "serves", "sends", "receives", "gbs", "alpha_us", "assumed", "fabric", "note")


@dataclass(frozen=True, eq=False)
class Nics:
    """How one node's NICs join it to others of its kind.

    sends, receives: for each NIC the ranks of the node that send and receive through it (int64).
    gbs: GB/s of each NIC, each way.  alpha_us: µs from rank to rank of another node, both NICs and fabric.
    assumed: nobody published this α.
    fabrics: NIC b sits on fabric b mod fabrics; 0 for no switch at all: each NIC sends to each
        of the other nodes.
    """

    sends: tuple[Ints, ...]
    receives: tuple[Ints, ...]
    gbs: float
    alpha_us: float
    assumed: bool
    fabrics: int


@dataclass(frozen=True, eq=False)
class Machine:
    """What a machine file says: one node, and its NICs where it has any."""

    topology: Topology
    nics: Nics | None


def read_text(text: str, origin: str) -> Machine:
    """The machine that `text` (TOML) describes. Raises InputError (one line) for anything that is not one."""
    document = parsed_toml(text, origin, "write a topology's tables and arrays, two levels at most")
    top = Fields(document, text, origin)
    top.only(_TOP)
    name = top.string("name")
    if not name or not name.isprintable() or len(name) > 200:
        top.fail("name", f"{shown(name)} is no name; write 1 to 200 printable characters")
    nranks = top.integer("ranks", 1, MAX_RANKS)
    switches, vertex = _switches(top, nranks)
    src, dst, alpha, gbs, assumed = _links(top, nranks, vertex)
    limits = _limits(top, nranks, vertex, src, dst)
    nic = top.sub("nic")
    return Machine(
        Topology(
            name=name,
            nranks=nranks,
            switches=switches,
            link_src=src,
            link_dst=dst,
            alpha_us=alpha,
            bandwidth_gbs=gbs,
            limits=limits,
            alpha_assumed=top.boolean("alpha_assumed", False) or assumed,
            nodes=_nodes(top, nranks),
            summary=top.string("summary", ""),
            source=top.string("source", ""),
        ),
        _nics(nic, nranks) if nic is not None else None,
    )


def _switches(top: Fields, nranks: int) -> tuple[tuple[str, ...], dict[str, int]]:
    vertex: dict[str, int] = {}
    for item in top.strings("switches", ()):
        try:
            names = expand_names(item, MAX_RANKS - len(vertex))
        except VertexError as error:
            top.fail("switches", str(error))
        for name in names:
            if name in vertex:
                top.fail("switches", f"{name!r} is named twice; names must differ")
            vertex[name] = nranks + len(vertex)
    return tuple(vertex), vertex


def _nodes(top: Fields, nranks: int) -> Ints:
    nodes = np.full(nranks, -1, dtype=np.int64)
    if "nodes" not in top.values:
        return np.zeros(nranks, dtype=np.int64)
    sets = top.strings("nodes")
    if len(sets) > nranks:
        top.fail("nodes", f"{len(sets)} nodes for {nranks} ranks; at most one a rank")
    for i, item in enumerate(sets):
        if not item:
            continue
        ranks = _set(top, "nodes", item, nranks, {})
        if (nodes[ranks] >= 0).any():
            top.fail("nodes", f"{shown(item)} holds a rank of an earlier node; each rank is in one node")
        nodes[ranks] = i
    if (nodes < 0).any():
        top.fail("nodes", f"rank {int(np.argmax(nodes < 0))} is in no node; each rank must be in one")
    return nodes


def _set(table: Fields, key: str, text: str, nranks: int, vertex: dict[str, int]) -> Ints:
    try:
        return parse_set(text, nranks, vertex)
    except VertexError as error:
        table.fail(key, str(error))


def _pairs(table: Fields, nranks: int, vertex: dict[str, int], budget: int) -> tuple[Ints, Ints]:
    """Sources and destinations of "0>1,2 3>nvswitch"; a set on both sides means every pair but v>v."""
    known: dict[str, Ints] = {}

    def vertices(text: str) -> Ints:
        if text not in known:
            if len(known) >= _KNOWN:
                known.clear()
            known[text] = _set(table, "pairs", text, nranks, vertex)
        return known[text]

    parts: list[tuple[Ints, Ints]] = []
    singles: list[tuple[int, int]] = []

    def gather() -> None:
        columns = np.array(singles, dtype=np.int64).reshape(-1, 2)
        parts.append((columns[:, 0].copy(), columns[:, 1].copy()))
        singles.clear()

    for token in re.finditer(r"\S+", table.string("pairs")):
        left, arrow, right = token[0].partition(">")
        if not arrow:
            table.fail("pairs", f'{shown(token[0])} is no pair; write source>destination, such as "0>1"')
        a, b = vertices(left), vertices(right)
        budget -= len(a) * len(b)
        if len(a) == len(b) == 1 and budget >= 0 and a[0] != b[0]:  # arrays of one would fill the memory
            singles.append((int(a[0]), int(b[0])))
            if len(singles) == _KNOWN:
                gather()
            continue
        gather()
        parts.append(_product(table, "pairs", a, b, budget))
    gather()
    src, dst = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    if not len(src):
        table.fail("pairs", 'is empty; write at least one pair, such as "0>1"')
    return src, dst


def _product(table: Fields, key: str, a: Ints, b: Ints, budget: int) -> tuple[Ints, Ints]:
    if budget < 0:
        table.fail(key, f"too many links; a topology holds at most {MAX_LINKS}")
    x, y = np.repeat(a, len(b)), np.tile(b, len(a))
    apart = x != y
    if not apart.any():
        table.fail(key, f"vertex {int(a[0])} to itself is no link; name two different vertices")
    return x[apart], y[apart]


def _matrix(table: Fields, nranks: int, gbs: float) -> tuple[Ints, Ints, Floats]:
    rows = table.values["matrix"]
    right = f"write {nranks} rows of {nranks} numbers: links from row to column"
    if not isinstance(rows, list) or len(rows) != nranks:
        table.fail("matrix", f"{shown(rows)} is no square of ranks; {right}")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != nranks:
            table.fail("matrix", f"row {i} is {shown(row)}; {right}")
        for j, value in enumerate(row):
            if type(value) not in (int, float) or not 0 <= value <= MAX_GBS / gbs:
                table.fail(
                    "matrix", f"row {i} column {j} is {shown(value)}; must be a number of links, 0 or more"
                )
            if value and i == j:
                table.fail(
                    "matrix", f"row {i} column {i} is {shown(value)}; a rank has no link to itself, write 0"
                )
            if value and value * gbs < MIN_GBS:
                table.fail("matrix", f"row {i} column {j} is {shown(value)}; too small for a link")
    many = np.array(rows, dtype=np.float64)
    src, dst = np.nonzero(many)
    return src.astype(np.int64), dst.astype(np.int64), many[src, dst] * gbs


def _links(top: Fields, nranks: int, vertex: dict[str, int]) -> tuple[Ints, Ints, Floats, Floats, bool]:
    columns: list[tuple[Ints, Ints, Floats, Floats]] = []
    tables = top.tables("links")
    total, assumed = 0, False
    for table in tables:
        table.only(_LINKS)
        gbs = table.number("gbs", MIN_GBS, MAX_GBS, "GB/s")
        alpha = table.number("alpha_us", 0.0, MAX_ALPHA_US, "µs")
        assumed |= table.boolean("assumed", False)
        table.string("note", "")
        forms = [key for key in ("from", "pairs", "matrix") if key in table.values]
        if len(forms) != 1 or ("to" in table.values) != ("from" in table.values):
            table.fail("", "give exactly one of: from and to, pairs, matrix")
        budget = MAX_LINKS - total
        if forms[0] == "matrix":
            src, dst, rates = _matrix(table, nranks, gbs)
        elif forms[0] == "pairs":
            src, dst = _pairs(table, nranks, vertex, budget)
            rates = np.full(len(src), gbs)
        else:
            a = _set(table, "from", table.string("from"), nranks, vertex)
            b = _set(table, "to", table.string("to"), nranks, vertex)
            src, dst = _product(table, "to", a, b, budget - len(a) * len(b))
            rates = np.full(len(src), gbs)
        if table.boolean("both", False):
            src, dst, rates = np.concatenate([src, dst]), np.concatenate([dst, src]), np.tile(rates, 2)
        total += len(src)
        columns.append((src, dst, np.full(len(src), alpha), rates))
        if total > MAX_LINKS:
            table.fail("", f"too many links; a topology holds at most {MAX_LINKS}")
    if not columns:
        none = np.zeros(0, dtype=np.int64)
        return none, none, np.zeros(0), np.zeros(0), assumed
    _refuse_twice(tables, columns, nranks, list(vertex))
    src, dst = (np.concatenate([c[i] for c in columns]) for i in (0, 1))
    alpha_us, gbs_all = (np.concatenate([c[i] for c in columns]) for i in (2, 3))
    return src, dst, alpha_us, gbs_all, assumed


def _refuse_twice(
    tables: list[Fields], columns: list[tuple[Ints, Ints, Floats, Floats]], nranks: int, switches: list[str]
) -> None:
    vertices = nranks + len(switches)
    key = np.concatenate([c[0] * vertices + c[1] for c in columns])
    order = np.argsort(key, kind="stable")
    same = np.flatnonzero(np.diff(key[order]) == 0)
    if not len(same):
        return
    which = np.repeat(np.arange(len(columns)), [len(c[0]) for c in columns])
    first, again = order[same[0]], order[same[0] + 1]
    a, b = (str(v) if v < nranks else switches[v - nranks] for v in divmod(int(key[first]), vertices))
    tables[which[again]].fail(
        "",
        f"link {a}>{b} was already given by [[links]] number {int(which[first]) + 1}; give one link with "
        "the sum of both (with both = true each pair is written once)",
    )


def _limits(top: Fields, nranks: int, vertex: dict[str, int], src: Ints, dst: Ints) -> tuple[Limit, ...]:
    limits: list[Limit] = []
    vertices = nranks + len(vertex)
    tables = top.tables("limits")
    key = src * vertices + dst
    order = np.argsort(key, kind="stable")
    names: set[str] = set()
    left = 2 * MAX_LINKS
    for table in tables:
        table.only(_LIMITS)
        table.string("note", "")
        name = table.string("name")
        if not name or not name.isprintable() or name in names:
            table.fail("name", f"{shown(name)} must be printable, not empty and not another limit's name")
        names.add(name)
        gbs = table.number("gbs", MIN_GBS, MAX_GBS, "GB/s")
        a, b = _pairs(table, nranks, vertex, MAX_LINKS)
        left -= len(a)
        if left < 0:
            table.fail(
                "pairs", f"the limits up to here name more than {2 * MAX_LINKS} links in all; name fewer"
            )
        wanted = a * vertices + b
        at = np.searchsorted(key, wanted, sorter=order)
        found = np.zeros(len(wanted), dtype=bool)
        inside = at < len(key)
        found[inside] = key[order[at[inside]]] == wanted[inside]
        if not found.all():
            i = int(np.argmin(found))
            words = list(vertex)
            x, y = (str(int(v)) if v < nranks else words[int(v) - nranks] for v in (a[i], b[i]))
            table.fail("pairs", f"{x}>{y} is no link of this topology; name links that [[links]] gives")
        limits.append(Limit(name, order[at], gbs))
    return tuple(limits)


def _nics(table: Fields, nranks: int) -> Nics:
    table.only(_NIC)
    table.string("note", "")

    def sets(key: str) -> tuple[Ints, ...]:
        found: list[Ints] = []
        room = nranks
        for item in table.strings(key):
            found.append(_set(table, key, item, nranks, {}))
            room -= len(found[-1])
            if room < 0:
                table.fail(key, "a rank is on two NICs; put it on one")
        return tuple(found)

    if "serves" in table.values:
        if "sends" in table.values or "receives" in table.values:
            table.fail("serves", "stands for both sends and receives; leave those two out, or this one")
        sends = receives = sets("serves")
    elif "sends" in table.values or "receives" in table.values:
        sends, receives = sets("sends"), sets("receives")
    else:
        count = table.integer("count", 1, nranks)
        if nranks % count:
            table.fail(
                "count", f"{count} NICs do not divide {nranks} ranks evenly; say which ranks each serves"
            )
        sends = receives = tuple(np.split(np.arange(nranks, dtype=np.int64), count))
    if len(sends) != len(receives) or not sends:
        table.fail("receives", "must hold one set of ranks a NIC, as many as sends, and at least one")
    if "count" in table.values and table.integer("count", 1, MAX_RANKS) != len(sends):
        table.fail("count", f"does not agree with the {len(sends)} sets of ranks; leave one of them out")
    for key, members in (("sends", sends), ("receives", receives)):
        everyone = np.concatenate(members)
        if len(np.unique(everyone)) < len(everyone):
            table.fail("serves" if "serves" in table.values else key, "a rank is on two NICs; put it on one")
    fabric: Any = table.values.get("fabric", "one")
    kinds = {"direct": 0, "one": 1, "rail": len(sends)}
    if type(fabric) is int and 1 <= fabric <= len(sends):
        fabrics = fabric
    elif type(fabric) is str and fabric in kinds:
        fabrics = kinds[fabric]
    else:
        table.fail(
            "fabric", f'{shown(fabric)} must be "rail", "one", "direct" or a number from 1 to {len(sends)}'
        )
    return Nics(
        sends=sends,
        receives=receives,
        gbs=table.number("gbs", MIN_GBS, MAX_GBS, "GB/s"),
        alpha_us=table.number("alpha_us", 0.0, MAX_ALPHA_US, "µs"),
        assumed=table.boolean("assumed", False),
        fabrics=fabrics,
    )
