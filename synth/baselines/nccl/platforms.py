"""What a cloud's plug-ins tell NCCL of its network, and what they choose in NCCL's place.

Source: aws-ofi-nccl (2daf7d3, August 2026), src/platform-aws.cpp and src/tuner. The network plug-in states a latency of
its NICs, by which NCCL's model prices every step between nodes; so it did in all versions since May 2023. The tuner
plug-in looks up regions of message size and ranks; with two nodes or fewer it leaves the choice to NCCL, and so did
its first version, of December 2023.
"""

from __future__ import annotations

import math
import re
from functools import cache

from synth.baselines.nccl.aws_regions import REGIONS

# µs, the first that fits; names of EC2's machines
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
_TUNED_NODES = 3  # from which the tuner decides
_MOST_BYTES, _MOST_RANKS = 100 << 30, 1 << 20  # ∞ in REGIONS
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEAST = 1e-6  # in place of 0 bytes, which have no logarithm
_ON_EDGE = 1e-9  # of a logarithm

Corner = tuple[float, float]  # logarithms to base 2 of bytes and of ranks
Region = tuple[str, str, tuple[Corner, ...]]  # algorithm, protocol, corners


def net_latency_us(platform: str) -> float:
    """What NCCL is told that a NIC takes on a machine that a cloud calls so; 0: nothing, as by InfiniBand's plug-in."""
    return next((us for pattern, us in _NET_LATENCY_US if re.fullmatch(pattern, platform)), 0.0)


def tuned(platform: str, nranks: int, nnodes: int, collective: str, size_bytes: float) -> list[tuple[str, str]]:
    """(algorithm, protocol) that the cloud's tuner would have, first choice first; empty: it leaves all to NCCL.

    size_bytes: of the whole message, for allgather what a rank ends with.
    """
    name = _TUNED.get(platform)
    if name is None or nnodes < _TUNED_NODES or nranks % nnodes:
        return []
    those = _regions().get((name, nranks // nnodes, collective), ())
    at = math.log2(max(size_bytes, _LEAST)), math.log2(nranks)
    return [(algorithm, protocol) for algorithm, protocol, corners in those if _holds(corners, at)]


@cache
def _regions() -> dict[tuple[str, int, str], list[Region]]:
    """By machine, GPUs a node and collective."""
    found: dict[tuple[str, int, str], list[Region]] = {}
    those: list[Region] = []
    for line in re.sub(r"\n +", " ", REGIONS).strip().splitlines():
        head, region, corners = line.partition(":")
        words = head.split()
        if region:
            those.append((words[0], words[1], tuple(_corner(text) for text in corners.split())))
        else:
            those = found.setdefault((words[0], int(words[1]), words[2]), [])
    return found


def _corner(text: str) -> Corner:
    size, ranks = text.split("@")
    unit = _UNITS.get(size[-1], 0)
    in_bytes = _MOST_BYTES if size == "∞" else int(size[:-1]) * unit if unit else int(size)
    return math.log2(max(in_bytes, _LEAST)), math.log2(_MOST_RANKS if ranks == "∞" else float(ranks))


def _holds(corners: tuple[Corner, ...], at: Corner) -> bool:
    """Whether a point lies in a polygon or on its edge: an odd number of edges lies to its left."""
    x, y = at
    left = False
    for (ax, ay), (bx, by) in zip(corners, (*corners[1:], corners[0]), strict=True):
        if abs(ay - by) < _ON_EDGE:
            if abs(y - ay) < _ON_EDGE and min(ax, bx) - _ON_EDGE <= x <= max(ax, bx) + _ON_EDGE:
                return True
            continue
        if min(ay, by) - _ON_EDGE <= y <= max(ay, by) + _ON_EDGE:
            crossing = ax + (y - ay) / (by - ay) * (bx - ax)
            if abs(crossing - x) < _ON_EDGE:
                return True
            left ^= (ay > y) != (by > y) and crossing < x
    return left
