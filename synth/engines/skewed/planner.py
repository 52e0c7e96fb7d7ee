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
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synth.engines.skewed.columns import (
    BAD,
    FULL,
    INTS,
    MOST_BYTES,
    OUTPUTS,
    REALS,
    STRAIGHT,
    STRAIGHT_OUTPUTS,
    WORDS,
    PackedColumns,
)
from synth.engines.skewed.loads import bound_us, set_loads
from synth.engines.skewed.loop import plan_into
from synth.engines.skewed.shape import GroupShape, shape_of
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from topologies.errors import InputError
from topologies.topology import Topology

Words = NDArray[np.uint32]

_MOST_ROOM = 1 << 28  # Sends of a plan; with more it would not fit in memory.


class Plan(NamedTuple):
    """A planned all-to-all: chunks, and their sends in order of priority.

    Attributes:
        chunk_source: Position in the group of each chunk's source, uint32, shape (chunks,).
        chunk_goal: Position of its destination.
        chunk_offset: First byte of the chunk in the block from source to destination, int64, shape (chunks,).
        chunk_bytes: Bytes of the chunk, int64, shape (chunks,).
        chunk: Chunk of each send, uint32, shape (sends,).
        link: Link of the group's network that each send uses, uint32, shape (sends,).
        step: Number of sends of its chunk before it: 0, 1 or 2; uint32, shape (sends,).
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


def fixed_columns(shape: GroupShape) -> dict[str, NDArray[Any]]:
    """Return the columns of a shape and of its links, by the names of `columns`."""
    net = shape.net
    names = [name for name in (*INTS, *WORDS, *REALS) if hasattr(shape, name)]
    return {
        **{name: getattr(shape, name) for name in names},
        "first_port": shape.ports[0::2],
        "last_port": shape.ports[1::2],
        "alpha": net.alpha_us,
        "link_us": 1e-3 / net.bandwidth_gbs * shape.unit_bytes,
        "gap": net.gap_us if len(net.gap_us) else np.zeros(net.nlinks),
    }


def _workspace(shape: GroupShape, room: int, inner: int) -> dict[str, int]:
    """Return the length of each column that a plan writes, for up to `room` chunks.

    Args:
        shape: The shape.
        room: Number of chunks, and of pieces and segments.
        inner: Positions in the largest node.
    """
    k, n, lanes = shape.nranks, shape.nnodes, len(shape.lane_from)
    ports = max([inner, *shape.part_ports.tolist()])
    cells = max(int(shape.part_base[-1]), inner * inner)
    lengths = {
        room: "piece_bytes seg_flow seg_begin seg_end flow_begin flow_end chunk_offset chunk_bytes piece_source"
        " piece_goal piece_lane chunk_source chunk_goal ready",
        3 * room: "row_chunk row_link row_step row_bucket order row_key sorted_key send_chunk send_link send_step"
        " send_start",
    }
    # Equal lengths must not overwrite each other, so they stand in pairs.
    pairs = [
        *lengths.items(),
        (k * n, "to_node"),
        (n * n, "pair"),
        (2 * k, "rank longest port_us filled"),
        (cells, "cell"),
        (cells + 1, "seg_ptr"),
        (k * k, "left sent"),
        (k, "row_left first"),
        (lanes, "lane_left lane_seg lane_at"),
        (ports * ports, "padded real"),
        (ports, "match owner since came"),
        (ports + 1, "queue"),
        (max(256, 1 << (room // 2).bit_length()), "bucket_ptr"),
        (shape.net.nresources, "free"),
        (k * k + 1, "straight_offset straight_bytes straight_source straight_goal"),
        (3 * k * k + 3, "straight_chunk straight_link straight_step straight_start"),
    ]
    return {name: length for length, names in pairs for name in names.split()}


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

    def __init__(self, shape: GroupShape, interpreted: bool = False) -> None:
        """Prepare the columns and the workspace.

        Args:
            shape: The shape of the group.
            interpreted: Whether Python runs the loops, for tests and single small plans; otherwise they are compiled at
                the first plan.
        """
        self.shape, self._run = shape, Runner(interpreted)
        wide = shape.nranks if interpreted else np.uint32(shape.nranks)
        self._numbers = shape.nranks, wide, shape.nnodes, shape.net.start_us, shape.tick_us, shape.has_ports
        k, self._inner = shape.nranks, int(np.diff(shape.node_ptr).max())
        self._make_room(4 * k * k + 32 * len(shape.lane_from) + 64)

    def _make_room(self, room: int) -> None:
        """Allocate the columns for plans of up to `room` chunks."""
        columns: dict[str, NDArray[Any] | int] = {**fixed_columns(self.shape)}
        columns |= _workspace(self.shape, room, self._inner)
        self._room = room
        parts = [
            PackedColumns(names, dtype, columns)
            for names, dtype in ((INTS, np.int64), (WORDS, np.uint32), (REALS, np.float64))
        ]
        self._columns = {name: part[name] for part in parts for name in part.names}
        self._outputs = [[self._columns[name] for name in names] for names in (OUTPUTS, STRAIGHT_OUTPUTS)]
        self._state = [np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64), np.zeros(2)]
        arguments: tuple[Any, ...] = (*chain.from_iterable((part.array, part.at) for part in parts), *self._state)
        self._arguments = tuple(memoryview(column) for column in arguments) if self._run.interpreted else arguments

    def plan(self, sizes: ArrayLike) -> Plan:
        """Plan an all-to-all; the same sizes give the same plan, which is never slower than straight paths.

        Args:
            sizes: Bytes from position i to position j, whole numbers, shape (k, k), at most 2³⁶ each; the diagonal is
                ignored. An int64 array in C order is not copied.

        Raises:
            InputError: The sizes have another shape or type, or one is negative or too large.
        """
        return self._planned(sizes, only_straight=False)

    def plan_straight(self, sizes: ArrayLike) -> Plan:
        """Send every block whole and straight, each rank's in the order of the ranks behind it; else as `plan`.

        A block goes over the link from its source to its goal. If there is none, it leaves at its source's rail and is
        passed on inside the node of its goal.
        """
        return self._planned(sizes, only_straight=True)

    def bound(self, sizes: ArrayLike) -> float:
        """Return a time in µs that no schedule of these sizes can beat, as `Plan.bound_us`.

        It is the largest of these terms, after the start of the call where an executor's costs are on. A send of b
        bytes holds every resource of its link for b / capacity or longer, and arrives α after it has left the link:

        - The bytes out of a rank, or into it, and out of a node, or into it, to or from all others: each of these bytes
          takes a resource of a cover of the links that cross the border (`synth.bounds.resource_cover`), so the last of
          them has left no sooner than their sum over the sum of the cover's capacities. Then it needs the least α of
          these links. The cover of a node is its NICs.
        - The least sum of α on any path from the source to the goal of a block.

        What two nodes send to each other is no term, as other nodes could relay it.

        Args:
            sizes: As for `plan`.

        Raises:
            InputError: As `plan`.
        """
        s, run, c = self.shape, self._run, self._columns
        column, k, n = self._column(sizes), s.nranks, s.nnodes
        total = run(set_loads, column, k, n, c["node_of"], c["to_node"], c["pair"], c["rank"])
        if total == BAD:
            self._refuse(sizes)
        figures = (c[name] for name in ("rank_us", "rank_alpha_us", "node_us", "node_alpha_us", "least_us"))
        return float(run(bound_us, column, k, n, c["pair"], c["rank"], *figures, s.net.start_us)) if total else 0.0

    def _planned(self, sizes: ArrayLike, only_straight: bool) -> Plan:
        """Return the plan, or the plan of straight paths; InputError as `plan`."""
        column = self._column(sizes)
        while (kind := self._run(plan_into, column, *self._numbers, only_straight, *self._arguments)) == FULL:
            self._grow()
        if kind == BAD:
            self._refuse(sizes)
        (chunks, sends), (time_us, bound) = self._state[kind].tolist(), self._state[-1].tolist()
        of_chunks = [column[:chunks].copy() for column in self._outputs[kind][:4]]
        of_sends = [column[:sends].copy() for column in self._outputs[kind][4:]]
        return Plan._make((*of_chunks, *of_sends, time_us, bound, kind == STRAIGHT))

    def _column(self, sizes: ArrayLike) -> Any:
        """Return the sizes as a flat column.

        Raises:
            InputError: They have another shape or type.
        """
        k, table = self.shape.nranks, _table(sizes)
        if table.shape != (k, k) or table.dtype.kind not in "iu":
            form = f"whole numbers of shape {(k, k)}"
            raise InputError(f"sizes: are {table.dtype} of shape {table.shape}; they must be {form}")
        column: Any = np.ascontiguousarray(table, dtype=np.int64).reshape(-1)
        return memoryview(column) if self._run.interpreted else column

    def _grow(self) -> None:
        """Double the room for chunks.

        Raises:
            InputError: The plan would not fit in memory.
        """
        if self._room * 6 > _MOST_ROOM:
            raise InputError("sizes: their plan has too many chunks to fit in memory")
        self._make_room(2 * self._room)

    def _refuse(self, sizes: ArrayLike) -> None:
        """Raise InputError for the first size that is negative or too large."""
        table = _table(sizes)
        i, j = np.argwhere((table < 0) | (table > MOST_BYTES))[0].tolist()
        raise InputError(f"sizes: {table[i, j]} bytes from {i} to {j}; a size must be from 0 to 2³⁶ bytes")


def _table(sizes: ArrayLike) -> NDArray[Any]:
    """Return sizes as an array of any type; InputError where they are no table."""
    try:
        return np.asarray(sizes)
    except ValueError:
        raise InputError("sizes: have rows of different lengths; they must be a square of whole numbers") from None
