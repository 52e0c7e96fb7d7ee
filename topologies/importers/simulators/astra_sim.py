"""Reader of the network files of ASTRA-sim's analytical simulator, as YAML and in its older form, JSON.

A network has dimensions, the first of which changes fastest in the numbers of its NPUs. Along each one, NPUs form
rings, are all joined, or hang on a switch. Bandwidths are in GB/s of 2³⁰ bytes, as the simulator counts them, latencies
in ns.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topologies.arrays import Ints
from topologies.clusters import Machine
from topologies.errors import InputError, right_name
from topologies.text.fields import shown
from topologies.text.files import parse_json
from topologies.text.yaml_files import parse_yaml
from topologies.topology import MAX_ALPHA_US, MAX_GBS, MAX_LINKS, MAX_RANKS, MIN_GBS, Topology

_GB = 2**30 / 1e9  # Bytes of the simulator's GB, in 10⁹ bytes.
_MOST_DIMENSIONS = 16
_KINDS = ("Ring", "FullyConnected", "Switch")
_OLDER_KINDS = {"AllToAll": "FullyConnected"}
_YAML = re.compile(r"^npus_count[ \t]*:", re.MULTILINE)
_JSON = re.compile(r'"(?:topologies-per-dim|units-count|logical-dims)"\s*:')
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,3})?")
_RIGHT = "a network of ASTRA-sim: topology, npus_count, bandwidth (GB/s) and latency (ns), a list each"


@dataclass(frozen=True)
class _Dimension:
    """A dimension of a network.

    Attributes:
        kind: Ring, FullyConnected or Switch.
        size: Number of NPUs along it.
        gbs: Bandwidth of each link in GB/s (10⁹ bytes/s), per direction.
        alpha_us: Latency of each link in µs; of a switch, that of each of the two links on a path.
    """

    kind: str
    size: int
    gbs: float
    alpha_us: float

    @property
    def links(self) -> int:
        """Return the number of links of each NPU along this dimension, both directions of a switch's counted."""
        return {"Ring": min(2, self.size - 1), "FullyConnected": self.size - 1, "Switch": 2}[self.kind]


def is_astra_sim(text: str) -> bool:
    """Return whether a text is YAML with a line `npus_count:`, or JSON with a key of one of the simulator's forms."""
    return _YAML.search(text) is not None or (text.lstrip().startswith("{") and _JSON.search(text) is not None)


def read_astra_sim(text: str, origin: str) -> Machine:
    """Return the machine of a text: a grid of NPUs with the links of every dimension.

    A path over a switch is two links, each with the dimension's latency.

    Args:
        text: The text.
        origin: Name of the text in errors, whose last part names the machine.

    Raises:
        InputError: The text states no network, or one that is too large; the message is one line.
    """
    is_json = text.lstrip().startswith("{")
    document = parse_json(text, origin, _RIGHT) if is_json else parse_yaml(text, origin)
    if not isinstance(document, Mapping):
        raise InputError(f"{origin}: is no mapping; it must be {_RIGHT}")
    if "logical-dims" in document:
        raise InputError(f"{origin}: states sizes of logical dimensions, but no links; it must be {_RIGHT}")
    dimensions = _older_dimensions(document, origin) if is_json else _dimensions(document, origin)
    nranks = math.prod(dimension.size for dimension in dimensions)
    links = nranks * sum(dimension.links for dimension in dimensions)
    if nranks > MAX_RANKS or links > MAX_LINKS:
        raise InputError(
            f"{origin}: {nranks} NPUs with {links} links; it must be at most {MAX_RANKS} with {MAX_LINKS} links"
        )
    remarks = ["dimensions, bandwidths and latencies: read; a GB of ASTRA-sim is 2^30 bytes"]
    if any(key.startswith("hbm-") for key in document):
        remarks.append("the memory's figures (hbm-…) are ignored")
    return Machine(_grid(dimensions, nranks, origin), None, tuple(remarks))


def _grid(dimensions: Sequence[_Dimension], nranks: int, origin: str) -> Topology:
    """Return the topology of the dimensions, whose product is `nranks`; `origin` is its source and names it."""
    columns: list[tuple[Ints, Ints, float, float]] = []  # Links from one vertex of each pair to the other, and back.
    switches: list[str] = []
    stride, rank = 1, np.arange(nranks)
    for number, dimension in enumerate(dimensions):
        size, digit = dimension.size, rank // stride % dimension.size
        if dimension.kind == "Switch":
            group = rank // (stride * size) * stride + rank % stride
            ends = (rank, nranks + len(switches) + group)
            switches += [f"switch{number}.{i}" for i in range(nranks // size)]
            columns.append((*ends, dimension.gbs, dimension.alpha_us))
        else:
            # A ring of two has one link per direction.
            steps = range(1, size) if dimension.kind == "FullyConnected" else [1]
            for step in steps:
                is_lower = digit + step < size
                if dimension.kind == "Ring" and size > 2:
                    is_lower = np.ones(nranks, dtype=bool)
                low = rank[is_lower]
                high = low + ((digit[is_lower] + step) % size - digit[is_lower]) * stride
                columns.append((low, high, dimension.gbs, dimension.alpha_us))
        stride *= size
    src = np.concatenate([end for low, high, *_ in columns for end in (low, high)])
    dst = np.concatenate([end for low, high, *_ in columns for end in (high, low)])
    counts = [2 * len(low) for low, *_ in columns]
    shape = " × ".join(f"{dimension.kind} of {dimension.size}" for dimension in dimensions)
    return Topology(
        name=Path(origin).stem or "network",
        nranks=nranks,
        switches=tuple(switches),
        link_src=src,
        link_dst=dst,
        alpha_us=np.repeat([alpha_us for *_, alpha_us in columns], counts),
        bandwidth_gbs=np.repeat([gbs for _, _, gbs, _ in columns], counts),
        summary=f"{nranks} NPUs: {shape}",
        source=origin,
    )


def _dimensions(document: Mapping[str, Any], origin: str) -> list[_Dimension]:
    """Return the dimensions of a YAML network.

    Raises:
        InputError: A list is missing or wrong, or lists differ in length.
    """
    kinds = _kinds(document, "topology", origin)
    count = len(kinds)
    sizes = [int(size) for size in _numbers(document, "npus_count", count, (2, MAX_RANKS), origin)]
    gbs = _numbers(document, "bandwidth", count, (MIN_GBS, MAX_GBS / _GB), origin)
    ns = _numbers(document, "latency", count, (0, MAX_ALPHA_US * 1e3), origin)
    return [
        _Dimension(kind, size, _gbs(rate), delay / 1e3)
        for kind, size, rate, delay in zip(kinds, sizes, gbs, ns, strict=True)
    ]


def _gbs(rate: float) -> float:
    """Return a rate in the simulator's GB/s in 10⁹ bytes/s, rounded only once."""
    return rate * 2**30 / 1e9


def _older_dimensions(document: Mapping[str, Any], origin: str) -> list[_Dimension]:
    """Return the dimensions of a JSON network, in which NPUs may have more than one link to a neighbour or switch.

    An NPU's links are shared equally by its neighbours along a ring or all others. The latency of its NIC counts at
    both ends of a path, and that of the router once.

    Raises:
        InputError: A list is missing or wrong, or an NPU has too few links for its neighbours.
    """
    kinds = _kinds(document, "topologies-per-dim", origin)
    count = len(kinds)
    sizes = [int(size) for size in _numbers(document, "units-count", count, (2, MAX_RANKS), origin)]
    links = _numbers(document, "links-count", count, (1, MAX_RANKS), origin)
    gbs = _numbers(document, "link-bandwidth", count, (MIN_GBS, MAX_GBS / _GB), origin)
    link_ns, nic_ns, router_ns = (
        _numbers(document, key, count, (0, MAX_ALPHA_US * 1e3), origin, default)
        for key, default in (("link-latency", None), ("nic-latency", 0.0), ("router-latency", 0.0))
    )
    dimensions = []
    for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        neighbours = {"Ring": min(2, size - 1), "FullyConnected": size - 1, "Switch": 1}[kind]
        if links[i] % neighbours:
            raise InputError(
                f"{origin}: links-count: {links[i]:g} links of an NPU to {neighbours} neighbours in dimension {i + 1};"
                " it must be a multiple"
            )
        alpha_ns = link_ns[i] + (nic_ns[i] + router_ns[i] / 2 if kind == "Switch" else 2 * nic_ns[i])
        dimensions.append(_Dimension(kind, size, _gbs(gbs[i] * links[i] / neighbours), alpha_ns / 1e3))
    return dimensions


def _kinds(document: Mapping[str, Any], key: str, origin: str) -> list[str]:
    """Return the kind of each dimension, the list of `key`, in which a text stands for a list of one.

    Raises:
        InputError: It is missing, no list, empty or too long, or holds an unknown kind.
    """
    kinds = document.get(key)
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not 1 <= len(kinds) <= _MOST_DIMENSIONS:
        raise InputError(f"{origin}: {key}: must be a list of 1 to {_MOST_DIMENSIONS} kinds, as in {_RIGHT}")
    kinds = [_OLDER_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    for kind in kinds:
        if kind not in _KINDS:
            hint = right_name(kind, _KINDS) if isinstance(kind, str) else f"it must be one of {', '.join(_KINDS)}"
            raise InputError(f"{origin}: {key}: {shown(kind)} is not known; {hint}")
    return kinds


def _numbers(
    document: Mapping[str, Any],
    key: str,
    count: int,
    limits: tuple[float, float],
    origin: str,
    default: float | None = None,
) -> list[float]:
    """Return the numbers of the list of `key`, one for each dimension; counts must be whole.

    Args:
        document: The document.
        key: The key.
        count: Number of dimensions.
        limits: Smallest and largest number.
        origin: Name of the document in errors.
        default: Number of each dimension where the key is missing; None where it must be there.

    Raises:
        InputError: The list is missing, has another length, or holds something else.
    """
    values = document.get(key)
    if values is None and default is not None:
        return [default] * count
    if not isinstance(values, list) or len(values) != count:
        raise InputError(f"{origin}: {key}: must be a list of {count}, a number for each dimension, as in {_RIGHT}")
    low, high = limits
    numbers = []
    for value in values:
        text = value if isinstance(value, str) else json.dumps(value) if type(value) in (int, float) else ""
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        is_whole = key not in ("npus_count", "units-count", "links-count") or number.is_integer()
        if not (low <= number <= high and is_whole):
            raise InputError(f"{origin}: {key}: {shown(value)}: must be a number from {low:g} to {high:g}")
        numbers.append(number)
    return numbers
