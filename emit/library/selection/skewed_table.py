"""The table of a process group, from which programs in C plan all-to-alls whose sizes change at every step.

`static/synth_skewed.h`, which reads the table, states the layout (version 1); all numbers are little-endian. Its plans
are those of `synth.engines.skewed.planner.Planner`.
"""

from __future__ import annotations

import struct
from pathlib import Path

from synth.engines.skewed.planner import fixed_columns
from synth.engines.skewed.shape import GroupShape

HEADER = Path(__file__).parent / "static" / "synth_skewed.h"
MAGIC, VERSION, BYTE_ORDER = b"SYNTHSKW", 1, 0x01020304
_HEAD = struct.Struct("<8sIIQ10Idd2Q")
_INTS = ("node_ptr", "nic_ptr", "lane_ptr", "part_ports", "part_base")
_REALS = (
    *("lane_end", "lane_ticks", "rank_us", "rank_alpha_us", "node_us", "node_alpha_us", "least_us", "straight_us"),
    *("alpha", "link_us", "gap"),
)
_WORDS = (
    *("node_of", "node_rank", "nic_of", "nic_rank", "between", "lane_from", "lane_to", "lane_source", "lane_goal"),
    *("lane_flow", "exit", "entry", "first_port", "last_port"),
)


def table_bytes(shape: GroupShape) -> bytes:
    """Return the table of a process group, by which `synth_skewed_open` knows its nodes, NICs and links.

    Args:
        shape: The shape of the group, as `synth.engines.skewed.planner.prepare` finds it.
    """
    columns, net = fixed_columns(shape), shape.net
    kinds = ((_INTS, "<i8"), (_REALS, "<f8"), (_WORDS, "<u4"))
    parts = [columns[name].astype(kind).tobytes() for names, kind in kinds for name in names]
    body = b"".join(part + bytes(-len(part) % 8) for part in parts)
    lanes, matrices = len(shape.lane_from), len(shape.part_ports)
    counts = shape.nranks, shape.nnodes, len(shape.nic_ptr) - 1, lanes, net.nlinks, net.nresources, matrices
    numbers = *counts, int(shape.part_base[-1]), int(shape.has_ports), 0
    file_bytes = _HEAD.size + len(body)
    return _HEAD.pack(MAGIC, VERSION, BYTE_ORDER, file_bytes, *numbers, shape.tick_us, net.start_us, 0, 0) + body
