"""Algorithms for any number of ranks that need no search: what runs where no library serves a call.

Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and experience" (2007), describe
all of them. They know nothing of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from emit.compiler.compile import compile_instructions
from emit.language import Script
from emit.program import ROOTED, Program
from topologies.errors import InputError

_SMALL_BYTES = 32 << 10  # up to here the number of messages counts, not their length
MOST_RANKS = 64  # beyond, a program of every rank's steps takes seconds to compile


def _ring(ranks: int) -> Script:
    script = Script("ring", "allreduce", ranks, chunks=ranks)
    for c in range(ranks):
        part = script.chunk(c, "i", c)
        for hop in range(1, ranks):
            part = script.chunk((c + hop) % ranks, "i", c).reduce(part)
        for hop in range(ranks, 2 * ranks - 1):
            part = part.copy((c + hop) % ranks, "i", c)
    return script


def _allpairs(ranks: int) -> Script:
    script = Script("allpairs", "allreduce", ranks, chunks=ranks)
    for r in range(ranks):
        share = script.chunk(r, "i", r)
        for turn in range(1, ranks):
            share = share.reduce(script.chunk((r + turn) % ranks, "i", r))
        for turn in range(1, ranks):
            share.copy((r + turn) % ranks, "i", r)
    return script


def _halving_doubling(ranks: int) -> Script:
    script = Script("halving_doubling", "allreduce", ranks, chunks=ranks)
    far = ranks // 2
    while far:
        parts = [script.chunk(r, "i", (r ^ far) // far * far, far) for r in range(ranks)]
        for r, part in enumerate(parts):
            script.chunk(r ^ far, "i", (r ^ far) // far * far, far).reduce(part)
        far //= 2
    far = 1
    while far < ranks:
        for r in range(ranks):
            script.chunk(r, "i", r // far * far, far).copy(r ^ far, "i", r // far * far)
        far *= 2
    return script


def _ring_gather(ranks: int) -> Script:
    script = Script("ring", "allgather", ranks, inplace=False)
    for r in range(ranks):
        part = script.chunk(r, "i", 0).copy(r, "o", r)
        for hop in range(1, ranks):
            part = part.copy((r + hop) % ranks, "o", r)
    return script


def _all_send(ranks: int) -> Script:
    script = Script("direct", "allgather", ranks, inplace=False)
    for r in range(ranks):
        for hop in range(ranks):
            script.chunk(r, "i", 0).copy((r + hop) % ranks, "o", r)
    return script


def _ring_scatter(ranks: int) -> Script:
    script = Script("ring", "reducescatter", ranks)
    for c in range(ranks):
        part = script.chunk((c + 1) % ranks, "i", c)
        for hop in range(2, ranks + 1):
            part = script.chunk((c + hop) % ranks, "i", c).reduce(part)
    return script


def _all_reduce_own(ranks: int) -> Script:
    script = Script("direct", "reducescatter", ranks)
    for r in range(ranks):
        share = script.chunk(r, "i", r)
        for turn in range(1, ranks):
            share = share.reduce(script.chunk((r + turn) % ranks, "i", r))
    return script


def _alltoall(ranks: int) -> Script:
    script = Script("direct", "alltoall", ranks)
    for r in range(ranks):
        for hop in range(ranks):
            goal = (r + hop) % ranks
            script.chunk(r, "i", goal).copy(goal, "o", r)
    return script


def _tree(ranks: int, root: int) -> Script:
    script = Script("tree", "broadcast", ranks, root=root, inplace=True)
    known = 1
    while known < ranks:
        for place in range(known, min(2 * known, ranks)):
            source = place - known
            held = script.chunk((source + root) % ranks, "o" if source else "i", 0)
            held.copy((place + root) % ranks, "o", 0)
        known *= 2
    return script


def _reduce_tree(ranks: int, root: int) -> Script:
    script = Script("tree", "reduce", ranks, root=root, inplace=True)
    known = 1
    while known < ranks:
        known *= 2
    while known > 1:
        known //= 2
        for place in range(known, min(2 * known, ranks)):
            part = script.chunk((place + root) % ranks, "i", 0)
            script.chunk((place - known + root) % ranks, "i", 0).reduce(part)
    return script


def _gather(ranks: int, root: int) -> Script:
    script = Script("direct", "gather", ranks, root=root)
    for r in range(ranks):
        script.chunk(r, "i", 0).copy(root, "o", r)
    return script


def _scatter(ranks: int, root: int) -> Script:
    script = Script("direct", "scatter", ranks, root=root)
    for r in range(ranks):
        script.chunk(root, "i", r).copy(r, "o", 0)
    return script


_PLAIN: dict[str, dict[str, Callable[[int], Script]]] = {
    "allreduce": {"ring": _ring, "allpairs": _allpairs, "halving_doubling": _halving_doubling},
    "allgather": {"ring": _ring_gather, "direct": _all_send},
    "reducescatter": {"ring": _ring_scatter, "direct": _all_reduce_own},
    "alltoall": {"direct": _alltoall},
}
_TO_ROOT: dict[str, dict[str, Callable[[int, int], Script]]] = {
    "broadcast": {"tree": _tree},
    "reduce": {"tree": _reduce_tree},
    "gather": {"direct": _gather},
    "scatter": {"direct": _scatter},
}
COLLECTIVES = (*_PLAIN, *_TO_ROOT)  # all that torch calls


def names(collective: str, ranks: int) -> tuple[str, ...]:
    """The algorithms there are for a collective on so many ranks; none for what is not known."""
    if not 2 <= ranks <= MOST_RANKS:
        return ()
    found = tuple(_PLAIN.get(collective, _TO_ROOT.get(collective, {})))
    return tuple(name for name in found if name != "halving_doubling" or ranks & (ranks - 1) == 0)


def usual(collective: str, ranks: int, size_bytes: int) -> str | None:
    """The one taken where nothing was measured: few messages for small sizes, rings for large ones."""
    found = names(collective, ranks)
    if not found:
        return None
    if size_bytes > _SMALL_BYTES:
        return found[0]
    return found[-1]


@cache
def built_in(collective: str, name: str, ranks: int, root: int = 0) -> Program:
    """An algorithm, compiled. `root`: for the collectives that have one.

    Raises InputError for one that there is not.
    """
    if name not in names(collective, ranks):
        known = ", ".join(names(collective, ranks)) or "none"
        raise InputError(
            f"no built-in algorithm {name!r} for {collective} of {ranks} ranks: there is {known}"
        )
    script = (
        _TO_ROOT[collective][name](ranks, root) if collective in ROOTED else _PLAIN[collective][name](ranks)
    )
    return compile_instructions(script.instructions()).program
