"""Witnesses by partitions: a sum that all its contributors want must be sent between the parts."""

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
    """

    kind: ClassVar[str] = "parts"
    counts_all_paths: ClassVar[bool] = True
    parts: tuple[tuple[int, ...], ...] = ()

    def limit(self, problem: Problem) -> Limit:
        """Return (µs, µs per byte, inf): a sum that all contributors want, in k parts, needs 2(k-1) sends between them.

        Take the first part that has all contributions: each other one has sent by then, and must still receive. The µs
        are the least α of the links between parts. It is (0, 0, inf) where a path through switches that is no link uses
        none of the resources.

        Raises:
            BadWitness: The parts are no partition of all ranks, a part has no member of the group, the collective is no
                allreduce, no chunk is in two parts, a resource does not exist, or a link between parts uses none.
        """
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
        chunk_of_part = np.unique(collective.pre[:, 1] * nparts + part[collective.pre[:, 0]]) // nparts
        sends = 2 * (np.bincount(chunk_of_part, minlength=collective.nchunks) - 1)
        if not sends.any():
            raise self.refusal("no chunk is in two parts; there must be one that has to be sent between them")
        translates = 1 if problem.quotient is None else problem.quotient.order
        share = float(sends @ collective.fraction) * translates
        # The last of the counted sends arrives a latency after it has left.
        return self.crossing_alpha_us(net, net.carriers.alpha_us[times > 0]), share / capacity / 1e3, np.inf
