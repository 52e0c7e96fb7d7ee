"""A physical machine or cluster: ranks, switches, directed links and the limits that links share."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.arrays import Floats, Ints, index_among, ranges
from topologies.costs import ANY, LINK_KINDS, Costs, check_choice
from topologies.errors import InputError
from topologies.optional import optional_module

if TYPE_CHECKING:
    from networkx import DiGraph

MAX_RANKS = 1_000_000
MAX_LINKS = 4_200_000  # Every pair of 2048 ranks; reading so many takes half a GiB.
# Beyond these a duration in µs overflows or loses its meaning; no cable is near them.
MIN_GBS, MAX_GBS = 1e-9, 1e9
MAX_ALPHA_US = 1e9
MIN_CAPABILITY, MAX_CAPABILITY = 30, 999  # Ten times the version; NCCL never ran on a GPU below 3.0.
MAX_SMS = 4096  # The largest device has some three hundred.
GCN = r"gfx[0-9a-f]{3,4}"
# Fields of a topology that name a device or a machine, their patterns, and the patterns in words.
NAMED = (
    ("gcn", GCN, "as in gfx942"),
    ("platform", r"[a-z0-9][a-z0-9._-]{0,39}", "a cloud's name of a machine as in p5.48xlarge"),
)
SWITCH_NAME = r"[A-Za-z][A-Za-z0-9_.:/-]*"


def is_switch_name(name: str) -> bool:
    """Return whether `name` can name a switch: an ASCII letter, then ASCII letters, digits and _ . : / - only."""
    return re.fullmatch(SWITCH_NAME, name) is not None


@dataclass(frozen=True, eq=False)
class Limit:
    """A capacity that several physical links share.

    Attributes:
        name: The shared part ("nic0 out").
        links: Indices of physical links of the topology, sorted, each once: int64.
        bandwidth_gbs: Bandwidth in GB/s that all these links carry in sum.
    """

    name: str
    links: Ints
    bandwidth_gbs: float


@dataclass(frozen=True)
class SwitchOps:
    """The multicast and reduction that a switch offers to the ranks with links to and from it.

    A multicast takes a message once from one rank and gives it to every member, the sender included. A reduction takes
    a message from every member and gives the sum to one of them.

    Attributes:
        switch: The switch's name.
        multicast: Rate of multicasts as a fraction of a port's rate, 0 to 1 (0: the switch cannot multicast). The sum
            of all multicasts that cross a port in one direction stays within this rate.
        reduce: Rate of reductions as a fraction of a port's rate, with the same meaning.
    """

    switch: str
    multicast: float = 1.0
    reduce: float = 1.0


@dataclass(frozen=True, eq=False)
class Topology:
    """A graph of ranks 0..nranks-1, switches after them, and directed links between these vertices.

    There is at most one link from one vertex to another. Links are sorted by (src, dst) in whatever order they come, so
    that equal machines give equal arrays; `limits` is renumbered to match. All arrays are copies and read-only.

    Attributes:
        name: Name of the topology, one line.
        nranks: Number of ranks.
        switches: Names of the switches; switch j is the vertex nranks + j. A switch forwards and holds nothing.
        link_src: Source vertex of each link: int64 (nlinks,).
        link_dst: Destination vertex of each link: int64 (nlinks,).
        alpha_us: Latency α of each link in µs: float64 (nlinks,).
        bandwidth_gbs: Bandwidth of each link in GB/s (10⁹ bytes/s): float64 (nlinks,).
        limits: Capacities that several physical links share.
        alpha_assumed: Whether some α is an assumption that nobody has published.
        nodes: Chassis of each rank, a number from 0 to nranks-1: int64 (nranks,). Given empty, it becomes all 0.
        sms: Number of SMs of a device (AMD: compute units), on each of which one threadblock can spin; 0: unknown.
        compute_capability: Compute capability of NVIDIA GPUs without the point (90: Hopper); 0: none or unknown.
        gcn: Architecture of AMD GPUs (gfx942); "": none or unknown.
        platform: A cloud's name of the machine (p5.48xlarge), by which libraries' plug-ins recognise it.
        summary: Short description: "8 GPUs, NVSwitch, 300 GB/s each way".
        source: Where the figures come from.
        link_kind: Kind of each link, an index into `costs.LINK_KINDS`: int64 (nlinks,). Given empty, it becomes all
            "other".
        costs: An executor's costs, as the machine states them.
        protocol: Protocol under which the costs are on (`topologies.costed`); "": they are off.
        switch_ops: Switches that multicast or reduce, in the order of `switches`; those with both rates 0 are dropped.

    Raises:
        InputError: The parts do not make a topology; the message is one line.
    """

    name: str
    nranks: int
    switches: tuple[str, ...]
    link_src: Ints
    link_dst: Ints
    alpha_us: Floats
    bandwidth_gbs: Floats
    limits: tuple[Limit, ...] = ()
    alpha_assumed: bool = False
    nodes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sms: int = 0
    compute_capability: int = 0
    gcn: str = ""
    platform: str = ""
    summary: str = ""
    source: str = ""
    link_kind: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    costs: Costs | None = None
    protocol: str = ""
    switch_ops: tuple[SwitchOps, ...] = ()

    def __post_init__(self) -> None:
        self._check_names()
        self._check_costs()
        src, dst = _integers("link_src", self.link_src), _integers("link_dst", self.link_dst)
        alpha, gbs = _floats("alpha_us", self.alpha_us), _floats("bandwidth_gbs", self.bandwidth_gbs)
        if not len(src) == len(dst) == len(alpha) == len(gbs):
            raise self._error(
                f"link columns have lengths {len(src)}, {len(dst)}, {len(alpha)}, {len(gbs)}; "
                "link_src, link_dst, alpha_us and bandwidth_gbs must be equally long"
            )
        order = self._check_links(src, dst, alpha, gbs)
        new_index = index_among(len(order), order)
        nodes = _integers("nodes", self.nodes)
        if not len(nodes):
            nodes = np.zeros(self.nranks, dtype=np.int64)
        if len(nodes) != self.nranks or nodes.min() < 0 or nodes.max() >= self.nranks:
            raise self._error(
                f"nodes must hold {self.nranks} numbers from 0 to {self.nranks - 1}, one a rank; it holds {len(nodes)}"
            )
        kind = self._checked_kinds(len(order))[order]
        columns = ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "link_kind", "nodes")
        values = (src[order], dst[order], alpha[order], gbs[order], kind, nodes)
        for column, value in zip(columns, values, strict=True):
            value.setflags(write=False)
            object.__setattr__(self, column, value)
        object.__setattr__(self, "switches", tuple(self.switches))
        object.__setattr__(self, "limits", tuple(self._checked_limit(x, new_index) for x in self.limits))
        self._check_differ("limits", [x.name for x in self.limits])
        object.__setattr__(self, "switch_ops", self._checked_switch_ops())

    @property
    def nlinks(self) -> int:
        """Return the number of directed physical links."""
        return len(self.link_src)

    @property
    def nvertices(self) -> int:
        """Return the number of vertices: ranks plus switches."""
        return self.nranks + len(self.switches)

    def vertex_name(self, vertex: int) -> str:
        """Return '3' for rank 3, or the switch's name for a switch.

        Raises:
            InputError: There is no such vertex.
        """
        if 0 <= vertex < self.nranks:
            return str(int(vertex))
        if self.nranks <= vertex < self.nvertices:
            return self.switches[vertex - self.nranks]
        raise self._error(f"no vertex {vertex}; vertices are 0 to {self.nvertices - 1}")

    def group(self, ranks: Sequence[int]) -> Ints:
        """Return ranks of this topology as int64 (ranks,), in their order.

        Raises:
            InputError: There are no ranks, they are no flat sequence of whole numbers, or a rank is not in the topology
                or given twice.
        """
        column = np.asarray(ranks)
        last = self.nranks - 1
        if column.ndim != 1 or not column.size or column.dtype.kind not in "iu":
            raise InputError(f"ranks: must be a sequence of at least one whole number from 0 to {last}")
        numbers = column.astype(np.int64)
        outside = (numbers < 0) | (numbers > last)
        if outside.any():
            bad = int(numbers[np.argmax(outside)])
            raise InputError(f"ranks: {bad} is not in {self.name}; it must be 0 to {last}")
        values, counts = np.unique(numbers, return_counts=True)
        if len(values) < len(numbers):
            raise InputError(f"ranks: {int(values[np.argmax(counts)])} is given twice; each must be given once")
        return numbers

    def limits_crossed(self, user: Ints, link: Ints) -> tuple[Ints, Ints]:
        """Return (user, limit) of every limit that holds a link of a user, each pair once, sorted: two int64 columns.

        Args:
            user: Number of the path that uses each link: int64 (uses,).
            link: The links: int64 (uses,).
        """
        if not self.limits:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        count = len(self.limits)
        member = np.concatenate([limit.links for limit in self.limits])
        owner = np.repeat(np.arange(count), [len(limit.links) for limit in self.limits])
        by_link = np.argsort(member, kind="stable")
        member, owner = member[by_link], owner[by_link]
        low = np.searchsorted(member, link, side="left")
        many = np.searchsorted(member, link, side="right") - low
        pair = np.unique(np.repeat(user, many) * count + owner[ranges(low, many)])
        return pair // count, pair % count

    def to_networkx(self) -> DiGraph[Any]:
        """Return the topology as a networkx DiGraph whose nodes are ranks by number and switches by name.

        A node has `kind` ("rank" or "switch"); an edge has `gbs` (GB/s) and `alpha_us`, and `link` (the name of its
        kind, unless "other") and `limit` (names of its limits with commas between them) where it has any. The graph's
        `limits` is JSON text with the GB/s of each limit by name. Figures that the topology does not state have no
        attribute. `topologies.graphs.from_networkx` turns the graph back into an equal topology, except for an
        executor's costs, which the graph does not hold, and for limits with a comma in their names.

        Raises:
            InputError: networkx is not installed.
        """
        graph = load_networkx().DiGraph(name=self.name)
        for key in ("summary", "source", "alpha_assumed", "sms", "compute_capability", "gcn", "platform"):
            if getattr(self, key):
                graph.graph[key] = getattr(self, key)
        chassis = self.nodes.tolist() if self.nodes.any() else None
        for rank in range(self.nranks):
            graph.add_node(rank, kind="rank", rank=rank, **({"chassis": chassis[rank]} if chassis else {}))
        graph.add_nodes_from(self.switches, kind="switch")
        for ops in self.switch_ops:
            graph.nodes[ops.switch].update(multicast=ops.multicast, reduce=ops.reduce)
        if self.limits:
            graph.graph["limits"] = json.dumps({limit.name: limit.bandwidth_gbs for limit in self.limits})
        members: list[list[str]] = [[] for _ in range(self.nlinks)]
        for limit in self.limits:
            for link in limit.links.tolist():
                members[link].append(limit.name)
        vertices = [*range(self.nranks), *self.switches]
        columns = (self.link_src, self.link_dst, self.bandwidth_gbs, self.alpha_us, self.link_kind)
        for (src, dst, gbs, alpha, kind), names in zip(
            zip(*(c.tolist() for c in columns), strict=True), members, strict=True
        ):
            attributes = ({"limit": _joined(names)} if names else {}) | ({"link": LINK_KINDS[kind]} if kind else {})
            graph.add_edge(vertices[src], vertices[dst], gbs=gbs, alpha_us=alpha, **attributes)
        return graph

    def _error(self, problem: str) -> InputError:
        """Return an InputError, which the caller raises, with the topology's name and then `problem` as message."""
        return InputError(f"topology {self.name!r}: {problem}")

    def _check_differ(self, label: str, names: Sequence[str]) -> None:
        """Raise InputError if one of `names` is repeated; `label` is the plural of what they name, for the message."""
        if len(set(names)) < len(names):
            repeated = next(name for name, count in Counter(names).items() if count > 1)
            raise self._error(f"two {label} are named {repeated!r}; names must differ")

    def _check_names(self) -> None:
        """Check the texts, the number of ranks, the figures of the devices and the switches' names.

        Raises:
            InputError: One of them has a wrong type, form or range, both `gcn` and `compute_capability` are stated, or
                two switches have the same name.
        """
        if not _is_line(self.name):
            raise InputError(f"topology name {self.name!r}: must be a non-empty text of one line")
        for text in (self.summary, self.source):
            if not isinstance(text, str):
                raise self._error(f"summary and source must be text, not {text!r}")
        if not isinstance(self.nranks, (int, np.integer)) or isinstance(self.nranks, bool):
            raise self._error(f"nranks {self.nranks!r} must be a whole number")
        if not 1 <= self.nranks <= MAX_RANKS:
            raise self._error(f"{self.nranks} ranks; must be 1 to {MAX_RANKS}")
        if type(self.sms) is not int or not 0 <= self.sms <= MAX_SMS:
            raise self._error(f"sms {self.sms!r}; must be 1 to {MAX_SMS}, or 0 where it is not known")
        capability = self.compute_capability
        if type(capability) is not int or (capability and not MIN_CAPABILITY <= capability <= MAX_CAPABILITY):
            raise self._error(
                f"compute_capability {capability!r}; must be {MIN_CAPABILITY} to {MAX_CAPABILITY} (90 for 9.0), or 0"
                " where it is not known"
            )
        for key, pattern, right in NAMED:
            value = getattr(self, key)
            if not isinstance(value, str) or (value and not re.fullmatch(pattern, value)):
                raise self._error(f"{key} {str(value)[:40]!r}; it must be {right}")
        if self.gcn and capability:
            raise self._error(
                f"gcn {self.gcn!r} and compute_capability {capability}; it must be one of them, AMD's or NVIDIA's"
            )
        for switch in self.switches:
            if not isinstance(switch, str) or not is_switch_name(switch):
                raise self._error(
                    f"switch name {switch!r} must start with a letter and hold only "
                    "letters, digits and _ . : / - (no spaces)"
                )
        self._check_differ("switches", self.switches)

    def _checked_kinds(self, nlinks: int) -> Ints:
        """Return the kind of each link as an index into LINK_KINDS, in the order of the columns given: int64 (nlinks,).

        All are 0 ("other") where no kind is stated or all stated kinds are 0.

        Raises:
            InputError: There is not one kind for each link, or a number is no index into LINK_KINDS.
        """
        kind = _integers("link_kind", self.link_kind)
        if not kind.any():
            return np.zeros(nlinks, dtype=np.int64)
        if len(kind) != nlinks or kind.min() < 0 or kind.max() >= len(LINK_KINDS):
            raise self._error(f"link_kind must hold {nlinks} numbers from 0 to {len(LINK_KINDS) - 1}, one a link")
        return kind

    def _check_costs(self) -> None:
        """Raise InputError if a protocol is stated without costs, or is not "", ANY or a protocol of the costs."""
        if self.protocol and self.costs is None:
            raise self._error("a protocol without costs; it must have both, or none")
        if self.protocol not in ("", ANY) and self.costs is not None:
            check_choice(self.protocol, self.costs.protocols, f"topology {self.name!r}", "protocol of its costs")

    def _check_links(self, src: Ints, dst: Ints, alpha: Floats, gbs: Floats) -> Ints:
        """Return the order that sorts the links by (src, dst): int64 (nlinks,), indices of the columns given.

        Raises:
            InputError: There are too many links, a vertex does not exist, a link joins a vertex to itself, a bandwidth
                or α is out of range, or two links have the same ends. The message names the first wrong link.
        """
        if len(src) > MAX_LINKS:
            raise self._error(f"{len(src)} links; must be at most {MAX_LINKS}")
        last = self.nvertices - 1
        checks = (
            ((src < 0) | (src > last) | (dst < 0) | (dst > last), f"vertices must be 0 to {last}"),
            (src == dst, "a link must join two different vertices"),
            (~((gbs >= MIN_GBS) & (gbs <= MAX_GBS)), f"bandwidth_gbs must be {MIN_GBS:g} to {MAX_GBS:g} GB/s"),
            (~((alpha >= 0) & (alpha <= MAX_ALPHA_US)), f"alpha_us must be 0 to {MAX_ALPHA_US:g} µs"),
        )
        for bad, right in checks:
            if bad.any():
                i = int(np.argmax(bad))
                raise self._error(f"link {i} ({src[i]}→{dst[i]}, {gbs[i]:g} GB/s, {alpha[i]:g} µs): {right}")
        key = src * self.nvertices + dst
        order = np.argsort(key, kind="stable")
        same = np.flatnonzero(np.diff(key[order]) == 0)
        if len(same):
            i, j = int(order[same[0]]), int(order[same[0] + 1])
            raise self._error(
                f"links {i} and {j} both go {self.vertex_name(int(src[i]))}→{self.vertex_name(int(dst[i]))}; "
                "it must be one link with the sum of both"
            )
        return order

    def _checked_switch_ops(self) -> tuple[SwitchOps, ...]:
        """Return the switches that multicast or reduce, in the order of `switches`.

        Those whose two rates are 0 are left out.

        Raises:
            InputError: A switch does not exist or is repeated, or a rate is not 0 to 1.
        """
        place = {name: i for i, name in enumerate(self.switches)}
        for ops in self.switch_ops:
            where = f"switch_ops of {ops.switch!r}"
            if ops.switch not in place:
                raise self._error(f"{where}: no such switch; it must be one of the topology's")
            for word in ("multicast", "reduce"):
                if not 0 <= getattr(ops, word) <= 1:
                    raise self._error(f"{where}: {word} {getattr(ops, word)!r} must be 0 to 1, a part of a port's rate")
        self._check_differ("switch_ops", [ops.switch for ops in self.switch_ops])
        active_ops = (ops for ops in self.switch_ops if ops.multicast or ops.reduce)
        return tuple(sorted(active_ops, key=lambda ops: place[ops.switch]))

    def _checked_limit(self, limit: Limit, new_index: Ints) -> Limit:
        """Return a new limit with its links renumbered, sorted and each once.

        Args:
            limit: The limit, whose links are indices of the columns given.
            new_index: Index in the topology of each link of these columns: int64 (nlinks,).

        Raises:
            InputError: Its name, links or bandwidth are wrong.
        """
        if not _is_line(limit.name) or "→" in limit.name:
            raise self._error(
                f"limit name {limit.name!r} must be a text of one line without →, which links' names have"
            )
        where = f"limit {limit.name!r}"
        links = np.unique(_integers(f"{where} links", limit.links))
        if not len(links):
            raise self._error(f"{where}: holds no link; it must hold at least one")
        if links[0] < 0 or links[-1] >= len(new_index):
            bad = links[0] if links[0] < 0 else links[-1]
            raise self._error(f"{where}: no link {bad}; links are 0 to {len(new_index) - 1}")
        gbs = float(limit.bandwidth_gbs)
        if not MIN_GBS <= gbs <= MAX_GBS:
            raise self._error(f"{where}: bandwidth_gbs {gbs:g} must be {MIN_GBS:g} to {MAX_GBS:g} GB/s")
        links = np.sort(new_index[links])
        links.setflags(write=False)
        return Limit(limit.name, links, gbs)


def without_switch_ops(topology: Topology) -> Topology:
    """Return the topology with switches that only forward: the same object where they do already."""
    return replace(topology, switch_ops=()) if topology.switch_ops else topology


def load_networkx() -> Any:
    """Import networkx and return the module.

    Raises:
        InputError: networkx is not installed.
    """
    return optional_module("networkx", "graphs", "graphs need networkx")


def _joined(names: Sequence[str]) -> str:
    """Return names as one text: with commas, or as a JSON list if a name has a comma or begins like such a list."""
    return json.dumps(names) if any("," in name or name.startswith("[") for name in names) else ",".join(names)


def _is_line(text: Any) -> bool:
    """Return whether a value is a text of one line that is not empty."""
    return isinstance(text, str) and bool(text) and "\n" not in text and "\r" not in text


def _integers(name: str, values: Any) -> Ints:
    """Return a copy of the values as int64 in one dimension; an empty column may have any type.

    Raises:
        InputError: The values are no whole numbers (flags are none); the message begins with `name`.
    """
    try:
        column = np.asarray(values)
        if column.size and column.dtype.kind not in "iu":
            raise TypeError
        return np.array(column, dtype=np.int64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: must be a column of whole numbers") from None


def _floats(name: str, values: Any) -> Floats:
    """Return a copy of the values as float64 in one dimension.

    Raises:
        InputError: The values are no numbers; the message begins with `name`.
    """
    try:
        return np.array(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: must be a column of numbers") from None
