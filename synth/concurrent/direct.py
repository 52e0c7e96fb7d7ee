"""Direct for several groups at once: what a library without a plan would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synth.baselines import baseline_named
from synth.concurrent.chunk_refinement import finer_rows
from synth.concurrent.isolated import one_chunk, shared_name
from synth.concurrent.union import Together, alone, merged
from synth.model.collective import Collective, subdivided
from synth.model.schedule import Schedule
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

__all__ = ["direct_together"]

Restate = Callable[[Sequence[Collective]], Together]


def direct_together(
    asked: Together, restate: Restate, chunks: int | None = None
) -> tuple[Together, Schedule] | None:
    """Every message over a fixed shortest way, all groups' at once, and what problem of the groups that solves.

    The union's own Direct where everybody may relay and the union has one; else each group's, begun together.
    None where a group has none, where it cannot have so many chunks, or where it would be too large.

    Args:
        restate: the same groups with other collectives.
        chunks: of every block; as few as Direct needs when None.
    """
    # an allreduce needs a share a rank
    shares = [m.collective.nranks for m in asked.members if m.collective.kind.in_shares]
    if chunks is not None and any(chunks % share for share in shares):
        return None
    try:
        if asked.allowed.all():
            found = _whole(asked, restate, chunks)
            if found is not None:
                return found
        parts = _parts(asked)
    except InputError:
        return None
    if parts is None:
        return None
    finer = [_finer(chunks, part.chunks) for part in parts]
    cut = restate(
        [subdivided(part.problem.collective, times) for part, times in zip(parts, finer, strict=True)]
    )
    clocked = [
        timed(problem, finer_rows(part.schedule, times), member.size_bytes)
        for problem, part, times, member in zip(alone(cut), parts, finer, asked.members, strict=True)
    ]
    return cut, merged(cut, clocked)


def _whole(asked: Together, restate: Restate, chunks: int | None) -> tuple[Together, Schedule] | None:
    problem = one_chunk(asked.problem)
    made = baseline_named(problem, "direct", asked.size_bytes)
    if not made:
        return None
    times = made[0].problem.collective.nchunks // problem.collective.nchunks
    finer = _finer(chunks, times)
    cut = restate([subdivided(m.collective, times * finer) for m in asked.members])
    return cut, finer_rows(made[0].schedule, finer)


def _parts(asked: Together) -> list[Algorithm] | None:
    """Each group's Direct by itself; None where one has none."""
    found = []
    known: dict[bytes, list[Algorithm]] = {}
    for problem, member in zip(alone(asked), asked.members, strict=True):
        name = shared_name(problem, member.size_bytes)
        if name not in known:
            known[name] = baseline_named(one_chunk(problem), "direct", member.size_bytes)
        if not known[name]:
            return None
        found.append(known[name][0])
    return found


def _finer(chunks: int | None, made: int) -> int:
    """Into how many parts the chunks of a plan with `made` a block are cut, where their number is pinned."""
    return 1 if chunks is None else max(1, chunks // made)
