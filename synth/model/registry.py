"""List the named collectives: one row a name, with all that belongs to it and not to a format or an executor.

To add a collective, `register` one row. Its conditions follow from words for what each rank holds (`before`, `after`,
`unit`), see `synth.model.collective.named`; where words are not enough, the row brings a builder. The command line, the
files, the tables and the emitters read the row. This module needs no NumPy, so that `synth --help` is fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topologies.errors import InputError, right_name
from topologies.paths import Paths

# The words for the ranks that hold a chunk before, or want it after.
EVERY = "every"  # all ranks
OWN = "own"  # one rank for each chunk, in the ranks' order
ROOT = "root"
NEXT = "next"  # the rank after the chunk's own, after the last the first
AHEAD = "ahead"  # the rank after the chunk's own; the last has none
# The words for a block, the smallest piece that the collective addresses.
BUFFER = "buffer"  # a rank's whole buffer
SHARE = "share"  # one rank's share of the fuller buffer
PAIR = "pair"  # the data that one rank has for another

Factor = Callable[[int], float | None]


def _shares(nranks: int) -> float:
    """Return (nranks - 1) / nranks: the share of the message that a rank exchanges with the others."""
    return (nranks - 1) / nranks


def _once(_nranks: int) -> float:
    """Return 1: the whole message moves once."""
    return 1.0


@dataclass(frozen=True)
class CollectiveKind:
    """A named collective, as one row of the registry.

    Attributes:
        name: Name as `parse_name` returns it and as the command line shows it.
        summary: A sentence for --help.
        before: Word for the ranks that hold a chunk before; empty where `build` sets it.
        after: Word for the ranks that want a chunk after; empty where `build` sets it.
        unit: Word for a block; empty where `build` sets it.
        reduces: Whether chunks are summed over their holders.
        bus_factor: Function from the number of ranks to busbw / algbw as nccl-tests defines it; None where it does not.
        inplace: The buffer (i or o) that holds all data where formats know the collective in place; else empty.
        spellings: Other names, in lower case without _ and -: torch.distributed's, MPI's.
        even: Name of the collective that this one is if all blocks have the same size; empty if they always have. The
            sizes must be stated besides the name, and the words stay empty.
        build: Function from the number of ranks and the root's position to the Collective with one chunk a block, where
            the words are not enough.
    """

    name: str
    summary: str
    before: str = ""
    after: str = ""
    unit: str = ""
    reduces: bool = False
    bus_factor: Factor = lambda _: None
    inplace: str = ""
    spellings: tuple[str, ...] = ()
    even: str = ""
    build: Callable[[int, int], Any] | None = None

    @property
    def by_name(self) -> bool:
        """Return whether the name, the number of ranks and the root state the collective.

        That is so for every named collective but those whose blocks have sizes of their own.
        """
        return bool(self.name) and not self.even

    @property
    def by_pair(self) -> bool:
        """Return whether the sizes are a matrix, of a block for each pair of ranks, and not one size for each rank."""
        return find_kind(self.even).unit == PAIR

    @property
    def rooted(self) -> bool:
        """Return whether the collective has a root."""
        return ROOT in (self.before, self.after) or (bool(self.even) and find_kind(self.even).rooted)

    @property
    def whole(self) -> str:
        """Return the buffer (i or o) that holds all data in calls in place.

        It is the input for allreduce, reducescatter and reduce, and the output for allgather and broadcast. It is empty
        for others, where no call in place looks the same to all ranks.
        """
        by_root = self.unit == BUFFER and self.rooted
        return self.inplace or ("" if not by_root else "o" if self.before == ROOT else "i")

    @property
    def in_shares(self) -> bool:
        """Return whether this is an all-reduce: every rank contributes to every sum, and every rank wants it.

        It is then a reduce-scatter and an all-gather of one share for each rank. A block is cut into shares for these
        two phases.
        """
        return self.reduces and self.before == self.after == EVERY

    @property
    def translatable(self) -> bool:
        """Return whether a translation of the ranks maps the collective onto itself and chunks onto chunks.

        Then it has a quotient: allreduce, allgather, reducescatter, alltoall.
        """
        return {self.before, self.after} <= {OWN, EVERY} and (self.in_shares or OWN in (self.before, self.after))

    @property
    def paths(self) -> Paths:
        """Return the paths of a large network that are links: more where any two ranks have data for each other."""
        return Paths.NODES if self.unit in (PAIR, "") else Paths.LEVELS

    @property
    def blocks_a_rank(self) -> bool:
        """Return whether every rank has a buffer with a block for each rank: in allgather, reducescatter and alltoall.

        In gather and scatter only the root has one.
        """
        return self.unit in (SHARE, PAIR) and not self.rooted

    @property
    def blocks_at_root(self) -> bool:
        """Return whether only the root has a buffer with a block for each rank, as in gather and scatter."""
        return self.unit == SHARE and self.rooted

    def entries(self, nranks: int) -> int:
        """Return the number of rows (rank, chunk) of the longer condition with one chunk a block.

        It is nranks² where that many blocks are held or wanted, else nranks, which may be one more than there are.
        """
        wide = self.unit == PAIR or (self.unit == SHARE and EVERY in (self.before, self.after))
        return nranks * nranks if wide else nranks


COLLECTIVE_KINDS: dict[str, CollectiveKind] = {}


def register(row: CollectiveKind) -> None:
    """Add a collective to `COLLECTIVE_KINDS`, after all others; its name and spellings must be new.

    Raises:
        InputError: Another row has the name or a spelling.
    """
    registered = {name for kind in COLLECTIVE_KINDS.values() for name in (kind.name, *kind.spellings)}
    for name in (row.name, *row.spellings):
        if name in registered:
            raise InputError(f"collective: {name!r} is registered already; choose a new name")
    COLLECTIVE_KINDS[row.name] = row


for _row in (
    CollectiveKind(
        "allreduce", "Every rank gets the sum of all buffers.", EVERY, EVERY, BUFFER, reduces=True,
        bus_factor=lambda nranks: 2 * _shares(nranks), inplace="i",
    ),
    CollectiveKind(
        "allgather", "Every rank gets all blocks.", OWN, EVERY, SHARE, bus_factor=_shares, inplace="o",
        spellings=("allgatherintotensor",),
    ),
    CollectiveKind(
        "reducescatter", "Every rank gets its block of the sum.", EVERY, OWN, SHARE, reduces=True,
        bus_factor=_shares, inplace="i", spellings=("reducescattertensor",),
    ),
    CollectiveKind(
        "alltoall", "Every rank sends a block of its own to every other.", OWN, OWN, PAIR, bus_factor=_shares,
        spellings=("alltoallsingle",),
    ),
    CollectiveKind("alltoallv", "All-to-all with a size of its own for every pair (--sizes).", even="alltoall"),
    CollectiveKind(
        "broadcast", "The root's buffer goes to all.", ROOT, EVERY, BUFFER, bus_factor=_once, spellings=("bcast",)
    ),
    CollectiveKind(
        "reduce", "The root gets the sum of all buffers.", EVERY, ROOT, BUFFER, reduces=True, bus_factor=_once
    ),
    CollectiveKind("scatter", "Every rank gets its block from the root.", ROOT, OWN, SHARE, bus_factor=_shares),
    CollectiveKind("gather", "The root gets every rank's block.", OWN, ROOT, SHARE, bus_factor=_shares),
    CollectiveKind("allgatherv", "Every rank gets all blocks, each of its own size (--sizes).", even="allgather"),
    CollectiveKind(
        "reducescatterv", "Every rank gets its block, of its own size, of the sum (--sizes).", even="reducescatter"
    ),
    CollectiveKind("scatterv", "Every rank gets its block, of its own size, from the root (--sizes).", even="scatter"),
    CollectiveKind("gatherv", "The root gets every rank's block, each of its own size (--sizes).", even="gather"),
    # This is sendrecv of nccl-tests.
    CollectiveKind("sendrecv", "Every rank sends its buffer to the next, the last to the first.", OWN, NEXT, BUFFER),
    # See section 7 of MSCCLang.
    CollectiveKind("alltonext", "Every rank but the last sends its buffer to the next.", OWN, AHEAD, BUFFER),
):  # fmt: skip
    register(_row)

_PATTERN = CollectiveKind("", "A pattern of your own.")


def find_kind(name: str) -> CollectiveKind:
    """Return the row of a collective's own name; for any other name an empty row that claims nothing."""
    return COLLECTIVE_KINDS.get(name, _PATTERN)


def parse_name(text: str) -> str:
    """Return the collective's own name for any accepted spelling (`all_reduce`, `all_gather_into_tensor`, …).

    Upper and lower case are the same, and `_` and `-` do not count.

    Raises:
        InputError: The name is unknown; the message has the nearest names, or else all.
    """
    plain = text.lower().replace("_", "").replace("-", "")
    for row in COLLECTIVE_KINDS.values():
        if plain == row.name or plain in row.spellings:
            return row.name
    if plain == "pattern":
        raise InputError('collective: a pattern is a file of yours; it must be synth.read_pattern("FILE.toml")')
    raise InputError(
        f"collective: {text[:24]!r} is not known; {right_name(plain, list(COLLECTIVE_KINDS), 'synth --help')}"
    )
