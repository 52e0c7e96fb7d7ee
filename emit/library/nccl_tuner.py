"""What NCCL itself runs, as the configuration file of its example tuner plug-in: algorithm, protocol, channels by size.

The format is that of ext-tuner/example in NCCL's sources, which RCCL's example reads too: a line is
`collective,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff`, both sizes inclusive, -1
for any, and the first line that fits is taken. The plug-in asks for one channel wherever a line says -1 or none fits,
so every line says how many, and a collective's lines cover all sizes. A size is that of the larger of a rank's buffers.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from emit.library.index import Entry
from emit.library.selector import Selector
from synth.baselines.nccl import figures as f
from synth.baselines.nccl.model import COLLECTIVES, nccl_model
from synth.present.text import format_listed
from topologies.errors import InputError, NotModelled
from topologies.text.fields import shown
from topologies.text.files import origin_of, read_text
from topologies.topology import Topology

ALGORITHMS = {f.RING: "ring", f.TREE: "tree", f.NVLS: "nvls", f.NVLS_TREE: "nvls_tree", f.PAT: "pat"}
KNOWN_ALGORITHMS = (*ALGORITHMS.values(), "collnet_direct", "collnet_chain")
KNOWN_PROTOCOLS = ("ll", "ll128", "simple")
NO_END = (1 << 64) - 1  # size_t
HEADER = "collective,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
_COLUMNS = ("collective", "size_bytes", "algorithm", "protocol", "channels", "nodes", "ranks", "latency_us")
_OPTIONAL = ("pipeOps", "regBuff")
_LARGEST = 1 << 40  # bytes, up to which choices are compared
_MAX_FILE_BYTES = 64 << 20
_MOST_CHANNELS = 1 << 10


class Tuning(NamedTuple):
    """What runs: an algorithm and a protocol as the file spells them, and channels."""

    algorithm: str
    protocol: str
    channels: int


class Line(NamedTuple):
    """A line of the file; high: NO_END for all larger sizes."""

    collective: str
    low: int
    high: int
    tuning: Tuning
    nodes: int
    ranks: int
    pipe_ops: int = -1
    registered: int = -1

    def __str__(self) -> str:
        where = self.nodes, self.ranks, self.pipe_ops, self.registered
        return ",".join(map(str, (self.collective, self.low, self.high, *self.tuning, *where)))


def model_lines(entries: Sequence[Entry], topology: Topology) -> tuple[list[Line], list[str]]:
    """What NCCL would take by its own cost model for the groups of a library on a topology, and remarks.

    A line is for a number of nodes and ranks, since that is all that the plug-in knows of a group: of several such
    groups the first is taken, and a remark says where another's choices are others. Raises InputError where NCCL's
    model says nothing of any of them.
    """
    lines: dict[tuple[str, int, int], list[Line]] = {}
    of: dict[tuple[str, int, int], tuple[int, ...]] = {}
    remarks: list[str] = []
    why = "has no file for " + ", ".join(COLLECTIVES)
    asked = {(e.collective, e.group) for e in Selector(entries).expanded() if not e.relays}
    kinds: dict[object, list[Line] | None] = {}
    for collective, group in sorted((c, g) for c, g in asked if c in COLLECTIVES and len(g) > 1):
        try:
            model = nccl_model(topology, group)
            known = collective, model.communicator
            if known not in kinds:
                kinds[known] = None
                nodes = model.communicator.nnodes

                def choose(size: int, model: object = model, collective: str = collective) -> Tuning:
                    choice = model.choose(collective, size)  # type: ignore[attr-defined]
                    return Tuning(ALGORITHMS[choice.algorithm], choice.protocol.lower(), choice.channels)

                made = [Line(collective, *ends, nodes, len(group)) for ends in _pieces(choose)]
                kinds[known] = made
        except NotModelled as error:
            why = str(error)
            continue
        mine = kinds[known]
        if mine is None:
            continue
        key = collective, mine[0].nodes, len(group)
        if lines.setdefault(key, mine) != mine:
            remarks.append(
                f"{collective} of {len(group)} ranks on {key[1]} nodes: lines are for {format_listed(of[key])}; for"
                f" {format_listed(group)} NCCL's model takes others, which the plug-in cannot tell apart"
            )
        of.setdefault(key, group)
    if not lines:
        raise InputError(f"--for nccl-tuner: nothing to say of the library's groups: {why}")
    return [line for made in lines.values() for line in made], remarks


def measured_lines(path: str | Path) -> list[Line]:
    """The lines by measured times: of each size the least latency, each size's up to the geometric mean with the next.

    path: CSV as NCCL's ext-tuner/example/scripts/optimize_config.py takes it, with a head that names the columns
    `collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us`, perhaps `pipeOps` and `regBuff`.
    Raises InputError, naming line and column.
    """
    origin = origin_of(path)
    text = read_text(path, "a CSV file of measured times", _MAX_FILE_BYTES)
    try:
        return _lines_of(csv.DictReader(io.StringIO(text, newline="")), origin)
    except csv.Error as error:
        raise InputError(f"{origin}: not CSV ({str(error)[:100]}); it must be rows of fields with commas") from None


def _lines_of(rows: csv.DictReader[str], origin: str) -> list[Line]:
    """Return the lines of a table's rows. Raises InputError, naming line and column, and csv.Error."""
    lacking = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if lacking:
        raise InputError(f"{origin}: has no column {lacking[0]}; its head must name {','.join(_COLUMNS)}")
    best: dict[tuple[str, int, int, int, int], dict[int, tuple[float, Tuning]]] = defaultdict(dict)
    for row in rows:
        where = f"{origin}: line {rows.line_num}"
        latency = _latency(row["latency_us"], where)
        channels = _whole(row["channels"], 1, _MOST_CHANNELS, f"{where}: channels")
        tuning = Tuning(
            _one_of(row["algorithm"], KNOWN_ALGORITHMS, f"{where}: algorithm"),
            _one_of(row["protocol"], KNOWN_PROTOCOLS, f"{where}: protocol"),
            channels,
        )
        collective = _one_of(row["collective"], tuple(COLLECTIVES), f"{where}: collective")
        nodes, ranks = (_whole(row[key], -1, 1 << 30, f"{where}: {key}") for key in ("nodes", "ranks"))
        ops, registered = (_whole(row.get(key) or "-1", -1, 1 << 30, f"{where}: {key}") for key in _OPTIONAL)
        size = _whole(row["size_bytes"], 0, NO_END, f"{where}: size_bytes")
        asked = best[collective, nodes, ranks, ops, registered]
        asked[size] = min(asked.get(size, (math.inf, tuning)), (latency, tuning))
    if not best:
        raise InputError(f"{origin}: holds no measured time; it must have a line each")
    return [
        Line(collective, low, high, tuning, *rest)
        for (collective, *rest), times in sorted(best.items())
        for low, high, tuning in _joined(sorted((size, tuning) for size, (_, tuning) in times.items()))
    ]


def text_of(lines: Sequence[Line], source: str) -> str:
    """The file. source: where the lines are from, in a few words."""
    return "\n".join([f"# {source}", f"# {HEADER}", *map(str, lines)]) + "\n"


def _pieces(choose: Callable[[int], Tuning]) -> Iterator[tuple[int, int, Tuning]]:
    """The ranges of sizes within which the choice is the same, to the byte where it changes once in half an octave."""
    sizes = [0, *(base << e for e in range(_LARGEST.bit_length() - 1) for base in (2, 3)), 1]
    sizes = sorted(size for size in set(sizes) if size <= _LARGEST)
    starts = [(0, choose(0))]
    for low, high in pairwise(sizes):
        starts += _changes(choose, low, choose(low), high, choose(high))
    last: list[tuple[int, Tuning]] = []
    for start, tuning in starts:
        if not last or last[-1][1] != tuning:
            last.append((start, tuning))
    yield from _ended(last)


def _changes(
    choose: Callable[[int], Tuning], low: int, one: Tuning, high: int, other: Tuning
) -> Iterator[tuple[int, Tuning]]:
    if one == other:
        return
    if high - low == 1:
        yield high, other
        return
    middle = (low + high) // 2
    between = choose(middle)
    yield from _changes(choose, low, one, middle, between)
    yield from _changes(choose, middle, between, high, other)


def _joined(points: Sequence[tuple[int, Tuning]]) -> Iterator[tuple[int, int, Tuning]]:
    """Ranges around sizes, which meet at the geometric mean of neighbours."""
    starts = [(0, points[0][1])]
    for (size, one), (following, other) in pairwise(points):
        if other != one:
            starts.append((math.isqrt(size * following) + 1, other))
    yield from _ended(starts)


def _ended(starts: Sequence[tuple[int, Tuning]]) -> Iterator[tuple[int, int, Tuning]]:
    ends = [start - 1 for start, _ in starts[1:]] + [NO_END]
    return ((low, high, tuning) for (low, tuning), high in zip(starts, ends, strict=True))


def _one_of(text: str | None, known: Sequence[str], where: str) -> str:
    word = (text or "").strip().lower()
    if word not in known:
        raise InputError(f"{where}: {shown(text)} is not known; it must be one of {', '.join(known)}")
    return word


_MOST_DIGITS = 20


def _whole(text: str | None, least: int, most: int, where: str) -> int:
    plain = (text or "").strip()
    digits = plain.removeprefix("-")
    if not (digits.isdecimal() and digits.isascii() and len(digits) <= _MOST_DIGITS) or not least <= int(plain) <= most:
        raise InputError(f"{where}: {shown(text)} must be a whole number, {least} to {most}")
    return int(plain)


def _latency(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{where}: latency_us: {shown(text)} must be a number of µs, more than 0")
    return value
