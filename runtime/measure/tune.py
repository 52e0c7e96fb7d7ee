"""The step from measurements to choices: a table of the fastest method by collective, group, type and size.

`runtime.torch.table` reads the table. The measurements behind it are stored in it as "measured".
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from runtime.algorithms.built_in import COLLECTIVES
from runtime.bench import message_sizes
from runtime.torch.added import WRAPPED
from runtime.torch.choice import Method
from runtime.torch.table import FIELDS, FORMAT, REDUCED_TYPES, SPLIT_ALLTOALL
from synth.model.registry import parse_name
from synth.model.sizes import parse_size
from topologies.errors import InputError

GAIN = 1.05  # Least factor by which ours must be faster than the wrapped back end to get a row.
CONFIDENCE = 0.99  # Of the sign test over pairs of runs.
LEAST_PAIRS = 7  # Fewer never reach CONFIDENCE: 1 / 2^7 is less than 1 - CONFIDENCE, 1 / 2^6 is not.
MEASURED = (*COLLECTIVES, SPLIT_ALLTOALL)  # All that `synth tune` measures.
CHEAP_US = 10_000.0  # Of one call.
MAX_MESSAGE_BYTES = 1 << 40


@dataclass(frozen=True)
class Measurement:
    """The measurement of one method of one call.

    Attributes:
        collective: The collective.
        group: Ranks of the process group.
        kind: Data type, by torch's name.
        size_bytes: Size of the message in bytes.
        method: The method.
        ran: Name of the algorithm that ran.
        time_us: Median time of the slowest rank in µs.
        wrong: Number of wrong elements.
        gains: For an algorithm of ours that was compared: the wrapped back end's time / its own, for each pair of runs.
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
        """Return a lower limit of the median gain, with CONFIDENCE; 0 if there are too few comparisons."""
        return lower_limit(self.gains)

    def as_object(self) -> dict[str, Any]:
        """Return the measurement as a mapping for the table's JSON file; times and gains have three decimals.

        The wrong elements and the name of the algorithm that ran are left out, and so are gains where there are none.
        """
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
    """Return our names, once each, of a list with commas of collectives in torch's or NCCL's spelling, or of `all`.

    Raises:
        InputError: A collective is unknown.
    """
    if text == "all":
        return list(MEASURED)
    parsed = {}
    for part in text.split(","):
        with suppress(InputError):
            parsed[part] = parse_name(part.strip())
        if parsed.get(part) not in MEASURED:
            raise InputError(f"--ops: {part.strip()!r} is not known; it must be all, or of {', '.join(MEASURED)}")
    return list(dict.fromkeys(parsed.values()))


def parse_types(text: str) -> list[str]:
    """Return the data types, by torch's names, of a list with commas: in its order, each once.

    Raises:
        InputError: torch's reductions do not have a type.
    """
    types = [part.strip() for part in text.split(",")]
    for kind in types:
        if kind not in REDUCED_TYPES:
            raise InputError(f"--types: {kind!r} is not known; it must be one of {', '.join(REDUCED_TYPES)}")
    return list(dict.fromkeys(types))


def parse_sizes(text: str) -> list[int]:
    """Parse sizes: `FROM:TO` (each four times the one before), `FROM:TO:FACTOR`, or a comma-separated list.

    The sizes are in bytes, ascending, once each; TO is among them only if the factor meets it.

    Raises:
        InputError: The text has another form.
    """
    try:
        if ":" not in text:
            sizes = sorted({parse_size(part, "--sizes") for part in text.split(",")})
            if sizes[-1] > MAX_MESSAGE_BYTES:
                raise InputError(f"--sizes: {sizes[-1]} bytes; it must be at most {MAX_MESSAGE_BYTES}")
            return sizes
        low, high, *more = text.split(":")
        factor = float(more[0]) if more else 4.0
        first, last = parse_size(low, "--sizes"), parse_size(high, "--sizes")
        if first > last and len(more) < 2:
            raise InputError(f"--sizes {text!r}: has its larger end first; write the smaller size first")
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
    """Return how many pairs may fall short of a gain that the median exceeds with CONFIDENCE; -1 for too few pairs.

    This is the sign test: if the median of the gain were lower, each pair would fall short with a probability of at
    least one half.
    """
    most, probability = -1, 0.0
    for short in range(pairs):
        probability += math.comb(pairs, short) / 2**pairs
        if probability > 1 - CONFIDENCE:
            break
        most = short
    return most


def lower_limit(gains: Sequence[float]) -> float:
    """Return a lower limit of the gains' median, with CONFIDENCE: one of the gains, or 0 for too few of them."""
    short = lost_pairs(len(gains))
    return sorted(gains)[short] if short >= 0 else 0.0


def choose(of_one_size: Sequence[Measurement]) -> Measurement:
    """Select the fastest of our methods whose gain is surely GAIN or more, or else the wrapped back end.

    Methods that were wrong are left out. `of_one_size` has the measurements of one call, at least one.

    Raises:
        InputError: The wrapped back end was wrong, and none of our methods surely gains.
    """
    right = [m for m in of_one_size if not m.wrong]
    wrapped = [m for m in right if m.method.backend == WRAPPED]
    gaining = [m for m in right if m.method.backend != WRAPPED and m.sure_gain >= GAIN]
    if not gaining and not wrapped:
        first = of_one_size[0]
        raise InputError(f"{first.collective} of {first.size_bytes} bytes: the wrapped back end gave wrong elements")
    return min(gaining, key=lambda m: m.time_us) if gaining else wrapped[0]


def describe_choice(measurement: Measurement, of_one_size: Sequence[Measurement]) -> str:
    """Describe why `choose` chose a method of a size or not: its gain, and why it was not chosen if it is faster.

    The text is "" for a method that is slower than the chosen one and was not compared with the wrapped back end, and
    for the wrapped back end if it was chosen.

    Args:
        measurement: The method's measurement, one of `of_one_size`.
        of_one_size: Measurements of all methods for one call.

    Raises:
        InputError: As for `choose`.
    """
    chosen = choose(of_one_size)
    if measurement.wrong:
        return f"{measurement.wrong} elements wrong"
    if measurement.gains:
        return _describe_gain(measurement, measurement is chosen)
    if measurement is chosen or measurement.time_us >= chosen.time_us:
        return ""
    compared = next((m.method.algorithm for m in of_one_size if m.gains), None)
    if measurement.method.backend == WRAPPED:
        return f"not chosen: {compared} surely gains in pairs of runs"
    pairs = "compared with the wrapped back end in pairs of runs"
    return f"not chosen: {'it was not' if compared is None else f'only {compared} was'} {pairs}"


def _describe_gain(measurement: Measurement, is_chosen: bool) -> str:
    """Return in words the median gain of a method that was compared, with its lower limit if there is one.

    If the method was not chosen, the number of pairs of runs that gained too little follows.
    """
    gains = measurement.gains
    text = f"gain {median(gains):.2f}"
    if measurement.sure_gain:
        text += f", at least {measurement.sure_gain:.2f} with {CONFIDENCE:.0%}"
    if is_chosen:
        return text
    short = sum(gain < GAIN for gain in gains)
    return f"{text}; not chosen: {short} of {len(gains)} pairs of runs gained less than {GAIN}"


def select_methods(methods: Sequence[Method], smaller: Sequence[Measurement]) -> list[Method]:
    """Select the methods worth measuring at the next size, by the times of calls at smaller ones.

    A method is left out if it took more than twice as long as the fastest at both of the last two sizes, and lost more
    time from one to the other: it falls further behind with every byte. A method that is measured within CHEAP_US
    stays, since noise would decide and nothing would be saved. The wrapped back end stays. A method that was left out
    before stays out; with fewer than two smaller sizes all methods stay.

    Args:
        methods: Methods that can serve the next size; the selected ones keep their order.
        smaller: Measurements of the same call at smaller sizes.
    """
    sizes = sorted({m.size_bytes for m in smaller})[-2:]
    if len(sizes) < 2:
        return list(methods)
    low, high = ({m.method: m.time_us for m in smaller if m.size_bytes == size} for size in sizes)
    first = min(high, key=lambda method: high[method])
    measured_methods = {m.method for m in smaller}

    def falls_back(method: Method) -> bool:
        """Return True if the method, which is ours, falls behind with every byte, or was left out before."""
        if method.backend == WRAPPED:
            return False
        if method not in high or method not in low:
            return method in measured_methods and method not in high
        is_slow = high[method] > max(2 * high[first], CHEAP_US) and low[method] > 2 * min(low.values())
        return is_slow and high[method] - low[method] > high[first] - low.get(first, 0.0)

    return [method for method in methods if not falls_back(method)]


def table_rows(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Build a table's rows, from the smallest measured size to the largest.

    Our method has the sizes from one where it was chosen to the next. Sizes between a choice of ours and one of the
    wrapped back end belong to the back end; between two of ours the border is the geometric mean. A type that is the
    only measured one stands for all types, and so does the only group of its size. Sizes below the smallest and above
    the largest measured one have no row.

    Args:
        measurements: The measurements, in any order.

    Returns:
        A mapping for each row with the keys FIELDS, sorted by collective, group, type and size. None stands for all
        groups
        or types. A row of ours also has `gain`, which states how sure the choice is.

    Raises:
        InputError: As for `choose`.
    """
    rows = []

    def question(m: Measurement) -> tuple[str, tuple[int, ...], str]:
        """Return collective, group and type: the measurements that share them compete with each other."""
        return m.collective, m.group, m.kind

    ordered = sorted(measurements, key=lambda m: (*question(m), m.size_bytes))
    questions = {question(m) for m in ordered}
    for (collective, group, kind), of_one in groupby(ordered, key=question):
        winners = [choose(list(same_size)) for _, same_size in groupby(of_one, key=lambda m: m.size_bytes)]
        groups_of_size = {other_group for _, other_group, _ in questions if len(other_group) == len(group)}
        members = list(group) if len(groups_of_size) > 1 else None
        type_name = kind if sum(other_group[:2] == (collective, group) for other_group in questions) > 1 else None
        runs = [list(same_size) for _, same_size in groupby(winners, key=lambda m: m.method)]
        begin = winners[0].size_bytes
        for index, run in enumerate(runs):
            end = run[-1].size_bytes if index + 1 == len(runs) else _border(run[-1], runs[index + 1][0])
            row = (collective, len(group), members, type_name, begin, end, *run[0].method)
            rows.append(dict(zip(FIELDS, row, strict=True)) | _evidence(run))
            begin = end + 1
    return rows


def _border(low: Measurement, high: Measurement) -> int:
    """Return the largest size in bytes that belongs to the lower of two neighbouring measurements' methods.

    Between two methods of one back end it is the geometric mean of the sizes, rounded down. Otherwise the sizes between
    the two belong to the wrapped back end.
    """
    if low.method.backend == high.method.backend:
        return math.isqrt(low.size_bytes * high.size_bytes)
    return low.size_bytes if low.method.backend != WRAPPED else high.size_bytes - 1


def _evidence(chosen: Sequence[Measurement]) -> dict[str, Any]:
    """Return {"gain": figures} for a row of ours, of the size with the least sure gain; {} for the wrapped back end.

    The figures are the median gain, its lower limit ("at_least") and CONFIDENCE.
    """
    if chosen[0].method.backend == WRAPPED:
        return {}
    least = min(chosen, key=lambda m: m.sure_gain)
    figures = {"median": median(least.gains), "at_least": least.sure_gain}
    return {"gain": {name: round(figure, 3) for name, figure in figures.items()} | {"confidence": CONFIDENCE}}


def format_choices(measurements: Sequence[Measurement]) -> str:
    """Return the JSON text of the table's file; measurements with wrong elements are left out of "measured".

    Raises:
        InputError: As for `choose`.
    """
    document = {
        "format": FORMAT,
        "machine": platform.node(),
        "rows": table_rows(measurements),
        "measured": [m.as_object() for m in measurements if not m.wrong],
    }
    return json.dumps(document, indent=1) + "\n"
