"""Solve a reduction as a copy read backwards, and turn the schedule back (SCCL, section 3.4).

A tree carries a chunk from one rank to many. With every link and every step reversed, it brings the contributions of
the many ranks to the one.
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
    """Return whether every chunk reduces and is wanted by exactly one rank, which may differ from chunk to chunk."""
    ngoals = np.bincount(collective.post[:, 1], minlength=collective.nchunks)
    return bool(collective.reduces.all() and (ngoals == 1).all())


def reverse(problem: Problem) -> Problem:
    """Return the copying problem whose schedules, read backwards, solve a problem in which one rank wants each chunk.

    Links keep their numbers, with source and destination exchanged; holders and goals are exchanged too. Switches only
    forward in it.
    """
    collective = problem.collective
    mirrored = replace(
        collective,
        name=f"{collective.name} reversed",
        reduces=np.zeros(collective.nchunks, dtype=bool),
        pre=collective.post,
        post=collective.pre,
        in_index=collective.out_index,
        out_index=collective.in_index,
    )
    return replace(problem, collective=mirrored, network=problem.network.reversed())


def unreverse(original: Problem, schedule: Schedule) -> Schedule:
    """Return the schedule of `original` from one of `reverse(original)`, without times and without superfluous sends.

    Plain values stay copies.
    """
    return backwards(original, prune_copies(reverse(original), schedule))


def backwards(original: Problem, copies: Schedule) -> Schedule:
    """Return the schedule that sends copies in reverse order and direction; chunks that `original` sums are added.

    Args:
        original: The problem that the result is for.
        copies: A schedule of `reverse(original)` in which every copy has one source (see `prune_copies`).

    Returns:
        A schedule without times: the last step of `copies` is its step 0.
    """
    reversed_sends = copies.take(np.arange(len(copies))[::-1])
    return untimed(
        reversed_sends.chunk,
        reversed_sends.link,
        copies.nsteps - 1 - reversed_sends.step,
        original.collective.reduces[reversed_sends.chunk],
        reversed_sends.joined,
    )


def mirror_links(net: Network) -> Ints | None:
    """Return for every link one that leads back between the same ranks, such that this maps the network onto itself.

    Returns:
        Links, each once, shape (nlinks,); None where the network with all links reversed has other links, latencies,
        bandwidths or shared resources.
    """
    n = net.nranks
    forward, backward = net.src * n + net.dst, net.dst * n + net.src
    order, backward_order = (np.argsort(pair, kind="stable") for pair in (forward, backward))
    if not np.array_equal(forward[order], backward[backward_order]):
        return None
    mirror = np.empty(net.nlinks, dtype=np.int64)
    mirror[order] = backward_order
    if not all(np.array_equal(figure[mirror], figure) for figure in (net.alpha_us, net.bandwidth_gbs)):
        return None
    ptr, entries = grouped(net.uses_idx, net.nresources)
    users, capacities = np.split(net.link_of_use[entries], ptr[1:-1]), net.capacity_gbs.tolist()
    resources = {(u.tobytes(), c) for u, c in zip(users, capacities, strict=True)}
    mirrored_resources = {(np.sort(mirror[u]).tobytes(), c) for u, c in zip(users, capacities, strict=True)}
    return mirror if mirrored_resources <= resources else None
