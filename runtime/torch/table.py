"""Read tables of the methods that were measured to be fastest, as `synth tune` writes them.

A table is {"format": "synth-choice-1", "machine": NAME, "rows": [row, …]}. The first row that fits a call decides. A
row is an object with the fields of `TableRow`; its `kind` is called `type` in the file. `group`, `type`, `max_bytes`
and `algorithm` may be null or absent.

A row may also have a field `gain`, which is ignored here. In a measured row it is the wrapped back end's time over
ours, at the size where that is least: its `median`, and the value that it is `at_least` with a `confidence`.
"""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from typing import NamedTuple

from runtime.algorithms.built_in import COLLECTIVES
from runtime.torch.added import known_names
from synth.storage.columns import json_object
from topologies.text.fields import Fields
from topologies.text.files import origin_of, read_bytes

log = logging.getLogger("synth.torch")
FORMAT = "synth-choice-1"
FIELDS = ("collective", "ranks", "group", "type", "min_bytes", "max_bytes", "backend", "algorithm")
MAX_FILE_BYTES = 256 << 20  # Limit for a table, and for a file of a library.
# torch's names of the types that our reductions support, and of all types that our algorithms move.
# Our name of a plan for the sizes of one all-to-all, in place of an algorithm's name.
PLANNED = "planned"
# Collective of the rows for all-to-alls whose callers state the sizes of their blocks.
SPLIT_ALLTOALL = "alltoallv"
REDUCED_TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
TYPES = (*REDUCED_TYPES, "bool", "complex64", "complex128")


class TableCall(NamedTuple):
    """The facts on which a choice depends.

    Attributes:
        collective: Name of the collective.
        size_bytes: Size of the message in bytes.
        kind: torch's name of the type of its elements.
        ranks: Ranks of the group, as the whole job numbers them.
        root: Place of the root in the group; 0 for a collective without a root.
        inplace: Whether input and output are the same tensor.
        has_splits: Whether the caller states the sizes of its blocks, of which other ranks know only their own.
    """

    collective: str
    size_bytes: int
    kind: str
    ranks: tuple[int, ...]
    root: int = 0
    inplace: bool = False
    has_splits: bool = False


class TableRow(NamedTuple):
    """A row of a table, with its fields in the order of FIELDS.

    Attributes:
        collective: allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather or scatter; or alltoallv
            for all-to-alls with splits, whose size is what a rank sends in the mean.
        ranks: Size of the group.
        group: Ranks of the group in rising order, as the whole job numbers them; None for any group of this size.
        kind: torch's name of the type, such as float32; None for any type.
        min_bytes: Smallest message size in bytes.
        max_bytes: Largest message size in bytes; None without an upper limit.
        backend: gloo, synth or the name of an added back end.
        algorithm: With synth, the name of a built-in algorithm or of a program of the library, or PLANNED for an
            all-to-all; None for the default one.
    """

    collective: str
    ranks: int
    group: tuple[int, ...] | None
    kind: str | None
    min_bytes: int
    max_bytes: int | None
    backend: str
    algorithm: str | None

    def fits(self, call: TableCall) -> bool:
        """Return True if the row is for this call; both ends of its sizes are included.

        A row's group fits the same ranks in any order. Neither the root nor whether the call is in place is compared.
        """
        return (
            self.collective == call.collective
            and self.ranks == len(call.ranks)
            and self.group in (None, tuple(sorted(call.ranks)))
            and self.kind in (None, call.kind)
            and self.min_bytes <= call.size_bytes
            and (self.max_bytes is None or call.size_bytes <= self.max_bytes)
        )


def load_table(path: str | Path) -> list[TableRow]:
    """Return the rows of a table in their order; warn if it was measured on another machine.

    Raises:
        InputError: The file cannot be read or is too large, is not a JSON object with the format synth-choice-1, the
            name of a machine and an array of rows, or a row has an unknown, missing or wrong field; the message names
            row and field. Whether a row's algorithm exists is not checked.
    """
    origin = origin_of(path)
    top = Fields(json_object(read_bytes(path, "a table of synth tune", MAX_FILE_BYTES), origin), "", origin)
    if top.string("format") != FORMAT:
        top.fail("format", f"must be {FORMAT}")
    machine = top.string("machine")
    if machine != platform.node():
        warn(f"{origin} was measured on {machine}; this is {platform.node()}")
    rows = top.values.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        top.fail("rows", "must be an array of objects")
    return [_row(Fields(row, "", f"{origin}: row {i}")) for i, row in enumerate(rows, 1)]


def warn(text: str) -> None:
    """Log a warning on the first of a host's ranks only, where LOCAL_RANK, or RANK without it, is 0 or unset."""
    if os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0":
        log.warning("synth: %s", text)


def _row(table: Fields) -> TableRow:
    """Return a row from its fields; `gain` is ignored.

    Raises:
        InputError: A field is unknown, is missing or has a wrong value.
    """
    table.only((*FIELDS, "gain"))

    def text(key: str) -> str | None:
        """Return an optional text field, None if it is null or absent."""
        return None if table.values.get(key) is None else table.string(key)

    ranks = table.integer("ranks", 1, 1 << 30)
    group = table.values.get("group")
    if group is not None and not (
        isinstance(group, list)
        and len(group) == ranks
        and all(type(r) is int and r >= 0 for r in group)
        and sorted(set(group)) == group
    ):
        table.fail("group", f"must be null or the numbers of {ranks} ranks in rising order")
    collective, kind, algorithm = table.string("collective"), text("type"), text("algorithm")
    if collective not in (*COLLECTIVES, SPLIT_ALLTOALL):
        table.fail("collective", f"must be one of {', '.join((*COLLECTIVES, SPLIT_ALLTOALL))}")
    if kind is not None and kind not in TYPES:
        table.fail("type", f"must be null or torch's name of a type, one of {', '.join(TYPES)}")
    low = table.integer("min_bytes", 0, 1 << 62)
    backend = table.string("backend")
    if backend not in known_names()[1:]:
        table.fail("backend", f"must be {' or '.join(known_names()[1:])}")
    if algorithm is not None and backend != "synth":
        table.fail("algorithm", f"must be null where the back end is {backend}")
    high = None if table.values.get("max_bytes") is None else table.integer("max_bytes", low, 1 << 62)
    return TableRow(collective, ranks, None if group is None else tuple(group), kind, low, high, backend, algorithm)
