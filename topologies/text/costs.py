"""Reads and writes the [costs] of a text form, a table a protocol: [costs.LL], [costs.LL128], [costs.Simple]."""

from __future__ import annotations

import json
import math
from pathlib import Path

from topologies.costs import KINDS, MAX_COST_US, MIN_EFFICIENCY, PROTOCOLS, Costs, Protocol, SwitchCosts
from topologies.text.fields import Fields, parse_toml
from topologies.text.files import origin_of, read_text
from topologies.topology import MAX_GBS, MIN_GBS

_MAX_FILE_BYTES = 16 << 20  # as of a topology's: a machine's file is one
_BY_KIND = (
    ("latency_us", 0.0, MAX_COST_US, "µs"),
    ("efficiency", MIN_EFFICIENCY, 1.0, ""),
    ("gap_us", 0.0, MAX_COST_US, "µs"),
)
_OF_SWITCHES = _BY_KIND[:2]  # of their operations, in the order of `SwitchCosts`


def read_costs_file(path: str | Path) -> Costs:
    """The [costs] of a file, which may be a machine's. Raises InputError (one line) where it states none."""
    origin = origin_of(path)
    top = parse_toml(read_text(path, "a .toml file with [costs]", _MAX_FILE_BYTES), origin, "a table [costs]")
    found = read_costs(top)
    if found is None:
        top.fail("costs", "missing; it must be a table [costs], with one such as [costs.Simple] for each protocol")
    return found


def read_costs(top: Fields) -> Costs | None:
    """What [costs] states; None where there is none. Raises InputError with the place of what is wrong."""
    table = top.sub("costs")
    if table is None:
        return None
    table.only(("source", *PROTOCOLS))
    protocols = {name: _protocol(part) for name in PROTOCOLS if (part := table.sub(name)) is not None}
    if not protocols:
        table.fail("", f"states no protocol; it must be at least one table such as [costs.{PROTOCOLS[-1]}]")
    return Costs(protocols, table.string("source", ""))


def _protocol(table: Fields) -> Protocol:
    table.only(("start_us", "threadblock_gbs", *(key for key, *_ in _BY_KIND), "links", "switch_ops", "note"))
    by_kind: dict[str, dict[str, float]] = {}
    for key, low, high, unit in _BY_KIND:
        part = table.sub(key)
        by_kind[key] = {}
        if part is not None:
            part.only(KINDS)
            by_kind[key] = {kind: part.number(kind, low, high, unit) for kind in KINDS if kind in part.values}
    links = table.strings("links", KINDS)
    for kind in links:
        if kind not in KINDS:
            table.fail("links", f"holds {kind[:40]!r}, which is no kind of link; it must be of {', '.join(KINDS)}")
    return Protocol(
        start_us=table.number("start_us", 0.0, MAX_COST_US, "µs") if "start_us" in table.values else 0.0,
        threadblock_gbs=table.number("threadblock_gbs", MIN_GBS, MAX_GBS, "GB/s")
        if "threadblock_gbs" in table.values
        else math.inf,
        links=tuple(kind for kind in KINDS if kind in links),
        switch_ops=_switch_ops(table.sub("switch_ops")),
        note=table.string("note", ""),
        **by_kind,
    )


def _switch_ops(table: Fields | None) -> SwitchCosts | None:
    if table is None:
        return None
    table.only([key for key, *_ in _OF_SWITCHES])
    return SwitchCosts(*(table.number(*figure) for figure in _OF_SWITCHES))


def costs_lines(costs: Costs) -> list[str]:
    """The lines of [costs], which begin with an empty one; `read_costs` gives equal costs back."""
    lines = ["", "[costs]"]
    if costs.source:
        lines.append(f"source = {quoted(costs.source)}")
    for name, one in costs.protocols.items():
        lines += ["", f"[costs.{name}]"]
        if one.note:
            lines.append(f"note = {quoted(one.note)}")
        if one.start_us:
            lines.append(f"start_us = {format_number(one.start_us)}")
        if one.threadblock_gbs < math.inf:
            lines.append(f"threadblock_gbs = {format_number(one.threadblock_gbs)}")
        for key, *_ in _BY_KIND:
            by_kind = getattr(one, key)
            if by_kind:
                items = ", ".join(f"{kind} = {format_number(by_kind[kind])}" for kind in KINDS if kind in by_kind)
                lines.append(f"{key} = {{{items}}}")
        if one.switch_ops is not None:
            latency, efficiency = map(format_number, (one.switch_ops.latency_us, one.switch_ops.efficiency))
            lines.append(f"switch_ops = {{latency_us = {latency}, efficiency = {efficiency}}}")
        if one.links != KINDS:
            lines.append(f"links = [{', '.join(map(quoted, one.links))}]")
    return lines


def format_number(value: float) -> str:
    """A number as TOML, to its last bit."""
    value = float(value)
    return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)


def quoted(text: str) -> str:
    """A text as TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
