"""Plan all-to-alls of sizes that change at every step: prepare once for a process group, then plan in microseconds.

A mixture of experts sends other sizes at every step, so no schedule made beforehand fits. The method is that of FAST
("An efficient scheduler for all-to-all GPU communication", NSDI 2026, arXiv 2505.09764): inside each node data move
over the fast links until every NIC carries the same share; nodes exchange in rounds that keep the busiest node busy;
inside the goal's node data are passed on. All three run at once. The steps are ours: `loop` runs
them, and `lanes`, `rounds` and `inner` are the parts.

    planner = Planner(shape_of(load("dgx-h100:4")))
    plan = planner.plan(sizes)               # bytes from position to position, int64, shape (32, 32)
    plan.time_us, plan.bound_us
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synth.engines.skewed.columns import (
    BAD,
    INTS,
    OUTPUTS,
    REALS,
    STRAIGHT_OUTPUTS,
    WORDS,
    PackedColumns,
)
from synth.engines.skewed.loads import bound_us, set_loads
from synth.engines.skewed.loop import plan_into
from synth.engines.skewed.plan import SizesPlanner
from synth.engines.skewed.shape import GroupShape


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
    """Return by name the length of each column that a plan writes: the workspace and the outputs.

    Args:
        shape: The shape.
        room: Most chunks of a plan; also most pieces, and most segments.
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
        (n * n, "pair_bytes"),
        (2 * k, "rank_bytes longest port_us filled"),
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


class Planner(SizesPlanner):
    """A planner of all-to-alls for one process group in nodes whose ranks all have links.

    A block that is sent straight goes over the link from its source to its goal. If there is none, it goes over the
    link from its source to some rank of the goal's node (the rail of its source) and is passed on inside that node.

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
        super().__init__(shape.net, interpreted)
        self.shape = shape
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
        total = run(set_loads, column, k, n, c["node_of"], c["to_node"], c["pair_bytes"], c["rank_bytes"])
        if total == BAD:
            self._refuse(sizes)
        figures = (c[name] for name in ("rank_us", "rank_alpha_us", "node_us", "node_alpha_us", "least_us"))
        return (
            float(run(bound_us, column, k, n, c["pair_bytes"], c["rank_bytes"], *figures, s.net.start_us))
            if total
            else 0.0
        )

    def _call(self, column: Any, only_straight: bool) -> int:
        return int(self._run(plan_into, column, *self._numbers, only_straight, *self._arguments))
