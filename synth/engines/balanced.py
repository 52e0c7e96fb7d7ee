"""The engine `balanced`: all-gather and reduce-scatter of unlike blocks where every two ranks are linked.

Sent directly, the largest block keeps its holder's port busy longer than any other. So some chunks of large blocks go
to one other rank each, which sends them on to all others, until all ports have about as much to send. Chunks go in few
messages, so that programs have few steps. It is van de Geijn's scatter and all-gather (Barnett and others, 1994) for
as much of a block as does not fit through one port. A reduce-scatter is the reversal.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork, carrier_network
from synth.engines.messages.ordering import ordered
from synth.engines.request import Candidate, Options, Outcome, Request
from synth.engines.two_hops import links_between
from synth.model.collective import Ints
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule, follows_same, untimed
from synth.phases.reversal import backwards, reverse

NAME = "balanced"
_CHUNKS = (12, 16, 24)  # of a block; programs of different numbers differ by a few percent, whatever the schedules
_PIECES = 8  # messages in which the direct chunks of a block go to a rank
_ORDERS = 12  # list schedules of each number of chunks
_MOST_RANKS = 64


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for unlike blocks among three linked ranks or more."""
    if problem.quotient is not None or problem.allowed_holders is not None or problem.collective.chunks != 1:
        return "balanced takes one group, no quotient problems and one chunk a block"
    if options.pinned:
        return "balanced pins no chunks, steps or rounds; leave --chunks, --steps and --rounds out"
    is_few = 3 <= problem.collective.nranks <= _MOST_RANKS
    if problem.collective.name not in ("allgatherv", "reducescatterv") or not is_few:
        return f"balanced is for allgatherv and reducescatterv of 3 to {_MOST_RANKS} ranks"
    if (links_between(problem) < 0).any() or len(np.unique(problem.network.gap_us)) > 1:
        return "balanced needs a link of one kind between every two ranks of the group"
    return ""


def solve(problem: Problem, request: Request) -> Iterator[Outcome]:
    """Yield for each size a schedule for each number of chunks."""
    is_sum = problem.collective.reducing
    copying = reverse(problem) if is_sum else problem
    between, net = links_between(copying), carrier_network(copying.network)
    for size in request.sizes:
        for chunks in _CHUNKS:
            if now() >= request.deadline:
                return
            whole, cut = problem.with_chunks(chunks), copying.with_chunks(chunks)
            schedule = _copies(cut, between, net, size, request.deadline)
            yield Candidate(whole, backwards(whole, schedule) if is_sum else schedule, NAME, size)


def _relayed(problem: Problem, between: Ints) -> Ints:
    """Return how many chunks of each rank's block go by way of each other rank, shape (ranks, ranks).

    One chunk after another of the rank whose port is busy longest goes by way of the rank whose port is busy least, as
    long as the longest time falls.

    Args:
        problem: A copying problem with several chunks a block.
        between: The link between every two ranks, shape (ranks, ranks).
    """
    collective, ranks = problem.collective, problem.collective.nranks
    holder = collective.holders[1]
    chunks = np.bincount(holder, minlength=ranks)
    share_of_rank = np.bincount(holder, collective.fraction, minlength=ranks)
    port_gbs = np.array([problem.network.bandwidth_gbs[np.delete(row, rank)].min() for rank, row in enumerate(between)])
    chunk_us = np.divide(share_of_rank, chunks, out=np.zeros(ranks), where=chunks > 0) / port_gbs
    busy_us = share_of_rank / port_gbs * (ranks - 1)
    relayed = np.zeros((ranks, ranks), dtype=np.int64)
    while True:
        longest, least = int(busy_us.argmax()), int(busy_us.argmin())
        moved = chunk_us[longest] * (ranks - 2)
        passed = moved * port_gbs[longest] / port_gbs[least]
        if relayed[longest].sum() == chunks[longest] or busy_us[least] + passed >= busy_us[longest]:
            return relayed
        relayed[longest, least] += 1
        busy_us[longest] -= moved
        busy_us[least] += passed


def _copies(problem: Problem, between: Ints, net: CsrNetwork, size_bytes: int, deadline: float) -> Schedule:
    """Return an untimed schedule of an all-gather: some chunks go by way of a middle rank, the others go directly.

    `_relayed` says how many chunks of a block each other rank passes on to all the rest. These leave first. The order
    of the sends is that of the best list schedule that `ordered` finds.

    Args:
        problem: The problem.
        between: The link between every two ranks, shape (ranks, ranks).
        net: The network in compressed rows.
        size_bytes: Message size in bytes.
        deadline: Time on the clock `synth.model.deadline.now` at which the best order so far is taken.
    """
    collective, ranks = problem.collective, problem.collective.nranks
    holder, relayed = collective.holders[1], _relayed(problem, between)
    rows: list[tuple[int, int, int, int, int]] = []  # (step, distance, number of the message, chunk, link)
    turn, number = np.ones(collective.nchunks), 0
    for source in range(ranks):
        chunks = np.flatnonzero(holder == source)
        ends = np.cumsum(relayed[source])
        for middle, (low, high) in enumerate(zip(ends - relayed[source], ends, strict=True)):
            turn[chunks[low:high]] = 0.0
            hops = [(0, source, middle)]
            hops += [(1, middle, goal) for goal in range(ranks) if goal not in (source, middle)]
            for step, start, goal in hops if high > low else ():
                link, distance, number = int(between[start, goal]), (goal - start) % ranks, number + 1
                rows += [(step, distance, number, chunk, link) for chunk in chunks[low:high].tolist()]
        for distance in range(1, ranks):
            link = int(between[source, (source + distance) % ranks])
            for piece in np.array_split(chunks[ends[-1] :], _PIECES):
                number += 1
                rows += [(0, distance, number, chunk, link) for chunk in piece.tolist()]
    # What others send on leaves first.
    rows.sort(key=lambda row: (row[0], turn[row[3]], row[1], row[2]))
    step, _, message, chunk, link = np.array(rows).T
    schedule = untimed(chunk, link, step, np.zeros(len(chunk), dtype=bool), follows_same(message))
    return ordered(problem, schedule, size_bytes, turn, net, _ORDERS, deadline)
