"""The configuration file of NCCL's example tuner plug-in: algorithm, protocol and channels by message size.

The format is that of ext-tuner/example in NCCL's sources, which RCCL's example reads too: a line is
`collective,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff`, both sizes inclusive, -1
for any, and the first line that fits is taken. The plug-in asks for one channel if a line says -1 or none fits, so
every line states the channels, and a collective's lines cover all sizes. A size is that of the larger of a rank's
buffers.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from emit.library.entry import IndexEntry
from emit.library.selection.selector import Selector
from synth.baselines.nccl import figures as f
from synth.baselines.nccl.model import COLLECTIVES, nccl_model
from synth.model.text import format_listed
from synth.search.offer import changes_to_the_byte, partition
from topologies.errors import InputError, NotModelled
from topologies.text.fields import shown
from topologies.text.files import origin_of, read_text
from topologies.topology import Topology

ALGORITHMS = {f.RING: "ring", f.TREE: "tree", f.NVLS: "nvls", f.NVLS_TREE: "nvls_tree", f.PAT: "pat"}
KNOWN_ALGORITHMS = (*ALGORITHMS.values(), "collnet_direct", "collnet_chain")
KNOWN_PROTOCOLS = ("ll", "ll128", "simple")
NO_END = (1 << 64) - 1  # largest size_t
HEADER = "collective,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
_COLUMNS = ("collective", "size_bytes", "algorithm", "protocol", "channels", "nodes", "ranks", "latency_us")
_OPTIONAL = ("pipeOps", "regBuff")
_LARGEST = 1 << 40  # bytes up to which choices are compared
_MAX_FILE_BYTES = 64 << 20
_MOST_CHANNELS = 1 << 10


class NcclTuning(NamedTuple):
    """An algorithm and a protocol as the file spells them, and the number of channels."""

    algorithm: str
    protocol: str
    channels: int


class Line(NamedTuple):
    """A line of the file.

    Attributes:
        collective: Collective as the file spells it.
        low: Smallest message in bytes.
        high: Largest message in bytes; NO_END for no limit.
        tuning: What runs.
        nodes: Number of nodes; -1 for any.
        ranks: Number of ranks; -1 for any.
        pipe_ops: Number of pipelined operations; -1 for any.
        registered: 1 for registered buffers, 0 for others; -1 for any.
    """

    collective: str
    low: int
    high: int
    tuning: NcclTuning
    nodes: int
    ranks: int
    pipe_ops: int = -1
    registered: int = -1

    def __str__(self) -> str:
        conditions = self.nodes, self.ranks, self.pipe_ops, self.registered
        return ",".join(map(str, (self.collective, self.low, self.high, *self.tuning, *conditions)))


def model_lines(entries: Sequence[IndexEntry], topology: Topology) -> tuple[list[Line], list[str]]:
    """Return what NCCL would run by its own cost model for a library's groups on a topology, with remarks.

    Only which collectives and groups the library has counts, not its files; groups with relays or of one rank are left
    out, and so are those that the model does not cover.

    A line is for a number of nodes and ranks, since the plug-in knows nothing else of a group. Of groups that have
    these in common the first in order is taken, and a remark says where another group's choices differ.

    Args:
        entries: Entries of the library.
        topology: Topology of its groups.

    Returns:
        The lines by collective and group, those of each covering all sizes in ascending order; and the remarks.

    Raises:
        InputError: If NCCL's model covers none of the groups.
    """
    lines: dict[tuple[str, int, int], list[Line]] = {}
    groups: dict[tuple[str, int, int], tuple[int, ...]] = {}
    remarks: list[str] = []
    reason = "has no file for " + ", ".join(COLLECTIVES)
    calls = {(e.collective, e.group) for e in Selector(entries).expanded() if not e.relays}
    lines_of_model: dict[object, list[Line] | None] = {}
    for collective, group in sorted((c, g) for c, g in calls if c in COLLECTIVES and len(g) > 1):
        try:
            model = nccl_model(topology, group)
            model_key = collective, model.communicator
            if model_key not in lines_of_model:
                lines_of_model[model_key] = None
                nodes = model.communicator.nnodes

                def choose(size: int, model: object = model, collective: str = collective) -> NcclTuning:
                    """Return the model's choice at a message size."""
                    choice = model.choose(collective, size)  # type: ignore[attr-defined]
                    return NcclTuning(ALGORITHMS[choice.algorithm], choice.protocol.lower(), choice.channels)

                group_lines = [
                    Line(collective, low, high, tuning, nodes, len(group)) for tuning, low, high in _pieces(choose)
                ]
                lines_of_model[model_key] = group_lines
        except NotModelled as error:
            reason = str(error)
            continue
        own_lines = lines_of_model[model_key]
        if own_lines is None:
            continue
        key = collective, own_lines[0].nodes, len(group)
        if lines.setdefault(key, own_lines) != own_lines:
            remarks.append(
                f"{collective} of {len(group)} ranks on {key[1]} nodes: lines are for {format_listed(groups[key])}; for"
                f" {format_listed(group)} NCCL's model takes others, which the plug-in cannot tell apart"
            )
        groups.setdefault(key, group)
    if not lines:
        raise InputError(f"--for nccl-tuner: no line for any of the library's groups: {reason}")
    return [line for group_lines in lines.values() for line in group_lines], remarks


def measured_lines(path: str | Path) -> list[Line]:
    """Return the lines by measured times: the least latency of each size, up to the geometric mean with the next size.

    The lines of each collective and its other conditions cover all sizes, in ascending order.

    Args:
        path: CSV as NCCL's ext-tuner/example/scripts/optimize_config.py takes it. Its head names the columns
            `collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us`, and perhaps `pipeOps` and
            `regBuff`.

    Raises:
        InputError: If the file is malformed; the message names line and column.
    """
    origin = origin_of(path)
    text = read_text(path, "a CSV file of measured times", _MAX_FILE_BYTES)
    try:
        return _lines_of(csv.DictReader(io.StringIO(text, newline="")), origin)
    except csv.Error as error:
        raise InputError(f"{origin}: not CSV ({str(error)[:100]}); it must be rows of fields with commas") from None


def _lines_of(rows: csv.DictReader[str], origin: str) -> list[Line]:
    """Return the lines of a table's rows, as `measured_lines` does; the rows are consumed.

    Raises:
        InputError: If a column is missing, a row is malformed, or there is no row; the message begins with `origin`,
            and names line and column.
        csv.Error: If the table is no CSV.
    """
    lacking = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if lacking:
        raise InputError(f"{origin}: has no column {lacking[0]}; its head must name {','.join(_COLUMNS)}")
    best_of_call: dict[tuple[str, int, int, int, int], dict[int, tuple[float, NcclTuning]]] = defaultdict(dict)
    for row in rows:
        location = f"{origin}: line {rows.line_num}"
        latency = _latency(row["latency_us"], location)
        channels = _whole(row["channels"], 1, _MOST_CHANNELS, f"{location}: channels")
        tuning = NcclTuning(
            _choice(row["algorithm"], KNOWN_ALGORITHMS, f"{location}: algorithm"),
            _choice(row["protocol"], KNOWN_PROTOCOLS, f"{location}: protocol"),
            channels,
        )
        collective = _choice(row["collective"], tuple(COLLECTIVES), f"{location}: collective")
        nodes, ranks = (_whole(row[key], -1, 1 << 30, f"{location}: {key}") for key in ("nodes", "ranks"))
        ops, registered = (_whole(row.get(key) or "-1", -1, 1 << 30, f"{location}: {key}") for key in _OPTIONAL)
        size = _whole(row["size_bytes"], 0, NO_END, f"{location}: size_bytes")
        best_at_size = best_of_call[collective, nodes, ranks, ops, registered]
        best_at_size[size] = min(best_at_size.get(size, (math.inf, tuning)), (latency, tuning))
    if not best_of_call:
        raise InputError(f"{origin}: holds no measured time; it must have a line each")
    return [
        Line(collective, low, high, tuning, *conditions)
        for (collective, *conditions), times in sorted(best_of_call.items())
        for tuning, low, high in partition(
            0,
            NO_END,
            sorted((size, tuning) for size, (_, tuning) in times.items()),
            # Two choices meet at the geometric mean of neighbouring sizes.
            lambda size, _, next_size, next_tuning: [(math.isqrt(size * next_size) + 1, next_tuning)],
        )
    ]


def text_of(lines: Sequence[Line], source: str) -> str:
    """Return the text of the file, two comments first; `source` says in a few words where the lines come from."""
    return "\n".join([f"# {source}", f"# {HEADER}", *map(str, lines)]) + "\n"


def _pieces(choose: Callable[[int], NcclTuning]) -> list[tuple[NcclTuning, int, int]]:
    """Return (choice, smallest size, largest size) of the ranges of sizes in bytes within which the choice is the same.

    They cover 0 to NO_END, both inclusive. An end is exact to the byte if the choice changes only once in half an
    octave; above 2^40 bytes it does not change.
    """
    sizes = {0, 1, *(base << e for e in range(_LARGEST.bit_length() - 1) for base in (2, 3))}
    samples = [(size, choose(size)) for size in sorted(sizes) if size <= _LARGEST]
    return partition(0, NO_END, samples, changes_to_the_byte(choose))


def _choice(text: str | None, choices: Sequence[str], location: str) -> str:
    """Return a text, without spaces around it and in lower case, if it is one of the known words.

    Raises:
        InputError: If it is not; the message begins with `location`.
    """
    word = (text or "").strip().lower()
    if word not in choices:
        raise InputError(f"{location}: {shown(text)} is not known; it must be one of {', '.join(choices)}")
    return word


_MOST_DIGITS = 20


def _whole(text: str | None, least: int, most: int, location: str) -> int:
    """Return a text as a whole number from `least` to `most`; spaces around it do not count.

    Raises:
        InputError: If it is anything else; the message begins with `location`.
    """
    plain = (text or "").strip()
    digits = plain.removeprefix("-")
    if not (digits.isdecimal() and digits.isascii() and len(digits) <= _MOST_DIGITS) or not least <= int(plain) <= most:
        raise InputError(f"{location}: {shown(text)} must be a whole number, {least} to {most}")
    return int(plain)


def _latency(text: str | None, location: str) -> float:
    """Return a text as a finite number of µs above 0.

    Raises:
        InputError: If it is anything else; the message begins with `location`.
    """
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{location}: latency_us: {shown(text)} must be a number of µs, more than 0")
    return value
