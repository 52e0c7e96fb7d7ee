"""What an executor costs beyond α and bandwidth, by protocol and kind of link.

A message of b bytes under a protocol holds its link, and what this shares with others, for b / (bandwidth ·
efficiency) and then for the gap (LogGP's g, Alexandrov et al., SPAA 1995); it can be used at the other end at once
after the bytes and the protocol's latency. The latency is that of a whole step on a link of the slowest kind that the
message crosses, wire and switches included: where costs are on it stands **in place of** the links' own α, so that
nothing is counted twice. A kind without one keeps its α. The gap is not in the arrival, so that a bound of the network
without it holds with it. Nothing is sent before the start; one threadblock moves no more than its bandwidth, whatever
the link has. What switches multicast and reduce has a latency and an efficiency of its own, where a protocol states
them; under others switches only forward.

Costs are off until `topologies.costed.with_costs` puts them on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import Floats, Ints
from topologies.errors import InputError, did_you_mean

KINDS = ("other", "nvlink", "pcie", "network")  # of links, by number; a path is of the last that it crosses
PROTOCOLS = ("LL", "LL128", "Simple")
ANY = "any"  # in place of a protocol: of every figure the best, which none can beat
MAX_COST_US = 1e6
MIN_EFFICIENCY = 1e-3


@dataclass(frozen=True)
class SwitchCosts:
    """What a multicast or a reduction by a switch costs under a protocol.

    Attributes:
        latency_us: of one, in place of its links' α.
        efficiency: bytes of data in a byte on the link: one of b bytes holds each port that it crosses for
            b / (bandwidth · efficiency), in which nothing else goes through.
    """

    latency_us: float = 0.0
    efficiency: float = 1.0


@dataclass(frozen=True)
class Protocol:
    """What one protocol costs; by kind of link where mappings.

    Attributes:
        start_us: before the first step, once a call.
        threadblock_gbs: what one threadblock moves at most, each way.
        latency_us: of a step, in place of the links' α.
        efficiency: bytes of data in a byte on the link, of the bandwidth that the topology states.
        gap_us: that a message occupies its link for besides its bytes.
        links: kinds on which the protocol is right.
        switch_ops: of switches that multicast and reduce; None: under it they do not.
        note: where its figures come from, if not all from where the others do; of no effect.
    """

    start_us: float = 0.0
    threadblock_gbs: float = math.inf
    latency_us: Mapping[str, float] = field(default_factory=dict)
    efficiency: Mapping[str, float] = field(default_factory=dict)
    gap_us: Mapping[str, float] = field(default_factory=dict)
    links: tuple[str, ...] = KINDS
    switch_ops: SwitchCosts | None = None
    note: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Figures:
    """By the number of a kind of link, each shape (len(KINDS),); latency NaN where the links' own α holds.

    switch_ops: see `Protocol`.
    """

    latency_us: Floats
    efficiency: Floats
    gap_us: Floats
    switch_ops: SwitchCosts | None


@dataclass(frozen=True)
class Costs:
    """Costs of an executor by protocol (of PROTOCOLS, in this order), and where the figures come from.

    Raises InputError (one line) for a figure that cannot be, a kind or a protocol that is not known, or none at all.
    """

    protocols: Mapping[str, Protocol]
    source: str = ""

    def __post_init__(self) -> None:
        if not self.protocols:
            raise InputError(f"costs: no protocol; it must be at least one of {', '.join(PROTOCOLS)}")
        for name, one in self.protocols.items():
            known(name, PROTOCOLS, "costs", "protocol")
            where = f"costs: {name}"
            _check(where, "start_us", one.start_us, 0, MAX_COST_US)
            _check(where, "threadblock_gbs", min(one.threadblock_gbs, 1e9), 1e-9, 1e9)
            for key, low, high in (("latency_us", 0, MAX_COST_US), ("efficiency", MIN_EFFICIENCY, 1)):
                _check_kinds(where, key, getattr(one, key), low, high)
            _check_kinds(where, "gap_us", one.gap_us, 0, MAX_COST_US)
            for kind in one.links:
                known(kind, KINDS, f"{where}: links", "kind of link")
            if one.switch_ops is not None:
                _check(f"{where}: switch_ops", "latency_us", one.switch_ops.latency_us, 0, MAX_COST_US)
                _check(f"{where}: switch_ops", "efficiency", one.switch_ops.efficiency, MIN_EFFICIENCY, 1)
        object.__setattr__(self, "protocols", {n: self.protocols[n] for n in PROTOCOLS if n in self.protocols})

    def usable(self, kinds: Collection[str]) -> list[str]:
        """The protocols that are right on all of these kinds of links."""
        return [name for name, one in self.protocols.items() if set(kinds) <= set(one.links)]

    def figures(self, names: Collection[str]) -> Figures:
        """What links cost under a protocol; of several the least latency and gap, and the best efficiency."""
        those = [self.protocols[name] for name in names]

        def table(key: str, absent: float) -> Floats:
            return np.array([[getattr(one, key).get(kind, absent) for kind in KINDS] for one in those])

        # an α that one of them leaves alone may be less than what others put in its place: it is not touched
        latency = table("latency_us", math.nan).min(axis=0)
        ops = [one.switch_ops for one in those if one.switch_ops is not None]
        best = SwitchCosts(min(x.latency_us for x in ops), max(x.efficiency for x in ops)) if ops else None
        return Figures(latency, table("efficiency", 1.0).max(axis=0), table("gap_us", 0.0).min(axis=0), best)


def known(name: str, names: Collection[str], where: str, what: str) -> None:
    """Raise InputError for a name that is not among `names`."""
    if name not in names:
        right = did_you_mean(name, list(names)) or f"it must be one of {', '.join(names)}"
        raise InputError(f"{where}: {name[:40]!r} is no {what}; {right}")


def kind_numbers(name: str, count: int) -> Ints:
    """A column of `count` links of one kind."""
    return np.full(count, KINDS.index(name), dtype=np.int64)


def _check_kinds(where: str, key: str, by_kind: Mapping[str, float], low: float, high: float) -> None:
    for kind, value in by_kind.items():
        known(kind, KINDS, f"{where}: {key}", "kind of link")
        _check(f"{where}: {key}", kind, value, low, high)


def _check(where: str, key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{where}: {key} {value:g}; it must be {low:g} to {high:g}")
