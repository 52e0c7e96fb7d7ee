"""A call of a collective, for which a library may have a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.model.numbers import as_flag, as_text, taking, whole, whole_numbers, without_common_divisor
from synth.model.text import format_listed
from topologies.errors import InputError


class _CallFields(NamedTuple):
    """The fields of a `LibraryCall`, which describes them."""

    collective: str
    nranks: int
    ranks: Sequence[int] | None
    inplace: bool
    target: str | None = None
    topology: str | None = None
    root: int | None = None
    relays: Sequence[int] = ()
    element_bytes: int = 1
    any_order: bool = False
    sizes: Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer[Any]] = ()


class LibraryCall(_CallFields):
    """A call of a collective, of any size, for which a library may have a file.

    Its fields are checked when it is made; whether the collective exists, by the `Selector` that takes the call.

    Attributes:
        collective: Name of the collective; torch's spellings are also known.
        nranks: Number of ranks of the group.
        ranks: The topology's ranks of the group, in order; None if they may be anywhere.
        inplace: True for a call in place.
        target: Executor; None for any, if all fitting files have the same.
        topology: Name of the topology; None for any, if all fitting files have the same.
        root: The topology's rank of the root; a file is for one root only.
        relays: Ranks of the topology after the group's in the communicator.
        element_bytes: Bytes of an element of the call's type.
        any_order: True to take a file for these ranks in another order if there is none for this one, as `synth library
            pick` does. The communicator must then be made in the order of the entry's `communicator`. If False, a file
            for another order is not taken, as it would hand the ranks each other's data.
        sizes: Sizes of the blocks, for a collective whose blocks have sizes of their own: one for each rank in their
            order, or for alltoallv one for each pair of ranks, row by row or as an array or list of rows. Only their
            proportions count, except for `Selector.choose_padded`.
    """

    __slots__ = ()

    @taking('synth.LibraryCall("allreduce", 4, [0, 1, 2, 3], inplace=True)')
    def __new__(  # It has a parameter for each field, so that editors and type checkers know them.
        cls,
        collective: str,
        nranks: int,
        ranks: Sequence[int] | None,
        inplace: bool,
        target: str | None = None,
        topology: str | None = None,
        root: int | None = None,
        relays: Sequence[int] = (),
        element_bytes: int = 1,
        any_order: bool = False,
        sizes: Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer[Any]] = (),
    ) -> LibraryCall:
        """Return a call with these fields, which stay as they are; raise InputError as `checked` does."""
        fields = collective, nranks, ranks, inplace, target, topology, root, relays, element_bytes, any_order, sizes
        call = tuple.__new__(cls, fields)
        call.checked()
        return call

    def checked(self) -> LibraryCall:
        """Return a copy with plain values, ranks as tuples, and sizes without a common divisor.

        The collective may be unknown.

        Raises:
            InputError: If a field has the wrong type, `element_bytes` or `nranks` is below 1, or `ranks` are not
                `nranks` different ones.
        """
        ranks = None if self.ranks is None else whole_numbers(self.ranks, "ranks")
        fields = (
            as_text(self.collective, "collective"),
            whole(self.nranks, "nranks"),
            ranks,
            as_flag(self.inplace, "inplace"),
            None if self.target is None else as_text(self.target, "target"),
            None if self.topology is None else as_text(self.topology, "topology"),
            None if self.root is None else whole(self.root, "root"),
            whole_numbers(self.relays, "relays"),
            whole(self.element_bytes, "element_bytes"),
            as_flag(self.any_order, "any_order"),
            without_common_divisor(row_by_row(self.sizes)),
        )
        call = tuple.__new__(LibraryCall, fields)
        if call.element_bytes < 1:
            raise InputError(f"element_bytes {call.element_bytes}: is not possible; it must be 1 or more")
        if call.nranks < 1 or (ranks is not None and not len(set(ranks)) == len(ranks) == call.nranks):
            suffix = "" if ranks is None else f" and ranks {format_listed(ranks)}"
            raise InputError(
                f"nranks {call.nranks}{suffix}: is not possible; it must be 1 or more,"
                " with that many different ranks if ranks are given"
            )
        return call


def row_by_row(sizes: Any) -> tuple[int, ...]:
    """Return sizes, one after another or in rows, as a tuple row by row; raise InputError if they are anything else."""
    if isinstance(sizes, np.ndarray):
        sizes = sizes.tolist()
    if isinstance(sizes, list | tuple) and sizes and isinstance(sizes[0], list | tuple | np.ndarray):
        return tuple(size for row in sizes for size in whole_numbers(row, "sizes"))
    return whole_numbers(sizes, "sizes")
