"""Ways from one Problem to an easier one and back with the answer (each pass carries its inverse).

A reduction is a copy read backwards: the tree that carries a chunk from one rank to many, with every link and
every step reversed, brings the contributions of the many together at the one (SCCL, section 3.4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synth.model.collective import Collective, Ints
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule, untimed
from topologies.errors import InputError


def tidy(problem: Problem, schedule: Schedule) -> Schedule:
    """A copying schedule without sends that nobody needs: one arrival a rank and chunk, and each leads on.

    Of several arrivals the one of the earliest step (then row) stays, so what remains is a tree for every chunk.
    """
    net, collective = problem.network, problem.collective
    have = {(c, r) for r, c in collective.pre.tolist()}
    parent: dict[tuple[int, int], int] = {}
    order = np.argsort(schedule.step, kind="stable")
    chunk, src, dst = (
        schedule.chunk.tolist(),
        net.src[schedule.link].tolist(),
        net.dst[schedule.link].tolist(),
    )
    for row in order.tolist():
        cell = (chunk[row], dst[row])
        if cell not in have and cell not in parent:
            parent[cell] = row
    kept = np.zeros(len(schedule), dtype=bool)
    for rank, c in collective.post.tolist():
        cell = (c, rank)
        while cell in parent and not kept[parent[cell]]:
            row = parent[cell]
            kept[row] = True
            cell = (c, src[row])
    return schedule.take(kept)


def needed(problem: Problem, schedule: Schedule) -> Schedule:
    """A reducing schedule without sends of nothing, and without those whose effect nobody sees."""
    net = problem.network
    filled = {(c, r) for r, c in problem.collective.pre.tolist()}
    full = np.zeros(len(schedule), dtype=bool)
    for at in range(schedule.nsteps):
        these = np.flatnonzero(schedule.step == at)
        cells = zip(schedule.chunk[these].tolist(), net.src[schedule.link[these]].tolist(), strict=True)
        full[these] = [cell in filled for cell in cells]
        sent = these[full[these]]
        filled |= set(zip(schedule.chunk[sent].tolist(), net.dst[schedule.link[sent]].tolist(), strict=True))
    schedule = schedule.take(full)
    live = {(c, r) for r, c in problem.collective.post.tolist()}
    kept = np.zeros(len(schedule), dtype=bool)
    chunk, step = schedule.chunk.tolist(), schedule.step
    src, dst = net.src[schedule.link].tolist(), net.dst[schedule.link].tolist()
    for at in range(schedule.nsteps - 1, -1, -1):
        rows = [row for row in np.flatnonzero(step == at).tolist() if (chunk[row], dst[row]) in live]
        kept[rows] = True
        live -= {(chunk[row], dst[row]) for row in rows if not schedule.reduces[row]}
        live |= {(chunk[row], src[row]) for row in rows}
    return schedule.take(kept)


def reverse(problem: Problem) -> Problem:
    """The copy problem whose answer, read backwards, solves a problem in which every chunk is wanted once."""
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
    return replace(problem, collective=mirrored, network=replace(net, src=net.dst, dst=net.src))


def unreverse(original: Problem, schedule: Schedule) -> Schedule:
    """The schedule of `original` from one of `reverse(original)`; plain values stay copies."""
    schedule = tidy(reverse(original), schedule)
    last = schedule.nsteps - 1
    rows = np.arange(len(schedule))[::-1]
    chunk = schedule.chunk[rows]
    return untimed(chunk, schedule.link[rows], last - schedule.step[rows], original.collective.reduces[chunk])


def reversible(collective: Collective) -> bool:
    """Whether every chunk reduces and is wanted by one rank only."""
    wanted = np.bincount(collective.post[:, 1], minlength=collective.nchunks)
    return bool(collective.reduces.all() and (wanted == 1).all())


def owners(problem: Problem) -> Ints:
    """A rank for every chunk at which its contributions can come together, spread over those that want it.

    Raises InputError where no member of the group can be reached by all contributors and reach all that want it.
    """
    collective, net = problem.collective, problem.network
    k = collective.nranks
    near = hops(net.nranks, net.src, net.dst)[:k, :k] < net.nranks
    # chunks are taken in blocks, so that an allreduce splits into a reducescatter and an allgather
    block = max(1, -(-collective.nchunks // k))
    known: dict[bytes, Ints] = {}
    found = np.zeros(collective.nchunks, dtype=np.int64)
    for chunk in range(collective.nchunks):
        holds, wants = collective.holds[chunk], collective.wants[chunk]
        if not collective.reduces[chunk] or not wants.any():
            found[chunk] = int(holds.argmax())  # a plain value stays with its first holder
            continue
        key = holds.tobytes() + wants.tobytes()
        if key not in known:
            able = near[holds].all(axis=0) & near[:, wants].all(axis=1)
            known[key] = np.flatnonzero(able & wants) if (able & wants).any() else np.flatnonzero(able)
        if not len(known[key]):
            raise InputError(
                f"{collective.name}: no rank of the group can gather chunk {chunk} from all that contribute and"
                " reach all that want it; give links the other way"
            )
        found[chunk] = known[key][(chunk // block) % len(known[key])]
    return found


def split(problem: Problem) -> tuple[Problem, Problem]:
    """Bring each chunk's contributions together at its owner, then copy from there (allreduce = both).

    In between every chunk has a place of its own.
    """
    old = problem.collective
    at = owners(problem)
    cells = np.column_stack([at, np.arange(old.nchunks)])
    cells = cells[np.lexsort((cells[:, 1], cells[:, 0]))]
    # plain values stay where they are in the first half
    moved = old.reduces[old.pre[:, 1]] | (old.pre[:, 0] == at[old.pre[:, 1]])
    gathering = replace(
        old,
        name=f"{old.name}, reducing half",
        pre=old.pre[moved],
        in_index=old.in_index[moved],
        post=cells,
        out_index=cells[:, 1],
    )
    spreading = replace(
        old,
        name=f"{old.name}, copying half",
        reduces=np.zeros(old.nchunks, dtype=bool),
        pre=(start := np.unique(np.concatenate([cells, old.pre[~old.reduces[old.pre[:, 1]]]]), axis=0)),
        in_index=start[:, 1],
    )
    return replace(problem, collective=gathering), replace(problem, collective=spreading)


def join(first: Schedule, second: Schedule) -> Schedule:
    """`second` after `first`, overlapped as far as the data allow when timed."""
    return untimed(
        np.concatenate([first.chunk, second.chunk]),
        np.concatenate([first.link, second.link]),
        np.concatenate([first.step, second.step + first.nsteps]),
        np.concatenate([first.reduces, second.reduces]),
    )
