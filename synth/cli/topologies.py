"""The commands about topologies: list, show, check, import, here."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from synth.cli.options import declare, json_option, print_json
from synth.cli.programs import write_text
from synth.cli.values import StrictGroup
from synth.present.text import format_count
from topologies.clusters import Machine
from topologies.compare import compare
from topologies.errors import InputError
from topologies.families import FAMILIES
from topologies.graphs import FORMS, graph_text
from topologies.importers.combine import import_files
from topologies.levels.hierarchy import find_levels
from topologies.load import load, load_machine, machines
from topologies.text.vertex_sets import format_names, format_set
from topologies.text.writer import to_toml
from topologies.topology import Topology

# what says how devices are joined, each with what it says more by
_TOOLS = {"nvidia-smi topo -m": ("nvidia-smi nvlink --status",), "amd-smi topology": (), "rocm-smi --showtopo": ()}
_TOOL_S = 60.0
_PARTS = 8  # of a topology that is not connected, shown one by one


@click.group("topo", cls=StrictGroup)
def topo() -> None:
    """Topologies: list, show, check, import, here.

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
    click.echo(
        "several nodes: machine:N, as in dgx-a100:4; your own: FILE.toml, or what tools print (synth topo import)"
    )


@topo.command("show")
@click.argument("topology")
@click.option("--format", "form", type=click.Choice(("toml", *FORMS)), default="toml", help="Default: toml.")
@click.option(
    "--levels", is_flag=True, help="The levels of its hierarchy instead, as --levels of synth place has them."
)
@json_option
def _topo_show(topology: str, form: str, levels: bool, as_json: bool) -> None:
    """A topology in a form that --topo FILE takes: its text form, or as a graph of networkx (without NICs).

    \b
    synth topo show dgx1 > my.toml
    synth topo show dgx-a100:2 --format graphml > my.graphml
    synth topo show mi250:4 --levels
    """
    if levels:
        _show_levels(load(topology), as_json)
        return
    found = load_machine(topology)
    if as_json:
        print_json(_described(found.topology))
    elif form != "toml":
        click.echo(graph_text(found.topology, form).rstrip("\n"))
    else:
        click.echo(to_toml(found.topology, found.nics, found.remarks).rstrip("\n"))


def _show_levels(topology: Topology, as_json: bool) -> None:
    hierarchy = find_levels(topology)
    rows = [
        (level.name, level.size, [[int(rank) for rank in part] for part in hierarchy.parts(i)])
        for i, level in enumerate(hierarchy.levels)
    ]
    if as_json:
        levels = [{"name": name, "size": size, "parts": parts} for name, size, parts in rows]
        print_json({"topology": topology.name, "levels": levels})
        return
    click.echo(f"{topology.name}: {hierarchy}")
    for name, size, parts in rows:
        first = format_set(parts[0], topology.nranks, ())
        many = format_count(len(parts), "part")
        click.echo(f"  {name}: {size} in each part of the level above, {many} in all; the first: {first}")


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
    capability = found["compute_capability"]
    named = [f", {found[key]}" for key in ("gcn", "platform") if found[key]]
    click.echo(f"  {sms}" + (f", compute capability {capability / 10:.1f}" if capability else "") + "".join(named))
    assumed = " assumed" if found["alpha_assumed"] else ""
    if topology.nlinks:
        click.echo(f"  out of a rank {found['out_gbs']} GB/s, α {found['alpha_us']} µs{assumed}")
    if found["switch_ops"]:
        click.echo(f"  {found['switch_ops']}")
    for line in _connection(_parts(topology), topology.nranks):
        click.echo(f"  {line}")
    raise SystemExit(code)


_IMPORT = declare(
    click.option("-o", "--out", metavar="FILE", help="Where to write it; default: to stdout."),
    click.option("--name", metavar="NAME", help="Of the topology; default: the first file's."),
    click.option("--compare", "beside", metavar="TOPOLOGY", help="Say how it differs from this one."),
)


@topo.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_IMPORT
@click.option("--node", metavar="TOPOLOGY", help="What each host of a fabric is; or give its file beside the fabric's.")
def _topo_import(
    files: tuple[str, ...], out: str | None, name: str | None, beside: str | None, node: str | None
) -> None:
    """What a tool prints of a machine as a topology in text form; a file a node makes a cluster.

    Taken are `nvidia-smi topo -m`, with `nvidia-smi nvlink --status` beside it or behind it, NCCL's and RCCL's XML
    (NCCL_TOPO_DUMP_FILE), `rocm-smi --showtopo` and `amd-smi topology`, and of fabrics `ibnetdiscover`, Slurm's
    topology.conf and topology.yaml, and what topograph writes; with a fabric's file, several nodes' hang on it by
    their NICs' GUIDs. --topo takes such files too.

    \b
    synth topo import smi.txt --compare dgx-a100 -o mine.toml
    synth topo import node0.xml node1.xml -o cluster.toml
    synth topo import topology.conf --node dgx-h100 -o cluster.toml
    """
    _write_imported(import_files(files, name, None if node is None else load_machine(node)), out, beside)


@topo.command("here")
@_IMPORT
def _topo_here(out: str | None, name: str | None, beside: str | None) -> None:
    """This machine as a topology, by what nvidia-smi, amd-smi or rocm-smi prints here.

    \b
    synth topo here -o here.toml
    """
    with tempfile.TemporaryDirectory() as folder:
        _write_imported(import_files(_printed_here(Path(folder)), name or "here"), out, beside)


def _printed_here(folder: Path) -> list[Path]:
    """What the tools of this machine print, as files. Raises InputError where there are none, or they fail."""
    failed = []
    for tool, others in _TOOLS.items():
        try:
            printed = [_run(tool.split())]
        except OSError:
            continue
        except subprocess.SubprocessError as error:
            failed.append(f"{tool}: {_complaint(error)}")
            continue
        for other in others:
            with suppress(OSError, subprocess.SubprocessError):  # older drivers do not have it
                printed.append(_run(other.split()))
        (path := folder / "here.txt").write_text("\n".join(printed), encoding="utf-8")
        return [path]
    why = "; ".join(failed) or f"no {' and no '.join(tool.split()[0] for tool in _TOOLS)} found"
    raise InputError(f"topo here: {why}; it must be run where one of them works")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, timeout=_TOOL_S, check=True)
    return done.stdout.decode("utf-8", "replace")


def _complaint(error: subprocess.SubprocessError) -> str:
    text = (getattr(error, "stderr", b"") or getattr(error, "stdout", b"") or b"").decode("utf-8", "replace")
    return " ".join((text or str(error)).split())[:200]


def _write_imported(found: Machine, out: str | None, beside: str | None) -> None:
    differs = [] if beside is None else compare(found, load_machine(beside))
    text = to_toml(found.topology, found.nics, found.remarks)
    if out is None:
        click.echo(text.rstrip("\n"))
    else:
        write_text(out, text)
        click.echo(f"{found.topology.name}: {found.topology.summary} → {out}")
        for remark in found.remarks:
            click.echo(f"  {remark}")
    if beside is not None:
        for line in differs or [f"like {beside}"]:
            click.echo(line, err=out is None)


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
        "compute_capability": topology.compute_capability or None,
        "gcn": topology.gcn or None,
        "platform": topology.platform or None,
        "out_gbs": _span(leaving),
        "alpha_us": _span(topology.alpha_us),
        "alpha_assumed": topology.alpha_assumed,
        "connected": len(parts) == 1,
        "parts": [format_set(part, n, ()) for part in parts],
        "switch_ops": _switch_ops(topology),
        "source": topology.source,
    }


def _switch_ops(topology: Topology) -> str | None:
    """`multicast and reduce in nvswitch` and at which part of a port's rate, where not all of it."""
    said: dict[str, list[str]] = {}
    for ops in topology.switch_ops:
        able = ((word, part) for word, part in (("multicast", ops.multicast), ("reduce", ops.reduce)) if part)
        words = " and ".join(word if part == 1 else f"{word} at {part:.4g} of the rate" for word, part in able)
        said.setdefault(words, []).append(ops.switch)
    return "; ".join(f"{words} in {', '.join(format_names(names))}" for words, names in said.items()) or None


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
