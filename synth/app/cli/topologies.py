"""The commands about topologies: list, show, check, import, here, planner."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from emit.library.selection.skewed_table import HEADER, HEADERS, table_bytes
from synth.app.cli.options import Option, declare, json_option, print_json
from synth.app.cli.programs import check_ending, check_not_source, write_into, write_text
from synth.app.cli.values import StrictGroup
from synth.app.present.layout import say_fitted, terminal_width, warn, wrapped
from synth.engines.skewed.prepare import shape_for
from synth.model.problem import parse_ranks
from synth.model.text import format_count
from topologies.clusters import Machine
from topologies.compare import compare
from topologies.costed import with_protocol
from topologies.costs import LINK_KINDS
from topologies.errors import InputError
from topologies.families import FAMILIES
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks
from topologies.graphs import FORMS, graph_text
from topologies.importers.combine import import_files
from topologies.levels.hierarchy import find_levels
from topologies.load import apply_costs, load, load_machine
from topologies.machines import machines
from topologies.text.files import origin_of
from topologies.text.vertex_sets import format_names, format_set
from topologies.text.writer import to_toml
from topologies.topology import Topology

# Commands that print how devices are connected, each with further commands for details.
_TOOLS = {"nvidia-smi topo -m": ("nvidia-smi nvlink --status",), "amd-smi topology": (), "rocm-smi --showtopo": ()}
_TOOL_S = 60.0
_PARTS = 8  # parts of an unconnected topology that are listed


@click.group("topo", cls=StrictGroup)
def topo() -> None:
    """List, show, check and import topologies.

    \b
    synth topo show dgx-a100
    """


@topo.command("list")
@json_option
def _topo_list(as_json: bool) -> None:
    """List all machines and families.

    \b
    synth topo list
    """
    summary_of = {name: load(name).summary for name in machines()}
    if as_json:
        print_json("topologies", {"machines": summary_of, "families": list(FAMILIES)})
        return
    width = max(map(len, summary_of))
    for name, summary in summary_of.items():
        click.echo("\n".join(wrapped([f"{name.ljust(width)}  {summary}"], terminal_width(), " " * (width + 2))))
    families = f"families: {', '.join(FAMILIES)} (as in torus:4x4,bw=50,alpha=0.7)"
    nodes = (
        "several nodes: machine:N, as in dgx-a100:4; your own: FILE.toml, or the output of tools (synth topo import)"
    )
    say_fitted(families, nodes)


degrade_option: Option = click.option(
    "--degrade",
    multiple=True,
    metavar="PART=RATE",
    help="Slow this part down: link:0-1=50%, link:0-1=12.5GB/s, rank:3=25%, limit:NAME=50%; repeat.",
)


@topo.command("show")
@click.argument("topology")
@click.option(
    "--format", "form", type=click.Choice(("toml", *FORMS)), default="toml", help="Print this form. Default: toml."
)
@click.option(
    "--levels", is_flag=True, help="Print the levels of the hierarchy instead, as synth place --levels takes them."
)
@click.option("-o", "--out", metavar="FILE", help="Write the form to this file. Default: stdout.")
@click.option("--without", multiple=True, metavar="PART", help="Take this part out first: link:0-1, rank:17; repeat.")
@degrade_option
@json_option
def _topo_show(
    topology: str, form: str, levels: bool, out: str | None, without: tuple[str, ...], degrade: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Print a topology in a form that --topo FILE takes: text, or a graph of networkx (without NICs).

    \b
    synth topo show dgx1 -o my.toml
    synth topo show dgx-a100:2 --format graphml > my.graphml
    synth topo show mi250:4 --levels
    """
    if out is not None and (levels or as_json):
        raise InputError("--out: is for the forms of --format; leave out --levels and --json, or use > FILE")
    if levels and form != "toml":
        raise InputError(f"--format {form}: --levels prints the hierarchy in words; leave one of them out")
    if levels:
        _show_levels(apply_faults(load(topology), without, degrade), as_json)
        return
    if as_json and form != "toml":
        raise InputError(f"--json: does not go with --format {form}; leave one of them out")
    machine = load_machine(topology)
    machine = replace(machine, topology=apply_faults(machine.topology, without, degrade))
    if as_json:
        print_json("topology", _described(machine.topology, _parts(machine.topology)))
        return
    text = (
        to_toml(machine.topology, machine.nics, machine.remarks)
        if form == "toml"
        else graph_text(machine.topology, form)
    )
    if out is None:
        click.echo(text.rstrip("\n"))
        return
    check_not_source(out, topology)
    write_text(out, f"{text.rstrip()}\n")
    say_fitted(f"{topology} → {out}")


def _show_levels(topology: Topology, as_json: bool) -> None:
    """Print the levels of a topology's hierarchy with their sizes and first parts, or as JSON with all parts."""
    hierarchy = find_levels(topology)
    rows = [
        (level.name, level.size, [[int(rank) for rank in part] for part in hierarchy.parts(i)])
        for i, level in enumerate(hierarchy.levels)
    ]
    if as_json:
        levels = [{"name": name, "size": size, "parts": parts} for name, size, parts in rows]
        print_json("levels", {"topology": topology.name, "levels": levels})
        return
    say_fitted(f"{topology.name}: {hierarchy}")
    for name, size, parts in rows:
        first = format_set(parts[0], topology.nranks, ())
        part_count = format_count(len(parts), "part")
        say_fitted(f"  {name}: {size} in each part of the level above, {part_count} in all; the first: {first}")


@topo.command("check")
@click.argument("name", metavar="TOPOLOGY")
@click.option(
    "--without",
    multiple=True,
    metavar="PART",
    help="Check it without these parts: link:0-1, link:0>1, rank:17, switch:NAME; repeat.",
)
@degrade_option
@json_option
def _topo_check(name: str, without: tuple[str, ...], degrade: tuple[str, ...], as_json: bool) -> None:
    """Check whether a topology can be used, and print its size; exit code 1: some ranks cannot reach others.

    \b
    synth topo check my.toml
    synth topo check dgx1 --without link:1-2
    """
    healthy = load(name)
    topology, dead = apply_faults(healthy, without, degrade), dead_ranks(healthy, without)
    parts = [part for part in _parts(topology) if not set(part) <= set(dead)]
    facts = _described(topology, parts)
    code = 0 if facts["connected"] and topology.nranks > 1 else 1
    if as_json:
        print_json("topology", facts)
        raise SystemExit(code)
    say_fitted(f"{facts['topology']}: {facts['summary'] or 'no summary'}")
    live = f"{topology.nranks - len(dead)} of " if dead else ""
    click.echo(
        f"  {live}{format_count(facts['ranks'], 'rank')}, {format_count(facts['switches'], 'switch', 'switches')},"
        f" {format_count(facts['links'], 'link')}, {format_count(facts['limits'], 'limit')}"
    )
    sms = f"{facts['sms']} SMs a device" if facts["sms"] else "SMs of a device unknown (set sms =)"
    capability = facts["compute_capability"]
    architecture = [f", {facts[key]}" for key in ("gcn", "platform") if facts[key]]
    say_fitted(
        f"  {sms}" + (f", compute capability {capability / 10:.1f}" if capability else "") + "".join(architecture)
    )
    for remark in _not_compared(topology):
        say_fitted(f"  {remark}")
    assumed = " assumed" if facts["alpha_assumed"] else ""
    if topology.nlinks:
        say_fitted(f"  out of a rank {facts['out_gbs']} GB/s, α {facts['alpha_us']} µs{assumed}")
    if facts["switch_ops"]:
        say_fitted(f"  {facts['switch_ops']}")
    for line in _connection(parts, topology.nranks, "live " if dead else ""):
        say_fitted(f"  {line}")
    raise SystemExit(code)


_IMPORT = declare(
    click.option("-o", "--out", metavar="FILE", help="Write the topology to this file. Default: stdout."),
    click.option("--name", metavar="NAME", help="Give the topology this name. Default: the first file's."),
    click.option("--compare", "reference", metavar="TOPOLOGY", help="Print how it differs from this topology."),
)


@topo.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_IMPORT
@click.option(
    "--node", metavar="TOPOLOGY", help="Use this topology for each host of a fabric, if no file describes it."
)
def _topo_import(
    files: tuple[str, ...], out: str | None, name: str | None, reference: str | None, node: str | None
) -> None:
    """Convert the output of a machine's tools or a simulator's file to a topology; several nodes make a cluster.

    For machines, the command reads `nvidia-smi topo -m` (with `nvidia-smi nvlink --status` in another file or
    appended), the XML of NCCL and RCCL (NCCL_TOPO_DUMP_FILE), `rocm-smi --showtopo` and `amd-smi topology`. For
    fabrics it reads `ibnetdiscover`, Slurm's topology.conf and topology.yaml, and topograph's output. With a fabric's
    file, nodes are connected to it by the GUIDs of their NICs. It also reads the network files of SimAI, ns-3 (HPCC),
    ASTRA-sim, TACCL, TE-CCL and NetGraph. --topo takes such files too.

    \b
    synth topo import smi.txt --compare dgx-a100 -o mine.toml
    synth topo import node0.xml node1.xml -o cluster.toml
    synth topo import topology.conf --node dgx-h100 -o cluster.toml
    """
    if out is not None:
        check_ending(out, ".toml", "a topology")
        for file in files:
            check_not_source(out, file)
    if twice := next((file for file, count in Counter(map(os.path.realpath, files)).items() if count > 1), None):
        raise InputError(f"{origin_of(twice)}: is given twice; each node needs a file of its own")
    _write_imported(import_files(files, name, None if node is None else load_machine(node)), out, reference)


@topo.command("here")
@_IMPORT
def _topo_here(out: str | None, name: str | None, reference: str | None) -> None:
    """Convert this machine to a topology, with the output of nvidia-smi, amd-smi or rocm-smi.

    \b
    synth topo here -o here.toml
    """
    if out is not None:
        check_ending(out, ".toml", "a topology")
    with tempfile.TemporaryDirectory() as folder:
        _write_imported(import_files(_printed_here(Path(folder)), name or "here"), out, reference)


@topo.command("planner")
@click.argument("topology")
@click.option("--group", metavar="RANKS", help="Use these ranks, in this order. Default: all.")
@click.option(
    "--costs",
    default="none",
    metavar="none|machine|FILE",
    help="Count an executor's costs besides α and bandwidth: none (the default), machine (the topology's own), or those"
    " of a FILE with [costs].",
)
@click.option(
    "--protocol",
    type=click.Choice(["Simple", "LL", "LL128"]),
    default="Simple",
    help="Count the costs of this protocol. Default: Simple.",
)
@click.option("-o", "--out", required=True, metavar="DIR", help="Write to this folder.")
def _topo_planner(topology: str, group: str | None, costs: str, protocol: str, out: str) -> None:
    """Write what a program in C needs to plan all-to-alls whose sizes change at every step.

    It writes skewed.table, which has the links of the group and its NICs or paths, and synth_skewed.h with two headers
    that it includes. They read the table and plan as `synth.alltoallv_planner` does. The head of synth_skewed.h says
    how it is called.

    \b
    synth topo planner dgx-h100:4 -o planner
    synth topo planner torus:4x4 -o planner
    """
    network = with_protocol(apply_costs(load(topology), costs), protocol)
    ranks = None if group is None else parse_ranks(group, "--group", network.nranks)
    data = table_bytes(shape_for(network, ranks))
    for name, content in (("skewed.table", data), *((header.name, header.read_bytes()) for header in HEADERS)):
        write_into(Path(out) / name, content)
    say_fitted(f"{origin_of(Path(out) / 'skewed.table')}: {len(data)} bytes; {HEADER.name} in the same folder reads it")


def _printed_here(folder: Path) -> list[Path]:
    """Write what the first tool that works prints to a file in a folder, and return that file in a list.

    Raises:
        InputError: No tool is installed, or all that are installed fail.
    """
    failed = []
    for tool, further_tools in _TOOLS.items():
        try:
            printed = [_run(tool.split())]
        except OSError:
            continue
        except subprocess.SubprocessError as error:
            failed.append(f"{tool}: {_complaint(error)}")
            continue
        for further_tool in further_tools:
            with suppress(OSError, subprocess.SubprocessError):  # Older drivers lack the command.
                printed.append(_run(further_tool.split()))
        (path := folder / "here.txt").write_text("\n".join(printed), encoding="utf-8")
        return [path]
    why = "; ".join(failed) or f"no {' and no '.join(tool.split()[0] for tool in _TOOLS)} found"
    raise InputError(f"topo here: {why}; run it where one of them works")


def _run(command: list[str]) -> str:
    """Run a command and return what it prints on stdout; bytes that are no UTF-8 are replaced.

    Raises:
        OSError: The command cannot be started.
        SubprocessError: It fails, or takes over 60 s.
    """
    completed = subprocess.run(command, capture_output=True, timeout=_TOOL_S, check=True)
    return completed.stdout.decode("utf-8", "replace")


def _complaint(error: subprocess.SubprocessError) -> str:
    """Return the first 200 characters of a failed command's error output in one line.

    If that is empty, they are of its output, or else of the error itself.
    """
    text = (getattr(error, "stderr", b"") or getattr(error, "stdout", b"") or b"").decode("utf-8", "replace")
    return " ".join((text or str(error)).split())[:200]


def _write_imported(machine: Machine, out: str | None, reference: str | None) -> None:
    """Write an imported topology to a file or stdout, and print how it differs from a reference.

    Args:
        machine: The topology with its NICs and remarks.
        out: The file, after which summary and remarks are printed; None for stdout.
        reference: Name or file of the topology that it is compared with; None for no comparison. The comparison goes to
            stderr if the topology goes to stdout.

    Raises:
        InputError: The reference is not known, or the file cannot be written.
    """
    differs = [] if reference is None else compare(machine, load_machine(reference))
    text = to_toml(machine.topology, machine.nics, machine.remarks)
    if out is None:
        click.echo(text.rstrip("\n"))
    else:
        write_text(out, text)
        say_fitted(f"{machine.topology.name}: {machine.topology.summary} → {out}")
        say_fitted(*(f"  {remark}" for remark in (*machine.remarks, *_not_compared(machine.topology))))
    if reference is not None:
        for line in differs or [f"like {reference}"]:
            if out is None:
                warn(line)
            else:
                say_fitted(line)


def _not_compared(topology: Topology) -> list[str]:
    """Return why answers on a topology of GPUs are not compared with NCCL, and what its file lacks; [] if they are.

    GPUs are devices with NVLinks; those of AMD, whose file states `gcn`, are compared with RCCL.
    """
    has_nvlinks = bool((topology.link_kind == LINK_KINDS.index("nvlink")).any())
    if not has_nvlinks or topology.compute_capability or topology.gcn:
        return []
    return ["not compared with NCCL: compute capability unknown (set compute_capability =, such as 90 for H100)"]


def _connection(parts: Sequence[Sequence[int]], nranks: int, live: str = "") -> list[str]:
    """Return the lines of `check` that state which ranks reach each other.

    Args:
        parts: Groups of ranks that all reach each other, as `_parts` returns them; of those with two or more ranks, at
            most 8 are named.
        nranks: Number of ranks of the topology.
        live: Word that precedes "rank" where dead ranks are left out.
    """
    if nranks == 1:
        return ["cannot be used: there is one rank, but at least 2 are needed"]
    if len(parts) == 1:
        return [f"every {live}rank reaches every other"]
    groups = [format_set(part, nranks, ()) for part in parts if len(part) > 1]
    single_ranks = sorted(rank for part in parts if len(part) == 1 for rank in part)
    if not groups:
        return ["not connected: no two ranks reach each other both ways; usable only for collectives that send one way"]
    lines = [
        "not connected: among all ranks usable only for collectives that send one way; ranks that reach each other:"
    ]
    lines += [f"  --group {group}" for group in groups[:_PARTS]]
    if len(groups) > _PARTS:
        lines.append(f"  … {len(groups) - _PARTS} more …")
    if single_ranks:
        lines.append(f"  none with {format_set(single_ranks, nranks, ())}: links to or from there are missing")
    return lines


def _described(topology: Topology, parts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the properties of a topology as a JSON object.

    Args:
        topology: The topology.
        parts: Its groups of ranks that all reach each other, as `_parts` returns them.

    Returns:
        A dictionary. ranks, switches, links and limits are numbers; sms, compute_capability, gcn and platform are None
        if unknown. out_gbs (sum over the links that leave a rank, in GB/s) and alpha_us (of a link, in µs) are texts
        with the smallest and largest value. parts has a text for each group of ranks that all reach each other;
        connected is True for one such group. switch_ops is a text or None. topology, summary, source and alpha_assumed
        are the topology's own.
    """
    nranks = topology.nranks
    leaving = np.bincount(topology.link_src, weights=topology.bandwidth_gbs, minlength=topology.nvertices)[:nranks]
    return {
        "topology": topology.name,
        "summary": topology.summary,
        "ranks": nranks,
        "switches": len(topology.switches),
        "links": topology.nlinks,
        "limits": len(topology.limits),
        **{name: getattr(topology, name) or None for name in ("sms", "compute_capability", "gcn", "platform")},
        "out_gbs": _span(leaving),
        "alpha_us": _span(topology.alpha_us),
        "alpha_assumed": topology.alpha_assumed,
        "connected": len(parts) == 1,
        "parts": [format_set(part, nranks, ()) for part in parts],
        "switch_ops": _switch_ops(topology),
        "source": topology.source,
    }


def _switch_ops(topology: Topology) -> str | None:
    """Return what switches can do, such as `multicast and reduce at 0.5 of the rate in nvswitch`; None if nothing."""
    switches_of: dict[str, list[str]] = {}
    for ops in topology.switch_ops:
        able = ((word, part) for word, part in (("multicast", ops.multicast), ("reduce", ops.reduce)) if part)
        words = " and ".join(word if part == 1 else f"{word} at {part:.4g} of the rate" for word, part in able)
        switches_of.setdefault(words, []).append(ops.switch)
    return "; ".join(f"{words} in {', '.join(format_names(names))}" for words, names in switches_of.items()) or None


def _parts(topology: Topology) -> list[list[int]]:
    """Return the groups of ranks that all reach each other, through other ranks and switches too.

    Each group ascends; groups are ordered by their first rank. A rank that no other can reach and return from is a
    group.
    """
    from topologies.arrays import components, strongly_connected  # It imports SciPy, which list and show do not need.

    ends = (topology.nvertices, topology.link_src, topology.link_dst)
    if strongly_connected(*ends):
        return [list(range(topology.nranks))]
    ranks_of_part: dict[int, list[int]] = {}
    for rank, part in enumerate(components(*ends, strong=True)[: topology.nranks].tolist()):
        ranks_of_part.setdefault(part, []).append(rank)
    return list(ranks_of_part.values())


def _span(values: NDArray[Any]) -> str:
    """Return the smallest and the largest value as `LOW–HIGH`; one value if they are equal, "none" without any."""
    if not len(values):
        return "none"
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"
