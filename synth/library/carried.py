"""An answer of one group, relabelled for another whose network is the same in another order of its ranks."""

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


def carried(known: Algorithm, onto: Problem, order: Ints) -> Algorithm:
    """An algorithm of one problem as one of another, proved by its replay there.

    Args:
        onto: a problem of the same collective (one chunk a block) whose place i is the known one's
            local rank order[i].

    Raises:
        InputError: its chunks have no image there, or the networks have other links.
        ScheduleRefused: the networks are not the same.
    """
    problem, schedule = known.problem, known.schedule
    if problem.collective.is_one_shot:
        onto = replace(onto, collective=one_shot(onto.collective))
    into = onto.with_chunks(problem.collective.nchunks // onto.collective.nchunks)
    image = chunk_image(problem.collective, index_among(problem.nranks, order), into.collective)
    net, there = problem.network, into.network
    if image is None or (net.nlinks, net.ncarriers) != (there.nlinks, there.ncarriers):
        raise InputError(f"{problem.collective.name}: the groups are not of the same network")
    links = index_among(net.nlinks, links_in_order(net, order))
    place = np.append(links, np.arange(net.nlinks, net.ncarriers))  # what switches do is carried in the same order only
    moved = replace(schedule, chunk=image[schedule.chunk], link=place[schedule.link])
    return Algorithm(into, moved, known.engine, size_bytes=schedule.size_bytes)
