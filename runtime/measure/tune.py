"""From measurements to choices: a table of the fastest method by collective, group, type and size.

The table is the one that `runtime.torch.table` reads; the measurements that it follows from stand in it as "measured".
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from runtime.algorithms.built_in import COLLECTIVES
from runtime.bench import message_sizes
from runtime.torch.choice import Method
from runtime.torch.table import FIELDS, FORMAT, REDUCED_TYPES
from synth.model.registry import parse_name
from synth.model.sizes import parse_size
from topologies.errors import InputError

GAIN = 1.05  # times: ours must be so much faster than the wrapped back end to be worth a row
CONFIDENCE = 0.99  # that it is, by the pairs of runs that say so
LEAST_PAIRS = 7  # fewer cannot say anything with that confidence: 1 / 2^7 is less than 1 - CONFIDENCE, 1 / 2^6 is not
CHEAP_US = 10_000.0  # one call
MAX_MESSAGE_BYTES = 1 << 40


@dataclass(frozen=True)
class Measurement:
    """One method of one call: the slowest rank's median time, and how many elements came out wrong.

    gains: of an algorithm of ours that was compared, the wrapped back end's time over its own in each pair of runs.
    """

    collective: str
    group: tuple[int, ...]
    kind: str
    size_bytes: int
    method: Method
    ran: str
    time_us: float
    wrong: int
    gains: tuple[float, ...] = ()

    @property
    def sure_gain(self) -> float:
        """What the gain is at least, with CONFIDENCE; 0 where it was not compared often enough to say."""
        return lower_limit(self.gains)

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
            **({"gains": [round(gain, 3) for gain in self.gains]} if self.gains else {}),
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


def lost_pairs(pairs: int) -> int:
    """How many pairs may fall short of a gain whose median is above it with CONFIDENCE; -1: there are too few pairs.

    The sign test: were the gain's median lower, each pair would fall short with a probability of one half or more.
    """
    most, probability = -1, 0.0
    for short in range(pairs):
        probability += math.comb(pairs, short) / 2**pairs
        if probability > 1 - CONFIDENCE:
            break
        most = short
    return most


def lower_limit(gains: Sequence[float]) -> float:
    """What the median of such gains is at least, with CONFIDENCE; 0 for too few of them."""
    short = lost_pairs(len(gains))
    return sorted(gains)[short] if short >= 0 else 0.0


def choose(of_one_size: Sequence[Measurement]) -> Measurement:
    """The fastest of ours whose gain is surely GAIN or more; the wrapped back end where there is none.

    Raises InputError where the wrapped back end was wrong, and none of ours surely gains.
    """
    right = [m for m in of_one_size if not m.wrong]
    wrapped = [m for m in right if m.method.backend != "synth"]
    gaining = [m for m in right if m.method.backend == "synth" and m.sure_gain >= GAIN]
    if not gaining and not wrapped:
        one = of_one_size[0]
        raise InputError(f"{one.collective} of {one.size_bytes} bytes: the wrapped back end gave wrong elements")
    return min(gaining, key=lambda m: m.time_us) if gaining else wrapped[0]


def describe_choice(measurement: Measurement, of_one_size: Sequence[Measurement]) -> str:
    """Return what `choose` went by for one method of a size: its gain, and why it was passed over if it is faster.

    A method that is slower than the chosen one, and was not compared with the wrapped back end, needs no words: "".
    """
    chosen = choose(of_one_size)
    if measurement.wrong:
        return f"{measurement.wrong} elements wrong"
    if measurement.gains:
        return _describe_gain(measurement, measurement is chosen)
    if measurement is chosen or measurement.time_us >= chosen.time_us:
        return ""
    compared = next((m.method.algorithm for m in of_one_size if m.gains), None)
    if measurement.method.backend != "synth":
        return f"not chosen: {compared} surely gains in pairs of runs"
    pairs = "compared with the wrapped back end in pairs of runs"
    return f"not chosen: {'it was not' if compared is None else f'only {compared} was'} {pairs}"


def _describe_gain(measurement: Measurement, is_chosen: bool) -> str:
    """Return the gain of a method that was compared with the wrapped back end, and why it is too little."""
    gains = measurement.gains
    text = f"gain {median(gains):.2f}"
    if measurement.sure_gain:
        text += f", at least {measurement.sure_gain:.2f} with {CONFIDENCE:.0%}"
    if is_chosen:
        return text
    short = sum(gain < GAIN for gain in gains)
    return f"{text}; not chosen: {short} of {len(gains)} pairs of runs gained less than {GAIN}"


def select_methods(methods: Sequence[Method], smaller: Sequence[Measurement]) -> list[Method]:
    """The methods worth measuring at the next size, given what one call took at smaller ones.

    Left out is what took more than twice as long as the fastest at both of the last two sizes and lost more time from
    one to the other: it falls back further with every byte. What is measured in CHEAP_US is not left out: noise would
    decide, and nothing is saved. The wrapped back end stays.
    """
    sizes = sorted({m.size_bytes for m in smaller})[-2:]
    if len(sizes) < 2:
        return list(methods)
    low, high = ({m.method: m.time_us for m in smaller if m.size_bytes == size} for size in sizes)
    first = min(high, key=lambda method: high[method])
    seen = {m.method for m in smaller}

    def falls_back(method: Method) -> bool:
        if method.backend != "synth":
            return False
        if method not in high or method not in low:
            return method in seen and method not in high
        far = high[method] > max(2 * high[first], CHEAP_US) and low[method] > 2 * min(low.values())
        return far and high[method] - low[method] > high[first] - low.get(first, 0.0)

    return [method for method in methods if not falls_back(method)]


def table_rows(measured: Iterable[Measurement]) -> list[dict[str, Any]]:
    """A table's rows: from the smallest size measured to the largest, no further.

    Ours has the sizes from one where it was chosen to the next; what lies between a choice of ours and one of the
    wrapped back end is the latter's, and between two of ours the border is their geometric mean. A type that is the
    only one measured stands for all, and so does the only group of its size. `gain` says of ours how sure it is.
    """
    found = []

    def question(m: Measurement) -> tuple[str, tuple[int, ...], str]:
        return m.collective, m.group, m.kind

    listed = sorted(measured, key=lambda m: (*question(m), m.size_bytes))
    asked = {question(m) for m in listed}
    for (collective, group, kind), of_one in groupby(listed, key=question):
        winners = [choose(list(same)) for _, same in groupby(of_one, key=lambda m: m.size_bytes)]
        as_many = {other for _, other, _ in asked if len(other) == len(group)}
        members = list(group) if len(as_many) > 1 else None
        type_name = kind if sum(other[:2] == (collective, group) for other in asked) > 1 else None
        runs = [list(same) for _, same in groupby(winners, key=lambda m: m.method)]
        begin = winners[0].size_bytes
        for at, run in enumerate(runs):
            end = run[-1].size_bytes if at + 1 == len(runs) else _border(run[-1], runs[at + 1][0])
            row = (collective, len(group), members, type_name, begin, end, *run[0].method)
            found.append(dict(zip(FIELDS, row, strict=True)) | _evidence(run))
            begin = end + 1
    return found


def _border(low: Measurement, high: Measurement) -> int:
    """The largest size that is the lower one's."""
    if low.method.backend == high.method.backend:
        return math.isqrt(low.size_bytes * high.size_bytes)
    return low.size_bytes if low.method.backend == "synth" else high.size_bytes - 1


def _evidence(chosen: Sequence[Measurement]) -> dict[str, Any]:
    """Of a row of ours, the gain at the size where it is least."""
    if chosen[0].method.backend != "synth":
        return {}
    least = min(chosen, key=lambda m: m.sure_gain)
    figures = {"median": median(least.gains), "at_least": least.sure_gain}
    return {"gain": {name: round(figure, 3) for name, figure in figures.items()} | {"confidence": CONFIDENCE}}


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
