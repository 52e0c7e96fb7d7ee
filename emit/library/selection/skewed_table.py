"""The table of a process group, from which programs in C plan all-to-alls whose sizes change at every step.

`static/synth_skewed.h`, which reads the table, states the layout; all numbers are little-endian. Version 1 is of groups
in nodes, version 2 of all others. The plans are those of `synth.engines.skewed.prepare.prepare`.
"""

from __future__ import annotations

import struct
from pathlib import Path

from synth.engines.skewed import planner
from synth.engines.skewed.routes import routed
from synth.engines.skewed.routes.routed import RoutedShape
from synth.engines.skewed.shape import GroupShape

_STATIC = Path(__file__).parent / "static"
HEADER = _STATIC / "synth_skewed.h"
# The first includes the others.
HEADERS = (HEADER, _STATIC / "synth_skewed_nodes.h", _STATIC / "synth_skewed_routed.h")
MAGIC, BYTE_ORDER = b"SYNTHSKW", 0x01020304
NODES, ROUTED = 1, 2  # Versions of the table.
_HEAD = struct.Struct("<8sIIQ10I2d4I")
# The columns of each version, by type and in their order.
COLUMNS = {
    NODES: {
        "<i8": "node_ptr nic_ptr lane_ptr part_ports part_base",
        "<f8": "lane_end lane_ticks rank_us rank_alpha_us node_us node_alpha_us least_us straight_us alpha link_us gap",
        "<u4": "node_of node_rank nic_of nic_rank between lane_from lane_to lane_source lane_goal lane_flow leaves"
        " enters first_port last_port",
    },
    ROUTED: {
        "<i8": "uses_ptr users_ptr path_ptr",
        "<f8": "rank_us rank_alpha_us node_us node_alpha_us least_us alpha link_us gap part busy_us",
        "<u4": "node_of src dst uses users path_hops path_link",
    },
}


def table_bytes(shape: GroupShape | RoutedShape) -> bytes:
    """Return the table of a process group, by which `synth_skewed_open` knows its links, and its NICs or paths.

    Args:
        shape: The shape of the group, as `synth.engines.skewed.prepare.shape_for` finds it.
    """
    net = shape.net
    links = net.nlinks, net.nresources
    if isinstance(shape, RoutedShape):
        version, columns = ROUTED, routed.fixed_columns(shape)
        counts = net.nranks, len(shape.node_us) // 2, 0, 0, *links, 0, 0, 0, 0
        tick_us, paths = 0.0, (len(shape.path_hops), shape.width, len(net.uses_idx), 0)
    else:
        version, columns = NODES, planner.fixed_columns(shape)
        nodes = shape.nranks, shape.nnodes, len(shape.nic_ptr) - 1, len(shape.lane_from)
        counts = *nodes, *links, len(shape.part_ports), int(shape.part_base[-1]), int(shape.has_ports), 0
        tick_us, paths = shape.tick_us, (0, 0, 0, 0)
    parts = [columns[name].astype(kind).tobytes() for kind, names in COLUMNS[version].items() for name in names.split()]
    body = b"".join(part + bytes(-len(part) % 8) for part in parts)
    file_bytes = _HEAD.size + len(body)
    return _HEAD.pack(MAGIC, version, BYTE_ORDER, file_bytes, *counts, tick_us, net.start_us, *paths) + body
