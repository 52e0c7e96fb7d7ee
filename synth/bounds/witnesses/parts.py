"""Witnesses by partitions: a sum that all its contributors want must be sent between the parts.

Take the first part that has all contributions. Each other part has sent by then, and must still receive, so that k
parts need 2(k-1) sends between them. For one message size, steps inside the parts count too:

1. Inside a part nothing gets from rank to rank in less than the least latency there, λ, or the least between parts if
   that is less. So a send between parts that leaves before λ carries the contribution of its sender only, and what
   comes by a send after T - λ, with T the end, is of use to its receiver only.
2. Draw a contributor and a receiver of each part by lot, and ask only that the drawn contributions come to the drawn
   receivers. That needs 2(k-1) sends for each lot. If each part has h or more of both, an early or a late send is of
   use for one lot in h, or fewer. So on average early and late sends count 1/h of a send.
3. If the 2(k-1) sends take the time b of the links between parts, these links are in use for b + 2λ(1 - 1/h), or for b
   · h if that is less: then all sends are early or late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from synth.bounds.witness import NOTHING, Limit, ResourceWitness, whole_network
from synth.model.problem import Problem
from topologies.arrays import segment_sums


@dataclass(frozen=True, kw_only=True)
class Parts(ResourceWitness):
    """A partition of the ranks, with resources of which every link between two parts uses one.

    Attributes:
        parts: Local ranks of every part.
        at_bytes: Message size in bytes at which steps inside the parts count too; 0: sends count, whatever the size.
    """

    kind: ClassVar[str] = "parts"
    counts_all_paths: ClassVar[bool] = True
    parts: tuple[tuple[int, ...], ...] = ()
    at_bytes: float = 0.0

    def limit(self, problem: Problem) -> Limit:
        """Return (µs, µs per byte, inf at most) of the sends between parts, or (0, µs / `at_bytes`, µs) with a size.

        Without a size, the µs are the least α of the links between parts. With `at_bytes` steps inside the parts count
        too. Then larger messages need that time too, and smaller ones their part of it (see `synth.bounds.witness`).
        The result is (0, 0, inf) where a path through switches that is no link uses none of the resources, and with a
        size where steps inside the parts prove nothing more.

        Raises:
            BadWitness: The parts are no partition of all ranks, a part has no member of the group, the collective is no
                allreduce, no chunk is in two parts, a resource does not exist, a link between parts uses none, or the
                size is neither 0 nor a number of bytes from 1 to 10¹⁸.
        """
        if self.at_bytes:
            self.check_size(self.at_bytes)
        net, collective = whole_network(problem), problem.collective
        part = np.full(problem.nranks, -1, dtype=np.int64)
        for i, ranks in enumerate(self.parts):
            part[self.flags(problem, ranks)] = i
        if (part < 0).any() or sum(len(ranks) for ranks in self.parts) != problem.nranks:
            raise self.refusal("parts overlap or leave ranks out; every rank must be in exactly one")
        if not (collective.reduces.all() and np.array_equal(collective.pre, collective.post)):
            raise self.refusal("the collective is not an allreduce; it must be an allreduce, or several")
        if len(np.unique(part[: collective.nranks])) < len(self.parts):
            raise self.refusal("a part has no member of the group; it must have one")
        # A hyperlink may serve as many parts as it has pairs between parts.
        times = segment_sums(part[net.pairs.src] != part[net.pairs.dst], net.pairs.ptr)
        capacity, nparts = self.capacity(problem, net, times), len(self.parts)
        if self.is_bypassed(net, part):
            return NOTHING
        part_of_chunk, contributors = np.unique(
            collective.pre[:, 1] * nparts + part[collective.pre[:, 0]], return_counts=True
        )
        sends = 2 * (np.bincount(part_of_chunk // nparts, minlength=collective.nchunks) - 1)
        if not sends.any():
            raise self.refusal("no chunk is in two parts; there must be one that has to be sent between them")
        translates = 1 if problem.quotient is None else problem.quotient.order
        share = float(sends @ collective.fraction) * translates
        # The last of the counted sends arrives a latency after it has left.
        latency_us, byte_us = self.crossing_alpha_us(net, net.carriers.alpha_us[times > 0]), share / capacity / 1e3
        if not self.at_bytes:
            return latency_us, byte_us, np.inf
        fewest = int(contributors[sends[part_of_chunk // nparts] > 0].min())
        inner_us = min(latency_us, float(net.carriers.alpha_us[times == 0].min(initial=np.inf)))
        if net.switch_graph is not None:
            inner_us = min(inner_us, net.switch_graph.least_alpha_us(np.ones(len(net.switch_graph.src), dtype=bool)))
        if fewest == 1 or inner_us <= 0:
            return NOTHING
        busy_us = byte_us * self.at_bytes
        least_us = latency_us + min(busy_us * fewest, busy_us + 2 * inner_us * (1 - 1 / fewest))
        return 0.0, least_us / self.at_bytes, least_us
