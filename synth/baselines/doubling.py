"""Recursive doubling and halving (Thakur, Rabenseifner and Gropp 2005, sections 3 and 4)."""

from __future__ import annotations

import numpy as np

from synth.baselines.routes import Routes
from synth.baselines.spreading import GATHERING, Copies, Messages, gathered
from synth.baselines.tuning import TUNING
from synth.baselines.unordered import Unordered, stepped
from synth.model.problem import Problem
from synth.model.schedule import untimed
from topologies.network import Network

NAME = "recursive doubling"


def doubling_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """In phase i = 0, 1, … positions whose numbers differ in bit i exchange all that they have.

    An allgather so; a reduce-scatter by the same backwards (recursive halving); an allreduce by both, and, where
    all partners are neighbours, also by exchanging whole sums (for short messages). Partners that are no
    neighbours send over fixed shortest routes. A block goes on as soon as it is there, so that phases may overlap.
    Empty for other collectives and where the number of ranks is no power of two.
    """
    collective = problem.collective
    k = collective.nranks
    if collective.name not in GATHERING or k & (k - 1):
        return []
    position = np.arange(k)
    partners = position ^ (1 << np.arange(k.bit_length() - 1))[:, None]

    def spread(net: Network) -> Copies:
        routes = Routes(net, position, most)
        messages = Messages(routes)
        for bit, partner in enumerate(partners):
            blocks = np.arange(1 << bit)
            # the blocks in the order in which they came: the rank's own first
            chunk = (position[:, None] ^ blocks).ravel()
            at, goal = np.repeat(position, 1 << bit), np.repeat(partner, 1 << bit)
            messages.phase(chunk, at, goal, np.tile(blocks, k))
        return messages.copies()

    made = [gathered(problem, spread, NAME)]
    if collective.name == "allreduce":
        routes = Routes(problem.network, position)
        goal = partners.ravel()
        at = np.tile(position, len(partners))
        if (routes.hops(at, goal) == 1).all():
            step = np.repeat(np.arange(len(partners)), k)
            none = np.zeros(len(at), dtype=np.int64)
            whole = untimed(none, routes.link(at, goal), step, np.ones(len(at), dtype=bool))
            made.append(stepped(problem, whole, NAME))
    return made
