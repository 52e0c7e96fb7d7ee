"""Plan an all-to-all of blocks of any sizes on a known network, and run one rank's part of the plan.

The plans are those of `synth.engines.skewed.prepare`. In nodes that NICs join, data are spread over the NICs of their
node, cross to the other nodes in rounds, and are passed on there; on other networks chunks share the links. Each send
is a message of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from runtime.torch.programs.pieces import busiest
from runtime.torch.programs.transport import MAX_CHANNELS, Started, Transport
from synth.engines.skewed.plan import Plan
from synth.engines.skewed.prepare import planner_for, shape_for
from synth.engines.skewed.shape import GroupShape
from topologies.errors import InputError
from topologies.topology import Topology

Tensor: TypeAlias = Any

# A plan runs if sending each block straight is expected to take so many times as long: further messages cost something
# that the network's description may not state.
_LEAST_GAIN = 1.1
_MOST_PLANS = 64  # Plans of the latest sizes that are kept.
# Ranks up to which Python runs the planner's loops: compiling them takes a process half a minute.
_MOST_INTERPRETED = 32
_NODES_US, _ROUTED_US = 20.0, 200.0  # Time to plan where Python runs the loops, for each pair of ranks.
_COMPILED_SHARE = 0.05  # The same where they are compiled, as a share.
_WORTH = 2.0  # A plan must be for calls that take so many times as long as planning them: most save less than half.
_EVEN_BYTES = 1 << 20  # Of each block of the all-to-all by which the time of others is estimated.


class _Chunk(NamedTuple):
    """A part of a block: its source, its goal, its first byte in the block, and its number of bytes."""

    source: int
    goal: int
    offset: int
    length: int


class RankPlan(NamedTuple):
    """One rank's part of a plan.

    Attributes:
        sends: Chunks that the rank sends, each with its number and the peer, in order of priority.
        receives: Chunks that it receives, likewise.
    """

    sends: list[tuple[int, _Chunk, int]]
    receives: list[tuple[int, _Chunk, int]]


class RankPlanner:
    """A planner of the all-to-alls of a process group, for one of its ranks; it is not for two threads at once."""

    def __init__(self, topology: Topology, ranks: Sequence[int], me: int) -> None:
        """Prepare plans.

        Args:
            topology: The network of the whole job.
            ranks: The group's members, as the topology numbers them.
            me: Place of this rank among them.

        Raises:
            InputError: No planner takes the group (see `synth.engines.skewed.prepare.shape_for`), or nothing gains,
                since the group is in one node whose links share ports.
        """
        shape, k = shape_for(topology, tuple(ranks)), len(ranks)
        if isinstance(shape, GroupShape) and shape.nnodes < 2:
            raise InputError("all its ranks are in one node, where nothing gains; the topology must state other nodes")
        is_small = k <= _MOST_INTERPRETED
        self._planner, self._me = planner_for(shape, interpreted=is_small), me
        planning_us = (_NODES_US if isinstance(shape, GroupShape) else _ROUTED_US) * k**2
        self._planning_us = planning_us if is_small else _COMPILED_SHARE * planning_us
        even = self._planner.plan_straight(np.full((k, k), _EVEN_BYTES))
        self._least_bytes = _WORTH * self._planning_us / even.time_us * _EVEN_BYTES * k  # Of the busiest rank.
        self._is_linked = np.eye(k, dtype=bool)
        self._is_linked[shape.net.src, shape.net.dst] = True
        self._cached_plan = lru_cache(_MOST_PLANS)(self._plan)

    def plan(self, sizes: Sequence[Sequence[int]]) -> RankPlan | None:
        """Return this rank's part of the plan for blocks of these bytes; None if it gains little over straight sends.

        All ranks get parts of one plan for the same sizes, or all get None. Parts for the latest sizes are kept.

        Args:
            sizes: Bytes of all blocks, as [giving place][taking place].

        Raises:
            InputError: A block has more than 2³⁶ bytes.
        """
        return self._cached_plan(tuple(map(tuple, sizes)))

    def _plan(self, sizes: tuple[tuple[int, ...], ...]) -> RankPlan | None:
        """Return what `plan` does, without a look at earlier plans."""
        if busiest(sizes) < self._least_bytes:  # Planning would take longer than it can gain.
            return None
        straight = self._planner.plan_straight(sizes)
        # The network passes a block between ranks without a link on as its routes say, not as straight plans do.
        is_routed = bool((np.array(sizes) > 0)[~self._is_linked].any())
        most_gain_us = straight.time_us - (0.0 if is_routed else straight.bound_us)
        if most_gain_us < self._planning_us or (not is_routed and straight.time_us < _LEAST_GAIN * straight.bound_us):
            return None
        plan = self._planner.plan(sizes)
        if not is_routed and (plan.is_straight or straight.time_us < _LEAST_GAIN * plan.time_us):
            return None
        net = self._planner.net
        order = np.argsort(plan.start_us, kind="stable")
        chunk, link = plan.chunk[order].tolist(), plan.link[order]
        sources, targets = net.src[link].tolist(), net.dst[link].tolist()
        sends, receives = [], []
        for number, source, target in zip(chunk, sources, targets, strict=True):
            if source == self._me:
                sends.append((number, _chunk(plan, number), target))
            if target == self._me:
                receives.append((number, _chunk(plan, number), source))
        return RankPlan(sends, receives)


def _chunk(plan: Plan, number: int) -> _Chunk:
    """Return a chunk of a plan by its number."""
    columns = plan.chunk_source, plan.chunk_goal, plan.chunk_offset, plan.chunk_bytes
    return _Chunk(*(int(column[number]) for column in columns))


def run_planned(part: RankPlan, transport: Transport, out: Sequence[Any], into: Sequence[Any]) -> None:
    """Run one rank's part of a plan until its messages are sent and received.

    The channel of a chunk's message is its length modulo MAX_CHANNELS, as that of a block in `transport.exchange`. A
    rank that passes a chunk on waits until it has come. No ranks wait for each other in a circle, because every rank
    takes its sends in the order of the plan's times, and in a plan a chunk has come before it leaves.

    Args:
        part: The rank's part.
        transport: Messages of the call.
        out: Block for each rank, contiguous in one dimension; this rank's own is ignored.
        into: Room for the block of each rank, likewise.

    Raises:
        RuntimeError: A message did not come.
    """
    me = transport.rank
    own_bytes, room = ([block.view(torch.uint8) for block in blocks] for blocks in (out, into))

    def work() -> None:
        """Start all receives, send in order, and wait for the rest."""
        coming: dict[int, Started] = {}
        for number, chunk, peer in part.receives:
            into = _part(room[chunk.source], chunk) if chunk.goal == me else room[me].new_empty(chunk.length)
            coming[number] = transport.receive(into, peer, chunk.length % MAX_CHANNELS)
        sent = []
        for number, chunk, peer in part.sends:
            own = chunk.source == me
            values = _part(own_bytes[chunk.goal], chunk) if own else transport.finish(coming.pop(number))
            sent.append(transport.send(values, peer, chunk.length % MAX_CHANNELS))
        for message in coming.values():
            transport.finish(message)
        for message in sent:
            transport.finish(message, "sends to")

    longest = max((chunk.length for _, chunk, _ in (*part.sends, *part.receives)), default=0)
    transport.wait_for(work, longest)


def _part(block: Tensor, chunk: _Chunk) -> Tensor:
    """Return the bytes of a chunk as a view of its block's bytes."""
    return block[chunk.offset : chunk.offset + chunk.length]
