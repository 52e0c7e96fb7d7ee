"""The choice of the planner for a process group, by its network."""

from __future__ import annotations

from collections.abc import Sequence

from synth.engines.skewed import shape
from synth.engines.skewed.plan import SizesPlanner
from synth.engines.skewed.planner import Planner
from synth.engines.skewed.routes import routed
from topologies.network import Network
from topologies.topology import Topology

_MOST_IN_NODE = 16  # Ranks of a node whose links chunks share; a plan of more takes longer than it gains.
_NODES_S, _ROUTED_S = 5e-5, 2e-3  # Seconds that the interpreter takes for a block of a plan, about.


def shape_for(
    topology: Topology, group: Sequence[int] | None = None, net: Network | None = None
) -> shape.GroupShape | routed.RoutedShape:
    """Return the shape of a process group: its nodes, NICs and links, or its paths, which its plans use.

    Groups in nodes whose ranks all have links, joined by NICs, get plans that balance the NICs (`Planner`). Groups of
    all other networks get plans whose chunks share the links (`RoutedPlanner`). So do groups of up to 16 ranks in one
    node whose links share no ports, as a large block gains by relays there.

    Args:
        topology: The topology. Its chassis are the nodes; the costs of an executor count where they are on.
        group: Rank of the topology at each position; None for all ranks.
        net: The network of exactly these ranks, if the caller has it.

    Raises:
        InputError: There are fewer than two ranks or too many, or some rank does not reach another one.
    """
    try:
        nodes = shape.shape_of(topology, group, net)
    except shape.NotInNodes:
        return routed.routed_shape(topology, group, net)
    if nodes.nnodes == 1 and not nodes.has_ports and 2 < nodes.nranks <= _MOST_IN_NODE:
        return routed.routed_shape(topology, group, net)
    return nodes


def interpreted_s(group_shape: shape.GroupShape | routed.RoutedShape) -> float:
    """Return about how many seconds the interpreter takes for a plan of a group of this shape."""
    return group_shape.net.nranks**2 * (_ROUTED_S if isinstance(group_shape, routed.RoutedShape) else _NODES_S)


def planner_for(
    group_shape: shape.GroupShape | routed.RoutedShape, unit_bytes: float = 1.0, interpreted: bool = False
) -> SizesPlanner:
    """Return a planner for a shape, for sizes that count units of so many bytes; see `Planner` for `interpreted`."""
    if isinstance(group_shape, routed.RoutedShape):
        return routed.RoutedPlanner(routed.in_units(group_shape, unit_bytes), interpreted)
    return Planner(shape.in_units(group_shape, unit_bytes), interpreted)


def prepare(topology: Topology, group: Sequence[int] | None = None) -> SizesPlanner:
    """Prepare plans for a process group; arguments and errors are those of `shape_for`."""
    return planner_for(shape_for(topology, group))
