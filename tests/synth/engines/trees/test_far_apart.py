"""Networks whose bandwidths are far apart, or whose useful links are others when they are reversed."""

from __future__ import annotations

import numpy as np
import pytest

from synth.model.problem import make_problem
from tests.synth.engines.trees.test_trees import SIZE, answers
from topologies.topology import Limit, Topology


def network(rows: list[tuple[int, int, float]], limits: tuple[Limit, ...] = ()) -> Topology:
    """Return a network of three ranks.

    Args:
        rows: Source, destination and bandwidth (GB/s) of each link.
        limits: Limits that links share.
    """
    src, dst, gbs = (np.array(column) for column in zip(*rows, strict=True))
    return Topology("network", 3, (), src, dst, np.ones(len(rows)), gbs.astype(float), limits, nodes=np.zeros(3, int))


# Links 1 and 3 share a limit: on the reversed network, another choice of links keeps all ranks joined.
SHARED = network([(0, 1, 10), (0, 2, 1), (1, 2, 1), (2, 0, 1), (2, 1, 10)], (Limit("shared", np.array([1, 3]), 10.0),))
FAR_APART = network([(0, 1, 1e-9), (1, 0, 1e-9), (1, 2, 1e9), (2, 1, 1e9), (0, 2, 1.0), (2, 0, 1.0)])


@pytest.mark.parametrize("topology", [SHARED, FAR_APART], ids=["shared", "far apart"])
@pytest.mark.parametrize("collective", ["reducescatter", "allgather"])
def test_trees_are_packed(topology: Topology, collective: str) -> None:
    assert answers(make_problem(topology, collective), SIZE)
