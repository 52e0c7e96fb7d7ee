"""Which limits a linear program needs: those that no other limit implies."""

from __future__ import annotations

import numpy as np
import pytest

from synth.bounds.relaxation import capacities
from synth.model.problem import make_problem
from synth.timing.rounds import unit_gbs
from topologies.load import load


@pytest.mark.parametrize("spec", ["dgx1", "dgx-a100", "z52", "dgx-a100:2", "mesh:2x3"])
def test_an_omitted_limit_is_implied(spec: str) -> None:
    """Check that for any load of the links, the fullest of the remaining limits is as full as the fullest of all."""
    problem = make_problem(load(spec), "allgather")
    net, limits = problem.network, capacities(problem)
    ptr, uses, gbs = net.uses_and_links()
    owner = np.repeat(np.arange(net.nlinks), np.diff(ptr))
    assert len(limits) < len(gbs)
    rng = np.random.default_rng(0)
    for share in (0.01, 0.1, 0.5, 1.0):
        carried = rng.random(net.nlinks) * (rng.random(net.nlinks) < share)
        full = (np.bincount(uses, carried[owner], len(gbs)) / gbs).max()
        fullest = max(carried[limit.links].sum() / (limit.chunks * unit_gbs(problem)) for limit in limits)
        assert fullest == pytest.approx(full, rel=1e-12)


def test_with_switch_operations_no_limit_counts_as_implied() -> None:
    """Check that all resources keep their limits, since no link's row counts what switch operations use."""
    problem = make_problem(load("dgx-h100"), "allgather")
    assert problem.network.hyperlinks is not None
    assert {limit.resource for limit in capacities(problem)} >= set(range(problem.network.nresources))
