"""The columns of a planner: their names and their order, in which the loops take them.

The loops that plan are plain Python over flat sequences, in the form that `synth.model.compiled` takes; tests interpret
them. `emit/library/selection/static/synth_skewed_nodes.h` has the same steps in C.

A *tick* is the time of a byte on the fastest lane. A *lane* leads from a NIC of one node to a NIC of another, and
carries a fixed share of what the one node sends to the other. A *flow* is what one NIC must send to another, in ticks;
a *segment* is a span of ticks in which it does so. A *piece* is what a lane carries of one block. A *chunk* is what is
sent at once: a piece, or a part of it. A *row* is a send of a chunk: into the rank of its lane's first NIC, over the
lane, or from its last NIC to its goal. Rows are sorted by a key, the time at which they should start, and then timed
one after another as `synth.timing.simulate` times a schedule.

Columns of indices are unsigned, since compiled code treats any signed index as if it could count from the end of its
column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LINK = (1 << 32) - 1  # What `between` has where two positions have no link.
MOST_BYTES = 1 << 36  # of a block, so that sums of ticks over all blocks fit in 63 bits
FULL, BAD = -1, -2  # What a loop returns if a column has too little room, or if the sizes are no plan's sizes.
PLANNED, STRAIGHT = range(2)  # What `plan_into` returns else: which of its outputs is faster.
CHUNKS, ROWS = range(2)  # Numbers of chunks and rows so far, in the state that loops hand on.
TIME, BOUND = range(2)  # Places of the results in µs.

# Of each type first the columns of `GroupShape` and of its links, then the workspace, then the outputs: the plan, and
# the plan of straight paths.
INTS = (
    *("node_ptr", "nic_ptr", "lane_ptr", "part_ports", "part_base"),
    *(
        "to_node",
        "pair_bytes",
        "rank_bytes",
        "cell",
        "left",
        "sent",
        "row_left",
        "first",
        "lane_left",
        "lane_seg",
        "lane_at",
    ),
    *("piece_bytes", "seg_flow", "seg_begin", "seg_end", "seg_ptr", "flow_begin", "flow_end"),
    *("padded", "real", "match", "owner", "since", "queue", "came", "longest"),
    *("chunk_offset", "chunk_bytes", "straight_offset", "straight_bytes"),
)
WORDS = (
    *("node_of", "node_rank", "nic_of", "nic_rank", "between"),
    *("lane_from", "lane_to", "lane_source", "lane_goal", "lane_flow", "leaves", "enters", "first_port", "last_port"),
    *("piece_source", "piece_goal", "piece_lane"),
    *("row_chunk", "row_link", "row_step", "row_bucket", "order", "bucket_ptr"),
    *("chunk_source", "chunk_goal", "send_chunk", "send_link", "send_step"),
    *("straight_source", "straight_goal", "straight_chunk", "straight_link", "straight_step"),
)
REALS = (
    *("lane_end", "lane_ticks", "rank_us", "rank_alpha_us", "node_us", "node_alpha_us", "least_us", "straight_us"),
    *("alpha", "link_us", "gap"),
    *("row_key", "sorted_key", "ready", "free", "port_us", "filled"),
    *("send_start", "straight_start"),
)
# The columns of a `Plan`, in its order, for both outputs.
OUTPUTS = (
    *("chunk_source", "chunk_goal", "chunk_offset", "chunk_bytes"),
    *("send_chunk", "send_link", "send_step", "send_start"),
)
STRAIGHT_OUTPUTS = (
    *("straight_source", "straight_goal", "straight_offset", "straight_bytes"),
    *("straight_chunk", "straight_link", "straight_step", "straight_start"),
)


class PackedColumns:
    """The columns of one type in one array, as compiled loops take them: a few arrays are handed over faster than many.

    Attributes:
        array: The array.
        at: First entry of each column and the end of the last, int64, shape (columns + 1,).
        names: Names of the columns, in their order.
    """

    def __init__(self, names: Sequence[str], dtype: Any, columns: Mapping[str, NDArray[Any] | int]) -> None:
        """Lay the columns out.

        Args:
            names: Names of the columns, in their order.
            dtype: Their type.
            columns: By name the entries of a column, or their number; indices of -1 become 2³² - 1.
        """
        self.names = tuple(names)
        lengths = [column if isinstance(column := columns[name], int) else len(column) for name in names]
        self.at = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.array = np.zeros(int(self.at[-1]), dtype=dtype)
        self._place = {name: place for place, name in enumerate(names)}
        for name in names:
            column = columns[name]
            if not isinstance(column, int):
                self[name][:] = column.astype(dtype)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column, which shares its entries with the array."""
        place = self._place[name]
        return self.array[self.at[place] : self.at[place + 1]]
