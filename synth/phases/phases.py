"""The copying problems that a problem comes down to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.phases.transforms import reverse, reversible, split, unreverse
from topologies.network import Network


@dataclass(frozen=True)
class Form:
    """A copying problem, for any number of chunks, and the way back from its schedules.

    Attributes:
        copying: chunks a block of the copying problem → that problem.
        back: chunks, its schedule → the part of the asked problem's schedule that it stands for.
        chunks: chunks a block of the copying problem → of the asked one.
    """

    copying: Callable[[int], Problem]
    back: Callable[[int, Schedule], Schedule]
    chunks: Callable[[int], int]


def forms(problem: Problem) -> list[Form]:
    """The copying problems to solve: one, or two for a collective that reduces and then spreads."""
    if not problem.collective.reducing:
        return [Form(problem.with_chunks, lambda _, s: s, lambda c: c)]
    if reversible(problem.collective):
        return [
            Form(
                lambda c: reverse(problem.with_chunks(c)),
                lambda c, s: unreverse(problem.with_chunks(c), s),
                lambda c: c,
            )
        ]
    # a chunk of the halves is a rank's share of the whole
    k = problem.collective.nranks if problem.collective.name == "allreduce" else 1
    return [
        Form(
            lambda c: reverse(split(problem.with_chunks(c * k))[0]),
            lambda c, s: unreverse(split(problem.with_chunks(c * k))[0], s),
            lambda c: c * k,
        ),
        Form(lambda c: split(problem.with_chunks(c * k))[1], lambda _, s: s, lambda c: c * k),
    ]


def mirror_links(net: Network) -> Ints | None:
    """For every link of the reversed network the link of `net` that runs the same way; None if they differ."""
    back: dict[tuple[int, int], list[int]] = {}
    for link, pair in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True)):
        back.setdefault(pair, []).append(link)
    mirror = np.empty(net.nlinks, dtype=np.int64)
    for (u, v), links in back.items():
        others = back.get((v, u), [])
        if len(others) != len(links):
            return None
        mirror[links] = others
    if not (
        np.array_equal(net.alpha_us[mirror], net.alpha_us)
        and np.array_equal(net.bandwidth_gbs[mirror], net.bandwidth_gbs)
    ):
        return None
    link_of = net.link_of_use
    users: list[list[int]] = [[] for _ in range(net.nresources)]
    for link, resource in zip(link_of.tolist(), net.uses_idx.tolist(), strict=True):
        users[resource].append(link)
    have = {(tuple(u), c) for u, c in zip(users, net.capacity_gbs.tolist(), strict=True)}
    for links, capacity in zip(users, net.capacity_gbs.tolist(), strict=True):
        if (tuple(sorted(mirror[links].tolist())), capacity) not in have:
            return None
    return mirror
