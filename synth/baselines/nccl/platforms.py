"""A cloud's plug-ins for NCCL: the network's latency that they state, and the choices that they make in NCCL's place.

Source: aws-ofi-nccl (2daf7d3, August 2026), src/platform-aws.cpp and src/tuner. The network plug-in states a latency of
its NICs, by which NCCL's model prices every step between nodes; so did all versions since May 2023. The tuner plug-in
looks up regions of message size and ranks; with two nodes or fewer it leaves the choice to NCCL, and so did its first
version, of December 2023.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path

# µs by patterns of names of EC2's machines; the first pattern that fits counts.
_NET_LATENCY_US = (
    (r"p3dn\..*", 150.0),
    (r"(p4de?|p5e?|g5)\..*", 75.0),
    (r"(p5en|p[6-9][a-z0-9-]*|g7e)\..*", 35.0),
)
_TUNED = {
    "p5.48xlarge": "p5",
    "p5e.48xlarge": "p5",
    "p5en.48xlarge": "p5en",
    "p6-b200.48xlarge": "p6-b200",
    "p6-b300.48xlarge": "p6-b300",
}
_TUNED_NODES = 3  # fewest nodes for which the tuner decides
_MOST_BYTES, _MOST_RANKS = 100 << 30, 1 << 20  # values of ∞ in aws_regions.txt
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEAST = 1e-6  # bytes instead of 0, which has no logarithm
_ON_EDGE = 1e-9  # difference of logarithms

Corner = tuple[float, float]  # logarithms to base 2 of bytes and of ranks
Region = tuple[str, str, tuple[Corner, ...]]  # algorithm, protocol, corners


def net_latency_us(platform: str) -> float:
    """Return the latency in µs that a cloud's plug-in states to NCCL for the NICs of a machine.

    It is 0 for a name that no plug-in knows, as by InfiniBand's plug-in.
    """
    return next((us for pattern, us in _NET_LATENCY_US if re.fullmatch(pattern, platform)), 0.0)


def tuned(platform: str, nranks: int, nnodes: int, collective: str, size_bytes: float) -> list[tuple[str, str]]:
    """Return (algorithm, protocol) of the cloud's tuner, first choice first; empty if it leaves the choice to NCCL.

    It does so for other machines, on fewer than three nodes, and where ranks do not divide evenly among nodes.

    Args:
        platform: The cloud's name of the machine.
        nranks: Number of ranks.
        nnodes: Number of nodes.
        collective: Name of the collective.
        size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.
    """
    name = _TUNED.get(platform)
    if name is None or nnodes < _TUNED_NODES or nranks % nnodes:
        return []
    regions = _regions().get((name, nranks // nnodes, collective), ())
    point = math.log2(max(size_bytes, _LEAST)), math.log2(nranks)
    return [(algorithm, protocol) for algorithm, protocol, corners in regions if _holds(corners, point)]


@cache
def _regions() -> dict[tuple[str, int, str], list[Region]]:
    """Return the regions of AWS's tuner, in the order of the source, by (machine, GPUs a node, collective).

    The machine has the tuner's name, such as "p5en": a value of `_TUNED`. The text is parsed once; the result must not
    be changed.
    """
    text = Path(__file__).with_name("aws_regions.txt").read_text(encoding="utf-8")
    regions_of: dict[tuple[str, int, str], list[Region]] = {}
    current_regions: list[Region] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        head, region, corners = line.partition(":")
        words = head.split()
        if region:
            current_regions.append((words[0], words[1], tuple(_corner(text) for text in corners.split())))
        else:
            current_regions = regions_of.setdefault((words[0], int(words[1]), words[2]), [])
    return regions_of


def _corner(text: str) -> Corner:
    """Return the corner that a text `bytes@ranks` states, as logarithms to base 2.

    Bytes may have the unit K, M or G (powers of 1024). ∞ is 100 GiB or 2²⁰ ranks, and 0 bytes are 10⁻⁶.
    """
    size, ranks = text.split("@")
    unit = _UNITS.get(size[-1], 0)
    in_bytes = _MOST_BYTES if size == "∞" else int(size[:-1]) * unit if unit else int(size)
    return math.log2(max(in_bytes, _LEAST)), math.log2(_MOST_RANKS if ranks == "∞" else float(ranks))


def _holds(corners: tuple[Corner, ...], point: Corner) -> bool:
    """Return True if a point lies in a polygon or on its edge: an odd number of edges lies to its left."""
    x, y = point
    is_inside = False
    for (ax, ay), (bx, by) in zip(corners, (*corners[1:], corners[0]), strict=True):
        if abs(ay - by) < _ON_EDGE:
            if abs(y - ay) < _ON_EDGE and min(ax, bx) - _ON_EDGE <= x <= max(ax, bx) + _ON_EDGE:
                return True
            continue
        if min(ay, by) - _ON_EDGE <= y <= max(ay, by) + _ON_EDGE:
            crossing = ax + (y - ay) / (by - ay) * (bx - ax)
            if abs(crossing - x) < _ON_EDGE:
                return True
            is_inside ^= (ay > y) != (by > y) and crossing < x
    return is_inside
