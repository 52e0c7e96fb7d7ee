"""The selection file of NCCLX: algorithm, protocol and channels by bytes a rank, as CSV or JSON, written and read.

A CSV line is `collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks,chunkSize`, where bytesPerRank,
nNodes and nLocalRanks are `*`, a number, or an interval such as `[0,1024)`. The first line that matches is taken, and a
file with one wrong line makes every communicator fail. The JSON form has the same as `{"rules": [{"filter": …,
"config": …}]}`. Source: torchcomms (59426ba4, August 2026), comms/ncclx/meta/tuner.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from emit.library.selection.nccl_tuner import KNOWN_ALGORITHMS, KNOWN_PROTOCOLS, NO_END, Line, NcclTuning
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import origin_of, read_text

HEADER = "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks"
COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
_LEAST_FIELDS, _MOST_FIELDS = 4, 8  # Fields of a line; missing ones have defaults.
_MAX_FILE_BYTES = 64 << 20
_NUMBER = r"\s*(?:(\d{1,19})\s*)?"
_INTERVAL = re.compile(rf"([\[(]){_NUMBER},{_NUMBER}([\])])")
_BETWEEN_FIELDS = re.compile(r",(?![^\[(]*[\])])")  # A comma that is not inside an interval.
_LONGEST_LINE = 400  # Characters of a line.
_WHOLE = re.compile(r"-?\d{1,9}")

Span = tuple[int, int]  # The smallest and the largest number that match; NO_END for no limit.
ANY: Span = (0, NO_END)


class Rule(NamedTuple):
    """A line of the file.

    Attributes:
        collective: Collective as the file spells it.
        bytes_a_rank: Message sizes in bytes divided by the number of ranks that match.
        tuning: What runs; channels of -1 leave the number to NCCLX.
        nodes: Numbers of nodes that match.
        local_ranks: Numbers of ranks of a node that match.
        chunk_bytes: Size of a chunk in bytes; 0 leaves it to NCCLX.
    """

    collective: str
    bytes_a_rank: Span
    tuning: NcclTuning
    nodes: Span
    local_ranks: Span
    chunk_bytes: int = 0


def rules_of(lines: Sequence[Line]) -> list[Rule]:
    """Return the lines of NCCL's own tuner file as rules, in their order, with sizes divided by the number of ranks.

    A range without a whole number of bytes a rank is left out.

    Raises:
        InputError: A line has conditions that NCCLX's file cannot state: any number of ranks or nodes, ranks that the
            nodes do not divide, pipelined operations or registered buffers.
    """
    rules = []
    for line in lines:
        if line.ranks < 1 or line.nodes < 1 or line.ranks % line.nodes or (line.pipe_ops, line.registered) != (-1, -1):
            raise InputError(
                f"--for ncclx: NCCLX's file needs the numbers of ranks and nodes, and knows no pipeOps and regBuff; it"
                f" cannot say {line}"
            )
        low, end = -(-line.low // line.ranks), -(-(line.high + 1) // line.ranks)
        high = NO_END if line.high == NO_END else end - 1
        if low <= high:
            local_ranks = line.ranks // line.nodes
            spans = (low, high), (line.nodes, line.nodes), (local_ranks, local_ranks)
            rules.append(Rule(line.collective, spans[0], line.tuning, *spans[1:]))
    return rules


def csv_text(rules: Sequence[Rule], source: str) -> str:
    """Return the CSV form of rules, after two lines of comment; `source` says in a few words where they come from."""
    rows = [f"# {source}", f"# {HEADER}"]
    for rule in rules:
        spans = [_interval(span) for span in (rule.bytes_a_rank, rule.nodes, rule.local_ranks)]
        chunk = [str(rule.chunk_bytes)] if rule.chunk_bytes else []
        rows.append(",".join([rule.collective, spans[0], *map(str, rule.tuning), *spans[1:], *chunk]))
    return "\n".join(rows) + "\n"


def json_text(rules: Sequence[Rule]) -> str:
    """Return the JSON form of rules, one object of a filter and a config for each, in their order."""
    objects = []
    for rule in rules:
        matches = {
            "collective": rule.collective, "bytesPerRank": _interval(rule.bytes_a_rank),
            "nNodes": _interval(rule.nodes), "nLocalRanks": _interval(rule.local_ranks),
        }  # fmt: skip
        config: dict[str, Any] = dict(zip(("algorithm", "protocol", "channels"), rule.tuning, strict=True))
        config |= {"chunkSize": rule.chunk_bytes} if rule.chunk_bytes else {}
        objects.append({"filter": matches, "config": config})
    return json.dumps({"rules": objects}, indent=1) + "\n"


def read_rules(path: str | Path) -> list[Rule]:
    """Read and check a selection file, CSV or (`.json`) JSON, and return its rules in order.

    Raises:
        InputError: The file cannot be read or is malformed, or among lines with the same conditions two overlap or
            sizes are missing.
    """
    origin = origin_of(path)
    text = read_text(path, "a selection file of NCCLX", _MAX_FILE_BYTES)
    return parse_rules(text, origin, str(path).endswith(".json"))


def parse_rules(text: str, origin: str, is_json: bool) -> list[Rule]:
    """Return the rules of a selection file's text, in order.

    Args:
        text: The text.
        origin: Name of the file, with which errors begin.
        is_json: True for the JSON form, False for the CSV form.

    Raises:
        InputError: The text is malformed or holds no rule, or among lines with the same conditions two overlap or sizes
            are missing.
    """
    placed = list(_json_rules(text, origin) if is_json else _csv_rules(text, origin))
    if not placed:
        raise InputError(f"{origin}: holds no rule; it must have lines {HEADER}")
    _check_ranges(placed)
    return [rule for _, rule in placed]


def _csv_rules(text: str, origin: str) -> Iterator[tuple[str, Rule]]:
    """Yield the place (for errors) and the rule of each line; empty lines and lines that begin with # are left out.

    Raises:
        InputError: A line is malformed.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        if len(line) > _LONGEST_LINE:
            raise InputError(f"{origin}: line {number}: has {len(line)} characters; it must be {HEADER}")
        fields = [field.strip() for field in _BETWEEN_FIELDS.split(line.strip())]
        place = f"{origin}: line {number}"
        if not _LEAST_FIELDS <= len(fields) <= _MOST_FIELDS:
            raise InputError(f"{place}: has {len(fields)} fields; it must be {HEADER}")
        yield place, _rule([*fields, *[""] * 8][:8], place)


def _json_rules(text: str, origin: str) -> Iterator[tuple[str, Rule]]:
    """Yield the place (for errors) and the rule of each object.

    Raises:
        InputError: The text or an object in it is malformed.
    """
    try:
        rules = json.loads(text)["rules"]
        objects = [(rule["filter"], rule["config"]) for rule in rules]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f'{origin}: is not {{"rules": [{{"filter": {{…}}, "config": {{…}}}}, …]}}') from None
    for number, (matches, config) in enumerate(objects, 1):
        place = f"{origin}: rule {number}"
        if not (isinstance(matches, Mapping) and isinstance(config, Mapping)):
            raise InputError(f"{place}: filter and config must be objects")
        values = [
            matches.get("collective", ""), matches.get("bytesPerRank", ""), config.get("algorithm", ""),
            config.get("protocol", ""), config.get("channels", ""), matches.get("nNodes", ""),
            matches.get("nLocalRanks", ""), config.get("chunkSize", ""),
        ]  # fmt: skip
        if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
            raise InputError(f"{place}: its values must be text or whole numbers")
        yield place, _rule([str(value) for value in values], place)


def _rule(fields: Sequence[str], place: str) -> Rule:
    """Return the rule of eight fields in the order of the CSV form; empty fields have their defaults.

    These are `*` for intervals, -1 for channels and 0 for the size of a chunk.

    Raises:
        InputError: A field is wrong; the message begins with `place`.
    """
    collective, size, algorithm, protocol, channels, nodes, local_ranks, chunk = fields
    for text, known, name in (
        (collective, COLLECTIVES, "collective"),
        (algorithm, KNOWN_ALGORITHMS, "algorithm"),
        (protocol, KNOWN_PROTOCOLS, "protocol"),
    ):
        if text not in known:
            raise InputError(f"{place}: {name}: {shown(text)} is not known; it must be one of {', '.join(known)}")
    for text, name, least in ((channels, "channels", -1), (chunk, "chunkSize", 0)):
        if (text and not (_WHOLE.fullmatch(text) and int(text) >= least)) or (name == "channels" and text == "0"):
            raise InputError(f"{place}: {name}: {shown(text)} must be a whole number, {least} or more; channels not 0")
    texts = {"bytesPerRank": size, "nNodes": nodes, "nLocalRanks": local_ranks}
    bytes_a_rank, of_nodes, of_local_ranks = (_span(text, place, name) for name, text in texts.items())
    tuning = NcclTuning(algorithm, protocol, int(channels or -1))
    return Rule(collective, bytes_a_rank, tuning, of_nodes, of_local_ranks, int(chunk or 0))


def _span(text: str, place: str, name: str) -> Span:
    """Return the smallest and the largest number that a field of the file matches: `*`, a number or an interval.

    An empty field counts as `*`.

    Raises:
        InputError: The text is none of these, or its interval is empty; the message begins with `place` and `name`.
    """
    if text in ("", "*"):
        return ANY
    if _WHOLE.fullmatch(text) and int(text) >= 0:
        return int(text), int(text)
    interval = _INTERVAL.fullmatch(text)
    if interval is not None:
        opening, low, high, closing = interval.groups()
        first = 0 if low is None else int(low) + (opening == "(")
        last = NO_END if high is None else int(high) - (closing == ")")
        if first <= last:
            return first, last
    raise InputError(f"{place}: {name}: {shown(text)} is no interval; write *, 8, [0,1024], [0,1024) or (1024,)")


def _interval(span: Span) -> str:
    """Return a span as the file spells it: `*`, a number, [low,high], or [low,) without an end."""
    low, high = span
    if span == ANY:
        return "*"
    return f"[{low},)" if high == NO_END else str(low) if low == high else f"[{low},{high}]"


def _check_ranges(placed: Sequence[tuple[str, Rule]]) -> None:
    """Raise InputError if two ranges of sizes overlap under the same conditions, or if sizes have no line.

    Conditions are collective, nodes and ranks a node. Sizes are also served by lines with wider conditions, such as
    `*`. `placed` holds the place (for errors) of each rule and the rule.
    """
    by_conditions: dict[tuple[str, Span, Span], list[tuple[Span, str]]] = defaultdict(list)
    for place, rule in placed:
        by_conditions[rule.collective, rule.nodes, rule.local_ranks].append((rule.bytes_a_rank, place))
    for conditions, ranges in by_conditions.items():
        for (before, _), (after, place) in pairwise(sorted(ranges)):
            if after[0] <= before[1]:
                raise InputError(f"{place}: {_interval(after)} overlaps {_interval(before)}; the first is taken")
        served = sorted(
            entry for wider, entries in by_conditions.items() if _holds(wider, conditions) for entry in entries
        )
        end = -1  # The last size that is served.
        for (low, high), place in served:
            if low > end + 1:
                raise InputError(f"{place}: no line serves sizes from {end + 1} to {low - 1} bytes a rank")
            end = max(end, high)
        if end < NO_END:
            raise InputError(f"{served[-1][1]}: no line serves sizes above {end} bytes a rank")


def _holds(wider: tuple[str, Span, Span], conditions: tuple[str, Span, Span]) -> bool:
    """Return whether each call that meets `conditions` meets `wider` too.

    Both are (collective, numbers of nodes, numbers of ranks a node).
    """
    spans = zip(wider[1:], conditions[1:], strict=True)
    return wider[0] == conditions[0] and all(outer[0] <= inner[0] and inner[1] <= outer[1] for outer, inner in spans)
