"""Random schedules whose messages carry several chunks, and random clusters, for tests of bounds by messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import reverse, reversible, unreverse
from synth.phases.split import join, split
from tests.random_problems import answered
from topologies.costed import with_costs
from topologies.costs import Costs, Protocol
from topologies.load import load


def gossip(rng: random.Random, problem: Problem) -> Schedule:
    """Return a schedule of random messages, each of some chunks that its receiver lacks."""
    net, collective = problem.network, problem.collective
    known = np.zeros((net.nranks, collective.nchunks), dtype=bool)
    since = np.zeros(known.shape, dtype=int)
    ptr, holders = collective.holders
    for chunk in range(collective.nchunks):
        known[holders[ptr[chunk] : ptr[chunk + 1]], chunk] = True
    goal_ptr, goals = collective.goals
    wanted = np.zeros_like(known)
    wanted[goals, np.repeat(np.arange(collective.nchunks), np.diff(goal_ptr))] = True
    rows: list[tuple[int, int, int, bool]] = []
    most, eager = rng.choice((1, 2, collective.nchunks)), rng.random()
    while (wanted & ~known).any():
        link = rng.randrange(net.nlinks)
        source, goal = int(net.src[link]), int(net.dst[link])
        news = np.flatnonzero(known[source] & ~known[goal])
        if rng.random() < eager:
            news = news[wanted[goal, news]]
        if not len(news):
            eager *= 0.99
            continue
        chosen = rng.sample(news.tolist(), min(len(news), rng.randint(1, most)))
        step = int(since[source, chosen].max())
        rows += [(chunk, link, step, place > 0) for place, chunk in enumerate(chosen)]
        known[goal, chosen], since[goal, chosen] = True, step + 1
    chunk, link, step, joined = (np.array(column) for column in zip(*rows, strict=True))
    return untimed(chunk, link, step, np.zeros(len(chunk), dtype=bool), joined if joined.any() else None)


def random_schedules(rng: random.Random, problem: Problem) -> Iterator[Schedule]:
    """Yield schedules of a problem: the constructive engine's, and random ones, reversed or joined for sums."""
    yield answered(problem, 1e5)
    for _ in range(12):
        if not problem.collective.reducing:
            yield gossip(rng, problem)
        elif reversible(problem.collective):
            yield unreverse(problem, gossip(rng, reverse(problem)))
        else:
            gathering, spreading = split(problem)
            yield join(unreverse(gathering, gossip(rng, reverse(gathering))), gossip(rng, spreading))


def random_cluster(rng: random.Random) -> Problem:
    """Return a problem of two or three nodes of two or four ranks, maybe with relays, without gaps inside a node."""
    spec, stride = rng.choice((("dgx-h100:2", 4), ("dgx-h100:3", 4), ("dgx-h100:2", 2), ("dgx-a100:2", 4)))
    alpha_us = rng.choice((1.0, 4.0, 20.0))
    latency_us = {"nvlink": alpha_us * rng.choice((0.1, 0.5, 1.0, 2.0)), "network": alpha_us}
    costs = Costs({"LL": Protocol(gap_us={"network": rng.choice((0.2, 1.0, 5.0))}, latency_us=latency_us)})
    topology = load(spec)
    name = rng.choice(("broadcast", "allgather", "reduce", "reducescatter", "allreduce", "alltoall"))
    topology = replace(with_costs(topology, costs), protocol="LL")
    relays = [rank for rank in range(topology.nranks) if rank % stride and rng.random() < 0.1]
    return make_problem(topology, name, range(0, topology.nranks, stride), relays if rng.random() < 0.5 else ())
