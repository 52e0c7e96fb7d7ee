"""From measurements to choices: a table of the fastest method by collective, group, type and size.

The table is the one that `runtime.torch.choice` reads; the measurements that it follows from stand in it as "measured".
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from runtime.algorithms.built_in import COLLECTIVES
from runtime.bench import message_sizes
from runtime.torch.choice import FIELDS, FORMAT, REDUCED_TYPES, Method
from synth.model.registry import parse_name
from synth.model.sizes import parse_size
from topologies.errors import InputError

GAIN = 1.05  # times: ours must be so much faster than the wrapped back end, or noise decides
MAX_MESSAGE_BYTES = 1 << 40


@dataclass(frozen=True)
class Measurement:
    """One method of one call: the slowest rank's median time, and how many elements came out wrong."""

    collective: str
    group: tuple[int, ...]
    kind: str
    size_bytes: int
    method: Method
    ran: str
    time_us: float
    wrong: int

    def as_object(self) -> dict[str, Any]:
        """As it stands in the table's file."""
        return {
            "collective": self.collective,
            "group": list(self.group),
            "type": self.kind,
            "size_bytes": self.size_bytes,
            "backend": self.method.backend,
            "algorithm": self.method.algorithm,
            "time_us": round(self.time_us, 3),
        }


def parse_collectives(text: str) -> list[str]:
    """Collectives of a list with commas, in torch's or NCCL's spelling, or `all`. Raises InputError for another."""
    if text == "all":
        return list(COLLECTIVES)
    found = {}
    for part in text.split(","):
        with suppress(InputError):
            found[part] = parse_name(part.strip())
        if found.get(part) not in COLLECTIVES:
            raise InputError(f"--ops: {part.strip()!r} is not known; it must be all, or of {', '.join(COLLECTIVES)}")
    return list(dict.fromkeys(found.values()))


def parse_types(text: str) -> list[str]:
    """Types of a list with commas. Raises InputError for one that torch's reductions do not know."""
    found = [part.strip() for part in text.split(",")]
    for kind in found:
        if kind not in REDUCED_TYPES:
            raise InputError(f"--types: {kind!r} is not known; it must be one of {', '.join(REDUCED_TYPES)}")
    return list(dict.fromkeys(found))


def parse_sizes(text: str) -> list[int]:
    """Sizes of `FROM:TO`, each four times the last, or `FROM:TO:FACTOR`, or of a list with commas; rising.

    Raises InputError for another form.
    """
    try:
        if ":" not in text:
            return sorted({parse_size(part, "--sizes") for part in text.split(",")})
        low, high, *more = text.split(":")
        factor = float(more[0]) if more else 4.0
        first, last = parse_size(low, "--sizes"), parse_size(high, "--sizes")
        if len(more) > 1 or not 1.0 < factor < math.inf or not 1 <= first <= last <= MAX_MESSAGE_BYTES:
            raise ValueError
    except InputError:
        raise
    except ValueError:
        raise InputError(
            f"--sizes {text!r}: is no range or list; it must be FROM:TO, FROM:TO:FACTOR with a factor above 1, or sizes"
            " with commas"
        ) from None
    return sorted(set(message_sizes(first, last, factor)))


def choose_fastest(of_one_size: Sequence[Measurement]) -> Measurement:
    """The fastest that was right; the wrapped back end where ours gains less than GAIN.

    Raises InputError where none was right.
    """
    right = [m for m in of_one_size if not m.wrong]
    if not right:
        one = of_one_size[0]
        raise InputError(f"{one.collective} of {one.size_bytes} bytes: every method gave wrong elements")
    first = min(right, key=lambda m: m.time_us)
    wrapped = [m for m in right if m.method.backend != "synth" and m.time_us < first.time_us * GAIN]
    return wrapped[0] if wrapped else first


def select_methods(methods: Sequence[Method], smaller: Sequence[Measurement]) -> list[Method]:
    """The methods worth measuring at the next size, given what one call took at smaller ones.

    Left out is what took more than twice as long as the fastest at the last size and gained more time since the size
    before: it falls back further with every byte. The wrapped back end stays.
    """
    sizes = sorted({m.size_bytes for m in smaller})[-2:]
    if len(sizes) < 2:
        return list(methods)
    low, high = ({m.method: m.time_us for m in smaller if m.size_bytes == size} for size in sizes)
    first = min(high, key=lambda method: high[method])

    def falls_back(method: Method) -> bool:
        if method.backend != "synth":
            return False
        if method not in high:
            return method in {m.method for m in smaller}
        gained = {m: high[m] - low.get(m, 0.0) for m in (method, first)}
        return high[method] > 2 * high[first] and gained[method] > gained[first]

    return [method for method in methods if not falls_back(method)]


def table_rows(measured: Iterable[Measurement]) -> list[dict[str, Any]]:
    """A table's rows. Between two sizes that have different bests, the border is their geometric mean.

    The first row of a collective begins at 0 bytes and the last has no end. A type that is the only one measured
    stands for all, and so does the only group of its size.
    """
    found = []

    def question(m: Measurement) -> tuple[str, tuple[int, ...], str]:
        return m.collective, m.group, m.kind

    listed = sorted(measured, key=lambda m: (*question(m), m.size_bytes))
    asked = {question(m) for m in listed}
    for (collective, group, kind), of_one in groupby(listed, key=question):
        winners = [choose_fastest(list(same)) for _, same in groupby(of_one, key=lambda m: m.size_bytes)]
        as_many = {other for _, other, _ in asked if len(other) == len(group)}
        members = list(group) if len(as_many) > 1 else None
        type_name = kind if sum(other[:2] == (collective, group) for other in asked) > 1 else None
        begin = 0
        for at, winner in enumerate(winners):
            after = winners[at + 1] if at + 1 < len(winners) else None
            if after is not None and after.method == winner.method:
                continue
            end = None if after is None else math.isqrt(winner.size_bytes * after.size_bytes)
            row = (collective, len(group), members, type_name, begin, end, *winner.method)
            found.append(dict(zip(FIELDS, row, strict=True)))
            begin = 0 if end is None else end + 1
    return found


def format_choices(measured: Sequence[Measurement], machine: Mapping[str, Any] | None = None) -> str:
    """The table's file. machine: more entries on where it was measured."""
    whole = {
        "format": FORMAT,
        "machine": platform.node(),
        **(machine or {}),
        "rows": table_rows(measured),
        "measured": [m.as_object() for m in measured if not m.wrong],
    }
    return json.dumps(whole, indent=1) + "\n"
