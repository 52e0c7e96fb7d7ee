"""The relabelling of one group's answer for another group, whose network is the same in another order of its ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synth.model.collective import Ints, one_shot
from synth.model.problem import Problem
from synth.symmetry.canonical import links_in_order
from synth.symmetry.relabelling import chunk_image
from synth.verify.algorithm import Algorithm
from topologies.arrays import index_among
from topologies.errors import InputError


def relabel(algorithm: Algorithm, onto: Problem, order: Ints) -> Algorithm:
    """Return an algorithm relabelled for another problem; it is replayed there.

    Args:
        algorithm: The algorithm of one problem; its size, engine and chunks of a block stay.
        onto: The other problem, of the same collective (one chunk a block), whose place i is local rank order[i] of the
            algorithm's problem.
        order: Local rank of the algorithm's problem at each place of the other one, shape (ranks,).

    Raises:
        InputError: The chunks have no image in the other problem, or the networks have different links.
        ScheduleRefused: The networks are not the same.
    """
    problem, schedule = algorithm.problem, algorithm.schedule
    if problem.collective.is_one_shot:
        onto = replace(onto, collective=one_shot(onto.collective))
    target_problem = onto.with_chunks(problem.collective.chunks // onto.collective.chunks)
    image = chunk_image(problem.collective, index_among(problem.nranks, order), target_problem.collective)
    net, target_network = problem.network, target_problem.network
    if image is None or (net.nlinks, net.ncarriers) != (target_network.nlinks, target_network.ncarriers):
        raise InputError(f"{problem.collective.name}: the two groups have different networks")
    links = index_among(net.nlinks, links_in_order(net, order))
    # Operations of switches keep their numbers.
    link_image = np.append(links, np.arange(net.nlinks, net.ncarriers))
    moved = replace(schedule, chunk=image[schedule.chunk], link=link_image[schedule.link])
    return Algorithm(target_problem, moved, algorithm.engine, size_bytes=schedule.size_bytes)
