"""The built-in algorithms, which run where no library serves a call. They do not depend on the network.

Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and experience" (2007), describe
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from emit.compiler.compile import compile_instructions
from emit.language import Script
from emit.program import Program
from topologies.errors import InputError

_SMALL_BYTES = 32 << 10  # Up to this size the number of messages matters, not their length.
DIRECT = "direct"  # It sends every block straight from its source to its destination.
_MOST_COMPILED = 256  # Compiled programs in the cache.
MOST_RANKS = 64  # A program for more ranks takes seconds to compile.


def _file(name: str) -> Any:
    """Import the module `name` of this folder, which may also be an example, and return it."""
    return import_module(f"runtime.algorithms.{name}")


def _ring_allgather(ranks: int, _: int) -> Script:
    """Build the script in which every rank's block is copied from rank to rank around a ring, out of place."""
    script = Script("ring", "allgather", ranks, inplace=False)
    for r in range(ranks):
        part = script.chunk(r, "i", 0).copy(r, "o", r)
        for hop in range(1, ranks):
            part = part.copy((r + hop) % ranks, "o", r)
    return script


def _ring_reducescatter(ranks: int, _: int) -> Script:
    """Build the script in which every block is summed from rank to rank around a ring, to end at its rank."""
    script = Script("ring", "reducescatter", ranks)
    for c in range(ranks):
        part = script.chunk((c + 1) % ranks, "i", c)
        for hop in range(2, ranks + 1):
            part = script.chunk((c + hop) % ranks, "i", c).reduce(part)
    return script


def _direct_reducescatter(ranks: int, _: int) -> Script:
    """Build the script in which every rank sends each other rank's block straight to it, where they are summed."""
    script = Script("direct", "reducescatter", ranks)
    for r in range(ranks):
        share = script.chunk(r, "i", r)
        for hop in range(1, ranks):
            share = share.reduce(script.chunk((r + hop) % ranks, "i", r))
    return script


def _direct(collective: str, ranks: int, root: int) -> Script:
    """Build the script in which every block is sent straight from its source to its destination.

    Args:
        collective: "gather", "scatter", "alltoall" or "allgather", whose program works out of place.
        ranks: Number of ranks.
        root: Root of a gather or scatter; otherwise it is only noted.
    """
    script = Script(DIRECT, collective, ranks, root=root, inplace=False if collective == "allgather" else None)
    for r in range(ranks):
        if collective == "gather":
            script.chunk(r, "i", 0).copy(root, "o", r)
        elif collective == "scatter":
            script.chunk(root, "i", r).copy(r, "o", 0)
        else:
            for peer in ((r + hop) % ranks for hop in range(ranks)):
                script.chunk(r, "i", peer if collective == "alltoall" else 0).copy(peer, "o", r)
    return script


def _tree_broadcast(ranks: int, root: int) -> Script:
    """Build the in-place script in which the number of ranks that have the root's data doubles in each step."""
    script = Script("tree", "broadcast", ranks, root=root, inplace=True)
    reached = 1
    while reached < ranks:
        for place in range(reached, min(2 * reached, ranks)):
            source = place - reached
            part = script.chunk((source + root) % ranks, "o" if source else "i", 0)
            part.copy((place + root) % ranks, "o", 0)
        reached *= 2
    return script


def _tree_reduce(ranks: int, root: int) -> Script:
    """Build the in-place script in which partial sums meet in a binomial tree that ends at the root."""
    script = Script("tree", "reduce", ranks, root=root, inplace=True)
    half = 1 << (ranks - 1).bit_length()
    while half > 1:
        half //= 2
        for place in range(half, min(2 * half, ranks)):
            part = script.chunk((place + root) % ranks, "i", 0)
            script.chunk((place - half + root) % ranks, "i", 0).reduce(part)
    return script


@dataclass(frozen=True)
class BuiltIn:
    """A built-in algorithm for a collective.

    Attributes:
        collective: The collective.
        name: Name of the algorithm.
        script: Function that builds its script from the number of ranks and the root.
        powers_of_two: True if the number of ranks must be a power of two.
    """

    collective: str
    name: str
    script: Callable[[int, int], Script]
    powers_of_two: bool = False


# The first row of a collective serves large messages, its last row small ones.
_ROWS = (
    BuiltIn("allreduce", "ring", lambda n, _: _file("ring").algorithm(n, "Simple")),
    BuiltIn("allreduce", "allpairs", lambda n, _: _file("allpairs").algorithm(n, 2, "Simple")),
    BuiltIn("allreduce", "halving_doubling", lambda n, _: _file("halving_doubling").algorithm(n), powers_of_two=True),
    BuiltIn("allgather", "ring", _ring_allgather),
    BuiltIn("allgather", DIRECT, partial(_direct, "allgather")),
    BuiltIn("reducescatter", "ring", _ring_reducescatter),
    BuiltIn("reducescatter", "direct", _direct_reducescatter),
    BuiltIn("alltoall", DIRECT, partial(_direct, "alltoall")),
    BuiltIn("broadcast", "tree", _tree_broadcast),
    BuiltIn("reduce", "tree", _tree_reduce),
    BuiltIn("gather", DIRECT, partial(_direct, "gather")),
    BuiltIn("scatter", DIRECT, partial(_direct, "scatter")),
)
COLLECTIVES = tuple(dict.fromkeys(row.collective for row in _ROWS))  # All collectives that torch calls.


def _rows(collective: str, ranks: int) -> dict[str, BuiltIn]:
    """Return the algorithms for a collective on so many ranks, by name; that for large messages is first.

    It is empty for an unknown collective, for fewer than 2 ranks and for more than MOST_RANKS.
    """
    if not 2 <= ranks <= MOST_RANKS:
        return {}
    power = ranks & (ranks - 1) == 0
    return {row.name: row for row in _ROWS if row.collective == collective and (power or not row.powers_of_two)}


def names(collective: str, ranks: int) -> tuple[str, ...]:
    """Return the names of the algorithms for a collective on so many ranks, that for large messages first.

    It is empty for an unknown collective, for fewer than 2 ranks and for more than MOST_RANKS.
    """
    return tuple(_rows(collective, ranks))


def usual(collective: str, ranks: int, size_bytes: int) -> str | None:
    """Return the algorithm to use without measurements: for up to 32 KiB the last one of `names`, else the first.

    It is None where `names` is empty. `size_bytes` is the size of the message as nccl-tests counts it.
    """
    available = names(collective, ranks)
    if not available:
        return None
    return available[0] if size_bytes > _SMALL_BYTES else available[-1]


@lru_cache(_MOST_COMPILED)
def built_in(collective: str, name: str, ranks: int, root: int = 0) -> Program:
    """Return an algorithm as a compiled program, which is kept for later calls.

    Args:
        collective: The collective.
        name: Name of the algorithm, one of `names`; the program has it too.
        ranks: Number of ranks, 2 to MOST_RANKS.
        root: Root of the collective, if it has one; otherwise it is ignored.

    Raises:
        InputError: There is no such algorithm for this collective and number of ranks.
    """
    available = _rows(collective, ranks)
    if name not in available:
        raise InputError(
            f"built-in algorithm {name!r} for {collective} of {ranks} ranks: there is none; it must be one of"
            f" {', '.join(available) or 'none'}"
        )
    program = compile_instructions(available[name].script(ranks, root).instructions()).program
    return replace(program, name=name)
