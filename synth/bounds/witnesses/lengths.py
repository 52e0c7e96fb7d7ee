"""Witnesses by link lengths: the resources must have the capacity for all length that bytes use up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from synth.bounds.metric import carrier_lengths, required_lengths
from synth.bounds.witness import Limit, Witness
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements


@dataclass(frozen=True, kw_only=True)
class Lengths(Witness):
    """Prices of resources; a link is as long as the sum of its resources' prices.

    Attributes:
        prices: (resource, price) pairs. A resource beyond the network's own (nresources + link) is that link's own
            bandwidth.
    """

    kind: ClassVar[str] = "lengths"
    prices: tuple[tuple[int, float], ...] = ()

    def resource_numbers(self) -> set[int]:
        """Return the resources with a price."""
        return {resource for resource, _ in self.prices}

    def renumbered(self, resource_map: Ints) -> Self:
        """Return a witness with the resources of another network and the same claims; see `Witness.renumbered`."""
        return replace(self, prices=tuple((int(resource_map[resource]), price) for resource, price in self.prices))

    def limit(self, problem: Problem) -> Limit:
        """Return (α, µs per byte, inf at most): the resources must have the capacity for all length that bytes use up.

        α is the network's least in µs, or 0 where nothing has to move. The µs per byte are those of
        `lengths_us_per_byte`. If a resource has more than one price, the last counts.

        Raises:
            BadWitness: A resource does not exist, or a price is negative or not finite.
        """
        net = problem.network
        price = np.zeros(net.nresources + net.nlinks)
        for resource, value in dict(self.prices).items():
            if not 0 <= resource < len(price) or not 0 <= value < np.inf:
                rule = "it must be finite, ≥ 0 and of a resource that exists"
                raise self.refusal(f"the price {value} of resource {resource}; {rule}")
            price[resource] = value
        alpha = float(net.carriers.alpha_us.min()) if find_requirements(problem.collective).any else 0.0
        return alpha, lengths_us_per_byte(problem, price), np.inf


def lengths_us_per_byte(problem: Problem, price: Floats) -> float:
    """Return the µs per byte of the message that link lengths prove; 0 if all prices are 0 or a number overflows.

    It is what all bytes of the message use up of length, by the length that all resources offer in a µs (price ×
    capacity).

    Args:
        problem: The problem.
        price: Price ≥ 0 of every resource, then of every link's own bandwidth, shape (nresources + nlinks,).
    """
    net = problem.network
    # GB/s are 1000 bytes/µs: `capacity` is a thousandth of the length that can be used up in a µs.
    capacity = float(price @ np.concatenate([net.capacity_gbs, net.bandwidth_gbs]))
    if not 0 < capacity < np.inf:
        return 0.0
    required = float(required_lengths(problem, carrier_lengths(problem, price)) @ problem.collective.fraction)
    return required / capacity / 1e3 if required / capacity < np.inf else 0.0
