"""Plan all-to-alls of sizes that change at every step: prepare once for a process group, then plan in microseconds.

A mixture of experts sends other sizes at every step, so no schedule made beforehand fits. The method is that of FAST
("An efficient scheduler for all-to-all GPU communication", NSDI 2026, arXiv 2505.09764): inside each node data move
over the fast links until every NIC carries the same share; nodes exchange in rounds that keep the busiest node busy;
inside the goal's node data are passed on. All three run at once. The steps are ours, see `loops` and `rounds`.

    planner = prepare(load("dgx-h100:4"))
    plan = planner.plan(sizes)               # bytes from position to position, int64, shape (32, 32)
    plan.time_us, plan.bound_us
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.engines.skewed.loops import (
    BAD,
    BOUND,
    CHUNKS,
    MOST_BYTES,
    ROWS,
    STRAIGHT,
    TIME,
    plan_into,
    plan_straight,
)
from synth.engines.skewed.rounds import FULL
from synth.engines.skewed.shape import Shape, shape_of
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from topologies.errors import InputError
from topologies.topology import Topology

Words = NDArray[np.int32]

_MOST_ROOM = 1 << 28  # Sends of a plan; with more it would not fit in memory.


class Plan(NamedTuple):
    """A planned all-to-all: chunks, and their sends in order of priority.

    Attributes:
        chunk_source: Position in the group of each chunk's source, int32, shape (chunks,).
        chunk_goal: Position of its destination.
        chunk_offset: First byte of the chunk in the block from source to destination, int64, shape (chunks,).
        chunk_bytes: Bytes of the chunk, int64, shape (chunks,).
        chunk: Chunk of each send, int32, shape (sends,).
        link: Link of the group's network that each send uses, int32, shape (sends,).
        step: Number of sends of its chunk before it: 0, 1 or 2; int32, shape (sends,).
        start_us: Time at which each send takes its link, in µs, float64, shape (sends,).
        time_us: Time in µs until the last chunk has arrived; 0 if nothing is sent.
        bound_us: Time in µs that no schedule of these sizes can beat.
        is_straight: Whether every block is sent whole and straight, because that is no slower.
    """

    chunk_source: Words
    chunk_goal: Words
    chunk_offset: Ints
    chunk_bytes: Ints
    chunk: Words
    link: Words
    step: Words
    start_us: Floats
    time_us: float
    bound_us: float
    is_straight: bool


def prepare(topology: Topology, group: Sequence[int] | None = None) -> Planner:
    """Prepare plans for a process group.

    Args:
        topology: The topology. Its chassis are the nodes; the costs of an executor count where they are on.
        group: Rank of the topology at each position; None for all ranks.

    Raises:
        InputError: The group's shape does not fit: two ranks of a node have no link, no NIC joins two nodes, two sends
            can share a resource, or there are fewer than two ranks.
    """
    return Planner(shape_of(topology, group))


class Planner:
    """A planner of all-to-alls for one process group; it is not for two threads at once.

    Attributes:
        shape: The shape of the group.
    """

    def __init__(self, shape: Shape, interpreted: bool = False) -> None:
        """Prepare the columns and the workspace.

        Args:
            shape: The shape of the group.
            interpreted: Whether Python runs the loops, for tests; otherwise they are compiled at the first plan.
        """
        self.shape, net = shape, shape.net
        self._run = run = Runner(interpreted)
        s = shape
        self._shape = tuple(
            run.columns(
                s.node_of,
                s.node_ptr,
                s.node_rank,
                s.nic_of,
                s.nic_ptr,
                s.nic_rank,
                s.between,
                s.lane_ptr,
                s.lane_from,
                s.lane_to,
                s.lane_source,
                s.lane_goal,
                s.lane_end,
                s.lane_ticks,
                s.lane_flow,
                s.part_ports,
                s.part_base,
                s.exit,
                s.entry,
                s.rank_us,
                s.rank_alpha_us,
                s.node_us,
                s.node_alpha_us,
                s.least_us,
                s.straight_us,
            )
        )
        gap = net.gap_us if len(net.gap_us) else np.zeros(net.nlinks)
        columns = net.alpha_us, 1e-3 / net.bandwidth_gbs, gap, s.ports
        self._links = tuple(run.columns(*columns))
        k, inner, outer = shape.nranks, int(np.diff(shape.node_ptr).max()), len(shape.lane_from)
        self._make_room(4 * k * k + 32 * outer + 64, inner)

    def _make_room(self, room: int, inner: int) -> None:
        """Allocate the workspace and the outputs for plans of up to `room` chunks."""
        s, run = self.shape, self._run
        k, n, lanes = s.nranks, s.nnodes, len(s.lane_from)
        ports = max([inner, *s.part_ports.tolist()])
        cells = max(int(s.part_base[-1]), inner * inner)
        buckets = max(256, 1 << (room // 8).bit_length())
        self._room, self._inner = room, inner

        def ints(*counts: int) -> list[Any]:
            return run.columns(*(np.zeros(count, dtype=np.int64) for count in counts))

        def words(*counts: int) -> list[Any]:
            return run.columns(*(np.zeros(count, dtype=np.int32) for count in counts))

        def reals(*counts: int) -> list[Any]:
            return run.columns(*(np.zeros(count) for count in counts))

        rows = 3 * room
        self._work = (
            *ints(k * n, n * n, 2 * k, cells, k * k, k * k, k, k, lanes, lanes, lanes),
            *words(room, room, room),
            *ints(room, room, room, room, cells + 1, room, room),
            *ints(ports * ports, ports * ports, *[ports] * 3, ports + 1, ports),
            *words(rows, rows, rows),
            *reals(rows),
            *words(rows, rows, buckets),
            *reals(room, s.net.nresources, 2 * k, 2 * k),
            *ints(2 * k),
            *reals(rows),
        )

        def outputs(chunks: int) -> tuple[Any, ...]:
            sends = 3 * chunks
            return (*words(chunks, chunks), *ints(chunks, chunks), *words(sends, sends, sends), *reals(sends))

        self._outputs = outputs(room), outputs(k * k + 1)
        self._state = ints(2, 2)
        self._results = reals(2)[0]

    def plan(self, sizes: NDArray[np.int64]) -> Plan:
        """Plan an all-to-all; the same sizes give the same plan.

        Args:
            sizes: Bytes from position i to position j, int64, shape (k, k), below 2⁵⁰ each; the diagonal is ignored.

        Raises:
            InputError: The sizes have another shape or type, or one is negative or too large.
        """
        s, run = self.shape, self._run
        k = s.nranks
        column = self._column(sizes)
        while True:
            kind = run(
                plan_into, column, k, s.nnodes, s.net.start_us, s.tick_us, s.has_ports, self._shape, self._links,
                self._work, *self._outputs, *self._state, self._results,
            )  # fmt: skip
            if kind != FULL:
                break
            self._grow()
        if kind == BAD:
            self._refuse(sizes)
        return self._plan(int(kind))

    def _plan(self, kind: int) -> Plan:
        """Return the plan in one of the outputs, with copies of its columns."""
        state, outputs, results = self._state[kind], self._outputs[kind], self._results
        chunks, sends = int(state[CHUNKS]), int(state[ROWS])
        columns = [np.array(column[:chunks]) for column in outputs[:4]]
        columns += [np.array(column[:sends]) for column in outputs[4:]]
        return Plan(*columns, float(results[TIME]), float(results[BOUND]), kind == STRAIGHT)

    def _column(self, sizes: NDArray[np.int64]) -> Any:
        """Return the sizes as a flat column.

        Raises:
            InputError: They have another shape or type.
        """
        k = self.shape.nranks
        if sizes.shape != (k, k) or sizes.dtype != np.int64:
            raise InputError(f"sizes: are {sizes.dtype} of shape {sizes.shape}; they must be int64 of shape {(k, k)}")
        return self._run.columns(np.ascontiguousarray(sizes).reshape(-1))[0]

    def _grow(self) -> None:
        """Double the room for chunks.

        Raises:
            InputError: The plan would not fit in memory.
        """
        if self._room * 6 > _MOST_ROOM:
            raise InputError("sizes: their plan has too many chunks to fit in memory")
        self._make_room(2 * self._room, self._inner)

    def _refuse(self, sizes: NDArray[np.int64]) -> None:
        """Raise InputError for the first size that is negative or too large."""
        i, j = np.argwhere((sizes < 0) | (sizes > MOST_BYTES))[0].tolist()
        raise InputError(f"sizes: {sizes[i, j]} bytes from {i} to {j}; a size must be from 0 to 2⁵⁰ bytes")
