"""The choice of the planner for a process group, by its network."""

from __future__ import annotations

from collections.abc import Sequence

from synth.engines.skewed import routed, shape
from synth.engines.skewed.plan import SizesPlanner
from synth.engines.skewed.planner import Planner
from topologies.network import Network
from topologies.topology import Topology


def shape_for(
    topology: Topology, group: Sequence[int] | None = None, net: Network | None = None
) -> shape.GroupShape | routed.RoutedShape:
    """Return what plans for a process group go by.

    Groups in nodes whose ranks all have links, joined by NICs, get plans that balance the NICs (`Planner`); those of
    all other networks get plans whose chunks share the links (`RoutedPlanner`).

    Args:
        topology: The topology. Its chassis are the nodes; the costs of an executor count where they are on.
        group: Rank of the topology at each position; None for all ranks.
        net: The network of exactly these ranks, if the caller has it.

    Raises:
        InputError: There are fewer than two ranks or too many, or some rank does not reach another one.
    """
    try:
        return shape.shape_of(topology, group, net)
    except shape.NotInNodes:
        return routed.routed_shape(topology, group, net)


def planner_for(
    group: shape.GroupShape | routed.RoutedShape, unit_bytes: float = 1.0, interpreted: bool = False
) -> SizesPlanner:
    """Return a planner for a shape, for sizes that count units of so many bytes; see `Planner` for `interpreted`."""
    if isinstance(group, routed.RoutedShape):
        return routed.RoutedPlanner(routed.in_units(group, unit_bytes), interpreted)
    return Planner(shape.in_units(group, unit_bytes), interpreted)


def prepare(topology: Topology, group: Sequence[int] | None = None) -> SizesPlanner:
    """Prepare plans for a process group; arguments and errors are those of `shape_for`."""
    return planner_for(shape_for(topology, group))
