"""A machine or cluster as it is wired: ranks, switches, directed links and shared limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.errors import InputError
from topologies.text.vertex_sets import is_switch_name

__all__ = ["MAX_LINKS", "MAX_RANKS", "Limit", "Topology", "from_toml", "to_toml"]

MAX_RANKS = 1_000_000
MAX_LINKS = 4_200_000  # every pair of 2048 ranks; reading so many takes half a GiB
# Beyond these a duration in µs overflows or loses its meaning; no cable is near them.
MIN_GBS, MAX_GBS = 1e-9, 1e9
MAX_ALPHA_US = 1e9


@dataclass(frozen=True, eq=False)
class Limit:
    """A capacity that several physical links share.

    name: what it is ("nic0 out").
    links: int64, indices of physical links of the topology, sorted, each once.
    bandwidth_gbs: GB/s that all of them together carry.
    """

    name: str
    links: NDArray[np.int64]
    bandwidth_gbs: float


@dataclass(frozen=True, eq=False)
class Topology:
    """Ranks 0..nranks-1, switches after them, and directed links between these vertices.

    name, summary, source: words; summary is short ("8 GPUs, NVSwitch, 300 GB/s each way"), source says where
        the figures come from.
    nranks: ranks are the vertices 0..nranks-1.
    switches: switch j is the vertex nranks+j; it forwards and holds nothing.
    link_src, link_dst: int64 (nlinks,), vertices. Links come out sorted by (src, dst) whatever order they
        were given in, so that equal machines give equal arrays; `limits` is renumbered with them.
    alpha_us: float64 (nlinks,), µs.  bandwidth_gbs: float64 (nlinks,), GB/s (1e9 bytes/s).
    limits: shared capacities over physical links.
    alpha_assumed: some α is nobody's published figure.
    nodes: int64 (nranks,), the chassis of each rank.

    All arrays are copies and read-only. Raises InputError (one line) where the parts do not make a topology.
    """

    name: str
    nranks: int
    switches: tuple[str, ...]
    link_src: NDArray[np.int64]
    link_dst: NDArray[np.int64]
    alpha_us: NDArray[np.float64]
    bandwidth_gbs: NDArray[np.float64]
    limits: tuple[Limit, ...] = ()
    alpha_assumed: bool = False
    nodes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    summary: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        self._check_words()
        src = _integers("link_src", self.link_src)
        dst = _integers("link_dst", self.link_dst)
        alpha = _floats("alpha_us", self.alpha_us)
        gbs = _floats("bandwidth_gbs", self.bandwidth_gbs)
        if not len(src) == len(dst) == len(alpha) == len(gbs):
            raise InputError(
                f"topology {self.name!r}: link columns have lengths {len(src)}, {len(dst)}, {len(alpha)}, "
                f"{len(gbs)}; link_src, link_dst, alpha_us and bandwidth_gbs must be equally long"
            )
        order = self._check_links(src, dst, alpha, gbs)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        nodes = _integers("nodes", self.nodes)
        if not len(nodes):
            nodes = np.zeros(self.nranks, dtype=np.int64)
        if len(nodes) != self.nranks or nodes.min() < 0 or nodes.max() >= self.nranks:
            raise InputError(
                f"topology {self.name!r}: nodes must hold {self.nranks} numbers from 0 to {self.nranks - 1}, "
                f"one a rank; it holds {len(nodes)}"
            )
        for column, value in (
            ("link_src", src[order]),
            ("link_dst", dst[order]),
            ("alpha_us", alpha[order]),
            ("bandwidth_gbs", gbs[order]),
            ("nodes", nodes),
        ):
            value.setflags(write=False)
            object.__setattr__(self, column, value)
        object.__setattr__(self, "switches", tuple(self.switches))
        object.__setattr__(self, "limits", tuple(self._checked_limit(x, rank) for x in self.limits))
        names = [x.name for x in self.limits]
        if len(set(names)) < len(names):
            twice = next(x for x in names if names.count(x) > 1)
            raise InputError(f"topology {self.name!r}: two limits are named {twice!r}; names must differ")

    @property
    def nlinks(self) -> int:
        """Number of directed physical links."""
        return len(self.link_src)

    @property
    def nvertices(self) -> int:
        """Ranks and switches together."""
        return self.nranks + len(self.switches)

    def vertex_name(self, vertex: int) -> str:
        """'3' for rank 3, the switch's name for a switch. Raises InputError for any other number."""
        if 0 <= vertex < self.nranks:
            return str(int(vertex))
        if self.nranks <= vertex < self.nvertices:
            return self.switches[vertex - self.nranks]
        raise InputError(
            f"topology {self.name!r}: no vertex {vertex}; vertices are 0 to {self.nvertices - 1}"
        )

    def _check_words(self) -> None:
        if not isinstance(self.name, str) or not self.name or "\n" in self.name or "\r" in self.name:
            raise InputError(f"topology name {self.name!r}: must be a non-empty text of one line")
        for word in (self.summary, self.source):
            if not isinstance(word, str):
                raise InputError(f"topology {self.name!r}: summary and source must be text, not {word!r}")
        if not isinstance(self.nranks, (int, np.integer)) or isinstance(self.nranks, bool):
            raise InputError(f"topology {self.name!r}: nranks {self.nranks!r} must be a whole number")
        if not 1 <= self.nranks <= MAX_RANKS:
            raise InputError(f"topology {self.name!r}: {self.nranks} ranks; must be 1 to {MAX_RANKS}")
        seen: set[str] = set()
        for switch in self.switches:
            if not isinstance(switch, str) or not is_switch_name(switch):
                raise InputError(
                    f"topology {self.name!r}: switch name {switch!r} must start with a letter and hold only "
                    "letters, digits and _ . : / - (no spaces)"
                )
            if switch in seen:
                raise InputError(
                    f"topology {self.name!r}: two switches are named {switch!r}; names must differ"
                )
            seen.add(switch)

    def _check_links(
        self,
        src: NDArray[np.int64],
        dst: NDArray[np.int64],
        alpha: NDArray[np.float64],
        gbs: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Order that sorts the links by (src, dst); raises InputError naming the first bad link."""
        if len(src) > MAX_LINKS:
            raise InputError(f"topology {self.name!r}: {len(src)} links; at most {MAX_LINKS}")
        vertices = self.nvertices
        outside = (src < 0) | (src >= vertices) | (dst < 0) | (dst >= vertices)
        checks = (
            (outside, f"vertices must be 0 to {vertices - 1}"),
            (src == dst, "a link must join two different vertices"),
            (
                ~((gbs >= MIN_GBS) & (gbs <= MAX_GBS)),
                f"bandwidth_gbs must be positive, {MIN_GBS:g} to {MAX_GBS:g} GB/s",
            ),
            (
                ~((alpha >= 0) & (alpha <= MAX_ALPHA_US)),
                f"alpha_us must be 0 to {MAX_ALPHA_US:g} µs",
            ),
        )
        for bad, right in checks:
            if bad.any():
                i = int(np.argmax(bad))
                raise InputError(
                    f"topology {self.name!r}: link {i} ({src[i]}→{dst[i]}, {gbs[i]:g} GB/s, {alpha[i]:g} µs) "
                    f"{right}"
                )
        key = src * vertices + dst
        order = np.argsort(key, kind="stable")
        same = np.flatnonzero(np.diff(key[order]) == 0)
        if len(same):
            i, j = int(order[same[0]]), int(order[same[0] + 1])
            raise InputError(
                f"topology {self.name!r}: links {i} and {j} both go "
                f"{self.vertex_name(int(src[i]))}→{self.vertex_name(int(dst[i]))}; "
                "give one link with the sum of both"
            )
        return order

    def _checked_limit(self, limit: Limit, new_index: NDArray[np.int64]) -> Limit:
        if not isinstance(limit.name, str) or not limit.name or "\n" in limit.name or "\r" in limit.name:
            raise InputError(f"topology {self.name!r}: limit name {limit.name!r} must be a text of one line")
        where = f"topology {self.name!r}: limit {limit.name!r}"
        links = np.unique(_integers(f"limit {limit.name!r} links", limit.links))
        if not len(links):
            raise InputError(f"{where}: holds no link; it must hold at least one")
        if links[0] < 0 or links[-1] >= len(new_index):
            bad = links[0] if links[0] < 0 else links[-1]
            raise InputError(f"{where}: no link {bad}; links are 0 to {len(new_index) - 1}")
        gbs = float(limit.bandwidth_gbs)
        if not MIN_GBS <= gbs <= MAX_GBS:
            raise InputError(
                f"{where}: bandwidth_gbs {gbs:g} must be positive, {MIN_GBS:g} to {MAX_GBS:g} GB/s"
            )
        links = np.sort(new_index[links])
        links.setflags(write=False)
        return Limit(limit.name, links, gbs)


def to_toml(topology: Topology) -> str:
    """Text form of the topology, as `--topo file.toml` reads it; `from_toml` gives an equal topology back."""
    from topologies.text.writer import write_text

    return write_text(topology)


def from_toml(text: str, origin: str) -> Topology:
    """Topology of its text form. `origin` names the text in errors (a file's path). Raises InputError."""
    from topologies.text.reader import read_text

    return read_text(text, origin).topology


def _integers(what: str, values: Any) -> NDArray[np.int64]:
    try:
        column = np.asarray(values)
        if column.size and column.dtype.kind not in "iu":
            raise TypeError
        return np.array(column, dtype=np.int64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what}: must be a column of whole numbers") from None


def _floats(what: str, values: Any) -> NDArray[np.float64]:
    try:
        return np.array(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what}: must be a column of numbers") from None
