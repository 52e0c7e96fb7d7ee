"""The commands about topologies: list, show, check."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from synth.cli.options import json_option, print_json
from topologies.families import FAMILIES
from topologies.load import load, load_machine, machines
from topologies.text.writer import to_toml
from topologies.topology import Topology


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
@click.argument("topology")
@json_option
def _topo_check(topology: str, as_json: bool) -> None:
    """Whether a topology can be read, and what it comes to.

    \b
    synth topo check my.toml
    """
    found = _described(load(topology))
    if as_json:
        print_json(found)
        return
    click.echo(f"{found['topology']}: {found['summary'] or 'no summary'}")
    click.echo(
        f"  {found['ranks']} ranks, {found['switches']} switches, {found['links']} links, {found['limits']} limits"
    )
    sms = f"{found['sms']} SMs a device" if found["sms"] else "SMs of a device not known (sms =)"
    click.echo(f"  {sms}")
    assumed = " assumed" if found["alpha_assumed"] else ""
    click.echo(f"  out of a rank {found['out_gbs']} GB/s, α {found['alpha_us']} µs{assumed}")
    connected = "every rank reaches every other"
    click.echo(f"  {connected if found['connected'] else 'not connected: some ranks cannot reach others'}")


def _described(topology: Topology) -> dict[str, Any]:
    n = topology.nranks
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
        "connected": _connected(topology),
        "source": topology.source,
    }


def _connected(topology: Topology) -> bool:
    """Whether every rank reaches every other: rank 0 reaches all, and all reach rank 0."""
    from topologies.arrays import reached  # brings SciPy, which list and show do without

    ends = (topology.link_src, topology.link_dst)
    return all(reached(topology.nvertices, *way, 0)[: topology.nranks].all() for way in (ends, ends[::-1]))


def _span(values: NDArray[Any]) -> str:
    if not len(values):
        return "none"
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"
