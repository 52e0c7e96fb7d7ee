"""Witnesses by prices of links, and their check: at each moment the links of one state only can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from synth.bounds.metric import carrier_lengths, required_lengths
from synth.bounds.witness import Limit, Witness
from synth.model.problem import Problem
from synth.reconfiguration.relaxed import places_of
from synth.reconfiguration.states import ChangingNetwork


@dataclass(frozen=True, kw_only=True)
class StatePrices(Witness):
    """A price for each link of a relaxed network, where a state offers its links' prices times their bandwidths.

    The bytes of each chunk use up at least the price of the shortest path that it must take. In a µs the network offers
    at most what its best state offers, whichever state it is in. So all sends need at least what they use up by what
    that state offers. It is the dual of the linear program that gives every state a share of the time.

    Attributes:
        prices: Price ≥ 0 of each link, in the order of the relaxed network's links.
    """

    kind: ClassVar[str] = "state-prices"
    prices: tuple[float, ...] = ()

    def limit(self, problem: Problem) -> Limit:
        """Raise BadWitness: a problem does not say what the states are; `limit_over` needs them too."""
        raise self.refusal(f"proves nothing about {problem.topology.name[:40]} without its states")

    def limit_over(self, network: ChangingNetwork, states: tuple[int, ...], problem: Problem) -> Limit:
        """Return (α, µs per byte, inf at most) for all schedules over some states; α is the least latency in µs.

        Args:
            network: The network.
            states: Numbers of the states.
            problem: The collective on the relaxed network of the states.

        Raises:
            BadWitness: There is not a finite price ≥ 0 for each link.
        """
        prices, net = np.array(self.prices), problem.network
        if len(prices) != net.nlinks or not ((prices >= 0) & (prices < np.inf)).all():
            raise self.refusal(f"has {len(prices)} prices; it must be {net.nlinks}, each finite and 0 or more")
        offered = max(
            float(prices[place] @ network.states[number].bandwidth_gbs)
            for number, place in zip(states, places_of(network, states), strict=True)
        )
        if not 0 < offered < np.inf:
            return 0.0, 0.0, np.inf
        lengths = carrier_lengths(problem, np.concatenate([np.zeros(net.nresources), prices]))
        used = float(required_lengths(problem, lengths) @ problem.collective.fraction)
        return float(net.alpha_us.min()), used / offered / 1e3, np.inf
