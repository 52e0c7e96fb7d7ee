"""An executor's costs beyond α and bandwidth, by protocol and kind of link.

A message of b bytes under a protocol holds its link, and the limits that the link shares, for
b / (bandwidth · efficiency) and then for the gap (LogGP's g, Alexandrov et al., SPAA 1995). The receiver can use the
message as soon as its bytes and the protocol's latency have passed. The latency is that of a whole step on a link of
the slowest kind that the message crosses, wire and switches included: where costs are on, it stands **in place of** the
links' own α, so that nothing is counted twice. A kind of link without a latency keeps its α. The gap does not delay the
arrival, so a bound of the network without gaps also holds with them. Nothing is sent before the start, and one
threadblock moves no more than its own bandwidth, however fast the link is. Multicasts and reductions by switches have a
latency and an efficiency of their own where a protocol states them; under other protocols switches only forward.

Costs are off until `topologies.costed.with_costs` puts them on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import Floats, Ints
from topologies.errors import InputError, right_name

# Kinds of links; a kind's number is its index here. A path has the highest kind among the links that it crosses.
LINK_KINDS = ("other", "nvlink", "pcie", "network")
PROTOCOLS = ("LL", "LL128", "Simple")
ANY = "any"  # In place of a protocol: the best of every figure, which no protocol can beat.
MAX_COST_US = 1e6
MIN_EFFICIENCY = 1e-3


@dataclass(frozen=True)
class SwitchCosts:
    """The costs of a multicast or a reduction by a switch under a protocol.

    Attributes:
        latency_us: Latency of one operation in µs, in place of its links' α.
        efficiency: Bytes of data per byte on the link. An operation of b bytes holds each port that it crosses for
            b / (bandwidth · efficiency); nothing else crosses the port meanwhile.
    """

    latency_us: float = 0.0
    efficiency: float = 1.0


@dataclass(frozen=True)
class Protocol:
    """The costs of one protocol; a mapping gives a figure for each kind of link.

    Attributes:
        start_us: Time in µs before the first step, once per call.
        threadblock_gbs: Highest rate in GB/s of one threadblock, per direction.
        latency_us: Latency of a step in µs, in place of the links' α, which a kind that is missing here keeps.
        efficiency: Bytes of data per byte on the link, relative to the bandwidth that the topology states; 1 for a kind
            that is missing here.
        gap_us: Time in µs for which a message occupies its link in addition to its bytes; 0 for a kind that is missing
            here.
        links: Kinds of links on which the protocol gives right results and may be used.
        switch_ops: Costs of multicasts and reductions by switches; None: the protocol has no such operations.
        note: Source of the figures where it is not that of the other protocols; without effect.
    """

    start_us: float = 0.0
    threadblock_gbs: float = math.inf
    latency_us: Mapping[str, float] = field(default_factory=dict)
    efficiency: Mapping[str, float] = field(default_factory=dict)
    gap_us: Mapping[str, float] = field(default_factory=dict)
    links: tuple[str, ...] = LINK_KINDS
    switch_ops: SwitchCosts | None = None
    note: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Figures:
    """The costs of links under a protocol; each array has shape (len(LINK_KINDS),) and is indexed by the kind of link.

    Attributes:
        latency_us: Latency of a step in µs; NaN where the links' own α holds.
        efficiency: Bytes of data per byte on the link.
        gap_us: Time in µs for which a message occupies its link in addition to its bytes.
        switch_ops: Costs of multicasts and reductions by switches, see `Protocol`.
    """

    latency_us: Floats
    efficiency: Floats
    gap_us: Floats
    switch_ops: SwitchCosts | None


@dataclass(frozen=True)
class Costs:
    """The costs of an executor by protocol.

    Attributes:
        protocols: The costs of each protocol by name, in the order of PROTOCOLS.
        source: Where the figures come from.

    Raises:
        InputError: A figure is out of range, a kind of link or a protocol is unknown, or there is no protocol.
    """

    protocols: Mapping[str, Protocol]
    source: str = ""

    def __post_init__(self) -> None:
        if not self.protocols:
            raise InputError(f"costs: no protocol; it must be at least one of {', '.join(PROTOCOLS)}")
        for name, protocol in self.protocols.items():
            check_choice(name, PROTOCOLS, "costs", "protocol")
            where = f"costs: {name}"
            _check(where, "start_us", protocol.start_us, 0, MAX_COST_US)
            _check(where, "threadblock_gbs", min(protocol.threadblock_gbs, 1e9), 1e-9, 1e9)
            for key, low, high in (("latency_us", 0, MAX_COST_US), ("efficiency", MIN_EFFICIENCY, 1)):
                _check_kinds(where, key, getattr(protocol, key), low, high)
            _check_kinds(where, "gap_us", protocol.gap_us, 0, MAX_COST_US)
            for kind in protocol.links:
                check_choice(kind, LINK_KINDS, f"{where}: links", "kind of link")
            if protocol.switch_ops is not None:
                _check(f"{where}: switch_ops", "latency_us", protocol.switch_ops.latency_us, 0, MAX_COST_US)
                _check(f"{where}: switch_ops", "efficiency", protocol.switch_ops.efficiency, MIN_EFFICIENCY, 1)
        object.__setattr__(self, "protocols", {n: self.protocols[n] for n in PROTOCOLS if n in self.protocols})

    def usable(self, kinds: Collection[str]) -> list[str]:
        """Return the names of the protocols that may be used on all of these kinds of links, in the order of PROTOCOLS.

        The list is empty where there is none.
        """
        return [name for name, protocol in self.protocols.items() if set(kinds) <= set(protocol.links)]

    def figures(self, names: Collection[str]) -> Figures:
        """Return the costs of links under a protocol, or the best of each figure under several protocols.

        The best latency and gap are the smallest, the best efficiency is the largest, for each kind of link and for
        switches' operations. The latency of a kind is NaN (the links keep their α) where one of the protocols states
        none for it. `switch_ops` is None where none of the protocols has any.

        Args:
            names: Names of the protocols, at least one, each of which the costs state.
        """
        protocols = [self.protocols[name] for name in names]

        def table(key: str, absent: float) -> Floats:
            """Return a figure of each protocol and kind of link: float64 (protocols, kinds).

            Args:
                key: Name of the figure, a mapping by kind in `Protocol`.
                absent: Value for a kind that the protocol states no figure for.
            """
            return np.array(
                [[getattr(protocol, key).get(kind, absent) for kind in LINK_KINDS] for protocol in protocols]
            )

        # The links' own α may be less than a stated latency, so one protocol without a latency keeps α for all.
        latency = table("latency_us", math.nan).min(axis=0)
        switch_costs = [protocol.switch_ops for protocol in protocols if protocol.switch_ops is not None]
        best = (
            SwitchCosts(
                min(costs.latency_us for costs in switch_costs), max(costs.efficiency for costs in switch_costs)
            )
            if switch_costs
            else None
        )
        return Figures(latency, table("efficiency", 1.0).max(axis=0), table("gap_us", 0.0).min(axis=0), best)


def check_choice(name: str, choices: Collection[str], where: str, kind: str) -> None:
    """Raise InputError if `name` is not among `choices`; `where` and `kind` name the place and the kind of name."""
    if name not in choices:
        right = right_name(name, list(choices))
        raise InputError(f"{where}: {name[:40]!r} is no {kind}; {right}")


def kind_numbers(name: str, count: int) -> Ints:
    """Return a column of `count` links of the kind `name`: int64 (count,), each its index in LINK_KINDS.

    `name` must be in LINK_KINDS.
    """
    return np.full(count, LINK_KINDS.index(name), dtype=np.int64)


def _check_kinds(where: str, key: str, by_kind: Mapping[str, float], low: float, high: float) -> None:
    """Raise InputError if a figure has an unknown kind of link, or is not from `low` to `high`.

    Args:
        where: Place of the figures, with which the message begins.
        key: Name of the figures in the message.
        by_kind: The figures by kind of link.
        low: Smallest allowed figure.
        high: Largest allowed figure.
    """
    for kind, value in by_kind.items():
        check_choice(kind, LINK_KINDS, f"{where}: {key}", "kind of link")
        _check(f"{where}: {key}", kind, value, low, high)


def _check(where: str, key: str, value: float, low: float, high: float) -> None:
    """Raise InputError if `value` is not from `low` to `high`, both included; NaN is not.

    `where` and `key` name the figure in the message.
    """
    if not low <= value <= high:
        raise InputError(f"{where}: {key} {value:g}; it must be {low:g} to {high:g}")
