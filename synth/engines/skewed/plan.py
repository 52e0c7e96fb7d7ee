"""What plans of all-to-alls of changing sizes are, and what all their planners have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synth.engines.skewed.columns import BAD, FULL, MOST_BYTES, STRAIGHT
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from topologies.errors import InputError
from topologies.network import Network

Words = NDArray[np.uint32]

_KINDS = (np.uint32, np.uint32, np.int64, np.int64, np.uint32, np.uint32, np.uint32, np.float64)  # of columns
_MOST_ROOM = 1 << 28  # Sends of a plan; with more it would not fit in memory.


class Plan(NamedTuple):
    """A planned all-to-all: chunks, and their sends in order of priority.

    Attributes:
        chunk_source: Position in the group of each chunk's source, uint32, shape (chunks,).
        chunk_goal: Position of its destination.
        chunk_offset: First byte of the chunk in the block from source to destination, int64, shape (chunks,).
        chunk_bytes: Bytes of the chunk, int64, shape (chunks,).
        chunk: Chunk of each send, uint32, shape (sends,).
        link: Link of the group's network that each send uses, uint32, shape (sends,).
        step: Number of sends of its chunk before it, uint32, shape (sends,).
        start_us: Time at which each send takes its link, in µs, float64, shape (sends,).
        time_us: Time in µs until the last chunk has arrived; 0 if nothing is sent.
        bound_us: Time in µs that no schedule of these sizes can beat.
        is_straight: Whether every block is sent whole and straight, because that is no slower.
    """

    chunk_source: Words
    chunk_goal: Words
    chunk_offset: Ints
    chunk_bytes: Ints
    chunk: Words
    link: Words
    step: Words
    start_us: Floats
    time_us: float
    bound_us: float
    is_straight: bool

    def __repr__(self) -> str:
        """Return the numbers of chunks and sends, the time and the bound in one line."""
        figures = f"{self.time_us:.6g} µs, bound {self.bound_us:.6g} µs"
        return f"<Plan of {len(self.chunk_bytes)} chunks in {len(self.chunk)} sends: {figures}>"


class SizesPlanner(ABC):
    """A planner of all-to-alls for one process group; it is not for two threads at once.

    Attributes:
        net: The network of the group, whose links plans name.
    """

    def __init__(self, net: Network, interpreted: bool) -> None:
        """Remember the group's network, and whether Python runs the loops instead of compiling them."""
        self.net, self._run, self._room = net, Runner(interpreted), 0
        self._outputs: list[list[NDArray[Any]]] = []
        self._state: list[NDArray[Any]] = []

    def __repr__(self) -> str:
        """Return the kind of planner and the number of ranks in one line."""
        return f"<{type(self).__name__} of all-to-alls on {self.net.nranks} ranks>"

    @abstractmethod
    def _make_room(self, room: int) -> None:
        """Allocate the columns for plans of up to `room` chunks; set `_room`, `_outputs` and `_state`."""

    @abstractmethod
    def _call(self, column: Any, only_straight: bool) -> int:
        """Plan the sizes in a flat column into the outputs; return PLANNED, STRAIGHT, FULL or BAD."""

    def plan(self, sizes: ArrayLike) -> Plan:
        """Plan an all-to-all; the same sizes give the same plan, which is never slower than straight paths.

        Args:
            sizes: Bytes from position i to position j, whole numbers, shape (k, k), at most 2³⁶ each; the diagonal is
                ignored. An int64 array in C order is not copied.

        Raises:
            InputError: The sizes have another shape or type, or one is negative or too large.
        """
        return self._planned(sizes, only_straight=False)

    def plan_straight(self, sizes: ArrayLike) -> Plan:
        """Send every block whole on one short path, each rank's in the order of the ranks behind it; else as `plan`."""
        return self._planned(sizes, only_straight=True)

    @abstractmethod
    def bound(self, sizes: ArrayLike) -> float:
        """Return a time in µs that no schedule of these sizes can beat, as `Plan.bound_us`.

        Args:
            sizes: As for `plan`.

        Raises:
            InputError: As `plan`.
        """

    def _planned(self, sizes: ArrayLike, only_straight: bool) -> Plan:
        """Return the plan, or the plan of straight paths; InputError as `plan`."""
        column = self._column(sizes)
        while (kind := self._call(column, only_straight)) == FULL:
            self._grow()
        if kind == BAD:
            self._refuse(sizes)
        (chunks, sends), (time_us, bound) = self._state[kind].tolist(), self._state[-1].tolist()
        counts = [chunks] * 4 + [sends] * 4
        columns = (x[:n].astype(dtype) for x, n, dtype in zip(self._outputs[kind], counts, _KINDS, strict=True))
        return Plan._make((*columns, time_us, bound, kind == STRAIGHT))

    def _grow(self) -> None:
        """Double the room for chunks.

        Raises:
            InputError: The plan would not fit in memory.
        """
        if self._room * 6 > _MOST_ROOM:
            raise InputError("sizes: their plan has too many chunks to fit in memory")
        self._make_room(2 * self._room)

    def _column(self, sizes: ArrayLike) -> Any:
        """Return the sizes as a flat column.

        Raises:
            InputError: They have another shape or type.
        """
        k, table = self.net.nranks, _table(sizes)
        if table.shape != (k, k) or table.dtype.kind not in "iu":
            form = f"whole numbers of shape {(k, k)}"
            raise InputError(f"sizes: are {table.dtype} of shape {table.shape}; they must be {form}")
        column: Any = np.ascontiguousarray(table, dtype=np.int64).reshape(-1)
        return memoryview(column) if self._run.interpreted else column

    def _refuse(self, sizes: ArrayLike) -> None:
        """Raise InputError for the first size that is negative or too large."""
        table = _table(sizes)
        i, j = np.argwhere((table < 0) | (table > MOST_BYTES))[0].tolist()
        raise InputError(f"sizes: {table[i, j]} bytes from {i} to {j}; a size must be from 0 to 2³⁶ bytes")


def _table(sizes: ArrayLike) -> NDArray[Any]:
    """Return sizes as an array of any type; InputError where they are no table."""
    try:
        return np.asarray(sizes)
    except ValueError:
        raise InputError("sizes: have rows of different lengths; they must be a square of whole numbers") from None
