"""The built-in algorithms: what runs where no library serves a call. They know nothing of the network.

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

_SMALL_BYTES = 32 << 10  # up to here the number of messages counts, not their length
DIRECT = "direct"  # what sends every block straight from where it is to where it is wanted
_KEPT = 256  # compiled, of the last that were asked for
MOST_RANKS = 64  # beyond, a program of every rank's steps takes seconds to compile


def _file(name: str) -> Any:
    """A file beside this one, an example too; loaded when its algorithm is asked for."""
    return import_module(f"runtime.algorithms.{name}")


def _ring_allgather(ranks: int, _: int) -> Script:
    script = Script("ring", "allgather", ranks, inplace=False)
    for r in range(ranks):
        part = script.chunk(r, "i", 0).copy(r, "o", r)
        for hop in range(1, ranks):
            part = part.copy((r + hop) % ranks, "o", r)
    return script


def _ring_reducescatter(ranks: int, _: int) -> Script:
    script = Script("ring", "reducescatter", ranks)
    for c in range(ranks):
        part = script.chunk((c + 1) % ranks, "i", c)
        for hop in range(2, ranks + 1):
            part = script.chunk((c + hop) % ranks, "i", c).reduce(part)
    return script


def _direct_reducescatter(ranks: int, _: int) -> Script:
    script = Script("direct", "reducescatter", ranks)
    for r in range(ranks):
        share = script.chunk(r, "i", r)
        for turn in range(1, ranks):
            share = share.reduce(script.chunk((r + turn) % ranks, "i", r))
    return script


def _direct(collective: str, ranks: int, root: int) -> Script:
    """Every block straight from where it is to where it is wanted."""
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
    script = Script("tree", "broadcast", ranks, root=root, inplace=True)
    known = 1
    while known < ranks:
        for place in range(known, min(2 * known, ranks)):
            source = place - known
            held = script.chunk((source + root) % ranks, "o" if source else "i", 0)
            held.copy((place + root) % ranks, "o", 0)
        known *= 2
    return script


def _tree_reduce(ranks: int, root: int) -> Script:
    script = Script("tree", "reduce", ranks, root=root, inplace=True)
    known = 1 << (ranks - 1).bit_length()
    while known > 1:
        known //= 2
        for place in range(known, min(2 * known, ranks)):
            part = script.chunk((place + root) % ranks, "i", 0)
            script.chunk((place - known + root) % ranks, "i", 0).reduce(part)
    return script


@dataclass(frozen=True)
class BuiltIn:
    """One algorithm. script: of so many ranks and a root. powers_of_two: for such numbers of ranks only."""

    collective: str
    name: str
    script: Callable[[int, int], Script]
    powers_of_two: bool = False


# of a collective first what large messages take, last what small ones take
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
COLLECTIVES = tuple(dict.fromkeys(row.collective for row in _ROWS))  # all that torch calls


def _rows(collective: str, ranks: int) -> dict[str, BuiltIn]:
    """By name; none for what is not known."""
    if not 2 <= ranks <= MOST_RANKS:
        return {}
    power = ranks & (ranks - 1) == 0
    return {row.name: row for row in _ROWS if row.collective == collective and (power or not row.powers_of_two)}


def names(collective: str, ranks: int) -> tuple[str, ...]:
    """The algorithms there are for a collective on so many ranks; none for what is not known."""
    return tuple(_rows(collective, ranks))


def usual(collective: str, ranks: int, size_bytes: int) -> str | None:
    """The one taken where nothing was measured: few messages for small sizes, rings for large ones."""
    found = names(collective, ranks)
    if not found:
        return None
    return found[0] if size_bytes > _SMALL_BYTES else found[-1]


@lru_cache(_KEPT)
def built_in(collective: str, name: str, ranks: int, root: int = 0) -> Program:
    """An algorithm, compiled. `root`: for the collectives that have one.

    Raises InputError for one that there is not.
    """
    found = _rows(collective, ranks)
    if name not in found:
        raise InputError(
            f"built-in algorithm {name!r} for {collective} of {ranks} ranks: there is none; it must be one of"
            f" {', '.join(found) or 'none'}"
        )
    program = compile_instructions(found[name].script(ranks, root).instructions()).program
    return replace(program, name=name)
