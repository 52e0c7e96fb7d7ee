"""Paths through switches: the choice of those that are links of a network, and the graph of all of them.

Where switches join hundreds of ranks with each other, a link for each pair takes more time and memory than all searches
for schedules, which use few of them. A search asks for a network with links within the parts of each level, such as
nodes, and between the ranks at the same place in its parts. Bounds count the other paths too: they are in the graph.
"""

from __future__ import annotations

from enum import Enum

MOST_PATHS = 1 << 18  # Paths through switches up to which each of them is a link.


class Paths(Enum):
    """The paths through switches that are links of a network with more than `MOST_PATHS` of them.

    Attributes:
        ALL: Each path.
        NODES: Paths inside a node, and between ranks at the same place in any two nodes.
        LEVELS: The same, or if these are more than `MOST_PATHS`, paths between ranks whose places differ in one level
            only, such as in the rack, in the node of a rack, or in the GPU of a node.
    """

    ALL = "all"
    NODES = "nodes"
    LEVELS = "levels"
