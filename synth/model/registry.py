"""What each named collective is: one row a name, with all that belongs to it and not to a format or an executor.

To add a collective, `register` one row. Where words for what each rank holds (`before`, `after`, `unit`) say all, its
conditions follow from them (`synth.model.collective.named`); else the row brings a builder. The command line, the
files, the tables and the emitters ask the row. This module needs no NumPy: `synth --help` reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topologies.errors import InputError, did_you_mean

# Who holds a chunk before, and who wants it after.
EVERY = "every"  # all ranks
OWN = "own"  # one rank each, in the ranks' order
ROOT = "root"
NEXT = "next"  # the rank after the chunk's own, after the last the first
AHEAD = "ahead"  # the rank after the chunk's own; the last has none
# What a block is, the smallest piece that the collective addresses.
BUFFER = "buffer"  # a rank's whole buffer
SHARE = "share"  # one rank's share of the fuller buffer
PAIR = "pair"  # what one rank has for one other

Factor = Callable[[int], float | None]


def _shares(nranks: int) -> float:
    return (nranks - 1) / nranks


def _once(_nranks: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Kind:
    """One row.

    Attributes:
        name: as `parse_name` returns it, and the command's.
        summary: a sentence for --help.
        before, after, unit: the words above; empty where `build` says it.
        reduces: whether chunks are summed over their holders.
        bus_factor: ranks → busbw / algbw as nccl-tests defines it, None where it does not.
        inplace: the buffer (i or o) that holds all where formats know it in place; empty where they do not.
        spellings: other names, lower case without _ and -: torch.distributed's, MPI's.
        by_size: needs a matrix of sizes, so that the name alone does not say it.
        build: ranks, root's position → the Collective with one chunk a block, where the words do not say it.
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
    by_size: bool = False
    build: Callable[[int, int], Any] | None = None

    @property
    def by_name(self) -> bool:
        """Whether the name alone says it, so many ranks and a root given."""
        return bool(self.name) and not self.by_size

    @property
    def rooted(self) -> bool:
        return ROOT in (self.before, self.after)

    @property
    def whole(self) -> str:
        """The buffer (i or o) that holds all in calls in place; empty where there are none that all ranks see alike."""
        by_root = self.unit == BUFFER and self.rooted
        return self.inplace or ("" if not by_root else "o" if self.before == ROOT else "i")

    @property
    def in_shares(self) -> bool:
        """Whether it is a reduce-scatter and an all-gather of one share a rank, into which a block is cut for that."""
        return self.reduces and self.before == self.after == EVERY

    @property
    def translatable(self) -> bool:
        """Whether a translation of the ranks maps it onto itself and chunks onto chunks, so that it has a quotient."""
        return {self.before, self.after} <= {OWN, EVERY} and (self.in_shares or OWN in (self.before, self.after))

    @property
    def blocks_a_rank(self) -> bool:
        """Whether every rank has a buffer with a block for each rank (of gather and scatter only the root has)."""
        return self.unit in (SHARE, PAIR) and not self.rooted

    @property
    def blocks_at_root(self) -> bool:
        """Whether only the root has a buffer with a block for each rank."""
        return self.unit == SHARE and self.rooted

    def entries(self, nranks: int) -> int:
        """Rows of the longer of its conditions, with one chunk a block."""
        wide = self.unit == PAIR or (self.unit == SHARE and EVERY in (self.before, self.after))
        return nranks * nranks if wide else nranks


KINDS: dict[str, Kind] = {}


def register(row: Kind) -> None:
    """Add a collective; its name and spellings must be new.

    Raises InputError: a name or spelling that another row has.
    """
    taken = {name for known in KINDS.values() for name in (known.name, *known.spellings)}
    for name in (row.name, *row.spellings):
        if name in taken:
            raise InputError(f"collective: {name!r} is registered already; it must be a new name")
    KINDS[row.name] = row


for _row in (
    Kind(
        "allreduce", "Every rank gets the sum of all buffers.", EVERY, EVERY, BUFFER, reduces=True,
        bus_factor=lambda nranks: 2 * _shares(nranks), inplace="i",
    ),
    Kind(
        "allgather", "Every rank gets all blocks.", OWN, EVERY, SHARE, bus_factor=_shares, inplace="o",
        spellings=("allgatherintotensor",),
    ),
    Kind(
        "reducescatter", "Every rank gets its block of the sum.", EVERY, OWN, SHARE, reduces=True,
        bus_factor=_shares, inplace="i", spellings=("reducescattertensor",),
    ),
    Kind(
        "alltoall", "Every rank sends a block of its own to every other.", OWN, OWN, PAIR, bus_factor=_shares,
        spellings=("alltoallsingle",),
    ),
    Kind("alltoallv", "All-to-all with a size of its own for every pair (--sizes).", by_size=True),
    Kind("broadcast", "The root's buffer goes to all.", ROOT, EVERY, BUFFER, bus_factor=_once, spellings=("bcast",)),
    Kind("reduce", "The root gets the sum of all buffers.", EVERY, ROOT, BUFFER, reduces=True, bus_factor=_once),
    Kind("scatter", "Every rank gets its block from the root.", ROOT, OWN, SHARE, bus_factor=_shares),
    Kind("gather", "The root gets every rank's block.", OWN, ROOT, SHARE, bus_factor=_shares),
    # nccl-tests' sendrecv
    Kind("sendrecv", "Every rank sends its buffer to the next, the last to the first.", OWN, NEXT, BUFFER),
    # MSCCLang, section 7
    Kind("alltonext", "Every rank but the last sends its buffer to the next.", OWN, AHEAD, BUFFER),
):  # fmt: skip
    register(_row)

_PATTERN = Kind("", "A pattern of your own.")


def find_kind(name: str) -> Kind:
    """The row of a collective's own name; for any other an empty row that claims nothing."""
    return KINDS.get(name, _PATTERN)


def parse_name(text: str) -> str:
    """The collective's own name for any accepted spelling (`all_reduce`, `all_gather_into_tensor`, …).

    Raises InputError: unknown, with the nearest names.
    """
    plain = text.lower().replace("_", "").replace("-", "")
    for row in KINDS.values():
        if plain == row.name or plain in row.spellings:
            return row.name
    near = did_you_mean(plain, list(KINDS))
    hint = f"; {near}" if near else "."
    raise InputError(f"collective: {text!r} is not known{hint} It is one of: {', '.join(KINDS)}")
