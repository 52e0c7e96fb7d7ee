"""Plans of skewed all-to-alls as ordinary schedules, which the replay checks and `synth.timing` times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synth.engines.skewed.plan import Plan
from synth.model.collective import Collective, Floats, Ints, fullest, make_collective, uneven
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.verify.algorithm import Algorithm
from topologies.arrays import grouped, positions
from topologies.topology import Topology

NAME = "skewed"


def collective_of(plan: Plan, sizes: NDArray[np.int64]) -> Collective:
    """Return `alltoallv(sizes)` with its blocks cut into the chunks of a plan.

    The plan's chunks come first, in their order; the blocks of ranks to themselves follow as a chunk each. In a rank's
    buffers the places count chunks, block by block and inside a block by offset.

    Args:
        plan: The plan.
        sizes: The sizes that it is for, bytes from position to position, shape (k, k).

    Raises:
        InputError: The sizes are no matrix of an all-to-all, or no rank sends anything to another rank.
    """
    return cut_as_planned(uneven("alltoallv", sizes.astype(np.float64)), plan, sizes)


def cut_as_planned(whole: Collective, plan: Plan, sizes: NDArray[np.int64]) -> Collective:
    """Return an all-to-all whose blocks are cut into the chunks of a plan, in the order of `collective_of`.

    The plan may be for rounded sizes: a chunk has the same part of its block as in the plan.

    Args:
        whole: An `alltoallv` in which exactly the blocks with sizes above 0 are chunks.
        plan: The plan.
        sizes: The sizes that the plan is for, bytes or units from position to position, shape (k, k).
    """
    own = np.flatnonzero(np.diag(sizes))
    source = np.concatenate([plan.chunk_source, own]).astype(np.int64)
    goal = np.concatenate([plan.chunk_goal, own]).astype(np.int64)
    offset = np.concatenate([plan.chunk_offset, np.zeros(len(own), dtype=np.int64)])
    nbytes = np.concatenate([plan.chunk_bytes, np.diag(sizes)[own]])
    chunk, k = np.arange(len(source)), whole.nranks
    number = np.zeros((k, k), dtype=np.int64)
    number[np.nonzero(sizes)] = np.arange(whole.nchunks)
    return make_collective(
        whole.name,
        k,
        whole.fraction[number[source, goal]] * (nbytes / sizes[source, goal]),
        np.column_stack([source, chunk]),
        np.column_stack([goal, chunk]),
        _places(source, goal, offset, k),
        _places(goal, source, offset, k),
        nchunks=len(chunk),
        sizes=whole.sizes,
    )


def message_bytes(sizes: Ints | Floats) -> int:
    """Return the message size of an all-to-all of such sizes: the largest sum of a row or a column."""
    return int(fullest(sizes))


def _places(owner: Ints, peer: Ints, offset: Ints, k: int) -> Ints:
    """Return the place of each chunk in its owner's buffer, where chunks lie by the other rank, then by offset."""
    place = np.empty(len(owner), dtype=np.int64)
    order = np.lexsort((offset, peer))
    ptr, by_owner = grouped(owner[order], k)
    place[order[by_owner]] = positions(np.diff(ptr))
    return place


def schedule_of(plan: Plan) -> Schedule:
    """Return the sends of a plan as an untimed schedule for the problem of `problem_of`."""
    return untimed(plan.chunk.astype(np.int64), plan.link.astype(np.int64), plan.step.astype(np.int64))


def problem_of(topology: Topology, group: tuple[int, ...] | None, plan: Plan, sizes: NDArray[np.int64]) -> Problem:
    """Return the problem that a plan solves, with the plan's chunks.

    Args:
        topology: The topology that the plan was prepared for.
        group: Rank at each position, as it was prepared; None for all ranks.
        plan: The plan.
        sizes: Bytes from position to position, shape (k, k).
    """
    return make_problem(topology, collective_of(plan, sizes), group)


def algorithm_of(topology: Topology, group: tuple[int, ...] | None, plan: Plan, sizes: NDArray[np.int64]) -> Algorithm:
    """Return a plan as an algorithm, which replays it; `Algorithm.time_us(message_bytes(sizes))` is the plan's time.

    Raises:
        ScheduleRefused: The plan is wrong.
    """
    return Algorithm(
        problem_of(topology, group, plan, sizes), schedule_of(plan), NAME, size_bytes=float(message_bytes(sizes))
    )
