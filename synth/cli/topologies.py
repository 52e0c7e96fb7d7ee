"""The commands about topologies: list, show, check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from synth.cli.options import json_option, print_json
from synth.present.text import format_count
from topologies.families import FAMILIES
from topologies.load import load, load_machine, machines
from topologies.text.vertex_sets import format_set
from topologies.text.writer import to_toml
from topologies.topology import Topology

_PARTS = 8  # of a topology that is not connected, shown one by one


@click.group("topo")
def topo() -> None:
    """Topologies: list, show, check.

    \b
    synth topo show dgx-a100
    """


@topo.command("list")
@json_option
def _topo_list(as_json: bool) -> None:
    """Machines and families.

    \b
    synth topo list
    """
    found = {name: load(name).summary for name in machines()}
    if as_json:
        print_json({"machines": found, "families": list(FAMILIES)})
        return
    width = max(map(len, found))
    for name, summary in found.items():
        click.echo(f"{name.ljust(width)}  {summary}")
    click.echo(f"families: {', '.join(FAMILIES)} (as in torus:4x4,bw=50,alpha=0.7)")
    click.echo("several nodes: machine:N, as in dgx-a100:4; your own: FILE.toml")


@topo.command("show")
@click.argument("topology")
@json_option
def _topo_show(topology: str, as_json: bool) -> None:
    """A topology in the text form that --topo FILE.toml takes.

    \b
    synth topo show dgx1 > my.toml
    """
    found = load_machine(topology)
    if as_json:
        print_json(_described(found.topology))
    else:
        click.echo(to_toml(found.topology, found.nics).rstrip("\n"))


@topo.command("check")
@click.argument("name", metavar="TOPOLOGY")
@json_option
def _topo_check(name: str, as_json: bool) -> None:
    """Whether a topology can be read and used, and what it comes to; exit code 1 where ranks cannot reach others.

    \b
    synth topo check my.toml
    """
    topology = load(name)
    found = _described(topology)
    code = 0 if found["connected"] and topology.nranks > 1 else 1
    if as_json:
        print_json(found)
        raise SystemExit(code)
    click.echo(f"{found['topology']}: {found['summary'] or 'no summary'}")
    click.echo(
        f"  {format_count(found['ranks'], 'rank')}, {format_count(found['switches'], 'switch', 'switches')},"
        f" {format_count(found['links'], 'link')}, {format_count(found['limits'], 'limit')}"
    )
    sms = f"{found['sms']} SMs a device" if found["sms"] else "SMs of a device not known (sms =)"
    click.echo(f"  {sms}")
    assumed = " assumed" if found["alpha_assumed"] else ""
    if topology.nlinks:
        click.echo(f"  out of a rank {found['out_gbs']} GB/s, α {found['alpha_us']} µs{assumed}")
    for line in _connection(_parts(topology), topology.nranks):
        click.echo(f"  {line}")
    raise SystemExit(code)


def _connection(parts: Sequence[Sequence[int]], nranks: int) -> list[str]:
    """What `check` says of the parts of a topology, whose ranks all reach each other."""
    if nranks == 1:
        return ["cannot be used: there is one rank; it must be at least 2"]
    if len(parts) == 1:
        return ["every rank reaches every other"]
    groups = [format_set(part, nranks, ()) for part in parts if len(part) > 1]
    alone = sorted(rank for part in parts if len(part) == 1 for rank in part)
    if not groups:
        return ["not connected: no two ranks reach each other, both ways; cannot be used, but for what is sent one way"]
    lines = [
        "not connected: cannot be used among all ranks, but for what is sent one way; ranks that reach each other:"
    ]
    lines += [f"  --group {group}" for group in groups[:_PARTS]]
    if len(groups) > _PARTS:
        lines.append(f"  … {len(groups) - _PARTS} more …")
    if alone:
        lines.append(f"  none with {format_set(alone, nranks, ())}: links to or from there are missing")
    return lines


def _described(topology: Topology) -> dict[str, Any]:
    n = topology.nranks
    parts = _parts(topology)
    leaving = np.bincount(topology.link_src, weights=topology.bandwidth_gbs, minlength=topology.nvertices)[:n]
    return {
        "topology": topology.name,
        "summary": topology.summary,
        "ranks": n,
        "switches": len(topology.switches),
        "links": topology.nlinks,
        "limits": len(topology.limits),
        "sms": topology.sms or None,
        "out_gbs": _span(leaving),
        "alpha_us": _span(topology.alpha_us),
        "alpha_assumed": topology.alpha_assumed,
        "connected": len(parts) == 1,
        "parts": [format_set(part, n, ()) for part in parts],
        "source": topology.source,
    }


def _parts(topology: Topology) -> list[list[int]]:
    """Ranks that all reach each other, through others too: the parts by their first rank."""
    from topologies.arrays import components, strongly_connected  # brings SciPy, which list and show do without

    ends = (topology.nvertices, topology.link_src, topology.link_dst)
    if strongly_connected(*ends):
        return [list(range(topology.nranks))]
    found: dict[int, list[int]] = {}
    for rank, part in enumerate(components(*ends, strong=True)[: topology.nranks].tolist()):
        found.setdefault(part, []).append(rank)
    return list(found.values())


def _span(values: NDArray[Any]) -> str:
    if not len(values):
        return "none"
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"
