"""Reader and writer of [costs] in a text form, a table per protocol: [costs.LL], [costs.LL128], [costs.Simple]."""

from __future__ import annotations

import json
import math
from pathlib import Path

from topologies.costs import LINK_KINDS, MAX_COST_US, MIN_EFFICIENCY, PROTOCOLS, Costs, Protocol, SwitchCosts
from topologies.text.fields import Fields, parse_toml
from topologies.text.files import origin_of, read_text
from topologies.topology import MAX_GBS, MIN_GBS

_MAX_FILE_BYTES = 16 << 20  # The same as for a topology's file, because a machine's file is one.
_BY_KIND = (
    ("latency_us", 0.0, MAX_COST_US, "µs"),
    ("efficiency", MIN_EFFICIENCY, 1.0, ""),
    ("gap_us", 0.0, MAX_COST_US, "µs"),
)
_OF_SWITCHES = _BY_KIND[:2]  # The fields of `SwitchCosts`, in their order.


def read_costs_file(path: str | Path) -> Costs:
    """Return the [costs] of a file, which may be a machine's.

    Raises:
        InputError: The file cannot be read or states no [costs]; the message is one line.
    """
    origin = origin_of(path)
    top = parse_toml(read_text(path, "a .toml file with [costs]", _MAX_FILE_BYTES), origin, "a table [costs]")
    costs = read_costs(top)
    if costs is None:
        top.fail("costs", "missing; it must be a table [costs], with one such as [costs.Simple] for each protocol")
    return costs


def read_costs(top: Fields) -> Costs | None:
    """Return the costs that [costs] states, or None where there is no such table.

    Raises:
        InputError: A value is wrong; the message names its place.
    """
    table = top.sub("costs")
    if table is None:
        return None
    table.only(("source", *PROTOCOLS))
    protocols = {name: _protocol(part) for name in PROTOCOLS if (part := table.sub(name)) is not None}
    if not protocols:
        table.fail("", f"states no protocol; it must be at least one table such as [costs.{PROTOCOLS[-1]}]")
    return Costs(protocols, table.string("source", ""))


def _protocol(table: Fields) -> Protocol:
    """Return the costs of a protocol's table, or raise InputError for an unknown key or a wrong value."""
    table.only(("start_us", "threadblock_gbs", *(key for key, *_ in _BY_KIND), "links", "switch_ops", "note"))
    by_kind: dict[str, dict[str, float]] = {}
    for key, low, high, unit in _BY_KIND:
        part = table.sub(key)
        by_kind[key] = {}
        if part is not None:
            part.only(LINK_KINDS)
            by_kind[key] = {kind: part.number(kind, low, high, unit) for kind in LINK_KINDS if kind in part.values}
    links = table.strings("links", LINK_KINDS)
    for kind in links:
        if kind not in LINK_KINDS:
            table.fail("links", f"holds {kind[:40]!r}, which is no kind of link; it must be of {', '.join(LINK_KINDS)}")
    return Protocol(
        start_us=table.number("start_us", 0.0, MAX_COST_US, "µs", 0.0),
        threadblock_gbs=table.number("threadblock_gbs", MIN_GBS, MAX_GBS, "GB/s", math.inf),
        links=tuple(kind for kind in LINK_KINDS if kind in links),
        switch_ops=_switch_ops(table.sub("switch_ops")),
        note=table.string("note", ""),
        **by_kind,
    )


def _switch_ops(table: Fields | None) -> SwitchCosts | None:
    """Return the costs of switches' operations, or None where the table is missing.

    Raises:
        InputError: The table has an unknown key, or a cost is missing or wrong.
    """
    if table is None:
        return None
    table.only([key for key, *_ in _OF_SWITCHES])
    return SwitchCosts(*(table.number(*figure) for figure in _OF_SWITCHES))


def costs_lines(costs: Costs) -> list[str]:
    """Return the lines of [costs], the first one empty; `read_costs` gives equal costs back."""
    lines = ["", "[costs]"]
    if costs.source:
        lines.append(f"source = {quoted(costs.source)}")
    for name, protocol in costs.protocols.items():
        lines += ["", f"[costs.{name}]"]
        if protocol.note:
            lines.append(f"note = {quoted(protocol.note)}")
        if protocol.start_us:
            lines.append(f"start_us = {format_number(protocol.start_us)}")
        if protocol.threadblock_gbs < math.inf:
            lines.append(f"threadblock_gbs = {format_number(protocol.threadblock_gbs)}")
        for key, *_ in _BY_KIND:
            by_kind = getattr(protocol, key)
            if by_kind:
                items = ", ".join(f"{kind} = {format_number(by_kind[kind])}" for kind in LINK_KINDS if kind in by_kind)
                lines.append(f"{key} = {{{items}}}")
        if protocol.switch_ops is not None:
            latency, efficiency = map(format_number, (protocol.switch_ops.latency_us, protocol.switch_ops.efficiency))
            lines.append(f"switch_ops = {{latency_us = {latency}, efficiency = {efficiency}}}")
        if protocol.links != LINK_KINDS:
            lines.append(f"links = [{', '.join(map(quoted, protocol.links))}]")
    return lines


def format_number(value: float) -> str:
    """Return a number as TOML, exact to the last bit; a whole one below 1e15 has no point, as "3" for 3.0."""
    value = float(value)
    return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)


def quoted(text: str) -> str:
    """Return a text as a TOML string in double quotes, on one line."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
