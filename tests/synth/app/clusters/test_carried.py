"""A schedule that is carried from one group to another is right there, or refused."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from synth.app.clusters.carried import relabel
from synth.baselines import baseline
from synth.model.problem import make_problem
from tests.synth.symmetry.test_canonical import DGX1, form
from topologies.errors import InputError, ScheduleRefused


@pytest.mark.parametrize("name", ["allgather", "alltoall", "reducescatter", "broadcast"])
def test_a_carried_algorithm_takes_the_same_time(name: str) -> None:
    problem, group = (
        make_problem(DGX1, name, (0, 1, 2, 4), root=2 if name == "broadcast" else None, relays=()),
        (4, 0, 6, 5),
    )
    order = next(np.array(o) for o in permutations(range(4)) if form(tuple(problem.group[i] for i in o)) == form(group))
    root = group[order.tolist().index(problem.collective.root)] if name == "broadcast" else None
    algorithm = baseline(problem)[0]
    carried_algorithm = relabel(algorithm, make_problem(DGX1, name, group, root=root), order)
    assert carried_algorithm.problem.group == group
    assert [carried_algorithm.time_us(size) for size in (1 << 10, 1 << 20)] == [
        algorithm.time_us(s) for s in (1 << 10, 1 << 20)
    ]


def test_a_schedule_for_another_network_is_refused() -> None:
    algorithm = baseline(make_problem(DGX1, "allgather", (0, 1, 2, 3)))[0]
    with pytest.raises((InputError, ScheduleRefused)):
        relabel(algorithm, make_problem(DGX1, "allgather", (0, 1, 4, 5)), np.arange(4))
