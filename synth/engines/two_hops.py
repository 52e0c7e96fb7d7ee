"""The engine `two-hops`: broadcast and reduce where every two ranks are linked, each piece in two hops.

The root scatters pieces to its peers in turn, and each peer sends its pieces to all other peers: van de Geijn's scatter
and all-gather (Barnett and others, 1994) as one pipeline. In every slot of time each rank sends at most once and
receives at most once, so that through a switch all ports work from the second round on. The last piece ends two
latencies and a round behind the root, where a chain of ranks takes a latency each. A reduction is the reversal.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.engines.request import Candidate, Options, Outcome, Request
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import backwards
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS, predict_us

NAME = "two-hops"
_MOST_SENDS = 80_000  # in a schedule
_NEARLY = 1.5  # time of a schedule of few pieces over that of the best one, up to which an executor gets it
_WORTH = 0.015  # part of the time that twice as many pieces must gain, as they double the time to compile


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for broadcast or reduce of three linked ranks or more."""
    if problem.quotient is not None or problem.allowed_holders is not None or problem.collective.chunks != 1:
        return "two-hops takes one group, no quotient problems and one chunk a block"
    if options.steps is not None or options.rounds is not None:
        return "two-hops takes no steps or rounds; leave --steps and --rounds out"
    if problem.collective.name not in ("broadcast", "reduce") or problem.collective.nranks < 3:
        return "two-hops is for broadcast and reduce of three ranks or more"
    if (links_between(problem) < 0).any():
        return "two-hops needs a link between every two ranks of the group"
    return ""


def solve(problem: Problem, request: Request) -> Iterator[Outcome]:
    """Yield for each size schedules of rising powers of two of pieces while they gain, or of the pinned number only.

    An executor may have no time for the program of the last, which has most sends. It also gets schedules of fewer
    pieces than peers, which few peers pass on, while they are nearly as fast: with every peer a program may need more
    threadblocks than plans hold.
    """
    peers = problem.collective.nranks - 1
    most_pieces = min(request.most_sends or _MOST_SENDS, _MOST_SENDS) // peers
    # Powers of two divide the usual message sizes.
    counts = [1 << e for e in range(peers.bit_length(), max(most_pieces, 2 * peers).bit_length())]
    if request.options.chunks is not None:
        counts = [request.options.chunks]
    for size in request.sizes:
        best_us = np.inf
        for pieces in counts:
            whole = problem.with_chunks(pieces)
            schedule = _schedule(whole, size)
            time_us = predict_us(whole, schedule, size)
            small = float(whole.collective.fraction[0]) * size < (request.options.least_bytes or 0)
            if time_us > best_us * (1 - _WORTH) or (small and best_us < np.inf):
                break
            best_us = time_us
            yield Candidate(whole, schedule, NAME, size, supersedes=True)
        for pieces in (counts[0] >> e for e in range(2, 5) if request.most_sends and len(counts) > 1):
            whole = problem.with_chunks(pieces)
            schedule = _schedule(whole, size)
            if pieces < 2 or predict_us(whole, schedule, size) > _NEARLY * best_us:
                break
            yield Candidate(whole, schedule, NAME, size)


def links_between(problem: Problem) -> Ints:
    """Return the widest link between two places of the group, shape (k, k); -1 for no link, 0 on the diagonal."""
    k = problem.collective.nranks
    between = problem.network.widest_link[:k, :k].copy()
    np.fill_diagonal(between, 0)
    return between


def _schedule(problem: Problem, size_bytes: float) -> Schedule:
    """Return the untimed sends in the order of their slots, for a problem with one chunk a piece.

    In slot t the root sends to peer a = t mod m. Meanwhile peer a + 2d sends to peer a + d, for d = 1, …, m - 1, a
    piece that it got from the root before: m is odd, so these peers all differ, and in m slots every peer meets every
    other once. Where the number of peers is even, an absent peer makes m odd.
    """
    collective, between = problem.collective, links_between(problem)
    reduces, k, pieces = collective.reducing, collective.nranks, collective.nchunks
    root = int((collective.post if reduces else collective.pre)[0, 0])
    peers = np.array([rank for rank in range(k) if rank != root])
    if reduces:
        between = between.T
    m = len(peers) + (1 - len(peers) % 2)
    net = problem.network
    slot_us = collective.chunk_bytes(size_bytes)[0] * US_PER_BYTE_AT_1_GBS / float(net.bandwidth_gbs.max())
    # A piece can be sent on this many slots after it left.
    ahead = 1 + int(min(np.ceil(float(net.alpha_us.max()) / max(slot_us, 1e-12) - 1e-9), pieces))
    rounds, peer_of_piece = np.divmod(np.arange(pieces), len(peers))
    scatter_slot = m * rounds + peer_of_piece  # slot in which the root sends each piece
    chunk, slot, source, goal = [np.arange(pieces)], [scatter_slot], [np.full(pieces, root)], [peers[peer_of_piece]]
    for d in range(1, m):
        # Peer p = a + 2d sends to a + d, in the first slot of a = p - 2d in which it has the root's piece.
        goal_of_piece = (peer_of_piece - d) % m
        is_present = goal_of_piece < len(peers)
        chunk.append(np.flatnonzero(is_present))
        slot.append(scatter_slot[is_present] + ahead + (-2 * d - ahead) % m)
        source.append(peers[peer_of_piece][is_present])
        goal.append(peers[goal_of_piece[is_present]])
    columns = [np.concatenate(column) for column in (chunk, slot, source, goal)]
    order = np.lexsort((columns[0], columns[1]))
    chunks, _, sources, goals = (column[order] for column in columns)
    copies = untimed(chunks, between[sources, goals], (sources != root).astype(np.int64), np.zeros(len(chunks), bool))
    return backwards(problem, copies) if reduces else copies
