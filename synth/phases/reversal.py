"""A reduction as a copy read backwards, and back (SCCL, section 3.4).

The tree that carries a chunk from one rank to many, with every link and every step reversed, brings the contributions
of the many together at the one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synth.model.collective import Collective, Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.phases.prune import prune_copies
from topologies.arrays import grouped
from topologies.network import Network


def reversible(collective: Collective) -> bool:
    """Whether every chunk reduces and is wanted by one rank only."""
    wanted = np.bincount(collective.post[:, 1], minlength=collective.nchunks)
    return bool(collective.reduces.all() and (wanted == 1).all())


def reverse(problem: Problem) -> Problem:
    """The copying problem whose answer, read backwards, solves a problem in which every chunk is wanted once.

    Switches only forward in it.
    """
    old, net = problem.collective, problem.network
    mirrored = replace(
        old,
        name=f"{old.name} reversed",
        reduces=np.zeros(old.nchunks, dtype=bool),
        pre=old.post,
        post=old.pre,
        in_index=old.out_index,
        out_index=old.in_index,
    )
    return replace(problem, collective=mirrored, network=replace(net, src=net.dst, dst=net.src, hyperlinks=None))


def unreverse(original: Problem, schedule: Schedule) -> Schedule:
    """The schedule of `original` from one of `reverse(original)`; plain values stay copies."""
    return backwards(original, prune_copies(reverse(original), schedule))


def backwards(original: Problem, copies: Schedule) -> Schedule:
    """Copies over reversed links from the last to the first, each the other way; what `original` sums is added."""
    back = copies.take(np.arange(len(copies))[::-1])
    return untimed(back.chunk, back.link, copies.nsteps - 1 - back.step, original.collective.reduces[back.chunk])


def mirror_links(net: Network) -> Ints | None:
    """For every link of the reversed network the link of `net` that runs the same way; None if they differ."""
    n = net.nranks
    forth, back = net.src * n + net.dst, net.dst * n + net.src
    order, other = (np.argsort(pair, kind="stable") for pair in (forth, back))
    if not np.array_equal(forth[order], back[other]):
        return None
    mirror = np.empty(net.nlinks, dtype=np.int64)
    mirror[order] = other
    if not all(np.array_equal(figure[mirror], figure) for figure in (net.alpha_us, net.bandwidth_gbs)):
        return None
    ptr, entries = grouped(net.uses_idx, net.nresources)
    users, capacities = np.split(net.link_of_use[entries], ptr[1:-1]), net.capacity_gbs.tolist()
    have = {(u.tobytes(), c) for u, c in zip(users, capacities, strict=True)}
    mirrored = {(np.sort(mirror[u]).tobytes(), c) for u, c in zip(users, capacities, strict=True)}
    return mirror if mirrored <= have else None
