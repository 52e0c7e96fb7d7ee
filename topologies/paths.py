"""The paths through switches that are links of a large network (`topologies.switch_graph`)."""

from __future__ import annotations

from enum import Enum


class Paths(Enum):
    """The paths through switches that are links of a network with more than 2¹⁸ of them (`MOST_PATHS`).

    Attributes:
        ALL: Each path.
        NODES: Paths inside a node, and between ranks at the same place in any two nodes.
        LEVELS: The same, or if these are more than `MOST_PATHS`, paths between ranks whose places differ in one level
            only, such as in the rack, in the node of a rack, or in the GPU of a node.
    """

    ALL = "all"
    NODES = "nodes"
    LEVELS = "levels"
