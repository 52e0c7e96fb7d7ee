"""Reader of NetGraph's scenarios, as far as they describe nodes and links with a capacity.

Read are nodes, groups (`count`, `template`, nested `nodes`, names such as `rack[1-4]`), blueprints, and links between
nodes whose names begin with a path, by the patterns mesh and one_to_one; also the older spelling (`groups`,
`node_count`, `name_template`, `use_blueprint`, `adjacency`, `link_params`). Conditions, variables and rules are
refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from topologies.clusters import Machine
from topologies.costs import kind_numbers
from topologies.errors import InputError
from topologies.importers.fabric import HOP_ALPHA_US
from topologies.importers.rates import NIC_ALPHA_US
from topologies.importers.simulators.switched import machine_of_switches
from topologies.text.counts import format_count
from topologies.text.fields import shown
from topologies.text.yaml_files import parse_yaml
from topologies.topology import MAX_GBS, MAX_LINKS, MIN_GBS, Topology

_MOST_NODES = 100_000
_MOST_PAIRS = 500_000  # Most pairs of nodes that links join.
_DEEPEST = 16  # Levels of groups and blueprints in each other.
_MOST_MATCHED = 5_000_000  # Most names that are compared with paths; with .* a name counts as many.
_STAR = 50  # Names that one counts as, for each .* of the path.
_LONGEST_NAME = 255
_MOST_NAMED = 5  # Most switches that a remark names.
_GBPS_PER_GBS = 8.0
_SCENARIO = re.compile(r"^network[ \t]*:", re.MULTILINE)
_CONTENT = re.compile(r"^[ \t]+(?:nodes|groups|links)[ \t]*:", re.MULTILINE)
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
# A path: letters of names, a dot for any letter, .* for any letters, [..] for one of some letters, ^ and $ at the ends.
_PATH = re.compile(r"\^?(?:[A-Za-z0-9_:/-]|\.\*?|\[[A-Za-z0-9_-]{1,40}\])*\$?")
_MOST_STARS = 2
_HOSTS = frozenset(("accelerator", "compute", "endpoint", "gpu", "host", "npu", "server", "xpu"))
# Older spellings of keys.
_SPELLINGS = {
    "node_count": "count", "name_template": "template", "use_blueprint": "blueprint", "parameters": "params",
    "groups": "nodes", "adjacency": "links", "link_count": "count",
}  # fmt: skip
_NODE = ("blueprint", "params", "nodes", "count", "template", "attrs", "disabled", "risk_groups")
_LINK = ("source", "target", "pattern", "count", "capacity", "cost", "attrs", "disabled", "risk_groups")
_RIGHT = "a scenario of NetGraph: network with nodes and links"


@dataclass
class _Scenario:
    """The nodes of a scenario, and the definitions of its links with the path under which each stands.

    Attributes:
        origin: Name of the file in errors.
        blueprints: Definition of each blueprint.
        roles: Role of each node by name, "" for none.
        disabled: Names of the nodes that are disabled.
        links: Place in the file, path and definition of each link.
        visits: Number of definitions of nodes that have been expanded.
        matched: Number of names that have been compared with paths.
        joined: Number of pairs of nodes that links have joined; a pair counts once for each link that joins it.
        enabled_links: Number of definitions of links that are not disabled.
        default_links: Number of those that state no capacity.
    """

    origin: str
    blueprints: Mapping[str, Any]
    roles: dict[str, str] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)
    links: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    visits: int = 0
    matched: int = 0
    joined: int = 0
    enabled_links: int = 0
    default_links: int = 0

    def fail(self, place: str, problem: str) -> InputError:
        """Return an InputError, which the caller raises, about a place in the file."""
        return InputError(f"{self.origin}: {place[:80]}: {problem}")

    def table(self, value: Any, place: str, keys: Sequence[str] = ()) -> dict[str, Any]:
        """Return a mapping with its keys in today's spelling.

        Args:
            value: The mapping; None or "" is an empty one.
            place: Place of the mapping in errors.
            keys: Keys that it may have; none: any.

        Raises:
            InputError: The value is no mapping, states a key in both spellings, or has another key.
        """
        if not value:
            return {}
        if not isinstance(value, Mapping):
            raise self.fail(place, f"is no mapping; it must be one, as in {_RIGHT}")
        table: dict[str, Any] = {}
        for key, item in value.items():
            name = _SPELLINGS.get(str(key), str(key)) if keys else str(key)
            if name in table:
                raise self.fail(place, f"{name} stands twice; it must be once")
            if keys and name not in keys:
                raise self.fail(place, f"{shown(name)} is not read; it must have only {', '.join(keys)}")
            table[name] = item
        return table

    def add_nodes(
        self, groups: Any, parent: str, place: str, role: str = "", is_disabled: bool = False, depth: int = 0
    ) -> None:
        """Add the nodes of definitions, and what their blueprints say of links.

        Args:
            groups: Definition of each node or group by name.
            parent: Path that all names begin with, "" for none.
            place: Place of the definitions in errors.
            role: Role of nodes that state none.
            is_disabled: Whether all nodes are disabled.
            depth: Number of groups around them.

        Raises:
            InputError: A definition is wrong, or there are too many nodes or levels.
        """
        if depth >= _DEEPEST:
            raise self.fail(place, f"more than {_DEEPEST} levels of groups; it must be fewer")
        for pattern, definition in self.table(groups, place).items():
            at = f"{place}: {pattern}"
            group = self.table(definition, at, _NODE)
            attributes = self.table(group.get("attrs"), at)
            is_off = is_disabled or _is_true(group.get("disabled"))
            own_role = next((str(attributes[key]).lower() for key in ("role", "type") if attributes.get(key)), role)
            for name in self._names(pattern, at):
                self.visits += 1
                if self.visits > _MOST_NODES:
                    raise self.fail(at, f"more than {_MOST_NODES} nodes; it must be fewer")
                path = f"{parent}/{name}" if parent else name
                if "blueprint" in group:
                    self._add_blueprint(group, path, at, own_role, is_off, depth)
                elif "nodes" in group:
                    self.add_nodes(group["nodes"], path, at, own_role, is_off, depth + 1)
                else:
                    self._add_group(group, name, path, at, own_role, is_off)

    def _add_blueprint(
        self, group: Mapping[str, Any], path: str, place: str, role: str, is_disabled: bool, depth: int
    ) -> None:
        """Add the nodes and links of the blueprint that a group names, with the group's parameters.

        Raises:
            InputError: There is no such blueprint, or a parameter sets something else than count or template.
        """
        name = group["blueprint"]
        if not isinstance(name, str) or name not in self.blueprints:
            raise self.fail(place, f"no blueprint {shown(name)}; it must be one of the file's")
        at = f"blueprint {name}"
        blueprint = self.table(self.blueprints[name], at, ("nodes", "links"))
        nodes = {key: self.table(node, at, _NODE) for key, node in self.table(blueprint.get("nodes"), at).items()}
        for parameter, value in self.table(group.get("params"), place).items():
            child, _, key = parameter.rpartition(".")
            key = _SPELLINGS.get(key, key)
            if child not in nodes or key not in ("count", "template"):
                raise self.fail(place, f"parameter {shown(parameter)} is not read; it must be GROUP.count or .template")
            nodes[child] = {**nodes[child], key: value}
        self.add_nodes(nodes, path, at, role, is_disabled, depth + 1)
        self.add_links(blueprint.get("links"), path, at)

    def _add_group(
        self, group: Mapping[str, Any], name: str, path: str, place: str, role: str, is_disabled: bool
    ) -> None:
        """Add the nodes of a group without further groups: the node itself, or `count` nodes named by `template`.

        Raises:
            InputError: The count or template is wrong, a name is too long or stands twice, or there are too many nodes.
        """
        names = [path]
        if "count" in group or "template" in group:
            template = group.get("template") or f"{name}-{{n}}"
            if not isinstance(template, str) or re.search(r"[{}]", re.sub(r"\{(?:n|node_num)\}", "", template)):
                raise self.fail(place, f"template {shown(template)}: must be a name with {{n}} for the number")
            count = self.whole(group.get("count", "1"), _MOST_NODES - len(self.roles), f"{place}: count")
            names = [f"{path}/{re.sub(r'[{](?:n|node_num)[}]', str(i), template)}" for i in range(1, count + 1)]
        for full_name in names:
            if len(full_name) > _LONGEST_NAME or not full_name.isprintable():
                raise self.fail(place, f"{shown(full_name)}: must be a name of at most {_LONGEST_NAME} letters")
            if full_name in self.roles:
                raise self.fail(place, f"{shown(full_name)} stands twice; it must be once")
            self.roles[full_name] = role
            if is_disabled:
                self.disabled.add(full_name)

    def add_links(self, links: Any, parent: str, place: str) -> None:
        """Add definitions of links under a path.

        Raises:
            InputError: They are no list, or there are too many.
        """
        if links and not isinstance(links, list):
            raise self.fail(place, "links are no list; they must be one")
        for i, definition in enumerate(links or [], 1):
            at = f"{place}: link {i}"
            if len(self.links) >= _MOST_NODES:
                raise self.fail(at, f"more than {_MOST_NODES} links; it must be fewer")
            if isinstance(definition, Mapping) and "link_params" in definition:
                own = {key: value for key, value in definition.items() if key != "link_params"}
                definition = {**own, **self.table(definition["link_params"], f"{at}: link_params")}
            self.links.append((at, parent, self.table(definition, at, _LINK)))

    def capacities(self) -> dict[tuple[str, str], float]:
        """Return the capacity between each two linked nodes, the sum of their links.

        Raises:
            InputError: A link is wrong, or there are too many.
        """
        capacity_of: dict[tuple[str, str], float] = {}
        nodes_of_path: dict[str, list[str]] = {}
        for at, parent, link in self.links:
            if _is_true(link.get("disabled")):
                continue
            self.enabled_links += 1
            self.default_links += "capacity" not in link
            capacity = _number(link.get("capacity", "1"))
            if not MIN_GBS <= capacity / _GBPS_PER_GBS <= MAX_GBS:
                raise self.fail(at, f"capacity {shown(link.get('capacity'))}: must be a positive number")
            capacity *= self.whole(link.get("count", "1"), MAX_LINKS, f"{at}: count")
            ends = [
                self._matching(link.get(key), parent, f"{at}: {key}", nodes_of_path) for key in ("source", "target")
            ]
            pattern = link.get("pattern", "mesh")
            counts = len(ends[0]), len(ends[1])
            self.joined += max(counts) if pattern == "one_to_one" else counts[0] * counts[1]
            if self.joined > _MOST_PAIRS:
                raise self.fail(at, f"too many links; it must be at most {_MOST_PAIRS} in all")
            pairs = self._pairs(ends[0], ends[1], pattern, at)
            for pair in dict.fromkeys((min(pair), max(pair)) for pair in pairs):
                if pair[0] != pair[1]:
                    capacity_of[pair] = capacity_of.get(pair, 0.0) + capacity
        return capacity_of

    def _pairs(self, sources: list[str], targets: list[str], pattern: Any, place: str) -> Iterator[tuple[str, str]]:
        """Return the pairs of nodes that a pattern joins: all, or one by one with the fewer nodes repeated in turn.

        Raises:
            InputError: The pattern is unknown, or one_to_one joins numbers of nodes neither of which divides the other.
        """
        if pattern == "mesh" or not sources or not targets:
            return product(sources, targets)
        if pattern != "one_to_one":
            raise self.fail(place, f"pattern {shown(pattern)} is not known; it must be mesh or one_to_one")
        most, least = max(len(sources), len(targets)), min(len(sources), len(targets))
        if most % least:
            raise self.fail(
                place, f"one_to_one from {len(sources)} nodes to {len(targets)}; one number must divide the other"
            )
        return ((sources[j % len(sources)], targets[j % len(targets)]) for j in range(most))

    def _matching(self, selector: Any, parent: str, place: str, nodes_of_path: dict[str, list[str]]) -> list[str]:
        """Return the nodes whose names begin with a path, without those that are disabled.

        Args:
            selector: The path, or a mapping with `path` only.
            parent: Path that it stands under.
            place: Place of the path in errors.
            nodes_of_path: Results by full path, to which this one is added.

        Raises:
            InputError: The selector has conditions, or its path is a pattern that is not read or matches no node.
        """
        path = self.table(selector, place, ("path",)).get("path") if isinstance(selector, Mapping) else selector
        if not isinstance(path, str) or not _PATH.fullmatch(path) or path.count(".*") > _MOST_STARS:
            raise self.fail(
                place, f"{shown(path)} is not read; it must be a name or its beginning, with .* at most twice"
            )
        start = "^" if path.startswith("^") else ""
        inner = path[len(start) :].strip("/") if not parent else path[len(start) :].lstrip("/")
        full = f"{parent}/{inner}" if parent else inner
        if full not in nodes_of_path:
            self.matched += len(self.roles) * _STAR ** path.count(".*")
            if self.matched > _MOST_MATCHED:
                raise self.fail(place, "too many paths for so many nodes; it must be fewer")
            pattern = re.escape(parent) + "/" + inner if parent else inner
            try:
                matches = re.compile(pattern).match
            except re.error:
                raise self.fail(place, f"{shown(path)} is no path; it must be a name or its beginning") from None
            matched = [name for name in self.roles if matches(name)]
            if not matched:
                raise self.fail(place, f"{shown(path)} matches no node; it must be a node's name or its beginning")
            nodes_of_path[full] = [name for name in matched if name not in self.disabled]
        return nodes_of_path[full]

    def _names(self, pattern: str, place: str) -> list[str]:
        """Return the names that a name with lists in brackets stands for: `rack[1-2]` for rack1 and rack2.

        Raises:
            InputError: A range counts down, or there are too many names.
        """
        choices: list[list[str]] = []
        for i, part in enumerate(_BRACKETS.split(pattern)):
            if i % 2 == 0:
                choices.append([part])
                continue
            items: list[str] = []
            for item in part.split(","):
                numbers = _RANGE.fullmatch(item.strip())
                low, high = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
                if high < low or high - low + len(items) > _MOST_NODES:
                    raise self.fail(place, f"{shown(item)}: must count up, to at most {_MOST_NODES} names")
                items += [str(number) for number in range(low, high + 1)] if numbers else [item.strip()]
            choices.append(items)
        if math.prod(map(len, choices)) > _MOST_NODES:
            raise self.fail(place, f"stands for too many names; it must be at most {_MOST_NODES}")
        return ["".join(parts) for parts in product(*choices)]

    def whole(self, value: Any, most: int, place: str) -> int:
        """Return the whole number of a text, from 1 to `most`, or raise InputError where it is none."""
        if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}", value) or not 1 <= int(value) <= most:
            raise self.fail(place, f"{shown(value)}: must be a whole number from 1 to {most}")
        return int(value)


def is_netgraph(text: str) -> bool:
    """Return whether a text is YAML with a top key `network` and nodes, groups or links below some key."""
    return _SCENARIO.search(text) is not None and _CONTENT.search(text) is not None


def read_netgraph(text: str, origin: str) -> Machine:
    """Return the machine of a scenario.

    Nodes whose attribute `role` (or `type`) is that of a host (host, server, gpu, …) are ranks, and all others are
    switches; where no node has such a role, each node is a rank. A scenario states no units: capacities are taken in
    Gbit/s, per direction, and every α is assumed.

    Args:
        text: The text.
        origin: Name of the text in errors, whose last part names the machine.

    Raises:
        InputError: The text states no network, or one with parts that are not read; the message is one line.
    """
    document = parse_yaml(text, origin, references=True)
    scenario = _Scenario(origin, {})
    top = scenario.table(document, "scenario")
    scenario.blueprints = scenario.table(top.get("blueprints"), "blueprints")
    network = top.get("network")
    keys = ("name", "version", "nodes", "links")
    if isinstance(network, Mapping) and "groups" in network and "nodes" in network:  # The older spelling has both.
        groups = scenario.table(network["groups"], "groups")
        network = {**network, "nodes": {**scenario.table(network["nodes"], "nodes"), **groups}}
        del network["groups"]
    if isinstance(network, Mapping) and "adjacency" in network and "links" in network:
        network = {**network, "links": [*(network["adjacency"] or []), *(network["links"] or [])]}
        del network["adjacency"]
    table = scenario.table(network, "network", keys)
    scenario.add_nodes(table.get("nodes"), "", "nodes")
    scenario.add_links(table.get("links"), "", "network")
    capacity_of = scenario.capacities()
    names = [name for name in scenario.roles if name not in scenario.disabled]
    if not names or not capacity_of:
        raise InputError(f"{origin}: network: has no nodes or no links; it must be {_RIGHT}")
    hosts = [name for name in names if scenario.roles[name] in _HOSTS]
    non_hosts = [name for name in names if scenario.roles[name] not in _HOSTS] if hosts else []
    linked = {end for pair in capacity_of for end in pair}
    switches = [name for name in non_hosts if name in linked]
    remarks = [_sources(scenario)]
    if not hosts:
        remarks.append("no node has the role of a host: each node is a rank")
    if switches:
        more = f", and {len(switches) - _MOST_NAMED} more" if len(switches) > _MOST_NAMED else ""
        remarks.append(f"nodes without the role of a host are switches: {', '.join(switches[:_MOST_NAMED])}{more}")
    if len(switches) < len(non_hosts):
        remarks.append(f"nodes left out because they have no links: {len(non_hosts) - len(switches)}")
    ranks = hosts or names
    return machine_of_switches(_drawn(ranks, switches, capacity_of, origin), ranks, remarks, origin)


def _sources(scenario: _Scenario) -> str:
    """Return the remark that states which figures of a scenario are read."""
    defaults, links = scenario.default_links, scenario.enabled_links
    if not defaults:
        return "nodes, links and capacities: read, in Gbit/s per direction; every α is assumed"
    default = "NetGraph's default of 1, taken as 1 Gbit/s per direction; every α is assumed"
    if defaults == links:
        return f"nodes and links: read; no link states a capacity: each has {default}"
    return (
        "nodes, links and stated capacities: read, in Gbit/s per direction;"
        f" {defaults} of {links} link definitions state none: {default}"
    )


def _drawn(
    ranks: Sequence[str], switches: Sequence[str], capacity_of: Mapping[tuple[str, str], float], origin: str
) -> Topology:
    """Return the topology of nodes and capacities.

    Args:
        ranks: Nodes that are ranks.
        switches: Nodes that are switches.
        capacity_of: Capacity in Gbit/s between two nodes.
        origin: Source of the topology, which names it.
    """
    vertex = {name: i for i, name in enumerate([*ranks, *switches])}
    ends = np.array([(vertex[first], vertex[second]) for first, second in capacity_of], dtype=np.int64)
    gbs = np.array(list(capacity_of.values())) / _GBPS_PER_GBS
    rank_ends = (ends < len(ranks)).sum(axis=1)
    alpha_us = np.choose(rank_ends, [HOP_ALPHA_US, NIC_ALPHA_US / 2, NIC_ALPHA_US])
    return Topology(
        name=Path(origin).stem or "network",
        nranks=len(ranks),
        switches=tuple(
            name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.:/-]*", name) else f"s{i}" for i, name in enumerate(switches)
        ),
        link_src=np.concatenate([ends[:, 0], ends[:, 1]]),
        link_dst=np.concatenate([ends[:, 1], ends[:, 0]]),
        alpha_us=np.tile(alpha_us, 2),
        bandwidth_gbs=np.tile(gbs, 2),
        alpha_assumed=True,
        summary=format_count(len(ranks), "node")
        + (f" on {format_count(len(switches), 'switch', 'switches')}" if switches else ""),
        source=origin,
        link_kind=kind_numbers("network", 2 * len(ends)),
    )


def _number(value: Any) -> float:
    """Return the number of a text; NaN where it is none."""
    is_number = isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?", value)
    return float(value) if is_number else math.nan


def _is_true(value: Any) -> bool:
    """Return whether a text of YAML is true."""
    return str(value).lower() in ("true", "yes", "on")
