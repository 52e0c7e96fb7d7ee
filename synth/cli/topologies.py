"""The commands about topologies: list, show, check."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from topologies.topology import Topology


@click.group("topo")
def topo() -> None:
    """Topologies: list, show, check.

    \b
    synth topo show dgx-a100
    """


@topo.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _topo_list(as_json: bool) -> None:
    """Machines and families.

    \b
    synth topo list
    """
    from topologies.families import FAMILIES
    from topologies.load import load, machines

    found = {name: load(name).summary for name in machines()}
    if as_json:
        click.echo(json.dumps({"machines": found, "families": list(FAMILIES)}, ensure_ascii=False, indent=1))
        return
    width = max(map(len, found))
    for name, summary in found.items():
        click.echo(f"{name.ljust(width)}  {summary}")
    click.echo(f"families: {', '.join(FAMILIES)} (as in torus:4x4,bw=50,alpha=0.7)")
    click.echo("several nodes: machine:N, as in dgx-a100:4; your own: FILE.toml")


@topo.command("show")
@click.argument("topology")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _topo_show(topology: str, as_json: bool) -> None:
    """A topology in the text form that --topo FILE.toml takes.

    \b
    synth topo show dgx1 > my.toml
    """
    from topologies.load import load
    from topologies.topology import to_toml

    found = load(topology)
    click.echo(
        json.dumps(_described(found), ensure_ascii=False, indent=1)
        if as_json
        else to_toml(found).rstrip("\n")
    )


@topo.command("check")
@click.argument("topology")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _topo_check(topology: str, as_json: bool) -> None:
    """Whether a topology can be read, and what it comes to.

    \b
    synth topo check my.toml
    """
    from topologies.load import load

    said = _described(load(topology))
    if as_json:
        click.echo(json.dumps(said, ensure_ascii=False, indent=1))
        return
    click.echo(f"{said['topology']}: {said['summary'] or 'no summary'}")
    click.echo(
        f"  {said['ranks']} ranks, {said['switches']} switches, {said['links']} links, {said['limits']} limits"
    )
    click.echo(
        f"  out of a rank {said['out_gbs']} GB/s, α {said['alpha_us']} µs{' assumed' if said['alpha_assumed'] else ''}"
    )
    click.echo(
        "  every rank reaches every other"
        if said["connected"]
        else "  not connected: some ranks cannot reach others"
    )


def _described(topology: Topology) -> dict[str, Any]:
    import numpy as np

    n = topology.nranks
    leaving = np.bincount(topology.link_src, weights=topology.bandwidth_gbs, minlength=topology.nvertices)[:n]
    return {
        "topology": topology.name,
        "summary": topology.summary,
        "ranks": n,
        "switches": len(topology.switches),
        "links": topology.nlinks,
        "limits": len(topology.limits),
        "out_gbs": _span(leaving),
        "alpha_us": _span(topology.alpha_us),
        "alpha_assumed": topology.alpha_assumed,
        "connected": _connected(topology),
        "source": topology.source,
    }


def _connected(topology: Topology) -> bool:
    """Whether every rank reaches every other: rank 0 reaches all, and all reach rank 0."""
    from topologies.arrays import reached

    n, count = topology.nranks, topology.nvertices
    ends = (topology.link_src, topology.link_dst)
    return all(reached(count, *way, 0)[:n].all() for way in (ends, ends[::-1]))


def _span(values: NDArray[Any]) -> str:
    if not len(values):
        return "none"
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"
