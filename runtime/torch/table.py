"""Tables of what was measured to be fastest here, as `synth tune` writes them and calls are served by.

A table is {"format": "synth-choice-1", "machine": NAME, "rows": [row, …]}; the first row that fits a call is taken:

    collective  allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather or scatter
    ranks       size of the group
    group       the ranks of the group, as the whole job numbers them; null or not there: any so many
    type        torch's name, such as float32; null: any
    min_bytes, max_bytes    message sizes, both inclusive, max_bytes null where there is no end
    backend     gloo or synth
    algorithm   with synth, the name of a built-in algorithm or of a program of the library; null: the usual one
    gain        not read: of a row that was measured, the wrapped back end's time over ours where that is least, its
                `median`, and what it is `at_least` with a `confidence`
"""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from typing import NamedTuple

from runtime.algorithms.built_in import COLLECTIVES
from synth.storage.columns import json_object
from topologies.text.fields import Fields
from topologies.text.files import origin_of, read_bytes

log = logging.getLogger("synth.torch")
BACKENDS = ("auto", "synth", "gloo")
FORMAT = "synth-choice-1"
FIELDS = ("collective", "ranks", "group", "type", "min_bytes", "max_bytes", "backend", "algorithm")
MAX_FILE_BYTES = 256 << 20  # of a table, and of a file of a library
# torch's names of the types that our reductions know, and of all that our algorithms move
REDUCED_TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
TYPES = (*REDUCED_TYPES, "bool", "complex64", "complex128")


class Call(NamedTuple):
    """What a choice depends on.

    ranks: of the group, as the whole job numbers them; root: within the group; inplace: input and output are one.
    """

    collective: str
    size_bytes: int
    kind: str
    ranks: tuple[int, ...]
    root: int = 0
    inplace: bool = False


class TableRow(NamedTuple):
    """A row of a table, in the order of FIELDS."""

    collective: str
    ranks: int
    group: tuple[int, ...] | None
    kind: str | None
    min_bytes: int
    max_bytes: int | None
    backend: str
    algorithm: str | None

    def fits(self, call: Call) -> bool:
        """Whether it is for this call."""
        return (
            self.collective == call.collective
            and self.ranks == len(call.ranks)
            and self.group in (None, tuple(sorted(call.ranks)))
            and self.kind in (None, call.kind)
            and self.min_bytes <= call.size_bytes
            and (self.max_bytes is None or call.size_bytes <= self.max_bytes)
        )


def load_table(path: str | Path) -> list[TableRow]:
    """A table's rows; a warning where it was measured on another machine.

    Raises InputError, naming row and field, for what is not as the head of this module says.
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
    """Say it on one of a host's ranks, which is enough."""
    if os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0":
        log.warning("synth: %s", text)


def _row(table: Fields) -> TableRow:
    table.only((*FIELDS, "gain"))

    def text(key: str) -> str | None:
        return None if table.values.get(key) is None else table.string(key)

    ranks = table.integer("ranks", 1, 1 << 30)
    group = table.values.get("group")
    if group is not None and not (
        isinstance(group, list)
        and len(group) == ranks
        and all(type(r) is int and r >= 0 for r in group)
        and sorted(set(group)) == group
    ):
        table.fail("group", f"must be null or the numbers of {ranks} ranks, rising")
    collective, kind, algorithm = table.string("collective"), text("type"), text("algorithm")
    if collective not in COLLECTIVES:
        table.fail("collective", f"must be one of {', '.join(COLLECTIVES)}")
    if kind is not None and kind not in TYPES:
        table.fail("type", f"must be null or torch's name of a type, one of {', '.join(TYPES)}")
    low = table.integer("min_bytes", 0, 1 << 62)
    backend = table.string("backend")
    if backend not in BACKENDS[1:]:
        table.fail("backend", "must be synth or gloo")
    if algorithm is not None and backend != "synth":
        table.fail("algorithm", f"must be null where the back end is {backend}")
    high = None if table.values.get("max_bytes") is None else table.integer("max_bytes", low, 1 << 62)
    return TableRow(collective, ranks, None if group is None else tuple(group), kind, low, high, backend, algorithm)
