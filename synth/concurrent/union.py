"""State several groups, each with a collective and a size of its own, as one problem on the links that they share.

The union's collective is over all ranks of all groups. Its positions are in order of first appearance, and a rank may
be in several groups. It has the chunks of every group, one group after another. Its message size is the largest
group's: the fraction of a chunk is its own times its group's size over that size, so all sizes grow and shrink
together.

If no rank may relay, a group's chunks stay within the group: the table `allowed` states that, because the network of
the union cannot. If relays are allowed, every rank of the union may forward for every group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from synth.model.collective import MAX_ENTRIES, Bools, Collective, Floats, Ints, subdivided
from synth.model.problem import AllowedHolders, Problem, check_ranks, make_problem
from synth.model.schedule import Schedule, untimed
from topologies.arrays import pointers, reachable, row_of_entry
from topologies.errors import InputError, ScheduleRefused
from topologies.faults.notation import relay_ranks
from topologies.network import links_among, subnetwork
from topologies.text.vertex_sets import format_set
from topologies.topology import Topology

_MAX_KINDS = 3  # Most collectives that the union's name lists.
_LONG_NAME = 40  # Most characters of the name in a schedule file.

Relays = Sequence[int] | str  # The ranks that may forward: "none", "all", or ranks.


@dataclass(frozen=True, eq=False)
class Member:
    """A group of a question about concurrent groups.

    Attributes:
        ranks: Ranks of the topology, in order.
        collective: Collective over the positions 0..len(ranks)-1.
        size_bytes: Message size of the group.
        name: Name in messages; the group's ranks if empty.
    """

    ranks: tuple[int, ...]
    collective: Collective
    size_bytes: float
    name: str = ""

    @property
    def label(self) -> str:
        """Return the name, or without one the ranks in short, as `0-3`, or `0,2,… (9 ranks)` if that is long."""
        if self.name:
            return self.name
        ranks = format_set(self.ranks, max(self.ranks) + 1, ())
        return ranks if len(ranks) <= 40 else f"{self.ranks[0]},{self.ranks[1]},… ({len(self.ranks)} ranks)"


@dataclass(frozen=True, eq=False, kw_only=True)
class UnionProblem(Problem):
    """All groups as one problem, and which part of it belongs to which group.

    Attributes:
        members: The groups in the order of the question.
        positions: For each group, the union's position (the local rank) of each of its ranks.
        first_chunk: Int, shape (groups + 1,): group g has the union's chunks first_chunk[g]..first_chunk[g+1]-1, in its
            own order.
    """

    members: tuple[Member, ...]
    positions: tuple[Ints, ...]
    first_chunk: Ints

    @cached_property
    def group_of_chunk(self) -> Ints:
        """Return the group of each chunk, int, shape (nchunks,)."""
        return row_of_entry(self.first_chunk)

    @cached_property
    def size_bytes(self) -> float:
        """Return the union's message size in bytes, which is the largest group's."""
        return max(float(m.size_bytes) for m in self.members)

    def member_bytes(self, group: int, size_bytes: float) -> float:
        """Return a group's message size in bytes when the union's is `size_bytes`; all sizes keep their proportions.

        Args:
            group: Position of the group.
            size_bytes: The union's message size in bytes.
        """
        return size_bytes * (float(self.members[group].size_bytes) / self.size_bytes)

    def may_hold(self) -> Bools:
        """Return a mask of the local ranks at which each group's chunks may be, shape (groups, local ranks)."""
        if self.allowed_holders is None:
            return np.ones((len(self.members), self.nranks), dtype=bool)
        return self.allowed_holders.ranks

    def with_chunks(self, chunks: int) -> UnionProblem:
        """Return the union with every chunk of every group cut into `chunks` equal parts.

        Raises:
            InputError: So many chunks do not fit in memory.
        """
        whole = super().with_chunks(chunks)
        assert isinstance(whole, UnionProblem)
        subdivided_once = cache(subdivided)  # Many groups have the same collective.
        members = tuple(replace(m, collective=subdivided_once(m.collective, chunks)) for m in self.members)
        return replace(whole, members=members, first_chunk=self.first_chunk * chunks)

    def restated(self, collectives: Sequence[Collective], relays: Relays, dead: Sequence[int]) -> UnionProblem:
        """Return the union of the same groups with other collectives.

        Args:
            collectives: The collective of each group.
            relays: See `union_problem`.
            dead: See `union_problem`.

        Raises:
            InputError: See `union_problem`.
        """
        members = [replace(m, collective=c) for m, c in zip(self.members, collectives, strict=True)]
        return union_problem(self.topology, members, relays, dead)


def union_problem(
    topology: Topology, members: Sequence[Member], relays: Relays = "none", dead: Sequence[int] = ()
) -> UnionProblem:
    """Return all groups as one problem.

    Args:
        topology: The topology.
        members: The groups.
        relays: "none" or no ranks: chunks stay within their group. "all": every rank may forward for every group.
            Ranks: these ranks and the ranks of all groups may; ranks that are in a group may be among them.
        dead: Ranks that are no relays for "all".

    Raises:
        InputError: There are no groups; a rank does not exist or is twice in a group; a collective is for another
            number of ranks; a size is not possible; the problem is too large for the memory; or chunks cannot get to
            where they are wanted.
    """
    _check_members(topology, members)
    place: dict[int, int] = {}
    for member in members:
        for rank in member.ranks:
            place.setdefault(int(rank), len(place))
    positions = tuple(np.array([place[int(r)] for r in m.ranks], dtype=np.int64) for m in members)
    collective, first_chunk = _union(members, positions, len(place))
    outsiders = [int(r) for r in relay_ranks(topology, dead, relays, place) if int(r) not in place]
    inside = relays == "none" or not len(relays)
    problem = make_problem(topology, collective, tuple(place), outsiders)
    ranks = np.full((len(members), problem.nranks), not inside)
    for group, own in enumerate(positions):
        ranks[group, own] = True
    allowed = None if ranks.all() else AllowedHolders(row_of_entry(first_chunk), ranks)
    union = UnionProblem(
        topology, problem.collective, problem.group, problem.relays, problem.network, allowed_holders=allowed,
        members=tuple(members), positions=positions, first_chunk=first_chunk,
    )  # fmt: skip
    if inside:
        _check_joined(union)
    return union


def _check_members(topology: Topology, members: Sequence[Member]) -> None:
    """Refuse groups that are not possible.

    Raises:
        InputError: See `union_problem`.
    """
    if not members:
        raise InputError("groups: there is none; give at least one")
    rows = 0
    for member in members:
        k = member.collective.nranks
        if len(member.ranks) < 2:
            raise InputError(f"groups: a group has {len(member.ranks)} rank; a collective needs at least 2")
        check_ranks(member.ranks, f"group {member.label}", topology.nranks)
        if len(member.ranks) != k:
            raise InputError(
                f"group {member.label}: has {len(member.ranks)} ranks, but {member.collective.name} is stated for {k}"
            )
        if not 0 < member.size_bytes < math.inf:
            raise InputError(f"group {member.label}: {member.size_bytes} is no message size; give bytes, above 0")
        rows += max(len(member.collective.pre), len(member.collective.post))
    if rows > MAX_ENTRIES:
        raise InputError(
            f"groups: {len(members)} groups have more entries (rank, chunk) together than are held in memory,"
            f" {rows} of {MAX_ENTRIES}; use fewer chunks or groups"
        )


def _union(members: Sequence[Member], positions: Sequence[Ints], nranks: int) -> tuple[Collective, Ints]:
    """Return the collective of all groups, and the first chunk of each group (with one entry more than groups).

    Its chunks are the groups' in their order, as parts of the largest group's message. Its name joins the groups'
    names, or is "together" if these are many or long.
    """
    parts = [m.collective for m in members]
    first = pointers(np.array([part.nchunks for part in parts]))
    largest = max(float(m.size_bytes) for m in members)
    pre, in_index = _tables([(p.pre, p.in_index) for p in parts], positions, first, nranks)
    post, out_index = _tables([(p.post, p.out_index) for p in parts], positions, first, nranks)
    names = Counter(part.name for part in parts)
    name = "-".join(f"{word}-x{many}" if many > 1 else word for word, many in names.items())
    if len(names) > _MAX_KINDS or len(name) > _LONG_NAME:
        name = "together"
    union = Collective(
        name=name,
        nranks=nranks,
        chunks=math.gcd(*(part.chunks for part in parts)),
        nchunks=int(first[-1]),
        reduces=np.concatenate([part.reduces for part in parts]),
        fraction=np.concatenate([m.collective.fraction * (float(m.size_bytes) / largest) for m in members]),
        pre=pre,
        post=post,
        in_index=in_index,
        out_index=out_index,
        root=parts[0].root if len(parts) == 1 else 0,
    )
    return union, first


def _tables(
    tables: Sequence[tuple[Ints, Ints]], positions: Sequence[Ints], first: Ints, nranks: int
) -> tuple[Ints, Ints]:
    """Return rows (rank, chunk) of all groups and their places; on a rank in more than one group, group after group.

    The rows ascend; each rank is a position of the union, each chunk a number of the union.

    Args:
        tables: For each group its rows (position in the group, chunk) and the place of each row in its rank's buffer.
        positions: For each group, the union's position of each of its ranks.
        first: First chunk of each group, and the number of all chunks.
        nranks: Number of positions of the union.
    """
    used = np.zeros(nranks, dtype=np.int64)
    ranks, chunks, places = [], [], []
    for (rows, index), own, start in zip(tables, positions, first.tolist(), strict=False):
        width = np.zeros(len(own), dtype=np.int64)
        np.maximum.at(width, rows[:, 0], index + 1)
        ranks.append(own[rows[:, 0]])
        chunks.append(rows[:, 1] + start)
        places.append(index + used[ranks[-1]])
        used[own] += width
    rank, chunk, at = np.concatenate(ranks), np.concatenate(chunks), np.concatenate(places)
    key = rank * int(first[-1]) + chunk
    if not (key[1:] > key[:-1]).all():
        order = np.argsort(key, kind="stable")
        rank, chunk, at = rank[order], chunk[order], at[order]
    return np.column_stack([rank, chunk]), at


def _check_joined(union: UnionProblem) -> None:
    """Raise InputError unless every group can do its collective over the links among its own ranks.

    A group in which every rank reaches every other passes; for another one its own problem is made, which may raise.
    """
    net = union.network
    sizes = np.array([len(own) for own in union.positions])
    offset = np.cumsum(sizes) - sizes
    ends = [np.array(links_among(net, own)[1:]) + at for own, at in zip(union.positions, offset, strict=True)]
    src, dst = np.concatenate(ends, axis=1)
    joined = np.ones(len(sizes), dtype=bool)
    # For all groups at once: every rank is reached from the group's first rank, and reaches it.
    for tail, head in ((src, dst), (dst, src)):
        joined &= np.logical_and.reduceat(reachable(int(sizes.sum()), tail, head, offset), offset)
    for group in np.flatnonzero(~joined).tolist():
        member = union.members[group]
        try:
            make_problem(union.topology, member.collective, member.ranks)
        except InputError as error:
            raise InputError(str(error).replace("group:", f"group {member.label}:", 1)) from None


def _in_order(union: UnionProblem, group: int, may: Bools) -> Ints:
    """Return local ranks of the union: the group's in their order, then others in `may` by topology number."""
    outside = may.copy()
    outside[union.positions[group]] = False
    relays = np.flatnonzero(outside)
    return np.concatenate([union.positions[group], relays[np.argsort(union.network.ranks[relays])]])


def _own_problem(union: UnionProblem, group: int, may: Bools) -> tuple[Problem, Ints]:
    """Return a group's problem, with the other ranks in `may` as relays, and the union's numbers of its links."""
    net, links = subnetwork(union.network, _in_order(union, group, may))
    collective = union.members[group].collective
    ranks = tuple(net.ranks.tolist())
    k = collective.nranks
    return Problem(union.topology, collective, ranks[:k], ranks[k:], net), links


def isolated_problems(union: UnionProblem, groups: Sequence[int] | None = None) -> list[Problem]:
    """Return the problem of each group while all other ranks are idle, with the group's chunks and ranks in its order.

    The rule for relays is the union's: without relays only the group's ranks exist, otherwise all ranks of the union.

    Args:
        union: The groups as one problem.
        groups: Positions of the groups that are wanted, in this order; None for all.
    """
    may, chosen = union.may_hold(), range(len(union.members)) if groups is None else groups
    return [_own_problem(union, group, may[group])[0] for group in chosen]


def merge_schedules(union: UnionProblem, schedules: Sequence[Schedule]) -> Schedule:
    """Return the union's schedule of the groups' own schedules, all begun at once, without times.

    Each group's order stays. Sends of different groups are ordered by their times if all schedules are timed, else by
    their steps.

    Args:
        union: The union.
        schedules: For each group a schedule of its problem in `isolated_problems`.
    """
    columns: list[tuple[Ints, Ints, Ints, Bools, Floats]] = []
    clocked, may = all(part.size_bytes > 0 for part in schedules), union.may_hold()
    for group, part in enumerate(schedules):
        links = links_among(union.network, _in_order(union, group, may[group]))[0]
        when = np.maximum.accumulate(part.start_us if clocked else part.step.astype(np.float64))
        columns.append((part.chunk + union.first_chunk[group], links[part.link], part.step, part.reduces, when))
    chunk, link, step, reduces, when = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(when, kind="stable")
    return untimed(chunk[order], link[order], step[order], reduces[order])


def check_within_groups(union: UnionProblem, schedule: Schedule) -> None:
    """Raise ScheduleRefused if a send leaves or reaches a rank at which its group's chunks may not be.

    It names the first such send. Where every rank may hold every chunk, nothing is checked.
    """
    if union.allowed_holders is None:
        return
    net, allowed = union.network, union.allowed_holders.ranks
    group = union.group_of_chunk[schedule.chunk]
    src, dst = net.src[schedule.link], net.dst[schedule.link]
    stray = ~(allowed[group, src] & allowed[group, dst])
    if stray.any():
        row = int(np.argmax(stray))
        at = int(dst[row] if allowed[group[row], src[row]] else src[row])
        raise ScheduleRefused(
            f"send {row}: chunk {schedule.chunk[row]} of group {union.members[int(group[row])].label} is at rank"
            f" {union.ranks[at]}, which is not in that group and may not relay"
        )


def split_by_group(union: UnionProblem, schedule: Schedule) -> list[tuple[Problem, Schedule]]:
    """Return each group's sends as a schedule of its own problem, whose relays are the other ranks that it touches.

    Order, steps and times stay. A schedule that is timed in the union is a right one of each group by itself, except
    that it waits for the others; `simulate.timed` computes it without the waiting.

    Raises:
        ScheduleRefused: A chunk is at a rank at which its group's chunks may not be.
    """
    check_within_groups(union, schedule)
    net = union.network
    group_of_send = union.group_of_chunk[schedule.chunk]
    order = np.argsort(group_of_send, kind="stable")
    cuts = np.searchsorted(group_of_send[order], np.arange(len(union.members) + 1))
    parts = []
    for group in range(len(union.members)):
        own = schedule.take(order[cuts[group] : cuts[group + 1]])
        touched = np.zeros(net.nranks, dtype=bool)
        touched[net.src[own.link]] = touched[net.dst[own.link]] = True
        problem, links = _own_problem(union, group, touched)
        by_number = np.argsort(links)
        part = replace(
            own,
            chunk=own.chunk - union.first_chunk[group],
            link=by_number[np.searchsorted(links[by_number], own.link)],
            size_bytes=union.member_bytes(group, schedule.size_bytes),
        )
        parts.append((problem, part))
    return parts


def times_by_group(union: UnionProblem, schedule: Schedule) -> Floats:
    """Return when the last send of each group has arrived in a timed schedule, in µs, shape (groups,).

    It is 0 for a group without sends. The latest of them is `simulate.time_us`.
    """
    times = np.zeros(len(union.members))
    arrival = schedule.end_us + union.network.alpha_us[schedule.link]
    np.maximum.at(times, union.group_of_chunk[schedule.chunk], arrival)
    return times
