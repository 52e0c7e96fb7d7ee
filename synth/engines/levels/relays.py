"""Relays as members: an algorithm of all ranks of the nodes, of which only the sends that the group needs stay.

A group with some GPUs of each node may use the NICs of the other GPUs too. A composition of levels uses the ports of
all members alike. So relays take part in it as members that contribute nothing and want nothing. What remains of its
sends loads the relays' NICs as much as the members'.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork, csr_network
from synth.engines.levels.composition import Arcs
from synth.engines.levels.plan import Levels, LevelsShape
from synth.engines.levels.shares import TreeLoad
from synth.engines.levels.tuning import LevelsTuning
from synth.model.collective import Floats, Ints, named
from synth.model.problem import Problem
from synth.model.registry import BUFFER, COLLECTIVE_KINDS
from synth.model.schedule import Schedule
from synth.phases.prune import prune_copies, prune_sums


def with_relays(problem: Problem, relays: tuple[int, ...]) -> Problem | None:
    """Return the problem in which relays are members with empty blocks, or with buffers that nobody wants.

    None for a collective whose blocks have sizes of their own, and where there are no relays.

    Args:
        problem: A problem with one chunk a block.
        relays: Those relays of the problem that take part; there are no others.
    """
    collective, members = problem.collective, problem.group + relays
    name, nranks, sizes = collective.name, len(members), None
    if not relays or collective.sizes:
        return None
    if collective.kind.unit != BUFFER:
        own = next((kind.name for kind in COLLECTIVE_KINDS.values() if kind.even == name and not kind.by_pair), "")
        if not own:
            return None
        name, sizes = own, (np.arange(nranks) < len(problem.group)).astype(np.float64)
    joined = replace(problem, collective=named(name, nranks, 1, collective.root, sizes), group=members, relays=())
    return joined if relays == problem.relays else joined.on(problem.topology)


class LevelsWithRelays(Levels):
    """Levels of a group and its relays, whose plans are for the group's own problem."""

    def __init__(self, problem: Problem, joined: Problem, members: Ints, tuning: LevelsTuning) -> None:
        """Prepare plans.

        Args:
            problem: The group's own problem, with one chunk a block.
            joined: The problem that `with_relays` made of it.
            members: Local ranks of `joined` by level, as `Levels` takes them.
            tuning: As for `Levels`.

        Raises:
            InputError: As `Levels` raises it.
        """
        super().__init__(joined, members, tuning)
        self._own = problem
        self._own_link = _links_in(joined, problem)

    def plan(self, shape: LevelsShape, count: int) -> tuple[Problem, Schedule] | None:
        """Return the group's problem in as many chunks, and those sends of a shape that it needs, in no order.

        None where a send has no link.
        """
        plan = super().plan(shape, count)
        if plan is None:
            return None
        collective, sends = plan[0].collective, plan[1]
        own = self._own.with_chunks(collective.nchunks // self._own.collective.nchunks)
        sends = replace(sends, link=self._own_link[sends.link])
        return own, (prune_sums if collective.reducing else prune_copies)(own, sends)

    def _load(self, arcs: Arcs) -> TreeLoad:
        """Return what `Levels._load` does, for those of the sends that the group needs."""
        members = len(self._own.group)
        order = np.argsort(arcs.step, kind="stable").tolist()
        reduces = self.problem.collective.reducing
        start, end = (arcs.tail, arcs.head) if reduces else (arcs.head, arcs.tail)
        # Sums come from members, copies go to them, over relays that have such sends themselves.
        reached, needed = set(range(members)), list[int]()
        for row in order if reduces else reversed(order):
            if int(start[row]) in reached:
                reached.add(int(end[row]))
                needed.append(row)
        rows = np.array(needed)
        return super()._load(Arcs(arcs.tail[rows], arcs.head[rows], arcs.step[rows], arcs.adds[rows]))

    @cached_property
    def net(self) -> CsrNetwork:
        """Return the network of the group's problem as list schedules need it."""
        return csr_network(self._own.network)

    def turns(self, link: Ints) -> Floats:
        """Return what `Levels.turns` does, for links of the group's problem."""
        joined_link = np.zeros(self._own.network.nlinks, dtype=np.int64)
        joined_link[self._own_link] = np.arange(len(self._own_link))
        return super().turns(joined_link[link])


def _links_in(joined: Problem, problem: Problem) -> Ints:
    """Return for each link of a problem, shape (links,), the same link of another problem that has all of its ranks."""
    if joined.network is problem.network:
        return np.arange(problem.network.nlinks)
    number = {key: link for link, key in enumerate(_keys(problem))}
    return np.array([number[key] for key in _keys(joined)], dtype=np.int64)


def _keys(problem: Problem) -> list[tuple[int, int, int]]:
    """Return the topology ranks of the two ends of each link, and its number among the links between these two."""
    net, ranks, seen = problem.network, problem.ranks, Counter[tuple[int, int]]()
    keys = []
    for source, destination in zip(net.src.tolist(), net.dst.tolist(), strict=True):
        ends = ranks[source], ranks[destination]
        keys.append((*ends, seen[ends]))
        seen[ends] += 1
    return keys
