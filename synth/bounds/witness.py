"""What all witnesses have in common: objects that prove a bound on the time and can be checked from the problem.

A witness gives a lower limit in µs for any message size, in the model of `docs/pages/guides/reading.md`, over all
algorithms and all numbers of chunks. Each kind is a class: its fields say what to look at, and its `limit` computes
what that proves. The searches make witnesses that claim nothing. The classes import none of the searches, no engine and
no solver; they share with the searches only `metric` and `distances`, by which they measure lengths.

A row of a proof file has the same fields for all kinds (`_FORM` of `synth/storage/proof.py`). So kinds share the names
of fields, and each kind says what its fields hold: `parts` are sets of ranks (the nodes of the network, a partition, or
one set), `times` are times in µs, and `prices` are (index, number) pairs.

Some witnesses prove a time T for messages of `at_bytes` bytes. Larger messages then need T too. A smaller message needs
at least its part of T: a faster schedule of it, with all times stretched in proportion, would be a schedule for
`at_bytes` that is faster than T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from topologies.arrays import flags_of, segment_sums
from topologies.errors import BadWitness
from topologies.network import Network

Limit = tuple[float, float, float]  # (µs, µs per byte, µs at most), as in `Witness`
NOTHING: Limit = (0.0, 0.0, np.inf)
MOST_BYTES = 1e18  # Largest message size of a witness that is about one size.


@dataclass(frozen=True, kw_only=True)
class Witness(ABC):
    """An object that proves a lower limit on the time; without numbers it claims nothing.

    At message size s the limit is min(cap_us, base_us + per_byte_us · s).

    Attributes:
        kind: Name of the kind, as proof files state it.
        of_quotients: True if a witness proves the same of a quotient problem as of the whole problem.
        counts_all_paths: True if a witness counts all paths through switches where a network's links are only some of
            them (`Network.switch_graph`).
        base_us: Limit in µs for an empty message.
        per_byte_us: Limit in µs per byte of the message.
        cap_us: Highest limit in µs; inf where it grows with every byte.
        text: Description for the reader.
        protocol: Protocol to which the limit applies where an executor's costs are on (`Problem.protocols`); "" where
            they are off, or the problem is of one protocol.
    """

    kind: ClassVar[str]
    of_quotients: ClassVar[bool] = True
    counts_all_paths: ClassVar[bool] = False
    base_us: float = 0.0
    per_byte_us: float = 0.0
    cap_us: float = np.inf
    text: str = ""
    protocol: str = ""

    @abstractmethod
    def limit(self, problem: Problem) -> Limit:
        """Return the (µs, µs per byte, µs at most) that the witness proves about a problem, whatever it claims.

        The time before which a call sends nothing is not included.

        Raises:
            BadWitness: It proves nothing.
        """

    @property
    def claims(self) -> Limit:
        """Return (base_us, per_byte_us, cap_us), the numbers that the witness claims to prove."""
        return self.base_us, self.per_byte_us, self.cap_us

    def at(self, size_bytes: float) -> float:
        """Return the claimed limit in µs at a message size in bytes, which is never above `cap_us`."""
        return min(self.cap_us, self.base_us + self.per_byte_us * size_bytes)

    def resource_numbers(self) -> set[int]:
        """Return the resources that the witness names; the empty set for a kind that names none.

        Numbers from the network's nresources on are links' own bandwidths: nresources + link.
        """
        return set()

    def renumbered(self, resource_map: Ints) -> Self:
        """Return a witness with the resources of another network and the same claims, which hold there only if checked.

        Args:
            resource_map: For each resource, and then each link's own bandwidth, its number in the other network.
        """
        del resource_map  # This kind names no resources.
        return self

    @classmethod
    def says_nothing_of(cls, problem: Problem) -> str:
        """Return why witnesses of this kind prove nothing about a problem; empty where they may prove something."""
        if problem.quotient is not None and not cls.of_quotients:
            return "a quotient problem"
        if whole_network(problem).switch_graph is not None and not cls.counts_all_paths:
            return "a network whose links are only some of the paths through its switches"
        return ""

    def refusal(self, why: str) -> BadWitness:
        """Return, and do not raise, the error for a witness that proves nothing.

        Its line has the kind, unless the text names it, the text and `why`.
        """
        return BadWitness(f"{self.text if self.kind in self.text else f'{self.kind} {self.text}'}: {why}")

    def check_size(self, size_bytes: float) -> None:
        """Raise BadWitness unless a message size is a number of bytes from 1 to 10¹⁸."""
        if not 1 <= size_bytes <= MOST_BYTES:
            raise self.refusal(f"the size is {size_bytes:g} bytes; it must be 1 to {MOST_BYTES:g}")

    def one_member(self, problem: Problem, ranks: Sequence[int]) -> int:
        """Return the only one of some local ranks; raise BadWitness unless there is one, a member of the group."""
        if len(ranks) != 1 or not 0 <= ranks[0] < problem.collective.nranks:
            raise self.refusal("it must name one rank of the group")
        return ranks[0]

    def flags(self, problem: Problem, ranks: Iterable[int]) -> Bools:
        """Return local ranks as flags, shape (local ranks,); raise BadWitness for a rank that does not exist."""
        chosen = np.array(list(ranks), dtype=np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < problem.nranks):
            raise self.refusal(f"names a rank that does not exist; ranks are 0..{problem.nranks - 1}")
        return flags_of(problem.nranks, chosen)


@dataclass(frozen=True, kw_only=True)
class ResourceWitness(Witness):
    """A witness that counts sends which share the capacity of some resources.

    Attributes:
        resources: Indices of the network's resources that these sends must use.
    """

    resources: tuple[int, ...] = ()

    def resource_numbers(self) -> set[int]:
        """Return the resources that the witness names."""
        return set(self.resources)

    def renumbered(self, resource_map: Ints) -> Self:
        """Return a witness with the resources of another network and the same claims; see `Witness.renumbered`."""
        return replace(self, resources=tuple(int(resource_map[resource]) for resource in self.resources))

    def capacity(self, problem: Problem, net: Network, times: Ints) -> float:
        """Return the GB/s of the witness's resources in sum, of which every counted send takes some.

        Each link that counts must use one of the resources. If a hyperlink counts more often than it uses them, all of
        them count that much more; if it uses none, the result is inf. Paths that are no links are looked at by
        `is_bypassed`.

        Args:
            problem: The problem.
            net: The problem's network, or that of the whole problem.
            times: How often each link and hyperlink counts when it is used once; 0: not at all.

        Raises:
            BadWitness: A resource does not exist, or a link that counts uses none of them.
        """
        chosen = np.unique(np.array(self.resources, dtype=np.int64))
        if not len(chosen) or chosen[0] < 0 or chosen[-1] >= net.nresources:
            raise self.refusal("resources are missing or do not exist; they must be the network's")
        _, _, uses_ptr, uses_idx, *_ = net.carriers
        uses_chosen = segment_sums(flags_of(net.nresources, chosen)[uses_idx], uses_ptr)
        uncovered = (times > 0) & (uses_chosen == 0)
        if uncovered[: net.nlinks].any():
            name = problem.link_name(int(np.argmax(uncovered)))
            raise self.refusal(f"link {name} uses none of its resources; it must use one")
        if uncovered.any():
            return np.inf
        most = (times / np.maximum(uses_chosen, 1)).max(initial=1.0)
        return float(net.capacity_gbs[chosen].sum() * most)

    def is_bypassed(self, net: Network, part: Ints) -> bool:
        """Return whether a path that is no link leads to another part without any of the witness's resources.

        A witness about the sends between parts then proves nothing, not even a latency.

        Args:
            net: The network whose resources they are.
            part: Part of each local rank, int64 (local ranks,); -1 for ranks from which no sends count.
        """
        graph = net.switch_graph
        return graph is not None and graph.joins(part, graph.using(flags_of(net.nresources, np.array(self.resources))))

    def crossing_alpha_us(self, net: Network, alpha_us: Floats) -> float:
        """Return the least latency in µs of what uses the witness's resources, paths through switches included.

        Args:
            net: The network whose resources they are.
            alpha_us: Latencies of the links and hyperlinks that count, at least one.
        """
        least_us, graph = float(alpha_us.min()), net.switch_graph
        if graph is None:
            return least_us
        return min(least_us, graph.least_alpha_us(graph.using(flags_of(net.nresources, np.array(self.resources)))))


def decisive(witnesses: Iterable[Witness], size_bytes: float) -> Witness:
    """Return the witness whose limit is the bound at a message size in bytes.

    That is the highest limit. Where witnesses belong to protocols, it is the least of the protocols' highest limits,
    since an executor's call has one protocol. Of equal witnesses a path comes first, then the earliest.

    Raises:
        ValueError: There are no witnesses.
    """

    def rank(witness: Witness) -> tuple[float, bool]:
        """Return the sort key of a witness: its limit in µs, then whether it is a path."""
        return witness.at(size_bytes), witness.kind == "path"

    best: dict[str, Witness] = {}
    for witness in witnesses:
        best[witness.protocol] = max(best.get(witness.protocol, witness), witness, key=rank)
    return min(best.values(), key=lambda w: w.at(size_bytes))


@lru_cache(maxsize=4)
def countable(problem: Problem) -> Problem:
    """Return the problem where no two wanted chunks share a place of an input buffer: the same one if that is so.

    Of chunks made from the same data (a scan's sums) one send may serve more than one, so their amounts must not be
    added. A chunk with more holders is kept before one with fewer, then the lower number. Chunks that share a place
    with a kept one are wanted nowhere in the result; they keep their numbers and holders. The last four results are
    cached.
    """
    old = problem.collective
    place = old.pre[:, 0] * (int(old.in_index.max(initial=0)) + 1) + old.in_index
    dense = int(place.max(initial=0)) < 8 * len(place) + 64
    if not ((np.bincount(place) > 1).any() if dense else len(np.unique(place)) < len(place)):
        return problem
    places: set[int] = set()
    shared = np.zeros(old.nchunks, dtype=bool)
    by_chunk: dict[int, list[int]] = {}
    for chunk, at in zip(old.pre[:, 1].tolist(), place.tolist(), strict=True):
        by_chunk.setdefault(chunk, []).append(at)
    # Sums of most contributions come first: they prove most.
    for chunk in sorted(by_chunk, key=lambda c: (-len(by_chunk[c]), c)):
        shared[chunk] = not places.isdisjoint(by_chunk[chunk])
        if not shared[chunk]:
            places.update(by_chunk[chunk])
    unshared = ~shared[old.post[:, 1]]
    return replace(problem, collective=replace(old, post=old.post[unshared], out_index=old.out_index[unshared]))


def whole_network(problem: Problem) -> Network:
    """Return the network of a problem, or of the whole problem if this is a quotient problem."""
    return problem.network if problem.quotient is None else problem.quotient.whole
