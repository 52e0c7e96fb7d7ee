"""Topologies as graphs of networkx, and in the files that networkx reads and writes: GraphML, GML, node-link JSON.

A node is a rank unless its `kind` is "switch"; ranks are in the order of the nodes, or of their `rank`. An edge has
`gbs` (GB/s, 10^9 bytes/s), `alpha_us` and perhaps `link` (its kind, of `topologies.costs.KINDS`) and `limit`, names of
limits with commas, whose GB/s the graph's `limits` has (by name; in files as JSON). A switch may state `multicast` and
`reduce`, parts of a port's rate. Edges without a direction go both ways, parallel ones are summed. Where no edge states
`gbs`, or none `alpha_us`, what families have is assumed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from topologies.clusters import Machine
from topologies.costs import KINDS, known
from topologies.errors import InputError
from topologies.families import DEFAULT_ALPHA_US, DEFAULT_GBS
from topologies.text.fields import shown
from topologies.text.files import parse_json
from topologies.topology import (
    MAX_CAPABILITY,
    MAX_LINKS,
    MAX_RANKS,
    MAX_SMS,
    NAMED,
    Limit,
    SwitchOps,
    Topology,
    is_switch_name,
    load_networkx,
)

if TYPE_CHECKING:
    from networkx import Graph

_ASSUMED = (("gbs", DEFAULT_GBS), ("alpha_us", DEFAULT_ALPHA_US))
_DEVICE_FIGURES = (("sms", MAX_SMS), ("compute_capability", MAX_CAPABILITY))
_MOST = 1e300  # of any figure
FORMS = ("graphml", "gml", "json")
_MOST_ELEMENTS = 500_000  # of GraphML, each of which takes half a KB; an edge with its figures is four
_GML = re.compile(r"\s*+(?:(?:#|Creator|Version|Comment)[^\n]*+\n\s*+)*+graph\s*+\[", re.IGNORECASE)


def is_graph(value: object) -> bool:
    """Whether a value is a graph of networkx, which is not loaded for it."""
    return any(kind.__module__.startswith("networkx.") for kind in type(value).__mro__)


def is_graph_text(text: str) -> bool:
    """Whether a text is one of the three forms."""
    if text.lstrip().startswith("{"):
        return '"nodes"' in text and ('"links"' in text or '"edges"' in text)
    return "<graphml" in text[:4000] or _GML.match(text) is not None


def read_graph(text: str, origin: str) -> Machine:
    """The topology of a file. Raises InputError (one line) for what is none of the three, and without networkx."""
    nx = load_networkx()
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(f"{origin}: declares a document type; it must be GraphML without")
    if text.lstrip().startswith("<") and text.count("<") - text.count("</") > _MOST_ELEMENTS:
        raise InputError(f"{origin}: has too many elements; it must be GraphML of at most {_MOST_ELEMENTS} elements")
    try:
        if text.lstrip().startswith("{"):
            document = parse_json(text, origin, "node-link JSON as networkx reads it", constants=True)
            edges = "links" if "links" in document else "edges"
            graph = nx.node_link_graph(document, edges=edges)
        elif "<graphml" in text[:4000]:
            graph = nx.read_graphml(io.BytesIO(text.encode()))
        else:
            graph = _parsed_gml(nx, text)
    except InputError:
        raise
    except Exception as error:  # each reader has its own kinds, for what a stranger wrote
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(f"{origin}: {said}; it must be GraphML, GML or node-link JSON as networkx reads it") from None
    topology, remarks = _from_graph(graph, origin)
    return Machine(topology, None, remarks)


def from_networkx(graph: Graph[Any], name: str | None = None) -> Topology:
    """The topology of a graph (see the head of this module), by its `name`. Raises InputError where it is none."""
    return _from_graph(graph, name or str(graph.graph.get("name") or "graph"))[0]


def graph_text(topology: Topology, form: str) -> str:
    """A topology in one of FORMS."""
    nx, graph = load_networkx(), topology.to_networkx()
    if form == "graphml":
        return "\n".join(nx.generate_graphml(graph)) + "\n"
    if form == "gml":
        return "\n".join(nx.generate_gml(graph, stringizer=str)) + "\n"
    return json.dumps(nx.node_link_data(graph, edges="links"), indent=1) + "\n"


def _parsed_gml(nx: Any, text: str) -> Graph[Any]:
    """Also of those whose labels are missing or stand twice, and that do not say that they have parallel edges."""
    parallel = re.sub(r"\bgraph\s*\[", "graph [\n  multigraph 1\n", text, count=1, flags=re.IGNORECASE)
    ways = ((text, "label"), (text, None), (parallel, "label"), (parallel, None))
    for number, (stated, label) in enumerate(ways):
        try:
            return cast("Graph[Any]", nx.parse_gml(stated, label=label))
        except nx.NetworkXError:
            if number == len(ways) - 1:
                raise
    raise AssertionError


def _from_graph(graph: Graph[Any], origin: str) -> tuple[Topology, tuple[str, ...]]:
    if not isinstance(graph.graph, Mapping):
        raise InputError(f"{origin}: graph: {shown(graph.graph)}; it must be an object")
    if graph.number_of_nodes() > MAX_RANKS or graph.number_of_edges() > MAX_LINKS:
        raise InputError(f"{origin}: too large; it must have at most {MAX_RANKS} nodes and {MAX_LINKS} edges")
    about = graph.graph
    data = dict(graph.nodes(data=True))
    for node, values in data.items():
        if values.get("kind", "rank") not in ("rank", "switch"):
            raise InputError(f"{origin}: node {_name(node)}: kind {values['kind']!r:.40}; it must be rank or switch")
    switches = [node for node in data if data[node].get("kind") == "switch"]
    ranks = [node for node in data if data[node].get("kind") != "switch"]
    if all(type(data[node].get("rank")) is int for node in ranks):
        ranks.sort(key=lambda node: data[node]["rank"])
    if not ranks:
        raise InputError(f"{origin}: has no rank; it must have one node at least that is no switch")
    number = {node: i for i, node in enumerate([*ranks, *switches])}
    stated = {key: any(key in values for _, _, values in graph.edges(data=True)) for key in ("gbs", "alpha_us")}
    links: dict[tuple[int, int], list[float]] = {}
    members: dict[str, set[tuple[int, int]]] = {}
    for a, b, values in graph.edges(data=True):
        if a == b:
            continue
        where = f"{origin}: edge {_name(a)} to {_name(b)}"
        gbs = _figure(values, "gbs", where, DEFAULT_GBS if not stated["gbs"] else None)
        alpha = _figure(values, "alpha_us", where, DEFAULT_ALPHA_US if not stated["alpha_us"] else None)
        link = str(values.get("link", KINDS[0]))
        known(link, KINDS, where, "kind of link")
        for pair in ((number[a], number[b]), *(() if graph.is_directed() else ((number[b], number[a]),))):
            had = links.setdefault(pair, [0.0, alpha, KINDS.index(link)])
            had[0] += gbs
            had[1] = max(had[1], alpha)
            for name in str(values.get("limit", "")).split(",") if values.get("limit") else ():
                members.setdefault(name, set()).add(pair)
    pairs = sorted(links)
    place = {pair: i for i, pair in enumerate(pairs)}
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    figures = np.array([links[pair] for pair in pairs], dtype=np.float64).reshape(-1, 3)
    remarks = [f"no edge states {key}: {value:g} is assumed" for key, value in _ASSUMED]
    limits, rates = [], _limits(about, origin)
    for name, ways in sorted(members.items()):
        rate = _figure(rates, name, f"{origin}: limits", None)
        limits.append(Limit(name, np.array([place[way] for way in ways]), rate))
    chassis = [data[node].get("chassis", 0) for node in ranks]
    devices = {key: _device_figure(about, key, origin, most) for key, most in _DEVICE_FIGURES}
    # others may call something else by these names
    named: dict[str, Any] = {
        key: value
        for key, pattern, _ in NAMED
        if isinstance(value := about.get(key), str) and re.fullmatch(pattern, value)
    }
    topology = Topology(
        name=str(about.get("name") or Path(origin).stem)[:200] or "graph",
        nranks=len(ranks),
        switches=tuple(_switch_names(switches, origin)),
        link_src=columns[:, 0],
        link_dst=columns[:, 1],
        alpha_us=figures[:, 1],
        bandwidth_gbs=figures[:, 0],
        link_kind=figures[:, 2].astype(np.int64),
        limits=tuple(limits),
        alpha_assumed=bool(about.get("alpha_assumed")) or not stated["alpha_us"],
        nodes=np.array(
            chassis if all(type(one) is int and 0 <= one < MAX_RANKS for one in chassis) else [], dtype=np.int64
        ),
        sms=devices["sms"],
        compute_capability=devices["compute_capability"],
        **named,
        summary=" ".join(str(about.get("summary", "")).split()),
        source=" ".join(str(about.get("source", "")).split()),
        switch_ops=tuple(_switch_ops(data, switches, origin)),
    )
    return topology, tuple(remark for remark, known in zip(remarks, stated.values(), strict=True) if not known)


def _switch_ops(data: Mapping[Any, Mapping[str, Any]], switches: list[Any], origin: str) -> Iterator[SwitchOps]:
    """Of the switches whose nodes state `multicast` or `reduce`, parts of a port's rate."""
    for node, name in zip(switches, _switch_names(switches, origin), strict=True):
        if "multicast" in data[node] or "reduce" in data[node]:
            where = f"{origin}: node {_name(node)}"
            yield SwitchOps(name, *(_figure(data[node], key, where, 0.0) for key in ("multicast", "reduce")))


def _limits(about: Mapping[str, Any], origin: str) -> dict[str, Any]:
    stated = about.get("limits", {})
    try:
        stated = parse_json(stated, origin, "GB/s by name") if isinstance(stated, str) else stated
    except InputError:
        stated = None
    if not isinstance(stated, dict):
        raise InputError(f"{origin}: limits is no table; it must be GB/s by name")
    return stated


def _figure(values: Mapping[str, Any], key: str, where: str, missing: float | None) -> float:
    value = values.get(key, missing)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_MOST <= value <= _MOST:
        raise InputError(f"{where}: {key[:40]} {shown(value)}; it must be a number")
    return float(value)


def _device_figure(about: Mapping[str, Any], key: str, origin: str, most: int) -> int:
    """Return what a graph states of its devices, 0 where that is no whole number. Raises InputError: out of range."""
    value = about.get(key)
    if type(value) is not int:
        return 0
    if not 0 <= value <= most:
        raise InputError(f"{origin}: {key} {shown(value)}; it must be at most {most}")
    return value


def _switch_names(nodes: list[Any], origin: str) -> Iterator[str]:
    for node in nodes:
        name = str(node)
        if not is_switch_name(name):
            name = "switch." + re.sub(r"[^A-Za-z0-9_.:/-]", "-", name)[:80]
        if not is_switch_name(name):
            raise InputError(f"{origin}: switch {_name(node)}: must have a name of letters and digits")
        yield name


def _name(node: object) -> str:
    return repr(node)[:40]
