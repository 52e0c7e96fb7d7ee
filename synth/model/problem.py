"""A Problem: a collective over a group of ranks of a topology, and which outsiders may relay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from synth.model.collective import Bools, Collective, Floats, Ints, named, subdivided
from topologies.arrays import reached, strongly_connected
from topologies.costed import protocols_of
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.text.fields import shown
from topologies.topology import Topology

SMALLEST, LARGEST = 1 << 10, 1 << 30  # message sizes in bytes that answers are compared over
_MANY = 4096  # ranks: a table of all pairs is held for fewer only
_FEW = 512  # ranks of a topology: among fewer those are named that would have to relay


@dataclass(frozen=True, eq=False)
class Allowed:
    """Who may hold which chunks, where not everybody may hold all.

    Attributes:
        family: int, shape (nchunks,): each chunk's family, such as the process group that it belongs to.
        ranks: bool, shape (families, local ranks): who may hold a family's chunks.
    """

    family: Ints
    ranks: Bools


@dataclass(frozen=True, eq=False)
class Quotient:
    """What a quotient problem is the quotient of: it holds one representative of each orbit of chunks under a group of
    translations (see `synth.symmetry.quotient`).

    Attributes:
        translations: (stride, extent) pairs over local ranks: every map that adds to the digits (r // stride) % extent,
            without carry, keeps the network as it is. None but the identity leaves a rank in its place.
        whole: the network itself. The quotient problem's network has the same ranks and links, but its resources
            are the orbits of the whole's resources and of its links: what all translates of a send together do to
            one resource is what the representative does to its orbit.
    """

    translations: tuple[tuple[int, int], ...]
    whole: Network

    @property
    def order(self) -> int:
        """Of the group of translations: how many chunks and sends each one here stands for."""
        return math.prod(extent for _, extent in self.translations)


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked.

    Attributes:
        topology: the whole machine or cluster.
        collective: over positions 0..k-1.
        group: the topology rank at each position.
        relays: outsiders that may hold, forward and add chunks, ascending.
        network: links between the ranks at hand. Local ranks: 0..k-1 are the group's positions, k.. the relays.
        quotient: None, or what this problem is the quotient of; its schedules are those of one representative.
        allowed: None where everybody may hold every chunk; else who may hold which.
    """

    topology: Topology
    collective: Collective
    group: tuple[int, ...]
    relays: tuple[int, ...]
    network: Network
    quotient: Quotient | None = None
    allowed: Allowed | None = None

    @property
    def nranks(self) -> int:
        """Local ranks: group and relays."""
        return self.network.nranks

    @property
    def ranks(self) -> tuple[int, ...]:
        """Topology rank of every local rank."""
        return self.group + self.relays

    def with_chunks(self, chunks: int) -> Problem:
        """The same question with every chunk cut into equal parts."""
        allowed = self.allowed
        if allowed is not None:
            allowed = Allowed(np.repeat(allowed.family, chunks), allowed.ranks)
        return replace(self, collective=subdivided(self.collective, chunks), allowed=allowed)

    @property
    def protocols(self) -> list[str]:
        """Those that an executor's costs allow where none is chosen (`topologies.costed`); else none."""
        return protocols_of(self.topology) if self.topology.protocol == ANY else []

    def under(self, protocol: str) -> Problem:
        """The same question under one protocol, or under ANY, where an executor's costs are on.

        Raises InputError for a protocol that they do not allow, and for a quotient problem.
        """
        if self.topology.protocol == protocol:
            return self
        if self.quotient is not None:
            raise InputError(f"{self.collective.name}: a quotient problem is of one protocol; it must be the whole")
        if protocol != ANY and protocol not in protocols_of(self.topology):
            raise InputError(f"protocol {protocol[:40]!r}: is not what the costs of {self.topology.name} allow")
        topology = replace(self.topology, protocol=protocol)
        return replace(self, topology=topology, network=network(topology, self.ranks, len(self.group)))

    def link_name(self, link: int) -> str:
        """`0→1`, the topology's ranks; of a hyperlink `0→all of {0,1,2}` or `sum of {0,1,2}→0`."""
        net = self.network
        if link >= net.nlinks and net.hyperlinks is not None:
            one = net.hyperlinks.one[link - net.nlinks]
            members = ",".join(str(self.ranks[i]) for i in net.hyperlinks.members(link - net.nlinks).tolist())
            forth = net.hyperlinks.multicast[link - net.nlinks]
            return f"{self.ranks[one]}→all of {{{members}}}" if forth else f"sum of {{{members}}}→{self.ranks[one]}"
        return f"{self.ranks[int(net.src[link])]}→{self.ranks[int(net.dst[link])]}"


def question(problem: Problem) -> dict[str, Any]:
    """Collective, topology, group (topology ranks in order), relays, and the root's rank or None."""
    collective = problem.collective
    return {
        "collective": collective.name,
        "topology": problem.topology.name,
        "group": list(problem.group),
        "relays": list(problem.relays),
        "root": problem.group[collective.root] if collective.kind.rooted else None,
    }


def describe_alpha(problem: Problem) -> str:
    """`α 0.7 µs assumed`: α of the links between the ranks at hand, and whether somebody published it.

    Where an executor's costs are on: which, and where they come from.
    """
    costs = problem.topology.costs
    if problem.topology.protocol and costs is not None:
        names = " ".join(problem.protocols) or problem.topology.protocol
        return f"costs of {names}: {costs.source or 'given'}"
    alpha = problem.network.alpha_us
    low, high = float(alpha.min()), float(alpha.max())
    text = f"α {low:g} µs" if high - low < 1e-9 else f"α {low:g}–{high:g} µs"
    return text + (" assumed" if problem.topology.alpha_assumed else "")


def hops(nranks: int, src: Ints, dst: Ints) -> Ints:
    """Fewest links between all pairs, shape (nranks, nranks); nranks where there is no path."""
    reach = np.zeros((nranks, nranks), dtype=bool)
    reach[src, dst] = True
    found = np.eye(nranks, dtype=bool)
    distance = np.where(found, 0, nranks).astype(np.int64)
    for step in range(1, nranks):
        fresh = ((found.astype(np.float32) @ reach) > 0) & ~found
        if not fresh.any():
            break
        distance[fresh] = step
        found |= fresh
    return distance


def least_latency(nranks: int, src: Ints, dst: Ints, alpha_us: Floats) -> Floats:
    """Least sum of α between all pairs in µs, shape (nranks, nranks); inf where there is no path."""
    best = np.full((nranks, nranks), np.inf)
    np.minimum.at(best, (src, dst), alpha_us)
    np.fill_diagonal(best, 0.0)
    for middle in range(nranks):
        np.minimum(best, best[:, middle, None] + best[None, middle, :], out=best)
    return best


def parse_ranks(text: str, what: str, nranks: int) -> tuple[int, ...]:
    """Ranks from `0,2,4-7`, in the order given.

    Raises InputError: not a rank, out of 0..nranks-1, or one rank twice.
    """
    ranks: list[int] = []
    for part in text.split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.isdecimal() and len(end) < 10 for end in ends):
            raise InputError(
                f"{what}: {shown(part.strip())} is not a rank or a range of ranks; it must be as in 0,2,4-7"
            )
        low, high = int(ends[0]), int(ends[-1])
        if low > high:
            raise InputError(f"{what}: range {part.strip()} runs backwards; it must be {high}-{low}")
        check_ranks((low, high) if low != high else (low,), what, nranks)
        ranks.extend(range(low, high + 1))
    check_ranks(ranks, what, nranks)
    return tuple(ranks)


def check_ranks(ranks: Sequence[int], what: str, nranks: int) -> None:
    """Raises InputError, beginning with `what`, for a rank out of 0..nranks-1 or twice."""
    seen: set[int] = set()
    for rank in ranks:
        if not 0 <= rank < nranks:
            raise InputError(f"{what}: rank {rank} is not in this topology; it must be 0..{nranks - 1}")
        if rank in seen:
            raise InputError(f"{what}: rank {rank} is given twice; it must be once")
        seen.add(rank)


def check_group(group: Sequence[int] | None, nranks: int) -> tuple[int, ...]:
    """The ranks of a group in order; all 0..nranks-1 when None.

    Raises InputError: ranks that do not exist or repeat, or fewer than two.
    """
    members = tuple(range(nranks)) if group is None else tuple(int(r) for r in group)
    check_ranks(members, "group", nranks)
    if len(members) < 2:
        raise InputError(f"group: has {len(members)} rank{'s' * (len(members) != 1)}; it must be at least 2")
    return members


def make_problem(
    topology: Topology,
    collective: str | Collective,
    group: Sequence[int] | None = None,
    relays: Sequence[int] = (),
    chunks: int = 1,
    root: int | None = None,
) -> Problem:
    """State a problem.

    Args:
        topology: the machine or cluster.
        collective: a name, or a Collective over len(group) ranks.
        group: topology ranks in order; all when None.
        relays: outsiders that may forward and add.
        chunks: chunks a block, for a name.
        root: a topology rank of the group, for a name; the first of the group when None.

    Raises InputError: ranks that do not exist or repeat, a group of one, a relay inside the group, a root outside, a
    collective for another number of ranks, or chunks that cannot get to where they are wanted.
    """
    members = check_group(group, topology.nranks)
    outsiders = tuple(sorted(int(r) for r in relays))
    check_ranks(outsiders, "relay", topology.nranks)
    for rank in outsiders:
        if rank in members:
            raise InputError(
                f"relay: rank {rank} is in the group; it must be a rank outside it (members may forward anyway)"
            )
    if isinstance(collective, str):
        if root is not None and root not in members:
            first = ",".join(map(str, members[:16]))
            raise InputError(f"root: rank {root} is not in the group {first}{'…' if len(members) > 16 else ''}")
        collective = named(collective, len(members), chunks, 0 if root is None else members.index(root))
    if collective.nranks != len(members):
        raise InputError(f"group: has {len(members)} ranks, but {collective.name} is stated for {collective.nranks}")
    problem = Problem(topology, collective, members, outsiders, network(topology, members + outsiders, len(members)))
    _check_connected(problem)
    return problem


def _reaches(net: Network) -> Bools:
    """Whether there is a path from each rank to each, shape (nranks, nranks): paths twice as long each time."""
    found = np.eye(net.nranks, dtype=np.float32)
    found[net.src, net.dst] = 1
    while True:
        longer = np.minimum(found @ found, 1)
        if np.array_equal(longer, found):
            return found > 0
        found = longer


def _missing(collective: Collective, net: Network) -> tuple[int, int] | None:
    """A pair (from, to) of positions between which some chunk must be routed and cannot."""
    # a contribution must come from every holder; a plain value from any one of them
    reaches, (ptr, holders) = _reaches(net), collective.holders
    seen: set[tuple[bytes, int]] = set()
    for rank, chunk in collective.post.tolist():
        held = holders[ptr[chunk] : ptr[chunk + 1]]
        if (held.tobytes(), rank) in seen:
            continue
        seen.add((held.tobytes(), rank))
        away = ~reaches[held, rank]
        if away.any() if collective.reduces[chunk] else away.all():
            return int(held[np.argmax(away)]), rank
    return None


def _check_connected(problem: Problem) -> None:
    net, topology = problem.network, problem.topology
    if strongly_connected(net.nranks, net.src, net.dst):
        return
    joined = "it must be joined by relays: --relay"
    apart = f"the topology {topology.name} is disconnected"
    if net.nranks > _MANY:  # which pairs cannot would take a table of all
        ends = apart if _cut(problem) else f"{joined} all"
        raise InputError(f"group: some of its {len(problem.group)} ranks cannot reach others of it; {ends}")
    gap = _missing(problem.collective, net)
    if gap is None:
        return
    names = f"rank {problem.group[gap[0]]} cannot reach rank {problem.group[gap[1]]}"
    if topology.nranks > _FEW:  # who could help would take too long to find
        ends = apart if _cut(problem) else f"{joined} all"
        raise InputError(f"group: {names} inside the group; {ends}")
    others = [r for r in range(topology.nranks) if r not in problem.ranks]
    whole = network(topology, problem.ranks + tuple(others)) if others else net
    if _missing(problem.collective, whole) is not None:
        through = ", not even through the other ranks" if others else ""
        raise InputError(f"group: {names}{through}; {apart}")
    joining = ",".join(map(str, _few_relays(problem, others)))
    raise InputError(f"group: {names} inside the group; {joined} {joining} (or --relay all)")


def _cut(problem: Problem) -> bool:
    """Whether not all ranks of the group reach each other, even if all others relay."""
    t, members = problem.topology, list(problem.group)
    ways = ((t.link_src, t.link_dst), (t.link_dst, t.link_src))
    return not all(reached(t.nvertices, *way, members[0])[members].all() for way in ways)


def _few_relays(problem: Problem, others: list[int]) -> list[int]:
    """Relays that join the group, none of which could be left out."""
    kept = list(others)
    for rank in reversed(others):
        trial = [r for r in kept if r != rank]
        if _missing(problem.collective, network(problem.topology, problem.ranks + tuple(trial))) is None:
            kept = trial
    return kept
