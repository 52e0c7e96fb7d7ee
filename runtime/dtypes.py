"""Data types and reductions, by NCCL's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.errors import InputError

Array = NDArray[Any]

# A bfloat16 is stored as the upper half of a float32, in uint16.
TYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "half": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "double": np.dtype(np.float64),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}
_SPELLINGS = {"float32": "float", "fp32": "float", "float16": "half", "fp16": "half", "bf16": "bfloat16",
              "float64": "double", "int": "int32", "long": "int64"}  # fmt: skip
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
_UFUNC = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def parse_type(name: str) -> str:
    """Return nccl-tests' name of a data type, a key of TYPES: "float" for "float", "float32" or "fp32".

    Raises:
        InputError: The type is unknown.
    """
    kind = _SPELLINGS.get(name, name)
    if kind not in TYPES:
        raise InputError(f"type {name!r} is not known; it must be one of {', '.join(TYPES)}")
    return kind


def widen(values: Array, kind: str) -> Array:
    """Convert values to numbers that NumPy computes with: bfloat16 (in uint16) to float32; others stay as they are.

    `kind` is a key of TYPES.
    """
    if kind != "bfloat16":
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


def narrow(values: Array, kind: str) -> Array:
    """Convert numbers to the array type of `kind`, a key of TYPES, as after `widen`.

    For bfloat16, float32 is rounded to the nearest bfloat16 in uint16, ties to even, and NaN stays NaN. Values that
    have the type already are returned as they are.
    """
    if kind != "bfloat16":
        return values.astype(TYPES[kind], copy=False)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def reducer(op: str, kind: str) -> Callable[..., Any]:
    """Return a function (a, b, out=) that writes the reduction of a and b to out; for avg it writes the sum.

    The arrays are of the type that TYPES gives, and `out` may be one of the others.

    Args:
        op: Reduction: sum, prod, max, min or avg.
        kind: Data type in any spelling that `parse_type` takes.

    Raises:
        InputError: The reduction or the type is unknown.
    """
    if op not in REDUCTIONS:
        raise InputError(f"reduction {op!r} is not known; it must be one of {', '.join(REDUCTIONS)}")
    ufunc: Callable[..., Any] = _UFUNC[op]

    def reduce_bfloat16(a: Array, b: Array, out: Array) -> None:
        """Write the reduction of bfloat16 values (in uint16) to `out`, rounded to bfloat16."""
        out[:] = narrow(ufunc(widen(a, kind), widen(b, kind)), kind)

    return reduce_bfloat16 if parse_type(kind) == "bfloat16" else ufunc


def average(values: Array, kind: str, ranks: int) -> None:
    """Divide sums by the number of ranks, in place; whole numbers are rounded towards zero, as in NCCL.

    `kind` is a key of TYPES; bfloat16 values are in uint16.
    """
    if kind.startswith("int"):
        values[:] = np.sign(values) * (np.abs(values) // ranks)
    else:
        numbers = widen(values, kind)
        values[:] = narrow(numbers / numbers.dtype.type(ranks), kind)
