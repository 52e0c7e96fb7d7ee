"""Reader of the topology files of ns-3 simulators of RDMA fabrics: SimAI's, and those of HPCC and ASTRA-sim.

The first line counts: SimAI's has nodes, GPUs per server, NVSwitches, other switches, links and the GPUs' type; the
other simulators' has nodes, switches and links. The second line lists the switches' numbers, NVSwitches first. Each
further line is a link with equal rates in both directions: `source destination rate delay error_rate`, as in
`0 8 400Gbps 0.0005ms 0`. Nodes that are no switches are ranks, in ascending order. Lines that begin with # are comments
here, which the simulators do not know.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from topologies.arrays import Floats, Ints, flags_of, index_among
from topologies.clusters import Machine
from topologies.costs import LINK_KINDS
from topologies.errors import InputError
from topologies.importers.rates import SMS
from topologies.importers.simulators.switched import machine_of_switches
from topologies.text.counts import format_count
from topologies.text.rates import GBS_OF_UNIT
from topologies.topology import MAX_ALPHA_US, MAX_GBS, MAX_LINKS, MAX_RANKS, MIN_GBS, Topology

_HEAD = re.compile(r"\s*[0-9]+(?:[ \t]+[0-9]+){4}[ \t]+[A-Za-z][A-Za-z0-9_-]*[ \t]*(?:\n|$)")
_HEAD_OF_NUMBERS = re.compile(r"\s*[0-9]+(?:[ \t]+[0-9]+){2,5}[ \t]*(?:\n|$)")
_LINK = re.compile(r"^[ \t]*[0-9]+[ \t]+[0-9]+[ \t]+[0-9.]+[kKMG]?i?(?:bps|b/s|Bps|B/s)?[ \t]+[0-9.]+[a-z]+[ \t]", re.M)
_INTEGER = re.compile(r"[0-9]{1,9}")
_FIGURE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})([A-Za-z/]*)")
# ns-3's units. A rate without a unit is in bits per second, a time without a unit in seconds.
_GBS = GBS_OF_UNIT | {"": 1 / 8e9}
_US = {"": 1e6, "s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3, "ps": 1e-6, "fs": 1e-9}
_CAPABILITIES = {"A100": 80, "A800": 80, "H100": 90, "H800": 90}  # The types of GPUs that SimAI knows.
_RIGHT = "a topology of SimAI or ns-3: counts, the switches' numbers, then lines such as 0 8 400Gbps 0.0005ms 0"


@dataclass(frozen=True)
class _Counts:
    """The counts that the first line states.

    Attributes:
        vertices: Number of ranks and switches.
        ranks_per_server: Number of ranks of each server; 0: not stated.
        nvswitches: Number of NVSwitches.
        switches: Number of all switches.
        links: Number of links.
        gpu: Type of the GPUs; "": not stated.
    """

    vertices: int
    ranks_per_server: int
    nvswitches: int
    switches: int
    links: int
    gpu: str


def is_ns3(text: str) -> bool:
    """Return whether a text begins with SimAI's six counts or a line of counts, or has a link with rate and delay."""
    return any((_HEAD.match(text), _HEAD_OF_NUMBERS.match(text), _LINK.search(text)))


def read_ns3(text: str, origin: str) -> Machine:
    """Read a topology file of an ns-3 simulator, and return its ranks, switches and links as a machine.

    Switches that stand for each other are one switch (`merging.merge_switches`), so that the equal paths of a fabric
    count as capacity. α is the delay of a link; error rates are ignored.

    Args:
        text: Contents of the file; the module states its form.
        origin: Name of the file in errors, whose last part names the machine.

    Raises:
        InputError: The text is no such file, a count or number is wrong, a link is repeated, or some ranks are not
            connected; the message is one line.
    """
    counts, first_link, lines = _counted_lines(text, origin)
    switches = _switches(lines[1][1].split(), counts, f"{origin}:{lines[1][0]}") if counts.switches else []
    ends, gbs, alpha_us, has_errors = _links(lines[first_link:], counts, origin)
    number = np.delete(np.arange(counts.vertices), switches)
    vertex = index_among(counts.vertices, np.concatenate([number, np.array(switches, dtype=np.int64)]))
    ends = vertex[ends]
    nranks, per_server = len(number), counts.ranks_per_server
    is_used = flags_of(counts.vertices, ends.reshape(-1))
    is_used[:nranks] = True
    ends = (np.cumsum(is_used) - 1)[ends]  # Switches without links are left out.
    names = [
        f"{'nvswitch' if i < counts.nvswitches else 'switch'}{switch}"
        for i, switch in enumerate(switches)
        if is_used[nranks + i]
    ]
    nodes = np.arange(nranks) // per_server if per_server else np.arange(nranks)
    nvswitches = nranks + int(is_used[nranks : nranks + counts.nvswitches].sum())
    kinds = _kinds(ends, nodes, nvswitches)
    capability = _CAPABILITIES.get(counts.gpu, 0)
    servers = f" in {format_count(int(nodes[-1]) + 1, 'server')}" if per_server else ""
    hosts = f"{nranks} {counts.gpu}" if counts.gpu else format_count(nranks, "host")
    remarks = ["links, rates and delays: read"]
    if not is_used.all():
        remarks.append(f"switches left out because they have no links: {int((~is_used).sum())}")
    if per_server and (spanning := _spanning(ends, nodes, nvswitches)):
        remarks.append(f"{format_count(spanning, 'NVSwitch', 'NVSwitches')} with GPUs of several servers, as counted")
    if has_errors:
        remarks.append("error rates of links are ignored")
    stated = Topology(
        name=Path(origin).name.removesuffix(".txt") or "fabric",
        nranks=nranks,
        switches=tuple(names),
        link_src=np.concatenate([ends[:, 0], ends[:, 1]]),
        link_dst=np.concatenate([ends[:, 1], ends[:, 0]]),
        alpha_us=np.tile(alpha_us, 2),
        bandwidth_gbs=np.tile(gbs, 2),
        nodes=nodes,
        sms=SMS.get(capability, 0),
        compute_capability=capability,
        summary=f"{hosts}{servers} on {format_count(len(names), 'switch', 'switches')}",
        source=origin,
        link_kind=np.tile(kinds, 2),
    )
    return machine_of_switches(stated, number.tolist(), remarks, origin)


def _counted_lines(text: str, origin: str) -> tuple[_Counts, int, list[tuple[int, str]]]:
    """Return the counts of a text, the place of its first link among its lines, and the lines that say something.

    A line has its number in the text, from 1 on.

    Raises:
        InputError: The text is empty, or has fewer lines than it counts.
    """
    lines = [
        (number, line)
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise InputError(f"{origin}: is empty; it must be {_RIGHT}")
    counts = _counts(lines[0][1], f"{origin}:{lines[0][0]}")
    first_link = 2 if counts.switches else 1
    if counts.switches and len(lines) < 2:
        switches_stated = format_count(counts.switches, "switch", "switches")
        raise InputError(
            f"{origin}: ends after the first line, which counts {switches_stated}; it must have a line of their numbers"
            " and one for each link"
        )
    if len(lines) < first_link + counts.links:
        links = format_count(max(0, len(lines) - first_link), "link")
        raise InputError(f"{origin}: has {links}, and the first line counts {counts.links}; it must have as many")
    return counts, first_link, lines


def _counts(line: str, place: str) -> _Counts:
    """Return the counts of the first line; errors begin with `place`.

    Raises:
        InputError: There are not three or six fields, a count is no number, is out of range, or does not fit the
            others.
    """
    *numbers, last = line.split()[:7]
    fields = [*numbers, last]
    gpu = fields.pop() if len(fields) == 6 else ""
    if len(fields) not in (3, 5) or not all(map(_INTEGER.fullmatch, fields)) or not gpu.isprintable():
        stated = line.split()
        if all(map(_INTEGER.fullmatch, stated)):
            raise InputError(
                f"{place}: {line.strip()[:60]!r} has {format_count(len(stated), 'count')}; it must have 3 (ns-3), or 5"
                " and the type of the GPUs (SimAI)"
            )
        raise InputError(f"{place}: {line.strip()[:60]!r} states no counts; it must be {_RIGHT}")
    values = [int(field) for field in fields]
    if len(values) == 3:
        vertices, switches, links = values
        counts = _Counts(vertices, 0, 0, switches, links, "")
    else:
        vertices, per_server, nvswitches, switches, links = values
        counts = _Counts(vertices, per_server, nvswitches, nvswitches + switches, links, gpu[:20])
        if not per_server:
            raise InputError(f"{place}: 0 GPUs per server; it must be at least 1")
    if not counts.switches < counts.vertices <= MAX_RANKS:
        nodes, switch_count = format_count(counts.vertices, "node"), format_count(counts.switches, "switch", "switches")
        raise InputError(
            f"{place}: {nodes} and {switch_count} among them; it must be at most {MAX_RANKS} nodes, and fewer switches"
        )
    if counts.ranks_per_server and (counts.vertices - counts.switches) % counts.ranks_per_server:
        gpus = format_count(counts.vertices - counts.switches, "GPU")
        raise InputError(
            f"{place}: {gpus} ({counts.vertices} nodes without {counts.switches} switches) in servers of"
            f" {counts.ranks_per_server}; it must be a multiple"
        )
    if not 1 <= counts.links <= MAX_LINKS // 2:
        raise InputError(f"{place}: {format_count(counts.links, 'link')}; it must be 1 to {MAX_LINKS // 2}")
    return counts


def _switches(words: list[str], counts: _Counts, place: str) -> list[int]:
    """Return the numbers of the switches; errors begin with `place`.

    Raises:
        InputError: There are not as many numbers as counted, one is out of range, or one is repeated.
    """
    if len(words) != counts.switches:
        raise InputError(
            f"{place}: {format_count(len(words), 'switch', 'switches')}, and the first line counts {counts.switches};"
            " it must have as many"
        )
    switches = [_vertex(word, counts.vertices, place) for word in words]
    if len(set(switches)) < len(switches):
        repeated = next(switch for i, switch in enumerate(switches) if switch in set(switches[:i]))
        raise InputError(f"{place}: switch {repeated} stands twice; it must be once")
    return switches


def _links(lines: list[tuple[int, str]], counts: _Counts, origin: str) -> tuple[Ints, Floats, Floats, bool]:
    """Return (ends as the file numbers them, GB/s, α in µs, whether an error rate is above 0) of all links.

    Args:
        lines: Number and text of each line from the first link on.
        counts: The counts of the first line.
        origin: Name of the file in errors.

    Raises:
        InputError: A line is no link, a link joins a node to itself or is repeated, or there are more than counted.
    """
    ends: dict[tuple[int, int], int] = {}
    gbs_of_text: dict[str, float] = {}
    us_of_text: dict[str, float] = {}
    gbs: list[float] = []
    alpha_us: list[float] = []
    has_errors = False
    for number, line in islice(lines, counts.links):
        place = f"{origin}:{number}"
        words = line.split()
        if len(words) != 5:
            raise InputError(f"{place}: {line.strip()[:60]!r} is no link; it must be {_RIGHT}")
        first, second = (_vertex(word, counts.vertices, place) for word in words[:2])
        if first == second:
            raise InputError(f"{place}: links {first} to itself; it must join two nodes")
        pair = (min(first, second), max(first, second))
        if ends.setdefault(pair, number) != number:
            raise InputError(
                f"{place}: {first} and {second} are linked in line {ends[pair]} too; it must be one link with the sum"
            )
        if words[2] not in gbs_of_text:
            gbs_of_text[words[2]] = _figure(words[2], _GBS, (MIN_GBS, MAX_GBS), place, "rate such as 400Gbps")
        if words[3] not in us_of_text:
            us_of_text[words[3]] = _figure(words[3], _US, (0.0, MAX_ALPHA_US), place, "delay such as 0.0005ms")
        gbs.append(gbs_of_text[words[2]])
        alpha_us.append(us_of_text[words[3]])
        has_errors = has_errors or _error_rate(words[4], place) > 0
    for number, line in islice(lines, counts.links, None):  # ns-3 reads no further; some files end in an explanation.
        if len(line.split()) == 5 and all(map(_INTEGER.fullmatch, line.split()[:2])):
            raise InputError(
                f"{origin}:{number}: is link {counts.links + 1}, and the first line counts {counts.links};"
                " it must count all"
            )
    return np.array(list(ends), dtype=np.int64), np.array(gbs), np.array(alpha_us), has_errors


def _kinds(ends: Ints, nodes: Ints, nvswitches: int) -> Ints:
    """Return the kind of each link: NVLink at an NVSwitch and between two ranks of a server, else network.

    Args:
        ends: Ends of each link, ranks first and then NVSwitches: int64 (links, 2).
        nodes: Server of each rank.
        nvswitches: Number of ranks and NVSwitches.
    """
    at_nvswitch = ((ends >= len(nodes)) & (ends < nvswitches)).any(axis=1)
    servers = np.where(ends < len(nodes), nodes[np.minimum(ends, len(nodes) - 1)], [-1, -2])
    return np.where(
        at_nvswitch | (servers[:, 0] == servers[:, 1]), LINK_KINDS.index("nvlink"), LINK_KINDS.index("network")
    )


def _spanning(ends: Ints, nodes: Ints, nvswitches: int) -> int:
    """Return the number of NVSwitches with links to ranks of more than one server; the arguments are as in `_kinds`."""
    low, high = np.minimum(ends[:, 0], ends[:, 1]), np.maximum(ends[:, 0], ends[:, 1])
    chosen = (low < len(nodes)) & (len(nodes) <= high) & (high < nvswitches)
    switches_of_servers = np.unique(np.stack([high[chosen], nodes[low[chosen]]]), axis=1)[0]
    return int((np.unique(switches_of_servers, return_counts=True)[1] > 1).sum())


def _vertex(word: str, count: int, place: str) -> int:
    """Return the number of a node; errors begin with `place`.

    Raises:
        InputError: The word is no whole number below `count`.
    """
    if not _INTEGER.fullmatch(word) or int(word) >= count:
        raise InputError(f"{place}: {word[:20]!r} is no node; it must be 0 to {count - 1}")
    return int(word)


def _figure(word: str, units: dict[str, float], limits: tuple[float, float], place: str, meaning: str) -> float:
    """Return the value of a number with a unit; errors begin with `place` and describe a right word as `meaning`.

    Args:
        word: The word.
        units: Factor of each unit.
        limits: Smallest and largest value.
        place: Place of the word in the file.
        meaning: What the word must be.

    Raises:
        InputError: The word has another form or unit, or the value is out of range.
    """
    match = _FIGURE.fullmatch(word)
    # Rounding to 12 digits makes 0.0005ms and 500ns the same number.
    value = float(f"{float(match[1]) * units[match[2]]:.12g}") if match and match[2] in units else math.nan
    if not limits[0] <= value <= limits[1]:
        raise InputError(f"{place}: {word[:20]!r}: must be a {meaning}")
    return value


def _error_rate(word: str, place: str) -> float:
    """Return an error rate; errors begin with `place`.

    Raises:
        InputError: The word is no number from 0 to 1.
    """
    try:
        rate = float(word)
    except ValueError:
        rate = math.nan
    if not 0 <= rate <= 1:
        raise InputError(f"{place}: {word[:20]!r}: must be an error rate from 0 to 1")
    return rate
