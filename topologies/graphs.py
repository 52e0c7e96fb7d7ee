"""Topologies as networkx graphs, and in the files that networkx reads and writes: GraphML, GML, node-link JSON.

A node is a rank unless its `kind` is "switch"; ranks have the order in which the nodes were added, or of their `rank`.
An edge has `gbs` (GB/s, 10⁹ bytes/s) and `alpha_us`. It may have `link`, its kind (`topologies.costs.LINK_KINDS`), and
`limit`, names of limits with commas between them. The graph's `limits` gives the GB/s of each limit (by name; in files
as JSON). A switch may state `multicast` and `reduce` as fractions of a port's rate. Edges without a direction go both
ways, and the bandwidths of parallel edges are added. Where no edge states `gbs`, or none `alpha_us`, the defaults of
the families are assumed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from topologies.clusters import Machine
from topologies.costs import LINK_KINDS, check_choice
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

_ASSUMED = {"gbs": DEFAULT_GBS, "alpha_us": DEFAULT_ALPHA_US}  # Figures of edges, where no edge states them.
_ASSUMED_UNITS = {"gbs": "GB/s", "alpha_us": "µs"}
_OF_EDGES = (*_ASSUMED, "link", "limit")  # Attributes of edges that are read.
_DEVICE_FIGURES = (("sms", MAX_SMS), ("compute_capability", MAX_CAPABILITY))
_MOST = 1e300  # Largest value of any figure.
FORMS = ("graphml", "gml", "json")
_MOST_ELEMENTS = 500_000  # Elements of GraphML; each takes half a KB, and an edge with its figures is four.
_GML = re.compile(r"\s*+(?:(?:#|Creator|Version|Comment)[^\n]*+\n\s*+)*+graph\s*+\[", re.IGNORECASE)


def is_graph(value: object) -> bool:
    """Return whether a value is a networkx graph, without importing networkx."""
    return any(kind.__module__.startswith("networkx.") for kind in type(value).__mro__)


def is_graph_text(text: str) -> bool:
    """Return whether a text looks like GraphML, GML or node-link JSON (one with "nodes", and "links" or "edges").

    Only a few words are looked for, so the text may still be wrong.
    """
    if text.lstrip().startswith("{"):
        return '"nodes"' in text and ('"links"' in text or '"edges"' in text)
    return "<graphml" in text[:4000] or _GML.match(text) is not None


def read_graph(text: str, origin: str) -> Machine:
    """Return the topology of a text in GraphML, GML or node-link JSON as a machine without NICs.

    The machine's remarks name the figures that no edge states and that are assumed.

    Args:
        text: The text.
        origin: Name of the text in errors; without its suffix also the topology's name, if the graph has none.

    Raises:
        InputError: The text has none of the three forms, its graph is no topology, or networkx is not installed; the
            message is one line.
    """
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
    except Exception as error:  # Each of networkx's readers raises errors of its own for broken files.
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(
            f"{origin}: {reason}; it must be GraphML, GML or node-link JSON as networkx reads it"
        ) from None
    topology, remarks = _from_graph(graph, origin)
    return Machine(topology, None, remarks)


def from_networkx(graph: Graph[Any], name: str | None = None) -> Topology:
    """Return the topology of a graph, which is not changed; it has no costs.

    A node is a rank unless its `kind` is "switch". Ranks have the order in which the nodes were added, also where nodes
    are integers, or that of their `rank` where all have one. An edge has `gbs` (GB/s) and `alpha_us`; an attribute that
    no edge has is assumed. Edges without a direction go both ways, the bandwidths of parallel edges are added, and an
    edge from a node to itself is refused. The head of this module has all attributes.

    Args:
        graph: The graph, directed or not, with parallel edges or without.
        name: Name of the graph in errors, and of the topology if the graph has no name of its own (up to a last dot).

    Raises:
        InputError: The graph is no topology, or an edge has a number under an unknown name where no edge has `gbs`, or
            none `alpha_us`.
    """
    origin = name or str(graph.graph.get("name") or "graph")
    topology, _ = _from_graph(graph, origin)
    lacking = [key for key in _ASSUMED if not any(key in values for _, _, values in graph.edges(data=True))]
    for a, b, values in graph.edges(data=True) if lacking else ():
        for key, value in values.items():
            if key not in _OF_EDGES and isinstance(value, Real) and not isinstance(value, bool):
                right = " or ".join(f"{missing} ({_ASSUMED_UNITS[missing]})" for missing in lacking)
                raise InputError(
                    f"{origin}: edge {_name(a)} to {_name(b)}: {shown(key)} is not known; it must be {right}"
                )
    return topology


def graph_text(topology: Topology, form: str) -> str:
    """Return the text of a topology in one of FORMS, without an executor's costs.

    Args:
        topology: The topology.
        form: "graphml", "gml" or "json"; any other form counts as "json", which is networkx's node-link form.

    Raises:
        InputError: networkx is not installed.
    """
    nx, graph = load_networkx(), topology.to_networkx()
    if form == "graphml":
        return "\n".join(nx.generate_graphml(graph)) + "\n"
    if form == "gml":
        return "\n".join(nx.generate_gml(graph, stringizer=str)) + "\n"
    return json.dumps(nx.node_link_data(graph, edges="links"), indent=1) + "\n"


def _parsed_gml(nx: Any, text: str) -> Graph[Any]:
    """Return the graph of a GML text, also where labels are missing or repeated, or parallel edges are not declared.

    Args:
        nx: The module networkx.
        text: The text.

    Raises:
        networkx.NetworkXError: No reading of the text succeeds.
    """
    parallel = re.sub(r"\bgraph\s*\[", "graph [\n  multigraph 1\n", text, count=1, flags=re.IGNORECASE)
    attempts = ((text, "label"), (text, None), (parallel, "label"), (parallel, None))
    for number, (variant, label) in enumerate(attempts):
        try:
            return cast("Graph[Any]", nx.parse_gml(variant, label=label))
        except nx.NetworkXError:
            if number == len(attempts) - 1:
                raise
    raise AssertionError


def _from_graph(graph: Graph[Any], origin: str) -> tuple[Topology, tuple[str, ...]]:
    """Return the topology of a graph, and a remark for each figure of edges that is assumed because no edge states it.

    Args:
        graph: The graph, which is not changed.
        origin: Name of the graph in errors.

    Raises:
        InputError: The graph is no topology.
    """
    ranks, switches = _ranks_and_switches(graph, origin)
    attributes, data = graph.graph, graph.nodes
    stated = {key: any(key in values for _, _, values in graph.edges(data=True)) for key in _ASSUMED}
    assumed = {key: figure for key, figure in _ASSUMED.items() if not stated[key]}
    figures_of_pair, members = _links(graph, {node: i for i, node in enumerate([*ranks, *switches])}, assumed, origin)
    pairs = sorted(figures_of_pair)
    place = {pair: i for i, pair in enumerate(pairs)}
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    figures = np.array([figures_of_pair[pair] for pair in pairs], dtype=np.float64).reshape(-1, 3)
    limit_gbs = _limits(attributes, origin)
    limits = [
        Limit(name, np.array([place[pair] for pair in limited]), _figure(limit_gbs, name, f"{origin}: limits", None))
        for name, limited in sorted(members.items())
    ]
    chassis = [data[node].get("chassis", 0) for node in ranks]
    has_chassis = all(type(number) is int and 0 <= number < MAX_RANKS for number in chassis)
    # Other programs may use these attribute names for something else, so values of another form are ignored.
    device: dict[str, Any] = {
        key: value
        for key, pattern, _ in NAMED
        if isinstance(value := attributes.get(key), str) and re.fullmatch(pattern, value)
    }
    device |= {key: _device_figure(attributes, key, origin, most) for key, most in _DEVICE_FIGURES}
    summary = " ".join(str(attributes.get("summary", "")).split())
    if "gbs" in assumed:
        summary = f"{summary or f'{len(ranks)} ranks'}, {assumed['gbs']:g} GB/s a link assumed"
    topology = Topology(
        name=str(attributes.get("name") or Path(origin).stem)[:200] or "graph",
        nranks=len(ranks),
        switches=tuple(_switch_names(switches)),
        link_src=columns[:, 0],
        link_dst=columns[:, 1],
        alpha_us=figures[:, 1],
        bandwidth_gbs=figures[:, 0],
        link_kind=figures[:, 2].astype(np.int64),
        limits=tuple(limits),
        alpha_assumed=bool(attributes.get("alpha_assumed")) or not stated["alpha_us"],
        nodes=np.array(chassis if has_chassis else [], dtype=np.int64),
        **device,
        summary=summary,
        source=" ".join(str(attributes.get("source", "")).split()),
        switch_ops=tuple(_switch_ops(data, switches, origin)),
    )
    return topology, tuple(f"no edge states {key}: {figure:g} is assumed" for key, figure in assumed.items())


def _ranks_and_switches(graph: Graph[Any], origin: str) -> tuple[list[Any], list[Any]]:
    """Return the nodes that are ranks, and those that are switches, each in the order of the nodes.

    Ranks are sorted by their `rank` instead where all have a whole number there.

    Raises:
        InputError: The graph is too large, has no rank, or has a node of another kind.
    """
    if not isinstance(graph.graph, Mapping):
        raise InputError(f"{origin}: graph: {shown(graph.graph)}; it must be an object")
    if graph.number_of_nodes() > MAX_RANKS or graph.number_of_edges() > MAX_LINKS:
        raise InputError(f"{origin}: too large; it must have at most {MAX_RANKS} nodes and {MAX_LINKS} edges")
    nodes: dict[str, list[Any]] = {"rank": [], "switch": []}
    for node, values in graph.nodes(data=True):
        kind = values.get("kind", "rank")
        if kind not in ("rank", "switch"):
            raise InputError(f"{origin}: node {_name(node)}: kind {kind!r:.40}; it must be rank or switch")
        nodes[kind].append(node)
    ranks = nodes["rank"]
    if all(type(graph.nodes[node].get("rank")) is int for node in ranks):
        ranks.sort(key=lambda node: graph.nodes[node]["rank"])
    if not ranks:
        raise InputError(f"{origin}: has no rank; it must have one node at least that is no switch")
    return ranks, nodes["switch"]


def _links(
    graph: Graph[Any], number: Mapping[Any, int], assumed: Mapping[str, float], origin: str
) -> tuple[dict[tuple[int, int], list[float]], dict[str, set[tuple[int, int]]]]:
    """Return [GB/s, α in µs, index into LINK_KINDS] of each link by its ends, and by limit the ends of its links.

    Parallel edges become one link with the sum of their GB/s, the largest α and the first one's kind. Edges without
    a direction give two links.

    Args:
        graph: The graph.
        number: Vertex of each node.
        assumed: Figures that no edge states, "gbs" or "alpha_us", with the values to assume.
        origin: Name of the graph in errors.

    Raises:
        InputError: An edge leads to its own node, lacks a figure that others state, or has a wrong one or a wrong kind.
    """
    figures_of_pair: dict[tuple[int, int], list[float]] = {}
    members: dict[str, set[tuple[int, int]]] = {}
    for a, b, values in graph.edges(data=True):
        where = f"{origin}: edge {_name(a)} to {_name(b)}"
        if a == b:
            raise InputError(f"{where}: leads to its own node; it must be between two different nodes")
        lacking = next((key for key in _ASSUMED if key not in values and key not in assumed), None)
        if lacking is not None:
            raise InputError(f"{where}: has no {lacking}, which other edges have; it must be on all edges or on none")
        gbs, alpha = (_figure(values, key, where, assumed.get(key)) for key in _ASSUMED)
        link = str(values.get("link", LINK_KINDS[0]))
        check_choice(link, LINK_KINDS, where, "kind of link")
        for pair in ((number[a], number[b]), *(() if graph.is_directed() else ((number[b], number[a]),))):
            figures = figures_of_pair.setdefault(pair, [0.0, alpha, LINK_KINDS.index(link)])
            figures[0] += gbs
            figures[1] = max(figures[1], alpha)
            for name in _limit_names(values.get("limit"), where):
                members.setdefault(name, set()).add(pair)
    return figures_of_pair, members


def _limit_names(value: Any, where: str) -> list[str]:
    """Return the names of an edge's limits, which are one text with commas or a JSON list of texts.

    Args:
        value: What the edge states; nothing if it has no limit.
        where: Name of the edge in errors.

    Raises:
        InputError: The list is wrong.
    """
    text = str(value or "")
    if not text.startswith("["):
        return text.split(",") if text else []
    names = parse_json(text, where, "a list of limits' names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{where}: limit {shown(value)}; it must be names with commas, or a JSON list of names")
    return names


def _switch_ops(data: Mapping[Any, Mapping[str, Any]], switches: list[Any], origin: str) -> Iterator[SwitchOps]:
    """Yield the operations of the switches whose nodes state `multicast` or `reduce`; one of them that is missing is 0.

    Args:
        data: Attributes of each node; `multicast` and `reduce` are fractions of a port's rate.
        switches: The nodes that are switches.
        origin: Name of the graph in errors.

    Raises:
        InputError: A fraction is no number, or a switch's name is not allowed.
    """
    for node, name in zip(switches, _switch_names(switches), strict=True):
        if "multicast" in data[node] or "reduce" in data[node]:
            where = f"{origin}: node {_name(node)}"
            yield SwitchOps(name, *(_figure(data[node], key, where, 0.0) for key in ("multicast", "reduce")))


def _limits(attributes: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the GB/s of each limit by name, as the graph states them, unchecked; empty where it states none.

    Raises:
        InputError: They are no table, nor one in JSON.
    """
    stated = attributes.get("limits", {})
    try:
        stated = parse_json(stated, origin, "GB/s by name") if isinstance(stated, str) else stated
    except InputError:
        stated = None
    if not isinstance(stated, dict):
        raise InputError(f"{origin}: limits is no table; it must be GB/s by name")
    return stated


def _figure(values: Mapping[str, Any], key: str, where: str, missing: float | None) -> float:
    """Return a number of a node, an edge or the graph; `missing` stands for it where it is absent.

    Raises:
        InputError: It is no finite number, or it is absent and `missing` is None; the error begins with `where`.
    """
    value = values.get(key, missing)
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST <= value <= _MOST:
        raise InputError(f"{where}: {key[:40]} {shown(value)}; it must be a number")
    return float(value)


def _device_figure(attributes: Mapping[str, Any], key: str, origin: str, most: int) -> int:
    """Return a graph's figure of its devices, 0 where it is absent or no whole number.

    Raises:
        InputError: The figure is below 0 or above `most`.
    """
    value = attributes.get(key)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return 0
    if not 0 <= value <= most:
        raise InputError(f"{origin}: {key} {shown(value)}; it must be at most {most}")
    return int(value)


def _switch_names(nodes: list[Any]) -> Iterator[str]:
    """Yield a name for each switch, in the order of `nodes`; names that are replaced may become equal.

    A name that no switch can have becomes "switch." and its first 80 characters, with "-" for each character that is
    not allowed in a name.

    Args:
        nodes: The nodes of the graph that are switches.
    """
    for node in nodes:
        name = str(node)
        yield name if is_switch_name(name) else "switch." + re.sub(r"[^A-Za-z0-9_.:/-]", "-", name)[:80]


def _name(node: object) -> str:
    """Return a node as messages show it: the first 40 characters of its repr."""
    return repr(node)[:40]
