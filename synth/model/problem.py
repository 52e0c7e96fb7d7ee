"""State a Problem: a collective over a process group of a topology, and which other ranks may relay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from synth.model.collective import Bools, Collective, Floats, Ints, in_chunks, named, subdivided
from synth.model.text import format_count, format_spans
from topologies.arrays import reachable, strongly_connected
from topologies.costed import protocols_of
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.symmetry.translations import Translations, quotient_network
from topologies.text.fields import shown
from topologies.topology import Topology

SMALLEST, LARGEST = 1 << 10, 1 << 30  # the range of message sizes in bytes over which answers are compared
_MANY = 4096  # ranks; with more no table of all pairs is built
_MOST_LISTED = 8  # ranks of a range that an error message lists
_FEW = 512  # ranks of a topology; with more an error message does not suggest relays


@dataclass(frozen=True, eq=False)
class AllowedHolders:
    """A restriction of the ranks that may hold each chunk.

    Attributes:
        family: Family of each chunk, such as the process group that it belongs to; int, shape (nchunks,).
        ranks: Whether a rank may hold a family's chunks; bool, shape (families, local ranks).
    """

    family: Ints
    ranks: Bools


@dataclass(frozen=True, eq=False)
class Quotient:
    """A reference from a quotient problem to its whole problem.

    The quotient problem holds one representative of each orbit of chunks under a group of translations (see
    `synth.symmetry.quotient`).

    Attributes:
        translations: Pairs (stride, extent) over local ranks. Every map that adds to the digits (r // stride) % extent,
            without carry, keeps the network as it is. Only the identity leaves a rank in its place.
        whole: The network itself. The quotient problem's network has the same ranks and links, but its resources are
            the orbits of the whole's resources and links: what all translates of a send together do to one resource,
            the representative does to its orbit.
    """

    translations: Translations
    whole: Network

    @property
    def order(self) -> int:
        """Return the order of the group of translations.

        Each chunk and send of the quotient stands for so many of the whole problem.
        """
        return math.prod(extent for _, extent in self.translations)


@dataclass(frozen=True, eq=False)
class Problem:
    """A collective to be done by a process group on a network.

    Attributes:
        topology: The whole machine or cluster.
        collective: The collective over positions 0..k-1.
        group: The topology rank at each position.
        relays: Ranks outside the group that may hold, forward and add chunks, ascending.
        network: Links between the group's ranks and the relays. Local ranks 0..k-1 are the group's positions, k.. the
            relays.
        quotient: None, or a reference to the whole problem if this is its quotient; its schedules then hold the sends
            of one representative.
        allowed_holders: Which ranks may hold which chunks; None where every rank may hold every chunk.
    """

    topology: Topology
    collective: Collective
    group: tuple[int, ...]
    relays: tuple[int, ...]
    network: Network
    quotient: Quotient | None = None
    allowed_holders: AllowedHolders | None = None

    def __repr__(self) -> str:
        """Return the question and the number of chunks in one line."""
        ranks, chunks = format_count(len(self.group), "rank"), format_count(self.collective.chunks, "chunk")
        return f"<{self.collective.name} on {ranks} of {self.topology.name}, {chunks} a block>"

    @property
    def nranks(self) -> int:
        """Return the number of local ranks: group and relays."""
        return self.network.nranks

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the topology rank of every local rank."""
        return self.group + self.relays

    def with_equal_parts(self, parts: int) -> Problem:
        """Return the problem with every chunk cut into `parts` equal parts, as `subdivided` does.

        Raises:
            InputError: A condition of the collective would have more than 40 million rows.
        """
        return replace(self, collective=subdivided(self.collective, parts))

    def with_chunks(self, chunks: int) -> Problem:
        """Return the problem with `chunks` times as many chunks a block, as `in_chunks` cuts them.

        Raises:
            InputError: A condition of the collective would have more than 40 million rows.
        """
        allowed = self.allowed_holders
        if allowed is not None:
            allowed = AllowedHolders(np.repeat(allowed.family, chunks), allowed.ranks)
        return replace(self, collective=in_chunks(self.collective, chunks), allowed_holders=allowed)

    @property
    def protocols(self) -> list[str]:
        """Return the protocols that an executor's costs allow where none is chosen yet; else an empty list."""
        return protocols_of(self.topology) if self.topology.protocol == ANY else []

    def under(self, protocol: str) -> Problem:
        """Return the problem under one protocol, or under ANY, where an executor's costs are on.

        It is the problem itself if it is under that protocol already.

        Raises:
            InputError: The costs do not allow the protocol, or the translations of a quotient problem do not keep the
                protocol's network.
        """
        if self.topology.protocol == protocol:
            return self
        if protocol != ANY and protocol not in protocols_of(self.topology):
            raise InputError(f"protocol {protocol[:40]!r}: the costs of {self.topology.name} do not allow it")
        return self.on(replace(self.topology, protocol=protocol))

    def on(self, topology: Topology) -> Problem:
        """Return the problem on the same ranks of another topology, with the network that they have there.

        Whether chunks can get to where they are wanted is not checked.

        Raises:
            InputError: A rank does not exist there, or the translations of a quotient problem do not keep that
                topology's network.
        """
        whole = network(topology, self.ranks, len(self.group), self.collective.kind.paths)
        if self.quotient is None:
            return replace(self, topology=topology, network=whole)
        translations = self.quotient.translations
        return replace(
            self,
            topology=topology,
            network=quotient_network(whole, translations),
            quotient=Quotient(translations, whole),
        )

    def link_name(self, link: int) -> str:
        """Return a link's name by topology ranks: `0→1`; of a hyperlink `0→all of {0,1,2}` or `sum of {0,1,2}→0`."""
        net = self.network
        if link >= net.nlinks and net.hyperlinks is not None:
            center = net.hyperlinks.hub[link - net.nlinks]
            members = ",".join(str(self.ranks[i]) for i in net.hyperlinks.members(link - net.nlinks).tolist())
            is_multicast = net.hyperlinks.multicast[link - net.nlinks]
            return (
                f"{self.ranks[center]}→all of {{{members}}}"
                if is_multicast
                else f"sum of {{{members}}}→{self.ranks[center]}"
            )
        return f"{self.ranks[int(net.src[link])]}→{self.ranks[int(net.dst[link])]}"


def question(problem: Problem) -> dict[str, Any]:
    """Return what a problem asks, as values for JSON.

    Returns:
        `collective` and `topology` (their names), `group` (topology ranks in order), `relays` (topology ranks), and
        `root` (a topology rank; None where the collective has no root). Where blocks have sizes of their own also
        `sizes` (whole numbers in their proportions).
    """
    collective = problem.collective
    sizes = {"sizes": list(collective.sizes)} if collective.sizes else {}
    return {
        "collective": collective.name,
        "topology": problem.topology.name,
        "group": list(problem.group),
        "relays": list(problem.relays),
        "root": problem.group[collective.root] if collective.kind.rooted else None,
        **sizes,
    }


def describe_alpha(problem: Problem) -> str:
    """Return the problem's latencies as text, such as `α 0.7 µs assumed` or `α 0.7–2 µs`.

    It is the α of the links of the problem's network, followed by "assumed" where the topology's is not published.
    Where an executor's costs are on, the text names their protocols and their source instead.
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
    """Return the fewest links on a path between all pairs; int, shape (nranks, nranks).

    Args:
        nranks: Number of ranks.
        src: Source of each link, shape (links,).
        dst: Destination of each link, shape (links,).

    Returns:
        The number for each [from, to]: 0 from a rank to itself, nranks where there is no path.
    """
    reach = np.zeros((nranks, nranks), dtype=bool)
    reach[src, dst] = True
    is_reached = np.eye(nranks, dtype=bool)
    distance = np.where(is_reached, 0, nranks).astype(np.int64)
    for step in range(1, nranks):
        fresh = ((is_reached.astype(np.float32) @ reach) > 0) & ~is_reached
        if not fresh.any():
            break
        distance[fresh] = step
        is_reached |= fresh
    return distance


def least_latency(nranks: int, src: Ints, dst: Ints, alpha_us: Floats) -> Floats:
    """Return the least sum of α on a path between all pairs, in µs, shape (nranks, nranks).

    Args:
        nranks: Number of ranks.
        src: Source of each link, shape (links,).
        dst: Destination of each link, shape (links,).
        alpha_us: α of each link in µs, ≥ 0, or another length; of parallel links the shortest counts.

    Returns:
        The sum for each [from, to]: 0 from a rank to itself, inf where there is no path.
    """
    best = np.full((nranks, nranks), np.inf)
    np.minimum.at(best, (src, dst), alpha_us)
    np.fill_diagonal(best, 0.0)
    for middle in range(nranks):
        np.minimum(best, best[:, middle, None] + best[None, middle, :], out=best)
    return best


def parse_ranks(text: str, label: str, nranks: int) -> tuple[int, ...]:
    """Return the ranks of a text such as `0,2,4-7`, in its order.

    Raises:
        InputError: An item is no rank, is out of 0..nranks-1, or is there twice; the message begins with `label`.
    """
    ranks: list[int] = []
    for part in text.split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.isdecimal() and len(end) < 10 for end in ends):
            raise InputError(
                f"{label}: {shown(part.strip())} is not a rank or a range of ranks; it must be as in 0,2,4-7"
            )
        low, high = int(ends[0]), int(ends[-1])
        if low > high:
            in_order = ",".join(map(str, range(low, high - 1, -1))) if low - high < _MOST_LISTED else "a list"
            raise InputError(
                f"{label}: range {part.strip()} runs backwards; it must be {high}-{low}, or {in_order} for this order"
            )
        check_ranks((low, high) if low != high else (low,), label, nranks)
        ranks.extend(range(low, high + 1))
    check_ranks(ranks, label, nranks)
    return tuple(ranks)


def check_ranks(ranks: Sequence[int], label: str, nranks: int) -> None:
    """Check that ranks exist and differ.

    Raises:
        InputError: A rank is out of 0..nranks-1 or is there twice; the message begins with `label`.
    """
    earlier_ranks: set[int] = set()
    for rank in ranks:
        if not 0 <= rank < nranks:
            raise InputError(f"{label}: rank {rank} is not in this topology; it must be 0 to {nranks - 1}")
        if rank in earlier_ranks:
            raise InputError(f"{label}: rank {rank} is given twice; it must be once")
        earlier_ranks.add(rank)


def check_group(group: Sequence[int] | None, nranks: int) -> tuple[int, ...]:
    """Return the ranks of a group as ints in the order given; all 0..nranks-1 if it is None.

    Raises:
        InputError: Ranks do not exist or repeat, or there are fewer than two; the message begins with "group".
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
    sizes: Floats | None = None,
) -> Problem:
    """Build a problem from a collective and ranks of a topology.

    Args:
        topology: The machine or cluster.
        collective: A name, or a Collective over len(group) ranks.
        group: Topology ranks in order; all when None.
        relays: Topology ranks outside the group that may forward and add, in any order.
        chunks: Chunks a block, for a name; a Collective has its own.
        root: A topology rank of the group, for a name; the first of the group when None. A Collective has its own.
        sizes: Bytes of the blocks, for the name of a collective whose blocks have sizes of their own.

    Raises:
        InputError: Ranks do not exist or repeat, the group has fewer than two ranks, a relay is inside the group, the
            root is outside, the collective is unknown, too large or for another number of ranks, the sizes are wrong or
            missing, or chunks cannot get to where they are wanted.
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
            raise InputError(f"root: rank {root} is not in the group; it must be one of {format_spans(members)}")
        collective = named(collective, len(members), chunks, 0 if root is None else members.index(root), sizes)
    if collective.nranks != len(members):
        raise InputError(f"group: has {len(members)} ranks, but {collective.name} is stated for {collective.nranks}")
    net = network(topology, members + outsiders, len(members), collective.kind.paths)
    problem = Problem(topology, collective, members, outsiders, net)
    _check_connected(problem)
    return problem


def _reaches(net: Network) -> Bools:
    """Return whether there is a path [from, to] between any two ranks, shape (nranks, nranks); True on the diagonal.

    Each round doubles the length of the paths.
    """
    reached_in = np.eye(net.nranks, dtype=np.float32)
    reached_in[net.src, net.dst] = 1
    while True:
        longer = np.minimum(reached_in @ reached_in, 1)
        if np.array_equal(longer, reached_in):
            return reached_in > 0
        reached_in = longer


def _unreachable_pair(collective: Collective, net: Network) -> tuple[int, int] | None:
    """Find a pair (from, to) of positions between which some chunk must be routed but cannot; None if there is none.

    A contribution to a sum must come from every holder, a plain value from any. Of the holders that cannot reach the
    goal the first is named.
    """
    # A contribution must come from every holder, a plain value from any of them.
    reaches, (ptr, holders) = _reaches(net), collective.holders
    checked: set[tuple[bool, bytes, int]] = set()
    for rank, chunk in collective.post.tolist():
        chunk_holders, reduces = holders[ptr[chunk] : ptr[chunk + 1]], bool(collective.reduces[chunk])
        if (reduces, chunk_holders.tobytes(), rank) in checked:
            continue
        checked.add((reduces, chunk_holders.tobytes(), rank))
        is_unreachable = ~reaches[chunk_holders, rank]
        if is_unreachable.any() if reduces else is_unreachable.all():
            return int(chunk_holders[np.argmax(is_unreachable)]), rank
    return None


def _check_connected(problem: Problem) -> None:
    """Check that every chunk can get to where it is wanted.

    Raises:
        InputError: A chunk cannot; or there are more than 4096 local ranks, of which some cannot reach others, whether
            or not a chunk must go there. The message suggests relays, or says that the topology is disconnected.
    """
    net, topology = problem.network, problem.topology
    if strongly_connected(net.nranks, net.src, net.dst):
        return
    joined = "add relays that join the group: --relay"
    disconnected = f"the topology {topology.name} is disconnected; synth topo check names connected ranks"
    if net.nranks > _MANY:  # Finding the pairs would take a table of all pairs.
        advice = disconnected if _is_disconnected(problem) else f"{joined} all"
        raise InputError(
            f"group: some of its {len(problem.group)} ranks cannot reach other ranks of the group; {advice}"
        )
    unreachable = _unreachable_pair(problem.collective, net)
    if unreachable is None:
        return
    names = f"rank {problem.group[unreachable[0]]} cannot reach rank {problem.group[unreachable[1]]}"
    if topology.nranks > _FEW:  # Finding relays that help would take too long.
        advice = disconnected if _is_disconnected(problem) else f"{joined} all"
        raise InputError(f"group: {names} inside the group; {advice}")
    outsiders = [r for r in range(topology.nranks) if r not in problem.ranks]
    whole = network(topology, problem.ranks + tuple(outsiders)) if outsiders else net
    if _unreachable_pair(problem.collective, whole) is not None:
        through = ", not even through the other ranks" if outsiders else ""
        raise InputError(f"group: {names}{through}; {disconnected}")
    joining = ",".join(map(str, _few_relays(problem, outsiders)))
    raise InputError(f"group: {names} inside the group; {joined} {joining} (or --relay all)")


def _is_disconnected(problem: Problem) -> bool:
    """Return whether some ranks of the group cannot reach each other even if all other ranks relay."""
    t, members = problem.topology, list(problem.group)
    directions = ((t.link_src, t.link_dst), (t.link_dst, t.link_src))
    return not all(reachable(t.nvertices, *ends, members[0])[members].all() for ends in directions)


def _few_relays(problem: Problem, outsiders: list[int]) -> list[int]:
    """Return those of `outsiders`, ascending, that join the group and of which none could be left out.

    Args:
        problem: The problem; its own relays stay.
        outsiders: Topology ranks, ascending, that join the group if all of them relay.
    """
    relays = list(outsiders)
    for rank in reversed(outsiders):
        trial = [r for r in relays if r != rank]
        if _unreachable_pair(problem.collective, network(problem.topology, problem.ranks + tuple(trial))) is None:
            relays = trial
    return relays
